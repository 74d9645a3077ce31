"""Faults between a model and its client, as values.

A fault only edits the plan of one reply; faults can be combined. `after` is a `Point`: a number counts streamed frames, a
name is a position. `"head"` is after the first frame; `"thinking"`, `"text"` and `"call"` are after the first chunk of that
kind; `"content"` is before the stop reason; `"stop"` is after it; `"all"` is before the end mark.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from email.utils import format_datetime
from typing import Literal

from agentflow.errors import UsageError
from agentflow.testing.wire.reply import Gate, Halt, HttpAnswer, Point, ReplyPlan, without_last_half


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in a reply, created with the class methods, or from a name and an edit function.

    Example:
        >>> Fault.status(429, retry_after=2).name
        'status 429'
    """

    name: str
    change: Callable[[ReplyPlan], ReplyPlan]

    def edit(self, plan: ReplyPlan) -> ReplyPlan:
        """Return the plan with this fault applied."""
        return self.change(plan)

    # -- instead of a reply

    @classmethod
    def status(
        cls,
        status: int,
        *,
        retry_after: float | datetime | str | None = None,
        retry_after_ms: float | None = None,
        message: str | None = None,
        type: str | None = None,  # noqa: A002 - the wire's own name
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> "Fault":
        """Answer with an HTTP error in the vendor's format.

        Args:
            status: The HTTP status (400, 401, 404, 429, 500, 503, 529 …).
            retry_after: The `retry-after` header: seconds (fractions are kept), a datetime (sent as an HTTP date, in UTC if
                it is aware), or text, which is sent unchanged.
            retry_after_ms: The `retry-after-ms` header.
            message: The error's message; None means the vendor's text for this status.
            type: The error's type; None means the vendor's.
            code: The error's code (OpenAI only).
            headers: More headers, such as `x-should-retry` or rate limits.
        """
        extra = dict(headers or {})
        if isinstance(retry_after, datetime):
            extra["retry-after"] = format_datetime(retry_after, usegmt=True)
        elif retry_after is not None:
            extra["retry-after"] = str(retry_after)
        if retry_after_ms is not None:
            extra["retry-after-ms"] = str(retry_after_ms)
        answer = HttpAnswer(status=status, headers=extra, message=message, type=type, code=code)
        return cls(f"status {status}", lambda plan: replace(plan, http=answer))

    @classmethod
    def context_overflow(cls, message: str | None = None) -> "Fault":
        """Answer that the request exceeds the model's context window (400, with the vendor's text)."""
        answer = HttpAnswer(status=400, message=message, overflow=True)
        return cls("context overflow", lambda plan: replace(plan, http=answer))

    @classmethod
    def html(cls, status: int = 502) -> "Fault":
        """Answer with a gateway's HTML page."""
        page = f"<html><head><title>{status}</title></head><body><h1>{status}</h1><hr>gateway</body></html>\n"
        answer = HttpAnswer(status=status, body=page.encode(), content_type="text/html")
        return cls(f"html {status}", lambda plan: replace(plan, http=answer))

    @classmethod
    def empty_body(cls, status: int = 200) -> "Fault":
        """Answer with headers and an empty body."""
        answer = HttpAnswer(status=status, body=b"")
        return cls(f"empty body {status}", lambda plan: replace(plan, http=answer))

    @classmethod
    def raw_body(cls, body: bytes | str, *, status: int = 200, content_type: str = "application/json") -> "Fault":
        """Answer with exactly these bytes."""
        data = body.encode() if isinstance(body, str) else body
        answer = HttpAnswer(status=status, body=data, content_type=content_type)
        return cls(f"raw body {status}", lambda plan: replace(plan, http=answer))

    # -- interruptions

    @classmethod
    def error_event(
        cls,
        after: Point = "head",
        *,
        type: str | None = None,  # noqa: A002 - the wire's own name
        message: str | None = None,
    ) -> "Fault":
        """Send an error event in the stream, and end it; a reply that is not streamed becomes an HTTP error.

        Args:
            after: The point; 0 is before anything, "head" before the first text, "text" after its first chunk.
            type: The error's type; None means the vendor's type for overload.
            message: The error's message; None means the vendor's text for overload.
        """
        halt = Halt(after=after, how="error", error_type=type, message=message)
        return cls(f"error event after {after}", lambda plan: replace(plan, halt=halt))

    @classmethod
    def cut(cls, after: Point = "text", *, clean: bool = False) -> "Fault":
        """Interrupt the stream; a reply that is not streamed loses the second half of its body.

        Args:
            after: The point; "content" is just before the stop reason, "stop" just after it.
            clean: Whether to end the HTTP body properly (like a proxy) instead of aborting the connection.
        """
        halt = Halt(after=after, how="close" if clean else "abort")
        return cls(f"cut after {after}", lambda plan: replace(plan, halt=halt))

    @classmethod
    def no_end_mark(cls) -> "Fault":
        """Omit `[DONE]` or `message_stop` and end the HTTP body properly."""
        return cls("no end mark", lambda plan: replace(plan, end_mark=False))

    @classmethod
    def hang(cls, after: Point | None = None) -> "Fault":
        """Send nothing more until the client disconnects or the server stops.

        Args:
            after: The point; None is before the headers, 0 is just after them.
        """
        halt = Halt(after=after or 0, how="hang", headers=after is not None)
        return cls("hang" if after is None else f"hang after {after}", lambda plan: replace(plan, halt=halt))

    @classmethod
    def slow(cls, gate: Gate | None = None, *, after: int = 0, seconds: float = 0.0) -> "Fault":
        """Delay each write until a gate opens, by a pause, or both.

        Args:
            gate: An `asyncio.Event` of the server's loop, or an async function that receives the number of a write, and
                returns when the write may be sent.
            after: The number of writes without delay.
            seconds: A pause before each later write.
        """
        if gate is None and seconds <= 0:
            raise UsageError("Fault.slow() needs a gate or seconds")
        return cls("slow", lambda plan: replace(plan, gate=gate, gate_after=after, seconds=seconds))

    # -- the reply's content

    @classmethod
    def no_usage(cls) -> "Fault":
        """Omit the token counts."""
        return cls("no usage", lambda plan: replace(plan, usage="none"))

    @classmethod
    def usage_twice(cls) -> "Fault":
        """Send cumulative usage in two places, so that a client that adds up the counts doubles them."""
        return cls("usage twice", lambda plan: replace(plan, usage="twice"))

    @classmethod
    def length_mid_call(cls) -> "Fault":
        """Stop in the middle of the last call's arguments, with the stop reason `length`."""
        return cls("length in the middle of a call", without_last_half)

    @classmethod
    def stop_beside_calls(cls) -> "Fault":
        """Send the ordinary stop reason although there are calls."""
        return cls("stop beside calls", lambda plan: replace(plan, reply=replace(plan.reply, finish="stop")))

    @classmethod
    def empty_answer(cls) -> "Fault":
        """Send no content, with an ordinary stop reason."""
        return cls(
            "empty answer",
            lambda plan: replace(plan, reply=replace(plan.reply, text="", thinking=None, calls=(), finish="stop")),
        )

    @classmethod
    def refusal(cls, text: str = "I cannot help with that.") -> "Fault":
        """Refuse: OpenAI's `refusal` field, Anthropic's stop reason `refusal` with the text as content."""
        return cls("refusal", lambda plan: replace(plan, refusal=text))

    # -- the shape of the stream

    @classmethod
    def no_ids(cls) -> "Fault":
        """Send calls without ids (OpenAI: no key; Anthropic: an empty one)."""
        return cls("no ids", lambda plan: replace(plan, call_ids="none"))

    @classmethod
    def repeated_ids(cls) -> "Fault":
        """Repeat id, type and name in every fragment of a call (OpenAI)."""
        return cls("repeated ids", lambda plan: replace(plan, call_ids="repeat"))

    @classmethod
    def no_index(cls) -> "Fault":
        """Send the fragments of calls without an index (OpenAI)."""
        return cls("no index", lambda plan: replace(plan, call_index=False))

    @classmethod
    def whole_calls(cls) -> "Fault":
        """Send each call in one event: id, name and all arguments."""
        return cls("whole calls", lambda plan: replace(plan, whole_calls=True))

    @classmethod
    def split_names(cls) -> "Fault":
        """Send a call's name in two fragments (OpenAI)."""
        return cls("split names", lambda plan: replace(plan, split_names=True))

    @classmethod
    def usage_choices(cls, how: Literal["null", "absent"]) -> "Fault":
        """Send the usage chunk with `choices` null or absent instead of empty (OpenAI)."""
        return cls(f"usage choices {how}", lambda plan: replace(plan, usage_choices=how))

    @classmethod
    def crlf(cls) -> "Fault":
        """End lines with CR LF."""
        return cls("crlf", lambda plan: replace(plan, newline="\r\n"))

    @classmethod
    def comments(cls) -> "Fault":
        """Insert comment lines (keep-alives) between the events."""
        return cls("comments", lambda plan: replace(plan, comments=True))

    @classmethod
    def unknown_events(cls) -> "Fault":
        """Insert events of an unknown type, with unknown fields, between the events."""
        return cls("unknown events", lambda plan: replace(plan, unknown_events=True))

    @classmethod
    def pings(cls, count: int = 1) -> "Fault":
        """Insert this many more pings after each event (Anthropic)."""
        return cls(f"{count} pings", lambda plan: replace(plan, pings=count))

    @classmethod
    def split_bytes(cls, size: int = 1, *, at: tuple[int, ...] = ()) -> "Fault":
        """Write the body in parts that may split events and characters.

        Args:
            size: Bytes per write.
            at: The byte offsets to split at, instead of a size.
        """
        if size < 1 or any(offset < 1 for offset in at):
            raise UsageError(f"Fault.split_bytes() needs positive sizes and offsets; got size={size}, at={at}")
        name = f"bytes split at {at}" if at else f"bytes split by {size}"
        return cls(name, lambda plan: replace(plan, split_size=None if at else size, split_at=at))

    @classmethod
    def one_write(cls) -> "Fault":
        """Write the whole body at once."""
        return cls("one write", lambda plan: replace(plan, split_size=1 << 30, split_at=()))  # larger than any body
