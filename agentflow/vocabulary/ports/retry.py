"""When and after how long failed work is retried: the same rules for models, tools, hooks, stores and durable runs.

Rules:

1. Only temporary failures are retried, as `should_retry` decides. Cancellation, `Veto`, `UsageError` and `HookError` are
   never retried.
2. A wait that the provider requests (`ModelError.retry_after`) is used exactly; if it is longer than `max_wait`, there is no
   retry.
3. Otherwise the wait doubles from `first_wait`, with jitter added, up to `max_wait`.
4. After the last attempt its error is raised, with a note added.

Tenacity counts and times the attempts. It is only imported when a failure is retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from agentflow._support.shown import described
from agentflow._support.values import frozen
from agentflow.errors import (
    AgentFlowError,
    HookError,
    ModelError,
    SafeExecutionError,
    ToolArgumentError,
    ToolError,
    ToolNotFoundError,
    UsageError,
    Veto,
    WrongRunMethodError,
)
from agentflow.reactive.signals import SourceTimeoutError
from agentflow.vocabulary.ports.waits import Wait, waiting

if TYPE_CHECKING:
    from tenacity import RetryCallState


def model_may_recover(error: Exception) -> bool:
    """Whether a model call is retried by default.

    For a `ModelError`, `retryable` decides. Of other errors, only broken connections and time limits are retried,
    including limits set by hooks.

    Example:
        >>> model_may_recover(ModelError("overloaded", retryable=True)), model_may_recover(ValueError())
        (True, False)
    """
    if isinstance(error, ModelError):
        return error.retryable
    if isinstance(error, AgentFlowError):
        return isinstance(error, SourceTimeoutError)
    # The time limit of the whole call is an `AgentFlowError`, so it is not retried.
    return isinstance(error, ConnectionError | TimeoutError)


_PERMANENT = (
    ToolArgumentError,
    ToolNotFoundError,
    SafeExecutionError,
    WrongRunMethodError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    NameError,
    ArithmeticError,
    AssertionError,
    NotImplementedError,
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)
"""Errors that the same arguments would cause again: wrong arguments, missing files, bugs in the tool's code."""


def tool_may_recover(error: Exception) -> bool:
    """Whether a tool is retried by default: not if the same arguments would fail in the same way.

    Example:
        >>> tool_may_recover(ConnectionError()), tool_may_recover(FileNotFoundError())
        (True, False)
    """
    if isinstance(error, ModelError):
        return error.retryable
    if isinstance(error, AgentFlowError):
        return isinstance(error, ToolError | SourceTimeoutError) and not isinstance(error, _PERMANENT)
    return not isinstance(error, _PERMANENT)


@frozen(kw_only=True)
class RetryPolicy:
    """How often failed work is attempted again, and after which waits.

    Attributes:
        who: The name in errors and notes.
        attempts: The number of attempts, including the first one; None means no limit.
        first_wait: The first wait, in seconds, without jitter; each further wait is twice as long.
        max_wait: The longest wait, in seconds. If the error requests a longer one, there is no further attempt.
        jitter: Up to this many seconds are added to a wait, so that many callers do not retry at the same time.
        should_retry: Returns whether a failure may be temporary; called at most once for each failure.

    Raises:
        UsageError: A number is invalid.

    Example:
        >>> RetryPolicy(max_wait=60.0).allows(ModelError("busy", retryable=True, retry_after=90.0))
        False
    """

    who: str = "RetryPolicy"
    attempts: int | None = 3
    first_wait: float = 0.5
    max_wait: float = 60.0
    jitter: float = 0.5
    should_retry: Callable[[Exception], bool] = model_may_recover

    def __post_init__(self) -> None:
        few = self.attempts is not None and self.attempts < 1
        if few or min(self.first_wait, self.max_wait, self.jitter) < 0:
            raise UsageError(
                f"{self.who} was built with attempts={self.attempts}, first_wait={self.first_wait:g}, "
                f"max_wait={self.max_wait:g} and jitter={self.jitter:g}. `attempts` must be at least 1 (no retry), and "
                "the others at least 0."
            )

    def allows(self, error: BaseException) -> bool:
        """Whether the failure may be temporary, and requests no wait longer than `max_wait`."""
        if not isinstance(error, Exception) or isinstance(error, UsageError | Veto | HookError):
            return False
        requested = _requested_wait(error)
        return (requested is None or requested <= self.max_wait) and self.should_retry(error)

    def start(
        self,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        noted: Callable[[int, BaseException, float], None] | None = None,
    ) -> RetryAttempts:
        """Start the attempts of one unit of work.

        Args:
            sleep: The function that waits, such as a clock's `sleep`.
            noted: Called before each wait with the failed attempt (from 1), its error, and the seconds to wait.

        Example:
            >>> attempts, errors = RetryPolicy().start(), [ModelError("busy", retryable=True, retry_after=0.0)]
            >>> while True:
            ...     try:
            ...         if errors:
            ...             raise errors.pop()
            ...         break
            ...     except ModelError as error:
            ...         if not await attempts.another(error):
            ...             raise
        """
        return RetryAttempts(self, sleep, noted)


class RetryAttempts:
    """The attempts of one unit of work; the caller reports each failure."""

    __slots__ = ("_noted", "_policy", "_sleep", "_state")

    def __init__(
        self,
        policy: RetryPolicy,
        sleep: Callable[[float], Awaitable[None]],
        noted: Callable[[int, BaseException, float], None] | None,
    ) -> None:
        self._policy = policy
        self._sleep = sleep
        self._noted = noted
        self._state: RetryCallState | None = None

    async def another(self, error: BaseException) -> bool:
        """Wait for another attempt.

        Returns:
            True after the wait. False, without waiting, if there is no further attempt: raise the error.
        """
        wait = self.wait_after(error)
        if wait is None:
            return False
        failed = 0 if self._state is None else self._state.attempt_number - 1
        with waiting(Wait(who=self._policy.who, seconds=wait, reason=described(error), attempt=failed)):
            await self._sleep(wait)
        return True

    def wait_after(self, error: BaseException) -> float | None:
        """Return the seconds to wait before another attempt, for callers that wait by other means; None if there
        is no further attempt."""
        policy = self._policy
        if policy.attempts == 1 or not policy.allows(error):
            return None
        state = self._state = self._state or _state(policy)  # made at the first failure, as most work succeeds
        engine, failed = state.retry_object, state.attempt_number
        state.set_exception((type(error), error, error.__traceback__))
        wait = None if engine.stop(state) else engine.wait(state)
        state.prepare_for_next_attempt()  # releases the error, whose traceback refers to frames
        if wait is None:
            error.add_note(f"{policy.who} gave up: {failed} attempts failed")
        elif self._noted is not None:
            self._noted(failed, error, wait)
        return wait


def _requested_wait(error: BaseException | None) -> float | None:
    return error.retry_after if isinstance(error, ModelError) else None


def _state(policy: RetryPolicy) -> RetryCallState:
    from tenacity import (  # 35 ms to import, only needed for failures
        RetryCallState,
        Retrying,
        stop_after_attempt,
        stop_never,
        wait_exponential,
        wait_random,
    )

    backoff = wait_exponential(multiplier=policy.first_wait, max=policy.max_wait) + wait_random(0, policy.jitter)

    def wait(state: RetryCallState) -> float:
        requested = _requested_wait(state.outcome.exception() if state.outcome is not None else None)
        return requested if requested is not None else min(backoff(state), policy.max_wait)

    # Tenacity's own loop is not used: `iter` leaves a reference cycle after each unit of work, and `with attempt` swallows
    # the cancellation and the GeneratorExit of a stream that is read in it.
    stop = stop_never if policy.attempts is None else stop_after_attempt(policy.attempts)
    return RetryCallState(Retrying(stop=stop, wait=wait), None, (), {})
