"""The parts of a reply on a page: the events of a run as texts, thinking and calls that are opened and closed.

The protocols of pages share this; `agui/output.py` and `ai_sdk_stream.py` only encode it. Rules:

1. At most one text or thinking part is open. It is closed before any other part, and before the end.
2. A call is opened once, and gets its arguments once, before its result, its question and the end.
3. Protocols cannot retract text: if a reply's text differs from that of the page, `text_differs` is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from agentflow.serve.view import (
    EndEvent,
    GapEvent,
    Public,
    Question,
    ReplyEvent,
    TextEvent,
    ThinkingEvent,
    ToolEvent,
    ToolOutputEvent,
)


class PagePart(NamedTuple):
    """A text or thinking part is opened, continued or closed."""

    step: Literal["start", "delta", "end"]
    kind: Literal["text", "thinking"]
    id: str
    text: str = ""


class PageCall(NamedTuple):
    """A call is opened, or its arguments are complete."""

    id: str
    name: str
    label: str | None = None
    input: Mapping[str, Any] | None = None


PageChange: TypeAlias = PagePart | PageCall | Question | Public
"""A change of parts, a question at the end, or an event; a `ToolEvent` is a call's result."""


class PageParts:
    """Turns the events of a run into changes of the page.

    Args:
        prefix: The beginning of the parts' ids.
        calls: The ids of the calls that the page has from the previous run.

    Attributes:
        calls: The calls on the page by id: the name, or None once the arguments are complete.
        text_differs: Whether the page received a text that differs from the last reply.
        has_extra_text: Whether the page has a text that is not in the run.
    """

    def __init__(self, prefix: str, calls: Iterable[str]) -> None:
        self.calls: dict[str, str | None] = dict.fromkeys(calls)
        self.text_differs = False
        self.has_extra_text = False
        self._restarted = False  # whether the page has text of the current reply that was discarded
        self._prefix = prefix
        self._count = 0
        self._open: Literal["text", "thinking"] | None = None
        self._text = ""  # of the current reply
        self._last = ""  # the text of the previous reply

    @property
    def id(self) -> str:
        """The id of the last part."""
        return f"{self._prefix}_{self._count}"

    def next_id(self) -> str:
        """Return an id for another part."""
        self._count += 1
        return self.id

    def changes(self, event: Public) -> Iterator[PageChange]:
        """Yield the changes caused by an event, and the event itself if the protocol needs it."""
        match event:
            case TextEvent(text=text, restart=restart):
                if restart:
                    self._restarted = self._restarted or bool(self._text)
                    self.has_extra_text, self._text = self.has_extra_text or self._restarted, ""
                    yield from self._close()
                yield from self._add("text", text)
            case ThinkingEvent(text=text):
                yield from self._add("thinking", text)
            case ReplyEvent(text=text):
                if not self._text:
                    yield from self._add("text", text)
                yield from self._close()
                self.text_differs = self._restarted or self._text != text
                self.has_extra_text, self._restarted = self.has_extra_text or self.text_differs, False
                self._text, self._last = "", text
                yield event
            case ToolEvent():
                yield from self._close()
                yield from self._tool(event)
            case ToolOutputEvent(id=key):
                yield from self._close()
                if key in self.calls:  # otherwise the call began in a gap
                    yield event
            case EndEvent(text=text, questions=questions):
                yield from self._close()
                if text != self._last:  # otherwise the page has this text already
                    yield from self._add("text", text)
                    yield from self._close()
                self._text, self._restarted = "", False
                for question in questions:
                    if question.name is not None:
                        yield from self._call(question.id, question.name, question.label, question.input or {})
                    yield question
                for key, name in self.calls.items():
                    if name is not None:
                        yield PageCall(key, name, input={})
                yield event
            case _:
                self.has_extra_text = self.has_extra_text or isinstance(event, GapEvent)
                if self._open == "thinking":
                    yield from self._close()
                yield event

    def _add(self, kind: Literal["text", "thinking"], text: str) -> Iterator[PageChange]:
        if self._open != kind:
            yield from self._close()
        if text:
            if self._open is None:
                self._open = kind
                yield PagePart("start", kind, self.next_id())
            if kind == "text":
                self._text += text
            yield PagePart("delta", kind, self.id, text)

    def _close(self) -> Iterator[PageChange]:
        if self._open is not None:
            kind, self._open = self._open, None
            yield PagePart("end", kind, self.id)

    def _tool(self, event: ToolEvent) -> Iterator[PageChange]:
        running = event.state == "running"
        if event.state == "suspended" or (running and event.name is None):
            return  # the question or the result supplies the rest
        args = event.input if running else event.input or {}
        yield from self._call(event.id, event.name or event.label or "tool", event.label, args)
        if not running:
            yield event

    def _call(self, key: str, name: str, label: str | None, args: Mapping[str, Any] | None) -> Iterator[PageChange]:
        if key not in self.calls:
            self.calls[key] = name
            yield PageCall(key, name, label)
        if args is not None and self.calls[key] is not None:
            self.calls[key] = None
            yield PageCall(key, name, label, args)


def failure_text(event: EndEvent) -> str | None:
    """Return the page's text for a run that failed or was parked; None for other runs."""
    if event.outcome == "failed":
        return f"The run failed (reference {event.reference})."
    return "The server is restarting; the run continues afterwards." if event.outcome == "parked" else None
