"""The schemas of parameters with plain types, made without pydantic's schema generators, which take 50 ms to import and
1 ms for each tool.

Plain types are str, int, float, bool, `Literal` of texts, `list[...]` and `dict[str, ...]` of plain types, and unions of
one of these with None. The schemas equal those of pydantic, which generates the schemas of all other types.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from inspect import Parameter
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Final, TypeAlias, cast

from pydantic_core import CoreSchema

Schemas: TypeAlias = tuple[dict[str, Any], dict[str, Any]]
"""The core schema for pydantic, and the JSON schema."""

_SCALARS: Final[dict[object, tuple[str, str]]] = {
    str: ("str", "string"),
    int: ("int", "integer"),
    float: ("float", "number"),
    bool: ("bool", "boolean"),
}


def plain_schemas(
    parameters: Iterable[Parameter], hints: Mapping[str, Any]
) -> tuple[CoreSchema, dict[str, Any]] | None:
    """Return pydantic's schema and the JSON schema of arguments by name; None if a type or a default is not plain."""
    cores: list[dict[str, Any]] = []
    properties: dict[str, Any] = {}
    for parameter in parameters:
        name, default = parameter.name, parameter.default
        schemas = _schemas(hints.get(name))
        if schemas is None or name.startswith("_"):
            return None
        core, shown = schemas
        if default is not parameter.empty:
            if not _is_plain_default(default):
                return None
            core = {"type": "default", "schema": core, "default": default}
            shown = dict(sorted({**shown, "default": default}.items()))  # pydantic sorts the keywords
            if len(shown.get("enum", ())) == 1:
                shown["enum"] = shown.pop("enum")  # moved to the end, where `_replace_dropped` puts pydantic's `const`
        cores.append({"name": name, "schema": core, "mode": "keyword_only"})
        properties[name] = shown
    required = [name for name, shown in properties.items() if "default" not in shown]
    shown = {"properties": properties, **({"required": required} if required else {}), "type": "object"}
    return cast("CoreSchema", {"type": "arguments-v3", "arguments_schema": cores}), shown


def _is_plain_default(default: object) -> bool:
    return default is None or type(default) in (str, int, bool) or (type(default) is float and isfinite(default))


def _schemas(hint: Any) -> Schemas | None:
    """Return the schemas of a type, with the JSON keywords in pydantic's order."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        scalar = _SCALARS.get(hint) if isinstance(hint, type) else None
        return None if scalar is None else ({"type": scalar[0]}, {"type": scalar[1]})
    if origin is typing.Literal:
        return _literal(list(arguments))
    if origin is list:
        inner = _schemas(arguments[0])
        return inner and ({"type": "list", "items_schema": inner[0]}, {"items": inner[1], "type": "array"})
    if origin is dict and arguments[0] is str and (inner := _schemas(arguments[1])):
        core = {"type": "dict", "keys_schema": {"type": "str"}, "values_schema": inner[0]}
        return core, {"additionalProperties": inner[1], "type": "object"}
    if origin in (typing.Union, UnionType) and len(arguments) == 2 and arguments[1] is NoneType:
        inner = _schemas(arguments[0])
        return inner and ({"type": "nullable", "schema": inner[0]}, {"anyOf": [inner[1], {"type": "null"}]})
    return None


def _literal(choices: list[Any]) -> Schemas | None:
    if any(type(choice) is not str for choice in choices):
        return None
    shown = {"enum": choices, "type": "string"} if len(choices) > 1 else {"type": "string", "enum": choices}
    return {"type": "literal", "expected": choices}, shown
