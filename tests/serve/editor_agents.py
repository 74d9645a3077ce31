"""Agents that the tests of ACP start as processes: `agentflow acp editor_agents:coder`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from agentflow import Agent, ModelChunk, Suspend, ToolUseBlock, on, tool
from agentflow.plugins.approval import Approval
from agentflow.serve.acp import Diff, EditorAgent, Workspace, update_plan
from agentflow.testing import ScriptedModel
from agentflow.tools import ToolEmitter
from agentflow.vocabulary import DataBlock, TextBlock
from agentflow.vocabulary.events import PreActing
from agentflow.vocabulary.ports.model import SCHEMES, ModelRequest

print("printed while the module is imported")


def on_disk(path: str, workspace: Workspace) -> Path:
    return Path(workspace.resolve(path))


@tool(type="read")
async def read_file(path: str, workspace: Workspace) -> str:
    """Read a file."""
    print("printed by a tool")
    subprocess.run([sys.executable, "-c", "print('printed by a child', input.__name__)"], check=True)  # noqa: ASYNC221
    return on_disk(path, workspace).read_text()


@tool(type="write", requires_approval=True, tags=["edit"])
async def write_file(path: str, text: str, workspace: Workspace) -> str:
    """Write a file."""
    on_disk(path, workspace).write_text(text)
    return f"wrote {path}"


@tool(type="write")
async def touch(path: str, workspace: Workspace) -> str:
    """Create a file."""
    on_disk(path, workspace).touch()
    return "touched"


@tool(type="write")
async def shell(command: str) -> str:
    """Run a command."""
    return f"ran {command}"


@tool(type="write")
async def transfer(euros: int) -> str:
    """Transfer money."""
    return f"{euros} euros"


@tool(type="research")
async def fetch(count: int, emitter: ToolEmitter) -> list[TextBlock | DataBlock]:
    """Fetch a picture."""
    for number in range(count):
        await emitter.emit(f"{number} ")
    await emitter.emit(Diff("notes.txt", "new", "old"))
    return [TextBlock("a picture"), DataBlock("image/png", data="aGk=")]


@tool(type="research")
async def read_stdin() -> str:
    """Read standard input."""
    return repr(sys.stdin.readline())


@on
async def ask_about_much(event: PreActing) -> Suspend | None:
    if event.tool_use.name == "transfer":
        return Suspend({"question": "Really so much?"})
    return None


async def forever() -> str:
    await asyncio.Event().wait()
    return "never"


def brain(request: ModelRequest) -> list[Any]:
    """Do what the user's last message says, call by call: `tool {json}`, one on each line; then report the results."""
    last = request.messages[-1]
    if last.role == "tool":
        return ["; ".join(result.text for result in last.tool_results)]
    asked = last.text
    number = len(request.messages)
    if asked.startswith("call "):
        lines = [line.removeprefix("call ").partition(" ") for line in asked.splitlines()]
        return [
            ToolUseBlock(f"t{number}-{place}", name, json.loads(arguments))
            for place, (name, _, arguments) in enumerate(lines)
        ]
    match asked:
        case "wait":
            return ["I wait", forever]
        case "think":
            return [ModelChunk(thinking="hm"), "Done."]
        case "fail":
            raise RuntimeError("postgresql://ada:secret@db/x is gone")
        case "cut":
            return [ModelChunk("half", finish_reason="length")]
        case "plan":
            steps = [{"content": "look", "status": "completed"}, {"content": "change"}]
            return [ToolUseBlock(f"t{number}", "update_plan", {"steps": steps})]
        case _:
            return [f"{word} " for word in asked.split()]


def other_model(rest: str) -> ScriptedModel:
    return ScriptedModel(lambda request: f"I am {rest}.")


SCHEMES["other"] = "editor_agents:other_model"


def preview(use: ToolUseBlock, workspace: Workspace) -> Diff | None:
    if use.name != "write_file":
        return None
    path = Path(workspace.resolve(str(use.input["path"])))
    return Diff(str(path), str(use.input["text"]), path.read_text() if path.exists() else None)


TOOLS = [read_file, write_file, touch, shell, transfer, fetch, read_stdin, update_plan]
store = os.environ.get("STORE") or None
agent = Agent("coder", ScriptedModel(brain), tools=TOOLS, hooks=[ask_about_much], store=store)
coder = EditorAgent(agent, preview=preview, models=["other/two"])
plain = agent
careful = Agent(
    "careful",
    ScriptedModel(brain),
    tools=[shell, touch],
    hooks=[Approval(suspend=True)],
    default_hooks=(),
    store=store,
)
number = 7
