"""Several outputs at once: the text of an answer that names the one it chose.

Rules:

1. Each output that is not text or data is a tool, so a model that calls tools selects by calling one.
2. The text of an answer names its output: `{"answer": {"kind": "final_answer_Invoice", "data": {...}}}`. So any reader
   of the text knows which one was meant, even if two have the same fields. The data are the arguments of the tool.
3. A text that names no output is the result of a function (unless the model wrote it), then plain text if `str` is one of
   the outputs; otherwise it must fit exactly one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from pydantic_core import from_json, to_json

from agentflow._support.json_text import check_numbers
from agentflow.loop.output.form import WRAPPED, Form, InvalidOutputError, json_in
from agentflow.loop.output.tools import AnswerTool, StepTool

__all__ = ["DATA", "KIND", "Choices", "named_text", "with_prefix"]

KIND: Final = "kind"
DATA: Final = "data"
_REF: Final = "#/$defs/"


class Choices(Form[Any]):
    """The form of an answer that is one of several.

    Args:
        tools: The tools that take the answers, by name.
    """

    def __init__(self, tools: Mapping[str, AnswerTool | StepTool]) -> None:
        self.kind = Any
        self.wrapped = False
        self._tools = tools
        definitions: dict[str, Any] = {}
        forms = [_branch(tool, definitions) for tool in tools.values()]
        self.schema = {"type": "object", "properties": {WRAPPED: {"anyOf": forms}}, "required": [WRAPPED]}
        if definitions:
            self.schema["$defs"] = definitions

    @property
    def title(self) -> str:
        """A name that every provider accepts."""
        return "answer"

    def named(self, text: str) -> tuple[str, str] | None:
        """Return the named output and the JSON of its data; None if the text names none.

        Raises:
            InvalidOutputError: The name is unknown, or the text has several JSON values.
        """
        raw = json_in(text)
        try:
            value: Any = from_json(raw)
            check_numbers(raw)
        except ValueError:
            return None
        match value:
            case {"answer": {"kind": str(name), "data": data, **rest}, **others} if not rest and not others:
                pass
            case {"kind": str(name), "data": data, **rest} if not rest:  # models sometimes leave out the outer object
                pass
            case _:
                return None
        if name not in self._tools:
            raise InvalidOutputError(f"There is no answer of kind {name!r:.60}. {self.expected}")
        return name, to_json(data).decode()

    def fitting(self, text: str, context: Any) -> tuple[str, Any]:
        """Return the name of the only output that the text fits, and its value, for a text that names none. Functions are
        not considered, because their value exists only after they have run.

        Raises:
            InvalidOutputError: The text fits none of the outputs, or several.
        """
        # All are tried: if a text fits two outputs, taking the first one would be a guess.
        found: list[tuple[str, Any]] = []
        for name, tool in self._tools.items():
            if isinstance(tool, AnswerTool):
                try:
                    found.append((name, tool.form.read(text, context)))
                except InvalidOutputError:
                    continue
        if len(found) != 1:
            many = "several" if found else "none"
            raise InvalidOutputError(f"Your answer fits {many} of the possible forms. {self.expected}")
        return found[0]

    @property
    def expected(self) -> str:
        """A sentence about the expected form, for the model."""
        if not self._tools:
            return "Answer with an image or a file."
        names = ", ".join(self._tools)
        return f'Answer with the JSON object {{"{WRAPPED}": {{"{KIND}": …, "{DATA}": {{…}}}}}}; "{KIND}" is one of {names}.'


def named_text(name: str, data: str) -> str:
    """Return the text of an answer that names its output.

    Args:
        name: The name of the output's tool.
        data: The JSON of the tool's arguments.

    Example:
        >>> named_text("escalate", '{"reason":"angry"}')
        '{"answer":{"kind":"escalate","data":{"reason":"angry"}}}'
    """
    return f'{{"{WRAPPED}":{{"{KIND}":"{name}","{DATA}":{data}}}}}'


def _branch(tool: AnswerTool | StepTool, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one output; its definitions move into `definitions`, prefixed with the output's name."""
    name, schema = tool.name, dict(tool.form.schema)
    for own, definition in schema.pop("$defs", {}).items():
        # `$ref` finds definitions only at the top of the schema, where those of two outputs could have the same name.
        definitions[f"{name}_{own}"] = with_prefix(definition, name)
    return {
        "type": "object",
        "description": tool.spec.description,
        "properties": {KIND: {"type": "string", "enum": [name]}, DATA: with_prefix(schema, name)},
        "required": [KIND, DATA],
        "additionalProperties": False,
    }


def with_prefix(schema: Any, name: str) -> Any:
    """Return a copy of a schema, with a prefix in its references to definitions."""
    if isinstance(schema, list):
        return [with_prefix(inner, name) for inner in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    copy = {key: with_prefix(inner, name) for key, inner in cast("dict[str, Any]", schema).items()}
    if isinstance(ref := copy.get("$ref"), str) and ref.startswith(_REF):
        copy["$ref"] = f"{_REF}{name}_{ref.removeprefix(_REF)}"
    return copy
