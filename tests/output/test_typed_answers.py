"""An answer of a type: legal types, how it is requested, and what happens to an invalid one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest
from clocks import in_virtual_time
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from agentflow import (
    Agent,
    Approve,
    Deny,
    Dep,
    Hook,
    HookEvent,
    HookResult,
    Msg,
    Output,
    Reply,
    RunContext,
    ThinkingBlock,
    ToolUseBlock,
    tool,
)
from agentflow.errors import MissingOutputError, OutputError, UsageError
from agentflow.loop.output import AnswerState, Way
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import CallEnded, PostActing, PostReasoning, PreActing, PreReasoning
from agentflow.vocabulary.ports.model import AnswerModes
from agentflow.vocabulary.verdicts import Again


class Invoice(BaseModel):
    """An invoice."""

    customer: str
    total: int = Field(gt=0)


@dataclass
class Point:
    x: int
    y: int = 0


class Bill(TypedDict):
    total: int


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


def calls(name: str, arguments: dict[str, Any], id: str = "t1") -> Msg:  # noqa: A002
    return Msg.assistant([ToolUseBlock(id, name, arguments)])


def clerk(*said: Msg | str, **given: Any) -> Agent[Any]:
    return Agent("clerk", ScriptedModel(list(said)), **given)


GOOD = {"customer": "Ada", "total": 3}


@pytest.mark.parametrize(
    ("form", "said", "meant"),
    [
        (Invoice, GOOD, Invoice(customer="Ada", total=3)),
        (Point, {"x": 1}, Point(1)),
        (Bill, {"total": 3}, {"total": 3}),
        (int, {"answer": 3}, 3),
        (bool, {"answer": False}, False),
        (Colour, {"answer": "red"}, Colour.RED),
        (Literal["a", "b"], {"answer": "b"}, "b"),
        (list[Invoice], {"answer": [GOOD]}, [Invoice(customer="Ada", total=3)]),
        (Invoice | Point, {"answer": {"x": 2}}, Point(2)),
        (int | None, {"answer": None}, None),
        (dict[str, int], {"answer": {"a": 1}}, {"a": 1}),
    ],
)
async def test_forms(form: Any, said: dict[str, Any], meant: object) -> None:
    """Each kind of type is an output, by the final tool and in words; what is no object is the field `answer` of one."""
    by_tool = await clerk(calls("final_answer", said)).call("x", output=Output(form))
    assert (by_tool.output, by_tool.outcome) == (meant, "completed")
    text = Msg.assistant([ToolUseBlock("t", "x", said)]).tool_uses[0].raw
    in_words = await clerk(text).call("x", output=Output(form, via="prompt"))
    assert in_words.output == meant


def test_an_output_is_shown_with_its_form_and_the_way_that_was_chosen() -> None:
    assert [repr(Output(Invoice)), repr(Output(int, via="tool"))] == ["Output(Invoice)", "Output(int, via='tool')"]


async def test_text() -> None:
    """`output=str` requests nothing: the text is the output."""
    reply = await clerk("Hello.", output=str).call("x")
    assert (reply.output, reply.text) == ("Hello.", "Hello.")


async def test_the_final_tools_call_is_answered() -> None:
    """The history stays legal, and says what was said: the call, its result, and the answer."""
    agent = clerk(calls("final_answer", GOOD), output=Invoice)
    await agent.call("x")
    assert [msg.role for msg in agent.session().messages] == ["user", "assistant", "tool", "assistant"]
    assert agent.session().messages[2].text == agent.session().messages[3].text == '{"customer":"Ada","total":3}'


async def test_a_misfit_goes_back() -> None:
    """What does not fit is an `Again` that hooks see, with pydantic's words; then the answer is taken."""
    agent = clerk(
        calls("final_answer", {"customer": "Ada", "total": 0}), calls("final_answer", GOOD, "t2"), output=Invoice
    )
    async with agent.stream("x") as events:
        verdicts = [event.verdict async for event in events if isinstance(event, PostReasoning)]
        reply = await events.reply()
    assert reply.output == Invoice(customer="Ada", total=3)
    assert isinstance(verdicts[0], Again)
    told = agent.session().messages[3]
    assert "total: should be greater than 0; got 0" in told.text
    assert told.metadata["synthetic"] == "output"


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_then_a_clear_error(retries: int) -> None:
    """It is requested again a limited number of times; the error has the problem of the last answer."""
    agent = clerk(*["Three euros."] * (retries + 1), output=Output(Invoice, retries=retries))
    with pytest.raises(OutputError, match="not valid JSON") as caught:
        await agent.call("x")
    assert caught.value.times == retries + 1
    assert (await clerk("Hello.", store=None).call("again")).text == "Hello."


async def test_words_around_the_answer() -> None:
    """A fence, or a sentence before it, is passed over; two different answers are not one."""
    fenced = 'Here:\n```json\n{"customer": "Ada", "total": 3}\n```\nBye.'
    agent = clerk(
        '{"customer":"A","total":1} or {"customer":"B","total":2}', fenced, output=Output(Invoice, via="prompt")
    )
    reply = await agent.call("x")
    assert reply.output.customer == "Ada"
    assert "several JSON values" in agent.session().messages[2].text


@pytest.mark.parametrize(
    "said",
    ['{"total": NaN, "customer": "A"}', "[" * 5000, "x{[" * 100_000, "", '{"customer": "\\ud800", "total": 1}', "null"],
)
async def test_nonsense(said: str) -> None:
    """Whatever a model writes is text: it is refused, and requested again."""
    agent = clerk(said, '{"customer":"Ada","total":3}', output=Output(Invoice, via="prompt"))
    assert (await agent.call("x")).output == Invoice(customer="Ada", total=3)


async def test_validate() -> None:
    """A function of the user's looks at the value: it refuses with `ValueError`, or gives another; it may be async."""

    async def known(invoice: Invoice) -> Invoice:
        await asyncio.sleep(0)
        if invoice.customer == "Bob":
            raise ValueError("there is no customer Bob")
        return invoice.model_copy(update={"customer": invoice.customer.upper()})

    agent = clerk(
        calls("final_answer", {"customer": "Bob", "total": 3}),
        calls("final_answer", GOOD, "t2"),
        output=Output(Invoice, validate=known),
    )
    reply = await agent.call("x")
    assert reply.output == Invoice(customer="ADA", total=3)
    assert "there is no customer Bob" in agent.session().messages[3].text


async def test_a_function_is_the_last_step() -> None:
    """Its arguments are the answer, it runs as a tool that hooks see, and what it returns is the output, as an object."""
    seen: list[str] = []

    class Ticket:
        def __init__(self, customer: str) -> None:
            self.customer = customer

    async def book(customer: str, total: int, desk: Dep[list[str]]) -> Ticket:
        """Book it."""
        desk.append(f"{customer} {total}")
        return Ticket(customer)

    class Watch(Hook):
        def on_event(self, event: HookEvent) -> HookResult:
            if isinstance(event, PreActing | PostActing):
                seen.append(type(event).__name__)
            return event

    desk: list[str] = []
    agent = clerk(calls("book", {"customer": "Ada"}), calls("book", GOOD, "t2"), hooks=[Watch()])
    reply = await agent.call("x", output=book, deps=desk)
    assert (reply.output.customer, desk, seen) == ("Ada", ["Ada 3"], ["PreActing", "PostActing"])


async def test_the_value_of_the_last_step_is_validated_with_the_context() -> None:
    """A function that validates it may have the run's context, as for any other form."""

    async def book(customer: str, total: int) -> str:
        """Book it."""
        return f"{customer} {total}"

    def named(value: str, context: RunContext) -> str:
        return f"{context.agent.name}: {value}"

    agent = clerk(calls("book", GOOD))
    reply = await agent.call("x", output=Output(book, validate=named))
    assert reply.output == f"{agent.name}: Ada 3"


async def test_a_step_by_words() -> None:
    """Where the arguments of a step come in words, a call is made of them: hooks and history see the same step."""

    def double(amount: int) -> int:
        """Double it."""
        return amount * 2

    agent = clerk('{"amount": 21}', output=Output(double, via="prompt"))
    assert (await agent.call("x")).output == 42
    assert [use.name for use in agent.session().messages[1].tool_uses] == ["double"]


async def test_a_step_that_waits_for_a_person() -> None:
    """A last step may need approval like any tool; resumed, the call returns its value. Denied, the model continues."""

    @tool(requires_approval=True)
    async def pay(customer: str, total: int) -> int:
        """Pay."""
        return total

    agent = clerk(calls("pay", GOOD), calls("pay", GOOD, "t2"), '{"customer": "Bob", "total": 1}', output=Output(pay))
    waits = await agent.call("x")
    assert waits.outcome == "suspended"
    with pytest.raises(MissingOutputError, match="suspended"):
        _ = waits.output
    again = await agent.resume(decisions={"t1": Deny("not today")})
    assert [use.id for use in again.tool_uses] == ["t2"]
    assert (await agent.resume(decisions={"t2": Approve()})).output == 3


async def test_tools_in_the_same_run() -> None:
    """The model works with its tools first; it is made to call one, and the final tool ends the call."""

    @tool(type="read")
    async def price(item: str) -> int:
        """The price."""
        return len(item)

    asked: list[tuple[list[str], object]] = []

    class Watch(Hook):
        priority = 400

        def on_event(self, event: HookEvent) -> HookResult:
            if isinstance(event, PreReasoning):
                asked.append(([spec.name for spec in event.tools], event.options.tool_choice))
            return event

    agent = clerk(calls("price", {"item": "tea"}), calls("final_answer", GOOD, "t2"), tools=[price], hooks=[Watch()])
    reply = await agent.call("x", output=Invoice)
    assert reply.output.total == 3
    assert asked[:2] == [(["price", "final_answer"], "required")] * 2


async def test_a_tool_beside_the_answer_runs() -> None:
    """The other calls of the reply run; then the answer counts."""

    @tool
    async def log(line: str) -> str:
        """Log."""
        lines.append(line)
        return "logged"

    lines: list[str] = []
    both = Msg.assistant([ToolUseBlock("a", "final_answer", GOOD), ToolUseBlock("b", "log", {"line": "x"})])
    reply = await clerk(both, tools=[log], output=Invoice).call("x")
    assert (reply.output.total, lines) == (3, ["x"])


async def test_the_next_call_is_not_answered_by_the_last() -> None:
    """A call that was cancelled after its final tool leaves nothing that would answer the next one."""

    class Cut(Hook):
        def on_event(self, event: HookEvent) -> HookResult:
            if isinstance(event, PostActing):
                event.context.interrupt("enough")
            return event

    agent = clerk(
        calls("final_answer", GOOD), calls("final_answer", {"customer": "Bob", "total": 9}, "t2"), output=Invoice
    )
    cut = await agent.call("x", hooks=[Cut()])
    assert cut.outcome == "interrupted"
    assert (await agent.call("y")).output.customer == "Bob"


async def test_the_summary() -> None:
    """At the limit the type is requested as text: an output if the answer is valid, none otherwise."""

    @tool
    async def look() -> str:
        """Look."""
        return "nothing"

    def agent(last: str) -> Agent[Any]:
        return clerk(calls("look", {}), last, tools=[look], max_iterations=1, output=Invoice)

    fits = await agent('{"customer":"Ada","total":3}').call("x")
    assert (fits.outcome, fits.output.total) == ("limited", 3)
    lacks = await agent("I found nothing.").call("x")
    assert lacks.outcome == "limited"
    with pytest.raises(MissingOutputError):
        _ = lacks.output


@pytest.mark.parametrize("way", ["tool", "prompt"])
async def test_one_round_is_enough(way: Way) -> None:
    """With `max_iterations=1` an answer completes the call, by a tool as in words; a step runs, and the call is limited."""
    by_tool = Msg.assistant([ThinkingBlock("hm", "sig"), ToolUseBlock("t", "final_answer", GOOD)])
    said = by_tool if way == "tool" else by_tool.tool_uses[0].raw
    agent = clerk(said, output=Output(Invoice, via=way), max_iterations=1)
    reply = await agent.call("x")
    assert (reply.outcome, reply.output.total) == ("completed", 3)
    assert [msg.role for msg in agent.session().messages] == ["user", "assistant"]

    async def double(amount: int) -> int:
        """Double it."""
        return amount * 2

    step = await clerk(calls("double", {"amount": 2}), output=double, max_iterations=1).call("x")
    assert (step.outcome, step.output) == ("limited", 4)


async def test_a_sub_agent_whose_step_waits() -> None:
    """A step of a sub-agent that needs approval suspends the caller; resumed there, its value is what the caller reads."""

    @tool(requires_approval=True)
    async def pay(total: int) -> int:
        """Pay."""
        return total * 2

    inner = Agent("payer", ScriptedModel([calls("pay", {"total": 3}, "s1")]), output=pay)
    boss = clerk(calls("payer", {"message": "pay 3"}), "Paid.", tools=[inner])
    waits = await boss.call("x")
    assert [pending.id for pending in waits.pending] == ["t1/s1"]
    assert (await boss.resume(decisions={"t1/s1": Approve()})).text == "Paid."
    assert [msg.text for msg in boss.session().messages if msg.role == "tool"] == ["6"]


async def test_a_call_asks_for_another_form() -> None:
    """The nearer one counts: the call's, else the agent's; a call of a stream and a resume say theirs as well."""
    agent = clerk(calls("final_answer", {"answer": 4}), calls("final_answer", GOOD, "t2"), output=Invoice)
    assert (await agent.call("x", output=int)).output == 4
    assert (await agent.stream("x").reply()).output.total == 3
    assert Agent.builder().name("a").model(ScriptedModel([])).output(int).build().output is not None


async def test_a_sub_agent() -> None:
    """As a tool an agent gives its output as JSON: its own, or what `as_tool(output=...)` asks for."""
    inner = Agent("pricer", ScriptedModel([calls("final_answer", GOOD), calls("final_answer", {"answer": 3}, "t2")]))
    ask = {"message": "the price?"}
    boss = clerk(
        calls("pricer", ask), calls("priced", ask, "t2"), "Done.",
        tools=[inner.as_tool(output=Invoice), inner.as_tool("priced", output=int)],
    )  # fmt: skip
    await boss.call("x")
    results = [msg.text for msg in boss.session().messages if msg.role == "tool"]
    assert results == ['{"customer":"Ada","total":3}', '{"answer":3}']


async def test_denied_and_changed() -> None:
    """A call that ends before there is an answer has none, and says how it ended; hooks have the last word on the text."""
    agent = clerk("never asked", output=Invoice)
    reply = await agent.call("x", hooks={"after_user_input": lambda event: Deny("no")})
    with pytest.raises(MissingOutputError, match="denied"):
        _ = reply.output

    class Redact(Hook):
        def on_event(self, event: HookEvent) -> HookResult:
            if isinstance(event, PostActing):
                result = event.tool_result
                event.tool_result = type(result)(
                    result.tool_use_id, result.name, '{"customer":"[name]","total":3}', "success"
                )
            return event

    reply = await clerk(calls("final_answer", GOOD), output=Invoice, hooks=[Redact()]).call("x")
    assert reply.output == Invoice(customer="[name]", total=3)


def test_what_cannot_be_an_output() -> None:
    """It is refused where it is given, with what is legal."""
    model = ScriptedModel([])
    for wrong in (3, "Invoice", lambda: 3, print, [], [int, 3], [[int]], Agent, Output):
        with pytest.raises(UsageError):
            Agent("a", model, output=wrong)  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(UsageError, match="via="):
        Output(int, via="json")  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises(UsageError, match="retries="):
        Output(int, retries=-1)
    with pytest.raises(UsageError, match="Output already"):
        Output(Output(int))


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({}, "empty JSON schema"),
        ({"$ref": "#/x"}, "'#/x', which is not in it"),
        ({"type": 5}, "a JSON object"),
        ({"type": "array"}, "a JSON object"),
        ("int", "but must be a type"),
        ("", "but must be a type"),
    ],
)
async def test_what_is_no_schema(form: Any, told: str) -> None:
    """A JSON schema that is broken or describes no object, and a string, are refused with what to write instead."""
    with pytest.raises(UsageError, match=told):
        await clerk("x").call("x", output=form)
    with pytest.raises(UsageError, match=told):
        clerk("x", output=form)


async def test_a_tool_of_the_same_name() -> None:
    """The final tool cannot hide one of the agent's."""

    @tool
    async def final_answer() -> str:
        """Mine."""
        return ""

    with pytest.raises(UsageError, match=r"Output\(\.\.\., name="):
        await clerk("x", tools=[final_answer], output=Invoice).call("x")


def test_saved_agents() -> None:
    """An output is code: a saved agent wants it again; a branch has it."""
    agent = Agent("a", "openai/gpt-5", output=Invoice)
    with pytest.raises(UsageError, match="output="):
        Agent.from_dict(agent.to_dict())
    again = Agent.from_dict(agent.to_dict(), output=Invoice)
    assert again.output is not None
    assert agent.branch("b").output is agent.output


async def test_what_hooks_may_know() -> None:
    """How the answer was requested, and how often it was rejected, is in the run's state."""
    seen: list[tuple[str, int]] = []

    class Watch(Hook):
        def on_event(self, event: HookEvent) -> HookResult:
            if isinstance(event, CallEnded):
                state = event.context.state[AnswerState]
                seen.append((state.way, state.sent_back))
            return event

    await clerk("no", calls("final_answer", GOOD), output=Invoice, hooks=[Watch()]).call("x")
    assert seen == [("tool", 1)]


def test_replies_are_equal_whatever_they_give() -> None:
    """A reply without an output is what it was."""
    with pytest.raises(MissingOutputError):
        _ = Reply("assistant").output


@pytest.mark.parametrize("said", ['{"answer": "I do not know"}', '{"answer": 3, "b": 1}'])
async def test_a_misfit_of_the_field_is_no_bare_answer(said: str) -> None:
    """An object with the key `answer` is the one around the answer, however wide the type is; others may leave it out."""
    model = ScriptedModel([said, '{"a": 1}'])
    reply = await Agent("clerk", model, output=Output(dict[str, Any], via="prompt")).call("x")
    assert (reply.output, len(model.requests)) == ({"a": 1}, 2)


async def test_several_answers_in_one_reply() -> None:
    """A valid answer counts, beside an invalid one, in any position; of several valid ones the last one counts."""
    bad = {"customer": "Bob", "total": 0}
    for answers, total in (([GOOD, bad], 3), ([bad, GOOD], 3), ([{**GOOD, "total": 1}, {**GOOD, "total": 2}], 2)):
        uses = [ToolUseBlock(f"t{place}", "final_answer", answer) for place, answer in enumerate(answers)]
        for limit in (1, 5):
            agent = clerk(Msg.assistant(uses), output=Output(Invoice, retries=0), max_iterations=limit)
            assert (await agent.call("x")).output.total == total
        states = [result.state for result in agent.session().messages[2].tool_results]
        assert states == ["error" if answer is bad else "success" for answer in answers]


async def test_a_tool_that_fails_beside_the_answer_is_shown_to_the_model() -> None:
    """The answer may depend on it, so the model answers again; at the limit too."""

    @tool
    async def save(x: int) -> str:
        """Save."""
        raise OSError("disk full")

    both = Msg.assistant([ToolUseBlock("s", "save", {"x": 1}), ToolUseBlock("f", "final_answer", GOOD)])
    model = ScriptedModel([both, calls("final_answer", {**GOOD, "total": 9}, "t2")])
    reply = await Agent("clerk", model, tools=[save], output=Invoice).call("x")
    assert (reply.output.total, reply.outcome) == (9, "completed")
    assert [result.text for result in model.requests[1].messages[-1].tool_results] == [
        "OSError: disk full",
        '{"customer":"Ada","total":3}',
    ]
    model = ScriptedModel([both, '{"customer": "Ada", "total": 8}'])
    reply = await Agent("clerk", model, tools=[save], output=Invoice, max_iterations=1).call("x")
    assert (reply.output.total, reply.outcome) == (8, "limited")


@pytest.mark.parametrize("retries", [0, 2])
@in_virtual_time
async def test_a_step_that_keeps_failing(retries: int) -> None:
    """A last step that raises, or is too slow, is requested again `retries` times; then the call fails with the
    reason.
    """
    done = 0

    @tool(timeout=0.001)
    async def book(slow: bool) -> int:
        """Book."""
        nonlocal done
        done += 1
        if slow:
            await asyncio.sleep(10)
        raise ValueError("no seat")

    model = ScriptedModel(lambda request: calls("book", {"slow": done == 0}, f"t{len(request.messages)}"))
    agent = Agent("clerk", model, output=Output(book, retries=retries))
    with pytest.raises(OutputError, match="no seat" if retries else "book") as caught:
        await agent.call("x")
    assert (caught.value.times, done, len(model.requests)) == (retries + 1,) * 3
    assert isinstance(caught.value.answer, Msg)
    assert caught.value.answer.tool_uses[0].name == "book"


async def test_a_denied_step_is_no_failure_of_the_models() -> None:
    """A denial by a person or a hook does not count: the model reads it and continues."""
    model = ScriptedModel([calls("final_answer", GOOD, f"t{number}") for number in range(4)])
    left = [Deny("not yet")] * 3
    agent = Agent(
        "clerk",
        model,
        output=Output(Invoice, retries=0),
        hooks={"before_each_tool": lambda _: left.pop() if left else None},
    )
    assert (await agent.call("x")).output.total == 3


async def test_arguments_that_a_hook_spoils_are_bounded_too() -> None:
    """A refusal of the final tool itself counts like one of the validation."""

    def spoil(event: PreActing) -> None:
        event.tool_use = event.tool_use.replace(input={"customer": "Ada", "total": 0})

    agent = clerk(*[calls("final_answer", GOOD, f"t{n}") for n in range(2)], output=Output(Invoice, retries=1))
    with pytest.raises(OutputError, match="should be greater than 0"):
        await agent.call("x", hooks={"before_each_tool": spoil})


async def test_a_result_that_its_annotation_cannot_read() -> None:
    """A text that is no value of the step's type is no output: `reply.output` is of its type, or is not there."""

    async def count(x: int) -> int:
        """Count."""
        return x

    class Hide(Hook):
        def on_event(self, event: HookEvent) -> HookResult:
            if isinstance(event, PostActing):
                event.tool_result = type(event.tool_result)("t1", "count", "[hidden]", "success")
            return event

    reply = await clerk(calls("count", {"x": 1}), output=count, hooks=[Hide()]).call("x")
    assert (reply.text, reply.outcome, reply.typed) == ("[hidden]", "completed", False)


@pytest.mark.parametrize(
    ("modes", "tools", "ways"),
    [
        (AnswerModes(native=True, native_with_tools=True), True, ["native"]),
        (AnswerModes(native=True, native_with_tools=False), True, ["tool"]),
        (AnswerModes(native=True, native_with_tools=False), False, ["native"]),
        (AnswerModes(native=False, tools=False), True, ["prompt"]),
    ],
)
async def test_the_way_is_the_models(modes: AnswerModes, tools: bool, ways: list[str]) -> None:
    """A model is called in the first mode that it has; a JSON-schema mode that excludes tools is not used beside
    them.
    """

    class Knows(ScriptedModel):
        async def answer_modes(self) -> AnswerModes:
            return modes

    @tool
    async def look() -> str:
        """Look."""
        return ""

    said = calls("final_answer", GOOD) if ways == ["tool"] else '{"customer": "Ada", "total": 3}'
    model = Knows([said])
    agent = Agent("clerk", model, tools=[look] if tools else [], output=Invoice)
    events = agent.stream("x").of_type(PostReasoning)
    seen = [event.context.state[AnswerState].way async for event in events]
    assert seen[:1] == ways
    assert (model.requests[0].options.answer_schema is not None) == (ways == ["native"])
    assert ("final_answer" in [spec.name for spec in model.requests[0].tools]) == (ways == ["tool"])


@pytest.mark.parametrize(
    ("form", "title"),
    [
        (int, "int"),
        (list[int], "list"),
        (int | None, "answer"),
        (dataclass(type("Größe", (), {})), "answer"),
        (dataclass(type("a b", (), {})), "answer"),
    ],
)
def test_the_name_of_a_form_is_one_that_every_provider_accepts(form: Any, title: str) -> None:
    """That of the type, if it is made of ASCII letters; otherwise `answer`."""
    assert Output(form).shape.title == title
