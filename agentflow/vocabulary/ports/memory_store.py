"""`MemoryStore`: a store that keeps sessions in the process."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from agentflow._support.ids import inner_prefixes, inner_session_id
from agentflow.vocabulary.facts import Fact
from agentflow.vocabulary.ports.store import (
    Claim,
    SessionInfo,
    SessionStore,
    StoredStatus,
    conflict,
    fact_conflict,
    id_taken,
    imported_facts,
    inner_point,
    inner_sessions,
    kept_inside,
    moved_inside,
    no_point,
    no_session,
    prunable,
    prune_before,
    status_after,
)
from agentflow.vocabulary.saving.codec import SavedSession, fact_key, session_from_dict, session_to_dict


class _Journal:
    __slots__ = ("facts", "keys", "status", "updated")

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.keys: dict[str, Fact] | None = None  # built when a writer first appends without a version
        self.status: StoredStatus = "idle"
        self.updated = 0.0

    def known(self) -> dict[str, Fact]:
        if self.keys is None:
            self.keys = {key: fact for fact in self.facts if (key := fact_key(fact)) is not None}
        return self.keys

    def add(self, facts: Sequence[Fact]) -> None:
        self.facts.extend(facts)
        if self.keys is not None:
            self.keys.update({key: fact for fact in facts if (key := fact_key(fact)) is not None})
        self.status = status_after(facts) or self.status
        self.updated = time.time()


class MemoryStore(SessionStore):
    """Keeps sessions in the process.

    Example:
        >>> store = MemoryStore()
        >>> store.load("unknown")
        ()
    """

    __slots__ = ("_journals",)

    def __init__(self) -> None:
        self._journals: dict[str, _Journal] = {}

    def append(
        self,
        session_id: str,
        facts: Sequence[Fact],
        *,
        expected: int | None = None,
        claim: Claim | None = None,
    ) -> Awaitable[None] | None:
        """Add facts; see `SessionStore.append`."""
        journal = self._journals.get(session_id)
        if expected is None:
            journal = self._journal(session_id)
            facts = _new_facts(session_id, journal, facts)
        elif journal is None:
            if expected:  # the writer knows a session that was deleted
                raise conflict(session_id, expected, 0)
            journal = self._journal(session_id)
        elif len(journal.facts) != expected:
            # Rule 3 of the port: the writer did not learn that its facts were stored.
            if journal.facts[expected : expected + len(facts)] == list(facts):
                return None  # the same facts were delivered twice
            raise conflict(session_id, expected, len(journal.facts))
        if facts:
            journal.add(facts)
        return None

    def _journal(self, session_id: str) -> _Journal:
        return self._journals.setdefault(session_id, _Journal())

    def load(self, session_id: str) -> Sequence[Fact]:
        """Return all facts of a session, oldest first."""
        journal = self._journals.get(session_id)
        return () if journal is None else tuple(journal.facts)

    def claim(self, session_id: str, *, lease: float | None = None) -> Awaitable[Claim] | None:
        """Return None: conflicts are detected when a writer appends."""
        return None

    async def sessions(self, prefix: str = "") -> list[SessionInfo]:
        """Return the sessions, most recently used first."""
        journals = [(id, j) for id, j in self._journals.items() if id.startswith(prefix)]  # noqa: A001
        found = [SessionInfo(id, len(j.facts), j.updated, j.status) for id, j in journals]  # noqa: A001
        return sorted(found, key=lambda info: (-info.updated, info.id))

    async def fork(self, session_id: str, new_id: str, at: int | str | None = None) -> None:
        """Copy a session up to a point; see `SessionStore.fork`."""
        facts = self._existing(session_id).facts
        stop = len(facts) if at is None else at
        if isinstance(stop, str):
            # A `run_id` means the last fact of that run.
            stop = max((n for n, fact in enumerate(facts, 1) if getattr(fact, "run_id", None) == at), default=0)
        if not 1 <= stop <= len(facts):
            raise no_point(session_id, at or 0, len(facts))
        self._free(new_id).add(facts[:stop])
        for use_id in kept_inside(facts[:stop]):
            inner = self._journals.get(inner_session_id(session_id, use_id))
            if inner is not None and (until := inner_point(facts[:stop], inner.facts)):
                await self.fork(inner_session_id(session_id, use_id), inner_session_id(new_id, use_id), until)

    async def rename(self, session_id: str, new_id: str) -> None:
        """Give a session another id, and move the sessions of its sub-agents with it."""
        facts = self._existing(session_id).facts
        moved = {session_id: new_id, **moved_inside(session_id, new_id, facts, self._inside(session_id))}
        taken = [new for new in moved.values() if new in self._journals]
        if taken:
            raise id_taken(taken[0])
        for old, new in moved.items():
            self._journals[new] = self._journals.pop(old)

    async def delete(self, session_id: str) -> bool:
        """Delete a session and the sessions of its sub-agents."""
        journal = self._journals.pop(session_id, None)
        if journal is None:
            return False
        for inner in moved_inside(session_id, session_id, journal.facts, self._inside(session_id)):
            del self._journals[inner]
        return True

    def _inside(self, session_id: str) -> list[str]:
        prefixes = inner_prefixes(session_id)  # first, since this is much faster than comparing facts
        return [inner for inner in self._journals if inner.startswith(prefixes)]

    async def prune(
        self,
        *,
        older_than: timedelta,
        statuses: Collection[StoredStatus] = ("idle",),
        keep: Collection[str] = (),
    ) -> list[SessionInfo]:
        """Delete sessions that were not written to for some time; see `SessionStore.prune`."""
        going = prunable(await self.sessions(), prune_before(older_than, statuses), statuses, keep)
        for info in going:
            del self._journals[info.id]
        return going

    async def export(self, session_id: str) -> dict[str, Any]:
        """Return a session as JSON-compatible data."""
        facts = tuple(self._existing(session_id).facts)
        data = session_to_dict(SavedSession(session_id, (), facts))
        inner = [use_id for use_id in kept_inside(facts) if inner_session_id(session_id, use_id) in self._journals]
        return (
            {**data, "inner": {i: await self.export(inner_session_id(session_id, i)) for i in inner}} if inner else data
        )

    async def import_(self, data: Mapping[str, Any], session_id: str | None = None) -> str:
        """Store a session from the data of `export` or `Session.to_dict`."""
        saved = session_from_dict(data)
        name = saved.id if session_id is None else session_id
        inner = inner_sessions(data)
        self._free(name).add(imported_facts(saved))
        for use_id, session in inner.items():
            await self.import_(session, inner_session_id(name, use_id))
        return name

    def _existing(self, session_id: str) -> _Journal:
        journal = self._journals.get(session_id)
        if journal is None:
            raise no_session(session_id, self._journals)
        return journal

    def _free(self, session_id: str) -> _Journal:
        if session_id in self._journals:
            raise id_taken(session_id)
        return self._journal(session_id)

    async def close(self) -> None:
        """Do nothing: the store has no resources to release."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _new_facts(session_id: str, journal: _Journal, facts: Sequence[Fact]) -> list[Fact]:
    """Return the facts that are not stored yet."""
    found: list[Fact] = []
    for fact in facts:
        key = fact_key(fact)
        stored = None if key is None else journal.known().get(key)
        if stored is None:
            found.append(fact)
        elif stored != fact:
            raise fact_conflict(session_id, key or "")
    return found
