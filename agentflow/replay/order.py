"""The order of a recorded run: what came before what, over all its calls.

Rules:

1. Each event, request, beginning of work, chunk, injection and end of work has a place in one order, that of the log; so
   has the call of a hook beside which something else happened. A chunk stands where its time puts it, and before the hooks
   of its event: the log has it with its event, which hooks may have had for a while.
2. In a replay nothing happens before its turn. Of what models and tools give that is decided here; an event that comes
   early waits behind its hooks.
3. Whoever waits for something that never happens goes on when the recording's time is over, and the replay departs.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeAlias

from agentflow.replay.clock import ReplayClock
from agentflow.runlog.entries import MarkEntry

__all__ = ["Key", "Order", "Turns"]

Key: TypeAlias = tuple[str, str | int, int]
"""`("event", call, place in the call)`; of a reply's or a tool's work `("begun" | "over", n, 0)`, `("chunk", n, place)` and
`("mark", n, place)`; of an event's hooks `("mark", "call seq", place)`; of a cancellation from outside `("cut", call, 0)`."""

_PATIENCE = 1.0
"""Seconds without anything happening, after the recording's time, for which something waits for its turn."""
_LONGEST = 1e8
"""Seconds (three years): a log that places something later than that after anything else has a damaged time."""


class Order:
    """What happened in a recording, in order."""

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._times: list[float] = []
        self.places: dict[Key, int] = {}
        self.events: dict[tuple[str, str, str], list[Key]] = {}
        self.marks: dict[str, list[MarkEntry]] = {}
        self._seqs: dict[Key, int] = {}

    def add_event(self, call: str, place: int, kind: str, use: str, seq: int, time: float) -> None:
        """The next event: the number of its tool call tells it from those of others beside it."""
        key: Key = ("event", call, place)
        self._seqs[key] = seq
        self.events.setdefault((call, kind, use), []).append(key)
        self.add(key, time)

    def add_mark(self, mark: MarkEntry) -> None:
        """Where a hook begins, or injects something."""
        name = f"{mark.call} {mark.seq}"
        marks = self.marks.setdefault(name, [])
        self.add(("mark", name, len(marks)), mark.time)
        marks.append(mark)

    def marks_of(self, event: Key) -> tuple[str, list[MarkEntry]]:
        """What the hooks of an event did in the order, and the name by which their keys call it."""
        name = f"{event[1]} {self._seqs.get(event, 0)}"
        return name, self.marks.get(name, [])

    def add(self, key: Key, time: float) -> None:
        """The next thing that happened; of an event the time at which its hooks began."""
        self._keys.append(key)
        self._times.append(max(time, self._times[-1]) if self._times else time)

    def add_chunk(self, n: int, place: int, call: str, seq: int, time: float) -> None:
        """A chunk that a model or a tool gave: before what happened later and the hooks of its event, and after what came of
        the same work before."""
        at, name = len(self._keys), f"{call} {seq}"
        if name in self.marks:
            at = self._keys.index(("mark", name, 0))
        while at and self._times[at - 1] > time and self._keys[at - 1][1] != n:
            at -= 1
        self._keys.insert(at, ("chunk", n, place))
        self._times.insert(at, max(time, self._times[at - 1]) if at else time)

    def put_back(self, n: int, place: int, cut: Key) -> None:
        """A chunk that was given before a cancellation, and whose event came after it."""
        at = self._keys.index(cut)
        self._keys.insert(at, ("chunk", n, place))
        self._times.insert(at, self._times[at - 1] if at else self._times[at])

    def settle(self) -> None:
        """All is known."""
        self.places = {key: place for place, key in enumerate(self._keys)}
        for keys in self.events.values():
            keys.sort(key=self._seqs.__getitem__)  # as their hooks began

    def __len__(self) -> int:
        return len(self._keys)

    def wait_before(self, key: Key) -> float:
        """Seconds between what happened before something, and it."""
        place = self.places[key]
        return self._times[place] - self._times[place - 1] if place else 0.0

    def time_at(self, place: int) -> float:
        """When it had happened, at the latest."""
        return self._times[place]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)


class Turns:
    """How far a replay has come in an order.

    Args:
        order: The order.
        clock: The replay's time.
        free: Whether nothing has to wait any more: the replay has departed.

    Attributes:
        reached: Told of each cancellation that comes next.
    """

    def __init__(self, order: Order, clock: ReplayClock, free: Callable[[], bool]) -> None:
        self._order = order
        self._clock = clock
        self._free = free
        self._happened = bytearray(len(order))
        self._next = 0
        self._moved: asyncio.Future[None] | None = None
        self._events = {of: iter(keys) for of, keys in order.events.items()}
        self._marked: Counter[Key | int] = Counter()
        self._keys = list(order)
        self.reached: Callable[[Key], None] = lambda _: None

    @property
    def next_key(self) -> Key | None:
        """What comes next; None: all has happened."""
        return self._keys[self._next] if self._next < len(self._keys) else None

    def next_of(self, call: str, kind: str, use: str) -> Key | None:
        """The next event of a class, and of a tool call, in a call; None: the recording has no more."""
        return next(self._events.get((call, kind, use), iter(())), None)

    def next_mark(self, event: Key, what: str, hook: str) -> Key | None:
        """The next thing of a kind that a hook did with an event; what hooks did before is done, or does not happen."""
        name, marks = self._order.marks_of(event)
        for place in range(self._marked[event], len(marks)):
            if (marks[place].what, marks[place].hook) == (what, hook):
                for before in range(self._marked[event], place):
                    self.happened(("mark", name, before))
                self._marked[event] = place + 1
                return "mark", name, place
        return None

    def hooks_done(self, event: Key) -> None:
        """The hooks of an event are done: what they did in the recording, and have not done now, does not happen."""
        name, marks = self._order.marks_of(event)
        for place in range(self._marked[event], len(marks)):
            self.happened(("mark", name, place))

    def next_mark_of(self, n: int, known: int) -> Key | None:
        """The next injection or decision of a tool's work; None: the recording knows no more."""
        if self._marked[n] >= known:
            return None
        self._marked[n] += 1
        return "mark", n, self._marked[n] - 1

    def happened(self, key: Key) -> None:
        """It has happened, in its turn or not."""
        place = self._order.places.get(key)
        if place is None:
            return
        self._happened[place] = 1
        before = self._next
        while self._next < len(self._happened) and self._happened[self._next]:
            self._next += 1
        if self._next != before:
            self.wake()
            self.begin()

    def begin(self) -> None:
        """Tell of the cancellation that comes next, if one does."""
        key = self.next_key
        if key is not None and key[0] == "cut":
            self.reached(key)

    def wake(self) -> None:
        """Let those look again who wait."""
        moved, self._moved = self._moved, None
        if moved is not None and not moved.done():
            moved.set_result(None)

    def is_next(self, key: Key) -> bool:
        """Whether all that came before it has happened."""
        place = self._order.places.get(key)
        return place is None or place <= self._next or self._free()

    async def wait_for(self, key: Key) -> None:
        """Wait until it has happened."""
        place = self._order.places.get(key)
        if place is not None:
            await self._until(place, lambda: bool(self._happened[place]) or self._free())

    async def wait(self, key: Key) -> None:
        """Wait until all that came before it has happened."""
        if not self.is_next(key):
            await self._until(self._order.places.get(key, 0), lambda: self.is_next(key))

    async def _until(self, place: int, reached: Callable[[], bool]) -> None:
        patience = _PATIENCE
        while not reached():
            if self._moved is None:
                self._moved = asyncio.get_running_loop().create_future()
            before = self._next
            await asyncio.wait([self._moved], timeout=patience)
            # Longer each time that nothing moves: a damaged log may say that something comes in a thousand years.
            patience = _PATIENCE if self._next != before else 2 * patience
            late = self._clock.now() > self._order.time_at(place) + _PATIENCE
            if self._next == before and (late or patience > _LONGEST):
                return
