"""Results of the comparison with other frameworks (`benchmarks/peers/results.json`), as bars."""

from __future__ import annotations

from math import log10
from typing import Final

from benchmarks.peers.table import BARE, GROUPS, OURS, Row, median, number, read
from website.pictures.svg import Colour, Picture

__all__ = ["http", "round_"]

_LEFT: Final = 150
_MAX_BAR: Final = 470
_STEP: Final = 25


def _bars(key: str, title: str) -> Picture:
    """Draw the medians of the frameworks, smallest first, on a logarithmic scale."""
    report = read()
    row: Row = next(row for rows in GROUPS.values() for row in rows if row.key == key)
    found = [(name, str(side["label"]), median(side, key)) for name, side in report["sides"].items()]
    known = sorted([(value * row.scale, name, label) for name, label, value in found if value is not None])
    least, most = known[0][0] / 2, known[-1][0]
    picture = Picture(720, 62 + _STEP * len(known), f"{title}: {', '.join(label for _, _, label in known)}.")
    picture.text(20, 32, title, size=14, bold=True)
    for place, (value, name, label) in enumerate(known):
        y = 50 + _STEP * place
        colour: Colour = "call" if name == OURS else "plain" if name == BARE else "model"
        long = _MAX_BAR * log10(value / least) / log10(most / least)
        picture.text(_LEFT - 10, y + 13, label, size=12, anchor="end", bold=name == OURS)
        picture.box(_LEFT, y, long, 17, colour, r=3)
        picture.text(_LEFT + long + 8, y + 13, number(value), "muted", size=12)
    return picture


def round_() -> Picture:
    """Draw the time of a round."""
    return _bars("round", "A round: a reply that asks for a tool, and the tool (µs, logarithmic)")


def http() -> Picture:
    """Draw the time of a streamed chunk over HTTP."""
    return _bars("wire chunk", "A streamed chunk over HTTP, the client's side (µs, logarithmic)")
