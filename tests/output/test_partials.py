"""Partial values: ever more complete, validated as far as they go, at a cost that does not grow with what came before."""

from __future__ import annotations

import json
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict
from wired import Wired

from agentflow import Agent, Output
from agentflow.chunks import ModelChunk
from agentflow.errors import OutputError, UsageError
from agentflow.output import Way
from agentflow.output.partial_json import JsonFeed
from agentflow.output.partials import Partials
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import Reply, ToolCall


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


SAID: dict[str, Any] = {
    "name": 'Ada "é" \U0001f600\n',
    "lines": [{"item": "tea", "cents": 250}, {"item": "milk", "cents": 90}],
    "rates": {"EUR": 1.0},
    "best": {"item": "tea", "cents": 250},
}


def grown(output: Any, pieces: Iterable[str]) -> list[Any]:
    """Copies of what is shown after each piece that shows more."""
    partials = Partials(Output(output))
    return [deepcopy(partials.value) for piece in pieces if partials.feed(piece)]


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_however_it_is_cut(size: int, ascii_only: bool) -> None:
    """The last value is the whole one, and each before it is a part of it."""
    seen = grown(Invoice, cut("So: " + json.dumps(SAID, ensure_ascii=ascii_only) + " Bye.", size))
    assert seen[-1] == Invoice.model_validate(SAID)
    names = [value.customer or "" for value in seen]
    assert all(later.startswith(earlier) for earlier, later in pairwise(names))
    counts = [len(value.lines) for value in seen]
    assert counts == sorted(counts)


def test_what_is_shown_when() -> None:
    """Strings grow; a number is shown when it is whole, and an item's field when it fits."""
    pieces = ['{"name": "A', 'da", "lines": [{"item": "t', 'ea", "cents": 2', "5}, ", '{"item": "x", "cents": 0', "}]}"]
    seen = [(value.customer, [(line.item, line.cents) for line in value.lines]) for value in grown(Invoice, pieces)]
    assert seen == [
        ("A", []),
        ("Ada", [("t", None)]),
        ("Ada", [("tea", None)]),
        ("Ada", [("tea", 25)]),
        ("Ada", [("tea", 25), ("x", None)]),
        ("Ada", [("tea", 25), ("x", None)]),
    ]


@pytest.mark.parametrize(
    ("form", "said", "last"),
    [
        (list[int], {"answer": [1, 2]}, [1, 2]),
        (str | None, {"answer": "words"}, "words"),
        (int, {"answer": 3}, 3),
        (Point, {"x": 1, "label": "a"}, Point(1, "a")),
        (Bill, {"total": 1, "note": "n"}, {"total": 1, "note": "n"}),
        (Point | int, {"answer": {"x": 1}}, Point(1)),
        (dict[str, list[int]], {"answer": {"a": [1]}}, {"a": [1]}),
        (tuple[int, str], {"answer": [1, "a"]}, (1, "a")),
    ],
)
def test_forms(form: Any, said: Any, last: Any) -> None:
    """Each kind of type grows as far as it can, and is of its type at the end."""
    assert grown(form, json.dumps(said))[-1] == last


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
    """What is no JSON ends the showing and raises nothing: it is judged when it is whole."""
    for value in grown(Invoice, cut(said, 2)):
        assert value.customer is None or isinstance(value.customer, str)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(), _JSON, max_size=4), st.integers(1, 9), st.booleans())
def test_the_parser_reads_what_json_reads(value: Any, size: int, ascii_only: bool) -> None:
    """Fed in pieces of any size, it tells of the same object; surrogates, escapes and numbers included."""
    assert grown(dict[str, Any], cut(json.dumps({"answer": value}, ensure_ascii=ascii_only), size))[-1] == value


def test_the_cost_does_not_grow() -> None:
    """Each piece is told of once: what the parser tells for the next item is the same behind ten items and ten thousand."""
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
    assert shown < 1_000  # a long string is shown anew when it has grown by a part of itself
    assert len(partials.value.customer) > 39_000


def said(way: Way, values: dict[str, Any]) -> Reply:
    if way == "tool":
        return Reply(calls=(ToolCall("final_answer", values),), chunk=5)
    return Reply(ToolCall("x", values).raw, chunk=5)


@pytest.mark.parametrize("way", ["native", "tool", "prompt"])
async def test_over_the_wires(wired: Wired, way: Way) -> None:
    """`agent.stream(...).partials()` gives them by each way; an answer that is asked for again begins anew."""
    bad = {**SAID, "lines": [{"item": "tea", "cents": 0}]}
    async with wired.serve([said(way, bad), said(way, SAID)]) as server:
        agent = Agent("clerk", wired.model(server), output=Output(Invoice, via=way))
        seen = [deepcopy(value) async for value in agent.stream("The invoice?").partials()]
    assert seen[-1] == Invoice.model_validate(SAID)
    names = [value.customer for value in seen]
    assert None in names[names.index(SAID["name"]) :]  # the second answer begins
    assert len(seen) > 20


async def test_restarts_and_failures() -> None:
    """An attempt that starts over begins anew; the error of a call that never fits comes behind what was shown."""
    again = [ModelChunk('{"answer": [1, '), ModelChunk('{"answer": [7, ', restart=True), ModelChunk("8]}")]
    agent = Agent("clerk", ScriptedModel([again, "no"]), output=Output(list[int], via="prompt", retries=0))
    assert [list(value) async for value in agent.stream("x").partials()] == [[1], [7], [7, 8], [7, 8]]
    with pytest.raises(OutputError):
        _ = [value async for value in agent.stream("x").partials()]


async def test_words_and_wrong_uses() -> None:
    """`output=str` grows as words; without an output, or with a function, there is nothing to grow."""
    agent = Agent("clerk", ScriptedModel([["Hel", "lo."]]))
    assert [value async for value in agent.stream("x", output=str).partials()] == ["Hel", "Hello.", "Hello."]
    with pytest.raises(UsageError, match="needs an output"):
        agent.stream("x").partials()

    async def book(customer: str) -> str:
        """Book it."""
        return customer

    with pytest.raises(UsageError, match="before it has run"):
        agent.stream("x", output=book).partials()


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
