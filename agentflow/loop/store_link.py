"""The link between a session and its store: loaded before use, written before facts take effect.

Rules:

1. A session is the fold of its facts. Facts are written to the store before the machine applies them.
2. A store with versions receives the expected version with each write. After a failed write the session is loaded again.
3. Writes are sequential, so that each fact is checked against the state that the store will have.
4. The exception to rule 1 is a held fact: it is applied at once, and written together with the next fact.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import cache
from typing import Any, Protocol, TypeAlias, cast

from agentflow._support.locks import FairLock
from agentflow._support.logs import logger
from agentflow._support.values import NamedTuple
from agentflow.errors import StoreError, UsageError
from agentflow.loop.machine import Machine
from agentflow.loop.states import State
from agentflow.vocabulary.facts import CallClosed, CallOpened, Fact, RoundClosed, RoundSuspended, StateKept
from agentflow.vocabulary.messages import Msg, Pending
from agentflow.vocabulary.ports.store import Claim, SessionStore, Store, StoredStatus, no_session
from agentflow.vocabulary.typed_state import StateMap

__all__ = ["SessionCheck", "StoreLink", "StoredMessages", "check_session", "fold_fitting"]

StoredMessages: TypeAlias = list[tuple[Msg, ...]]
"""The messages that were stored with each fact, in the order of the facts."""


def fold_fitting(facts: Sequence[Fact]) -> tuple[Machine, int, UsageError | None]:
    """Fold facts up to the first illegal one. Return the machine, the number of facts folded, and the error."""
    machine = Machine()
    for n, fact in enumerate(facts):
        try:
            machine.apply(fact)
        except UsageError as error:
            return machine, n, error
    return machine, len(facts), None


@cache
def _keeps_versions(kind: type[object]) -> bool:
    # Cached per class: a protocol check takes 16 µs.
    return issubclass(kind, SessionStore)


_ENDS = (RoundClosed, RoundSuspended, CallClosed)
"""The facts with which a changed session state is written, besides `CallOpened` (for changes by `PreCall`).

State that is explicitly `unsaved` is written with any fact, since facts refer to it and it must survive a crash.
"""


class LinkedSession(Protocol):
    """The session of a link."""

    id: str
    machine: Machine

    @property
    def state(self) -> StateMap:
        """The typed state that is stored with it."""
        ...

    @property
    def unsaved(self) -> bool:
        """Whether its state should be stored with the next fact."""
        ...

    def keep_open_run(self, facts: Sequence[Fact], seq: int, state: StateMap | None) -> None:
        """Keep data for the call that continues an open run, if there is one."""
        ...


class StoreLink:
    """The link between a session and its store.

    Attributes:
        version: The number of facts known to be in the store.
        held: Applied facts that are written with the next one.
        loaded: Whether the state in memory equals the stored one.
        stale: Whether a write was requested and not awaited.
        claims: Whether calls in different processes wait for each other through the store.
    """

    __slots__ = (
        "_claim",
        "_failure",
        "_refused",
        "_store",
        "_versioned",
        "_writes",
        "claims",
        "held",
        "loaded",
        "stale",
        "version",
    )

    def __init__(self, store: Store) -> None:
        self._store = store
        self._versioned = cast("SessionStore", store) if _keeps_versions(type(store)) else None
        self.version = 0
        self.held: tuple[Fact, ...] = ()
        self.loaded = False
        self.stale = False
        self.claims = False
        self._claim: Claim | None = None
        self._failure: Exception | None = None
        self._refused: tuple[str, ...] = ()
        # Created by the first write that needs time: stores that never do need no lock.
        self._writes: FairLock | None = None

    @property
    def ready(self) -> bool:
        """Whether a call can begin without I/O."""
        return self.loaded and not self.claims and not self.stale

    @property
    def unknown(self) -> bool:
        """Whether the session was never loaded in this process."""
        return not self.loaded and not self.version

    # ---- reading

    async def begin(self, session: LinkedSession) -> None:
        """Synchronize with the store, for a call that holds the session.

        Raises:
            StoreError: The session cannot be read, or another process is using it.
        """
        if self._versioned is not None:
            claiming = self._versioned.claim(session.id)
            if claiming is not None:
                self.claims = True
                self._claim = await claiming
                # If another process has written since, the session must be loaded again.
                self.loaded = self.loaded and self._claim.version == self.version
        if self.stale or not self.loaded:
            await self.load(session)

    async def load(self, session: LinkedSession) -> None:
        """Read the stored facts.

        Raises:
            StoreError: The facts cannot be read, or are inconsistent.
        """
        found = self._store.load(session.id)
        facts = await found if isinstance(found, Awaitable) else found
        if self.loaded and not self.stale and len(facts) == self.version:
            return  # nothing new is stored; keep the state that is only in memory, such as a suspended run's
        again = self.version > 0  # the session was loaded before, so the state in memory may be outdated
        if facts or again:
            machine, fitting, problem = fold_fitting(facts)
            if problem is not None:
                raise StoreError(
                    f"The stored facts of session {session.id!r} are inconsistent: fact number {fitting + 1} is illegal "
                    f"({problem}). Fork the session before it, await store.fork({session.id!r}, 'new-id', at={fitting}), or "
                    "restore it from a backup."
                ) from problem
            session.machine = machine
            session.state.restore(machine.state_kept, replace=again)
            session.keep_open_run(facts, 0, None)
        self.version = len(facts)
        self.held = ()
        self.loaded = True
        self.stale = False
        # A write of an abandoned run may hold the old lock indefinitely.
        self._writes = None

    def release(self) -> None:
        """Release the claim after the call."""
        self._failure = None  # the next call loads the session, so its facts can be written again
        claim = self._claim
        if claim is not None:
            self._claim = None
            claim.release()

    # ---- writing

    def hold(self, session: LinkedSession, fact: Fact) -> tuple[Msg, ...] | None:
        """Apply a fact that is written with the next one. The caller ensures that nothing depends on it before the write.

        Returns:
            The messages that were stored with it; None if the fact was not applied, because it must be written at once.

        Raises:
            UsageError: The machine refuses the fact.
        """
        # A write in progress can fail, and this fact would already have been applied although it follows the failed one.
        if not self.loaded or session.unsaved or (self._writes is not None and self._writes.locked):
            return None
        added = session.machine.apply(fact)
        self.held = (*self.held, fact)
        return added

    def record(self, session: LinkedSession, facts: tuple[Fact, ...]) -> StoredMessages | Awaitable[StoredMessages]:
        """Write held facts, `facts` and changes of the session's state, all or none; then apply `facts`.

        Raises:
            UsageError: The machine refuses a fact; none is written.
            StoreError: The store failed to write them; the next call loads the session again.
        """
        writes = self._writes
        if writes is not None and not writes.try_acquire():
            return self._in_turn(writes, session, facts)
        return self._write(writes, session, facts)

    def _write(
        self, writes: FairLock | None, session: LinkedSession, facts: tuple[Fact, ...]
    ) -> StoredMessages | Awaitable[StoredMessages]:
        """Write and apply facts, and release `writes`. Return an awaitable only if the store needs time."""
        try:
            written, kept = self._written(session, facts)
            stored = [] if kept is not None else self._apply(session, written)
        except BaseException:  # nothing was written
            if writes is not None:
                writes.release()
            raise
        if kept is None:
            if writes is not None:
                writes.release()
            return stored[len(written) - len(facts) :]
        if writes is None:
            self._writes = writes = FairLock()
            writes.try_acquire()  # a new lock, so this succeeds
        return self._finished(writes, session, written, kept, len(facts))

    def pending_writes(self) -> Awaitable[StoredMessages] | None:
        """Return an awaitable that completes after the writes in progress; None if there are none."""
        writes = self._writes
        return None if writes is None or not writes.locked else self._settled(writes)

    async def _settled(self, writes: FairLock) -> StoredMessages:
        await writes.acquire()  # the lock is fair, so all earlier writes have ended
        writes.release()
        return []

    def record_now(self, session: LinkedSession, fact: Fact) -> None:
        """Request a write that cannot be awaited, and apply the fact. The next call loads the result."""
        facts: tuple[Fact, ...] = (fact,)
        kept: Awaitable[None] | None = None
        try:
            if self.loaded:
                facts, kept = self._written(session, facts)
        finally:
            # Applied even if the write could not be requested: the history in memory must be legal in any case.
            self._apply(session, facts)
        if kept is None:
            return
        self.stale = True
        close = getattr(kept, "close", None)
        if close is not None:  # a coroutine cannot run here; a later load finds the run unfinished
            close()

    def _written(
        self, session: LinkedSession, facts: tuple[Fact, ...]
    ) -> tuple[tuple[Fact, ...], Awaitable[None] | None]:
        """Request a write of the held facts and of `facts` up to the first illegal one. Return the facts to apply after it.

        Writes are sequential, so earlier facts have been applied when these are checked.
        """
        if self._failure is not None:
            raise self._failure  # no fact may follow a fact that is missing in the store
        if facts:
            session.machine.check(*facts)
            # Not with every fact, since serializing and comparing the whole state takes time.
            if (facts[-1].__class__ in _ENDS or facts[0].__class__ is CallOpened or session.unsaved) and len(
                session.state
            ):
                values = self._state_values(session)
                if values != session.machine.state_kept:
                    facts = (StateKept(values), *facts)
        every, expected = (*self.held, *facts), self.version
        # Held facts have been applied already, so they count now; `_apply` counts the others.
        self.version, self.held = expected + len(self.held), ()
        try:
            versioned, claim = self._versioned, self._claim
            if versioned is None:
                return facts, self._store.append(session.id, every)
            if claim is None:
                return facts, versioned.append(session.id, every, expected=expected)
            return facts, versioned.append(session.id, every, expected=expected, claim=claim)
        except BaseException as error:  # failed or cancelled: the stored state is unknown
            self._fail(session, error)
            raise

    def _apply(self, session: LinkedSession, facts: tuple[Fact, ...]) -> StoredMessages:
        self.version += len(facts)
        return [session.machine.apply(fact) for fact in facts]

    async def _finished(
        self, writes: FairLock, session: LinkedSession, facts: tuple[Fact, ...], kept: Awaitable[None], count: int
    ) -> StoredMessages:
        try:
            await kept
            return self._apply(session, facts)[len(facts) - count :]
        except BaseException as error:  # failed or cancelled: the stored state is unknown
            self._fail(session, error)
            raise
        finally:
            writes.release()

    def _fail(self, session: LinkedSession, error: BaseException) -> None:
        """Mark the session to be loaded again, since the stored state is unknown."""
        # For a version conflict too: the facts in memory are no longer those of the store.
        self.loaded = False
        unknown = f"It is unknown whether a fact of session {session.id!r} was stored; the next call loads it again."
        self._failure = error if isinstance(error, Exception) else StoreError(unknown)

    async def _in_turn(self, writes: FairLock, session: LinkedSession, facts: tuple[Fact, ...]) -> StoredMessages:
        """Write after the previous write has ended, since its version or its failure must be known first."""
        await writes.acquire()
        stored = self._write(writes, session, facts)
        return stored if isinstance(stored, list) else await stored

    def _state_values(self, session: LinkedSession) -> dict[str, Any]:
        values, refused = session.state.saved()
        if refused and refused != self._refused:  # one warning for each set of types, not for each write
            self._refused = refused
            logger.bind(session_id=session.id).warning(
                "The state {} of session {!r} is not stored: pydantic cannot serialize it. Use dataclasses or "
                "pydantic models.",
                ", ".join(refused),
                session.id,
            )
        return values


class SessionCheck(NamedTuple):
    """The content of a stored session, and whether a call could continue it.

    Attributes:
        id: The session's id.
        facts: The number of stored facts.
        status: The status after the consistent facts.
        messages: The history after the consistent facts.
        pending: The calls that it waits for, if it is suspended.
        problem: The error of the first inconsistent fact, or "".
        broken_at: The number of facts before it: `store.fork(id, new_id, at=broken_at)` saves them.
    """

    id: str
    facts: int
    status: StoredStatus
    messages: tuple[Msg, ...]
    pending: tuple[Pending, ...]
    problem: str = ""
    broken_at: int | None = None

    @property
    def ok(self) -> bool:
        """Whether all facts are consistent."""
        return not self.problem


async def check_session(store: Store, id: str) -> SessionCheck:  # noqa: A002 - the public name
    """See `Session.check`."""
    found = store.load(id)
    facts = await found if isinstance(found, Awaitable) else found
    if not facts:
        raise no_session(id)
    machine, fitting, problem = fold_fitting(facts)
    suspended = machine.state is State.SUSPENDED
    status: StoredStatus = "suspended" if suspended else "unfinished"
    if machine.state is State.USER_INPUT:
        status = "idle"
    return SessionCheck(
        id,
        len(facts),
        status,
        tuple(machine.transcript.messages),
        machine.suspension.pending if suspended else (),
        "" if problem is None else str(problem),
        None if problem is None else fitting,
    )
