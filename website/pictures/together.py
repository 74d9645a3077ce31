"""Six ways in which agents work together: the calls between them, and their order."""

from __future__ import annotations

from typing import Final

from website.pictures.svg import Colour, Picture

__all__ = ["draw"]

_WIDE, _HIGH = 304, 176
_PLACES: Final = [(16 + column * (_WIDE + 8), 16 + row * (_HIGH + 8)) for row in range(2) for column in range(3)]


def draw() -> Picture:
    """Draw the picture."""
    p = Picture(960, 392, "Six ways in which agents work together: who asks whom, in which order.")
    titles = [
        ("one after the other", "await ask(a, …); await ask(b, …)"),
        ("at the same time", "await gather(ask(a, …), ask(b, …))"),
        ("the first answer", "await race(ask(a, …), ask(b, …))"),
        ("a router chooses", "choice = await ask(router, …)"),
        ("handoff", "handoffs(a, b)"),
        ("talking to each other", "hub = Hub([a, b, c])"),
    ]
    for (x, y), (title, code), panel in zip(
        _PLACES, titles, (_sequence, _gather, _race, _route, _handoff, _hub), strict=True
    ):
        p.box(x, y, _WIDE, _HIGH, "plain", r=12)
        p.text(x + 14, y + 24, title, "call", size=15, bold=True)
        p.text(x + 14, y + _HIGH - 12, code, "muted", size=12, mono=True)
        panel(p, x, y)
    return p


def _agent(p: Picture, x: float, y: float, name: str, colour: Colour = "model", wide: float = 52) -> None:
    p.chip(x, y, wide, 30, [(name, 13, True, True)], colour)


def _sequence(p: Picture, x: float, y: float) -> None:
    for place, name in enumerate("abc"):
        _agent(p, x + 44 + place * 84, y + 76, name)
        p.line(f"M{x + 14 + place * 84},{y + 91} L{x + 42 + place * 84},{y + 91}")
    p.line(f"M{x + 264},{y + 91} L{x + 288},{y + 91}")


def _fan(p: Picture, x: float, y: float, won: str) -> None:
    for place, name in enumerate("abc"):
        top = y + 40 + place * 38
        lost = bool(won) and name != won
        _agent(p, x + 126, top, name, "plain" if lost else "model")
        p.line(f"M{x + 40},{y + 93} L{x + 124},{top + 15}", dash=lost)
        if not lost:
            p.line(f"M{x + 180},{top + 15} L{x + 264},{y + 93}")


def _gather(p: Picture, x: float, y: float) -> None:
    _fan(p, x, y, "")


def _race(p: Picture, x: float, y: float) -> None:
    _fan(p, x, y, "b")
    for place in (0, 2):
        p.text(x + 186, y + 60 + place * 38, "interrupted", "muted", size=12)


def _route(p: Picture, x: float, y: float) -> None:
    _agent(p, x + 40, y + 76, "router", "tool", 72)
    p.line(f"M{x + 14},{y + 91} L{x + 38},{y + 91}")
    for place, name in enumerate("abc"):
        top = y + 40 + place * 38
        chosen = name == "c"
        _agent(p, x + 190, top, name, "model" if chosen else "plain")
        p.line(f"M{x + 114},{y + 91} L{x + 188},{top + 15}", dash=not chosen)
    p.line(f"M{x + 244},{y + 131} L{x + 288},{y + 131}")


def _handoff(p: Picture, x: float, y: float) -> None:
    _agent(p, x + 110, y + 44, "a", "plain")
    _agent(p, x + 110, y + 110, "b")
    p.line(f"M{x + 14},{y + 59} L{x + 108},{y + 59}", "seen")
    p.text(x + 16, y + 52, "a message", "muted", size=12)
    p.line(f"M{x + 136},{y + 76} L{x + 136},{y + 107}", "tool", dash=True)
    p.text(x + 148, y + 96, "hands it over", "tool", size=12)
    p.line(f"M{x + 14},{y + 125} L{x + 108},{y + 125}", "seen")
    p.text(x + 16, y + 118, "the next one", "muted", size=12)
    p.line(f"M{x + 164},{y + 125} L{x + 288},{y + 125}")


def _hub(p: Picture, x: float, y: float) -> None:
    p.box(x + 118, y + 74, 68, 34, "fact")
    p.text(x + 152, y + 96, "hub", "fact", size=13, anchor="middle", bold=True)
    for name, left, top, ends in (
        ("a", 30.0, 76.0, "M84,91 L116,91"),
        ("b", 222.0, 42.0, "M220,62 L188,80"),
        ("c", 222.0, 110.0, "M220,122 L188,104"),
    ):
        _agent(p, x + left, y + top, name)
        start, end = ends.split(" ")
        from_x, from_y = (float(n) for n in start[1:].split(","))
        to_x, to_y = (float(n) for n in end[1:].split(","))
        p.line(f"M{x + from_x},{y + from_y} L{x + to_x},{y + to_y}", "fact")
        p.line(f"M{x + to_x},{y + to_y} L{x + from_x},{y + from_y}", "fact")
