"""Carries the trace context of a submission to the worker: W3C Trace Context, using OpenTelemetry's propagators.

If OpenTelemetry is not installed, or there is no trace, nothing is carried.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

try:
    from opentelemetry import context, propagate
except ImportError:  # not part of the extra
    context = propagate = None

__all__ = ["carried", "within"]


def carried() -> dict[str, str]:
    """Return the current trace context for sending; empty if there is none."""
    carrier: dict[str, str] = {}
    if propagate is not None:
        propagate.inject(carrier)
    return carrier


@contextmanager
def within(carrier: Mapping[str, str]) -> Generator[None]:
    """Make a carried trace context current, for a block without `await`.

    Args:
        carrier: The result of `carried` in another process.
    """
    if not carrier or propagate is None or context is None:
        yield
        return
    token = context.attach(propagate.extract(carrier))
    try:
        yield
    finally:
        context.detach(token)
