"""What hook systems of agent frameworks have been seen to get wrong, as one test each."""

import asyncio
import random
from contextvars import ContextVar
from typing import Any

import pytest
from eventlog import Recorder, history, use

from agentflow import (
    Again,
    Agent,
    Approve,
    Deny,
    Hook,
    MemoryStore,
    Msg,
    Session,
    Stop,
    Suspend,
    ToolResultBlock,
    Transcript,
    fold_events,
    tool,
)
from agentflow.events import (
    EVENT_TYPES,
    ActingChunk,
    CallEnded,
    Error,
    PostActing,
    PostCall,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    ReasoningChunk,
    TurnEvent,
)
from agentflow.testing import ScriptedModel

WHO: ContextVar[str] = ContextVar("who", default="nobody")
RUN_EVENTS = [kind for kind in EVENT_TYPES if not issubclass(kind, TurnEvent)]


@tool(type="read")
async def look(at: str) -> str:
    """Look."""
    await asyncio.sleep(0)
    return f"saw {at}"


def looks(*names: str) -> list[Any]:
    return [use(f"t{i}", "look", at=name) for i, name in enumerate(names, 1)]


async def test_an_edit_is_seen_by_later_hooks_the_model_and_the_reader() -> None:
    """An edit of PreReasoning reaches later hooks and the model; a reader of the stream sees the edited event."""
    seen: list[str] = []

    class Edit(Hook):
        priority = 1

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreReasoning):
                event.input_messages = [*event.input_messages[:-1], Msg.user("edited")]
            return event

    class Later(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreReasoning):
                seen.append(event.input_messages[-1].text)

    model = ScriptedModel(["x"])
    agent = Agent("a", model, hooks=[Later(), Edit()])
    async for event in agent.stream("original"):
        if isinstance(event, PreReasoning):
            seen.append(event.input_messages[-1].text)  # noqa: PERF401 - the hook appends to the same list
    assert seen == ["edited", "edited"]
    assert model.requests[0].messages[-1].text == "edited"
    assert history(agent.session())[0] == "user: original"


async def test_a_rewritten_result_leaves_no_trace_of_the_original() -> None:
    """After a PostActing rewrite the original text is in no later request, no event behind it, and no history."""

    class Redact(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PostActing):
                event.tool_result = ToolResultBlock(event.tool_use.id, event.tool_use.name, "***")
            return event

    recorder = Recorder()
    model = ScriptedModel([looks("secret place"), "x"])
    agent = Agent("a", model, tools=[look], hooks=[Redact(), recorder])
    await agent.call("go")
    assert "saw secret" not in "".join(recorder.log)
    assert model.requests[1].messages[-1].text == "***"
    assert "saw secret" not in "".join(history(agent.session()))
    assert all("saw secret" not in turn.result for turn in recorder.seen[-1].context.trace.turns)


async def test_one_of_three_is_denied() -> None:
    """A parallel batch of three with the second denied: the others run, and every call is answered."""

    class Guard(Hook):
        def on_event(self, event: Any) -> Any:
            return Deny("no") if isinstance(event, PreActing) and event.tool_use.id == "t2" else event

    agent = Agent("a", ScriptedModel([looks("a", "b", "c"), "x"]), tools=[look], hooks=[Guard()])
    await agent.call("go")
    assert history(agent.session())[2] == "tool: t1 success 'saw a'; t2 denied 'Denied: no'; t3 success 'saw c'"


async def test_a_stop_at_the_first_of_three_writes() -> None:
    """Stop at the first of three sequential tools: the other two do not run."""
    ran: list[str] = []

    @tool
    async def write(text: str) -> str:
        """Write."""
        ran.append(text)
        return text

    class Enough(Hook):
        def on_event(self, event: Any) -> Any:
            return Stop("enough") if isinstance(event, PostActing) else event

    calls = [use(f"t{i}", "write", text=str(i)) for i in range(3)]
    agent = Agent("a", ScriptedModel([calls]), tools=[write], hooks=[Enough()])
    reply = await agent.call("go")
    assert (ran, reply.text, reply.outcome) == (["0"], "enough", "stopped")


@pytest.mark.parametrize("later", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", RUN_EVENTS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("watched", [False, True], ids=["call", "stream"])
async def test_a_hook_that_raises_on_any_event(kind: type, watched: bool, later: bool) -> None:
    """Whatever event a hook raises on, called or streamed: one CallEnded, no task left, a legal history that equals the fold
    of the events, the hook's own error or none, and the next call works."""

    class Bad(Hook):
        broken = True

        def on_event(self, event: Any) -> Any:
            if isinstance(event, kind) and self.broken:
                return self.fail() if later else self.now()
            return event

        def now(self) -> None:
            raise ValueError("hook broke")

        async def fail(self) -> None:
            await asyncio.sleep(0)
            raise ValueError("hook broke")

    recorder, bad = Recorder(), Bad()
    raised: list[str] = []
    agent = Agent(
        "a", ScriptedModel([looks("a", "b"), looks("c"), "x", "y", "z", "zz"]), tools=[look], hooks=[bad, recorder]
    )
    try:
        if watched:
            async for _ in agent.stream("go"):
                pass
        else:
            await agent.call("go")
    except ValueError as error:
        raised = [str(error), *error.__notes__]
    assert raised in ([], ["hook broke", f"raised by hook Bad (priority 100) on {kind.__name__}"])
    assert [type(event) for event in recorder.seen].count(CallEnded) == 1
    assert isinstance(recorder.seen[-1], CallEnded)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert history(fold_events(recorder.seen)) == history(agent.session())
    bad.broken = False
    assert (await agent.call("next")).outcome == "completed"
    Transcript(agent.session().messages)


async def test_cleanup_has_run_when_aclose_returns() -> None:
    """Leaving `async with` in the middle of a tool: its finally blocks and those around it ran before it is left."""
    cleaned: list[str] = []

    @tool
    async def pieces() -> Any:
        """Streams for ever."""
        try:
            while True:
                yield "piece"
        finally:
            await asyncio.sleep(0)
            cleaned.append("tool")

    class Wraps(Hook):
        def around(self, event: Any, source: Any) -> Any:
            return source.finally_action(lambda: cleaned.append("around")) if isinstance(event, PreActing) else source

    agent = Agent("a", ScriptedModel([[use("t1", "pieces")]]), tools=[pieces], hooks=[Wraps()])
    async with agent.stream("go") as events:
        async for event in events:
            if isinstance(event, ActingChunk):
                break
    assert cleaned == ["tool", "around"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not agent.session().busy


async def test_a_hook_that_always_goes_back_ends_at_the_limit() -> None:
    """A hook that always says Again ends with the summary at max_iterations."""

    class Back(Hook):
        def on_event(self, event: Any) -> Any:
            return Again("more") if isinstance(event, PostReasoning) and event.purpose == "reason" else event

    agent = Agent("a", ScriptedModel(lambda request: "words"), hooks=[Back()], max_iterations=4)
    reply = await agent.call("go")
    assert (reply.text, reply.outcome, reply.usage.model_calls) == ("words", "limited", 5)


async def test_a_suspended_call_goes_on_in_another_agent() -> None:
    """Suspended in one agent, resumed in another over the same store: the tool runs once, the budget continues."""
    ran: list[str] = []

    class Asks(Hook):
        def on_event(self, event: Any) -> Any:
            return Suspend("sure?") if isinstance(event, PreActing) and event.tool_use.name == "act" else event

    @tool
    async def act(at: str) -> str:
        """Act."""
        ran.append(at)
        return "acted"

    def made(script: list[Any]) -> Agent:
        return Agent("a", ScriptedModel(script), tools=[look, act], hooks=[Asks()], store=store, max_iterations=1)

    store = MemoryStore()
    calls = [use("t1", "look", at="a"), use("t2", "act", at="b")]
    assert (await made([calls]).call("go", session="s")).outcome == "suspended"
    other = made(["sum"])
    reply = await other.resume("s", {"t2": Approve()})
    assert (reply.text, reply.outcome, ran) == ("sum", "limited", ["b"])
    assert history(other.session("s"))[2] == "tool: t1 success 'saw a'; t2 success 'acted'"


async def test_hooks_of_three_parallel_tools() -> None:
    """Three parallel tools: three Pre and three Post, and the context variable is visible in each hook and tool."""
    seen: list[str] = []

    @tool(type="read")
    async def who() -> str:
        """Who."""
        await asyncio.sleep(0)
        return WHO.get()

    class Sees(Hook):
        async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            await asyncio.sleep(0)
            if isinstance(event, PreActing | PostActing):
                seen.append(f"{type(event).__name__} {WHO.get()}")
            return event

    WHO.set("me")
    agent = Agent("a", ScriptedModel([[use(f"t{i}", "who") for i in range(3)], "x"]), tools=[who], hooks=[Sees()])
    await agent.call("go")
    assert sorted(seen) == ["PostActing me"] * 3 + ["PreActing me"] * 3
    assert [result.text for result in agent.session().messages[2].tool_results] == ["me"] * 3


async def test_chunk_hooks_keep_the_order() -> None:
    """A chunk hook that waits at random keeps the order; one that raises is reported once and the run completes."""
    order: list[str] = []
    dice = random.Random(1)

    class Slow(Hook):
        async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            if isinstance(event, ReasoningChunk):
                for _ in range(dice.randrange(5)):
                    await asyncio.sleep(0)
                order.append(event.incremental_chunk.text)
            return event

    class Bad(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, ReasoningChunk):
                raise ValueError("bad")  # noqa: TRY004 - what a broken hook raises
            return event

    recorder = Recorder()
    agent = Agent("a", ScriptedModel([list("abcdefgh")]), hooks=[Bad(), Slow(), recorder])
    assert (await agent.call("go")).text == "abcdefgh"
    assert "".join(order) == "abcdefgh"
    assert [str(event.error) for event in recorder.seen if isinstance(event, Error)] == ["bad"]


async def test_a_model_that_fails_in_the_summary() -> None:
    """When the model fails in the summary the caller gets its error, and the results so far stay in the history."""
    recorder = Recorder()
    agent = Agent(
        "a", ScriptedModel([looks("a"), OSError("down"), "x"]), tools=[look], hooks=[recorder], max_iterations=1
    )
    with pytest.raises(OSError, match="down"):
        await agent.call("go")
    assert recorder.log[-3:] == [
        "PreReasoning 2 summary",
        "Error reasoning fatal OSError: down",
        "CallEnded failed OSError: down",
    ]
    assert history(agent.session())[2] == "tool: t1 success 'saw a'"
    assert (await agent.call("next")).text == "x"


class Chaos(Hook):
    """Gives legal verdicts and injects, at random."""

    def __init__(self, dice: random.Random, verdicts: float, injects: float) -> None:
        self.dice, self.verdicts, self.injects = dice, verdicts, injects

    def on_event(self, event: Any) -> Any:
        legal = [kind for kind in type(event).verdicts if kind is not Suspend]
        if isinstance(event, CallEnded | Error | PostCall):
            return event
        if self.dice.random() < self.injects:
            event.context.inject(f"note {self.dice.randrange(100)}")
        if not legal or self.dice.random() > self.verdicts:
            return event
        kind = self.dice.choice(legal)
        return event if kind is Again and event.purpose == "summary" else kind("said by chaos")


@pytest.mark.parametrize(
    ("verdicts", "injects"),
    [(0.0, 0.0), (0.15, 0.0), (0.0, 0.15), (0.1, 0.1)],
    ids=["calm", "verdicts", "injects", "both"],
)
async def test_fold_of_events_equals_history(verdicts: float, injects: float) -> None:
    """For random scripts and random hooks: what the events fold to is the history, and ends in the returned message."""
    for seed in range(40):
        dice = random.Random(seed)

        def brain(request: Any, dice: random.Random = dice) -> Any:
            if request.options.tool_choice == "none" or dice.random() < 0.3:
                return ["wor", "ds"]
            calls = [use("", "look", at=str(i)) for i in range(dice.randint(1, 3))]
            return [*dice.choice([["thinking aloud"], []]), *calls]

        recorder = Recorder()
        session = Session.fresh()
        hooks = [Chaos(dice, verdicts, injects), recorder]
        agent = Agent("a", ScriptedModel(brain), tools=[look], hooks=hooks, max_iterations=4)
        for number in range(3):
            reply = await agent.call(f"go {number}", session=session)
            assert history(fold_events(recorder.seen)) == history(session), f"seed {seed}"
            if reply.outcome != "denied":
                last = [msg for msg in session.messages if msg.role == "assistant"][-1]
                assert last.text == reply.text
        Transcript(session.messages)


@pytest.mark.parametrize(
    "kind", [PreCall, PreReasoning, PostReasoning, PreActing, PostActing], ids=lambda kind: kind.__name__
)
async def test_fold_with_a_message_injected_on(kind: type) -> None:
    """Wherever a hook injects, reader and history agree on the place; the model's reply is not torn from its request."""

    class Injects(Hook):
        done = False

        def on_event(self, event: Any) -> Any:
            if isinstance(event, kind) and not self.done:
                self.done = True
                event.context.inject("note")
            return event

    recorder = Recorder()
    agent = Agent("a", ScriptedModel([looks("a"), "x"]), tools=[look], hooks=[Injects(), recorder])
    await agent.call("go")
    assert history(fold_events(recorder.seen)) == history(agent.session())


async def test_fold_with_a_stopped_reply() -> None:
    """The results of calls that a Stop on PostReasoning left unrun are carried by an event."""

    class Stops(Hook):
        def on_event(self, event: Any) -> Any:
            return Stop("enough") if isinstance(event, PostReasoning) else event

    recorder = Recorder()
    agent = Agent("a", ScriptedModel([looks("a")]), tools=[look], hooks=[Stops(), recorder])
    await agent.call("go")
    assert history(fold_events(recorder.seen)) == history(agent.session())
