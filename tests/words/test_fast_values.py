"""Values built the fast way are the values that the plain way builds."""

from __future__ import annotations

import pickle
import re
import typing
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import TypeAdapter

from agentflow._support.values import NamedTuple, field, frozen
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta
from agentflow.vocabulary.events import EVENT_TYPES
from agentflow.vocabulary.facts import CallClosed
from agentflow.vocabulary.messages import Msg, TextBlock, message, text_block, tool_result
from agentflow.vocabulary.specs import Usage

CASES: list[tuple[Any, tuple[Any, ...]]] = [
    (text_block, ("words",)),
    (tool_result, ("t1", "look", "found", "error")),
    (tool_result, ("t1", "look", "found")),
    (message, ("user", (TextBlock("hi"),), "m1")),
    (message, ("assistant", (), "m1", {"a": 1}, Usage(1), "stop")),
]


@pytest.mark.parametrize(("function", "values"), CASES, ids=lambda value: getattr(value, "__name__", None))
def test_a_compiled_builder_builds_what_its_body_says(function: Any, values: tuple[Any, ...]) -> None:
    """Same class, same fields, frozen: only the way there differs."""
    fast, plain = function(*values), function.__wrapped__(*values)
    assert type(fast) is type(plain)
    assert [getattr(fast, f.name) for f in fields(fast)] == [getattr(plain, f.name) for f in fields(plain)]
    with pytest.raises(FrozenInstanceError):
        setattr(fast, fields(fast)[0].name, "other")


def test_frozen_classes_are_dataclasses_in_every_respect() -> None:
    """`fields`, `replace`, equality, hash, repr, pickle, factories, keyword-only fields and frozen subclasses."""

    @frozen
    class Point:
        x: int
        y: int = 0
        tags: list[str] = field(default_factory=list[str], compare=False)
        kind: str = field(default="point", kw_only=True, repr=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x")

    @frozen
    class Named(Point):
        name: str = ""

    point = Point(1, tags=["a"])
    assert repr(point).endswith("Point(x=1, y=0, tags=['a'])")
    assert (point == Point(1), hash(point) == hash(Point(1)), point == Point(2)) == (True, True, False)
    assert replace(point, y=5) == Point(1, 5)
    assert Point(1).tags is not Point(1).tags
    assert (Named(1, name="n").name, Named(1) == Point(1), isinstance(Named(1), Point)) == ("n", False, True)
    assert is_dataclass(Point)
    for wrong in (lambda: Point(-1), lambda: replace(point, x=-1), lambda: Named(-1)):
        with pytest.raises(ValueError, match="x"):
            wrong()
    with pytest.raises(FrozenInstanceError, match=re.escape("make a changed copy: replace(point, x=...)")):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        del point.x
    match point:
        case Point(x=1, y=0):
            pass
        case _:
            raise AssertionError


def test_chunks_are_frozen_values_however_they_are_built() -> None:
    """Keywords, positions, `replace`, pickle and subclasses all give the value that a dataclass would."""

    class Marked(ModelChunk):
        pass

    chunk = ModelChunk("a", finish_reason="stop")
    assert chunk == replace(ModelChunk("b", finish_reason="stop"), text="a") == pickle.loads(pickle.dumps(chunk))
    assert (Marked("a").text, Marked("a").tool_uses, type(Marked("a"))) == ("a", (), Marked)
    assert ToolUseDelta(0, "t1").arguments == ""
    for wrong in (lambda: ModelChunk(words="a"), ToolUseDelta):  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(FrozenInstanceError):
        chunk.text = "b"  # type: ignore[misc]


def test_events_of_the_loop_have_every_field_of_those_made_by_hand() -> None:
    """`make` and `make_open` fill all fields; only the open form may be written to."""
    events = SimpleNamespace(_frame=object(), iteration=3, seq=7, now=lambda: 1.5)
    for kind in EVENT_TYPES:
        own = [f.name for f in fields(kind) if f.name not in ("_frame", "iteration", "seq", "time", "decision")]
        values = [object() for _ in own]
        for make, sealed in ((kind.make, True), (kind.make_open, False)):
            event = make(events, tuple(values))
            assert isinstance(event, kind)
            assert event.sealed is sealed
            assert (event.iteration, event.seq, event.time, event.decision) == (3, 7, 1.5, None)
            assert event._frame is events._frame
            assert [getattr(event, name) for name in own] == values


def test_a_message_is_a_message() -> None:
    """What is built the fast way equals what a user builds."""
    assert message("user", (TextBlock("hi"),), "m1") == Msg.user("hi", id="m1")


def test_our_named_tuples_are_those_of_typing() -> None:
    """Fields, defaults, methods, texts, annotations, pickles: what `typing.NamedTuple` gives."""

    def define(base: Any) -> Any:
        class Place(base):
            """Somewhere."""

            row: int
            name: str = "here"

            @property
            def shown(self) -> str:
                return f"{self.name} {self.row}"

            def moved(self) -> Any:
                return self._replace(row=self.row + 1)

        return Place

    ours, theirs = define(NamedTuple), define(typing.NamedTuple)
    for one in (ours, theirs):
        assert one(1) == (1, "here")
        assert (one(1).moved().shown, repr(one(row=2))) == ("here 2", "Place(row=2, name='here')")
        assert (one._fields, one._field_defaults, one.__doc__) == (("row", "name"), {"name": "here"}, "Somewhere.")
        assert typing.get_type_hints(one) == {"row": int, "name": str}
        assert (one.__module__, one.__name__, one.__qualname__) == (__name__, "Place", theirs.__qualname__)
        assert TypeAdapter(one).validate_json('[3, "x"]') == (3, "x")
        with pytest.raises(TypeError, match="missing 1 required positional argument: 'row'"):
            one()
    fact = CallClosed("r", "c", "completed")
    assert pickle.loads(pickle.dumps(fact)) == fact
