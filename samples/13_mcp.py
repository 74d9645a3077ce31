"""Tools of an MCP server: loaded when the first call needs them, with approval for destructive ones.

The server runs in this program, so only `agentflow-hooks[mcp]` is needed. A real server differs in one line:
`MCPServer.stdio("uvx", "mcp-server-git")` or `MCPServer.http("https://…/mcp")`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server import MCPServer as Server
from mcp.server.mcpserver import Context
from mcp_types import ToolAnnotations

from agentflow import ActingChunk, Agent, Approve, ToolUseBlock
from agentflow.mcp import MCPServer
from agentflow.testing import ScriptedModel

shelf = {"apple": 4, "bread": 2, "old milk": 1}
server = Server("pantry")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def count(thing: str) -> int:
    """Count an item in stock."""
    return shelf.get(thing, 0)


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def look(ctx: Context[Any, Any]) -> list[str]:
    """List everything, shelf by shelf."""
    for number, thing in enumerate(shelf, 1):
        await ctx.report_progress(number, len(shelf), thing)
    return list(shelf)


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
async def throw_away(thing: str) -> str:
    """Throw an item away."""
    return f"{shelf.pop(thing)} of {thing} thrown away"


async def tidy_up() -> None:
    """Let an agent tidy up."""
    model = ScriptedModel(
        [
            ToolUseBlock("t1", "pantry_look"),
            [
                ToolUseBlock("t2", "pantry_count", {"thing": "apple"}),
                ToolUseBlock("t3", "pantry_count", {"thing": "bread"}),
            ],
            ToolUseBlock("t4", "pantry_throw_away", {"thing": "old milk"}),
            "Four apples and two breads are left; the old milk is gone.",
        ]
    )
    pantry = MCPServer.in_memory(server, prefix="pantry_")
    async with Agent("tidy", model, tools=[pantry]) as agent:
        print("tools:  ", ", ".join(tool.name for tool in agent.tools))
        async for event in agent.stream("Tidy up the pantry").of_type(ActingChunk):
            print("progress:", event.chunk)
        for waits in agent.session().pending:
            print("waits:  ", waits.tool_use.name if waits.tool_use else "", waits.request)
        reply = await agent.resume(decisions={waits.id: Approve() for waits in agent.session().pending})
        print("reply:  ", reply.text)
        print("results:", [result.text for message in agent.session().messages for result in message.tool_results])


def main() -> None:
    """Run the sample."""
    asyncio.run(tidy_up())


if __name__ == "__main__":
    main()
