"""`Replay`: run a recorded run again with the real driver, without network access and without effects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypedDict, TypeVar, Unpack

from agentflow._support.validation import is_a
from agentflow._support.virtual_time import VirtualClockLoop
from agentflow.agent.agent import Agent, FullAgent
from agentflow.agent.agent_flux import AgentFlux
from agentflow.agent.arguments import ToolableAgent, wrapped_agent
from agentflow.errors import StoreError, UsageError, close_to
from agentflow.hooks import HookSource
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import hooks_of
from agentflow.loop.output.output import OutputLike
from agentflow.loop.session import Session, full_session
from agentflow.reactive import Mono
from agentflow.recording.entries import CallEntry, EventEntry, FactEntry, HookEntry, LogEntry, MarkEntry
from agentflow.recording.log import RunLog
from agentflow.recording.reading import load
from agentflow.recording.recorder.hook import Recorder
from agentflow.recording.replay.clock import ReplayClock
from agentflow.recording.replay.comparing import Divergence
from agentflow.recording.replay.comparison import Reaction
from agentflow.recording.replay.player import Player
from agentflow.recording.replay.script import Script
from agentflow.recording.replay.script_reader import read_script
from agentflow.vocabulary.messages import Msg, Reply
from agentflow.vocabulary.ports.model import Model
from agentflow.vocabulary.specs import ModelOptions

__all__ = ["Replay", "ReplayOptions", "ReplayResult"]

T = TypeVar("T")
_UNCHANGED: Any = object()


class ReplayOptions(TypedDict, total=False):
    """The keyword arguments of `Replay.run` and `assert_replays`, as described for `Replay.arun`."""

    hooks: HookSource
    without: Collection[str]
    system: Any
    output: OutputLike[Any] | None
    deps: object
    since: int
    pace: float | None
    diverged: Callable[[Divergence], Reaction] | None
    model: str | Model | None
    tools: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """The result of a replay.

    Attributes:
        divergence: The first difference from the recording; None if there is none.
        log: The new run, as a run log.
        lines: The lines of that log.
        stopped: Whether the new run was stopped, at the divergence or because the recording had no more data.
        reply: The reply of its last call, if there is one.
        error: The exception of its last call, if there is one.
    """

    divergence: Divergence | None
    log: RunLog
    lines: tuple[Mapping[str, Any], ...] = ()
    stopped: bool = False
    reply: Reply[Any] | None = None
    error: BaseException | None = None

    def __str__(self) -> str:
        return "the same as recorded" if self.divergence is None else str(self.divergence)


class Replay:
    """A recorded run that can be replayed.

    The driver and the agent's hooks run for real; models and tools return recorded data. The agent's recorders are left
    out, and nothing is stored.

    Args:
        run: A run log, or its path.
        run_id: The run to replay, if the log has several.
        inexact: Whether to replay a run even if its log lacks the point at which it was cancelled, or if a hook did something
            that is not replayable. Events from about that point on can differ without a change.

    Raises:
        StoreError: The log cannot be read, has no such run, or cannot be replayed exactly.
        UsageError: The log has several runs and `run_id` is not given, or `run` is neither a log nor a path.

    Example:
        >>> recorder = Recorder()
        >>> agent = Agent("a", ScriptedModel(["Hello!"]), hooks=[recorder])
        >>> reply = await agent.call("Hi")
        >>> print(await Replay(recorder.log).arun(agent))
        the same as recorded
    """

    def __init__(self, run: RunLog | str | Path, run_id: str | None = None, *, inexact: bool = False) -> None:
        if not is_a(run, RunLog | str | Path):
            raise UsageError(
                f"Replay(...) takes a run log or its path, not {type(run).__name__}. Pass recorder.log, or load(path)."
            )
        log = run if isinstance(run, RunLog) else load(run)
        _check_whole(log)
        runs = log.run_ids
        if run_id is None and len(runs) > 1:
            raise UsageError(
                f"{log.name} has {len(runs)} runs; choose one with run_id={runs[0]!r} (in the command: --run {runs[0]}). "
                f"Its runs: {', '.join(runs)}."
            )
        self.log = log if run_id is None else log.run(run_id)
        script = read_script(self.log)  # refuses a log without a call, even if `inexact`
        if not inexact:
            _check_cancellations(script)

    def run(self, agent: Agent[Any], **options: Unpack[ReplayOptions]) -> ReplayResult:
        """Replay in virtual time (with `pace` or `model`, in real time); see `arun`.

        Raises:
            UsageError: An event loop is running; await `arun` instead.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise UsageError(
                "Replay.run(...) was called inside a running event loop. Use `await Replay.arun(...)` there."
            )
        return _run(
            self.arun(agent, **options), real=options.get("pace") is not None or options.get("model") is not None
        )

    async def arun(
        self,
        agent: Agent[Any],
        *,
        hooks: HookSource = (),
        without: Collection[str] = (),
        system: Any = _UNCHANGED,
        output: OutputLike[Any] | None = None,
        deps: object = None,
        since: int = 0,
        pace: float | None = None,
        diverged: Callable[[Divergence], Reaction] | None = None,
        model: str | Model | None = None,
        tools: Collection[str] = (),
    ) -> ReplayResult:
        """Replay the run.

        Args:
            agent: The agent; it is not changed.
            hooks: Additional hooks.
            without: Names of the agent's hooks to leave out.
            system: A different system prompt.
            output: The `output=` of the recorded `agent.call(...)`, because a log holds no Python type. The agent's own
                `output` need not be passed.
            deps: The `deps=` for tools and hooks.
            since: Ignore differences in top-level events before this `seq`.
            pace: Replay speed; 2 is twice as fast as recorded. None means as fast as possible.
            diverged: Called with the first difference; returns `"stop"`, `"continue"` (continue with the rest of the
                recording) or `"live"` (continue with a live model). By default the replay stops, or continues live if
                `model=` is set. An exception that it raises ends the replay and is raised.
            model: The live model to continue with.
            tools: Names of the tools that may run while it continues live; the others return an error.

        Raises:
            UsageError: The agent has no hook named in `without` or no tool named in `tools`; `tools` is given without
                `model` or `diverged`; `pace` is not above 0; or a call is refused, for example because `output` is wrong.
        """
        if pace is not None and not pace > 0:
            raise UsageError(f"Replay: pace={pace}; it must be a number above 0, or None.")
        # A new script for each replay, since a player uses up its replies.
        script = read_script(self.log)
        clock = ReplayClock(script.roots[0].time, pace)
        chosen = _hooks_for(agent, without)
        _check_tools(agent, tools, live=model is not None or diverged is not None)
        on_divergence = diverged or (_stop if model is None else _continue_live)
        player = Player(script, clock, pace is not None, since, on_divergence, model, frozenset(tools))
        changes: dict[str, Any] = {} if system is _UNCHANGED else {"system": system}
        assert isinstance(agent, FullAgent)  # every agent is one
        variant = agent.variant([*chosen, *hooks_of(hooks)], clock=clock, store=None, **changes)
        # The recorded exceptions of calls are results; only an exception of `diverged` is raised.
        reply, error = await _repeat_calls(variant, script, player, deps, output)
        if player.compared.raised is not None:
            raise player.compared.raised
        return ReplayResult(
            divergence=player.compared.divergence,
            log=player.compared.new.log,
            lines=tuple(player.compared.new.lines),
            stopped=player.compared.reaction == "stop",
            reply=reply,
            error=error,
        )


def _stop(_: Divergence) -> Reaction:
    return "stop"


def _continue_live(_: Divergence) -> Reaction:
    return "live"


def _check_whole(log: RunLog) -> None:
    """Refuse a log that lacks data from models or tools."""
    if lost := sum(entry.lost for entry in log.entries if isinstance(entry, LogEntry)):
        raise StoreError(
            f"{log.name} cannot be replayed: {lost} entries are missing, because the recorder could not keep up with the "
            "run. Record the run again."
        )
    if not log.header.content:
        raise StoreError(
            f"{log.name} cannot be replayed: it contains digests instead of texts. Record the run with Recorder(short=80)."
        )
    if log.header.origin != "recorder":
        raise StoreError(
            f"{log.name} cannot be replayed: it was exported from stored facts, which do not contain the chunks of models. "
            "Replay a log that a Recorder wrote."
        )


_NOT_EXACT: Final[Mapping[str, str]] = {
    "twice": "subscribed twice at the same time to a source that allows it only once",
    "pending": "cancelled its own task, and the call was interrupted before that took effect",
    "swallowed": "cancelled its own task, and the cancellation was swallowed before the end of a reply of the model",
}
"""The actions of hooks that cannot be replayed exactly, by the mark in the log."""


def _check_cancellations(script: Script) -> None:
    """Refuse a run that was cancelled at an unknown point, or with an action of a hook that cannot be replayed."""
    for entry in script.log.entries:
        if isinstance(entry, MarkEntry) and entry.what in _NOT_EXACT:
            raise StoreError(
                f"{script.log.name} cannot be replayed exactly: a hook of its call {entry.call} {_NOT_EXACT[entry.what]}. "
                "Correct the hook, and record the run again; or use Replay(..., inexact=True) (in the command: --inexact)."
            )
    for call, cancellation in script.cuts.items():
        if not cancellation.at:
            raise StoreError(
                f"{script.log.name} cannot be replayed exactly: its call {call} was cancelled at a point that is not in the "
                "log, since the event loop was shut down or another thread cancelled it while its code was running. Use "
                "Replay(..., inexact=True) (in the command: --inexact) to replay it up to about that point."
            )


async def _repeat_calls(
    agent: Agent[Any], script: Script, player: Player, deps: object, output: OutputLike[Any] | None
) -> tuple[Reply[Any] | None, BaseException | None]:
    """Repeat the top-level calls until one diverges; return the reply or exception of the last one."""
    session = Session.fresh([script.log.message(ref) for ref in _history(script, script.roots[0])])
    reply: Reply[Any] | None = None
    error: BaseException | None = None
    for call in script.roots:
        on_started = partial(player.begin, call, full_session(session))
        reply, error = await _run_call(_repeat_call(agent, script, call, session, player, deps, output), on_started)
        if isinstance(error, Exception) and not player.has_started(call):
            raise error  # a call refused before its first event is in no recording
        if player.compared.divergence is not None or (reply is None and error is None):
            break
    return reply, error


def _repeat_call(
    agent: Agent[Any],
    script: Script,
    call: CallEntry,
    session: Session,
    player: Player,
    deps: object,
    output: OutputLike[Any] | None,
) -> Coroutine[Any, Any, Reply[Any]]:
    """Repeat one call of the run."""
    options = None if call.options is None else ModelOptions(**call.options)
    rest: dict[str, Any] = {
        "session": session,
        "timeout": call.timeout,
        "deps": deps,
        "hooks": [player],
        "options": options,
        "output": output,
    }
    if not call.resumes:
        messages: list[Msg] = [script.log.message(ref) for ref in _input(script.log, call.call)]
        if call.streamed:
            return _read_stream(agent.stream(messages, **rest), call, player)
        return _plain_call(agent.call(messages, **rest))
    resumed = _last_fact(script.log, call.call, "call_resumed")
    recorded = {} if resumed is None else script.log.decisions(resumed)
    suspended = _last_fact(script.log, script.roots[script.roots.index(call) - 1].call, "round_suspended")
    recorded_ids = [] if suspended is None else [wait["id"] for wait in suspended.fields.get("pending", ())]
    new_ids = [wait.id for wait in session.pending]
    # A model's tool calls may have other ids in the replay.
    now = dict(zip(recorded_ids, new_ids, strict=True)) if len(recorded_ids) == len(new_ids) else {}
    decisions = {now.get(key, key): decision for key, decision in recorded.items()}
    if call.streamed:
        stream = agent.resume_stream(decisions=decisions, **rest)
        return _read_stream(stream, call, player)
    return _plain_call(agent.resume(decisions=decisions, **rest))


async def _plain_call(call: Mono[Reply[Any]]) -> Reply[Any]:
    """Await a call without a reader. (A task needs a coroutine, and a `Mono` is only awaitable.)"""
    return await call


async def _read_stream(flux: AgentFlux[Any], call: CallEntry, player: Player) -> Reply[Any]:
    """Read a call's events."""
    async with flux as events:
        async for _ in events:
            pass
        if call.call in player.closed:
            # Leaves `async with`, which closes the stream as in the recording.
            raise asyncio.CancelledError("its stream was closed")
        return await events.reply()


async def _run_call(
    call: Coroutine[Any, Any, Reply[Any]], on_started: Callable[[], None]
) -> tuple[Reply[Any] | None, BaseException | None]:
    """Run a call in a separate task, so that it can be cancelled as recorded; return its reply or exception."""
    task: asyncio.Task[Reply[Any]] = asyncio.get_running_loop().create_task(call)
    on_started()
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()  # the replay itself was cancelled: its call must not outlive it
        await asyncio.wait([task])
        raise
    if task.cancelled():
        return None, asyncio.CancelledError()
    error = task.exception()
    if error is not None:
        return None, error
    return task.result(), None


def _input(log: RunLog, call: str) -> tuple[str, ...]:
    """Return the refs of the messages with which a call began, before hooks changed them."""
    for entry in log.entries:
        match entry:
            case HookEntry(call=of, event="PreCall") if of == call:
                if any(change.field == "input_messages" for change in entry.changes):
                    return log.messages(entry, "before")
            case EventEntry(call=of, type="PreCall") if of == call:
                return log.messages(entry)
            case _:
                pass
    return ()


def _last_fact(log: RunLog, call: str, fact: str) -> FactEntry | None:
    facts = [each for each in log.entries if isinstance(each, FactEntry) and (each.call, each.fact) == (call, fact)]
    return facts[-1] if facts else None


def _history(script: Script, first: CallEntry) -> tuple[str, ...]:
    for entry in script.log.events(first.call):
        if entry.type == "PreCall":
            return script.log.messages(entry, "history")
    return ()


def _hooks_for(agent: Agent[Any], without: Collection[str]) -> list[Hook]:
    """Return the agent's own hooks except recorders and those named in `without`."""
    own: list[Hook] = [hook for hook in agent.hooks if not isinstance(hook, Recorder)]
    names = [hook.name for hook in own]
    for name in without:
        if name not in names:
            raise _missing(agent, "hook", name, names, "be left out")
    return [hook for hook in own if hook.name not in without]


def _check_tools(agent: Agent[Any], tools: Collection[str], *, live: bool) -> None:
    """Refuse tools that the agent lacks, or that cannot run because the replay never continues live."""
    _check_names(agent, tools)
    if tools and not live:
        raise UsageError(
            f"Replay: tools={sorted(tools)} has no effect: tools run only after the replay diverges and continues live. "
            "Set model= or diverged= too (in the command: --model or --ask)."
        )


def _check_names(agent: Agent[Any], tools: Collection[str]) -> None:
    """Refuse tools that neither the agent nor its sub-agents have. An agent with a live toolset is not checked, since the
    tools of a toolset are known only once it is open."""
    known: dict[str, None] = {}
    assert isinstance(agent, FullAgent)  # every agent is one
    below: list[ToolableAgent] = [agent]
    for inner in below:
        if inner.live_toolsets:
            return
        for tool in inner.own_tools:
            known[tool.name] = None
            subagent = wrapped_agent(tool.function)
            below += [] if subagent is None or subagent in below else [subagent]
    for name in tools:
        if name not in known:
            raise _missing(agent, "tool", name, known, "run")


def _missing(agent: Agent[Any], kind: str, name: str, known: Collection[str], could: str) -> UsageError:
    close = close_to(name, known)
    meant = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    return UsageError(
        f"Agent {agent.name!r} has no {kind} {name!r} to {could}.{meant} Its {kind}s: {', '.join(known) or 'none'}."
    )


def _run(main: Coroutine[Any, Any, T], real: bool) -> T:
    with asyncio.Runner(loop_factory=None if real else VirtualClockLoop) as runner:
        return runner.run(main)
