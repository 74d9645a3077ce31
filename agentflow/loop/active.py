"""Who is running: an agent's calls, and whether new ones may begin.

Rules:

1. A call is in here from its first event to its last.
2. A closed agent begins no call; those that run are asked to stop at their next safe point, or left as a crash would
   leave them. Either way `agent.resume` goes on with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from weakref import ReferenceType

from agentflow.loop.session import FullSession

__all__ = ["Running", "Stoppable"]


class Stoppable(Protocol):
    """A call that runs."""

    @property
    def session_id(self) -> str:
        """The id of its session."""
        ...

    @property
    def inner(self) -> bool:
        """Whether it is a sub-agent's: whoever resumes its caller's session goes on with it."""
        ...

    @property
    def left_open(self) -> bool:
        """Whether its session holds a call that `agent.resume` goes on with."""
        ...

    def halt(self) -> None:
        """Stop at the next safe point: behind a model's reply or a tool's result."""
        ...

    def leave(self, reason: str) -> None:
        """Cancel what runs, and leave the call open."""
        ...


class Running:
    """The calls that an agent runs at the moment."""

    __slots__ = ("closed", "halted", "owner", "runs", "suspended", "waiting")

    def __init__(self) -> None:
        self.runs: set[Stoppable] = set()
        self.owner: ReferenceType[object] | None = None  # the agent
        self.closed = False
        self.suspended: dict[str, FullSession] = {}  # those that wait for a decision, whoever made them, by id
        self.halted: list[Stoppable] = []
        self.waiting: list[Callable[[], object]] = []

    def halt(self, run: Stoppable) -> None:
        """Ask a call to stop at its next safe point."""
        self.halted.append(run)
        run.halt()

    def close(self) -> None:
        """Begin no call any more, and ask those that run to stop."""
        self.closed = True
        for run in [run for run in tuple(self.runs) if run not in self.halted]:
            self.halt(run)

    def when_idle(self, tell: Callable[[], object]) -> None:
        """Call a function, once, when nothing runs; it may be called from another thread."""
        self.waiting.append(tell)
        self.tell()

    def tell(self) -> None:
        """Call those who wait for the last call's end, if it has come."""
        if self.waiting and not self.runs:
            waiting, self.waiting = self.waiting, []
            for tell in waiting:
                tell()
