"""Two runs as the page shows them beside each other: aligned by what `agentflow diff` aligns them by, and compared here.

The page computes nothing of this; an export brings it along.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from agentflow.replay.comparing import Facing
from agentflow.runlog import RunLog
from agentflow.runlog.diffing import diff_runs, paired_events
from agentflow.runlog.entries import EventEntry, HookEntry
from agentflow.runlog.reading import read_lines

__all__ = ["compared"]

_APART = ("usage", "model", "history")
"""Fields that differ between any two runs, or tell again what others have told."""


def compared(one: bytes, other: bytes) -> dict[str, Any]:
    """What two runs do not have in common, as JSON.

    Args:
        one: The lines of the first run's log.
        other: Those of the second one's.

    Returns:
        `differences`, as `agentflow diff --json` gives them; `pairs`: of each run the how-manieth event it is, or None, and
        whether they say the same (`"same"`, `"changed"`, `"left"`, `"right"`).

    Raises:
        RunLogError: One of them is no run log.
    """
    logs = read_lines(one.split(b"\n"), "the first run"), read_lines(other.split(b"\n"), "the second run")
    sides = _Side(logs[0]), _Side(logs[1])
    pairs = [
        (a and sides[0].places[id(a)], b and sides[1].places[id(b)], _how(sides, a, b)) for a, b in paired_events(*logs)
    ]
    return {"differences": [asdict(each) for each in diff_runs(*logs).differences], "pairs": pairs}


class _Side:
    """One of the two runs."""

    def __init__(self, log: RunLog) -> None:
        self._facing = Facing(log, numbered=False)
        self.places: dict[int, int] = {}
        self._hooks: dict[tuple[str, int], list[Any]] = defaultdict(list)
        for entry in log.entries:
            if isinstance(entry, EventEntry):
                self.places[id(entry)] = len(self.places)
            elif isinstance(entry, HookEntry) and entry.via != "shadow" and (entry.changes or entry.verdict):
                did = entry.hook, (entry.verdict or {}).get("verdict"), [change.field for change in entry.changes]
                self._hooks[entry.call, entry.seq].append(did)

    def said(self, event: EventEntry) -> tuple[Mapping[str, Any], list[Any]]:
        """What an event says, and what hooks did to it."""
        (step,) = self._facing.steps(event)
        fields = {name: value for name, value in step.fields.items() if name not in _APART}
        return fields, self._hooks.get((event.call, event.seq), [])


def _how(sides: tuple[_Side, _Side], one: EventEntry | None, other: EventEntry | None) -> str:
    if one is None:
        return "right"
    if other is None:
        return "left"
    return "same" if sides[0].said(one) == sides[1].said(other) else "changed"
