"""Reflection after the round: when all tools of a reply have finished, a thought is added to the conversation.

`inject` may be used anywhere: the thought is added after all results, so that every provider accepts it.
"""

from __future__ import annotations

from agentflow import Agent, Msg, PostToolRound, ToolUseBlock, after_tool_round, tool
from agentflow.testing import ScriptedModel


@after_tool_round
def reflect(event: PostToolRound) -> None:
    thought = f"I have completed {len(event.context.trace.turns)} tool calls."
    event.context.inject(Msg.assistant(thought), source="reflect")


# ---- the offline run


@tool(type="read")
async def search(query: str) -> str:
    """Search."""
    return f"pages about {query}"


def main() -> None:
    calls = [ToolUseBlock("t1", "search", {"query": "bees"}), ToolUseBlock("t2", "search", {"query": "wasps"})]
    agent = Agent("reflector", ScriptedModel([calls, "Both have wings."]), tools=[search], hooks=[reflect])
    agent.call("Compare bees and wasps").block()
    for message in agent.session().messages:
        about = message.text or f"asks for {len(message.tool_uses)} tools"
        print(f"{message.role}: {about}", dict(message.metadata) or "")


if __name__ == "__main__":
    main()
