"""A mono for a call, such as `agent.call("Hi")`, which warns if it is never used."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from reactivex import abc

from agentflow.reactive.mono import Mono
from agentflow.reactive.signals import Empty
from agentflow.reactive.subscription import Subscription

if TYPE_CHECKING:
    from types import TracebackType

T_co = TypeVar("T_co", covariant=True)


class CallMono(Mono[T_co], Generic[T_co]):
    """A mono for a call. If it is never used, it warns like a coroutine that was never awaited.

    Args:
        source: Starts one run, which is awaited at once.
        label: The call as written in the program, such as `agent.call('Hi')`, for the warning.
    """

    _instead: ClassVar[str] = ": it is a call that has not run. Await it, or .block() in plain code, and read the reply"

    def __init__(self, source: Callable[[], Awaitable[T_co]], label: str) -> None:
        self._work = source
        self._label = label
        self._used = False

    def resolve(self) -> Awaitable[T_co | Empty]:
        """Return an awaitable that starts a run when it is first awaited."""
        self._used = True
        return _begun_later(self._work)

    def __await__(self) -> Generator[Any, None, T_co]:
        """Start a run. A call always has a value, so its coroutine is awaited directly."""
        self._used = True
        return self._work().__await__()

    def subscribe(
        self,
        on_next: abc.ObserverBase[T_co] | Callable[[T_co], object] | None = None,
        on_error: Callable[[Exception], object] | None = None,
        on_completed: Callable[[], object] | None = None,
        *,
        scheduler: abc.SchedulerBase | None = None,
    ) -> Subscription:
        """Start a run that pushes into callbacks or an observer; see `Mono.subscribe`."""
        self._used = True
        return super().subscribe(on_next, on_error, on_completed, scheduler=scheduler)

    def block(self, timeout: float | timedelta | None = None) -> T_co:
        """Run to the end from synchronous code; see `Mono.block`."""
        self._used = True
        return super().block(timeout)

    def throw(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
        /,
    ) -> Any:
        """Raise inside this task's run. If the task is cancelled before its first step, there is no warning."""
        self._used = True
        try:
            return super().throw(typ, val, tb)
        finally:
            del typ, val, tb  # its traceback refers to this frame, in a cycle

    def close(self) -> None:
        """End this task's run. As with a coroutine, an explicit `close` does not warn."""
        self._used = True
        super().close()

    def __del__(self) -> None:
        if not getattr(self, "_used", True):  # `__init__` may have failed before it set the attribute
            warnings.warn(
                f"{self._label} was never awaited, so it did nothing; await it, or .subscribe() or .block()",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )


# Calling `source` acquires the session, so an awaitable that is never awaited must not call it.
async def _begun_later(source: Callable[[], Awaitable[T_co]]) -> T_co:
    return await source()
