"""Running calls for a person at a terminal: events out, Ctrl-C in.

Rules:

1. Ctrl-C ends the call, not the program: `agent.interrupt`, so that the call's cleanup runs and its reply is kept.
2. A second Ctrl-C (or one that meets no call) is a `KeyboardInterrupt`.
3. All calls of a program run in one event loop, so that agents may keep connections.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from agentflow.agent.agent import Agent
from agentflow.agent.agent_flux import AgentFlux
from agentflow.events import HookEvent
from agentflow.loop.session import Session
from agentflow.models.litellm import close_clients

__all__ = ["call_loop", "interrupting", "read_events"]


async def read_events(events: AgentFlux, show: Callable[[HookEvent], object]) -> None:
    """Hand every event of a call to `show`.

    Raises:
        Exception: What the call failed with.
    """
    async with events as stream:
        async for event in stream:
            show(event)


@contextmanager
def call_loop() -> Generator[asyncio.Runner]:
    """One event loop for all calls; models' connections are closed when it ends."""
    with asyncio.Runner() as runner:
        before = signal.getsignal(signal.SIGINT)
        with suppress(NotImplementedError):  # Windows has none, and no such race
            # Gives the loop a wake-up pipe: without one, a signal that comes just before the loop begins to wait is not
            # noticed until something else wakes it.
            runner.get_loop().add_signal_handler(signal.SIGINT, lambda: None)
            signal.signal(signal.SIGINT, before)
        try:
            yield runner
        finally:
            runner.run(close_clients())


@contextmanager
def interrupting(agent: Agent, session: Session) -> Generator[None]:
    """Let Ctrl-C end the call that runs on a session."""
    presses = 0

    def pressed(number: int, frame: object) -> None:
        nonlocal presses
        presses += 1
        if presses > 1 or not agent.interrupt(session, "Ctrl-C"):
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
