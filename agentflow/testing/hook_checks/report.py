"""What `check_hook` found: typed values, and a report that reads well."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

__all__ = ["Finding", "FindingKind", "HookFindingsError", "HookReport"]

FindingKind: TypeAlias = Literal[
    "blocking",
    "cancellation",
    "contract",
    "crash",
    "hang",
    "history",
    "leaked_task",
    "never_awaited",
    "shared_state",
    "streaming",
    "unclosed_generator",
    "unsavable_state",
]
"""What can be wrong with a hook; `docs/testing-hooks.md` says what each means and how to mend it."""

_ORDER = {kind: place for place, kind in enumerate(get_args(FindingKind))}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a hook.

    Attributes:
        kind: What sort of thing.
        message: What the hook does, in a sentence.
        event: The event it happened on; empty where no single event is to blame.
        evidence: What was seen: values, places in the source, the scene that shows it.
        count: In how many runs it was seen.
    """

    kind: FindingKind
    message: str
    event: str = ""
    evidence: str = ""
    count: int = field(default=1, compare=False)

    def __str__(self) -> str:
        place = f" on {self.event}" if self.event else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        evidence = "".join(f"\n      {line}" for line in self.evidence.splitlines())
        return f"  {self.kind}{place}{times}: {self.message}{evidence}"


class HookFindingsError(AssertionError):
    """A hook has findings; the text is the report.

    Args:
        report: The report.
    """

    def __init__(self, report: HookReport) -> None:
        super().__init__(str(report))
        self.report = report


@dataclass(frozen=True, slots=True)
class HookReport:
    """What `check_hook` saw of one hook. `str(report)` is meant for people.

    Attributes:
        hook: The hook's name.
        findings: What is wrong, by kind.
        events: The names of the events that fired while the hook was attached.
        runs: How many runs were made.
        seed: Where the random choices came from; the same seed makes the same choices.
        notes: What limits the result, such as a hook that answers differently each time.
    """

    hook: str
    findings: tuple[Finding, ...] = ()
    events: frozenset[str] = frozenset()
    runs: int = 0
    seed: int = 0
    notes: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def kinds(self) -> frozenset[FindingKind]:
        """The kinds of what was found."""
        return frozenset(finding.kind for finding in self.findings)

    def assert_clean(self) -> None:
        """Fail if anything was found.

        Raises:
            HookFindingsError: The text is the whole report.
        """
        if self.findings:
            raise HookFindingsError(self)

    def __str__(self) -> str:
        count = len(self.findings)
        verdict = "clean" if not count else "1 finding" if count == 1 else f"{count} findings"
        head = f"{self.hook}: {verdict} ({self.runs} runs, {len(self.events)} kinds of events, seed {self.seed})"
        notes = [f"  note: {note}" for note in self.notes]
        return "\n".join([head, *map(str, self.findings), *notes])


class Findings:
    """Collects findings; what is found again is counted, not repeated."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: dict[tuple[FindingKind, str, str], Finding] = {}

    def add(self, kind: FindingKind, message: str, event: str = "", evidence: str = "") -> None:
        """Note one finding."""
        key = kind, event, message
        before = self._found.get(key)
        count = 1 if before is None else before.count + 1
        kept = evidence if before is None else before.evidence
        self._found[key] = Finding(kind, message, event, kept, count)

    def __contains__(self, kind: object) -> bool:
        return any(finding.kind == kind for finding in self._found.values())

    def sorted(self) -> tuple[Finding, ...]:
        """All findings, by kind, then in the order in which they were met."""
        return tuple(sorted(self._found.values(), key=lambda finding: _ORDER[finding.kind]))
