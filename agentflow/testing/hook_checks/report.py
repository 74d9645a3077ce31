"""The report of `check_hook`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from agentflow.testing.findings import Finding, Report

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
"""The kinds of flaws; `docs/testing-hooks.md` describes each one and its fix."""


@dataclass(frozen=True, slots=True)
class HookReport(Report[FindingKind]):
    """The results of `check_hook` for one hook. `str(report)` is readable text.

    Attributes:
        hook: The hook's name.
        findings: The flaws, sorted by kind.
        events: The names of the events that fired in the runs.
        runs: The number of runs.
        seed: The seed of the random choices; the same seed makes the same choices.
        notes: Limitations of the report, for example that the hook's results vary.
    """

    hook: str
    findings: tuple[Finding[FindingKind], ...] = ()
    events: frozenset[str] = frozenset()
    runs: int = 0
    seed: int = 0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.format(
            self.hook, f"{self.runs} runs, {len(self.events)} kinds of events, seed {self.seed}", self.notes
        )
