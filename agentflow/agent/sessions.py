"""The sessions that an agent holds in memory: its implicit one, and named ones.

Rules:

1. There is one object for an id at a time, also for two threads that ask at once, and as long as anybody holds it.
2. Without a store an agent is where its sessions live: it lets go of none by itself.
3. With a store it holds the last used ones, and those that run a call or wait for a decision. The rest is read from the
   store when it is asked for again.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import cast
from weakref import WeakValueDictionary

from agentflow.context import called_from
from agentflow.errors import UsageError
from agentflow.ground.ids import inside
from agentflow.ground.logs import logger
from agentflow.loop.run import RunBase, current_turn
from agentflow.loop.session import FullSession, Session
from agentflow.ports.store import SessionInfo, SessionStore, Store

__all__ = ["HELD", "Sessions", "refuse_waiting_for_itself"]

HELD = 256
"""How many idle sessions an agent with a store holds."""


class Sessions:
    """An agent's sessions.

    Args:
        agent: The agent's name: the id of its implicit session.
        store: Where they are kept; None: here.
        new_id: Ids.
        waiting: Those that wait for a decision.

    Attributes:
        implicit: The agent's own conversation, once somebody has asked for it.
        waiting: Those that wait for a decision, whoever made them, by id: what they wait with is not all in the store.
    """

    def __init__(
        self, agent: str, store: Store | None, new_id: Callable[[str], str], waiting: dict[str, FullSession]
    ) -> None:
        self._agent = agent
        self._store = store
        self._new_id = new_id
        self._limit = None if store is None else HELD
        self.implicit: FullSession | None = None
        self.waiting = waiting
        self._within: WeakValueDictionary[str, FullSession] = WeakValueDictionary()  # their callers' sessions hold them
        self._recent: OrderedDict[str, FullSession] = OrderedDict()  # the last used one is the last
        self._alive: MutableMapping[str, FullSession] = (
            {} if store is None else WeakValueDictionary()
        )  # somebody holds them
        self._guard = threading.Lock()

    def own(self) -> FullSession:
        """The implicit one."""
        if self.implicit is None:
            self.implicit = FullSession(self._agent, store=self._store, implicit=True, new_id=self._new_id)
        return self.implicit

    def of(self, session: str | Session | None, to_go_on: bool = False) -> FullSession:
        """The session that somebody means: an id, a session itself, or None for the implicit one.

        Args:
            session: What was given.
            to_go_on: It is to be continued: one that waits may be somebody else's.

        Raises:
            UsageError: It is none of these.
        """
        if session is None:
            return self.own()
        if isinstance(session, str):
            waits = (self.waiting.get(session) or self._within.get(session)) if to_go_on else None
            return self.get(session) if waits is None else waits
        if not isinstance(session, FullSession):  # each `Session` is one
            raise UsageError(f"session= takes an id or a Session, not {type(session).__name__}.")
        return session

    def keep_within(self, session: FullSession) -> None:
        """Let a session be resumed by its id that waits within another agent's call, for as long as that keeps it."""
        self.waiting.pop(session.id, None)
        self._within[session.id] = session

    def find(self, id: str) -> FullSession | None:  # noqa: A002 - the contract's word
        """The session of an id, if it is here."""
        found = self._recent.get(id)
        return found if found is not None else self._alive.get(id) or self.waiting.get(id)

    def get(self, id: str) -> FullSession:  # noqa: A002
        """The session of an id; it is made when first asked for."""
        found = self._recent.get(id)
        if found is not None and self._limit is None:
            return found
        with self._guard:
            found = self.find(id)
            if found is None:
                found = FullSession(id, store=self._store, new_id=self._new_id)
            elif found is self.waiting.get(id) and id not in self._recent and id not in self._alive:
                return found  # somebody else's: held until it is answered, and no longer
            if self._limit is None:
                self._recent[id] = found
                return found
            self._alive[id] = self._recent[id] = found
            self._recent.move_to_end(id)
            if len(self._recent) > self._limit:
                self._recent.popitem(last=False)
            return found

    def forget(self, id: str) -> bool:  # noqa: A002
        """Let go of a session; whether it was there.

        Raises:
            UsageError: A call is running on it.
        """
        with self._guard:
            found = self.find(id)
            if found is not None and found.busy:
                raise UsageError(
                    f"Session {id!r} of agent {self._agent!r} is running a call; it can be forgotten when that has ended."
                )
            for held in (self._recent, self._alive, self.waiting):
                held.pop(id, None)
            return found is not None

    async def unfinished(self) -> list[SessionInfo]:
        """Those in the store that hold a call which was cut; of sub-agents none, and of those that run here none."""
        store = self._store
        if not isinstance(store, SessionStore):
            return []
        found = await store.sessions()
        within = inside([info.id for info in found if info.status != "idle"])
        here = {session.id for session in (*self, *filter(None, [self.implicit])) if session.busy}
        return [info for info in found if info.status == "unfinished" and info.id not in here and not within(info.id)]

    def __iter__(self) -> Iterator[FullSession]:
        """All named ones that are here."""
        with self._guard:
            here = {**self._alive, **self._recent, **self.waiting}
        return iter(here.values())


def refuse_waiting_for_itself(session: FullSession, agent: str) -> None:
    """Refuse a call that would wait for a session which the very call that it is made from holds.

    Where the two are in different tasks, nobody can see whether the one waits for the other: then it is logged, and waits.

    Raises:
        UsageError: It is made from there.
    """
    task, place, holder = asyncio.current_task(), current_turn.get(), session.run
    certain = isinstance(holder, RunBase) and holder.scope.works_in(task)
    if not certain:
        run = cast("RunBase | None", called_from.get()) if place is None else place.run
        certain = run is not None and run.scope.waits_for(task)
        while run is not None and not run.over and not run.uses(session):
            certain = certain and run.parent is not None and run.parent.scope.waits_for(run.scope.caller)
            run = run.parent
        if run is None or run.over:
            return
    if certain:
        raise UsageError(
            f"A call of agent {agent!r} on session {session.id!r} was made by a tool or a hook of a call on that same session, "
            "so each would wait for the other forever. Make it in a conversation of its own (session=Session.fresh()), add "
            "to this one (context.inject(...)), or make it when this call has ended."
        )
    if session.implicit and not session.closing:  # refused, as it overlaps
        return
    logger.bind(session_id=session.id).warning(
        "a call of agent {} on session {} waits for the call from which it was begun; should that one wait for it, neither "
        "ever ends",
        agent,
        session.id,
    )
