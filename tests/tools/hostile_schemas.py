"""Schemas and values that would occupy a process for hours, or exhaust its stack, in a validator without limits.

Run as a program, under a limit of processor seconds, its argument; it prints the result for each.
"""

from __future__ import annotations

import json
import resource
import sys
from functools import reduce
from typing import Any

from agentflow._support.json_schema import JsonSchema, JsonSchemaError, TooCostlyError

A: Any = {"$ref": "#/$defs/a"}


def chain(length: int, link: Any) -> dict[str, Any]:
    """Definitions a0 to a{length}: each is made of references to the next."""
    steps = [{"$ref": f"#/$defs/a{step + 1}"} for step in range(length)]
    return {
        "$ref": "#/$defs/a0",
        "$defs": {f"a{n}": link(step) for n, step in enumerate(steps)} | {f"a{length}": False},
    }


def nested(depth: int, inner: Any = 1) -> Any:
    return reduce(lambda value, _: [value], range(depth), inner)


TEXT = "a" * 200_000 + "!"
CASES: dict[str, tuple[Any, Any]] = {
    "pattern": ({"pattern": "^(a+)+$"}, TEXT),
    "pattern of names": ({"propertyNames": {"pattern": "^(a|aa)+$"}}, {TEXT: 1}),
    "patternProperties": ({"patternProperties": {"^(a|a?)+$": False}}, {TEXT: 1}),
    "additional beside patterns": ({"patternProperties": {"^(a|a?)+$": {}}, "additionalProperties": False}, {TEXT: 1}),
    "pattern that is large": ({"pattern": "((a{0,99}){0,99}){0,99}"}, TEXT),
    "patterns that are many": ({"anyOf": [{"pattern": f"^a{n}$"} for n in range(5000)]}, TEXT),
    "pattern that looks around": ({"pattern": "^(?=a)a"}, "a"),
    "pattern that refers back": ({"pattern": r"^(a)\1$"}, "aa"),
    "text for a large pattern": ({"pattern": "[ab]*a[ab]{900}c"}, "ab" * 500_000),
    "circle": ({"$ref": "#"}, 1),
    "circle of two": ({"allOf": [A], "$defs": {"a": {"anyOf": [{"type": "string"}, {"$ref": "#"}]}}}, 1),
    "circle in not": ({"not": {"$ref": "#"}}, 1),
    "long way in one place": (chain(4000, lambda step: step), 1),
    "anyOf of anyOf": (chain(22, lambda step: {"anyOf": [step, step]}), 1),
    "oneOf of oneOf": (chain(22, lambda step: {"oneOf": [step, step]}), 1),
    "allOf of allOf": (chain(22, lambda step: {"allOf": [step, step]}), 1),
    "if of if": (chain(22, lambda step: {"if": step, "then": step, "else": step}), 1),
    "deep schema": (reduce(lambda inner, _: {"items": inner}, range(5000), {}), []),
    "deep value": ({"$ref": "#/$defs/a", "$defs": {"a": {"items": A}}}, nested(5000)),
    "deep value in enum": ({"enum": [1]}, nested(100_000)),
    "deep value in uniqueItems": ({"uniqueItems": True}, [nested(100_000), 1]),
    "uniqueItems": ({"uniqueItems": True}, [[n] for n in range(300_000)]),
    "uniqueItems of numbers that collide": ({"uniqueItems": True}, [n * (2**61 - 1) for n in range(100_000)]),
    "uniqueItems at each level": (
        {**A, "$defs": {"a": {"uniqueItems": True, "items": A}}},
        nested(120, ["x" * 10**6] * 50),
    ),
    "contains in contains": ({"contains": {"contains": {"contains": {"const": 1}}}}, [[[2] * 300] * 300] * 300),
    "names that are required": ({"items": {"required": [f"r{n}" for n in range(9000)]}}, [{}] * 100_000),
    "value that is large": ({"items": {"type": "integer"}}, list(range(2_000_000))),
    "properties that are many": ({"properties": {f"p{n}": {} for n in range(50_000)}}, {}),
    "enum that is large": ({"enum": list(range(100_000))}, 1),
    "schema that is large": ({"allOf": [{"properties": {f"p{n}": {} for n in range(9000)}} for _ in range(9)]}, 1),
    "numbers without end": ({"multipleOf": 7}, 7**3_000_000),
    "multiples of a small number": ({"multipleOf": 1e-300}, 1e300),
    "names that are long": ({"$id": f"http://x/{'y' * 10**6}", "items": {"$ref": "z"}}, []),
    "schema of deep data": ({"enum": [nested(100_000)]}, 1),
    "format": ({"format": "regex"}, "(" * 100_000),
}


def outcome(schema: Any, value: Any) -> str:
    try:
        found = JsonSchema(schema).problems(value)
    except JsonSchemaError:
        return "refused"
    except TooCostlyError:
        return "given up"
    return found[0].keyword or "false" if found else "fits"


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]),) * 2)
    print(json.dumps({name: outcome(*case) for name, case in CASES.items()}))
