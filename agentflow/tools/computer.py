"""`computer_tool`: lets Claude and OpenAI's models see and control a display, through your function that performs actions.

Rules:

1. Each action is an ordinary tool call: hooks can change, approve and deny it, and its result may contain a screenshot.
2. The arguments are checked before the function runs: a known action, and coordinates on the display.
3. A model that is not trained on the tool is refused, since it would guess coordinates. Gemini is refused too: it
   requires the address of the current web page with each result, which the function does not return; and LiteLLM
   supports this tool only for a browser.
4. The function receives Anthropic's actions from all models; OpenAI's actions are translated (`models/computer_calls.py`).
5. An action with OpenAI's safety checks waits for a person, even without `requires_approval`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final

from agentflow.errors import ToolArgumentError, UsageError
from agentflow.hooks.functions import on
from agentflow.tools.schema_tools import schema_tool
from agentflow.tools.tool import Tool
from agentflow.tools.tool_context import ToolContext
from agentflow.vocabulary.events import PreActing
from agentflow.vocabulary.verdicts import Suspend

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
        "path": {"type": "array", "items": _POINT},
        "text": {"type": "string"},
        "key": {"type": "string"},
        "scroll_direction": {"type": "string", "enum": ["up", "down", "left", "right"]},
        "scroll_amount": {"type": "integer", "minimum": 0},
        "duration": {"type": "number", "minimum": 0, "maximum": 100},
    },
    "required": ["action"],
}
_WIRE_FIELDS: Final = ("openai", "pending_safety_checks")
"""Fields of the input that only hooks and the adapters use."""


def safety_checks(event: PreActing) -> Suspend | None:
    """Suspend an action with safety checks, unless a hook has approved it. (In a resumed call this `Suspend` is ignored.)"""
    use = event.tool_use
    runs = use.input.get("action") in _ACTIONS  # an unknown action is an error for the model
    if use.input.get("pending_safety_checks") and runs and not event.context.approved(use.id):
        return Suspend({"tool": use.name, "input": dict(use.input)})
    return None


def computer_tool(
    run: Callable[[dict[str, Any], ToolContext], Awaitable[object]],
    *,
    width: int,
    height: int,
    requires_approval: bool = True,
    timeout: float | None = 60.0,
    tags: Iterable[str] = (),
) -> Tool[[dict[str, Any], ToolContext], Coroutine[Any, Any, object]]:
    """Make the tool `computer`, for Claude 4 to 5.1 over `AnthropicWire`, and for GPT-5.4 and later over `OpenAIWire`.

    Args:
        run: Performs an action. Receives the action in Anthropic's form, such as `{"action": "left_click", "coordinate":
            [10, 20]}`, and the call's `ToolContext`; returns a text, or a screenshot as a `DataBlock`.
        width: The width of the display in pixels.
        height: Its height.
        requires_approval: Whether each action waits for a person. Actions with OpenAI's safety checks always wait.
        timeout: Seconds for one action.
        tags: Labels, for example for filters in hooks.

    Raises:
        UsageError: The display has no area.

    Example:
        >>> async def run(action: dict[str, Any], context: ToolContext) -> str:
        ...     return f"did {action['action']}"
        >>> computer_tool(run, width=1024, height=768).name
        'computer'
    """
    if min(width, height) < 1:
        raise UsageError(
            f"computer_tool(width={width}, height={height}): the display must have an area. Use a width and a "
            "height of at least 1 pixel."
        )

    async def act(action: dict[str, Any], context: ToolContext) -> object:
        points = [(name, action[name]) for name in ("coordinate", "start_coordinate") if name in action]
        for name, (x, y) in [*points, *(("path", point) for point in action.get("path", ()))]:
            if not (0 <= x < width and 0 <= y < height):
                raise ToolArgumentError(
                    f"{name} [{x}, {y}] is outside the display of {width} x {height} pixels. Use coordinates on the "
                    "display."
                )
        return await run({name: value for name, value in action.items() if name not in _WIRE_FIELDS}, context)

    decorate = schema_tool(
        "computer",
        "See and control the display.",
        _SCHEMA,
        act,
        timeout=timeout,
        lock=True,  # there is one display, so actions must never overlap
        tags=tags,
        requires_approval=requires_approval,
    )
    entry = {"type": "computer", "name": "computer", "display_width_px": width, "display_height_px": height}
    decorate.spec.native = {"anthropic": entry, "openai": {"type": "computer", "name": "computer"}}
    decorate.spec.native_only = True
    decorate.hook(
        on(guard=True, priority=1000)(safety_checks)
    )  # runs after other guards, which may deny the call or ask a person
    return decorate
