"""The laws in small cases, which rarely occur in random programs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws_harness import SlowStore, run

from agentflow import Agent, Answer, Deny, Hook, Msg, ToolUseBlock, on, tool
from agentflow.errors import CallTimeoutError, UsageError, Veto
from agentflow.loop.history import fold_events, fold_facts
from agentflow.loop.schedule import ToolSchedule
from agentflow.reactive import Mono
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import (
    CallEnded,
    CallEvent,
    Error,
    Event,
    HookEvent,
    MessagesAdded,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
    ReasoningChunk,
)
from agentflow.vocabulary.facts import Fact
from agentflow.vocabulary.messages import Reply
from agentflow.vocabulary.ports.memory_store import MemoryStore
from agentflow.vocabulary.specs import Usage
from agentflow.vocabulary.verdicts import Again, Recover, Stop


@tool(type="write")
async def submit(answer: str = "") -> str:
    """Hand in the work."""
    return "submitted"


@tool(type="read")
async def read() -> str:
    """Look something up."""
    return "read"


def seeing(events: list[Any], **options: Any) -> Any:
    return on(Event, observer=True, **options)(events.append)


# ---- L6, L7


@given(st.lists(st.sampled_from(["submit", "unknown"]), min_size=1, max_size=4))
def test_the_model_answers_after_any_tool(names: list[str]) -> None:
    """L6: no tool ends the loop."""
    calls = [ToolUseBlock(f"t{n}", name, {}) for n, name in enumerate(names)]
    model = ScriptedModel([*calls, "the answer"])
    reply = run(lambda: Agent("a", model, tools=[submit]).call("hi").resolve())
    assert reply.text == "the answer"
    assert len(model.requests) == len(names) + 1


@given(st.integers(1, 6), st.lists(st.sampled_from(["tool", "again", "suspend"]), min_size=20, max_size=20))
def test_n_rounds_of_reasoning_then_one_summary(limit: int, plan: list[str]) -> None:
    """L7: rejected replies and resumes spend the same budget; the summary may call none."""
    events: list[Any] = []
    steps = iter(plan)

    @on(PostReasoning)
    def again(event: PostReasoning) -> Any:
        if event.purpose == "reason" and now == "again":
            return Again("once more")
        return event

    now = ""

    def say(request: Any) -> Any:
        nonlocal now
        if request.options.tool_choice == "none":
            return "summary"
        now = next(steps)
        name = "risky" if now == "suspend" else "submit"
        return [ToolUseBlock(f"t{len(model.requests)}", name, {})]

    @tool(requires_approval=True)
    async def risky() -> str:
        """Needs a person."""
        return "done"

    model = ScriptedModel(say)

    async def main() -> str:
        agent = Agent("a", model, tools=[submit, risky], hooks=[again, seeing(events)], max_iterations=limit)
        reply = await agent.call("hi")
        while reply.outcome == "suspended":
            reply = await agent.resume(decisions={p.id: Deny("no") for p in reply.pending})
        return f"{reply.outcome} {reply.text}"

    assert run(main) == "limited summary"
    purposes = [e.purpose for e in events if isinstance(e, PreReasoning)]
    assert purposes == ["reason"] * limit + ["summary"]


# ---- L8


@pytest.mark.parametrize("kind", [PreCall, PreReasoning, PostReasoning, PreToolRound, PreActing])
def test_the_caller_sees_the_hook_s_own_error_with_a_note(kind: type[Event]) -> None:
    """L8: the caller gets the error by identity; the note names hook, priority and event."""
    planted = KeyError("planted")

    @on(kind, priority=77)
    def breaks(event: Any) -> None:
        raise planted

    async def main() -> None:
        agent = Agent("a", ScriptedModel([ToolUseBlock("t", "submit", {}), "ok"]), tools=[submit], hooks=[breaks])
        with pytest.raises(KeyError) as caught:
            await agent.call("hi")
        assert caught.value is planted

    run(main)
    assert any("breaks" in n and "77" in n and kind.__name__ in n for n in planted.__notes__)


# ---- L9


@given(st.booleans(), st.sampled_from(["ok", "model fails", "hook fails"]))
def test_a_sub_agent_has_its_own_source_and_bills_its_caller(children: bool, how: str) -> None:
    """L9: its events are in the caller's stream only on request; hooks with scope `tree` get them; the caller pays
    its cost.
    """
    spent = Msg.assistant("inner", usage=Usage(input_tokens=5, model_calls=1))
    inner = Agent("inner", ScriptedModel([RuntimeError("down") if how == "model fails" else spent]))
    tree: list[Any] = []
    own: list[Any] = []
    read: list[Any] = []
    said = [
        ToolUseBlock("t", "inner", {"message": "go"}),
        Msg.assistant("outer", usage=Usage(input_tokens=2, model_calls=1)),
    ]

    @on(PreReasoning, scope="tree")
    def breaks(event: PreReasoning) -> None:
        if event.source and how == "hook fails":
            raise KeyError("in the tree")

    async def main() -> None:
        hooks = [breaks, seeing(tree, scope="tree"), seeing(own)]
        outer = Agent("outer", ScriptedModel(said), tools=[inner], hooks=hooks)
        async with outer.stream("hi", children=children) as events:
            read.extend([event async for event in events])

    run(main)
    assert {e.source for e in own} == {""}
    assert {e.source for e in tree} == {"", "inner"}
    assert {e.source for e in read} == ({"", "inner"} if children else {""})
    assert [e.source for e in tree if isinstance(e, CallEnded)] == ["inner", ""]
    billed = tree[-1].usage
    assert billed.input_tokens == (7 if how == "ok" else 2)
    assert fold_events(own)[-1].text == "outer"


# ---- found by random programs


@pytest.mark.parametrize("session", [None, "s"])
def test_after_a_bare_break_the_next_call_waits_for_the_cleanup(session: str | None) -> None:
    """L1: the cleanup needs no garbage collector, and a stored event does not keep the stream open."""

    async def main() -> str:
        agent = Agent("a", ScriptedModel(["one", "two"]))
        async for _event in agent.stream("x", session=session, buffer=0):
            break
        return (await asyncio.wait_for(agent.call("y", session=session), 10)).text

    gc.disable()
    try:
        assert run(main) == "one"
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [PreCall, PostToolRound])
def test_a_bare_break_at_an_event_that_an_interrupt_had_overtaken(kind: type[Event]) -> None:
    """L1: the interrupt's error, which the call holds while it delivers the event, does not keep the stream alive."""
    events: list[Event] = []

    @tool(type="read")
    async def waits() -> str:
        """Wait."""
        asyncio.get_running_loop().call_later(0.1, agent.interrupt, "s")
        await asyncio.sleep(1)
        return "late"

    model = ScriptedModel([ToolUseBlock("t", "waits", {}) if kind is PostToolRound else "one", "two"])
    agent = Agent("a", model, tools=[waits], hooks=[seeing(events)], store=SlowStore())

    async def read() -> None:
        if kind is PreCall:
            asyncio.get_running_loop().call_later(0.005, agent.interrupt, "s")  # while its input is being stored
        async for event in agent.stream("x", session="s"):
            if isinstance(event, kind):
                break

    async def main() -> None:
        await asyncio.create_task(read())
        reply = await asyncio.wait_for(agent.call("y", session="s"), 10)
        assert reply.outcome == "completed"
        assert [event.outcome for event in events if isinstance(event, CallEnded)] == ["interrupted", "completed"]

    gc.disable()
    try:
        run(main)
    finally:
        gc.enable()


class SlowLoad(MemoryStore):
    """Takes a second to load, and fails the first time on request."""

    def __init__(self, fails: int = 0) -> None:
        super().__init__()
        self.fails = fails

    async def load(self, session_id: str) -> Any:  # type: ignore[override]
        await asyncio.sleep(1)
        if self.fails:
            self.fails -= 1
            raise OSError("the disk")
        return super().load(session_id)


def test_a_session_is_free_after_its_loading_was_cancelled_or_failed() -> None:
    """The next call works."""

    async def main() -> None:
        cancelled = Agent("a", ScriptedModel(["one"]), store=SlowLoad())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(cancelled.call("x", session="s"), 0.5)
        assert (await asyncio.wait_for(cancelled.call("y", session="s"), 10)).text == "one"
        failing = Agent("a", ScriptedModel(["one"]), store=SlowLoad(1))
        with pytest.raises(OSError, match="disk"):
            await failing.call("x", session="s")
        assert (await asyncio.wait_for(failing.call("y", session="s"), 10)).text == "one"

    run(main)


@pytest.mark.parametrize("kind", [PreCall, PostReasoning, PreToolRound])
def test_what_the_reader_saw_last_is_what_history_holds(kind: type[Event]) -> None:
    """L4: a stream closed at a decision event leaves a history that equals the fold of its events."""
    events: list[Any] = []

    async def main() -> None:
        agent = Agent("a", ScriptedModel([ToolUseBlock("t", "submit", {})]), tools=[submit], hooks=[seeing(events)])
        async with agent.stream("hi") as stream:
            async for event in stream:
                if isinstance(event, kind):
                    break
        assert fold_events(events) == tuple(agent.session().messages)
        assert agent.session().messages[0].text == "hi", "the user's words are kept"

    run(main)


def test_post_reasoning_tells_the_calls_that_are_run() -> None:
    """L4: ids that a hook repeats are made unique before a consumer gets the sealed event."""
    events: list[Any] = []

    @on(PostReasoning)
    def doubles(event: PostReasoning) -> None:
        if event.reasoning_result.tool_uses:
            event.reasoning_result = Msg.assistant([*event.reasoning_result.content, *event.reasoning_result.content])

    async def main() -> None:
        model = ScriptedModel([ToolUseBlock("t", "submit", {}), "ok"])
        agent = Agent("a", model, tools=[submit], hooks=[doubles, seeing(events)])
        await agent.call("hi")
        told = next(e for e in events if isinstance(e, PostReasoning)).reasoning_result.tool_uses
        asked = next(e for e in events if isinstance(e, PreToolRound)).tool_uses
        assert told == asked
        assert fold_events(events) == tuple(agent.session().messages)

    run(main)


def test_a_veto_around_the_model_equals_deny() -> None:
    """A `Veto` raised after PreReasoning ends the call like `Deny`: there is no reply, so no chunks and no
    PostReasoning.
    """

    class Blocked(Hook):
        def around(self, event: HookEvent, source: Any) -> Any:
            return Mono.error(Veto("no")) if isinstance(event, PreReasoning) else source

    async def main() -> tuple[list[Any], Reply]:
        recorder: list[Any] = []
        agent = Agent("a", ScriptedModel(["one"]), hooks=[Blocked()])
        async with agent.stream("x") as events:
            recorder.extend([event async for event in events])
        return recorder, agent.session().messages[-1]

    events, last = run(main)
    assert [type(e).__name__ for e in events] == ["PreCall", "PreReasoning", "PostCall", "CallEnded"]
    assert last.text == "no"
    assert events[-1].outcome == "denied"


@pytest.mark.parametrize("kind", [ReasoningChunk, CallEnded])
@pytest.mark.parametrize("on_failure", [None, "skip"])
def test_a_veto_raised_on_a_notification_is_a_failing_hook(kind: type[Event], on_failure: Any) -> None:
    """A notification cannot steer: a Veto there is logged and skipped, as a returned Deny is."""

    @on(kind, on_failure=on_failure)
    def vetoes(event: Any) -> None:
        raise Veto("no")

    reply = run(lambda: Agent("a", ScriptedModel(["ok"]), hooks=[vetoes]).call("hi").resolve())
    assert reply.text == "ok"


@pytest.mark.parametrize("fails", [False, True])
def test_an_interrupt_at_the_last_event_comes_too_late(fails: bool) -> None:
    """L8: the call has ended; its caller gets the reply or the call's own error."""

    @on(CallEnded)
    def late(event: CallEnded) -> None:
        event.context.interrupt("too late")

    async def main() -> str:
        agent = Agent("a", ScriptedModel([RuntimeError("down") if fails else "ok"]), hooks=[late])
        try:
            return (await agent.call("hi")).text
        except RuntimeError as error:
            return str(error)

    assert run(main) == ("down" if fails else "ok")


def test_a_failing_observer_does_not_hide_the_event_from_the_next() -> None:
    """Observers always run."""
    events: list[Any] = []

    @on(PreReasoning, observer=True, on_failure="abort", priority=1)
    def breaks(event: PreReasoning) -> None:
        raise KeyError("observer")

    async def main() -> None:
        with pytest.raises(KeyError):
            await Agent("a", ScriptedModel(["ok"]), hooks=[breaks, seeing(events)]).call("hi")

    run(main)
    assert any(isinstance(e, PreReasoning) for e in events)


@pytest.mark.parametrize("schedule", [ToolSchedule.BY_TYPE, ToolSchedule.PARALLEL, ToolSchedule.SEQUENTIAL])
def test_a_round_whose_calls_all_ended_before_the_crash_is_closed(schedule: ToolSchedule) -> None:
    """Resuming after the last `ToolFinished` works under every schedule."""
    store = MemoryStore()

    async def main() -> None:
        agent = Agent("a", ScriptedModel([ToolUseBlock("t", "submit", {}), "ok"]), tools=[submit], store=store)
        await agent.call("hi", session="s")
        facts: list[Fact] = list(store.load("s"))
        cut = next(n for n, f in enumerate(facts) if type(f).__name__ == "ToolFinished") + 1
        crashed = MemoryStore()
        crashed.append("s", facts[:cut])
        again = Agent("a", ScriptedModel(["ok"]), tools=[submit], store=crashed, schedule=schedule)
        assert (await again.resume("s")).text == "ok"
        assert fold_facts(crashed.load("s")) == tuple(again.session("s").messages)

    run(main)


@pytest.mark.parametrize("kind", [PreActing, PostActing])
@pytest.mark.parametrize("on_failure", [None, "skip"])
def test_a_hook_that_fails_in_a_parallel_round_fails_alike_with_and_without_a_reader(
    kind: type[Event], on_failure: Any
) -> None:
    """L3, L8: a reader changes neither the events nor the error."""
    planted = KeyError("planted")
    logs: list[list[str]] = []
    raised: list[BaseException | None] = []

    async def main(watched: bool) -> None:
        events: list[Any] = []

        @on(kind, on_failure=on_failure)
        def breaks(event: Any) -> None:
            if event.tool_use.id == "t1":
                raise planted

        model = ScriptedModel([[ToolUseBlock("t1", "read", {}), ToolUseBlock("t2", "read", {})], "ok"])
        agent = Agent("a", model, tools=[read], hooks=[breaks, seeing(events)])
        raised.append(None)
        try:
            if watched:
                async with agent.stream("hi") as stream:
                    _ = [event async for event in stream]
            else:
                await agent.call("hi")
        except Exception as error:
            raised[-1] = error
        logs.append([type(event).__name__ for event in events])

    run(lambda: main(False))
    run(lambda: main(True))
    assert raised == [None if on_failure else planted] * 2
    assert logs[0] == logs[1]


@on(PreCall)
def _answers(event: PreCall) -> Answer:
    return Answer("ok")


class _Layer(Hook):
    def around(self, event: Any, source: Any) -> Any:
        return Mono.just("ok") if isinstance(event, PreCall) else source


@pytest.mark.parametrize("given", [None, _answers, _Layer()], ids=["by the model", "by a verdict", "by a layer"])
@pytest.mark.parametrize("kind", [PostCall, CallEnded])
def test_what_is_injected_at_the_end_is_told_in_its_place(kind: type[Event], given: Any) -> None:
    """L4: the reply comes first, whatever its origin, followed by the injected messages."""
    events: list[Any] = []

    @on(kind)
    def injects(event: Any) -> None:
        event.context.inject("late")

    async def main() -> None:
        hooks = [injects, seeing(events), *([] if given is None else [given])]
        agent = Agent("a", ScriptedModel(["ok"]), hooks=hooks)
        await agent.call("hi")
        stored = agent.session().messages
        assert [msg.text for msg in stored] == (["hi", "ok", "late"] if kind is PostCall else ["hi", "ok"])
        assert fold_events(events) == tuple(stored)

    run(main)


def test_an_error_that_looks_like_the_end_of_an_iteration_reaches_the_reader() -> None:
    """L8: a StopAsyncIteration raised by a hook does not end the stream as if it were complete."""

    @on(PostCall)
    async def breaks(event: PostCall) -> None:
        raise StopAsyncIteration

    async def main() -> None:
        async with Agent("a", ScriptedModel(["ok"]), hooks=[breaks]).stream("hi") as stream:
            _ = [event async for event in stream]

    with pytest.raises((StopAsyncIteration, RuntimeError)):
        run(main)


@pytest.mark.parametrize("stage", [PreCall, PreToolRound])
def test_a_wrapper_s_own_cancelled_error_fails_alike_with_and_without_a_reader(stage: type[Event]) -> None:
    """L3: the error of a wrapper is not lost in the task that a reader makes necessary."""
    outcomes: list[Any] = []

    class Raises(Hook):
        def around(self, event: Any, source: Any) -> Any:
            return Mono.error(asyncio.CancelledError("own")) if isinstance(event, stage) else source

    async def main(watched: bool) -> None:
        events: list[Any] = []
        model = ScriptedModel([ToolUseBlock("t1", "read", {}), "ok"])
        agent = Agent("a", model, tools=[read], hooks=[Raises(), seeing(events)])
        error: BaseException | None = None
        try:
            if watched:
                async with agent.stream("hi") as stream:
                    _ = [event async for event in stream]
            else:
                await agent.call("hi")
        except BaseException as caught:
            error = caught
        outcomes.append(([type(e).__name__ for e in events], type(error)))

    run(lambda: main(False))
    run(lambda: main(True))
    assert outcomes[0] == outcomes[1]


# ---- L4 in the corners


def injecting(event: PostReasoning) -> None:
    """Inject a message before the answer is stored."""
    event.context.inject("injected")


def interrupting(event: Any) -> None:
    """Interrupt the call."""
    event.context.interrupt("enough")


def failing(event: Any) -> None:
    """Fail."""
    raise RuntimeError("broken")


async def told(agent: Agent, words: str = "q") -> tuple[list[Event], list[str]]:
    """Return the events of a call that may fail, and the texts of its history; events and history agree."""
    events: list[Event] = []
    with contextlib.suppress(RuntimeError):
        await agent.stream(words).tap(events.append).to_list()
    stored = tuple(agent.session().messages)
    assert fold_events(events) == stored
    return events, [msg.text or msg.tool_results[0].text for msg in stored if msg.text or msg.tool_results]


@pytest.mark.parametrize(
    "end",
    [on(PostCall)(failing), on(PostCall)(interrupting), on(PostReasoning, priority=200)(interrupting)],
    ids=["PostCall fails", "PostCall interrupts", "PostReasoning interrupts"],
)
def test_what_was_injected_before_a_call_that_is_cut_lands_where_events_say(end: Any) -> None:
    """L4: it waits for the answer, which is accepted, and follows it."""

    async def main() -> None:
        agent = Agent("a", ScriptedModel(["answer", "next"]), hooks=[on(PostReasoning)(injecting), end])
        events, texts = await told(agent)
        assert texts == ["q", "answer", "injected"]
        assert [type(event).__name__ for event in events][-2:] == ["MessagesAdded", "CallEnded"]

    run(main)


@pytest.mark.parametrize("how", [failing, interrupting])
def test_results_of_a_suspended_round_whose_post_hook_ends_the_call_are_told(how: Any) -> None:
    """L4: the round's event reported them as waiting; the results stored instead are reported after it."""

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def main() -> None:
        agent = Agent(
            "a", ScriptedModel([ToolUseBlock("t1", "pay", {}), "next"]), tools=[pay], hooks=[on(PostToolRound)(how)]
        )
        events, texts = await told(agent)
        assert texts == ["q", "Interrupted."]
        assert [type(event).__name__ for event in events][-2:] == ["MessagesAdded", "CallEnded"]

    run(main)


class OnceMore(Hook):
    """Runs a failed round once more."""

    def around(self, event: Any, source: Any) -> Any:
        return source.retry(2) if isinstance(event, PreToolRound) else source


@pytest.mark.parametrize("again", [False, True], ids=["once", "retried"])
def test_a_call_that_waits_for_a_person_and_whose_post_hook_fails(again: bool) -> None:
    """L2, L4: the call fails, and its history equals its events. A repeated round waits for the person, without events of its
    call, which have fired already.
    """

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    @on(PostActing)
    def fails(event: PostActing) -> None:
        raise RuntimeError("broken")

    async def main() -> None:
        model = ScriptedModel([ToolUseBlock("t1", "pay", {}), "next"])
        agent = Agent("a", model, tools=[pay], hooks=[fails, *([OnceMore()] if again else [])])
        events, texts = await told(agent)
        assert texts == (["q"] if again else ["q", "Not finished: the call failed (RuntimeError)."])
        acting = [type(event).__name__ for event in events if isinstance(event, PreActing | PostActing)]
        assert acting == ["PreActing", "PostActing"]
        assert getattr(events[-1], "outcome", "") == ("suspended" if again else "failed")

    run(main)


class BehindTheAnswer(Hook):
    """Fails after the rest of the call, and recovers."""

    def on_event(self, event: Any) -> Any:
        return Recover("rescued") if isinstance(event, Error) and event.fatal else event

    def around(self, event: Any, source: Any) -> Any:
        if not isinstance(event, PreCall):
            return source
        failure = Mono.error(RuntimeError("behind the answer"))
        return failure if event.input_messages[0].text == "instead" else source.then(failure)


@pytest.mark.parametrize(("words", "models"), [("q", 1), ("instead", 0)])
def test_a_call_that_a_hook_recovers_has_its_post_call(words: str, models: int) -> None:
    """L4: `PostCall` has the message that ends the call, and hooks may edit it, whether or not the model had
    answered.
    """

    @on(PostCall)
    def edit(event: PostCall) -> None:
        event.final_message = Msg.assistant(event.final_message.text.upper())

    async def main() -> None:
        model = ScriptedModel(["answer"])
        agent = Agent("a", model, hooks=[BehindTheAnswer(), edit, on(PostReasoning)(injecting)])
        events, texts = await told(agent, words)
        assert texts == [words, "RESCUED", *["injected"] * models]
        assert [type(event).__name__ for event in events if isinstance(event, CallEvent)] == [
            "PreCall",
            "Error",
            "PostCall",
            *["MessagesAdded"] * models,
            "CallEnded",
        ]
        assert getattr(events[-1], "outcome", "") == "completed"
        assert len(model.requests) == models

    run(main)


# ---- stored messages are reported


@on(MessagesAdded, on_failure="abort", priority=10)
def refuses_messages(event: MessagesAdded) -> None:
    """Fails on every `MessagesAdded` event."""
    raise KeyError("messages")


@pytest.mark.parametrize("store", [MemoryStore, SlowStore])
@pytest.mark.parametrize("end", ["timeout", "error", "stop", "recover"])
def test_a_hook_that_fails_on_a_message_keeps_none_of_the_others_from_being_told(
    end: str, store: type[MemoryStore]
) -> None:
    """L4: the events of a call that is wound up fold to its history, in order."""
    events: list[Any] = []

    @on(ReasoningChunk, PostReasoning)
    def speaks(event: Event) -> None:
        event.context.inject(f"on {type(event).__name__}")

    @on(PostReasoning)
    def stops(event: PostReasoning) -> Any:
        if end == "stop":
            return Stop("enough")
        raise ValueError("the reply")

    @on(Error)
    def saves(event: Error) -> Any:
        return Recover("saved") if end == "recover" and isinstance(event.error, ValueError) else None

    async def main() -> None:
        said = [ModelChunk("ok"), lambda: asyncio.sleep(1)] if end == "timeout" else [ToolUseBlock("t", "submit", {})]
        hooks = [speaks, refuses_messages, seeing(events), *([] if end == "timeout" else [stops, saves])]
        agent = Agent("a", ScriptedModel([said]), tools=[submit], hooks=hooks, store=store(), max_iterations=1)
        with contextlib.suppress(CallTimeoutError, KeyError, ValueError):
            await agent.call("hi", timeout=0.5, session="s")
        history = tuple(agent.session("s").messages)
        assert len([msg for msg in history if msg.text.startswith("on ")]) > (end != "timeout")
        assert [msg.text for msg in fold_events(events)] == [msg.text for msg in history]

    run(main)


def test_a_message_of_the_last_hook_is_kept_by_a_store_too() -> None:
    """A message that a hook injects on the call's last message is stored and reported, even if the store is slow."""
    events: list[Any] = []

    @on(MessagesAdded)
    def answers(event: MessagesAdded) -> None:
        if event.messages[0].text == "one":
            event.context.inject("two")

    @on(PostReasoning)
    def speaks(event: PostReasoning) -> None:
        event.context.inject("one")

    async def main() -> None:
        agent = Agent("a", ScriptedModel(["ok"]), hooks=[answers, speaks, seeing(events)], store=SlowStore())
        await agent.call("hi", session="s")
        assert [msg.text for msg in agent.session("s").messages] == ["hi", "ok", "one", "two"]
        assert fold_events(events) == tuple(agent.session("s").messages)

    run(main)


@pytest.mark.parametrize("timeout", [None, 0.5])
def test_a_cancellation_on_top_of_an_interrupt_is_not_swallowed(timeout: float | None) -> None:
    """The task that was cancelled while its interrupted call reported messages ends as cancelled, and all messages
    were reported.
    """
    events: list[Any] = []

    @on(MessagesAdded, priority=10)
    async def slow(event: MessagesAdded) -> None:
        telling.set()
        await asyncio.sleep(3)

    @on(ReasoningChunk)
    def speaks(event: ReasoningChunk) -> None:
        event.context.inject("one")
        if timeout is None:
            event.context.interrupt()

    async def main() -> None:
        nonlocal telling
        telling = asyncio.Event()
        model = ScriptedModel([["ok", lambda: asyncio.sleep(1)]])
        agent = Agent("a", model, hooks=[slow, speaks, seeing(events)])
        call = asyncio.ensure_future(agent.call("hi", timeout=timeout).resolve())
        await telling.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert fold_events(events) == tuple(agent.session().messages)

    telling = asyncio.Event()
    run(main)
    assert events[-1].outcome == "interrupted"


def test_a_hook_that_adds_a_message_for_each_message_is_told_so() -> None:
    """A hook that injects a message for each injected message does not run forever."""

    @on(MessagesAdded, on_failure="abort")
    def again(event: MessagesAdded) -> None:
        event.context.inject("and another")

    @on(PreReasoning)
    def begins(event: PreReasoning) -> None:
        event.context.inject("one")

    async def main() -> None:
        with pytest.raises(UsageError, match=r"injected 100 messages in a row.*'injected'"):
            await Agent("a", ScriptedModel(["ok"]), hooks=[again, begins]).call("hi")

    run(main)


@pytest.mark.parametrize("turns", range(12))
def test_a_model_is_closed_also_by_a_call_that_is_cancelled_twice(turns: int) -> None:
    """A hook swallows the first cancellation; the second one comes while a slow store writes the partial reply."""

    @on(ReasoningChunk)
    async def swallows(event: ReasoningChunk) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3)

    async def main() -> None:
        model = ScriptedModel([["so ", "far"]])
        agent = Agent("a", model, hooks=[swallows], store=SlowStore())
        call = asyncio.ensure_future(agent.call("hi", session="s").resolve())
        await asyncio.sleep(1)
        call.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert model.open_streams == 0

    run(main)


@pytest.mark.parametrize("session", ["named", None], ids=["named", "implicit"])
@pytest.mark.parametrize("dropped", [False, True], ids=["closed", "dropped"])
def test_the_end_of_a_stream_does_not_wait_for_a_call_of_its_own_hook(dropped: bool, session: str | None) -> None:
    """A hook of CallEnded calls the agent on the session of its own call: refused, whichever task runs the call's
    end.
    """
    refused: list[str] = []

    class Recurses(Hook):
        async def on_event(self, event: HookEvent) -> None:
            if isinstance(event, CallEnded):
                try:
                    await agent.call("of my own", session=session)
                except UsageError as error:
                    refused.append(str(error))

    agent = Agent("a", ScriptedModel(["one", "two"]), hooks=[Recurses()])

    async def main() -> None:
        events = agent.stream("hi", session=session).__aiter__()
        await anext(events)
        if dropped:
            del events
            gc.collect()
        else:
            await events.aclose()
        reply = await agent.call("and now?", session=session)
        assert reply.outcome == "completed"

    run(main)
    assert len(refused) == 2
