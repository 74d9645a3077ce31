"""Tools whose arguments a JSON schema describes, and which run."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from agentflow import ActingChunk, Agent, ToolUseBlock
from agentflow._support.json_schema import JsonSchema
from agentflow.errors import ToolArgumentError, UsageError
from agentflow.testing import ScriptedModel
from agentflow.tools import Tool, ToolContext, external_tool, schema_tool
from agentflow.tools.schema_arguments import SchemaArguments
from agentflow.vocabulary.specs import ToolSpec

SCHEMA = {
    "type": "object",
    "properties": {"context": {"type": "string"}, "self": {"type": "number"}, "class": {"type": "boolean"}},
    "required": ["context"],
    "additionalProperties": False,
}


async def run(arguments: dict[str, Any], context: ToolContext) -> str:
    await context.emitter.emit("half")
    return f"{arguments} in attempt {context.attempt}"


async def test_it_runs_with_the_whole_mapping() -> None:
    """Any name may be in the schema, even the names of Python and of the function's own parameters."""
    look = schema_tool("look", "Look.", SCHEMA, run, type="read", tags=["far"])
    use = ToolUseBlock("t1", "look", {"context": "sky", "self": 1, "class": True})
    agent = Agent("a", ScriptedModel([use, "Seen."]), tools=[look])
    pieces = [event.chunk async for event in agent.stream("Look").of_type(ActingChunk)]
    assert pieces == ["half"]
    result = agent.session().messages[2].tool_results[0]
    assert (result.state, result.text) == ("success", "{'context': 'sky', 'self': 1, 'class': True} in attempt 1")
    assert (look.spec.parameters, look.type, look.tags) == (SCHEMA, "read", frozenset({"far"}))


async def test_what_does_not_fit_goes_to_the_model() -> None:
    """Missing, unknown and mistyped arguments, and text that is no JSON: the tool does not run."""
    ran: list[object] = []

    async def never(arguments: dict[str, Any], context: ToolContext) -> None:
        ran.append(arguments)

    look = schema_tool("look", "Look.", SCHEMA, never)
    calls = [
        ToolUseBlock("t1", "look", {"self": "x", "more": 1}),
        ToolUseBlock.from_json("t2", "look", '{"context": '),
        ToolUseBlock.from_json("t3", "look", '{"context": "a", "self": NaN}'),
    ]
    agent = Agent("a", ScriptedModel([calls, "No."]), tools=[look])
    await agent.call("Look")
    results = agent.session().messages[2].tool_results
    assert [(result.state, "its arguments" in result.text) for result in results] == [("error", True)] * 3
    assert ran == []


class Place(BaseModel):
    at: str


PLACE: dict[str, Any] = {"type": "object", "properties": {"at": {"type": "string"}}}
ANYTHING: dict[str, Any] = {"$ref": "#/definitions/any", "type": "string"}
PREFIX: dict[str, Any] = {"prefixItems": [{}], "items": {"type": "string"}}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"any": {}}}


@pytest.mark.parametrize("number", ["NaN", "[-Infinity]", '{"x": 1e999}'])
@pytest.mark.parametrize(
    "schema",
    [
        Place,
        PLACE,
        {**PLACE, "additionalProperties": True},
        {**PLACE, "additionalProperties": False, "patternProperties": {"^more": {}}},
        {"additionalProperties": False, "properties": {"at": {"type": "string"}, "more": {"type": "array", **PREFIX}}},
        {"additionalProperties": False, "properties": {"at": {"type": "string"}, "more": ANYTHING}, **DRAFT_7},
    ],
)
async def test_numbers_that_json_does_not_know_are_malformed_wherever_the_schema_allows_any_value(
    schema: Any, number: str
) -> None:
    """Also in arguments that the schema does not name, which the function receives too."""
    look = schema_tool("look", "Look.", schema, run)
    with pytest.raises(ToolArgumentError, match="was not run: its arguments"):
        look.start(ToolUseBlock.from_json("t1", "look", f'{{"at": "here", "more": {number}}}'), None)


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (lambda: 1, "too many positional arguments"),
        (lambda a, b, c: 1, "missing a required argument: 'c'"),
        (lambda arguments, *, context: 1, "too many positional arguments"),
        (5, "it is 5"),
        (dict, "it is <class 'dict'>"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused(run: Any, problem: str) -> None:
    """When the tool is made, not when a model calls it."""
    with pytest.raises(UsageError, match=rf"schema_tool\('look'\) takes a function .*{problem}.* Write async def"):
        schema_tool("look", "Look.", SCHEMA, run)


@pytest.mark.parametrize("maker", [schema_tool, external_tool, ToolSpec])
def test_the_defaults_are_those_of_every_tool(maker: Callable[..., Any]) -> None:
    """An option that is not given means the same, whatever makes the tool."""
    same = inspect.signature(Tool).parameters
    shared = {
        name: parameter.default
        for name, parameter in inspect.signature(maker).parameters.items()
        if name in same and parameter.kind is parameter.KEYWORD_ONLY
    }
    assert shared
    assert {name: frozenset(value) if name == "tags" else value for name, value in shared.items()} == {
        name: frozenset() if name == "tags" else same[name].default for name in shared
    }
    assert ToolSpec("x").streaming is False


def test_only_a_json_schema_costs_steps() -> None:
    """What pydantic checks is not counted."""
    costs = [SchemaArguments("look", given).cost for given in (Place, {"properties": {"at": {"type": "string"}}})]
    assert costs == [0, JsonSchema({"type": "object", "properties": {"at": {"type": "string"}}}).cost]
