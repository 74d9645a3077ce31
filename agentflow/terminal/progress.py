"""What runs at the moment, as lines: models that are waited for, tools with their last piece, sub-agents below the tool that
asks them, waits with their countdown, and what it has cost so far.

Rules:

1. It is folded from events alone; a line is there from the event that begins something to the one that ends it.
2. A line is never longer than the terminal is wide, and all of them never fill it: what has no room is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from rich.text import Text

from agentflow.context import RunContext
from agentflow.events import (
    ActingChunk,
    CallEnded,
    HookEvent,
    PostActing,
    PostReasoning,
    PreActing,
    PreReasoning,
    ReasoningChunk,
)
from agentflow.ground.ids import inner_session_id
from agentflow.ports.waits import Wait
from agentflow.terminal.phrases import call_text, cost_text, duration_text, plural, shorten, text_of

__all__ = ["Progress"]

_FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAMES_ASCII: Final = "|/-\\"
_TAIL: Final = 400
"""So many characters of what streams are kept, to show the last of them."""


class _Line:
    """Something that runs."""

    def __init__(self, what: str, now: float) -> None:
        self.what = what
        self.since = now
        self.last = ""
        self.calls: dict[str, _Call] = {}


class _Call:
    """A call whose events were seen: what its model does, and the tools that run."""

    def __init__(self, source: str, session_id: str, now: float) -> None:
        self.source = source
        self.session_id = session_id
        self.model: _Line | None = None
        self.tools: dict[str, _Line] = {}
        self.since = now
        self.rounds = 0


class Progress:
    """The lines of what runs.

    Args:
        now: Seconds that only grow.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._calls: dict[str, _Call] = {}
        self._top: dict[str, _Call] = {}
        self._holder: dict[str, dict[str, _Call]] = {}
        self._waits: list[tuple[Wait, float]] = []
        self._context: RunContext | None = None

    # ---- what happens

    def take_in(self, event: HookEvent) -> None:
        """Take in an event."""
        call = self._calls.get(event.call_id) or self._enter(event)
        now = self._now()
        match event:
            case PreReasoning():
                call.rounds = max(call.rounds, event.iteration)
                call.model = _Line(f"waiting for {event.model}", now)
            case ReasoningChunk():
                self._chunk(event, call)
            case PostReasoning():
                call.model = None
            case PreActing() if event.decision is None or event.decision.verdict is None:
                call.model = None
                call.tools[event.tool_use.id] = _Line(call_text(event.tool_use, 200), now)
            case ActingChunk(tool_use=use, chunk=chunk):
                if use.id in call.tools:
                    call.tools[use.id].last = _text(chunk)
            case PostActing(original_tool_use=use):
                call.tools.pop(use.id, None)
            case CallEnded():
                self._leave(event.call_id)
            case _:
                pass

    def _enter(self, event: HookEvent) -> _Call:
        """A call that is seen for the first time; below the tool that has begun it."""
        call = self._calls[event.call_id] = _Call(event.source, event.session_id, self._now())
        place = self._top
        if event.source:
            place = self._below(event.source.rpartition("/")[0], event.session_id)
        else:
            self._context = event.context
        self._holder[event.call_id] = place
        place[event.call_id] = call
        return call

    def _below(self, above: str, session_id: str) -> dict[str, _Call]:
        some: dict[str, _Call] | None = None
        for caller in self._calls.values():
            if caller.source != above:
                continue
            for use_id, line in caller.tools.items():
                mine = inner_session_id(caller.session_id, use_id)
                if session_id == mine or session_id.startswith(f"{mine}/"):
                    return line.calls
                some = line.calls if some is None else some
        return self._top if some is None else some

    def _leave(self, call_id: str) -> None:
        self._calls.pop(call_id, None)
        self._holder.pop(call_id, self._top).pop(call_id, None)

    def _chunk(self, event: ReasoningChunk, call: _Call) -> None:
        piece = event.incremental_chunk
        if call.model is None:
            call.model = _Line("", self._now())
        line = call.model
        words = piece.text or piece.thinking
        if words:
            line.what = f"{event.agent.name} {'writes' if piece.text else 'thinks'}"
            line.last = (line.last + words)[-_TAIL:]
        for asked in piece.tool_uses:
            if asked.name:
                line.what, line.last = f"the model writes a call of {asked.name}", ""

    def wait(self, wait: Wait) -> Callable[[], None]:
        """Something waits; the function that is returned ends that."""
        entry = (wait, self._now())
        self._waits.append(entry)

        def over() -> None:
            if entry in self._waits:
                self._waits.remove(entry)

        return over

    def clear(self) -> None:
        """Nothing runs any more."""
        self._calls.clear()
        self._top.clear()
        self._holder.clear()
        self._waits.clear()
        self._context = None

    # ---- how it looks

    def __bool__(self) -> bool:
        """Whether there is anything to show."""
        return bool(self._waits) or any(call.model or call.tools for call in tuple(self._calls.values()))

    def lines(self, width: int, height: int, *, ascii_only: bool = False) -> list[Text]:
        """The lines, cut to the room that there is.

        It may be called from another thread than the one that takes in events.

        Args:
            width: The columns of the terminal.
            height: Its rows.
            ascii_only: Where it knows no other characters.
        """
        now = self._now()
        frames = _FRAMES_ASCII if ascii_only else _FRAMES
        frame = frames[int(now * 10) % len(frames)]
        rows = [
            self._row(depth, line, frame, now, width, ascii_only)
            for depth, line in self._walk(tuple(self._top.values()))
        ]
        rows += [_wait_row(wait, since, now, width, ascii_only) for wait, since in tuple(self._waits)]
        room = max(1, height - 3)
        if len(rows) > room:
            more = len(rows) - room + 1
            rows[room - 1 :] = [_cut(Text(f"  and {more} more", "dim"), width)]
        spent = self._spent(now)
        return [*rows, _cut(Text(f"  {spent}", "dim"), width)] if spent and rows else rows

    def _walk(self, calls: tuple[_Call, ...], depth: int = 0) -> Iterator[tuple[int, _Line]]:
        for call in calls:
            if call.model is not None:
                yield depth, call.model
            for line in tuple(call.tools.values()):
                yield depth, line
                yield from self._walk(tuple(line.calls.values()), depth + 1)

    def _row(self, depth: int, line: _Line, frame: str, now: float, width: int, ascii_only: bool) -> Text:
        branch = "" if not depth else "   " * (depth - 1) + ("`- " if ascii_only else "└─ ")
        took = duration_text(max(0.0, now - line.since), whole=True)
        room = max(8, width - len(branch) - len(took) - 7)
        what = shorten(line.what, room if not line.last else max(8, room // 2))
        row = Text.assemble("  ", (branch, "dim"), (frame, "cyan"), " ", (what, ""), "  ", (took, "dim"))
        if line.last:
            left = width - row.cell_len - 3
            if left > 8:
                row.append(f"  {_last(line.last, left)}", "dim italic")
        return _cut(row, width)

    def _spent(self, now: float) -> str:
        if self._context is None:
            return ""
        usage, top = self._context.usage, next(iter(tuple(self._top.values())), None)
        parts: list[str] = []
        if top is not None and top.rounds:
            parts.append(f"round {top.rounds}")
        if usage.total_tokens:
            parts.append(f"{usage.total_tokens:,} tokens")
        if usage.cost is not None:
            parts.append(cost_text(usage))
        if top is not None:
            parts.append(duration_text(now - top.since, whole=True))
        running = sum(len(call.tools) for call in tuple(self._calls.values()))
        if running > 1:
            parts.append(f"{plural(running, 'tool')} at work")
        return " · ".join(parts)


def _wait_row(wait: Wait, since: float, now: float, width: int, ascii_only: bool) -> Text:
    left = max(0.0, since + wait.seconds - now)
    mark = "~" if ascii_only else "↻"
    again = f"attempt {wait.attempt + 1}" if wait.attempt else "goes on"
    row = Text.assemble(
        "  ",
        (mark, "yellow"),
        f" {shorten(wait.who, max(12, width // 3))}: {again} in ",
        (duration_text(left, whole=True), "bold yellow"),
    )
    if wait.why:
        row.append(f"  {shorten(wait.why, 200)}", "dim")
    return _cut(row, width)


def _cut(row: Text, width: int) -> Text:
    row.no_wrap, row.overflow = True, "ellipsis"
    row.truncate(max(1, width - 1), overflow="ellipsis")
    return row


def _last(text: str, room: int) -> str:
    """The end of a text, on one line."""
    flat = shorten(text, 10_000)
    return flat if len(flat) <= room else f"…{flat[1 - room :]}"


def _text(chunk: object) -> str:
    kept = text_of(chunk).rstrip("\n").rpartition("\n")[2]
    return kept[-_TAIL:]
