"""When and after how long a model is asked again."""

import asyncio

import pytest

from agentflow.errors import ModelError, UsageError
from agentflow.models.retrying import RetryPolicy, failed


async def run(policy: RetryPolicy, errors: list[Exception]) -> tuple[int, list[float]]:
    """Make attempts that fail with each error in turn; returns how many were made, and the sleeps between them."""
    sleeps: list[float] = []

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    made = 0
    async for attempt in policy.attempts(sleep):
        made += 1
        try:
            if made <= len(errors):
                raise errors[made - 1]
        except ModelError as error:
            failed(attempt.retry_state, error)
        else:
            break
    return made, sleeps


def busy(retry_after: float | None = None) -> ModelError:
    return ModelError("busy", retryable=True, retry_after=retry_after)


async def test_the_wait_grows_with_jitter_up_to_the_cap() -> None:
    """Without a wish of the provider, waits double and never pass max_wait."""
    made, sleeps = await run(RetryPolicy(retries=6, max_wait=3.0), [busy() for _ in range(6)])
    assert made == 7
    assert all(low <= wait <= 3.0 for low, wait in zip([0.5, 1.0, 2.0, 3.0, 3.0, 3.0], sleeps, strict=True))


async def test_a_wish_of_the_provider_is_kept() -> None:
    """retry_after is slept exactly, zero included."""
    assert await run(RetryPolicy(), [busy(7.5), busy(0.0)]) == (3, [7.5, 0.0])


async def test_what_will_not_pass_is_raised_at_once() -> None:
    """Permanent errors and waits beyond the cap are not tried again."""
    for error in (ModelError("no"), busy(61.0)):
        with pytest.raises(ModelError) as caught:
            await run(RetryPolicy(), [error])
        assert caught.value is error


async def test_other_exceptions_pass_untouched() -> None:
    """Cancellation is no failed attempt."""
    with pytest.raises(asyncio.CancelledError):
        await run(RetryPolicy(), [asyncio.CancelledError()])  # pyright: ignore[reportArgumentType]


async def test_the_last_error_is_raised() -> None:
    """When all attempts are used up, the error of the last one is what the caller sees."""
    errors = [busy(1.0), busy(2.0), busy(3.0)]
    with pytest.raises(ModelError) as caught:
        await run(RetryPolicy(retries=2), [*errors])
    assert caught.value is errors[2]


def test_negative_numbers_are_refused() -> None:
    """A policy that makes no sense is told when it is built."""
    with pytest.raises(UsageError, match="retries=0 asks once"):
        RetryPolicy(retries=-1)
