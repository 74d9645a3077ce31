"""`computer_tool`: lets Claude see and control a display, by a function of yours that performs its actions.

Rules:

1. Each action is an ordinary tool call: hooks can change, approve and deny it, and a screenshot is a `DataBlock` of its result.
2. The arguments are checked before the function runs: a known action, and coordinates on the display.
3. A model that is not trained on the tool is refused: it would guess coordinates.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final

from agentflow.errors import ToolArgumentError, UsageError
from agentflow.tools.schema_tools import schema_tool
from agentflow.tools.tool import Tool
from agentflow.tools.tool_context import ToolContext

__all__ = ["computer_tool"]

_ACTIONS: Final = (
    *("screenshot", "key", "type", "mouse_move", "left_click", "right_click", "middle_click", "double_click", "wait"),
    *("triple_click", "left_click_drag", "left_mouse_down", "left_mouse_up", "scroll", "hold_key", "cursor_position"),
)
_POINT: Final = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "action": {"type": "string", "enum": [*_ACTIONS]},
        "coordinate": _POINT,
        "start_coordinate": _POINT,
        "text": {"type": "string"},
        "key": {"type": "string"},
        "scroll_direction": {"type": "string", "enum": ["up", "down", "left", "right"]},
        "scroll_amount": {"type": "integer", "minimum": 0},
        "duration": {"type": "number", "minimum": 0, "maximum": 100},
    },
    "required": ["action"],
}


def computer_tool(
    run: Callable[[dict[str, Any], ToolContext], Awaitable[object]],
    *,
    width: int,
    height: int,
    requires_approval: bool = True,
    timeout: float | None = 60.0,
    tags: Iterable[str] = (),
) -> Tool[[dict[str, Any], ToolContext], Coroutine[Any, Any, object]]:
    """Make the tool `computer`, Anthropic's computer use, for Claude 4 to 5.1 over `AnthropicWire`.

    Args:
        run: Performs an action. It gets the action as Anthropic describes it, such as `{"action": "left_click", "coordinate":
            [10, 20]}`, and the call's `ToolContext`; it returns a text, or a screenshot as a `DataBlock`.
        width: The width of the display in pixels.
        height: Its height.
        requires_approval: Whether each action waits for a person.
        timeout: Seconds for one action.
        tags: Free labels.

    Raises:
        UsageError: The display has no area.

    Example:
        >>> async def run(action: dict[str, Any], context: ToolContext) -> str:
        ...     return f"did {action['action']}"
        >>> computer_tool(run, width=1024, height=768).name
        'computer'
    """
    if min(width, height) < 1:
        raise UsageError(f"computer_tool(width={width}, height={height}): both are at least 1 pixel.")

    async def act(action: dict[str, Any], context: ToolContext) -> object:
        for name in ("coordinate", "start_coordinate"):
            x, y = action.get(name, (0, 0))
            if not (0 <= x < width and 0 <= y < height):
                raise ToolArgumentError(f"{name} [{x}, {y}] is outside the display of {width} x {height} pixels.")
        return await run(action, context)

    made = schema_tool(
        "computer",
        "See and control the display.",
        _SCHEMA,
        act,
        timeout=timeout,
        tags=tags,
        requires_approval=requires_approval,
    )
    entry = {"type": "computer", "name": "computer", "display_width_px": width, "display_height_px": height}
    made.spec.native = {"anthropic": entry}
    made.spec.native_only = True
    return made
