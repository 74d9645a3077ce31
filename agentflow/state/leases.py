"""Leases: who may write a session, until when, by the database's clock (that of no machine that asks).

A lease has an **epoch**, which grows whenever it passes to another owner. Whoever writes under a lease names its owner and its
epoch, and they are looked at in the transaction that writes: a process that was frozen for longer than its lease, and goes on,
finds that the session is somebody else's, whatever it believes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Float, case, delete, literal_column, select, update
from sqlalchemy.dialects import postgresql, sqlite

from agentflow.state.session_tables import LEASES

__all__ = ["drop_lease", "forget_leases", "held_leases", "holds_lease", "renew_lease", "take_lease"]


def _now(connection: Connection) -> ColumnElement[float]:
    """Seconds since the epoch, as the database has them."""
    clocks = {
        "sqlite": "((julianday('now') - 2440587.5) * 86400.0)",
        "postgresql": "EXTRACT(EPOCH FROM clock_timestamp())::double precision",
    }
    return literal_column(clocks[connection.dialect.name], Float)


def take_lease(connection: Connection, session_id: str, owner: str, seconds: float) -> int | None:
    """Take a session's lease, or renew one's own; returns its epoch, None where somebody else holds it."""
    now = _now(connection)
    made: Any = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(LEASES)
    until = now + seconds
    epoch = case((LEASES.c.owner == owner, LEASES.c.epoch), else_=LEASES.c.epoch + 1)
    made = made.values(session_id=session_id, owner=owner, expires=until, epoch=1).on_conflict_do_update(
        index_elements=["session_id"],
        set_={"owner": owner, "expires": until, "epoch": epoch},
        where=(LEASES.c.owner == owner) | (LEASES.c.expires <= now),
    )
    return connection.execute(made.returning(LEASES.c.epoch)).scalar()


def holds_lease(connection: Connection, session_id: str, owner: str, epoch: int) -> bool:
    """Whether a lease has not passed to somebody else; until the end of the transaction it does not."""
    mine = (LEASES.c.session_id == session_id) & (LEASES.c.owner == owner) & (LEASES.c.epoch == epoch)
    return connection.execute(select(LEASES.c.epoch).where(mine).with_for_update(read=True)).first() is not None


def drop_lease(connection: Connection, session_id: str, owner: str) -> bool:
    """Give a lease back; False where this owner does not hold it. (Its row stays, with its epoch.)"""
    mine = (LEASES.c.session_id == session_id) & (LEASES.c.owner == owner) & (LEASES.c.expires > 0)
    return connection.execute(update(LEASES).where(mine).values(expires=0)).rowcount > 0


def held_leases(connection: Connection) -> frozenset[str]:
    """The sessions whose lease somebody holds."""
    query = select(LEASES.c.session_id).where(LEASES.c.expires > _now(connection))
    return frozenset(connection.execute(query).scalars())


def forget_leases(connection: Connection, session_ids: Sequence[str]) -> None:
    """Delete what is known of the leases of sessions that are gone, where nobody holds them."""
    free = LEASES.c.session_id.in_(session_ids) & (LEASES.c.expires <= _now(connection))
    connection.execute(delete(LEASES).where(free))


def renew_lease(connection: Connection, session_id: str, owner: str, seconds: float) -> bool:
    """Renew a lease; False where it is somebody else's now."""
    mine = (LEASES.c.session_id == session_id) & (LEASES.c.owner == owner)
    until = _now(connection) + seconds
    return connection.execute(update(LEASES).where(mine).values(expires=until)).rowcount > 0
