"""Events as JSON, one object each: for `agentflow run --json`, for streams to other processes, and for event logs.

Rules:

1. The result is JSON-safe: text, numbers, booleans, None, lists, and dicts with text keys.
2. Converting never raises: a value without a JSON form becomes its `repr`.
3. Data of earlier events is not repeated: `ReasoningChunk` has the chunk, not the reply so far.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeAlias, cast

from pydantic_core import to_jsonable_python

from agentflow._support.shown import printable_json
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import Event
from agentflow.vocabulary.events.base import frame_of
from agentflow.vocabulary.messages import Msg, TextBlock, ToolUseBlock
from agentflow.vocabulary.specs import ToolSpec
from agentflow.vocabulary.verdicts import AnyVerdict

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_COMMON = ("seq", "iteration", "time")


def event_to_dict(event: Event) -> dict[str, Json]:
    """Convert a sealed event to JSON-safe data.

    Args:
        event: An event of a run. If it was built by hand, the ids of the run are left out.

    Returns:
        `type`, `seq`, `iteration`, `time`, the ids of run, call and session, `source`, the event's own fields by name,
            and `decision` if a hook returned a verdict. Messages have the form of `Msg.to_dict`, errors are `{"type",
            "message"}`, verdicts `{"type", ...its fields}`.

    Example:
        >>> event_to_dict(PreActing(tool_use=ToolUseBlock("t1", "add", {"a": 1})))["tool_use"]
        {'type': 'tool_use', 'id': 't1', 'name': 'add', 'input': {'a': 1}}
    """
    record: dict[str, Json] = {"type": type(event).__name__}
    record.update({name: _json(getattr(event, name)) for name in _COMMON})
    frame = frame_of(event)
    if frame is not None:
        record.update(source=frame.source, run_id=frame.run_id, call_id=frame.call_id, session_id=frame.session_id)
    for field in fields(event):
        if field.name[0] != "_" and field.name not in _COMMON and field.name != "decision":
            record[field.name] = _safe(getattr(event, field.name))
    if event.decision is not None:
        record["decision"] = _safe(event.decision)
    return record


def event_line(event: Event) -> str:
    """Return the event as one line of ASCII JSON."""
    return json_line(event_to_dict(event))


def json_line(data: Mapping[str, object]) -> str:
    """Return JSON data as one line that is safe for any pipe and any terminal: ASCII, without control characters."""
    return printable_json(json.dumps(data, separators=(",", ":"), allow_nan=False))


def _safe(value: object) -> Json:
    try:
        return _json(value)
    except Exception:  # values of tools and hooks can contain themselves, or raise when read
        return object.__repr__(value)


def _json(value: object) -> Json:
    # Not floats, which may be NaN, and not enums; `_foreign` converts both.
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Msg):
        record = cast("dict[str, Json]", value.to_dict())
        return {**record, "metadata": _json(value.metadata)} if value.metadata else record
    if isinstance(value, BaseException):
        return {"type": type(value).__name__, "message": str(value)}
    if isinstance(value, ToolUseBlock):
        return _tool_use(value)
    if isinstance(value, ToolSpec):
        return {
            "name": value.name,
            "description": value.description,
            "parameters": _json(value.parameters),
            "type": value.type,
            "requires_approval": value.requires_approval,
        }
    if isinstance(value, ModelChunk):
        # Most fields of a chunk are unset.
        return {name: _json(part) for name, part in _fields(value) if part not in ("", None, (), False)}
    if isinstance(value, TextBlock) and not value.citations:
        return {"text": value.text, "type": value.type}
    if is_dataclass(value) and not isinstance(value, type):
        named: dict[str, Json] = {"type": type(value).__name__} if isinstance(value, AnyVerdict) else {}
        return {**named, **{name: _json(part) for name, part in _fields(value)}}
    if isinstance(value, Mapping):
        return {str(key): _json(part) for key, part in cast("Mapping[object, object]", value).items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray | memoryview):
        return [_json(part) for part in cast("Iterable[object]", value)]
    return _foreign(cast("object", value))


def _fields(value: Any) -> list[tuple[str, object]]:
    return [(field.name, getattr(value, field.name)) for field in fields(value)]


def _tool_use(block: ToolUseBlock) -> dict[str, Json]:
    record: dict[str, Json] = {"type": "tool_use", "id": block.id, "name": block.name, "input": _json(block.input)}
    if block.input_error is not None:
        record.update(raw=block.raw, input_error=block.input_error)
    return record


def _foreign(value: object) -> Json:
    """Convert any other value, such as a date, a pydantic model, or a number that JSON cannot represent."""
    try:
        return cast("Json", to_jsonable_python(value, inf_nan_mode="null", bytes_mode="base64", fallback=repr))
    except Exception:  # an object can raise while pydantic reads it
        return object.__repr__(value)
