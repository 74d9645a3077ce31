"""The loop in virtual time raises an error if it is stuck."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentflow import Agent, tool
from agentflow._support import virtual_time
from agentflow.testing import ScriptedModel, run_virtual
from agentflow.vocabulary.blocks import ToolUseBlock


def test_a_program_that_waits_for_nothing_fails_with_the_places_where_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the stack of each task, down to the function that waits."""
    monkeypatch.setattr(virtual_time, "_PATIENCE", 0.05)

    @tool(timeout=None)
    async def waits_for_good() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return "never"

    agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "waits_for_good")]), tools=[waits_for_good])

    async def main() -> None:
        await agent.call("go")

    with pytest.raises(RuntimeError, match="Nothing more can happen") as stuck:
        run_virtual(main())
    assert "in main" in str(stuck.value)
    assert "in waits_for_good" in str(stuck.value)


def test_a_thread_may_still_wake_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that the loop did not start has time to answer."""
    monkeypatch.setattr(virtual_time, "_PATIENCE", 30.0)

    async def main() -> str:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[str] = loop.create_future()
        threading.Timer(0.05, lambda: loop.call_soon_threadsafe(answered.set_result, "here")).start()
        return await answered

    assert run_virtual(main()) == "here"
