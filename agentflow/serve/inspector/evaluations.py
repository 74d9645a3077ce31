"""Results of evaluations in the inspector's folders: a list of them, and the cases of one compared to a baseline.

Rules:

1. A file is checked as a whole when it is read, and its size is limited. A damaged file becomes a row with the reason; other
   JSON files are ignored.
2. An evaluation is requested by an id from the list; clients never send a path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, cast

from agentflow._support.json_text import read_json_text
from agentflow._support.validation import adapter_of, first_problem

FORM: Final = "agentflow.evaluation"
_MAX_BYTES: Final = 50_000_000
_MAX_FILES: Final = 1_000
_MAX_LENGTH: Final = 20_000


@dataclass(frozen=True, slots=True)
class _TrialRow:
    name: str
    passed: bool
    case: str = ""
    number: int = 1
    run: str = ""
    failures: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    reasons: Mapping[str, str] = field(default_factory=dict[str, str])
    answer: str = ""
    outcome: str = ""
    tools: tuple[str, ...] = ()
    rounds: int = 0
    seconds: float = 0
    tokens: int = 0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class _ResultFile:
    __pydantic_config__: ClassVar[Any] = {"extra": "ignore"}
    form: Literal["agentflow.evaluation"]
    dataset: str
    agent: str
    trials: tuple[_TrialRow, ...]
    cost: float | None = None

    def by_case(self) -> dict[str, list[_TrialRow]]:
        found: dict[str, list[_TrialRow]] = {}
        for trial in self.trials:
            found.setdefault(trial.name, []).append(trial)
        return found


class Evaluations:
    """The result files (`report.save("….json")`) of folders.

    Args:
        folders: The folders.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._rows: dict[Path, tuple[tuple[int, int], dict[str, Any] | None]] = {}

    def rows(self) -> list[dict[str, Any]]:
        """List the evaluations, the newest first."""
        found: list[tuple[int, dict[str, Any]]] = []
        for path, (changed, size) in self._files():
            known = self._rows.get(path)
            if known is None or known[0] != (changed, size):
                known = self._rows[path] = (changed, size), _row(path, changed)
            if known[1] is not None:
                found.append((changed, known[1]))
        return [row for _, row in sorted(found, key=lambda pair: pair[0], reverse=True)]

    def one(self, name: str, baseline: str, logs: Mapping[str, str]) -> dict[str, Any] | None:
        """Return an evaluation with its cases, and how they differ from a baseline; None if it does not exist.

        Args:
            name: Its id.
            baseline: The id of the earlier evaluation; empty for none.
            logs: The ids of run logs by run id.
        """
        paths = {_id(path): path for path, _ in self._files()}
        if name not in paths:
            return None
        row = _row(paths[name], paths[name].stat().st_mtime_ns)
        if row is None or row["problem"]:
            return row
        now = _read(paths[name]).by_case()
        try:
            before = _read(paths[baseline]).by_case() if baseline in paths else {}
        except (OSError, ValueError):
            before = {}
        cases = [_case(each, now.get(each, []), before.get(each, []), bool(before), logs) for each in {**now, **before}]
        return {**row, "cases_": cases, "baseline": baseline if before else ""}

    def _files(self) -> list[tuple[Path, tuple[int, int]]]:
        """Return the most recent files, oldest first, each with its time and size."""
        found: list[tuple[Path, tuple[int, int]]] = []
        for folder in self._folders:
            for path in folder.glob("*.json"):
                try:
                    stat = path.stat()
                except OSError:
                    continue
                found.append((path, (stat.st_mtime_ns, stat.st_size)))
        found.sort(key=lambda file: (file[1][0], file[0]))
        return found[-_MAX_FILES:]


def _id(path: Path) -> str:
    return hashlib.sha256(str(path).encode()).hexdigest()[:16]


def _read(path: Path) -> _ResultFile:
    """Read the results of a file.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is damaged.
        LookupError: It contains other JSON data.
    """
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES:,} bytes")
    try:
        found: Any = read_json_text(data, constants=False)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict) or cast("dict[str, Any]", found).get("form") != FORM:
        raise LookupError
    try:
        results: _ResultFile = adapter_of(_ResultFile).validate_python(found)
    except ValueError as error:
        raise ValueError(first_problem(error)) from None
    if not results.trials:
        raise ValueError("it has no trials")
    return results


def _row(path: Path, changed: int) -> dict[str, Any] | None:
    row = {"id": _id(path), "file": path.name, "time": changed / 1e9, "problem": ""}
    try:
        found = _read(path)
    except LookupError:
        return None
    except (OSError, ValueError) as error:
        return {**row, "problem": f"{error.strerror}" if isinstance(error, OSError) else str(error)}
    rates = [_rate(trials) for trials in found.by_case().values()]
    counts = {"cases": len(rates), "trials": len(found.trials), "passed": sum(trial.passed for trial in found.trials)}
    about = {"dataset": found.dataset, "agent": found.agent, "cost": found.cost, "rate": sum(rates) / len(rates)}
    return {**row, **about, **counts}


def _case(
    name: str, now: Sequence[_TrialRow], before: Sequence[_TrialRow], compared: bool, logs: Mapping[str, str]
) -> dict[str, Any]:
    was, rate = (_rate(trials) if trials else None for trials in (before, now))
    if not compared:
        status = ""
    elif was is None or rate is None:
        status = "new" if was is None else "missing"
    elif {trial.case for trial in now} != {trial.case for trial in before}:
        status = "changed"
    else:
        status = "worse" if rate < was - 1e-9 else "better" if rate > was + 1e-9 else "same"
    scores = {key: [_mean(trials, key) for trials in (before, now)] for trial in now for key in trial.scores}
    trials = [{**asdict(trial), "answer": trial.answer[:_MAX_LENGTH], "log": logs.get(trial.run, "")} for trial in now]
    return {"name": name, "status": status, "before": was, "rate": rate, "scores": scores, "trials": trials}


def _rate(trials: Sequence[_TrialRow]) -> float:
    return sum(trial.passed for trial in trials) / len(trials)


def _mean(trials: Sequence[_TrialRow], score: str) -> float | None:
    values = [trial.scores[score] for trial in trials if score in trial.scores]
    return sum(values) / len(values) if values else None
