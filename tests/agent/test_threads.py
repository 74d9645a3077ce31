"""Threads that share hooks, tools and a store, each with its own event loop: nothing is lost, with or without the
GIL.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentflow import Agent, Hook, MemoryStore, ToolUseBlock, tool
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import CallEnded, HookEvent, PostActing, PreActing

THREADS, CALLS = 8, 20


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Switch threads a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_share_a_hook_a_tool_and_a_store() -> None:
    """Each runs its own agent and conversation; shared objects see everything, once."""
    lock, seen = threading.Lock(), Counter[str]()

    def count(name: str) -> None:
        with lock:
            seen[name] += 1

    @tool(type="read")
    async def add(a: int, b: int) -> int:
        """Add."""
        count("add")
        await asyncio.sleep(0)
        return a + b

    class Counts(Hook):
        def on_event(self, event: HookEvent) -> HookEvent:
            match event:
                case PreActing() | PostActing():
                    count(type(event).__name__)
                case CallEnded(outcome=outcome):
                    count(outcome)
                case _:
                    pass
            return event

    shared, store = Counts(), MemoryStore()

    async def work(number: int) -> list[str]:
        script = [
            said
            for n in range(CALLS)
            for said in ([ToolUseBlock(f"{name}{n}", "add", {"a": n, "b": 1}) for name in "xy"], f"done {n}")
        ]
        agent = Agent(f"agent{number}", ScriptedModel(script), tools=[add], hooks=[shared], store=store)
        for _ in range(CALLS):
            await agent.call("go", session=f"s{number}")
        other = Agent("other", ScriptedModel(["and on"]), tools=[add], store=store)
        assert (await other.call("and now?", session=f"s{number}")).text == "and on"
        return [msg.text for msg in other.session(f"s{number}").messages if msg.role == "assistant" and msg.text]

    with ThreadPoolExecutor(THREADS) as threads:
        said = list(threads.map(lambda number: asyncio.run(work(number)), range(THREADS)))
    assert said == [[*[f"done {n}" for n in range(CALLS)], "and on"]] * THREADS
    tools, calls = THREADS * CALLS * 2, THREADS * CALLS
    assert seen == {"add": tools, "PreActing": tools, "PostActing": tools, "completed": calls}


def test_hooks_come_and_go_while_threads_call_the_agent() -> None:
    """A call has the hooks that existed when it began; none is left."""
    lock, heard = threading.Lock(), Counter[str]()

    def hears(event: CallEnded) -> None:
        with lock:
            heard[event.outcome] += 1

    agent = Agent("a", ScriptedModel(["x"] * (2 * THREADS * CALLS + 1)))

    async def work(number: int) -> None:
        for _ in range(CALLS):
            added = agent.on(CallEnded, hears)
            await agent.call("go", session=f"s{number}")
            added.dispose()
            await agent.call("go", session=f"s{number}")

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda number: asyncio.run(work(number)), range(THREADS)))
    assert heard["completed"] >= THREADS * CALLS
    before = heard.total()
    assert agent.call("and now?", session="s0").block().text == "x"
    assert heard.total() == before
