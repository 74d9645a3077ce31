"""Totals of a call, counted from its events: rounds, tools, tokens, cost, time."""

from __future__ import annotations

from collections import Counter

from agentflow.terminal.phrases import cost_text, duration_text, plural, tokens_text
from agentflow.vocabulary.events import CallEnded, Event, PostActing, PreReasoning
from agentflow.vocabulary.messages import Outcome, ToolState
from agentflow.vocabulary.specs import Usage


class Tally:
    """Counts the events of a call, without those of sub-agents; its usage includes theirs.

    Attributes:
        rounds: The number of model calls.
        tools: The number of tool calls by state.
        usage: The usage of the call.
        outcome: The outcome; None before the end.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.tools: Counter[ToolState] = Counter()
        self.usage = Usage()
        self.outcome: Outcome | None = None
        self._first: float | None = None
        self._last = 0.0

    def count(self, event: Event) -> None:
        """Count an event."""
        if self._first is None:
            self._first = event.time
        self._last = event.time
        if event.source:
            return
        match event:
            case PreReasoning():
                self.rounds += 1
            case PostActing(tool_result=result):
                self.tools[result.state] += 1
            case CallEnded(outcome=outcome, usage=usage):
                self.outcome, self.usage = outcome, usage
            case _:
                pass

    @property
    def seconds(self) -> float:
        """How long the call took."""
        return 0.0 if self._first is None else self._last - self._first

    @property
    def tools_text(self) -> str:
        """The number of tool calls by state."""
        if not self.tools:
            return "none"
        words = {"success": "succeeded", "error": "failed", "not_found": "not found", "timeout": "timed out"}
        ends = ", ".join(f"{count} {words.get(state, state)}" for state, count in self.tools.items())
        return f"{plural(self.tools.total(), 'call')}: {ends}"

    def rows(self) -> list[tuple[str, str]]:
        """Return the summary as rows."""
        return [
            ("outcome", self.outcome or "unknown"),
            ("rounds", str(self.rounds)),
            ("tools", self.tools_text),
            ("tokens", tokens_text(self.usage)),
            ("cost", cost_text(self.usage)),
            ("time", duration_text(self.seconds)),
        ]

    def line(self) -> str:
        """Return the summary on one line."""
        parts = [self.outcome or "unknown", plural(self.rounds, "round")]
        if self.tools:
            parts.append(plural(self.tools.total(), "tool call"))
        if self.usage.total_tokens:
            parts.append(f"{self.usage.total_tokens:,} tokens")
        if self.usage.cost is not None:
            parts.append(cost_text(self.usage))
        return " · ".join([*parts, duration_text(self.seconds)])
