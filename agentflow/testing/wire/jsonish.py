"""A type for JSON, and readers (`as_object` and others) that never raise.

A request body is untrusted and may have any structure. The readers return an empty value if the type is wrong, so that a rule
needs to check only its own fields.
"""

import json
from typing import TypeAlias, cast

from agentflow._support.json_text import read_json_text

JsonValue: TypeAlias = dict[str, "JsonValue"] | list["JsonValue"] | str | int | float | bool | None
JsonObject: TypeAlias = dict[str, JsonValue]


_ESCAPED = b"\\ud"
"""The start of an escaped surrogate in JSON."""


def parse(text: str | bytes) -> JsonValue:
    """Parse JSON text.

    Raises:
        ValueError: The text is not JSON (NaN, Infinity and half a surrogate pair are not) or not UTF-8.
    """
    found = cast("JsonValue", read_json_text(text, constants=False))
    if _ESCAPED in (text.lower() if isinstance(text, bytes) else text.lower().encode("utf-8", "surrogatepass")):
        dump(found).encode()  # raises for half a surrogate pair, which UTF-8 cannot encode
    return found


def dump(value: object) -> str:
    """Serialise JSON without spaces and escapes, like the vendors."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def as_object(value: JsonValue) -> JsonObject:
    """Return the value if it is an object, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: JsonValue) -> list[JsonValue]:
    """Return the value if it is an array, otherwise an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: JsonValue) -> str:
    """Return the value if it is a string, otherwise an empty one."""
    return value if isinstance(value, str) else ""


def objects(value: JsonValue) -> list[JsonObject]:
    """Return the members of an array, each as an object, so that positions are kept."""
    return [as_object(item) for item in as_list(value)]


def merged(*parts: JsonObject) -> JsonObject:
    """Merge objects into a new one; later ones take precedence."""
    return {key: value for part in parts for key, value in part.items()}


def kind_of(value: JsonValue) -> str:
    """Return the type of a wrong JSON value as in OpenAI's error texts, such as "an object instead"."""
    names: dict[type, str] = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "an integer",
        float: "a decimal",
    }
    return "null instead" if value is None else f"{names[type(value)]} instead"
