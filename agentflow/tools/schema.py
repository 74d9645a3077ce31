"""The JSON schema that a model sees, and its descriptions.

Rules:

1. A schema uses only keywords that every provider accepts: an object with `properties` at the top, arrays with `items`,
   no `$ref` (except in recursive types), no `propertyNames`, `const`, `oneOf`, `prefixItems` or titles.
2. A description comes from the first of these: `Field(description=...)`, the docstring, the type's own description.
3. griffe is loaded only for docstrings with sections that are not simple (importing it takes 40 to 200 ms).
"""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from agentflow._support.json_text import all_finite

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind
    from pydantic_core import CoreSchema

_DROPPED_KEYS = frozenset({"title", "propertyNames", "discriminator", "$defs", "$ref", "const", "prefixItems", "oneOf"})
_SCHEMA_MAP_KEYS = frozenset({"properties", "patternProperties"})
_SCHEMA_KEYS = frozenset({"items", "additionalProperties", "contains", "not"})
_SCHEMA_LIST_KEYS = frozenset({"anyOf", "allOf"})
_REF = "#/$defs/"
# Keywords with which the schemas of `type`, `items` and `additionalProperties` do not apply to every value. (Old drafts
# ignore all keywords beside `$ref`.)
_BESIDE = frozenset({"$ref", "patternProperties", "prefixItems"})

_SPHINX = r"^[ \t]*:\w+[^:\n]*:"
_NUMPY = r"^[ \t]*[A-Z][\w ]*\n[ \t]*-{3,}[ \t]*$"
_GOOGLE = r"^[ \t]*[A-Z][\w ]*:[ \t]*$"
_SIMPLE = (
    r"(?P<text>(?:(?!```|>>>)\S.*\n\n*)+)(?<=\n\n)"  # no line is indented
    r"(?:Args|Arguments):\n(?P<items>(?:    (?! ).+\n(?: {8}.+\n)*)+)"
    r"(?:\n+(?:Returns|Raises|Yields):\n    (?! ).+\n(?: {4}.+\n)*)*"
)
"""A simple Google-style docstring: text, one `Args:` section, and sections that are ignored here and by `read_docstring`."""
_ITEM = r"    \*{0,2}(\w+)(?: \([^()\n]*\))?: *(\S.*(?:\n {8}.+)*)\n"


@cache
def _generator() -> type[GenerateJsonSchema]:
    from pydantic.json_schema import GenerateJsonSchema  # importing it takes 6 ms, for the first schema only

    class Generator(GenerateJsonSchema):
        def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
            """Do nothing, since a default without a JSON form is left out."""

    return Generator


def json_schema(core: CoreSchema, descriptions: Mapping[str, str]) -> dict[str, Any]:
    """Return the schema of a tool's arguments.

    Args:
        core: Pydantic's schema of the arguments.
        descriptions: The docstring's description of each argument.
    """
    schema = _generator()(by_alias=True).generate(core)
    if "$ref" not in schema:  # a recursive class: its definition has `properties` and `type`
        add_descriptions(schema.setdefault("properties", {}), descriptions)
        schema.setdefault("type", "object")
    return _Simplifier(schema).result()


def add_descriptions(properties: dict[str, Any], descriptions: Mapping[str, str]) -> None:
    """Add the docstring's descriptions to the schemas of parameters without one."""
    for name, text in descriptions.items():
        if text and name in properties:
            properties[name].setdefault("description", text)


class _Simplifier:
    """Inlines references, except references of a recursive type to itself, which are kept with their definition."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._defs: dict[str, Any] = schema.get("$defs", {})
        self._kept: dict[str, Any] = {}

    def result(self) -> dict[str, Any]:
        tidy = self._node(self._schema, ())
        done: dict[str, Any] = {}
        # A definition that is kept may refer to others, which are then kept too.
        while todo := [name for name in self._kept if name not in done]:
            for name in todo:
                done[name] = self._node(self._defs[name], (name,))
        return {**tidy, "$defs": done} if done else tidy

    def _node(self, schema: dict[str, Any], inside: tuple[str, ...]) -> dict[str, Any]:
        tidy: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _SCHEMA_MAP_KEYS:
                tidy[key] = {name: self._node(inner, inside) for name, inner in value.items()}
            elif key in _SCHEMA_KEYS and isinstance(value, dict):
                tidy[key] = self._node(cast("dict[str, Any]", value), inside)
            elif key in _SCHEMA_LIST_KEYS:
                tidy[key] = [self._node(inner, inside) for inner in value]
            elif key not in _DROPPED_KEYS and all_finite(value):  # a default without a JSON form is not shown
                tidy[key] = value
        self._replace_dropped(schema, tidy, inside)
        if tidy.get("type") == "array":  # `items` is optional in JSON schema, but OpenAI requires it
            tidy.setdefault("items", {})
        parts = tidy.get("allOf", ())
        if len(parts) == 1:
            del tidy["allOf"]
            tidy = {**parts[0], **tidy}
        return tidy

    def _replace_dropped(self, schema: dict[str, Any], tidy: dict[str, Any], inside: tuple[str, ...]) -> None:
        if "const" in schema:
            tidy["enum"] = [schema["const"]]
        if "oneOf" in schema:
            tidy["anyOf"] = [self._node(inner, inside) for inner in schema["oneOf"]]
        if "prefixItems" in schema:
            members: list[dict[str, Any]] = []
            for inner in schema["prefixItems"]:
                member = self._node(inner, inside)
                if member not in members:
                    members.append(member)
            tidy["items"] = members[0] if len(members) == 1 else {"anyOf": members}
        if "$ref" in schema:
            name = cast("str", schema["$ref"]).removeprefix(_REF)
            # The reference leads to a definition that is being inlined: a recursive type.
            if name in inside:
                self._kept[name] = None
                tidy["$ref"] = schema["$ref"]
            else:
                for key, value in self._node(self._defs[name], (*inside, name)).items():
                    tidy.setdefault(key, value)  # a description beside the reference has precedence


def may_read_floats(core: Mapping[str, Any]) -> bool:
    """Whether values that pydantic's schema accepts could contain a float: true unless their types exclude it."""
    match core:
        case {"type": "int" | "str" | "bool" | "none" | "literal"}:
            return False
        case {"type": "arguments-v3", "arguments_schema": parameters}:
            return any(may_read_floats(parameter["schema"]) for parameter in parameters)
        case {"type": "default" | "nullable", "schema": inner} | {"type": "list" | "set", "items_schema": inner}:
            return may_read_floats(inner)
        case {"type": "dict", "values_schema": inner}:
            return may_read_floats(inner)
        case {"type": "union", "choices": choices} | {"type": "tuple", "items_schema": choices}:
            return any(map(may_read_floats, choices))
        case _:
            return True


def may_hold_floats(schema: Mapping[str, Any]) -> bool:
    """Whether a value of this JSON schema could contain a float: true unless a keyword excludes it.

    Example:
        >>> may_hold_floats({"type": "array", "items": {"type": "string"}}), may_hold_floats({})
        (False, True)
    """
    match schema:
        case {**keywords} if not _BESIDE.isdisjoint(keywords):
            return True
        case {"type": "string" | "integer" | "boolean" | "null"}:
            return False
        case {"type": "array", "items": inner}:
            return may_hold_floats(inner)
        case {"type": "object", "properties": properties, "additionalProperties": False}:
            return any(map(may_hold_floats, properties.values()))
        case {"type": "object", "additionalProperties": {**inner}, **rest} if "properties" not in rest:
            return may_hold_floats(inner)
        case {"anyOf": choices}:
            return any(map(may_hold_floats, choices))
        case _:
            return True


def read_docstring(doc: str | None) -> tuple[str, dict[str, str]]:
    """Return a docstring's text (Google, NumPy or Sphinx style), and its descriptions of the parameters."""
    text = inspect.cleandoc(doc or "")
    style = (
        "sphinx"
        if re.search(_SPHINX, text, re.MULTILINE)
        else "numpy"
        if re.search(_NUMPY, text, re.MULTILINE)
        else "google"
    )
    if style == "google" and not re.search(_GOOGLE, text, re.MULTILINE):
        return text, {}
    simple = re.fullmatch(_SIMPLE, f"{text}\n") if style == "google" else None
    if simple is not None:
        items = simple["items"]
        found = list(re.finditer(_ITEM, items))
        if sum(len(item[0]) for item in found) == len(items):
            described = {item[1]: " ".join(item[2].split()) for item in found}
            return simple["text"].strip(), described

    import griffe  # importing it takes 40 to 200 ms, only for the first tool that needs it

    texts: list[str] = []
    parameters: dict[str, str] = {}
    for section in griffe.Docstring(text).parse(griffe.Parser(style), warnings=False):
        if isinstance(section, griffe.DocstringSectionText):
            texts.append(section.value.strip())
        elif isinstance(section, griffe.DocstringSectionParameters | griffe.DocstringSectionOtherParameters):
            for parameter in section.value:
                parameters[parameter.name.lstrip("*")] = " ".join(parameter.description.split())
    return "\n\n".join(texts), parameters
