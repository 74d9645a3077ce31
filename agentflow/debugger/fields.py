"""The writable fields of an event as JSON: what a person sees of them, and what they may put there.

Rules:

1. What is shown can be put back: a value that nobody has changed is the same value.
2. A path leads into a value, `tool_use.input.path` or `input_messages[2].content[0].text`; the whole field is then made anew,
   and checked by the event as any hook's assignment is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic_core import from_json

from agentflow.errors import AgentFlowError
from agentflow.event_json import Json, event_to_dict
from agentflow.events import Event
from agentflow.ground.validation import adapter_of, first_problem
from agentflow.messages import Msg, TextBlock, ToolResultBlock, ToolUseBlock
from agentflow.saving.codec import msg_from_dict, msg_to_dict
from agentflow.saving.plain import plain
from agentflow.specs import ModelOptions, ToolSpec
from agentflow.transcript import MessageView

__all__ = ["assign", "fields_of", "json_of", "read_value", "value_of"]

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(-?\d+)\]")


def value_of(event: Event, field: str) -> Json:
    """A field of an event as JSON."""
    return json_of(getattr(event, field))


def json_of(value: Any) -> Json:
    """A value of a writable field as JSON."""
    match value:
        case Msg():
            return msg_to_dict(value)
        case ToolUseBlock():
            return {"id": value.id, "name": value.name, "input": cast("Json", plain(value.input))}
        case ToolResultBlock():
            return cast("dict[str, Json]", msg_to_dict(Msg("tool", (value,)))["content"][0])
        case ToolSpec():
            said = {"name": value.name, "description": value.description, "parameters": plain(value.parameters)}
            return cast("Json", said)
        case ModelOptions():
            given = cast("dict[str, Json]", plain(adapter_of(ModelOptions).dump_python(value)))
            return {name: one for name, one in given.items() if one is not None and one != {}}
        case MessageView() | tuple() | list():
            return [json_of(one) for one in cast("Sequence[object]", value)]
        case _:
            return cast("Json", plain(value))


def read_value(text: str) -> Json:
    """What a person has typed: JSON, or else the text itself.

    Raises:
        ValueError: It begins as JSON does, with a bracket, a brace or a quote, and is none.

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
    """Put a value into a writable field, or into a place inside of it.

    Args:
        event: An open event.
        path: The field's name; behind it, the way into its value.
        value: The new value there, as `value_of` shows it.

    Raises:
        ValueError: It cannot stand there; the text says why, and nothing has changed.
    """
    steps = [name or int(index) for name, index in _STEP.findall(path)]
    if not steps or "".join(f".{s}" if isinstance(s, str) else f"[{s}]" for s in steps).removeprefix(".") != path:
        raise ValueError(f"{path!r} is no path: write a field's name, such as {_writable(event)}.")
    field = str(steps[0])
    if field not in event.writable:
        raise ValueError(f"{type(event).__name__}.{field} is not writable; what is: {_writable(event)}.")
    before = getattr(event, field)
    whole = _inside(json_of(before), steps[1:], value, path)
    try:
        setattr(event, field, _made(event, field, before, whole))
    except (ValueError, TypeError, AttributeError, LookupError, AgentFlowError) as error:
        raise ValueError(_why(error)) from error


def _why(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, AgentFlowError) and error.__cause__ is not None else error
    said = first_problem(cast("Exception", cause))
    return said.removeprefix("TypeError: ").removeprefix("ValueError: ").removeprefix("AttributeError: ")


def _writable(event: Event) -> str:
    return ", ".join(event.writable) or "nothing"


def _inside(whole: Json, steps: Sequence[str | int], value: Json, path: str) -> Json:
    """The whole with another value at one place."""
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(whole, dict) and isinstance(step, str):
        return {**whole, step: _inside(whole.get(step), rest, value, path)}
    if isinstance(whole, list) and isinstance(step, int) and -len(whole) <= step < len(whole):
        at = step % len(whole)
        return [*whole[:at], _inside(whole[at], rest, value, path), *whole[at + 1 :]]
    raise ValueError(f"{path} leads nowhere: there is no {step!r} at its place.")


def _made(event: Event, field: str, before: Any, data: Json) -> Any:
    """The field's value of its JSON."""
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
            known = {spec.name: spec for spec in (*event.agent.tools, *before)}
            return [_spec(one, known) for one in _list(data)]
        case _:
            return _messages(before, _list(data))


def _messages(before: Sequence[Msg], data: Sequence[Json]) -> tuple[Msg, ...]:
    """Those that nobody has changed are the same ones."""
    known = {msg.id: msg for msg in before}
    return tuple([_message(one, known.get(str(one.get("id"))) if isinstance(one, dict) else None) for one in data])


def _message(data: Json, before: Msg | None) -> Msg:
    if isinstance(data, str):
        return Msg.user(data) if before is None else replace(before, content=(TextBlock(data),))
    given = _object(data)
    if before is not None and msg_to_dict(before) == given:
        return before
    return msg_from_dict(given)


def _tool_use(before: ToolUseBlock, data: Json) -> ToolUseBlock:
    given = {**cast("dict[str, Json]", json_of(before)), **_object(data)}
    if unknown := given.keys() - {"id", "name", "input", "type"}:
        raise ValueError(f"a tool call has name and input, and no {', '.join(sorted(unknown))}")
    if given["id"] != before.id:
        raise ValueError("the id of a tool call is the model's")
    if not isinstance(given["name"], str) or not isinstance(given["input"], dict):
        raise TypeError("a tool call has a name, which is a text, and an input, which is an object")
    return ToolUseBlock(before.id, given["name"], given["input"])


def _spec(data: Json, known: Mapping[str, ToolSpec]) -> ToolSpec:
    given = {"name": data} if isinstance(data, str) else _object(data)
    spec = known.get(str(given.get("name")))
    if spec is None:
        raise ValueError(f"there is no tool {given.get('name')!r}; there are {', '.join(known) or 'none'}")
    if given.keys() == {"name"} or given == json_of(spec):
        return spec
    return ToolSpec(
        spec.name,
        str(given.get("description", spec.description)),
        cast("Mapping[str, Any]", given.get("parameters", spec.parameters)),
        type=spec.type,
        tags=spec.tags,
        requires_approval=spec.requires_approval,
        streaming=spec.streaming,
    )


def _object(data: Json) -> dict[str, Json]:
    if not isinstance(data, dict):
        raise TypeError(f"an object in braces is expected, not {json.dumps(data):.60}")
    return data


def _list(data: Json) -> list[Json]:
    if not isinstance(data, list):
        raise TypeError(f"a list in brackets is expected, not {json.dumps(data):.60}")
    return data


def fields_of(event: Event) -> dict[str, Json]:
    """All that an event says of itself, the writable fields in the form in which they can be put back."""
    said = event_to_dict(event)
    return {**said, **{name: value_of(event, name) for name in event.writable}}
