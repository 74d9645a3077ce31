"""Shutdown under a real web server: uvicorn as a process, open streams, SIGTERM, and the next process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("needs signals", allow_module_level=True)

ROOT = Path(__file__).parents[2]
LIMIT = 60.0

APP = r"""
import asyncio, json, os
from pathlib import Path
from agentflow import Agent, GracefulShutdown, ToolUseBlock, tool
from agentflow.errors import ShutdownError
from agentflow.vocabulary.event_json import event_line
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel

folder = Path(__file__).parent
LIMIT = float(os.environ.get("SHUTDOWN_LIMIT", "60"))


async def seen(name):
    while not (folder / name).exists():
        await asyncio.sleep(0.01)


def did(what):
    with (folder / "done.txt").open("a") as file:
        file.write(what + "\n")


@tool(timeout=None)
async def work(name: str):
    did(f"{name} begins")
    yield "begun"
    await seen(f"{name}.go")
    did(f"{name} ends")
    yield "worked"


def brain(request):
    text = request.messages[-1].text
    if request.messages[-1].role == "tool":
        return "All is done." if "worked" in text else "I do not know."
    if text == "short":
        return ["I am ", lambda: seen("short.go"), "brief."]
    return ToolUseBlock("t1", "work", {"name": text})


store = SqlStore(f"sqlite:///{folder / 'web.db'}")
agent = Agent("web", ScriptedModel(brain), tools=[work], store=store)


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        async with GracefulShutdown(agent, limit=LIMIT, in_server=True) as ending:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        print(json.dumps(ending.report._asdict()), flush=True)
        await store.close()
        await send({"type": "lifespan.shutdown.complete"})
        return
    name = scope["path"].strip("/")
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    try:
        async with agent.stream(name, session=name) as events:
            async for event in events:
                line = f"data: {event_line(event)}\n\n"
                await send({"type": "http.response.body", "body": line.encode(), "more_body": True})
    except ShutdownError as error:
        said = f"event: shutdown\ndata: {error}\n\n".encode()
        await send({"type": "http.response.body", "body": said, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
"""

RESUME = """
import asyncio
from app import agent, store

async def main():
    for info in await agent.unfinished():
        print(info.id, (await agent.resume(info.id)).text)
    await store.close()

asyncio.run(main())
"""


class Web:
    """A folder with the application, and its server."""

    def __init__(self, folder: Path, process: asyncio.subprocess.Process, port: int) -> None:
        self.folder = folder
        self.process = process
        self.port = port
        self.writers: list[asyncio.StreamWriter] = []

    async def stream(self, name: str) -> asyncio.StreamReader:
        """Start reading a stream."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"GET /{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        self.writers.append(writer)
        return reader

    def let(self, name: str) -> None:
        """Release what waits for it."""
        (self.folder / f"{name}.go").touch()

    async def ended(self) -> tuple[int, dict[str, list[str]], str]:
        """Wait for its end; return the exit code, the report, and the server's output."""
        out, err = await self.process.communicate()
        return self.process.returncode or 0, json.loads(out), err.decode()


@asynccontextmanager
async def served(folder: Path, limit: float, *options: str) -> AsyncIterator[Web]:
    """The application under uvicorn."""
    (folder / "app.py").write_text(APP)
    (folder / "resume.py").write_text(RESUME)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "SHUTDOWN_LIMIT": str(limit)}
    command = [sys.executable, "-m", "uvicorn", "app:app", "--port", "0", "--no-access-log", *options]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(LIMIT):
            while b"running on" not in (line := await process.stderr.readline()):
                assert line, "the server did not start"
            web = Web(folder, process, int(line.split(b"127.0.0.1:")[1].split()[0]))
            yield web
            for writer in web.writers:
                writer.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def done(folder: Path) -> list[str]:
    return (folder / "done.txt").read_text().splitlines()


def resumed(folder: Path) -> str:
    """Return what the next process finishes."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    ran = subprocess.run(
        [sys.executable, "resume.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT,
    )
    return ran.stdout


@pytest.mark.ci
async def test_streams_in_flight_stop_where_nothing_is_lost(tmp_path: Path) -> None:
    """SIGTERM: a streaming reply is completed, a running tool finishes; both streams end, then the server, at once;
    the next process continues after the tool.
    """
    async with served(tmp_path, 60) as web:
        short = await web.stream("short")
        await short.readuntil(b"I am ")
        long = await web.stream("long")
        await long.readuntil(b'"chunk":"begun"')
        web.process.send_signal(signal.SIGTERM)
        web.let("short")
        web.let("long")
        said, broke = await asyncio.gather(short.read(), long.read())
        assert b'"outcome":"completed"' in said
        assert b'"type":"PostActing"' in broke
        assert b"event: shutdown\ndata: Agent 'web' is shutting down" in broke
        code, report, logged = await web.ended()
    assert (code, report) == (
        -signal.SIGTERM,
        {"stopped": ["long"], "cancelled": [], "finished": ["short"], "running": []},
    )
    assert "Application shutdown complete" in logged
    assert "Traceback" not in logged
    assert done(tmp_path) == ["long begins", "long ends"]
    assert await asyncio.to_thread(resumed, tmp_path) == "long All is done.\n"
    assert done(tmp_path) == ["long begins", "long ends"]


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.ci)])
async def test_what_runs_behind_the_limit_is_cut(tmp_path: Path, number: signal.Signals) -> None:
    """The server does not wait for a tool that takes longer than the limit; its call is open for the next process."""
    async with served(tmp_path, 0.1) as web:
        long = await web.stream("long")
        await long.readuntil(b'"chunk":"begun"')
        web.process.send_signal(number)
        assert b"event: shutdown" in await long.read()
        code, report, _ = await web.ended()
    assert code in (-number, 0)
    assert report == {"stopped": [], "cancelled": ["long"], "finished": [], "running": []}
    assert await asyncio.to_thread(resumed, tmp_path) == "long I do not know.\n"


@pytest.mark.ci
async def test_a_server_that_ends_without_a_signal(tmp_path: Path) -> None:
    """If the server ends by itself (here: after so many requests), the end of the lifespan stops the agents."""
    (tmp_path / "short.go").touch()
    async with served(tmp_path, 60, "--limit-max-requests", "1") as web:
        short = await web.stream("short")
        assert b'"outcome":"completed"' in await short.read()
        code, report, _ = await web.ended()
    assert (code, report) == (0, {"stopped": [], "cancelled": [], "finished": [], "running": []})
