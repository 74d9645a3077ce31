"""An agent with a server whose schemas would hold a validator that backtracks: prints the results of its calls.

Run as a program, under a limit of processor time that the test sets.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from loguru import logger

from agentflow import Agent, ToolUseBlock
from agentflow.mcp import MCPServer
from agentflow.testing import ScriptedModel


async def main() -> None:
    logger.enable("agentflow")
    server = MCPServer.stdio(
        sys.executable, str(Path(__file__).parent / "hostile_server.py"), "patterns", name="hostile"
    )
    calls = [ToolUseBlock("t1", "act", {"a": "a" * 100_000 + "!"}), ToolUseBlock("t2", "tell")]
    async with Agent("a", ScriptedModel([*calls, "Done."]), tools=[server]) as agent:
        reply = await agent.call("Go")
        print(reply.outcome, sorted(tool.name for tool in server.tools))
        for message in agent.session().messages:
            for result in message.tool_results:
                print(result.state, result.text)


asyncio.run(main())
