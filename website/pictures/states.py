"""The states of the loop, and the facts that lead from one to another (`TRANSITIONS`)."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from agentflow.loop.states import State, ways
from website.pictures.svg import Anchor, Colour, Picture

__all__ = ["draw"]

_W, _H = 172, 58

_PLACES: Final[dict[State, tuple[float, float, Colour, str]]] = {
    State.USER_INPUT: (104, 270, "plain", "no call is open"),
    State.ASSISTANT: (360, 78, "model", "the model's turn"),
    State.TOOL_EXECUTION: (840, 78, "tool", "a round is open"),
    State.RESPONSE: (360, 462, "call", "the reply exists"),
    State.SUSPENDED: (840, 462, "guard", "waits for a decision"),
}
"""The middle of each box, its colour, and what the state means."""

_WAYS: Final[dict[tuple[State, State], tuple[str, float, float, Anchor]]] = {
    (State.USER_INPUT, State.ASSISTANT): ("M104 241 L104 78 L273 78", 114, 68, "start"),
    (State.ASSISTANT, State.USER_INPUT): ("M280 107 L170 240", 236, 180, "start"),
    (State.ASSISTANT, State.TOOL_EXECUTION): ("M446 66 L753 66", 600, 56, "middle"),
    (State.TOOL_EXECUTION, State.ASSISTANT): ("M754 92 L447 92", 600, 112, "middle"),
    (State.ASSISTANT, State.RESPONSE): ("M345 107 L345 432", 337, 330, "end"),
    (State.ASSISTANT, State.SUSPENDED): ("M432 107 L770 432", 482, 148, "start"),
    (State.SUSPENDED, State.ASSISTANT): ("M752 442 L404 108", 448, 172, "end"),
    (State.TOOL_EXECUTION, State.RESPONSE): ("M790 107 L446 440", 674, 192, "end"),
    (State.TOOL_EXECUTION, State.SUSPENDED): ("M828 107 L828 432", 820, 236, "end"),
    (State.SUSPENDED, State.TOOL_EXECUTION): ("M852 433 L852 108", 862, 280, "start"),
    (State.RESPONSE, State.SUSPENDED): ("M446 456 L753 456", 600, 448, "middle"),
    (State.SUSPENDED, State.RESPONSE): ("M754 478 L447 478", 600, 498, "middle"),
    (State.RESPONSE, State.USER_INPUT): ("M273 462 L104 462 L104 300", 114, 452, "start"),
    (State.SUSPENDED, State.USER_INPUT): ("M840 491 L840 560 L60 560 L60 300", 450, 552, "middle"),
    (State.ASSISTANT, State.ASSISTANT): ("M320 49 C 320 14, 400 14, 400 48", 412, 30, "start"),
    (State.SUSPENDED, State.SUSPENDED): ("M926 474 C 966 474, 966 450, 928 450", 934, 506, "middle"),
}
"""The line of each transition, and the place of its label."""


def draw() -> Picture:
    """Draw the picture."""
    p = Picture(1000, 590, "The five states of the loop and the facts that lead from one to another.")
    said: defaultdict[tuple[State, State], list[str]] = defaultdict(list)
    for state, to, label in ways():
        said[state, to].append(label)
    assert said.keys() == _WAYS.keys(), "_WAYS does not have the same transitions as the loop"
    for (state, to), labels in said.items():
        line, x, y, anchor = _WAYS[state, to]
        colour = _PLACES[to][2]
        p.line(line, colour)
        lines = [part for label in labels for part in _broken(label, x)]
        for number, text in enumerate(lines):
            p.text(x, y + 16 * number, text, colour, size=12.5, anchor=anchor)
    for state, (x, y, colour, means) in _PLACES.items():
        p.chip(x - _W / 2, y - _H / 2, _W, _H, [(state.name, 13.5, True, True), (means, 12, False, False)], colour)
    return p


def _broken(label: str, x: float) -> list[str]:
    """Return the lines of a label: one line, or a line for each part between commas where space is narrow."""
    return [label] if x in _WIDE else [part.strip() for part in label.split(",")]


_WIDE: Final = {600, 450, 412}
"""The horizontal positions of labels with space for one line."""
