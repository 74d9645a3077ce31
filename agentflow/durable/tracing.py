"""Where in a trace a call was submitted, carried to the worker that runs it: W3C Trace Context, by OpenTelemetry's propagators.

Where OpenTelemetry is not installed, or nothing is traced, nothing is carried.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

try:
    from opentelemetry import context, propagate
except ImportError:  # it is no part of the extra
    context = propagate = None

__all__ = ["carried", "within"]


def carried() -> dict[str, str]:
    """What is current here, to be sent; empty where that is nothing."""
    carrier: dict[str, str] = {}
    if propagate is not None:
        propagate.inject(carrier)
    return carrier


@contextmanager
def within(carrier: Mapping[str, str]) -> Generator[None]:
    """Make what was carried the current one, for a block without `await`.

    Args:
        carrier: What `carried` gave, elsewhere.
    """
    if not carrier or propagate is None or context is None:
        yield
        return
    token = context.attach(propagate.extract(carrier))
    try:
        yield
    finally:
        context.detach(token)
