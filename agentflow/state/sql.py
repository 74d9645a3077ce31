"""`SqlStore`: sessions and run logs in SQLite or PostgreSQL, using SQLAlchemy Core.

Needs `agentflow-hooks[sql]` (for PostgreSQL `agentflow-hooks[postgres]`).

Rules:

1. One row per fact, one transaction per append: an append is stored completely or not at all.
2. An append that expects another version than the stored one writes nothing. A lease (`on_conflict="wait"`, durable runs)
   prevents conflicting writes; an append under a lost lease is refused as well.
3. One thread does the work in the order of the requests; the event loop never waits for a disk.
4. Every database error becomes a `StoreError` with advice; stored data stays readable.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Literal, Self, TypeVar, cast

try:
    from sqlalchemy import Connection, select, update
    from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'SqlStore needs SQLAlchemy: pip install "agentflow-hooks[sql]"', name=error.name
    ) from error

from agentflow._support.ids import inner_session_id, new_id
from agentflow._support.logs import logger
from agentflow._support.outage import Outage
from agentflow._support.undo import UndoOnFailure
from agentflow.errors import StoreError, UsageError
from agentflow.state.engine import Database
from agentflow.state.explain import driver_error, explain
from agentflow.state.leases import drop_lease, holds_lease, renew_lease, take_lease
from agentflow.state.migrations import is_current, migrate
from agentflow.state.run_logs import KeepsLogs
from agentflow.state.session_tables import FACTS, LEASES, SESSIONS
from agentflow.state.statements import (
    Stale,
    append_at,
    append_news,
    check_delivered,
    check_id,
    column_text,
    delete_session,
    fork_session,
    list_sessions,
    prune_sessions,
    record_of,
    rename_session,
    repair_advice,
)
from agentflow.state.thread import JobThread, Queued
from agentflow.vocabulary.facts import Fact
from agentflow.vocabulary.ports.retry import RetryPolicy
from agentflow.vocabulary.ports.store import (
    Claim,
    SessionInfo,
    SessionStore,
    StoredStatus,
    id_taken,
    imported_facts,
    inner_point,
    inner_sessions,
    kept_inside,
    lease_lost,
    no_session,
    prune_before,
    status_after,
)
from agentflow.vocabulary.saving.codec import SavedSession, fact_from_json, session_from_dict, session_to_dict

T = TypeVar("T")


def _connection_lost(error: Exception) -> bool:
    return isinstance(error, DBAPIError) and error.connection_invalidated


# After a lost connection, it is unknown whether a transaction was committed.
_ONCE = RetryPolicy(attempts=1)
_RECONNECT = RetryPolicy(who="SqlStore", attempts=2, first_wait=0, jitter=0, should_retry=_connection_lost)
"""Retry idempotent work once, without waiting, over another connection."""


class _Lease(Claim):
    """A lease that is renewed until it is released."""

    __slots__ = ("epoch", "give_back", "lost", "owner", "seconds", "session_id", "version")

    def __init__(self, session_id: str, seconds: float, give_back: Callable[[_Lease], object]) -> None:
        self.session_id = session_id
        self.owner = new_id("lease_")
        self.seconds = seconds
        self.give_back = give_back
        self.epoch = self.version = 0  # set when the lease is taken
        self.lost = False

    def release(self) -> None:
        """Release the lease, so that the next writer can take it."""
        self.give_back(self)


class SqlStore(KeepsLogs, SessionStore):
    """Stores sessions in a database, and run logs with `Recorder(store)`.

    Args:
        url: `"sqlite:///agentflow.db"` (a file; three slashes for a relative path, four for an absolute one) or
            `"postgresql+psycopg://user:password@host/database"`.
        on_conflict: What happens if two processes write to the same session. `"fail"`: the second one gets a
            `SessionConflictError`; `"wait"`: calls wait for each other, using a lease.
        lease_seconds: How long a lease outlives a process that died; a live process renews its leases. It should exceed the
            longest pause of a process.
        timeout: Seconds to wait for a connection, or for another process's lock.
        power_safe: If true, an append returns once its facts are safe from a power failure. If false, they are only safe
            from a crash of the process, which is faster.

    Raises:
        StoreError: The URL is not a SQLite or PostgreSQL database, or its driver is not installed.

    Example:
        >>> async with SqlStore("sqlite://") as store:  # in memory: for a test
        ...     agent = Agent("assistant", ScriptedModel(["Hello Ada."]), store=store)
        ...     reply = await agent.call("I am Ada.", session="ada")
        ...     print([info.id for info in await store.sessions()])
        ['ada']
    """

    def __init__(
        self,
        url: str,
        *,
        on_conflict: Literal["fail", "wait"] = "fail",
        lease_seconds: float = 30.0,
        timeout: float = 10.0,
        power_safe: bool = True,
    ) -> None:
        if on_conflict not in ("fail", "wait"):
            raise UsageError(f"on_conflict={on_conflict!r} is not supported. Use 'fail' or 'wait'.")
        if not (lease_seconds > 0 and timeout > 0):
            raise UsageError(f"lease_seconds={lease_seconds} and timeout={timeout} must be above 0 seconds.")
        self._database = Database(url, timeout, power_safe, is_current, migrate)
        self._on_conflict = on_conflict
        self._lease_seconds = lease_seconds
        self._leases: dict[str, _Lease] = {}  # the held leases by owner; used only in the worker's thread
        self._outage = Outage(f"the store {self.url}, where leases have to be renewed,")
        self._worker: JobThread | None = None
        self._pid = 0
        self._starting = threading.Lock()
        self._closed = False

    @property
    def url(self) -> str:
        """The URL of the database, without its password."""
        return self._database.shown

    # ---- the journal

    def append(
        self,
        session_id: str,
        facts: Sequence[Fact],
        *,
        expected: int | None = None,
        claim: Claim | None = None,
    ) -> Awaitable[None]:
        """Add facts, all or none; see `SessionStore.append`."""
        check_id(session_id)
        # In the caller's thread: a fact without a JSON form raises where it is appended.
        records = [record_of(fact) for fact in facts]
        status = status_after(facts)

        def write(connection: Connection) -> None:
            if claim is not None and not holds_lease(connection, claim.session_id, claim.owner, claim.epoch):
                claim.lost = True
                raise lease_lost(session_id, claim)
            if expected is None:
                append_news(connection, session_id, records, status)
            else:
                append_at(connection, session_id, records, status, expected)

        def work() -> None:
            try:
                # May be retried: facts that are stored already are recognised by `check_delivered`.
                self._transact(write, f"Writing to session {session_id!r}", retry=True)
            # In another transaction, because PostgreSQL refuses further statements in a failed one.
            except (Stale, IntegrityError):
                self._transact(
                    lambda connection: check_delivered(connection, session_id, records, expected or 0),
                    f"Reading session {session_id!r}",
                    write=False,
                )

        return self._ask(work)

    def load(self, session_id: str) -> Awaitable[Sequence[Fact]]:
        """Return all facts of a session, oldest first.

        Raises:
            StoreError: A fact is damaged, missing or from a newer agentflow; the error names the fact.
        """
        check_id(session_id)
        return self._ask(lambda: self._load(session_id))

    def _load(self, session_id: str) -> tuple[Fact, ...]:
        query = select(FACTS.c.version, FACTS.c.body).where(FACTS.c.session_id == session_id).order_by(FACTS.c.version)
        rows = self._transact(
            lambda connection: connection.execute(query).all(), f"Loading session {session_id!r}", write=False
        )
        facts: list[Fact] = []
        for number, (version, body) in enumerate(rows, 1):
            if version != number:
                raise StoreError(
                    f"Fact {number} of session {session_id!r} is missing. {repair_advice(session_id, number)}"
                )
            try:
                facts.append(fact_from_json(cast("str", body)))
            except StoreError as error:
                raise StoreError(
                    f"Fact {number} of session {session_id!r}: {error} {repair_advice(session_id, number)}"
                ) from error
        return tuple(facts)

    def fact_times(self, session_id: str) -> Awaitable[list[float]]:
        """Return the time at which each fact of a session was written, oldest first, in seconds since the epoch."""
        query = select(FACTS.c.time).where(FACTS.c.session_id == session_id).order_by(FACTS.c.version)
        return self._do(
            lambda connection: list(connection.execute(query).scalars()),
            f"Loading session {session_id!r}",
            write=False,
        )

    async def session_of(self, run_id: str) -> str | None:
        """Return the session that contains a run, or None if no fact of the run is stored."""
        query = select(FACTS.c.session_id).where(FACTS.c.run_id == column_text(run_id)).limit(1)
        return await self._do(
            lambda connection: connection.execute(query).scalar(), f"Looking for run {run_id!r}", write=False
        )

    # ---- sessions

    async def sessions(self, prefix: str = "") -> list[SessionInfo]:
        """List the sessions, last used first."""
        return await self._do(partial(list_sessions, prefix=prefix), "Listing the sessions", write=False)

    async def fork(self, session_id: str, new_id: str, at: int | str | None = None) -> None:
        """Copy a session up to a point; see `SessionStore.fork`."""
        check_id(new_id)
        await self._do(
            lambda connection: fork_session(connection, session_id, new_id, at),
            f"Forking session {session_id!r}",
            takes=new_id,
        )
        # The sessions of sub-agents are forked at the point that the copied facts have reached.
        facts = await self.load(new_id)
        for use_id in kept_inside(facts):
            if until := inner_point(facts, await self.load(inner_session_id(session_id, use_id))):
                await self.fork(inner_session_id(session_id, use_id), inner_session_id(new_id, use_id), until)

    async def rename(self, session_id: str, new_id: str) -> None:
        """Give a session another id, and move the sessions of its sub-agents with it."""
        check_id(new_id)
        work = partial(rename_session, session_id=session_id, new_id=new_id)
        await self._do(work, f"Renaming session {session_id!r}", takes=new_id)

    async def delete(self, session_id: str) -> bool:
        """Delete a session and the sessions of its sub-agents.

        Returns:
            Whether the session existed.
        """
        check_id(session_id)
        return await self._do(partial(delete_session, session_id=session_id), f"Deleting session {session_id!r}")

    async def prune(
        self,
        *,
        older_than: timedelta,
        statuses: Collection[StoredStatus] = ("idle",),
        keep: Collection[str] = (),
    ) -> list[SessionInfo]:
        """Delete sessions that were not written to for some time; see `SessionStore.prune`.

        A session with a held lease (`on_conflict="wait"`) stays. The database file does not shrink; its space is reused.
        """
        before = prune_before(older_than, statuses)
        return await self._do(
            lambda connection: prune_sessions(connection, before, statuses, keep), "Pruning the sessions"
        )

    async def export(self, session_id: str) -> dict[str, Any]:
        """Return a session as JSON-compatible data."""
        facts = await self.load(session_id)
        if not facts:
            raise no_session(session_id)
        data = session_to_dict(SavedSession(session_id, (), tuple(facts)))
        inner = {
            use_id: await self.export(inner_session_id(session_id, use_id))
            for use_id in kept_inside(facts)
            if await self.load(inner_session_id(session_id, use_id))
        }
        return {**data, "inner": inner} if inner else data

    async def import_(self, data: Mapping[str, Any], session_id: str | None = None) -> str:
        """Import the data of `export` or `Session.to_dict`; see `SessionStore.import_`."""
        saved = session_from_dict(data)
        name = saved.id if session_id is None else session_id
        check_id(name)
        facts = imported_facts(saved)
        records = [record_of(fact) for fact in facts]

        def write(connection: Connection) -> None:
            try:
                append_at(connection, name, records, status_after(facts), 0)
            except Stale:
                raise id_taken(name) from None

        # Validated before anything is stored.
        inner = inner_sessions(data)
        await self._do(write, f"Importing session {name!r}", takes=name)
        for use_id, session in inner.items():
            await self.import_(session, inner_session_id(name, use_id))
        return name

    # ---- leases

    def claim(self, session_id: str, *, lease: float | None = None) -> Awaitable[Claim] | None:
        """Wait for the session's lease (`on_conflict="wait"`, or `lease=`); None if none is needed.

        Several waiting writers get the lease in no particular order.
        """
        if lease is None and self._on_conflict == "fail":
            return None
        return self._claimed(_Lease(session_id, self._lease_seconds if lease is None else lease, self._give_back))

    async def _claimed(self, lease: _Lease) -> Claim:
        def take(connection: Connection) -> bool:
            epoch = take_lease(connection, lease.session_id, lease.owner, lease.seconds)
            if epoch is None:
                return False
            version = connection.execute(select(SESSIONS.c.version).where(SESSIONS.c.id == lease.session_id)).scalar()
            lease.epoch, lease.version = epoch, version or 0
            return True

        def work() -> bool:
            taken = self._transact(take, f"Taking the lease of session {lease.session_id!r}")
            if taken:
                self._leases[lease.owner] = lease
            return taken

        check_id(lease.session_id)
        pause = 0.01  # seconds; polling, because a lease may expire without a notification
        # A cancelled wait leaves its last attempt in the queue; the release is queued after it.
        with UndoOnFailure(lease.release):
            while not await self._ask(work):
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, 0.25)
        return lease

    async def lease(self, session_id: str, owner: str, seconds: float) -> bool:
        """Take a session's lease, or renew a lease of `owner`; it is not renewed automatically.

        Args:
            session_id: The id of the session, which need not exist yet.
            owner: The owner's id.
            seconds: How long the lease lasts, by the database's clock.

        Returns:
            Whether the owner holds the lease now; False if another owner does.
        """
        check_id(session_id)
        epoch = await self._do(
            lambda connection: take_lease(connection, session_id, owner, seconds),
            f"Taking the lease of session {session_id!r}",
        )
        return epoch is not None

    async def release(self, session_id: str, owner: str) -> bool:
        """Release a lease.

        Returns:
            Whether this owner held the lease.
        """
        return await self._release(session_id, owner)

    def _release(self, session_id: str, owner: str) -> Queued[bool]:
        def work() -> bool:
            # First, so that the lease is not renewed if its release fails: it then expires.
            self._leases.pop(owner, None)
            return self._transact(
                lambda connection: drop_lease(connection, session_id, owner),
                f"Releasing the lease of session {session_id!r}",
            )

        return self._ask(work)

    def _give_back(self, lease: _Lease) -> None:
        self._release(lease.session_id, lease.owner)

    def _until_renewal(self) -> float | None:
        """Return the seconds between renewals, or None if no lease is held."""
        # A third: one renewal may fail or be late without the loss of the lease.
        return min([lease.seconds for lease in self._leases.values()]) / 3 if self._leases else None

    def _renew(self) -> None:
        """Renew the held leases; called by the worker between two jobs."""
        leases = list(self._leases.values())

        def renew(connection: Connection) -> list[_Lease]:
            return [
                lease for lease in leases if not renew_lease(connection, lease.session_id, lease.owner, lease.seconds)
            ]

        try:
            lost = self._transact(renew, "Renewing leases")
        except (StoreError, SQLAlchemyError) as error:
            # The leases may still be held: the next renewal decides.
            self._outage.failed(error)
            return
        self._outage.answered()
        for lease in lost:
            lease.lost = True
            del self._leases[lease.owner]
            logger.bind(session_id=lease.session_id).warning(
                "the lease of session {!r} was lost: it was not renewed in time", lease.session_id
            )

    # ---- how work is done

    def _ask(self, work: Callable[[], T]) -> Queued[T]:
        # A lock, because event loops in several threads may use one store.
        with self._starting:
            if self._closed:
                raise StoreError(f"The store {self.url} is closed. Create another SqlStore.")
            if self._worker is None or self._pid != os.getpid():  # a forked child has no thread and no connection
                if self._worker is not None:
                    # The parent's leases are renewed by the parent.
                    self._database.forget()
                    self._leases = {}
                name, leave = f"agentflow store {self.url}", self._database.dispose
                self._worker = JobThread(name, self._renew, self._until_renewal, leave)
                self._pid = os.getpid()
            return self._worker.ask(work)

    async def _do(
        self, work: Callable[[Connection], T], doing: str, *, write: bool = True, takes: str | None = None
    ) -> T:
        def transact() -> T:
            try:
                return self._transact(work, doing, write=write)
            except IntegrityError as error:  # another writer has written first
                raise id_taken(takes or "") from error

        return await self._ask(transact)

    def _transact(self, work: Callable[[Connection], T], doing: str, *, write: bool = True, retry: bool = False) -> T:
        """Run work in one transaction, in the worker's thread."""
        attempts = (_RECONNECT if retry or not write else _ONCE).start()
        while True:
            try:
                with self._database.begin(write) as connection:
                    return work(connection)
            # A violated constraint is an answer to the caller, such as a taken id, not a failure of the database.
            except IntegrityError:
                raise
            except SQLAlchemyError as error:
                if attempts.wait_after(error) is None:
                    raise explain(error, self.url, doing) from driver_error(error)

    async def close(self) -> None:
        """Finish the queued work, release the leases, and close the connections; the store cannot be reopened."""
        with self._starting:
            if self._closed:
                return
            self._closed = True
            worker, self._worker = self._worker, None
        if worker is None or self._pid != os.getpid():
            return
        worker.ask(self._finish)
        await worker.close()

    def _finish(self) -> None:
        try:
            if self._leases:
                release = update(LEASES).where(LEASES.c.owner.in_(list(self._leases))).values(expires=0)
                # In one statement; leases of other processes have other owners.
                self._transact(lambda connection: connection.execute(release), "Releasing leases")
        finally:
            self._leases = {}  # a renewal that is due now would take the leases again
            self._database.dispose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"SqlStore({self.url!r})"
