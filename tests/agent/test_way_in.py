"""The path from `agent.call` to the run: how many of our functions it enters. The counts do not depend on the
machine.
"""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import agentflow
from agentflow import Agent
from agentflow.testing import ScriptedModel

PACKAGE = str(Path(agentflow.__file__).parent)


async def entered(work: Callable[[], Awaitable[Any]]) -> list[str]:
    """Return our functions that are entered before the run's `_execute`."""
    seen: list[str] = []
    there = False

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal there
        code = frame.f_code
        if event == "call" and not there and code.co_filename.startswith(PACKAGE):
            there = code.co_name == "_execute"
            seen.append(code.co_name)

    sys.setprofile(look)
    try:
        await work()
    finally:
        sys.setprofile(None)
    assert there
    return seen[:-1]


async def read(agent: Agent) -> None:
    async with agent.stream("go") as events:
        async for _ in events:
            pass


# One of the functions is `count_exactly`: the run's task must count its cancellations exactly before Python 3.13.
WAYS: dict[str, tuple[Callable[[Agent], Awaitable[Any]], int]] = {
    "call": (lambda agent: agent.call("go"), 24),
    "call in a named session": (lambda agent: agent.call("go", session="s"), 27),
    "stream": (read, 34),
}


@pytest.mark.parametrize("way", WAYS)
async def test_the_way_in_is_short(way: str) -> None:
    """A second call enters no more functions than these; each path uses one `_open`."""
    work, most = WAYS[way]
    agent = Agent("a", ScriptedModel(["1", "2"]))
    await work(agent)
    names = await entered(lambda: work(agent))
    assert len(names) <= most, names
    assert names.count("_open") + names.count("_open_stream") == 1
