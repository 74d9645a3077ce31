"""A recorded run is replayed by the real driver: no request is sent, no tool runs, and differences are found."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from clocks import LoopClock

from agentflow import (
    Again,
    Agent,
    Approve,
    Deny,
    Hook,
    HookEvent,
    Msg,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    Stop,
    Suspend,
    ToolUseBlock,
    on,
    tool,
)
from agentflow.errors import CallTimeoutError, ModelError, StoreError, ToolArgumentError, TurnTimeoutError, UsageError
from agentflow.recording import load
from agentflow.recording.recorder import Recorder
from agentflow.recording.replay import Divergence, Replay
from agentflow.recording.replay.recorded_errors import rebuild_error
from agentflow.testing import RunChangedError, ScriptedModel, assert_replays, run_virtual
from agentflow.tools.tool_context import ToolEmitter

RAN: Counter[str] = Counter()


@tool(type="read")
async def look(place: str, emitter: ToolEmitter) -> str:
    """Look."""
    RAN["look"] += 1
    await emitter.emit(f"looking at {place}")
    await asyncio.sleep(3 if place == "far" else 1)
    return f"{place} is empty"


@tool(type="write")
async def delete(path: str) -> str:
    """Delete."""
    RAN["delete"] += 1
    if path == "/":
        raise PermissionError("not that one")
    return f"{path} is gone"


@tool(type="read", timeout=0.5)
async def slow() -> str:
    """Take too long."""
    RAN["slow"] += 1
    await asyncio.sleep(5)
    return "late"


class Guard(Hook):
    guard = True

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PreActing) and event.tool_use.input.get("path") == "/etc":
            return Deny("not there")
        return event


class NewGuard(Hook):
    guard = True

    def on_event(self, event: Any) -> Any:
        return Deny("never") if isinstance(event, PreActing) and event.tool_use.name == "delete" else event


class Retries(Hook):
    def around_model(self, event: PreReasoning, source: Any) -> Any:
        return source.retry(2)


class Shouts(Hook):
    def on_event(self, event: Any) -> None:
        if isinstance(event, PostReasoning) and not event.reasoning_result.tool_uses:
            event.reasoning_result = Msg.assistant(event.reasoning_result.text.upper())


SCRIPT: list[Any] = [
    ["Let me ", ModelError("down", retryable=True)],
    ["Let me ", "look.", ToolUseBlock("t1", "look", {"place": "far"}), ToolUseBlock("t2", "look", {"place": "near"})],
    [
        ToolUseBlock("t3", "delete", {"path": "/etc"}),
        ToolUseBlock("t4", "delete", {"path": "/"}),
        ToolUseBlock("t5", "slow", {}),
    ],
    [ToolUseBlock("t6", "helper", {"message": "help"}), ToolUseBlock("t7", "gone", {})],
    ["All ", "done."],
]


class Unreachable:
    """A model that must not be called."""

    name = "scripted"

    def stream(self, request: Any) -> Any:
        raise AssertionError("a replay has asked the model")


def make(model: Any = None, helper: Any = None, *hooks: Hook, **more: Any) -> Agent[Any]:
    asked = Agent("helper", helper or Unreachable(), tools=[look], clock=LoopClock())
    own = [Guard(), Retries(), Shouts(), *hooks]
    tools = [look, delete, slow, asked]
    return Agent("a", model or Unreachable(), system="Be brief.", tools=tools, hooks=own, clock=LoopClock(), **more)


def record(path: Path, script: Any = None, **options: Any) -> Path:
    recorder = Recorder(path)
    helper = ScriptedModel([ToolUseBlock("h1", "look", {"place": "here"}), "Here is nothing."])
    agent = make(ScriptedModel(SCRIPT if script is None else script), helper, recorder, **options)
    run_virtual(agent.call("Tidy up").resolve())
    recorder.close()
    RAN.clear()
    return path


def test_a_run_runs_again_without_a_network_and_without_effects(tmp_path: Path) -> None:
    """Retries, parallel tools, a denied call, a failing and a timed-out tool, a sub-agent: the same events, and
    nothing ran.
    """
    path = record(tmp_path / "run.jsonl")
    done = Replay(path).run(make())
    assert done.divergence is None, str(done)
    assert done.reply is not None
    assert done.reply.text == "ALL DONE."
    assert not RAN
    assert [call.source for call in done.log.calls.values()] == ["", "helper"]


def test_time_in_the_replay_is_that_of_the_recording(tmp_path: Path) -> None:
    """Events have their recorded durations, however fast the replay is."""
    path = record(tmp_path / "run.jsonl")
    done = Replay(path).run(make())

    def ends(log: Any) -> list[tuple[str, float]]:
        mine = [event for call in log.calls.values() if not call.source for event in log.events(call.call)]
        return [(e.fields["tool_use"], round(e.fields["duration_ms"], -2)) for e in mine if e.type == "PostActing"]

    assert ends(done.log)[:2] == [("t2", 1000.0), ("t1", 3000.0)]
    assert ends(done.log) == ends(Replay(path).log)


def test_a_new_guard_departs_where_it_first_decides(tmp_path: Path) -> None:
    """The first divergence is reported exactly, and the run stops there."""
    path = record(tmp_path / "run.jsonl")
    done = Replay(path).run(make(), hooks=[NewGuard()])
    found = done.divergence
    assert found is not None
    assert (found.event, found.iteration, found.field) == ("PreActing", 2, "decision")
    assert found.recorded is None
    assert found.now == {"hook": "NewGuard", "verdict": {"verdict": "Deny", "reason": "never"}}
    assert found.hooks == ("NewGuard",)
    assert "differs at PreActing" in str(done)
    assert (done.reply and done.reply.outcome, RAN) == ("interrupted", {})


@pytest.mark.parametrize(
    ("options", "event", "field", "now"),
    [
        ({"without": ["Shouts"]}, "PostReasoning", "reasoning_result.content[0].text", "All done."),
        ({"without": ["Guard"]}, "PreActing", "decision", None),
        ({"system": "Be long."}, "PreReasoning", "input_messages[0].content[0].text", "Be long."),
    ],
)
def test_what_is_changed_departs_where_it_shows(tmp_path: Path, options: Any, event: str, field: str, now: Any) -> None:
    """For a hook that is left out, or another prompt: the event, the field, the recorded and the new value."""
    done = Replay(record(tmp_path / "run.jsonl")).run(make(), **options)
    assert done.divergence is not None
    assert (done.divergence.event, done.divergence.field, done.divergence.now) == (event, field, now)


def test_a_request_that_was_not_recorded_is_a_difference() -> None:
    """The recording has no answer with which the run could continue, so the call is interrupted."""
    recorder = Recorder()
    run_virtual(Agent("a", ScriptedModel(["Hello."]), hooks=[recorder]).call("Hi").resolve())

    @on(PostReasoning)
    def asks_again(event: PostReasoning) -> Again:
        return Again("Longer.")

    done = Replay(recorder.log).run(Agent("a", Unreachable()), hooks=[asks_again], since=1_000)
    now = "the recording has no further model call"
    assert done.divergence == Divergence(event="request", seq=0, iteration=2, now=now, no_data=True)
    assert done.reply is not None
    assert done.reply.outcome == "interrupted"


def test_from_the_departure_it_goes_on_with_a_live_model(tmp_path: Path) -> None:
    """With `model=` the run continues; only tools that are allowed by name run."""
    path = record(tmp_path / "run.jsonl")
    live = ScriptedModel(
        [ToolUseBlock("n1", "delete", {"path": "x"}), ToolUseBlock("n2", "look", {"place": "x"}), "Fine."]
    )
    done = run_virtual(Replay(path).arun(make(), without=["Guard"], model=live, tools=["look"]))
    assert done.divergence is not None
    assert done.reply is not None
    assert done.reply.text == "FINE."
    assert RAN == {"look": 1}


def test_tools_that_may_run_are_the_agents(tmp_path: Path) -> None:
    """A name that neither the agent nor a sub-agent has is refused, before anything runs."""
    path = record(tmp_path / "run.jsonl")
    below = Agent("below", Unreachable(), tools=[Agent("lower", Unreachable(), tools=[slow])])
    assert Replay(path).run(below, tools=["slow", "lower"], diverged=lambda _: "stop").divergence is not None
    with pytest.raises(UsageError, match="has no effect: tools run only after the replay diverges"):
        Replay(path).run(below, tools=["slow", "lower"])
    bare = Agent("bare", Unreachable())
    for name, agent, known in (
        ("lok", make(), "Did you mean 'look'? Its tools: look, delete, slow, helper."),
        ("slo", below, "Did you mean 'slow'? Its tools: lower, slow."),
        ("look", bare, "Its tools: none."),
    ):
        with pytest.raises(UsageError) as caught:
            Replay(path).run(agent, tools=[name])
        assert str(caught.value) == f"Agent {agent.name!r} has no tool {name!r} to run. {known}"


def test_a_suspended_run_goes_on_as_it_was_decided(tmp_path: Path) -> None:
    """Suspended, decided, resumed: one run, replayed through both of its calls."""

    class Asks(Hook):
        def on_event(self, event: Any) -> Any:
            return Suspend("may it?") if isinstance(event, PreActing) and event.tool_use.name == "delete" else event

    path = tmp_path / "run.jsonl"
    recorder = Recorder(path)
    agent = make(ScriptedModel([ToolUseBlock("t1", "delete", {"path": "x"}), "Done."]), None, Asks(), recorder)

    async def main() -> None:
        reply = await agent.call("go")
        assert reply.outcome == "suspended"
        await agent.resume(decisions={"t1": Approve(input={"path": "y"})})

    run_virtual(main())
    recorder.close()
    RAN.clear()
    done = Replay(path).run(make(None, None, Asks()))
    assert done.divergence is None, str(done)
    assert done.reply is not None
    assert done.reply.text == "DONE."
    assert not RAN


@pytest.mark.parametrize("edited", [{"message": "y"}, {"data": "y"}, {"messages": ["y"]}, {"tool_result": "y"}])
def test_edited_arguments_that_look_like_references_are_replayed(tmp_path: Path, edited: dict[str, Any]) -> None:
    """A log writes messages and results as references; arguments of such a form are distinguished from them."""

    @tool(requires_approval=True)
    async def send(message: str = "", data: str = "", messages: Sequence[str] = (), tool_result: str = "") -> str:
        """Send something."""
        return "sent"

    path = tmp_path / "run.jsonl"
    recorder = Recorder(path)

    def agent(*hooks: Hook) -> Agent[Any]:
        return Agent("a", ScriptedModel([ToolUseBlock("t1", "send", {}), "Done."]), tools=[send], hooks=hooks)

    async def main() -> None:
        recorded = agent(recorder)
        await recorded.call("go")
        await recorded.resume(decisions={"t1": Approve(input=edited)})

    run_virtual(main())
    recorder.close()
    done = Replay(path).run(agent())
    assert done.divergence is None, str(done)
    (acted,) = [entry for entry in done.log.events() if entry.type == "PostActing"][1:]
    assert done.log.tool_use(str(acted.fields.get("tool_use"))).input == edited


@pytest.mark.parametrize("how", ["interrupt", "timeout", "cancel"])
def test_a_run_that_was_cut_is_cut_at_the_same_place(tmp_path: Path, how: str) -> None:
    """An interrupt, a timeout, a cancelled task, while a tool runs: the same end."""
    path = tmp_path / "run.jsonl"
    recorder = Recorder(path)
    agent = make(ScriptedModel([ToolUseBlock("t1", "look", {"place": "far"}), "Done."]), None, recorder)

    async def main() -> None:
        session = "s"
        task = asyncio.ensure_future(
            agent.call("go", session=session, timeout=2 if how == "timeout" else None).resolve()
        )
        await asyncio.sleep(1.5)
        if how == "interrupt":
            agent.interrupt(session, "enough")
        elif how == "cancel":
            task.cancel()
        await asyncio.wait([task])
        task.cancelled() or task.exception()

    run_virtual(main())
    recorder.close()
    done = Replay(path).run(make())
    assert done.divergence is None, str(done)
    if how == "interrupt":
        assert done.reply is not None
        assert done.reply.outcome == "interrupted"
    else:
        assert isinstance(done.error, CallTimeoutError if how == "timeout" else asyncio.CancelledError)


class _SlowAtFirst(Hook):
    async def on_event(self, event: HookEvent) -> HookEvent:
        if isinstance(event, PreCall):
            await asyncio.sleep(3)
        return event


@pytest.mark.parametrize("how", ["interrupt", "timeout", "cancel"])
def test_a_run_that_was_cut_at_its_first_event_is_cut_at_the_same_place(how: str) -> None:
    """An end that arrives while hooks have the first event is repeated there."""
    recorder = Recorder()
    agent = Agent("a", ScriptedModel(["Hi."]), hooks=[_SlowAtFirst(), recorder])

    async def main() -> None:
        task = asyncio.ensure_future(agent.call("go", session="s", timeout=2 if how == "timeout" else None).resolve())
        await asyncio.sleep(1.5)
        if how == "interrupt":
            agent.interrupt("s", "enough")
        elif how == "cancel":
            task.cancel()
        await asyncio.wait([task])
        task.cancelled() or task.exception()

    run_virtual(main())
    done = Replay(recorder.log).run(Agent("a", ScriptedModel([]), hooks=[_SlowAtFirst()]))
    assert done.divergence is None, str(done)


@pytest.mark.parametrize("keep", [0.2, 0.4, 0.6, 0.8, 0.95])
def test_a_log_that_breaks_off_is_replayed_to_its_end(tmp_path: Path, keep: float) -> None:
    """The log of a killed process is replayed to its end: without a divergence, and without waiting indefinitely."""
    path = record(tmp_path / "run.jsonl")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    done = Replay(path).run(make())
    assert done.divergence is None, str(done)
    assert not RAN


def test_a_recorded_run_is_a_test(tmp_path: Path) -> None:
    """`assert_replays` passes if nothing has changed, reports what has, and updates the file on request."""
    path = record(tmp_path / "run.jsonl")
    assert_replays(path, make)
    with pytest.raises(
        RunChangedError, match=r"differs at PostReasoning[\s\S]*recorded: ALL DONE\.[\s\S]*now: +All done"
    ):
        assert_replays(path, make(), without=["Shouts"])
    done = assert_replays(path, make(), without=["Shouts"], update=True)
    assert done.divergence is not None
    assert assert_replays(path, make(), without=["Shouts"]).divergence is None
    with pytest.raises(RunChangedError, match="differs"):
        assert_replays(path, make)

    class Ends(Hook):
        def on_event(self, event: Any) -> Any:
            return Stop("no") if isinstance(event, PreReasoning) and event.iteration == 2 else event

    assert_replays(path, make(), hooks=[Ends()], update=True)  # a shorter run can replace the recorded one
    before = path.read_text("utf-8")
    with pytest.raises(RunChangedError, match="cannot be updated"):
        assert_replays(path, make(), update=True)  # a longer one cannot
    assert path.read_text("utf-8") == before


def test_what_cannot_be_replayed_says_so(tmp_path: Path) -> None:
    """A log of digests, one of several runs, a missing hook, a running event loop."""
    path = record(tmp_path / "run.jsonl")
    with pytest.raises(UsageError, match="Did you mean 'Guard'"):
        Replay(path).run(make(), without=["Gaurd"])
    record(path)
    with pytest.raises(UsageError, match="2 runs; choose one"):
        Replay(path)
    with pytest.raises(StoreError, match=f"has no run 'r'; its runs: {', '.join(load(path).run_ids)}\\."):
        Replay(path, "r")
    assert Replay(path, load(path).run_ids[0]).run(make()).divergence is None

    async def inside() -> None:
        Replay(path, load(path).run_ids[0]).run(make())

    with pytest.raises(UsageError, match=r"await Replay\.arun"):
        asyncio.run(inside())
    recorder = Recorder(tmp_path / "quiet.jsonl", short=0)
    run_virtual(Agent("a", ScriptedModel(["Hi"]), hooks=[recorder]).call("x").resolve())
    recorder.close()
    with pytest.raises(StoreError, match="contains digests"):
        Replay(tmp_path / "quiet.jsonl")


@pytest.mark.parametrize(
    "error", [ToolArgumentError("broken"), TurnTimeoutError("t", 1.0), OSError("gone"), KeyError("k")]
)
def test_a_failure_is_raised_again_as_it_was(error: Exception) -> None:
    """Its class, its text and its `repr` are the same, whatever its constructor takes."""
    made = rebuild_error({"type": type(error).__name__, "module": type(error).__module__, "message": str(error)})
    assert isinstance(made, type(error))
    assert (type(made) is type(error)) != isinstance(error, KeyError)  # whose text is not its argument
    assert (str(made), made.args) == (str(error), (str(error),))


async def test_a_call_that_is_refused_is_no_replay() -> None:
    """A refused call has fired no event, so there is no recorded call: the refusal is raised instead of a result."""
    recorder = Recorder()
    await Agent("a", ScriptedModel(["Hello."]), hooks=[recorder]).call("Hi")
    with pytest.raises(UsageError, match="output=3: pydantic cannot create a JSON schema for it"):
        await Replay(recorder.log).arun(Agent("a", Unreachable()), output=3)  # pyright: ignore[reportArgumentType]
