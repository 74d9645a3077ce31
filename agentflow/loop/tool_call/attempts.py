"""Attempts of a tool with a lock or retries: `@tool(lock=True, retries=2)`.

Rules:

1. The lock is held for one attempt, from before its arguments are checked until after its cleanup; not while waiting
   for the next attempt, and not while hooks handle the result.
2. Waiting for the lock does not count as the tool's work: its time limit starts afterwards.
3. Exceptions and timeouts are retried as `RetryPolicy` defines. Cancellation and invalid arguments are never retried,
   nor a stream after a chunk was delivered.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from agentflow._support.locks import FairLock
from agentflow._support.logs import ids_of, logger
from agentflow.errors import SafeExecutionError, ToolArgumentError
from agentflow.hooks.wrapping import Transform
from agentflow.loop.escalation import ToolSuspended
from agentflow.loop.run import RunBase
from agentflow.ports.retry import RetryPolicy
from agentflow.tools.tool import FullTool

__all__ = ["Hold", "held_locks", "run_with_retries"]

FIRST_WAIT = 0.2
LONGEST_WAIT = 5.0


class Hold:
    """A lock that is held for one attempt.

    Attributes:
        lock: The lock.
        over: Whether it was released; a background task of the tool may still refer to it.
    """

    __slots__ = ("lock", "over")

    def __init__(self, lock: FairLock) -> None:
        self.lock = lock
        self.over = False


held_locks: ContextVar[tuple[Hold, ...]] = ContextVar("agentflow_held_locks", default=())
"""The locks that the running code holds, including those of its callers. Set in the context of a tool's work."""


class Attempted(Protocol):
    """The tool call that is attempted."""

    run: RunBase
    attempt: int
    delivered: bool
    holding: tuple[Hold, ...]

    async def make_attempt(self, tool: FullTool[..., Any], transform: Transform | None) -> object:
        """One attempt."""
        ...

    def count_wait(self, since: float) -> None:
        """Count the time since then as waiting."""
        ...


async def run_with_retries(turn: Attempted, tool: FullTool[..., Any], transform: Transform | None) -> object:
    """Run a tool under its lock, as often as it says."""
    if not tool.retries:
        return await _locked(turn, tool, transform)

    def should_retry(error: Exception) -> bool:
        return not (turn.delivered or isinstance(error, ToolArgumentError | SafeExecutionError | ToolSuspended))

    def tell(_attempt: int, error: BaseException, _wait: float) -> None:
        logger.bind(**ids_of(turn.run.events.frame)).trace(
            "tool {} failed in attempt {} and is retried: {!r}", tool.name, turn.attempt, error
        )

    policy = RetryPolicy(
        who=f"Tool {tool.name!r}",
        attempts=tool.retries + 1,
        first_wait=FIRST_WAIT,
        max_wait=LONGEST_WAIT,
        jitter=0,
        should_retry=should_retry,
    )
    attempts = policy.start(turn.run.config.clock.sleep, tell)
    while True:
        try:
            return await _locked(turn, tool, transform)
        except Exception as error:
            if not await attempts.another(error):
                raise


async def _locked(turn: Attempted, tool: FullTool[..., Any], transform: Transform | None) -> object:
    lock = tool.lock
    if lock is None:
        return await turn.make_attempt(tool, transform)
    held = held_locks.get()
    if any(hold.lock is lock and not hold.over for hold in held):
        raise SafeExecutionError(
            f"Tool {tool.name!r} (lock=True) called itself while holding its own lock, which would deadlock. "
            "Call its function directly there, or remove lock=True."
        )
    if not lock.try_acquire():
        since = turn.run.monotonic()
        try:
            await lock.acquire()
        finally:
            turn.count_wait(since)
    hold = Hold(lock)
    turn.holding = (*held, hold)
    try:
        return await turn.make_attempt(tool, transform)
    finally:
        hold.over = True
        lock.release()
