"""The order of a recorded run, over all its calls.

Rules:

1. Each event, request, start of work, chunk, injection and end of work has a position in the order of the log. A hook's
   call has a position if another entry was written, or another event's hook was called, during the call. Otherwise it began
   directly before the next entry of its event. The log writes a chunk with its event, which hooks may have delayed, so a
   chunk is placed by its time, before the hooks of its event and of later events.
2. A replay performs each step in its turn. Models and tools wait here for their turn; an event that is early waits after
   its hooks.
3. If the steps before a step never happen, it is performed after its recorded time, and the replay diverges.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeAlias

from agentflow.loop.run import RunBase
from agentflow.recording.entries import HookEntry, MarkEntry
from agentflow.recording.replay.clock import PATIENCE, ReplayClock

__all__ = ["Key", "Order", "Progress", "cancel_again"]

Key: TypeAlias = tuple[str, str | int, int]
"""Identifies a step of the order:

- `("event", call, position)`: an event, by its position among the events of its call.
- `("begun", n, 0)` and `("over", n, 0)`: the start and the end of work `n`: a model's reply, or an execution of a tool.
- `("chunk", n, position)`: a chunk of work `n`.
- `("mark", n, position)`: an injection or a decision by work `n`.
- `("mark", "call seq", position)`: the start of a hook of an event, or an injection by it.
- `("failed", "call seq hook", position)`: the failure of a hook of an event.
- `("read", call, seq)`: the end of the wait for the reader of an event.
- `("cut", call, origin)`: a cancellation; `origin` is 0 from outside or by a hook or tool of the call, 1 for the tool calls
  parallel to one that failed, and 2 by the caller's run.
"""

_MAX_GAP = 1e8
"""Seconds (three years): a longer gap between the times of a log means that a time is damaged."""


class Order:
    """The steps of a recording, in order.

    Attributes:
        places: The position of each step.
        events: The events, by call, class and number of the tool call.
        cuts: The last cancellation of each call.
        unreached: The steps that a replay might not reach, by the cancellation of their call: the start and end of work
            that a task of an operator began between the cancellation and its delivery.
    """

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._times: list[float] = []
        self.places: dict[Key, int] = {}
        self.events: dict[tuple[str, str, str], list[Key]] = {}
        self._marks: dict[str, list[MarkEntry]] = {}
        self._marked: dict[str, list[tuple[int, Key]]] = {}  # the steps of hooks and their events' numbers, by call
        self._seqs: dict[Key, int] = {}
        self._failures: dict[str, list[Key]] = {}
        self.cuts: dict[str, Key] = {}
        self.unreached: dict[Key, list[Key]] = {}

    def add_event(self, call: str, position: int, kind: str, use: str, seq: int, time: float) -> None:
        """Add an event; the number of its tool call distinguishes it from concurrent events of the same class."""
        key: Key = ("event", call, position)
        self._seqs[key] = seq
        self.events.setdefault((call, kind, use), []).append(key)
        self.add(key, time)

    def add_mark(self, mark: MarkEntry) -> None:
        """Add the start of a hook, or an injection by it."""
        name = f"{mark.call} {mark.seq}"
        marks = self._marks.setdefault(name, [])
        key: Key = ("mark", name, len(marks))
        if not marks:
            insort(self._marked.setdefault(mark.call, []), (mark.seq, key))
        self.add(key, mark.time)
        marks.append(mark)

    def add_failure(self, entry: HookEntry) -> None:
        """Add the failure of a hook; hooks with the same name are numbered."""
        failures = self._failures.setdefault(f"{entry.call} {entry.seq}", [])
        name = f"{entry.call} {entry.seq} {entry.hook}"
        key: Key = ("failed", name, sum(known[1] == name for known in failures))
        failures.append(key)
        insort(self._marked.setdefault(entry.call, []), (entry.seq, key))
        self.add(key, entry.time)

    def failures_of(self, event: Key) -> list[Key]:
        """Return the failures of an event's hooks."""
        return self._failures.get(f"{event[1]} {self._seqs.get(event, 0)}", [])

    def marks_of(self, event: Key) -> tuple[str, list[MarkEntry]]:
        """Return the marks of an event's hooks, and the name used in their keys."""
        name = f"{event[1]} {self._seqs.get(event, 0)}"
        return name, self._marks.get(name, [])

    def seq(self, event: Key) -> int:
        """Return the recorded number of an event in its call."""
        return self._seqs.get(event, 0)

    def add(self, key: Key, time: float) -> None:
        """Add the next step; for an event, with the time at which its hooks started."""
        self._keys.append(key)
        # Times never decrease, since waits are computed from differences; the recording's clock may have been set back.
        self._times.append(max(time, self._times[-1]) if self._times else time)
        if key[0] == "cut":
            self.cuts[str(key[1])] = key

    def add_chunk(self, n: int, position: int, call: str, seq: int, time: float) -> None:
        """Insert a chunk: before later steps and the hooks of its event, after earlier steps of the same work."""
        at = self._before_hooks(call, seq)
        # The run took the chunk after this pause, although rounded times may be in the opposite order.
        paused: Key = ("read", call, seq - 1)
        while at and self._times[at - 1] > time and self._keys[at - 1][1] != n and self._keys[at - 1] != paused:
            at -= 1
        self._keys.insert(at, ("chunk", n, position))
        self._times.insert(at, max(time, self._times[at - 1]) if at else time)

    def add_chunk_before(self, cancellation: Key, n: int, position: int, call: str, seq: int) -> None:
        """Insert a chunk that was delivered before a cancellation, although its event follows it. The chunk is also placed
        before the hooks of its event."""
        at = min(self._keys.index(cancellation), self._before_hooks(call, seq))
        self._keys.insert(at, ("chunk", n, position))
        self._times.insert(at, self._times[at - 1] if at else self._times[at])

    def _before_hooks(self, call: str, seq: int) -> int:
        """Return the position before the hooks of an event and of the later events of its call."""
        # 0 in older logs, which lack the position of a chunk without an event.
        marked = self._marked.get(call, []) if seq else []
        first = {key for _, key in marked[bisect_left(marked, (seq,)) :]}
        at = found = len(self._keys)
        while first and at:
            at -= 1
            if self._keys[at] in first:
                first.discard(self._keys[at])
                found = at
        return found

    def settle(self) -> None:
        """Finish the order once all steps are added."""
        self.places = {key: position for position, key in enumerate(self._keys)}
        for keys in self.events.values():
            keys.sort(key=self._seqs.__getitem__)  # in the order in which their hooks started

    def __len__(self) -> int:
        return len(self._keys)

    def wait_before(self, key: Key) -> float:
        """Return the seconds between the previous step and this one."""
        position = self.places[key]
        return self._times[position] - self._times[position - 1] if position else 0.0

    def time_at(self, position: int) -> float:
        """Return the time of a position."""
        return self._times[position]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)


def cancel_again(task: asyncio.Task[Any], times: int) -> None:
    """Repeat cancellations of a task that were withdrawn because they came before their turn."""
    for _ in range(times):
        task.cancel()


class Progress:
    """The progress of a replay through the recorded order.

    Args:
        order: The recorded order.
        clock: The clock of the replay.
        free: Returns whether no step has to wait, because the replay has diverged.

    Attributes:
        free: Whether no step has to wait.
        on_cancellation: Called with the key of a cancellation when it is next.
        on_early_cancellation: Called when the turn of an early cancellation has come, with the task and the number of
            cancellations to repeat.
    """

    def __init__(self, order: Order, clock: ReplayClock, free: Callable[[], bool]) -> None:
        self._order = order
        self._clock = clock
        self.free = free
        # Steps can be done out of turn; `_next` is the first step that is not done.
        self._done_steps = bytearray(len(order))
        self._next = 0
        # One future for all waiting steps: each checks its own condition when any step is done.
        self._moved: asyncio.Future[None] | None = None
        self._events = {of: iter(keys) for of, keys in order.events.items()}
        # The number of marks already returned, by event or work, and of failures, by the first failure of a hook.
        self._marked: Counter[Key | int] = Counter()
        self._keys = list(order)
        self.on_cancellation: Callable[[Key], None] = lambda _: None
        self.on_early_cancellation: Callable[[asyncio.Task[Any], int], None] = cancel_again

    @property
    def next_key(self) -> Key | None:
        """The next key; None at the end."""
        return self._keys[self._next] if self._next < len(self._keys) else None

    def next_of(self, call: str, kind: str, use: str) -> Key | None:
        """Return the next event of a class, and of a tool call, in a call; None if the recording has no more."""
        return next(self._events.get((call, kind, use), iter(())), None)

    def next_mark(self, event: Key, what: str, hook: str) -> Key | None:
        """Return a hook's next mark of a kind for an event; skipped marks count as done."""
        name, marks = self._order.marks_of(event)
        for position in range(self._marked[event], len(marks)):
            if (marks[position].what, marks[position].hook) == (what, hook):
                for before in range(self._marked[event], position):
                    self.mark_done(("mark", name, before))
                self._marked[event] = position + 1
                return "mark", name, position
        return None

    def next_failure(self, event: Key, hook: str) -> Key | None:
        """Return the next failure of a hook at an event; None if the recording has no more."""
        name = f"{event[1]} {self._order.seq(event)} {hook}"
        keys = [key for key in self._order.failures_of(event) if key[1] == name]
        position = self._marked[keys[0]] if keys else 0
        if position >= len(keys):
            return None
        self._marked[keys[0]] += 1
        return keys[position]

    def next_step(self, event: Key) -> Key:
        """Return the next step of an event's hooks, or else the event itself: a hook without a mark began directly before
        it."""
        name, marks = self._order.marks_of(event)
        ahead: list[Key] = [("mark", name, position) for position in range(self._marked[event], len(marks))]
        ahead += [key for key in self._order.failures_of(event) if self.is_ahead(key)]
        return min([*ahead, event], key=lambda key: self._order.places.get(key, 0))

    def finish_hooks(self, event: Key) -> None:
        """Mark the hooks of an event as finished; marks that they did not reach count as done."""
        name, marks = self._order.marks_of(event)
        for position in range(self._marked[event], len(marks)):
            self.mark_done(("mark", name, position))
        for key in self._order.failures_of(event):
            self.mark_done(key)

    def next_mark_of(self, n: int, known: int) -> Key | None:
        """Return the next injection or decision of a tool's work; None if the recording has no more."""
        if self._marked[n] >= known:
            return None
        self._marked[n] += 1
        return "mark", n, self._marked[n] - 1

    def mark_done(self, key: Key) -> None:
        """Mark a step as done, in its turn or not."""
        position = self._order.places.get(key)
        if position is None:
            return
        for done in (key, *self._order.unreached.get(key, ())):
            self._done_steps[self._order.places[done]] = 1
        before = self._next
        while self._next < len(self._done_steps) and self._done_steps[self._next]:
            self._next += 1
        if self._next != before:
            self.wake()
            self.report_cancellation()

    def report_cancellation(self) -> None:
        """Report the cancellation that is next, if there is one."""
        key = self.next_key
        if key is not None and key[0] == "cut":
            self.on_cancellation(key)

    def wake(self) -> None:
        """Wake the waiting steps."""
        moved, self._moved = self._moved, None
        if moved is not None and not moved.done():
            moved.set_result(None)

    def is_ahead(self, key: Key) -> bool:
        """Return whether a step is in the recording and not done."""
        position = self._order.places.get(key)
        return position is not None and not self._done_steps[position]

    def is_next(self, key: Key) -> bool:
        """Return whether all earlier steps are done, so that a step may be performed."""
        position = self._order.places.get(key)
        return position is None or position <= self._next or self.free()

    async def wait(self, key: Key) -> None:
        """Wait until all earlier steps are done."""
        if not self.is_next(key):
            await self._until(self._order.places.get(key, 0), lambda: self.is_next(key))

    async def wait_for_start(self, call: str, use: str, run: RunBase, closed: Callable[[], bool]) -> None:
        """Wait until a tool call of a parallel round should start; if the recording has no start, until its run or round is
        stopped."""
        keys = self._order.events.get((call, "PreActing", use))
        if not keys:
            await self._until(len(self._keys) - 1, lambda: run.scope.stopped or closed() or self.free())
            run.scope.check()
            return
        seq = self._order.seq(keys[0])
        while True:
            try:
                await self._until(len(self._keys) - 1, lambda: run.events.seq >= seq - 1 or self.free())
                return
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or not run.scope.stopped or run.scope.tasks.late or self.free():
                    raise
                task.uncancel()  # the recorded call started nevertheless, so this one starts and ends at its next checkpoint

    async def shielded(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Call and await `wait`. A cancellation that comes before its turn, such as a race's, is raised in its turn."""
        task, early = asyncio.current_task(), 0
        while True:
            try:
                await wait()
                break
            except asyncio.CancelledError:
                # If the task has no cancellation request, other code raised this. Without an order, nothing has a turn.
                if not self._keys or self.free() or task is None or not task.cancelling():
                    raise
                early += 1
                task.uncancel()
        if early and task is not None:
            self.on_early_cancellation(task, early)

    async def wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait until a condition on the finished steps is true, or until the replay no longer makes progress."""
        await self._until(len(self._keys) - 1, lambda: reached() or self.free())

    async def _until(self, position: int, reached: Callable[[], bool]) -> None:
        """Wait until a condition is true. Without progress, stop waiting after the recorded time of `position` (rule 3)."""
        patience = PATIENCE
        while not reached():
            if self._moved is None:
                self._moved = asyncio.get_running_loop().create_future()
            # Compared after the wait: without progress, the recorded time decides how long to wait (rule 3).
            before = self._next
            await asyncio.wait([self._moved], timeout=patience)
            # Wait longer each time without progress: a damaged log may place a step a thousand years ahead.
            patience = PATIENCE if self._next != before else 2 * patience
            late = self._clock.now() > self._order.time_at(position) + PATIENCE
            if self._next == before and (late or patience > _MAX_GAP):
                return
