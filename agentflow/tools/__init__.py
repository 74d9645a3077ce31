"""Tools that a model can call (`docs/tools.md`)."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily
from agentflow.tools.tool import Tool, tool

if TYPE_CHECKING:
    from agentflow.tools.computer import computer_tool
    from agentflow.tools.live_toolset import LiveToolset
    from agentflow.tools.results import failure_text, render
    from agentflow.tools.schema_tools import external_tool, schema_tool
    from agentflow.tools.tool_context import Dep, ToolContext, ToolEmitter
    from agentflow.tools.tool_registry import ToolRegistry, default_tools
    from agentflow.tools.toolset import Toolset
    from agentflow.vocabulary.specs import ToolType

__all__ = [
    "Dep",
    "LiveToolset",
    "Tool",
    "ToolContext",
    "ToolEmitter",
    "ToolRegistry",
    "ToolType",
    "Toolset",
    "computer_tool",
    "default_tools",
    "external_tool",
    "failure_text",
    "render",
    "schema_tool",
    "tool",
]

if not TYPE_CHECKING:  # otherwise a type checker would accept any name
    __getattr__, __dir__ = lazily(
        __name__,
        {
            ".computer": "computer_tool",
            ".live_toolset": "LiveToolset",
            ".results": "failure_text render",
            ".schema_tools": "external_tool schema_tool",
            ".tool_context": "Dep ToolContext ToolEmitter",
            ".tool_registry": "ToolRegistry default_tools",
            ".toolset": "Toolset",
            "agentflow.vocabulary.specs": "ToolType",
        },
    )
