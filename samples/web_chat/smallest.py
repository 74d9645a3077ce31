"""The smallest agent for `backend.py`: `uvicorn --timeout-graceful-shutdown 30 smallest:app`."""

from backend import make_app

from agentflow import Agent, PreActing, Suspend, ToolUseBlock, on, tool
from agentflow.testing import ScriptedModel


@tool
async def send_letter(to: str) -> str:
    """Send a letter to a person."""
    return f"a letter to {to} is on its way"


@on
def ask(event: PreActing) -> Suspend | None:
    """Suspend the call; a person sees only this question."""
    return Suspend({"question": f"Send a letter to {event.tool_use.input.get('to')}?"})


# or a real one: "openai/gpt-5"
model = ScriptedModel([ToolUseBlock("t1", "send_letter", {"to": "Ann"}), ["It is ", "on its way."]])
agent = Agent("clerk", model, tools=[send_letter], hooks=[ask], store="sqlite:///letters.db")
app = make_app(agent, {"send_letter": "Sending the letter"})
