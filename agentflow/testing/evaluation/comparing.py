"""`compare`: compare an evaluation with a baseline, the saved results of an earlier one.

Rules:

1. A case is worse if its pass rate is lower by more than the tolerance. A score is worse if the difference between the
   cases' means is below zero with 95 % confidence; with a single case, if its mean is lower.
2. A case that cannot be compared fails the comparison: it or one of its scores is missing now, its input or expected
   output has changed, or one of its checks raised an error.
3. A new case is listed, and does not fail the comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeAlias

from rich.table import Table
from rich.text import Text

from agentflow._support.json_text import read_json_text
from agentflow._support.shown import printable
from agentflow._support.validation import adapter_of, first_problem
from agentflow.errors import UsageError
from agentflow.testing.evaluation.report import Evaluation, as_text, estimate_text
from agentflow.testing.evaluation.statistics import Estimate, mean_of

Status: TypeAlias = Literal["same", "better", "worse", "new", "missing", "changed"]
_MAX_BYTES: Final = 200_000_000


@dataclass(frozen=True, slots=True)
class _SavedTrial:
    name: str
    case: str
    passed: bool
    scores: Mapping[str, float]
    tokens: int = 0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Baseline:
    """The saved results of an evaluation.

    Attributes:
        dataset: The name of the dataset.
        agent: The name of the agent or function.
        trials: The trials.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "ignore"}  # the file has more than is compared
    form: Literal["agentflow.evaluation"]
    dataset: str
    agent: str
    trials: tuple[_SavedTrial, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A case, compared with the baseline, or a missing score of a case.

    Attributes:
        name: The name of the case; for a score, also the name of the score.
        status: How the case has changed.
        before: The earlier pass rate; None for a new case and a missing score.
        now: The current pass rate; None for a missing case or score.
    """

    name: str
    status: Status
    before: float | None
    now: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The comparison of an evaluation with a baseline; `print(comparison)` shows a table.

    Attributes:
        changes: The cases, and the missing scores.
        scores: The mean difference of each score over the cases that both have.
        rate: The mean difference of the pass rates of these cases.
        errors: The cases with checks that raised an error.
        cost: The cost of one repeat of all cases without judges and retried calls, before and now, in dollars; None if
            unknown.
    """

    changes: tuple[Change, ...]
    scores: Mapping[str, Estimate]
    rate: Estimate
    errors: tuple[str, ...]
    cost: tuple[float | None, float | None]

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the comparison fails; empty if nothing is worse."""
        found = [f"{name}: a check could not be evaluated" for name in self.errors]
        for change in self.changes:
            if change.status == "worse":
                found.append(f"{change.name}: passed {change.before:.0%}, now {change.now:.0%}")
            elif change.status == "missing":
                found.append(f"{change.name}: it is only in the baseline")
            elif change.status == "changed":
                found.append(f"{change.name}: its input or expected output differs from the baseline")
        for name, score in self.scores.items():
            if _is_worse(score):
                found.append(f"score {name}: {estimate_text(score)}")
        return tuple(found)

    def __rich__(self) -> Table:
        counts = {status: sum(change.status == status for change in self.changes) for status in _COLOURS}
        title = ", ".join(f"{n} {status}" for status, n in counts.items() if n)
        table = Table("case", "", "before", "now", title=Text(f"baseline: {title}"))
        for change in self.changes:
            if change.status != "same":
                rates = ["" if rate is None else f"{rate:.0%}" for rate in (change.before, change.now)]
                status = Text(change.status, _COLOURS[change.status])
                table.add_row(Text(printable(change.name)), status, *rates)
        for name, score in self.scores.items():
            worse = _is_worse(score)
            status = Text("worse", "red") if worse else Text("")
            table.add_row(Text(printable(f"score {name}")), status, "", f"{score.mean:+.3g}")
        table.add_row("pass rate of all", "", "", f"{self.rate.mean:+.1%}")
        table.add_row("cost", "", *["unknown" if cost is None else f"${cost:.4f}" for cost in self.cost])
        return table

    def __str__(self) -> str:
        return as_text(self)


_COLOURS: Final[dict[Status, str]] = {
    "worse": "red",
    "missing": "red",
    "changed": "red",
    "better": "green",
    "new": "cyan",
    "same": "",
}


def read_baseline(path: str | Path) -> Baseline:
    """Read the results that `report.save(path)` wrote.

    Raises:
        UsageError: The file cannot be read, or does not contain results of an evaluation.
    """
    try:
        data = Path(path).read_bytes()
        if len(data) > _MAX_BYTES:
            raise ValueError(f"it is larger than {_MAX_BYTES:,} bytes")
        return adapter_of(Baseline).validate_python(read_json_text(data, constants=False))
    except OSError as error:
        raise UsageError(
            f"The baseline {path} cannot be read: {error.strerror}. Write one with report.save(...) or --save."
        ) from error
    except (ValueError, TypeError) as error:
        reason = first_problem(error)
        raise UsageError(
            f"{path} contains no results of an evaluation ({reason}). Write it with report.save(...)."
        ) from error


def compare(report: Evaluation, baseline: Baseline | str | Path, *, tolerance: float = 0.0) -> Comparison:
    """Compare an evaluation with a baseline.

    Args:
        report: The evaluation.
        baseline: The earlier results, or their file.
        tolerance: By how much a case's pass rate may be lower, such as 0.2 for one of five repeats.

    Returns:
        The comparison; `comparison.problems` is empty if nothing is worse.

    Raises:
        UsageError: The baseline is of another dataset, has no case of this evaluation, or is invalid.
    """
    known = baseline if isinstance(baseline, Baseline) else read_baseline(baseline)
    if not 0 <= tolerance < 1:
        raise UsageError(f"compare(tolerance={tolerance}): it must be at least 0 and below 1.")
    if known.dataset != report.dataset:
        raise UsageError(
            f"The baseline is of the dataset {known.dataset!r:.80}, not {report.dataset!r:.80}. Save one of this dataset."
        )
    before: dict[str, list[_SavedTrial]] = {}
    for trial in known.trials:
        before.setdefault(trial.name, []).append(trial)
    now = {case.case.name: case for case in report.cases}
    if not before.keys() & now.keys():
        raise UsageError("The baseline has no case of this evaluation. Save one of this dataset.")
    changes: list[Change] = []
    shared: list[str] = []
    for name in [*now, *[name for name in before if name not in now]]:
        was = _rate(before[name]) if name in before else None
        rate = now[name].rate.mean if name in now else None
        status: Status
        if was is None or rate is None:
            status = "new" if was is None else "missing"
        elif any(trial.case != now[name].digest for trial in before[name]):
            status = "changed"
        else:
            shared.append(name)
            status = "worse" if rate < was - tolerance - 1e-9 else "better" if rate > was + 1e-9 else "same"
        changes.append(Change(name, status, was, rate))
    differences: dict[str, list[float]] = {}
    for name in shared:
        scores = now[name].scores
        for score in {score: None for trial in before[name] for score in trial.scores}:
            if score in scores:
                was = _mean([trial.scores[score] for trial in before[name] if score in trial.scores])
                differences.setdefault(score, []).append(scores[score].mean - was)
            else:
                changes.append(Change(f"{name}, score {score}", "missing", None, None))
    rates = [now[name].rate.mean - _rate(before[name]) for name in shared]
    repeats = (len(known.trials) / len(before), len(report.trials) / len(now))
    costs = ([trial.cost for trial in known.trials], [trial.usage.cost for trial in report.trials])
    return Comparison(
        tuple(changes),
        {name: mean_of(values) for name, values in differences.items()},
        mean_of(rates or [0.0]),
        tuple(name for name, case in now.items() if any(trial.errors for trial in case.trials)),
        (_total(costs[0], repeats[0]), _total(costs[1], repeats[1])),
    )


def _is_worse(difference: Estimate) -> bool:
    return (difference.mean if difference.high is None else difference.high) < -1e-9  # one case has no interval


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _rate(trials: Sequence[_SavedTrial]) -> float:
    return _mean([trial.passed for trial in trials])


def _total(costs: Sequence[float | None], repeats: float) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) / repeats if len(known) == len(costs) else None
