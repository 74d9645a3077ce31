"""`agentflow worker`: a process that runs the calls which others submit."""

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
from agentflow.cli.failures import CommandError
from agentflow.cli.loading import load_agent
from agentflow.cli.say import say
from agentflow.durable.agent import DurableAgent
from agentflow.durable.worker import Limits
from agentflow.errors import AgentFlowError
from agentflow.models.clients import close_clients
from agentflow.state.sql import SqlStore

__all__ = ["DATABASE_HELP", "run_worker", "worker"]

LATEST = 20.0
"""Seconds after the grace, at which the process ends whatever it still waits for."""

DATABASE_HELP = "sqlite:///agentflow.db or postgresql+psycopg://user:password@host/db."


def run_worker(
    targets: Sequence[str], database: str, limits: Limits, lease_seconds: float, grace: float, poll: float
) -> None:
    """Work until SIGTERM or Ctrl-C.

    Args:
        targets: The agents, as `module:name`.
        database: The database's URL; sessions of agents without a store are kept there too.
        limits: How much is done at once.
        lease_seconds: After which silence others take this worker for dead.
        grace: How many seconds its calls have to finish when it is stopped.
        poll: How often it looks for requests.
    """
    agents = [load_agent(target) for target in targets]
    names = [agent.name for agent in agents]
    if len(set(names)) < len(names):
        raise CommandError(f"Two of the agents have one name ({', '.join(names)}); a queue is named after its agent.")
    try:
        asyncio.run(_work(agents, database, limits, lease_seconds, grace, poll))
    except AgentFlowError as error:
        raise CommandError(str(error)) from error


async def _work(
    agents: Sequence[Agent], database: str, limits: Limits, lease_seconds: float, grace: float, poll: float
) -> None:
    async with AsyncExitStack() as opened:
        opened.push_async_callback(close_clients)
        own = await opened.enter_async_context(SqlStore(database))
        durable: list[DurableAgent] = []
        for agent in agents:
            store = own if agent.session(agent.name).store is None else None
            durable.append(await opened.enter_async_context(DurableAgent(agent, database, store=store)))
        worker = durable[0].worker(*durable[1:], limits=limits, lease_seconds=lease_seconds, grace=grace, poll=poll)
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stop(number: int, frame: FrameType | None) -> None:
            if stopped.is_set():  # whoever asks twice does not want to wait; what is left is as after a crash
                _exit(128 + number)
            loop.call_soon_threadsafe(stopped.set)

        for number in (signal.SIGTERM, signal.SIGINT):
            with suppress(ValueError):  # not in the main thread: then whoever runs this stops it
                signal.signal(number, stop)
        async with worker:
            logger.enable("agentflow")  # a server's log is what its operator has
            say(f"agentflow: worker {worker.id} runs {', '.join(agent.name for agent in agents)}", err=True)
            await stopped.wait()
            say(f"agentflow: worker {worker.id} stops; calls have {grace:g} s to finish", err=True)
            _exit_at_latest(grace + LATEST)
    _exit_if_threads_are_left()


def _exit_at_latest(seconds: float) -> None:
    """End the process after some seconds, whatever it waits for: what is stored is as after a crash, and goes on elsewhere."""

    def end() -> None:
        say(f"agentflow: not everything has closed within {seconds:g} s; the worker ends without it", err=True)
        _exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _exit_if_threads_are_left() -> None:
    """End the process now, if the interpreter would wait for threads: DBOS's, and those of tools, may wait for a database."""
    if any(not thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        _exit(0)


def _exit(code: int) -> NoReturn:
    with suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


@click.command()
@click.argument("agents", metavar="MODULE:AGENT...", nargs=-1, required=True)
@click.option("--database", metavar="URL", required=True, help=DATABASE_HELP)
@click.option("--concurrency", type=click.IntRange(min=1), default=8, show_default=True, help="Calls at once, here.")
@click.option("--everywhere", type=click.IntRange(min=1), help="Calls at once, in all workers together.")
@click.option(
    "--rate", type=(click.IntRange(min=1), float), metavar="N SECONDS", help="Calls begun in so many seconds."
)
@click.option(
    "--lease", type=click.FloatRange(min=0, min_open=True), default=15.0, show_default=True, metavar="SECONDS"
)
@click.option("--grace", type=click.FloatRange(min=0), default=30.0, show_default=True, metavar="SECONDS")
@click.option("--poll", type=click.FloatRange(min=0, min_open=True), default=0.25, show_default=True, metavar="SECONDS")
def worker(
    agents: tuple[str, ...],
    database: str,
    concurrency: int,
    everywhere: int | None,
    rate: tuple[int, float] | None,
    lease: float,
    grace: float,
    poll: float,
) -> int:
    """Run the calls that other processes submit to these agents (DurableAgent, DurableClient).

    A worker that gives no sign of life for --lease seconds is taken for dead: others take over its calls. Stopped with SIGTERM
    it lets its calls finish for --grace seconds; what is left goes on in other workers. A second signal ends it at once.
    """
    run_worker(agents, database, Limits(concurrency, everywhere, rate), lease, grace, poll)
    return 0
