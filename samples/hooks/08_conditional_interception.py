"""Conditional interception: a dangerous tool does not run, the model reads why, and the call continues."""

from __future__ import annotations

from agentflow import Agent, Deny, PreActing, ToolUseBlock, before_each_tool, tool
from agentflow.testing import ScriptedModel


@before_each_tool(tools=["delete_*"], guard=True, on_failure="deny")
def intercept(event: PreActing) -> Deny:
    return Deny("File deletion is not allowed")


# ---- the offline run


@tool
async def delete_file(path: str) -> str:
    """Delete a file."""
    raise AssertionError(f"{path} is gone")


@tool(type="read")
async def list_files() -> list[str]:
    """List the files."""
    return ["a.txt", "b.txt"]


def main() -> None:
    calls = [ToolUseBlock("t1", "list_files"), ToolUseBlock("t2", "delete_file", {"path": "a.txt"})]
    model = ScriptedModel([calls, "I may not delete files."])
    agent = Agent("tidy", model, tools=[delete_file, list_files], hooks=[intercept])
    print(agent.call("Clean up").block())
    for result in agent.session().messages[2].tool_results:
        print(result.name, result.state, "|", result.text)


if __name__ == "__main__":
    main()
