"""Servers that others wrote, from the package index; `.ci/mcp_servers.py` tries more of them, those of npm too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from ways import results, run

from agentflow import ToolUseBlock
from agentflow.mcp import MCPServer


async def test_mcp_server_time() -> None:
    """Two tools with structured arguments; a wrong one is the tool's own error."""
    server = MCPServer.stdio(
        sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC", name="time", prefix="time_"
    )
    calls = [
        ToolUseBlock("t1", "time_get_current_time", {"timezone": "Europe/Zurich"}),
        ToolUseBlock(
            "t2", "time_convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
        ),
        ToolUseBlock("t3", "time_get_current_time", {"timezone": "Nowhere/Land"}),
    ]
    agent = await run(server, calls)
    await server.close()
    now, tokyo, wrong = results(agent)
    assert json.loads(now.text)["timezone"] == "Europe/Zurich"
    assert "21:00" in json.loads(tokyo.text)["target"]["datetime"]
    assert (wrong.state, "Nowhere/Land" in wrong.text) == ("error", True)


@pytest.fixture
def repository(tmp_path: Path) -> str:
    """A git repository with one commit."""
    folder = str(tmp_path)
    for command in (
        ["init", "-q"],
        ["-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "-q", "--allow-empty", "-m", "The first"],
    ):
        subprocess.run(["git", "-C", folder, *command], check=True)
    return folder


@pytest.mark.ci
async def test_mcp_server_git(repository: str) -> None:
    """It reads a repository; tools that are denied are not there."""
    folder = repository
    server = MCPServer.stdio(
        sys.executable,
        "-m",
        "mcp_server_git",
        "--repository",
        folder,
        name="git",
        allow="git_*",
        deny=["git_reset", "git_add"],
    )
    calls = [
        ToolUseBlock("t1", "git_log", {"repo_path": folder}),
        ToolUseBlock("t2", "git_status", {"repo_path": folder}),
    ]
    agent = await run(server, calls, ToolUseBlock("t3", "git_reset", {"repo_path": folder}))
    await server.close()
    log, status, reset = results(agent)
    assert ("The first" in log.text, "nothing to commit" in status.text, reset.state) == (True, True, "not_found")
