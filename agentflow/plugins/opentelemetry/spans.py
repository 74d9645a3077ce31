"""The spans of `OpenTelemetry` while they are open: a call's, a model call's, a tool's.

Rules:

1. A span ends once, on every path: when its work ends, or when whoever holds it is dropped.
2. The conventions' attributes are made only for spans that are recorded; metrics are taken of all.
3. What fails in here (an exporter, a processor) is logged, and never fails the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import Context as Place
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Final

from agentflow.ground.logs import log_failure
from agentflow.specs import Clock

try:
    from opentelemetry import context as otel_context
    from opentelemetry.context import Context
    from opentelemetry.trace import (
        INVALID_SPAN,
        Link,
        NonRecordingSpan,
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        Tracer,
        format_span_id,
        format_trace_id,
        set_span_in_context,
    )
except ImportError as error:
    raise ImportError('OpenTelemetry needs its API: pip install "agentflow-hooks[otel]"') from error

__all__ = [
    "CallTrace",
    "OpenSpan",
    "TracedRun",
    "Traces",
    "context_of",
    "here_with",
    "remote",
    "started",
    "traceparent",
]

_LOST: Final = "a span of {} was lost"


class OpenSpan:
    """A span that is open.

    Args:
        span: The span.
        clock: The run's.

    Attributes:
        span: The span.
        recording: Whether anybody will see it.
        context: Where its children are made.
        error_type: What it failed with; empty: it has not.
    """

    __slots__ = ("_began", "_clock", "context", "error_type", "over", "recording", "span")

    def __init__(self, span: Span, clock: Clock, context: Context | None) -> None:
        self.span = span
        self.recording = span.is_recording()
        self.context = set_span_in_context(span, context)
        self.error_type = ""
        self.over = False
        self._clock = clock
        self._began = clock.monotonic()

    @staticmethod
    def unseen(parent: OpenSpan, clock: Clock) -> OpenSpan:
        """What stands for a span below one that nobody sees: it is timed, and never made."""
        here = OpenSpan.__new__(OpenSpan)
        here.span, here.recording, here.context, here.error_type, here.over = (
            parent.span,
            False,
            parent.context,
            "",
            True,
        )
        here._clock, here._began = clock, clock.monotonic()
        return here

    @property
    def seconds(self) -> float:
        """How long it has been open."""
        return self._clock.monotonic() - self._began

    def say(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes."""
        if self.recording:
            self.span.set_attributes(attributes)

    def note(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Add an event."""
        if self.recording:
            self.span.add_event(name, attributes, _nanoseconds(self._clock))

    def fail(self, error_type: str, said: str | None = None) -> None:
        """It has failed.

        Args:
            error_type: With what.
            said: In which words, where they may be told.
        """
        self.error_type = error_type
        if self.recording:
            self.span.set_attribute("error.type", error_type)
            self.span.set_status(Status(StatusCode.ERROR, said))

    def end(self) -> None:
        """End it, once."""
        if self.over:
            return
        self.over = True
        if not self.recording:
            return
        try:
            self.span.end(_nanoseconds(self._clock))
        except Exception as error:
            log_failure("WARNING", error, _LOST, self.span)

    def __del__(self) -> None:
        if not getattr(self, "over", True):  # its frame was dropped: there may be no loop, and no clock, any more
            self.over = True
            self.span.end()


def started(
    tracer: Tracer,
    name: str,
    clock: Clock,
    context: Context | None,
    kind: SpanKind,
    attributes: Mapping[str, Any],
    links: Sequence[Link] = (),
    time: float | None = None,
) -> OpenSpan:
    """Begin a span.

    Args:
        tracer: Makes it.
        name: Its name.
        clock: The run's.
        context: Its parent's; None: what is current.
        kind: Its kind.
        attributes: What samplers may ask for.
        links: To other spans.
        time: When it began, in seconds since the epoch; now by default.
    """
    at = _nanoseconds(clock) if time is None else int(time * 1e9)
    try:
        span = tracer.start_span(name, context, kind, attributes, links, at)
    except Exception as error:
        log_failure("WARNING", error, _LOST, name)
        span = INVALID_SPAN
    return OpenSpan(span, clock, context)


def _nanoseconds(clock: Clock) -> int:
    return int(clock.now() * 1e9)


def here_with(context: Context) -> Place:
    """A copy of the context variables here, in which a span is the current one."""
    place = copy_context()
    place.run(otel_context.attach, context)
    return place


# ---- over the calls of a run


@dataclass
class TracedRun:
    """The spans of a session's last run, as `traceparent`s (W3C Trace Context); kept with the session, for resumes.

    Attributes:
        run_id: The run.
        first: The span of its first call.
        last: That of its last one.
    """

    run_id: str = ""
    first: str = ""
    last: str = ""


class CallTrace:
    """What is traced of a call that is open.

    Args:
        call_id: The call.
        span: Its span.

    Attributes:
        call_id: The call.
        span: Its span.
    """

    __slots__ = ("_attempts", "_stage", "call_id", "span")

    def __init__(self, call_id: str, span: OpenSpan) -> None:
        self.call_id = call_id
        self.span = span
        self._stage: object = None
        self._attempts = 0

    def attempt(self, stage: object) -> int:
        """The number of the next attempt at a reply, from 1.

        Args:
            stage: The event whose work it is.
        """
        if stage is not self._stage:
            self._stage, self._attempts = stage, 0
        self._attempts += 1
        return self._attempts


@dataclass
class Traces:
    """The open calls of a run, by hook; not stored."""

    def __post_init__(self) -> None:
        self.by_hook: dict[int, CallTrace] = {}


def traceparent(span: Span) -> str:
    """A span in the form of W3C Trace Context; empty where nothing makes spans."""
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{context.trace_flags:02x}"


def context_of(parent: str) -> SpanContext | None:
    """The span that a `traceparent` names; None where it names none."""
    parts = parent.split("-")
    if len(parts) != 4:
        return None
    try:
        trace_id, span_id, flags = (int(part, 16) for part in parts[1:])
    except ValueError:
        return None
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None


def remote(context: SpanContext) -> Context:
    """Where children of a span of another process are made."""
    return set_span_in_context(NonRecordingSpan(context))
