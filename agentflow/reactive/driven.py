"""Ways to run a mono: await it, drive it as a coroutine in a task, or block on it.

Rules:

1. Each `await`, and each task that drives the mono, has its own run.
2. A run is forgotten when it has succeeded or failed: driving the mono again runs the work again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast

from reactivex import abc

from agentflow._support.cancellation import running_task
from agentflow._support.lazy import later
from agentflow.reactive.piping import Piping
from agentflow.reactive.publisher import refuse_running_loop
from agentflow.reactive.signals import EMPTY, seconds_of

if TYPE_CHECKING:
    from types import TracebackType

    from agentflow.reactive.operators import timed
else:
    timed = later("agentflow.reactive.operators.timed")

T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")


class DrivenMono(Piping[T_co], Coroutine[Any, Any, T_co]):
    """The part of `Mono` that makes it a `collections.abc.Coroutine`."""

    _active_runs: dict[asyncio.Task[Any] | None, Generator[Any, Any, Any]] | None = None

    def __await__(self) -> Generator[Any, None, T_co]:
        value = yield from self.resolve().__await__()
        return cast("T_co", None) if value is EMPTY else value

    def send(self, value: Any, /) -> Any:
        """Advance this task's run; each task that drives the mono has its own run."""
        runs, driver = self._active_runs or self._runs(), running_task()
        run = runs.get(driver)
        if run is None:
            run = runs[driver] = self.__await__()
        try:
            return run.send(value)
        except BaseException:  # this run has ended: with a value (StopIteration) or a failure
            del runs[driver]
            raise

    def throw(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
        /,
    ) -> Any:
        """Raise inside this task's run."""
        # Like a coroutine, accepts an instance, or a class with or without one.
        error = typ if isinstance(typ, BaseException) else val if isinstance(val, BaseException) else typ()
        runs, driver = self._runs(), running_task()
        run = runs.get(driver)
        try:
            if run is None:  # no run has begun, and starting one now would acquire the session
                raise error if tb is None else error.with_traceback(tb)
            return run.throw(error if tb is None else error.with_traceback(tb))
        except BaseException:  # this run has ended, with any exception
            runs.pop(driver, None)
            raise
        finally:
            del typ, val, tb, error  # its traceback refers to this frame, in a cycle

    def close(self) -> None:
        """End this task's run, if there is one."""
        run = self._runs().pop(running_task(), None)  # removed first, as closing it may raise
        if run is not None:
            run.close()

    def _runs(self) -> dict[asyncio.Task[Any] | None, Generator[Any, Any, T_co]]:
        runs = self._active_runs
        if runs is None:
            runs = self._active_runs = {}
        return runs

    def block(self, timeout: float | timedelta | None = None) -> T_co:
        """Run to the end from synchronous code and return the value (None if there is none).

        Each call uses a new event loop, in this thread, with this thread's context variables.

        Args:
            timeout: Seconds after which the work is cancelled and `SourceTimeoutError` raised.

        Raises:
            UsageError: Called inside a running event loop, which it would block indefinitely.
        """
        refuse_running_loop("block")
        if timeout is None:
            return asyncio.run(_as_coroutine(self))
        limit = seconds_of("block", timeout)
        value = asyncio.run(timed.limit_value(self.resolve, limit, f"block({limit:g})", "the work did not end", None))
        return cast("T_co", None) if value is EMPTY else value

    def run(self, scheduler: abc.SchedulerBase | None = None) -> T_co:
        """Do the same as `block()`, under the name that reactivex uses."""
        return self.block()


async def _as_coroutine(mono: Awaitable[A]) -> A:
    return await mono
