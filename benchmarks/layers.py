"""Layers of `around`: the cost of one more hook that wraps the model's or a tool's work with a plain operator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from agentflow import Agent, Hook, PreActing, PreReasoning, Session, tool
from benchmarks.bare import Script, add, answer, tool_reply
from benchmarks.measure import Body, Effort, measure
from benchmarks.report import Figure

__all__ = ["around"]

_TOOL = tool(add)
_MANY = 40
_BUDGET = 1.5


def _same(value: Any) -> Any:
    return value


class Mapped(Hook):
    """Maps each item."""

    def __init__(self, kind: type[Any]) -> None:
        self.wraps = (kind,)

    def around(self, event: Any, source: Any) -> Any:
        return source.map(_same)


class Tapped(Mapped):
    """Sees each item."""

    def around(self, event: Any, source: Any) -> Any:
        return source.tap(_same)


def layered(hook: Callable[[Any], Hook], kind: type[Any], count: int) -> Body:
    """Calls with a number of hooks around the model, or around the tool."""
    model = Script(tool_reply(0), answer()) if kind is PreActing else Script(answer())
    agent = Agent("benchmark", model, tools=[_TOOL], hooks=[hook(kind) for _ in range(count)])

    async def body(times: int) -> None:
        for _ in range(times):
            await agent.call("What is 1 + 2?", session=Session.fresh())

    return body


async def _entered(body: Body) -> int:
    """How many Python functions one repetition enters."""
    entered = 0

    def count(_frame: object, kind: str, _argument: object) -> None:
        nonlocal entered
        entered += kind == "call"

    async def counted(times: int) -> int:
        nonlocal entered
        entered = 0
        sys.setprofile(count)
        try:
            await body(times)
        finally:
            sys.setprofile(None)
        return entered

    await body(2)
    return await counted(2) - await counted(1)


async def around(effort: Effort) -> list[Figure]:
    """One more layer that maps or taps, around a reply in two chunks and around a tool."""
    figures: list[Figure] = []
    for name, kind in (("the model", PreReasoning), ("a tool", PreActing)):
        for verb, hook in (("maps", Mapped), ("taps", Tapped)):
            bodies = [layered(hook, kind, count) for count in (0, 1, 1 + _MANY)]
            turns = await measure(Effort(effort.turns, effort.seconds / 4, effort.quick), *bodies)
            calls = [await _entered(body) for body in bodies]
            more = (calls[2] - calls[1]) / _MANY
            detail = (
                f"{more:g} Python calls; the first {turns.slope(1, 0, 1) * 1e6:.2f} µs and {calls[1] - calls[0]} calls"
            )
            what = f"one more layer that {verb} around {name}"
            figures.append(Figure("around", what, turns.slope(2, 1, _MANY) * 1e6, "µs", _BUDGET, detail=detail))
    return figures
