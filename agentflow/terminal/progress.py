"""The lines for active work: pending model calls, tools with their last chunk, sub-agents below the calling tool, waits
with a countdown, and the cost so far.

Rules:

1. The lines are computed only from events: a line exists from the event that starts the work to the one that ends it.
2. Each line fits the width of the terminal, and all lines its height; lines that do not fit are only counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from rich.text import Text

from agentflow._support.ids import inner_session_id
from agentflow.terminal.phrases import call_text, cost_text, duration_text, plural, shorten
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import (
    ActingChunk,
    CallEnded,
    HookEvent,
    PostActing,
    PostReasoning,
    PreActing,
    PreReasoning,
    ReasoningChunk,
)
from agentflow.vocabulary.ports.waits import Wait
from agentflow.vocabulary.saving.plain import text_of

_FRAMES: Final = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAMES_ASCII: Final = "|/-\\"
_TAIL: Final = 400
"""The number of characters of a stream to keep; the last ones are shown."""


class _WorkLine:
    """The line of active work."""

    def __init__(self, what: str, now: float) -> None:
        self.what = what
        self.since = now
        self.last = ""
        self.calls: dict[str, _CallLines] = {}


class _CallLines:
    """A call: the state of its model call, and its active tools."""

    def __init__(self, source: str, session_id: str, now: float) -> None:
        self.source = source
        self.session_id = session_id
        self.model: _WorkLine | None = None
        self.tools: dict[str, _WorkLine] = {}
        self.since = now
        self.rounds = 0


class ProgressLines:
    """The lines for active work.

    Args:
        now: A monotonic clock in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._calls: dict[str, _CallLines] = {}
        self._top: dict[str, _CallLines] = {}
        self._holder: dict[str, dict[str, _CallLines]] = {}
        self._waits: list[tuple[Wait, float]] = []
        self._context: RunContext | None = None

    # ---- what happens

    def process(self, event: HookEvent) -> None:
        """Process an event."""
        call = self._calls.get(event.call_id) or self._enter(event)
        now = self._now()
        match event:
            case PreReasoning():
                call.rounds = max(call.rounds, event.iteration)
                call.model = _WorkLine(f"waiting for {event.model}", now)
            case ReasoningChunk():
                self._chunk(event, call)
            case PostReasoning():
                call.model = None
            case PreActing() if event.decision is None or event.decision.verdict is None:
                call.model = None
                call.tools[event.tool_use.id] = _WorkLine(call_text(event.tool_use, 200), now)
            case ActingChunk(tool_use=use, chunk=chunk):
                if use.id in call.tools:
                    call.tools[use.id].last = _text(chunk)
            case PostActing(original_tool_use=use):
                call.tools.pop(use.id, None)
            case CallEnded():
                self._leave(event.call_id)
            case _:
                pass

    def _enter(self, event: HookEvent) -> _CallLines:
        """Register a new call, below the tool that started it."""
        call = self._calls[event.call_id] = _CallLines(event.source, event.session_id, self._now())
        siblings = self._top
        if event.source:
            siblings = self._below(event.source.rpartition("/")[0], event.session_id)
        else:
            self._context = event.context
        self._holder[event.call_id] = siblings
        siblings[event.call_id] = call
        return call

    def _below(self, above: str, session_id: str) -> dict[str, _CallLines]:
        some: dict[str, _CallLines] | None = None
        for caller in self._calls.values():
            if caller.source != above:
                continue
            for use_id, line in caller.tools.items():
                own_session = inner_session_id(caller.session_id, use_id)
                if session_id == own_session or session_id.startswith(f"{own_session}/"):
                    return line.calls
                some = line.calls if some is None else some
        return self._top if some is None else some

    def _leave(self, call_id: str) -> None:
        self._calls.pop(call_id, None)
        self._holder.pop(call_id, self._top).pop(call_id, None)

    def _chunk(self, event: ReasoningChunk, call: _CallLines) -> None:
        chunk = event.incremental_chunk
        if call.model is None:
            call.model = _WorkLine("", self._now())
        line = call.model
        text = chunk.text or chunk.thinking
        if text:
            line.what = f"{event.agent.name} {'writes' if chunk.text else 'thinks'}"
            line.last = (line.last + text)[-_TAIL:]
        for use in chunk.tool_uses:
            if use.name:
                line.what, line.last = f"the model is writing a call of {use.name}", ""

    def wait(self, wait: Wait) -> Callable[[], None]:
        """Show a wait; the returned function ends it."""
        entry = (wait, self._now())
        self._waits.append(entry)

        def end() -> None:
            if entry in self._waits:
                self._waits.remove(entry)

        return end

    def clear(self) -> None:
        """Remove all lines."""
        self._calls.clear()
        self._top.clear()
        self._holder.clear()
        self._waits.clear()
        self._context = None

    # ---- how it looks

    def __bool__(self) -> bool:
        """Whether there is a line to show."""
        # Copied here and below, because the thread that redraws reads while events add and remove lines.
        return bool(self._waits) or any(call.model or call.tools for call in tuple(self._calls.values()))

    def lines(self, width: int, height: int, *, ascii_only: bool = False) -> list[Text]:
        """Return the lines that fit the terminal. May be called from a different thread than `process`.

        Args:
            width: The number of columns of the terminal.
            height: The number of rows.
            ascii_only: Whether to use only ASCII characters.
        """
        now = self._now()
        frames = _FRAMES_ASCII if ascii_only else _FRAMES
        frame = frames[int(now * 10) % len(frames)]
        rows = [
            self._row(depth, line, frame, now, width, ascii_only)
            for depth, line in self._walk(tuple(self._top.values()))
        ]
        rows += [_wait_row(wait, since, now, width, ascii_only) for wait, since in tuple(self._waits)]
        room = max(1, height - 3)  # leave lines for the cost and for the text above
        if len(rows) > room:
            more = len(rows) - room + 1
            rows[room - 1 :] = [_truncate(Text(f"  and {more} more", "dim"), width)]
        spent = self._spent(now)
        return [*rows, _truncate(Text(f"  {spent}", "dim"), width)] if spent and rows else rows

    def _walk(self, calls: tuple[_CallLines, ...], depth: int = 0) -> Iterator[tuple[int, _WorkLine]]:
        for call in calls:
            if call.model is not None:
                yield depth, call.model
            for line in tuple(call.tools.values()):
                yield depth, line
                yield from self._walk(tuple(line.calls.values()), depth + 1)

    def _row(self, depth: int, line: _WorkLine, frame: str, now: float, width: int, ascii_only: bool) -> Text:
        branch = "" if not depth else "   " * (depth - 1) + ("`- " if ascii_only else "└─ ")
        took = duration_text(max(0.0, now - line.since), whole=True)
        room = max(8, width - len(branch) - len(took) - 7)
        what = shorten(line.what, room if not line.last else max(8, room // 2))
        row = Text.assemble("  ", (branch, "dim"), (frame, "cyan"), " ", (what, ""), "  ", (took, "dim"))
        if line.last:
            room = width - row.cell_len - 3
            if room > 8:
                row.append(f"  {_last(line.last, room)}", "dim italic")
        return _truncate(row, width)

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
            parts.append(f"{plural(running, 'tool')} running")
        return " · ".join(parts)


def _wait_row(wait: Wait, since: float, now: float, width: int, ascii_only: bool) -> Text:
    remaining = max(0.0, since + wait.seconds - now)
    mark = "~" if ascii_only else "↻"
    again = f"attempt {wait.attempt + 1}" if wait.attempt else "continues"
    row = Text.assemble(
        "  ",
        (mark, "yellow"),
        f" {shorten(wait.who, max(12, width // 3))}: {again} in ",
        (duration_text(remaining, whole=True), "bold yellow"),
    )
    if wait.reason:
        row.append(f"  {shorten(wait.reason, 200)}", "dim")
    return _truncate(row, width)


def _truncate(row: Text, width: int) -> Text:
    row.no_wrap, row.overflow = True, "ellipsis"
    row.truncate(max(1, width - 1), overflow="ellipsis")
    return row


def _last(text: str, room: int) -> str:
    """Return the end of a text, on one line."""
    flat = shorten(text, 10_000)
    return flat if len(flat) <= room else f"…{flat[1 - room :]}"


def _text(chunk: object) -> str:
    return text_of(chunk).rstrip("\n").rpartition("\n")[2][-_TAIL:]
