"""Values that an agent's tools exchange with an editor: the workspace, diffs and plans. They need no extra."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from agentflow.tools.tool import tool
from agentflow.tools.tool_context import ToolEmitter


class Workspace:
    """The editor's project; a tool with a parameter of this type receives it.

    Args:
        path: The absolute path of the project's folder.
        more: Absolute paths of further folders.

    Example:
        >>> Workspace("/home/ada/shop").resolve("src/cart.py")
        '/home/ada/shop/src/cart.py'
    """

    __slots__ = ("more", "path")  # not a dataclass, which would become an argument that the model fills

    def __init__(self, path: str, more: tuple[str, ...] = ()) -> None:
        self.path = path
        self.more = more

    def resolve(self, path: str) -> str:
        """Return the absolute form of a path: a relative one is below the project's folder. Nothing is checked."""
        return os.path.normpath(os.path.join(self.path, path))


@dataclass(frozen=True, slots=True)
class Diff:
    """A change of a file, which editors show as a diff. A tool emits it, or `EditorAgent(preview=...)` returns it.

    Attributes:
        path: The file; a relative path is below the workspace.
        new_text: The whole text after the change.
        old_text: The whole text before the change; None for a new file.

    Example:
        >>> async def rename(path: str, emitter: ToolEmitter) -> str:
        ...     await emitter.emit(Diff(path, "cart = []\\n", "basket = []\\n"))
        ...     return "renamed"
    """

    path: str
    new_text: str
    old_text: str | None = None


@dataclass(frozen=True, slots=True)
class PlanStep:
    """A step of a plan.

    Attributes:
        content: The work of the step.
        status: Its progress.
        priority: Its importance.
    """

    content: str
    status: Literal["pending", "in_progress", "completed"] = "pending"
    priority: Literal["high", "medium", "low"] = "medium"


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan, which editors show while the agent works. A tool emits it; a later plan replaces it.

    Attributes:
        steps: All steps, in order.
    """

    steps: tuple[PlanStep, ...]


@tool(type="research")
async def update_plan(steps: list[PlanStep], emitter: ToolEmitter) -> str:
    """Show the user your plan for a longer task. Call it again, with all steps, when the status of a step changes.

    Args:
        steps: All steps, in order. At most one is in progress.
    """
    await emitter.emit(Plan(tuple(steps)))
    done = sum(step.status == "completed" for step in steps)
    return f"The user sees the plan: {done} of {len(steps)} steps are completed."
