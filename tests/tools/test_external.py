"""Tools that are only a schema: made, shown, checked, and never run."""

import json
from collections.abc import Callable
from contextlib import nullcontext as does_not_raise
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import pytest
from pydantic import BaseModel, RootModel
from typing_extensions import TypedDict

from agentflow.errors import ToolArgumentError, ToolContractError, UsageError
from agentflow.tools import Tool, ToolContext, external_tool, tool
from agentflow.vocabulary.messages import ToolUseBlock


@tool(external=True, type="read", tags=["ui"])
async def pick_color(title: str, colors: list[str]) -> str:
    """Let the user pick a color.

    Args:
        title: What stands above the colors.
        colors: What can be picked.
    """
    raise AssertionError("it ran")


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1},
        "unit": {"enum": ["C", "F"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "places": {"type": "array", "items": {"$ref": "#/$defs/Place"}},
        "either": {"oneOf": [{"$ref": "#/$defs/Place"}, {"type": "integer"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"Place": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
}


def forecast() -> Tool:
    return external_tool("forecast", "Ask the weather office.", SCHEMA)


def refused(make: Callable[[], object], error: type[Exception] = UsageError) -> str:
    with pytest.raises(error) as caught:
        make()
    return str(caught.value)


def wrong(made: Tool, raw: str | dict[str, Any]) -> list[str]:
    text = raw if isinstance(raw, str) else json.dumps(raw)
    return refused(lambda: made.validate(ToolUseBlock.from_json("t1", made.name, text)), ToolArgumentError).splitlines()


def test_an_external_function_is_read_and_never_run() -> None:
    """Signature and docstring give the schema; direct calls and `start` say that there is nothing to run."""
    assert (pick_color.external, pick_color.timeout, pick_color.type, pick_color.tags) == (True, None, "read", {"ui"})
    assert pick_color.spec.description == "Let the user pick a color."
    assert pick_color.spec.parameters["properties"]["title"] == {
        "type": "string",
        "description": "What stands above the colors.",
    }
    told = (
        "Tool 'pick_color' is external: it cannot run, since its calls are answered from outside. Check arguments with "
        "validate(tool_use); for a function that runs, leave out external=True."
    )
    use = ToolUseBlock("t1", "pick_color", {"title": "One", "colors": ["red"]})
    assert refused(lambda: pick_color.start(use, None)) == told
    assert refused(lambda: pick_color("One", [])) == told
    pick_color.validate(use)
    assert wrong(pick_color, {"title": 1, "colour": []}) == [
        "Tool 'pick_color' was not run: its arguments do not fit.",
        "- title: should be a valid string; got 1",
        "- colors: is missing",
        "- colour: is not known here",
        "The arguments must be a JSON object with the keys title, colors.",
    ]


def test_external_methods_are_bound() -> None:
    """`self` is nothing that the model fills."""

    class Screen:
        @tool(external=True)
        async def confirm(self, text: str) -> bool: ...  # type: ignore[empty-body]

    made = Screen().confirm.prepare()
    assert (list(made.spec.parameters["properties"]), made.external) == (["text"], True)
    assert refused(lambda: made("sure?")).startswith("Tool 'confirm' is external: it cannot run")


async def ask(question: str) -> str: ...  # type: ignore[empty-body]
async def pieces(question: str):  # type: ignore[no-untyped-def]
    yield question


def blocking(question: str) -> str:
    return question


@pytest.mark.parametrize(
    ("make", "what", "why"),
    [
        (
            lambda: Tool(blocking, external=True, in_thread=True),
            "in_thread=True",
            "its function never runs, so there is nothing to move to a thread",
        ),
        (
            lambda: Tool(ask, external=True, lock=True),
            "lock=True",
            "its function never runs, so there is nothing to lock",
        ),
        (
            lambda: Tool(ask, external=True, retries=2),
            "retries=2",
            "its function never runs, so there is nothing to try again",
        ),
        (
            lambda: Tool(ask, external=True, requires_approval=True),
            "requires_approval=True",
            "its calls always wait for an answer",
        ),
        (
            lambda: Tool(pieces, external=True),
            "`yield`",
            "an answer is one value; make it a coroutine function",
        ),
        (
            lambda: Tool(ask, external=True, timeout=5),
            "timeout=",
            "its function never runs, so there is nothing to limit; limit the wait in the code that answers",
        ),
        (
            lambda: Tool(ask, external=True, fixed={"question": "?"}),
            "fixed arguments",
            "its function never runs, so there is nothing to pass question to",
        ),
    ],
)
def test_options_about_running_are_refused(make: Callable[[], object], what: str, why: str) -> None:
    """What would be ignored is an error, with the reason."""
    name = "blocking" if "thread" in what else "pieces" if "yield" in what else "ask"
    told = f"Tool {name!r} has external=True together with {what}: {why}. Leave one of them out."
    assert refused(make) == told


def test_injected_parameters_are_refused() -> None:
    """Nothing runs that they could be filled into."""

    @tool(external=True)
    async def look(where: str, context: ToolContext) -> str: ...  # type: ignore[empty-body]

    assert refused(look.prepare) == (
        "Tool 'look' is external: its function never runs, so nothing can be filled into context. Leave such parameters "
        "out."
    )


def test_a_json_schema_is_shown_as_it_is_and_cannot_be_changed_afterwards() -> None:
    """What the caller does with the mapping later is nothing to the tool."""
    given = json.loads(json.dumps(SCHEMA))
    made = external_tool("forecast", "Ask.", MappingProxyType(given), type="research", tags="web", idempotent=True)
    given["properties"].clear()
    assert made.spec.parameters == SCHEMA
    assert (made.spec.description, made.type, made.tags, made.idempotent) == ("Ask.", "research", {"web"}, True)
    assert (made.external, made.prepare().wants_context, made.dep_types, made.contract is None) == (
        True,
        False,
        {},
        False,
    )
    assert external_tool("now", "The time.", {}).spec.parameters == {"type": "object", "properties": {}}
    assert repr(made) == "Tool('forecast', type='research')"
    again = tool(made.function, name="weather")
    assert (again.external, again.spec.parameters) == (True, SCHEMA)


@pytest.mark.parametrize(
    "fits",
    [
        {"city": "Rome"},
        {"city": "Rome", "days": 2, "unit": "C", "note": None, "places": [{"x": 1}, {"x": 0.5}], "either": 3},
        {"city": "Rome", "either": {"x": 1}},
    ],
)
def test_arguments_that_fit_a_json_schema_pass(fits: dict[str, Any]) -> None:
    """References inside the schema are followed."""
    with does_not_raise():
        forecast().validate(ToolUseBlock("t1", "forecast", fits))


def test_arguments_that_do_not_fit_a_json_schema_are_explained_by_field() -> None:
    """In the same words as for a tool with a signature."""
    start = "Tool 'forecast' was not run: its arguments do not fit."
    keys = "city, days (optional), unit (optional), note (optional), places (optional), either (optional)"
    expected = f"The arguments must be a JSON object with the keys {keys}."
    assert wrong(forecast(), {"days": "two", "town": 1}) == [
        start,
        '- days: should be an integer; got "two"',
        "- city: is missing",
        "- town: is not known here",
        expected,
    ]
    assert wrong(
        forecast(),
        {
            "city": None,
            "days": 0,
            "unit": "K",
            "note": 5,
            "places": [{"x": 1}, {"y": 1}, {"x": "a"}],
            "either": "z",
        },
    ) == [
        start,
        "- city: should be a string; got null",
        "- days: 0 is less than the minimum of 1",
        '- unit: should be "C" or "F"; got "K"',
        "- note: should be a string or null; got 5",
        "- places[1].x: is missing",
        '- places[2].x: should be a number; got "a"',
        '- either: should be an object or an integer; got "z"',
        expected,
    ]
    assert wrong(forecast(), {"city": "a", "either": {"x": "b"}}) == [
        start,
        '- either.x: should be a number; got "b"',
    ]
    assert wrong(forecast(), '{"city": "a"') == [
        "Tool 'forecast' was not run: its arguments are not valid JSON (EOF while parsing an object at line 1 column 12). "
        + expected
    ]
    assert wrong(forecast(), "[1]") == [f"Tool 'forecast' was not run: its arguments are a JSON array. {expected}"]


def test_empty_text_means_no_arguments() -> None:
    """That is how some providers send a call without arguments."""
    external_tool("now", "The time.", {}).validate(ToolUseBlock.from_json("t1", "now", ""))
    assert "- city: is missing" in wrong(forecast(), "")


class Where(BaseModel):
    x: float
    y: float = 0.0


class Delivery(BaseModel):
    """A class's docstring is not the tool's."""

    to: list[Where]
    speed: Literal["slow", "fast"] = "slow"


class Tree(BaseModel):
    """A tree."""

    leaves: list["Tree"] = []


@dataclass
class Point:
    x: int


class Pair(TypedDict):
    left: int


def test_a_pydantic_model_gives_the_schema_and_the_check() -> None:
    """With its own rules, explained as ever."""
    made = external_tool("deliver", "Deliver.", Delivery)
    assert made.spec.description == "Deliver."
    assert made.spec.parameters == {
        "type": "object",
        "properties": {
            "to": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"x": {"type": "number"}, "y": {"type": "number", "default": 0.0}},
                    "required": ["x"],
                },
            },
            "speed": {"type": "string", "enum": ["slow", "fast"], "default": "slow"},
        },
        "required": ["to"],
    }
    made.validate(ToolUseBlock("t1", "deliver", {"to": [{"x": 1}]}))
    assert wrong(made, {"to": [{"y": 1}], "speed": "no"}) == [
        "Tool 'deliver' was not run: its arguments do not fit.",
        "- to[0].x: is missing",
        "- speed: should be 'slow' or 'fast'; got \"no\"",
    ]
    assert wrong(made, "3") == [
        (
            "Tool 'deliver' was not run: its arguments are a JSON number. The arguments must be a JSON object with the "
            "keys to, speed (optional)."
        )
    ]


def test_other_classes_that_are_objects_in_json_will_do() -> None:
    """Dataclasses, typed dicts, and models that contain themselves."""
    for kind, name in ((Point, "x"), (Pair, "left"), (Tree, "leaves")):
        made = external_tool("take", "Take.", kind)
        assert list(made.spec.parameters["properties"]) == [name]
        assert made.spec.parameters["type"] == "object"
        assert len(wrong(made, {name: {}})) >= 2
    external_tool("take", "Take.", Tree).validate(ToolUseBlock("t1", "take", {"leaves": [{"leaves": []}]}))


class Numbers(RootModel[list[int]]):
    """Not an object."""


CASES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: external_tool("x", "", {"type": "array"}),
        (
            "Tool 'x': the arguments of a tool are a JSON object, and its schema describes 'array'. Wrap it: {'type': "
            "'object', 'properties': {...}}."
        ),
    ),
    (
        lambda: external_tool("x", "", Numbers),
        (
            "Tool 'x': the arguments of a tool are a JSON object, and its schema describes 'array'. Wrap it: {'type': "
            "'object', 'properties': {...}}."
        ),
    ),
    (
        lambda: external_tool("x", "", [1]),  # type: ignore[arg-type]
        "Tool 'x': parameters= takes a JSON schema (a mapping) or a pydantic model's class, not list.",
    ),
    (
        lambda: external_tool("x", "", {"properties": {"a": object}}),
        (
            "Tool 'x': parameters= contains a value that is not JSON (type <class 'object'>). Use only values "
            "that json.dumps accepts."
        ),
    ),
    (
        lambda: external_tool("x", "", {"properties": {"a": {"type": "strin"}}}),
        (
            "Tool 'x': its JSON schema cannot be used: it must be one or several of array, boolean, integer, null, number, "
            "object, string, not 'strin' (at #/properties/a/type)."
        ),
    ),
    (
        lambda: external_tool("x", "", {"properties": {"a": {"$ref": "#/$defs/A"}}}),
        (
            "Tool 'x': its JSON schema cannot be used: it refers to '#/$defs/A', which is not in it. Inline the "
            "referenced schema: nothing is fetched."
        ),
    ),
    (
        lambda: external_tool("x", "", {"properties": {"a": {"$ref": "http://localhost:1/a.json"}}}),
        (
            "Tool 'x': its JSON schema cannot be used: it refers to 'http://localhost:1/a.json', which is not in it. Inline "
            "the referenced schema: nothing is fetched."
        ),
    ),
    (
        lambda: external_tool("no name", "", {}),
        (
            "A tool cannot be named 'no name': providers require a letter or _ first, then letters, digits, _ or -, 64 at "
            'most. Name it: @tool(name="...").'
        ),
    ),
]


@pytest.mark.parametrize(("make", "text"), CASES)
def test_what_is_no_schema_of_arguments_is_refused(make: Callable[[], object], text: str) -> None:
    """Early where it can be seen early."""
    assert refused(make) == text


def test_memory_writes_have_something_to_fill_here_too() -> None:
    """The contract of a type holds for a tool without a function."""
    told = (
        "Tool 'keep' has type='memory_write' and has none. Such a tool has at least one parameter that the model fills."
    )
    assert refused(external_tool("keep", "Keep.", {}, type="memory_write").prepare, ToolContractError) == told
    made = external_tool("done", "Is it done?", {}, type="completion_check").prepare()
    assert made.checked(True) is True
    assert "returned 1 (int)" in refused(lambda: made.checked(1), ToolContractError)
