"""A clerk who asks before a letter is sent: `agentflow serve letters:agent --ui --full --store sqlite:///letters.db`."""

from agentflow import Agent, ToolUseBlock, tool
from agentflow.testing import ScriptedModel


@tool(requires_approval=True)
async def send_letter(to: str) -> str:
    """Send a letter to a person."""
    return f"a letter to {to} is on its way"


# or a real one: "openai/gpt-5"
model = ScriptedModel([ToolUseBlock("t1", "send_letter", {"to": "Ann"}), ["It is ", "**on its way**."]])
agent = Agent("clerk", model, description="I write letters.", tools=[send_letter])
