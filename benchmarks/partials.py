"""Partial values of a typed answer: the cost of a chunk after few chunks and after many."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pydantic_core import from_json

from agentflow import Output
from agentflow.loop.output.partials import Partials
from benchmarks.measure import Effort
from benchmarks.report import Figure

__all__ = ["partials"]


@dataclass
class Line:
    """An item of the answer."""

    item: str
    cents: int


def _pieces(count: int) -> Iterator[str]:
    yield '{"answer":['
    for _ in range(count // 4):
        yield from ('{"item":', '"tea"', ',"cents":', "250},")


def _each(pieces: Iterable[str]) -> float:
    """Microseconds for a chunk of a list."""
    seen, fed = Partials(Output(list[Line])), 0
    began = time.perf_counter()
    for piece in pieces:
        seen.feed(piece)
        fed += 1
    return (time.perf_counter() - began) / fed * 1e6


def _reread(pieces: Iterable[str]) -> float:
    """The same if the text so far is parsed again."""
    text, fed = "", 0
    began = time.perf_counter()
    for piece in pieces:
        text += piece
        from_json(text, allow_partial="trailing-strings")
        fed += 1
    return (time.perf_counter() - began) / fed * 1e6


async def partials(effort: Effort) -> list[Figure]:
    """A chunk of a growing list, after few others and after many."""
    counts = (200, 400, 800) if effort.quick else (2_000, 20_000, 200_000)
    _each(_pieces(counts[0]))
    few, more, many = [_each(_pieces(count)) for count in counts]
    short, long = _reread(_pieces(counts[0])), _reread(_pieces(counts[1]))
    ours = f"{few:.1f}, {more:.1f}, {many:.1f} µs each of {counts[0]}, {counts[1]}, {counts[2]}"
    anew = f"{short:.1f}, {long:.1f} µs each of {counts[0]}, {counts[1]}"
    return [
        Figure("partials", "a chunk after many, to one after few", many / few, budget=1.5, detail=ours),
        Figure("partials", "where the text so far is parsed again", long / short, detail=anew),
    ]
