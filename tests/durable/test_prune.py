"""Pruning: old finished runs are deleted, and everything that is still needed is kept."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from agentflow import Agent, Approve, ToolUseBlock, tool
from agentflow.durable.agent import DurableAgent
from agentflow.durable.client import DurableClient
from agentflow.errors import UsageError
from agentflow.state.sql import SqlStore
from agentflow.terminal.cli.main import main
from agentflow.testing import ScriptedModel

DAYS = 40
TABLES = (
    "workflow_status",
    "workflow_input",
    "workflow_output",
    "agentflow_run_events",
    "agentflow_cancels",
    "agentflow_lines",
)


@tool(requires_approval=True)
async def pay() -> str:
    """Pay."""
    return "paid"


def answer(request: Any) -> Any:
    """Pays on request."""
    last = request.messages[-1]
    return [ToolUseBlock("t", "pay")] if last.role == "user" and last.text == "pay" else "done"


def execute(url: str, *statements: str) -> list[Any]:
    """Change the database directly; return the last statement's rows."""
    engine = create_engine(url)
    found: list[Any] = []
    with engine.begin() as connection:
        if not url.startswith("sqlite"):
            connection.execute(text("SET search_path TO dbos, public"))
        for statement in statements:
            done = connection.execute(text(statement))
            found = list(done.all()) if done.returns_rows else []
    engine.dispose()
    return found


def age(url: str) -> None:
    """Make every row 40 days older."""
    seconds = DAYS * 86400
    execute(
        url,
        f"UPDATE workflow_status SET created_at = created_at - {seconds}000, updated_at = updated_at - {seconds}000",
        f"UPDATE agentflow_sessions SET updated = updated - {seconds}",
    )


def rows(url: str) -> list[int]:
    """Return the number of rows, by `TABLES`."""
    return [execute(url, f"SELECT count(*) FROM {table}")[0][0] for table in TABLES]


@pytest.mark.ci
async def test_what_is_over_goes_and_what_is_needed_stays(url: str) -> None:
    """Old finished runs are deleted with their events, and old sessions with their facts. A run that waits for a
    person or in the queue is kept with its session, however old, and so are runs that ended lately.
    """
    async with SqlStore(url) as store:
        agent = Agent("a", ScriptedModel(answer), tools=[pay], store=store)
        async with DurableAgent(agent, url, poll=0.02) as durable:
            async with durable.worker(poll=0.02):
                for run_id in ("old", "old2"):
                    await durable.call("Hi", session="s-old", run_id=run_id)
                await durable.call("Hi", session="s-queued", run_id="before")
                await durable.call("pay", session="s-waits", run_id="waits")
                await durable.call("pay", session="s-paid", run_id="paid")
                await durable.decide("paid", {"t": Approve()})
                assert (await durable.result("paid")).text == "done"
                await durable.call("pay", session="s-cancelled", run_id="cancelled")
                await durable.cancel("cancelled")
                await durable.result("cancelled")
            await durable.submit("Hi", session="s-queued", run_id="queued")
            age(url)
            async with durable.worker(poll=0.02):
                assert (await durable.result("queued")).text == "done"
                await durable.call("Hi", session="s-new", run_id="new")
            await durable.submit("Hi", session="s-queued", run_id="queued2")
            age_of_sessions = f"UPDATE agentflow_sessions SET updated = updated - {DAYS * 86400} WHERE id = 's-queued'"
            execute(url, age_of_sessions)  # its session is old, and its next run is not begun
            pruned = await durable.prune(older_than=timedelta(days=30))
            assert sorted(pruned.runs) == ["before", "cancelled", "old", "old2", "paid"]
            assert sorted(info.id for info in pruned.sessions) == ["s-cancelled", "s-old", "s-paid"]
            left = {info.run_id: info.status for info in await durable.runs()}
            assert left == {"waits": "suspended", "queued": "ended", "new": "ended", "queued2": "queued"}
            for run_id in pruned.runs:
                with pytest.raises(UsageError, match="There is no run"):
                    await durable.client.run(run_id)
            assert [event async for event in durable.stream("new")] != []
            await durable.decide("waits", {"t": Approve()})
            async with durable.worker(poll=0.02):
                assert (await durable.result("waits")).text == "done"
                assert (
                    await durable.call("Hi", session="s-old", run_id="old")
                ).text == "done"  # it is not known any more
                assert (await durable.result("queued2")).text == "done"
            facts = len(await store.load("s-queued"))
            assert facts == 9  # three calls: nothing of it was pruned
            everything = await durable.prune(older_than=timedelta(0))
            assert len(everything.runs) == 5
        assert rows(url) == [0] * len(TABLES)
        assert await store.sessions() == []


async def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`agentflow runs prune` prints how much it has deleted; sessions can be kept."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with SqlStore(url) as store:
        agent = Agent("a", ScriptedModel(lambda request: "done"), store=store)
        async with DurableAgent(agent, url, poll=0.02) as durable, durable.worker(poll=0.02):
            for n in range(3):
                await durable.call("Hi", session=f"s{n % 2}")
    age(url)
    capfd.readouterr()
    for given, said in (
        (("--older-than", "50"), "0 runs and 0 sessions were deleted\n"),
        (("--older-than", "30", "--keep-sessions"), "3 runs and 0 sessions were deleted\n"),
        (("--older-than", "30"), "0 runs and 2 sessions were deleted\n"),
    ):
        with pytest.raises(SystemExit) as ended:
            await asyncio.to_thread(main, ("runs", "prune", *given, "--database", url))
        assert (ended.value.code, capfd.readouterr().out) == (0, said)


async def test_a_length_of_time_has_a_unit(client: DurableClient) -> None:
    """A number is refused, and nothing is deleted."""
    with pytest.raises(UsageError, match="pass a timedelta, such as timedelta"):
        await client.prune(older_than=30)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
