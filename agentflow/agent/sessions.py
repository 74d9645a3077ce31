"""The named sessions that an agent holds in memory.

Rules:

1. There is one object for an id at a time, also for two threads that ask at once, and as long as anybody holds it.
2. Without a store an agent is where its sessions live: it lets go of none by itself.
3. With a store it holds the last used ones, and those that run a call or wait for a decision. The rest is read from the
   store when it is asked for again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from weakref import WeakValueDictionary

from agentflow.loop.session import Session

__all__ = ["HELD", "Sessions"]

HELD = 256
"""How many idle sessions an agent with a store holds."""


class Sessions:
    """Named sessions.

    Args:
        make: Makes the session of an id.
        limit: Most idle ones that are held; None: any number.
    """

    def __init__(self, make: Callable[[str], Session], limit: int | None) -> None:
        self._make = make
        self._limit = limit
        self._recent: OrderedDict[str, Session] = OrderedDict()  # the last used one is the last
        self._alive: WeakValueDictionary[str, Session] = WeakValueDictionary()  # those that somebody holds
        self._suspended: dict[str, Session] = {}
        self._guard = threading.Lock()

    def find(self, id: str) -> Session | None:  # noqa: A002 - the contract's word
        """The session of an id, if it is here."""
        found = self._recent.get(id)
        return found if found is not None else self._alive.get(id) or self._suspended.get(id)

    def get(self, id: str) -> Session:  # noqa: A002
        """The session of an id; it is made when first asked for."""
        found = self._recent.get(id)
        if found is not None and self._limit is None:
            return found
        with self._guard:
            found = self.find(id)
            if found is None:
                found = self._make(id)
            elif found is self._suspended.get(id) and id not in self._recent and id not in self._alive:
                return found  # somebody else's: held until it is answered, and no longer
            if self._limit is None:
                self._recent[id] = found
                return found
            self._alive[id] = self._recent[id] = found
            self._recent.move_to_end(id)
            if len(self._recent) > self._limit:
                self._recent.popitem(last=False)
            return found

    def suspended(self, session: Session) -> None:
        """Hold a session that waits for a decision, whoever made it: what it waits with is not all in the store."""
        self._suspended[session.id] = session

    def settled(self, id: str) -> None:  # noqa: A002
        """A session waits no more."""
        if self._suspended:
            self._suspended.pop(id, None)

    def waiting(self, id: str) -> Session | None:  # noqa: A002
        """The session of an id, if it waits for a decision here."""
        return self._suspended.get(id)

    def forget(self, id: str) -> bool:  # noqa: A002
        """Let go of a session; whether it was there."""
        with self._guard:
            found = self.find(id)
            for held in (self._recent, self._alive, self._suspended):
                held.pop(id, None)
            return found is not None

    def __iter__(self) -> Iterator[Session]:
        """All that are here."""
        with self._guard:
            here = {**self._alive, **self._recent, **self._suspended}
        return iter(here.values())
