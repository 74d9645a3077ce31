"""Leases: the right to write to a session until a time, by the clock of the database.

A lease has an **epoch**, which increases whenever the lease passes to another owner. A writer states the
owner and the epoch of its lease, and the transaction that writes checks both: if a process was frozen for longer than its
lease, and another owner has taken the lease meanwhile, its writes are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, case, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from agentflow.state.engine import Prepared, now_in
from agentflow.state.session_tables import LEASES

# Shared (`FOR SHARE`): appends of one owner do not block each other, but `take_lease` waits for them. It is
# omitted for SQLite, because a writing transaction locks the whole database there.
_FIND_LEASE = Prepared(
    select(LEASES.c.epoch)
    .where(*[LEASES.c[name] == bindparam(name) for name in ("session_id", "owner", "epoch")])
    .with_for_update(read=True)
)


def take_lease(connection: Connection, session_id: str, owner: str, seconds: float) -> int | None:
    """Take a session's lease, or renew a lease of `owner`; return its epoch, or None if another owner holds it."""
    now = now_in(connection)
    statement: Any = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(LEASES)
    until = now + seconds
    # A renewal keeps the epoch, so that the owner's earlier claims stay valid.
    epoch = case((LEASES.c.owner == owner, LEASES.c.epoch), else_=LEASES.c.epoch + 1)
    # One statement, so that only one of two owners finds the lease free. If `where` is false, nothing is returned.
    statement = statement.values(session_id=session_id, owner=owner, expires=until, epoch=1).on_conflict_do_update(
        index_elements=["session_id"],
        set_={"owner": owner, "expires": until, "epoch": epoch},
        where=(LEASES.c.owner == owner) | (LEASES.c.expires <= now),
    )
    return connection.execute(statement.returning(LEASES.c.epoch)).scalar()


def holds_lease(connection: Connection, session_id: str, owner: str, epoch: int) -> bool:
    """Return whether a lease still belongs to the owner, and lock it until the end of the transaction."""
    lease = {"session_id": session_id, "owner": owner, "epoch": epoch}
    return _FIND_LEASE.execute(connection, lease).fetchone() is not None


def drop_lease(connection: Connection, session_id: str, owner: str) -> bool:
    """Release a lease; return False if it was already released or taken over. The row stays, to keep its epoch."""
    own_row = (LEASES.c.session_id == session_id) & (LEASES.c.owner == owner) & (LEASES.c.expires > 0)
    return connection.execute(update(LEASES).where(own_row).values(expires=0)).rowcount > 0


def held_leases(connection: Connection) -> frozenset[str]:
    """Return the ids of the sessions whose lease has not expired."""
    query = select(LEASES.c.session_id).where(LEASES.c.expires > now_in(connection))
    return frozenset(connection.execute(query).scalars())


def forget_leases(connection: Connection, session_ids: Sequence[str]) -> None:
    """Delete the lease rows of deleted sessions, except leases that are held."""
    # A held lease keeps its row, because a new row would begin with epoch 1 again.
    free = LEASES.c.session_id.in_(session_ids) & (LEASES.c.expires <= now_in(connection))
    connection.execute(delete(LEASES).where(free))


def renew_lease(connection: Connection, session_id: str, owner: str, seconds: float) -> bool:
    """Renew a lease; return False if another owner has taken it."""
    # Expired or not: a process that was frozen continues if no other owner has taken the lease.
    own_row = (LEASES.c.session_id == session_id) & (LEASES.c.owner == owner)
    until = now_in(connection) + seconds
    return connection.execute(update(LEASES).where(own_row).values(expires=until)).rowcount > 0
