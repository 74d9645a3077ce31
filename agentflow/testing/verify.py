"""Test a Mono, a Flux or any observable step by step: expectations in the order of the signals.

Rules:

1. The verifier is the reader: it pulls an item only when an expectation needs one, so a source that runs ahead of its
   reader is noticed (for example with a `Probe`). `then()` runs code between two signals.
2. A failed expectation reports the expected signal, the received one, and all signals so far.
3. The run is always closed before the result is reported.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from agentflow._support.virtual_time import run_virtual
from agentflow.errors import UsageError
from agentflow.reactive import Flux

if TYPE_CHECKING:
    from reactivex import Observable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_COMPLETE = "complete"


class _Run(Generic[T]):
    """A run under test. Its items are pulled on demand, and every signal is recorded."""

    def __init__(self, source: Flux[T]) -> None:
        self.stream: AsyncIterator[T] = aiter(source)
        self.received: list[str] = []
        self.error: Exception | None = None
        self.ended = False
        self._pending: asyncio.Task[tuple[T] | None] | None = None

    async def pull(self, seconds: float | None = None) -> tuple[T] | None:
        """Return the next item in a tuple, or None if the source has ended, with or without an error.

        Raises:
            TimeoutError: Nothing arrived within `seconds`; the next pull continues the same wait.
        """
        if self.ended:
            return None
        if seconds is None and self._pending is None:
            return await self._pull()  # in the verifier's own task, as an ordinary reader would
        task = self._pending or asyncio.ensure_future(self._pull())
        self._pending = task
        done, _ = await asyncio.wait([task], timeout=seconds)
        if not done:
            raise TimeoutError
        self._pending = None
        return task.result()

    async def _pull(self) -> tuple[T] | None:
        try:
            value = await anext(self.stream)
        except StopAsyncIteration:
            self.ended = True
            self.received.append(_COMPLETE)
            return None
        except Exception as error:
            self.ended = True
            self.error = error
            self.received.append(f"error({error!r})")
            return None
        self.received.append(repr(value))
        return (value,)

    async def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
            await asyncio.wait([self._pending])
        aclose: Callable[[], Awaitable[None]] | None = getattr(self.stream, "aclose", None)
        if aclose is not None:
            await aclose()

    def fail(self, step: int, expected: str) -> AssertionError:
        got = self.received[-1] if self.received else "nothing"
        signals = ", ".join(self.received) or "none"
        return AssertionError(f"step {step}: expected {expected}, received {got}\n  all signals: {signals}")


Step = Callable[["_Run[Any]", int], Awaitable[None]]


class Verifier(Generic[T_co]):
    """A list of expectations about one run; created by `verify`, and started by awaiting it."""

    def __init__(self, source: Flux[T_co]) -> None:
        self._source = source
        self._steps: list[Step] = []
        self._closed_by: str | None = None

    # ---- expectations

    def expect(self, *values: object) -> Verifier[T_co]:
        """Expect these items next, in order."""
        for value in values:
            self._item(repr(value), lambda item, value=value: bool(item == value))
        return self

    def expect_matches(self, predicate: Callable[[Any], object]) -> Verifier[T_co]:
        """Expect an item for which the predicate holds."""
        name = getattr(predicate, "__name__", "a predicate")
        return self._item(f"an item for which {name} holds", predicate)

    def expect_count(self, count: int) -> Verifier[T_co]:
        """Expect `count` further items with any values."""
        for number in range(1, count + 1):
            self._item(f"item {number} of {count}", lambda _: True)
        return self

    def expect_no_signal(self, seconds: float) -> Verifier[T_co]:
        """Request an item, and expect no signal (no item, error or completion) for some seconds of the loop's time."""

        async def step(run: _Run[Any], number: int) -> None:
            try:
                await run.pull(seconds)
            except TimeoutError:
                return
            raise run.fail(number, f"no signal for {seconds:g} s")

        return self._add(step)

    def expect_complete(self) -> Verifier[T_co]:
        """Expect successful completion."""

        async def step(run: _Run[Any], number: int) -> None:
            if await run.pull() is not None or run.error is not None:
                raise run.fail(number, _COMPLETE) from run.error

        return self._last(step, "expect_complete()")

    def expect_error(
        self, kind: type[Exception] = Exception, match: str | None = None, *, same: Exception | None = None
    ) -> Verifier[T_co]:
        """Expect an error.

        Args:
            kind: The class of the error.
            match: A regular expression to search for in the error's text.
            same: The expected error object itself.
        """
        expected = f"error {kind.__name__}" + (f" matching {match!r}" if match else "")

        async def step(run: _Run[Any], number: int) -> None:
            item = await run.pull()
            error = run.error
            fits = item is None and isinstance(error, kind) and (match is None or re.search(match, str(error)))
            if not fits or (same is not None and error is not same):
                raise run.fail(number, expected if same is None else f"the very error {same!r}") from error

        return self._last(step, "expect_error()")

    # ---- actions

    def then(self, action: Callable[[], object]) -> Verifier[T_co]:
        """Call `action` between two signals, for example to assert on a `Probe`; an awaitable result is awaited."""

        async def step(run: _Run[Any], number: int) -> None:
            result = action()
            if isinstance(result, Awaitable):
                await result

        return self._add(step)

    def then_wait(self, seconds: float) -> Verifier[T_co]:
        """Wait without requesting an item, like a slow reader."""
        return self.then(lambda: asyncio.sleep(seconds))

    def then_request(self, count: int) -> Verifier[T_co]:
        """Request `count` items without checking them; the run may also end."""

        async def step(run: _Run[Any], number: int) -> None:
            for _ in range(count):
                await run.pull()

        return self._add(step)

    def then_cancel(self) -> Verifier[T_co]:
        """Stop reading: close the run, and await its cleanup."""

        async def step(run: _Run[Any], number: int) -> None:
            await run.close()

        return self._last(step, "then_cancel()")

    # ---- execution

    async def run(self) -> None:
        """Run the source once and check every expectation.

        Raises:
            AssertionError: An expectation failed.
        """
        if self._closed_by is None:
            raise UsageError(
                "The verifier has no last step, so the end of the run would be unchecked. Add expect_complete(), "
                "expect_error() or then_cancel()."
            )
        run = _Run(self._source)
        try:
            for number, step in enumerate(self._steps, start=1):
                await step(run, number)
        finally:
            await run.close()

    def __await__(self) -> Generator[Any, None, None]:
        return self.run().__await__()

    def run_virtual(self) -> None:
        """Run the verification in virtual time, from synchronous code: delays of the source take no real time."""
        run_virtual(self.run())

    def _item(self, expected: str, fits: Callable[[Any], object]) -> Verifier[T_co]:
        async def step(run: _Run[Any], number: int) -> None:
            item = await run.pull()
            if item is None or not fits(item[0]):
                raise run.fail(number, expected) from run.error

        return self._add(step)

    def _add(self, step: Step) -> Verifier[T_co]:
        if self._closed_by is not None:
            raise UsageError(f"no expectations may follow {self._closed_by}: the run has ended; make it the last step")
        self._steps.append(step)
        return self

    def _last(self, step: Step, name: str) -> Verifier[T_co]:
        self._add(step)
        self._closed_by = name
        return self


def verify(source: Observable[T]) -> Verifier[T]:
    """Return a `Verifier` of a Mono, a Flux or any observable; await it to run the source and check the expectations.

    Example:
        >>> await verify(Flux.of(1, 2).map(str)).expect("1", "2").expect_complete()
    """
    return Verifier(Flux.wrap(source))


class Probe(Generic[T]):
    """A source that records how it is used.

    Args:
        values: The values of each run.
        error: The error after the values; None means successful completion.
        hang: Whether to wait forever after the values instead of ending.

    Attributes:
        subscriptions: The number of runs that were started.
        pulled: The number of values that were requested, in all runs.
        closed: The number of runs that have ended, for any reason.
        cancelled: The number of runs that were cancelled.

    Example:
        >>> probe = Probe(1, 2, 3)
        >>> await verify(probe.flux.take(1)).expect(1).expect_complete()
        >>> assert probe.pulled == 1
    """

    def __init__(self, *values: T, error: BaseException | None = None, hang: bool = False) -> None:
        self._values = values
        self._error = error
        self._hang = hang
        self.subscriptions = 0
        self.pulled = 0
        self.closed = 0
        self.cancelled = 0

    @property
    def flux(self) -> Flux[T]:
        """The source to test; each subscription is a new run."""
        return Flux(self._run)

    async def _run(self) -> AsyncIterator[T]:
        self.subscriptions += 1
        try:
            for value in self._values:
                self.pulled += 1
                yield value
            if self._hang:
                await asyncio.get_running_loop().create_future()
            if self._error is not None:
                raise self._error
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.closed += 1
