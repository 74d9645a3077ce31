"""Tools that a model can call (`docs/tools.md`)."""

from agentflow.tools.computer import computer_tool
from agentflow.tools.live_toolset import LiveToolset
from agentflow.tools.results import failure_text, render
from agentflow.tools.schema_tools import external_tool, schema_tool
from agentflow.tools.tool import Tool, tool
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
