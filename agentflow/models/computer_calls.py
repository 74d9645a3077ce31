"""OpenAI's computer use over `/responses`: a `computer_call` becomes tool calls, and their results become its output.

The formats are those of the package `openai` 3.57 (`types/responses/response_computer_tool_call.py`, `computer_action.py`,
`ComputerCallOutput` in `response_input_item_param.py`), and of
https://developers.openai.com/api/docs/guides/tools-computer-use.

Rules:

1. Each action is a tool call, so that hooks and people can decide about it. The id of the tool call is the id of the
   `computer_call` with the action's number; the input is the action in Anthropic's terms, with the original action in
   the field `openai`.
2. An action without a counterpart gets a name that `computer_tool` refuses: the model reads the error.
3. All tool calls of a `computer_call` are sent back as one `computer_call`, with the last screenshot. Texts, such as the
   reason why an action was denied, follow in a message, since the output has no field for them.
4. Safety checks are acknowledged if an action was performed. OpenAI refuses an output without this ("Computer tool has
   unacknowledged safety check", openai/openai-agents-python#843).
5. Tool calls that a `computer_call` cannot express are sent as function calls, as to all other models. This is so if the last
   action has no screenshot, safety checks were not allowed, or an action is unsupported or was changed by a hook.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, cast

import msgspec

from agentflow.models.conversion import NO_OUTPUT
from agentflow.models.loose import NotUnderstoodError, as_text, field, items
from agentflow.vocabulary.saving.plain import dumps

# `Any`: items contain JSON.
Item = dict[str, Any]

COMPUTER: Final = "computer"
"""The tool's name."""
_BUTTONS: Final = {"left": "left_click", "right": "right_click", "wheel": "middle_click", "middle": "middle_click"}
_IN_THE_GUIDE: Final = {"scrollX": "scroll_x", "scrollY": "scroll_y"}
"""Names of fields in the guide that differ from the types."""
_PIXELS: Final = 120
"""Pixels of one step of a mouse wheel, as in Chromium."""
_SECONDS: Final = 2  # OpenAI does not specify it
"""The duration of OpenAI's `wait`."""
_UNSUPPORTED: Final = "unsupported"
_PART: Final = re.compile(r"(.+)-cu\d+\Z")
_LEGAL: Final = re.compile(r"[a-zA-Z0-9_-]{1,34}\Z")  # leaves room for "-cu" and a number within the 40 of `wire_id`
_KEYS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("enter", "return"), "Return"),
    **dict.fromkeys(("esc", "escape"), "Escape"),
    **dict.fromkeys(("ctrl", "control"), "ctrl"),
    **dict.fromkeys(("alt", "option"), "alt"),
    **dict.fromkeys(("cmd", "command", "meta", "super", "win"), "super"),
    **dict.fromkeys(("space", " "), "space"),
    **dict.fromkeys(("del", "delete"), "Delete"),
    **{f"f{n}": f"F{n}" for n in range(1, 25)},
    **{f"{start}{key.lower()}": key for key in ("Up", "Down", "Left", "Right") for start in ("", "arrow")},
    **{name.lower(): name for name in ("shift", "Tab", "BackSpace", "Insert", "Home", "End", "plus")},
    "pageup": "Page_Up",
    "pagedown": "Page_Down",
    "capslock": "Caps_Lock",
    "+": "plus",
}


class _Point(msgspec.Struct, gc=False):
    x: int
    y: int


class _Held(msgspec.Struct, gc=False, tag_field="type", kw_only=True):
    keys: list[str] | None = None


class _Placed(_Held, kw_only=True):
    x: int
    y: int


class _Click(_Placed, tag="click", kw_only=True):
    button: Literal["left", "right", "wheel", "middle"] = "left"


class _DoubleClick(_Placed, tag="double_click", kw_only=True):
    button: Literal["left"] = "left"


class _Move(_Placed, tag="move"):
    pass


class _Scroll(_Placed, tag="scroll", kw_only=True):
    scroll_x: int
    scroll_y: int


class _Drag(_Held, tag="drag"):
    path: Annotated[list[_Point | tuple[int, int]], msgspec.Meta(min_length=2)]


class _Keypress(msgspec.Struct, gc=False, tag_field="type", tag="keypress"):
    keys: Annotated[list[str], msgspec.Meta(min_length=1)]


class _Type(msgspec.Struct, gc=False, tag_field="type", tag="type"):
    text: str


class _Wait(msgspec.Struct, gc=False, tag_field="type", tag="wait"):
    pass


class _Screenshot(msgspec.Struct, gc=False, tag_field="type", tag="screenshot"):
    pass


_Action: TypeAlias = _Click | _DoubleClick | _Move | _Scroll | _Drag | _Keypress | _Type | _Wait | _Screenshot

_ACTION: Final[Any] = _Action


class _Joined(NamedTuple):
    """A `computer_call`, its output, and the texts of its results."""

    call: Item
    output: Item
    texts: list[str]


def split(item: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the tool calls of a `computer_call`: their ids, and their arguments as JSON text.

    Raises:
        NotUnderstoodError: The `computer_call` has no action or no id, or its safety checks are not a list.

    Example:
        >>> split({"call_id": "call_1", "actions": [{"type": "screenshot"}]})
        [('call_1-cu0', '{"action":"screenshot","openai":{"type":"screenshot"}}')]
    """
    # Older models send one `action`.
    actions = [*items(item.get("actions"))] or ([item["action"]] if item.get("action") else [])
    if not actions:
        raise NotUnderstoodError("an item of type 'computer_call' requests no action")
    ident, checks = call_id(item), [*items(item.get("pending_safety_checks"))]
    # If unreadable checks were ignored, the actions would run as if there were none.
    if item.get("pending_safety_checks") and not checks:
        raise NotUnderstoodError("'pending_safety_checks' of an item of type 'computer_call' is not a list")
    if not ident:
        raise NotUnderstoodError("an item of type 'computer_call' has no id")
    if not _LEGAL.match(ident):
        # A pure function: the id is the same each time the stored call is sent.
        ident = f"call_{sha256(ident.encode()).hexdigest()[:24]}"
    return [(f"{ident}-cu{n}", dumps(_input(action, checks))) for n, action in enumerate(actions)]


def call_id(item: object) -> str:
    """Return the id of a `computer_call`.

    Example:
        >>> call_id({"id": "cu_1", "call_id": "call_1"}), call_id({"id": "cu_1"})
        ('call_1', 'cu_1')
    """
    return as_text(field(item, "call_id") or field(item, "id"), "the id of a computer call")


def joined(unjoined: Sequence[Item], failed: Collection[str]) -> list[Item]:
    """Return a request's items, with the tool calls of each `computer_call` joined again.

    Args:
        unjoined: The items, with a function call for each action.
        failed: The ids of the calls that did not succeed.
    """
    calls: dict[str, list[Item]] = {}
    current: set[str] = set()  # the calls of one reply
    for item in unjoined:
        kind = item.get("type")
        if kind == "function_call_output":
            current.clear()
        elif kind == "function_call" and item["name"] == COMPUTER and (part := _PART.match(item["call_id"])):
            if part[1] not in calls:
                calls[part[1]] = []
                current.add(part[1])
            if part[1] in current:  # otherwise the provider has reused the id of an earlier reply's call
                calls[part[1]].append(item)
    if not calls:
        return [*unjoined]
    # First find the calls that can be joined, then build the items, with each joined call at its first part.
    answers = {item["call_id"]: item for item in unjoined if item.get("type") == "function_call_output"}
    joined_calls: dict[str, _Joined] = {}  # the joined calls, by the ids of their parts
    for ident, parts in calls.items():
        if (whole := _joined_call(ident, parts, answers, failed)) is not None:
            joined_calls |= dict.fromkeys([part["call_id"] for part in parts], whole)
    out: list[Item] = []
    texts: list[str] = []
    sent: set[tuple[str, str]] = set()  # the call and its output are sent once, not once per action
    # The empty item at the end flushes the texts; it is removed again below.
    for item in [*unjoined, {}]:
        whole, kind = joined_calls.get(item.get("call_id", "")), item.get("type", "")
        if texts and kind != "function_call_output":  # all results of a reply come before the next message
            out.append({"role": "user", "content": "\n".join(texts)})
            texts = []
        if whole is None:
            out.append(item)
        elif (part := (kind, whole.call["id"])) not in sent:
            sent.add(part)
            out.append(whole.call if kind == "function_call" else whole.output)
            texts += whole.texts if kind == "function_call_output" else ()
    return out[:-1]


def _joined_call(
    ident: str, parts: Iterable[Item], answers: Mapping[str, Item], failed: Collection[str]
) -> _Joined | None:
    """Return the `computer_call` that these tool calls belong to; None if it cannot express them."""
    actions: list[Item] = []
    checks: list[Any] = []
    screenshot: str | None = None
    texts: list[str] = []
    allowed = False
    for part in parts:
        fields = _parsed(part["arguments"])
        checks = fields.get("pending_safety_checks", [])
        # An input that a hook has edited differs from the translation of its action.
        if "openai" not in fields or fields != _input(fields["openai"], checks) or part["call_id"] not in answers:
            return None
        if fields["action"].startswith(_UNSUPPORTED):
            return None
        actions.append(fields["openai"])
        performed = part["call_id"] not in failed
        allowed = allowed or performed
        shown = _parts(answers[part["call_id"]]["output"])
        images = [part["image_url"] for part in shown if part["type"] == "input_image"]
        if images or performed:  # an earlier screenshot does not show the effect of this action
            screenshot = images[-1] if images else None
        outputs = [text for part in shown if (text := part.get("text", NO_OUTPUT)) != NO_OUTPUT]
        texts += [f"[result of {COMPUTER}, {fields['action']}] {text}" for text in outputs]
    # Denied checks are not acknowledged, so the output would be refused (rule 4).
    if screenshot is None or (checks and not allowed):
        return None
    call: Item = {"type": "computer_call", "id": f"cu_{ident}", "call_id": ident, "status": "completed"}
    output: Item = {"type": "computer_call_output", "call_id": ident}
    output["output"] = {"type": "computer_screenshot", "image_url": screenshot, "detail": "original"}
    if checks:
        output["acknowledged_safety_checks"] = checks
    return _Joined({**call, "actions": actions, "pending_safety_checks": checks}, output, texts)


def _parsed(arguments: str) -> Item:
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def _parts(content: object) -> list[Item]:
    return cast("list[Item]", content) if isinstance(content, list) else [{"type": "input_text", "text": content}]


def _input(action: object, checks: Sequence[object]) -> Item:
    """Return the input of the tool call for an action."""
    fields = {**translated(action), "openai": action}
    return {**fields, "pending_safety_checks": checks} if checks else fields


def translated(action: object) -> Item:
    """Translate an action from OpenAI's terms to Anthropic's.

    Example:
        >>> translated({"type": "click", "button": "left", "x": 1, "y": 2, "keys": ["CTRL"]})
        {'action': 'left_click', 'coordinate': [1, 2], 'text': 'ctrl'}
        >>> translated({"type": "click", "button": "back", "x": 1, "y": 2})
        {'action': 'unsupported click'}
    """
    original = cast("Item", action) if isinstance(action, dict) else {}
    fields = {_IN_THE_GUIDE.get(name, name): value for name, value in original.items()}
    try:
        known = cast("_Action", msgspec.convert(fields, _ACTION))
    except msgspec.ValidationError:
        kind = fields.get("type")
        return {"action": f"{_UNSUPPORTED} {kind:.40}" if isinstance(kind, str) else _UNSUPPORTED}
    match known:
        case _Click():
            item: Item = {"action": _BUTTONS[known.button]}
        case _DoubleClick():
            item = {"action": "double_click"}
        case _Move():
            item = {"action": "mouse_move"}
        # Anthropic's scroll has one direction, and its amount is in steps of the wheel.
        case _Scroll(scroll_x=right, scroll_y=down):
            if right and down:
                return {"action": f"{_UNSUPPORTED} scroll in two directions"}
            way = ("left" if right < 0 else "right") if right else ("up" if down < 0 else "down")
            item = {"action": "scroll", "scroll_direction": way, "scroll_amount": _steps(abs(right or down))}
        case _Drag(path=path):
            points = [[point.x, point.y] if isinstance(point, _Point) else [*point] for point in path]
            item = {"action": "left_click_drag", "start_coordinate": points[0], "coordinate": points[-1]}
            if len(points) > 2:
                item["path"] = points
        case _Keypress(keys=keys):
            return {"action": "key", "text": _chord(keys)}
        case _Type(text=text):
            return {"action": "type", "text": text}
        case _Wait():
            return {"action": "wait", "duration": _SECONDS}
        case _Screenshot():
            return {"action": "screenshot"}
    if isinstance(known, _Placed):
        item["coordinate"] = [known.x, known.y]
    return {**item, "text": _chord(known.keys)} if known.keys else item


def _steps(pixels: int) -> int:
    return max(1, round(pixels / _PIXELS)) if pixels else 0


def _chord(keys: Iterable[str]) -> str:
    """Return keys that are pressed together, by their names in X11."""
    return "+".join([_KEYS.get(name.lower(), name.lower() if len(name) == 1 else name) for name in keys])
