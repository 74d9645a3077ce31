"""When a failed model call is made again, and after how long (tenacity does the counting and the waiting).

Rules:

1. Only a `ModelError` that says `retryable` is answered with another attempt; cancellation never comes here.
2. A wait that the provider asked for is kept exactly. One beyond `max_wait` is not waited for: the error tells it.
3. Without such a wish the wait grows exponentially, with jitter, up to `max_wait`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from agentflow.errors import ModelError, UsageError

__all__ = ["RetryPolicy", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently a model is asked again.

    Attributes:
        retries: Extra attempts after the first.
        max_wait: Longest wait before an attempt, in seconds.
        first_wait: About the first wait, in seconds; it doubles from there.

    Example:
        >>> RetryPolicy(retries=2, max_wait=60.0).worth_it(ModelError("busy", retryable=True, retry_after=90.0))
        False
    """

    retries: int = 2
    max_wait: float = 60.0
    first_wait: float = 0.5

    def __post_init__(self) -> None:
        if self.retries < 0 or self.max_wait < 0:
            raise UsageError(
                f"A model was built with retries={self.retries} and max_wait={self.max_wait:g}; "
                "neither can be negative (retries=0 asks once)."
            )

    def worth_it(self, error: BaseException) -> bool:
        """Whether another attempt may help, and may be waited for."""
        if not isinstance(error, ModelError) or not error.retryable:
            return False
        return error.retry_after is None or error.retry_after <= self.max_wait

    def attempts(self, sleep: Callable[[float], Awaitable[None]]) -> AsyncRetrying:
        """The attempts of one call, to be iterated; an attempt that goes wrong is told with `failed`.

        Args:
            sleep: How to wait.
        """
        backoff = wait_exponential(multiplier=self.first_wait, max=self.max_wait) + wait_random(0, self.first_wait)

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome is not None else None
            asked = error.retry_after if isinstance(error, ModelError) else None
            return asked if asked is not None else min(backoff(state), self.max_wait)

        return AsyncRetrying(
            stop=stop_after_attempt(self.retries + 1),
            wait=wait,
            retry=retry_if_exception(self.worth_it),
            sleep=sleep,
            reraise=True,
        )


def failed(state: RetryCallState, error: ModelError) -> None:
    """Tell an attempt that it failed; the next one follows, or the error is raised there."""
    # Not `with attempt`: it would swallow the GeneratorExit and the cancellation of a stream that is read in it.
    state.set_exception((type(error), error, error.__traceback__))
