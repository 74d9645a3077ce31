"""The open spans of `OpenTelemetry`: of a call, a model call, a tool.

Rules:

1. A span ends once, on every path: when its work ends, or otherwise when its `OpenSpan` is garbage-collected.
2. Attributes are created only for spans that are recorded; metrics are recorded for all.
3. A failure of an exporter or a processor is logged, and never fails the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import Context as ContextVariables
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

from agentflow._support.logs import log_failure
from agentflow.vocabulary.specs import Clock

try:
    from opentelemetry import context as otel_context
    from opentelemetry.context import Context
    from opentelemetry.metrics import MeterProvider, NoOpMeterProvider, get_meter_provider
    from opentelemetry.metrics._internal import _ProxyMeterProvider  # pyright: ignore[reportPrivateUsage] - no public name
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

P = ParamSpec("P")
T = TypeVar("T")

_LOST: Final = "the span {} was lost"


class OpenSpan:
    """An open span.

    Args:
        span: The span.
        clock: The run's clock.
        context: The context of the parent; None means the current context.

    Attributes:
        span: The span.
        recording: Whether the span is recorded.
        context: The context for the span's children.
        ended: Whether the span has ended, or must be ended elsewhere.
        error_type: The type of the span's error; empty if there is none.
    """

    __slots__ = ("_began", "_clock", "context", "ended", "error_type", "recording", "span")

    def __init__(self, span: Span, clock: Clock, context: Context | None) -> None:
        self.span = span
        self.recording = span.is_recording()
        self.context = set_span_in_context(span, context)
        self.error_type = ""
        self.ended = False
        self._clock = clock
        self._began = clock.monotonic()

    @staticmethod
    def unseen(parent: OpenSpan, clock: Clock) -> OpenSpan:
        """Return a placeholder for a span below an unrecorded one: it only measures time."""
        unseen = OpenSpan.__new__(OpenSpan)
        unseen.span = parent.span
        unseen.recording = False
        unseen.context = parent.context
        unseen.error_type = ""
        unseen.ended = True  # it has the parent's span, which must not be ended here
        unseen._clock = clock
        unseen._began = clock.monotonic()
        return unseen

    @property
    def seconds(self) -> float:
        """The seconds since its start."""
        return self._clock.monotonic() - self._began

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Set attributes."""
        if self.recording:
            self.span.set_attributes(attributes)

    def add_event(self, name: str, attributes: Mapping[str, Any]) -> None:
        """Add an event."""
        if self.recording:
            self.span.add_event(name, attributes, _nanoseconds(self._clock))

    def fail(self, error_type: str, text: str | None = None) -> None:
        """Mark the span as failed.

        Args:
            error_type: The type of the error.
            text: The text of the error, if content is recorded.
        """
        self.error_type = error_type
        if self.recording:
            self.span.set_attribute("error.type", error_type)
            self.span.set_status(Status(StatusCode.ERROR, text))

    def end(self) -> None:
        """End the span, once."""
        if self.ended:
            return
        self.ended = True
        if not self.recording:
            return
        try:
            self.span.end(_nanoseconds(self._clock))
        except Exception as error:
            log_failure("WARNING", error, _LOST, self.span)

    def __del__(self) -> None:
        # The event loop and the run's clock may no longer exist, so the SDK determines the time.
        if not getattr(self, "ended", True):  # it has no attributes if `__init__` failed
            self.ended = True
            self.span.end()


def start_span(
    tracer: Tracer,
    name: str,
    clock: Clock,
    context: Context | None,
    kind: SpanKind,
    attributes: Mapping[str, Any],
    links: Sequence[Link] = (),
    time: float | None = None,
) -> OpenSpan:
    """Start a span.

    Args:
        tracer: Creates the span.
        name: The span's name.
        clock: The run's clock.
        context: The context of the parent; None means the current context.
        kind: The span's kind.
        attributes: Attributes for samplers.
        links: Links to other spans.
        time: The start, in seconds since the epoch; now by default.
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


def variables_with(context: Context) -> ContextVariables:
    """Copy the current context variables, with the span of `context` as the current span."""
    copy = copy_context()
    copy.run(otel_context.attach, context)
    return copy


def quietly(function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | None:
    """Call a function that runs code of others (an exporter, a `__str__`). If it fails, log the failure and return None."""
    try:
        return function(*arguments, **named)
    except Exception as error:
        log_failure("WARNING", error, "OpenTelemetry failed to record data; the run continues")
        return None


# ---- across the calls of a run


@dataclass
class TracedRun:
    """The spans of a session's last run, as `traceparent`s (W3C Trace Context). They are saved with the session, so that a call
    that resumes the run continues its trace.

    Attributes:
        run_id: The run's id.
        first: The span of the run's first call.
        last: The span of the run's last call.
    """

    __saved_as__ = "agentflow.plugins.opentelemetry_spans:TracedRun"  # the name in stored sessions

    run_id: str = ""
    first: str = ""
    last: str = ""


class CallTrace:
    """The trace of an open call.

    Args:
        span: Its span.
        idle: The initial value of the attribute `idle`.

    Attributes:
        span: Its span.
        idle: Whether neither spans nor metrics of its work are recorded.
    """

    __slots__ = ("_attempts", "_stage", "idle", "span")

    def __init__(self, span: OpenSpan, idle: bool) -> None:
        self.span = span
        self.idle = idle
        self._stage: object = None
        self._attempts = 0

    def attempt(self, stage: object) -> int:
        """Count an attempt at a reply, and return its number, from 1.

        Args:
            stage: The event that the attempt belongs to.
        """
        if stage is not self._stage:
            self._stage, self._attempts = stage, 0
        self._attempts += 1
        return self._attempts


class TraceOfCall:
    """Holds a call's trace while the call is open; `trace` is None before and after."""

    __slots__ = ("trace",)

    def __init__(self) -> None:
        self.trace: CallTrace | None = None


_unseen: ContextVar[CallTrace | None] = ContextVar("agentflow_unseen_trace", default=None)
"""The idle call with the current span, if any."""


def make_current(trace: CallTrace) -> None:
    """Make the span of an idle call the current span for the rest of the call's task, so that no span below it is sampled."""
    if _unseen.get() is not trace:
        _unseen.set(trace)
        otel_context.attach(trace.span.context)  # never detached: the task's context variables end with the task


def is_live(provider: MeterProvider | None) -> bool:
    """Return whether a meter provider (None: the global one) may record metrics."""
    found = get_meter_provider() if provider is None else provider
    # The global provider is a proxy until a real one is set.
    return not isinstance(found, NoOpMeterProvider | _ProxyMeterProvider)


def traceparent(span: Span) -> str:
    """Return a span as a W3C `traceparent`; empty if it is invalid."""
    context = span.get_span_context()
    if not context.is_valid:
        return ""
    return f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-{context.trace_flags:02x}"


def context_of(parent: str) -> SpanContext | None:
    """Return the span of a `traceparent`; None if it is invalid."""
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
    """Return the context for children of another process's span."""
    return set_span_in_context(NonRecordingSpan(context))
