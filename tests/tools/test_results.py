"""What a model reads of a tool's return value or exception."""

import enum
from dataclasses import dataclass
from datetime import date
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from agentflow.errors import ToolArgumentError
from agentflow.tools import failure_text, render
from agentflow.vocabulary.messages import DataBlock, Msg, TextBlock, ToolResultBlock


class Colour(enum.Enum):
    RED = "red"


class Model(BaseModel):
    a: int


@dataclass
class Point:
    x: int


class Odd:
    def __str__(self) -> str:
        return "an odd one"


class Broken:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Text(str):
    __slots__ = ()


IMAGE = DataBlock("image/png", "aGk=")
LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("text", "text"),
        ("grün", "grün"),
        (Text("mine"), "mine"),
        ("", "(no output)"),
        (None, "(no output)"),
        (True, "true"),
        (3, "3"),
        (1.5, "1.5"),
        (Colour.RED, "red"),
        (date(2024, 1, 2), "2024-01-02"),
        (PurePosixPath("a/b"), "a/b"),
        (Model(a=1), '{"a":1}'),
        (Point(1), '{"x":1}'),
        ({"a": [Point(1), Colour.RED]}, '{"a":[{"x":1},"red"]}'),
        ([], "[]"),
        (["a", "b"], '["a","b"]'),
        ((1, "x"), '[1,"x"]'),
        (Odd(), "an odd one"),
        ({"odd": Odd()}, '{"odd":"an odd one"}'),
        (Broken(), "(Broken without a readable text)"),
        (LOOP, "[[...]]"),
        (float("nan"), "NaN"),
        ({"a": [float("nan"), float("-inf")]}, '{"a":["NaN","-Infinity"]}'),
        (b"text", "text"),
        (b"", "(no output)"),
        (b"\xff\x00", "(2 bytes of binary data; a tool shows them to the model by returning a DataBlock)"),
        ({"raw": b"\xff"}, '{"raw":"_w=="}'),
        ("half a pair \ud800", "half a pair \ufffd"),
        (TextBlock("words"), "words"),
        (TextBlock(""), "(no output)"),
        (IMAGE, (IMAGE,)),
        (["see:", IMAGE], (TextBlock("see:"), IMAGE)),
        ((TextBlock("a"), TextBlock("b")), "ab"),
        ([IMAGE, 3], '[{"media_type":"image/png","data":"aGk=","url":null,"name":null,"type":"data"},3]'),
        (ToolResultBlock("t1", "x", "inner"), "inner"),
        (ToolResultBlock("t1", "x", (IMAGE,)), (IMAGE,)),
        (Msg.assistant("said"), "said"),
        (Msg.assistant(["said", IMAGE]), (TextBlock("said"), IMAGE)),
    ],
)
def test_what_a_tool_returned_as_content(value: object, content: object) -> None:
    """Text as it is, blocks as blocks, the rest as JSON, and nothing as words."""
    assert render(value) == content


@given(st.from_type(object) | st.text() | st.binary())
def test_telling_never_raises_and_is_fit_for_the_wire(value: object) -> None:
    """Whatever came back, the content is never empty and encodes."""
    content = render(value)
    assert isinstance(content, str)
    assert content.encode()


def test_a_failure_is_told_with_type_message_and_notes() -> None:
    """The notes on the exception are part of what the model reads."""
    error = ValueError("bad date: 2024-13-01")
    error.add_note("months go from 1 to 12")
    assert failure_text(error) == "ValueError: bad date: 2024-13-01\nmonths go from 1 to 12"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("x"), "KeyError: 'x'"),
        (RuntimeError(), "RuntimeError"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError(Broken()), "ValueError: (ValueError without a readable text)"),
        (OSError("file \ud800"), "OSError: file \ufffd"),
        (ToolArgumentError("Tool 'x' was not run."), "Tool 'x' was not run."),
        (
            ExceptionGroup("two", [ValueError("a"), ExceptionGroup("inner", [OSError("b")])]),
            (
                "ExceptionGroup: two (2 sub-exceptions)\n- ValueError: a\n- ExceptionGroup: inner (1 sub-exception)\n"
                "  - OSError: b"
            ),
        ),
    ],
)
def test_failures_of_every_kind_have_words(error: BaseException, text: str) -> None:
    """Groups list their members; a text written for the model is unchanged; broken exceptions keep their type."""
    assert failure_text(error) == text


def test_a_long_failure_is_cut() -> None:
    """A page of HTML in an exception does not fill the context."""
    assert failure_text(ValueError("x" * 5_000)) == "ValueError: " + "x" * 3_988 + "… (1012 more characters)"
