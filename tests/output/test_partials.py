"""Partial answers: ever more complete, each field validated, at a cost that does not grow with what came before."""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import InitVar, dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from itertools import pairwise
from typing import Annotated, Any, NewType, NotRequired, Required

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass as pydantic_dataclass
from typing_extensions import TypeAliasType, TypedDict
from wired import Wired

from agentflow import Agent, Answer, Deny, Output, ToolUseBlock, tool
from agentflow.errors import MissingOutputError, OutputError, UsageError
from agentflow.loop.output import Way
from agentflow.loop.output.partial_json import JsonFeed
from agentflow.loop.output.partials import Partials
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import ScriptedCall, WireReply
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta


class Line(BaseModel):
    item: str
    cents: int = Field(gt=0)


class Invoice(BaseModel):
    customer: str = Field(alias="name")
    lines: list[Line] = []
    rates: dict[str, float] | None = None
    best: Line | None = None


@dataclass(frozen=True)
class Point:
    x: int
    label: str = "?"


class Bill(TypedDict):
    total: int
    note: str


class Kind(Enum):
    TEA = "tea"
    MILK = "milk"


class Recipe(TypedDict):
    title: Annotated[str, Field(max_length=20)]
    serves: NotRequired[Annotated[int, Field(gt=0)]]
    by: NotRequired[Required[str]]


class Named(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    one: str = Field("", validation_alias="uno", serialization_alias="eins")
    two: str = Field("", validation_alias=AliasChoices("due", "zwei", AliasPath("x", 0)))
    three: str = Field("", serialization_alias="drei")


@pydantic_dataclass
class Price:
    cents: int = Field(alias="amount")
    note: InitVar[str] = ""


class Tree(BaseModel):
    name: str
    under: list[Tree] = []


Names = TypeAliasType("Names", list["Names | str"])
Title = NewType("Title", str)


def pour(cups: Annotated[int, Field(gt=0)], tea: str) -> str:
    return f"{cups} {tea}"


SAID: dict[str, Any] = {
    "name": 'Ada "é" \U0001f600\n',
    "lines": [{"item": "tea", "cents": 250}, {"item": "milk", "cents": 90}],
    "rates": {"EUR": 1.0},
    "best": {"item": "tea", "cents": 250},
}
SHOWN: dict[str, Any] = {"customer": SAID["name"], **{key: SAID[key] for key in ("lines", "rates", "best")}}


def grown(output: Any, pieces: Iterable[str]) -> list[Any]:
    """Return copies of the mapping after each chunk that adds something."""
    partials = Partials(Output(output))
    return [deepcopy(dict(partials.value)) for piece in pieces if partials.feed(piece)]


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_however_it_is_cut(size: int, ascii_only: bool) -> None:
    """The last mapping is the whole answer, by the names of the fields, and each before it is a part of it."""
    seen = grown(Invoice, cut("So: " + json.dumps(SAID, ensure_ascii=ascii_only) + " Bye.", size))
    assert seen[-1] == SHOWN
    names = [value.get("customer", "") for value in seen]
    assert all(later.startswith(earlier) for earlier, later in pairwise(names))
    counts = [len(value.get("lines", ())) for value in seen]
    assert counts == sorted(counts)


def test_what_is_shown_when() -> None:
    """Strings grow; a number is shown when it is whole and fits; what is not said, or does not fit, is not there."""
    pieces = ['{"name": "A', 'da", "lines": [{"item": "t', 'ea", "cents": 2', "5}, ", '{"item": "x", "cents": 0', "}]}"]
    assert grown(Invoice, pieces) == [
        {"customer": "A"},
        {"customer": "Ada", "lines": [{"item": "t"}]},
        {"customer": "Ada", "lines": [{"item": "tea"}]},
        {"customer": "Ada", "lines": [{"item": "tea", "cents": 25}]},
        {"customer": "Ada", "lines": [{"item": "tea", "cents": 25}, {"item": "x"}]},
    ]


@pytest.mark.parametrize(
    ("form", "said", "last"),
    [
        (list[int], {"answer": [1, 2, "x"]}, {"answer": [1, 2]}),
        (str | None, {"answer": "words"}, {"answer": "words"}),
        (int | None, {"answer": None}, {"answer": None}),
        (Point, {"x": "1", "label": "a", "z": 3}, {"x": 1, "label": "a"}),
        (Bill, {"total": 1, "note": "n"}, {"total": 1, "note": "n"}),
        (Recipe, {"title": "Tea", "serves": 2, "by": "Ada"}, {"title": "Tea", "serves": 2, "by": "Ada"}),
        (Recipe, {"title": "T" * 21, "serves": 0}, {}),
        (Named, {"uno": "1", "zwei": "2", "three": "3"}, {"one": "1", "two": "2", "three": "3"}),
        (Named, {"eins": "1", "two": "2", "drei": "3"}, {"two": "2"}),
        (Invoice, {"customer": "Ada", "lines": {}}, {}),
        (Price, {"amount": 3, "note": "n"}, {"cents": 3, "note": "n"}),
        (
            Tree,
            {"name": "a", "under": [{"name": "b", "under": []}]},
            {"name": "a", "under": [{"name": "b", "under": []}]},
        ),
        (Names, {"answer": ["a", ["b"]]}, {"answer": ["a", ["b"]]}),
        (Title, {"answer": "a"}, {"answer": "a"}),
        (date, {"answer": "2024-01-02"}, {"answer": "2024-01-02"}),
        (date, {"answer": "never"}, {}),
        (Kind, {"answer": "tea"}, {"answer": "tea"}),
        (Decimal, {"answer": "1.50"}, {"answer": "1.50"}),
        (Point | int, {"answer": {"x": 1}}, {"answer": {"x": 1, "label": "?"}}),
        (Point | int, {"answer": {"y": 1}}, {}),
        (int, {"answer": {"a": 1}}, {}),
        (dict[str, list[int]], {"answer": {"a": [1, "x"]}}, {"answer": {"a": [1]}}),
        (dict[str, Any], {"answer": {"a": [1, "x"]}}, {"answer": {"a": [1, "x"]}}),
        (tuple[int, str], {"answer": [1, "a"]}, {"answer": [1, "a"]}),
        (list[tuple[int, str]], {"answer": [[1, 2], [1, "a"]]}, {"answer": [[1, "a"]]}),
        (dict[str, Point | int], {"answer": {"a": {"x": 1}, "b": {"y": 1}}}, {"answer": {"a": {"x": 1, "label": "?"}}}),
        (pour, {"cups": 0, "tea": "mint"}, {"tea": "mint"}),
    ],
)
def test_forms(form: Any, said: Any, last: Any) -> None:
    """Each kind of type grows where possible, by the names of its fields; at the end there is what fits, as JSON has it."""
    for size in (1, 1000):
        partials = Partials(Output(form))
        for piece in cut(json.dumps(said), size):
            partials.feed(piece)
        assert dict(partials.value) == last


def test_a_union_is_shown_while_it_arrives() -> None:
    """Where the form says nothing of what is inside, the data is shown as it is said."""
    seen = grown(Line | Point, ['{"answer": {"item": "te', 'a", "cents"', ": 3}}"])
    assert seen == [{"answer": {"item": "te"}}, {"answer": {"item": "tea"}}, {"answer": {"item": "tea", "cents": 3}}]


@pytest.mark.parametrize(
    "said",
    [
        '{"name": 1',
        '{"name": "a" "b"}',
        '{"name": tru]',
        "[1]",
        '{"name": "\\x"}',
        '{"name": "\\uzzzz"}',
        "{" * 9,
        '{"a":' * 9000,
    ],
)
def test_nonsense_is_not_shown(said: str) -> None:
    """Text that is no JSON ends the partial answers without an error: it is validated when it is complete."""
    for value in grown(Invoice, cut(said, 2)):
        assert set(value) <= {"customer"}
    grown(dict[str, Any], cut('{"answer":' + said, 2))


@pytest.mark.parametrize("escape", ["\\u  e9", "\\ue9  ", "\\u+0e9", "\\u0_e9", "\\u0\te9", "\\u00\u0665\u0665"])
def test_an_escape_that_is_not_four_hexadecimal_digits_ends_the_showing(escape: str) -> None:
    """Python's conversions accept spaces, signs, underscores and foreign digits in a number; JSON does not."""
    for size in (1, 2, 100):
        seen = grown(dict[str, Any], cut(f'{{"answer": {{"drink": "caf{escape} au lait", "more": 1}}}}', size))
        assert seen[-1] == {"answer": {"drink": "caf"}}


@pytest.mark.parametrize("wrong", ['{"answer": [1}', '{"answer": {"a": 1]', '{"answer": {"a": 1}]'])
def test_a_bracket_that_closes_nothing_ends_the_showing(wrong: str) -> None:
    """What follows is not read as if it had been the right one."""
    for size in (1, 100):
        seen = grown(dict[str, Any], cut(wrong + ', "more": 2}', size))
        assert all("more" not in value for value in seen)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(), _JSON, max_size=4), st.integers(1, 9), st.booleans())
def test_the_parser_reads_what_json_reads(value: Any, size: int, ascii_only: bool) -> None:
    """In chunks of any size, it reports the same object; surrogates, escapes and numbers included."""
    assert grown(dict[str, Any], cut(json.dumps({"answer": value}, ensure_ascii=ascii_only), size))[-1] == {
        "answer": value
    }


def test_the_cost_does_not_grow() -> None:
    """Each chunk is reported once: the parser's work for the next item is the same after ten items and ten thousand."""
    told: list[int] = [0]

    class Counts:
        def __getattr__(self, name: str) -> Any:
            def tell(*_: object) -> None:
                told[0] += 1

            return tell

    feed = JsonFeed(Counts())
    feed.feed('{"answer": [')
    seen: list[int] = []
    for _ in range(10_000):
        before = told[0]
        feed.feed('{"item": "tea", "cents": 250}, ')
        seen.append(told[0] - before)
    assert set(seen) == {7}
    partials = Partials(Output(Invoice))
    partials.feed('{"name": "')
    shown = sum(partials.feed("four") for _ in range(10_000))
    assert shown < 1_000  # a long string is shown again when it has grown by a part of itself
    assert len(partials.value["customer"]) > 39_000


def said(way: Way, values: dict[str, Any]) -> WireReply:
    if way == "tool":
        return WireReply(calls=(ScriptedCall("final_answer", values),), chunk=5)
    return WireReply(ScriptedCall("x", values).raw, chunk=5)


@pytest.mark.parametrize("way", ["native", "tool", "prompt"])
async def test_over_the_wires(wired: Wired, way: Way) -> None:
    """`agent.stream(...).partials()` yields them in each mode; an answer that is requested again starts again."""
    bad = {**SAID, "lines": [{"item": "tea", "cents": 0}]}
    async with wired.serve([said(way, bad), said(way, SAID)]) as server:
        agent = Agent("clerk", wired.model(server), output=Output(Invoice, via=way))
        partials = await agent.stream("The invoice?").partials().to_list()
    first, second, last = dict.fromkeys(map(id, partials))
    *_, whole = [partial for partial in partials if id(partial) == second]
    assert [partial.complete for partial in partials] == [False] * (len(partials) - 1) + [True]
    assert (dict(whole), dict(partials[-1])) == (SHOWN, SHOWN)
    assert partials[-1].output == Invoice.model_validate(SAID)
    assert {id(partials[0]): first, id(partials[-1]): last} == {first: first, last: last}
    assert len(partials) > 20


async def test_the_output_is_there_when_it_is_accepted() -> None:
    """Before that, and after a call without an output, it is missing, and the error says what to read."""
    agent = Agent("clerk", ScriptedModel([['{"answer": 4', "2}"], '{"answer": 43}']), output=Output(int, via="prompt"))
    first, last = await agent.stream("x").partials().to_list()
    assert (first["answer"], last["answer"], last.output) == (42, 42, 42)
    with pytest.raises(MissingOutputError, match="not complete"):
        _ = first.output
    assert (repr(first), repr(last)) == ("Partial({'answer': 42})", "Partial({'answer': 42}, complete=True)")
    denied = agent.stream("x", hooks={"after_user_input": lambda _: Deny("no")})
    assert await denied.partials().to_list() == []
    answered = agent.stream("x", hooks={"after_user_input": lambda _: Answer('{"answer": 5}')})
    (only,) = await answered.partials().to_list()
    assert (dict(only), only.output) == ({}, 5)


async def test_a_validated_output() -> None:
    """The mapping is what the model said; the output is what `validate` made of it."""
    agent = Agent(
        "clerk", ScriptedModel(['{"answer": 4}']), output=Output(int, via="prompt", validate=lambda n: n * 10)
    )
    *_, last = await agent.stream("x").partials().to_list()
    assert (last["answer"], last.output) == (4, 40)


async def test_restarts_and_failures() -> None:
    """An attempt that starts over starts a new mapping; the error of a call without a valid answer comes after the
    partial ones.
    """
    again = [ModelChunk('{"answer": [1, '), ModelChunk('{"answer": [7, ', restart=True), ModelChunk("8]}")]
    agent = Agent("clerk", ScriptedModel([again, "no"]), output=Output(list[int], via="prompt", retries=0))
    seen = [list(value["answer"]) async for value in agent.stream("x").partials()]
    assert seen == [[1], [7], [7, 8], [7, 8]]
    with pytest.raises(OutputError):
        _ = [value async for value in agent.stream("x").partials()]


async def test_a_restart_of_the_final_tools_call() -> None:
    """So does the final tool's: the fragments of the void attempt are in nothing that is shown after it."""

    def piece(text: str, name: str = "", *, restart: bool = False) -> ModelChunk:
        call = ToolUseDelta(0, "t1" if name else "", name, text)
        return ModelChunk(tool_uses=(call,), restart=restart)

    said = [
        piece('{"answer": [1', "final_answer"),
        piece('{"answer": [7', "final_answer", restart=True),
        piece(", 8]}"),
    ]
    agent = Agent("clerk", ScriptedModel([said]), output=Output(list[int], via="tool"))
    assert [list(value["answer"]) async for value in agent.stream("x").partials()] == [[], [], [7, 8], [7, 8]]


async def test_words_and_wrong_uses() -> None:
    """`output=str` grows as words; without an output there is nothing to grow."""
    agent = Agent("clerk", ScriptedModel([["Hel", "lo."]]))
    partials = agent.stream("x", output=str).partials()
    assert [value["answer"] async for value in partials] == ["Hel", "Hello.", "Hello."]
    with pytest.raises(UsageError, match="needs an output"):
        agent.stream("x").partials()


@pytest.mark.parametrize("children", [False, True])
async def test_the_events_of_a_sub_agent_are_not_part_of_the_answer(children: bool) -> None:
    """With `children=True` the stream has the sub-agent's events too; the partial answers are the same."""
    helper = Agent("helper", ScriptedModel(['{"answer": [9]}']))

    @tool
    async def ask() -> str:
        """Ask the sub-agent."""
        return (await helper.call("Count.")).text

    model = ScriptedModel([ToolUseBlock("t1", "ask", {}), ['{"answer": [1,', " 2", "]}"]])
    agent = Agent("clerk", model, tools=[ask], output=Output(list[int], via="prompt"))
    seen = [deepcopy(dict(partial)) async for partial in agent.stream("Go", children=children).partials()]
    assert seen == [{"answer": [1]}, {"answer": [1, 2]}, {"answer": [1, 2]}]


async def test_cut_in_the_middle() -> None:
    """Whoever stops reading ends the call, with all its cleanup."""
    agent = Agent(
        "clerk", ScriptedModel([['{"answer": [1, ', "2, ", "3]}"]] * 2), output=Output(list[int], via="prompt")
    )
    async with agent.stream("x").partials() as values:
        async for _ in values:
            break
    assert not agent.session().busy
    assert (await agent.call("y")).output == [1, 2, 3]
