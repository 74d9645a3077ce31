"""Tools: what a model can ask for (`docs/tools.md`)."""

from agentflow.tools.context import Dep, ToolContext, ToolEmitter
from agentflow.tools.results import failure_text, render
from agentflow.tools.tool import Tool, ToolType, tool

__all__ = ["Dep", "Tool", "ToolContext", "ToolEmitter", "ToolType", "failure_text", "render", "tool"]
