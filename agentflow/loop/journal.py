"""The facts of a call: written to a store, if there is one, and applied to the machine before they take effect.

`append` adds facts; `request` adds facts of synchronous functions, with a later write if the store needs time; `flush`
writes injections that have waited; `announce` emits events for stored messages that are not part of another event.

Rules:

1. Facts are added only here. A fact that the machine refuses is not stored.
2. Messages injected while a call is being opened or a reply is being produced have no place in the history yet. They
   wait, and are written together with the fact that creates their place.
3. A cancellation waits for a write in progress, so that a decision that was shown is not lost.
4. With a store, a fact that another one follows directly is held, and both are written together; see `holding.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from agentflow._support.lazy import later
from agentflow.loop.emitting import Events
from agentflow.loop.machine import Machine, is_blank
from agentflow.loop.scope import RunScope
from agentflow.loop.session import FullSession
from agentflow.vocabulary.events import MessagesAdded, Origin
from agentflow.vocabulary.facts import CallClosed, CallOpened, Fact, Injected, Reasoned, RoundClosed, ToolDecided
from agentflow.vocabulary.messages import Msg

if TYPE_CHECKING:
    from agentflow.loop.stream import EventBuffer
    from agentflow.vocabulary.ports import memory_store
else:
    memory_store = later("agentflow.vocabulary.ports.memory_store")

__all__ = ["Journal", "StoredJournal", "wait_if_needed"]


class Journal:
    """The facts of a call in a session without a store.

    Args:
        session: The session.
        scope: The scope that can cancel the run.

    Attributes:
        facts: The run's facts, including those of its earlier calls.
        awaits_place: Whether messages that are injected now have no place in the history yet.
        unplaced: The injections that wait for their place.
        requested: Facts requested by synchronous functions and not written yet.
        unannounced: Stored messages that must be announced, with their origins.
        announcements: The number of `MessagesAdded` events in a row.
        announcing: The messages whose event is being emitted, with their origin. If the call is abandoned meanwhile, the
            event is emitted again for the remaining hooks; hooks that have received it may receive it twice.
    """

    __slots__ = (
        "_scope",
        "_session",
        "announcements",
        "announcing",
        "awaits_place",
        "facts",
        "machine",
        "requested",
        "unannounced",
        "unplaced",
    )

    def __init__(self, session: FullSession, scope: RunScope) -> None:
        self._session = session
        self._scope = scope
        self.machine = session.machine
        self.facts: list[Fact] = []
        # Until `CallOpened`: a message that a hook of PreCall injects is stored after the user's messages.
        self.awaits_place = True
        self.unplaced: tuple[Injected, ...] = ()
        self.requested: tuple[Fact, ...] = ()
        self.unannounced: tuple[tuple[tuple[Msg, ...], Origin], ...] = ()
        self.announcements = 0
        self.announcing: tuple[tuple[tuple[Msg, ...], Origin], ...] = ()

    def append(self, fact: Fact, *also: Fact, origin: Origin | None = None) -> Awaitable[None] | None:
        """Add facts, all or none.

        Args:
            fact: The fact to add.
            also: Facts to add with it.
            origin: The origin of the messages that are stored with the fact; `injected` by default. The message of a
                `RoundClosed` or `CallClosed` itself is announced only with an origin; otherwise an event contains it.

        Returns:
            An awaitable only if the store needs time.

        Raises:
            UsageError: The machine refuses a fact; none is added.
            StoreError: The store failed to write them.
        """
        if self.awaits_place and fact.__class__ in _PLACES:
            self.awaits_place = False
            if self.unplaced:
                also, self.unplaced = (*also, *self.unplaced), ()  # placed directly after this fact
        machine = self.machine
        if also:
            # All or none: after this check the machine accepts each of them.
            machine.check(fact, *also)
            self.append(fact, origin=origin)
            return self.append(*also)
        # `Machine.apply`, inlined because every fact passes here. An illegal fact raises here, before it is added.
        added = machine.state.row[fact.__class__](machine, fact)
        self.facts.append(fact)
        if added or origin:
            self._note_stored(fact, added, origin)
        return None

    def _note_stored(self, fact: Fact, added: tuple[Msg, ...], origin: Origin | None) -> None:
        """Note the messages that were stored with a fact, to announce them later."""
        if origin and isinstance(fact, RoundClosed | CallClosed):
            self.unannounced = (*self.unannounced, *[((msg,), origin) for msg in _stored_by(fact, self.machine)])
            origin = None  # the other messages are injections that have waited for this fact
        if added:
            self.unannounced = (*self.unannounced, (added, origin or "injected"))
        if isinstance(fact, Reasoned) and fact.follow_up:
            self.unannounced = (*self.unannounced, (fact.follow_up, "again"))

    def request(self, fact: Fact) -> None:
        """Add a fact for a synchronous function: at once if possible, otherwise with the next write."""
        if self.awaits_place and isinstance(fact, Injected):
            self.unplaced = (*self.unplaced, fact)
        else:
            self.append(fact)

    async def flush(self) -> None:
        """Write the injections that have waited. From here on they have a place in the history."""
        self.awaits_place = False
        while self.unplaced:
            fact, *rest = self.unplaced
            self.unplaced = tuple(rest)
            await wait_if_needed(self.append(fact))

    def write_held(self) -> Awaitable[None] | None:
        """Write held facts now, since no other fact follows directly. Return an awaitable only if the store needs time."""
        return None

    def pending_writes(self) -> Awaitable[None] | None:
        """Return an awaitable that waits for the writes in progress, such as those of an abandoned driver, or None."""
        return None

    async def announce(self, events: Events) -> None:
        """Emit `MessagesAdded` for stored messages that are not part of another event."""
        while self.unannounced:
            # One at a time, so that only this one is emitted again if the call is abandoned.
            self.announcing, self.unannounced = self.unannounced[:1], self.unannounced[1:]
            self.announcements += 1
            try:
                await events.emit(MessagesAdded, self.announcing[0])
            finally:
                self.announcing = ()
        if not self.requested:  # otherwise hooks of the events have injected more: count on, to detect an infinite loop
            self.announcements = 0

    def release(self) -> None:
        """Break reference cycles after the call."""


class StoredJournal(Journal):
    """The facts of a call in a session with a store: written first, then applied to the machine.

    Args:
        session: The session.
        scope: The scope that can cancel the run.
        place: Returns the running tool call's position in its round, or None outside tools.
        may_wait: Returns whether a fact may be written with the next one.
        buffer: Passes the run's events to its reader, which gets the event of a fact after the fact is stored;
            None if there is no reader, or facts never wait.
    """

    __slots__ = ("_buffer", "_may_wait", "_place")

    def __init__(
        self,
        session: FullSession,
        scope: RunScope,
        place: Callable[[], int | None],
        may_wait: Callable[[Fact], bool],
        buffer: EventBuffer | None,
    ) -> None:
        super().__init__(session, scope)
        self._place = place
        self._may_wait = may_wait
        self._buffer = buffer

    def write_held(self) -> Awaitable[None] | None:
        """Write held facts; see `Journal.write_held`."""
        link = self._session.link
        if link is None or not link.held:
            return None
        stored = link.record(self._session, ())
        if not isinstance(stored, list):
            return self._written((), stored, None, None, False)
        self._show_held()
        return None

    def _show_held(self) -> None:
        """Pass the events of facts that have been written to the reader."""
        if self._buffer is not None:
            self._buffer.show()

    def pending_writes(self) -> Awaitable[None] | None:
        """Wait for the writes in progress; see `Journal.pending_writes`."""
        link = self._session.link
        writing = None if link is None else link.pending_writes()
        return None if writing is None else self._written((), writing, None, None, False)

    def append(self, fact: Fact, *also: Fact, origin: Origin | None = None) -> Awaitable[None] | None:
        """Write and apply facts, all or none; or apply a single fact, and hold it for the next write. See
        `Journal.append`."""
        facts, link = (fact, *also), self._session.link
        placing = self.awaits_place and fact.__class__ in _PLACES
        # Only a single fact is held. Requested facts and facts with an origin are announced next, so hooks could see
        # messages that are not stored yet.
        requests = also or self.unplaced or self.requested or origin
        if link is not None and not requests and self._may_wait(fact):
            held = link.hold(self._session, fact)
            if held is not None:
                self.awaits_place = self.awaits_place and not placing  # only after the fact was accepted
                self._note_applied(facts, (held,), fact, None)
                # Not for a decision: its event was shown before, and parallel calls must still reach the reader meanwhile.
                if self._buffer is not None and fact.__class__ is not ToolDecided:
                    self._buffer.hold()
                return None
        if placing and self.unplaced:
            facts, self.unplaced = (*facts, *self.unplaced), ()
        if self.requested:
            # They come first, since they were requested before this fact.
            facts = (*self._take_requested(), *facts)
        stored = self._session.record(*facts)
        if not isinstance(stored, list):
            return self._written(facts, stored, fact, origin, placing)
        self._note_applied(facts, stored, fact, origin)
        self._show_held()
        if placing:
            self.awaits_place = False
        return None

    def _take_requested(self) -> tuple[Fact, ...]:
        """Remove and return the requested facts, in a tool call only its own and those that belong to no tool call."""
        place = self._place()
        # In a parallel round, the requests of another call wait for a fact of that call.
        facts = [fact for fact in self.requested if place is None or getattr(fact, "at", None) in (None, place)]
        self.requested = tuple([fact for fact in self.requested if fact not in facts])
        return tuple(facts)

    def _note_applied(
        self, facts: Sequence[Fact], added: Sequence[tuple[Msg, ...]], fact: Fact | None, origin: Origin | None
    ) -> None:
        """Add facts that were stored and applied to this journal. `added` are the messages stored with each."""
        self.facts.extend(facts)
        if any(added) or origin:
            for stored_fact, messages in zip(facts, added, strict=True):
                self._note_stored(stored_fact, messages, origin if stored_fact is fact else None)

    async def _written(
        self,
        facts: Sequence[Fact],
        write: Awaitable[list[tuple[Msg, ...]]],
        fact: Fact | None,
        origin: Origin | None,
        placing: bool,
    ) -> None:
        """Wait for the store. A cancellation is delayed, since a decision that was shown must not be lost.

        The cancellation is not raised here, so that the stored facts are added to the journal and announced. The run's
        next checkpoint raises it, or the task's next await if a time limit inside the run cancelled the task.
        """
        # A task of its own, which `asyncio.wait` does not cancel together with this task.
        writing = asyncio.ensure_future(write)
        cancellation: asyncio.CancelledError | None = None
        while not writing.done():
            try:
                await asyncio.wait([writing])
            except asyncio.CancelledError as error:
                cancellation = error
        self._show_held()  # even if the write has failed: the call ends, and the reader sees how
        self._note_applied(facts, writing.result(), fact, origin)
        task = asyncio.current_task()
        if cancellation is not None and task is not None and not self._scope.stopped:
            # No checkpoint will raise it, since the run is not stopped: request it again, without counting it twice.
            task.uncancel()
            task.cancel(*cancellation.args)
        if placing:
            await self.flush()

    def request(self, fact: Fact) -> None:
        """Add a fact for a synchronous function; see `Journal.request`."""
        if self.awaits_place and isinstance(fact, Injected):
            self.unplaced = (*self.unplaced, fact)
        elif type(self._session.store) is memory_store.MemoryStore:  # not `isinstance`, since a subclass may be slow
            self.append(fact)
        else:
            self.requested = (*self.requested, fact)

    async def flush(self) -> None:
        """Write waiting injections and requested facts."""
        await super().flush()
        while self.requested:
            *_, fact = self.requested
            self.requested = self.requested[:-1]
            await wait_if_needed(self.append(fact))  # together with earlier requests

    async def announce(self, events: Events) -> None:
        """Write requested facts, and announce stored messages that are not part of another event."""
        while self.unannounced or self.requested:
            if self.requested:
                await self.flush()
            await super().announce(events)

    def release(self) -> None:
        """Break reference cycles after the call: the functions refer to the run."""
        self._place = _nowhere
        self._may_wait = _never
        self._buffer = None


def _nowhere() -> None:
    return None


def _never(_fact: Fact) -> bool:
    return False


def _stored_by(fact: RoundClosed | CallClosed, machine: Machine) -> tuple[Msg, ...]:
    """Return the message that a closing fact has stored; nothing if its final message is blank."""
    if isinstance(fact, CallClosed):
        return () if fact.final is None or is_blank(fact.final) else (fact.final,)
    return (next(msg for msg in reversed(machine.transcript.messages) if msg.role == "tool"),)


async def wait_if_needed(writing: Awaitable[object] | None) -> None:
    """Wait for a write of `append`, or for another step that may need time."""
    if writing is not None:
        await writing


_PLACES = (Reasoned, CallOpened)
"""The facts that create a place for injections that wait."""
