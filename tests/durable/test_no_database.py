"""A worker whose database is unavailable logs it once, and ends on request."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from postgres import postgres_server

from agentflow.durable.client import DurableClient

PROGRAM = """
import asyncio, os
from agentflow import Agent
from agentflow.state import SqlStore
from agentflow.testing import ScriptedModel

async def slow():
    await asyncio.sleep(3600)

boss = Agent("boss", ScriptedModel(lambda request: [slow, "done"]), store=SqlStore(os.environ["URL"]))
"""


@contextmanager
def worker(folder: Path, url: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """A worker started by the command line; its log arrives line by line."""
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "agentflow", "worker", "program:boss", "--database", url, "--lease", "4", *options]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "URL": url},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


async def until_running(url: str) -> None:
    async with DurableClient(url, poll=0.05) as client:
        await client.submit("boss", "hi", session="s", run_id="r")
        async with asyncio.timeout(60):
            while (await client.run("r")).status != "running":  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # another process is waited for


def until_said(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"the worker ended before it said {words!r}")


@pytest.mark.ci
@pytest.mark.timeout(180)
def test_it_ends_when_it_is_told_to(tmp_path: Path) -> None:
    """During a call the grace passes, and no thread that waits for the database delays the exit."""
    with postgres_server() as server, worker(tmp_path, server.url, "--grace", "1") as process:
        asyncio.run(until_running(server.url))
        server.process.kill()
        server.process.wait()
        until_said(process, "cannot be used; it is retried, and this is logged once a minute")
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=60)
        assert process.returncode == 0, rest
        assert "could not report that it is stopping; other workers take over its runs when its lease ends" in rest
        # Each poll has failed meanwhile. The worker has said it; its agent's store, which is another, may say it once too.
        assert rest.count("cannot be used") <= 1
        assert "Traceback" not in rest


@pytest.mark.ci
@pytest.mark.timeout(120)
def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """A second signal does not wait for the grace."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    with worker(tmp_path, url, "--grace", "3600") as process:
        asyncio.run(until_running(url))
        process.send_signal(signal.SIGTERM)
        until_said(process, "stops; calls have 3600 s to finish")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
