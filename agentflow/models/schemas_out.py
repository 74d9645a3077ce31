"""For each provider, adapts the JSON schema that an answer must fit; the rules are rows (`schema_rules.tsv`).

Rules:

1. A keyword that a provider does not support is moved to the description as text: the model reads it, and the answer is
   validated against the complete schema anyway.
2. The schema that is sent may be narrower or wider, but an answer must always be valid for the complete schema.
3. An object with open keys (`dict[str, int]`) cannot be closed: the schema is then sent without `strict`.
4. If a schema cannot be expressed (it is recursive, or has open keys for Anthropic), only a description is sent.

The marks of the rows: D is the vendor's documentation, I an issue that quotes the refusal, B common knowledge.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from agentflow.models.conversion import Json, thaw
from agentflow.models.profiles import Family, rows

Flag: TypeAlias = Literal["supports_response_schema", "supports_native_structured_output"]


class Answers(NamedTuple):
    """A family's mode for answers that fit a schema.

    Attributes:
        flag: The mode's name in LiteLLM's list of models; None if the family has no mode that accepts a schema.
        beside_tools: A pattern for the names of models that can combine the mode with tools; `""` matches all models,
            None matches no model.
        rules: The family whose rows in `schema_rules.tsv` apply.
        source: The source of this information.
        loose: Whether a schema with open objects is accepted too.
    """

    flag: Flag | None
    beside_tools: str | None
    rules: str
    source: str
    loose: bool = True


FAMILIES: Final[Mapping[Family, Answers]] = {
    "openai": Answers("supports_response_schema", "", "openai", "platform.openai.com structured-outputs"),
    "anthropic": Answers(
        "supports_native_structured_output", "", "anthropic", "platform.claude.com structured-outputs", loose=False
    ),
    "gemini": Answers(
        "supports_response_schema",
        r"gemini-([3-9]|\d\d)",
        "gemini",
        "ai.google.dev gemini-3, structured outputs with tools; before, 'function calling with a response mime type is "
        "unsupported'",
    ),
    "mistral": Answers("supports_response_schema", None, "openai", "docs.mistral.ai custom structured output"),
    # A compatible server may be anything; vLLM, SGLang, llama.cpp and LM Studio support a schema, which a user may request.
    "compatible": Answers(None, None, "openai", "docs.vllm.ai structured_outputs"),
    "bedrock": Answers(None, None, "", "LiteLLM makes a tool of it"),
    "deepseek": Answers(None, None, "", "api-docs.deepseek.com json_mode: an object, no schema"),
    "reasoning": Answers(None, None, "", "differs from host to host"),
}
"""Each family's mode for answers that fit a schema."""


class SchemaRule(NamedTuple):
    """The treatment of a keyword.

    Attributes:
        family: The family to which the row applies.
        keyword: The keyword of JSON schema.
        action: `note`: it becomes text. `drop`: it is left out. `close`: objects are closed. `all`: every property is
            required. `only:a,b`: other values become text. `refuse`: the schema cannot be sent. `loose`: it is sent without
            `strict`.
        mark: The kind of source.
        source: The document or issue that states it.
    """

    family: str
    keyword: str
    action: str
    mark: str
    source: str


@cache
def schema_rules() -> tuple[SchemaRule, ...]:
    """Return the rules."""
    return tuple([SchemaRule(*row) for row in rows("schema_rules.tsv")])


@cache
def _actions(family: str) -> Mapping[str, str]:
    return {rule.keyword: rule.action for rule in schema_rules() if rule.family == family}


def answers_of(family: Family, model: str, known: Mapping[str, object]) -> tuple[bool, bool]:
    """Return whether a model has a mode for answers that fit a schema, and whether it can combine the mode with tools.

    Args:
        family: The model's family.
        model: The model's name.
        known: The model's row in LiteLLM's list.

    Example:
        >>> answers_of("gemini", "gemini/gemini-2.5-pro", {"supports_response_schema": True})
        (True, False)
    """
    row = FAMILIES[family]
    native = row.flag is not None and known.get(row.flag) is True
    return native, native and row.beside_tools is not None and re.search(row.beside_tools, model) is not None


class FittedSchema(NamedTuple):
    """A schema for a provider.

    Attributes:
        schema: The schema; None if it cannot be expressed.
        strict: Whether every object in it is closed.
    """

    schema: dict[str, Any] | None
    strict: bool


def fitted(schema: Mapping[str, Any], family: Family) -> FittedSchema:
    """Fit a schema to a family's JSON-schema mode.

    Example:
        >>> fitted({"type": "object", "properties": {"a": {"type": "integer", "minimum": 1}}}, "anthropic").schema
        {'type': 'object', 'properties': {'a': {'type': 'integer', 'description': 'minimum: 1'}}, 'additionalProperties': False}
    """
    rules = FAMILIES[family].rules
    if not rules:
        return FittedSchema(None, strict=False)
    fitting = _Fitting(_actions(rules))
    result = fitting.node(schema)
    return FittedSchema(None if fitting.refused else result, fitting.strict)


class _Fitting:
    def __init__(self, actions: Mapping[str, str]) -> None:
        self._actions = actions
        self.refused = False
        self.strict = True

    def node(self, schema: Mapping[str, Any] | bool) -> dict[str, Any]:
        """Fit one schema, with its subschemas. True accepts everything; False, which accepts nothing, cannot be sent."""
        if isinstance(schema, bool):
            self.refused = self.refused or not schema
            schema = {}
        fitted: dict[str, Any] = {}
        notes: list[str] = []
        for key, value in schema.items():
            action = self._actions.get(key, "")  # a keyword without a row is sent unchanged
            self.strict = self.strict and action != "loose"
            if action == "refuse":
                self.refused = True
            elif action == "note" or (action.startswith("only:") and value not in action[5:].split(",")):
                notes.append(f"{key}: {json.dumps(thaw(value), ensure_ascii=False)}")
            # Here the keys are names of fields, which could equal a keyword, so they are not looked up.
            elif key in ("properties", "$defs"):
                fitted[key] = {name: self.node(inner) for name, inner in value.items()}
            elif key in ("items", "if", "then", "else") or (
                key == "additionalProperties" and isinstance(value, Mapping)
            ):
                fitted[key] = self.node(cast("Mapping[str, Any]", value))
            elif key in ("anyOf", "allOf", "oneOf"):
                fitted[key] = [self.node(inner) for inner in value]
            # Titles repeat the names of fields and cost tokens.
            elif key != "title":
                fitted[key] = thaw(value)
        every = self._actions.get("required") == "all"
        # Closed after the loop, because closing depends on all keywords of the object.
        if schema.get("type") == "object":
            self._object(fitted)
        elif every and not fitted.keys() & {"type", "anyOf", "enum", "$ref"}:  # strict schemas have a type everywhere
            self.strict = False
        if notes:
            fitted["description"] = ". ".join([*([schema["description"]] if "description" in schema else ()), *notes])
        return fitted

    def _object(self, fitted: dict[str, Any]) -> None:
        open_keys = fitted.get("additionalProperties", False) is not False
        match self._actions.get("additionalProperties"):
            case "close" if not open_keys:
                fitted["additionalProperties"] = False
            case "drop":
                fitted.pop("additionalProperties", None)
            case _:
                self.strict = self.strict and not open_keys
        if self._actions.get("required") == "all" and fitted.get("properties"):
            fitted["required"] = list(fitted["properties"])


def response_format(schema: Mapping[str, Any], family: Family) -> Json:
    """Return the argument for an answer that fits a schema; None if the family needs a description instead (`in_words`).

    Example:
        >>> response_format({"title": "Bill", "type": "object", "properties": {}}, "openai")["json_schema"]["name"]
        'Bill'
    """
    result = fitted(schema, family)
    if result.schema is None or not (result.strict or FAMILIES[family].loose):
        return None
    name = re.sub(r"[^a-zA-Z0-9_-]", "_", str(schema.get("title", "")))[:64] or "answer"
    return {"type": "json_schema", "json_schema": {"name": name, "schema": result.schema, "strict": result.strict}}


def in_words(schema: Mapping[str, Any]) -> str:
    """Describe a schema in text, for a model without a mode that accepts schemas.

    Example:
        >>> in_words({"type": "object"})
        'Answer with one JSON object that fits this JSON schema, and with nothing else:\\n{"type": "object"}'
    """
    text = json.dumps(thaw(schema), ensure_ascii=False)
    return f"Answer with one JSON object that fits this JSON schema, and with nothing else:\n{text}"
