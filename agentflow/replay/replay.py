"""`Replay`: a recorded run is run again by the real driver, without a network and without effects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

from agentflow.agent.agent import Agent, FullAgent, full_variant
from agentflow.agent.agent_flux import AgentFlux
from agentflow.agent.arguments import ToolableAgent, wrapped_agent
from agentflow.errors import CallTimeoutError, StoreError, UsageError, close_to
from agentflow.ground.virtual_time import VirtualClockLoop
from agentflow.hooks import HookSource
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import hooks_of
from agentflow.loop.session import Session, full_session
from agentflow.loop.stream import BUFFER
from agentflow.messages import Msg, Reply
from agentflow.output.output import OutputLike
from agentflow.plugins.recorder.hook import Recorder
from agentflow.ports.model import Model
from agentflow.reactive import Mono
from agentflow.replay.clock import ReplayClock
from agentflow.replay.comparing import Departure
from agentflow.replay.player import Goes, Player
from agentflow.replay.script import Script
from agentflow.runlog import RunLog, load
from agentflow.runlog.entries import CallEntry, LogEntry
from agentflow.specs import ModelOptions

__all__ = ["Replay", "ReplayOptions", "Replayed"]

T = TypeVar("T")
_UNCHANGED: Any = object()


class ReplayOptions(TypedDict, total=False):
    """What `Replay.run` and `assert_replays` take by name; `Replay.arun` says what each means."""

    hooks: HookSource
    without: Collection[str]
    system: Any
    output: OutputLike[Any] | None
    deps: object
    since: int
    pace: float | None
    departed: Callable[[Departure], Goes] | None
    model: str | Model | None
    tools: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What came of a replay.

    Attributes:
        departure: Where it first departed from the recording; None: nowhere.
        log: What the new run did, as a run log.
        lines: The same as it is written.
        stopped: Whether the new run was stopped where it departed, or where the recording had nothing more to give.
        reply: The reply of its last call, if that gave one.
        error: What its last call raised, if it did.
    """

    departure: Departure | None
    log: RunLog
    lines: tuple[Mapping[str, Any], ...] = ()
    stopped: bool = False
    reply: Reply[Any] | None = None
    error: BaseException | None = None

    def __str__(self) -> str:
        return "the same as recorded" if self.departure is None else str(self.departure)


class Replay:
    """A recorded run, to be run again.

    The agent's hooks run for real, and its driver; models and tools give what the recording says. Recorders of the agent are
    left out, and nothing is stored.

    Args:
        run: A run log, or its file.
        run_id: Which run, where the log tells of several.

    Raises:
        StoreError: It cannot be read, or holds no such run.
        UsageError: It tells of several runs.

    Example:
        >>> recorder = Recorder()
        >>> agent = Agent("a", ScriptedModel(["Hello!"]), hooks=[recorder])
        >>> reply = await agent.call("Hi")
        >>> print(await Replay(recorder.log).arun(agent))
        the same as recorded
    """

    def __init__(self, run: RunLog | str | Path, run_id: str | None = None) -> None:
        log = run if isinstance(run, RunLog) else load(run)
        _check_whole(log)
        runs = log.run_ids
        if run_id is None and len(runs) > 1:
            raise UsageError(
                f"{log.name} tells of {len(runs)} runs; name one: run_id={runs[0]!r}, of the command --run {runs[0]}. "
                f"Its runs: {', '.join(runs)}."
            )
        self.log = log if run_id is None else log.run(run_id)
        Script(self.log)  # what holds no call is refused here

    def run(self, agent: Agent[Any], **options: Unpack[ReplayOptions]) -> Replayed:
        """Run it again, in virtual time (with `pace` in real time); see `arun`.

        Raises:
            UsageError: An event loop is running here: await `arun`.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise UsageError("Replay.run(...) was called in an event loop: await Replay.arun(...) there.")
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
        departed: Callable[[Departure], Goes] | None = None,
        model: str | Model | None = None,
        tools: Collection[str] = (),
    ) -> Replayed:
        """Run it again.

        Args:
            agent: The agent; it stays as it is.
            hooks: Hooks that it is given in addition.
            without: Names of its hooks that are left out.
            system: Another system prompt.
            output: What the recorded call was asked for by `agent.call(..., output=...)`: a log holds no Python type. The
                agent's own `output` need not be given.
            deps: What tools and hooks may ask for by type.
            since: Departures in events of the top before this `seq` do not count.
            pace: How many times faster than the recording; None: as fast as may be.
            departed: Told of the first departure; returns `"stop"`, `"on"` (go on with what is left of the recording) or
                `"live"` (go on with a live model). By default it stops; with `model=` it goes on with that. What it raises
                ends the replay, and is raised.
            model: Who is asked from there on.
            tools: Names of the tools that may run from there on; others give an error.

        Raises:
            UsageError: A hook that is to be left out is not there, or a tool that may run; tools may run, and nobody says
                that it goes on with a live model; `pace` is no such number; the call is refused, as with a wrong `output`.
        """
        if pace is not None and not pace > 0:
            raise UsageError(f"Replay: pace={pace}; it is a number above 0, or None.")
        script = Script(self.log)
        first = script.roots[0]
        clock = ReplayClock(first.time, pace)
        chosen = _hooks_for(agent, without)
        _check_tools(agent, tools)
        if tools and model is None and departed is None:
            raise UsageError(
                f"Replay: tools={sorted(tools)} may run where it goes on with a live model, and it stops instead: give it a "
                "model=, or departed=, which may say so (of the command: --model, --ask)."
            )
        goes: Goes = "stop" if model is None else "live"

        def otherwise(_: Departure) -> Goes:
            return goes

        tell = departed or otherwise
        player = Player(script, clock, pace is not None, since, tell, model, frozenset(tools))
        changes: dict[str, Any] = {} if system is _UNCHANGED else {"system": system}
        variant = full_variant(agent, [*chosen, *hooks_of(hooks)], clock=clock, store=None, **changes)
        history = [script.log.message(ref) for ref in _history(script, first)]
        session = Session.fresh(history)
        reply: Reply[Any] | None = None
        error: BaseException | None = None
        for call in script.roots:
            begun = partial(player.begin, call, full_session(session))
            reply, error = await _one(_making(variant, script, call, session, player, deps, output, reply), begun)
            if isinstance(error, Exception) and not player.has_begun(call):
                raise error  # what is refused before its first event, as a wrong `output` is, is in no recording
            if player.departure is not None or (reply is None and error is None):
                break
        if player.raised is not None:
            raise player.raised
        return Replayed(
            departure=player.departure,
            log=player.new,
            lines=tuple(player.lines),
            stopped=player.goes == "stop",
            reply=reply,
            error=error,
        )


def _check_whole(log: RunLog) -> None:
    """Refuse a log that does not hold all that models and tools gave."""
    if lost := sum(entry.lost for entry in log.entries if isinstance(entry, LogEntry)):
        raise StoreError(
            f"{log.name} cannot be replayed: {lost} entries are missing, since the recorder could not write as fast as the "
            "run went. Record the run again."
        )
    if not log.header.content:
        raise StoreError(f"{log.name} cannot be replayed: it keeps digests, and not what was said.")
    if log.header.origin != "recorder":
        raise StoreError(
            f"{log.name} cannot be replayed: it was made of stored facts, which do not say what models gave piece by "
            "piece. Replay what a Recorder has written."
        )


def _making(
    agent: Agent[Any],
    script: Script,
    call: CallEntry,
    session: Session,
    player: Player,
    deps: object,
    output: OutputLike[Any] | None,
    before: Reply[Any] | None,
) -> Coroutine[Any, Any, Reply[Any]]:
    """One call of the run, as it was made."""
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
        messages: list[Msg] = [script.log.message(ref) for ref in script.inputs.get(call.call, ())]
        if call.streamed:
            return _read(agent.stream(messages, buffer=_read_of(script, call)[1], **rest), call, player)
        return _called(agent.call(messages, **rest))
    given = script.decisions.get(call.call, {})
    waited = script.pending.get(script.roots[script.roots.index(call) - 1].call, ())
    waiting = [] if before is None else [waits.id for waits in before.pending]
    now = dict(zip(waited, waiting, strict=True)) if len(waited) == len(waiting) else {}  # ids of calls are others now
    decisions = {now.get(key, key): said for key, said in given.items()}
    if call.streamed:
        stream = agent.resume_stream(decisions=decisions, buffer=_read_of(script, call)[1], **rest)
        return _read(stream, call, player)
    return _called(agent.resume(decisions=decisions, **rest))


async def _called(call: Mono[Reply[Any]]) -> Reply[Any]:
    """Make a call whose events nobody reads: an end that comes meanwhile is noticed elsewhere than in a stream."""
    return await call


def _read_of(script: Script, call: CallEntry) -> tuple[int | None, int]:
    """How many events the reader of a stream had asked for when it was cut (None: it was not), and its buffer."""
    cut = script.cuts.get(call.call)
    return (None, BUFFER) if cut is None or cut.read is None else (max(cut.read[0], 1), cut.read[1])


async def _read(flux: AgentFlux[Any], call: CallEntry, player: Player) -> Reply[Any]:
    """Read a call's events: if it was cut, as many of them as were read then, and the others after the cut."""
    left, _ = _read_of(player.script, call)
    async with flux as events:
        while True:
            if left is not None:
                if left <= 0:
                    await player.cut_is_done(call.call)
                left -= 1
            try:
                await anext(events)
            except StopAsyncIteration:
                break
        if call.call in player.closed:
            raise asyncio.CancelledError("its stream was closed")
        return await events.reply()


async def _one(
    call: Coroutine[Any, Any, Reply[Any]], begun: Callable[[], None]
) -> tuple[Reply[Any] | None, BaseException | None]:
    """What comes of a call, whatever it raises; in a task of its own, which may be cancelled as the recorded one was."""
    task: asyncio.Task[Reply[Any]] = asyncio.get_running_loop().create_task(call)
    begun()
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait([task])
        raise
    if task.cancelled():
        return None, asyncio.CancelledError()
    error = task.exception()
    if isinstance(error, CallTimeoutError) or error is not None:
        return None, error
    return task.result(), None


def _history(script: Script, first: CallEntry) -> tuple[str, ...]:
    for entry in script.log.events(first.call):
        if entry.type == "PreCall":
            return script.log.messages(entry, "history")
    return ()


def _hooks_for(agent: Agent[Any], without: Collection[str]) -> list[Hook]:
    """The agent's own hooks, but for its recorders and those that are to be left out."""
    own: list[Hook] = [hook for hook in agent.hooks if not isinstance(hook, Recorder)]
    names = [hook.name for hook in own]
    for name in without:
        if name not in names:
            raise _missing(agent, "hook", name, names, "be left out")
    return [hook for hook in own if hook.name not in without]


def _check_tools(agent: Agent[Any], tools: Collection[str]) -> None:
    """Refuse tools that neither the agent nor those below it have; what toolsets have is known when they are open."""
    known: dict[str, None] = {}
    assert isinstance(agent, FullAgent)  # each is made as one
    below: list[ToolableAgent] = [agent]
    for one in below:
        if one.live_toolsets:
            return
        for tool in one.own_tools:
            known[tool.name] = None
            behind = wrapped_agent(tool.function)
            below += [] if behind is None or behind in below else [behind]
    for name in tools:
        if name not in known:
            raise _missing(agent, "tool", name, known, "run")


def _missing(agent: Agent[Any], kind: str, name: str, known: Collection[str], could: str) -> UsageError:
    close = close_to(name, known)
    meant = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    return UsageError(
        f"Agent {agent.name!r} has no {kind} {name!r} that could {could}.{meant} Its {kind}s: {', '.join(known) or 'none'}."
    )


def _run(main: Coroutine[Any, Any, T], real: bool) -> T:
    with asyncio.Runner(loop_factory=None if real else VirtualClockLoop) as runner:
        return runner.run(main)
