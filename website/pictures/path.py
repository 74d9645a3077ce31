"""The path of an event: a real call, observed with `sys.setprofile`, from `agent.call` to a hook and from there to the tool."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import agentflow
from agentflow import Agent, PreActing, ToolUseBlock, on, tool
from agentflow.testing import ScriptedModel
from website.pictures.svg import Colour, Picture, width_of

__all__ = ["Step", "draw", "watched"]

_PACKAGE: Final = Path(agentflow.__file__).parent


class Step(NamedTuple):
    """A function of agentflow that was entered, or a call of the user's code.

    Attributes:
        above: The functions that wait for it, from the outermost.
        file: Its file, below `agentflow/`; empty for the user's code.
        name: Its qualified name.
    """

    above: tuple[str, ...]
    file: str
    name: str


def _key(frame: FrameType) -> tuple[str, str] | None:
    """Return the file and name of a function of agentflow; None for all other functions."""
    code = frame.f_code
    path = Path(code.co_filename)
    if not path.is_relative_to(_PACKAGE) or code.co_name.startswith("<"):
        return None
    file = path.relative_to(_PACKAGE).as_posix()
    return None if file.startswith("testing/") else (file, code.co_qualname)


def _stack(frame: FrameType | None) -> tuple[str, ...]:
    names: list[str] = []
    while frame is not None:
        if (key := _key(frame)) is not None:
            names.append(key[1])
        frame = frame.f_back
    return tuple(reversed(names))


def watched() -> list[Step]:
    """Return the functions that a call enters from `agent.call` to the tool. Up to the hook, functions that have returned
    are left out.
    """
    steps: list[Step] = []
    waiting: tuple[str, ...] = ()

    def look(frame: FrameType, kind: str, _: object) -> None:
        key = _key(frame) if kind == "call" else None
        if key is not None:
            steps.append(Step(_stack(frame.f_back), *key))

    @on(PreActing)
    def hook(event: PreActing) -> None:
        nonlocal waiting
        waiting = _stack(inspect.currentframe())
        steps.append(Step(waiting, "", "your hook"))

    @tool(type="read")
    async def add(a: int, b: int) -> int:
        sys.setprofile(None)
        steps.append(Step(_stack(inspect.currentframe()), "", "your tool"))
        return a + b

    async def call() -> None:
        use = ToolUseBlock("t1", "add", {"a": 1, "b": 2})
        agent = Agent("calculator", ScriptedModel([use, "3", use, "3"]), tools=[add], hooks=[hook], default_hooks=())
        await agent.call("1 + 2?")
        steps.clear()  # record the second call, since the first one creates objects that are reused
        sys.setprofile(look)
        try:
            await agent.call("1 + 2?")
        finally:
            sys.setprofile(None)

    asyncio.run(call())
    at = next(number for number, step in enumerate(steps) if step.name == "your hook")
    ways_in = [
        step
        for step in steps[:at]
        if step.name in {*waiting, "CallingAgent.call", "CallMono.__await__", "CallingAgent._open"}
    ]
    return [step for step in ways_in if len(step.above) == _depth(step, waiting)] + steps[at:]


def _depth(step: Step, waiting: tuple[str, ...]) -> int:
    """Return the depth of a function on the way to the hook."""
    return waiting.index(step.name) if step.name in waiting else len(step.above)


def _about(step: Step) -> str:
    """Return the first sentence of a function's docstring, without the last clauses if it is too long."""
    found: Any = importlib.import_module("agentflow." + step.file.removesuffix(".py").replace("/", "."))
    for part in step.name.split("."):
        found = inspect.getattr_static(found, part)
    text = (inspect.getdoc(found) or "").split("\n\n")[0].replace("\n", " ").replace("`", "").split(". ")[0]
    while len(text) > _MAX_LABEL:  # remove the last clause
        text = text[: max(text.rfind(mark, 0, len(text) - 1) for mark in ";:,(")].rstrip()
    return text.rstrip(".:;")


_MAX_LABEL: Final = 72
_ROW: Final = 31
_INDENT: Final = 24
_TEXT: Final = 560


def draw() -> Picture:
    """Draw the picture."""
    steps = watched()
    rows = list(_rows(steps))
    p = Picture(
        1040,
        72 + _ROW * len(rows) + 20,
        "The functions that a call enters, from agent.call to a PreActing hook, and from there to the tool.",
    )
    p.text(24, 34, "await agent.call(…)", "paper", size=15, mono=True, bold=True)
    p.text(_TEXT, 34, "the first line of its docstring", "muted", size=13)
    for number, row in enumerate(rows):
        _draw_row(p, row, 60 + _ROW * number, rows[number + 1 :])
    return p


class _Row(NamedTuple):
    depth: int
    step: Step | None
    said: str


def _rows(steps: list[Step]) -> Iterator[_Row]:
    """Yield the steps, and after the hook the functions that have returned."""
    past_hook = False
    last: Step | None = None
    for step in steps:
        if past_hook and last is not None:
            back = [*last.above, last.name][len(step.above) :]
            if back and last.name == "your hook":
                yield _Row(len(step.above), None, f"back through {', '.join(reversed(back[:-1]))}")
        yield _Row(len(step.above), step, _about(step) if step.file else "")
        past_hook = past_hook or not step.file
        last = step


def _draw_row(p: Picture, row: _Row, y: float, later: list[_Row]) -> None:
    x = 24 + _INDENT * row.depth
    if row.step is None:
        p.text(x, y + 16, f"↩ {row.said}", "muted", size=12.5)
        return
    step = row.step
    below = 0
    for number, other in enumerate(later, 1):
        if other.depth <= row.depth:
            break
        if other.depth == row.depth + 1 and other.step is not None:
            below = number
    if below:
        p.line(f"M{x + 10} {y + 24} L{x + 10} {y + 12 + _ROW * below}", "plain", width=1.4, head=False)
    for number, other in enumerate(later, 1):
        if other.depth <= row.depth:
            break
        if other.depth == row.depth + 1 and other.step is not None:
            at = y + 12 + _ROW * number
            p.line(f"M{x + 10} {at} L{x + _INDENT - 1} {at}", "plain", width=1.4)
    colour: Colour = (
        "seen" if step.name == "your hook" else "tool" if not step.file else _COLOURS[step.file.split("/")[0]]
    )
    wide = width_of(step.name, 13, mono=True) + 20
    p.chip(x, y, wide, 24, [(step.name, 13, True, bool(step.file))], colour)
    if step.file:
        p.text(x + wide + 10, y + 16.5, step.file, "muted", size=11.5, mono=True)
        p.text(_TEXT, y + 16.5, row.said, "paper", size=12.5)
    elif step.name == "your hook":
        p.text(x + wide + 10, y + 16.5, "returns the event, None or a verdict", "muted", size=12.5)


_COLOURS: Final[dict[str, Colour]] = {
    "agent": "call",
    "reactive": "call",
    "loop": "model",
    "hooks": "guard",
    "tools": "tool",
    "vocabulary": "plain",
    "_support": "plain",
}
"""By folder."""
