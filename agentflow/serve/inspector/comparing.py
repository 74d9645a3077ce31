"""Compare two runs for the page, aligned as in `agentflow diff`.

The page computes none of this, so that an export can include the result.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agentflow.recording import RunLog
from agentflow.recording.diffing import diff_runs, paired_events
from agentflow.recording.entries import EventEntry, HookEntry
from agentflow.recording.reading import read_lines
from agentflow.recording.replay.comparing import LogNormalizer

_IGNORED = ("usage", "model", "history")
"""Fields that differ between any two runs, or repeat other fields."""


def compare(one: bytes, other: bytes) -> dict[str, Any]:
    """Compare two runs; the result is JSON data.

    Args:
        one: The lines of the first run's log.
        other: The lines of the second run's log.

    Returns:
        `differences`, as from `agentflow diff --json`; `pairs`: for each pair of events their indexes in the two runs, or
        None, and one of `"same"`, `"changed"`, `"left"`, `"right"`.

    Raises:
        RunLogError: One of them is not a run log.
    """
    logs = read_lines(one.split(b"\n"), "the first run"), read_lines(other.split(b"\n"), "the second run")
    sides = _ComparedRun(logs[0]), _ComparedRun(logs[1])
    pairs = [
        (a and sides[0].places[id(a)], b and sides[1].places[id(b)], _compare_pair(sides, a, b))
        for a, b in paired_events(*logs)
    ]
    return {"differences": [asdict(each) for each in diff_runs(*logs).differences], "pairs": pairs}


class _ComparedRun:
    """One of the two runs."""

    def __init__(self, log: RunLog) -> None:
        self._normalizer = LogNormalizer(log, numbered=False)
        self.places: dict[int, int] = {}  # by identity: a run can have equal events
        self._hooks: dict[tuple[str, int], list[Any]] = defaultdict(list)
        for entry in log.entries:
            if isinstance(entry, EventEntry):
                self.places[id(entry)] = len(self.places)
            elif isinstance(entry, HookEntry) and entry.via != "shadow" and (entry.changes or entry.verdict):
                did = entry.hook, (entry.verdict or {}).get("verdict"), [change.field for change in entry.changes]
                self._hooks[entry.call, entry.seq].append(did)

    def effect(self, event: EventEntry) -> tuple[Mapping[str, Any], list[Any]]:
        """Return an event's normalised fields and the effects of hooks on it."""
        (step,) = self._normalizer.steps(event)
        fields = {name: value for name, value in step.fields.items() if name not in _IGNORED}
        return fields, self._hooks.get((event.call, event.seq), [])


def _compare_pair(sides: tuple[_ComparedRun, _ComparedRun], one: EventEntry | None, other: EventEntry | None) -> str:
    if one is None:
        return "right"
    if other is None:
        return "left"
    return "same" if sides[0].effect(one) == sides[1].effect(other) else "changed"
