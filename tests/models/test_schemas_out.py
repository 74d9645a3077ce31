"""Schemas of answers, in the form of each family's JSON-schema mode; every row of the rules is used and has a source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast, get_args

import pytest
from pydantic import BaseModel, Field

from agentflow.loop.output.form import Form
from agentflow.models.profiles import Family
from agentflow.models.schemas_out import FAMILIES, answers_of, fitted, in_words, response_format, schema_rules
from agentflow.testing.wire import checks_openai
from agentflow.testing.wire.jsonish import as_object


class Node(BaseModel):
    """A tree."""

    name: str
    inner: list[Node] = []


class Everything(BaseModel):
    name: str = Field(min_length=1, max_length=9, pattern="^a", description="Who.")
    count: int = Field(default=3, ge=1, lt=9, multiple_of=2)
    tags: set[str] = Field(default=set(), min_length=1, max_length=3)
    mail: str = Field("", json_schema_extra={"format": "uri"})
    left: int | None = None


class Open(BaseModel):
    prices: dict[str, int]


SCHEMA = Form(Everything).schema


def nodes(schema: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(schema, Mapping):
        yield schema
        for value in schema.values():
            yield from nodes(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from nodes(value)


def test_every_family_has_a_row() -> None:
    """Every rule names a family that uses it, the conversion, and its source."""
    assert set(FAMILIES) == set(get_args(Family))
    assert {rule.family for rule in schema_rules()} == {row.rules for row in FAMILIES.values() if row.rules}
    for rule in schema_rules():
        assert rule.action in ("note", "drop", "close", "all", "refuse", "loose") or rule.action.startswith("only:")
        assert rule.mark in "DIB"
        assert len(rule.source) > 5
    keys = [(rule.family, rule.keyword) for rule in schema_rules()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("family", ["openai", "anthropic", "gemini", "mistral", "compatible"])
def test_what_is_not_taken_is_said_in_words(family: Family) -> None:
    """A keyword that a row leaves out is not sent; it is in the description, so the model knows it."""
    made = fitted(SCHEMA, family)
    assert made.schema is not None
    left_out = {
        r.keyword for r in schema_rules() if r.family == FAMILIES[family].rules and r.action in ("note", "drop")
    }
    for node in nodes(made.schema):
        if "properties" not in node or isinstance(node.get("type"), str):
            assert not left_out & (node.keys() - {"description", "type"})
    text = str(made.schema)
    if family == "anthropic":
        assert "Who.. minLength" not in text
        assert "minLength: 1" in text
        assert "maximum" not in {key for node in nodes(made.schema) for key in node}


def test_openai_is_strict() -> None:
    """Every object is closed and every property required; an object with open keys is sent without strict."""
    made = fitted(SCHEMA, "openai")
    assert made.strict
    for _, schema in checks_openai.strict_objects(as_object(made.schema)):
        assert not checks_openai.is_open(schema)
        assert not checks_openai.is_optional(schema)
    opened = fitted(Form(Open).schema, "openai")
    assert not opened.strict
    assert opened.schema is not None
    assert opened.schema["properties"]["prices"]["additionalProperties"] == {"type": "integer"}


@pytest.mark.parametrize(("family", "sent"), [("openai", True), ("anthropic", False), ("gemini", False)])
def test_a_type_that_contains_itself(family: Family, sent: bool) -> None:
    """OpenAI accepts references; otherwise the model gets the schema as text."""
    schema = Form(Node).schema
    assert (response_format(schema, family) is not None) == sent
    assert "inner" in in_words(schema)


def test_families_without_a_mode() -> None:
    """They get the schema as text."""
    for family in ("bedrock", "deepseek", "reasoning"):
        assert response_format(SCHEMA, family) is None


@pytest.mark.parametrize(
    ("family", "model", "flag", "expected"),
    [
        ("openai", "openai/gpt-5", "supports_response_schema", (True, True)),
        ("openai", "openai/gpt-4", "", (False, False)),
        ("anthropic", "anthropic/claude-sonnet-4-5", "supports_native_structured_output", (True, True)),
        ("anthropic", "anthropic/claude-3-opus", "supports_response_schema", (False, False)),
        ("gemini", "gemini/gemini-2.5-pro", "supports_response_schema", (True, False)),
        ("gemini", "gemini/gemini-3-flash-preview", "supports_response_schema", (True, True)),
        ("mistral", "mistral/mistral-medium-3", "supports_response_schema", (True, False)),
        ("compatible", "openai/mine", "supports_response_schema", (False, False)),
    ],
)
def test_who_answers_by_a_schema(family: Family, model: str, flag: str, expected: tuple[bool, bool]) -> None:
    """LiteLLM's list decides; beside tools, our rows do."""
    assert answers_of(family, model, {flag: True}) == expected


def test_open_keys_are_told_in_words_where_every_object_must_be_closed() -> None:
    """Anthropic refuses a schema with open keys; OpenAI accepts it, without `strict`."""
    schema = {
        "type": "object",
        "properties": {"counts": {"type": "object", "additionalProperties": {"type": "integer"}}},
    }
    assert response_format(schema, "anthropic") is None
    assert cast("Any", response_format(schema, "openai"))["json_schema"]["strict"] is False


@pytest.mark.parametrize(
    ("part", "sent", "strict"),
    [
        (True, {}, False),
        (False, None, False),
        ({"description": "anything"}, {"description": "anything"}, False),
        ({"allOf": [{"type": "string"}]}, {"allOf": [{"type": "string"}]}, False),
        ({"oneOf": [{"type": "string"}, True]}, {"oneOf": [{"type": "string"}, {}]}, False),
        ({"anyOf": [{"type": "string"}]}, {"anyOf": [{"type": "string"}]}, True),
    ],
)
def test_parts_that_pydantic_does_not_write(part: Any, sent: Any, strict: bool) -> None:
    """A JSON schema of a user can have `true` and `false` as parts, and keywords that OpenAI accepts without `strict`."""
    made = fitted({"type": "object", "properties": {"a": part}}, "openai")
    assert (made.schema and made.schema["properties"]["a"], made.strict) == (sent, strict)
