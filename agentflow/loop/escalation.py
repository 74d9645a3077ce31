"""What a call tells the call that it belongs to by raising it, and what an error is told of what failed beside it."""

from __future__ import annotations

from dataclasses import replace

from agentflow.errors import Aside
from agentflow.messages import Pending, ToolUseBlock

__all__ = ["Halted", "ToolSuspended", "attach"]


class Halted(BaseException):
    """A call stops at a safe point: a signal from it to the tool, and the call, that it runs for."""


class ToolSuspended(Exception):  # noqa: N818 - a signal from a sub-agent to the call that it is the tool of
    """What a tool was doing is suspended.

    Args:
        agent: The sub-agent that waits.
        pending: What for.
    """

    def __init__(self, agent: str, pending: tuple[Pending, ...]) -> None:
        super().__init__(f"Agent {agent!r} is suspended.")
        self.agent = agent
        self.pending = pending

    def pending_of(self, use: ToolUseBlock) -> tuple[Pending, ...]:
        """The same, as the caller's session keeps it: keys of the caller's call and, behind a slash, of the sub-agent's."""
        return tuple(
            replace(
                waits,
                id=f"{use.id}/{waits.id}",
                within=use.id,
                source=f"{self.agent}/{waits.source}" if waits.source else self.agent,
            )
            for waits in self.pending
        )


def attach(error: BaseException, problem: BaseException) -> None:
    """Note on an error what has failed while its call was being closed: what counts is what came first."""
    if problem is not error:
        error.add_note(Aside(f"while the call was being closed: {type(problem).__name__}: {problem}"))
