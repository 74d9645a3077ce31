"""Create the tables of a database, and migrate an older schema to the newest, step by step.

Rules:

1. A released migration is never edited: a change is a new migration.
2. All steps run in one transaction, under a lock: two processes may start at the same time, and a crash changes nothing.
3. A schema newer than this code is refused and left unchanged.
4. The SQL is the subset that SQLite and PostgreSQL share.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, inspect, text

from agentflow.errors import StoreError

_LOCK = 0x61666C6F77  # "aflow": the key of PostgreSQL's advisory lock


def _journal(connection: Connection) -> None:
    """Create the tables of sessions and facts."""
    connection.execute(
        text(
            "CREATE TABLE agentflow_sessions (id TEXT NOT NULL PRIMARY KEY, version BIGINT NOT NULL, "
            "status TEXT NOT NULL, updated DOUBLE PRECISION NOT NULL)"
        )
    )
    connection.execute(
        text(
            "CREATE TABLE agentflow_facts (session_id TEXT NOT NULL "
            "REFERENCES agentflow_sessions (id) ON DELETE CASCADE ON UPDATE CASCADE, "
            "version BIGINT NOT NULL, run_id TEXT, natural_key TEXT, kind TEXT NOT NULL, body TEXT NOT NULL, "
            "time DOUBLE PRECISION NOT NULL, "
            "PRIMARY KEY (session_id, version), UNIQUE (session_id, natural_key))"
        )
    )


def _leases(connection: Connection) -> None:
    """Create the table of leases, for `on_conflict="wait"`."""
    connection.execute(
        text(
            "CREATE TABLE agentflow_leases (session_id TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL, "
            "expires DOUBLE PRECISION NOT NULL)"
        )
    )


def _epochs(connection: Connection) -> None:
    """Add the epochs: how often a lease has passed to another owner."""
    connection.execute(text("ALTER TABLE agentflow_leases ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0"))


def _run_logs(connection: Connection) -> None:
    """Create the tables of run logs, and of their lines in the order of writing."""
    connection.execute(
        text(
            "CREATE TABLE agentflow_logs (run_id TEXT NOT NULL PRIMARY KEY, began DOUBLE PRECISION NOT NULL, "
            "updated DOUBLE PRECISION NOT NULL, size BIGINT NOT NULL, parts BIGINT NOT NULL)"
        )
    )
    connection.execute(
        text(
            "CREATE TABLE agentflow_log_parts (run_id TEXT NOT NULL REFERENCES agentflow_logs (run_id) ON DELETE CASCADE, "
            "place BIGINT NOT NULL, writer TEXT NOT NULL, number BIGINT NOT NULL, lines TEXT NOT NULL, "
            "PRIMARY KEY (run_id, place), UNIQUE (run_id, writer, number))"
        )
    )


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_journal, _leases, _epochs, _run_logs)
"""The steps; the first one leads to version 1."""

SCHEMA_VERSION = len(MIGRATIONS)


def schema_version(connection: Connection) -> int:
    """Return the version of the database's schema; 0 if it has none.

    Raises:
        StoreError: The version is newer than this code, or invalid.
    """
    if not inspect(connection).has_table("agentflow_schema"):
        return 0
    found = connection.execute(text("SELECT version FROM agentflow_schema")).scalars().all()
    version = found[0] if len(found) == 1 else None
    if not isinstance(version, int) or version < 0:
        raise StoreError(
            f"The table agentflow_schema holds {found!r}, but must hold one version. The database was changed by hand or is "
            "damaged: restore a backup, or use another database."
        )
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"The database has schema version {version}; this agentflow supports versions up to {SCHEMA_VERSION}. A newer "
            "agentflow has migrated it: upgrade agentflow here. Nothing was changed."
        )
    return version


def is_current(connection: Connection) -> bool:
    """Return whether the schema needs no migration; reads only."""
    return schema_version(connection) == SCHEMA_VERSION


def migrate(connection: Connection, upto: int = SCHEMA_VERSION) -> None:
    """Migrate the schema; the connection is in a transaction that the caller commits.

    Args:
        connection: The connection; on SQLite, a write transaction (BEGIN IMMEDIATE).
        upto: The version at which to stop; for tests.

    Raises:
        StoreError: The schema is newer than this code.
    """
    # On SQLite, BEGIN IMMEDIATE is the lock.
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    # Under the lock: another process may have migrated the database in the meantime.
    version = schema_version(connection)
    if version >= upto:
        return
    if version == 0:
        connection.execute(text("CREATE TABLE IF NOT EXISTS agentflow_schema (version INTEGER NOT NULL)"))
        connection.execute(text("DELETE FROM agentflow_schema"))
        connection.execute(text("INSERT INTO agentflow_schema (version) VALUES (0)"))
    for step in MIGRATIONS[version:upto]:
        step(connection)
    connection.execute(text("UPDATE agentflow_schema SET version = :version"), {"version": upto})
