"""Virtual time: an event loop whose clock jumps to the next timer instead of waiting for it.

Rules:

1. Nothing sleeps: when all tasks wait, the clock jumps to the next timer; an hour's delay takes no real time.
2. While a thread works (`to_thread`, `run_in_executor`), the loop waits for the next timer in real time, so that a timer
   never fires before the thread has had that much time.
3. Timers for the same time run in the order in which they were set; asyncio's heap has no fixed order for these, so that
   a replay could run them in another order than its recording.
4. If all tasks wait and there is no timer, file or thread of the loop, the loop is stuck. After half a minute, in which
   another thread might wake the loop, a `RuntimeError` shows the position of each task.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
import traceback
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextvars import Context

T = TypeVar("T")

# Up to this many seconds (46 days), floats can represent nanoseconds.
_FINE = 4e6
# Real seconds for which a loop without timers waits for a thread that it did not start.
_PATIENCE = 30.0
_NUMBERS = count()


class _JumpingSelector(selectors.DefaultSelector):
    """Polls instead of waiting, and adds up the saved time."""

    def __init__(self) -> None:
        super().__init__()
        self.saved = 0.0
        self.threads = 0
        self.patience = _PATIENCE

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:  # no timer is set, and no callback is ready
            idle = not self.threads and len(self.get_map()) <= 1  # the loop's own pipe
            ready = super().select(self.patience if idle else None)
            if not ready and idle:
                raise RuntimeError(f"Nothing more can happen: no timer is set, and these tasks wait:\n{_waiting()}")
            return ready
        # Rule 2: while a thread works, wait for the timer in real time.
        ready = super().select(timeout if self.threads else 0)
        if not ready and timeout > 0:
            self.saved += timeout
            if self.saved > _FINE:
                # The loop runs timers that are due within a nanosecond, which floats this large cannot represent.
                self.saved = math.nextafter(self.saved, math.inf)
        return ready


def _waiting() -> str:
    """Return the stacks of the loop's tasks, down to the innermost awaitable."""
    return "\n".join(
        f"{task.get_name()}:\n{''.join(traceback.format_list(_frames(task.get_coro())))}"
        for task in asyncio.all_tasks()
    )


def _frames(awaited: Any) -> list[traceback.FrameSummary]:
    found: list[traceback.FrameSummary] = []
    while awaited is not None:
        kind = next((kind for kind in ("cr", "ag", "gi") if hasattr(awaited, f"{kind}_frame")), None)
        frame = kind and getattr(awaited, f"{kind}_frame")
        if not frame:
            break
        found += traceback.extract_stack(frame, limit=1)
        inner = getattr(awaited, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
        awaited = frame.f_locals.get("coro") if inner is None else inner  # None in a generator that drives a coroutine
    return found


class _Timer(asyncio.TimerHandle):
    """A timer that runs after those that were set before it for the same time."""

    __slots__ = ("number",)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.number = next(_NUMBERS)

    def __lt__(self, other: asyncio.TimerHandle) -> bool:
        return (self.when(), self.number) < (other.when(), getattr(other, "number", -1))


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """An asyncio event loop in virtual time, which starts at 0.

    Example:
        >>> with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        ...     runner.run(asyncio.sleep(3600))  # returns at once
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual seconds since the loop was created."""
        return self._jumping.saved

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Set a timer. Those that were set for the same time before run first."""
        base: Any = self  # no public API
        base._check_closed()
        timer: Any = _Timer(when, callback, args, self, context)
        heapq.heappush(base._scheduled, timer)
        timer._scheduled = True  # as in asyncio's own `call_at`; `cancel` counts only such timers
        return timer

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a function in a thread; until it is done, timers take real time (rule 2)."""
        future = super().run_in_executor(executor, func, *args)
        self._jumping.threads += 1
        future.add_done_callback(self._thread_done)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads without a time limit; that of Python 3.12 would pass immediately in virtual time."""
        await super().shutdown_default_executor()

    def _thread_done(self, _future: asyncio.Future[Any]) -> None:
        self._jumping.threads -= 1


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new loop in virtual time.

    Args:
        main: The coroutine (or a Mono).

    Returns:
        The coroutine's result.

    Example:
        >>> run_virtual(Mono.just("late").delay(3600))
        'late'
    """
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)
