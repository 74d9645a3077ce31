"""An agent in an editor: this program plays the editor, and starts itself as the agent, over pipes.

A real editor starts it in the same way: `agentflow acp module:editor` (docs/acp.md).
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from acp import spawn_agent_process, text_block
from acp.schema import AllowedOutcome, PermissionOption, RequestPermissionResponse

from agentflow import Agent, ToolUseBlock, tool
from agentflow.serve.acp import Diff, EditorAgent, Workspace, serve_stdio, update_plan
from agentflow.testing import ScriptedModel


@tool(type="write", requires_approval=True, tags=["edit"], in_thread=True)
def write_file(path: str, text: str, workspace: Workspace) -> str:
    """Write a file of the project."""
    Path(workspace.resolve(path)).write_text(text)
    return f"wrote {path}"


def preview(use: ToolUseBlock, workspace: Workspace) -> Diff | None:
    return Diff(use.input["path"], use.input["text"]) if use.name == "write_file" else None


script = [
    ToolUseBlock("t1", "update_plan", {"steps": [{"content": "write a greeting", "status": "in_progress"}]}),
    ToolUseBlock("t2", "write_file", {"path": "hello.txt", "text": "Hello."}),
    ["The greeting ", "is written."],
]
editor = EditorAgent(Agent("coder", ScriptedModel(script), tools=[write_file, update_plan]), preview=preview)


class Window:
    """The editor's side."""

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        match update.session_update:
            case "agent_message_chunk":
                print("text:    ", update.content.text)
            case "plan":
                print("plan:    ", ", ".join(f"{step.content} ({step.status})" for step in update.entries))
            case "tool_call":
                print("tool:    ", update.title, f"[{update.kind}]", update.status)
            case "tool_call_update":
                print("         ", update.tool_call_id, update.status or "")
            case _:
                pass

    async def request_permission(self, tool_call: Any, options: list[PermissionOption], **_: Any) -> Any:
        diff = tool_call.content[0]
        print("question:", Path(diff.path).name, "becomes", repr(diff.new_text), [option.kind for option in options])
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=options[0].option_id))


async def edit() -> None:
    with tempfile.TemporaryDirectory() as folder:
        window: Any = Window()
        async with spawn_agent_process(window, sys.executable, __file__, "--agent") as (agent, _):
            await agent.initialize(1)
            session = (await agent.new_session(cwd=folder, mcp_servers=[])).session_id
            ended = await agent.prompt(session_id=session, prompt=[text_block("Write a greeting.")])
            print("ended:   ", ended.stop_reason, os.listdir(folder))


def main() -> None:
    asyncio.run(serve_stdio(editor) if "--agent" in sys.argv else edit())


if __name__ == "__main__":
    main()
