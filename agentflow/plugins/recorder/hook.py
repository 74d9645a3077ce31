"""`Recorder`: a run writes down all of itself: events, messages, what models and tools gave, which hook changed what.

It is an observer and changes nothing. What it writes is a run log (`docs/run-log.md`), which can be read, explained, compared
and replayed. Priority 990: the last of the observers, and the innermost around models and tools.

Rules:

1. While a run runs it keeps references only; a thread makes the entries and writes them, or the reader of `log` makes them.
   Nothing of the run waits for a write but the end of the call at the top, so a recorder never changes the order of events.
2. It never breaks a run: a log that cannot be written is reported once (`failure`), and left alone from then on.
3. It sees what a redaction has not hidden yet: `redaction=` takes it out again, `short=0` keeps no content at all.
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

from agentflow.chunks import ModelChunk
from agentflow.context import RunContext, port_of
from agentflow.errors import UsageError, Veto
from agentflow.events import (
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
from agentflow.ground.shown import without_password
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
from agentflow.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.plugins.recorder.files import FileSink, Sink, StoreTarget, file_of, is_folder, prune_folder, prune_store
from agentflow.plugins.recorder.observations import (
    FIELDS_OF,
    Answered,
    Asked,
    Chunk,
    Deed,
    Facts,
    Finished,
    Happened,
    Interrupted,
    Mark,
    Piece,
    Place,
    RawChunk,
    Started,
    piece_of,
)
from agentflow.plugins.recorder.records import Explanation, Record, Recording, records_of
from agentflow.plugins.recorder.writer import Writer, log_of
from agentflow.ports.model import ModelRequest
from agentflow.reactive import Empty, Flux, Mono
from agentflow.reactive.iterators import close
from agentflow.runlog import RunLog, load
from agentflow.runlog.encoding import Clean, Line, error_words, set_fields
from agentflow.runlog.fields import End
from agentflow.runlog.keeping import LogStore, check_bounds
from agentflow.runlog.quiet import Find
from agentflow.verdicts import Decided, Deny

__all__ = ["FindsInPieces", "Recorder", "Redacts", "run_of"]

_LAYERS: dict[type[Event], str] = {
    PreCall: "message",
    PreReasoning: "reply",
    PreToolRound: "tool_results",
    PreActing: "tool_result",
}
_MOST_CALLS = 10_000
"""Calls whose end was not seen are forgotten from here on: a process that stops leaves them open."""


@runtime_checkable
class Redacts(Protocol):
    """What takes secrets out of values, as `Redaction` does."""

    def outside(self, value: Any, run_id: str = "") -> Any:
        """A value as it may be told outside its run."""
        ...


@runtime_checkable
class FindsInPieces(Protocol):
    """What can also say where secrets are in a text that comes in pieces: such a text is written while it comes."""

    def finds(self, text: str, start: int, whole: bool, run_id: str = "") -> tuple[list[Find], int]:
        """What is in a text that is not told outside, and up to where that is certain."""
        ...


class Recorder(ChangeListener, SideWrapper):
    """Records runs. One instance may serve many agents; it records their sub-agents too.

    Args:
        where: A folder (`"runs/"`): a file for each run; a JSONL file that all runs are added to; a store that keeps run logs:
            a `SqlStore`, or your own `LogStore`; None: memory only.
        max_records: How many things memory holds; older ones are dropped. What is written keeps all.
        short: Most characters of the short forms in `records`; 0: digests only, and no text is written.
        every_call: Record calls of hooks that changed nothing, too (for their durations).
        interval: Seconds between two writes while a call runs.
        redaction: Takes secrets out of what is kept: the agent's `Redaction`, or one of its own.
        max_bytes: Of all logs in the folder or store: the oldest are deleted. None: any number.
        max_age: Of a log there, likewise.

    Raises:
        UsageError: An argument cannot be used.

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
            raise UsageError(f"Recorder(max_records={max_records}): memory holds at least 1 record.")
        if short < 0:
            raise UsageError(f"Recorder(short={short}): it is a number of characters; 0 keeps digests only.")
        if not interval > 0:
            raise UsageError(f"Recorder(interval={interval}): it is a number of seconds above 0.")
        check_bounds(max_bytes, max_age)
        self.short = short
        self.every_call = every_call
        self.changes_only = not every_call
        if redaction is not None and not isinstance(redaction, Redacts):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
            raise UsageError(f"Recorder(redaction={redaction!r:.60}): it takes a Redaction, or None.")
        self._clean: Clean | None = None if redaction is None else redaction.outside
        target, prune = _target(where)
        closed = None
        if max_bytes is not None or max_age is not None:
            if prune is None:
                raise UsageError(
                    "Recorder(max_bytes=, max_age=) bound a folder or a store: Recorder('runs/', max_bytes=...)."
                )
            closed = partial(prune, max_bytes, max_age)
        self.where = where
        finds = redaction.finds if isinstance(redaction, FindsInPieces) else None
        self._writer = Writer(target, prune is not None, max_records, interval, short > 0, self._clean, closed, finds)
        self._put = self._writer.put
        self._places: OrderedDict[str, Place] = OrderedDict()
        self._seen_facts: OrderedDict[str, int] = OrderedDict()
        self._number = count(1).__next__
        if target is not None:
            closing = weakref.finalize(self, self._writer.close)
            if isinstance(
                target, StoreTarget
            ):  # behind the store's own: when the process ends, it still takes what is left
                atexit.register(closing)

    # ---- reading

    @property
    def log(self) -> RunLog:
        """What memory holds, as a run log."""
        return log_of(self._writer.in_memory(), self.short > 0, self._clean)

    @property
    def records(self) -> tuple[Record, ...]:
        """What hooks did, and the messages that they did it to, oldest first."""
        return records_of(self.log, self.short)

    def explain(self, message: Msg | str) -> Explanation:
        """Say which hooks shaped a message.

        Args:
            message: The message (a reply is one), or its id.
        """
        return Recording(self.records).explain(message)

    @staticmethod
    def read(path: str | Path) -> Recording:
        """Read what hooks did from a run log; `agentflow.runlog.load` reads all of it.

        Args:
            path: The file; a line that a crash has cut off is left out.

        Raises:
            StoreError: The file is no run log.
        """
        return Recording(records_of(load(path)))

    @property
    def failure(self) -> Exception | None:
        """Why nothing more is written; None: the log is being written. Memory is not concerned."""
        return self._writer.failure

    def flush(self) -> None:
        """Write what was seen so far; the end of each call at the top does so too."""
        self._writer.flush()

    def close(self) -> None:
        """Write what was seen so far, and close what is open; the next thing that happens opens it again."""
        self._writer.close()

    # ---- events

    def on_event(self, event: HookEvent) -> Any:
        """Keep what the event says; write at the end of a call."""
        frame = event._frame  # pyright: ignore[reportPrivateUsage] - an event built by hand has none
        if frame is None:
            return None
        place = self._places.get(frame.call_id) or self._begin(event, frame)
        if place.begun:
            self._overtaken(place, event.seq)
        if isinstance(event, ReasoningChunk):
            seen = (place, event.seq, event.iteration, event.time)
            failure = None if event.decision is None else self._failed(place, frame, event.decision)
            self._put(Chunk(*seen, event.incremental_chunk, event.attempt, event.restart, event.decision, failure))
            return None
        if isinstance(event, ActingChunk):
            seen = (place, event.seq, event.iteration, event.time)
            failure = None if event.decision is None else self._failed(place, frame, event.decision)
            self._put(Piece(*seen, event.tool_use, piece_of(event.chunk), event.decision, failure))
            return None
        self._look(place, run_of(frame.context), event.time)
        kind, decision = type(event), event.decision
        failure = None if decision is None or decision.error is None else error_words(decision.error)
        values = FIELDS_OF[kind](event)
        self._put(Happened(place, kind, event.seq, event.iteration, event.time, values, decision, failure))
        if kind is CallEnded:
            self._places.pop(frame.call_id, None)
            # A call inside another one's tool goes on at once: were it to wait, what runs beside it would overtake it.
            if self.where is not None and place.parent is None and current_turn.get() is None:
                return asyncio.to_thread(self._writer.flush)
        return None

    def on_begin(self, hook: Hook, event: Event) -> Awaitable[None] | None:
        """Remember where a hook begins, in case something else happens before its event is over."""
        frame = event._frame  # pyright: ignore[reportPrivateUsage] - an event built by hand has none
        if hook.observer and hook.priority >= self.priority:  # it follows the recorder: the event is written already
            return None
        place = None if frame is None else self._places.get(frame.call_id)
        if place is not None and frame is not None:
            place.begun.append(Mark(place, frame.context.clock.now(), "began", None, event.seq, hook.name))
        return None

    def on_injection(self, hook: Hook, event: Event) -> None:
        """Keep where a hook injects something."""
        frame = event._frame  # pyright: ignore[reportPrivateUsage] - an event built by hand has none
        place = None if frame is None else self._places.get(frame.call_id)
        if place is not None and frame is not None:
            self._in_order(Mark(place, frame.context.clock.now(), "injected", None, event.seq, hook.name))

    def _mark(
        self, place: Place, context: RunContext, n: int, use: ToolUseBlock, what: Literal["injected", "decided"]
    ) -> Awaitable[None] | None:
        """Keep where a tool injects something, or decides over what runs beside it."""
        self._in_order(Mark(place, context.clock.now(), what, n))
        return None

    def _in_order(self, one: Mark | Asked | Answered | Started | Finished | Interrupted) -> None:
        """Keep what happened, after the beginnings of hooks that it has overtaken."""
        if one.place.begun:
            self._overtaken(one.place)
        self._put(one)

    def _overtaken(self, place: Place, seq: int = 0) -> None:
        """Something happens while hooks have events: keep where they began, except of the event that is over now."""
        for mark in place.begun:
            if mark.place is not place or mark.seq != seq:
                self._put(mark)
        place.begun.clear()

    def on_call(self, call: HookCall) -> None:
        """Keep what an editing hook or a guard did."""
        verdict, error = call.verdict, call.error
        if isinstance(error, Veto):
            verdict, error = Deny(error.reason), None
        if self.changes_only and verdict is None and error is None and not call.changes and not call.injected:
            return
        # Of an exception the words: it holds the frames that it came through.
        words = None if error is None else error_words(error)
        via = "shadow" if call.shadow else call.via
        self._deed(call.hook, call.event, via, call.duration_ms, call.changes, verdict, words, call.injected)

    def on_layer(self, layer: LayerRun) -> None:
        """Keep what a layer of `around` made of the work."""
        name = next((name for kind, name in _LAYERS.items() if isinstance(layer.event, kind)), "value")
        change = FieldChange(name, layer.before, layer.after)
        self._deed(layer.hook, layer.event, "around", layer.duration_ms, (change,), None, None)

    def _deed(
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
        deed = Deed(
            place, hook.name, hook.priority, name, via, *where, use, duration_ms, changes, verdict, error, injected
        )
        self._put(deed)

    def _begin(self, event: Event, frame: Frame) -> Place:
        """Take down a call, as its entries share it."""
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
        """Keep facts that are new, and who has ended the call."""
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
        """What the hooks of a piece have failed with; it may be that somebody has ended the call meanwhile."""
        if not place.interrupted:
            self._look_for_end(place, run_of(frame.context))
        return None if decision.error is None else error_words(decision.error)

    def _look_for_end(self, place: Place, run: RunBase) -> None:
        """Keep who has ended the call: at that moment, or with its first event if it was ended before that."""
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
                self._in_order(Interrupted(place, now, cause.kind, cause.reason, *by))
            case "interrupted":
                work = _work_running_here() if cause.inside else None
                self._in_order(Interrupted(place, now, "interrupt", cause.reason, *by, work))
            case "cancelled" | "closed":
                gone = "the reader has gone" if cause.kind == "closed" else ""
                self._in_order(Interrupted(place, now, "left", gone, *by))
            case _:
                assert_never(cause.kind)

    # ---- what models and tools give

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        """Keep what the model is asked and gives, behind all other hooks."""
        frame = event.frame
        place = self._places.get(frame.call_id) or self._begin(event, frame)
        return self._taken(place, frame.context, event.iteration, source.request, "", source)

    def around_side(
        self, context: RunContext, request: ModelRequest, side: str, chunks: Flux[ModelChunk]
    ) -> Flux[ModelChunk]:
        """Keep what hooks and tools ask a model on the side."""
        place = self._places.get(context.call_id)
        if place is None:  # before the first event, or behind the last one
            return chunks
        return self._taken(place, context, run_of(context).events.iteration, request, side, chunks)

    def _taken(
        self,
        place: Place,
        context: RunContext,
        iteration: int,
        request: ModelRequest,
        side: str,
        inner: Flux[ModelChunk],
    ) -> Flux[ModelChunk]:
        return Flux(lambda: self._take(place, context, iteration, request, side, inner))

    async def _take(
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
        asked = (request.model, request.messages, request.tools, request.options)
        self._in_order(Asked(place, n, iteration, now(), side, *asked))
        end: End = "done"
        words: Line | None = None
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
            end, words = self._ending(place, run, error)
            waited = not isinstance(error, GeneratorExit)
            raise
        finally:
            await close(stream)
            self._in_order(Answered(place, n, now(), end, words, waited))

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        """Keep what the tool gives, behind all other hooks."""
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
        put(Started(place, n, event.iteration, now(), event.tool_use))
        try:
            result = await source.resolve()
        except BaseException as error:
            end, words = self._ending(place, run, error)
            put(Finished(place, n, now(), end, None, words, tuple(injections.added)))
            raise
        finally:
            injecting.set(outer)
        if not place.interrupted:
            self._look_for_end(place, run)
        injected = tuple(injections.added)
        put(Finished(place, n, now(), "done", result if isinstance(result, ToolResultBlock) else None, None, injected))
        return result

    def _ending(self, place: Place, run: RunBase, error: BaseException) -> tuple[End, Line | None]:
        """How work ended that has raised."""
        if not place.interrupted:
            self._look_for_end(place, run)
        if isinstance(error, GeneratorExit):
            return "cut", None
        if isinstance(error, asyncio.CancelledError) and run.scope.is_cancelled():
            return "cut", None
        return "failed", error_words(error)


def run_of(context: RunContext) -> RunBase:
    """The run behind a context."""
    return cast("RunBase", port_of(context))


def _work_running_here() -> int | None:
    """The number of the tool's work whose code is running; None: it is a hook's code."""
    frame = sys._getframe()  # pyright: ignore[reportPrivateUsage] - documented, for those who look at callers
    while frame is not None:
        if frame.f_code is Recorder._work.__code__:  # pyright: ignore[reportPrivateUsage] - this module's own
            return frame.f_locals["n"]
        if frame.f_code.co_filename == chain.__file__:
            return None
        frame = frame.f_back
    return None


_Prune = Callable[[int | None, timedelta | None], None]


def _target(where: str | Path | LogStore | None) -> tuple[Callable[[str], Sink] | None, _Prune | None]:
    """Where the log of a run goes; and, where each has a place of its own, what deletes the oldest."""
    if where is None:
        return None, None
    if isinstance(where, str) and "://" in where:
        raise UsageError(f"Recorder({without_password(where)!r}): a store is given as one, Recorder(SqlStore(...)).")
    if isinstance(where, str | Path):
        path = Path(where)
        if is_folder(where):
            return lambda run: FileSink(file_of(path, run)), partial(prune_folder, path)
        return lambda _: FileSink(path), None
    if not isinstance(where, LogStore):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
        raise UsageError(
            f"Recorder({where!r:.60}): it takes a folder such as 'runs/', a file such as 'runs.jsonl', a store that keeps run "
            "logs (a SqlStore, or your own LogStore), or nothing for memory only."
        )
    return StoreTarget(where), partial(prune_store, where)
