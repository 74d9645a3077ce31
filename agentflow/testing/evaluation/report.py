"""`Evaluation`: the results of all trials, with statistics, as a table, JSON or JUnit XML."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from xml.etree import ElementTree

from rich.console import Console, ConsoleRenderable, RichCast
from rich.table import Table
from rich.text import Text

from agentflow._support.shown import printable
from agentflow.plugins.evaluation import Case, Trial
from agentflow.testing.evaluation.statistics import Estimate, mean_of, rate_of
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.saving.codec import msg_to_dict
from agentflow.vocabulary.specs import Usage

FORM: Final = "agentflow.evaluation"
"""The `form` of a JSON file of results, which `compare` reads as a baseline."""


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The trials of a case.

    Attributes:
        case: The case.
        trials: Its trials, in order.
    """

    case: Case
    trials: tuple[Trial, ...]

    @property
    def passed(self) -> int:
        """The number of trials that passed."""
        return sum(trial.passed for trial in self.trials)

    @property
    def rate(self) -> Estimate:
        """The share of trials that passed."""
        return rate_of(self.passed / len(self.trials), len(self.trials))

    @property
    def scores(self) -> dict[str, Estimate]:
        """The mean of each score."""
        found: dict[str, list[float]] = {}
        for trial in self.trials:
            for name, grade in trial.grades.items():
                if grade.score is not None:
                    found.setdefault(name, []).append(grade.score)
        return {name: mean_of(values) for name, values in found.items()}

    @property
    def labels(self) -> dict[str, Counter[str]]:
        """How often each label was chosen, by check."""
        found: dict[str, Counter[str]] = {}
        for trial in self.trials:
            for name, grade in trial.grades.items():
                if grade.label is not None:
                    found.setdefault(name, Counter())[grade.label] += 1
        return found

    @property
    def digest(self) -> str:
        """A digest of the input and the expected output."""
        return hashlib.sha256(_stable_text([self.case.input, self.case.expected]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The results of all trials; `print(report)` shows a table.

    Attributes:
        name: The name of the agent or function.
        trials: The trials, in the order of the cases.
        dataset: The name of the dataset; empty if the cases were passed as a list.
    """

    name: str
    trials: tuple[Trial, ...]
    dataset: str = ""

    @property
    def failed(self) -> tuple[Trial, ...]:
        """The trials that did not pass."""
        return tuple(trial for trial in self.trials if not trial.passed)

    @property
    def cases(self) -> tuple[CaseResult, ...]:
        """The results by case."""
        found: dict[str, list[Trial]] = {}
        for trial in self.trials:
            found.setdefault(trial.case.name, []).append(trial)
        return tuple(CaseResult(trials[0].case, tuple(trials)) for trials in found.values())

    @property
    def rate(self) -> Estimate:
        """The mean pass rate of the cases. The confidence interval is for new cases of the same kind."""
        rates = [case.rate.mean for case in self.cases]
        return rate_of(sum(rates) / len(rates), len(rates))

    @property
    def scores(self) -> dict[str, Estimate]:
        """For each score, the mean of the cases' means."""
        found: dict[str, list[float]] = {}
        for case in self.cases:
            for name, score in case.scores.items():
                found.setdefault(name, []).append(score.mean)
        return {name: mean_of(values) for name, values in found.items()}

    @property
    def usage(self) -> Usage:
        """The usage of all calls, including retried calls and those of judges."""
        return Usage.total(part for trial in self.trials for part in (trial.usage, trial.judging, trial.retried))

    def assert_passed(self) -> None:
        """Fail if a trial failed.

        Raises:
            AssertionError: A trial failed; the message is the report.
        """
        if self.failed:
            raise AssertionError(str(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-compatible data."""
        digests = {case.case.name: case.digest for case in self.cases}
        trials = [
            {
                "name": trial.case.name,
                "case": digests[trial.case.name],
                "number": trial.number,
                "passed": trial.passed,
                "failures": list(trial.failures),
                "errors": list(trial.errors),
                "scores": {name: grade.score for name, grade in trial.grades.items() if grade.score is not None},
                "labels": {name: grade.label for name, grade in trial.grades.items() if grade.label is not None},
                "reasons": {name: grade.reason for name, grade in trial.grades.items() if grade.reason},
                "run": trial.reply.run_id if trial.reply else "",
                "answer": trial.text,
                "outcome": "failed" if trial.error else trial.reply.outcome if trial.reply else "completed",
                "tools": [use.name for use in trial.tool_uses],
                "rounds": trial.rounds,
                "attempts": trial.attempts,
                "seconds": trial.seconds,
                "tokens": trial.usage.total_tokens,
                "cost": trial.usage.cost,
                "judging_cost": trial.judging.cost,
            }
            for trial in self.trials
        ]
        return {
            "form": FORM,
            "dataset": self.dataset,
            "agent": self.name,
            "cases": len(self.cases),
            "failed": len(self.failed),
            "cost": self.usage.cost,
            "rate": self.rate._asdict(),
            "scores": {name: score._asdict() for name, score in self.scores.items()},
            "trials": trials,
        }

    def to_junit(self) -> str:
        """Return the report as JUnit XML, for CI systems."""
        seconds = sum(trial.seconds for trial in self.trials)
        counts = {"tests": str(len(self.trials)), "failures": str(len(self.failed)), "time": f"{seconds:.3f}"}
        suite = ElementTree.Element("testsuite", {"name": printable(self.name), **counts})
        for trial in self.trials:
            repeat = f" #{trial.number}" if len(self.trials) > len(self.cases) else ""
            about = {
                "classname": printable(self.name),
                "name": f"{printable(trial.case.name)}{repeat}",
                "time": f"{trial.seconds:.3f}",
            }
            case = ElementTree.SubElement(suite, "testcase", about)
            if not trial.passed:
                text = printable("\n".join((*trial.failures, *trial.errors)))  # XML allows no control characters
                ElementTree.SubElement(case, "failure", {"message": text.splitlines()[0]}).text = text
            ElementTree.SubElement(case, "system-out").text = printable(trial.text)
        return ElementTree.tostring(suite, "unicode", xml_declaration=True)

    def save(self, path: str | Path) -> None:
        """Write the report as JUnit XML (`.xml`), or else as JSON, which `compare` reads as a baseline.

        Raises:
            OSError: The file cannot be written.
        """
        text = self.to_junit() if str(path).endswith(".xml") else json.dumps(self.to_dict(), indent=2)
        Path(path).write_text(text + "\n", "utf-8")

    def __rich__(self) -> Table:
        cases, passed = self.cases, len(self.trials) - len(self.failed)
        repeated = len(self.trials) > len(cases)
        graded = [case for case in cases if case.scores or case.labels]
        title = f"{self.name}: {passed} of {len(self.trials)} passed"
        if repeated:
            title += f", {estimate_text(self.rate, percent=True)} of the cases"
        table = Table(title=Text(printable(title)))
        for heading in ("", "case", "answer", *["passed"] * repeated, *["grades"] * bool(graded), "tokens", "s"):
            side = "right" if heading in ("passed", "tokens", "s") else "left"
            table.add_column(heading, justify=cast("Any", side), overflow="fold")
        for case in cases:
            table.add_row(*_row(case, repeated, bool(graded)))
        usage = self.usage
        cost = "" if usage.cost is None else f" · ${usage.cost:.4f}"
        judging = Usage.total(trial.judging for trial in self.trials)
        judged = "" if judging.cost is None else f", judges ${judging.cost:.4f}"
        scores = [f"{name} {estimate_text(score)}" for name, score in self.scores.items()]
        table.caption = Text(printable(" · ".join([f"{usage.total_tokens:,} tokens{cost}{judged}", *scores])))
        return table

    def __str__(self) -> str:
        return as_text(self)


def as_text(table: ConsoleRenderable | RichCast) -> str:
    """Return a table as text without colours."""
    console = Console(width=110, no_color=True)
    with console.capture() as printed:
        console.print(table)
    return printed.get()


def _row(case: CaseResult, repeated: bool, graded: bool) -> list[Text]:
    """Return a row of the table, with the answer of the first trial that failed."""
    trials, count = case.trials, len(case.trials)
    shown_trial = next((trial for trial in trials if not trial.passed), trials[0])
    mark = Text("✓", "green") if case.passed == count else Text("✗", "red")
    answer = Text(printable(shown_trial.text))
    for problem in (*shown_trial.failures, *[f"cannot evaluate {error}" for error in shown_trial.errors]):
        answer.append(f"{chr(10) if answer else ''}{printable(problem)}", "red")
    row = [mark, Text(printable(case.case.name)), answer]
    if repeated:
        row.append(Text(f"{case.passed}/{count}"))
    if graded:
        lines = [f"{name} {estimate_text(score)}" for name, score in case.scores.items()]
        for name, counts in case.labels.items():
            lines.append(f"{name} {', '.join(label if n == count else f'{n}× {label}' for label, n in counts.items())}")
        row.append(Text(printable("\n".join(lines))))
    tokens = sum(trial.usage.total_tokens for trial in trials) / count
    seconds = sum(trial.seconds for trial in trials) / count
    return [*row, Text(f"{tokens:,.0f}"), Text(f"{seconds:.1f}")]


def estimate_text(estimate: Estimate, *, percent: bool = False) -> str:
    """Format a mean with its interval.

    Example:
        >>> estimate_text(Estimate(0.8, 0.584, 0.919), percent=True)
        '80 % (58–92 %)'
    """
    mean, low, high = estimate
    if percent:
        return f"{mean:.0%} ({low:.0%}–{high:.0%})".replace("%–", "–").replace("%", " %")
    if low is None or high is None or low == high:
        return f"{mean:.4g}"
    return f"{mean:.3g} ± {(high - low) / 2:.2g}"


def _stable_text(value: object) -> str:
    """Describe a value in the same way in every process: without addresses, and without the order of sets and mappings."""
    if isinstance(value, Msg):
        more = [block for block in msg_to_dict(value)["content"] if block["type"] != "text"]
        return f"{value.role}: {value.text}{_stable_text(more) if more else ''}"
    if isinstance(value, Mapping):
        pairs = cast("Mapping[object, object]", value).items()
        return f"{{{', '.join(sorted(f'{_stable_text(key)}: {_stable_text(each)}' for key, each in pairs))}}}"
    if isinstance(value, Set):
        return f"{{{', '.join(sorted(map(_stable_text, cast('Set[object]', value))))}}}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return f"[{', '.join(map(_stable_text, cast('Sequence[object]', value)))}]"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
