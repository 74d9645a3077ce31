"""`SqlStore`: what a database adds, and its failures."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres import Postgres
from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.exc import OperationalError

from agentflow import Agent, ToolUseBlock, tool
from agentflow.errors import SessionConflictError, StoreError, UsageError
from agentflow.state.engine import Database, postgres_options
from agentflow.state.explain import explain
from agentflow.state.migrations import SCHEMA_VERSION, migrate
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.facts import CallClosed, CallOpened, CallResumed, Fact, ToolStarted
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.saving.codec import CODEC_VERSION

OpenStore: TypeAlias = Callable[..., SqlStore]


def facts(count: int) -> list[Fact]:
    return [CallResumed("r", f"c{n}") for n in range(count)]


def run_sql(url: str, *statements: str) -> None:
    """Change the database without the store."""
    engine = create_engine(url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


async def count_of(store: SqlStore, session_id: str = "s") -> int:
    return len(await store.load(session_id))


# ---- what is kept


async def test_a_transaction_that_writes_has_sqlites_lock_from_its_start(tmp_path: Path) -> None:
    """A transaction that read first would fail if another process wrote in between; one that only reads takes no
    lock.
    """
    transactions: list[list[str]] = []

    def seen(statement: str) -> None:
        if statement.startswith("BEGIN"):
            transactions.append([statement])
        elif not statement.startswith("PRAGMA"):
            transactions[-1].append(statement.split()[0])

    def trace(connection: sqlite3.Connection, _record: Any) -> None:
        connection.set_trace_callback(seen)

    event.listen(Engine, "connect", trace)
    try:
        async with SqlStore(f"sqlite:///{tmp_path / 'a.db'}") as store:
            await store.append("s", facts(3))
            await store.fork("s", "t")
            await store.rename("t", "u")
            await store.import_(await store.export("u"), "v")
            claimed = store.claim("v", lease=5)
            assert claimed is not None
            (await claimed).release()
            assert await store.lease("v", "me", 5)
            assert await store.release("v", "me")
            assert await store.delete("u")
            await store.prune(older_than=timedelta(0))
            wrote = [found for found in transactions if {"INSERT", "UPDATE", "DELETE"} & {*found}]
            assert len(wrote) >= 9
            assert {found[0] for found in wrote} == {"BEGIN IMMEDIATE"}
            transactions.clear()
            await store.load("s")
            await store.sessions()
            await store.session_of("r")
            assert [found[0] for found in transactions] == ["BEGIN"] * 3
    finally:
        event.remove(Engine, "connect", trace)


async def test_another_process_finds_what_was_kept(open_store: OpenStore) -> None:
    """A store that is opened later reads what another one has written."""
    first = open_store()
    await first.append("s", facts(3))
    await first.close()
    assert await open_store().load("s") == tuple(facts(3))


async def test_writes_that_nobody_waits_for_are_written_in_order(open_store: OpenStore) -> None:
    """Appends may be started without awaiting them: they are written in the order in which they were started."""
    store = open_store()
    for n, fact in enumerate(facts(50)):
        store.append("s", [fact], expected=n)
    assert await store.load("s") == tuple(facts(50))


async def test_closing_writes_what_was_asked_for(open_store: OpenStore) -> None:
    """`close` returns after the earlier writes; later ones are refused."""
    store = open_store()
    store.append("s", facts(1))
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match=r"is closed\. Create another SqlStore"):
        store.append("s", facts(1))
    assert await count_of(open_store()) == 1


async def test_who_stops_waiting_does_not_stop_the_write(open_store: OpenStore) -> None:
    """A cancelled call does not stop the store's work."""
    store = open_store()

    async def write() -> None:
        await store.append("s", facts(1))

    writing = asyncio.ensure_future(write())
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await count_of(store) == 1


async def test_an_append_is_all_or_nothing(open_store: OpenStore) -> None:
    """If one fact of an append is refused, none is stored."""
    store = open_store()
    await store.append("s", facts(2))
    with pytest.raises(SessionConflictError, match="'r:c1:resumed'"):
        await store.append("s", [CallResumed("r", "new"), CallResumed("r", "c1")], expected=2)
    assert await store.load("s") == tuple(facts(2))


async def test_ids_that_no_index_takes(open_store: OpenStore) -> None:
    """Providers' ids of any length and content are stored (some hold kilobytes of signature)."""
    store = open_store()
    odd = [CallOpened(f"run\x00{n}" + "x" * n, "c\ud800", (Msg.user("q"),), 1) for n in (0, 5_000, 5_001)]
    await store.append("s", odd)
    await store.append("s", odd)
    assert [len(fact.run_id) for fact in await store.load("s") if isinstance(fact, CallOpened)] == [5, 5008, 5009]


@pytest.mark.parametrize("bad", ["", "a\x00b", "x" * 256, "\ud800"])
async def test_session_ids_that_no_database_takes(open_store: OpenStore, bad: str) -> None:
    """A session's id is short printable text, and the error says so."""
    with pytest.raises(UsageError, match="1 to 255 printable characters"):
        await open_store().append(bad, facts(1))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writers=st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_writers_never_interleave(tmp_path: Path, writers: list[int]) -> None:
    """Of several stores that append at the version they know, each append is complete and in its place, or refused."""
    path = tmp_path / f"{time.monotonic_ns()}.db"

    async def main() -> None:
        stores = [SqlStore(f"sqlite:///{path}") for _ in range(3)]
        known = [0, 0, 0]
        kept: list[Fact] = []
        for turn, writer in enumerate(writers):
            pair: list[Fact] = [ToolStarted("r", f"t{turn}", writer), ToolStarted("r", f"t{turn}", writer + 10)]
            try:
                await stores[writer].append("s", pair, expected=known[writer])
            except SessionConflictError:
                assert known[writer] != len(kept)
                known[writer] = len(await stores[writer].load("s"))
                assert known[writer] == len(kept)
            else:
                assert known[writer] == len(kept)
                kept += pair
                known[writer] += 2
        assert list(await stores[0].load("s")) == kept
        for store in stores:
            await store.close()

    asyncio.run(main())


async def test_two_at_the_same_moment(open_store: OpenStore) -> None:
    """Of eight stores that write one version at once, exactly one wins."""
    stores = [open_store() for _ in range(8)]
    writes = [store.append("s", [CallResumed("r", f"c{n}")], expected=0) for n, store in enumerate(stores)]
    ended = await asyncio.gather(*writes, return_exceptions=True)
    assert sorted(type(end).__name__ for end in ended) == ["NoneType", *["SessionConflictError"] * 7]
    assert await count_of(stores[0]) == 1


# ---- leases


async def test_claims_wait_for_each_other(open_store: OpenStore) -> None:
    """With on_conflict="wait" the second claim waits until the first one is released, and has the new version."""
    one, two = open_store(on_conflict="wait"), open_store(on_conflict="wait")
    first = one.claim("s")
    assert first is not None
    held = await first
    second = asyncio.ensure_future(_claimed(two))
    assert not await two.lease("s", "somebody", 5)
    assert not second.done()
    await one.append("s", facts(2), expected=0)
    held.release()
    assert (await second).version == 2


async def _claimed(store: SqlStore, session_id: str = "s") -> Any:
    claim = store.claim(session_id)
    assert claim is not None
    return await claim


async def test_leases_of_other_sessions_do_not_wait(open_store: OpenStore) -> None:
    """A lease is for one session."""
    one, two = open_store(on_conflict="wait"), open_store(on_conflict="wait")
    assert [(await _claimed(one, "a")).version, (await _claimed(two, "b")).version] == [0, 0]


async def test_a_cancelled_claim_leaves_the_lease_free(open_store: OpenStore) -> None:
    """A cancelled wait for a lease does not take it later."""
    one, two = open_store(on_conflict="wait"), open_store(on_conflict="wait")
    held = await _claimed(one)
    waiting = asyncio.ensure_future(_claimed(two))
    await two.sessions()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await two.sessions()
    held.release()
    assert await one.lease("s", "somebody", 5)


async def test_leases_by_hand(open_store: OpenStore) -> None:
    """A lease belongs to its owner until it is released; only its owner may renew or release it."""
    one, two = open_store(), open_store()
    assert await one.lease("s", "me", 60)
    assert await one.lease("s", "me", 60)
    assert not await two.lease("s", "you", 60)
    assert not await two.release("s", "you")
    assert await one.release("s", "me")
    assert await two.lease("s", "you", 60)


async def test_a_lease_that_ran_out_is_free(open_store: OpenStore) -> None:
    """A process that died leaves a lease that is not renewed: it expires by the database's clock."""
    one, two = open_store(), open_store()
    assert await one.lease("s", "dead", 0.001)
    taken = await _until(lambda: two.lease("s", "alive", 60))
    assert taken
    assert not await one.lease("s", "dead", 60)


async def _until(attempt: Callable[[], Awaitable[bool]]) -> bool:
    async with asyncio.timeout(20):
        while not await attempt():
            pass
    return True


async def test_a_living_process_keeps_its_lease(open_store: OpenStore, url: str) -> None:
    """A held lease is renewed, even while its process is busy with other work."""
    holder = open_store(on_conflict="wait", lease_seconds=0.3)
    held = await _claimed(holder)
    other = open_store()

    async def renewed() -> bool:
        await holder.sessions()
        return expiry(url) > first

    first = expiry(url)
    assert await _until(renewed)
    assert not await other.lease("s", "thief", 60)
    held.release()
    assert await _until(lambda: other.lease("s", "next", 60))


async def test_an_idle_process_keeps_its_lease(open_store: OpenStore, url: str) -> None:
    """A held lease is renewed before it runs out, even if its process asks nothing else of the store."""
    await _claimed(open_store(on_conflict="wait", lease_seconds=0.9))
    first, begun = expiry(url), time.monotonic()
    while expiry(url) == first:
        assert time.monotonic() < begun + 0.9
        await asyncio.sleep(0.01)


async def test_a_lease_is_renewed_twice_before_it_could_run_out(open_store: OpenStore) -> None:
    """The shortest held lease determines the interval; without one, nothing is renewed."""
    holder = open_store(on_conflict="wait", lease_seconds=30)
    assert holder._until_renewal() is None
    held = await _claimed(holder)
    assert holder._until_renewal() == pytest.approx(10)
    held.release()
    await holder.sessions()
    assert holder._until_renewal() is None


async def test_a_shorter_lease_is_taken_beside_a_long_one(open_store: OpenStore) -> None:
    """Its first renewal is due before the thread has waited at all; the store continues to work."""
    store = open_store()
    async with asyncio.timeout(10):
        for session, seconds in (("long", 60), ("short", 0.0003)):
            await store.claim(session, lease=seconds)
        assert await store.sessions() == []


def expiry(url: str) -> float:
    engine = create_engine(url)
    with engine.begin() as connection:
        found = connection.execute(text("SELECT expires FROM agentflow_leases")).scalar_one()
    engine.dispose()
    return float(found)


async def test_closing_gives_leases_back(open_store: OpenStore) -> None:
    """A closed store leaves no lease."""
    one = open_store(on_conflict="wait")
    await _claimed(one)
    await one.close()
    assert await open_store().lease("s", "next", 60)


async def test_a_lease_stays_released_when_its_renewal_is_due_at_the_close(open_store: OpenStore, url: str) -> None:
    """A closed store renews nothing."""
    store = open_store()
    held = await store.claim("s", lease=0.0003)
    await store.close()
    assert (held.lost, expiry(url)) == (False, 0)


async def test_who_has_lost_the_lease_writes_nothing(open_store: OpenStore, url: str) -> None:
    """A process that was frozen for longer than its lease finds that another one has the session: it writes nothing,
    at any version, there and in sessions inside; the owner writes, and so does the next owner.
    """
    frozen, other = open_store(on_conflict="wait"), open_store(on_conflict="wait")
    old = await _claimed(frozen)
    await frozen.append("s", facts(1), expected=0, claim=old)
    run_sql(url, "UPDATE agentflow_leases SET expires = 1")  # it has expired
    new = await _claimed(other)
    assert (old.epoch, new.epoch, new.version, old.lost) == (1, 2, 1, False)
    for session_id, version in (("s", 1), ("s", None), ("s/t1", 0)):
        with pytest.raises(
            SessionConflictError, match=r"the right to write 's' \(epoch 1\) has passed to another process"
        ):
            await frozen.append(session_id, facts(1), expected=version, claim=old)
    assert old.lost
    old.release()
    await frozen.sessions()
    await other.append("s", facts(2)[1:], expected=1, claim=new)
    new.release()
    last = await _claimed(frozen)
    await frozen.append("s", facts(3)[2:], expected=2, claim=last)
    assert (last.epoch, await frozen.load("s"), await frozen.load("s/t1")) == (3, tuple(facts(3)), ())
    with pytest.raises(SessionConflictError):
        await other.append("s", facts(1), expected=3, claim=new)


async def test_an_expired_lease_that_nobody_took_is_still_good(open_store: OpenStore, url: str) -> None:
    """A process that was frozen continues if no other one has taken the lease."""
    store = open_store(on_conflict="wait")
    held = await _claimed(store)
    run_sql(url, "UPDATE agentflow_leases SET expires = 1")
    await store.append("s", facts(1), expected=0, claim=held)
    assert await count_of(store) == 1


async def test_a_lost_lease_is_noticed(open_store: OpenStore, url: str) -> None:
    """A holder notices that its lease has passed on when it renews it, without a write."""
    store = open_store()
    claim = store.claim("s", lease=0.3)  # also where the store does not make calls wait
    assert claim is not None
    held = await claim
    run_sql(url, "UPDATE agentflow_leases SET owner = 'thief', epoch = epoch + 1")

    async def noticed() -> bool:
        await store.sessions()
        return held.lost

    assert await _until(noticed)


async def test_a_frozen_call_does_not_write_into_another_ones_session(open_store: OpenStore, url: str) -> None:
    """A call whose session another process has taken meanwhile, and not yet written to, fails with a conflict when it
    continues: the store has nothing of it from then on.
    """

    @tool
    async def freeze() -> str:
        """Pause for so long that another process takes the session."""
        run_sql(url, "UPDATE agentflow_leases SET expires = 1")
        await _claimed(open_store(on_conflict="wait"))
        return "back"

    store = open_store(on_conflict="wait")
    agent = Agent("a", ScriptedModel([ToolUseBlock("t", "freeze"), "never"]), tools=[freeze], store=store)
    with pytest.raises(SessionConflictError, match="has passed to another process"):
        await agent.call("Hi", session="s")
    kinds = [type(fact).__name__ for fact in await store.load("s")]
    assert kinds == ["CallOpened", "Reasoned", "ToolDecided", "ToolStarted"]


async def test_pruning_leaves_what_somebody_holds(open_store: OpenStore) -> None:
    """A session whose lease is held is not pruned, however old its last write is."""
    store = open_store()
    for session_id in ("held", "free"):
        await store.append(session_id, [CallClosed("r", "c", "completed", None)])
    assert await store.lease("held", "somebody", 60)
    assert [info.id for info in await store.prune(older_than=timedelta(0))] == ["free"]
    assert await store.release("held", "somebody")
    assert [info.id for info in await store.prune(older_than=timedelta(0))] == ["held"]


# ---- schema


async def test_stores_that_start_at_once(open_store: OpenStore) -> None:
    """Eight stores on a database without tables: one creates them, and all work."""
    stores = [open_store() for _ in range(8)]
    await asyncio.gather(*[store.append(f"s{n}", facts(1)) for n, store in enumerate(stores)])
    assert len(await stores[0].sessions()) == 8


async def test_an_older_schema_is_migrated(open_store: OpenStore, url: str) -> None:
    """A database of the first schema is migrated when it is opened; its content is kept."""
    engine = create_engine(url)
    with engine.begin() as connection:
        migrate(connection, upto=1)
        connection.execute(text("INSERT INTO agentflow_sessions VALUES ('s', 1, 'idle', 0)"))
        connection.execute(
            text("INSERT INTO agentflow_facts VALUES ('s', 1, 'r', 'k', 'call_resumed', :body, 0)"),
            {"body": '{"kind":"call_resumed","version":1,"fact":{"run_id":"r","call_id":"c0"}}'},
        )
        assert connection.execute(text("SELECT version FROM agentflow_schema")).scalar() == 1
    engine.dispose()
    store = open_store()
    assert await store.load("s") == tuple(facts(1))
    assert await store.lease("s", "me", 5)  # the second step's table
    engine = create_engine(url)
    with engine.begin() as connection:
        assert connection.execute(text("SELECT version FROM agentflow_schema")).scalar() == SCHEMA_VERSION
    engine.dispose()


async def test_a_newer_schema_is_left_alone(open_store: OpenStore, url: str) -> None:
    """A database that a newer agentflow has migrated is refused, and not changed."""
    await open_store().append("s", facts(1))
    run_sql(url, "UPDATE agentflow_schema SET version = 99")
    with pytest.raises(StoreError) as caught:
        await open_store().append("s", facts(2))
    assert str(caught.value) == (
        f"The database has schema version 99; this agentflow supports versions up to {SCHEMA_VERSION}. A newer "
        "agentflow has migrated it: upgrade agentflow here. Nothing was changed."
    )
    run_sql(url, f"UPDATE agentflow_schema SET version = {SCHEMA_VERSION}")
    assert await count_of(open_store()) == 1


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("DELETE FROM agentflow_schema", []),
        (f"INSERT INTO agentflow_schema VALUES ({SCHEMA_VERSION})", [SCHEMA_VERSION, SCHEMA_VERSION]),
        ("UPDATE agentflow_schema SET version = -1", [-1]),
    ],
)
async def test_a_schema_table_that_is_not_ours(
    open_store: OpenStore, url: str, statement: str, found: list[int]
) -> None:
    """A version table without a version, with two, or with a wrong one is refused."""
    await open_store().append("s", facts(1))
    run_sql(url, statement)
    with pytest.raises(StoreError, match=rf"holds {re.escape(repr(found))}, but must hold one version"):
        await open_store().load("s")


async def test_a_schema_of_version_0_has_no_tables_yet(open_store: OpenStore, url: str) -> None:
    """It is migrated, like an empty database."""
    run_sql(url, "CREATE TABLE agentflow_schema (version INTEGER NOT NULL)")
    run_sql(url, "INSERT INTO agentflow_schema VALUES (0)")
    await open_store().append("s", facts(1))
    assert await open_store().load("s") == tuple(facts(1))


async def test_a_migration_that_dies_leaves_nothing(url: str, open_store: OpenStore) -> None:
    """An incomplete migration leaves no trace: the next process starts from the beginning."""
    engine = create_engine(url)
    with engine.connect() as connection:
        if connection.dialect.name == "sqlite":  # as SqlStore does: DDL inside the transaction
            connection.connection.dbapi_connection.isolation_level = None  # type: ignore[union-attr]
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        migrate(connection, upto=1)
        connection.rollback()  # the process has died
    engine.dispose()
    store = open_store()
    await store.append("s", facts(1))
    assert await store.lease("s", "me", 5)


# ---- what cannot be


async def test_text_that_sqlite_cannot_read_is_not_shown(tmp_path: Path) -> None:
    """SQLite's own error quotes stored text; ours names the remedy."""
    path = tmp_path / "a.db"
    async with SqlStore(f"sqlite:///{path}") as store:
        await store.append("s", [CallOpened("r", "c", (Msg.user("a secret"),), 10)])
        run_sql(f"sqlite:///{path}", "UPDATE agentflow_facts SET body = CAST(X'ff' || body AS TEXT)")
        with pytest.raises(StoreError, match=r"Could not decode to UTF-8 column 'body'.*REINDEX") as caught:
            await store.load("s")
    assert "secret" not in str(caught.value)


async def test_a_damaged_fact_names_itself(open_store: OpenStore, url: str) -> None:
    """A row that is no fact makes its session unreadable, and the error has the last valid position; other sessions
    are unaffected.
    """
    store = open_store()
    await store.append("s", facts(3))
    await store.append("other", facts(2))
    run_sql(url, "UPDATE agentflow_facts SET body = '{\"kind\"' WHERE session_id = 's' AND version = 3")
    with pytest.raises(StoreError, match=r"Fact 3 of session 's': .*at=2\)") as caught:
        await store.load("s")
    assert "it is not JSON" in str(caught.value)
    with pytest.raises(StoreError, match="Fact 3"):
        await store.export("s")
    assert [await count_of(store, "other"), len(await store.sessions())] == [2, 2]
    await store.fork("s", "saved", at=2)
    assert await store.load("saved") == tuple(facts(2))


async def test_a_missing_fact_names_itself(open_store: OpenStore, url: str) -> None:
    """A gap is not skipped."""
    store = open_store()
    await store.append("s", facts(3))
    run_sql(url, "DELETE FROM agentflow_facts WHERE version = 1")
    with pytest.raises(StoreError, match=r"Fact 1 of session 's' is missing\. There is no fact before it"):
        await store.load("s")


async def test_a_fact_of_a_newer_agentflow(open_store: OpenStore, url: str) -> None:
    """A fact in a form that this code does not know is refused with the reason."""
    store = open_store()
    await store.append("s", facts(1))
    run_sql(url, f"UPDATE agentflow_facts SET body = replace(body, '\"version\":{CODEC_VERSION}', '\"version\":99')")
    with pytest.raises(StoreError, match=r"version 99; this agentflow reads versions up to \d+\. .*upgrade agentflow"):
        await store.load("s")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("agentflow.db", "'agentflow.db' is not a database URL. Use 'sqlite:///agentflow.db' (a file) or"),
        ("mysql://user:secret@host/db", "does not support the database 'mysql' of 'mysql://user:***@host/db'"),
        ("sqlite+aiosqlite:///x.db", "does not support the database 'sqlite+aiosqlite'"),
        ("postgresql+psycopg://host:port/db", "is not a database URL"),
        (
            "postgresql+psycopg://ann:secret@db.internal:54x32/prod",
            "'postgresql+psycopg://ann:***@db.internal:54x32/prod' is",
        ),
        ("postgresql+psycopg://ann:se/secret@cret@host/db", "psycopg://ann:***@host/db' contains an unescaped '@'"),
        ("ann:secret@host/db?password=secret", "password=***' is not a database URL"),
        ("mysql://host/db?password=secret", "of 'mysql://host/db?password=***'"),
        ("postgresql://ann:secret", "is not a database URL"),
    ],
)
def test_wrong_urls(url: str, says: str) -> None:
    """A URL that cannot work is refused when the store is created, with the valid forms; passwords are not shown."""
    with pytest.raises(StoreError) as caught:
        SqlStore(url)
    assert says in str(caught.value)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


async def test_a_password_is_shown_nowhere() -> None:
    """The error of an unreachable store has the address without the password, wherever in the URL it is."""
    for url in ("postgresql://ann:secret@127.0.0.1:1/db", "postgresql://ann@127.0.0.1:1/db?password=secret"):
        store = SqlStore(url)
        assert "secret" not in f"{store!r} {store.url}"
        with pytest.raises(StoreError, match=r"on postgresql\+psycopg://ann(:\*\*\*)?@127.0.0.1:1/db") as caught:
            await store.load("s")
        assert "secret" not in "".join(traceback.format_exception(caught.value))
        await store.close()


@given(st.sets(st.sampled_from(["application_name", "connect_timeout", "options"])), st.floats(0.1, 100))
def test_options_of_a_postgres_url_take_precedence(given_names: set[str], timeout: float) -> None:
    """Only those that it lacks are added; a connection may take the store's timeout, and at least two seconds."""
    url = make_url("postgresql+psycopg://host/db").set(query=dict.fromkeys(given_names, "7"))
    added = {
        "application_name": "agentflow",
        "connect_timeout": max(2, round(timeout)),
        "options": f"-c idle_in_transaction_session_timeout={int(timeout * 1000)} -c more=1",
    }
    expected = {name: value for name, value in added.items() if name not in given_names}
    assert postgres_options(url, timeout, " -c more=1") == expected


def test_wrong_options() -> None:
    """Options without an effect are refused."""
    with pytest.raises(UsageError, match="on_conflict='retry' is not supported"):
        SqlStore("sqlite://", on_conflict="retry")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be above 0"):
        SqlStore("sqlite://", timeout=0)


async def failing(url: str, work: Callable[[SqlStore], Awaitable[Any]]) -> str:
    """Return the error of a failing store."""
    async with SqlStore(url, timeout=0.2) as store:
        with pytest.raises(StoreError) as caught:
            await work(store)
        cause = caught.value.__cause__
        assert cause is not None
        assert type(cause).__module__.partition(".")[0] in ("sqlite3", "psycopg")
        assert "[SQL:" not in "".join(traceback.format_exception(caught.value))  # nor the values of the statement
        return str(caught.value)


async def write(store: SqlStore) -> None:
    await store.append("s", facts(1))


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """SQLite creates a file, not its folder."""
    said = await failing(f"sqlite:///{tmp_path / 'none' / 'x.db'}", write)
    assert "unable to open database file. The folder must exist, and this process must be allowed to write" in said


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    """A file of another program is not overwritten."""
    path = tmp_path / "x.db"
    path.write_bytes(b"not a database at all" * 100)
    assert "is not a SQLite database" in await failing(f"sqlite:///{path}", write)
    assert path.read_bytes().startswith(b"not a database")


async def test_a_database_that_may_only_be_read(tmp_path: Path) -> None:
    """Reading works, and writing raises an error with the remedy."""
    path = tmp_path / "x.db"
    async with SqlStore(f"sqlite:///{path}") as store:
        await store.append("s", facts(2))
    read_only = f"sqlite:///file:{path}?mode=ro&uri=true"
    said = await failing(read_only, lambda store: store.append("s", facts(3)[2:]))
    assert "The database is read-only. Give the file and its folder write permission" in said
    async with SqlStore(read_only) as store:
        assert await count_of(store) == 2


def test_only_a_sqlite_file_without_options_is_reopened_for_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that may only be read: options of a URL are the user's, and a server's database is no file."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    (path := tmp_path / "x.db").touch()
    urls = {
        f"sqlite:///{path}": True,
        f"sqlite:///{path}?timeout=5": False,
        f"sqlite:///{tmp_path / 'other.db'}": False,
        f"postgresql://localhost/{path}": False,
        "sqlite://": False,
    }
    assert {url: Database(url, 1.0, False, lambda _: True, lambda _: None)._open_unchanging() for url in urls} == urls


READER = """
import asyncio, os, sys
from agentflow import Agent
from agentflow.errors import StoreError
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel

folder = sys.argv[1]

async def load():  # all modules, while they can be read
    async with SqlStore("sqlite://") as store:
        await Agent("a", ScriptedModel(["x"]), store=store).call("x")
        await store.load("a")

asyncio.run(load())
if os.getuid() == 0:  # whom no permission stops
    os.setgid(65534)
    os.setuid(65534)

async def read():
    async with SqlStore(f"sqlite:///{folder}/a b.db") as store:
        print([info.id for info in await store.sessions()])
        for session in ("s", "s"):
            print([msg.text for msg in await Agent("a", ScriptedModel([]), store=store).history(session)])
        try:
            await Agent("a", ScriptedModel(["x"]), store=store).call("x", session="s")
        except StoreError as error:
            print("The database is read-only." in str(error))
    try:
        async with SqlStore(f"sqlite:///{folder}/a b.db?timeout=5") as store:
            await store.sessions()
    except StoreError as error:  # its options are not given up
        print("The database is read-only." in str(error))

asyncio.run(read())
"""


@pytest.mark.parametrize("mode", [0o555, 0o755])
def test_a_file_in_a_folder_that_may_only_be_read(mode: int) -> None:
    """A backup, or a database of another user: a process that may write neither file nor folder reads it. If the address
    has options, the error names the remedy.
    """
    with tempfile.TemporaryDirectory() as folder:

        async def write() -> None:
            async with SqlStore(f"sqlite:///{folder}/a b.db") as store:
                await Agent("a", ScriptedModel(["Hello."]), store=store).call("Hi", session="s")

        asyncio.run(write())
        (Path(folder) / "a b.db").chmod(0o444)
        Path(folder).chmod(mode if os.getuid() == 0 else 0o555)
        found = subprocess.run(
            [sys.executable, "-c", READER, folder], capture_output=True, text=True, env={**os.environ}, check=False
        )
        Path(folder).chmod(0o755)
    assert (found.stdout, found.stderr[-500:]) == ("['s']\n['Hi', 'Hello.']\n['Hi', 'Hello.']\nTrue\nTrue\n", "")


async def test_a_disk_that_is_full(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A write without space is undone completely; the rest stays readable, and writing works again when there is
    space.
    """

    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA max_page_count = 40")

    event.listen(Engine, "connect", limit)
    request.addfinalizer(lambda: event.remove(Engine, "connect", limit))
    async with SqlStore(f"sqlite:///{tmp_path / 'x.db'}") as store:
        await store.append("s", facts(2))
        big = [CallOpened("r", "c", (Msg.user("x" * 1_000_000),), 1)]
        with pytest.raises(StoreError, match=r"database or disk is full\. The disk is full\. Free space"):
            await store.append("s", big, expected=2)
        assert await store.load("s") == tuple(facts(2))
        await store.append("s", facts(3)[2:], expected=2)
        assert await count_of(store) == 3


OPENS = """
import asyncio, resource, signal, sys
from agentflow.state import SqlStore
resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, 16_384))  # less than SQLite's shared memory takes
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
async def main():
    async with SqlStore(sys.argv[1]) as store:
        await store.sessions()
try:
    asyncio.run(main())
except Exception as error:
    print(type(error).__name__, error.retryable, error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of file sizes")
def test_a_disk_that_is_full_from_the_beginning(tmp_path: Path) -> None:
    """SQLite calls it an I/O error; it is reported as a full disk, not as a damaged file."""
    url = f"sqlite:///{tmp_path / 'x.db'}"
    found = subprocess.run([sys.executable, "-c", OPENS, url], capture_output=True, text=True, check=False)
    assert found.stdout.startswith("StoreError True Opening the database failed on")
    assert "disk I/O error. The disk is full. Free space" in found.stdout


async def test_a_database_that_is_held_by_another(tmp_path: Path) -> None:
    """Waiting for a lock ends after timeout=; reading is not delayed."""
    path = tmp_path / "x.db"
    async with SqlStore(f"sqlite:///{path}") as store:
        await store.append("s", facts(2))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        said = await failing(f"sqlite:///{path}", lambda store: store.append("s", facts(3)[2:]))
        assert "database is locked. Another process held the database for too long. Repeat the call" in said
        async with SqlStore(f"sqlite:///{path}", timeout=0.2) as store:
            assert await count_of(store) == 2


async def test_a_server_that_is_not_there() -> None:
    """An unreachable server is named, without the password."""
    said = await failing("postgresql+psycopg://me:secret@127.0.0.1:1/db", write)
    assert said.startswith("Opening the database failed on postgresql+psycopg://me:***@127.0.0.1:1/db")
    assert said.endswith(
        "The server cannot be reached. Check that it is running, and the URL's host and port; then repeat the call."
    )


async def test_a_database_that_the_server_does_not_have(postgres: Postgres) -> None:
    """It is not created either."""
    assert "Create the database first" in await failing(postgres.url_of("nowhere"), write)


async def test_a_connection_that_is_cut(postgres: Postgres) -> None:
    """If a server drops the connection (a restart, an administrator), the store connects again; nothing is written
    twice.
    """
    with postgres.database() as url:
        async with SqlStore(url) as store:
            await store.append("s", facts(1), expected=0)
            postgres.execute(
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{url.rpartition('/')[2]}'"
            )
            await store.append("s", facts(2)[1:], expected=1)
            assert await store.load("s") == tuple(facts(2))


async def test_a_server_that_only_reads(postgres: Postgres) -> None:
    """A replica (or a database set to read only) can be read."""
    with postgres.database() as url:
        async with SqlStore(url) as store:
            await store.append("s", facts(1))
        postgres.execute(f"ALTER DATABASE {url.rpartition('/')[2]} SET default_transaction_read_only = on")
        assert "The database is read-only" in await failing(url, lambda store: store.append("s", facts(2)))
        async with SqlStore(url) as store:
            assert await count_of(store) == 1


GIVES_BACK = """
import asyncio, sys, threading
from agentflow.state.sql import SqlStore

async def main():
    store = SqlStore(sys.argv[1])
    claim = await store.claim("s", lease=3600)
    store._ask(threading.main_thread().join)  # the store is busy until the program has ended
    claim.release()
    print("held", flush=True)

asyncio.run(main())
"""


async def test_a_process_that_ends_gives_back_what_it_was_asked_to(tmp_path: Path) -> None:
    """A lease that was released just before the exit does not delay others, although the store was not closed."""
    url = f"sqlite:///{tmp_path / 'agentflow.db'}"
    ended = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-W", "always::ResourceWarning", "-c", GIVES_BACK, url],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert (ended.stdout, ended.stderr) == ("held\n", "")
    async with SqlStore(url) as store:
        assert await store.lease("s", "another", 60)


def test_an_error_of_several_lines_is_reported_by_its_first() -> None:
    """PostgreSQL's further lines quote the statement, and values in it."""
    broken = OperationalError("SELECT", {}, Exception("the disk is on fire.\nCONTEXT: a value"))
    assert str(explain(broken, "sqlite:///a.db", "Loading")).startswith(
        "Loading failed on sqlite:///a.db: the disk is on fire. "
    )
    assert "CONTEXT" not in str(explain(broken, "sqlite:///a.db", "Loading"))


@pytest.mark.parametrize(
    ("said", "retryable"),
    [
        ("database is locked", True),
        ("disk I/O error", True),
        ("connection refused", True),
        ("file is not a database", False),
        ("invalid page in block 7", False),
        ("password authentication failed", False),
        ("no such table: facts", False),
        ("something unheard of", False),
    ],
)
def test_what_may_pass_is_retryable(said: str, retryable: bool) -> None:
    """`StoreError.retryable` is True if the same call may succeed later."""
    assert explain(OperationalError("SELECT", {}, Exception(said)), "a.db", "Loading").retryable is retryable
