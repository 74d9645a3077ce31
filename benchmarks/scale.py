"""Many calls at once, and parallel tools."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

from agentflow import Agent, Session, tool
from benchmarks.bare import (
    Script,
    WaitingScript,
    add,
    answer,
    bare_call,
    parallel_call,
    tool_reply,
    user,
    wait_a_millisecond,
)
from benchmarks.measure import Body, Effort, measure
from benchmarks.report import Figure

__all__ = ["at_once", "parallel"]

_TOOL = tool(add)
_WAITING_TOOL = tool(type="read")(wait_a_millisecond)
_ROUNDS = 3


def _model() -> WaitingScript:
    return WaitingScript(*[tool_reply(i) for i in range(_ROUNDS)], answer())


def many_calls() -> Body:
    """So many calls at once on one agent, each in a session of its own."""
    agent = Agent("benchmark", _model(), tools=[_TOOL])

    async def body(count: int) -> None:
        await asyncio.gather(*[agent.call("What is 1 + 2?", session=Session.fresh()) for _ in range(count)])

    return body


def many_bare_calls() -> Body:
    """So many bare loops at once."""
    model = _model()

    async def body(count: int) -> None:
        await asyncio.gather(*[bare_call(model, [user("What is 1 + 2?")]) for _ in range(count)])

    return body


async def _peak(body: Body, count: int) -> float:
    """Return the most memory that was in use at once, in bytes above the use before."""
    await body(10)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        await body(count)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


async def at_once(effort: Effort) -> list[Figure]:
    """1,000 calls of three rounds and an answer at once; each reply takes the model a millisecond, on a timer.

    Throughput is wall time, which is all work here: the timers run while other calls do.
    """
    count = 20 if effort.quick else 1_000
    fewer = Effort(max(1, effort.turns // 2), effort.seconds, effort.quick)
    turns = await measure(fewer, many_calls(), many_bare_calls(), count=count, waits=True)
    peak, bare_peak = await _peak(many_calls(), count), await _peak(many_bare_calls(), count)
    each = f"{1 / turns.best(0):,.0f} calls/s against {1 / turns.best(1):,.0f}"
    return [
        Figure("at-once", f"{count:,} calls at once: throughput", turns.ratio(1, 0) * 100, "%", 45.0, True, each),
        Figure(
            "at-once",
            f"{count:,} calls at once: memory",
            peak / bare_peak,
            budget=2.2,
            detail=f"{peak / count / 1024:.1f} KiB a call against {bare_peak / count / 1024:.1f} (peak, traced)",
        ),
    ]


def parallel_tools(rounds: int) -> Body:
    """A call with rounds of eight read tools."""
    model = Script(*[tool_reply(i, "wait_a_millisecond", 8) for i in range(rounds)], answer())
    agent = Agent("benchmark", model, tools=[_WAITING_TOOL])

    async def body(count: int) -> None:
        for _ in range(count):
            await agent.call("Look.", session=Session.fresh())

    return body


def gathered_tools(rounds: int) -> Body:
    """The bare loop with `asyncio.gather`."""
    model = Script(*[tool_reply(i, "wait_a_millisecond", 8) for i in range(rounds)], answer())

    async def body(count: int) -> None:
        for _ in range(count):
            await parallel_call(model, [user("Look.")])

    return body


async def parallel(effort: Effort) -> list[Figure]:
    """Rounds of eight parallel read tools that wait a millisecond each, with the call around them."""
    rounds = 1 if effort.quick else 10
    turns = await measure(effort, parallel_tools(rounds), gathered_tools(rounds), waits=True)
    ours, bare = turns.best(0) / rounds, turns.best(1) / rounds
    detail = f"{ours * 1e3:.2f} ms a round against {bare * 1e3:.2f}"
    return [Figure("parallel", "eight parallel read tools of 1 ms", turns.ratio(0, 1), budget=1.1, detail=detail)]
