"""The event loop of a command: all its calls share one loop, so that agents can keep connections open."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from agentflow.models.clients import close_clients

__all__ = ["call_loop"]


@contextmanager
def call_loop() -> Generator[asyncio.Runner]:
    """Provide one event loop for all calls; models' connections are closed when it ends."""
    with asyncio.Runner() as runner:
        try:
            yield runner
        finally:
            runner.run(close_clients())
