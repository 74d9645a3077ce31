"""`agentflow export`: write a stored session or durable run as a run log."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from agentflow.errors import AgentFlowError, UsageError
from agentflow.recording.recorder.export import export_log
from agentflow.serve.inspector.stored_runs import open_named
from agentflow.terminal.cli.failures import CommandError, say


@click.command()
@click.argument("database", metavar="DATABASE")
@click.argument("session", metavar="SESSION", required=False)
@click.option("--run", "run_id", metavar="ID", help="Export only this run; its session is found automatically.")
@click.option("--agent", default="", metavar="NAME", help="The agent's name in the log.")
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Output file (default: standard output)."
)
def export(database: str, session: str | None, run_id: str | None, agent: str, output: str | None) -> int:
    """Write a stored session or run as a run log.

    DATABASE is sqlite:///agentflow.db or postgresql+psycopg://user:password@host/db. The log can be inspected, explained and
    compared. It cannot be replayed, because facts contain neither the requests to models nor the changes by hooks.
    """
    try:
        lines = asyncio.run(_export_lines(database, session, run_id, agent))
    except AgentFlowError as error:
        raise CommandError(str(error)) from error
    text = "".join([f"{line}\n" for line in lines])
    if output is None:
        sys.stdout.write(text)
        return 0
    try:
        Path(output).write_text(text, "utf-8", "replace")
    except OSError as error:
        raise CommandError(f"{output} cannot be written: {error.strerror}.") from error
    say(f"written to {output}")
    return 0


async def _export_lines(database: str, session: str | None, run_id: str | None, agent: str) -> list[str]:
    store, _ = open_named(database)
    async with store:
        if session is None and run_id is not None:
            session = await store.session_of(run_id)
            if session is None:
                raise UsageError(f"{store.url} contains no run {run_id!r}.")
        if session is None:
            known = ", ".join([info.id for info in (await store.sessions())[:10]]) or "none"
            raise UsageError(f"Specify a session of {store.url}, or --run ID. Most recent sessions: {known}.")
        return await export_log(store, session, run_id=run_id, agent=agent)
