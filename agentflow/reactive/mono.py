"""`Mono[T]`: work with one value or none.

Rules:

1. A Mono is cold: each `await`, subscription or task of the Mono runs the work again.
2. `await mono` returns the value, or None if there is no value; `mono.resolve()` returns `EMPTY` in this case.
3. `map`, `flat_map`, `catch` … are links of a chain that one loop executes, so long or recursive chains use no stack.
4. A Mono is a `collections.abc.Coroutine` too: `asyncio.run(mono)`, `create_task(mono)`, `gather(mono)`.
"""

from __future__ import annotations

import asyncio
from abc import ABCMeta
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Never, TypeVar, cast, overload

from reactivex import Observable, abc

from agentflow._support.lazy import later
from agentflow.errors import UsageError
from agentflow.reactive.driven import DrivenMono
from agentflow.reactive.iterators import SingleIterator, close
from agentflow.reactive.operators.items import side_effect
from agentflow.reactive.publisher import Source, check_source, not_a_source, resolve_source
from agentflow.reactive.sched import Threads
from agentflow.reactive.signals import EMPTY, Empty, identity, plain_function, positive, seconds_of, seconds_until

if TYPE_CHECKING:
    from agentflow.reactive.combining import MonoJoining, MonoZipping
    from agentflow.reactive.flux import Flux
    from agentflow.reactive.operators import many, timed
else:
    many = later("agentflow.reactive.operators.many")
    timed = later("agentflow.reactive.operators.timed")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")

# The kinds of links; see `_run_links`. They are plain numbers, since reading an enum member takes 0.06 µs on 3.11.
_MAP: Final = 0
_FLAT_MAP: Final = 1
_IF_EMPTY: Final = 2
_THEN: Final = 3
_CATCH: Final = 4
_TAP: Final = 5
_TAP_VALUE: Final = 6


class _MonoType(ABCMeta):
    """Types `Mono.zip(a, b)` and `Mono.amb(a, b)`, called on the class; see `agentflow.reactive.combining`."""

    # No virtual subclasses are registered, and the check of ABCMeta takes ten times as long.
    __instancecheck__ = type.__instancecheck__

    @property
    def zip(cls) -> MonoZipping:
        """The values of all sources."""
        return _zip

    @property
    def amb(cls) -> MonoJoining:
        """The source that signals first."""
        return _amb


class Mono(DrivenMono[T_co], metaclass=_MonoType):
    """Work that has one value, or none, when it has finished.

    Args:
        source: Starts one run: any callable that returns an awaitable. Its result is the value (None included); `EMPTY`
            means there is none.

    Attributes:
        inner: The mono that this mono wraps; links on both sides form one chain. For subclasses only.

    Example:
        >>> greeting = Mono(fetch_name).map(lambda name: f"Hello {name}")
        >>> await greeting
        'Hello Ada'
    """

    inner: Mono[Any] | None = None

    def __init__(self, source: Callable[[], Awaitable[T_co | Empty]]) -> None:
        self._source = source

    def resolve(self) -> Awaitable[T_co | Empty]:
        """Start a run; the returned awaitable resolves to the value, or `EMPTY` if there is none."""
        return self._source()

    def open(self) -> AsyncIterator[T_co]:
        """Start a run as an iterator of at most one value."""
        return SingleIterator(self.resolve)

    # ---- constructors

    @staticmethod
    def just(value: A) -> Just[A]:
        """A mono of an existing value.

        Example:
            >>> await Mono.just(42)
            42
        """
        return Just(value)

    @staticmethod
    def empty() -> Mono[Never]:
        """A mono that completes without a value."""
        return _EMPTY_MONO

    @staticmethod
    def never() -> Mono[Never]:
        """A mono that never completes."""
        return Mono(_never)

    @staticmethod
    def error(error: Exception) -> Mono[Never]:
        """A mono that fails with `error`.

        Example:
            >>> Mono.error(ValueError("no")).catch(lambda error, _: Mono.just(str(error)))
        """

        async def fail() -> Never:
            raise error

        return Mono(fail)

    @staticmethod
    def defer(factory: Callable[[], Source[A]]) -> Mono[A]:
        """A mono created again for each run; recursion through `defer` has no depth limit."""
        return StepMono(_NONE, _FLAT_MAP, lambda _: factory(), "defer")

    @staticmethod
    def from_callable(function: Callable[[], A]) -> Mono[A]:
        """A mono of a plain function's result. A blocking function also needs `subscribe_on(threads())`.

        Example:
            >>> await Mono.from_callable(lambda: 6 * 7)
            42
        """
        plain_function("from_callable", function, "Mono(function)")
        return _CallableMono(function)

    @staticmethod
    def from_awaitable(awaitable: Awaitable[A]) -> Mono[A]:
        """A mono of an awaitable. A coroutine object can only be awaited once: a second run raises a `UsageError`."""
        if isinstance(awaitable, Mono):
            return awaitable
        if not isinstance(awaitable, Coroutine):
            return Mono(lambda: awaitable)
        used = False

        async def once() -> A:
            nonlocal used
            if used:
                raise UsageError(
                    f"a Mono.from_awaitable({awaitable!r:.80}) was run a second time, but a coroutine object can be "
                    "awaited only once; pass the coroutine function instead: Mono(function)"
                )
            used = True
            return await awaitable

        return Mono(once)

    @staticmethod
    def from_observable(source: Observable[A]) -> Mono[A]:
        """A mono of the last value of any observable, like reactivex's own `await`; empty if there is no value.

        To get the first value and then dispose the observable, use `Flux.wrap(observable).first()`.
        """
        return Mono(lambda: cast("Awaitable[A | Empty]", resolve_source("from_observable", source)))

    @overload
    @staticmethod
    def wrap(value: Observable[A]) -> Mono[A]: ...
    @overload
    @staticmethod
    def wrap(value: Awaitable[A]) -> Mono[A]: ...
    @overload
    @staticmethod
    def wrap(value: A) -> Mono[A]: ...
    @staticmethod
    def wrap(value: object) -> Mono[Any]:
        """A mono of an observable's last value, an awaitable or a plain value; a mono is returned unchanged."""
        if isinstance(value, Mono):
            return cast("Mono[Any]", value)
        if isinstance(value, Observable):
            return Mono.from_observable(cast("Observable[Any]", value))
        if isinstance(value, Awaitable):
            return Mono.from_awaitable(cast("Awaitable[Any]", value))
        return Just(value)

    # ---- one value

    def map(self, mapper: Callable[[T_co], B]) -> Mono[B]:
        """The value, transformed by a plain function."""
        plain_function("map", mapper, "flat_map")
        return StepMono(self, _MAP, mapper, "map")

    @overload
    def flat_map(self, mapper: Callable[[T_co], Source[B]]) -> Mono[B]: ...
    @overload
    def flat_map(self, mapper: None = None) -> Mono[object]: ...
    def flat_map(self, mapper: Callable[[T_co], Source[Any]] | None = None) -> Mono[Any]:
        """The value of the source that `mapper` returns: a Mono, an awaitable (`async def` is fine), an observable."""
        return StepMono(self, _FLAT_MAP, identity if mapper is None else mapper, "flat_map")

    def filter(self, predicate: Callable[[T_co], object]) -> Mono[T_co]:
        """The value if the predicate holds, else empty."""
        plain_function("filter", predicate, "flat_map")
        return StepMono(self, _MAP, lambda value: value if predicate(value) else EMPTY, "filter")

    def tap(
        self,
        on_next: Callable[[T_co], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        on_completed: Callable[[], object] | None = None,
    ) -> Mono[T_co]:
        """Observe the value, the failure or the completion without changing them."""
        if on_next is not None and on_error is None and on_completed is None:
            plain_function("tap", on_next, "flat_map")
            return StepMono(self, _TAP_VALUE, on_next, "tap")
        return StepMono(self, _TAP, _Watcher(on_next, on_error, on_completed), "tap")

    @overload
    def default_if_empty(self, default_value: A) -> Mono[T_co | A]: ...
    @overload
    def default_if_empty(self) -> Mono[T_co | None]: ...
    def default_if_empty(self, default_value: Any = None) -> Mono[Any]:
        """The value, or `default_value` if there is none."""
        return StepMono(self, _IF_EMPTY, lambda _: Just(default_value), "default_if_empty")

    def switch_if_empty(self, other: Source[A]) -> Mono[T_co | A]:
        """The value, or the value of `other` if there is none."""
        second = check_source("switch_if_empty", other)
        return StepMono(self, _IF_EMPTY, lambda _: second, "switch_if_empty")

    def ignore_elements(self) -> Mono[Never]:
        """Only the completion or the failure; the value is discarded."""
        return StepMono(self, _MAP, lambda _: EMPTY, "ignore_elements")

    def then(self, other: Source[A]) -> Mono[A]:
        """The value of `other`, which runs after this mono. This mono's value is discarded; its failure is raised."""
        second = check_source("then", other)
        return StepMono(self, _THEN, lambda _: second, "then")

    # ---- several sources

    @overload
    def zip(self, second: Source[B], /) -> Mono[tuple[T_co, B]]: ...
    @overload
    def zip(self, second: Source[B], third: Source[C], /) -> Mono[tuple[T_co, B, C]]: ...
    @overload
    def zip(self, *sources: Source[Any]) -> Mono[Any]: ...
    def zip(self, *sources: Source[Any]) -> Mono[Any]:
        """The values of all sources, which run at the same time. Empty if one is empty; a failure cancels the others.

        Example:
            >>> await Mono.zip(Mono.just(1), Mono.just("one"))
            (1, 'one')
        """
        return _zip(self, *sources)

    def amb(self, right_source: Source[A], *sources: Source[A]) -> Mono[T_co | A]:
        """The source that signals first (value, completion or failure). The others are then cancelled."""
        return _amb(self, right_source, *sources)

    def as_flux(self) -> Flux[T_co]:
        """The value as a stream of at most one item."""
        return self.flux_type(self.open)

    def flat_map_many(self, mapper: Callable[[T_co], Source[B]]) -> Flux[B]:
        """All items of the source that `mapper` returns for the value."""
        return self.as_flux().concat_map(mapper)

    # ---- failures

    def catch(
        self, handler: Observable[A] | Awaitable[A] | Callable[[Exception, Mono[T_co]], Source[A]]
    ) -> Mono[T_co | A]:
        """After a failure, the value of the source that `handler(error, source)` returns, or of a second source.

        Cancellation and other `BaseException`s are not failures and are not caught.

        Example:
            >>> await Mono.error(OSError()).catch(lambda error, source: Mono.just("offline"))
            'offline'
        """
        if isinstance(handler, Observable | Awaitable):
            second = cast("Source[A]", handler)
            return StepMono(self, _CATCH, lambda _: second, "catch")
        return StepMono(self, _CATCH, lambda error: handler(error, self), "catch")

    def retry(self, retry_count: int | None = None) -> Mono[T_co]:
        """Run until it succeeds, at most `retry_count` times in total (the first run counts, as in reactivex)."""
        positive("retry", "retry_count", retry_count)

        async def run() -> T_co | Empty:
            attempt = 0
            while True:
                attempt += 1
                try:
                    return await self.resolve()
                except Exception:
                    if attempt == retry_count:
                        raise
                await asyncio.sleep(0)  # a source that fails without suspending should not lock up the loop

        return Mono(run)

    def finally_action(self, action: Callable[[], object]) -> Mono[T_co]:
        """Call (or await) `action` when the run has ended: completed, failed or cancelled."""

        async def run() -> T_co | Empty:
            try:
                return await self.resolve()
            finally:
                result = action()
                if isinstance(result, Awaitable):
                    await cast("Awaitable[object]", result)

        return Mono(run)

    # ---- time

    def timeout(
        self,
        duetime: datetime | timedelta | float,
        other: Source[A] | None = None,
        scheduler: abc.SchedulerBase | None = None,
    ) -> Mono[T_co | A]:
        """Fail with `SourceTimeoutError` (or switch to `other`) if there is no value within `duetime`.

        A `TimeoutError` raised by the source itself is an ordinary failure. With a scheduler, reactivex's own operator
        runs.
        """
        if scheduler is not None:
            return Mono.from_observable(super().timeout(duetime, cast("Observable[T_co]", other), scheduler))
        due = duetime if isinstance(duetime, datetime) else seconds_of("timeout", duetime)
        name, second = timed.label("timeout", due), cast("Source[T_co | Empty] | None", other)
        return Mono(lambda: timed.limit_value(self.resolve, due, name, "no value came", second))

    def deadline(self, seconds: float | timedelta) -> Mono[T_co]:
        """Fail with `SourceTimeoutError` if the work takes longer than `seconds`; the same as `timeout` for one value."""
        limit = seconds_of("deadline", seconds)
        return Mono(
            lambda: timed.limit_value(self.resolve, limit, f"deadline({limit:g})", "the source did not end", None)
        )

    def delay(self, duetime: timedelta | float, scheduler: abc.SchedulerBase | None = None) -> Mono[T_co]:
        """The value, delayed by `duetime`."""
        if scheduler is not None:
            return Mono.from_observable(super().delay(duetime, scheduler))
        seconds = seconds_of("delay", duetime)

        async def run() -> T_co | Empty:
            value = await self.resolve()
            if value is not EMPTY:
                await asyncio.sleep(seconds)
            return value

        return Mono(run)

    def delay_subscription(
        self, duetime: datetime | timedelta | float, scheduler: abc.SchedulerBase | None = None
    ) -> Mono[T_co]:
        """Start the work after a duration, or at a point in time."""
        if scheduler is not None:
            return Mono.from_observable(super().delay_subscription(duetime, scheduler))
        due = duetime if isinstance(duetime, datetime) else seconds_of("delay_subscription", duetime)

        async def run() -> T_co | Empty:
            await asyncio.sleep(seconds_until(due) if isinstance(due, datetime) else due)
            return await self.resolve()

        return Mono(run)

    # ---- threads

    def subscribe_on(self, scheduler: abc.SchedulerBase) -> Mono[T_co]:
        """Run the blocking callable at the start of this chain on `threads()`. The links after it run on the loop.

        Context variables are copied into the thread. A thread cannot be interrupted: a cancellation only stops the wait
        for the thread.
        """
        if not isinstance(scheduler, Threads):
            return Mono.from_observable(super().subscribe_on(scheduler))
        links: list[StepMono[Any]] = []
        head = _unwind(self, links)
        if not isinstance(head, _CallableMono):
            raise UsageError(
                f"subscribe_on(threads()) on a {type(head).__name__} that does not begin with Mono.from_callable(): "
                "only a plain blocking function can move to a thread; asynchronous work already leaves the loop free"
            )
        function: Callable[[], Any] = head.function
        chain: Mono[Any] = Mono(lambda: scheduler.call(function))  # monos are immutable, so the links are built again
        for link in reversed(links):
            chain = StepMono(chain, link.kind, link.function, link.operator)
        return chain


class Just(Mono[T_co], Generic[T_co]):
    """A mono of an existing value. Code can recognise it by its exact type, and read its `value`."""

    def __init__(self, value: T_co) -> None:
        self.value = value

    def resolve(self) -> Awaitable[T_co | Empty]:
        """Return an awaitable of the value; it never suspends."""
        return self

    def __await__(self) -> Generator[Any, None, T_co]:
        return self.value
        yield  # the `yield` makes this function a generator


class _CallableMono(Mono[T_co], Generic[T_co]):
    """A mono of a plain function, which `subscribe_on` can move to a thread."""

    def __init__(self, function: Callable[[], T_co]) -> None:
        self.function = function

    async def resolve(self) -> T_co | Empty:
        return self.function()


# ---- the chain


class StepMono(Mono[T_co], Generic[T_co]):
    """One link of a chain, applied to the result of the previous link."""

    def __init__(self, upstream: Mono[Any], kind: int, function: Callable[[Any], Any], operator: str) -> None:
        self.upstream = upstream
        self.kind = kind
        self.function = function
        self.operator = operator

    def resolve(self) -> Awaitable[T_co | Empty]:
        """Run the whole chain."""
        return _run_links(self)


def mono_steps_over(mono: Mono[Any], source: Mono[Any]) -> list[Callable[[Any], Any]] | None:
    """Return the functions that a mono applies to the value of `source`, in order; see `flux.steps_over`.

    After a function that returns `EMPTY`, there is no value for the later functions.
    """
    steps: list[Callable[[Any], Any]] = []
    node: Mono[Any] | None = mono
    while node is not source:
        if type(node) is StepMono:
            link: StepMono[Any] = node  # pyright: ignore[reportUnknownVariableType] - of any value
            if link.kind == _MAP:
                steps.append(link.function)
            elif link.kind == _TAP_VALUE:
                steps.append(side_effect(link.function))
            else:
                return None
            node = link.upstream
        elif node is None:
            return None
        else:
            node = node.inner
    steps.reverse()
    return steps


class _Watcher:
    """The three callbacks of `tap`."""

    __slots__ = ("completed", "error", "next")

    def __init__(
        self,
        on_next: Callable[[Any], object] | None,
        on_error: Callable[[Exception], object] | None,
        on_completed: Callable[[], object] | None,
    ) -> None:
        for callback in (on_next, on_error, on_completed):
            if callback is not None:
                plain_function("tap", callback, "flat_map")
        self.next = on_next
        self.error = on_error
        self.completed = on_completed

    def __call__(self, value: Any) -> Any:
        if value is not EMPTY and self.next is not None:
            self.next(value)
        if self.completed is not None:
            self.completed()
        return value


def _unwind(mono: Mono[Any], links: list[StepMono[Any]]) -> Mono[Any]:
    """Push a chain's links, so that the link to run first is popped first. Return the source of the chain."""
    while True:
        if type(mono) is StepMono:
            link = cast("StepMono[Any]", mono)
            links.append(link)
            mono = link.upstream
        elif mono.inner is not None:  # it only wraps another mono, so the links of both form one chain
            mono = mono.inner
        else:
            return mono


async def _run_links(chain: Mono[Any]) -> Any:
    """Run a chain link by link.

    If a link returns another chain, that chain's links are put on the same stack instead of being awaited inside the
    link, so only memory limits the depth. `failure` is set while the loop looks for a link that catches an error.
    """
    links: list[StepMono[Any]] = []
    failure: Exception | None = None
    value: Any = EMPTY
    following: Any = chain  # the source to run next; None while links are applied to `value`
    operator = ""  # the link that returned `following`, for its error
    try:
        while True:
            if following is not None:
                try:
                    # Exact types, since isinstance() with an abstract class costs as much as the link itself.
                    if type(following) is StepMono:
                        following = _unwind(cast("StepMono[Any]", following), links)
                    if type(following) is Just:
                        value = cast("Just[Any]", following).value
                    else:
                        value = await resolve_source(operator, following)
                except Exception as error:
                    failure = error
                following = None
            if not links:
                break
            link = links.pop()
            kind, operator = link.kind, link.operator
            try:
                if failure is not None:
                    if kind == _CATCH:
                        caught, failure = failure, None
                        following = _source_of(operator, link.function(caught))
                        value = EMPTY
                    elif isinstance(link.function, _Watcher) and link.function.error is not None:
                        link.function.error(failure)  # only `tap` observes a failure; other links are skipped
                elif (kind == _MAP and value is not EMPTY) or kind == _TAP:
                    value = link.function(value)
                elif kind == _TAP_VALUE and value is not EMPTY:
                    link.function(value)
                elif kind == _THEN or (kind == _IF_EMPTY and value is EMPTY):
                    following = link.function(value)
                elif kind == _FLAT_MAP and value is not EMPTY:
                    following = _source_of(operator, link.function(value))
            except Exception as error:
                failure = error
        if failure is not None:
            raise failure
        return value
    finally:
        caught = failure = None  # their tracebacks refer to this frame, in a cycle


def _source_of(operator: str, result: object) -> object:
    if result is None:  # a missing `return`; in `_run_links`, None means that no source follows
        raise not_a_source(operator, result)
    return result


def _zip(*sources: Source[Any]) -> Mono[Any]:
    return Mono(lambda: _first_of(many.zip_rows(sources)))


def _amb(*sources: Source[A]) -> Mono[A]:
    return Mono(lambda: cast("Awaitable[A]", _first_of(many.amb(sources))))


async def _first_of(iterator: AsyncIterator[Any]) -> Any:
    try:
        return await anext(iterator, EMPTY)
    finally:
        await close(iterator)


async def _nothing() -> Any:
    return EMPTY


async def _never() -> Never:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable")


_NONE: Just[None] = Just(None)
_EMPTY_MONO: Mono[Never] = Mono(_nothing)
