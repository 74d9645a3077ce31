"""ACP, the Agent Client Protocol: an agent in an editor (`docs/acp.md`). Needs the extra `acp`."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily

if TYPE_CHECKING:
    from agentflow.serve.acp.editor import EditorAgent
    from agentflow.serve.acp.stdio import serve_stdio
    from agentflow.serve.acp.workspace import Diff, Plan, PlanStep, Workspace, update_plan

__all__ = ["Diff", "EditorAgent", "Plan", "PlanStep", "Workspace", "serve_stdio", "update_plan"]

__getattr__, __dir__ = lazily(
    __name__,
    {".workspace": "Diff Plan PlanStep Workspace update_plan", ".editor": "EditorAgent", ".stdio": "serve_stdio"},
)
