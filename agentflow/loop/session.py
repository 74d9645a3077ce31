"""A session: one conversation, who is using it now, and who waits.

Rules:

1. One call at a time. On an agent's implicit session a second one is refused, in a named session it waits its turn.
2. A session whose last run is still being cleaned up (its stream was dropped) makes the next call wait, never fail.
3. What a session knows is the fold of its facts; facts go to the store before they are acted on.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from agentflow.context import StateMap
from agentflow.errors import UsageError
from agentflow.facts import Fact
from agentflow.ids import new_id as fresh_id
from agentflow.loop.machine import Machine
from agentflow.messages import Msg, Pending
from agentflow.ports.store import Store


class Interruptible(Protocol):
    """A run, as far as its session knows it."""

    def interrupt(self, reason: str = "interrupted") -> None:
        """End the call."""
        ...


__all__ = ["Session"]


class Carried(NamedTuple):
    """What a suspended run hands to the call that resumes it, beside what the facts say."""

    run_id: str
    seq: int
    facts: list[Fact]
    state: StateMap | None


class Session:
    """One conversation.

    Attributes:
        id: The session's id.
        state: Typed state that is kept with the session.
    """

    __slots__ = (
        "_busy",
        "_guard",
        "_loaded",
        "_waiters",
        "carried",
        "closing",
        "id",
        "implicit",
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
        self.id = id
        self.machine = Machine(messages, new_id)
        self.state = StateMap()
        self.implicit = implicit
        self.run: Interruptible | None = None
        self.closing = False
        self.carried: Carried | None = None
        self.store = store
        self._loaded = store is None
        self._busy = False
        self._guard = threading.RLock()  # a dropped stream may release it from within a garbage collection
        # Made when somebody waits: an empty deque is 600 bytes, half of what a fresh session costs.
        self._waiters: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] | None = None

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

    @property
    def messages(self) -> Sequence[Msg]:
        """The stored conversation as of now."""
        return self.machine.transcript.messages

    @property
    def pending(self) -> tuple[Pending, ...]:
        """What the session waits for, if it is suspended."""
        return self.machine.pending if self.machine.suspended else ()

    @property
    def busy(self) -> bool:
        """Whether a call is running on it."""
        return self._busy

    def try_acquire(self) -> bool:
        """Take the session if it is free and nobody waits for it."""
        with self._guard:
            if self._busy or self._waiters or not self._loaded:
                return False
            self._busy = True
            return True

    async def acquire(self, agent: str) -> None:
        """Wait for the session's turn.

        Raises:
            UsageError: It is an agent's implicit session and a call is running on it.
        """
        while True:
            with self._guard:
                if not self._busy:
                    self._busy = True
                    break
                if self.implicit and not self.closing:
                    raise UsageError(
                        f"A call on agent {agent!r} overlaps with another one on its implicit session, which is one "
                        "conversation. Await the first call, or give each call a conversation of its own: session='some-id' "
                        "or session=Session.fresh()."
                    )
                loop = asyncio.get_running_loop()
                waiter: asyncio.Future[None] = loop.create_future()
                entry = (loop, waiter)
                if self._waiters is None:
                    self._waiters = deque()
                self._waiters.append(entry)
            try:
                await waiter
            except asyncio.CancelledError:
                with self._guard:
                    if self._waiters and entry in self._waiters:
                        self._waiters.remove(entry)
                if waiter.done() and not waiter.cancelled():  # the turn had come: give it on
                    self.release()
                raise
            break  # the session was handed over, still marked busy
        if not self._loaded:
            try:
                await self._load()
            except BaseException:
                self.release()
                raise

    async def _load(self) -> None:
        assert self.store is not None
        found = self.store.load(self.id)
        facts = await found if isinstance(found, Awaitable) else found
        self._loaded = True
        if facts:
            self.machine = Machine.from_facts(facts, new_id=self.machine.new_id)

    def release(self) -> None:
        """Let the next call in, in order of arrival."""
        with self._guard:
            self.run = None
            self.closing = False
            while self._waiters:
                loop, waiter = self._waiters.popleft()
                if loop.is_closed():
                    continue
                loop.call_soon_threadsafe(_wake, waiter, self)
                return
            self._busy = False

    def record(self, fact: Fact) -> tuple[Msg, ...] | Awaitable[tuple[Msg, ...]]:
        """Keep a fact and take it in; an awaitable only where the store needs time."""
        store = self.store
        if store is not None:
            kept = store.append(self.id, (fact,))
            if kept is not None:
                return self._applied(fact, kept)
        return self.machine.apply(fact)

    async def _applied(self, fact: Fact, kept: Awaitable[None]) -> tuple[Msg, ...]:
        await kept
        return self.machine.apply(fact)

    def __repr__(self) -> str:
        return f"Session({self.id!r}, {len(self.machine.transcript)} messages, {self.machine.state.name})"


def _wake(waiter: asyncio.Future[None], session: Session) -> None:
    if waiter.cancelled():  # whoever waited has gone: the turn goes on to the next
        session.release()
    else:
        waiter.set_result(None)
