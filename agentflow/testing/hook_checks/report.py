"""What `check_hook` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from agentflow.testing.findings import Finding, Report

__all__ = ["FindingKind", "HookReport"]

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


@dataclass(frozen=True, slots=True)
class HookReport(Report[FindingKind]):
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
    findings: tuple[Finding[FindingKind], ...] = ()
    events: frozenset[str] = frozenset()
    runs: int = 0
    seed: int = 0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.told(
            self.hook, f"{self.runs} runs, {len(self.events)} kinds of events, seed {self.seed}", self.notes
        )
