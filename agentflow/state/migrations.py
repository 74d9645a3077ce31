"""How a database gets its tables, step by step, and from an older schema to the newest.

Rules:

1. A migration that was released is never edited: what changes is the next one.
2. All steps run in one transaction, under a lock, so that two processes may start at once, and one that dies leaves
   nothing half done.
3. A schema that is newer than this code is refused and left as it is.
4. The SQL here is what SQLite and PostgreSQL share.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, inspect, text

from agentflow.errors import StoreError

__all__ = ["MIGRATIONS", "SCHEMA_VERSION", "migrate", "schema_version"]

_LOCK = 0x61666C6F77  # "aflow"


def _journal(connection: Connection) -> None:
    """Sessions and their facts."""
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
    """Who may write a session, where writers wait for each other."""
    connection.execute(
        text(
            "CREATE TABLE agentflow_leases (session_id TEXT NOT NULL PRIMARY KEY, owner TEXT NOT NULL, "
            "expires DOUBLE PRECISION NOT NULL)"
        )
    )


def _epochs(connection: Connection) -> None:
    """How often a lease has passed to another owner."""
    connection.execute(text("ALTER TABLE agentflow_leases ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0"))


def _run_logs(connection: Connection) -> None:
    """Run logs, and their lines as they came."""
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
    """The version of the database's schema; 0: it has none.

    Raises:
        StoreError: It is newer than this code, or no version of ours.
    """
    if not inspect(connection).has_table("agentflow_schema"):
        return 0
    found = connection.execute(text("SELECT version FROM agentflow_schema")).scalars().all()
    version = found[0] if len(found) == 1 else None
    if not isinstance(version, int) or version < 0:
        raise StoreError(
            f"The table agentflow_schema holds {found!r}, and must hold one version. The database was changed by hand, or is "
            "damaged: restore it from a backup, or use another one."
        )
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"The database has schema version {version}; this agentflow knows versions up to {SCHEMA_VERSION}. A newer one "
            "has migrated it: upgrade agentflow here. Nothing was changed."
        )
    return version


def migrate(connection: Connection, upto: int = SCHEMA_VERSION) -> None:
    """Bring the schema up to date; the connection is in a transaction that the caller commits.

    Args:
        connection: On SQLite the transaction must be a writing one (BEGIN IMMEDIATE).
        upto: The version to stop at; for tests.

    Raises:
        StoreError: The schema is newer than this code.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
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
