"""A session: one conversation, who is using it now, and who waits.

Rules:

1. One call at a time. On an agent's implicit session a second one is refused, in a named session it waits its turn.
2. A session whose last run is still being cleaned up (its stream was dropped) makes the next call wait, never fail.
3. What a session knows is the fold of its facts; facts go to the store before they are acted on.
4. A store that knows versions is told which one is known here; after a failed write the session is loaded anew.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol, cast

from loguru import logger

from agentflow.context import StateMap
from agentflow.errors import StoreError, UsageError
from agentflow.facts import CallClosed, CallOpened, Compacted, Fact, RoundClosed, RoundSuspended, StateKept
from agentflow.ground.frozen import EMPTY
from agentflow.ground.ids import new_id as fresh_id
from agentflow.ground.locks import FairLine, FairLock
from agentflow.loop.machine import Machine, State
from agentflow.messages import Msg, Pending
from agentflow.ports.store import Claim, SessionStatus, SessionStore, Store, no_session
from agentflow.saving.codec import SavedSession, session_from_dict, session_to_dict


class Interruptible(Protocol):
    """A run, as far as its session knows it."""

    def interrupt(self, reason: str = "interrupted") -> None:
        """End the call."""
        ...


__all__ = ["Session", "SessionCheck"]


class Carried(NamedTuple):
    """What a suspended run hands to the call that resumes it, beside what the facts say."""

    run_id: str
    seq: int
    facts: list[Fact]
    state: StateMap | None


class SessionCheck(NamedTuple):
    """What a stored session holds, and whether a call could go on with it.

    Attributes:
        id: The session's id.
        facts: How many facts the store has of it.
        status: What the facts that fit leave it in.
        messages: The history that they make.
        pending: What it waits for, if it is suspended.
        problem: What is wrong with the first fact that does not fit; empty where all do.
        broken_at: How many facts stand before that one: `store.fork(id, new_id, at=broken_at)` saves them.
    """

    id: str
    facts: int
    status: SessionStatus
    messages: tuple[Msg, ...]
    pending: tuple[Pending, ...]
    problem: str = ""
    broken_at: int | None = None

    @property
    def ok(self) -> bool:
        """Whether all facts fit together."""
        return not self.problem


def _fold(facts: Sequence[Fact], new_id: Callable[[str], str]) -> tuple[Machine, int, UsageError | None]:
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


def _versioned(store: Store) -> SessionStore | None:
    return cast("SessionStore", store) if _keeps_versions(type(store)) else None


class Session(FairLine):
    """One conversation.

    Attributes:
        id: The session's id.
        state: Typed state that is kept with the session.
    """

    __slots__ = (
        "__weakref__",
        "_claim",
        "_claims",
        "_failure",
        "_loaded",
        "_refused",
        "_stale",
        "_version",
        "_versioned",
        "_writes",
        "carried",
        "closing",
        "id",
        "implicit",
        "inner",
        "interrupted",
        "machine",
        "run",
        "state",
        "store",
    )

    def __init__(
        self,
        id: str,  # noqa: A002
        messages: Iterable[Msg] = (),
        *,
        store: Store | None = None,
        implicit: bool = False,
        new_id: Callable[[str], str] = fresh_id,
    ) -> None:
        super().__init__()
        self.id = id
        self.machine = Machine(messages, new_id)
        self.state = StateMap()
        self.implicit = implicit
        self.run: Interruptible | None = None
        self.interrupted: str | None = None  # the reason, kept for the call that has the session and has not begun
        self.closing = False
        self.carried: Carried | None = None
        self.inner: dict[str, Session] | None = None
        self.store = store
        self._versioned = None if store is None else _versioned(store)
        self._version = 0
        self._loaded = store is None
        self._claim: Claim | None = None
        self._claims = False  # whether the store lets calls wait for each other
        self._refused: tuple[str, ...] = ()
        self._failure: Exception | None = None
        self._stale = False  # whether a write was asked for that nobody has waited for
        self._writes: FairLock | None = None

    @staticmethod
    def fresh(messages: Iterable[Msg] = (), id: str | None = None) -> Session:  # noqa: A002
        """A session that nobody else has, for one-offs.

        Args:
            messages: What the conversation starts with.
            id: Its id; a fresh one by default.

        Raises:
            TranscriptError: The messages are in no legal order.
        """
        return Session(fresh_id("session_") if id is None else id, messages)

    @staticmethod
    async def check(store: Store, id: str) -> SessionCheck:  # noqa: A002
        """Look at a stored session without loading it: whether its facts fit together, and what they make.

        Args:
            store: Where it is.
            id: Its id.

        Raises:
            StoreError: It is not there, or cannot be read at all.

        Example:
            >>> store = MemoryStore()
            >>> await store.import_(Session.fresh([Msg.user("I am Ada.")], id="ada").to_dict())
            'ada'
            >>> (await Session.check(store, "ada")).ok
            True
        """
        found = store.load(id)
        facts = await found if isinstance(found, Awaitable) else found
        if not facts:
            raise no_session(id)
        machine, fitting, problem = _fold(facts, fresh_id)
        status: SessionStatus = "suspended" if machine.suspended else "unfinished"
        if machine.state is State.USER_INPUT:
            status = "idle"
        return SessionCheck(
            id,
            len(facts),
            status,
            tuple(machine.transcript.messages),
            machine.pending if machine.suspended else (),
            "" if problem is None else str(problem),
            None if problem is None else fitting,
        )

    @property
    def messages(self) -> Sequence[Msg]:
        """The conversation as of now.

        Raises:
            UsageError: It is in a store, and has not been loaded yet.
        """
        self._check_known("messages are")
        return self.machine.transcript.messages

    @property
    def pending(self) -> tuple[Pending, ...]:
        """What the session waits for, if it is suspended.

        Raises:
            UsageError: It is in a store, and has not been loaded yet.
        """
        self._check_known("pending calls are")
        return self.machine.pending if self.machine.suspended else ()

    def _check_known(self, what: str) -> None:
        if not self._loaded and not self._version:
            raise UsageError(
                f"Session {self.id!r} has not been loaded from its store yet, so its {what} not known here. Load it: "
                f"await agent.history({self.id!r}) gives its messages; a call on it loads it too."
            )

    @property
    def busy(self) -> bool:
        """Whether a call is running on it."""
        return self._held

    def try_acquire(self) -> bool:
        """Take the session if it is free and nobody waits for it."""
        if not self._loaded or self._claims or self._stale or self._line:
            return False
        return self._lock.acquire(False)

    async def acquire(self, agent: str) -> None:
        """Wait for the session's turn.

        Raises:
            UsageError: It is an agent's implicit session and a call is running on it.
        """
        with self._guard:
            if self.implicit and self._held and not self.closing:
                raise UsageError(
                    f"A call on agent {agent!r} overlaps with another one on its implicit session, which is one "
                    "conversation. Await the first call, or give each call a conversation of its own: session='some-id' "
                    "or session=Session.fresh()."
                )
            place = self._line_up()
        if place is not None:
            await self._wait(place)
        if self.store is None:
            return
        try:
            if self._versioned is not None:
                claiming = self._versioned.claim(self.id)
                if claiming is not None:
                    self._claims = True
                    self._claim = await claiming
                    self._loaded = self._loaded and self._claim.version == self._version
            if self._stale or not self._loaded:
                await self._load(self.store)
        except BaseException:
            self.release()
            raise

    async def load(self) -> None:
        """Read what its store holds. While a call runs on it, what is known here is as new.

        Raises:
            StoreError: It cannot be read.
        """
        if self.store is None or (self._held and self._loaded):
            return
        with self._guard:
            place = self._line_up()
        if place is not None:
            await self._wait(place)
        self.closing = True  # a call that comes meanwhile waits, on the implicit session too
        try:
            await self._load(self.store)
        finally:
            self.release()

    async def _load(self, store: Store) -> None:
        found = store.load(self.id)
        facts = await found if isinstance(found, Awaitable) else found
        if self._loaded and not self._stale and len(facts) == self._version:
            return  # nobody has written since; what no store keeps (a waiting run's state) stays
        again = self._version > 0  # it was here before, and somebody else has written since
        if facts or again:
            machine, fitting, problem = _fold(facts, self.machine.new_id)
            if problem is not None:
                raise StoreError(
                    f"The stored facts of session {self.id!r} do not fit together: number {fitting + 1} is refused "
                    f"({problem}). Fork it before that one, await store.fork({self.id!r}, 'new-id', at={fitting}), or "
                    "restore it from a backup."
                ) from problem
            self.machine = machine
            self.state.restore(machine.state_kept, replace=again)
            self.carried = self._open_run(facts, 0, None)
        self._version = len(facts)
        self._loaded = True
        self._stale = False
        self._writes = None

    def _open_run(self, facts: Sequence[Fact], seq: int, state: StateMap | None) -> Carried | None:
        """What the call that continues an open run is handed."""
        if self.machine.state is State.USER_INPUT:
            return None
        start = max((n for n, fact in enumerate(facts) if isinstance(fact, CallOpened)), default=0)
        return Carried(self.machine.run_id, seq, list(facts[start:]), state)

    def interrupt(self, reason: str) -> bool:
        """End the call that runs on it, or that waits for it (until it is loaded, say) and begins next.

        Returns:
            Whether there was one.
        """
        if self.run is None:
            if not self._held:
                return False
            self.interrupted = reason  # the call sees it when it begins, or has begun meanwhile
        run = self.run
        if run is not None:
            run.interrupt(reason)
        return True

    def release(self) -> None:
        """Let the next call in, in order of arrival."""
        self.run = self.interrupted = None
        self.closing = False
        self._failure = None
        claim = self._claim
        if claim is not None:
            self._claim = None
            claim.release()
        self._hand_on()

    def keep_inner(self, tool_use_id: str, session: Session) -> None:
        """Keep the session of a sub-agent that is suspended behind one of this session's calls."""
        if self.inner is None:
            self.inner = {}
        self.inner[tool_use_id] = session

    def record(self, *facts: Fact) -> list[tuple[Msg, ...]] | Awaitable[list[tuple[Msg, ...]]]:
        """Keep facts, all or none, and take them in; an awaitable only where the store needs time.

        With them goes what has changed in the session's state.

        Returns:
            For each fact the messages that landed with it.

        Raises:
            UsageError: The machine refuses one: none is kept.
            StoreError: The store did not keep them; the next call loads the session anew.
        """
        store, writes = self.store, self._writes
        if store is None:
            if len(facts) > 1:
                self.machine.check(*facts)
            return [self.machine.apply(fact) for fact in facts]
        if writes is not None and not writes.try_acquire():
            return self._in_turn(writes, store, facts)
        try:
            written, kept = self._written(store, facts)
        except BaseException:
            if writes is not None:
                writes.release()
            raise
        if kept is None:
            landed = self._taken(written)
            if writes is not None:
                writes.release()
            return landed[-len(facts) :]
        if writes is None:
            self._writes = writes = FairLock()
            writes.try_acquire()
        return self._finished(writes, written, kept, len(facts))

    def _written(self, store: Store, facts: tuple[Fact, ...]) -> tuple[tuple[Fact, ...], Awaitable[None] | None]:
        """Ask for a write, at the version that is known here, of what the machine takes and nothing else.

        One write follows the other, so what was written before has been taken in when the next one is checked.
        """
        if self._failure is not None:
            raise self._failure  # nothing may follow what is missing
        self.machine.check(*facts)
        if len(self.state) and isinstance(facts[-1], RoundClosed | RoundSuspended | CallClosed):
            values = self._state_values()
            if values != self.machine.state_kept:
                facts = (StateKept(values), *facts)
        try:
            versioned, claim = self._versioned, self._claim
            if versioned is None:
                return facts, store.append(self.id, facts)
            if claim is None:
                return facts, versioned.append(self.id, facts, expected=self._version)
            return facts, versioned.append(self.id, facts, expected=self._version, claim=claim)
        except BaseException as error:
            self._fail(error)
            raise

    def _taken(self, facts: tuple[Fact, ...]) -> list[tuple[Msg, ...]]:
        self._version += len(facts)
        return [self.machine.apply(fact) for fact in facts]

    async def _finished(
        self, writes: FairLock, facts: tuple[Fact, ...], kept: Awaitable[None], count: int
    ) -> list[tuple[Msg, ...]]:
        try:
            await kept
            return self._taken(facts)[-count:]
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            writes.release()

    def _fail(self, error: BaseException) -> None:
        """What is stored is known when it has been read again."""
        self._loaded = False
        unknown = f"It is not known whether a fact of session {self.id!r} was stored; the next call loads it anew."
        self._failure = error if isinstance(error, Exception) else StoreError(unknown)

    async def _in_turn(self, writes: FairLock, store: Store, facts: tuple[Fact, ...]) -> list[tuple[Msg, ...]]:
        """Write when the write before it is done: its version must be known, or its failure."""
        await writes.acquire()
        try:
            written, kept = self._written(store, facts)
        except BaseException:
            writes.release()
            raise
        if kept is not None:
            return await self._finished(writes, written, kept, len(facts))
        try:
            return self._taken(written)[-len(facts) :]
        finally:
            writes.release()

    def record_now(self, fact: Fact) -> None:
        """Take in a fact, and ask for a write that nobody can wait for (the loop is gone): the next call loads what came of it.

        Raises:
            UsageError: The machine refuses it: it is not kept.
            StoreError: The store did not keep it.
        """
        self.machine.check(fact)
        store = self.store
        facts: tuple[Fact, ...] = (fact,)
        kept: Awaitable[None] | None = None
        try:
            if store is not None and self._loaded:
                facts, kept = self._written(store, facts)
        finally:
            self._taken(facts)
        if kept is None:
            return
        self._stale = True
        close = getattr(kept, "close", None)
        if close is not None:  # a coroutine gets no time here: a later load finds the run unfinished
            close()

    def _state_values(self) -> dict[str, Any]:
        values, refused = self.state.saved()
        if refused and refused != self._refused:
            self._refused = refused
            logger.warning(
                "The state {} of session {!r} is not stored: pydantic cannot write it. Make each a dataclass or a "
                "pydantic model.",
                ", ".join(refused),
                self.id,
            )
        return values

    # ---- as data

    def copy(self, id: str) -> Session:  # noqa: A002
        """An independent copy under another id, in no store; of a suspended session one that is suspended too.

        Raises:
            UsageError: A call is running on it.
        """
        copy = Session.from_dict({**self.to_dict(), "id": id})
        copy.implicit = self.implicit
        return copy

    def to_dict(self) -> dict[str, Any]:
        """The session as JSON-compatible data, its typed state included; suspended, it can be resumed from them.

        Raises:
            UsageError: A call is running on it, or its state holds what JSON does not know.

        Example:
            >>> session = Session.fresh([Msg.user("I am Ada.")], id="s")
            >>> Session.from_dict(session.to_dict()).messages[0].text
            'I am Ada.'
        """
        if self.busy:
            raise UsageError(f"Session {self.id!r} runs a call; save it when that has ended, or interrupt it first.")
        if not self._loaded:
            raise UsageError(
                f"Session {self.id!r} has not been loaded from its store yet. Save it there: "
                f"await store.export({self.id!r})."
            )
        machine, carried = self.machine, self.carried
        state = _saved_state(self.id, self.state)
        messages: Sequence[Msg] = tuple(machine.transcript.messages)
        facts: Sequence[Fact] = ()
        seq, run_state = 0, EMPTY
        if machine.state is not State.USER_INPUT:
            if carried is None:
                raise UsageError(
                    f"Session {self.id!r} holds a call that was cut (state {machine.state.name}); continue it with "
                    "agent.resume(session) before it is saved."
                )
            made = len(Machine.from_facts(carried.facts).transcript)
            messages, facts, seq = messages[: len(messages) - made], carried.facts, carried.seq
            run_state = EMPTY if carried.state is None else _saved_state(self.id, carried.state)
        if machine.compacted is not None and not any(isinstance(fact, Compacted) for fact in facts):
            facts = (Compacted(machine.run_id, *machine.compacted), *facts)
        data = session_to_dict(SavedSession(self.id, tuple(messages), tuple(facts), state, seq, run_state))
        waiting = {waits.within for waits in self.pending if waits.within is not None}
        inner = {use_id: session.to_dict() for use_id, session in (self.inner or {}).items() if use_id in waiting}
        return {**data, "inner": inner} if inner else data

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Session:
        """Build a session from what `to_dict` (or a store's `export`) made; it has no store.

        Raises:
            StoreError: The data is no session, was written by a newer agentflow, or does not fit together.
        """
        inner: Mapping[str, Any] | None = None
        if isinstance(data, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
            data = dict(data)
            inner = data.pop("inner", None)
        saved = session_from_dict(data)
        try:
            session = Session(saved.id, saved.messages)
            for fact in saved.facts:
                session.machine.apply(fact)
        except UsageError as error:
            raise StoreError(
                f"The saved session {saved.id!r} does not fit together: {error} It was changed by hand, or is damaged: "
                "save it again."
            ) from error
        session.state.restore({**session.machine.state_kept, **saved.state})
        run_state = StateMap()
        run_state.restore(saved.run_state)
        session.carried = session._open_run(saved.facts, saved.seq, run_state)
        if inner:
            session.inner = {use_id: Session.from_dict(saved_inner) for use_id, saved_inner in inner.items()}
        return session

    @staticmethod
    def from_json(text: str | bytes) -> Session:
        """Build a session from what `to_json` made; see `from_dict`."""
        try:
            data = json.loads(text)
        except ValueError as error:
            raise StoreError(f"This is no saved session: it is not JSON ({error}).") from error
        return Session.from_dict(data)

    def __repr__(self) -> str:
        return f"Session({self.id!r}, {len(self.machine.transcript)} messages, {self.machine.state.name})"


def _saved_state(id: str, state: StateMap) -> Mapping[str, Any]:  # noqa: A002 - the session's word
    values, refused = state.saved()
    if refused:
        raise UsageError(
            f"The state of session {id!r} cannot be saved: pydantic does not know how to write {', '.join(refused)}. Make "
            "each a dataclass or a pydantic model."
        )
    return values
