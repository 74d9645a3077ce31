"""The writable fields of an event as JSON, for display and editing.

Rules:

1. The JSON can be assigned back: an unchanged value results in the same object.
2. A path refers to a part of a value, `tool_use.input.path` or `input_messages[2].content[0].text`. The whole field is then
   rebuilt, and validated by the event like any assignment by a hook.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic_core import from_json

from agentflow._support.validation import adapter_of, first_problem
from agentflow.errors import AgentFlowError
from agentflow.vocabulary.event_json import Json
from agentflow.vocabulary.events import Event
from agentflow.vocabulary.messages import Msg, TextBlock, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.saving.codec import msg_from_dict, msg_to_dict
from agentflow.vocabulary.saving.plain import plain
from agentflow.vocabulary.specs import ModelOptions, ToolSpec
from agentflow.vocabulary.transcript import MessageView

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(-?\d+)\]")


def value_of(event: Event, field: str) -> Json:
    """Return a field of an event as JSON."""
    return json_of(getattr(event, field))


def json_of(value: Any) -> Json:
    """Return the value of a writable field as JSON."""
    match value:
        case Msg():
            return msg_to_dict(value)
        case ToolUseBlock():
            return {"id": value.id, "name": value.name, "input": cast("Json", plain(value.input))}
        case ToolResultBlock():
            return cast("dict[str, Json]", msg_to_dict(Msg("tool", (value,)))["content"][0])
        case ToolSpec():
            spec = {"name": value.name, "description": value.description, "parameters": plain(value.parameters)}
            return cast("Json", spec)
        case ModelOptions():
            options = cast("dict[str, Json]", plain(adapter_of(ModelOptions).dump_python(value)))
            return {name: option for name, option in options.items() if option is not None and option != {}}
        case MessageView() | tuple() | list():
            return [json_of(item) for item in cast("Sequence[object]", value)]
        case _:
            return cast("Json", plain(value))


def read_value(text: str) -> Json:
    """Parse a person's input: JSON, or else the text itself.

    Raises:
        ValueError: It starts like JSON, with a bracket, a brace or a quote, but is not valid.

    Example:
        >>> read_value('{"a": 1}'), read_value("openai/gpt-5")
        ({'a': 1}, 'openai/gpt-5')
    """
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        if text[:1] in ("{", "[", '"'):
            raise
        return text


def assign(event: Event, path: str, value: Json) -> None:
    """Assign a value to a writable field, or to a part of it.

    Args:
        event: An open event.
        path: The field's name, optionally followed by a path into its value.
        value: The new value, in the form of `value_of`.

    Raises:
        ValueError: The value is not valid there; the message has the reason. Nothing is changed.
    """
    steps = [name or int(index) for name, index in _STEP.findall(path)]
    # `findall` skips text that does not match, so compare the steps with the whole path.
    if not steps or "".join(f".{s}" if isinstance(s, str) else f"[{s}]" for s in steps).removeprefix(".") != path:
        raise ValueError(f"{path!r} is not a path. Use a field's name, such as {_writable(event)}.")
    field = str(steps[0])
    if field not in event.writable:
        raise ValueError(f"{type(event).__name__}.{field} is not writable. Writable: {_writable(event)}.")
    before = getattr(event, field)
    whole = _inside(json_of(before), steps[1:], value, path)
    try:
        setattr(event, field, _build(event, field, before, whole))
    except (ValueError, TypeError, AttributeError, LookupError, AgentFlowError) as error:  # the JSON can have any shape
        raise ValueError(_reason_for(error)) from error


def _reason_for(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, AgentFlowError) and error.__cause__ is not None else error
    problem = first_problem(cast("Exception", cause))
    return problem.removeprefix("TypeError: ").removeprefix("ValueError: ").removeprefix("AttributeError: ")


def _writable(event: Event) -> str:
    return ", ".join(event.writable) or "nothing"


def _inside(whole: Json, steps: Sequence[str | int], value: Json, path: str) -> Json:
    """Return a copy with the value at one position replaced."""
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(whole, dict) and isinstance(step, str):
        return {**whole, step: _inside(whole.get(step), rest, value, path)}
    if isinstance(whole, list) and isinstance(step, int) and -len(whole) <= step < len(whole):
        at = step % len(whole)
        return [*whole[:at], _inside(whole[at], rest, value, path), *whole[at + 1 :]]
    raise ValueError(f"{path} does not exist: there is no {step!r} at that position.")


def _build(event: Event, field: str, before: Any, data: Json) -> Any:
    """Build a field's value from JSON."""
    match before:
        case Msg():
            return _message(data, before)
        case ToolUseBlock():
            return _tool_use(before, data)
        case ToolResultBlock():
            return _message({"role": "tool", "content": [data]}, None).tool_results[0]
        case ModelOptions():
            return adapter_of(ModelOptions).validate_python(_object(data))
        case str():
            return data
        case _ if field == "tools":
            known = {spec.name: spec for spec in (*event.agent.tools, *before)}  # a removed tool can be added again
            return [_spec(spec, known) for spec in _list(data)]
        case _:
            return _messages(before, _list(data))


def _messages(before: Sequence[Msg], data: Sequence[Json]) -> tuple[Msg, ...]:
    """Build messages from JSON; unchanged messages stay the same objects."""
    known = {msg.id: msg for msg in before}
    return tuple([_message(msg, known.get(str(msg.get("id"))) if isinstance(msg, dict) else None) for msg in data])


def _message(data: Json, before: Msg | None) -> Msg:
    if isinstance(data, str):
        return Msg.user(data) if before is None else replace(before, content=(TextBlock(data),))
    new = _object(data)
    if before is not None and msg_to_dict(before) == new:
        return before
    return msg_from_dict(new)


def _tool_use(before: ToolUseBlock, data: Json) -> ToolUseBlock:
    new = {**cast("dict[str, Json]", json_of(before)), **_object(data)}
    if unknown := new.keys() - {"id", "name", "input", "type"}:
        raise ValueError(f"a tool call has only name and input, not {', '.join(sorted(unknown))}")
    if new["id"] != before.id:
        raise ValueError("the id of a tool call cannot be changed")
    if not isinstance(new["name"], str) or not isinstance(new["input"], dict):
        raise TypeError("the name of a tool call must be a text, and its input an object")
    return ToolUseBlock(before.id, new["name"], new["input"])


def _spec(data: Json, known: Mapping[str, ToolSpec]) -> ToolSpec:
    new = {"name": data} if isinstance(data, str) else _object(data)
    spec = known.get(str(new.get("name")))
    if spec is None:
        raise ValueError(f"there is no tool {new.get('name')!r}; the tools are {', '.join(known) or 'none'}")
    if new.keys() == {"name"} or new == json_of(spec):
        return spec
    if spec.native_only:
        raise ValueError(f"the tool {spec.name} cannot be edited, because models know it without a description")
    # Only the fields that the model sees can be edited; the others decide about order and approval. The entry `native` is left
    # out, because it would replace the edited description and parameters.
    return ToolSpec(
        spec.name,
        str(new.get("description", spec.description)),
        cast("Mapping[str, Any]", new.get("parameters", spec.parameters)),
        type=spec.type,
        tags=spec.tags,
        requires_approval=spec.requires_approval,
        streaming=spec.streaming,
    )


def _object(data: Json) -> dict[str, Json]:
    if not isinstance(data, dict):
        raise TypeError(f"expected an object in braces, not {json.dumps(data):.60}")
    return data


def _list(data: Json) -> list[Json]:
    if not isinstance(data, list):
        raise TypeError(f"expected a list in brackets, not {json.dumps(data):.60}")
    return data
