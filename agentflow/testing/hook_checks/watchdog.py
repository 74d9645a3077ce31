"""Watch the loop's thread from another thread, to find code of hooks that blocks the loop.

Rules:

1. A sample is the position of the thread. The criterion is the time for which it sleeps at one instruction of the hook, or
   computes in one function of the hook within one turn of the loop.
2. Time in which the thread was ready but had no processor does not count. It is subtracted if the system reports it
   (`/proc/.../schedstat`); otherwise the limit for sleeping is five times as high, and computing is not limited.
3. A function of the hook is reported only if it blocked the loop in three turns.
4. A run counts as hanging if the thread has been idle for `patience` seconds within one turn of the loop; time in which it
   computes or waits for a processor does not count. A run that never ends, but is not idle, counts as hanging after six
   times `patience`.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate, repeat
from pathlib import Path
from types import FrameType
from typing import NamedTuple

_INTERVAL = 0.002  # seconds between two samples
_STARTS = threading.Thread.start.__code__
"""The code in which `asyncio.to_thread` waits until the new thread runs. A busy machine can delay this; the hook cannot."""
_ASLEEP = 0.02  # seconds that a thread may sleep at one position of the hook
_BUSY = 0.1  # seconds of processor time that the hook may use in one turn
_TURNS = 3  # rule 3
_LONG = 6  # a run may use this many times `patience` (rule 4)
_SAMPLING = threading.Lock()
"""Held during a sample: two samples at the same time could leave garbage collection off."""


class _ThreadPosition(NamedTuple):
    """The position of the thread.

    Attributes:
        turn: The loop's turn.
        inner: The innermost function and the offset of its instruction.
        owner: The innermost function of the hook, with its file.
        line: The line in that function.
        doing: The name of the innermost function.
    """

    turn: int
    inner: tuple[str, int]
    owner: str
    line: int
    doing: str


class _Times(NamedTuple):
    """Times of a thread: wall clock, processor time, and time ready without a processor; -1 if unknown."""

    wall: float
    busy: float
    waiting: float

    @property
    def used(self) -> float:
        """The time in which the thread was running, or waiting for anything except a processor."""
        return self.wall - max(self.waiting, 0.0)

    @property
    def idle(self) -> float:
        """The part of `used` in which the thread waited."""
        return self.used - max(self.busy, 0.0)


class Watchdog:
    """A thread that samples the position of another thread.

    Args:
        files: The source files of the hook's code.
    """

    def __init__(self, files: frozenset[str]) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._target: tuple[int, int, Callable[[], int], Callable[[bool], None], float] | None = None
        self._blocked: dict[str, list[tuple[int, int]]] = defaultdict(list)  # by function: the runs and turns
        self._descriptions: dict[str, str] = {}  # by function: how it blocked the loop first
        self._watched = 0  # the number of runs
        # The last position, the times of its first sample, and the number of its samples.
        self._since: tuple[_ThreadPosition, _Times, int] | None = None
        # The turn, the processor time when the function was first sampled in it, and the function.
        self._turn: tuple[int, float, str] | None = None
        # The turn, the idle time when it began, and how often the run was reported as hanging.
        self._idle_turn = (-1, 0.0, 0)
        self._began = 0.0  # the used time when the run began
        self._thread = threading.Thread(target=self._run, name="agentflow: watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def watch(
        self, ident: int, native: int, turns: Callable[[], int], hangs: Callable[[bool], None], patience: float
    ) -> None:
        """Watch a thread that runs a loop.

        Args:
            ident: The thread's `threading.get_ident()`.
            native: The thread's `threading.get_native_id()`.
            turns: Returns the number of the loop's turns so far.
            hangs: Called if the run hangs: first with False, and with True if it still hangs after another `patience`.
            patience: Seconds of idleness after which a run counts as hanging (rule 4).
        """
        with self._lock:
            self._watched += 1
            self._target = ident, native, turns, hangs, patience
            self._since = self._turn = None
            times = _times(native)
            self._began = times.used
            self._idle_turn = (-1, times.idle, 0)

    def release(self) -> None:
        """Stop watching the thread, because its loop has ended."""
        with self._lock:
            self._judge(None)
            self._target = None

    @property
    def blamed(self) -> dict[str, str]:
        """Return the functions of the hook that blocked the loop, each with a description."""
        with self._lock:
            return {
                owner: self._descriptions[owner] for owner, turns in self._blocked.items() if len(set(turns)) >= _TURNS
            }

    def _run(self) -> None:
        while not self._stopping.wait(_INTERVAL):
            with self._lock:
                if self._target is not None:
                    self._sample(self._target)

    def _sample(self, target: tuple[int, int, Callable[[], int], Callable[[bool], None], float]) -> None:
        ident, native, turns, hangs, patience = target
        turn = turns()
        self._count_patience(turn, _times(native), hangs, patience)
        position = self._position_of(turn, _frames(ident))
        before = self._since
        if before is not None and position is not None and position == before[0]:
            self._since = *before[:2], before[2] + 1
        else:
            self._judge(native)
            self._since = None if position is None else (position, _times(native), 1)
        self._count_work(turn, position, native)

    def _count_patience(self, turn: int, times: _Times, hangs: Callable[[bool], None], patience: float) -> None:
        idle_turn, since, reports = self._idle_turn
        if turn != idle_turn and not reports:
            idle_turn, since = turn, times.idle
        idle_too_long = times.idle - since > patience * (reports + 1)
        runs_too_long = times.used - self._began > patience * (_LONG + reports)
        if reports < 2 and (idle_too_long or runs_too_long):
            reports += 1
            hangs(reports == 2)
        self._idle_turn = idle_turn, since, reports

    def _position_of(self, turn: int, frames: list[FrameType]) -> _ThreadPosition | None:
        for frame in frames:
            if frame.f_code is _STARTS or frame.f_code.co_qualname == "BaseEventLoop._run_once":
                return None  # a thread is starting, or the loop itself waits (for threads, when it is closed)
            if frame.f_code.co_filename in self._files:
                name = frame.f_code.co_filename.rpartition("/")[2]
                doing = frames[0].f_code.co_qualname
                inner = doing, frames[0].f_lasti
                return _ThreadPosition(turn, inner, f"{frame.f_code.co_qualname} ({name})", frame.f_lineno, doing)
        return None

    def _judge(self, native: int | None) -> None:
        """Decide, after the thread has moved on, whether it was asleep at its last position."""
        before, self._since = self._since, None
        if before is None or before[2] < 3:  # with fewer samples, the thread may have left the position in between
            return
        position, began, _ = before
        if native is None:
            native = self._target[1] if self._target is not None else 0
        ended = _times(native)
        asleep = (ended.wall - began.wall) - (ended.busy - began.busy) - (ended.waiting - began.waiting)
        if asleep > (_ASLEEP if ended.waiting >= 0 else 5 * _ASLEEP):
            self._blame(
                position, f"line {position.line}: the loop was blocked while the thread waited in {position.doing}"
            )

    def _count_work(self, turn: int, position: _ThreadPosition | None, native: int) -> None:
        if position is None:
            return
        busy = _times(native).busy
        if self._turn is None or self._turn[0] != turn or self._turn[2] != position.owner:
            self._turn = turn, busy, position.owner
        elif busy - self._turn[1] > _BUSY:
            self._blame(position, f"line {position.line}: the loop was blocked while the hook computed")

    def _blame(self, position: _ThreadPosition, description: str) -> None:
        self._blocked[position.owner].append((self._watched, position.turn))
        self._descriptions.setdefault(position.owner, description)


def _frames(ident: int) -> list[FrameType]:
    """Return the frames of a running thread, innermost first.

    C code walks the stack in one step, so that the frames belong together. Garbage collection is off meanwhile: on Python
    3.11 it may run whenever a frame object is created, and a finalizer may then let the watched thread continue, so that the
    walk reads a frame that has ended: it sees another object, or the process crashes.
    """
    frames: list[FrameType | None] = []
    with _SAMPLING:
        collects = gc.isenabled()
        gc.disable()
        try:
            innermost = sys._current_frames().get(ident)  # pyright: ignore[reportPrivateUsage] - documented for this use
            with suppress(AttributeError):  # from the None after the outermost frame
                frames.extend(accumulate(repeat("f_back"), getattr, initial=innermost))
        finally:
            if collects:
                gc.enable()
    return [frame for frame in frames if isinstance(frame, FrameType)]


def _times(native: int) -> _Times:
    now = time.monotonic()
    try:
        busy, waiting, _ = Path(f"/proc/self/task/{native}/schedstat").read_text("ascii").split()
    except (OSError, ValueError):
        return _Times(now, -1.0, -1.0)
    return _Times(now, int(busy) / 1e9, int(waiting) / 1e9)
