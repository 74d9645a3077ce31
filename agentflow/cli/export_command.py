"""`agentflow export`: what a store keeps of a session, or of a durable run, as a run log."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from agentflow.cli.failures import CommandError
from agentflow.cli.say import say
from agentflow.errors import AgentFlowError, UsageError
from agentflow.plugins.recorder.export import export_log
from agentflow.stored_runs import open_named

__all__ = ["export"]


@click.command()
@click.argument("database", metavar="DATABASE")
@click.argument("session", metavar="SESSION", required=False)
@click.option("--run", "run_id", metavar="ID", help="One run only; it finds its session.")
@click.option("--agent", default="", metavar="NAME", help="What the log is to call the agent.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), metavar="FILE", help="Instead of standard output.")
def export(database: str, session: str | None, run_id: str | None, agent: str, output: str | None) -> int:
    """Write what a store keeps of a session or a run as a run log.

    DATABASE is sqlite:///agentflow.db or postgresql+psycopg://user:password@host/db. The log can be inspected, explained and
    compared; it cannot be replayed, as facts do not say what a model was asked, nor what hooks changed.
    """
    try:
        lines = asyncio.run(_exported(database, session, run_id, agent))
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


async def _exported(database: str, session: str | None, run_id: str | None, agent: str) -> list[str]:
    store, _ = open_named(database)
    async with store:
        if session is None and run_id is not None:
            session = await store.session_of(run_id)
            if session is None:
                raise UsageError(f"{store.url} keeps nothing of a run {run_id!r}.")
        if session is None:
            known = ", ".join([info.id for info in (await store.sessions())[:10]]) or "none"
            raise UsageError(f"Name a session of {store.url}, or --run ID. The last used: {known}.")
        return await export_log(store, session, run_id=run_id, agent=agent)
