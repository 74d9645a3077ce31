"""The report as Markdown: tables, the participants, the omissions, and the rows in which agentflow is not first."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["BARE", "GROUPS", "OURS", "RESULTS", "Row", "behind", "markdown", "median", "number", "read", "setup"]

RESULTS = Path(__file__).with_name("results.json")
OURS = "agentflow"
BARE = "bare"


class Row(NamedTuple):
    """A workload, as a column of a table.

    Attributes:
        key: The figure's name in a report.
        title: The head of its column.
        scale: The factor of a figure.
        group: The part of a side that measures it, with a failure that is the row's.
    """

    key: str
    title: str
    scale: float
    group: str


US, MS, KIB, MIB = 1e6, 1e3, 1 / 1024, 1 / 2**20

GROUPS: Mapping[str, tuple[Row, ...]] = {
    "A call": (
        Row("call", "call, µs", US, "calls"),
        Row("round", "round, µs", US, "calls"),
        Row("streamed round", "streamed round, µs", US, "streams"),
        Row("hooked round", "round with two hooks, µs", US, "hooks"),
        Row("parallel", "eight 1 ms tools, ms", MS, "parallel"),
    ),
    "Streams": (
        Row("chunk of 2000", "one of 2,000 chunks, µs", US, "chunks"),
        Row("chunk of 20000", "one of 20,000 chunks, µs", US, "chunks"),
        Row("wire chunk", "chunk over HTTP, µs", US, "wire"),
        Row("wire burst", "chunk over HTTP, in bursts, µs", US, "wire"),
        Row("wire streams", "one of 100 streams over HTTP, ms", MS, "wire"),
    ),
    "Many calls, long histories": (
        Row("crowd", "one of 1,000 calls at once, µs", US, "crowd"),
        Row("crowd memory", "memory of one of them, KiB", KIB, "crowd"),
        Row("behind 10", "after 10 messages, µs", US, "histories"),
        Row("behind 100", "after 100, µs", US, "histories"),
        Row("behind 1000", "after 1,000, µs", US, "histories"),
    ),
    "Before the first answer": (
        Row("import", "import, ms", MS, "import"),
        Row("import memory", "memory of the import, MiB", MIB, "import"),
        Row("build", "an agent with a tool, µs", US, "building"),
        Row("first call", "first call of the process, ms", MS, "first"),
    ),
}


def read(path: Path = RESULTS) -> dict[str, Any]:
    """A report from its file."""
    return json.loads(path.read_text("utf-8"))


def median(side: Mapping[str, Any], key: str) -> float | None:
    """The median of a side's processes; None without a measurement."""
    values = side["figures"].get(key)
    return statistics.median(values) if values else None


def number(value: float) -> str:
    """Three digits, and no more."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _cell(side: Mapping[str, Any], row: Row, first: bool, spread: bool) -> str:
    values: Sequence[float] | None = side["figures"].get(row.key)
    if not values:
        return "–"
    low, middle, high = (number(value * row.scale) for value in (min(values), statistics.median(values), max(values)))
    shown = f"**{middle}**" if first else middle
    return f"{shown} ({low}–{high})" if spread and len(values) > 1 else shown


def _first(report: Mapping[str, Any], key: str) -> str | None:
    """The framework with the least; the loop by hand is none."""
    found = {name: median(side, key) for name, side in report["sides"].items() if name != BARE}
    known = {name: value for name, value in found.items() if value is not None}
    return min(known, key=lambda name: known[name]) if known else None


def behind(report: Mapping[str, Any]) -> list[tuple[Row, str]]:
    """The lines on which another framework is before agentflow, and which."""
    firsts = [(row, _first(report, row.key)) for rows in GROUPS.values() for row in rows]
    return [(row, first) for row, first in firsts if first is not None and first != OURS]


def _table(report: Mapping[str, Any], rows: Sequence[Row], spread: bool) -> Iterator[str]:
    yield f"| | {' | '.join(row.title for row in rows)} |"
    yield f"|---|{'---:|' * len(rows)}"
    firsts = {row.key: _first(report, row.key) for row in rows}
    for name, side in report["sides"].items():
        cells = " | ".join(_cell(side, row, firsts[row.key] == name, spread) for row in rows)
        yield f"| {side['label']} | {cells} |"


def _sides(report: Mapping[str, Any]) -> Iterator[str]:
    yield "| | Versions | Hooks | Notes |"
    yield "|---|---|---|---|"
    for side in report["sides"].values():
        versions = ", ".join(f"{name} {number}" for name, number in side["versions"].items()) or "–"
        notes = [*side.get("notes", ()), *([f"Version: {side['why']}."] if side["why"] else [])]
        yield f"| {side['label']} | {versions} | {side.get('hooks') or '–'} | {' '.join(notes)} |"


def _left_out(report: Mapping[str, Any]) -> Iterator[str]:
    for side in report["sides"].values():
        if reason := side.get("unavailable"):
            yield f"- {side['label']} did not take part: {reason}"
        rows = [row for rows in GROUPS.values() for row in rows]
        for reason in dict.fromkeys(side["failed"].values()):
            first, *others = [row.title.rpartition(",")[0] for row in rows if side["failed"].get(row.group) == reason]
            yield f"- {side['label']} ({first}{f' and {len(others)} others' if others else ''}): {reason}"


def _work(report: Mapping[str, Any]) -> Iterator[str]:
    """The work of one repetition of each row, which all sides did."""
    yield "| | model calls | tool runs | hook calls | chunks |"
    yield "|---|---:|---:|---:|---:|"
    work = report["sides"][OURS]["work"]
    for rows in GROUPS.values():
        for row in rows:
            if done := work.get(row.key):
                kinds = (done.get(kind, 0) for kind in ("model", "tools", "hooks", "chunks"))
                yield f"| {row.title.rpartition(',')[0]} | {' | '.join(f'{count:,}' for count in kinds)} |"


def markdown(report: Mapping[str, Any], *, spread: bool = False) -> str:
    """Return the figures as tables, and the missing ones.

    Args:
        report: The measurements of a race.
        spread: Whether to add the least and the most of each side's processes.
    """
    ran = f"{report['date']}, {report['python']}, {report['machine']}. Medians of {report['rounds']} processes of each"
    lines = [f"{ran}{'; least and most in brackets' if spread else ''}; the best framework in bold.", ""]
    for title, rows in GROUPS.items():
        lines += [f"### {title}", "", *_table(report, rows, spread), ""]
    if left_out := list(_left_out(report)):
        lines += ["What is missing, and why:", "", *left_out, ""]
    return "\n".join(lines).rstrip()


def setup(report: Mapping[str, Any]) -> str:
    """Return the versions and settings of each side, and the work of one repetition."""
    return "\n".join(
        ["### Who took part", "", *_sides(report), "", "### The work of one repetition", "", *_work(report)]
    )
