"""Events as JSON: every event type, and values that JSON does not know."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from agentflow import (
    ActingChunk,
    Agent,
    CallEnded,
    Deny,
    Error,
    MessagesAdded,
    ModelChunk,
    Msg,
    PostActing,
    PreActing,
    PreReasoning,
    ReasoningChunk,
    ToolResultBlock,
    ToolUseBlock,
    on,
    tool,
)
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.chunks import ToolUseDelta
from agentflow.vocabulary.event_json import event_line, event_to_dict

USE = ToolUseBlock("t1", "add", {"a": 1})


@tool
async def add(a: int) -> int:
    """Add."""
    return a


async def test_a_whole_call() -> None:
    """Each event is one line that reads back as what it said; verdicts name the hook."""

    @on(PreActing)
    def no(event: PreActing) -> Deny:
        return Deny("no")

    agent = Agent("a", ScriptedModel([USE, "so be it"]), tools=[add], hooks=[no])
    events = [event async for event in agent.stream("hi")]
    read = [json.loads(event_line(event)) for event in events]
    assert [one["type"] for one in read] == [type(event).__name__ for event in events]
    assert {one["run_id"] for one in read} == {events[0].run_id}
    (acting,) = [one for one in read if one["type"] == "PreActing"]
    assert acting["decision"] == {"verdict": {"type": "Deny", "reason": "no"}, "hook": "no", "error": None}
    (result,) = [one for one in read if one["type"] == "PostActing"]
    assert result["tool_result"] == {
        "tool_use_id": "t1",
        "name": "add",
        "content": "Denied: no",
        "state": "denied",
        "type": "tool_result",
    }
    (reasoning, _) = [one for one in read if one["type"] == "PreReasoning"]
    assert reasoning["tools"][0]["parameters"]["required"] == ["a"]
    assert [Msg.from_dict(msg).text for msg in reasoning["input_messages"]] == ["hi"]


def test_an_event_built_by_hand_has_no_ids() -> None:
    """What belongs to no run is converted without the ids of one."""
    assert event_to_dict(PreActing(tool_use=USE)) == {
        "type": "PreActing",
        "seq": 0,
        "iteration": 0,
        "time": 0.0,
        "tool_use": {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
        "approval": None,
    }


def test_chunks_show_what_is_set() -> None:
    """A chunk's empty fields are left out."""
    chunk = ModelChunk(text="", tool_uses=(ToolUseDelta(0, "t1", "add", '{"a'),))
    assert event_to_dict(ReasoningChunk(incremental_chunk=chunk))["incremental_chunk"] == {
        "tool_uses": [{"index": 0, "id": "t1", "name": "add", "arguments": '{"a'}]
    }


def test_errors_are_type_and_message() -> None:
    """Exceptions are reported as text, not pickled."""
    error = ValueError("bad")
    assert event_to_dict(Error(error=error))["error"] == {"type": "ValueError", "message": "bad"}
    assert event_to_dict(CallEnded(outcome="failed", error=error))["error"] == {
        "type": "ValueError",
        "message": "bad",
    }


def test_malformed_arguments_keep_the_models_text() -> None:
    """A call whose JSON is broken says so, with the text."""
    told = event_to_dict(PreActing(tool_use=ToolUseBlock.from_json("t1", "add", '{"a":')))["tool_use"]
    assert isinstance(told, dict)
    assert (told["raw"], told["input"]) == ('{"a":', {})
    assert str(told["input_error"]).startswith("the arguments are not valid JSON")


class Odd:
    """JSON does not know it."""

    def __repr__(self) -> str:
        return "<odd>"


class Worse:
    """It cannot even be printed."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


@dataclass
class Point:
    x: int
    seen: datetime


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, None),
        (1.5, 1.5),
        (float("nan"), None),
        ({1: {"b"}}, {"1": ["b"]}),
        (("a", b"\xff"), ["a", "_w=="]),
        (Odd(), "<odd>"),
        (Point(1, datetime(2026, 1, 2, tzinfo=UTC)), {"x": 1, "seen": "2026-01-02T00:00:00Z"}),
        ("half a pair \ud800", "half a pair \ud800"),
        (Msg.user("hi", id="m1").content, [{"text": "hi", "type": "text"}]),
    ],
)
def test_values_of_any_kind(value: Any, told: Any) -> None:
    """What a tool emits becomes JSON, or its repr."""
    event = ActingChunk(tool_use=USE, chunk=value)
    assert event_to_dict(event)["chunk"] == told
    assert json.loads(event_line(event))["chunk"] == told
    assert event_line(event).isascii()


def test_numbers_that_json_does_not_know() -> None:
    """A line is JSON also where a message's metadata holds NaN."""
    event = MessagesAdded(messages=(Msg.user("hi", metadata={"score": [float("nan"), 1.5]}),), origin="injected")
    told = json.loads(event_line(event), parse_constant=pytest.fail)
    assert told["messages"][0]["metadata"] == {"score": [None, 1.5]}


@pytest.mark.parametrize("value", [Worse(), CIRCLE, {"deep": CIRCLE}])
def test_what_cannot_be_read_is_named(value: Any) -> None:
    """Converting never raises."""
    told = event_to_dict(ActingChunk(tool_use=USE, chunk=value))["chunk"]
    assert isinstance(told, str)
    assert told.startswith("<")


def test_results_with_data_blocks() -> None:
    """A result's content is text, or a list of blocks."""
    event = PostActing(tool_use=USE, original_tool_use=USE, tool_result=ToolResultBlock("t1", "add", ()))
    assert event_to_dict(event)["tool_result"] == {
        "tool_use_id": "t1",
        "name": "add",
        "content": [],
        "state": "success",
        "type": "tool_result",
    }


def test_no_repeated_history() -> None:
    """The reply so far is not repeated with each chunk."""
    assert "accumulated_message" not in event_to_dict(ReasoningChunk(incremental_chunk=ModelChunk("a")))
    assert event_to_dict(PreReasoning())["options"] is not None
