"""A tool that takes a lock, or is tried again: what its author asked for with `@tool(lock=True, retries=2)`.

Rules:

1. The lock is held for one attempt, from before its arguments are checked to after its cleanup; not while it waits to
   be tried again, and not while hooks see the result.
2. Waiting for the lock is not the tool's working time: its limit begins behind it.
3. Exceptions and passed limits are tried again. Cancellation never, nor wrong arguments, nor a stream that somebody has
   seen a part of.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Protocol

from loguru import logger

from agentflow.errors import SafeExecutionError, ToolArgumentError, UsageError, Veto
from agentflow.ground.locks import FairLock
from agentflow.hooks.wrapping import Transform
from agentflow.loop.run import RunBase, ToolSuspended
from agentflow.tools.tool import Tool

__all__ = ["Hold", "carefully", "held_locks"]

FIRST_WAIT = 0.2
LONGEST_WAIT = 5.0


class Hold:
    """A lock that is held for one attempt.

    Attributes:
        lock: The lock.
        over: Whether it was let go of; a task that the tool has left behind may still see it.
    """

    __slots__ = ("lock", "over")

    def __init__(self, lock: FairLock) -> None:
        self.lock = lock
        self.over = False


held_locks: ContextVar[tuple[Hold, ...]] = ContextVar("agentflow_held_locks", default=())
"""The locks that the code running here holds, its callers' included: set in the context of a tool's work."""


class Attempted(Protocol):
    """The turn that attempts it."""

    run: RunBase
    attempt: int
    delivered: bool
    holding: tuple[Hold, ...]

    async def once(self, tool: Tool[..., Any], transform: Transform | None) -> object:
        """One attempt."""
        ...


async def carefully(turn: Attempted, tool: Tool[..., Any], transform: Transform | None) -> object:
    """Run a tool under its lock, as often as it says."""
    if not tool.retries:
        return await _locked(turn, tool, transform)
    # Imported with the first tool that is tried again: it takes 35 ms.
    from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_exponential

    def worth_it(error: BaseException) -> bool:
        if not isinstance(error, Exception) or turn.delivered:
            return False
        return not isinstance(error, ToolArgumentError | SafeExecutionError | ToolSuspended | UsageError | Veto)

    def tell(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        logger.trace("tool {} failed in attempt {} and is tried again: {!r}", tool.name, turn.attempt, error)

    attempts = AsyncRetrying(
        stop=stop_after_attempt(tool.retries + 1),
        wait=wait_exponential(multiplier=FIRST_WAIT, max=LONGEST_WAIT),
        retry=retry_if_exception(worth_it),
        sleep=turn.run.config.clock.sleep,
        before_sleep=tell,
        reraise=True,
    )
    return await attempts(_locked, turn, tool, transform)


async def _locked(turn: Attempted, tool: Tool[..., Any], transform: Transform | None) -> object:
    lock = tool.lock
    if lock is None:
        return await turn.once(tool, transform)
    held = held_locks.get()
    if any(hold.lock is lock and not hold.over for hold in held):
        raise SafeExecutionError(
            f"Tool {tool.name!r} (lock=True) was called from within its own run, which would wait for itself for ever. "
            "Call its function directly there, or leave out lock=True."
        )
    if not lock.try_acquire():
        await lock.acquire()
    hold = Hold(lock)
    turn.holding = (*held, hold)
    try:
        return await turn.once(tool, transform)
    finally:
        hold.over = True
        lock.release()
