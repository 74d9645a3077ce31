"""A session: one conversation, the call that uses it, and the calls that wait for it.

Rules:

1. One call at a time. A second call is refused on an agent's implicit session, and waits on a named one.
2. If the last run is still being cleaned up because its stream was abandoned, the session's next call waits, and is
   never refused.
3. `loop/store_link.py` reads and writes its store.
"""

from __future__ import annotations

import json
from _thread import allocate_lock
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias
from weakref import ReferenceType

from agentflow._support.facade import objects_of
from agentflow._support.frozen import EMPTY
from agentflow._support.ids import CONVERSATION
from agentflow._support.ids import new_id as fresh_id
from agentflow._support.lazy import later
from agentflow._support.locks import FairLine
from agentflow._support.values import NamedTuple
from agentflow.errors import StoreError, UsageError
from agentflow.loop.machine import Machine
from agentflow.loop.states import State
from agentflow.vocabulary.facts import CallOpened, Compacted, Fact
from agentflow.vocabulary.messages import Msg, Pending
from agentflow.vocabulary.saving.plain import read_json
from agentflow.vocabulary.typed_state import StateMap

if TYPE_CHECKING:
    from agentflow.loop import store_link
    from agentflow.loop.store_link import SessionCheck, StoredMessages
    from agentflow.vocabulary.ports import store as stores
    from agentflow.vocabulary.ports.store import Store
    from agentflow.vocabulary.saving import codec
else:
    store_link = later("agentflow.loop.store_link")
    stores = later("agentflow.vocabulary.ports.store")
    codec = later("agentflow.vocabulary.saving.codec")

__all__ = ["STATUSES", "FullSession", "OpenRun", "OuterCall", "Session", "SessionStatus", "full_session"]


SessionStatus: TypeAlias = Literal["idle", "running", "suspended", "unfinished"]
"""The status of a session; see `Session.status`."""

STATUSES: Final[Mapping[State, SessionStatus]] = {State.USER_INPUT: "idle", State.SUSPENDED: "suspended"}


class Interruptible(Protocol):
    """A run, as its session uses it."""

    def interrupt(self, reason: str = "interrupted") -> None:
        """Interrupt the call."""
        ...

    @property
    def orphaned(self) -> bool:
        """Whether its event loop was closed while it was running."""
        ...

    def finish_lost(self) -> None:
        """Finish an orphaned call at once, so that the session is legal and free again."""
        ...


class OpenRun(NamedTuple):
    """The data of a suspended run for the call that resumes it, in addition to the facts."""

    run_id: str
    seq: int
    facts: list[Fact]
    state: StateMap | None


class OuterCall(NamedTuple):
    """The tool call in which a sub-agent's session is suspended.

    `owner`: the calling agent; `session`: the calling agent's session; `use_id`: the tool call.
    """

    owner: ReferenceType[object]
    session: ReferenceType[FullSession]
    use_id: str

    def waiting(self) -> FullSession | None:
        """Return the session of that call if it waits for this one."""
        session = self.session()
        if session is None or self.owner() is None:
            return None
        machine = session.machine
        pending = machine.suspension.pending if machine.state is State.SUSPENDED else ()
        return session if any(wait.within == self.use_id for wait in pending) else None


class Session(FairLine):
    """One conversation: an agent's own, `agent.session(id)`, or `Session.fresh()`.

    Attributes:
        id: Its id.
        store: Its store; None: in memory.
    """

    __slots__ = ("__weakref__", "_state", "id")

    id: str
    store: Store | None
    _state: StateMap | None

    @staticmethod
    def fresh(messages: Iterable[Msg] = (), id: str | None = None) -> Session:  # noqa: A002 - the public name
        """Create a new session for one-off calls.

        Args:
            messages: The initial messages.
            id: Its id; a new one by default.

        Raises:
            TranscriptError: The order of the messages is invalid.
        """
        return FullSession(fresh_id("session_") if id is None else id, messages)

    @staticmethod
    async def check(store: Store, id: str) -> SessionCheck:  # noqa: A002 - the public name
        """Check whether the facts of a stored session are consistent, without loading it, and return the state that results
        from them.

        Args:
            store: The store.
            id: Its id.

        Raises:
            StoreError: The session does not exist, or cannot be read.

        Example:
            >>> store = MemoryStore()
            >>> await store.import_(Session.fresh([Msg.user("I am Ada.")], id="ada").to_dict())
            'ada'
            >>> (await Session.check(store, "ada")).ok
            True
        """
        return await store_link.check_session(store, id)

    @property
    def state(self) -> StateMap:
        """The typed state that is stored with the session."""
        if self._state is None:
            self._state = StateMap()
        return self._state

    @property
    def busy(self) -> bool:
        """Whether a call is running on it."""
        return self._held

    @property
    def status(self) -> SessionStatus:
        """The status of the session.

        `"idle"`: ready for a call; `"running"` a call, or loading for a call; `"suspended"` until a decision is made; or
        `"unfinished"` if a crash or a shutdown interrupted its call (`agent.resume(session)` continues it).

        Raises:
            UsageError: The session is in a store and has not been loaded yet.
        """
        if self.busy:
            return "running"
        own = full_session(self)
        own.check_known("status is")
        return STATUSES.get(own.machine.state, "unfinished")

    @property
    def messages(self) -> Sequence[Msg]:
        """The current conversation.

        Raises:
            UsageError: It is in a store, and has not been loaded yet.
        """
        own = full_session(self)
        own.check_known("messages are")
        return own.machine.transcript.messages

    @property
    def pending(self) -> tuple[Pending, ...]:
        """The calls that wait for a decision, if the session is suspended.

        Raises:
            UsageError: It is in a store, and has not been loaded yet.
        """
        own = full_session(self)
        own.check_known("pending calls are")
        return own.machine.suspension.pending if own.machine.state is State.SUSPENDED else ()

    def interrupt(self, reason: str) -> bool:
        """Interrupt the call that runs on the session, or the next call if it has not begun yet (while loading, say).

        Returns:
            Whether there was such a call.
        """
        own = full_session(self)
        if own.run is None:
            if not own.busy:
                return False
            own.interrupted = reason  # the call reads this when it begins
        run = own.run  # read again, since in another thread the call may have begun meanwhile
        if run is not None:
            run.interrupt(reason)
        return True

    # ---- as data

    def copy(self, id: str) -> Session:  # noqa: A002 - the public name
        """Return an independent copy with another id and no store. The copy of a suspended session is suspended.

        Raises:
            UsageError: A call is running on it.
        """
        copy = full_session(Session.from_dict({**self.to_dict(), "id": id}))
        copy.implicit = full_session(self).implicit
        return copy

    def to_dict(self) -> dict[str, Any]:
        """Return the session as JSON-compatible data, including its typed state. A suspended session can be resumed from
        this data.

        Raises:
            UsageError: A call is running on it, or its state contains a value without a JSON form.

        Example:
            >>> session = Session.fresh([Msg.user("I am Ada.")], id="s")
            >>> Session.from_dict(session.to_dict()).messages[0].text
            'I am Ada.'
        """
        if self.busy:
            raise UsageError(
                f"Session {self.id!r} is running a call. Save it after the call has ended, or interrupt it first."
            )
        own = full_session(self)
        if own.link is not None and not own.link.loaded:
            raise UsageError(
                f"Session {self.id!r} has not been loaded from its store yet. Save it there: "
                f"await store.export({self.id!r})."
            )
        machine, open_run = own.machine, own.open_run
        state = _saved_state(self.id, self.state)
        messages: Sequence[Msg] = tuple(machine.transcript.messages)
        facts: Sequence[Fact] = ()
        seq, run_state = 0, EMPTY
        if machine.state is not State.USER_INPUT:
            if open_run is None:
                raise UsageError(
                    f"Session {self.id!r} contains an interrupted call (state {machine.state.name}). Continue it with "
                    "agent.resume(session) before saving."
                )
            length = len(Machine.from_facts(open_run.facts).transcript)  # those messages are saved as facts
            messages, facts, seq = messages[: len(messages) - length], open_run.facts, open_run.seq
            run_state = EMPTY if open_run.state is None else _saved_state(self.id, open_run.state)
        # A compaction in an earlier call is not among the facts of the open run.
        if machine.compacted is not None and not any(isinstance(fact, Compacted) for fact in facts):
            facts = (Compacted(machine.run_id, *machine.compacted), *facts)
        data = codec.session_to_dict(codec.SavedSession(self.id, tuple(messages), tuple(facts), state, seq, run_state))
        inner = {key: session.to_dict() for key, session in self._inner_to_keep()}
        return {**data, "inner": inner} if inner else data

    def _inner_to_keep(self) -> list[tuple[str, FullSession]]:
        """Return the sub-agents' sessions that are saved with this one: kept conversations, and suspended sessions."""
        inner = full_session(self).inner or {}
        kept = [(key, session) for key, session in inner.items() if key.startswith(CONVERSATION)]
        waiting = {wait.within for wait in self.pending if wait.within is not None}
        held = [session for _, session in kept]
        return [*kept, *((key, inner[key]) for key in inner if key in waiting and inner[key] not in held)]

    def to_json(self) -> str:
        """Return `to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Session:
        """Build a session from the data of `to_dict` or a store's `export`. It has no store.

        Raises:
            StoreError: The data is not a session, was written by a newer agentflow, or is inconsistent.
        """
        saved = codec.session_from_dict(data)
        inner = stores.inner_sessions(data)
        try:
            session = FullSession(saved.id, saved.messages)
            for fact in saved.facts:
                session.machine.apply(fact)
        except UsageError as error:
            raise StoreError(
                f"The saved session {saved.id!r} is inconsistent: {error} It was changed by hand or is damaged: "
                "save it again."
            ) from error
        session.state.restore({**session.machine.state_kept, **saved.state})
        run_state = StateMap()
        run_state.restore(saved.run_state)
        session.keep_open_run(saved.facts, saved.seq, run_state)
        if inner:
            session.inner = {use_id: full_session(Session.from_dict(saved)) for use_id, saved in inner.items()}
        return session

    @staticmethod
    def from_json(text: str | bytes) -> Session:
        """Build a session from the text of `to_json`; see `from_dict`."""
        return Session.from_dict(read_json(text, "session"))

    def __repr__(self) -> str:
        machine = full_session(self).machine
        return f"Session({self.id!r}, {len(machine.transcript)} messages, {machine.state.name})"


@objects_of(Session)
class FullSession(Session):
    """The interface of a session for calls: the queue of calls, and its facts.

    Args:
        id: Its id.
        messages: The initial messages.
        store: Its store; None: in memory.
        implicit: Whether it is an agent's implicit session.

    Attributes:
        machine: The state folded from its facts.
        closing: Whether it is being cleaned up or loaded: the next call waits, even on an implicit session.
        run: The call that runs on it.
        interrupted: The reason for which to interrupt a call that has acquired the session but has not begun.
        open_run: Data for the call that continues its open run.
        link: The link to its store.
        inner: The sessions of sub-agents: suspended in its calls, by tool-use id; kept as conversations, by
            `conversation_key`.
        outer: The tool call in which it is suspended, if it belongs to a sub-agent.
    """

    __slots__ = ("closing", "implicit", "inner", "interrupted", "link", "machine", "open_run", "outer", "run", "store")

    def __init__(
        self,
        id: str,  # noqa: A002 - the public name
        messages: Iterable[Msg] = (),
        *,
        store: Store | None = None,
        implicit: bool = False,
    ) -> None:
        self._lock = allocate_lock()  # inlined from `FairLine`, which saves a call
        self._line = None
        self.id = id
        self.machine = Machine(messages)
        self._state = None
        self.implicit = implicit
        self.closing = False
        self.run: Interruptible | None = None
        self.interrupted: str | None = None
        self.open_run: OpenRun | None = None
        self.inner: dict[str, FullSession] | None = None
        self.outer: OuterCall | None = None
        self.store = store
        self.link = None if store is None else store_link.StoreLink(store)

    def check_known(self, what: str) -> None:
        """Refuse an access if the session has not been loaded from its store."""
        if self.link is not None and self.link.unknown:
            raise UsageError(
                f"Session {self.id!r} has not been loaded from its store yet, so its {what} unknown. Load it with "
                f"await agent.history({self.id!r}), which returns its messages; a call on it loads it too."
            )

    @property
    def unsaved(self) -> bool:
        """Whether its state should be stored with the next fact."""
        return self._state is not None and self._state.unsaved

    def keep_open_run(self, facts: Sequence[Fact], seq: int, state: StateMap | None) -> None:
        """Keep data for the call that continues an open run, if there is one."""
        self.open_run = None
        if self.machine.state is not State.USER_INPUT:
            start = max((n for n, fact in enumerate(facts) if isinstance(fact, CallOpened)), default=0)
            self.open_run = OpenRun(self.machine.run_id, seq, list(facts[start:]), state)

    # ---- the queue of calls

    def try_acquire(self) -> bool:
        """Acquire the session if it is free and no call waits for it."""
        if self._line or (self.link is not None and not self.link.ready):  # waiting calls come first
            return False
        return self._lock.acquire(False)

    async def acquire(self, agent: str) -> None:
        """Wait for the session.

        Raises:
            UsageError: It is an agent's implicit session and a call is running on it.
        """
        if self.run is not None and self.run.orphaned:
            self.run.finish_lost()  # no driver will ever release it
        with self._mutex:  # no other call begins between the check and `_join_line`
            if self.implicit and self._held and not self.closing:
                raise UsageError(
                    f"A call on agent {agent!r} overlaps with another one on its implicit session, which is one "
                    "conversation. Await the first call, or use a separate session for each call: session='some-id' "
                    "or session=Session.fresh()."
                )
            place = self._join_line()
        if place is not None:
            await self._wait(place)
        if self.link is None:
            return
        try:
            await self.link.begin(self)
        except BaseException:  # the next call may still succeed
            self.release()
            raise

    async def load(self) -> None:
        """Load the session from its store, unless a call is running on it: the state in memory is then current.

        Raises:
            StoreError: It cannot be read.
        """
        link = self.link
        if link is None or (self._held and link.loaded):
            return
        with self._mutex:
            place = self._join_line()
        if place is not None:
            await self._wait(place)
        self.closing = True  # meanwhile another call waits, even on the implicit session
        try:
            await link.load(self)
        finally:
            self.release()

    def release(self) -> None:
        """Let the next waiting call begin, in order of arrival."""
        self.run = self.interrupted = None
        self.closing = False  # before passing it on, so that the next holder finds it reset
        if self.link is not None:
            self.link.release()
        self._pass_on()

    def keep_inner(self, tool_use_id: str, session: FullSession) -> None:
        """Keep the session of a sub-agent that is suspended in a call of this session."""
        if self.inner is None:
            self.inner = {}
        self.inner[tool_use_id] = session

    # ---- facts

    def record(self, *facts: Fact) -> StoredMessages | Awaitable[StoredMessages]:
        """Store facts and changes of the session's state, all or none, and apply them. Return an awaitable only if the
        store needs time.

        Returns:
            For each fact, the messages that were stored with it.

        Raises:
            UsageError: The machine refuses a fact; none is stored.
            StoreError: The store failed to write them; the next call loads the session again.
        """
        if self.link is not None:
            return self.link.record(self, facts)
        self.machine.check(*facts)
        return [self.machine.apply(fact) for fact in facts]

    def record_now(self, fact: Fact) -> None:
        """Apply a fact, and request a write that cannot be awaited, since the event loop is closed. The next call loads
        the session again.

        Raises:
            UsageError: The machine refuses the fact.
            StoreError: The store failed to write it.
        """
        self.machine.check(fact)
        if self.link is None:
            self.machine.apply(fact)
        else:
            self.link.record_now(self, fact)


def full_session(session: Session) -> FullSession:
    """Return the session with the interface for calls."""
    assert isinstance(session, FullSession)  # every `Session` is a `FullSession`
    return session


def _saved_state(id: str, state: StateMap) -> Mapping[str, Any]:  # noqa: A002 - as in `Session`
    values, refused = state.saved()
    if refused:
        raise UsageError(
            f"The state of session {id!r} cannot be saved: pydantic cannot serialize {', '.join(refused)}. Use "
            "dataclasses or pydantic models."
        )
    return values
