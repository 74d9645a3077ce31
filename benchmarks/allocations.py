"""Counters of memory: how many blocks a call, a round, a chunk and a hook keep at the moment of the highest use.

A block is what CPython's allocator gives for one object, or for the table of one: `sys.getallocatedblocks`. It is read whenever
code of the other side runs (model, tool, hook, reader) with the garbage collector off, so objects that wait to be collected
count. Objects made and freed between two readings are not seen: they cost time, which the number of entered functions shows.

Rules:

1. The result is the median of several runs: the first ones fill pools, free lists and caches.
2. A round and a chunk are slopes: many less few, over the difference.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from agentflow import Agent, Hook, HookEvent, Session, tool
from agentflow.vocabulary.chunks import ModelChunk
from benchmarks.bare import Script, add, answer, tool_reply

__all__ = ["ALLOCATIONS", "BLOCKS"]

_RUNS = 5
_FEW, _MANY = 20, 60
_CHUNKS = 500

BLOCKS = {"call": 72, "round": 17, "streamed": 18, "chunk": 1, "hook": 17}
"""What is kept where most is in use: by a call and its session, and by one more round, streamed round, chunk, and hook.

Before Python 3.13, three of a call's blocks let its task count cancellations exactly."""

Way = Callable[[Agent, Session], Awaitable[None]]


class _Blocks:
    """The most blocks in use at any look."""

    def __init__(self) -> None:
        self.most = 0

    def look(self) -> None:
        """Look now."""
        now = sys.getallocatedblocks()
        if now > self.most:
            self.most = now


_blocks = _Blocks()


async def _add(a: int, b: int) -> int:
    _blocks.look()
    return await add(a, b)


_TOOL = tool(name="add")(_add)


class _Model(Script):
    """A script that looks when it is asked, and at each chunk."""

    async def stream(self, request: object) -> AsyncIterator[ModelChunk]:
        """Yield the chunks of the next reply."""
        _blocks.look()
        async for chunk in super().stream(request):
            _blocks.look()
            yield chunk


class _Looks(Hook):
    """Looks at each event."""

    def on_event(self, event: HookEvent) -> HookEvent:
        _blocks.look()
        return event


async def _called(agent: Agent, session: Session) -> None:
    await agent.call("What is 1 + 2?", session=session)


async def _streamed(agent: Agent, session: Session) -> None:
    async with agent.stream("What is 1 + 2?", session=session) as events:
        async for _ in events:
            _blocks.look()


def _agent(*replies: Sequence[ModelChunk], hooks: Sequence[Hook] = ()) -> Agent:
    return Agent("benchmark", _Model(*replies), tools=[_TOOL], hooks=hooks, max_iterations=1_000)


async def _held(way: Way, agent: Agent) -> int:
    """The most blocks that one call and its session had in use at once, above the number in use before."""
    held: list[int] = []
    gc.collect()
    gc.freeze()  # existing objects do not count, and scanning them takes most of the time
    for _ in range(_RUNS):
        gc.collect()
        gc.disable()
        try:
            await asyncio.sleep(0)  # what the last call left to the event loop is done with
            before = sys.getallocatedblocks()
            _blocks.most = 0
            await way(agent, Session.fresh())
            held.append(_blocks.most - before)
        finally:
            gc.enable()
    return sorted(held)[_RUNS // 2]


async def _of_rounds(way: Way, rounds: int, hooks: Sequence[Hook] = ()) -> int:
    return await _held(way, _agent(*[tool_reply(i) for i in range(rounds)], answer(), hooks=hooks))


async def call() -> float:
    """A call without tools."""
    return await _of_rounds(_called, 0)


async def round_() -> float:
    """One more round."""
    return (await _of_rounds(_called, _MANY) - await _of_rounds(_called, _FEW)) / (_MANY - _FEW)


async def streamed() -> float:
    """One more streamed round."""
    return (await _of_rounds(_streamed, _MANY) - await _of_rounds(_streamed, _FEW)) / (_MANY - _FEW)


async def chunk() -> float:
    """One more streamed chunk."""
    few, many = [await _held(_streamed, _agent([ModelChunk("a")] * count)) for count in (_CHUNKS, 2 * _CHUNKS)]
    return (many - few) / _CHUNKS


async def hook() -> float:
    """A hook that listens to all events of a call with a round."""
    return await _of_rounds(_called, 1, [_Looks()]) - await _of_rounds(_called, 1)


ALLOCATIONS: dict[str, Callable[[], Awaitable[float]]] = {
    "call": call,
    "round": round_,
    "streamed": streamed,
    "chunk": chunk,
    "hook": hook,
}
