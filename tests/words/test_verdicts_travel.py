"""Every verdict, by every way it travels: what comes out says what went in, and a model reads the same of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import pytest

from agentflow import (
    Again,
    Agent,
    Answer,
    Approve,
    DataBlock,
    Deny,
    Msg,
    Recover,
    Reply,
    Session,
    Stop,
    Suspend,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
    tool,
)
from agentflow.agent import AgentRegistry
from agentflow.durable.records import Request, decisions_out
from agentflow.errors import StoreError, UsageError
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.facts import CallResumed, ToolDecided
from agentflow.vocabulary.messages import Pending
from agentflow.vocabulary.saving.codec import (
    CODEC_VERSION,
    decisions_from_dict,
    fact_from_json,
    fact_to_json,
    resolution_from_dict,
    session_from_dict,
    verdict_from_dict,
    verdict_to_dict,
)
from agentflow.vocabulary.specs import Usage
from agentflow.vocabulary.verdicts import AnyVerdict, Resolution

USE = ToolUseBlock("t1", "look", {"where": "here"})
PICTURE = DataBlock("image/png", data="aGk=")

VALUES: dict[str, Any] = {
    "nothing": None,
    "text": "found it",
    "number": 3.5,
    "data": {"found": [1, {"deep": None}]},
    "list": ["a", 2],
    "result": ToolResultBlock("t1", "look", "found it"),
    "error result": ToolResultBlock("t1", "look", "not there", "error"),
    "timeout result": ToolResultBlock("t1", "look", "too late", "timeout"),
    "result with a picture": ToolResultBlock("t1", "look", (TextBlock("see"), PICTURE)),
    "picture": PICTURE,
    "words and a picture": ["see", PICTURE, TextBlock("there")],
    "message": Msg.assistant(["as said", PICTURE], id="m1"),
}
"""What a verdict may carry."""

VERDICTS: dict[str, AnyVerdict] = {
    "Deny": Deny("not today"),
    "Stop": Stop("enough"),
    "Suspend": Suspend({"who": ["ada"]}),
    "Suspend without a request": Suspend(),
    "Suspend with a message": Suspend(Msg.user("may I?", id="m1")),
    "Suspend with a mapping": Suspend(MappingProxyType({"who": "ada"})),
    "Approve": Approve(),
    "Approve with other arguments": Approve(input={"where": "there"}),
    "Again": Again("more"),
    "Again with a message": Again(Msg.user("more", id="m2")),
    "Again with messages": Again((Msg.user("more", id="m2"), Msg.assistant("and more", id="m3"))),
    "Again with a call": Again((Msg.assistant([ToolUseBlock("t9", "look", {"x": 1})], id="m4"),)),
    "Recover without a value": Recover(),
    **{f"Answer with {name}": Answer(value) for name, value in VALUES.items()},
    **{f"Recover with {name}": Recover(value) for name, value in VALUES.items()},
}


@tool(requires_approval=True)
async def look(where: str) -> Any:
    """Look."""
    return "x"


def _json(data: Any) -> Any:
    return json.loads(json.dumps(data, allow_nan=False))


def _through_turn(decision: Any) -> Any:
    return Turn.from_json(Turn(look, {"where": "x"}, approval=decision).to_json(), tools=[look]).approval


async def _through_queue(decision: Any) -> Any:
    agent, other = (Agent(name, ScriptedModel([]), tools=[look], agents=AgentRegistry()) for name in ("one", "other"))
    agent.queue.pause()
    await agent.put(Turn(look, {"where": "x"}, approval=decision))
    other.queue.restore(_json(agent.queue.to_dict()))
    return other.queue.turns[0].approval


def _through_worker(decision: Any) -> Any:
    said = decisions_out("run", {"t1": decision}, [Pending("t1")])
    request = Request("run", "a", "s", decisions=said)
    stored = Request.from_data("run", _json(request.to_dict()))
    return decisions_from_dict(stored.decisions or {})["t1"]


def _fact(verdict: Any) -> Any:
    read = fact_from_json(fact_to_json(ToolDecided("r", "t1", USE, verdict)))
    assert isinstance(read, ToolDecided)
    return read.verdict


def _resumed(decision: Any) -> Any:
    read = fact_from_json(fact_to_json(CallResumed("r", "c", {"t1": decision})))
    assert isinstance(read, CallResumed)
    return read.decisions["t1"]


FOR_ALL: dict[str, Callable[[Any], Any]] = {
    "a fact": _fact,
    "data": lambda verdict: verdict_from_dict(_json(verdict_to_dict(verdict))),
}
FOR_DECISIONS: dict[str, Callable[[Any], Any]] = {
    "a fact of a resumption": _resumed,
    "data": lambda decision: resolution_from_dict(_json(verdict_to_dict(decision))),
    "a saved turn": _through_turn,
    "a saved queue": _through_queue,
    "a worker": _through_worker,
}


async def _came(way: Callable[[Any], Any], said: Any) -> Any:
    came = way(said)
    return await came if hasattr(came, "__await__") else came


def test_no_verdict_is_missing_here() -> None:
    """A new verdict needs its rows."""
    assert {type(verdict) for verdict in VERDICTS.values()} == {*get_args(AnyVerdict)}


@pytest.mark.parametrize("verdict", VERDICTS.values(), ids=VERDICTS)
async def test_a_verdict_comes_out_as_it_went_in(verdict: AnyVerdict) -> None:
    """By each way that it can travel, with what it carries and with the state of a result."""
    ways = FOR_ALL | (FOR_DECISIONS if isinstance(verdict, get_args(Resolution)) else {})
    came = {name: await _came(way, verdict) for name, way in ways.items()}
    assert came == dict.fromkeys(ways, verdict)


# ---- texts for the model


async def _suspended(store: SqlStore | None = None) -> Agent:
    model = ScriptedModel([USE, "done"])
    agent = Agent("a", model, tools=[look], store=store)
    assert (await agent.call("go", session="s")).outcome == "suspended"
    return agent


async def _read(agent: Agent, session: Any, decisions: Mapping[str, Any]) -> tuple[str, Any]:
    found = session if isinstance(session, Session) else agent.session(session)
    await agent.resume(session, decisions)
    result = found.messages[2].tool_results[0]
    return result.state, result.content


@pytest.mark.parametrize(
    "value", [*VALUES.values(), date(2026, 1, 2), ("a", 1), {1: 2}], ids=lambda value: repr(value)[:40]
)
async def test_a_model_reads_the_same_by_every_way(value: Any, tmp_path: Path) -> None:
    """A decision given here, through a saved session, from a store, or by a worker: the same result, in the same state."""
    decision = Answer(value)
    here = await _read(await _suspended(), "s", {"t1": decision})
    read: dict[str, Any] = {}
    for name, way in FOR_DECISIONS.items():
        read[name] = await _read(await _suspended(), "s", {"t1": await _came(way, decision)})
    saved = await _suspended()
    restored = Session.from_json(saved.session("s").to_json())
    read["a saved session"] = await _read(Agent("a", ScriptedModel(["done"]), tools=[look]), restored, {"t1": decision})
    store = SqlStore(f"sqlite:///{tmp_path}/s.db")
    try:
        await (await _suspended(store)).resume("s", {"t1": decision})
        result = Session.from_dict(await store.export("s")).messages[2].tool_results[0]
        read["a store"] = (result.state, result.content)
    finally:
        await store.close()
    assert read == dict.fromkeys(read, here)


async def test_a_turn_gives_the_same_saved_or_not() -> None:
    """By hand, a turn that was answered gives what the answer holds, whether or not it was saved in between."""
    for value in VALUES.values():
        turn = Turn(look, {"where": "x"}, approval=Answer(value))
        assert await Turn.from_json(turn.to_json(), tools=[look]).returning() == await turn.returning()


# ---- what cannot travel, and what others wrote


class Live:
    """No data."""

    def __str__(self) -> str:
        return "a live object"


def test_what_json_does_not_know() -> None:
    """A turn and a request say so before anything is kept; a fact, which must be written, keeps the text of it."""
    with pytest.raises(UsageError, match=r"The approval of turn .* cannot be saved"):
        Turn(look, {"where": "x"}, approval=Answer(Live())).to_dict()
    with pytest.raises(UsageError, match="The decision for 't1' cannot be saved"):
        decisions_out("run", {"t1": Answer([Live()])}, [Pending("t1")])
    assert _fact(Answer(Live())) == Answer("a live object")


def test_a_reply_that_is_an_answer_is_a_message() -> None:
    """Of another agent's reply the text is used, not its call."""
    reply = Reply.of(Msg.assistant("said", id="m"), "completed", "run_7", Usage(), ())
    assert verdict_from_dict(verdict_to_dict(Answer(reply))) == Answer(reply.to_message())


@pytest.mark.parametrize(
    ("old", "decision"),
    [
        ({"verdict": "approve", "value": None}, Approve()),
        ({"verdict": "approve", "value": {"where": "there"}}, Approve(input={"where": "there"})),
        ({"verdict": "deny", "value": "no"}, Deny("no")),
        ({"verdict": "answer", "value": {"a": 1}}, Answer({"a": 1})),
    ],
)
def test_what_the_first_version_wrote_is_read(old: dict[str, Any], decision: Any) -> None:
    """Turns and requests of the first form."""
    turn = {**Turn(look, {"where": "x"}).to_dict(), "version": 1, "approval": old}
    assert Turn.from_dict(turn, tools=[look]).approval == decision
    request = Request("run", "a", "s", decisions={"t1": {"decision": old["verdict"], "value": old["value"]}})
    stored = Request.from_data("run", {**request.to_dict(), "form": 1})
    assert decisions_from_dict(stored.decisions or {}) == {"t1": decision}


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"verdict": "maybe"},
        {"verdict": "deny"},
        {"verdict": "stop", "reason": "x"},
        {"verdict": "answer", "form": "result", "value": 5},
        {"verdict": "answer", "form": "blocks", "value": 5},
        {"verdict": "answer", "form": "else", "value": 5},
    ],
    ids=json.dumps,
)
def test_what_is_no_decision_is_refused(said: dict[str, Any]) -> None:
    """In a turn and in a request: with the reason, before anything runs."""
    with pytest.raises(StoreError, match="This is not a saved turn: approval: "):
        Turn.from_dict({**Turn(look, {"where": "x"}).to_dict(), "approval": said}, tools=[look])
    with pytest.raises(StoreError, match="is damaged, or not in the portable form: decisions: "):
        Request.from_data("run", {**Request("run", "a", "s").to_dict(), "decisions": {"t1": said}})
    with pytest.raises(StoreError, match=f"has version {CODEC_VERSION + 1}"):
        Request.from_data("run", {**Request("run", "a", "s").to_dict(), "form": CODEC_VERSION + 1})


def test_a_saved_session_may_be_loaded_twice() -> None:
    """Loading leaves the data as it is, with its decisions."""
    facts = [
        json.loads(fact_to_json(fact))
        for fact in (ToolDecided("r", "t1", USE, Deny("no")), CallResumed("r", "c", {"t1": Deny("no")}))
    ]
    saved = {"format": "agentflow.session", "version": CODEC_VERSION, "id": "s", "facts": facts}
    before = json.dumps(saved)
    assert session_from_dict(saved).facts == session_from_dict(saved).facts
    assert json.dumps(saved) == before
