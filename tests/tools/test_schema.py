"""The schema and the texts of a tool for a model."""

import enum
import inspect
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import griffe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, WithJsonSchema
from pydantic.experimental.arguments_schema import generate_arguments_schema
from pydantic_core import SchemaValidator
from thorough import THOROUGH
from typing_extensions import TypedDict

from agentflow.errors import UsageError
from agentflow.tools import ToolContext, tool
from agentflow.tools.plain_types import plain_schemas
from agentflow.tools.schema import json_schema, read_docstring


class Mood(enum.Enum):
    """How it feels."""

    GOOD = "good"
    BAD = "bad"


class Address(BaseModel):
    """Where somebody lives."""

    street: str
    title: str = Field("Home", title="A title", description="What to call it")


@dataclass
class Point:
    x: int
    y: int = 0


class Filter(TypedDict, total=False):
    deep: bool


class Node(BaseModel):
    name: str
    children: list["Node"] = []


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
ADDRESS = {
    "type": "object",
    "description": "Where somebody lives.",
    "properties": {
        "street": {"type": "string"},
        "title": {"type": "string", "default": "Home", "description": "What to call it"},
    },
    "required": ["street"],
}


@tool
async def everything(
    name: str,
    mood: Mood,
    address: Address,
    point: Point,
    where: Filter,
    size: Literal["s", "m"] = "s",
    only: Literal["x"] = "x",
    pet: Pet | None = None,
    old: Address | None = None,
    tags: list[str] | None = None,
    anything: list[Any] = [],  # noqa: B006 - mutable defaults are what users write
    pair: tuple[int, str] = (1, "a"),
    by_name: dict[Literal["a"], int] | None = None,
    ratio: Annotated[float, Field(description="From the field", ge=0)] = 0.5,
) -> None:
    """Do it all.

    At some length.

    Args:
        name: Whose it is,
            told at length.
        mood: From the docstring.
        ratio: From the docstring, further away.
        gone: Nobody has this one.

    Returns:
        Nothing.
    """


def test_the_schema_of_every_kind_of_parameter() -> None:
    """No references, titles, constants, `oneOf` or arrays without items; the nearest description wins."""
    cat = {"type": "object", "properties": {"kind": {"type": "string", "enum": ["cat"]}}, "required": ["kind"]}
    dog = {"type": "object", "properties": {"kind": {"type": "string", "enum": ["dog"]}}, "required": ["kind"]}
    assert everything.spec.parameters == {
        "type": "object",
        "properties": {
            "name": {"type": "string", "description": "Whose it is, told at length."},
            "mood": {"type": "string", "enum": ["good", "bad"], "description": "From the docstring."},
            "address": ADDRESS,
            "point": {
                "type": "object",
                "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
                "required": ["x"],
            },
            "where": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
            "size": {"type": "string", "enum": ["s", "m"], "default": "s"},
            "only": {"type": "string", "enum": ["x"], "default": "x"},
            "pet": {"anyOf": [{"anyOf": [cat, dog]}, {"type": "null"}], "default": None},
            "old": {"anyOf": [ADDRESS, {"type": "null"}], "default": None},
            "tags": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
            "anything": {"type": "array", "items": {}, "default": []},
            "pair": {
                "type": "array",
                "items": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
                "minItems": 2,
                "maxItems": 2,
                "default": [1, "a"],
            },
            "by_name": {
                "anyOf": [{"type": "object", "additionalProperties": {"type": "integer"}}, {"type": "null"}],
                "default": None,
            },
            "ratio": {"type": "number", "minimum": 0, "default": 0.5, "description": "From the field"},
        },
        "required": ["name", "mood", "address", "point", "where"],
    }
    assert everything.spec.description == "Do it all.\n\nAt some length."


def test_an_all_of_with_one_member_is_that_member() -> None:
    """Its keywords are beside it, and those of the parameter win; several members stay."""
    one = {"allOf": [{"type": "string", "maxLength": 3, "minLength": 1}], "minLength": 2}
    two = {"allOf": [{"type": "string"}, {"maxLength": 3}]}

    @tool
    async def keep(
        short: Annotated[str, WithJsonSchema(one)],
        both: Annotated[str, WithJsonSchema(two)],
    ) -> None: ...

    assert keep.spec.parameters["properties"] == {
        "short": {"type": "string", "maxLength": 3, "minLength": 2},
        "both": two,
    }


def test_only_a_type_that_contains_itself_keeps_a_reference() -> None:
    """Its definition comes along."""

    @tool
    async def grow(tree: Node) -> None: ...

    node = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}, "default": []},
        },
        "required": ["name"],
    }
    assert grow.spec.parameters == {
        "type": "object",
        "properties": {"tree": node},
        "required": ["tree"],
        "$defs": {"Node": node},
    }


def test_no_parameters_are_an_empty_object() -> None:
    """Every provider wants `properties`."""

    @tool
    async def ping() -> str:
        return "pong"

    assert ping.spec.parameters == {"type": "object", "properties": {}}
    assert ping.spec.description == ""


@tool
async def google(path: str, deep: bool = False) -> None:
    """Read a file.

    Args:
        path: The file.
        deep (bool): Follow links.

    Raises:
        OSError: It is not there.
    """


@tool
async def numpy(path: str, deep: bool = False) -> None:
    """Read a file.

    Parameters
    ----------
    path : str
        The file.
    deep
        Follow links.

    Returns
    -------
    None
    """


@tool
async def sphinx(path: str, deep: bool = False) -> None:
    """Read a file.

    :param path: The file.
    :param bool deep: Follow links.
    """


@pytest.mark.parametrize("made", [google, numpy, sphinx])
def test_docstrings_of_three_styles(made: Any) -> None:
    """Google, NumPy and Sphinx docstrings give the same words."""
    assert made.spec.description == "Read a file."
    assert {name: p["description"] for name, p in made.spec.parameters["properties"].items()} == {
        "path": "The file.",
        "deep": "Follow links.",
    }


def test_a_given_description_replaces_the_docstring_only() -> None:
    """The words on the arguments stay."""
    made = tool(google.function, description="Open it.")
    assert made.spec.description == "Open it."
    assert made.spec.parameters["properties"]["path"]["description"] == "The file."


def test_injected_and_fixed_parameters_are_hidden() -> None:
    """A model sees the parameters that it fills, and no others."""

    @tool(key="secret")
    async def search(query: str, key: str, context: ToolContext) -> AsyncIterator[str]:
        yield query

    assert list(search.spec.parameters["properties"]) == ["query"]
    assert search.spec.parameters["required"] == ["query"]


def test_a_default_that_json_cannot_hold_is_not_shown() -> None:
    """It is still used."""

    class Secret:
        pass

    @tool
    async def take(value: Any = Secret()) -> None: ...  # noqa: B008 - what users write

    assert take.spec.parameters == {"type": "object", "properties": {"value": {}}}


def test_a_parameter_that_no_model_can_fill_is_refused_by_name() -> None:
    """The message names the legal types."""

    @tool
    async def wait(flag: list[enum.EnumType]) -> None: ...

    with pytest.raises(UsageError) as caught:
        wait.prepare()
    assert str(caught.value) == (
        "Tool 'wait': a model cannot fill parameter 'flag': Unable to generate pydantic-core schema for "
        "<class 'enum.EnumType'>. Use types that JSON can describe (str, int, list[...], Literal, Enum, pydantic "
        "models, dataclasses, TypedDict, their unions), ToolContext, ToolEmitter, RunContext, and Dep[X] for objects "
        "from the call's deps=."
    )


def test_a_dataclass_with_a_field_that_has_no_json_form_is_refused() -> None:
    """It is no dependency: `deps=` is never searched for a dataclass without `Dep`."""

    class Door:
        pass

    @dataclass
    class House:
        door: Door

    @tool
    async def enter(house: House) -> None: ...

    with pytest.raises(UsageError, match=r"^Tool 'enter': a model cannot fill parameter 'house': .*Door"):
        enter.prepare()


def test_a_type_without_a_json_schema_is_refused() -> None:
    """Some types can be checked and not described."""

    @tool
    async def wait(call: Callable[[], int]) -> None: ...

    with pytest.raises(UsageError, match=r"^Tool 'wait': no JSON schema can be built for its parameters \("):
        wait.prepare()


def test_griffe_is_loaded_for_docstrings_with_sections_only() -> None:
    """Importing tools, and using one with a plain docstring, does not pay for it."""
    code = """
import sys
from agentflow.tools import tool
@tool
async def plain(a: int) -> None:
    'Do it: now.'
plain.prepare()
assert plain.spec.description == "Do it: now."
assert "griffe" not in sys.modules
@tool
async def rich(a: int) -> None:
    '''Do it.

    Args:
        a: The number.

    Returns:
        Nothing.
    '''
rich.prepare()
assert rich.spec.parameters["properties"]["a"]["description"] == "The number."
assert not {"griffe", "pydantic.json_schema", "pydantic.experimental.arguments_schema"} & set(sys.modules)
@tool
async def richer(a: int) -> None:
    '''Do it.

    Example:
        >>> richer(1)
    '''
richer.prepare()
assert "griffe" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


TEXTS = st.sampled_from(["Add two.", "Note: x", "A list:", "- a", "Returns:", "Args:", "Deprecated."])
DESCRIBED = st.sampled_from(["One.", "x: y", "see http://x.y/z", "- list", "(x) y:", " lead", "trail  ", "Args:"])
ITEMS = st.builds(
    "    {}{}{}{}{}".format,
    st.sampled_from(["a", "b", "*args", "**kw", "c_1"]),
    st.sampled_from(["", " (int)", " (int, optional)", " (dict(a))"]),
    st.sampled_from([": ", ": ", ":", "  : "]),
    DESCRIBED,
    st.sampled_from(["", "", *[f"\n{' ' * n}{more}" for n in (6, 8, 9) for more in ("more", "- b: c", "Returns:")]]),
)
OTHERS = st.builds(
    "{}:\n{}".format,
    st.sampled_from(["Returns", "Raises", "Yields", "Example", "Args"]),
    st.lists(
        st.sampled_from(["    int: x", "    The sum.", "        deep", "    >>> f()"]), min_size=1, max_size=2
    ).map("\n".join),
)
DOCSTRINGS = st.builds(
    lambda before, items, after, gap: gap.join([*before, "Args:\n" + "\n".join(items), *after]),
    st.lists(st.lists(TEXTS, min_size=1, max_size=2).map("\n".join), max_size=2),
    st.lists(ITEMS, min_size=1, max_size=3),
    st.lists(OTHERS, max_size=2),
    st.sampled_from(["\n\n", "\n\n", "\n\n\n", "\n"]),
)


@given(DOCSTRINGS)
@settings(max_examples=300 if THOROUGH else 120, deadline=None)
def test_docstrings_are_read_as_griffe_reads_them(doc: str) -> None:
    """A simple docstring, which is read without griffe, gives the same text and descriptions."""
    texts: list[str] = []
    described: dict[str, str] = {}
    for section in griffe.Docstring(inspect.cleandoc(doc)).parse(griffe.Parser.google, warnings=False):
        if isinstance(section, griffe.DocstringSectionText):
            texts.append(section.value.strip())
        elif isinstance(section, griffe.DocstringSectionParameters):
            described |= {item.name.lstrip("*"): " ".join(item.description.split()) for item in section.value}
    assert read_docstring(doc) == ("\n\n".join(texts), described)


SCALARS = st.sampled_from([str, int, float, bool, Literal["a"], Literal["a", "b"]])
TYPES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        inner.map(lambda kind: list[kind]),
        inner.map(lambda kind: dict[str, kind]),
        inner.map(lambda kind: kind | None),
    ),
    max_leaves=3,
)
DEFAULTS = st.sampled_from([inspect.Parameter.empty, None, "a", 1, 1.5, True])
VALUES = st.recursive(
    st.sampled_from(["a", "b", 1, "1", 1.5, 1.0, True, None, 10**30]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=3,
)


@given(st.lists(st.tuples(TYPES, DEFAULTS), min_size=1, max_size=3), VALUES)
@settings(max_examples=300 if THOROUGH else 120, deadline=None)
def test_plain_types_have_the_schemas_of_pydantic(shown: list[tuple[Any, Any]], value: Any) -> None:
    """The JSON schema is the same text, and the same arguments are valid."""
    hints = {f"p{n}": kind for n, (kind, _) in enumerate(shown)}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        for name, (_, default) in zip(hints, shown, strict=True)
    ]
    found = plain_schemas(parameters, hints)
    assert found is not None

    def take() -> None: ...

    take.__annotations__ = hints
    take.__signature__ = inspect.Signature(parameters)  # type: ignore - functions have no such declared attribute
    core = generate_arguments_schema(take)

    def checked(core: Any) -> str:
        try:
            return repr(SchemaValidator(core).validate_json(json.dumps({"p0": value})))
        except ValueError as error:
            return str(error)

    assert (json.dumps(found[1]), checked(found[0])) == (json.dumps(json_schema(core, {})), checked(core))


@pytest.mark.parametrize(
    ("kind", "default"),
    [(Any, None), (Literal[1], 1), (int | str, 1), (Mood, None), (list[Point], None), (float, float("inf")), (str, ())],
)
def test_other_types_and_defaults_are_left_to_pydantic(kind: Any, default: Any) -> None:
    """One of them is enough."""
    parameters = [
        inspect.Parameter("a", inspect.Parameter.KEYWORD_ONLY),
        inspect.Parameter("b", inspect.Parameter.KEYWORD_ONLY, default=default),
    ]
    assert plain_schemas(parameters, {"a": int, "b": kind}) is None


@pytest.mark.parametrize("wrong", [list[enum.EnumType], dict[str, enum.EnumType], str | enum.EnumType])
def test_the_error_names_the_parameter_that_a_model_cannot_fill(wrong: Any) -> None:
    """It is named alone, whatever stands before and after it."""

    async def find(text: str, flag: Any, most: int) -> str:
        """Find."""
        return ""

    find.__annotations__["flag"] = wrong
    with pytest.raises(UsageError, match="a model cannot fill parameter 'flag': Unable to generate"):
        tool(find).prepare()
