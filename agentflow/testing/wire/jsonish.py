"""JSON as a type, and readers that never raise.

A request body comes from outside and may have any shape. The readers give an empty value where the shape is wrong, so
that a rule can look at its own place without first proving every other place sound.
"""

import json
from typing import TypeAlias, cast

from agentflow.ground.json_text import read_json_text

JsonValue: TypeAlias = dict[str, "JsonValue"] | list["JsonValue"] | str | int | float | bool | None
JsonObject: TypeAlias = dict[str, JsonValue]


_ESCAPED = b"\\ud"
"""With this a surrogate is written in JSON."""


def parse(text: str | bytes) -> JsonValue:
    """Parse JSON text.

    Raises:
        ValueError: The text is not JSON (NaN, Infinity and half a surrogate pair are not) or not UTF-8.
    """
    found = cast("JsonValue", read_json_text(text, constants=False))
    if _ESCAPED in (text.lower() if isinstance(text, bytes) else text.lower().encode("utf-8", "surrogatepass")):
        dump(found).encode()
    return found


def dump(value: object) -> str:
    """Write JSON without spaces and with real characters, as the vendors do."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def as_object(value: JsonValue) -> JsonObject:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: JsonValue) -> list[JsonValue]:
    """The value if it is an array, else an empty one."""
    return value if isinstance(value, list) else []


def as_text(value: JsonValue) -> str:
    """The value if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def objects(value: JsonValue) -> list[JsonObject]:
    """The members of an array, each as an object, so that positions stay what they are."""
    return [as_object(item) for item in as_list(value)]


def merged(*parts: JsonObject) -> JsonObject:
    """One new object with the members of all; later ones win."""
    return {key: value for part in parts for key, value in part.items()}


def kind_of(value: JsonValue) -> str:
    """Name a value's JSON type the way OpenAI's error texts do, article included."""
    names: dict[type, str] = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "a boolean",
        int: "an integer",
        float: "a decimal",
    }
    return "null instead" if value is None else f"{names[type(value)]} instead"
