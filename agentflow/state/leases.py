"""Leases: who may write a session, until when, by the database's clock (that of no machine that asks)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Float, delete, literal_column, update
from sqlalchemy.dialects import postgresql, sqlite

from agentflow.state.schema import LEASES

__all__ = ["drop_lease", "renew_leases", "take_lease"]


def _now(connection: Connection) -> ColumnElement[float]:
    """Seconds since the epoch, as the database has them."""
    clocks = {
        "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
        "postgresql": "EXTRACT(EPOCH FROM clock_timestamp())::double precision",
    }
    return literal_column(clocks[connection.dialect.name], Float)


def take_lease(connection: Connection, session_id: str, owner: str, seconds: float) -> bool:
    """Take a session's lease, or renew one's own; False where somebody else holds it."""
    now = _now(connection)
    made: Any = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(LEASES)
    until = now + seconds
    made = made.values(session_id=session_id, owner=owner, expires=until).on_conflict_do_update(
        index_elements=["session_id"],
        set_={"owner": owner, "expires": until},
        where=(LEASES.c.owner == owner) | (LEASES.c.expires <= now),
    )
    return connection.execute(made.returning(LEASES.c.owner)).first() is not None


def drop_lease(connection: Connection, session_id: str, owner: str) -> bool:
    """Give a lease back; False where this owner does not hold it."""
    mine = (LEASES.c.session_id == session_id) & (LEASES.c.owner == owner)
    return connection.execute(delete(LEASES).where(mine)).rowcount > 0


def renew_leases(connection: Connection, held: Mapping[str, str], seconds: float) -> Iterable[str]:
    """Renew leases, by session and owner; returns the sessions whose lease is somebody else's now."""
    until = _now(connection) + seconds
    lost: list[str] = []
    for session_id, owner in held.items():
        mine = (LEASES.c.session_id == session_id) & (LEASES.c.owner == owner)
        if not connection.execute(update(LEASES).where(mine).values(expires=until)).rowcount:
            lost.append(session_id)
    return lost
