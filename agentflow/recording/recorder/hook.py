"""`Recorder`: writes a complete log of runs: events, messages, results of models and tools, and the effects of hooks.

It is an observer and changes nothing. The run log (`docs/run-log.md`) can be read, explained, compared and replayed. With
priority 990 it is the last of the observers. It listens to the work of models and tools inside all wrappers.

Rules:

1. During a run it keeps only references. A thread builds the entries and writes them; without a file or store, reading `log`
   builds them. Only the end of the outermost call waits for a write, so a recorder never changes the order of events.
2. It never breaks a run: if a log cannot be written, this is reported once (`failure`), and writing stops.
3. It sees data before redaction: `redaction=` redacts the log, `short=0` keeps no content at all.
"""

from __future__ import annotations

import asyncio
import atexit
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, Protocol, assert_never, cast, runtime_checkable

from agentflow.errors import UsageError, Veto
from agentflow.hooks.answers import cancellation_error
from agentflow.hooks.hook import Hook
from agentflow.hooks.injections import Injections, injecting
from agentflow.hooks.recorded_calls import in_awaited_hook
from agentflow.hooks.recording import (
    ChangeListener,
    FieldChange,
    HookCall,
    LayerRun,
    ModelWork,
    SideWrapper,
    ToolWork,
    WorkListener,
)
from agentflow.hooks.wrapping import checks_its_end
from agentflow.loop.run import RunBase, current_turn
from agentflow.loop.scope_parts import Notice
from agentflow.loop.stage import close_quietly
from agentflow.loop.suspended import suspends_as
from agentflow.reactive import Flux
from agentflow.reactive.iterators import close, raise_in
from agentflow.recording.encoding import Clean, ErrorText, Line
from agentflow.recording.fields import End
from agentflow.recording.keeping import LogStore, check_bounds
from agentflow.recording.log import RunLog
from agentflow.recording.reading import load
from agentflow.recording.recorder.entry_builder import (
    VALUES_OF,
    EntryBuilder,
    EntryValues,
    EventSeen,
    FactsSeen,
    RawChunk,
    RecordedCall,
)
from agentflow.recording.recorder.files import StoreTarget, target_of
from agentflow.recording.recorder.reader_wait import ReaderWait
from agentflow.recording.recorder.records import Explanation, Recording, RunRecord, records_of
from agentflow.recording.recorder.running_work import WORKS, in_hook, work_of
from agentflow.recording.recorder.stream_redactor import Match
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
from agentflow.vocabulary.events.base import frame_of
from agentflow.vocabulary.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.verdicts import Decided, Deny

__all__ = ["FindsInStream", "Recorder", "Redacts", "run_of"]

_LAYERS: dict[type[Event], str] = {
    PreCall: "message",
    PreReasoning: "reply",
    PreToolRound: "tool_results",
    PreActing: "tool_result",
}
_CHUNKS = frozenset({ReasoningChunk, ActingChunk})
_NONE: tuple[Any, ...] = ()
_make = cast("Callable[..., Any]", tuple.__new__)  # pyright: ignore[reportUnknownMemberType]
"""Creates a named tuple without its Python constructor, since a run creates several for each event."""
_NO_CALL: Line = {"kind": "call", "call": "", "run": "", "session": ""}
# The maximum number of open calls. The oldest are forgotten, since a call that never finishes would stay open.
_MAX_CALLS = 10_000


@runtime_checkable
class Redacts(Protocol):
    """Removes secrets from values, as `Redaction` does."""

    def outside(self, value: Any, run_id: str = "") -> Any:
        """Return a value without secrets, for use outside its run."""
        ...


@runtime_checkable
class FindsInStream(Protocol):
    """Finds secrets in a text that is still incomplete, so that the text can be written while it arrives."""

    def finds(self, text: str, start: int, whole: bool, run_id: str = "") -> tuple[list[Match], int]:
        """Return the secrets in a text, and the position up to which the search is complete."""
        ...


class Recorder(ChangeListener, SideWrapper, WorkListener):
    """Records runs. One instance may serve many agents; it records their sub-agents too.

    Args:
        where: A folder (`"runs/"`) for a file per run; a JSONL file to which all runs are appended; a store for run logs (a
            `SqlStore`, or your own `LogStore`); None: memory only.
        max_records: The number of observations kept in memory; older ones are dropped. The written log keeps all.
        short: The maximum number of characters of the short forms in `records`; 0: digests only, and no text is written.
        every_call: Also record calls of hooks that changed nothing (for their durations).
        interval: Seconds between two writes during a call.
        redaction: Removes secrets from the log; it should be the agent's `Redaction`, or one with the same rules.
        max_bytes: The maximum size of all logs in the folder or store: the oldest are deleted. None: no limit.
        max_age: The maximum time since the last write to a log: older logs are deleted. None: no limit.

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
        if redaction is not None and not isinstance(cast("object", redaction), Redacts):
            raise UsageError(f"Recorder(redaction={redaction!r:.60}) must be a Redaction or None.")
        clean: Clean | None = None if redaction is None else redaction.outside
        finds = redaction.finds if isinstance(redaction, FindsInStream) else None
        self._builder = partial(EntryBuilder, short > 0, clean, finds)
        target, prune = target_of(where)
        closed = None
        if max_bytes is not None or max_age is not None:
            if prune is None:
                raise UsageError(
                    "Recorder(max_bytes=, max_age=) need a folder or a store: Recorder('runs/', max_bytes=...)."
                )
            closed = partial(prune, max_bytes, max_age)
        self.where = where
        self._writer = Writer(self._builder, target, prune is not None, max_records, interval, closed)
        self._put = self._writer.put
        self._owners: OrderedDict[str, RecordedCall] = OrderedDict()
        self._seen_facts: OrderedDict[str, FactsSeen] = OrderedDict()
        self._number = count(1).__next__  # one call in C, so runs in several threads can share it
        if target is not None:
            closing = weakref.finalize(self, self._writer.close)  # refers to the writer, not to `self`
            if isinstance(target, StoreTarget):
                atexit.register(closing)  # runs before the store's own handler, so the store still accepts the rest

    # ---- reading

    @property
    def log(self) -> RunLog:
        """The observations in memory, as a run log."""
        return log_of(self._writer.in_memory(), self._builder())

    @property
    def records(self) -> tuple[RunRecord, ...]:
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
        """Read the effects of hooks from a run log; `agentflow.recording.load` reads the whole log.

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
        frame = frame_of(event)
        if frame is None:
            return None
        owner = self._owners.get(frame.call_id) or self._begin(event, frame)
        kind = event.__class__
        values = VALUES_OF[kind](event)  # read now: keeping the event would keep its whole run alive
        decision, facts = values[3], _NONE
        if owner.begun:
            self._write_begun(owner, event.seq)
        if decision is not None or kind not in _CHUNKS:
            run: Any = port_of(frame.context)
            run_facts = owner.facts
            facts = run.journal.facts[run_facts.count :]  # each fact once, although the calls of a run share them
            if facts:
                run_facts.count += len(facts)
            if run.scope.cause is not None and not owner.interrupted:
                if facts:
                    self._put(EntryValues(owner, "facts", {"time": event.time, "facts": facts}))
                    facts = _NONE
                self._look_for_end(owner, run)
            if decision is not None and decision.error is not None:
                failed = Decided(decision.verdict, decision.hook, cast("Any", ErrorText.of(decision.error)))
                values = (*values[:3], failed, *values[4:])
        if kind is CallEnded:
            return self._end_call(owner, frame.call_id, EventSeen(owner, kind, values, facts), event.time)
        if kind is ActingChunk:
            values = (*values, work_of(owner))
        self._put(_make(EventSeen, (owner, kind, values, facts)))
        return None

    def _end_call(self, owner: RecordedCall, call_id: str, ended: EventSeen, time: float) -> Awaitable[None] | None:
        """Record the end of a call, and write its log."""
        self._end_abandoned(owner, time)
        self._put(ended)
        self._owners.pop(call_id, None)
        # A call inside another call's tool does not wait, since this would change the order of concurrent work.
        if self.where is not None and owner.parent is None and current_turn.get() is None:
            return asyncio.to_thread(self._writer.flush)  # a slow disk must not block the event loop
        return None

    def _end_abandoned(self, owner: RecordedCall, time: float) -> None:
        """Record the end of work that ignored its cancellation until its call was abandoned."""
        for n, kind in owner.working.items():
            self._in_order(owner, kind, {"n": n, "time": time, "end": "cut"})
        owner.working.clear()

    def on_begin(self, hook: Hook, event: Event) -> Awaitable[None] | None:
        """Keep the start of a hook; it is recorded if anything else happens before the hook ends."""
        frame = frame_of(event)
        # Such a hook runs after the recorder, so its event is recorded already.
        if hook.observer and hook.priority >= self.priority:
            return None
        if frame is not None:
            owner = self._owners.get(frame.call_id) or self._begin(event, frame)
            mark: Line = {"time": frame.context.clock.now(), "what": "began", "seq": event.seq, "hook": hook.name}
            owner.begun.append(EntryValues(owner, "mark", mark))
        return None

    def on_injection(self, hook: Hook, event: Event) -> None:
        """Record that a hook injects messages."""
        frame = frame_of(event)
        owner = None if frame is None else self._owners.get(frame.call_id)
        if owner is not None and frame is not None:
            now = frame.context.clock.now()
            self._in_order(owner, "mark", {"time": now, "what": "injected", "seq": event.seq, "hook": hook.name})

    def _mark(
        self, owner: RecordedCall, context: RunContext, n: int, use: ToolUseBlock, what: Literal["injected", "decided"]
    ) -> Awaitable[None] | None:
        """Record that a tool injects messages, or decides about concurrent work."""
        self._in_order(owner, "mark", {"time": context.clock.now(), "what": what, "n": n})
        return None

    def _in_order(self, owner: RecordedCall, kind: str, fields: Line) -> None:
        """Record an observation, after the starts of the hooks that began before it."""
        if owner.begun:
            self._write_begun(owner)
        self._put(_make(EntryValues, (owner, kind, fields)))

    def _write_begun(self, owner: RecordedCall, seq: int = 0) -> None:
        """Record the starts of running hooks, except the last ones if they handle event `seq`, which is recorded next."""
        begun = owner.begun
        while begun and begun[-1].owner is owner and begun[-1].fields["seq"] == seq:
            begun.pop()  # nothing else happened during the hook, so the entry of its event is enough
        for mark in begun:
            self._put(mark)
        begun.clear()

    def on_call(self, call: HookCall) -> None:
        """Record the effect of an editing hook or a guard."""
        verdict, error = call.verdict, call.error
        if isinstance(error, Veto):
            verdict, error = Deny(error.reason), None
        if isinstance(error, asyncio.CancelledError) and (frame := frame_of(call.event)) is not None:
            events = run_of(frame.context).events
            if not events.is_cancelled():  # the run was not cancelled, so the chain reports this as a failure
                error = cancellation_error(call.hook, type(call.event), events.why_cancelled())
        if self.changes_only and verdict is None and error is None and not call.changes and not call.injected:
            return
        failure = None if error is None else ErrorText.of(error)
        effect: Line = {"changes": call.changes, "verdict": verdict, "error": failure}
        if call.injected:
            effect["injected"] = _injections(call.injected)
        self._effect(call, "shadow" if call.shadow else call.via, effect)

    def on_layer(self, layer: LayerRun) -> None:
        """Record how an `around` wrapper changed the work's result."""
        name = next((name for kind, name in _LAYERS.items() if isinstance(layer.event, kind)), "value")
        self._effect(layer, "around", {"changes": (FieldChange(name, layer.before, layer.after),)})

    def _effect(self, of: HookCall | LayerRun, via: str, effect: Line) -> None:
        hook, event = of.hook, of.event
        frame = frame_of(event)
        owner = (
            RecordedCall(_NO_CALL) if frame is None else self._owners.get(frame.call_id) or self._begin(event, frame)
        )
        if effect.get("error") is not None and owner.begun:
            self._write_begun(owner, event.seq)  # a replay repeats failures in their order too
        line: Line = {"hook": hook.name, "priority": hook.priority, "event": type(event).__name__, "via": via}
        line.update({"seq": event.seq, "iteration": event.iteration, "time": event.time})
        line.update({"tool_use": getattr(event, "tool_use", None), "duration_ms": of.duration_ms, **effect})
        self._put(EntryValues(owner, "hook", line))

    def _begin(self, event: Event, frame: Frame) -> RecordedCall:
        """Create the data that all observations of a call share."""
        view, run, turn = frame.agent, run_of(frame.context), current_turn.get()
        line: Line = {"kind": "call", "call": frame.call_id, "run": frame.run_id, "session": frame.session_id}
        line.update({"source": frame.source, "agent": view.name, "description": view.description})
        line.update({"model": view.model_name, "time": event.time, "timeout": run.scope.tasks.timeout})
        line["hooks"] = [hook.name for hook in run.hooks.hooks if hook is not self]
        line["resumes"] = run.resumption is not None
        line["streamed"] = run.events.buffer is not None and run.parent is None
        if run.settings.options is not run.config.options:
            line["options"] = run.settings.options
        above = None
        if run.parent is not None and turn is not None:
            above = self._owners.get(turn.run.call_id)
            line["parent"] = {"call": turn.run.call_id, "tool_use": turn.use.id}
        facts = self._seen_facts.setdefault(frame.run_id, FactsSeen())
        owner = self._owners[frame.call_id] = RecordedCall(line, above, facts)
        if above is None and run.parent is not None and turn is not None:
            owner.root = turn.run.run_id
        buffer = run.events.buffer
        if buffer is not None and (run.parent is None or run.parent.events.buffer is not buffer):
            buffer.on_wait = partial(self._wait_for_reader, buffer.on_wait)  # wraps that of another recorder, if any
        listener = run.scope.listener  # that of another recorder, or None

        def notice(what: Notice) -> None:
            if listener is not None:
                listener(what)
            self._on_notice(owner, run, what)

        run.scope.listener = notice
        for known in (self._owners, self._seen_facts):
            if len(known) > _MAX_CALLS:
                known.popitem(last=False)
        if run.scope.cause is not None:  # a hook that runs before the recorder has already ended the call
            self._look_for_end(owner, run, late=True)
        return owner

    def _wait_for_reader(
        self, other: Callable[[Event, Awaitable[None]], Awaitable[None]] | None, event: Event, until: Awaitable[None]
    ) -> Awaitable[None]:
        """Return the awaitable for which a run waits after an event; another recorder may record the wait too."""
        until = until if other is None else other(event, until)
        owner = self._owners.get(event.call_id)
        if owner is None:
            return until
        now = event.context.clock.now

        def record(cancelled: bool) -> None:
            what = "unread" if cancelled else "read"
            self._in_order(owner, "mark", {"time": now(), "what": what, "seq": event.seq})

        return ReaderWait(until, self._writer.latest, now, record)

    def _on_notice(self, owner: RecordedCall, run: RunBase, what: Notice) -> None:
        """Record a cancellation, the positions of parallel tool calls when one failed, or an action that is not replayable."""
        if what == "cancelled":
            self._look_for_end(owner, run)
            return
        line: Line = {"time": run.config.clock.now(), "what": what}
        if what == "failed":
            line["at"] = run.scope.positions()
        self._in_order(owner, "mark", line)

    def _look_for_end(self, owner: RecordedCall, run: RunBase, late: bool = False) -> None:
        """Record the cause of an early end of the call. `late`: the cause is older than the recorder's first observation of the
        call, so the position of the running task is not that of the cause."""
        cause = run.scope.cause
        if cause is None or owner.interrupted:
            return
        owner.interrupted = True
        at = cause.at
        work = None
        if cause.inside and cause.kind == "interrupted":
            work = self._work_here(owner)
            if in_awaited_hook() and not late:
                at = run.scope.positions(asyncio.current_task())
        line: Line = {"time": run.config.clock.now(), "how": cause.kind, "reason": cause.reason, "at": at}
        line.update({"by_itself": cause.inside or None, "by_caller": cause.by_caller or None})
        match cause.kind:
            case "interrupted":
                line.update({"how": "interrupt", "work": work})
            case "cancelled" | "closed":
                line.update({"how": "left", "reason": "the reader has gone" if cause.kind == "closed" else ""})
            case "timeout" | "shutdown":
                pass
            case _:
                assert_never(cause.kind)
        self._in_order(owner, "interrupt", line)

    def _work_here(self, owner: RecordedCall) -> int | None:
        """Return the number of the call's work to which the running code belongs, also in tasks of it; None in a hook."""
        return None if in_hook(Recorder._tool_work.__code__) else work_of(owner)

    # ---- results of models and tools

    def on_model_work(self, event: PreReasoning, request: ModelRequest, work: ModelWork) -> ModelWork:
        """Record the request and the reply of the model, after all other hooks."""
        frame = event.frame
        owner = self._owners.get(frame.call_id) or self._begin(event, frame)
        return partial(self._record, owner, frame.context, event.iteration, request, "", work)

    def around_side(
        self, context: RunContext, request: ModelRequest, side: str, chunks: Flux[ModelChunk]
    ) -> Flux[ModelChunk]:
        """Record side model calls of hooks and tools."""
        owner = self._owners.get(context.call_id)
        if owner is None:  # before the first event, or after the last one
            return chunks
        return self._recorded(owner, context, run_of(context).events.iteration, request, side, chunks)

    def _recorded(
        self,
        owner: RecordedCall,
        context: RunContext,
        iteration: int,
        request: ModelRequest,
        side: str,
        inner: Flux[ModelChunk],
    ) -> Flux[ModelChunk]:
        return Flux(partial(self._record, owner, context, iteration, request, side, inner.open))

    @suspends_as("model")
    @checks_its_end
    async def _record(
        self,
        owner: RecordedCall,
        context: RunContext,
        iteration: int,
        request: ModelRequest,
        side: str,
        work: ModelWork,
    ) -> AsyncIterator[ModelChunk]:
        n, put, now = self._number(), self._put, context.clock.now
        events = (run := run_of(context)).events
        sent: Line = {"n": n, "iteration": iteration, "time": now(), "side": side, "model": request.model}
        sent.update({"messages": request.messages, "tools": request.tools, "options": request.options})
        if side and (tool_work := self._work_here(owner)) is not None:
            sent["work"] = tool_work
        self._in_order(owner, "request", sent)
        owner.working[n] = "answered"
        end: End = "done"
        failure: ErrorText | None = None
        waited = None
        stream: AsyncIterator[ModelChunk] | None = None
        try:
            stream = work()
            async for chunk in stream:
                put(_make(RawChunk, (owner, n, now(), chunk, events.seq)))  # recorded before hooks can change it
                try:
                    yield chunk
                except asyncio.CancelledError as error:  # a time limit of the model has expired during the yield
                    await raise_in(stream, error)
                    raise
            if run.scope.is_cancelled() and not (side and owner.interrupted):  # the model swallowed the cancellation
                self._look_for_end(owner, run)
                end = "cut" if owner.interrupted else "done"
        except BaseException as error:  # recorded, then raised again; also a cancellation
            end, failure = self._ending(owner, run, error)
            waited = False if isinstance(error, GeneratorExit) else None
            raise
        finally:
            try:
                # A generator without a frame has ended, so it needs no closing.
                if stream is not None and getattr(stream, "ag_frame", stream) is not None:
                    # The reply of the loop's own request is kept even if closing its stream fails.
                    await (close(stream) if side else close_quietly(stream))
            finally:
                if owner.working.pop(n, None) is not None:  # otherwise the call was abandoned
                    answered: Line = {"n": n, "time": now(), "end": end, "error": failure, "waited": waited}
                    self._in_order(owner, "answered", answered)

    def on_tool_work(self, event: PreActing, work: ToolWork) -> ToolWork:
        """Record the result of the tool, after all other hooks."""
        return partial(self._tool_work, event, work)

    @suspends_as("tool")
    async def _tool_work(self, event: PreActing, work: Callable[[], Awaitable[Any]]) -> Any:
        frame = event.frame
        owner = self._owners.get(frame.call_id) or self._begin(event, frame)
        context = frame.context
        n, now = self._number(), context.clock.now
        run = run_of(context)
        injections = Injections(run, partial(self._mark, owner, context, n, event.tool_use))
        outer = injecting.get()
        injecting.set(injections)
        works = WORKS.get()
        WORKS.set((owner, n, works))
        started: Line = {"n": n, "tool_use": event.tool_use, "iteration": event.iteration, "time": now()}
        self._in_order(owner, "started", started)
        owner.working[n] = "finished"
        finished: Line = {"n": n}
        try:
            result = await work()
            finished["result"] = result if isinstance(result, ToolResultBlock) else None
            if run.scope.cause is not None:
                self._look_for_end(owner, run)
            return result
        except BaseException as error:  # recorded, then raised again; also a cancellation
            finished["end"], finished["error"] = self._ending(owner, run, error)
            raise
        finally:
            injecting.set(outer)  # `reset` would fail if the coroutine is closed in another context
            WORKS.set(works)
            if injections.added:
                finished["injected"] = _injections(injections.added)
            finished["time"] = now()
            if owner.working.pop(n, None) is not None:  # otherwise the call was abandoned
                self._in_order(owner, "finished", finished)

    def _ending(self, owner: RecordedCall, run: RunBase, error: BaseException) -> tuple[End, ErrorText | None]:
        """Return the end and the error of work that raised an exception."""
        self._look_for_end(owner, run)
        stopped = isinstance(error, asyncio.CancelledError) and run.scope.is_cancelled()
        if stopped or isinstance(error, GeneratorExit):
            return "cut", None
        return "failed", ErrorText.of(error)


def run_of(context: RunContext) -> RunBase:
    """Return the run of a context."""
    run: Any = port_of(context)
    return run


def _injections(added: Iterable[tuple[tuple[Msg, ...], bool]]) -> list[Line]:
    return [{"messages": messages, "keep": keep} for messages, keep in added]
