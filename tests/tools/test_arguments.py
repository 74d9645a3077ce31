"""What a model reads if its arguments do not fit, and what a tool gets if they do."""

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from agentflow.errors import ToolArgumentError, UsageError
from agentflow.tools import Tool, tool
from agentflow.tools.schema_tools import external_tool
from agentflow.vocabulary.messages import ToolUseBlock


class Item(BaseModel):
    title: str
    count: int = 1
    parts: list["Item"] = []


@tool
async def order(item: Item, colour: Literal["red", "blue"], size: int | bool = 1) -> str:
    return f"{item.title} {colour} {size}"


@tool
async def ping() -> str:
    return "pong"


def refusal(made: Tool, raw: str) -> str:
    with pytest.raises(ToolArgumentError) as caught:
        made.validate(ToolUseBlock.from_json("t1", made.name, raw))
    with pytest.raises(ToolArgumentError) as started:
        made.start(ToolUseBlock.from_json("t1", made.name, raw), None)
    assert str(started.value) == str(caught.value)
    return str(caught.value)


KEYS = "The arguments must be a JSON object with the keys item, colour, size (optional)."


def test_malformed_json_says_where_and_what_is_expected() -> None:
    """Text that does not parse is refused with its position, and never becomes an empty object."""
    assert refusal(order, '{"item": ') == (
        "Tool 'order' was not run: its arguments are not valid JSON (EOF while parsing a value at line 1 column 9). "
        + KEYS
    )
    assert refusal(ping, "{") == (
        "Tool 'ping' was not run: its arguments are not valid JSON (EOF while parsing an object at line 1 column 1). "
        "The arguments must be a JSON object without keys: the tool takes no arguments."
    )


@tool
async def scale(by: float, what: Any = None, most: float = float("inf")) -> str:
    return f"{by} {what} {most}"


@pytest.mark.parametrize(
    ("raw", "number", "place"),
    [
        ('{"by": NaN}', "NaN", "line 1 column 8"),
        (' {"by": -1e999}', "-1e999", "line 1 column 9"),
        ('{"by": 1, "what": [{"x": Infinity}]}', "Infinity", "line 1 column 26"),
        ('{"what": "NaN \\" 1e999",\n "by": ' + "9" * 400 + ".5}", "9" * 40, "line 2 column 8"),
        ('{"what": {"NaN": ' + "9" * 400 + '}, "by": 1E999}', "1E999", "line 1 column 427"),
    ],
)
def test_numbers_that_json_does_not_know(raw: str, number: str, place: str) -> None:
    """They are malformed JSON in any place, also where any value is legal; the model reads the place."""
    assert refusal(scale, raw) == (
        f"Tool 'scale' was not run: its arguments are not valid JSON ({number} at {place} is not a JSON number or does "
        "not fit a float). The arguments must be a JSON object with the keys by, what (optional), most (optional)."
    )


class Extra(BaseModel):
    title: str


@tool
async def shelve(item: Extra, tags: list[str], count: int = 1, by: dict[str, bool] | None = None) -> str:
    return item.title


@tool
async def label(text: str, size: Literal[1, 2] = 1, flags: dict[str, list[bool]] | None = None) -> str:
    return text


NESTED = ['{{"item": {{"title": "x", "more": {0}}}, "tags": []}}', '{{"item": {{"title": "x"}}, "tags": [{0}]}}']


@pytest.mark.parametrize("number", ["NaN", "1e999"])
@pytest.mark.parametrize(
    ("made", "raw"),
    [
        *[(shelve, raw) for raw in NESTED],
        (shelve, '{{"item": {{"title": "x"}}, "tags": [], "count": {0}}}'),
        (shelve, '{{"item": {{"title": "x"}}, "tags": [], "by": {{"a": {0}}}}}'),
        (label, '{{"text": {0}}}'),
        (label, '{{"text": "x", "size": {0}}}'),
        (label, '{{"text": "x", "flags": {{"a": [{0}]}}}}'),
        (label, '{{"text": "x", "other": {0}}}'),
        (ping, '{{"other": {0}}}'),
    ],
)
def test_no_tool_runs_with_one(made: Tool, raw: str, number: str) -> None:
    """Whatever the types are, a call that holds such a number does not run."""
    assert refusal(made, raw.format(number)).startswith(f"Tool {made.name!r} was not run: its arguments ")


async def test_what_is_refused_as_a_number_is_fine_as_text() -> None:
    """Words in strings are allowed; a default that JSON cannot hold is the tool's own, and is not shown to the model."""
    text = '  {"by": 1e308, "what": ["NaN", {"Infinity": 12345678901234567890123}]}'
    assert await scale.start(ToolUseBlock.from_json("t1", "scale", text), None) == (
        "1e+308 ['NaN', {'Infinity': 12345678901234567890123}] inf"
    )
    assert scale.spec.parameters["properties"]["most"] == {"type": "number"}


def test_a_schema_that_is_not_json() -> None:
    """A schema goes to the provider as it is, so it must be JSON."""
    with pytest.raises(
        UsageError,
        match=r"parameters= contains a value that is not JSON \(Infinity at line 1 column 31 is not a JSON number",
    ):
        external_tool("x", "", parameters={"properties": {"a": {"default": float("inf")}}})


@pytest.mark.parametrize(
    ("raw", "kind"), [("[1]", "array"), ('"x"', "string"), ("3", "number"), ("true", "boolean"), ("null", "null")]
)
def test_json_that_is_no_object_is_named(raw: str, kind: str) -> None:
    """An array is not read as positional arguments, nor anything else as arguments."""
    assert refusal(order, raw) == f"Tool 'order' was not run: its arguments are a JSON {kind}. {KEYS}"


def test_each_wrong_field_is_named_with_what_was_expected_and_what_came() -> None:
    """Paths lead into models and lists; a union is one line; unknown and missing keys list the known ones."""
    raw = json.dumps({"item": {"count": "many", "parts": [{"title": 3}]}, "size": "q", "color": "red"})
    assert refusal(order, raw) == (
        "Tool 'order' was not run: its arguments do not fit.\n"
        "- item.title: is missing\n"
        '- item.count: should be a valid integer, unable to parse string as an integer; got "many"\n'
        "- item.parts[0].title: should be a valid string; got 3\n"
        "- colour: is missing\n"
        "- size: should be a valid integer, unable to parse string as an integer or should be a valid boolean, unable "
        'to interpret input; got "q"\n'
        "- color: is not known here\n" + KEYS
    )


def test_a_wrong_value_alone_does_not_list_the_keys() -> None:
    """The message stays short where the keys are not the problem."""
    assert refusal(order, '{"item": {"title": "a"}, "colour": "green"}') == (
        "Tool 'order' was not run: its arguments do not fit.\n- colour: should be 'red' or 'blue'; got \"green\""
    )


def test_long_values_and_many_problems_are_cut() -> None:
    """At most ten problems are listed, and sixty characters of each value."""

    @tool
    async def many(numbers: list[int]) -> None: ...

    text = refusal(many, json.dumps({"numbers": ["x" * 500] * 13}))
    lines = text.splitlines()
    assert len(lines) == 12
    assert lines[1].endswith('; got "' + "x" * 59 + "…")
    assert lines[-1] == "- and 3 more"


def test_errors_of_a_user_validator_are_told() -> None:
    """The words of a validator in an annotation reach the model."""

    class Even(BaseModel):
        n: Annotated[int, Field(multiple_of=2)]

    @tool
    async def halve(even: Even, at_most: Annotated[int, Field(le=5)] = 5) -> int:
        return even.n // 2

    assert refusal(halve, '{"even": {"n": 3}, "at_most": 9}') == (
        "Tool 'halve' was not run: its arguments do not fit.\n"
        "- even.n: should be a multiple of 2; got 3\n"
        "- at_most: should be less than or equal to 5; got 9"
    )


async def run(made: Tool, tool_use: ToolUseBlock) -> Any:
    work = made.start(tool_use, None)
    return await work  # type: ignore[misc]


@pytest.mark.parametrize("raw", ["", "  \n", "{}"])
async def test_empty_text_means_no_arguments(raw: str) -> None:
    """Providers send nothing for a tool without arguments; a required one is then missing."""
    assert await run(ping, ToolUseBlock.from_json("t1", "ping", raw)) == "pong"
    assert refusal(order, raw) == (
        f"Tool 'order' was not run: its arguments do not fit.\n- item: is missing\n- colour: is missing\n{KEYS}"
    )


async def test_arguments_become_the_annotated_types() -> None:
    """Models, dataclasses and typed dicts are built, and JSON's lax forms are taken (`"3"` for an integer)."""

    @dataclass
    class Point:
        x: int

    class Options(TypedDict, total=False):
        deep: bool

    @tool
    async def take(item: Item, point: Point, options: Options, n: int) -> list[object]:
        return [item, point, options, n]

    raw = '{"item": {"title": "a"}, "point": {"x": 1}, "options": {"deep": true}, "n": "3"}'
    assert await run(take, ToolUseBlock.from_json("t1", "take", raw)) == [Item(title="a"), Point(1), {"deep": True}, 3]


async def test_a_call_built_from_values_is_checked_like_one_from_text() -> None:
    """Arguments that a hook sets pass the same check."""
    assert await run(order, ToolUseBlock("t1", "order", {"item": {"title": "a"}, "colour": "red"})) == "a red 1"
    with pytest.raises(ToolArgumentError, match="- colour: should be 'red' or 'blue'; got \"green\""):
        order.validate(ToolUseBlock("t1", "order", {"item": {"title": "a"}, "colour": "green"}))


def test_values_that_json_cannot_hold_are_refused_as_arguments() -> None:
    """A hook's odd value is reported like a model's."""
    with pytest.raises(ToolArgumentError) as caught:
        order.validate(ToolUseBlock("t1", "order", {"item": object()}))
    assert str(caught.value) == (
        "Tool 'order' was not run: its arguments cannot be read (Unable to serialize unknown type: <class 'object'>). "
        + KEYS
    )


def test_half_a_surrogate_pair_is_refused_in_words() -> None:
    """Text that no encoding holds is an argument error, not a crash."""
    assert refusal(order, '{"item": "\ud800"}') == (
        "Tool 'order' was not run: its arguments contain half of a surrogate pair, which cannot be encoded. " + KEYS
    )
    assert refusal(order, r'{"item": "\ud800"}').startswith(
        "Tool 'order' was not run: its arguments are not valid JSON ("
    )


async def test_an_alias_is_what_the_model_writes() -> None:
    """`Field(alias=...)` names the argument for the model, the parameter for Python."""

    @tool
    async def search(from_: Annotated[str, Field(alias="from", description="Where to start")]) -> str:
        return from_

    assert search.spec.parameters["properties"] == {"from": {"type": "string", "description": "Where to start"}}
    assert await run(search, ToolUseBlock.from_json("t1", "search", '{"from": "a"}')) == "a"


class Nested(TypedDict):
    names: list[str]
    scores: dict[str, float]


@tool
async def echo(
    text: str, number: int, ratio: float, flag: bool, maybe: str | None, nested: Nested, kind: Literal["a", "b"] = "a"
) -> dict[str, object]:
    return {
        "text": text,
        "number": number,
        "ratio": ratio,
        "flag": flag,
        "maybe": maybe,
        "nested": nested,
        "kind": kind,
    }


texts = st.text(st.characters(exclude_categories=["Cs"]))
floats = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.fixed_dictionaries(
        {
            "text": texts,
            "number": st.integers(),
            "ratio": floats,
            "flag": st.booleans(),
            "maybe": st.none() | texts,
            "nested": st.fixed_dictionaries(
                {
                    "names": st.lists(texts, max_size=4),
                    "scores": st.dictionaries(texts, floats, max_size=4),
                }
            ),
            "kind": st.sampled_from(["a", "b"]),
        }
    )
)
async def test_well_typed_arguments_arrive_unchanged(arguments: dict[str, Any]) -> None:
    """Whatever fits the signature reaches the function as it was, from text and from values alike."""
    assert await run(echo, ToolUseBlock.from_json("t1", "echo", json.dumps(arguments))) == arguments
    assert await run(echo, ToolUseBlock("t1", "echo", arguments)) == arguments


leaves = st.none() | st.booleans() | st.integers() | st.text()
documents = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)).map(json.dumps)


@given(st.text() | documents)
def test_any_text_either_fits_or_is_refused_in_words(raw: str) -> None:
    """No text of a model makes anything but an argument error, and each names the tool."""
    told = "Tool 'order' was not run: its arguments"
    try:
        order.validate(ToolUseBlock.from_json("t1", "order", raw))
    except ToolArgumentError as error:
        told = str(error)
    assert told.startswith("Tool 'order' was not run: its arguments")
