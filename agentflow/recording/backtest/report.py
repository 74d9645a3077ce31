"""The report of a backtest, and the file of results from which an interrupted backtest continues."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Final

from pydantic_core import from_json

from agentflow._support.shown import one_line, printable
from agentflow._support.validation import adapter_of
from agentflow.errors import StoreError, UsageError
from agentflow.recording.backtest.judging import RunResult

__all__ = ["BacktestReport", "ResultFile"]

_FORM: Final = "agentflow.backtest"
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class BacktestReport:
    """The results of a backtest: one for each run, or for each unreadable log. `str(report)` is a table of the changes."""

    results: tuple[RunResult, ...]

    def of(self, status: str) -> tuple[RunResult, ...]:
        """Return the results with a status, or for `"refused"` the possible false refusals."""
        return tuple(each for each in self.results if (each.refused if status == "refused" else each.status == status))

    @property
    def groups(self) -> list[tuple[RunResult, ...]]:
        """The runs that change in the same way, the most frequent change first, then the most expensive."""
        found: dict[tuple[str, ...], list[RunResult]] = {}
        for each in self.of("changed"):
            # Without positions in lists, so that the same change is one group, whatever the length of the conversation.
            where = re.sub(r"\[\d+\]", "[]", each.field)
            values = (each.recorded, each.now) if where == "decision" else ()
            found.setdefault((each.event, each.source, each.tool, where, *each.hooks, *values), []).append(each)
        ranked = sorted(found.values(), key=lambda runs: (-len(runs), -(_cost(runs) or 0.0), -_tokens(runs)))
        return [tuple(runs) for runs in ranked]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON data; groups refer to their runs by log and id."""
        groups = [
            {
                "event": runs[0].event,
                "tool": runs[0].tool,
                "recorded": _value(runs[0], runs[0].recorded),
                "now": _value(runs[0], runs[0].now),
                "refused": sum(each.refused for each in runs),
                "rest_tokens": _tokens(runs),
                "rest_cost": _cost(runs),
                "runs": [[each.log, each.run] for each in runs],
            }
            for runs in self.groups
        ]
        counts = {name: len(self.of(name)) for name in ("same", "changed", "refused", "incomparable")}
        return {**counts, "groups": groups, "results": [asdict(each) for each in self.results]}

    def __str__(self) -> str:
        same, changed, refused, lost = map(self.of, ("same", "changed", "refused", "incomparable"))
        lines = [
            f"{len(self.results)} runs: {len(same)} as recorded, {len(changed)} changed, {len(lost)} not comparable"
        ]
        if changed:
            lines += [f"possible false refusals: {len(refused)}", ""]
            rows = [("", "runs", "refused", "tokens", "cost", "event", "recorded", "now")]
            rows += [_row(n, runs) for n, runs in enumerate(self.groups[:_SHOWN], 1)]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            lines += ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
            lines += [
                *_more(self.groups),
                "",
                "tokens, cost: spent by the recorded runs after this event; no more can be saved",
            ]
        for n, runs in enumerate(self.groups[:_SHOWN], 1):
            lines += ["", f"{n}. {one_line(runs[0].reason or _value(runs[0], runs[0].now))}"]
            lines += [f"   {each.log}  {each.run}" for each in runs[:_SHOWN]] + _more(runs)
        if live := [each for each in changed if each.new_outcome]:
            ended = sum(each.new_outcome == "completed" for each in live)
            was, now = sum(each.tokens for each in live), sum(each.new_tokens for each in live)
            lines += ["", f"continued live: {len(live)} runs, {ended} completed, {now} tokens instead of {was}"]
        if lost:
            lines += [
                "",
                "not comparable:",
                *[f"   {each.log}  {each.run or '-'}  {each.reason}" for each in lost[:_SHOWN]],
            ]
            lines += _more(lost)
        return printable("\n".join(lines))


def _row(n: int, runs: Sequence[RunResult]) -> tuple[str, ...]:
    result, cost = runs[0], _cost(runs)
    event = f"{result.event} {result.tool}{f' in {result.source}' if result.source else ''}".rstrip()
    numbers = [str(n), str(len(runs)), str(sum(each.refused for each in runs)), str(_tokens(runs))]
    texts = [event, _value(result, result.recorded), _value(result, result.now)]
    return (*numbers, "unknown" if cost is None else f"${cost:.4f}", *map(one_line, texts))


def _value(result: RunResult, value: str) -> str:
    """Format a decision. For an edit, show the field and its value in one of the runs."""
    return (
        (value or "(no decision)")
        if result.field == "decision"
        else f"{result.field or result.kind}: {value[:40]}".rstrip(": ")
    )


def _tokens(runs: Sequence[RunResult]) -> int:
    return sum(each.rest_tokens for each in runs)


def _cost(runs: Sequence[RunResult]) -> float | None:
    costs = [each.rest_cost for each in runs if each.rest_cost is not None]
    return sum(costs) if costs else None


def _more(items: Sequence[object]) -> list[str]:
    return [f"   and {len(items) - _SHOWN} more (--json shows all)"] if len(items) > _SHOWN else []


class ResultFile:
    """A file with the results of a backtest, one JSON line each.

    Args:
        path: The file; None stores nothing.
        settings: The settings of the backtest.

    Raises:
        UsageError: The file has the results of other settings.
        StoreError: The file does not contain backtest results, or cannot be read or written.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, str]) -> None:
        self.known: list[RunResult] = []
        self._file: IO[bytes] | None = None
        if path is None:
            return
        try:
            data = path.read_bytes() if path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]  # without the incomplete line of an interrupted write
            self._read(path, whole, settings)
            self._file = path.open("ab")
            self._file.truncate(len(whole))
        except OSError as error:
            raise StoreError(f"The results {path} cannot be used: {error.strerror}.") from error
        if not whole:
            self._write({"form": _FORM, "settings": settings})

    def _read(self, path: Path, data: bytes, settings: Mapping[str, str]) -> None:
        try:
            lines = [from_json(line) for line in data.splitlines()]
            first: dict[str, Any] = lines[0] if lines else {"form": _FORM, "settings": settings}
            if first["form"] != _FORM:
                raise ValueError("the file has another form")
            was = dict[str, str](first["settings"])
            self.known = [adapter_of(RunResult).validate_python(line) for line in lines[1:]]
        except (ValueError, TypeError, LookupError) as error:
            raise StoreError(f"{path} does not contain backtest results. Delete it, or choose another file.") from error
        different = [name for name in {**was, **settings} if was.get(name) != settings.get(name)]
        if different:
            raise UsageError(
                f"{path} has the results of a backtest with other settings ({', '.join(different)}). Delete it, or choose "
                "another file."
            )

    def add(self, result: RunResult) -> None:
        """Write a result. A result with a temporary reason is not written, so its run is evaluated again next time."""
        if not result.passing:
            self._write(asdict(result))

    def _write(self, data: Mapping[str, Any]) -> None:
        if self._file is not None:
            self._file.write(json.dumps(data).encode() + b"\n")
            self._file.flush()  # an interrupted backtest loses at most the current result

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
