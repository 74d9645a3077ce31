"""What a store keeps of a session, as far as it is known here: loaded before it is used, written before it is acted on.

Rules:

1. What a session knows is the fold of its facts; facts go to the store before the machine takes them in.
2. A store that knows versions is told which one is known here; after a failed write the session is loaded anew.
3. One write follows the other: what is checked is what the store will hold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any, TypeAlias, cast

from agentflow.errors import StoreError, UsageError
from agentflow.facts import CallClosed, CallOpened, Fact, RoundClosed, RoundSuspended, StateKept
from agentflow.ground.locks import FairLock
from agentflow.ground.logs import logger
from agentflow.loop.conversation import FullConversation
from agentflow.loop.machine import Machine
from agentflow.messages import Msg
from agentflow.ports.store import Claim, SessionStore, Store

__all__ = ["Keeping", "Landed", "fold_fitting"]

Landed: TypeAlias = list[tuple[Msg, ...]]
"""For each fact the messages that landed with it."""


def fold_fitting(facts: Sequence[Fact], new_id: Callable[[str], str]) -> tuple[Machine, int, UsageError | None]:
    """The machine of the facts that fit together, how many they are, and what the next one was refused with."""
    machine = Machine(new_id=new_id)
    for n, fact in enumerate(facts):
        try:
            machine.apply(fact)
        except UsageError as error:
            return machine, n, error
    return machine, len(facts), None


@cache
def _keeps_versions(kind: type[object]) -> bool:
    # Asked once per class: such a look at a protocol costs 16 µs.
    return issubclass(kind, SessionStore)


_ENDS = (RoundClosed, RoundSuspended, CallClosed)
"""The facts with which the session's state is written, where it has changed; and `CallOpened`, for what `PreCall` has set.

What says that it is `unsaved` is written with any fact: a value that the facts speak of must not be lost in a crash."""


class Keeping:
    """The link of a session to its store.

    Attributes:
        version: How many facts of the session are known to be in the store.
        loaded: Whether what is in memory is what they make.
        stale: Whether a write was asked for that nobody has waited for.
        claims: Whether the store lets calls wait for each other.
    """

    __slots__ = (
        "_claim",
        "_failure",
        "_refused",
        "_store",
        "_versioned",
        "_writes",
        "claims",
        "loaded",
        "stale",
        "version",
    )

    def __init__(self, store: Store) -> None:
        self._store = store
        self._versioned = cast("SessionStore", store) if _keeps_versions(type(store)) else None
        self.version = 0
        self.loaded = False
        self.stale = False
        self.claims = False
        self._claim: Claim | None = None
        self._failure: Exception | None = None
        self._refused: tuple[str, ...] = ()
        self._writes: FairLock | None = None

    @property
    def ready(self) -> bool:
        """Whether a call can begin without asking the store."""
        return self.loaded and not self.claims and not self.stale

    @property
    def unknown(self) -> bool:
        """Whether nothing of it has ever been seen here."""
        return not self.loaded and not self.version

    # ---- reading

    async def begin(self, session: FullConversation) -> None:
        """Make what is in memory what the store holds, for a call that has the session's turn.

        Raises:
            StoreError: It cannot be read, or another process works on it.
        """
        if self._versioned is not None:
            claiming = self._versioned.claim(session.id)
            if claiming is not None:
                self.claims = True
                self._claim = await claiming
                self.loaded = self.loaded and self._claim.version == self.version
        if self.stale or not self.loaded:
            await self.load(session)

    async def load(self, session: FullConversation) -> None:
        """Read what the store holds.

        Raises:
            StoreError: It cannot be read, or its facts do not fit together.
        """
        found = self._store.load(session.id)
        facts = await found if isinstance(found, Awaitable) else found
        if self.loaded and not self.stale and len(facts) == self.version:
            return  # nobody has written since; what no store keeps (a waiting run's state) stays
        again = self.version > 0  # it was here before, and somebody else has written since
        if facts or again:
            machine, fitting, problem = fold_fitting(facts, session.machine.new_id)
            if problem is not None:
                raise StoreError(
                    f"The stored facts of session {session.id!r} do not fit together: number {fitting + 1} is refused "
                    f"({problem}). Fork it before that one, await store.fork({session.id!r}, 'new-id', at={fitting}), or "
                    "restore it from a backup."
                ) from problem
            session.machine = machine
            session.state.restore(machine.state_kept, replace=again)
            session.carry(facts, 0, None)
        self.version = len(facts)
        self.loaded = True
        self.stale = False
        self._writes = None

    def let_go(self) -> None:
        """The call is over."""
        self._failure = None
        claim = self._claim
        if claim is not None:
            self._claim = None
            claim.release()

    # ---- writing

    def record(self, session: FullConversation, facts: tuple[Fact, ...]) -> Landed | Awaitable[Landed]:
        """Write facts, and what has changed in the session's state, all or none; then take them in.

        Raises:
            UsageError: The machine refuses one: none is kept.
            StoreError: The store did not keep them; the next call loads the session anew.
        """
        writes = self._writes
        if writes is not None and not writes.try_acquire():
            return self._in_turn(writes, session, facts)
        try:
            written, kept = self._written(session, facts)
        except BaseException:
            if writes is not None:
                writes.release()
            raise
        if kept is None:
            landed = self._taken(session, written)
            if writes is not None:
                writes.release()
            return landed if written is facts else landed[-len(facts) :]
        if writes is None:
            self._writes = writes = FairLock()
            writes.try_acquire()
        return self._finished(writes, session, written, kept, len(facts))

    def record_now(self, session: FullConversation, fact: Fact) -> None:
        """Ask for a write that nobody can wait for, and take the fact in: the next call loads what came of it."""
        facts: tuple[Fact, ...] = (fact,)
        kept: Awaitable[None] | None = None
        try:
            if self.loaded:
                facts, kept = self._written(session, facts)
        finally:
            self._taken(session, facts)
        if kept is None:
            return
        self.stale = True
        close = getattr(kept, "close", None)
        if close is not None:  # a coroutine gets no time here: a later load finds the run unfinished
            close()

    def _written(
        self, session: FullConversation, facts: tuple[Fact, ...]
    ) -> tuple[tuple[Fact, ...], Awaitable[None] | None]:
        """Ask for a write, at the version that is known here, of what the machine takes and nothing else.

        One write follows the other, so what was written before has been taken in when the next one is checked.
        """
        if self._failure is not None:
            raise self._failure  # nothing may follow what is missing
        session.machine.check(*facts)
        if (facts[-1].__class__ in _ENDS or facts[0].__class__ is CallOpened or session.unsaved) and len(session.state):
            values = self._state_values(session)
            if values != session.machine.state_kept:
                facts = (StateKept(values), *facts)
        try:
            versioned, claim = self._versioned, self._claim
            if versioned is None:
                return facts, self._store.append(session.id, facts)
            if claim is None:
                return facts, versioned.append(session.id, facts, expected=self.version)
            return facts, versioned.append(session.id, facts, expected=self.version, claim=claim)
        except BaseException as error:
            self._fail(session, error)
            raise

    def _taken(self, session: FullConversation, facts: tuple[Fact, ...]) -> Landed:
        self.version += len(facts)
        return [session.machine.apply(fact) for fact in facts]

    async def _finished(
        self, writes: FairLock, session: FullConversation, facts: tuple[Fact, ...], kept: Awaitable[None], count: int
    ) -> Landed:
        try:
            await kept
            return self._taken(session, facts)[-count:]
        except BaseException as error:
            self._fail(session, error)
            raise
        finally:
            writes.release()

    def _fail(self, session: FullConversation, error: BaseException) -> None:
        """What is stored is known when it has been read again."""
        self.loaded = False
        unknown = f"It is not known whether a fact of session {session.id!r} was stored; the next call loads it anew."
        self._failure = error if isinstance(error, Exception) else StoreError(unknown)

    async def _in_turn(self, writes: FairLock, session: FullConversation, facts: tuple[Fact, ...]) -> Landed:
        """Write when the write before it is done: its version must be known, or its failure."""
        await writes.acquire()
        try:
            written, kept = self._written(session, facts)
        except BaseException:
            writes.release()
            raise
        if kept is not None:
            return await self._finished(writes, session, written, kept, len(facts))
        try:
            return self._taken(session, written)[-len(facts) :]
        finally:
            writes.release()

    def _state_values(self, session: FullConversation) -> dict[str, Any]:
        values, refused = session.state.saved()
        if refused and refused != self._refused:
            self._refused = refused
            logger.bind(session_id=session.id).warning(
                "The state {} of session {!r} is not stored: pydantic cannot write it. Make each a dataclass or a "
                "pydantic model.",
                ", ".join(refused),
                session.id,
            )
        return values
