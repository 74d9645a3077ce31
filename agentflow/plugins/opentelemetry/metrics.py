"""The token metrics of `OpenTelemetry`, in either version of the conventions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentflow.plugins.opentelemetry import attributes as semconv
from agentflow.vocabulary.specs import Usage

try:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Counter, Histogram, Meter
except ImportError as error:
    raise ImportError('OpenTelemetry needs its API: pip install "agentflow-hooks[otel]"') from error

_USAGE = (
    ("usage.input_tokens", "Number of input tokens used.", "input_tokens"),
    ("usage.output_tokens", "Number of output tokens used.", "output_tokens"),
    ("usage.cache_read.input_tokens", "Number of input tokens served from a cache.", "cache_read_tokens"),
    ("usage.cache_write.input_tokens", "Number of input tokens written to a cache.", "cache_write_tokens"),
    ("usage.reasoning.output_tokens", "Number of output tokens used for reasoning.", "reasoning_tokens"),
)


class TokenMetrics:
    """The token metrics of model calls.

    1.41 has one histogram with the type of the tokens as an attribute. 0.1 has counters of the total usage, and histograms of
    input and output for each call.

    Args:
        meter: Creates the instruments.
        conventions: The names in the version of the conventions.
    """

    def __init__(self, meter: Meter, conventions: semconv.Conventions) -> None:
        self._each: list[tuple[Histogram, str, str]]
        self._totals: list[tuple[Counter, str]]
        about = "Number of input and output tokens used."
        boundaries = semconv.TOKENS
        if conventions.tokens:
            histogram = meter.create_histogram(
                conventions.tokens, "{token}", about, explicit_bucket_boundaries_advisory=boundaries
            )
            self._each = [(histogram, "input_tokens", "input"), (histogram, "output_tokens", "output")]
            self._totals = []
            return
        prefix = "gen_ai.client.inference"
        self._each = [
            (
                meter.create_histogram(
                    f"{prefix}.operation.{name}", "{token}", about, explicit_bucket_boundaries_advisory=boundaries
                ),
                name,
                "",
            )
            for name in ("input_tokens", "output_tokens")
        ]
        self._totals = [
            (meter.create_counter(f"{prefix}.{name}", "{token}", brief), field) for name, brief, field in _USAGE
        ]

    def record(self, usage: Usage, attributes: Mapping[str, Any], context: Context) -> None:
        """Record the usage of a call. A counter whose part of the usage is 0 is skipped."""
        for histogram, field, kind in self._each:
            labels = {**attributes, semconv.TOKEN_TYPE: kind} if kind else dict(attributes)
            histogram.record(getattr(usage, field), labels, context)
        for counter, field in self._totals:
            if used := getattr(usage, field):
                counter.add(used, dict(attributes), context)
