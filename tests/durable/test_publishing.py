"""Events of facts that an attempt did not publish: the next attempt publishes them, but none a second time."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import get_args

from agentflow import Msg, PostReasoning, ToolUseBlock, Usage
from agentflow.durable.publishing import EventPublisher
from agentflow.durable.records import events_in
from agentflow.durable.tables import Tables
from agentflow.vocabulary.blocks import ToolResultBlock, ToolState
from agentflow.vocabulary.facts import Fact, Reasoned, ToolDecided, ToolFinished

STATES: list[ToolState] = [state for state in get_args(ToolState) if state != "suspended"]


async def test_a_result_is_published_once_whatever_its_state(tmp_path: Path) -> None:
    """The same holds for the reply and the decisions before it."""
    uses = {state: ToolUseBlock(state, "look") for state in STATES}
    facts: list[Fact] = [
        Reasoned("r", 1, Msg.assistant("Hm."), Usage(), 1.0),
        *(ToolDecided("r", use.id, use, None) for use in uses.values()),
        *(
            ToolFinished("r", use.id, use, ToolResultBlock(use.id, "look", "", state), 1.0)
            for state, use in uses.items()
        ),
    ]
    tables = Tables(f"sqlite:///{tmp_path / 'runs.db'}")
    try:
        for worker in ("one", "two"):
            async with EventPublisher(tables, "r", "r", worker) as publisher:
                await publisher.catch_up(facts)
        found = [event for batch in tables.events("r", 0) for event in events_in("r", *batch)]
    finally:
        tables.dispose()
    counted = {"RunTaken": 2, "PostReasoning": 1, "PreActing": len(STATES), "PostActing": len(STATES)}
    assert Counter(event.type for event in found) == counted
    assert [event.data["tool_result"]["state"] for event in found if event.type == "PostActing"] == STATES


async def test_facts_of_a_call_that_publishes_its_events_are_not_published_too(tmp_path: Path) -> None:
    """An attempt may read its own facts again: their events wait to be written, or follow."""
    use, said = ToolUseBlock("t", "look"), Msg.assistant("Hm.")
    facts: list[Fact] = [Reasoned("r", 1, said, Usage(), 1.0), ToolDecided("r", use.id, use, None)]
    tables = Tables(f"sqlite:///{tmp_path / 'runs.db'}")
    try:
        async with EventPublisher(tables, "r", "r", "one") as publisher:
            await publisher.publish(PostReasoning(reasoning_result=said, usage=Usage()))
            await publisher.catch_up(facts)
        found = [event.type for batch in tables.events("r", 0) for event in events_in("r", *batch)]
    finally:
        tables.dispose()
    assert found == ["RunTaken", "PostReasoning"]


async def test_events_of_a_moment_are_written_together(tmp_path: Path) -> None:
    """While the run continues, in one batch; at its end without a pause."""
    events = [PostReasoning(reasoning_result=Msg.assistant("Hm."), usage=Usage()) for _ in range(3)]
    tables = Tables(f"sqlite:///{tmp_path / 'runs.db'}")
    try:
        async with EventPublisher(tables, "r", "r", "one") as publisher:
            for event in events:
                await publisher.publish(event)
                await asyncio.sleep(0.001)
        batches = list(tables.events("r", 0))
    finally:
        tables.dispose()
    assert [(batch.first, batch.last) for batch in batches] == [(1, 1), (2, 4)]
