"""Approval before the round: one question for all tool calls of a reply.

The user answers at once here. If no one can, return `Suspend(...)`: the call ends, and `agent.resume` continues it later.
"""

from __future__ import annotations

from agentflow import Agent, Deny, PreToolRound, ToolUseBlock, before_tool_round, tool
from agentflow.testing import ScriptedModel


@before_tool_round(in_thread=True)
def require_approval(event: PreToolRound) -> Deny | None:
    if ask(f"About to run {len(event.tool_uses)} tools. Continue? [y/n]") != "y":
        return Deny("the user said no")
    return None


# ---- the offline run

ANSWERS = iter(["n", "y"])


def ask(question: str) -> str:
    """Replace `input`."""
    answer = next(ANSWERS)
    print(question, answer)
    return answer


@tool
async def delete_file(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


def main() -> None:
    both = [ToolUseBlock("t1", "delete_file", {"path": "a"}), ToolUseBlock("t2", "delete_file", {"path": "b"})]
    one = [ToolUseBlock("t3", "delete_file", {"path": "a"})]
    agent = Agent("careful", ScriptedModel([both, one, "Done."]), tools=[delete_file], hooks=[require_approval])
    print(agent.call("Tidy up").block())
    for message in agent.session().messages:
        for result in message.tool_results:
            print(result.tool_use_id, result.state, "|", result.text)


if __name__ == "__main__":
    main()
