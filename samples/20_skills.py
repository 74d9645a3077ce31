"""A skill is read if a task needs it; its script runs through a shell tool with a guard that allows nothing else."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agentflow import Agent, ToolUseBlock, tool
from agentflow.models import ModelRequest
from agentflow.plugins import ShellApproval, Skills
from agentflow.testing import ScriptedModel

FOLDER = Path(__file__).parent / "skills"


@tool(type="write")
async def bash(command: str) -> str:
    """Run a shell command."""
    path = Path(sys.executable).parent
    process = await asyncio.create_subprocess_shell(
        command, stdout=-1, stderr=-2, env={"PATH": f"{path}:/usr/bin:/bin"}
    )
    output, _ = await process.communicate()
    return output.decode()


def run_script(request: ModelRequest) -> ToolUseBlock:
    folder = request.messages[-1].text.split("Folder: ")[1].partition("\n")[0]
    return ToolUseBlock("t2", "bash", {"command": f"python3 {folder}/scripts/total.py 38.50 160"})


script = [
    ToolUseBlock("t1", "read_skill", {"skill": "expense-report"}),
    run_script,
    ToolUseBlock("t3", "read_skill", {"skill": "expense-report", "file": "limits.md"}),
    ToolUseBlock("t4", "bash", {"command": "cat ~/.ssh/id_rsa"}),
    ToolUseBlock("t5", "read_skill", {"skill": "expense-report", "file": "../../20_skills.py"}),
    "The total is 198.50; the hotel is above its limit of 150.",
]


async def work() -> None:
    model = ScriptedModel(script)
    allowed = f"python3 {FOLDER.resolve()}/*/scripts/*.py *"
    guard = ShellApproval(allow=[allowed], ask=lambda request: False)
    agent = Agent("clerk", model, system="You help.", tools=[bash], hooks=[Skills(FOLDER), guard])
    reply = await agent.call("A dinner for 38.50 and a hotel for 160.")
    print(model.requests[0].messages[0].text)
    for message in agent.session().messages:
        for result in message.tool_results:
            print(f"--- {result.name}: {result.state}")
            print(result.text.replace(str(FOLDER.resolve()), "skills").strip())
    print("---")
    print(reply.text)


def main() -> None:
    asyncio.run(work())


if __name__ == "__main__":
    main()
