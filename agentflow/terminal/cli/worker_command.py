"""`agentflow worker`: a process that runs calls submitted by others."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from types import FrameType
from typing import NoReturn

import click
from loguru import logger

from agentflow.agent.agent import Agent
from agentflow.durable.agent import DurableAgent
from agentflow.durable.worker import QueueLimits
from agentflow.errors import AgentFlowError
from agentflow.models.clients import close_clients
from agentflow.state.sql import SqlStore
from agentflow.terminal.cli.failures import CommandError, say
from agentflow.terminal.cli.loading import load_agent_or

LATEST = 20.0
"""Seconds after the grace period until the process exits regardless of pending work."""

DATABASE_HELP = "sqlite:///agentflow.db or postgresql+psycopg://user:password@host/db."


async def _work(
    agents: Sequence[Agent | DurableAgent],
    database: str,
    limits: QueueLimits,
    lease_seconds: float,
    grace: float,
    poll: float,
) -> None:
    async with AsyncExitStack() as opened:
        opened.push_async_callback(close_clients)
        own = await opened.enter_async_context(SqlStore(database))
        durable: list[DurableAgent] = []
        for agent in agents:
            served = agent if isinstance(agent, DurableAgent) else _durable(agent, database, own)
            durable.append(await opened.enter_async_context(served))
        worker = durable[0].worker(*durable[1:], limits=limits, lease_seconds=lease_seconds, grace=grace, poll=poll)
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stop(number: int, frame: FrameType | None) -> None:
            if stopped.is_set():  # a second signal: exit now, as in a crash
                _exit(128 + number)
            loop.call_soon_threadsafe(stopped.set)

        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError):  # outside the main thread, the caller stops the worker
                signal.signal(number, stop)
        async with worker:
            logger.enable("agentflow")  # a server's operator needs its log
            say(f"agentflow: worker {worker.id} runs {', '.join(agent.name for agent in agents)}", err=True)
            await stopped.wait()
            say(f"agentflow: worker {worker.id} stops; calls have {grace:g} s to finish", err=True)
            _exit_at_latest(grace + LATEST)
    _exit_if_threads_are_left()


def _durable(agent: Agent, database: str, own: SqlStore) -> DurableAgent:
    return DurableAgent(agent, database, store=own if agent.session(agent.name).store is None else None)


def _database(agents: Sequence[Agent | DurableAgent], url: str | None) -> str:
    """Return the database of the queues, which durable agents already have."""
    urls = {agent.database_url for agent in agents if isinstance(agent, DurableAgent)}
    if url is not None:
        urls.add(url)
    if not urls:
        raise CommandError("The database is missing. Use --database sqlite:///agentflow.db, or name a DurableAgent.")
    if len(urls) > 1:
        raise CommandError(
            f"A worker has one database, but the agents and --database name {' and '.join(sorted(urls))}."
        )
    return urls.pop()


def _exit_at_latest(seconds: float) -> None:
    """Exit the process after some seconds, even if work is pending; other workers then continue it, as after a crash."""

    def end() -> None:
        say(f"agentflow: shutdown did not finish within {seconds:g} s; exiting", err=True)
        _exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True  # must not itself keep the process from exiting
    timer.start()


def _exit_if_threads_are_left() -> None:
    """Exit now if the interpreter would wait for threads, such as those of DBOS or tools that wait for a database."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        _exit(0)


def _exit(code: int) -> NoReturn:
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


@click.command()
@click.argument("agents", metavar="MODULE:AGENT...", nargs=-1, required=True)
@click.option("--database", envvar="AGENTFLOW_DATABASE", metavar="URL", help=DATABASE_HELP)
@click.option(
    "--concurrency", type=click.IntRange(min=1), default=8, show_default=True, help="Concurrent calls in this worker."
)
@click.option("--everywhere", type=click.IntRange(min=1), help="Concurrent calls in all workers together.")
@click.option(
    "--rate", type=(click.IntRange(min=1), float), metavar="N SECONDS", help="At most N calls started per SECONDS."
)
@click.option(
    "--lease", type=click.FloatRange(min=0, min_open=True), default=15.0, show_default=True, metavar="SECONDS"
)
@click.option("--grace", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="SECONDS")
@click.option("--poll", type=click.FloatRange(min=0, min_open=True), default=0.25, show_default=True, metavar="SECONDS")
def worker(
    agents: tuple[str, ...],
    database: str | None,
    concurrency: int,
    everywhere: int | None,
    rate: tuple[int, float] | None,
    lease: float,
    grace: float,
    poll: float,
) -> int:
    """Run calls that other processes submit to these agents (DurableAgent, DurableClient).

    A DurableAgent has its own database; other agents need --database.
    If a worker does not report for --lease seconds, others take over its calls. On SIGTERM it lets its calls finish for --grace
    seconds; other workers continue the rest. A second signal ends the worker immediately.
    """
    loaded = [load_agent_or(target, DurableAgent) for target in agents]
    names = [agent.name for agent in loaded]
    if len(set(names)) < len(names):
        raise CommandError(f"Two agents have the same name ({', '.join(names)}). Their queues need unique names.")
    try:
        url = _database(loaded, database)
        asyncio.run(_work(loaded, url, QueueLimits(concurrency, everywhere, rate), lease, grace, poll))
    except AgentFlowError as error:
        raise CommandError(str(error)) from error
    return 0
