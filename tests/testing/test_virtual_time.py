"""The loop in virtual time raises an error if it is stuck."""

from __future__ import annotations

import asyncio
import re
import threading
import types
from collections.abc import Generator
from typing import Any

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


def test_the_stack_of_each_waiting_task_is_shown_from_the_outside_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task has its name, and one line a function: coroutines, and generators that are awaited."""
    monkeypatch.setattr(virtual_time, "_PATIENCE", 0.05)

    async def inner() -> None:
        await asyncio.Event().wait()

    @types.coroutine
    def driven() -> Generator[Any, None, None]:
        yield from inner()  # type: ignore[misc]

    async def beside() -> None:
        await driven()

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.set_name("first")
        await asyncio.create_task(beside(), name="second")

    with pytest.raises(RuntimeError) as stuck:
        run_virtual(main())
    said, *stacks = re.split(r"^(first|second):\n", str(stuck.value), flags=re.MULTILINE)
    assert said == "Nothing more can happen: no timer is set, and these tasks wait:\n"
    assert {
        name: re.findall(r"in (\w+)$", stack, re.MULTILINE) for name, stack in zip(*[iter(stacks)] * 2, strict=True)
    } == {
        "first": ["main"],
        "second": ["beside", "driven", "inner", "wait"],
    }


def test_a_thread_may_still_wake_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that the loop did not start has time to answer."""
    monkeypatch.setattr(virtual_time, "_PATIENCE", 30.0)

    async def main() -> str:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[str] = loop.create_future()
        threading.Timer(0.05, lambda: loop.call_soon_threadsafe(answered.set_result, "here")).start()
        return await answered

    assert run_virtual(main()) == "here"


def test_timers_for_the_same_time_run_in_the_order_in_which_they_were_set() -> None:
    """Also between other timers, and after most of them have passed. asyncio's heap alone has no fixed order."""
    ran: list[tuple[float, int]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in range(3_000):
            when = float(number * 7 % 5)
            loop.call_at(when, lambda when=when, number=number: ran.append((loop.time(), number)))
        await asyncio.sleep(2)
        for number in range(3_000, 6_000):
            loop.call_later(1, lambda number=number: ran.append((loop.time(), number)))
        await asyncio.sleep(3)

    run_virtual(main())
    assert len(ran) == 6_000
    assert ran == sorted(ran)
    assert {time for time, _ in ran} == {0.0, 1.0, 2.0, 3.0, 4.0}
