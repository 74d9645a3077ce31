"""The common base of Mono and Flux: a lightweight reactivex Observable, `subscribe`, `pipe`, and the start of a run.

Rules:

1. Publishers are cold: every subscription, await or iteration is a new run.
2. `open()` and `resolve()` are the two ways to start a run; all operators, `subscribe` and `pipe` are built on them.
3. `subscribe` has reactivex's parameters and returns our own `Subscription`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from abc import abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, ClassVar, Never, TypeVar, cast

from reactivex import Observable, abc
from reactivex.scheduler.eventloop import AsyncIOScheduler

from agentflow.errors import NotIterableError, UsageError
from agentflow.reactive.bridge import LoopScheduler, drain, last_value
from agentflow.reactive.iterators import SingleIterator, close
from agentflow.reactive.subscription import Pump, Subscription, running_loop

if TYPE_CHECKING:
    from agentflow.reactive.signals import Empty

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Source = Observable[T] | Awaitable[T]
"""A source for an operator: a Mono or Flux, any observable, or an awaitable (which runs once)."""


class Publisher(Observable[T_co]):
    """The common base of `Mono` and `Flux`; not for direct use."""

    _instead: ClassVar[str] = ""
    """Text that says where a missing attribute can be found; it is added to the error."""

    if TYPE_CHECKING:
        __iter__: None  # so that type checkers report a plain `for`
    else:

        def __init__(self) -> None:
            """Skip `Observable.__init__`: its lock alone costs four times as much as the rest of a Mono."""

        def __getattr__(self, name: str) -> object:
            # Called only for attributes that Observable's __init__ would have set, such as the lock, which reactivex's
            # own operators need.
            if name == "lock":
                self.lock = lock = threading.RLock()
                return lock
            if name == "_subscribe":
                return None
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{self._instead}")

        def __iter__(self) -> Never:
            # Without this, a plain `for` would call Observable's __getitem__ with 0, 1, ... indefinitely.
            raise NotIterableError(type(self).__name__)

    @abstractmethod
    def open(self) -> AsyncIterator[T_co]:
        """Start a run as a bare iterator, which the caller must close. User code uses `async for` or `async with`."""

    @abstractmethod
    def resolve(self) -> Awaitable[T_co | Empty]:
        """Start a run for its (last) value; `EMPTY` if there is none."""

    def subscribe(
        self,
        on_next: abc.ObserverBase[T_co] | Callable[[T_co], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        on_completed: Callable[[], object] | None = None,
        *,
        scheduler: abc.SchedulerBase | None = None,
    ) -> Subscription:
        """Start a run that pushes into callbacks or an observer.

        Inside a running loop the run is a task of that loop, with the caller's context variables; otherwise it runs on
        a background thread. The next item is only pulled after `on_next` returned (a coroutine function is awaited).

        Args:
            on_next: A function that is called with each item. Or an observer, whose three methods are then used.
            on_error: Called once if the source fails. Without it the error goes to the loop's exception handler.
            on_completed: Called once when the source has completed.
            scheduler: An `AsyncIOScheduler` selects the loop to run on; other schedulers are ignored.

        Returns:
            The subscription: `dispose()` cancels, `await closed()` waits for cleanup.

        Example:
            >>> Flux.of(1, 2).subscribe(print, on_error=print)
        """
        # Like reactivex, accepts any object with this method.
        if isinstance(on_next, abc.ObserverBase) or hasattr(on_next, "on_next"):
            observer = cast("abc.ObserverBase[T_co]", on_next)
            on_next, on_error, on_completed = observer.on_next, observer.on_error, observer.on_completed
        callback = cast("Callable[[T_co], object] | None", on_next)
        subscription = Subscription()
        if isinstance(scheduler, LoopScheduler):
            scheduler.adopt(subscription)  # a foreign observable subscribes: the bridge waits for this run's cleanup
        # reactivex's scheduler has no public attribute for its loop.
        loop = cast("asyncio.AbstractEventLoop | None", getattr(scheduler, "_loop", None))
        subscription.start(
            self._pump(callback, on_error, on_completed), loop if isinstance(scheduler, AsyncIOScheduler) else None
        )
        return subscription

    def _subscribe_core(
        self, observer: abc.ObserverBase[T_co], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        return self.subscribe(observer, scheduler=scheduler)

    def _pump(
        self,
        on_next: Callable[[T_co], object] | None,
        on_error: Callable[[Exception], object] | None,
        on_completed: Callable[[], object] | None,
    ) -> Pump:
        async def pump(subscription: Subscription) -> None:
            iterator = self.open()
            try:
                while not subscription.is_disposed:
                    try:
                        value = await anext(iterator)
                    except StopAsyncIteration:
                        await _call(on_completed)
                        return
                    # A failure of the source. An error of `on_next` ends the task instead, and the subscription reports it.
                    except Exception as error:
                        _report(error, self) if on_error is None else await _call(on_error, error)
                        return
                    # Checked again: it may have been disposed during the read, and nothing may be delivered after that.
                    if on_next is not None and not subscription.is_disposed:
                        await _call(on_next, value)
            finally:
                await close(iterator)

        return pump


async def _call(callback: Callable[..., object] | None, *arguments: object) -> None:
    if callback is not None:
        result = callback(*arguments)
        if result is not None and inspect.isawaitable(result):  # None first: `isawaitable` is slow
            await result


def _report(error: Exception, source: object) -> None:
    asyncio.get_running_loop().call_exception_handler(
        {
            "message": f"a subscribed {type(source).__name__} failed, and subscribe() was given no on_error handler",
            "exception": error,
        }
    )


def refuse_running_loop(method: str) -> None:
    """Raise a `UsageError` if waiting would block a running loop indefinitely."""
    if running_loop() is not None:
        raise UsageError(
            f"{method}() inside a running event loop would block the loop that has to do the work; "
            "use `await` (or `async for`) here"
        )


def open_source(operator: str, source: object) -> AsyncIterator[object]:
    """Iterate a source that a user's function returned to an operator. Other values raise a `UsageError`."""
    if isinstance(source, Publisher):
        return cast("Publisher[object]", source).open()
    if isinstance(source, Observable):
        return drain(cast("Observable[object]", source))
    if isinstance(source, Awaitable):
        awaitable = cast("Awaitable[object]", source)
        return SingleIterator(lambda: awaitable)
    if isinstance(source, AsyncIterable):
        return aiter(cast("AsyncIterable[object]", source))
    raise not_a_source(operator, source)


def resolve_source(operator: str, source: object) -> Awaitable[object]:
    """Return an awaitable of the value (or `EMPTY`) of a source that a user's function returned to an operator."""
    if isinstance(source, Publisher):
        return cast("Publisher[object]", source).resolve()
    if isinstance(source, Observable):
        return last_value(cast("Observable[object]", source))
    if isinstance(source, Awaitable):
        return cast("Awaitable[object]", source)
    raise not_a_source(operator, source)


def check_source(operator: str, source: Source[T]) -> Source[T]:
    """Return a source that was passed to an operator. Other values raise a `UsageError`."""
    if not isinstance(cast("object", source), Observable | Awaitable):
        raise not_a_source(operator, source)
    return source


def not_a_source(operator: str, source: object) -> UsageError:
    """Return the error for a value that an operator got instead of a source."""
    return UsageError(
        f"{operator}() got {source!r:.80} ({type(source).__name__}); use a Mono, a Flux, any reactivex "
        "Observable, or an awaitable. For a plain value use map(), or wrap it: Mono.just(value)"
    )
