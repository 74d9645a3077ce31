"""The usual JSON file of servers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ways import HERE, results, run

from agentflow import ToolUseBlock
from agentflow.errors import UsageError
from agentflow.mcp import MCPServer


def written(folder: Path, data: Any) -> Path:
    path = folder / "mcp.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


async def test_a_file_of_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each server has its name and prefix; variables are filled in; what is disabled is left out."""
    monkeypatch.setenv("DEMO_FOLDER", str(HERE))
    monkeypatch.setenv("DEMO_SECRET", "very-secret-1")
    servers = {
        "one": {
            "command": sys.executable,
            "args": ["${DEMO_FOLDER}/demo_server.py"],
            "env": {"TOKEN": "${env:DEMO_SECRET}"},
        },
        "two": {"type": "http", "url": "http://127.0.0.1:9/${NO_PATH:-mcp}", "headers": {"X-Key": "${DEMO_SECRET}"}},
        "off": {"command": "none", "disabled": True},
    }
    one, two = MCPServer.from_file(
        written(tmp_path, {"mcpServers": servers}), allow="environment", required=False, attempts=1
    )
    assert [repr(one), repr(two)] == [
        f"MCPServer('one', stdio: {sys.executable}, 0 tools)",
        "MCPServer('two', http: 127.0.0.1:9, 0 tools)",
    ]
    agent = await run(one, ToolUseBlock("t1", "one_environment", {"name": "TOKEN"}))
    assert [tool.name for tool in agent.tools] == ["one_environment"]
    assert results(agent)[0].text == "very-secret-1"
    await one.close()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ("{", "cannot be read"),
        ("[]", "has no"),
        ({"mcpServers": []}, "has no"),
        ({"mcpServers": {"x": "uvx"}}, "server 'x': expected"),
        ({"mcpServers": {"x": {}}}, 'either a "command"'),
        ({"mcpServers": {"x": {"command": "a", "url": "http://b"}}}, 'either a "command"'),
        ({"mcpServers": {"x": {"type": "http", "command": "a"}}}, 'either a "command"'),
        ({"mcpServers": {"x": {"type": "sse", "url": "http://b"}}}, "unknown type 'sse'"),
        ({"mcpServers": {"x": {"type": {}, "url": "http://b"}}}, "unknown type '{}'"),
        ({"mcpServers": {"x": {"command": ["a"]}}}, '"command" must be a string, not list'),
        ({"mcpServers": {"x": {"command": "a", "args": "b"}}}, '"args" must be a list'),
        ({"mcpServers": {"x": {"command": "a", "args": [1]}}}, '"args" must be a string, not int'),
        ({"mcpServers": {"x": {"command": "a", "env": ["b"]}}}, '"env" must be a mapping'),
        (
            {"mcpServers": {"x": {"command": "a", "env": {"K": "${NOT_SET_ANYWHERE}"}}}},
            "NOT_SET_ANYWHERE, which is not set",
        ),
    ],
)
def test_what_cannot_be_meant(tmp_path: Path, data: Any, told: str) -> None:
    """The text says which file, which server and what is wrong."""
    with pytest.raises(UsageError, match=r"mcp\.json") as raised:
        MCPServer.from_file(written(tmp_path, data))
    assert told in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """It says so."""
    with pytest.raises(UsageError, match="cannot be read"):
        MCPServer.from_file(tmp_path / "none.json")
