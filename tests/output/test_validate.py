"""`validate=` holds on every path: what it has not accepted is no output, and what it returns is the output everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from agentflow import Agent, Approve, Hook, HookEvent, HookResult, MemoryStore, Msg, Output, ToolUseBlock, tool
from agentflow._support.ids import inner_session_id
from agentflow.agent.orchestration import StepError, ask, workflow
from agentflow.durable.agent import DurableAgent
from agentflow.errors import MissingOutputError, ModelError, OutputError
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import CallEnded, Error, PostActing, PostCall, PreActing
from agentflow.vocabulary.facts import Reasoned, ToolFinished
from agentflow.vocabulary.verdicts import Recover, Suspend


def final(value: object, id: str = "f") -> Msg:  # noqa: A002
    """The final tool's call with a value."""
    return Msg.assistant([ToolUseBlock(id, "final_answer", {"answer": value})])


def even(number: int) -> int:
    """Accepts even numbers, and makes ten times as much of them."""
    if number % 2:
        raise ValueError(f"{number} is odd")
    return number * 10


@tool
async def look() -> str:
    """Look."""
    return "nothing"


LOOKS = Msg.assistant([ToolUseBlock("l", "look", {})])


def clerk(*said: Msg | str | Exception, validate: Callable[[Any], Any] = even, **given: Any) -> Agent[int]:
    """An agent that has to answer with a number."""
    options = {name: given.pop(name) for name in ("retries", "via") if name in given}
    return Agent("clerk", ScriptedModel(list(said)), output=Output(int, validate=validate, **options), **given)


@pytest.mark.parametrize(
    "said", [[LOOKS, '{"answer": 3}'], [final(3), '{"answer": 3}'], [final(3), '{"answer": "no"}']]
)
async def test_nothing_that_it_refused_is_an_output_at_the_limit(said: list[Any]) -> None:
    """The summary at the iteration limit is validated like any answer; refused, the reply has its text and no output."""
    reply = await clerk(*said, tools=[look], max_iterations=1).call("x")
    assert (reply.outcome, reply.typed, reply.text) == ("limited", False, said[1])
    with pytest.raises(MissingOutputError):
        _ = reply.output


async def test_what_it_accepts_at_the_limit() -> None:
    """The summary's value is the one that the validator returned; in the last round the last accepted call counts."""
    reply = await clerk(LOOKS, '{"answer": 4}', tools=[look], max_iterations=1).call("x")
    assert (reply.outcome, reply.output) == ("limited", 40)
    both = Msg.assistant([*final(4, "a").tool_uses, *final(3, "b").tool_uses])
    reply = await clerk(both, max_iterations=1).call("x")
    assert (reply.outcome, reply.output, reply.text) == ("completed", 40, '{"answer":4}')


async def test_it_runs_once_for_each_answer() -> None:
    """The validation, the final tool and the reply share one evaluation; the same answer in a later reply is
    evaluated again.
    """
    seen: list[int] = []

    def twice(number: int) -> None:
        seen.append(number)
        if len(seen) == 1:
            raise ValueError("not yet")

    reply = await clerk(final(4), final(4, "g"), validate=twice).call("x")
    assert (reply.output, seen) == (4, [4, 4])


@pytest.mark.parametrize("where", ["hook", "person"])
async def test_arguments_that_somebody_else_has_written(where: str) -> None:
    """A hook's or an approver's arguments of the final tool are validated too; refused, they are the tool's failure."""

    class Edit(Hook):
        def on_event(self, event: HookEvent) -> HookResult:
            if isinstance(event, PreActing) and event.tool_use.id == "f":
                event.tool_use = event.tool_use.replace(input={"answer": 5})
            return event

    class Ask(Hook):
        def on_event(self, event: HookEvent) -> HookResult:
            return Suspend("sure?") if isinstance(event, PreActing) and event.tool_use.id == "f" else event

    agent = clerk(final(4), final(6, "g"), hooks=[Edit() if where == "hook" else Ask()])
    reply = await agent.call("x")
    if where == "person":
        reply = await agent.resume(decisions={"f": Approve(input={"answer": 5})})
    assert reply.output == 60
    (refused,) = agent.session().messages[2].tool_results
    assert (refused.state, refused.text) == ("error", "Your answer does not pass: 5 is odd")


async def test_an_answer_of_a_resumed_call_is_validated_once() -> None:
    """The reply has the very object that the answer was accepted as."""
    values: list[object] = []

    def judge(number: int) -> object:
        values.append(object())
        return values[-1]

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    agent = clerk(Msg.assistant([ToolUseBlock("p", "pay", {})]), final(4), validate=judge, tools=[pay])
    assert (await agent.call("x")).outcome == "suspended"
    reply = await agent.resume(decisions={"p": Approve()})
    assert [reply.output] == values


@pytest.mark.parametrize(("text", "output"), [('{"answer": 6}', 60), ('{"answer": 5}', None), ("words", None)])
async def test_a_text_that_a_hook_has_put_there(text: str, output: int | None) -> None:
    """A hook that replaces the result, or the final message, has its text validated: once, and before `CallEnded`."""

    class Edit(Hook):
        def on_event(self, event: HookEvent) -> HookResult:
            if isinstance(event, PostActing):
                event.tool_result = type(event.tool_result)("f", "final_answer", text, "success")
            return event

    class EditFinal(Hook):
        def on_event(self, event: HookEvent) -> HookResult:
            if isinstance(event, PostCall):
                event.final_message = Msg.assistant(text)
            return event

    for hook in (Edit(), EditFinal()):
        reply = await clerk(final(4), hooks=[hook]).call("x")
        assert (reply.outcome, reply.typed and reply.output) == ("completed", output or False)


async def test_a_reply_that_a_hook_recovered() -> None:
    """`Recover` supplies a reply instead of an error; its text is validated like any other."""

    class Rescue(Hook):
        def __init__(self, text: str) -> None:
            self.text = text

        def on_event(self, event: HookEvent) -> HookResult:
            return Recover(Msg.assistant(self.text)) if isinstance(event, Error) and event.fatal else event

    down = ModelError("down", model="m")
    assert (await clerk(down, hooks=[Rescue('{"answer": 4}')]).call("x")).output == 40
    skipped = await clerk("no", retries=0, hooks=[Rescue("")]).call(
        "x"
    )  # the judge itself has failed, and is passed over
    assert (skipped.outcome, skipped.typed, skipped.text) == ("completed", False, "no")


@pytest.mark.parametrize(("form", "value"), [(int, 0), (bool, False), (str | None, ""), (list[int], [])])
async def test_values_that_are_empty(form: Any, value: object) -> None:
    """What the validator returns is the value, also where it is empty; only None leaves the model's."""
    said = {int: 5, bool: True, list[int]: [1]}.get(form, "words")
    agent = Agent("clerk", ScriptedModel([final(said)]), output=Output(form, validate=lambda _: value))
    assert (await agent.call("x")).output == value


class BrokenError(Exception):
    """A bug of the validator."""


@pytest.mark.parametrize(
    "said", [[final(4)], ['{"answer": 4}'], [LOOKS, '{"answer": 4}']], ids=["tool", "words", "summary"]
)
async def test_a_validator_that_fails_accepts_nothing(said: list[Any]) -> None:
    """Anything but `ValueError` fails the call with the validator's own error, with a note that says what to do (L15)."""
    ends: list[str] = []

    class Watch(Hook):
        observer = True

        def on_event(self, event: HookEvent) -> HookResult:
            if isinstance(event, CallEnded):
                ends.append(event.outcome)
            return None

    def broken(number: int) -> None:
        raise BrokenError(str(number))

    agent = clerk(*said, validate=broken, tools=[look], max_iterations=1, hooks=[Watch()])
    with pytest.raises(BrokenError) as caught:
        await agent.call("x")
    assert "It should refuse a value with ValueError" in caught.value.__notes__[0]
    assert ends == ["failed"]


async def test_a_validator_that_fails_on_a_text_of_a_hook() -> None:
    """It fails the call itself, before `CallEnded`, also if the text came after the validation of replies."""
    ends: list[str] = []

    class Edit(Hook):
        def on_event(self, event: HookEvent) -> HookResult:
            if isinstance(event, PostCall):
                event.final_message = Msg.assistant('{"answer": 5}')
            if isinstance(event, CallEnded):
                ends.append(event.outcome)
            return None

    def broken(number: int) -> None:
        if number == 5:
            raise BrokenError

    with pytest.raises(BrokenError):
        await clerk(final(4), validate=broken, hooks=[Edit()]).call("x")
    assert ends == ["failed"]


async def test_what_a_function_returns() -> None:
    """Of a function, `validate` checks what it returned: refused, the step has failed; accepted, its value is the output."""
    ran: list[int] = []

    @tool(retries=3)
    async def book(number: int) -> int:
        """Book."""
        ran.append(number)
        return number

    asked = [Msg.assistant([ToolUseBlock(f"t{n}", "book", {"number": n})]) for n in (3, 4)]
    agent = Agent("a", ScriptedModel(asked), output=Output(book, validate=even))
    reply = await agent.call("x")
    assert (reply.output, reply.text, ran) == (40, "4", [3, 4])
    assert agent.session().messages[2].text == "The return value of book does not pass: 3 is odd"
    agent = Agent("a", ScriptedModel([asked[0]]), output=Output(book, validate=even, retries=0))
    with pytest.raises(OutputError, match="The return value of book does not pass: 3 is odd"):
        await agent.call("x")


async def test_a_result_that_is_read_elsewhere(tmp_path: Path) -> None:
    """A durable run gives the validated output to its caller, and to another object that reads the result later."""
    url = f"sqlite:///{tmp_path / 'data.db'}"
    numbers = ['{"answer": 4}', Msg.assistant([ToolUseBlock("l", "look", {})]), '{"answer": 3}']
    async with SqlStore(url) as store:
        agent = clerk(*numbers, via="prompt", tools=[look], max_iterations=1, store=store)
        async with DurableAgent(agent, url) as durable, durable.worker():
            assert (await durable.call("x", session="s", run_id="r1")).output == 40
            assert not (await durable.call("x", session="s", run_id="r2")).typed
        async with DurableAgent(clerk(store=store), url) as durable:
            assert (await durable.result("r1")).output == 40
            assert not (await durable.result("r2")).typed


@pytest.mark.parametrize("validate", [even, lambda number: None])
async def test_a_sub_agents_output(validate: Callable[[int], int | None]) -> None:
    """A calling model reads the validated value; a text without an accepted value is a failure of the tool."""
    for said, states in ([final(4)], "success"), ([LOOKS, '{"answer": 3}'], "error" if validate is even else "success"):
        inner = clerk(*said, validate=validate, tools=[look], max_iterations=1 if len(said) == 2 else 5)
        boss = Agent("boss", ScriptedModel([[ToolUseBlock("t", "clerk", {"message": "?"})], "Done."]), tools=[inner])
        await boss.call("x")
        (result,) = boss.session().messages[2].tool_results
        assert result.state == states
        if states == "success" and len(said) == 1:
            assert result.text == ('{"answer":40}' if validate is even else '{"answer":4}')


async def test_a_step_of_a_workflow() -> None:
    """A workflow's function has the validated output, validated once however often the function runs again."""
    seen: list[int] = []

    def noted(number: int) -> int:
        seen.append(number)
        return even(number)

    inner = clerk('{"answer": 4}', '{"answer": 6}', LOOKS, '{"answer": 3}', via="prompt", validate=noted, tools=[look])

    @workflow(inner)
    async def flow(message: str) -> int:
        return (await ask(inner, message)).output + (await ask(inner, message)).output

    assert (await flow.call("x")).output == 100
    assert seen == [4, 6]


async def test_a_step_whose_answer_was_refused() -> None:
    """An asked agent whose summary was refused fails the step: the workflow's function never gets the value."""
    inner = clerk(LOOKS, '{"answer": 3}', via="prompt", tools=[look], max_iterations=1)

    @workflow(inner)
    async def flow(message: str) -> int:
        return (await ask(inner, message)).output

    with pytest.raises(StepError, match="No answer was accepted"):
        await flow.call("x")


async def test_a_call_that_another_process_continues() -> None:
    """A call that continues after any of its facts in another process has the validated output."""
    store = MemoryStore()
    first = await clerk(final(4), store=store).call("x", session="s")
    facts = store.load("s")
    assert isinstance(facts, Sequence)
    assert first.output == 40
    for cut in range(2, len(facts)):
        there = MemoryStore()
        there.append("s", facts[:cut])
        reply = await clerk(*([final(4)] * (cut == 1)), store=there).resume("s")
        assert reply.output == 40, facts[:cut]


async def test_refusals_are_counted_over_restarts() -> None:
    """`retries` limits the answers of a run, in all its processes."""
    store = MemoryStore()
    with pytest.raises(OutputError):
        await clerk(final(3), final(5, "g"), retries=1, store=store).call("x", session="s")
    facts = store.load("s")
    assert isinstance(facts, Sequence)
    (refused,) = [place for place, fact in enumerate(facts) if isinstance(fact, Reasoned) and not fact.accepted]
    there = MemoryStore()
    there.append("s", facts[: refused + 1])
    with pytest.raises(OutputError, match="answered 2 times"):
        await clerk(final(7, "h"), retries=1, store=there).resume("s")


async def test_a_sub_agent_that_had_ended_when_its_caller_was_cut() -> None:
    """Its stored answer is validated again, so the caller reads the same as without the crash."""

    def boss(store: MemoryStore, *said: object) -> Agent[None]:
        inner = clerk(*([final(4)] if len(said) == 2 else []))
        return Agent("boss", ScriptedModel(list(said)), tools=[inner], store=store)

    store = MemoryStore()
    await boss(store, [ToolUseBlock("t", "clerk", {"message": "?"})], "Done.").call("x", session="s")
    facts, inside = store.load("s"), store.load(inner_session_id("s", "t"))
    assert isinstance(facts, Sequence)
    assert isinstance(inside, Sequence)
    (finished,) = [place for place, fact in enumerate(facts) if isinstance(fact, ToolFinished)]
    there = MemoryStore()
    there.append("s", facts[:finished])
    there.append(inner_session_id("s", "t"), inside)
    again = boss(there, "Done.")
    assert (await again.resume("s")).text == "Done."
    assert again.session("s").messages[2].text == '{"answer":40}'


async def test_a_summary_is_nothing_that_a_function_returned() -> None:
    """At the limit, where no step ran, the text of the summary is no output of a function, although it returns a
    text.
    """

    async def book(number: int) -> str:
        """Book."""
        return "booked"

    agent = Agent("a", ScriptedModel([LOOKS, "nothing"]), tools=[look], output=book, max_iterations=1)
    reply = await agent.call("x")
    assert (reply.outcome, reply.text, reply.typed) == ("limited", "nothing", False)


async def test_a_refused_summary_is_evaluated_once_and_an_unchanged_text_is_kept() -> None:
    """The reply uses the result of the validation; a calling model reads the model's own text if the value is
    unchanged.
    """
    seen: list[int] = []

    def odd(number: int) -> None:
        seen.append(number)
        if number % 2 == 0:
            raise ValueError("even")

    reply = await clerk(LOOKS, '{"answer": 4}', validate=odd, tools=[look], max_iterations=1).call("x")
    assert (reply.typed, seen) == (False, [4])
    inner = clerk('{"answer":  3}', via="prompt", validate=odd)
    boss = Agent("boss", ScriptedModel([[ToolUseBlock("t", "clerk", {"message": "?"})], "Done."]), tools=[inner])
    await boss.call("x")
    assert boss.session().messages[2].text == '{"answer":  3}'
