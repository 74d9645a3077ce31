"""Damaged rows of the run database, or forged ones: they are reported, and nothing runs."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from agentflow import Agent
from agentflow.durable.agent import DurableAgent
from agentflow.durable.client import DurableClient
from agentflow.durable.records import RunFailedError
from agentflow.errors import StoreError
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel

GARBAGE = [
    "{garbage",
    "[]",
    "5",
    '"text"',
    '{"positionalArgs":[1],"namedArgs":{}}',
    '{"positionalArgs":[{"form":1}],"namedArgs":{}}',
    '{"positionalArgs":[],"namedArgs":[1]}',
    '{"positionalArgs":7}',
    '{"positionalArgs":[{"form":2}]}',
    "gAR9lC4=",
]


class Evil:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self.mark),)


def pickled(value: object) -> str:
    """Return a value in the form in which DBOS stores pickles."""
    return base64.b64encode(pickle.dumps(value)).decode()


def execute(url: str, statement: str, **values: Any) -> None:
    """Change the database directly."""
    engine = create_engine(url)
    with engine.begin() as connection:
        if not url.startswith("sqlite"):
            connection.execute(text("SET search_path TO dbos, public"))
        connection.execute(text(statement), values)
    engine.dispose()


def set_input(url: str, run_id: str, stored: str) -> None:
    """Overwrite a request."""
    execute(url, "UPDATE workflow_input SET inputs = :stored WHERE workflow_uuid = :id", stored=stored, id=run_id)


def durable_agent(url: str, store: SqlStore) -> DurableAgent:
    """An agent that answers "fine"."""
    return DurableAgent(Agent("a", ScriptedModel(lambda request: "fine"), store=store), url, poll=0.02)


async def test_a_damaged_request_is_named_and_the_others_are_listed(client: DurableClient, url: str) -> None:
    """The list has each unreadable run in its place, without showing stored text; requested alone, it is reported
    too.
    """
    damaged = {f"bad{n}": stored for n, stored in enumerate(GARBAGE)}
    for run_id in ("good", *damaged):
        await client.submit("a", "Hi", session=f"s-{run_id}", run_id=run_id)
    for run_id, stored in damaged.items():
        set_input(url, run_id, stored)
    found = {info.run_id: info for info in await client.runs()}
    assert {run_id: (info.agent, info.session, info.status) for run_id, info in found.items()} == {
        "good": ("a", "s-good", "queued"),
        **{run_id: ("a", f"s-{run_id}", "damaged") for run_id in damaged},
    }
    for run_id, stored in damaged.items():
        damage = found[run_id].damage or ""
        assert damage.startswith(f"The stored request of run {run_id!r} ")
        assert stored not in damage or len(stored) < 5
        assert await client.run(run_id) == found[run_id]


async def test_a_worker_ends_what_it_cannot_read_and_runs_the_rest(url: str, client: DurableClient) -> None:
    """Each damaged request ends with an error that says so; none of them blocks the worker, or its session."""
    for n, stored in enumerate(GARBAGE):
        await client.submit("a", "Hi", session=f"s{n}", run_id=f"bad{n}")
        set_input(url, f"bad{n}", stored)
        await client.submit("a", "Hi", session=f"s{n}", run_id=f"good{n}")
    async with (
        SqlStore(url) as store,
        durable_agent(url, store) as durable,
        durable.worker(poll=0.02),
        asyncio.timeout(60),
    ):
        for n in range(len(GARBAGE)):
            with pytest.raises(RunFailedError, match=f"Run 'bad{n}' failed"):
                await client.result(f"bad{n}")
            assert (await client.result(f"good{n}")).text == "fine"


async def test_what_a_row_says_of_its_form_is_not_believed(url: str, client: DurableClient, tmp_path: Path) -> None:
    """Requests, results, errors, and the contexts of schedules that claim to be pickled, or claim nothing, are read
    as JSON by clients and workers, also for runs whose worker died and for DBOS's own queue. Nothing is unpickled.
    """
    mark = tmp_path / "mark"
    evil = pickled({"args": (Evil(mark),), "kwargs": {}})
    for form in ("py_pickle", None, "custom_serializer"):
        kinds = ("queued", "ended", "failed", "dead", "inner")
        for kind in kinds:
            run_id = f"{kind}-{form}"
            await client.submit("a", "Hi", run_id=run_id)
            execute(
                url, "UPDATE workflow_status SET serialization = :form WHERE workflow_uuid = :id", form=form, id=run_id
            )
            set_input(url, run_id, evil)
        for kind, column, status in (("ended", "output", "SUCCESS"), ("failed", "error", "ERROR")):
            execute(
                url,
                f"UPDATE workflow_status SET {column} = :evil, status = '{status}' WHERE workflow_uuid = '{kind}-{form}'",
                evil=evil,
            )
        execute(
            url,
            "UPDATE workflow_status SET status = 'PENDING', executor_id = 'gone', application_version = 'agentflow', "
            f"recovery_attempts = 1 WHERE workflow_uuid = 'dead-{form}'",
        )
        execute(
            url,
            f"UPDATE workflow_status SET queue_name = '_dbos_internal_queue' WHERE workflow_uuid = 'inner-{form}'",
        )
    execute(
        url,
        "INSERT INTO workflow_schedules (schedule_id, schedule_name, workflow_name, schedule, status, context) "
        "VALUES ('s', 's', 'agentflow.call', '* * * * * *', 'ACTIVE', :evil)",
        evil=evil,
    )
    assert {info.status for info in await client.runs()} == {"damaged"}
    for info in await client.runs():
        assert (await client.run(info.run_id)).status == "damaged"
        assert [event async for event in client.stream(info.run_id).take(0)] == []
    with pytest.raises(
        StoreError, match="The stored result of run 'ended-None' is damaged, or not in the portable form"
    ):
        await client.result("ended-None")
    with pytest.raises(RunFailedError):
        await client.result("failed-py_pickle")
    async with (
        SqlStore(url) as store,
        durable_agent(url, store) as durable,
        durable.worker(poll=0.02),
        asyncio.timeout(60),
    ):
        for form in ("py_pickle", None, "custom_serializer"):
            for kind in ("queued", "dead"):
                with pytest.raises(RunFailedError):
                    await client.result(f"{kind}-{form}")
        assert (await durable.call("Hi")).text == "fine"
    assert not mark.exists()


async def test_damaged_columns_beside_the_request(client: DurableClient, url: str) -> None:
    """Columns that DBOS parses, invalid times, and foreign ids: the list is complete."""
    for run_id in ("good", "roles", "when", "id"):
        await client.submit("a", "Hi", run_id=run_id)
    execute(url, "UPDATE workflow_status SET authenticated_roles = '{' WHERE workflow_uuid = 'roles'")
    execute(url, f"UPDATE workflow_status SET created_at = {2**62} WHERE workflow_uuid = 'when'")
    execute(url, "UPDATE workflow_status SET workflow_uuid = 'id/x' WHERE workflow_uuid = 'id'")
    assert {info.run_id: info.status for info in await client.runs()} == {
        "good": "queued",
        "roles": "queued",
        "when": "queued",
        "id/x": "damaged",
    }


async def test_text_that_is_none_is_named_and_not_shown(tmp_path: Path) -> None:
    """One request has bytes that are not UTF-8 (SQLite stores them): the other runs are listed."""
    file = tmp_path / "runs.db"
    async with DurableClient(f"sqlite:///{file}") as client:
        for run_id in ("good", "bad"):
            await client.submit("a", "a secret", run_id=run_id)
        with sqlite3.connect(file) as database:
            database.execute(
                "UPDATE workflow_input SET inputs = CAST(X'ff' || inputs AS TEXT) WHERE workflow_uuid = 'bad'"
            )
        database.close()
        found = {info.run_id: info for info in await client.runs()}
    assert {run_id: info.status for run_id, info in found.items()} == {"good": "queued", "bad": "damaged"}
    assert "secret" not in str(found["bad"])


async def test_damaged_events_say_where_to_go_on(url: str, client: DurableClient) -> None:
    """An unreadable batch stops the stream, and the error has the number of the next event."""
    async with SqlStore(url) as store, durable_agent(url, store) as durable, durable.worker(poll=0.02):
        await durable.call("Hi", run_id="r")
    events = [event async for event in client.stream("r")]
    execute(url, "UPDATE agentflow_run_events SET body = '[{]' WHERE first = 1")
    with pytest.raises(StoreError, match=r"The stored events 1 to 1 of run 'r' are damaged\. Skip them with since=1 "):
        await client.stream("r").to_list()
    assert [event async for event in client.stream("r", since=1)] == events[1:]
    execute(url, "UPDATE agentflow_run_events SET body = :body WHERE first = 1", body=json.dumps([{"no": "type"}]))
    with pytest.raises(StoreError, match="are damaged"):
        await client.stream("r").to_list()


async def test_a_corrupt_page_gives_advice_and_shows_nothing(tmp_path: Path) -> None:
    """Pages of the file are overwritten: the error has the remedy, and no stored text."""
    file = tmp_path / "runs.db"
    async with DurableClient(f"sqlite:///{file}") as client:
        for n in range(50):
            await client.submit("a", f"a secret {n} " * 20, run_id=f"r{n}")
    with sqlite3.connect(file) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        size = database.execute("PRAGMA page_size").fetchone()[0]
        pages = database.execute(
            "SELECT rootpage FROM sqlite_master WHERE tbl_name IN ('workflow_status', 'workflow_input')"
        ).fetchall()
    database.close()
    with file.open("r+b") as opened:
        for (page,) in pages:
            opened.seek((page - 1) * size)
            opened.write(b"\x7f" * size)
    async with DurableClient(f"sqlite:///{file}") as client:
        with pytest.raises(StoreError) as caught:
            await client.runs()
    said = str(caught.value)
    assert "REINDEX rebuilds an index" in said
    assert "secret" not in said
