"""The scopes of hooks: the places in which a hook can be registered, and the events that it receives there."""

from __future__ import annotations

from typing import Final

from agentflow.hooks.scope import TOOL_EVENTS, TURN_EVENTS
from agentflow.vocabulary.events import EVENT_TYPES, CallEvent, Event, TurnEvent
from website.pictures.svg import Colour, Picture, width_of

__all__ = ["draw"]

_LOOP: Final = tuple(kind for kind in EVENT_TYPES if not issubclass(kind, TurnEvent))


def draw() -> Picture:
    """Draw the picture."""
    p = Picture(
        960, 486, "The scopes of hooks: process, agent, call, turn and tool, and the events that each receives."
    )
    _scope(
        p,
        16,
        16,
        928,
        454,
        "plain",
        "process",
        "all agents and turns; tags select among them",
        "process_hooks.hook(h)",
    )
    p.text(926, 44, "at equal priority the narrower scope comes first", "muted", size=12.5, anchor="end")
    _scope(
        p,
        36,
        90,
        552,
        362,
        "call",
        "agent",
        "all its calls",
        "Agent(…, hooks=[h]) · agent.hook(h) · @agent.on(PreActing)",
    )
    _scope(p, 56, 166, 512, 228, "model", "call", "this one", "agent.call(…, hooks=[h])")
    _events(p, 74, 238, 480, _LOOP, "model")
    p.text(56, 420, "and the events of the turns in its queue;", "muted", size=12.5)
    p.text(56, 437, 'a hook with scope="tree" sees its sub-agents too', "muted", size=12.5)
    _scope(p, 608, 90, 318, 188, "fact", "turn", "a tool that you run yourself", "Turn(…, hooks=[h]) · turn.hook(h)")
    _events(p, 626, 162, 290, tuple(kind for kind in TURN_EVENTS if kind not in TOOL_EVENTS), "fact")
    p.text(626, 258, "and its tool's events", "muted", size=12.5)
    _scope(p, 608, 298, 318, 154, "tool", "tool", "in every call and turn", "@my_tool.on(PreActing) · my_tool.hook(h)")
    _events(p, 626, 370, 290, TOOL_EVENTS, "tool")
    return p


def _scope(
    p: Picture, x: float, y: float, w: float, h: float, colour: Colour, name: str, about: str, code: str
) -> None:
    p.box(x, y, w, h, colour, r=12)
    p.text(x + 18, y + 28, name, colour, size=17, bold=True)
    p.text(x + 32 + width_of(name, 18), y + 28, about, "muted", size=13)
    p.text(x + 18, y + 52, code, colour, size=12, mono=True)


def _events(p: Picture, x: float, y: float, w: float, kinds: tuple[type[Event], ...], colour: Colour) -> None:
    """Draw the names of events, in rows within the width `w`."""
    at, row = x, y
    for kind in kinds:
        wide = width_of(kind.__name__, 13, mono=True) + 18
        if at + wide > x + w:
            at, row = x, row + 36
        own = "call" if issubclass(kind, CallEvent) and colour == "model" else colour
        p.chip(at, row, wide, 28, [(kind.__name__, 13, True, False)], own)
        at += wide + 8
