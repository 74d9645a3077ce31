"""`Recorder`: every change that hooks make is known: event, hook, field, before and after, verdict, duration.

It is an observer and changes nothing. Records go to memory and, if asked, to a JSONL file, one line each, in order; a
message is written once, and named by its id and digest from then on. Priority 990: the last of the observers.

Rules:

1. On the way of a run it keeps references only; digests, records and lines are made by a thread, or by whoever reads.
2. It never breaks a run: a file that cannot be written is reported once, and left alone from then on.
3. `short=0` keeps no content at all, only digests: a recorder sees what a redaction has not hidden yet.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from agentflow.errors import UsageError, Veto
from agentflow.events import (
    CallEnded,
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
from agentflow.hooks.recording import ChangeListener, FieldChange, HookCall, LayerRun
from agentflow.messages import Msg
from agentflow.plugins.recorder_making import Deed, Making, place_of
from agentflow.plugins.recorder_records import Explanation, Record, Recording, records_of
from agentflow.plugins.recorder_writer import Writer
from agentflow.transcript import MessageView
from agentflow.verdicts import Deny

__all__ = ["Recorder"]

_HEARD = (PreCall, PreReasoning, PostReasoning, PostCall, MessagesAdded)
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
        interval: Seconds between two writes to the file while a call runs.

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
    events = _HEARD

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        max_records: int = 10_000,
        short: int = 80,
        every_call: bool = False,
        interval: float = 0.25,
    ) -> None:
        if max_records < 1:
            raise UsageError(f"Recorder(max_records={max_records}): memory holds at least 1 record.")
        if short < 0:
            raise UsageError(f"Recorder(short={short}): it is a number of characters; 0 keeps digests only.")
        if not interval > 0:
            raise UsageError(f"Recorder(interval={interval}): it is a number of seconds above 0.")
        self.path = None if path is None else Path(path)
        self.short = short
        self.every_call = every_call
        self.changes_only = not every_call
        self._making = Making(short, every_call, max_records)
        self._writer = Writer(self.path, max_records, interval)
        if path is not None:
            # Per instance here: without a file there is nothing to do at the end.
            self.events = (*_HEARD, CallEnded)  # pyright: ignore[reportAttributeAccessIssue]
            weakref.finalize(self, self._writer.close)

    # ---- reading

    @property
    def records(self) -> tuple[Record, ...]:
        """What memory holds, oldest first."""
        return self._writer.records

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
            path: The JSONL file; a line that a crash has cut off is left out.

        Raises:
            UsageError: The file is not a recording.
        """
        lines = Path(path).read_text("utf-8").split("\n")
        return Recording(records_of(line for line in lines[:-1] if line))

    def flush(self) -> None:
        """Write what was seen so far; the end of each call does so too."""
        self._writer.flush()

    def close(self) -> None:
        """Write what was seen so far, and close the file; the next record opens it again."""
        self._writer.close()

    # ---- what is seen

    def on_event(self, event: HookEvent) -> Any:
        """Keep the messages that may be new, and those that no other event carries; write at the end of a call."""
        match event:
            case PreReasoning():
                messages, last = event.input_messages, event.context.state[_Last].by_recorder
                seen = messages.shared(last.get(id(self), ())) if isinstance(messages, MessageView) else 0
                last[id(self)] = messages
                self._see(tuple([messages[index] for index in range(seen, len(messages))]), event)
            case PostReasoning():
                self._see((event.reasoning_result,), event)
            case PreCall():
                self._see(event.input_messages, event)
            case PostCall():
                self._see((event.final_message,), event)
            case MessagesAdded():
                added = partial(self._making.added, event.messages, event.origin, "MessagesAdded", place_of(event))
                self._writer.put(added)
            case CallEnded():
                return asyncio.to_thread(self._writer.flush)
            case _:
                pass
        return None

    def on_call(self, call: HookCall) -> None:
        """Keep what an editing hook or a guard did."""
        verdict, error = call.verdict, call.error
        if isinstance(error, Veto):
            verdict, error = Deny(error.reason), None
        # Of an exception the words: it holds the frames that it came through.
        deed = Deed(
            call.hook.name,
            call.hook.priority,
            type(call.event).__name__,
            "shadow" if call.shadow else "on_event",
            call.duration_ms,
            _tool_use_id(call.event),
            place_of(call.event),
            call.changes,
            verdict,
            "" if error is None else type(error).__name__,
            "" if error is None else str(error),
        )
        self._writer.put(partial(self._making.deed, deed))

    def on_layer(self, layer: LayerRun) -> None:
        """Keep what a layer of `around` made of the work."""
        name = next((name for kind, name in _LAYERS.items() if isinstance(layer.event, kind)), "value")
        deed = Deed(
            layer.hook.name,
            layer.hook.priority,
            type(layer.event).__name__,
            "around",
            layer.duration_ms,
            _tool_use_id(layer.event),
            place_of(layer.event),
            (FieldChange(name, layer.before, layer.after),),
        )
        self._writer.put(partial(self._making.deed, deed))

    def _see(self, messages: Sequence[Msg], event: Event) -> None:
        if messages:
            self._writer.put(partial(self._making.messages, messages, type(event).__name__, place_of(event)))


def _tool_use_id(event: Event) -> str:
    use = getattr(event, "tool_use", None)
    return "" if use is None else str(use.id)
