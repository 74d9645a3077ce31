"""`Recorder`: writes a complete log of runs: events, messages, results of models and tools, and the effects of hooks.

It is an observer and changes nothing. The run log (`docs/run-log.md`) can be read, explained, compared and replayed. Priority
990: the last of the observers, and the innermost around models and tools.

Rules:

1. During a run it keeps only references; a thread builds the entries and writes them, or the reader of `log` builds them. Only
   the end of the outermost call waits for a write, so a recorder never changes the order of events.
2. It never breaks a run: if a log cannot be written, this is reported once (`failure`), and writing stops.
3. It sees data before redaction: `redaction=` redacts the log, `short=0` keeps no content at all.
"""

from __future__ import annotations

import asyncio
import atexit
import sys
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol, assert_never, cast, runtime_checkable

from agentflow._support.shown import without_password
from agentflow.errors import UsageError, Veto
from agentflow.hooks import chain
from agentflow.hooks.hook import Hook
from agentflow.hooks.injections import Injections, injecting
from agentflow.hooks.recording import (
    ChangeListener,
    FieldChange,
    HookCall,
    LayerRun,
    SideWrapper,
)
from agentflow.hooks.wrapping import ModelSource, ToolSource
from agentflow.loop.run import RunBase, current_turn
from agentflow.ports.model import ModelRequest
from agentflow.reactive import Empty, Flux, Mono
from agentflow.reactive.iterators import close
from agentflow.recording.encoding import Clean, Line, error_words, set_fields
from agentflow.recording.fields import End
from agentflow.recording.keeping import LogStore, check_bounds
from agentflow.recording.log import RunLog
from agentflow.recording.quiet import Find
from agentflow.recording.reading import load
from agentflow.recording.recorder.files import (
    FileSink,
    Sink,
    StoreTarget,
    file_of,
    is_folder,
    prune_folder,
    prune_store,
)
from agentflow.recording.recorder.observations import (
    FIELDS_OF,
    Chunk,
    EventSeen,
    Facts,
    HookEffect,
    Interruption,
    Mark,
    Place,
    RawChunk,
    ReplyEnded,
    RequestSent,
    ToolChunk,
    WorkEnded,
    WorkStarted,
    piece_of,
)
from agentflow.recording.recorder.records import Explanation, Record, Recording, records_of
from agentflow.recording.recorder.writer import Writer, log_of
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import RunContext, port_of
from agentflow.vocabulary.events import (
    ActingChunk,
    CallEnded,
    Event,
    Frame,
    HookEvent,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
    ReasoningChunk,
)
from agentflow.vocabulary.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.verdicts import Decided, Deny

__all__ = ["FindsInStream", "Recorder", "Redacts", "run_of"]

_LAYERS: dict[type[Event], str] = {
    PreCall: "message",
    PreReasoning: "reply",
    PreToolRound: "tool_results",
    PreActing: "tool_result",
}
_MOST_CALLS = 10_000
"""The limit of open calls; older ones are forgotten, since a process that stops leaves them open."""


@runtime_checkable
class Redacts(Protocol):
    """Removes secrets from values, as `Redaction` does."""

    def outside(self, value: Any, run_id: str = "") -> Any:
        """Return a value without secrets, for use outside its run."""
        ...


@runtime_checkable
class FindsInStream(Protocol):
    """Finds secrets in a text that is still incomplete: then such a text is written while it arrives."""

    def finds(self, text: str, start: int, whole: bool, run_id: str = "") -> tuple[list[Find], int]:
        """Return the secrets in a text, and the position up to which that is certain."""
        ...


class Recorder(ChangeListener, SideWrapper):
    """Records runs. One instance may serve many agents; it records their sub-agents too.

    Args:
        where: A folder (`"runs/"`) for a file per run; a JSONL file to which all runs are appended; a store for run logs (a
            `SqlStore`, or your own `LogStore`); None: memory only.
        max_records: The number of observations kept in memory; older ones are dropped. The written log keeps all.
        short: The maximum number of characters of the short forms in `records`; 0: digests only, and no text is written.
        every_call: Also record calls of hooks that changed nothing (for their durations).
        interval: Seconds between two writes during a call.
        redaction: Removes secrets from the log: it should be the agent's `Redaction`, or one with the same rules.
        max_bytes: The maximum size of all logs in the folder or store: the oldest are deleted. None: no limit.
        max_age: The maximum age of a log there, likewise.

    Raises:
        UsageError: An argument is invalid.

    Example:
        >>> recorder = Recorder()
        >>> agent = Agent("a", ScriptedModel(["Hello!"]), hooks=[recorder])
        >>> reply = await agent.call("Hi")
        >>> recorder.explain(reply).hooks
        ()
    """

    priority = 990
    scope = "tree"

    def __init__(
        self,
        where: str | Path | LogStore | None = None,
        *,
        max_records: int = 10_000,
        short: int = 80,
        every_call: bool = False,
        interval: float = 0.25,
        redaction: Redacts | None = None,
        max_bytes: int | None = None,
        max_age: timedelta | None = None,
    ) -> None:
        if max_records < 1:
            raise UsageError(f"Recorder(max_records={max_records}) must be at least 1.")
        if short < 0:
            raise UsageError(f"Recorder(short={short}) must be 0 or more characters; 0 keeps digests only.")
        if not interval > 0:
            raise UsageError(f"Recorder(interval={interval}) must be above 0 seconds.")
        check_bounds(max_bytes, max_age)
        self.short = short
        self.every_call = every_call
        self.changes_only = not every_call
        if redaction is not None and not isinstance(redaction, Redacts):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
            raise UsageError(f"Recorder(redaction={redaction!r:.60}) must be a Redaction or None.")
        self._clean: Clean | None = None if redaction is None else redaction.outside
        target, prune = _target(where)
        closed = None
        if max_bytes is not None or max_age is not None:
            if prune is None:
                raise UsageError(
                    "Recorder(max_bytes=, max_age=) need a folder or a store: Recorder('runs/', max_bytes=...)."
                )
            closed = partial(prune, max_bytes, max_age)
        self.where = where
        finds = redaction.finds if isinstance(redaction, FindsInStream) else None
        self._writer = Writer(target, prune is not None, max_records, interval, short > 0, self._clean, closed, finds)
        self._put = self._writer.put
        self._places: OrderedDict[str, Place] = OrderedDict()
        self._seen_facts: OrderedDict[str, int] = OrderedDict()
        self._number = count(1).__next__
        if target is not None:
            closing = weakref.finalize(self, self._writer.close)
            if isinstance(target, StoreTarget):
                atexit.register(closing)  # runs before the store's own handler, so the store still accepts the rest

    # ---- reading

    @property
    def log(self) -> RunLog:
        """The observations in memory, as a run log."""
        return log_of(self._writer.in_memory(), self.short > 0, self._clean)

    @property
    def records(self) -> tuple[Record, ...]:
        """The effects of hooks, and the messages concerned, oldest first."""
        return records_of(self.log, self.short)

    def explain(self, message: Msg | str) -> Explanation:
        """Return the hooks that shaped a message.

        Args:
            message: The message (a reply is one), or its id.
        """
        return Recording(self.records).explain(message)

    @staticmethod
    def read(path: str | Path) -> Recording:
        """Read the effects of hooks from a run log; `agentflow.recording.load` reads all of it.

        Args:
            path: The file; a line that a crash left incomplete is skipped.

        Raises:
            StoreError: The file is not a run log.
        """
        return Recording(records_of(load(path)))

    @property
    def failure(self) -> Exception | None:
        """The error that stopped writing; None while the log is written. Memory is not affected."""
        return self._writer.failure

    def flush(self) -> None:
        """Write the observations so far; the end of each outermost call does so too."""
        self._writer.flush()

    def close(self) -> None:
        """Write the observations so far, and close open files; the next observation opens them again."""
        self._writer.close()

    # ---- events

    def on_event(self, event: HookEvent) -> Any:
        """Record the event; write at the end of a call."""
        frame = event._frame  # pyright: ignore[reportPrivateUsage] - an event built by hand has none
        if frame is None:
            return None
        place = self._places.get(frame.call_id) or self._begin(event, frame)
        if place.begun:
            self._write_begun(place, event.seq)
        if isinstance(event, ReasoningChunk):
            seen = (place, event.seq, event.iteration, event.time)
            failure = None if event.decision is None else self._failed(place, frame, event.decision)
            self._put(Chunk(*seen, event.incremental_chunk, event.attempt, event.restart, event.decision, failure))
            return None
        if isinstance(event, ActingChunk):
            seen = (place, event.seq, event.iteration, event.time)
            failure = None if event.decision is None else self._failed(place, frame, event.decision)
            self._put(ToolChunk(*seen, event.tool_use, piece_of(event.chunk), event.decision, failure))
            return None
        self._look(place, run_of(frame.context), event.time)
        kind, decision = type(event), event.decision
        failure = None if decision is None or decision.error is None else error_words(decision.error)
        values = FIELDS_OF[kind](event)
        self._put(EventSeen(place, kind, event.seq, event.iteration, event.time, values, decision, failure))
        if kind is CallEnded:
            self._places.pop(frame.call_id, None)
            # A call inside another call's tool does not wait: concurrent work would overtake it.
            if self.where is not None and place.parent is None and current_turn.get() is None:
                return asyncio.to_thread(self._writer.flush)
        return None

    def on_begin(self, hook: Hook, event: Event) -> Awaitable[None] | None:
        """Remember that a hook begins, in case anything else happens before it ends."""
        frame = event._frame  # pyright: ignore[reportPrivateUsage] - an event built by hand has none
        if (
            hook.observer and hook.priority >= self.priority
        ):  # it runs after the recorder, and the event is recorded already
            return None
        place = None if frame is None else self._places.get(frame.call_id)
        if place is not None and frame is not None:
            place.begun.append(Mark(place, frame.context.clock.now(), "began", None, event.seq, hook.name))
        return None

    def on_injection(self, hook: Hook, event: Event) -> None:
        """Record that a hook injects messages."""
        frame = event._frame  # pyright: ignore[reportPrivateUsage] - an event built by hand has none
        place = None if frame is None else self._places.get(frame.call_id)
        if place is not None and frame is not None:
            self._in_order(Mark(place, frame.context.clock.now(), "injected", None, event.seq, hook.name))

    def _mark(
        self, place: Place, context: RunContext, n: int, use: ToolUseBlock, what: Literal["injected", "decided"]
    ) -> Awaitable[None] | None:
        """Record that a tool injects messages, or decides about concurrent work."""
        self._in_order(Mark(place, context.clock.now(), what, n))
        return None

    def _in_order(self, one: Mark | RequestSent | ReplyEnded | WorkStarted | WorkEnded | Interruption) -> None:
        """Record an observation, after the beginnings of hooks before it."""
        if one.place.begun:
            self._write_begun(one.place)
        self._put(one)

    def _write_begun(self, place: Place, seq: int = 0) -> None:
        """Record the beginnings of running hooks, except for the event that ends now."""
        for mark in place.begun:
            if mark.place is not place or mark.seq != seq:
                self._put(mark)
        place.begun.clear()

    def on_call(self, call: HookCall) -> None:
        """Record the effect of an editing hook or a guard."""
        verdict, error = call.verdict, call.error
        if isinstance(error, Veto):
            verdict, error = Deny(error.reason), None
        if self.changes_only and verdict is None and error is None and not call.changes and not call.injected:
            return
        # As text: an exception would keep its frames alive.
        failure = None if error is None else error_words(error)
        via = "shadow" if call.shadow else call.via
        self._effect(call.hook, call.event, via, call.duration_ms, call.changes, verdict, failure, call.injected)

    def on_layer(self, layer: LayerRun) -> None:
        """Record how an `around` wrapper changed the work's result."""
        name = next((name for kind, name in _LAYERS.items() if isinstance(layer.event, kind)), "value")
        change = FieldChange(name, layer.before, layer.after)
        self._effect(layer.hook, layer.event, "around", layer.duration_ms, (change,), None, None)

    def _effect(
        self,
        hook: Any,
        event: Event,
        via: str,
        duration_ms: float,
        changes: tuple[FieldChange, ...],
        verdict: Any,
        error: Line | None,
        injected: tuple[tuple[tuple[Msg, ...], bool], ...] = (),
    ) -> None:
        frame = event._frame  # pyright: ignore[reportPrivateUsage] - an event built by hand has none
        place = Place() if frame is None else self._places.get(frame.call_id) or self._begin(event, frame)
        use = cast("ToolUseBlock | None", getattr(event, "tool_use", None))
        where = (event.seq, event.iteration, event.time)
        name = type(event).__name__
        effect = HookEffect(
            place, hook.name, hook.priority, name, via, *where, use, duration_ms, changes, verdict, error, injected
        )
        self._put(effect)

    def _begin(self, event: Event, frame: Frame) -> Place:
        """Create the shared information of a call's entries."""
        place = Place(frame.call_id, frame.run_id, frame.session_id, frame.source, event.time)
        view, run = frame.agent, run_of(frame.context)
        place.agent, place.model, place.description = view.name, view.model_name, view.description
        place.hooks = tuple([hook.name for hook in run.hooks.hooks if hook is not self])
        place.resumes = run.given is not None
        place.timeout = run.scope.timeout
        place.streamed = run.events.buffer is not None and run.parent is None
        if run.options is not run.config.options:
            place.options = set_fields(run.options)
        turn = current_turn.get()
        if run.parent is not None and turn is not None:
            above = self._places.get(turn.run.call_id)
            place.parent = (turn.run.call_id, turn.use.id)
            place.root = turn.run.run_id if above is None else above.root
            place.begun = place.begun if above is None else above.begun
        listener = run.scope.listener  # another recorder's
        run.scope.listener = lambda: (listener is not None and listener(), self._look_for_end(place, run))
        self._places[frame.call_id] = place
        if len(self._places) > _MOST_CALLS:
            self._places.popitem(last=False)
        return place

    def _look(self, place: Place, run: RunBase, time: float) -> None:
        """Record new facts, and the cause of an early end of the call."""
        facts = run.journal.facts
        seen = self._seen_facts.get(place.run, 0)
        if len(facts) != seen:
            self._seen_facts[place.run] = len(facts)
            if len(self._seen_facts) > _MOST_CALLS:
                self._seen_facts.popitem(last=False)
            if len(facts) > seen:
                self._put(Facts(place, time, tuple(facts[seen:])))
        if not place.interrupted:
            self._look_for_end(place, run)

    def _failed(self, place: Place, frame: Frame, decision: Decided) -> Line | None:
        """Return the failure of a chunk's hooks; record the end of the call if it was ended meanwhile."""
        if not place.interrupted:
            self._look_for_end(place, run_of(frame.context))
        return None if decision.error is None else error_words(decision.error)

    def _look_for_end(self, place: Place, run: RunBase) -> None:
        """Record the cause of an early end of the call: at once, or with the call's first event if it came earlier."""
        cause = run.scope.cause
        if cause is None or place.interrupted:
            return
        place.interrupted = True
        buffer = run.events.buffer
        now = run.config.clock.now()
        at = run.scope.at
        waiting = sum(where.endswith("reader") for where in at)
        by = (cause.inside, cause.by_caller, at, None if buffer is None else buffer.read_for(waiting))
        match cause.kind:
            case "timeout" | "shutdown":
                self._in_order(Interruption(place, now, cause.kind, cause.reason, *by))
            case "interrupted":
                work = _work_running_here() if cause.inside else None
                self._in_order(Interruption(place, now, "interrupt", cause.reason, *by, work))
            case "cancelled" | "closed":
                reason = "the reader has gone" if cause.kind == "closed" else ""
                self._in_order(Interruption(place, now, "left", reason, *by))
            case _:
                assert_never(cause.kind)

    # ---- results of models and tools

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        """Record the request and the reply of the model, after all other hooks."""
        frame = event.frame
        place = self._places.get(frame.call_id) or self._begin(event, frame)
        return self._recorded(place, frame.context, event.iteration, source.request, "", source)

    def around_side(
        self, context: RunContext, request: ModelRequest, side: str, chunks: Flux[ModelChunk]
    ) -> Flux[ModelChunk]:
        """Record side model calls of hooks and tools."""
        place = self._places.get(context.call_id)
        if place is None:  # before the first event, or after the last one
            return chunks
        return self._recorded(place, context, run_of(context).events.iteration, request, side, chunks)

    def _recorded(
        self,
        place: Place,
        context: RunContext,
        iteration: int,
        request: ModelRequest,
        side: str,
        inner: Flux[ModelChunk],
    ) -> Flux[ModelChunk]:
        return Flux(lambda: self._record(place, context, iteration, request, side, inner))

    async def _record(
        self,
        place: Place,
        context: RunContext,
        iteration: int,
        request: ModelRequest,
        side: str,
        inner: Flux[ModelChunk],
    ) -> AsyncIterator[ModelChunk]:
        n, put, now = self._number(), self._put, context.clock.now
        run = run_of(context)
        sent = (request.model, request.messages, request.tools, request.options)
        self._in_order(RequestSent(place, n, iteration, now(), side, *sent))
        end: End = "done"
        failure: Line | None = None
        waited = True
        stream = inner.open()
        try:
            async for chunk in stream:
                put(RawChunk(place, n, now(), chunk))
                yield chunk
            if run.scope.is_cancelled() and not place.interrupted:
                self._look_for_end(place, run)
                end = "cut" if place.interrupted else "done"
        except BaseException as error:
            end, failure = self._ending(place, run, error)
            waited = not isinstance(error, GeneratorExit)
            raise
        finally:
            await close(stream)
            self._in_order(ReplyEnded(place, n, now(), end, failure, waited))

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        """Record the result of the tool, after all other hooks."""
        return Mono(partial(self._work, event, source))

    async def _work(self, event: PreActing, source: ToolSource) -> ToolResultBlock | Empty:
        frame = event.frame
        place = self._places.get(frame.call_id) or self._begin(event, frame)
        context = frame.context
        n, put, now = self._number(), self._in_order, context.clock.now
        run = run_of(context)
        injections = Injections(run, partial(self._mark, place, context, n, event.tool_use))
        outer = injecting.get()
        injecting.set(injections)
        put(WorkStarted(place, n, event.iteration, now(), event.tool_use))
        try:
            result = await source.resolve()
        except BaseException as error:
            end, failure = self._ending(place, run, error)
            put(WorkEnded(place, n, now(), end, None, failure, tuple(injections.added)))
            raise
        finally:
            injecting.set(outer)
        if not place.interrupted:
            self._look_for_end(place, run)
        injected = tuple(injections.added)
        put(WorkEnded(place, n, now(), "done", result if isinstance(result, ToolResultBlock) else None, None, injected))
        return result

    def _ending(self, place: Place, run: RunBase, error: BaseException) -> tuple[End, Line | None]:
        """Return how work ended that raised an exception."""
        if not place.interrupted:
            self._look_for_end(place, run)
        if isinstance(error, GeneratorExit):
            return "cut", None
        if isinstance(error, asyncio.CancelledError) and run.scope.is_cancelled():
            return "cut", None
        return "failed", error_words(error)


def run_of(context: RunContext) -> RunBase:
    """Return the run of a context."""
    return cast("RunBase", port_of(context))


def _work_running_here() -> int | None:
    """Return the number of the tool run whose code is running; None if it is a hook's code."""
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage] - documented, for looking at callers
    while frame is not None:
        if frame.f_code is Recorder._work.__code__:  # pyright: ignore[reportPrivateUsage] - this module's own
            return frame.f_locals["n"]
        if frame.f_code.co_filename == chain.__file__:
            return None
        frame = frame.f_back
    return None


_Prune = Callable[[int | None, timedelta | None], None]


def _target(where: str | Path | LogStore | None) -> tuple[Callable[[str], Sink] | None, _Prune | None]:
    """Return the factory of runs' sinks; and, if each run has a log of its own, the function that deletes the oldest."""
    if where is None:
        return None, None
    if isinstance(where, str) and "://" in where:
        raise UsageError(f"Recorder({without_password(where)!r}): pass the store itself, Recorder(SqlStore(...)).")
    if isinstance(where, str | Path):
        path = Path(where)
        if is_folder(where):
            return lambda run: FileSink(file_of(path, run)), partial(prune_folder, path)
        return lambda _: FileSink(path), None
    if not isinstance(where, LogStore):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
        raise UsageError(
            f"Recorder({where!r:.60}): use a folder such as 'runs/', a file such as 'runs.jsonl', a store for run logs (a "
            "SqlStore, or your own LogStore), or None for memory only."
        )
    return StoreTarget(where), partial(prune_store, where)
