"""The statements of a store, each executed in the caller's transaction."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, insert, literal, select, update

from agentflow._support.ids import inner_prefixes
from agentflow.errors import StoreError, UsageError
from agentflow.state.engine import Prepared
from agentflow.state.leases import forget_leases, held_leases
from agentflow.state.session_tables import FACTS, SESSIONS
from agentflow.vocabulary.facts import CallClosed, Fact
from agentflow.vocabulary.ports.store import (
    SessionInfo,
    StoredStatus,
    conflict,
    fact_conflict,
    id_taken,
    moved_inside,
    no_point,
    no_session,
    prunable,
)
from agentflow.vocabulary.saving.codec import fact_from_json, fact_key, fact_kind, fact_to_json

MAX_ID_LENGTH = 255
_BATCH = 500  # before 3.32, SQLite accepted at most 999 values in a statement
_STATUS_KINDS = ("call_opened", "call_resumed", "round_closed", "round_suspended", "call_closed")
"""The kinds of facts that determine a session's status."""


class Record(NamedTuple):
    """A fact as a row."""

    run_id: str | None
    natural_key: str | None
    kind: str
    body: str


class Stale(Exception):  # noqa: N818 - a signal within one transaction
    """The session does not have the version that the writer expects."""


def check_id(session_id: str) -> None:
    """Check that a session id is a valid key in every database."""
    # PostgreSQL stores no NUL characters, and limits the length of an index entry.
    if not session_id or len(session_id) > MAX_ID_LENGTH or not session_id.isprintable():
        raise UsageError(
            f"{session_id!r:.80} cannot be a session id in a database: use 1 to {MAX_ID_LENGTH} printable characters."
        )


def repair_advice(session_id: str, number: int) -> str:
    """Return advice for a session with an unreadable fact."""
    if number == 1:
        return "There is no fact before it: restore the session from a backup, or delete it."
    return f"The facts before it can be used: await store.fork({session_id!r}, 'new-id', at={number - 1})."


def record_of(fact: Fact) -> Record:
    """Return a fact as a row."""
    run_id: str | None = getattr(fact, "run_id", None)
    return Record(column_text(run_id), column_text(fact_key(fact)), fact_kind(fact), fact_to_json(fact))


def column_text(text: str | None) -> str | None:
    """Return text that fits into an index of any database: its hash if it is long or contains control characters."""
    if text is None or (len(text) <= 200 and text.isprintable()):
        return text
    # A text of a user may contain half of a surrogate pair, which UTF-8 does not have.
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


# The session's row is updated before facts are added: its lock lets one writer at a time choose the next version.
_AT_VERSION = (SESSIONS.c.id == bindparam("session_id")) & (SESSIONS.c.version == bindparam("expected"))
_ADVANCED: dict[str, Any] = {"version": bindparam("version"), "updated": bindparam("updated")}
_ADVANCE = Prepared(update(SESSIONS).where(_AT_VERSION).values(_ADVANCED))
_ADVANCE_TO = Prepared(update(SESSIONS).where(_AT_VERSION).values({**_ADVANCED, "status": bindparam("status")}))
_FIND_VERSION = Prepared(select(SESSIONS.c.version).where(SESSIONS.c.id == bindparam("session_id")))
_ADD_SESSION = Prepared(insert(SESSIONS))
_ADD_FACT = Prepared(insert(FACTS))
_RENAME = update(SESSIONS).where(SESSIONS.c.id == bindparam("old")).values(id=bindparam("new"))


def append_at(
    connection: Connection, session_id: str, records: Sequence[Record], status: StoredStatus | None, expected: int
) -> None:
    """Append facts to a session; raise `Stale` if it does not have the expected version."""
    version, now = expected + len(records), time.time()
    if expected == 0:
        # If another process inserts the row now, the insert below fails; the caller handles this like `Stale`.
        if _FIND_VERSION.execute(connection, {"session_id": session_id}).fetchone() is not None:
            raise Stale
        session = {"id": session_id, "version": version, "status": status or "idle", "updated": now}
        _ADD_SESSION.execute(connection, session)
    else:
        advance = _ADVANCE if status is None else _ADVANCE_TO
        known = {"session_id": session_id, "expected": expected}
        if not advance.execute(connection, {**known, "version": version, "updated": now, "status": status}).rowcount:
            raise Stale
    if records:
        shared = {"session_id": session_id, "time": now}
        rows = [{**shared, "version": n, **record._asdict()} for n, record in enumerate(records, expected + 1)]
        _ADD_FACT.execute(connection, *rows)


def append_news(
    connection: Connection, session_id: str, records: Sequence[Record], status: StoredStatus | None
) -> None:
    """Append the facts that the session does not contain yet."""
    of_session = SESSIONS.c.id == session_id
    # Locked before the keys are read, so that no other writer adds a fact with one of the keys in between.
    found = connection.execute(select(SESSIONS.c.version).where(of_session).with_for_update()).scalar()
    if found is None:
        append_at(connection, session_id, records, status, 0)
        return
    keys = [record.natural_key for record in records if record.natural_key is not None]
    query = select(FACTS.c.natural_key, FACTS.c.body).where(
        (FACTS.c.session_id == session_id) & FACTS.c.natural_key.in_(keys)
    )
    existing = {row.natural_key: row.body for row in connection.execute(query)}
    for record in records:
        # A fact without a key is not in `existing`, so it is always new.
        if existing.get(record.natural_key, record.body) != record.body:
            raise fact_conflict(session_id, record.natural_key or "")
    news = [record for record in records if record.natural_key not in existing]
    if news:
        append_at(connection, session_id, news, status, found)


def check_delivered(connection: Connection, session_id: str, records: Sequence[Record], expected: int) -> None:
    """After an append that found another version, check that its facts are already stored at their positions."""
    delivered = (FACTS.c.session_id == session_id) & FACTS.c.version.between(expected + 1, expected + len(records))
    bodies = connection.execute(select(FACTS.c.body).where(delivered).order_by(FACTS.c.version)).scalars().all()
    # A connection may break after a commit, before its answer; the repeated append then finds its own facts.
    if list(bodies) == [record.body for record in records]:
        return
    found = connection.execute(select(SESSIONS.c.version).where(SESSIONS.c.id == session_id)).scalar() or 0
    if found == expected:  # the conflict was about a natural key, not the version
        keys = [record.natural_key for record in records if record.natural_key is not None]
        query = select(FACTS.c.natural_key).where((FACTS.c.session_id == session_id) & FACTS.c.natural_key.in_(keys))
        raise fact_conflict(session_id, connection.execute(query).scalar() or "")
    raise conflict(session_id, expected, found)


def list_sessions(connection: Connection, prefix: str = "") -> list[SessionInfo]:
    """List the sessions, last used first."""
    columns = [SESSIONS.c.id, SESSIONS.c.version, SESSIONS.c.updated, SESSIONS.c.status]
    query = select(*columns).order_by(SESSIONS.c.updated.desc(), SESSIONS.c.id)
    if prefix:  # SQLite's LIKE ignores case
        query = query.where(func.substr(SESSIONS.c.id, 1, len(prefix)) == prefix)
    return [SessionInfo(*row) for row in connection.execute(query)]


def prune_sessions(
    connection: Connection, before: float, statuses: Collection[StoredStatus], keep: Collection[str]
) -> list[SessionInfo]:
    """Delete sessions that were not written to since a time, except those with a held lease."""
    leased = held_leases(connection)
    candidates = [info for info in prunable(list_sessions(connection), before, statuses, keep) if info.id not in leased]
    deleted: set[str] = set()
    for n in range(0, len(candidates), _BATCH):
        ids = [info.id for info in candidates[n : n + _BATCH]]
        # Checked again in the statement: on PostgreSQL another process may have written meanwhile.
        still = SESSIONS.c.id.in_(ids) & SESSIONS.c.status.in_(list(statuses)) & (SESSIONS.c.updated <= before)
        deleted.update(connection.execute(delete(SESSIONS).where(still).returning(SESSIONS.c.id)).scalars())
        forget_leases(connection, ids)
    return [info for info in candidates if info.id in deleted]


def rename_session(connection: Connection, session_id: str, new_id: str) -> None:
    """Give a session another id, and move the sessions of its sub-agents with it."""
    if connection.execute(select(SESSIONS.c.id).where(SESSIONS.c.id == new_id)).first() is not None:
        raise id_taken(new_id)
    moved = _moved_inside(connection, session_id, new_id)  # before the facts get the new id
    if not connection.execute(_RENAME, {"old": session_id, "new": new_id}).rowcount:
        raise no_session(session_id)
    for old, new in moved.items():
        connection.execute(_RENAME, {"old": old, "new": new})


def delete_session(connection: Connection, session_id: str) -> bool:
    """Delete a session and the sessions of its sub-agents; return whether the session existed."""
    inner = _moved_inside(connection, session_id, session_id)
    existed = connection.execute(delete(SESSIONS).where(SESSIONS.c.id == session_id)).rowcount > 0
    for deleted in (session_id, *inner):
        connection.execute(delete(SESSIONS).where(SESSIONS.c.id == deleted))
        forget_leases(connection, [deleted])
    return existed


def _moved_inside(connection: Connection, session_id: str, new_id: str) -> dict[str, str]:
    found = [info.id for prefix in inner_prefixes(session_id) for info in list_sessions(connection, prefix)]
    if not found:
        return {}
    facts: list[Fact] = []
    for body in connection.execute(select(FACTS.c.body).where(FACTS.c.session_id == session_id)).scalars():
        with suppress(StoreError):  # a damaged session can be renamed and deleted too
            facts.append(fact_from_json(body))
    return moved_inside(session_id, new_id, facts, found)


def fork_session(connection: Connection, session_id: str, new_id: str, at: int | str | None) -> None:
    """Copy a session up to a point."""
    # The three parts below: the position `stop`, the status there, and the copies.
    version = connection.execute(select(SESSIONS.c.version).where(SESSIONS.c.id == session_id)).scalar()
    if version is None:
        raise no_session(session_id)
    if connection.execute(select(SESSIONS.c.id).where(SESSIONS.c.id == new_id)).first() is not None:
        raise id_taken(new_id)
    stop: int = version
    if isinstance(at, str):
        of_run = (FACTS.c.session_id == session_id) & (FACTS.c.run_id == column_text(at))
        stop = connection.execute(select(func.max(FACTS.c.version)).where(of_run)).scalar() or 0
    elif at is not None:
        stop = at
    if not 1 <= stop <= version:
        raise no_point(session_id, version if at is None else at, version)
    copied = (FACTS.c.session_id == session_id) & (FACTS.c.version <= stop)
    deciding = copied & FACTS.c.kind.in_(_STATUS_KINDS)
    last = connection.execute(
        select(FACTS.c.kind, FACTS.c.body).where(deciding).order_by(FACTS.c.version.desc()).limit(1)
    ).first()
    connection.execute(
        insert(SESSIONS).values(
            id=new_id,
            version=stop,
            status="idle" if last is None else _status_of(last.kind, last.body),
            updated=time.time(),
        )
    )
    columns = [FACTS.c.version, FACTS.c.run_id, FACTS.c.natural_key, FACTS.c.kind, FACTS.c.body, FACTS.c.time]
    source = select(literal(new_id), *columns).where(copied)
    connection.execute(insert(FACTS).from_select(["session_id", *[column.name for column in columns]], source))


def _status_of(kind: str, body: str) -> StoredStatus:
    """Return a session's status from the last fact that determines it."""
    if kind != "call_closed":
        return "suspended" if kind == "round_suspended" else "unfinished"
    try:
        fact = fact_from_json(body)
    # A damaged fact should not prevent the fork that `repair_advice` recommends.
    except StoreError:
        return "unfinished"
    return "suspended" if isinstance(fact, CallClosed) and fact.outcome == "suspended" else "idle"
