"""The event loop of a command, shared by all its calls so that agents can keep connections open."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from agentflow.models.clients import close_clients


@contextmanager
def call_loop() -> Generator[asyncio.Runner]:
    """Provide the event loop for all calls; the connections of models are closed when it ends."""
    with asyncio.Runner() as runner:
        try:
            yield runner
        finally:
            runner.run(close_clients())
