"""Carry a trace context between processes: W3C Trace Context, using OpenTelemetry's propagators.

If OpenTelemetry is not loaded, there is no trace, so this module does nothing; it does not import OpenTelemetry.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager


def current_trace() -> dict[str, str]:
    """Return the current trace context to send to another process; empty if there is none."""
    carrier: dict[str, str] = {}
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry import propagate

        propagate.inject(carrier)
    return carrier


@contextmanager
def use_trace(carrier: Mapping[str, str]) -> Generator[None]:
    """Make a received trace context the current one, for a block in one task.

    Args:
        carrier: The result of `current_trace` in another process.
    """
    if not carrier or "opentelemetry.trace" not in sys.modules:
        yield
        return
    from opentelemetry import context, propagate

    token = context.attach(propagate.extract(carrier))
    try:
        yield
    finally:
        context.detach(token)
