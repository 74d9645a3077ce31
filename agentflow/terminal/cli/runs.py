"""`agentflow runs`: list and control the runs submitted to workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from agentflow._support.shown import one_line
from agentflow.durable.client import DurableClient
from agentflow.durable.records import Pruned, RunEvent, RunInfo
from agentflow.errors import AgentFlowError, UsageError
from agentflow.state.sql import SqlStore
from agentflow.terminal.cli.failures import EXIT_CODES, FAILED, CommandError, say
from agentflow.terminal.cli.worker_command import DATABASE_HELP
from agentflow.terminal.phrases import call_text
from agentflow.vocabulary.event_json import json_line
from agentflow.vocabulary.verdicts import Approve, Deny, Resolution

T = TypeVar("T")


_DATABASE = click.option("--database", metavar="URL", required=True, help=DATABASE_HELP)


def _with_client(database: str, work: Callable[[DurableClient], Coroutine[Any, Any, T]]) -> T:
    async def connected() -> T:
        async with DurableClient(database) as client:
            return await work(client)

    logging.getLogger("dbos").setLevel(logging.ERROR)  # damaged runs are shown in the list
    try:
        return asyncio.run(connected())
    except AgentFlowError as error:
        raise CommandError(str(error)) from error


@click.group()
def runs() -> None:
    """List, show, cancel, resume and prune runs submitted to workers."""


@runs.command("list")
@_DATABASE
@click.option("--agent", metavar="NAME", help="Only runs of this agent.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def runs_list(database: str, agent: str | None, limit: int, as_json: bool) -> int:
    """List runs, the newest first."""
    for info in _with_client(database, lambda client: client.runs(agent=agent, limit=limit)):
        say(json_line(info._asdict()) if as_json else _line(info))
    return 0


def _line(info: RunInfo) -> str:
    how = info.outcome if info.status == "ended" and info.outcome is not None else info.status
    again = f", attempt {info.attempts}" if info.attempts > 1 else ""
    agent, run_id, session = (one_line(name) for name in (info.agent, info.run_id, info.session))
    line = f"{_time_text(info.created)}  {how:<12} {agent}  {run_id}  (session {session}{again})"
    return line if info.damage is None else f"{line}: {one_line(info.damage)}"


def _time_text(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a damaged row
        return f"{'?':<19}"


@runs.command("show")
@click.argument("run_id")
@_DATABASE
@click.option("-f", "--follow", is_flag=True, help="Follow the events until the run ends.")
@click.option("--since", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Only events after this one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per event.")
def runs_show(run_id: str, database: str, follow: bool, since: int, as_json: bool) -> int:
    """Show a run and its events."""

    async def show(client: DurableClient) -> int:
        info = await client.run(run_id)
        if not as_json:
            say(_line(info))
        if follow or info.status not in ("queued", "running"):
            async for event in client.stream(run_id, since):
                say(json_line({"seq": event.seq, **event.data}) if as_json else _event_line(event))
            info = await client.run(run_id)
        if info.status == "suspended" and not as_json:
            for pending in (await client.result(run_id)).pending:
                what = "a decision" if pending.tool_use is None else call_text(pending.tool_use, 1_000)
                say(f"waits for {pending.id}: {what}")
        return 0 if info.outcome is None else EXIT_CODES[info.outcome]

    return _with_client(database, show)


def _event_line(event: RunEvent) -> str:
    text = event.text or next((str(event.data[name]) for name in ("outcome", "worker") if event.data.get(name)), "")
    return f"{event.seq:>6}  {event.type:<14} {one_line(text)}".rstrip()


@runs.command("cancel")
@click.argument("run_id")
@_DATABASE
@click.option("--reason", default="cancelled", show_default=True)
def runs_cancel(run_id: str, database: str, reason: str) -> int:
    """Cancel a run, on whichever worker it runs."""
    if not _with_client(database, lambda client: client.cancel(run_id, reason)):
        raise CommandError(f"Run {run_id!r} has already ended, so it cannot be cancelled.", FAILED)
    say(f"run {run_id} is being cancelled")
    return 0


@runs.command("resume")
@click.argument("run_id")
@_DATABASE
@click.option(
    "--approve",
    multiple=True,
    metavar="KEY",
    help="Approve this pending item, as listed by `runs show`; may be repeated.",
)
@click.option("--deny", multiple=True, metavar="KEY", help="Deny this pending item; may be repeated.")
@click.option("--reason", default="denied", show_default=True, help="Reason for denials, shown to the model.")
def runs_resume(run_id: str, database: str, approve: tuple[str, ...], deny: tuple[str, ...], reason: str) -> int:
    """Resume a run that waits for decisions, or that was given up as lost."""
    decisions: dict[str, Resolution] = {key: Approve() for key in approve}
    decisions.update({key: Deny(reason) for key in deny})

    async def resume(client: DurableClient) -> None:
        info = await client.run(run_id)
        if info.status == "suspended":
            await client.decide(run_id, decisions)
        elif decisions or not await client.resume(run_id):
            raise UsageError(f"Run {run_id!r} is {info.status}. Only suspended and lost runs can be resumed.")

    _with_client(database, resume)
    say(f"run {run_id} is resumed")
    return 0


@runs.command("prune")
@_DATABASE
@click.option(
    "--older-than",
    "days",
    type=click.FloatRange(min=0),
    required=True,
    metavar="DAYS",
    help="Minimum age, since the end of a run or the last write to a session.",
)
@click.option("--keep-sessions", is_flag=True, help="Delete only runs and their events.")
def runs_prune(database: str, days: float, keep_sessions: bool) -> int:
    """Delete old finished runs, their events, and sessions unused for that long.

    Waiting, active and lost runs are kept, and so are unfinished and suspended sessions. A deleted run is forgotten: if
    its id is submitted again, it runs again.
    """

    async def prune(client: DurableClient) -> Pruned:
        older_than = timedelta(days=days)
        if keep_sessions:
            return await client.prune(older_than=older_than)
        async with SqlStore(database) as store:
            return await client.prune(older_than=older_than, store=store)

    pruned = _with_client(database, prune)
    say(f"{len(pruned.runs)} runs and {len(pruned.sessions)} sessions were deleted")
    return 0
