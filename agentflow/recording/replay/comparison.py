"""Compare a run with its recording while the run is in progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, Protocol, TypeAlias

from agentflow._support.validation import adapter_of
from agentflow.recording.encoding import Line, header_line
from agentflow.recording.entries import CallEntry, ChunksEntry, EventEntry, PiecesEntry, WrittenEntry
from agentflow.recording.log import RunLog
from agentflow.recording.recorder.entry_builder import EntryBuilder, Observation
from agentflow.recording.replay.comparing import ComparableStep, Divergence, LogNormalizer, divergence_at
from agentflow.recording.replay.script import Script

__all__ = ["Reaction", "RunComparison"]

Reaction: TypeAlias = Literal["stop", "continue", "live"]
"""The reaction to a divergence: stop, continue with the rest of the recording, or continue with a live model."""


class ComparisonListener(Protocol):
    """The interface for objects that a comparison notifies."""

    def on_paired(self, call: str, recorded: str) -> None:
        """Handle a new call that corresponds to a recorded one."""
        ...

    def on_compared(self) -> None:
        """Handle an entry that has been compared."""
        ...

    def on_divergence(self) -> None:
        """Handle a divergence; `RunComparison.reaction` is set."""
        ...


class NewLog:
    """Builds the log of a run while the run is in progress.

    Attributes:
        log: The log so far.
        lines: Its lines.
    """

    def __init__(self) -> None:
        self.log = RunLog([], "the replay")
        self.lines: list[Line] = [header_line()]
        self._builder = EntryBuilder()
        self._reads = adapter_of(WrittenEntry)
        self.log.add(self._reads.validate_python(self.lines[0]))

    def add(self, observation: Observation) -> Iterator[WrittenEntry]:
        """Yield each entry of an observation once it is in the log."""
        for line in self._builder.lines((observation,)):
            entry = self._reads.validate_python(line)
            self.lines.append(line)
            self.log.add(entry)
            yield entry


class RunComparison:
    """Compares the entries of a new run with the steps of a recorded one.

    Args:
        script: The recorded run.
        since: Ignore differences in top-level events before this number.
        diverged: Called with the first difference; returns the reaction.
        listener: Is notified of each comparison and divergence.

    Attributes:
        new: The log of the new run.
        pairs: The recorded call for each new call.
        new_calls: The new call for each recorded call.
        normalizer: Normalises the new run's log.
        events: The number of steps of the new run so far, including those of sub-agents that the replay skipped.
        divergence: The first difference.
        reaction: The reaction to it.
        raised: The exception that `diverged` raised.
    """

    def __init__(
        self, script: Script, since: int, diverged: Callable[[Divergence], Reaction], listener: ComparisonListener
    ) -> None:
        self.new = NewLog()
        self.pairs: dict[str, str] = {}
        self.new_calls: dict[str, str] = {}
        self.normalizer = LogNormalizer(self.new.log)
        self.events = 0
        self.divergence: Divergence | None = None
        self.reaction: Reaction | None = None
        self.raised: Exception | None = None
        self._script = script
        self._since = since
        self._diverged = diverged
        self._listener = listener
        self._done: dict[str, int] = {}  # the number of compared steps of each new call
        self._next_root = 0

    def has_diverged(self) -> bool:
        """Return whether there is a divergence."""
        return self.divergence is not None

    def add(self, observation: Observation) -> None:
        """Add an observation of the new run and compare it."""
        for entry in self.new.add(observation):
            if isinstance(entry, CallEntry):
                self._pair(entry)
            elif isinstance(entry, EventEntry | ChunksEntry | PiecesEntry):
                self._compare(entry)

    def _pair(self, call: CallEntry) -> None:
        """Find the recorded call that corresponds to a new call."""
        recorded: str | None = None
        if call.parent is None or call.parent.call not in self.new.log.calls:
            # Top-level calls follow each other, so they correspond by their order.
            if self._next_root < len(self._script.roots):
                recorded = self._script.roots[self._next_root].call
                self._next_root += 1
        elif (above := self.pairs.get(call.parent.call)) is not None:
            recorded = self._script.child(above, self.normalizer.number(call.parent.call, call.parent.tool_use))
        if recorded is None:
            self.diverge(Divergence(event="call", source=call.source, now=f"a call of {call.agent}", no_data=True))
            return
        self.pairs[call.call], self.new_calls[recorded] = recorded, call.call
        self._done[call.call] = 0
        self._listener.on_paired(call.call, recorded)

    def _compare(self, entry: EventEntry | ChunksEntry | PiecesEntry) -> None:
        call = entry.call
        recorded = self.pairs.get(call)
        if recorded is None:
            return
        steps = self._script.steps[recorded]
        for step in self.normalizer.steps(entry):
            done = self._done[call]
            self._done[call] += 1
            self.events += 1
            if done < len(steps):
                self.differ(call, steps[done], step)
            elif recorded not in self._script.broken_off:  # if it breaks off, later steps have no counterpart
                self.differ(call, None, step)
        done = self._done[call]
        if isinstance(entry, EventEntry) and entry.type == "CallEnded" and done < len(steps):
            self.differ(call, steps[done], None)  # recorded events are missing
        self._listener.on_compared()

    def differ(self, call: str, recorded: ComparableStep | None, now: ComparableStep | None) -> None:
        """Compare a step of a new call with the recorded one; None means that the step is missing."""
        if self.divergence is not None or self._is_skipped(call, recorded):
            return
        found = divergence_at(self.new.log, call, recorded, now)
        if found is not None:
            self.diverge(found)

    def _is_skipped(self, call: str, step: ComparableStep | None) -> bool:
        """Return whether a recorded event is before the first one that is compared; events of sub-agents never are."""
        return step is not None and not self.new.log.calls[call].source and step.seq < self._since

    def diverge(self, divergence: Divergence) -> None:
        """Keep the first divergence, and set the reaction. A run that should continue with the recording is stopped if the
        recording has no more data for it."""
        if self.divergence is not None and not (self.reaction == "continue" and divergence.no_data):
            return
        first, self.reaction = self.divergence is None, "stop"
        self.divergence = self.divergence or divergence  # the first one is kept
        if first:
            try:
                self.reaction = self._diverged(divergence)
            except Exception as error:  # `arun` raises it at the end; here, it would look like an error of a hook
                self.raised = error
        if divergence.no_data and self.reaction == "continue":
            self.reaction = "stop"
        self._listener.on_divergence()
