"""Signals raised from a nested call to its parent, and notes added to errors during cleanup."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

from agentflow.errors import Aside
from agentflow.vocabulary.messages import Pending, ToolUseBlock

__all__ = ["Halted", "ToolSuspended", "attach", "noted_on"]


class Halted(BaseException):
    """Raised when a call stops at a safe point, to the tool and the call that it works for."""


class ToolSuspended(Exception):  # noqa: N818 - a signal from a sub-agent to its caller
    """Raised if the work of a tool is suspended.

    Args:
        agent: The suspended sub-agent.
        pending: The calls that it waits for.
    """

    def __init__(self, agent: str, pending: tuple[Pending, ...]) -> None:
        super().__init__(f"Agent {agent!r} is suspended.")
        self.agent = agent
        self.pending = pending

    def pending_of(self, use: ToolUseBlock) -> tuple[Pending, ...]:
        """Return the pending calls as the caller's session stores them, with ids of the form
        `CALLER_CALL/SUB_AGENT_CALL`."""
        return tuple(
            replace(
                waits,
                id=f"{use.id}/{waits.id}",
                within=use.id,
                source=f"{self.agent}/{waits.source}" if waits.source else self.agent,
            )
            for waits in self.pending
        )


@contextmanager
def noted_on(error: BaseException | None) -> Generator[None]:
    """Run cleanup. Its failure is noted on the original error, if there is one; see `attach`."""
    try:
        yield
    except BaseException as problem:  # the original error is the one to raise
        attach(problem if error is None else error, problem)


def attach(error: BaseException, problem: BaseException) -> None:
    """Note a failure during cleanup on the original error, which is the one to raise.

    `GeneratorExit` is raised again, since a coroutine that is being closed must not await.
    """
    if isinstance(problem, GeneratorExit):
        raise problem
    if problem is not error:
        error.add_note(Aside(f"while the call was being closed: {type(problem).__name__}: {problem}"))
