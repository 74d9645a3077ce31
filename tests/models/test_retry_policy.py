"""When failed work is retried, and after how long: the one rule for models, tools, hooks, stores and durable runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from garbage import garbage_of

from agentflow.errors import (
    CallTimeoutError,
    HookError,
    HookTimeoutError,
    ModelError,
    StoreError,
    ToolArgumentError,
    ToolError,
    UsageError,
    Veto,
)
from agentflow.reactive.signals import SourceTimeoutError
from agentflow.vocabulary.ports.retry import RetryPolicy, model_may_recover, tool_may_recover


async def run(policy: RetryPolicy, errors: list[BaseException]) -> tuple[int, list[float]]:
    """Make attempts that fail with each error in turn; return their number, and the waits between them."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    attempts = policy.start(sleep)
    made = 0
    while True:
        made += 1
        try:
            if made <= len(errors):
                raise errors[made - 1]
            return made, waits
        except BaseException as error:
            if not await attempts.another(error):
                raise


def busy(retry_after: float | None = None) -> ModelError:
    return ModelError("busy", retryable=True, retry_after=retry_after)


async def test_the_wait_doubles_up_to_the_longest() -> None:
    """Unless the provider requests a wait, waits double from the first one up to the longest."""
    policy = RetryPolicy(attempts=7, first_wait=0.5, max_wait=3.0, jitter=0)
    assert await run(policy, [busy() for _ in range(6)]) == (7, [0.5, 1.0, 2.0, 3.0, 3.0, 3.0])


async def test_jitter_comes_on_top() -> None:
    """A wait is between its length and that plus the jitter, and never exceeds the longest."""
    made, waits = await run(RetryPolicy(attempts=5, max_wait=3.0, jitter=0.25), [busy() for _ in range(4)])
    assert made == 5
    assert all(low <= wait <= min(low + 0.25, 3.0) for low, wait in zip([0.5, 1.0, 2.0, 3.0], waits, strict=True))
    assert waits[:3] != [0.5, 1.0, 2.0]


async def test_a_wish_of_the_provider_is_kept() -> None:
    """A requested wait is kept exactly, even zero; the next one without a request continues to double."""
    assert await run(RetryPolicy(attempts=4, jitter=0), [busy(7.5), busy(0.0), busy()]) == (4, [7.5, 0.0, 2.0])


@pytest.mark.parametrize(
    "error",
    [ModelError("no"), busy(61.0), UsageError("you"), Veto("no"), HookError("a hook"), ValueError(), StoreError("x")],
    ids=repr,
)
async def test_what_will_not_pass_is_raised_at_once(error: Exception) -> None:
    """Permanent errors, waits beyond the longest, and faults of the caller are not retried; the error is raised
    unchanged.
    """
    with pytest.raises(type(error)) as caught:
        await run(RetryPolicy(), [error])
    assert caught.value is error
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize(
    "error", [UsageError("you"), Veto("no"), HookError("a hook"), asyncio.CancelledError(), KeyboardInterrupt()]
)
async def test_nobody_can_choose_to_try_some_things_again(error: BaseException) -> None:
    """Whatever `should_retry` returns: control flow, cancellation and faults of the caller are no failed attempts."""
    assert not RetryPolicy(should_retry=lambda error: True).allows(error)


async def test_the_last_error_is_raised_and_says_who_gave_up() -> None:
    """When all attempts have failed, the caller gets the last error, with a note."""
    errors: list[Any] = [busy(1.0), busy(2.0), busy(3.0)]
    with pytest.raises(ModelError) as caught:
        await run(RetryPolicy(who="The caller", attempts=3), [*errors])
    assert caught.value is errors[2]
    assert caught.value.__notes__ == ["The caller gave up: 3 attempts failed"]
    assert [hasattr(error, "__notes__") for error in errors[:2]] == [False, False]


async def test_without_a_number_of_attempts_the_errors_decide() -> None:
    """`attempts=None` continues while `should_retry` allows it; it is called once per failure."""
    judged: list[str] = []

    def patient(error: Exception) -> bool:
        judged.append(str(error))
        return len(judged) < 12

    policy = RetryPolicy(attempts=None, first_wait=1.0, max_wait=10.0, jitter=0, should_retry=patient)
    with pytest.raises(OSError, match="11"):
        await run(policy, [OSError(str(n)) for n in range(12)])
    assert judged == [str(n) for n in range(12)]


async def test_each_failure_is_told_before_its_wait() -> None:
    """`noted` gets the attempt's number from 1, its error, and the wait; the last failure is raised to the caller."""
    log: list[tuple[Any, ...]] = []

    async def sleep(seconds: float) -> None:
        log.append(("slept", seconds))

    attempts = RetryPolicy(attempts=3, jitter=0).start(sleep, lambda *told: log.append(told))
    errors = [busy(), busy(4.0), busy()]
    assert [await attempts.another(error) for error in errors] == [True, True, False]
    assert log == [(1, errors[0], 0.5), ("slept", 0.5), (2, errors[1], 4.0), ("slept", 4.0)]


async def test_pieces_of_work_are_counted_apart() -> None:
    """One policy serves any number of operations; `wait_after` is for callers that wait by other means."""
    policy = RetryPolicy(attempts=2, first_wait=1, jitter=0)
    one, two = policy.start(), policy.start()
    assert [one.wait_after(busy()), two.wait_after(busy()), one.wait_after(busy())] == [1.0, 1.0, None]


async def test_giving_up_leaves_no_garbage() -> None:
    """Neither a success after a failure nor the last failure leaves a cycle of error, traceback and frame."""

    async def once(failures: int) -> None:
        attempts = RetryPolicy(attempts=2, first_wait=0, jitter=0).start()
        made = 0
        while True:
            made += 1
            try:
                if made <= failures:
                    raise busy()
                return
            except ModelError as error:
                if not await attempts.another(error):
                    raise

    async def fails() -> None:
        with pytest.raises(ModelError):
            await once(2)

    assert await garbage_of(lambda: once(1)) == []
    assert await garbage_of(fails) == []


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"first_wait": -1}, {"max_wait": -0.1}, {"jitter": -1}])
def test_numbers_that_cannot_be_meant(wrong: dict[str, Any]) -> None:
    """An invalid policy is refused when it is built, with the name of the caller's class."""
    with pytest.raises(UsageError, match=r"The caller was built with attempts=.*`attempts` must be at least 1"):
        RetryPolicy(who="The caller", **wrong)


def test_the_options_are_keywords() -> None:
    """A number without its name would not say whether it counts attempts or seconds."""
    with pytest.raises(TypeError, match="positional"):
        RetryPolicy("The caller", 3)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("error", "model", "tool"),
    [
        (ModelError("busy", retryable=True), True, True),
        (ModelError("no", retryable=False), False, False),
        (ConnectionError(), True, True),
        (TimeoutError(), True, True),
        (SourceTimeoutError("timeout", 1.0, "the source"), True, True),
        (CallTimeoutError(1.0, "agent"), False, False),
        (HookTimeoutError("hook", "PreActing", 1.0), False, False),
        (ToolError("no"), False, True),
        (ToolArgumentError("no"), False, False),
        (StoreError("no"), False, False),
        (UsageError("no"), False, False),
        (RuntimeError(), False, True),
        (ValueError(), False, False),
        (KeyError(), False, False),
        (FileNotFoundError(), False, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_which_failures_may_pass(error: Exception, model: bool, tool: bool) -> None:
    """For a model: connections, time limits of sources, and the provider's retryable errors; for a tool: all but
    faults of the program.
    """
    assert (model_may_recover(error), tool_may_recover(error)) == (model, tool)
