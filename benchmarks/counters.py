"""Counters: how many functions of ours a call, a round and a streamed round enter, and the blocks of memory that they keep.

They do not wobble with the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import Any

import agentflow
from agentflow import Agent, Hook, HookEvent, PreActing, Session
from agentflow.chunks import ModelChunk
from benchmarks.allocations import ALLOCATIONS, BLOCKS
from benchmarks.bare import Script, answer, tool_reply
from benchmarks.loops import agent_of
from benchmarks.measure import Effort
from benchmarks.plugins import all_plugins, with_hooks
from benchmarks.report import Figure

__all__ = ["COUNTERS", "counters"]

_PACKAGE = str(Path(agentflow.__file__).parent)
_ROUNDS = 10

BUDGETS = {"call": 62, "round": 52, "streamed": 98, "chunk": 6, "hook": 7, "plugins": 655}
"""What is entered at most by a call without tools, one more round, one more streamed round, one more streamed chunk, below a
`PreActing` hook, and by one more round with all plugins."""


async def entered(work: Callable[[], Awaitable[object]]) -> int:
    """How often a function of ours is entered, or resumed, while some work runs."""
    count = 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        if event == "call" and frame.f_code.co_filename.startswith(_PACKAGE):
            count += 1

    sys.setprofile(look)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return count


async def _called(agent: Agent, session: Session) -> None:
    await agent.call("What is 1 + 2?", session=session)


async def _streamed(agent: Agent, session: Session) -> None:
    async with agent.stream("What is 1 + 2?", session=session) as events:
        async for _ in events:
            pass


async def _of(rounds: int, way: Callable[[Agent, Session], Awaitable[None]]) -> int:
    agent = agent_of(Script(*[tool_reply(number) for number in range(rounds)], answer()))
    await way(agent, Session.fresh())
    session = Session.fresh()
    return await entered(lambda: way(agent, session))


async def call() -> float:
    """A call without tools."""
    return await _of(0, _called)


async def round_() -> float:
    """One more round."""
    return (await _of(2 * _ROUNDS, _called) - await _of(_ROUNDS, _called)) / _ROUNDS


async def streamed() -> float:
    """One more streamed round, its events read."""
    return (await _of(2 * _ROUNDS, _streamed) - await _of(_ROUNDS, _streamed)) / _ROUNDS


async def chunk() -> float:
    """One more chunk of a streamed reply, read."""

    async def of(count: int) -> int:
        agent = agent_of(Script([*[ModelChunk("word ")] * (count - 1), *answer()]))
        await _streamed(agent, Session.fresh())
        session = Session.fresh()
        return await entered(lambda: _streamed(agent, session))

    return (await of(2 * _ROUNDS) - await of(_ROUNDS)) / _ROUNDS


class _Stands(Hook):
    """Notes on how many frames of ours it stands."""

    depth = 0

    def on_event(self, event: HookEvent) -> HookEvent:
        if isinstance(event, PreActing):
            found: Any = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
            self.depth = 0
            while found is not None:
                self.depth += found.f_code.co_filename.startswith(_PACKAGE)
                found = found.f_back
        return event


async def hook() -> float:
    """The frames of ours that a `PreActing` hook stands on."""
    stands = _Stands()
    agent = agent_of(Script(tool_reply(0), answer()), hooks=[stands])
    await _called(agent, Session.fresh())
    return stands.depth


async def plugins() -> float:
    """One more round with all plugins in one agent, the log at INFO."""

    async def of(rounds: int) -> int:
        body = with_hooks(all_plugins, rounds)
        await body(2)
        return await entered(lambda: body(1))

    return (await of(2 * _ROUNDS) - await of(_ROUNDS)) / _ROUNDS


COUNTERS: dict[str, Callable[[], Awaitable[float]]] = {
    "call": call,
    "round": round_,
    "streamed": streamed,
    "chunk": chunk,
    "hook": hook,
    "plugins": plugins,
}


async def counters(effort: Effort) -> list[Figure]:
    """Functions of ours entered, and blocks of memory kept; the same on every machine."""
    entered = {
        "call": "functions of ours in a call",
        "round": "  in one more round",
        "streamed": "  in one more streamed round",
        "chunk": "  in one more streamed chunk",
        "hook": "  below a PreActing hook",
        "plugins": "  in one more round with all plugins",
    }
    kept = {
        "call": "blocks of memory a call and its session keep at the peak",
        "round": "  one more round",
        "streamed": "  one more streamed round",
        "chunk": "  one more chunk",
        "hook": "  a hook that hears all events",
    }
    functions = [
        Figure("counters", entered[name], await count(), "", BUDGETS[name]) for name, count in COUNTERS.items()
    ]
    return functions + [
        Figure("counters", kept[name], round(await count()), "", BLOCKS[name]) for name, count in ALLOCATIONS.items()
    ]
