"""Run a coroutine in a new loop in virtual time, and record leaked tasks, generators and exceptions."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field
from types import AsyncGeneratorType, CodeType, FrameType
from typing import Any, Generic, TypeVar, cast

from agentflow._support.virtual_time import VirtualClockLoop
from agentflow.testing.hook_checks.watchdog import Watchdog

T = TypeVar("T")
_MAX_TURNS = 25
"""The number of loop turns in which a task must end after its run."""


class CheckLoop(VirtualClockLoop):
    """A virtual-time loop that counts its turns for the watchdog.

    Args:
        patience: The watchdog's patience in seconds.
    """

    def __init__(self, patience: float) -> None:
        self.turns = 0
        super().__init__()
        # Stuck tasks are the watchdog's to report: it cancels the run after `patience`, and stops it after twice that.
        self._jumping.patience = 3 * patience

    def time(self) -> float:
        """Return the time and count a turn: asyncio calls this at least once in each turn."""
        self.turns += 1
        return super().time()


class CheckClock:
    """The loop's virtual time in whole milliseconds, so that rounding errors do not depend on other waits."""

    def now(self) -> float:
        """Return the seconds since a fixed epoch."""
        return 1_750_000_000.0 + self.monotonic()

    def monotonic(self) -> float:
        """Return the loop's time."""
        return round(asyncio.get_running_loop().time(), 3)

    async def sleep(self, seconds: float) -> None:
        """Wait in virtual time."""
        await asyncio.sleep(seconds)


@dataclass(slots=True)
class WatchedResult(Generic[T]):
    """The result of running a coroutine.

    Attributes:
        value: The returned value; None if it failed or hung.
        error: The exception, if any.
        hung: The position at which the coroutine hung; empty if it ended.
        tasks: The tasks that outlived it, with their positions.
        generators: Async generators that were started and not closed.
        lost: Exceptions that were never retrieved.
    """

    value: T | None = None
    error: BaseException | None = None
    hung: str = ""
    tasks: list[str] = field(default_factory=list[str])
    generators: list[str] = field(default_factory=list[str])
    lost: list[str] = field(default_factory=list[str])


def position_text(code: CodeType, line: int | None = None) -> str:
    """Format a position in the source."""
    return f"{code.co_qualname} ({code.co_filename.rpartition('/')[2]}:{line or code.co_firstlineno})"


def stack(task: asyncio.Task[Any]) -> str:
    """Return the stack of a suspended task, outermost coroutine first."""
    found: list[str] = []
    coroutine: Any = task.get_coro()
    while coroutine is not None and len(found) < 40:  # awaitables could form a cycle
        frame = (
            getattr(coroutine, "cr_frame", None)
            or getattr(coroutine, "ag_frame", None)
            or getattr(coroutine, "gi_frame", None)
        )
        if frame is not None:
            found.append(position_text(frame.f_code, frame.f_lineno))
        coroutine = _inner(coroutine)
    return " > ".join(found) or task.get_name()


def _inner(coroutine: Any) -> Any:
    """Return the awaitable on which an awaitable is suspended."""
    for name in ("cr_await", "gi_yieldfrom", "ag_await"):
        if (inner := getattr(coroutine, name, None)) is not None:
            return inner
    if (
        type(coroutine).__name__ == "coroutine_wrapper"
    ):  # from `coroutine.__await__()`; it does not expose its coroutine
        return next(iter(gc.get_referents(coroutine)), None)
    return None


class _Generators:
    """Tracks every async generator started in this thread."""

    def __init__(self) -> None:
        # Weak, so that a generator which the hook drops is finalized as it would be outside the suite.
        self._started: list[weakref.ref[AsyncGeneratorType[Any, Any]]] = []
        self.dropped: list[str] = []
        self._before = sys.get_asyncgen_hooks()

    def install(self) -> None:
        """Install asyncgen hooks; the loop's own are still called."""
        before = self._before = sys.get_asyncgen_hooks()

        def first(generator: AsyncGenerator[Any, Any]) -> None:
            self._started.append(weakref.ref(cast("AsyncGeneratorType[Any, Any]", generator)))
            if before.firstiter is not None:
                before.firstiter(generator)

        def last(generator: AsyncGenerator[Any, Any]) -> None:
            self.dropped.append(_generator(cast("AsyncGeneratorType[Any, Any]", generator)))
            if before.finalizer is not None:
                before.finalizer(generator)

        sys.set_asyncgen_hooks(first, last)

    def remove(self) -> None:
        """Restore the previous hooks."""
        sys.set_asyncgen_hooks(*self._before)

    def unclosed(self) -> list[str]:
        """Return the generators that were started and neither exhausted nor closed."""
        alive = [generator for ref in self._started if (generator := ref()) is not None]
        return [*self.dropped, *(_generator(generator) for generator in alive if generator.ag_frame is not None)]


def _generator(generator: AsyncGeneratorType[Any, Any]) -> str:
    frame: FrameType | None = generator.ag_frame
    return position_text(generator.ag_code, None if frame is None else frame.f_lineno)


def run_watched(work: Callable[[], Coroutine[Any, Any, T]], watchdog: Watchdog, patience: float) -> WatchedResult[T]:
    """Run a coroutine until it ends, or the watchdog stops it.

    Args:
        work: Creates the coroutine.
        watchdog: Samples this thread while the loop runs.
        patience: Seconds of real time that this thread may be idle in one turn of the loop before the work counts as hung.
    """
    ran: WatchedResult[T] = WatchedResult()
    loop = CheckLoop(patience)
    loop.set_exception_handler(lambda _, context: ran.lost.append(_lost(context)))
    main = loop.create_task(_run_and_record(work, ran), name="the run")

    def hung(last: bool) -> None:
        ran.hung = ran.hung or "?"
        # First cancel, so that the positions of the tasks are recorded; if the run still hangs, stop the loop.
        if last:
            loop.stop()
        else:
            main.cancel()

    def hangs(last: bool) -> None:
        loop.call_soon_threadsafe(hung, last)

    watchdog.watch(threading.get_ident(), threading.get_native_id(), lambda: loop.turns, hangs, patience)
    try:
        loop.run_until_complete(main)
    except (RuntimeError, asyncio.CancelledError):  # only a hanging run is stopped or cancelled
        if not ran.hung:
            raise
    finally:
        watchdog.release()
        _close(loop)
    return ran


async def _run_and_record(work: Callable[[], Coroutine[Any, Any, T]], ran: WatchedResult[T]) -> None:
    """Run the work in a task of its own, and record its result and the tasks and generators that outlive it."""
    generators = _Generators()
    generators.install()
    try:
        doing = asyncio.get_running_loop().create_task(work(), name="work")
        try:
            await asyncio.wait([doing])
        except asyncio.CancelledError:
            waiting = asyncio.all_tasks() - {asyncio.current_task()}
            ran.hung = "; ".join(sorted(" > ".join(stack(task).split(" > ")[-2:]) for task in waiting))
            doing.cancel()
            await asyncio.wait([doing])
            raise
        if doing.cancelled():
            ran.error = asyncio.CancelledError()
        elif (error := doing.exception()) is not None:
            ran.error = error
        else:
            ran.value = doing.result()
        for _ in range(_MAX_TURNS):
            await asyncio.sleep(0)
        remaining = asyncio.all_tasks() - {cast("asyncio.Task[Any]", asyncio.current_task())}
        ran.tasks = [f"{task.get_name()!r} waits at {stack(task)}" for task in remaining]
        for task in remaining:
            task.cancel()
        if remaining:
            await asyncio.wait(remaining)
        ran.generators = generators.unclosed()
    finally:
        generators.remove()


def _lost(context: dict[str, Any]) -> str:
    return f"{context['message']}: {context.get('exception')!r}"


def _close(loop: CheckLoop) -> None:
    remaining = asyncio.all_tasks(loop)
    for task in remaining:
        task.cancel()
    if remaining:
        loop.run_until_complete(_wait_some_turns())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


async def _wait_some_turns() -> None:
    for _ in range(_MAX_TURNS):
        await asyncio.sleep(0)
