"""An outage is said once, then once a minute, and its end is said too; blocking work keeps no process alive."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import pytest
from loguru import logger

from agentflow._support.daemon import in_daemon
from agentflow._support.logs import reset_to_default
from agentflow._support.outage import Outage


@pytest.fixture
def lines() -> Iterator[list[str]]:
    said: list[str] = []
    logger.enable("agentflow")
    sink = logger.add(said.append, format="{level} {message}", level="INFO")
    yield said
    logger.remove(sink)
    reset_to_default()


def test_an_outage_is_said_once_a_minute(lines: list[str]) -> None:
    """Four failures a second for two minutes are three lines, and the end of it is the fourth."""
    time = 100.0
    outage = Outage("the database", lambda: time)
    outage.answered()
    for _ in range(4 * 120):
        outage.failed(ConnectionError("refused"))
        time += 0.25
    outage.answered()
    outage.answered()
    assert lines == [
        "WARNING the database cannot be used; it is retried, and this is logged once a minute: ConnectionError: refused\n",
        "WARNING the database could not be used for 60 s (241 attempts): ConnectionError: refused\n",
        "INFO the database can be used again, after 120 s (480 attempts failed)\n",
    ]
    outage.failed(ConnectionError("again"))
    assert lines[3:] == [
        "WARNING the database cannot be used; it is retried, and this is logged once a minute: ConnectionError: again\n"
    ]


def test_the_pause_doubles_up_to_the_longest() -> None:
    """It begins again where it was when something answers; what is longer at first stays."""
    outage = Outage("x", lambda: 0.0)
    pauses: list[float] = []
    for _ in range(5):
        pauses.append(outage.pause(0.25, 1.0))
        outage.failed(OSError())
    outage.answered()
    assert [*pauses, outage.pause(0.25, 1.0), outage.pause(5.0, 1.0)] == [0.25, 0.5, 1.0, 1.0, 1.0, 0.25, 5.0]
    for _ in range(2_000):
        outage.failed(OSError())
    assert outage.pause(1e-9, 1.0) == 1.0  # however many failures


async def test_work_in_a_daemon_thread_is_awaited_like_any() -> None:
    """Arguments, results, exceptions and context variables go along; a cancelled wait leaves the thread."""
    variable: ContextVar[str] = ContextVar("variable", default="")
    variable.set("here")
    begun, end = threading.Event(), threading.Event()

    def work(fail: bool, *, wait: bool = False) -> str:
        assert threading.current_thread().daemon
        begun.set()
        if wait:
            end.wait()
        if fail:
            raise KeyError("x")
        return variable.get()

    assert await in_daemon(work, False) == "here"
    with pytest.raises(KeyError):
        await in_daemon(work, True)
    begun.clear()
    waiting = asyncio.create_task(in_daemon(work, False, wait=True))
    await asyncio.to_thread(begun.wait)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    end.set()


def test_a_thread_that_hangs_keeps_no_process() -> None:
    """`asyncio.run` and the interpreter end while it is still at work."""
    program = (
        "import asyncio, threading\n"
        "from agentflow._support.daemon import in_daemon\n"
        "async def main():\n"
        "    await asyncio.wait([asyncio.ensure_future(in_daemon(threading.Event().wait))], timeout=0.01)\n"
        "asyncio.run(main())\n"
    )
    root = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env={**os.environ, "PYTHONPATH": root})
