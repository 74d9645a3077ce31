"""`Flux[T]`: a stream of any number of values, pulled by its reader.

Rules:

1. A Flux is cold: each iteration, subscription or await runs the source again.
2. A Flux is pulled: it does no work ahead of the reader, unless an operator's docstring states a prefetch.
3. Operators that handle one item at a time are fused into one loop; each other operator is one async generator.
4. The methods `merge`, `concat`, `zip` and `amb` can also be called on the class: `Flux.merge(a, b)`.
5. Operators that are inherited from reactivex and not defined here run in reactivex and return a Flux (see `pipe`).
"""

from __future__ import annotations

import asyncio
from abc import ABCMeta
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Never, TypeVar, cast, overload

from reactivex import Observable, abc

from agentflow._support.lazy import later
from agentflow.errors import UsageError
from agentflow.reactive.bridge import drain
from agentflow.reactive.iterators import ManagedStream, StreamIterator, close
from agentflow.reactive.mono import Mono
from agentflow.reactive.operators import items
from agentflow.reactive.piping import Piping
from agentflow.reactive.publisher import Publisher, Source, open_source
from agentflow.reactive.reducing import Reducing
from agentflow.reactive.signals import identity, plain_function, positive, seconds_of, seconds_until

if TYPE_CHECKING:
    from agentflow.reactive.combining import FluxJoining, FluxMerging, FluxZipping
    from agentflow.reactive.operators import many, recovering, timed
else:
    many = later("agentflow.reactive.operators.many")
    recovering = later("agentflow.reactive.operators.recovering")
    timed = later("agentflow.reactive.operators.timed")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")

DEFAULT_CONCURRENCY = 32
"""The default number of inner runs that `flat_map` keeps active at once."""


class _FluxType(ABCMeta):
    """Provides the methods that can be called on the class; see `agentflow.reactive.combining`."""

    # No virtual subclasses are registered, and the check of ABCMeta takes ten times as long.
    __instancecheck__ = type.__instancecheck__

    @property
    def merge(cls) -> FluxMerging:
        """All sources at once."""
        return _merge

    @property
    def concat(cls) -> FluxJoining:
        """One source after the other."""
        return _concat

    @property
    def zip(cls) -> FluxZipping:
        """Rows of one item from each source."""
        return _zip

    @property
    def amb(cls) -> FluxJoining:
        """The source that signals first."""
        return _amb


class Flux(Reducing[T_co], metaclass=_FluxType):
    """A stream of values.

    Args:
        source: Starts one run: an async generator function without arguments, or anything callable that returns an
            async iterator.

    Attributes:
        inner: The flux that this flux wraps; steps on both sides run in one loop. For subclasses only.
        opens: If set, opens the streams of `inner`; the owner of this function closes streams that are still open.

    Example:
        >>> async for line in Flux(read_lines).filter(bool).take(10):
        ...     print(line)
    """

    inner: Flux[Any] | None = None
    opens: Callable[[Callable[[], AsyncIterator[Any]]], AsyncIterator[Any]] | None = None
    _entered: list[tuple[asyncio.Task[Any] | None, AsyncIterator[Any]]] | None = None
    """The open streams of `async with` blocks, with their tasks."""

    def __init__(self, source: Callable[[], AsyncIterator[T_co]]) -> None:
        self._source = source

    def open(self) -> AsyncIterator[T_co]:
        """Start a run as a bare iterator, for operators; the caller must close it.

        If creating the source fails, the stream fails with the same error, so that `catch` and `retry` can handle it.
        """
        try:
            return self._source()
        except Exception as error:
            return Mono.error(error).open()

    def __aiter__(self) -> AsyncIterator[T_co]:
        source = self.open()
        return source if isinstance(source, StreamIterator) else StreamIterator(source)

    async def __aenter__(self) -> AsyncIterator[T_co]:
        source = self.open()
        stream = source if isinstance(source, StreamIterator) else ManagedStream(source)
        # One flux may be entered by several tasks, and several times by one; each block closes its own stream.
        entered = self._entered
        if entered is None:
            entered = self._entered = []
        entered.append((asyncio.current_task(), stream))
        return stream

    async def __aexit__(self, *_: object) -> None:
        entered, task = self._entered or [], asyncio.current_task()
        index = len(entered) - 1
        while entered[index][0] is not task:  # other tasks can have entered it in the meantime
            index -= 1
        await close(entered.pop(index)[1])

    # ---- constructors

    @staticmethod
    def of(*values: A) -> Flux[A]:
        """The given values.

        Example:
            >>> await Flux.of(1, 2, 3).to_list()
            [1, 2, 3]
        """
        return Flux.from_iterable(values)

    @staticmethod
    def just(value: A) -> Flux[A]:
        """One value."""
        return Flux.from_iterable((value,))

    @staticmethod
    def from_iterable(values: Iterable[A]) -> Flux[A]:
        """The items of an iterable. Each run iterates it again, one item for each request of the reader."""

        async def run() -> AsyncIterator[A]:
            for value in values:
                yield value

        return Flux(run)

    @staticmethod
    def from_async_iterable(source: AsyncIterable[A]) -> Flux[A]:
        """The items of an async iterable. An async generator object can be read once: a second run is refused."""
        if not isinstance(source, AsyncIterator):  # can be iterated again for each run
            return Flux(lambda: aiter(source))
        used = False

        def once() -> AsyncIterator[A]:
            nonlocal used
            if used:
                raise UsageError(
                    f"a Flux.from_async_iterable({source!r:.80}) was run a second time, but an async iterator can be "
                    "read only once; pass the generator function instead: Flux(function)"
                )
            used = True
            return source

        return Flux(once)

    @staticmethod
    def from_observable(source: Observable[A]) -> Flux[A]:
        """Any observable as a Flux. Values that it pushes before the reader requests them are buffered without bound."""
        if isinstance(source, Publisher):
            return Flux(source.open)
        return Flux(lambda: drain(source))

    @overload
    @staticmethod
    def wrap(source: Source[A]) -> Flux[A]: ...
    @overload
    @staticmethod
    def wrap(source: AsyncIterable[A]) -> Flux[A]: ...
    @staticmethod
    def wrap(source: object) -> Flux[Any]:
        """A Flux of a Mono, an observable, an awaitable or an async iterable; a Flux is returned unchanged."""
        if isinstance(source, Flux):
            return cast("Flux[Any]", source)
        if isinstance(source, AsyncIterable) and not isinstance(source, Observable):
            return Flux.from_async_iterable(cast("AsyncIterable[Any]", source))
        return Flux(lambda: open_source("wrap", source))

    @staticmethod
    def empty() -> Flux[Never]:
        """No items."""
        return Flux.from_iterable(())

    @staticmethod
    def never() -> Flux[Never]:
        """No items and no end."""
        return Flux(Mono.never().open)

    @staticmethod
    def error(error: Exception) -> Flux[Never]:
        """A stream that fails with `error` at once."""
        return Flux(Mono.error(error).open)

    @staticmethod
    def defer(factory: Callable[[], Source[A]]) -> Flux[A]:
        """A stream created again for each run."""
        return Flux(lambda: cast("AsyncIterator[A]", open_source("defer", factory())))

    @staticmethod
    def range(start: int, stop: int | None = None, step: int = 1) -> Flux[int]:
        """Integers, as the builtin `range` counts them."""
        return Flux.from_iterable(range(start) if stop is None else range(start, stop, step))

    # ---- one item at a time

    def map(self, mapper: Callable[[T_co], B]) -> Flux[B]:
        """Each item, transformed by a plain function. For a coroutine function use `concat_map`."""
        plain_function("map", mapper, "concat_map")
        return _StepFlux(self, mapper)

    def filter(self, predicate: Callable[[T_co], object]) -> Flux[T_co]:
        """The items for which the predicate holds."""
        plain_function("filter", predicate, "concat_map")
        return _StepFlux(self, items.keep_if(cast("items.Step", predicate)))

    def tap(
        self,
        on_next: Callable[[T_co], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        on_completed: Callable[[], object] | None = None,
    ) -> Flux[T_co]:
        """Observe items, the failure or the completion without changing them."""
        source: Flux[T_co] = self
        if on_next is not None:
            plain_function("tap", on_next, "concat_map")
            source = _StepFlux(self, items.side_effect(cast("items.Step", on_next)))
        if on_error is None and on_completed is None:
            return source
        return _StepFlux(source, items.End(on_error, on_completed))

    @overload
    def scan(self, accumulator: Callable[[Any, T_co], Any]) -> Flux[T_co]: ...
    @overload
    def scan(self, accumulator: Callable[[A, T_co], A], seed: A) -> Flux[A]: ...
    def scan(self, accumulator: Callable[[Any, Any], Any], seed: Any = items.DROP) -> Flux[Any]:
        """The result of the fold so far, after each item."""
        return _StepFlux(self, items.scan(accumulator, seed), is_factory=True)

    def take(self, count: int) -> Flux[T_co]:
        """The first `count` items. No further item is pulled; the source is closed when the reader requests another."""
        if count < 0:
            raise UsageError(f"take({count}): a number of items cannot be negative")
        return Flux(lambda: items.take(self, count))

    @overload
    def default_if_empty(self, default_value: A) -> Flux[T_co | A]: ...
    @overload
    def default_if_empty(self) -> Flux[T_co | None]: ...
    def default_if_empty(self, default_value: Any = None) -> Flux[Any]:
        """The items, or `default_value` alone if there are none."""
        return Flux(lambda: items.default_if_empty(self, default_value))

    def buffer_with_count(self, count: int, skip: int | None = None) -> Flux[list[T_co]]:
        """Lists of `count` items. With a `skip`, reactivex's own operator runs, without back-pressure."""
        if skip is not None:
            return Flux.from_observable(super().buffer_with_count(count, skip))
        if count < 1:
            raise UsageError(f"buffer_with_count({count}): a list holds 1 item or more")
        return Flux(lambda: items.buffer_with_count(self, count))

    def buffer_with_time(
        self, timespan: timedelta | float, timeshift: timedelta | float | None = None, scheduler: Any = None
    ) -> Flux[list[T_co]]:
        """Lists of the items that arrive within `timespan` after each request of the reader (lists can be empty).

        With a `timeshift` or a scheduler, reactivex's own operator runs, without back-pressure.
        """
        if timeshift is not None or scheduler is not None:
            return Flux.from_observable(super().buffer_with_time(timespan, timeshift, scheduler))
        seconds = seconds_of("buffer_with_time", timespan)
        return Flux(lambda: timed.buffer_with_time(self, seconds))

    # ---- several sources

    @overload
    def flat_map(self, mapper: Callable[[T_co], Source[B]], max_concurrent: int = ...) -> Flux[B]: ...
    @overload
    def flat_map(self, mapper: None = None, max_concurrent: int = ...) -> Flux[object]: ...
    def flat_map(
        self, mapper: Callable[[T_co], Source[Any]] | None = None, max_concurrent: int = DEFAULT_CONCURRENCY
    ) -> Flux[Any]:
        """The items of the source that `mapper` returns for each item (Mono, Flux, awaitable, observable), concurrently.

        Items come in order of arrival (`concat_map` keeps the source's order). At most `max_concurrent` runs are active, and
        up to this number of items are pulled from the source in advance.
        """
        if max_concurrent < 1:
            raise UsageError(f"flat_map(max_concurrent={max_concurrent}) would never run anything; give 1 or more")
        function = cast("many.Mapper", mapper or identity)
        return Flux(lambda: many.flat_map(self.open(), function, max_concurrent, "flat_map"))

    def concat_map(self, project: Callable[[T_co], Source[B]]) -> Flux[B]:
        """The items of the source that `project` returns for each item, one source after the other. No items are pulled
        in advance.
        """
        function = cast("many.Mapper", project)
        return Flux(lambda: cast("AsyncIterator[B]", many.concat_map(self.open(), function)))

    def switch_map(self, project: Callable[[T_co], Source[B]]) -> Flux[B]:
        """The items of the source that `project` returns for the newest item. The run for the previous item is
        cancelled.
        """
        function = cast("many.Mapper", project)
        return Flux(lambda: cast("AsyncIterator[B]", many.switch_map(self.open(), function)))

    def merge(self, *sources: Source[A], max_concurrent: int | None = None) -> Flux[T_co | A]:
        """The items of all sources at once. The first failure cancels the others. Each source is at most one item ahead.

        Example:
            >>> Flux.merge(check.ignore_elements(), source)  # a failing check cancels the source
        """
        return _merge(self, *sources, max_concurrent=max_concurrent)

    def concat(self, *sources: Source[A]) -> Flux[T_co | A]:
        """One source after the other."""
        return _concat(self, *sources)

    @overload
    def zip(self, second: Source[B], /) -> Flux[tuple[T_co, B]]: ...
    @overload
    def zip(self, second: Source[B], third: Source[C], /) -> Flux[tuple[T_co, B, C]]: ...
    @overload
    def zip(self, second: Source[B], third: Source[C], fourth: Source[D], /) -> Flux[tuple[T_co, B, C, D]]: ...
    @overload
    def zip(self, *sources: Source[Any]) -> Flux[Any]: ...
    def zip(self, *sources: Source[Any]) -> Flux[Any]:
        """Rows of one item from each source. The end of the shortest source ends the stream and cancels the others."""
        return _zip(self, *sources)

    def __add__(self, other: Observable[A]) -> Flux[T_co | A]:
        """`a + b` is `a.concat(b)`."""
        return _concat(self, other)

    def amb(self, right_source: Source[A], *sources: Source[A]) -> Flux[T_co | A]:
        """The source that signals first; the others are then cancelled."""
        return _amb(self, right_source, *sources)

    # ---- failures

    def catch(
        self, handler: Observable[A] | Awaitable[A] | Callable[[Exception, Flux[T_co]], Source[A]]
    ) -> Flux[T_co | A]:
        """After a failure, continue with the source that `handler(error, source)` returns, or with a second source.

        Delivered items stay delivered. Cancellation and other `BaseException`s are not failures and are not caught.
        """
        if isinstance(handler, Observable | Awaitable):
            second = cast("Source[A]", handler)
            return Flux(lambda: cast("AsyncIterator[T_co | A]", recovering.catch(self, lambda _error, _source: second)))
        return Flux(lambda: cast("AsyncIterator[T_co | A]", recovering.catch(self, handler)))

    def retry(self, retry_count: int | None = None) -> Flux[T_co]:
        """Run until it succeeds, at most `retry_count` times in total (the first run counts, as in reactivex).

        Items that a run delivered before it failed stay delivered.
        """
        positive("retry", "retry_count", retry_count)
        return Flux(lambda: recovering.retry(self, retry_count))

    def finally_action(self, action: Callable[[], object]) -> Flux[T_co]:
        """Call (or await) `action` when the run has ended: completed, failed, closed or cancelled."""
        return Flux(lambda: recovering.finally_action(self, action))

    # ---- time

    def timeout(
        self,
        duetime: datetime | timedelta | float,
        other: Source[A] | None = None,
        scheduler: abc.SchedulerBase | None = None,
    ) -> Flux[T_co | A]:
        """Fail with `SourceTimeoutError` (or switch to `other`) if the source takes longer than `duetime` for one item.

        A `datetime` limits all items together. The reader's own time does not count, and its awaits are never cancelled. A
        `TimeoutError` of the source itself is an ordinary failure. With a scheduler, reactivex's own operator runs.
        """
        if scheduler is not None:
            return Flux.from_observable(super().timeout(duetime, cast("Observable[T_co]", other), scheduler))
        due = duetime if isinstance(duetime, datetime) else seconds_of("timeout", duetime)
        return Flux(lambda: timed.timeout(cast("Flux[T_co | A]", self), due, other))

    def deadline(self, seconds: float | timedelta) -> Flux[T_co]:
        """Fail with `SourceTimeoutError` if the source works longer than `seconds` in total.

        Only the time in which the reader waits for the source is counted.
        """
        limit = seconds_of("deadline", seconds)
        return Flux(lambda: timed.deadline(self, limit))

    def delay(self, duetime: timedelta | float, scheduler: abc.SchedulerBase | None = None) -> Flux[T_co]:
        """Each item `duetime` after its arrival, with the same gaps between items. Reads up to 256 items in advance."""
        if scheduler is not None:
            return Flux.from_observable(super().delay(duetime, scheduler))
        seconds = seconds_of("delay", duetime)
        return Flux(lambda: timed.delay(self, seconds))

    def delay_subscription(
        self, duetime: datetime | timedelta | float, scheduler: abc.SchedulerBase | None = None
    ) -> Flux[T_co]:
        """Open the source after a duration, or at a point in time."""
        if scheduler is not None:
            return Flux.from_observable(super().delay_subscription(duetime, scheduler))
        due = duetime if isinstance(duetime, datetime) else seconds_of("delay_subscription", duetime)
        return Flux(lambda: timed.delay_subscription(self, seconds_until(due) if isinstance(due, datetime) else due))


class _StepFlux(Flux[T_co], Generic[T_co]):
    """One fused step, or (`is_factory`) a function that creates it for each run. One loop runs all neighbouring steps."""

    def __init__(self, upstream: Flux[Any], step: Any, is_factory: bool = False) -> None:
        self.upstream = upstream
        self.step = step
        self.is_factory = is_factory

    def open(self) -> AsyncIterator[T_co]:
        """Start a run of the whole row of steps."""
        # A subclass with `inner` passes all items on, so the steps on both sides of it become one loop. Its `opens`
        # must still open the stream, to own it.
        row: list[items.Step | items.End] = []
        node: Flux[Any] = self
        opens = self.opens
        while True:
            if type(node) is _StepFlux:
                row.append(node.step() if node.is_factory else node.step)
                node = node.upstream
            elif node.inner is not None:
                opens, node = node.opens, node.inner
            else:
                break
        row.reverse()  # it was collected from the last step to the first
        return cast("AsyncIterator[T_co]", items.fused(node.open() if opens is None else opens(node.open), row))


def steps_over(flux: Flux[Any], source: Flux[Any]) -> list[items.Step] | None:
    """Return the functions that a flux applies to each item of `source`, in order, for one run.

    A reader of `source` can apply these functions itself, instead of opening the flux. A function that returns
    `items.DROP` drops the item.

    Returns:
        The functions; None if the flux does more: it needs time, observes the end, or subscribes to another source.
    """
    steps: list[items.Step] = []
    node: Flux[Any] | None = flux
    while node is not source:
        if type(node) is _StepFlux:
            step = node.step() if node.is_factory else node.step
            if type(step) is items.End:
                return None
            steps.append(step)
            node = node.upstream
        elif node is None:
            return None
        else:
            node = node.inner
    steps.reverse()
    return steps


Piping.flux_type = Flux


def _merge(*sources: Source[A], max_concurrent: int | None = None) -> Flux[A]:
    return Flux(lambda: cast("AsyncIterator[A]", many.merge(sources, max_concurrent)))


def _concat(*sources: Source[A]) -> Flux[A]:
    return Flux(lambda: cast("AsyncIterator[A]", many.concat(sources)))


def _zip(*sources: Source[Any]) -> Flux[Any]:
    return Flux(lambda: many.zip_rows(sources))


def _amb(*sources: Source[A]) -> Flux[A]:
    return Flux(lambda: cast("AsyncIterator[A]", many.amb(sources)))
