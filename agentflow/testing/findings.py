"""What the conformance kits find: typed values, and reports that read well."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

__all__ = ["ConformanceReport", "Finding", "Findings", "FindingsError", "Report"]

Kind = TypeVar("Kind", bound=str)


@dataclass(frozen=True, slots=True)
class Finding(Generic[Kind]):
    """One thing that is wrong with a hook, a store or a model.

    Attributes:
        kind: What sort of thing.
        message: What it does, in a sentence.
        event: The event (of a hook) it happened on; empty where no single event is to blame.
        evidence: What was seen: values, places in the source, the scene that shows it.
        count: In how many runs it was seen.
    """

    kind: Kind
    message: str
    event: str = ""
    evidence: str = ""
    count: int = field(default=1, compare=False)

    def __str__(self) -> str:
        place = f" on {self.event}" if self.event else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        evidence = "".join(f"\n      {line}" for line in self.evidence.splitlines())
        return f"  {self.kind}{place}{times}: {self.message}{evidence}"


class Report(Generic[Kind]):
    """What every report has."""

    __slots__ = ()
    findings: tuple[Finding[Kind], ...]

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of what was found."""
        return frozenset(finding.kind for finding in self.findings)

    def assert_clean(self) -> None:
        """Fail if anything was found.

        Raises:
            FindingsError: The text is the whole report.
        """
        if self.findings:
            raise FindingsError(self)

    def told(self, name: str, extent: str, notes: tuple[str, ...]) -> str:
        """The report for people."""
        count = len(self.findings)
        verdict = "clean" if not count else "1 finding" if count == 1 else f"{count} findings"
        return "\n".join([f"{name}: {verdict} ({extent})", *map(str, self.findings), *[f"  note: {n}" for n in notes]])


class FindingsError(AssertionError):
    """Something was found; the text is the report.

    Args:
        report: The report.
    """

    def __init__(self, report: Report[Any]) -> None:
        super().__init__(str(report))
        self.report = report


@dataclass(frozen=True, slots=True)
class ConformanceReport(Report[Kind]):
    """What `check_store` or `check_model` saw. `str(report)` is meant for people.

    Attributes:
        name: The class that was checked.
        findings: What is wrong, by kind.
        checks: The kinds that were looked for.
        notes: What was not checked, and why.
    """

    name: str
    findings: tuple[Finding[Kind], ...] = ()
    checks: tuple[Kind, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.told(self.name, f"{len(self.checks)} checks", self.notes)


class Findings(Generic[Kind]):
    """Collects findings; what is found again is counted, not repeated.

    Args:
        order: The kinds, in the order of the report.
    """

    __slots__ = ("_found", "_order")

    def __init__(self, order: tuple[Kind, ...]) -> None:
        self._found: dict[tuple[Kind, str, str], Finding[Kind]] = {}
        self._order = {kind: place for place, kind in enumerate(order)}

    def add(self, kind: Kind, message: str, event: str = "", evidence: str = "") -> None:
        """Note one finding."""
        key = kind, event, message
        before = self._found.get(key)
        count = 1 if before is None else before.count + 1
        kept = evidence if before is None else before.evidence
        self._found[key] = Finding(kind, message, event, kept, count)

    def __contains__(self, kind: object) -> bool:
        return any(finding.kind == kind for finding in self._found.values())

    def sorted(self) -> tuple[Finding[Kind], ...]:
        """All findings, by kind, then in the order in which they were met."""
        return tuple(sorted(self._found.values(), key=lambda finding: self._order[finding.kind]))
