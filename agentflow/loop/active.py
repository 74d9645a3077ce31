"""The running calls of an agent, and whether new ones may begin.

Rules:

1. A call is registered here from its first event to its last.
2. A closed agent starts no calls. Running calls are asked to stop at their next safe point, or left open as after a
   crash. In both cases `agent.resume` continues them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from weakref import ReferenceType

from agentflow.loop.session import FullSession

__all__ = ["Running", "Stoppable"]


class Stoppable(Protocol):
    """A running call."""

    @property
    def session_id(self) -> str:
        """The id of its session."""
        ...

    @property
    def inner(self) -> bool:
        """Whether it is a sub-agent's call, which continues when its caller's session is resumed."""
        ...

    @property
    def left_open(self) -> bool:
        """Whether its session contains a call that `agent.resume` can continue."""
        ...

    def halt(self) -> None:
        """Stop at the next safe point: after a model's reply or a tool's result."""
        ...

    def leave(self, reason: str) -> None:
        """Cancel the running work, and leave the call open."""
        ...


class Running:
    """The running calls of an agent."""

    __slots__ = ("closed", "halted", "owner", "runs", "suspended", "waiting")

    def __init__(self) -> None:
        self.runs: set[Stoppable] = set()
        self.owner: ReferenceType[object] | None = None  # the agent
        self.closed = False
        self.suspended: dict[str, FullSession] = {}  # sessions that wait for a decision, by id
        self.halted: list[Stoppable] = []
        self.waiting: list[Callable[[], object]] = []

    def halt(self, run: Stoppable) -> None:
        """Ask a call to stop at its next safe point."""
        self.halted.append(run)
        run.halt()

    def close(self) -> None:
        """Start no more calls, and ask running ones to stop."""
        self.closed = True
        for run in [run for run in tuple(self.runs) if run not in self.halted]:
            self.halt(run)

    def when_idle(self, tell: Callable[[], object]) -> None:
        """Call a function once, as soon as no call is running, possibly from another thread."""
        self.waiting.append(tell)
        self.tell()

    def tell(self) -> None:
        """Call the waiting functions if no call is running."""
        if self.waiting and not self.runs:
            waiting, self.waiting = self.waiting, []
            for tell in waiting:
                tell()
