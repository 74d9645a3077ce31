"""`Recorder`: every change that hooks make is known: event, hook, field, before and after, verdict, duration.

It is an observer and changes nothing. Records go to memory and, if asked, to a JSONL file, one line each, in order; a
message is written once, and named by its id and digest from then on. Priority 990: the last of the observers.

Rules:

1. It never breaks a run: a file that cannot be written is reported once, and left alone from then on.
2. `short=0` keeps no content at all, only digests: a recorder sees what a redaction has not hidden yet.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from loguru import logger

from agentflow.errors import UsageError, Veto
from agentflow.events import (
    Event,
    HookEvent,
    MessagesAdded,
    PostCall,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
)
from agentflow.hooks.recording import ChangeListener, HookCall, LayerRun
from agentflow.messages import Msg
from agentflow.plugins.recorder_records import (
    AddedRecord,
    Edit,
    Explanation,
    HookRecord,
    MessageRecord,
    Record,
    Recording,
    Shown,
    message_digest,
    record_from_json,
    record_to_json,
    show,
)
from agentflow.transcript import MessageView
from agentflow.verdicts import Again, Answer, Deny, Recover, Stop, Suspend

__all__ = ["Recorder"]

_LAYERS: dict[type[Event], str] = {
    PreCall: "message",
    PreReasoning: "reply",
    PreToolRound: "tool_results",
    PreActing: "tool_result",
}


@dataclass
class _Last:
    """The last request of a run, whose messages each recorder knows; not stored with a session."""

    def __post_init__(self) -> None:
        self.by_recorder: dict[int, Sequence[Msg]] = {}


class Recorder(ChangeListener):
    """Records what hooks do to events. One instance may serve many agents.

    Args:
        path: A JSONL file to append to; None: memory only.
        max_records: How many records memory holds; older ones are dropped. The file keeps all.
        short: Most characters of the short forms; 0: digests only, and no message is written.
        every_call: Record calls of hooks that changed nothing, too (for their durations).

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
    events = (PreCall, PreReasoning, PostReasoning, PostCall, MessagesAdded)

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        max_records: int = 10_000,
        short: int = 80,
        every_call: bool = False,
    ) -> None:
        if max_records < 1:
            raise UsageError(f"Recorder(max_records={max_records}): memory holds at least 1 record.")
        if short < 0:
            raise UsageError(f"Recorder(short={short}): it is a number of characters; 0 keeps digests only.")
        self.path = None if path is None else Path(path)
        self.short = short
        self.every_call = every_call
        self._records: deque[Record] = deque(maxlen=max_records)
        self._known: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._digests: OrderedDict[int, tuple[Msg, str]] = OrderedDict()
        self._most = max_records
        self._lock = threading.RLock()
        self._file: IO[str] | None = None
        self._broken = False

    # ---- reading

    @property
    def records(self) -> tuple[Record, ...]:
        """What memory holds, oldest first."""
        with self._lock:
            return tuple(self._records)

    def explain(self, message: Msg | str) -> Explanation:
        """Say which hooks shaped a message.

        Args:
            message: The message (a reply is one), or its id.
        """
        return Recording(self.records).explain(message)

    @staticmethod
    def read(path: str | Path) -> Recording:
        """Read a file back.

        Args:
            path: The JSONL file; a last line that was cut off by a crash is left out.

        Raises:
            UsageError: The file is not a recording.
        """
        lines = Path(path).read_text("utf-8").split("\n")
        records = [record_from_json(line) for line in lines[:-1] if line]
        return Recording(records)

    def close(self) -> None:
        """Close the file; the next record opens it again."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    # ---- what is seen

    def on_event(self, event: HookEvent) -> None:
        """Write the messages that are new, and tell of those that no other event carries."""
        match event:
            case PreCall():
                self._see(event.input_messages, event)
            case PreReasoning():
                messages, last = event.input_messages, event.context.state[_Last].by_recorder
                seen = messages.shared(last.get(id(self), ())) if isinstance(messages, MessageView) else 0
                last[id(self)] = messages
                self._see([messages[index] for index in range(seen, len(messages))], event)
            case PostReasoning():
                self._see((event.reasoning_result,), event)
            case PostCall():
                self._see((event.final_message,), event)
            case MessagesAdded():
                self._see(event.messages, event)
                shown = tuple((msg.id, self._digest(msg)) for msg in event.messages)
                sources = tuple(str(msg.metadata.get("synthetic", "")) for msg in event.messages)
                self._write(AddedRecord(origin=event.origin, messages=shown, sources=sources, **_place(event)))
            case _:
                pass

    def on_call(self, call: HookCall) -> None:
        """Record what an editing hook or a guard did."""
        edits: list[Edit] = []
        for change in call.changes:
            self._see_messages_of(change.before, call.event)
            self._see_messages_of(change.after, call.event)
            before, after = self._show(change.before), self._show(change.after)
            if before != after:
                edits.append(Edit(change.field, before, after))
            edits.extend(_marked(change.field, change.before, change.after, self.short))
        verdict, error = call.verdict, call.error
        if isinstance(error, Veto):
            verdict, error = Deny(error.reason), None
        if not (edits or verdict is not None or error is not None or self.every_call):
            return
        self._write(
            HookRecord(
                hook=call.hook.name,
                priority=call.hook.priority,
                event=type(call.event).__name__,
                via="shadow" if call.shadow else "on_event",
                edits=tuple(edits),
                verdict="" if verdict is None else type(verdict).__name__,
                detail=self._detail(error if verdict is None else verdict),
                error="" if error is None else type(error).__name__,
                duration_ms=call.duration_ms,
                tool_use_id=_tool_use_id(call.event),
                **_place(call.event),
            )
        )

    def on_layer(self, layer: LayerRun) -> None:
        """Record what a layer of `around` made of the work."""
        before, after = self._show(layer.before), self._show(layer.after)
        if before == after and not self.every_call:
            return
        name = next((name for kind, name in _LAYERS.items() if isinstance(layer.event, kind)), "value")
        self._write(
            HookRecord(
                hook=layer.hook.name,
                priority=layer.hook.priority,
                event=type(layer.event).__name__,
                via="around",
                edits=() if before == after else (Edit(name, before, after),),
                duration_ms=layer.duration_ms,
                tool_use_id=_tool_use_id(layer.event),
                **_place(layer.event),
            )
        )

    # ---- in short

    def _show(self, value: Any) -> Shown:
        return show(value, self.short, self._digest)

    def _digest(self, msg: Msg) -> str:
        with self._lock:
            found = self._digests.get(id(msg))
            if found is not None and found[0] is msg:
                return found[1]
            digest = message_digest(msg)
            self._digests[id(msg)] = (
                msg,
                digest,
            )  # holding the message keeps its identity from being given to another one
            if len(self._digests) > self._most:
                self._digests.popitem(last=False)
            return digest

    def _detail(self, value: object) -> str:
        if not self.short or value is None:
            return ""
        match value:
            case Deny(reason=text) | Stop(reason=text):
                return show(text, self.short).short
            case Answer(value=given) | Recover(value=given) | Again(messages=given) | Suspend(request=given):
                return "" if given is None else show(given, self.short).short
            case _:
                return show(str(value), self.short).short

    # ---- writing

    def _see_messages_of(self, value: object, event: Event) -> None:
        self._see(_messages_in(value), event)

    def _see(self, messages: Iterable[Msg], event: Event) -> None:
        for msg in messages:
            key = msg.id, self._digest(msg)
            with self._lock:
                if key in self._known:
                    continue
                self._known[key] = None
                if len(self._known) > self._most:
                    self._known.popitem(last=False)
            calls = [*(use.id for use in msg.tool_uses), *(result.tool_use_id for result in msg.tool_results)]
            self._write(
                MessageRecord(
                    id=msg.id,
                    digest=key[1],
                    role=msg.role,
                    event=type(event).__name__,
                    calls=tuple(calls),
                    message=msg.to_dict() if self.short else None,
                    **_place(event),
                )
            )

    def _write(self, record: Record) -> None:
        with self._lock:
            self._records.append(record)
            if self.path is None or self._broken:
                return
            try:
                if self._file is None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    self._file = self.path.open("a", encoding="utf-8")
                    weakref.finalize(self, self._file.close)
                self._file.write(record_to_json(record) + "\n")
                self._file.flush()
            except (OSError, ValueError) as error:
                self._broken = True
                logger.error(
                    "the recorder stops writing to {}: {}; runs go on, memory goes on recording", self.path, error
                )


def _marked(field: str, before: object, after: object, short: int) -> Iterable[Edit]:
    """What has changed in the metadata of messages that are there before and after."""
    old = {msg.id: msg for msg in _messages_in(before)}
    for msg in _messages_in(after):
        was = old.get(msg.id)
        if was is None or was is msg or was.metadata == msg.metadata:
            continue
        shown = [show(", ".join(f"{k}={v!r}" for k, v in sorted(one.metadata.items())), short) for one in (was, msg)]
        yield Edit(f"{field}.metadata", *(Shown(one.digest, one.short, ((msg.id, one.digest),)) for one in shown))


def _messages_in(value: object) -> Iterable[Msg]:
    if isinstance(value, Msg):
        return (value,)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [item for item in cast("Sequence[object]", value) if isinstance(item, Msg)]
    return ()


def _place(event: Event) -> dict[str, Any]:
    """Where and when an event was."""
    frame = event._frame  # pyright: ignore[reportPrivateUsage] - an event built by hand has none
    ids = {} if frame is None else {n: getattr(frame, n) for n in ("run_id", "call_id", "session_id", "source")}
    return {**ids, "iteration": event.iteration, "seq": event.seq, "time": event.time}


def _tool_use_id(event: Event) -> str:
    use = getattr(event, "tool_use", None)
    return "" if use is None else str(use.id)
