"""Behaviours of typed answers that pydantic-ai's own tests state and no other test here does."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, Literal, TypeVar

import pytest
from pydantic import BaseModel, Field, PlainSerializer, TypeAdapter, ValidationInfo, field_validator

from agentflow import (
    Agent,
    Approve,
    DataBlock,
    Dep,
    Msg,
    Output,
    PreActing,
    PreReasoning,
    RunContext,
    Suspend,
    TextBlock,
    ThinkingBlock,
    Toolset,
    ToolUseBlock,
    on,
    tool,
)
from agentflow.errors import ModelError, OutputError, ToolArgumentError, UsageError
from agentflow.loop.output import AnswerState, Way
from agentflow.loop.output.form import type_name
from agentflow.models.openai_wire import OpenAIWire
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import Fault, WireReply, WireServer
from agentflow.tools import ToolRegistry
from agentflow.tools.tool import full_tool
from agentflow.vocabulary.ports.model import AnswerModes, ModelRequest

T = TypeVar("T")
IMAGE, OTHER = DataBlock("image/png", data="iVBORw0KGgo="), DataBlock("image/png", data="AAAA")


class Person(BaseModel):
    name: str


class Team(BaseModel):
    people: list[Person]


class City(BaseModel):
    """A place."""

    name: str


class Page(BaseModel, Generic[T]):
    item: T


@dataclass
class Deps:
    step: int


class Stepped(BaseModel):
    x: int

    @field_validator("x")
    @classmethod
    def moved(cls, value: int, info: ValidationInfo) -> int:
        return value + (info.context or 0)


def use(tool_name: str, id: str = "t1", /, **arguments: object) -> ToolUseBlock:  # noqa: A002
    return ToolUseBlock(id, tool_name, arguments)


def msg(*blocks: Any, finish: str | None = None) -> Msg:
    return Msg.assistant(list(blocks), finish_reason=finish)


def final(id: str = "t1", /, **arguments: object) -> Msg:  # noqa: A002
    return msg(ToolUseBlock(id, "final_answer", arguments))


def clerk(output: Any, *said: Any, **given: Any) -> tuple[Agent[Any], ScriptedModel]:
    model = ScriptedModel(list(said))
    return Agent("clerk", model, output=output, **given), model


async def answer(output: Any, *said: Any, deps: Any = None, **given: Any) -> Any:
    """The output of a call."""
    agent, model = clerk(output, *said, **given)
    reply = await agent.call("x", deps=deps)
    model.assert_done()
    return reply.output


def logged(log: list[str], *names: str) -> list[Any]:
    """Tools that note their names."""

    def make(name: str) -> Any:
        async def work() -> str:
            log.append(name)
            return name

        return tool(name=name, description="Work.")(work)

    return [make(name) for name in names]


def states(agent: Agent[Any]) -> list[str]:
    return [result.state for said in agent.session().messages for result in said.tool_results]


# ---- forms


@pytest.mark.parametrize(
    ("form", "said", "meant"),
    [
        (list[Person], final(answer='[{"name": "Ada"}]'), [Person(name="Ada")]),
        (dict[str, int], final(answer='{"a": 1}'), {"a": 1}),
        (str | None, final(answer='["a"]'), '["a"]'),
        (str | None, "Hello.", "Hello."),
        (Person | str, "Nobody. I asked {everyone}.", "Nobody. I asked {everyone}."),
        (Person | str, '{"name": "Ada"}', Person(name="Ada")),
        (int | str, "7", 7),
        ([int, None], msg(use("final_answer_NoneType", answer=None)), None),
        (tuple[str, str], final(answer=["a", "b"]), ("a", "b")),
    ],
)
async def test_what_models_write(form: Any, said: Any, meant: object) -> None:
    """A list or an object as JSON text in a string is read; for a union with `str`, text without JSON is the string."""
    assert await answer(Output(form, retries=0), said) == meant


@pytest.mark.parametrize(
    ("form", "said"),
    [
        (int, final(answer="[1]")),
        (list[int], final(answer="1, 2")),
        (list[int], final(answer="[1]", more=2)),
        (Person | str, '{"nam'),
        (Person | str, 'Here: {"name": 1'),
        (str | None, ""),
        (Person, "Hello."),
        (list[str], "Hello."),
    ],
)
async def test_what_is_not_read_in_another_way(form: Any, said: Any) -> None:
    """Text in a string has to fit; an attempt at JSON is no plain text."""
    agent, _ = clerk(Output(form, retries=0), said, default_hooks=())
    with pytest.raises(OutputError):
        await agent.call("x")


def test_names_of_forms() -> None:
    """Tools and errors have the names of types without modules and brackets; a JSON schema has its title."""
    assert list(Output([Page[City], Page[list[int]]]).tools) == ["final_answer_PageCity", "final_answer_Pagelistint"]
    assert [type_name(kind) for kind in (Person | City, Literal["a.b"], list[Person])] == [
        "Person | City",
        "Literal['a.b']",
        "list[Person]",
    ]
    person = {"title": "Person", "description": "Somebody.\nMore.", "properties": {"name": {"type": "string"}}}
    assert [repr(Output(person)), repr(Output({"properties": {}}))] == ["Output(Person)", "Output(a JSON schema)"]
    forms: list[Any] = [person, {"properties": {}}, Person | None, type(None)]
    abouts = [Output(form).tool.spec.description for form in forms]
    assert [about.split(": ")[1].split(". The")[0] for about in abouts] == [
        "Person (Somebody.)",
        "an object",
        "Person | None",
        "no value",
    ]


def test_text_and_data_are_in_a_list_once() -> None:
    """They have no names to choose by."""
    for twice in ([str, str], [DataBlock, Person, DataBlock], [str, Output(str, validate=str.upper)]):
        with pytest.raises(UsageError, match="in the list twice"):
            Output(twice)


# ---- functions


async def test_a_function_without_a_docstring_is_described() -> None:
    """The model reads that its call ends the work; a tool's description, or the one of `Output`, takes precedence."""

    def book(city: str) -> str:
        return city

    @tool(description="Book it.")
    async def booked(city: str) -> str:
        return city

    described = [Output(book), Output(book, name="go"), Output(booked), Output(booked, description="Go there.")]
    assert [output.tool.spec.description for output in described] == [
        "Give the final answer with book. The work ends with it.",
        "Give the final answer with go. The work ends with it.",
        "Book it.",
        "Go there.",
    ]
    waits = Output(tool(requires_approval=True)(booked.function)).tool.spec
    assert (waits.requires_approval, waits.description.startswith("Give the final answer")) == (True, True)


async def test_functions_of_other_kinds() -> None:
    """Bound methods, partials and functions with dependencies are the last step; what is filled in is hidden."""

    class Desk:
        def book(self, city: str, context: RunContext, deps: Dep[Deps]) -> str:
            return f"{city} by {context.agent.name}, {deps.step}"

    def add(amount: int, city: str) -> str:
        return f"{city} {amount}"

    method = Desk().book
    assert await answer(method, msg(use("book", city="Rome")), deps=Deps(3)) == "Rome by clerk, 3"
    assert list(Output(method).shape.schema["properties"]) == ["city"]
    fixed: Output[str] = Output(functools.partial(add, 5), name="book")
    assert await answer(fixed, msg(use("book", city="Rome"))) == "Rome 5"


async def test_a_handoff() -> None:
    """A function that calls another agent hands over: its output is the call's, and its model calls are counted."""
    inner, _ = clerk(City, final(name="Rome"))

    async def handoff(question: str) -> City:
        return (await inner.call(question)).output

    agent, _ = clerk(handoff, msg(use("handoff", question="Where?")))
    reply = await agent.call("x")
    assert (reply.output, reply.usage.model_calls) == (City(name="Rome"), 2)


async def test_text_of_one_of_several_with_a_function() -> None:
    """A value of a type that is not a class is written with the type's name, not as a function's result."""

    def add(x: int) -> int:
        return x

    output: Output[Any] = Output([add, list[int]])
    assert output.read_result(output.write([1])) == [1]


# ---- what the request says


@pytest.mark.parametrize("way", ["native", "prompt"])
async def test_names_and_descriptions_reach_the_model(way: Way) -> None:
    """In each mode the request has the given name and description, or those of the type or function."""

    def move(name: str) -> str:
        """Move there."""
        return name

    def shown(request: ModelRequest) -> dict[str, Any]:
        schema = request.options.answer_schema
        return json.loads(request.messages[-1].text.split("\n", 1)[1]) if schema is None else dict(schema)

    seen: list[tuple[object, object]] = []
    for output in (
        Output(City, via=way, name="town", description="Where."),
        Output(City, via=way),
        Output(move, via=way),
    ):
        agent, model = clerk(output, '{"name": "Rome"}')
        await agent.call("x")
        seen.append((shown(model.requests[0]).get("title"), shown(model.requests[0])["description"]))
    native = way == "native"
    assert seen == [
        ("town", "Where."),
        ("City" if native else None, "A place."),
        ("move" if native else None, "Move there."),
    ]


async def test_a_prompt_beside_the_schema_mode() -> None:
    """With `via="native"`, `prompt=` is sent beside the schema; without it nothing is added."""
    for prompt, added in (("JSON: {schema}", 1), (None, 0), ("", 0)):
        agent, model = clerk(Output(City, via="native", prompt=prompt), '{"name": "Rome"}')
        await agent.call("x")
        (request,) = model.requests
        assert (len(request.messages), request.options.answer_schema is not None) == (1 + added, True)
        if added:
            assert request.messages[-1].text.startswith('JSON: {"description":"A place."')


async def test_an_empty_prompt_adds_nothing() -> None:
    """With `prompt=""` the format is up to the agent's own instructions."""
    agent, model = clerk(Output(City, via="prompt", prompt=""), '{"name": "Rome"}', system="JSON with a name.")
    assert (await agent.call("x")).output == City(name="Rome")
    assert [said.text for said in model.requests[0].messages] == ["JSON with a name.", "x"]


async def test_hooks_select_the_final_tools() -> None:
    """A hook can hide an output until it is possible; the model is then made to call another tool."""
    planned: list[str] = []

    async def run_query(query: str) -> str:
        return query

    @on(priority=50)
    def hide(event: PreReasoning) -> PreReasoning:
        if not planned:
            event.tools = tuple(spec for spec in event.tools if spec.name != "run_query")
        return event

    agent, model = clerk(
        run_query, msg(use("plan")), msg(use("run_query", "t2", query="q")), tools=logged(planned, "plan"), hooks=[hide]
    )
    assert (await agent.call("x")).output == "q"
    assert [[spec.name for spec in request.tools] for request in model.requests] == [["plan"], ["plan", "run_query"]]


async def test_a_model_that_cannot_be_forced_is_not() -> None:
    """It is offered the final tool without `tool_choice`."""

    class Free(ScriptedModel):
        async def answer_modes(self) -> AnswerModes:
            return AnswerModes(tools=True, forced=False)

    model = Free([final(name="Rome")])
    assert (await Agent("clerk", model, output=City).call("x")).output == City(name="Rome")
    assert model.requests[0].options.tool_choice is None


# ---- refused answers


async def test_text_instead_of_a_call() -> None:
    """A model that has to call the final tool is told that, and nothing about JSON."""
    agent, _ = clerk(Output(City, via="tool"), "Rome.", final(name="Rome"))
    assert (await agent.call("x")).output == City(name="Rome")
    assert agent.session().messages[2].text == "Give your answer by calling the tool final_answer, not as text."


async def test_a_validator_may_take_the_context_first_and_know_the_attempts() -> None:
    """The context can be the first parameter; its `AnswerState` has the refused answers, and how many are allowed."""
    seen: list[tuple[int, int]] = []

    def known(context: RunContext, city: City) -> City:
        state = context.state[AnswerState]
        seen.append((state.sent_back, state.retries))
        if state.sent_back < state.retries:
            raise ValueError("again")
        return city

    said = [final(f"t{number}", name="Rome") for number in range(3)]
    assert await answer(Output(City, validate=known), *said) == City(name="Rome")
    assert seen == [(0, 2), (1, 2), (2, 2)]


def refusing(log: list[tuple[int, int]], times: int) -> Any:
    """A function that refuses its first calls, and notes how many of its answers, and of all, were sent back before."""

    def book(seat: str, run: RunContext) -> str:
        state = run.state[AnswerState]
        log.append((state.own["book"], state.sent_back))
        if len(log) <= times:
            raise ValueError(f"{seat} is taken")
        return seat

    return book


def wait(name: str) -> str:
    raise ValueError("the list is closed")


async def test_an_output_of_a_list_has_its_own_retries() -> None:
    """It is counted apart, while the others share those of the list."""
    log: list[tuple[int, int]] = []
    seats = [msg(use("book", f"t{number}", seat=f"{number}A")) for number in range(1, 5)]
    output = Output([Output(refusing(log, 3), retries=3), Output(wait, retries=1), City], retries=0)
    agent, _ = clerk(output, msg(use("wait", "t0", name="Ada")), *seats)
    assert ((await agent.call("x")).output, log) == ("4A", [(0, 1), (1, 2), (2, 3), (3, 4)])


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ([use("wait", name="Ada")] * 2, "The model answered 2 times, and no answer was accepted as output=wait."),
        ([use("final_answer_City", x=1)], "The model answered once, and no answer was accepted as output=wait | City."),
        (["Hello."], "The model answered once, and no answer was accepted as output=wait | City."),
        ([use("wait", name="Ada"), use("final_answer_City", x=1)], "answered once, .* output=wait | City"),
    ],
)
async def test_the_first_output_without_retries_left_ends_the_call(said: list[Any], error: str) -> None:
    """The error names this output and its number of answers."""
    agent, _ = clerk(
        Output([Output(wait, retries=1), City], retries=0), *[msg(one) if one != "Hello." else one for one in said]
    )
    with pytest.raises(OutputError, match=error):
        await agent.call("x")


@pytest.mark.parametrize("way", ["native", "prompt"])
async def test_an_answer_as_text_counts_for_the_output_that_it_names(way: Way) -> None:
    """So do answers of a side call."""

    def big(city: City) -> None:
        if city.name != "Rome":
            raise ValueError("too small")

    small = '{"answer": {"kind": "final_answer_City", "data": {"name": "Bree"}}}'
    output = Output([Output(City, validate=big, retries=2), Person], via=way, retries=0)
    assert await answer(output, small, small, small.replace("Bree", "Rome")) == City(name="Rome")
    seen: list[object] = []

    async def ask(event: PreReasoning) -> None:
        seen.append((await event.context.complete("x", output=output)).output)

    agent = Agent("a", ScriptedModel([small, small, small.replace("Bree", "Rome"), "Hello."]), hooks=[on(ask)])
    await agent.call("x")
    assert seen == [City(name="Rome")]
    for script, times in (([small] * 3, "3 times"), (['{"answer": {"kind": "no", "data": {}}}'], "once")):
        agent, _ = clerk(output, *script)
        with pytest.raises(OutputError, match=times):
            await agent.call("x")


async def test_text_and_data_have_their_own_retries_too() -> None:
    """They are counted as `str` and `DataBlock`."""
    seen: list[tuple[int, int]] = []

    def known(value: Any, run: RunContext) -> None:
        own = run.state[AnswerState].own
        seen.append((own["str"], own["DataBlock"]))
        if value not in ("Hello.", OTHER):
            raise ValueError("no")

    output = Output(
        [Output(str, validate=known, retries=2), Output(DataBlock, validate=known, retries=1), City], retries=0
    )
    assert await answer(output, "Hm.", msg(IMAGE), "Hm", "Hello.") == "Hello."
    assert seen == [(0, 0), (1, 0), (1, 1), (2, 1)]
    agent, _ = clerk(output, msg(IMAGE), "Hm.", msg(IMAGE))
    with pytest.raises(OutputError, match="answered 2 times, and no answer was accepted as output=DataBlock"):
        await agent.call("x")


@pytest.mark.parametrize("name", ["openai/gpt-4o", "openai/responses/gpt-5"])
async def test_a_refusal_is_not_requested_again(name: str) -> None:
    """The call fails at once, with the model's text: another attempt would be refused too."""
    async with WireServer.openai([WireReply("x", faults=Fault.refusal("I cannot help."))] * 2) as server:
        model = OpenAIWire(name, api_base=server.base_url, api_key="k", family="openai", retries=0)
        agent = Agent("clerk", model, output=Output(City, via="native"))
        with pytest.raises(ModelError, match=r"refused to answer.*'I cannot help\.'") as caught:
            await agent.call("x")
        assert (len(server.requests), caught.value.kind, type(caught.value)) == (1, "content_policy", ModelError)
        reply = await Agent("clerk", model).call("x")
        assert (reply.text, reply.finish_reason) == ("I cannot help.", "content_filter")


@pytest.mark.parametrize("output", [str, City, str | None])
async def test_an_answer_that_a_filter_has_emptied(output: Any) -> None:
    """It is not requested again either, and is not None."""
    agent, model = clerk(output, msg(finish="content_filter"))
    with pytest.raises(ModelError, match="content filter blocked") as caught:
        await agent.call("x")
    assert (len(model.requests), caught.value.kind) == (1, "content_policy")
    partly = msg(TextBlock('{"answer": "a"}'), finish="content_filter")
    assert await answer(str | None, partly) == "a"


# ---- no answer


@pytest.mark.parametrize(
    "empty", ["", msg(), msg(ThinkingBlock("hm", "sig")), msg(ThinkingBlock("hm"), TextBlock(" \n"))]
)
@pytest.mark.parametrize("form", [str | None, City | None, [City, None]])
async def test_no_answer_is_none(form: Any, empty: Any) -> None:
    """An empty reply is requested again once; then it is None, if the type has None. Thoughts stay in the history."""
    seen: list[object] = []
    for hooks in ({}, {"default_hooks": ()}):
        agent, model = clerk(Output(form, validate=seen.append), empty, empty, **hooks)
        assert (await agent.call("x")).output is None
        assert (len(model.requests), seen.pop()) == (2, None)
        last = agent.session().messages[-1]
        assert [type(block) for block in last.content if isinstance(block, ThinkingBlock)] == [
            type(block) for block in getattr(empty, "content", ()) if isinstance(block, ThinkingBlock)
        ]
        assert Output(form).read_result(last.text) is None


@pytest.mark.parametrize(
    ("form", "error"), [(form, "empty 2 times") for form in (City, str, int, dict[str, None], list[None])]
)
async def test_no_answer_is_an_error_otherwise(form: Any, error: str) -> None:
    """A type without None has no empty answer."""
    agent, _ = clerk(form, "", "")
    with pytest.raises(ModelError, match=error):
        await agent.call("x")


async def test_none_can_be_refused() -> None:
    """A validator may ask for more than None."""

    def some(value: str | None) -> None:
        if value is None:
            raise ValueError("not None")

    assert await answer(Output(str | None, validate=some), "", "", "Hello.") == "Hello."


# ---- other calls in the same reply


@pytest.mark.parametrize("way", ["native", "prompt", "tool"])
async def test_first_takes_an_answer_in_text_beside_calls(way: Way) -> None:
    """With `end="first"` a valid answer as text counts, and the calls of the reply are removed; otherwise they run."""
    for text, ran, requests in (('{"name": "Rome"}', [], 1), ("Let me look.", ["look"], 2), ('{"x": 1}', ["look"], 2)):
        log: list[str] = []
        said = msg(ThinkingBlock("hm", "sig"), TextBlock(text), use("look"), use("unknown", "t2"))
        last = final("t3", name="Rome") if way == "tool" else '{"name": "Rome"}'
        agent, model = clerk(Output(City, via=way, end="first"), said, last, tools=logged(log, "look"))
        assert (await agent.call("x")).output == City(name="Rome")
        assert (log, len(model.requests)) == (ran, requests)
        if not ran:
            assert [block.type for block in agent.session().messages[-1].content] == ["thinking", "text"]


async def test_first_takes_an_image_beside_calls() -> None:
    """So does an image, unless it is refused; plain text, and text for a function, is often an introduction."""

    def known(image: Any) -> None:
        if image == OTHER:
            raise ValueError("blurred")

    def move(name: str) -> str:
        return name

    cases: list[tuple[Any, Any, Any, list[str]]] = [
        (Output(DataBlock, end="first", validate=known), IMAGE, IMAGE, []),
        (Output(DataBlock, end="first", validate=known), OTHER, IMAGE, ["look"]),
        (Output(str, end="first"), TextBlock("I look."), "Hello.", ["look"]),
        (Output([City, str], end="first"), TextBlock("I look."), "Hello.", ["look"]),
        (Output(move, end="first", via="prompt"), TextBlock('{"name": "Rome"}'), '{"name": "Oslo"}', ["look"]),
    ]
    for output, first, last, ran in cases:
        log: list[str] = []
        agent, _ = clerk(
            output, msg(first, use("look")), msg(last) if last is IMAGE else last, tools=logged(log, "look")
        )
        await agent.call("x")
        assert log == ran


async def test_one_runs_other_tools_and_no_other_answer() -> None:
    """With `end="one"` the first accepted answer counts, other tools run, and other answers do not."""
    log: list[str] = []

    def first(name: str) -> str:
        log.append("first")
        return name

    def second(name: str) -> str:
        log.append("second")
        return name

    said = msg(use("first", name="a"), use("look", "t2"), use("second", "t3", name="b"))
    for end, ran, last in (("one", ["first", "look"], "a"), ("all", ["first", "look", "second"], "b")):
        log.clear()
        output: Output[Any] = Output([first, second], end=end)  # pyright: ignore[reportArgumentType, reportCallIssue]
        agent, _ = clerk(output, said, tools=logged(log, "look"))
        assert ((await agent.call("x")).output, log) == (last, ran)
    bad = msg(use("final_answer", bad=1), use("final_answer", "t2", name="a"), use("final_answer", "t3", name="b"))
    for limit in (1, 5):
        agent, _ = clerk(Output(City, end="one"), bad, max_iterations=limit)
        assert (await agent.call("x")).output == City(name="a")
    assert states(agent) == ["denied", "success", "denied"]


async def test_one_waits_for_tools_that_fail() -> None:
    """A failed tool beside the answer is shown to the model, which answers again, as with `"all"`."""

    @tool
    async def save() -> str:
        """Save."""
        raise OSError("disk full")

    said = msg(use("save"), use("final_answer", "t2", name="early"))
    assert await answer(Output(City, end="one"), said, final("t3", name="Rome"), tools=[save]) == City(name="Rome")


async def test_an_answer_beside_a_call_that_waits() -> None:
    """An approved call and the answer of its reply: the model answers again after an invalid answer, and the person is
    asked only for calls that may run.
    """
    log: list[str] = []

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        log.append("pay")
        return "paid"

    agent, _ = clerk(City, msg(use("pay"), use("final_answer", "t2", name="Rome")), tools=[pay])
    assert (await agent.call("x")).outcome == "suspended"
    assert (await agent.resume(decisions={"t1": Approve()})).output == City(name="Rome")
    agent, _ = clerk(City, msg(use("pay"), use("final_answer", "t2", bad=1)), final("t3", name="Rome"), tools=[pay])
    assert ((await agent.call("x")).output, log) == (City(name="Rome"), ["pay"])
    agent, _ = clerk(Output(City, end="first"), msg(use("pay"), use("final_answer", "t2", name="Rome")), tools=[pay])
    assert ((await agent.call("x")).output, log) == (City(name="Rome"), ["pay"])
    text = msg(TextBlock('{"name": "Rome"}'), use("pay"))
    agent, _ = clerk(Output(City, end="first", via="native"), text, '{"name": "Oslo"}', tools=[pay])
    assert (await agent.call("x")).outcome == "suspended"
    assert (await agent.resume(decisions={"t1": Approve()})).output == City(name="Oslo")


# ---- pydantic's validation context


@pytest.mark.parametrize("way", ["native", "tool", "prompt"])
async def test_the_context_reaches_each_mode_and_a_functions_arguments(way: Way) -> None:
    """`validation_context` is used for types and for the arguments of functions, and read again for each answer."""

    def shown(value: Stepped) -> int:
        return value.x

    @tool
    async def bump(deps: Dep[Deps]) -> str:
        """Raise it."""
        deps.step += 5
        return "done"

    for form, name, data, meant in (
        (Stepped, "final_answer", {"x": 0}, Stepped.model_construct(x=15)),
        (shown, "shown", {"value": {"x": 0}}, 15),
        ([City, shown], "shown", {"value": {"x": 0}}, 15),
    ):
        given: Output[Any] = Output(form, via=way, validation_context=lambda run: run.deps(Deps).step)
        text = json.dumps({"answer": {"kind": name, "data": data}} if isinstance(form, list) else data)
        last = msg(ToolUseBlock("t2", name, data)) if way == "tool" else text
        assert await answer(given, msg(use("bump")), last, deps=Deps(10), tools=[bump]) == meant


async def test_edited_arguments_are_validated_in_the_run() -> None:
    """What a person writes instead of the model's answer is read with the run's context, when the tool runs."""

    def shown(value: Stepped) -> int:
        return value.x

    def ask(event: PreActing) -> Suspend | None:
        return Suspend("sure?") if event.approval is None else None

    for form, name, data, edited, meant in (
        (Stepped, "final_answer", {"x": 1}, {"x": 2}, Stepped.model_construct(x=12)),
        (shown, "shown", {"value": {"x": 1}}, {"value": {"x": 2}}, 12),
    ):
        output: Output[Any] = Output(form, validation_context=lambda run: run.deps(Deps).step)
        agent, _ = clerk(output, msg(ToolUseBlock("t1", name, data)), hooks={"before_each_tool": ask})
        assert (await agent.call("x", deps=Deps(5))).outcome == "suspended"
        reply = await agent.resume(decisions={"t1": Approve(input=edited)}, deps=Deps(10))
        assert reply.output == meant


async def shift(value: Stepped, run: RunContext) -> int:
    """Shift it."""
    assert run.deps(Deps)
    return value.x


class Shifts:
    async def shift(self, value: Stepped) -> int:
        """Shift it."""
        return value.x


def in_thread(value: Stepped) -> int:
    return value.x


def step_of(run: RunContext) -> int:
    return run.deps(Deps).step


async def given_by(tools: Any, *inputs: Any, **given: Any) -> list[str]:
    """The results of a tool's calls; between them the dependency grows."""

    @tool
    async def bump(deps: Dep[Deps]) -> str:
        """Raise it."""
        deps.step += 5
        return "done"

    name = next(iter(tools)).name
    said = [
        msg(ToolUseBlock(f"t{number}", name, value), use("bump", f"b{number}")) for number, value in enumerate(inputs)
    ]
    agent = Agent("a", ScriptedModel([*said, "Done."]), tools=[*tools, bump], **given)
    await agent.call("x", deps=Deps(10))
    return [result.text for one in agent.session().messages for result in one.tool_results if result.name == name]


@pytest.mark.parametrize(("context", "meant"), [(step_of, ["10", "16"]), (7, ["7", "8"]), (None, ["0", "1"])])
async def test_a_tool_has_a_validation_context(context: Any, meant: list[str]) -> None:
    """It reaches the validators of the arguments; a function is called for each call of the tool."""
    inputs = [{"value": {"x": 0}}, {"value": {"x": 1}}]
    one = tool(shift, validation_context=context)
    assert await given_by([one], *inputs) == meant
    assert await given_by([one.renamed("other")], *inputs) == meant
    assert await given_by([tool(in_thread, in_thread=True, validation_context=context)], *inputs) == meant
    assert await given_by(Toolset(Shifts(), validation_context=context), *inputs) == meant
    registry = ToolRegistry()
    registry.tool(validation_context=context)(shift)
    assert await given_by(list(registry), *inputs) == meant


@pytest.mark.parametrize("context", [step_of, 7])
async def test_arguments_that_do_not_fit_in_a_context(context: Any) -> None:
    """They are refused as others are, and so are edited ones."""
    one = tool(shift, validation_context=context)
    results = await given_by([one], {"value": {"x": "two"}}, {}, {"value": {"x": 1}, "y": 1})
    assert [text.split("\n")[1] for text in results] == [
        '- value.x: should be a valid integer, unable to parse string as an integer; got "two"',
        "- value: is missing",
        "- y: is not known here",
    ]

    def ask(event: PreActing) -> Suspend | None:
        return Suspend("sure?") if event.approval is None else None

    call = msg(ToolUseBlock("t1", "shift", {"value": {"x": 1}}))
    agent = Agent("a", ScriptedModel([call, "Done."]), tools=[one], hooks={"before_each_tool": ask})
    assert (await agent.call("x", deps=Deps(5))).outcome == "suspended"
    await agent.resume(decisions={"t1": Approve(input={"value": {"x": 2}})}, deps=Deps(10))
    assert agent.session().messages[-2].tool_results[0].text == ("12" if callable(context) else "9")


@pytest.mark.parametrize(("own", "of_output", "meant"), [(step_of, None, 10), (step_of, 3, 3), (7, None, 7), (7, 3, 3)])
async def test_a_tool_with_a_context_as_output(own: Any, of_output: Any, meant: int) -> None:
    """The output's context counts, then the tool's own."""
    output = Output(tool(shift, validation_context=own), validation_context=of_output)
    unfit, fit = {"value": {"x": "two"}}, {"value": {"x": 0}}
    for said in (msg(ToolUseBlock("t1", "shift", fit)), json.dumps(fit)):
        assert await answer(output, said, deps=Deps(10)) == meant
    unfits = msg(ToolUseBlock("t1", "shift", unfit))
    assert await answer(output, unfits, msg(ToolUseBlock("t2", "shift", fit)), deps=Deps(10)) == meant


def test_a_context_that_an_external_tool_cannot_have() -> None:
    """It never runs, so there is no run for a function of one; a value is used by `validate`."""
    with pytest.raises(UsageError, match="external=True together with a function as validation_context"):
        tool(shift, external=True, validation_context=step_of)

    class Odd(BaseModel):
        x: int

        @field_validator("x")
        @classmethod
        def known(cls, value: int, info: ValidationInfo) -> int:
            if value not in (info.context or ()):
                raise ValueError("unknown")
            return value

    async def choose(value: Odd) -> int: ...

    choose.__annotations__["value"] = Odd
    one = tool(choose, external=True, validation_context=[1, 3])
    one.validate(ToolUseBlock("t1", "choose", {"value": {"x": 3}}))
    with pytest.raises(ToolArgumentError, match="unknown"):
        one.validate(ToolUseBlock("t1", "choose", {"value": {"x": 2}}))
    with pytest.raises(UsageError, match="started without a ToolContext, but its validation_context="):
        full_tool(tool(in_thread, in_thread=True, validation_context=step_of)).start(
            ToolUseBlock("t1", "in_thread", {"value": {"x": 2}}), None
        )


# ---- the value's schema


def test_the_schema_of_the_value() -> None:
    """It is the schema of `reply.output`, not of the model's answer."""

    async def count(city: City) -> int: ...
    async def choose(city: City) -> Team: ...
    async def free(city: City): ...  # pyright: ignore[reportMissingParameterType]

    given = {"type": "object", "title": "Bill", "properties": {"euros": {"type": "number"}}}
    number, text = {"type": "integer"}, {"type": "string"}
    for form, meant in (
        (str, text),
        (int, number),
        (count, number),
        (tool(count), number),
        (free, {}),
        (given, given),
        (Output(City, via="native"), TypeAdapter(City).json_schema()),
        ([int, str, count, None], {"anyOf": [number, text, {"type": "null"}]}),
    ):
        agent, _ = clerk(form)
        assert agent.output is not None
        assert agent.output.value_schema == meant
    both: Any = Output([Team, given, choose]).value_schema  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert [sorted(one) for one in both["anyOf"]] == [
        ["properties", "required", "title", "type"],
        ["properties", "title", "type"],
    ]
    assert both["$defs"] == {"1_Person": TypeAdapter(Person).json_schema()}
    assert both["anyOf"][0]["properties"]["people"]["items"] == {"$ref": "#/$defs/1_Person"}
    as_year: Any = Output(Annotated[datetime, PlainSerializer(lambda at: at.year, return_type=int)])
    assert as_year.value_schema == number


def test_a_value_without_a_json_form_has_no_schema() -> None:
    """The error names the output and the fix."""

    class Socket: ...

    def connect(city: City) -> Socket: ...

    connect.__annotations__["return"] = Socket
    with pytest.raises(UsageError, match=r"^Output\(connect\): no JSON schema .* Annotate the function"):
        Output(connect).value_schema  # noqa: B018


# ---- while it arrives


async def test_the_name_of_an_answer_can_come_last() -> None:
    """A union whose data arrives before its name is complete with its output."""
    text = list('{"answer": {"data": {"name": "Rome"}, "kind": "final_answer_City"}}')
    agent, _ = clerk(Output([Person, City], via="prompt"), text)
    *_, last = await agent.stream("x").partials().to_list()
    assert last.output == City(name="Rome")


async def test_text_of_a_union_grows() -> None:
    """For a union with `str`, text without JSON is shown while it arrives."""
    agent, _ = clerk(Person | str, ["No", "body."], ['{"answer": "No', 'body."}'])
    for _ in range(2):
        seen = [dict(partial)["answer"] async for partial in agent.stream("x").partials()]
        assert seen == ["No", "Nobody.", "Nobody."]
    agent, _ = clerk(list[str], ["No", "body."], final(answer=[]))
    assert [dict(partial) async for partial in agent.stream("x").partials()][:-1] == []


async def test_a_stream_requests_again_too() -> None:
    """A streamed answer that is refused, or a function that fails, is requested again as in a call."""

    def move(name: str) -> str:
        if name == "Atlantis":
            raise ValueError("not found")
        return name

    agent, _ = clerk(move, msg(use("move", name="Atlantis")), msg(use("move", "t2", name="Rome")))
    assert (await agent.stream("x").reply()).output == "Rome"
    agent, _ = clerk(Output(DataBlock, validate=lambda image: OTHER), msg(IMAGE))
    assert (await agent.stream("x").reply()).output == OTHER


async def test_validators_and_functions_run_on_the_whole_answer_only() -> None:
    """Partial answers do not run them, so they need no flag for incomplete values."""
    seen: list[str] = []

    def move(name: str) -> str:
        seen.append(name)
        return name.upper()

    agent, _ = clerk(Output(move, via="prompt", validate=seen.append), ['{"name": "Ro', 'me"}'])
    partials = [dict(partial) async for partial in agent.stream("x").partials()]
    assert (partials[0], seen) == ({"name": "Ro"}, ["Rome", "ROME"])


# ---- the schema of the request


def test_kept_of_the_types() -> None:
    """Descriptions of nested types, of attributes, and beside a nested type are sent; titles of fields are not."""

    class Inner(BaseModel):
        """A filter."""

        kind: str = "all"

    class Outer(BaseModel, use_attribute_docstrings=True):
        """A search."""

        inner: Inner
        also: Inner = Field(description="A second one.")
        count: int
        """How many."""

    schema = Output(Outer).shape.schema
    fields = schema["properties"]
    assert (schema["description"], fields["inner"]["description"]) == ("A search.", "A filter.")
    assert (fields["also"]["description"], fields["count"]["description"]) == ("A second one.", "How many.")
    assert "title" not in json.dumps(schema)
