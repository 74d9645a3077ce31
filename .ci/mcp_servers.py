"""Agents with real MCP servers that others wrote, from PyPI and npm, over standard input and output and HTTP.

    python .ci/mcp_servers.py              # installs the servers in a temporary folder
    python .ci/mcp_servers.py --keep DIR   # ... or in DIR, and uses them again
    python .ci/mcp_servers.py time git     # some of them

It needs `agentflow-hooks[mcp]`, an index, npm, and git; nothing else leaves this machine. Models are scripted. It ends with one
line for each check and, if every check passed, with exit code 0.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from loguru import logger

from agentflow import ActingChunk, Agent, Answer, Approve, DataBlock, ToolResultBlock, ToolUseBlock
from agentflow.errors import ToolError
from agentflow.mcp import MCPServer
from agentflow.testing import ScriptedModel

PYPI = ("mcp-server-time", "mcp-server-git", "mcp-server-fetch")
NPM = ("@modelcontextprotocol/server-filesystem", "@modelcontextprotocol/server-everything")


class Home:
    """Where the servers are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = str(folder / "python" / "bin" / "python")
        self.bin = folder / "node" / "node_modules" / ".bin"
        self.files = folder / "files"

    def install(self) -> None:
        """Install them, unless they are there."""
        self.files.mkdir(parents=True, exist_ok=True)
        if not Path(self.python).exists():
            subprocess.run([sys.executable, "-m", "venv", self.folder / "python"], check=True)
            subprocess.run(
                [self.python, "-m", "pip", "--disable-pip-version-check", "install", "-q", *PYPI], check=True
            )
        if not self.bin.exists():
            (self.folder / "node").mkdir(exist_ok=True)
            subprocess.run(["npm", "install", "--silent", *NPM], cwd=self.folder / "node", check=True)

    def module(self, name: str, *args: str, **options: Any) -> MCPServer:
        """A server from PyPI."""
        return MCPServer.stdio(self.python, "-m", name, *args, name=name, **options)


async def said(server: MCPServer, *script: Any) -> list[ToolResultBlock]:
    """The results of a script's tool calls."""
    agent = Agent("checker", ScriptedModel([*script, "Done."]), tools=[server])
    async with agent:
        reply = await agent.call("Go")
        while reply.outcome == "suspended":
            waits = reply.pending
            asked = {one.id: Answer({"name": "Ada"}) if "message" in one.request else Approve() for one in waits}
            reply = await agent.resume(decisions=asked)
        return [result for message in agent.session().messages for result in message.tool_results]


def use(name: str, **arguments: Any) -> ToolUseBlock:
    """A tool call."""
    return ToolUseBlock(f"t-{name}-{time.monotonic_ns()}", name, arguments)


# ---- the checks: each gives what it has seen, or fails


async def clock(home: Home) -> str:
    """mcp-server-time (PyPI)."""
    server = home.module("mcp_server_time", "--local-timezone", "UTC")
    good, bad = await said(
        server, [use("get_current_time", timezone="UTC"), use("get_current_time", timezone="No/Where")]
    )
    assert (good.state, '"timezone": "UTC"' in good.text, bad.state) == ("success", True, "error")
    return f"{len(server.tools)} tools; a wrong time zone is a tool error"


def _repository(folder: Path) -> None:
    """A repository with one commit."""
    shutil.rmtree(folder, ignore_errors=True)
    who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
    for command in (
        ["init", "-q", str(folder)],
        ["-C", str(folder), *who, "commit", "-q", "--allow-empty", "-m", "The first"],
    ):
        subprocess.run(["git", *command], check=True)


async def git(home: Home) -> str:
    """mcp-server-git (PyPI)."""
    folder = home.files / "repository"
    await asyncio.to_thread(_repository, folder)
    server = home.module("mcp_server_git", "--repository", str(folder), deny="git_reset")
    log, status = await said(server, [use("git_log", repo_path=str(folder)), use("git_status", repo_path=str(folder))])
    assert "The first" in log.text
    assert "nothing to commit" in status.text
    assert "git_reset" not in [tool.name for tool in server.tools]
    return f"{len(server.tools)} tools; log and status, side by side"


async def fetch(home: Home) -> str:
    """mcp-server-fetch (PyPI), of a page on loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as pages:
        Thread(target=pages.serve_forever, daemon=True).start()
        server = home.module("mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips")
        [page] = await said(server, use("fetch", url=f"http://127.0.0.1:{pages.server_port}/"))
        prompts = await server.prompts()
        await server.close()
        pages.shutdown()
    assert (page.state, "Hello, page." in page.text) == ("success", True), page.text
    return f"a page on loopback; prompts: {', '.join(one['name'] for one in prompts)}"


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Serve a page."""
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html><body><article><h1>Title</h1><p>Hello, page.</p></article></body></html>")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Say nothing."""


async def filesystem(home: Home) -> str:
    """@modelcontextprotocol/server-filesystem (npm): what writes waits for a person."""
    server = MCPServer.stdio(str(home.bin / "mcp-server-filesystem"), str(home.files), name="filesystem", prefix="fs_")
    path = str(home.files / "note.txt")
    wrote, read, outside = await said(
        server,
        use("fs_write_file", path=path, content="Hello."),
        [use("fs_read_text_file", path=path), use("fs_read_text_file", path="/etc/hostname")],
    )
    assert (wrote.state, read.text, outside.state) == ("success", "Hello.", "error")
    waiting = [tool.name for tool in server.tools if tool.requires_approval]
    return f"{len(server.tools)} tools; approved: write_file; waiting for a person: {', '.join(waiting)}"


async def everything(home: Home) -> str:
    """@modelcontextprotocol/server-everything (npm), over stdio."""
    return await _everything(
        MCPServer.stdio(str(home.bin / "mcp-server-everything"), "stdio", name="everything", sampling=1)
    )


async def everything_http(home: Home) -> str:
    """@modelcontextprotocol/server-everything (npm), over streamable HTTP."""
    async with _listening(str(home.bin / "mcp-server-everything"), "streamableHttp") as port:
        return await _everything(MCPServer.http(f"http://127.0.0.1:{port}/mcp", name="everything", sampling=1))


async def _everything(server: MCPServer) -> str:
    calls = [
        use("echo", message="Hi"),
        use("get-sum", a=1, b=2),
        use("get-tiny-image"),
        use("get-structured-content", location="Chicago"),
    ]
    agent = Agent(
        "checker",
        ScriptedModel(
            [
                calls,
                use("trigger-long-running-operation", duration=1, steps=4),
                use("trigger-sampling-request", prompt="Why?", maxTokens=10),
                "Because.",
                "Done.",
                use("trigger-elicitation-request"),
                "Done.",
            ]
        ),
        tools=[server],
    )
    async with agent:
        pieces = [str(event.chunk) async for event in agent.stream("Go").of_type(ActingChunk)]
        echo, added, image, structured, _, sampled = [
            result for message in agent.session().messages for result in message.tool_results
        ]
        assert ("Hi" in echo.text, "3" in added.text, "Because." in sampled.text) == (True, True, True)
        assert any(isinstance(block, DataBlock) for block in image.content), image
        assert "temperature" in structured.text, structured
        assert len(pieces) >= 4, pieces
        reply = await agent.call("Ask")
        assert (reply.outcome, reply.pending[0].hook) == ("suspended", "mcp:everything")
        reply = await agent.resume(decisions={reply.pending[0].id: Answer({"name": "Ada"})})
        assert reply.outcome == "completed"
        resources, prompts = await server.resources(), await server.prompts()
        first = await server.read(resources[0]["uri"])
        assert first
        [message] = await server.prompt("simple-prompt")
        assert message.text
    return (
        f"{len(agent.tools)} tools; image, structured, {len(pieces)} x progress, sampling, elicitation; "
        f"{len(resources)} resources, {len(prompts)} prompts"
    )


async def killed(home: Home) -> str:
    """A server that is killed between two calls is started again."""
    server = home.module("mcp_server_time", "--local-timezone", "UTC", attempts=2)

    async def kill() -> ToolUseBlock:
        listed = await asyncio.create_subprocess_exec(
            *["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], stdout=asyncio.subprocess.PIPE
        )
        for line in (await listed.communicate())[0].decode().splitlines():
            if "mcp_server_time" in line:
                os.kill(int(line.split()[0]), signal.SIGKILL)
        return use("get_current_time", timezone="UTC")

    first, second, third = await said(
        server, use("get_current_time", timezone="UTC"), lambda _: kill(), use("get_current_time", timezone="UTC")
    )
    assert (first.state, third.state) == ("success", "success"), (first, second, third)
    return f"behind the kill: {second.state}, then {third.state}"


async def missing(home: Home) -> str:
    """A server that does not exist."""
    told = ""
    try:
        await said(home.module("no_such_server_at_all", attempts=1), use("x"))
    except ToolError as error:
        told = str(error)
    assert "No module named no_such_server_at_all" in told
    return "the error has the process's last line"


@asynccontextmanager
async def _listening(*command: str) -> AsyncIterator[int]:
    """A server of others that listens on a port."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, "PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        for _ in range(200):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                break
        yield port
    finally:
        process.terminate()
        await process.wait()


CHECKS: dict[str, Callable[[Home], Awaitable[str]]] = {
    "time": clock,
    "git": git,
    "fetch": fetch,
    "filesystem": filesystem,
    "everything": everything,
    "everything-http": everything_http,
    "killed": killed,
    "missing": missing,
}


async def _check(home: Home, names: list[str]) -> int:
    failed = 0
    for name in names:
        began = time.monotonic()
        try:
            told, state = await CHECKS[name](home), "passed"
        except Exception as error:
            told, state = f"{type(error).__name__}: {error}", "FAILED"
            failed += 1
        print(f"{name:16} {state}  {time.monotonic() - began:5.1f} s  {told}", flush=True)
    return failed


def main() -> int:
    """Install the servers, run the checks, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*CHECKS, []], help="which checks; all by default")
    parser.add_argument("--keep", metavar="DIR", help="where the servers are installed, and found again")
    given = parser.parse_args()
    logger.remove()
    with tempfile.TemporaryDirectory() as made:
        home = Home(Path(given.keep or made).resolve())
        home.install()
        return 1 if asyncio.run(_check(home, given.names or list(CHECKS))) else 0


if __name__ == "__main__":
    sys.exit(main())
