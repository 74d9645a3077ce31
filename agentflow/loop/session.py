"""A session: one conversation, who is using it now, and who waits.

Rules:

1. One call at a time. On an agent's implicit session a second one is refused, in a named session it waits its turn.
2. A session whose last run is still being cleaned up (its stream was dropped) makes the next call wait, never fail.
3. What a store keeps of it, and when that is read and written, is `loop/keeping.py`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import ReferenceType

from agentflow.errors import StoreError, UsageError
from agentflow.facts import Compacted, Fact
from agentflow.ground.facade import objects_of
from agentflow.ground.frozen import EMPTY
from agentflow.ground.ids import CONVERSATION
from agentflow.ground.ids import new_id as fresh_id
from agentflow.ground.values import NamedTuple
from agentflow.loop.conversation import Conversation, FullConversation
from agentflow.loop.keeping import Keeping, Landed
from agentflow.loop.machine import Machine
from agentflow.loop.session_check import SessionCheck, check_session
from agentflow.loop.states import State
from agentflow.messages import Msg, Pending
from agentflow.ports.store import Store, inner_sessions
from agentflow.saving.codec import SavedSession, session_from_dict, session_to_dict
from agentflow.saving.plain import read_json
from agentflow.typed_state import StateMap

__all__ = ["FullSession", "Outer", "Session", "full_session"]


class Outer(NamedTuple):
    """The tool call that a sub-agent's session is suspended in.

    `owner`: the agent whose call it is; `session`: that call's; `use_id`: the tool call.
    """

    owner: ReferenceType[object]
    session: ReferenceType[FullSession]
    use_id: str

    def waiting(self) -> FullSession | None:
        """The session of that call, while it waits for this one."""
        session = self.session()
        if session is None or self.owner() is None:
            return None
        machine = session.machine
        waits = machine.pending if machine.state is State.SUSPENDED else ()
        return session if any(one.within == self.use_id for one in waits) else None


class Session(Conversation):
    """One conversation: an agent's own, `agent.session(id)`, or `Session.fresh()`.

    Attributes:
        id: Its id.
        store: Where it is kept; None: in memory.
    """

    __slots__ = ()

    store: Store | None

    @staticmethod
    def fresh(messages: Iterable[Msg] = (), id: str | None = None) -> Session:  # noqa: A002
        """A session that nobody else has, for one-offs.

        Args:
            messages: What the conversation starts with.
            id: Its id; a fresh one by default.

        Raises:
            TranscriptError: The messages are in no legal order.
        """
        return FullSession(fresh_id("session_") if id is None else id, messages)

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
        return await check_session(store, id)

    @property
    def messages(self) -> Sequence[Msg]:
        """The conversation as of now.

        Raises:
            UsageError: It is in a store, and has not been loaded yet.
        """
        own = full_session(self)
        own.check_known("messages are")
        return own.machine.transcript.messages

    @property
    def pending(self) -> tuple[Pending, ...]:
        """What the session waits for, if it is suspended.

        Raises:
            UsageError: It is in a store, and has not been loaded yet.
        """
        own = full_session(self)
        own.check_known("pending calls are")
        return own.machine.pending if own.machine.state is State.SUSPENDED else ()

    def interrupt(self, reason: str) -> bool:
        """End the call that runs on it, or that waits for it (until it is loaded, say) and begins next.

        Returns:
            Whether there was one.
        """
        own = full_session(self)
        if own.run is None:
            if not own.busy:
                return False
            own.interrupted = reason  # the call sees it when it begins, or has begun meanwhile
        run = own.run
        if run is not None:
            run.interrupt(reason)
        return True

    # ---- as data

    def copy(self, id: str) -> Session:  # noqa: A002
        """An independent copy under another id, in no store; of a suspended session one that is suspended too.

        Raises:
            UsageError: A call is running on it.
        """
        copy = full_session(Session.from_dict({**self.to_dict(), "id": id}))
        copy.implicit = full_session(self).implicit
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
        own = full_session(self)
        if own.keeping is not None and not own.keeping.loaded:
            raise UsageError(
                f"Session {self.id!r} has not been loaded from its store yet. Save it there: "
                f"await store.export({self.id!r})."
            )
        machine, carried = own.machine, own.carried
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
        inner = {key: session.to_dict() for key, session in self._inner_to_keep()}
        return {**data, "inner": inner} if inner else data

    def _inner_to_keep(self) -> list[tuple[str, FullSession]]:
        """The sessions of sub-agents that are part of it: those that wait, and those that are kept as conversations."""
        inner = full_session(self).inner or {}
        kept = [(key, session) for key, session in inner.items() if key.startswith(CONVERSATION)]
        waiting = {waits.within for waits in self.pending if waits.within is not None}
        held = [session for _, session in kept]
        return [*kept, *((key, inner[key]) for key in inner if key in waiting and inner[key] not in held)]

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return json.dumps(self.to_dict())

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Session:
        """Build a session from what `to_dict` (or a store's `export`) made; it has no store.

        Raises:
            StoreError: The data is no session, was written by a newer agentflow, or does not fit together.
        """
        saved = session_from_dict(data)
        inner = inner_sessions(data)
        try:
            session = FullSession(saved.id, saved.messages)
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
        session.carry(saved.facts, saved.seq, run_state)
        if inner:
            session.inner = {use_id: full_session(Session.from_dict(one)) for use_id, one in inner.items()}
        return session

    @staticmethod
    def from_json(text: str | bytes) -> Session:
        """Build a session from what `to_json` made; see `from_dict`."""
        return Session.from_dict(read_json(text, "session"))

    def __repr__(self) -> str:
        machine = full_session(self).machine
        return f"Session({self.id!r}, {len(machine.transcript)} messages, {machine.state.name})"


@objects_of(Session)
class FullSession(Session, FullConversation):
    """A session as calls see it: whose turn it is, and its facts.

    Args:
        id: Its id.
        messages: What the conversation starts with.
        store: Where it is kept; None: here.
        implicit: Whether it is an agent's own.
        new_id: Ids.

    Attributes:
        keeping: What its store keeps of it.
        inner: The sessions of sub-agents that are suspended behind its calls, by tool-use id.
        outer: The tool call that it is suspended in, if it is a sub-agent's.
    """

    __slots__ = ("inner", "keeping", "outer", "store")

    def __init__(
        self,
        id: str,  # noqa: A002
        messages: Iterable[Msg] = (),
        *,
        store: Store | None = None,
        implicit: bool = False,
        new_id: Callable[[str], str] = fresh_id,
    ) -> None:
        super().__init__(id, messages, implicit, new_id)
        self.inner: dict[str, FullSession] | None = None
        self.outer: Outer | None = None
        self.store = store
        self.keeping = None if store is None else Keeping(store)

    def check_known(self, what: str) -> None:
        if self.keeping is not None and self.keeping.unknown:
            raise UsageError(
                f"Session {self.id!r} has not been loaded from its store yet, so its {what} not known here. Load it: "
                f"await agent.history({self.id!r}) gives its messages; a call on it loads it too."
            )

    # ---- whose turn it is

    def try_acquire(self) -> bool:
        """Take the session if it is free and nobody waits for it."""
        if self._line or (self.keeping is not None and not self.keeping.ready):
            return False
        return self._lock.acquire(False)

    async def acquire(self, agent: str) -> None:
        """Wait for the session's turn.

        Raises:
            UsageError: It is an agent's implicit session and a call is running on it.
        """
        if self.run is not None and self.run.lost:
            self.run.cut()
        with self._guard:
            if self.implicit and self._held and not self.closing:
                raise UsageError(
                    f"A call on agent {agent!r} overlaps with another one on its implicit session, which is one "
                    "conversation. Await the first call, or give each call a conversation of its own: session='some-id' "
                    "or session=Session.fresh()."
                )
            place = self._join_line()
        if place is not None:
            await self._wait(place)
        if self.keeping is None:
            return
        try:
            await self.keeping.begin(self)
        except BaseException:
            self.release()
            raise

    async def load(self) -> None:
        """Read what its store holds. While a call runs on it, what is known here is as new.

        Raises:
            StoreError: It cannot be read.
        """
        keeping = self.keeping
        if keeping is None or (self._held and keeping.loaded):
            return
        with self._guard:
            place = self._join_line()
        if place is not None:
            await self._wait(place)
        self.closing = True  # a call that comes meanwhile waits, on the implicit session too
        try:
            await keeping.load(self)
        finally:
            self.release()

    def release(self) -> None:
        """Let the next call in, in order of arrival."""
        self.run = self.interrupted = None
        self.closing = False
        if self.keeping is not None:
            self.keeping.let_go()
        self._pass_on()

    def keep_inner(self, tool_use_id: str, session: FullSession) -> None:
        """Keep the session of a sub-agent that is suspended behind one of this session's calls."""
        if self.inner is None:
            self.inner = {}
        self.inner[tool_use_id] = session

    # ---- facts

    def record(self, *facts: Fact) -> Landed | Awaitable[Landed]:
        """Keep facts, all or none, and take them in; an awaitable only where the store needs time.

        With them goes what has changed in the session's state.

        Returns:
            For each fact the messages that landed with it.

        Raises:
            UsageError: The machine refuses one: none is kept.
            StoreError: The store did not keep them; the next call loads the session anew.
        """
        if self.keeping is not None:
            return self.keeping.record(self, facts)
        self.machine.check(*facts)
        return [self.machine.apply(fact) for fact in facts]

    def record_now(self, fact: Fact) -> None:
        """Take in a fact, and ask for a write that nobody can wait for (the loop is gone): the next call loads what came of it.

        Raises:
            UsageError: The machine refuses it: it is not kept.
            StoreError: The store did not keep it.
        """
        self.machine.check(fact)
        if self.keeping is None:
            self.machine.apply(fact)
        else:
            self.keeping.record_now(self, fact)


def full_session(session: Session) -> FullSession:
    """The session as calls see it."""
    assert isinstance(session, FullSession)  # each is made as one
    return session


def _saved_state(id: str, state: StateMap) -> Mapping[str, Any]:  # noqa: A002 - the session's word
    values, refused = state.saved()
    if refused:
        raise UsageError(
            f"The state of session {id!r} cannot be saved: pydantic does not know how to write {', '.join(refused)}. Make "
            "each a dataclass or a pydantic model."
        )
    return values
