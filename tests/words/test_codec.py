"""Facts and sessions as JSON: there and back, whatever is in them; and what is refused, with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow import MemoryStore, Session
from agentflow.errors import StoreError
from agentflow.vocabulary.facts import (
    CallClosed,
    CallOpened,
    CallResumed,
    Compacted,
    Fact,
    Injected,
    Reasoned,
    RoundClosed,
    RoundSuspended,
    SessionBegan,
    StateKept,
    ToolDecided,
    ToolFinished,
    ToolStarted,
)
from agentflow.vocabulary.messages import (
    DataBlock,
    Msg,
    Outcome,
    Pending,
    Reply,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolState,
    ToolUseBlock,
)
from agentflow.vocabulary.saving.codec import (
    CODEC_VERSION,
    SavedSession,
    fact_from_json,
    fact_key,
    fact_kind,
    fact_to_json,
    msg_from_dict,
    msg_to_dict,
    session_from_dict,
    session_to_dict,
)
from agentflow.vocabulary.saving.plain import dumps
from agentflow.vocabulary.specs import Usage
from agentflow.vocabulary.verdicts import Again, Answer, Approve, Deny, Recover, Stop, Suspend

# ---- any fact

ids = st.text(min_size=1, max_size=8)
words = st.text(max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70)
json_data = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(words, json_data, max_size=3)
usages = st.builds(Usage, st.integers(0), st.integers(0), cost=st.none() | st.floats(0, allow_infinity=False))
uses = st.builds(ToolUseBlock, ids, words, objects) | st.builds(
    ToolUseBlock.from_json, ids, words, objects.map(json.dumps) | st.sampled_from(["", '{"a": ', "[1]", "nul", " {} "])
)
data_blocks = st.builds(DataBlock, words, data=words, name=st.none() | words) | st.builds(DataBlock, words, url=words)
text_blocks = st.builds(TextBlock, words)
results = st.builds(
    ToolResultBlock,
    ids,
    words,
    words | st.lists(text_blocks | data_blocks, max_size=2).map(tuple),
    st.sampled_from(get_args(ToolState)),
)
thoughts = st.builds(ThinkingBlock, words, st.none() | words, st.none() | words, st.none() | words)
messages = st.builds(
    Msg,
    st.sampled_from(get_args(Role)),
    st.lists(text_blocks | thoughts | uses | results | data_blocks, max_size=3).map(tuple),
    name=st.none() | words,
    metadata=objects,
    usage=st.none() | usages,
    finish_reason=st.none() | words,
)
several = st.lists(messages, max_size=2).map(tuple)
values = json_data | messages | results | st.lists(messages, min_size=1, max_size=2).map(tuple) | st.lists(text_blocks)
verdicts = (
    st.none()
    | st.builds(Deny, words)
    | st.builds(Stop, words)
    | st.builds(Suspend, json_data)
    | st.builds(Approve, st.none() | objects)
    | st.builds(Answer, values)
    | st.builds(Recover, values)
    | st.builds(Again, words | messages | st.lists(messages, min_size=1, max_size=2).map(tuple))
)
resolutions = st.builds(Approve, st.none() | objects) | st.builds(Deny, words) | st.builds(Answer, values)
pendings = st.builds(
    Pending,
    ids,
    st.sampled_from(["approval", "external", "parked"]),
    json_data,
    st.none() | uses,
    words,
    st.none() | ids,
)
reasons = st.none() | words
durations = st.floats(0, allow_infinity=False)
FACTS: dict[type, st.SearchStrategy[Any]] = {
    SessionBegan: st.builds(SessionBegan, several),
    CallOpened: st.builds(CallOpened, ids, ids, several, st.integers(1), st.none() | messages),
    CallResumed: st.builds(CallResumed, ids, ids, st.dictionaries(ids, resolutions, max_size=2)),
    Reasoned: st.builds(
        Reasoned, ids, st.integers(1), messages, usages, durations, st.booleans(), several, reasons, st.booleans()
    ),
    ToolDecided: st.builds(ToolDecided, ids, ids, uses, verdicts, ids),
    ToolStarted: st.builds(ToolStarted, ids, ids, st.integers(1), ids),
    ToolFinished: st.builds(ToolFinished, ids, ids, uses, results, durations, reasons, waited_ms=durations),
    RoundClosed: st.builds(RoundClosed, ids, ids, st.lists(results, max_size=2).map(tuple), reasons),
    RoundSuspended: st.builds(RoundSuspended, ids, st.lists(pendings, max_size=2).map(tuple), ids),
    Injected: st.builds(
        Injected, ids, several, st.none() | st.integers(0), st.none() | words, st.just("") | ids, st.integers(0)
    ),
    Compacted: st.builds(Compacted, ids, st.integers(0), several, st.just("") | ids, st.integers(0)),
    StateKept: st.builds(StateKept, objects),
    CallClosed: st.builds(CallClosed, ids, ids, st.sampled_from(get_args(Outcome)), st.none() | messages),
}
facts = st.one_of(*FACTS.values())


def test_every_kind_of_fact_is_covered() -> None:
    """The strategies above know each kind of fact, and names of stored classes never change."""
    assert set(FACTS) == set(get_args(Fact))
    assert [fact_kind(st_fact) for st_fact in (CallResumed("r", "c"), ToolStarted("r", "t", 1))] == [
        "call_resumed",
        "tool_started",
    ]


@given(facts)
def test_there_and_back(fact: Fact) -> None:
    """A fact read from its JSON is equal, ids and model-written JSON text included."""
    text = fact_to_json(fact)
    again = fact_from_json(text)
    assert again == fact
    assert fact_to_json(again) == text
    assert fact_key(again) == fact_key(fact)


@given(messages)
def test_messages_there_and_back(msg: Msg) -> None:
    """Messages too, with their ids."""
    again = msg_from_dict(json.loads(json.dumps(msg_to_dict(msg))))
    assert (again, again.id) == (msg, msg.id)


@given(ids, several, st.lists(facts, max_size=4).map(tuple), objects, st.integers(0), objects)
def test_sessions_there_and_back(id: str, begins: Any, since: Any, state: Any, seq: int, run_state: Any) -> None:  # noqa: A002
    """A session's data survives JSON text."""
    saved = SavedSession(id, begins, since, state, seq, run_state)
    assert session_from_dict(json.loads(json.dumps(session_to_dict(saved)))) == saved


# ---- values without a form in JSON


@dataclass
class Point:
    x: int


class Opaque:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        return "Opaque()"


CIRCLE: dict[str, Any] = {"n": 1}
CIRCLE["self"] = CIRCLE


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (Point(1), {"x": 1}),
        (Path("a/b"), "a/b"),
        ((1, {2}), [1, [2]]),
        (b"text", "text"),
        (b"\xff\x00", "/wA="),
        ("half \ud800 pair", "half \ufffd pair"),
        ("\ud83d\ude00", "\U0001f600"),
        ({1: "a", "\ud800": Path("c")}, {"1": "a", "\ufffd": "c"}),
        (Opaque(), "(Opaque without a readable text)"),
    ],
    ids=repr,
)
def test_what_json_does_not_know(given: object, stored: object) -> None:
    """A fact can always be written: what JSON does not know is stored as data where it has a form, else as its text."""
    fact = ToolDecided("r", "t", ToolUseBlock("t", "n", {"in": given}), Answer(given))
    again = fact_from_json(fact_to_json(fact))
    assert again == ToolDecided("r", "t", ToolUseBlock("t", "n", {"in": stored}), Answer(stored))


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (float("-inf"), "-Infinity"),
        ([{"x": float("nan")}], [{"x": "NaN"}]),
        ([float("inf"), "\ud800"], ["Infinity", "\ufffd"]),
    ],
    ids=repr,
)
def test_numbers_that_json_does_not_know(given: object, stored: object) -> None:
    """NaN and the infinities are stored as their text: what is written is JSON."""
    text = fact_to_json(RoundSuspended("r", (Pending("t", request=given),)))
    json.loads(text, parse_constant=pytest.fail)
    assert fact_from_json(text) == RoundSuspended("r", (Pending("t", request=stored),))


def test_a_number_that_json_does_not_know_in_a_stored_fact() -> None:
    """A fact of a version that wrote NaN as it came is read: the call is malformed, and what is written again is JSON."""
    text = fact_to_json(ToolDecided("r", "t", ToolUseBlock("t", "n", {"in": 1.5}), Approve({"in": 1.5})))
    fact = fact_from_json(text.replace("1.5", "NaN"))
    assert isinstance(fact, ToolDecided)
    assert (dict(fact.tool_use.input), fact.tool_use.arguments) == ({}, "{}")
    json.loads(fact_to_json(fact), parse_constant=pytest.fail)


def test_a_number_that_json_does_not_know_in_a_session() -> None:
    """A session's data is JSON, its state and the metadata of its messages included."""
    msg = Msg.user("q", metadata={"score": float("nan")})
    saved = SavedSession("s", (msg,), (), {"m:S": {"x": float("inf")}}, 0, {"m:R": [float("nan")]})
    data = json.loads(json.dumps(session_to_dict(saved), allow_nan=False))
    again = session_from_dict(data)
    assert (again.messages[0].metadata, again.state, again.run_state) == (
        {"score": "NaN"},
        {"m:S": {"x": "Infinity"}},
        {"m:R": ["NaN"]},
    )


def test_a_value_that_holds_itself() -> None:
    """A circle ends at the maximum depth."""
    again = fact_from_json(fact_to_json(RoundSuspended("r", (Pending("t", request=CIRCLE),))))
    assert isinstance(again, RoundSuspended)
    assert again.pending[0].request["self"]["self"]["n"] == 1


@pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"in": value}], ids=["lists", "objects"])
def test_a_hundred_levels_are_stored(wrap: Callable[[Any], Any]) -> None:
    """Of a value that JSON cannot hold; what is deeper is stored as its text."""

    def stored(levels: int) -> str:
        value: Any = Opaque()
        for _ in range(levels):
            value = wrap(value)
        return dumps([b"\xff", value])  # bytes that are not UTF-8 have no JSON form

    text = "(Opaque without a readable text)"
    assert stored(99).count(text) == stored(98).count(text) == 1
    assert text not in stored(100)
    json.loads(stored(100))


def test_a_reply_that_is_used_as_input() -> None:
    """A `Reply` among the messages is stored as the plain message."""
    reply = Reply("assistant", (TextBlock("hi"),), outcome="completed", run_id="r", value=object())
    again = fact_from_json(fact_to_json(CallOpened("r", "c", (reply,), 3)))
    assert again == CallOpened("r", "c", (reply.to_message(),), 3)


# ---- refused data

GOOD = json.loads(fact_to_json(CallResumed("r", "c")))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is not JSON"),
        ('{"kind": "call_', "it is not JSON"),
        ("[1]", "it is a JSON list instead of an object"),
        (json.dumps({**GOOD, "version": CODEC_VERSION + 1}), "A newer version wrote it: upgrade agentflow here"),
        (json.dumps({**GOOD, "version": "1"}), "has the version '1'"),
        (json.dumps({**GOOD, "kind": "call_dreamt"}), "has the unknown kind 'call_dreamt'"),
        (json.dumps({**GOOD, "kind": ["x"]}), "has the unknown kind ['x']"),
        (json.dumps({**GOOD, "fact": None}), "the data of the call_resumed is not an object with fields"),
        (json.dumps({**GOOD, "fact": {"run_id": "r"}}), "the call_resumed has wrong fields: call_id"),
        (json.dumps({**GOOD, "fact": {"run_id": "r", "call_id": "c", "x": 1}}), "wrong fields: x"),
        (
            fact_to_json(ToolDecided("r", "t", ToolUseBlock("t", "n"), Deny("no"))).replace("deny", "maybe"),
            "unknown verdict 'maybe'",
        ),
    ],
)
def test_what_is_no_fact(text: str, says: str) -> None:
    """Text that is no fact, or not one of ours, is a StoreError that says what to do."""
    with pytest.raises(StoreError) as caught:
        fact_from_json(text)
    assert says in str(caught.value)


SAVED: Mapping[str, Any] = session_to_dict(SavedSession("s"))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "This is not a saved session"),
        ([], "This is not a saved session"),
        ({**SAVED, "version": CODEC_VERSION + 1}, "A newer version wrote it"),
        ({**SAVED, "id": 3}, "must have id (a string)"),
        ({**SAVED, "facts": {}}, "messages and facts (lists)"),
        ({**SAVED, "messages": [{"role": "robot"}]}, "A saved message cannot be read: role"),
        ({**SAVED, "facts": [{}]}, "has the version None"),
    ],
)
def test_what_is_no_session(data: Any, says: str) -> None:
    """Data that is no session is a StoreError that says what to do."""
    with pytest.raises(StoreError) as caught:
        session_from_dict(data)
    assert says in str(caught.value)


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"format": "agentflow.session", "inner": {"x": '])
def test_json_that_is_nested_without_end(opening: str) -> None:
    """A hundred thousand levels are no session: a StoreError, and no recursion."""
    with pytest.raises(StoreError, match=r"This is not a saved session: it is not JSON \(recursion limit exceeded"):
        Session.from_json(opening * 100_000)


async def test_a_call_without_an_id_is_not_imported() -> None:
    """Results and decisions name calls by their id, so the empty one is none; neither way in takes it."""
    use, result = ToolUseBlock("t1", "look", {}), ToolResultBlock("t1", "look", "seen")
    saved = Session.fresh(messages=[Msg.user("Hi"), Msg.assistant([use]), Msg("tool", (result,))]).to_json()
    wrong = saved.replace('"t1"', '""')
    assert Session.from_json(saved).messages[1].tool_uses == (use,)
    with pytest.raises(StoreError, match=r"is inconsistent: The tool call 'look' has an empty id\."):
        Session.from_json(wrong)
    with pytest.raises(StoreError, match=r"is inconsistent: The tool call 'look' has an empty id\."):
        await MemoryStore().import_(json.loads(wrong))
