"""Step-by-step tests of a Mono, a Flux or any observable: expectations in the order of the signals.

Rules:

1. The verifier is the reader: it pulls one item for each expectation and no more, so it never hides a missing
   back-pressure. `then()` looks in between.
2. A failed expectation says what was expected, what came instead, and everything received up to there.
3. Whatever happens, the run is closed before the verdict is given.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from agentflow.errors import UsageError
from agentflow.reactive import Flux
from agentflow.testing.virtual_time import run_virtual

if TYPE_CHECKING:
    from reactivex import Observable

__all__ = ["Probe", "Verifier", "verify"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_COMPLETE = "complete"


class _Run(Generic[T]):
    """One run under test: pulls on demand and remembers every signal."""

    def __init__(self, source: Flux[T]) -> None:
        self.stream: AsyncIterator[T] = aiter(source)
        self.received: list[str] = []
        self.error: Exception | None = None
        self.ended = False
        self._pending: asyncio.Task[tuple[T] | None] | None = None

    async def pull(self, seconds: float | None = None) -> tuple[T] | None:
        """The next item in a tuple; None when the source has ended, with or without an error.

        Raises:
            TimeoutError: Nothing came within `seconds`; the pull goes on and the next one continues it.
        """
        if self.ended:
            return None
        if seconds is None and self._pending is None:
            return await self._pull()  # in the verifier's own task, as an ordinary reader does
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
    """A list of expectations about one run; made by `verify`, started by awaiting it."""

    def __init__(self, source: Flux[T_co]) -> None:
        self._source = source
        self._steps: list[Step] = []
        self._closed_by: str | None = None

    # ---- expectations

    def expect(self, *values: object) -> Verifier[T_co]:
        """The next items equal these, in order."""
        for value in values:
            self._item(repr(value), lambda item, value=value: bool(item == value))
        return self

    def expect_matches(self, predicate: Callable[[Any], object], description: str | None = None) -> Verifier[T_co]:
        """The predicate holds for the next item."""
        name = description or getattr(predicate, "__name__", "a predicate")
        return self._item(f"an item for which {name} holds", predicate)

    expect_next_matches = expect_matches

    def expect_count(self, count: int) -> Verifier[T_co]:
        """So many further items, whatever they are."""
        for number in range(1, count + 1):
            self._item(f"item {number} of {count}", lambda _: True)
        return self

    def expect_no_signal(self, seconds: float) -> Verifier[T_co]:
        """The source is asked for an item and stays silent for so long (of the loop's time)."""

        async def step(run: _Run[Any], number: int) -> None:
            try:
                await run.pull(seconds)
            except TimeoutError:
                return
            raise run.fail(number, f"no signal for {seconds:g} s")

        return self._add(step)

    def expect_complete(self) -> Verifier[T_co]:
        """The source ends well."""

        async def step(run: _Run[Any], number: int) -> None:
            if await run.pull() is not None or run.error is not None:
                raise run.fail(number, _COMPLETE) from run.error

        return self._last(step, "expect_complete()")

    def expect_error(
        self, kind: type[Exception] = Exception, match: str | None = None, *, same: Exception | None = None
    ) -> Verifier[T_co]:
        """The source fails.

        Args:
            kind: The class of the error.
            match: A regular expression found in its text.
            same: The very error object.
        """
        expected = f"error {kind.__name__}" + (f" matching {match!r}" if match else "")

        async def step(run: _Run[Any], number: int) -> None:
            item = await run.pull()
            error = run.error
            fits = item is None and isinstance(error, kind) and (match is None or re.search(match, str(error)))
            if not fits or (same is not None and error is not same):
                raise run.fail(number, expected if same is None else f"the very error {same!r}") from error

        return self._last(step, "expect_error()")

    # ---- acts in between

    def then(self, action: Callable[[], object]) -> Verifier[T_co]:
        """Call `action` between two signals, for example to assert on a `Probe`; an awaitable result is awaited."""

        async def step(run: _Run[Any], number: int) -> None:
            result = action()
            if isinstance(result, Awaitable):
                await result

        return self._add(step)

    def then_wait(self, seconds: float) -> Verifier[T_co]:
        """Let time pass without asking for an item, as a slow reader does."""
        return self.then(lambda: asyncio.sleep(seconds))

    def then_request(self, count: int) -> Verifier[T_co]:
        """Ask for so many items and take whatever comes."""

        async def step(run: _Run[Any], number: int) -> None:
            for _ in range(count):
                await run.pull()

        return self._add(step)

    def then_cancel(self) -> Verifier[T_co]:
        """Stop reading here: the run is closed, and its cleanup awaited."""

        async def step(run: _Run[Any], number: int) -> None:
            await run.close()

        return self._last(step, "then_cancel()")

    # ---- running it

    async def run(self) -> None:
        """Run the source once and check every expectation.

        Raises:
            AssertionError: An expectation failed.
        """
        if self._closed_by is None:
            raise UsageError(
                "a verifier without an end would leave the rest of the run unchecked; finish with expect_complete(), "
                "expect_error() or then_cancel()"
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
        """The same from synchronous code, in virtual time: no delay in the source takes real time."""
        run_virtual(self.run())

    def _item(self, expected: str, fits: Callable[[Any], object]) -> Verifier[T_co]:
        async def step(run: _Run[Any], number: int) -> None:
            item = await run.pull()
            if item is None or not fits(item[0]):
                raise run.fail(number, expected) from run.error

        return self._add(step)

    def _add(self, step: Step) -> Verifier[T_co]:
        if self._closed_by is not None:
            raise UsageError(f"a verifier goes on after {self._closed_by}, where the run has ended; make that the last")
        self._steps.append(step)
        return self

    def _last(self, step: Step, name: str) -> Verifier[T_co]:
        self._add(step)
        self._closed_by = name
        return self


def verify(source: Observable[T]) -> Verifier[T]:
    """Begin the verification of a Mono, a Flux or any observable.

    Example:
        >>> await verify(Flux.of(1, 2).map(str)).expect("1", "2").expect_complete()
    """
    return Verifier(Flux.wrap(source))


class Probe(Generic[T]):
    """A source that writes down what is done to it: `subscriptions`, `pulled`, `closed`, `cancelled`.

    Args:
        values: What each run gives.
        error: What it fails with after that; None ends it well.
        hang: Wait forever after the values instead of ending.

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
        """The source."""
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
