"""Signals raised from a nested call to its parent, and notes added to errors during cleanup."""

from __future__ import annotations

from dataclasses import replace

from agentflow.errors import FailureNote
from agentflow.vocabulary.messages import Pending, ToolUseBlock

__all__ = ["Halted", "NotedOn", "ToolSuspended", "attach"]


# Not an `Exception`: the tool that made the nested call, and its retries, must not handle it as a failure.
class Halted(BaseException):
    """Raised in the tool that made a nested call, and in the tool's own call, if the nested call stops at a safe point."""


class ToolSuspended(Exception):  # noqa: N818 - a signal from a sub-agent to its caller
    """Raised in a tool's work if a sub-agent that the tool calls is suspended.

    Args:
        agent: The name of the sub-agent.
        pending: The calls that it waits for.
    """

    def __init__(self, agent: str, pending: tuple[Pending, ...]) -> None:
        super().__init__(f"Agent {agent!r} is suspended.")
        self.agent = agent
        self.pending = pending

    def pending_of(self, use: ToolUseBlock) -> tuple[Pending, ...]:
        """Return the pending calls as the caller's session stores them, with ids of the form
        `CALLER_CALL/SUB_AGENT_CALL`. `use` is the caller's tool call."""
        return tuple(
            replace(
                wait,
                id=f"{use.id}/{wait.id}",
                within=use.id,
                source=f"{self.agent}/{wait.source}" if wait.source else self.agent,
            )
            for wait in self.pending
        )


class NotedOn:
    """A context manager for cleanup. It suppresses a failure in its block, and notes the failure on the error that led to
    the cleanup, if there is one; see `attach`."""

    __slots__ = ("_closed", "_error")

    def __init__(self, error: BaseException | None, closed: str = "call") -> None:
        self._error = error
        self._closed = closed

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, problem: BaseException | None, _traceback: object) -> bool:
        if problem is None:
            return False
        # Without an earlier error nothing is noted, but `attach` still raises a `GeneratorExit` again.
        attach(problem if self._error is None else self._error, problem, self._closed)
        return True


def attach(error: BaseException, problem: BaseException, closed: str = "call") -> None:
    """Note a failure during cleanup on the original error, which the caller raises.

    `GeneratorExit` is raised again, since a coroutine that is being closed must not await.

    Args:
        error: The original error.
        problem: The failure during cleanup.
        closed: The object that was being closed: a call or a turn.
    """
    if isinstance(problem, GeneratorExit):
        raise problem
    if problem is not error:
        error.add_note(FailureNote(f"while the {closed} was being closed: {type(problem).__name__}: {problem}"))
