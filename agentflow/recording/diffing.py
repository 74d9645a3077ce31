"""Compare two runs: align them by calls, rounds and tool calls, and list the differences.

Rules:

1. The terminal and the inspector's page show the same alignment.
2. Times, durations and ids are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, Literal, TypeVar

from agentflow.recording.entries import EventEntry, HookEntry
from agentflow.recording.fields import DecisionData
from agentflow.recording.log import RunLog, usage_of
from agentflow.vocabulary.specs import Usage
from agentflow.vocabulary.text import message_text

__all__ = ["Difference", "RunDiff", "RunPart", "calls_of", "diff_runs", "paired_events"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between two runs.

    Attributes:
        where: The call, round and tool call, as text.
        what: The kind of difference: `"reply"`, `"request"`, `"tool call"`, `"result"` ...
        one: The value in the first run, or None if that run has none.
        other: The value in the second run, or None if it has no value there.
        hooks: The hooks involved, in either run.
    """

    where: str
    what: str
    one: Any = None
    other: Any = None
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiff:
    """All differences between two runs, in order; the runs diverge at the first difference.

    Attributes:
        usage: The usage of each run.
        rounds: The number of rounds of each run, sub-agents included.
    """

    differences: tuple[Difference, ...]
    usage: tuple[Usage, Usage]
    rounds: tuple[int, int]

    @property
    def first(self) -> Difference | None:
        """The first difference, or None if there is none."""
        return self.differences[0] if self.differences else None


def diff_runs(one: RunLog, other: RunLog) -> RunDiff:
    """Compare two runs.

    Args:
        one: The log of the first run.
        other: The log of the second run.
    """
    calls = calls_of(one), calls_of(other)
    return RunDiff(
        differences=tuple(_differences("", *calls)),
        usage=(_usage(calls[0]), _usage(calls[1])),
        rounds=(sum(len(call.parts) for call in calls[0]), sum(len(call.parts) for call in calls[1])),
    )


def paired_events(one: RunLog, other: RunLog) -> list[tuple[EventEntry | None, EventEntry | None]]:
    """Pair the events of two runs, aligned as in `diff_runs`; an event without a counterpart is paired with None.

    Args:
        one: The log of the first run.
        other: The log of the second run.
    """
    calls = calls_of(one), calls_of(other)
    keys: dict[int, str] = {}
    _key_events("", *calls, keys)
    events = list(one.events()), list(other.events())
    found: list[tuple[EventEntry | None, EventEntry | None]] = []
    for how, a_from, a_to, b_from, b_to in _matched(*[[keys[id(event)] for event in side] for side in events]):
        a, b = events[0][a_from:a_to], events[1][b_from:b_to]
        if how == "equal":
            found += zip(a, b, strict=True)
        else:
            found += [*((event, None) for event in a), *((None, event) for event in b)]
    return found


# ---- a run as a tree


@dataclass(slots=True, eq=False)
class RunPart:
    """A call, a round of it, or a tool call.

    Attributes:
        kind: The kind of the part.
        name: The call's path or agent, the round's number, or the tool, after any renaming by a hook.
        parent: For a sub-agent's call, the call whose tool runs it.
        facts: The values to compare, by kind (`Difference.what`).
        hooks: The hooks that changed or decided something.
        parts: The rounds of a call, the tool calls of a round.
        usage: The usage of a round, or the whole usage of a call that has ended.
        ended: Whether a call has ended.
        events: The part's own events.
    """

    kind: Literal["call", "round", "tool call"]
    name: str
    parent: RunPart | None = None
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    hooks: list[str] = field(default_factory=list[str])
    parts: list[RunPart] = field(default_factory=list["RunPart"])
    usage: Usage = field(default_factory=Usage)
    ended: bool = False
    events: list[EventEntry] = field(default_factory=list[EventEntry])

    @property
    def short(self) -> Any:
        """The text for a part that only one of the two runs has."""
        if self.kind == "tool call":
            return f"{self.name} {self.facts.get('input')}"
        return self.facts.get("reply" if self.kind == "round" else "input", "")


def calls_of(log: RunLog) -> list[RunPart]:
    """List the calls of a log, in the order in which they started."""
    return list(_TreeBuilder(log).calls.values())


_CALL = ("PreCall", "PostCall", "CallEnded")
_ROUND = ("PreReasoning", "PostReasoning", "PreToolRound", "PostToolRound")
_ACTING = ("PreActing", "PostActing")


class _TreeBuilder:
    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._inner: dict[tuple[str, int | str], RunPart] = {}
        self.calls: dict[str, RunPart] = {}
        for call, call_entry in log.calls.items():
            parent = None if call_entry.parent is None else self.calls.get(call_entry.parent.call)
            self.calls[call] = RunPart("call", call_entry.source or call_entry.agent or "the agent", parent)
            self.calls[call].facts["end"] = "none: the log breaks off after its start"
        for entry in log.entries:
            if isinstance(entry, EventEntry):
                part = self._part(entry, entry.type, entry.fields.get("tool_use"))
                part.events.append(entry)
                self._event(entry, part)
            elif isinstance(entry, HookEntry) and entry.via != "shadow":
                part = self._part(entry, entry.event, entry.tool_use)
                if (entry.changes or entry.verdict or entry.error) and entry.hook not in part.hooks:
                    part.hooks.append(entry.hook)
        for call in self.calls.values():
            # A hook's entry may precede that of its event, so rounds may be found out of order.
            call.parts.sort(key=lambda part: int(part.name))

    def _part(self, entry: EventEntry | HookEntry, event: str, tool_use: str | None) -> RunPart:
        """Return the part to which an event belongs."""
        call = self.calls[entry.call]
        if event in _ACTING and tool_use is not None:
            use = self._log.tool_use(tool_use)
            found = self._inner.get((entry.call, use.id))
            if found is None:
                above = self._part(entry, _ROUND[0], None)
                found = self._inner[entry.call, use.id] = RunPart("tool call", use.name)
                above.parts.append(found)
            found.name = use.name
            return found
        found = self._inner.get((entry.call, entry.iteration))
        if found is None and event in _ROUND:
            found = self._inner[entry.call, entry.iteration] = RunPart("round", str(entry.iteration))
            call.parts.append(found)
        return call if found is None or event in _CALL else found

    def _event(self, entry: EventEntry, part: RunPart) -> None:
        fields, log, facts = entry.fields, self._log, part.facts
        call = self.calls[entry.call]
        call.ended = entry.type == "CallEnded"
        last = f"{entry.type}, round {entry.iteration}" if entry.iteration else entry.type
        call.facts["end"] = (
            fields.get("outcome", "completed") if call.ended else f"none: the log breaks off after {last}"
        )
        match entry.type:
            case "PreCall":
                facts["input"] = "\n".join(self._text(ref) for ref in log.messages(entry))
            case "PreReasoning":
                facts["request"] = [f"{log.message(ref).role}: {self._text(ref)}" for ref in log.messages(entry)]
            case "PostReasoning":
                facts["model"], facts["reply"] = fields.get("model") or "", self._text(entry.ref("reasoning_result"))
                part.usage = usage_of(fields.get("usage"))
            case "PreActing" | "PostActing":
                facts["input"] = dict(log.tool_use(entry.ref("tool_use")).input)
                if "tool_result" in fields:
                    result = log.tool_result(fields["tool_result"])
                    facts["result"] = f"{result.state}: {result.text}"
            case "PostCall":
                facts["reply"] = self._text(entry.ref("final_message"))
            case "CallEnded":
                part.usage = usage_of(fields.get("usage"))
                if "error" in fields:
                    facts["error"] = f"{fields['error']['type']}: {fields['error'].get('message', '')}"
            case _:
                pass
        if entry.decision is not None:
            facts["decided"] = _decision_text(entry.decision)

    def _text(self, ref: str) -> str:
        return message_text(self._log.message(ref), " ")


def _decision_text(decision: DecisionData) -> str:
    verdict = decision.get("verdict")
    if verdict is None:
        return f"{decision['hook']} failed"
    value = next((value for name, value in verdict.items() if name != "verdict"), None)
    reason = f" ({value})" if isinstance(value, str) and value else ""
    return f"{decision['hook']} returned {verdict['verdict']}{reason}"


def _usage(calls: Sequence[RunPart]) -> Usage:
    """Add up the usage of the calls; a sub-agent's usage is billed to its caller once the caller ends."""
    counted = [call for call in calls if call.parent is None or not call.parent.ended]
    return Usage.total([part.usage for call in counted for part in ([call] if call.ended else call.parts)])


# ---- two trees

_BEFORE = {
    "call": ("input",),
    "round": ("request", "model", "decided", "reply"),
    "tool call": ("input", "decided", "result"),
}
_AFTER = {"call": ("decided", "error", "end", "reply"), "round": (), "tool call": ()}
"""The order in which the values of a part are compared, before and after its inner parts."""


def _differences(where: str, one: Sequence[RunPart], other: Sequence[RunPart]) -> Iterator[Difference]:
    for a, b in _aligned(one, other, _key):
        part = a or b
        assert part is not None
        label = {"call": f"call of {part.name}", "round": f"round {part.name}", "tool call": part.name}[part.kind]
        path = f"{where}, {label}" if where else label
        if a is None or b is None:
            hooks = tuple(part.hooks)
            yield Difference(where=path, what=part.kind, one=a and a.short, other=b and b.short, hooks=hooks)
            continue
        yield from _facts_that_differ(path, a, b, _BEFORE[a.kind])
        yield from _differences(path, a.parts, b.parts)
        yield from _facts_that_differ(path, a, b, _AFTER[a.kind])


def _facts_that_differ(where: str, one: RunPart, other: RunPart, names: Sequence[str]) -> Iterator[Difference]:
    hooks = tuple(dict.fromkeys((*one.hooks, *other.hooks)))
    for name in names:
        a, b = one.facts.get(name), other.facts.get(name)
        if a != b and name == "request":  # reports only the first message that differs
            pairs = _aligned(a or [], b or [], repr)
            a, b = next(((was, now) for was, now in pairs if was != now), (None, None))
        if a != b:
            yield Difference(where=where, what=name, one=a, other=b, hooks=hooks)


def _key(part: RunPart) -> str:
    """Return the text by which parts of two runs are aligned."""
    if part.kind != "round":
        return part.name
    # By content, not number: otherwise all rounds after an additional one would differ.
    return repr((part.facts.get("reply", ""), [(tool.name, tool.facts.get("input")) for tool in part.parts]))


def _aligned(one: Sequence[T], other: Sequence[T], key: Callable[[T], str]) -> Iterator[tuple[T | None, T | None]]:
    """Pair items by key; an item without a counterpart is paired with None."""
    for _, a_from, a_to, b_from, b_to in _matched([key(each) for each in one], [key(each) for each in other]):
        yield from zip_longest(one[a_from:a_to], other[b_from:b_to])


def _matched(one: Sequence[str], other: Sequence[str]) -> Sequence[tuple[str, int, int, int, int]]:
    # By default, difflib ignores items that are frequent in sequences of 200 or more, such as repeated rounds.
    return SequenceMatcher(None, one, other, autojunk=False).get_opcodes()


def _key_events(prefix: str, one: Sequence[RunPart], other: Sequence[RunPart], keys: dict[int, str]) -> None:
    """Store the key by which each event is aligned: the position of its part, and its type."""
    for n, pair in enumerate(_aligned(one, other, _key)):
        inside: list[list[RunPart]] = [[] if part is None else part.parts for part in pair]
        for part in filter(None, pair):
            for event in part.events:
                keys[id(event)] = f"{prefix} {n} {event.iteration if part.kind == 'call' else ''} {event.type}"
        _key_events(f"{prefix} {n}", inside[0], inside[1], keys)
