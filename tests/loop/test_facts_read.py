"""The facts of a run as hooks and saved sessions read them: created on reading, and the same with and without a
store.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from eventlog import use

from agentflow import Agent, Deny, Hook, MemoryStore, Msg, PostReasoning, PreActing, Session, Suspend, tool
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import CallEnded
from agentflow.vocabulary.facts import Fact

SCRIPT: list[Any] = [
    ["Look first.", use("t1", "look", at="north")],
    [use("t2", "look", at="south"), use("t3", "forbidden")],
    "All quiet.",
]


@tool(type="read")
async def look(at: str) -> str:
    """Look somewhere."""
    return f"nothing in the {at}"


@tool
async def forbidden() -> str:
    """A forbidden tool."""
    raise AssertionError


class Guard(Hook):
    """Denies one tool, edits each reply, and reads the facts, early or at the end only."""

    def __init__(self, early: bool, suspends: bool) -> None:
        self.early, self.suspends = early, suspends
        self.read: list[tuple[Fact, ...]] = []

    def on_event(self, event: Any) -> Any:
        match event:
            case PreActing() if event.tool_use.name == "forbidden":
                return Suspend("really?") if self.suspends else Deny("no")
            case PostReasoning():
                event.context.inject("Go on.")
            case _:
                pass
        if self.early or isinstance(event, CallEnded):
            self.read.append(tuple(event.context._port.facts()))
        return event


def _untimed(facts: tuple[Fact, ...]) -> list[tuple[str, dict[str, Any]]]:
    """Facts by name and fields, without durations."""
    return [
        (type(f).__name__, {name: value for name, value in f._asdict().items() if not name.endswith("_ms")})
        for f in facts
    ]


async def _facts(kept: bool, early: bool, suspends: bool = False) -> tuple[Guard, Session, MemoryStore]:
    numbers = count(1)
    hook, store = Guard(early, suspends), MemoryStore()

    def new_id(kind: str = "") -> str:
        return f"{kind}{next(numbers)}"

    agent = Agent("a", ScriptedModel(SCRIPT), tools=[look, forbidden], hooks=[hook], new_id=new_id)
    session = Session("s", store=store if kept else None)
    await agent.call(Msg.user("Look around.", id="m"), session=session)
    return hook, session, store


@pytest.mark.parametrize("early", [True, False])
async def test_the_facts_are_the_same_whoever_keeps_them(early: bool) -> None:
    """In memory, where a fact is created when it is read, and in a store, which gets each fact before it is acted on."""
    told, _, _ = await _facts(False, early)
    stored, _, store = await _facts(True, early)
    assert _untimed(told.read[-1]) == _untimed(stored.read[-1])
    assert stored.read[-1] == tuple(store.load("s"))
    assert {type(fact).__name__ for fact in told.read[-1]} == {
        "CallOpened",
        "Injected",
        "Reasoned",
        "ToolDecided",
        "ToolStarted",
        "ToolFinished",
        "RoundClosed",
        "CallClosed",
    }


async def test_reading_the_facts_early_changes_none_and_takes_none_twice() -> None:
    """The facts read at an earlier event are the beginning of those read at the end."""
    hook, _, _ = await _facts(False, True)
    whole = hook.read[-1]
    assert len(hook.read) > 10
    assert all(part == whole[: len(part)] for part in hook.read)


async def test_a_suspended_session_in_memory_is_saved_with_the_facts_that_nobody_has_read() -> None:
    """Its file holds what a store would hold: a session continues from either in the same way."""
    _, session, _ = await _facts(False, False, suspends=True)
    again = Session.from_dict(session.to_dict())
    _, kept, store = await _facts(True, False, suspends=True)
    assert session.open_run is not None
    assert again.open_run is not None
    assert (
        _untimed(tuple(session.open_run.facts))
        == _untimed(tuple(again.open_run.facts))
        == _untimed(tuple(store.load("s")))
    )
    assert [p.id for p in again.pending] == [p.id for p in kept.pending] == ["t3"]
