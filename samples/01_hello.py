"""Hello: an agent with one tool, called from synchronous and from asynchronous code.

The model is scripted, so that this runs without a key. With a key, use the name of a model instead: `Agent("calculator",
"openai/gpt-5", tools=[add])`; nothing else changes.
"""

from __future__ import annotations

import asyncio

from agentflow import Agent, ModelRequest, ToolUseBlock, tool
from agentflow.testing import ScriptedModel


# A tool is a coroutine function. The model receives its name, its docstring and a schema derived from its annotations.
@tool
async def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first one.
        b: The second one.
    """
    return a + b


def brain(request: ModelRequest) -> ToolUseBlock | str:
    """Answer like a model: call the tool first, then report its result."""
    last = request.messages[-1]
    if last.role == "tool":
        return f"The sum is {last.text}."
    return ToolUseBlock("t1", "add", {"a": 19, "b": 23})


def main() -> None:
    agent = Agent("calculator", ScriptedModel(brain), tools=[add], system="You calculate with tools.")

    # `call` returns a Mono: nothing happens until it is awaited, blocked on, or subscribed to.
    reply = agent.call("What is 19 + 23?").block()
    print("reply:   ", reply.text)
    print("outcome: ", reply.outcome)
    print("usage:   ", reply.usage.model_calls if reply.usage else 0, "model calls")

    # The agent remembers the conversation.
    for msg in agent.session().messages:
        print(f"{msg.role:>10}:", msg.text or msg.tool_uses)

    # In async code, await the same Mono. A named session is a separate conversation.
    async def ask() -> None:
        print("again:   ", await agent.call("And once more?", session="another"))

    asyncio.run(ask())


if __name__ == "__main__":
    main()
