"""A call's facts: made true in the machine, and in the store where there is one, before they are acted on.

Four words: `append` makes facts true (`append_new` one whose fields are all at hand); `hold` keeps what a plain function
asks for until it can be; `flush` writes what is held; `announce` tells of stored messages that no other event carries.

Rules:

1. Facts become true nowhere else; what the machine refuses is kept nowhere.
2. What is injected while a call is being opened, or a reply being made, has no place yet: it is written with the fact that
   makes the place, all or none.
3. A cancellation waits for a write that is under way: what was decided and shown is not lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from agentflow.events import MessagesAdded, Origin
from agentflow.facts import CallClosed, CallOpened, Fact, Injected, Reasoned, RoundClosed, new_fact
from agentflow.loop.emitting import Events
from agentflow.loop.machine import Machine, is_blank
from agentflow.loop.scope import RunScope
from agentflow.loop.session import FullSession
from agentflow.messages import Msg
from agentflow.ports.store import MemoryStore

__all__ = ["Journal", "StoredJournal", "written"]

_INJECTED: Final = "injected"


class Journal:
    """The facts of a call in a session that no store keeps.

    Args:
        session: The session.
        scope: Whether the call was cancelled.

    Attributes:
        holding: Whether what is injected has no place yet.
        held: What has no place yet.
        asked: What plain functions have asked for, and the store has not been.
        landed: Stored messages that no event carries, with their origins.
        telling: How often such have been told of since there were none.
    """

    __slots__ = (
        "_facts",
        "_scope",
        "_session",
        "_unmade",
        "asked",
        "held",
        "holding",
        "landed",
        "machine",
        "telling",
    )

    def __init__(self, session: FullSession, scope: RunScope) -> None:
        self._session = session
        self._scope = scope
        self.machine = session.machine
        self._facts: list[Fact] = []
        self._unmade: list[Any] = []  # behind those: of each fact that nobody has read its kind, then its fields
        self.holding = True
        self.held: tuple[Injected, ...] = ()
        self.asked: tuple[Fact, ...] = ()
        self.landed: tuple[tuple[tuple[Msg, ...], Origin], ...] = ()
        self.telling = 0

    @property
    def facts(self) -> list[Fact]:
        """Those of the run, the calls that were suspended included."""
        facts, unmade = self._facts, self._unmade
        if unmade:
            pairs = iter(unmade)
            facts.extend([new_fact(kind, fields) for kind, fields in zip(pairs, pairs, strict=True)])
            unmade.clear()
        return facts

    def go_on(self, facts: list[Fact]) -> None:
        """Stand behind the facts of a run that goes on."""
        self._facts = facts

    def append_new(self, kind: type[Fact], fields: tuple[Any, ...]) -> Awaitable[None] | None:
        """Make a fact true of which all fields are given, in order: `append(new_fact(kind, fields))` at half the price.

        The machine folds the fields as they are; where no store wants the fact, it is made when somebody reads it.
        """
        if self.holding and (kind is Reasoned or kind is CallOpened):
            if self.held:
                return self.append(new_fact(kind, fields))
            self.holding = False
        machine = self.machine
        fold = machine.state.row.get(kind)
        if fold is None:
            return self.append(new_fact(kind, fields))  # refused there
        landed = fold(machine, fields)
        unmade = self._unmade
        unmade.append(kind)
        unmade.append(fields)
        if landed:
            self.landed = (*self.landed, (landed, _INJECTED))
        return None

    def append(self, fact: Fact, *also: Fact, origin: Origin = _INJECTED) -> Awaitable[None] | None:
        """Make facts true, all or none.

        Args:
            fact: The fact.
            also: Facts that are true with it.
            origin: Where messages come from that land with it; of the results of a round, and of a call's last message, which
                are announced only where this is said (else an event carries them).

        Returns:
            An awaitable only where the store needs time.

        Raises:
            UsageError: The machine refuses one: none is true.
            StoreError: The store did not keep them.
        """
        if self.holding and fact.__class__ in _PLACES:
            self.holding = False
            if self.held:
                also, self.held = (*also, *self.held), ()
        if also:
            self.machine.check(fact, *also)
        for one in (fact, *also):
            self._land(one, self.machine.apply(one), origin if one is fact else _INJECTED)
            self.facts.append(one)
        return None

    def _land(self, fact: Fact, landed: tuple[Msg, ...], origin: Origin) -> None:
        if origin is not _INJECTED and isinstance(fact, RoundClosed | CallClosed):
            self.landed = (*self.landed, *[((msg,), origin) for msg in _stored_by(fact, self.machine)])
            origin = _INJECTED  # what has waited for the fact lands behind that
        if landed:
            self.landed = (*self.landed, (landed, origin))
        if isinstance(fact, Reasoned) and fact.follow_up:
            self.landed = (*self.landed, (fact.follow_up, "again"))

    def hold(self, fact: Fact) -> None:
        """Make a fact true for a plain function: at once, or as soon as it has a place and the store has time."""
        if self.holding and isinstance(fact, Injected):
            self.held = (*self.held, fact)
        else:
            self.append(fact)

    async def flush(self) -> None:
        """Write what is held: there is a place for it now."""
        self.holding = False
        while self.held:
            fact, *rest = self.held
            self.held = tuple(rest)
            await written(self.append(fact))

    async def announce(self, events: Events) -> None:
        """Tell of stored messages that no other event carries."""
        while self.landed:
            (messages, origin), *rest = self.landed
            self.landed = tuple(rest)
            self.telling += 1
            await events.emit(MessagesAdded, (messages, origin))
        if not self.asked:
            self.telling = 0

    def let_go(self) -> None:
        """The call is over."""


class StoredJournal(Journal):
    """The facts of a call in a session that a store keeps: there first, then in the machine.

    Args:
        session: The session.
        scope: Whether the call was cancelled.
        place: Tells where in its round the tool call stands whose code is running; None: it is no tool's code.
    """

    __slots__ = ("_place",)

    def __init__(self, session: FullSession, scope: RunScope, place: Callable[[], int | None]) -> None:
        super().__init__(session, scope)
        self._place = place

    def append_new(self, kind: type[Fact], fields: tuple[Any, ...]) -> Awaitable[None] | None:
        """Write a fact, and take it in; see `Journal.append_new`."""
        return self.append(new_fact(kind, fields))

    def append(self, fact: Fact, *also: Fact, origin: Origin = _INJECTED) -> Awaitable[None] | None:
        """Write facts, all or none, and take them in; see `Journal.append`."""
        facts = (fact, *also)
        placing = self.holding and fact.__class__ in _PLACES
        if placing and self.held:
            facts, self.held = (*facts, *self.held), ()
        if self.asked:
            facts = (*self._asked_for(), *facts)
        kept = self._session.record(*facts)
        if not isinstance(kept, list):
            return self._written(facts, kept, fact, origin, placing)
        self._took(facts, kept, fact, origin)
        if placing:
            self.holding = False
        return None

    def _asked_for(self) -> tuple[Fact, ...]:
        """What plain functions have asked for, as far as it belongs to the code that is running here."""
        mine = self._place()
        asked = [fact for fact in self.asked if mine is None or getattr(fact, "at", None) in (None, mine)]
        self.asked = tuple([fact for fact in self.asked if fact not in asked])
        return tuple(asked)

    def _took(self, facts: Sequence[Fact], landed: Sequence[tuple[Msg, ...]], fact: Fact, origin: Origin) -> None:
        """Facts have become true."""
        self._facts.extend(facts)  # none is unmade here
        if any(landed) or fact.__class__ is Reasoned or origin is not _INJECTED:
            for one, messages in zip(facts, landed, strict=True):
                self._land(one, messages, origin if one is fact else _INJECTED)

    async def _written(
        self,
        facts: Sequence[Fact],
        kept: Awaitable[list[tuple[Msg, ...]]],
        fact: Fact,
        origin: Origin,
        placing: bool,
    ) -> None:
        """Wait for the store; a cancellation waits with it, since what was decided and shown must not be lost.

        It is not raised here, so that what was stored is shown as well: the run's next checkpoint raises it, or, if a time
        limit inside the run has cancelled the task, its next await.
        """
        writing = asyncio.ensure_future(kept)
        cut: asyncio.CancelledError | None = None
        while not writing.done():
            try:
                await asyncio.wait([writing])
            except asyncio.CancelledError as error:
                cut = error
        self._took(facts, writing.result(), fact, origin)
        task = asyncio.current_task()
        if cut is not None and task is not None and not self._scope.stopped:
            task.uncancel()
            task.cancel(*cut.args)
        if placing:
            await self.flush()

    def hold(self, fact: Fact) -> None:
        """Make a fact true for a plain function; see `Journal.hold`."""
        if self.holding and isinstance(fact, Injected):
            self.held = (*self.held, fact)
        elif type(self._session.store) is MemoryStore:  # a subclass may take its time
            self.append(fact)
        else:
            self.asked = (*self.asked, fact)

    async def flush(self) -> None:
        """Write what is held, and what plain functions have asked for."""
        await super().flush()
        while self.asked:
            *_, fact = self.asked
            self.asked = self.asked[:-1]
            await written(self.append(fact))  # with what was asked for before it

    async def announce(self, events: Events) -> None:
        """Write what was asked for, and tell of stored messages that no other event carries."""
        while self.landed or self.asked:
            if self.asked:
                await self.flush()
            await super().announce(events)

    def let_go(self) -> None:
        """The call is over; what tells the place is a part of it."""
        self._place = _nowhere


def _nowhere() -> None:
    return None


def _stored_by(fact: RoundClosed | CallClosed, machine: Machine) -> tuple[Msg, ...]:
    """The message that a fact has made, which was the last of its kind."""
    if isinstance(fact, CallClosed):
        return () if fact.final is None or is_blank(fact.final) else (fact.final,)
    return (next(msg for msg in reversed(machine.transcript.messages) if msg.role == "tool"),)


async def written(writing: Awaitable[None] | None) -> None:
    """Wait for what `append` has asked the store for."""
    if writing is not None:
        await writing


_PLACES = (Reasoned, CallOpened)
"""The facts that make a place for what was held."""
