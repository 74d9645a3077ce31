"""Messages and blocks: frozen, JSON in and out, and calls whose arguments cannot be read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from eventlog import use

from agentflow import (
    Agent,
    DataBlock,
    Msg,
    PreCall,
    Reply,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    on,
)
from agentflow.errors import MissingOutputError, UsageError
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.messages import with_metadata
from agentflow.vocabulary.transcript import legalise

FULL = Msg.assistant(
    [
        ThinkingBlock("hm", signature="s"),
        TextBlock("words"),
        use("t1", "add", a=1, b=[1, {"c": None}]),
        ToolUseBlock.from_json("t2", "add", '{"a": '),
        DataBlock("image/png", data="aGk="),
    ],
    usage=Usage(input_tokens=3),
    finish_reason="stop",
    metadata={"synthetic": "x"},
)


def test_json_there_and_back() -> None:
    """A message survives JSON and dict, a call with malformed text included."""
    assert Msg.from_json(FULL.to_json()) == FULL
    assert Msg.from_dict(FULL.to_dict()) == FULL
    results = Msg.tool([ToolResultBlock("t1", "add", "x", "denied"), ToolResultBlock("t2", "add", (TextBlock("y"),))])
    assert Msg.from_json(results.to_json()) == results


@pytest.mark.parametrize("data", [{}, {"role": "robot"}, {"role": "user", "content": [{"type": "video"}]}])
def test_what_is_no_message(data: Any) -> None:
    """Data that is no message is a UsageError that names the field."""
    with pytest.raises(UsageError, match="This is not a message"):
        Msg.from_dict(data)


def test_readers() -> None:
    """text, thinking, tool_uses and tool_results read the blocks in order."""
    assert (FULL.text, FULL.thinking, [block.id for block in FULL.tool_uses]) == ("words", "hm", ["t1", "t2"])
    assert Msg.user("hi").text == str(Msg.user("hi")) == "hi"
    assert Msg.user("").content == ()


@pytest.mark.parametrize(
    ("raw", "value", "error"),
    [
        ('{"a": 1}', {"a": 1}, None),
        ("", {}, None),
        ("  ", {}, None),
        ('{"a": ', {}, "not valid JSON"),
        ("[1]", {}, "a JSON list, and must be an object"),
        ("null", {}, "a JSON NoneType, and must be an object"),
        ("\ud800", {}, "not valid JSON"),
        ('{"a": NaN}', {}, "not valid JSON: NaN at line 1 column 7 is not a JSON number"),
        ('{"a": [-Infinity]}', {}, "not valid JSON: -Infinity at line 1 column 8 is not a JSON number"),
        ('  {"a": {"b": 1e999}} ', {}, "not valid JSON: 1e999 at line 1 column 15 is not a JSON number"),
        ('{"a": -1E+400}', {}, "not valid JSON: -1E+400 at line 1 column 7 is not a JSON number"),
        (f'{{"a": {"9" * 400}.5}}', {}, "is not a JSON number or does not fit a float"),
        (f'{{"a": {"9" * 400}}}', {"a": int("9" * 400)}, None),
        ('{"NaN": "Infinity"}', {"NaN": "Infinity"}, None),
    ],
)
def test_arguments_never_raise_on_reading(raw: str, value: Any, error: str | None) -> None:
    """`input` never raises: what is no JSON object gives an empty mapping, and input_error says why; raw is kept."""
    block = ToolUseBlock.from_json("t1", "add", raw)
    assert dict(block.input) == value
    assert block.raw == raw
    assert (block.input_error is None) if error is None else (error in str(block.input_error))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: [x, 1], lambda x: {"b": ({"c": x},)}], ids=["flat", "list", "deep"]
)
def test_numbers_that_json_does_not_know(number: float, wrap: Callable[[float], Any]) -> None:
    """Put into a call by a program, they are what they are in a model's text: malformed, and nothing of them is sent."""
    block = use("t1", "add", a=wrap(number), half="\ud800", other=object())
    assert (dict(block.input), block.arguments) == ({}, "{}")
    assert "not valid JSON" in str(block.input_error)
    again = Msg.from_json(Msg.assistant(block).to_json()).tool_uses[0]
    assert (again, again.input_error) == (block, block.input_error)


@dataclass
class Reading:
    value: float


def test_an_object_that_holds_such_a_number() -> None:
    """What is sent is JSON also where an object inside the input holds what JSON does not know."""
    assert use("t1", "add", a=Reading(0.5)).arguments == '{"a":{"value":0.5}}'
    assert use("t1", "add", a=Reading(float("nan"))).arguments == "{}"


def test_blocks_are_frozen() -> None:
    """Neither a block nor a value in its arguments can be changed."""
    block = use("t1", "add", a={"b": [1]})
    with pytest.raises(AttributeError, match=r"ToolUseBlock\.name is read-only"):
        block.name = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        block.input["a"] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        block.input["a"]["b"] = 1
    with pytest.raises(AttributeError):
        FULL.role = "user"  # type: ignore[misc]


def test_replace() -> None:
    """`replace` keeps the model's text unless the input is replaced."""
    block = ToolUseBlock.from_json("t1", "add", '{"a":  1}')
    assert block.replace(name="sub").raw == '{"a":  1}'
    assert block.replace(input={"a": 2}).raw == '{"a":2}'
    assert block == use("t1", "add", a=1)


def test_data_is_inline_or_linked() -> None:
    """A DataBlock has exactly one of data and url."""
    for fields in ({}, {"data": "x", "url": "y"}):
        with pytest.raises(UsageError, match="exactly one"):
            DataBlock("image/png", **fields)


def test_a_reply_without_typed_output() -> None:
    """Reading output that does not exist is an error that explains it."""
    reply = Reply("assistant", (TextBlock("x"),), run_id="r")
    with pytest.raises(MissingOutputError, match="has no typed output"):
        _ = reply.output
    assert type(reply.to_message()) is Msg


@pytest.mark.parametrize("usage", [Usage(), Usage(1, 2, 3, 4, 5, 0.5, 6), Usage(reasoning_tokens=7)])
def test_no_usage_adds_nothing(usage: Usage) -> None:
    """`Usage()` is the zero of the sum, on either side."""
    assert usage + Usage() == usage == Usage() + usage


def test_a_changed_copy_keeps_the_authors_name() -> None:
    """Metadata can be added to a message, and an illegal block removed, without losing the name of its author."""
    named = Msg.user([TextBlock("hi"), use("t1", "add")], name="Ann")
    assert with_metadata(named, synthetic="hook").name == "Ann"
    twice = Msg.assistant([use("t1", "add"), use("t1", "add")], name="Bob")
    assert [(msg.role, msg.name) for msg in legalise([named, twice])] == [
        ("user", "Ann"),
        ("assistant", "Bob"),
        ("tool", None),
    ]


async def test_an_injected_message_keeps_the_authors_name() -> None:
    """A hook can inject a message of a named author."""

    @on(PreCall)
    def greet(event: PreCall) -> None:
        event.context.inject(Msg.user("hello", name="Ann"))

    agent = Agent("a", ScriptedModel(["Hi"]), hooks=[greet])
    await agent.call("Go")
    assert [msg.name for msg in agent.session().messages if msg.text == "hello"] == ["Ann"]


def test_notes_change_only_the_metadata() -> None:
    """A message that is marked, such as one for a sub-agent's conversation, keeps its name and all else."""
    msg = Msg(
        "user",
        (TextBlock("Hi."),),
        name="ada",
        id="m1",
        metadata={"a": 1},
        usage=Usage(1, 2),
        finish_reason="stop",
    )
    assert with_metadata(msg, within="t1") == replace(msg, metadata={"a": 1, "within": "t1"})
