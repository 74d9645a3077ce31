"""The sessions that an agent holds in memory: its implicit session, and named sessions.

Rules:

1. There is one session object per id at a time, even across threads, for as long as the object is referenced.
2. Without a store, the sessions exist only in the agent, so it never releases a session by itself.
3. With a store, the agent holds the most recently used sessions, and those that run a call or wait for a decision.
   Other sessions are loaded from the store when needed.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, cast
from weakref import WeakValueDictionary

from agentflow._support.ids import inside
from agentflow._support.lazy import later
from agentflow._support.logs import logger
from agentflow.errors import UsageError
from agentflow.loop.run import RunBase, current_turn
from agentflow.loop.session import FullSession, Session
from agentflow.vocabulary.context import called_from

if TYPE_CHECKING:
    from agentflow.vocabulary.ports import store as stores
    from agentflow.vocabulary.ports.store import SessionInfo, Store
else:
    stores = later("agentflow.vocabulary.ports.store")

HELD = 256
"""The number of idle sessions that an agent with a store holds."""


class Sessions:
    """An agent's sessions.

    Args:
        agent: The agent's name: the id of its implicit session.
        store: Their store; None keeps them in memory only.
        waiting: The sessions that wait for a decision.

    Attributes:
        implicit: The agent's own conversation, once it has been used.
        waiting: The sessions of this and other agents that wait for a decision, by id. They are kept because the store
            does not contain all of their state.
    """

    def __init__(self, agent: str, store: Store | None, waiting: dict[str, FullSession]) -> None:
        self._agent = agent
        self._store = store
        # Without a store, a session that was released would be lost (rule 2).
        self._limit = None if store is None else HELD
        self.implicit: FullSession | None = None
        self.waiting = waiting
        # Weak, because their callers' sessions refer to them.
        self._within: WeakValueDictionary[str, FullSession] = WeakValueDictionary()
        self._recent: OrderedDict[str, FullSession] = OrderedDict()  # the most recently used one is last
        # With a store, weak references to sessions that are used elsewhere, for example by a running call.
        self._alive: MutableMapping[str, FullSession] = {} if store is None else WeakValueDictionary()
        self._mutex = threading.Lock()

    def own(self) -> FullSession:
        """Return the implicit session."""
        if self.implicit is None:
            self.implicit = FullSession(self._agent, store=self._store, implicit=True)
        return self.implicit

    def of(self, session: str | Session | None, to_continue: bool = False) -> FullSession:
        """Return the session for an argument: an id, a session itself, or None for the implicit one.

        Args:
            session: The argument.
            to_continue: Whether the session will be resumed; then waiting sessions of other agents are found too.

        Raises:
            UsageError: The argument is neither an id nor a session, or is an empty id.
        """
        if session is None:
            return self.own()
        if isinstance(session, str):
            waiting = (self.waiting.get(session) or self._within.get(session)) if to_continue else None
            return self.get(session) if waiting is None else waiting
        if not isinstance(session, FullSession):  # every `Session` is a `FullSession`
            raise UsageError(f"session= takes an id or a Session, not {type(session).__name__}.")
        return session

    def keep_within(self, session: FullSession) -> None:
        """Make a session that waits within another agent's call resumable by id, for as long as that call keeps it."""
        self.waiting.pop(session.id, None)
        self._within[session.id] = session

    def find(self, id: str) -> FullSession | None:  # noqa: A002 - public name
        """Return the session with an id, if it is in memory."""
        found = self._recent.get(id)
        return found if found is not None else self._alive.get(id) or self.waiting.get(id)

    def get(self, id: str) -> FullSession:  # noqa: A002 - public name
        """Return the session with an id, created on first use."""
        found = self._recent.get(id)
        # The fast path, without the lock: nothing here changes the order or the number of sessions.
        if found is not None and self._limit is None:
            return found
        with self._mutex:
            found = self.find(id)
            if found is None:
                if not id:
                    raise UsageError(
                        "A session's id cannot be empty: unrelated callers would share a conversation. Pass the "
                        "conversation's id, or session=None for the agent's implicit session."
                    )
                found = FullSession(id, store=self._store)
            elif found is self.waiting.get(id) and id not in self._recent and id not in self._alive:
                return found  # another agent's session, which is held only until the decision is made
            if self._limit is None:
                self._recent[id] = found
                return found
            self._alive[id] = self._recent[id] = found
            self._recent.move_to_end(id)
            if len(self._recent) > self._limit:
                # Still found in `_alive` while a call or a caller refers to it (rule 1).
                self._recent.popitem(last=False)
            return found

    def forget(self, id: str) -> bool:  # noqa: A002 - public name
        """Release a session; return whether it was in memory.

        Raises:
            UsageError: A call is running on the session.
        """
        with self._mutex:
            found = self.find(id)
            if found is not None and found.busy:
                raise UsageError(
                    f"Session {id!r} of agent {self._agent!r} is running a call. Call forget() after the call has ended."
                )
            for held in (self._recent, self._alive, self.waiting):
                held.pop(id, None)
            return found is not None

    async def unfinished(self) -> list[SessionInfo]:
        """Return the sessions in the store with an interrupted call, except sessions of sub-agents and sessions with a
        call that runs here.
        """
        store = self._store
        if not isinstance(store, stores.SessionStore):
            return []
        found = await store.sessions()
        # A sub-agent's session is left out if the session that contains it will be resumed, which continues both.
        within = inside([info.id for info in found if info.status != "idle"])
        busy = {session.id for session in (*self, *filter(None, [self.implicit])) if session.busy}
        return [info for info in found if info.status == "unfinished" and info.id not in busy and not within(info.id)]

    def __iter__(self) -> Iterator[FullSession]:
        """Iterate over all named sessions in memory."""
        with self._mutex:
            # A copy, because other threads and garbage collection change the dicts.
            known = {**self._alive, **self._recent, **self.waiting}
        return iter(known.values())


def refuse_waiting_for_itself(session: FullSession, agent: str) -> None:
    """Refuse a nested call on a session that an enclosing call holds, since the nested call would wait for itself.

    If the two calls are in different tasks, a deadlock is not certain: then a warning is logged, and the new call waits.

    Raises:
        UsageError: The call would deadlock.
    """
    # A deadlock is certain if this code works for the call that holds the session: directly, or through a chain of
    # calls of which each one waits for the next.
    task, place, holder = asyncio.current_task(), current_turn.get(), session.run
    certain = isinstance(holder, RunBase) and holder.scope.tasks.includes(task)
    if not certain:
        # Outside of tools, such as in a hook's thread, only `called_from` shows the call.
        run = cast("RunBase | None", called_from.get()) if place is None else place.run
        certain = run is not None and run.scope.waits_for(task)
        while run is not None and not run.finished and not run.uses(session):
            certain = certain and run.parent is not None and run.parent.scope.waits_for(run.scope.caller)
            run = run.parent
        if run is None or run.finished:
            return
    if certain:
        raise UsageError(
            f"A call of agent {agent!r} on session {session.id!r} was made by a tool or a hook of a call on that same "
            "session, so they would deadlock. Make the new call in a separate conversation (session=Session.fresh()) "
            "or after the running call has ended, or add a message to the running call (context.inject(...))."
        )
    if session.implicit and not session.closing:  # an overlapping call is refused later
        return
    logger.bind(session_id=session.id).warning(
        "a call of agent {} on session {} waits for the call that started it; if that call waits for the new one "
        "too, both deadlock",
        agent,
        session.id,
    )
