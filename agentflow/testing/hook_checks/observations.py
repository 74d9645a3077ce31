"""Collect the findings and notes of all runs of a hook."""

from __future__ import annotations

import asyncio
import warnings
from typing import Any, get_args

from agentflow.testing.findings import Findings
from agentflow.testing.hook_checks.isolation import WatchedResult
from agentflow.testing.hook_checks.judging import event_of, hook_of, kind_of, shown
from agentflow.testing.hook_checks.probes import After, Before, Canceller, Offered, Saves, Witness
from agentflow.testing.hook_checks.report import FindingKind
from agentflow.testing.hook_checks.scenes import PlantedError

_PROBES = frozenset(kind.__name__ for kind in (After, Before, Canceller, Offered, Saves, Witness))


class Observations:
    """The findings and notes of all runs of a hook.

    Args:
        name: The hook's name.
        by_design: Exceptions that the hook raises by design.

    Attributes:
        findings: The hook's flaws.
        notes: Why something was not checked or compared; the keys are the texts.
        where: The name of the current run.
    """

    def __init__(self, name: str, by_design: tuple[type[BaseException], ...]) -> None:
        self.name = name
        self.findings: Findings[FindingKind] = Findings(get_args(FindingKind))
        self.notes: dict[str, None] = {}
        self.where = ""
        self._by_design = by_design
        self._broken: BaseException | None = None

    def of_run(self, ran: WatchedResult[Any]) -> None:
        """Record that a run hangs, or the tasks, generators and exceptions that it leaked.

        Raises:
            BaseException: The suite itself failed in the run.
        """
        where = f"in {self.where!r}"
        if ran.hung:
            self.findings.add("hang", "prevents a run from ending", evidence=f"it waits at {ran.hung} ({where})")
            return
        for task in ran.tasks:
            self.findings.add(
                "leaked_task", "leaves a task running when the run has ended", evidence=f"{task} ({where})"
            )
        for generator in ran.generators:
            message = "leaves an async generator unclosed"
            self.findings.add("unclosed_generator", message, evidence=f"{generator} ({where})")
        for lost in ran.lost:
            self.findings.add("leaked_task", "starts work and ignores its failure", evidence=f"{lost} ({where})")
        broken = self._broken or ran.error
        if broken is not None and not isinstance(broken, asyncio.CancelledError):
            raise broken

    def failed(self, error: BaseException, hook: str | None = None, event: str = "") -> None:
        """Record an exception raised in a run."""
        failed = hook or hook_of(error)
        if failed in _PROBES:  # a fault of the suite itself, raised after the run
            self._broken = error
        if failed is not None and failed != self.name:
            return
        if failed is None and isinstance(error, PlantedError):
            return
        self.judge(error, event or event_of(error))

    def judge(self, error: BaseException, event: str) -> None:
        """Record an exception of the hook as a finding, unless the hook is allowed to raise it."""
        flaw = kind_of(error, self._by_design)
        if flaw is not None:
            kind, message = flaw
            self.findings.add(kind, message, event, f"{shown(error)} (in {self.where!r})")

    def edited(self, event: str, message: str, evidence: str) -> None:
        """Record an illegal edit of an event."""
        self.findings.add("history", message, event, f"{evidence} (in {self.where!r})".strip())

    def unsavable(self, message: str, evidence: str) -> None:
        """Record state that cannot be stored."""
        self.findings.add("unsavable_state", message, evidence=f"{evidence} (in {self.where!r})")

    def varies(self, name: str) -> None:
        """Note that a part of the results is not reproducible."""
        self.note(f"its results vary: its {name} cannot be compared")

    def note(self, text: str) -> None:
        """Add a note, once."""
        self.notes[text] = None

    def judge_warnings(self, warned: list[warnings.WarningMessage]) -> None:
        """Record coroutines that were never awaited, and repeat the other warnings."""
        for warning in warned:
            text = str(warning.message)
            if "never awaited" in text or "never subscribed" in text:
                self.findings.add("never_awaited", "creates a coroutine or a Mono and never awaits it", evidence=text)
            else:
                warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
