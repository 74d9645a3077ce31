"""Error messages for a model about invalid arguments, with the problem, the expected form and the actual value."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pydantic_core import ValidationError, from_json, to_json

from agentflow._support.json_text import NotFiniteError
from agentflow._support.lazy import later

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydantic_core import ErrorDetails

    from agentflow._support import json_schema as schemas
else:
    schemas = later("agentflow._support.json_schema")

_MAX_PROBLEMS = 10
_MAX_VALUE_LENGTH = 60
_JSON_NAMES: dict[type, str] = {
    list: "array",
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    type(None): "null",
}
_MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
IS_MISSING = "is missing"
IS_UNKNOWN = "is not known here"
_NO_OBJECT = ("arguments_type", "dict_type", "model_type", "dataclass_type")


class ArgumentsMismatchError(ValueError):
    """Arguments do not fit a JSON schema.

    Args:
        problems: The problems, by path.
    """

    def __init__(self, problems: Mapping[str, Sequence[str]]) -> None:
        super().__init__("; ".join(f"{path}: {' or '.join(texts)}" for path, texts in problems.items()))
        self.problems = problems


def explain(
    tool: str, raw: str, error: ValueError, arguments: Sequence[tuple[str, bool]], *, start: str | None = None
) -> str:
    """Return the message about refused arguments.

    Args:
        tool: The tool's name.
        raw: The arguments as the model wrote them.
        error: The error of pydantic (or of encoding `raw`).
        arguments: The tool's arguments, each with whether it is required.
        start: The beginning of the message, if the arguments are not those of a tool.
    """
    it = "arguments" if start is None else "answer"
    start = start or f"Tool {tool!r} was not run: its arguments"
    expected = f"The {it} must be a JSON object {_keys(arguments)}."
    if isinstance(error, ArgumentsMismatchError):
        about_keys = any(text in (IS_MISSING, IS_UNKNOWN) for texts in error.problems.values() for text in texts)
        return _message(start, error.problems, expected if about_keys else None)
    if isinstance(error, NotFiniteError):
        return f"{start} are not valid JSON ({error}). {expected}"
    if not isinstance(error, ValidationError):
        # Tested late: this loads the module of the schemas, which most programs do not use.
        if isinstance(error, schemas.TooCostlyError):
            return f"{start} cannot be checked: {error}."
        return f"{start} cannot be read ({error}). {expected}"
    details = error.errors(include_url=False)
    kind = details[0]["type"]
    if kind == "json_invalid":
        return f"{start} are not valid JSON ({details[0].get('ctx', {}).get('error', 'unreadable')}). {expected}"
    if kind in _NO_OBJECT and not details[0]["loc"]:
        came: object = details[0]["input"]
        return f"{start} are a JSON {_JSON_NAMES.get(type(came), 'value')}. {expected}"
    if kind == "string_unicode" and not details[0]["loc"]:
        return f"{start} contain half of a surrogate pair, which cannot be encoded. {expected}"
    about_keys = any(len(detail["loc"]) == 1 and detail["type"] in _MISSING + _UNKNOWN for detail in details)
    # The text is valid JSON here: other errors were handled above.
    return _message(start, _problems(from_json(raw), details), expected if about_keys else None)


def _message(start: str, problems: Mapping[str, Sequence[str]], expected: str | None) -> str:
    lines = [f"- {path}: {' or '.join(texts)}" for path, texts in problems.items()]
    if len(lines) > _MAX_PROBLEMS:
        lines[_MAX_PROBLEMS:] = [f"- and {len(lines) - _MAX_PROBLEMS} more"]
    return "\n".join([f"{start} do not fit.", *lines, *([expected] if expected else ())])


def _keys(arguments: Sequence[tuple[str, bool]]) -> str:
    if not arguments:
        return "without keys: the tool takes no arguments"
    return "with the keys " + ", ".join(name if required else f"{name} (optional)" for name, required in arguments)


def _problems(value: object, details: list[ErrorDetails]) -> dict[str, list[str]]:
    """Group problems by path: a union reports one error for each of its members."""
    problems: dict[str, list[str]] = {}
    for detail in details:
        texts = problems.setdefault(_path(value, detail), [])
        text = _problem(detail)
        if text not in texts:
            texts.append(text)
    return {path: _merge(texts) for path, texts in problems.items()}


def _merge(texts: list[str]) -> list[str]:
    """If several texts end with the same actual value, keep this value only in the last text."""
    heads, _, ends = zip(*(text.partition("; got ") for text in texts), strict=True)
    if len(texts) == 1 or len(set(ends)) != 1 or not ends[0]:
        return texts
    return [*heads[:-1], texts[-1]]


def _problem(detail: ErrorDetails) -> str:
    if detail["type"] in _MISSING:
        return IS_MISSING
    if detail["type"] in _UNKNOWN:
        return IS_UNKNOWN
    message = detail["msg"].removeprefix("Input ")
    return f"{message}; got {shown(detail['input'])}"


def _path(value: object, detail: ErrorDetails) -> str:
    """Follow a location through the arguments. A step that does not exist there is pydantic's name for a union's member."""
    path = ""
    steps = detail["loc"]
    for index, step in enumerate(steps):
        if isinstance(value, dict) and step in value:
            value = cast("dict[object, object]", value)[step]
        elif isinstance(value, list) and isinstance(step, int) and step < len(cast("list[object]", value)):
            value = cast("list[object]", value)[step]
        elif not (index == len(steps) - 1 and detail["type"] in _MISSING):
            continue
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path or "arguments"


def shown(value: object) -> str:
    """Return a value as JSON, truncated if it is long."""
    if isinstance(value, str):
        value = value[: _MAX_VALUE_LENGTH + 1]  # before the conversion: the text may have megabytes
    try:
        text = to_json(value, fallback=repr).decode()
    except ValueError:
        text = repr(value)  # a lone half of a surrogate pair has no JSON form
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}…"
