"""MCP: the tools of servers for agents, and agents as servers (`docs/mcp.md`). Needs the extra `mcp`."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily

if TYPE_CHECKING:
    from agentflow.mcp.active import ProgressReport
    from agentflow.mcp.hints import ApprovalPolicy, Hints
    from agentflow.mcp.offering import agent_server
    from agentflow.mcp.offers import Suggest
    from agentflow.mcp.resumable import ResumableStreams
    from agentflow.mcp.server import MCPServer, ServerOptions, with_instructions

__all__ = [
    "ApprovalPolicy",
    "Hints",
    "MCPServer",
    "ProgressReport",
    "ResumableStreams",
    "ServerOptions",
    "Suggest",
    "agent_server",
    "with_instructions",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".hints": "ApprovalPolicy Hints",
        ".server": "MCPServer ServerOptions with_instructions",
        ".active": "ProgressReport",
        ".resumable": "ResumableStreams",
        ".offers": "Suggest",
        ".offering": "agent_server",
    },
)
