"""Several outputs, of which the model selects one: types, functions, schemas, text and images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from agentflow import Agent, DataBlock, Msg, Output, PreReasoning, RunContext, TextBlock, ToolUseBlock, on, tool
from agentflow.agent.orchestration import ask, workflow
from agentflow.errors import MissingOutputError, OutputError, UsageError
from agentflow.loop.output import Way
from agentflow.loop.output.output import output_of
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta


class Invoice(BaseModel):
    """An invoice."""

    customer: str
    total: int = Field(gt=0)


@dataclass
class Refusal:
    reason: str


@dataclass
class Complaint:
    reason: str


class Tree(BaseModel):
    label: str
    under: list[Tree] = []


async def escalate(reason: str) -> int:
    """Give the case to a person."""
    return len(reason)


SEVERAL: list[Any] = [Invoice, Refusal, Complaint, escalate]
IMAGE = DataBlock("image/png", data="iVBORw0KGgo=")


def use(name: str, id: str = "t1", **arguments: object) -> ToolUseBlock:  # noqa: A002
    return ToolUseBlock(id, name, arguments)


def clerk(*said: Any, **given: Any) -> Agent[Any]:
    return Agent(
        "clerk",
        ScriptedModel([Msg.assistant(list(cast("Any", one))) if type(one) is tuple else one for one in said]),
        **given,
    )


def named(kind: str, data: str) -> str:
    return f'{{"answer":{{"kind":"{kind}","data":{data}}}}}'


@pytest.mark.parametrize(
    ("name", "arguments", "meant"),
    [
        ("final_answer_Invoice", {"customer": "Ada", "total": 3}, Invoice(customer="Ada", total=3)),
        ("final_answer_Refusal", {"reason": "no"}, Refusal("no")),
        ("final_answer_Complaint", {"reason": "no"}, Complaint("no")),
        ("escalate", {"reason": "angry"}, 5),
    ],
)
async def test_the_model_selects_one(name: str, arguments: dict[str, Any], meant: object) -> None:
    """Each output is a tool; in the prompt the answer names one. Two with the same fields stay apart."""
    by_tool = clerk((use(name, **arguments),), output=SEVERAL)
    assert (await by_tool.call("x")).output == meant
    text = named(name, use(name, **arguments).raw)
    in_words = await clerk(text).call("x", output=Output(SEVERAL, via="prompt"))
    assert (in_words.output, type(in_words.output)) == (meant, type(meant))


async def test_what_the_model_is_shown() -> None:
    """The request has one tool for each output and requires a call; text among them makes the call optional."""
    seen: list[tuple[list[str], object]] = []

    @on(observer=True)
    def watch(event: PreReasoning) -> None:
        seen.append(([spec.name for spec in event.tools], event.options.tool_choice))

    await clerk((use("final_answer_Refusal", reason="no"),), hooks=[watch]).call("x", output=[Invoice, Refusal])
    await clerk("Hello.", hooks=[watch]).call("x", output=[Invoice, str])
    assert seen[0] == (["final_answer_Invoice", "final_answer_Refusal"], "required")
    assert seen[-1] == (["final_answer_Invoice"], None)


async def test_the_text_names_the_output() -> None:
    """The reply's text names the output, so a workflow, and any reader of the text, reads the same type."""
    inner = clerk((use("final_answer_Complaint", reason="late"),), output=[Refusal, Complaint])

    @workflow(inner)
    async def desk(message: str) -> str:
        reply = await ask(inner, message)
        return f"{type(reply.output).__name__}: {reply.text}"

    text = named("final_answer_Complaint", '{"reason":"late"}')
    assert (await desk.call("x")).text == f"Complaint: {text}"
    wanted = output_of([Refusal, Complaint])
    assert wanted is not None
    assert wanted.read_result(text) == Complaint("late")
    assert wanted.read_result(wanted.write(Complaint("late"))) == Complaint("late")


async def test_text_among_several() -> None:
    """Plain text is an output where `str` is one of them, by tool and in the prompt; JSON that names one is that one."""
    ways: list[Way] = ["tool", "prompt"]
    for way in ways:
        agent = clerk(
            "Hello.", named("final_answer_Refusal", '{"reason":"no"}'), output=Output([Refusal, str], via=way)
        )
        first, second = await agent.call("x"), await agent.call("y")
        assert (first.output, second.output) == ("Hello.", Refusal("no"))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (named("final_answer_Bill", "{}"), "There is no answer of kind 'final_answer_Bill'"),
        (named("final_answer_Invoice", '{"customer":"Ada","total":0}'), "total: should be greater than 0"),
        ('{"reason": "no"}', "fits several of the possible forms"),
        ("Hello.", "fits none of the possible forms"),
        ('{"answer": {"kind": "escalate", "data": {}}}', "reason: is missing"),
        ('{"answer": {"kind": 5, "data": NaN}}', "fits none"),
    ],
)
async def test_what_fits_none_goes_back(said: str, told: str) -> None:
    """An answer of no form, or of two, is refused with the names to choose from; one that fits alone needs no name."""
    agent = clerk(said, '{"customer": "Ada", "total": 3}', output=Output(SEVERAL, via="prompt"))
    assert (await agent.call("x")).output == Invoice(customer="Ada", total=3)
    assert told in agent.session().messages[2].text


async def test_a_summary_calls_no_function() -> None:
    """At the iteration limit text that looks like a function's call or result is no output: nothing has run."""

    @tool
    async def look() -> str:
        """Look."""
        return "nothing"

    for last in ("5", named("escalate", '{"reason":"x"}')):
        agent = clerk((use("look"),), last, tools=[look], max_iterations=1, output=[Invoice, escalate])
        reply = await agent.call("x")
        with pytest.raises(MissingOutputError):
            _ = reply.output


async def test_options_of_one() -> None:
    """An item can have a name, a description and a validator; those of the list run after it, for each."""
    seen: list[object] = []

    def known(invoice: Invoice) -> Invoice:
        if invoice.customer != "Ada":
            raise ValueError("unknown customer")
        return invoice.model_copy(update={"total": invoice.total * 2})

    forms = [Output(Invoice, name="bill", validate=known), Refusal]
    output: Output[Any] = Output(forms, validate=[seen.append, seen.append])
    agent = clerk((use("bill", customer="Bob", total=1),), (use("bill", "t2", customer="Ada", total=1),), output=output)
    reply = await agent.call("x")
    assert (reply.output, len(seen)) == (Invoice(customer="Ada", total=2), 2)
    assert "unknown customer" in agent.session().messages[3].text


async def test_recursive_types_in_one_schema() -> None:
    """Definitions of recursive types have names of their own in the schema of all outputs."""
    shape = Output([Tree, Output(Tree, name="other")]).shape
    assert sorted(shape.schema["$defs"]) == ["final_answer_Tree_Tree", "other_Tree"]
    refs = str(shape.schema)
    assert "#/$defs/Tree" not in refs
    assert "#/$defs/other_Tree" in refs


def test_names() -> None:
    """Types of one title get numbers; two functions of one name, and options that are not an item's, are refused."""
    assert list(Output([list[int], list[str], Invoice]).tools) == [
        "final_answer_list", "final_answer_list_2", "final_answer_Invoice",
    ]  # fmt: skip
    wrong: list[Any] = [
        lambda: output_of([escalate, escalate]),
        lambda: Output([Output(Invoice, via="tool"), Refusal]),
        lambda: Output([Invoice, Refusal], name="both"),
        lambda: Output([Invoice, str], via="native"),
        lambda: Output(Invoice, end="last"),  # pyright: ignore[reportArgumentType, reportCallIssue]
        lambda: Output(Invoice, validate=[3]),  # pyright: ignore[reportArgumentType, reportCallIssue]
    ]
    for make in wrong:
        with pytest.raises(UsageError):
            make()


# ---- a JSON schema without a class

SCHEMA = {
    "title": "Bill",
    "type": "object",
    "properties": {"customer": {"type": "string"}, "total": {"type": "integer", "minimum": 1}},
    "required": ["customer", "total"],
}


async def test_a_schema() -> None:
    """A JSON schema is a form: the value is a dict, checked by the schema."""
    agent = clerk(
        (use("final_answer", customer="Ada", total=0),), (use("final_answer", "t2", customer="Ada", total=3),)
    )
    reply = await agent.call("x", output=Output(SCHEMA))
    assert reply.output == {"customer": "Ada", "total": 3}
    assert "total: 0 is less than the minimum of 1" in agent.session().messages[3].text
    one = await clerk((use("final_answer_Bill", customer="Ada", total=3),)).call("x", output=[Output(SCHEMA), Refusal])
    assert one.output == {"customer": "Ada", "total": 3}


# ---- validators with the context of the run


async def test_validators_with_a_context() -> None:
    """A validator can read the run's context, and pydantic's `info.context` comes from `validation_context`."""

    class Limited(BaseModel):
        total: int

        @field_validator("total")
        @classmethod
        def small(cls, value: int, info: ValidationInfo) -> int:
            if value > cast("int", info.context):
                raise ValueError(f"at most {info.context}")
            return value

    async def known(value: Limited, run: RunContext) -> Limited:
        return value.model_copy(update={"total": value.total + run.deps(int)})

    output = Output(Limited, via="prompt", validation_context=lambda run: run.deps(int), validate=known)
    agent = clerk('{"total": 9}', '{"total": 5}', output=output)
    reply = await agent.call("x", deps=5)
    assert (reply.output, "at most 5" in agent.session().messages[2].text) == (Limited.model_construct(total=10), True)
    assert await _outside(output) == "context of its run"
    assert await _outside(Output(Limited, validation_context=9, validate=known)) == "only during a run"


async def _outside(output: Output[Any]) -> str:
    with pytest.raises(ValueError) as caught:
        await output.accept('{"total": 5}')
    return next(part for part in ("context of its run", "only during a run") if part in str(caught.value))


# ---- the end strategy


async def test_first_runs_nothing_else() -> None:
    """With `end="first"` the first accepted answer counts, and no other call of the reply runs."""
    ran: list[str] = []

    @tool
    async def log(line: str) -> str:
        """Log."""
        ran.append(line)
        return line

    calls = (
        use("log", "a", line="x"),
        use("final_answer", "b", customer="Ada", total=0),
        use("final_answer", "c", customer="Bob", total=2),
        use("final_answer", "d", customer="Eve", total=3),
    )
    every = await clerk(calls, tools=[log], output=Invoice).call("x")
    assert (every.output.customer, ran) == ("Eve", ["x"])
    first = clerk(calls, tools=[log], output=Output(Invoice, end="first"))
    reply = await first.call("x")
    assert (reply.output.customer, ran) == ("Bob", ["x"])
    assert [result.state for result in first.session().messages[2].tool_results] == [
        "denied",
        "denied",
        "success",
        "denied",
    ]


async def test_first_and_the_next_round() -> None:
    """A function that fails as the answer is repeated, and calls of later rounds run."""

    async def pay(euros: int) -> int:
        """Pay."""
        if euros > 1:
            raise ValueError("too much")
        return euros

    @tool
    async def log(line: str) -> str:
        """Log."""
        return line

    agent = clerk(
        (use("pay", "a", euros=9), use("log", "b", line="x")), (use("log", "c", line="y"),), (use("pay", "d", euros=1),),
        tools=[log], output=Output(pay, end="first"),
    )  # fmt: skip
    assert (await agent.call("x")).output == 1
    states = [result.state for msg in agent.session().messages for result in msg.tool_results]
    assert states == ["error", "denied", "success", "success"]


# ---- a prompt of one's own, and images


async def test_a_prompt() -> None:
    """`prompt=` replaces the text that asks in the prompt."""
    asked: list[str] = []

    @on(observer=True)
    def watch(event: PreReasoning) -> None:
        asked.append(event.input_messages[-1].text)

    output = Output(Refusal, via="prompt", prompt="JSON like {this}: {schema}")
    await clerk('{"reason": "no"}', hooks=[watch]).call("x", output=output)
    assert asked == ["JSON like {this}: " + output.schema_text]


async def test_an_image() -> None:
    """`DataBlock` is an image or a file of the model; text goes back, unless it is one of the outputs."""
    agent = clerk("A picture of a bee.", (TextBlock("Here."), IMAGE), output=DataBlock)
    reply = await agent.call("x")
    assert (reply.output, agent.session().messages[2].text) == (IMAGE, "Answer with an image or a file.")
    either = clerk("No.", (IMAGE,), output=[DataBlock, str, Invoice])
    assert [(await either.call("x")).output, (await either.call("y")).output] == ["No.", IMAGE]
    with pytest.raises(OutputError):
        await clerk("a", "b", "c").call("x", output=DataBlock)


# ---- partial answers


async def grown(agent: Agent[Any], output: Any) -> list[tuple[str | None, dict[str, Any]]]:
    """The partial answers of a call, each once."""
    seen: list[tuple[str | None, dict[str, Any]]] = []
    async for partial in agent.stream("x", output=output).partials():
        if not seen or seen[-1] != (partial.kind, dict(partial)):
            seen.append((partial.kind, dict(partial)))
    return seen


@pytest.mark.parametrize("way", ["tool", "prompt"])
async def test_partials_of_several(way: Way) -> None:
    """A partial answer names its output once it is known, and has the fields of that one."""
    raw = '{"customer": "Ada", "total": 12}'
    if way == "tool":
        deltas = [ToolUseDelta(0, "t", "final_answer_Invoice", raw[:20]), ToolUseDelta(0, "", "", raw[20:])]
        said = [ModelChunk(tool_uses=(delta,)) for delta in deltas]
        assert await grown(Agent("a", ScriptedModel([said])), Output([Refusal, Invoice], via=way)) == [
            ("final_answer_Invoice", {"customer": "Ada"}),
            ("final_answer_Invoice", {"customer": "Ada", "total": 12}),
        ]
        return
    text = named("final_answer_Invoice", raw)
    cut = [text[:20], text[20:55], text[55:70], text[70:]]
    assert await grown(Agent("a", ScriptedModel([cut])), Output([Refusal, Invoice, str], via=way)) == [
        ("final_answer_Invoice", {}), ("final_answer_Invoice", {"customer": "Ada"}),
        ("final_answer_Invoice", {"customer": "Ada", "total": 12}),
    ]  # fmt: skip


async def test_partials_of_text_and_functions() -> None:
    """Text among several grows as text; of a function the arguments grow, and the output is its return value."""
    assert await grown(Agent("a", ScriptedModel([["Hel", "lo."]])), [Invoice, str]) == [
        (None, {"answer": "Hel"}), (None, {"answer": "Hello."}),
    ]  # fmt: skip
    agent = Agent("a", ScriptedModel([['{"reason": "an', 'gry"}']]))
    last = None
    async for last in agent.stream("x", output=Output(escalate, via="prompt")).partials():
        assert last["reason"] in ("an", "angry")
    assert last is not None
    assert last.output == 5
