"""How often a worker tries a call: temporary failures without a limit, others a few times."""

from __future__ import annotations

import asyncio

import pytest

from agentflow.durable.connections import shared_database
from agentflow.durable.following import Watch
from agentflow.durable.serving import ATTEMPTS, CONFLICTS, _retry_rule
from agentflow.errors import SessionConflictError, StoreError


def tries(error: StoreError, most: int = 200) -> int:
    """Return after how many failures of a kind a call is given up."""
    should_retry = _retry_rule()
    return next((n for n in range(1, most) if not should_retry(error)), most)


def test_patience_ends_where_nothing_will_change() -> None:
    """A store that fails permanently, a session that others keep writing to, and an unavailable database."""
    assert tries(StoreError("broken for good")) == ATTEMPTS
    assert tries(SessionConflictError("written by another")) == CONFLICTS
    assert tries(StoreError("away", retryable=True)) == 200


def test_failures_are_counted_apart() -> None:
    """Temporary failures in between, and conflicts, use no attempt of the other kind."""
    should_retry = _retry_rule()
    for _ in range(ATTEMPTS - 1):
        assert should_retry(StoreError("broken"))
        assert should_retry(StoreError("away", retryable=True))
        assert should_retry(SessionConflictError("written"))
    assert not should_retry(StoreError("broken"))


def test_the_rows_of_runs_are_as_safe_as_they_were_promised(url: str) -> None:
    """PostgreSQL commits them to disk; SQLite may lose the last ones in a power failure, because the facts are in the
    store.
    """
    database = shared_database(url, lambda _: None)
    try:
        with database.begin(write=False) as connection:
            if url.startswith("sqlite"):
                assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 1  # NORMAL
                assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 30_000
            else:
                assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    finally:
        database.dispose()


async def test_a_reader_waits_again_after_an_outage() -> None:
    """The failure ends the wait in which it happened; once the database responds, the same reader sees changes."""
    watch = Watch("r")
    waiting = asyncio.ensure_future(watch.wait(0, 0, 60))
    await asyncio.sleep(0)
    watch.fail(StoreError("unreachable"))
    with pytest.raises(StoreError, match="unreachable"):
        await waiting
    waiting = asyncio.ensure_future(watch.wait(0, 0, 60))
    await asyncio.sleep(0)
    watch.update(1, ())
    assert await waiting
