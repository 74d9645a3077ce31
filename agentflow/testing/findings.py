"""The findings of the conformance suites: typed values and readable reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Kind = TypeVar("Kind", bound=str)


@dataclass(frozen=True, slots=True)
class Finding(Generic[Kind]):
    """A flaw that a conformance suite found.

    Attributes:
        kind: The kind of flaw.
        message: The wrong behaviour.
        event: For a hook, the name of the event; empty if no single event is involved.
        evidence: The observed values, positions in the source, or scene.
        count: How many times it was found.
    """

    kind: Kind
    message: str
    event: str = ""
    evidence: str = ""
    count: int = field(default=1, compare=False)

    def __str__(self) -> str:
        where = f" on {self.event}" if self.event else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        evidence = "".join(f"\n      {line}" for line in self.evidence.splitlines())
        return f"  {self.kind}{where}{times}: {self.message}{evidence}"


class Report(Generic[Kind]):
    """The base class of the suites' reports."""

    __slots__ = ()
    findings: tuple[Finding[Kind], ...]

    @property
    def clean(self) -> bool:
        """Whether there is no finding."""
        return not self.findings

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds of the findings."""
        return frozenset(finding.kind for finding in self.findings)

    def assert_clean(self) -> None:
        """Fail if there is a finding.

        Raises:
            FindingsError: There is a finding; the message is the report.
        """
        if self.findings:
            raise FindingsError(self)

    def format(self, name: str, extent: str, notes: tuple[str, ...]) -> str:
        """Format the report.

        Args:
            name: The name of the object under test.
            extent: The number of checks or runs, as text.
            notes: Reasons why parts were not checked.
        """
        count = len(self.findings)
        verdict = "clean" if not count else "1 finding" if count == 1 else f"{count} findings"
        return "\n".join([f"{name}: {verdict} ({extent})", *map(str, self.findings), *[f"  note: {n}" for n in notes]])


class FindingsError(AssertionError):
    """There are findings; the message is the report.

    Args:
        report: The report.
    """

    def __init__(self, report: Report[Any]) -> None:
        super().__init__(str(report))
        self.report = report


@dataclass(frozen=True, slots=True)
class ConformanceReport(Report[Kind]):
    """The results of a conformance suite other than `check_hook`. `str(report)` is readable text.

    Attributes:
        name: The class under test.
        findings: The flaws, sorted by kind.
        checks: The kinds that were checked.
        notes: The checks that were skipped, with the reasons.
    """

    name: str
    findings: tuple[Finding[Kind], ...] = ()
    checks: tuple[Kind, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.format(self.name, f"{len(self.checks)} checks", self.notes)


class Findings(Generic[Kind]):
    """Collects findings; a repeated finding is only counted.

    Args:
        order: The kinds, in the order of the report.
    """

    __slots__ = ("_found", "_order")

    def __init__(self, order: tuple[Kind, ...]) -> None:
        self._found: dict[tuple[Kind, str, str], Finding[Kind]] = {}
        self._order = {kind: rank for rank, kind in enumerate(order)}

    def add(self, kind: Kind, message: str, event: str = "", evidence: str = "") -> None:
        """Add a finding."""
        key = kind, event, message
        before = self._found.get(key)
        count = 1 if before is None else before.count + 1
        first = evidence if before is None else before.evidence
        self._found[key] = Finding(kind, message, event, first, count)

    def __contains__(self, kind: object) -> bool:
        return any(finding.kind == kind for finding in self._found.values())

    def sorted(self) -> tuple[Finding[Kind], ...]:
        """Return all findings, sorted by kind and then in order of appearance."""
        return tuple(sorted(self._found.values(), key=lambda finding: self._order[finding.kind]))
