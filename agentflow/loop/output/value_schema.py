"""The JSON schema of a call's output, which can differ from the schema of the model's answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError

from agentflow._support.validation import adapter_of
from agentflow.errors import UsageError
from agentflow.loop.output.choices import with_prefix
from agentflow.tools.signature import MISSING

__all__ = ["value_schema"]


def value_schema(kinds: Iterable[Any], where: str) -> dict[str, Any]:
    """Return the schema of the values of some types.

    Args:
        kinds: The types; a mapping is a JSON schema, and a string is an unresolved annotation.
        where: The output, for errors.

    Raises:
        UsageError: A type has no JSON form.
    """
    found: list[dict[str, Any]] = []
    for kind in kinds:
        schema = _schema_of(kind, where)
        # Two types with the same schema would be two equal branches of `anyOf`.
        if schema not in found:
            found.append(schema)
    if len(found) == 1:
        return found[0]
    definitions: dict[str, Any] = {}
    for number, schema in enumerate(found, 1):
        for name, definition in schema.pop("$defs", {}).items():
            definitions[f"{number}_{name}"] = with_prefix(definition, str(number))
    combined: dict[str, Any] = {"anyOf": [with_prefix(schema, str(number)) for number, schema in enumerate(found, 1)]}
    return {**combined, "$defs": definitions} if definitions else combined


def _schema_of(kind: Any, where: str) -> dict[str, Any]:
    if isinstance(kind, Mapping):
        return {"type": "object", **cast("Mapping[str, Any]", kind)}
    if kind is MISSING or isinstance(kind, str):
        return {}
    try:
        return adapter_of(kind).json_schema(mode="serialization")
    except (PydanticUserError, SchemaError) as error:
        raise UsageError(
            f"{where}: no JSON schema can be built for its return type ({str(error).splitlines()[0]}). Annotate the "
            "function with a type that JSON can describe."
        ) from error
