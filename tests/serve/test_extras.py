"""Without an extra installed, everything that needs it says which one to install, and nothing else is affected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import sys
sys.modules.update(dict.fromkeys({absent!r}))  # importing these fails now
"""
COMMAND = """
from agentflow_command import main
sys.argv = ["agentflow", *{arguments!r}]
sys.exit(main())
"""
AGENT = """
from agentflow import Agent
from agentflow.testing import ScriptedModel
clerk = Agent("clerk", ScriptedModel(["Hello!"]))
"""
POST = """
import asyncio, httpx
from shop import clerk
from agentflow.serve import App

async def main():
    transport = httpx.ASGITransport(App(clerk), client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        refused = await client.post("/agents/clerk/ag-ui", json={})
        called = await client.post("/agents/clerk/call", json={"input": "Hi"})
        print(refused.status_code, refused.json()["error"]["message"], called.json()["end"]["text"])

asyncio.run(main())
"""


def run(code: str, folder: Path) -> tuple[int, str, str]:
    """Return the exit code, the output, and the last line of the errors."""
    (folder / "shop.py").write_text(AGENT, "utf-8")
    path = f"import sys; sys.path[:0] = {[str(folder), str(Path(__file__).parents[2])]!r}"
    ended = subprocess.run(
        [sys.executable, "-c", path + code], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return ended.returncode, ended.stdout.strip(), (ended.stderr.strip().splitlines() or [""])[-1]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("absent", "code", "error"),
    [
        (
            "starlette",
            "from agentflow.serve import App",
            "agentflow.serve needs starlette, which is not installed: pip install 'agentflow-hooks[serve]'",
        ),
        (
            "a2a",
            "from agentflow.serve.a2a import RemoteAgent",
            "agentflow.serve.a2a needs the A2A SDK: pip install 'agentflow-hooks[a2a]'",
        ),
        (
            "acp",
            "from agentflow.serve.acp import EditorAgent",
            "agentflow.serve.acp needs the package of the protocol: pip install 'agentflow-hooks[acp]'",
        ),
    ],
)
def test_an_import_names_the_extra(absent: str, code: str, error: str, tmp_path: Path) -> None:
    """The error of an import has the command that installs what is missing."""
    exit_code, printed, line = run(HEAD.format(absent=[absent]) + code, tmp_path)
    assert (exit_code, printed, line.partition("Error: ")[2]) == (1, "", error)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("absent", "arguments", "error"),
    [
        (
            "uvicorn",
            "serve shop:clerk",
            "`agentflow serve` needs uvicorn, which is not installed: pip install 'agentflow-hooks[serve]'.",
        ),
        (
            "a2a",
            "serve --a2a shop:clerk",
            "agentflow.serve.a2a needs the A2A SDK: pip install 'agentflow-hooks[a2a]'.",
        ),
        (
            "acp",
            "acp shop:clerk",
            "agentflow.serve.acp needs the package of the protocol: pip install 'agentflow-hooks[acp]'.",
        ),
    ],
)
def test_a_command_names_the_extra(absent: str, arguments: str, error: str, tmp_path: Path) -> None:
    """A command ends with one line and the exit code of a wrong setup."""
    code = HEAD.format(absent=[absent]) + COMMAND.format(arguments=arguments.split())
    assert run(code, tmp_path) == (2, "", f"agentflow: {error}")


def test_the_route_of_ag_ui_answers_501(tmp_path: Path) -> None:
    """The other routes work without the packages of AG-UI and of durable runs."""
    assert run(HEAD.format(absent=["ag_ui", "dbos"]) + POST, tmp_path) == (
        0,
        "501 The AG-UI route needs the package of the protocol: pip install 'agentflow-hooks[ag-ui]'. Hello!",
        "",
    )
