"""When failed work is done again, and after how long: one rule for models, tools, hooks, stores and durable runs.

Rules:

1. Only what may pass is tried again: `worth_it` says so. Cancellation, `Veto`, `UsageError` and what hooks do wrong never are.
2. A wait that was asked for (`ModelError.retry_after`) is kept exactly; one beyond `max_wait` is not waited for.
3. Without such a wish the wait doubles from `first_wait`, with jitter on top, up to `max_wait`.
4. Who gives up says so in a note on the last error, which is raised as it is.

Tenacity counts and times the attempts. It is loaded with the first failure that is worth another attempt: work that goes well
pays nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

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
from agentflow.ground.shown import described
from agentflow.ground.values import frozen
from agentflow.ports.waits import Wait, waiting
from agentflow.reactive.signals import SourceTimeoutError

if TYPE_CHECKING:
    from tenacity import RetryCallState

__all__ = ["Attempts", "RetryPolicy", "model_may_recover", "tool_may_recover"]


def model_may_recover(error: Exception) -> bool:
    """Whether a model call is tried again by default.

    A `ModelError` says so itself (`retryable`). Of what other models raise, and time limits that hooks set, only
    broken connections and passed limits are.

    Example:
        >>> model_may_recover(ModelError("overloaded", retryable=True)), model_may_recover(ValueError())
        (True, False)
    """
    if isinstance(error, ModelError):
        return error.retryable
    if isinstance(error, AgentFlowError):
        return isinstance(error, SourceTimeoutError)
    return isinstance(error, ConnectionError | TimeoutError)


_SETTLED = (
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
"""Errors that the same arguments bring again: wrong arguments, facts about files, faults of the tool's code."""


def tool_may_recover(error: Exception) -> bool:
    """Whether a tool is tried again by default: unless the same arguments are bound to fail in the same way.

    Example:
        >>> tool_may_recover(ConnectionError()), tool_may_recover(FileNotFoundError())
        (True, False)
    """
    if isinstance(error, ModelError):
        return error.retryable
    if isinstance(error, AgentFlowError):
        return isinstance(error, ToolError | SourceTimeoutError) and not isinstance(error, _SETTLED)
    return not isinstance(error, _SETTLED)


@frozen(kw_only=True)
class RetryPolicy:
    """How often, and how patiently, something is tried.

    Attributes:
        who: Who tries, as errors and notes name it.
        attempts: Attempts altogether, the first one included; None: as often as it is worth it.
        first_wait: The first wait, in seconds, without its jitter; it doubles from there.
        max_wait: Longest wait, in seconds. If somebody asks for more, there is no other attempt.
        jitter: Up to this many seconds are added to a wait, so that many callers do not come back together.
        worth_it: Which failures may pass. Asked once for each.

    Raises:
        UsageError: Its numbers cannot be meant.

    Example:
        >>> RetryPolicy(max_wait=60.0).allows(ModelError("busy", retryable=True, retry_after=90.0))
        False
    """

    who: str = "RetryPolicy"
    attempts: int | None = 3
    first_wait: float = 0.5
    max_wait: float = 60.0
    jitter: float = 0.5
    worth_it: Callable[[Exception], bool] = model_may_recover

    def __post_init__(self) -> None:
        few = self.attempts is not None and self.attempts < 1
        if few or min(self.first_wait, self.max_wait, self.jitter) < 0:
            raise UsageError(
                f"{self.who} was built with attempts={self.attempts}, first_wait={self.first_wait:g}, "
                f"max_wait={self.max_wait:g} and jitter={self.jitter:g}. Legal are attempts of 1 or more (1 never tries "
                "again) and waits of 0 or more."
            )

    def allows(self, error: BaseException) -> bool:
        """Whether another attempt may help, and may be waited for."""
        if not isinstance(error, Exception) or isinstance(error, UsageError | Veto | HookError):
            return False
        asked = _asked_for(error)
        return (asked is None or asked <= self.max_wait) and self.worth_it(error)

    def start(
        self,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        noted: Callable[[int, BaseException, float], None] | None = None,
    ) -> Attempts:
        """The attempts of one piece of work.

        Args:
            sleep: How to wait: a clock's `sleep`.
            noted: Told, before each wait, which attempt failed (from 1), how, and how long the wait is.

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
        return Attempts(self, sleep, noted)


class Attempts:
    """The attempts of one piece of work, told of those that failed."""

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
        """Wait until it is time for another attempt.

        Returns:
            False, at once, if there is to be none: the error is to be raised.
        """
        wait = self.wait_after(error)
        if wait is None:
            return False
        failed = 0 if self._state is None else self._state.attempt_number - 1
        with waiting(Wait(who=self._policy.who, seconds=wait, why=described(error), attempt=failed)):
            await self._sleep(wait)
        return True

    def wait_after(self, error: BaseException) -> float | None:
        """How many seconds to wait for another attempt, for who waits by other means; None: there is to be none."""
        policy = self._policy
        if policy.attempts == 1 or not policy.allows(error):
            return None
        state = self._state = self._state or _state(policy)
        engine, failed = state.retry_object, state.attempt_number
        state.set_exception((type(error), error, error.__traceback__))
        wait = None if engine.stop(state) else engine.wait(state)
        state.prepare_for_next_attempt()  # lets go of the error, whose traceback holds its raiser's frame
        if wait is None:
            error.add_note(f"{policy.who} gave up: {failed} attempts failed")
        elif self._noted is not None:
            self._noted(failed, error, wait)
        return wait


def _asked_for(error: BaseException | None) -> float | None:
    return error.retry_after if isinstance(error, ModelError) else None


def _state(policy: RetryPolicy) -> RetryCallState:
    from tenacity import (  # 35 ms that only a failure has to pay
        RetryCallState,
        Retrying,
        stop_after_attempt,
        stop_never,
        wait_exponential,
        wait_random,
    )

    backoff = wait_exponential(multiplier=policy.first_wait, max=policy.max_wait) + wait_random(0, policy.jitter)

    def wait(state: RetryCallState) -> float:
        asked = _asked_for(state.outcome.exception() if state.outcome is not None else None)
        return asked if asked is not None else min(backoff(state), policy.max_wait)

    # Not run by its `iter`, nor by `with attempt`: the one leaves a cycle of objects behind each piece of work, the other
    # swallows the cancellation and the GeneratorExit of a stream that is read in it.
    stop = stop_never if policy.attempts is None else stop_after_attempt(policy.attempts)
    return RetryCallState(Retrying(stop=stop, wait=wait), None, (), {})
