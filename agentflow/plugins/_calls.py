"""What the plugins about tool calls share: a call's arguments in one form, whatever the model wrote."""

from __future__ import annotations

from typing import Any, cast

from pydantic_core import to_json, to_jsonable_python

from agentflow.messages import ToolUseBlock

__all__ = ["canonical"]

_FLAT = frozenset({str, int, float, bool, type(None)})


def canonical(use: ToolUseBlock) -> str:
    """The arguments as JSON that does not depend on order or blanks; text that is no JSON stands for itself.

    Example:
        >>> canonical(ToolUseBlock.from_json("t1", "add", '{"b": 2, "a": 1}'))
        '{"a":1,"b":2}'
    """
    if use.input_error is not None:
        return use.raw
    given = use.input
    data: Any = {name: given[name] for name in sorted(given)}
    if not _FLAT.issuperset(map(type, data.values())):
        data = _in_order(to_jsonable_python(data, fallback=str))
    return to_json(data, inf_nan_mode="constants").decode()


def _in_order(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        return {name: _in_order(items[name]) for name in sorted(items)}
    if isinstance(value, list):
        return [_in_order(item) for item in cast("list[Any]", value)]
    return cast("object", value)
