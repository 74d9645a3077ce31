"""Compare two runs: align them by calls, rounds and tool calls, and list the differences.

Rules:

1. There is one alignment; the terminal and the inspector's page both show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, TypeAlias, TypeVar

from agentflow.recording.entries import EventEntry
from agentflow.recording.log import RunLog
from agentflow.recording.rounds import CallView, RoundView, ToolView, calls_of
from agentflow.vocabulary.specs import Usage

__all__ = ["Difference", "RunDiff", "diff_runs", "paired_events"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference between two runs.

    Attributes:
        where: The call, round and tool call, as text.
        what: The kind of difference: `"reply"`, `"request"`, `"tool call"`, `"result"` ...
        one: The first run's value, or None if it has none.
        other: The second run's value.
        hooks: The hooks involved, in either run.
    """

    where: str
    what: str
    one: Any = None
    other: Any = None
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiff:
    """All differences between two runs, in order; the first is where they diverge.

    Attributes:
        usage: The usage of each run.
        rounds: The number of rounds of each run, sub-agents included.
    """

    differences: tuple[Difference, ...]
    usage: tuple[Usage, Usage]
    rounds: tuple[int, int]

    @property
    def parts(self) -> Difference | None:
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
        differences=tuple(_calls(*calls)),
        usage=(_usage(calls[0]), _usage(calls[1])),
        rounds=(sum(len(call.rounds) for call in calls[0]), sum(len(call.rounds) for call in calls[1])),
    )


def paired_events(one: RunLog, other: RunLog) -> list[tuple[EventEntry | None, EventEntry | None]]:
    """Pair the events of two runs, aligned as in `diff_runs`; an event without a counterpart is paired with None.

    Args:
        one: The log of the first run.
        other: The log of the second run.
    """
    places = _places(calls_of(one), calls_of(other))
    keyed = [
        [(_key(log, event, known), event) for event in log.events()]
        for log, known in zip((one, other), places, strict=True)
    ]
    found: list[tuple[EventEntry | None, EventEntry | None]] = []
    for how, a_from, a_to, b_from, b_to in _matched([key for key, _ in keyed[0]], [key for key, _ in keyed[1]]):
        a, b = [event for _, event in keyed[0][a_from:a_to]], [event for _, event in keyed[1][b_from:b_to]]
        if how == "equal":
            found += zip(a, b, strict=True)
        else:
            found += [*((event, None) for event in a), *((None, event) for event in b)]
    return found


_Places: TypeAlias = dict[tuple[str, int | str], str]
"""The position in the alignment of each round and tool call, by its call."""


def _places(one: Sequence[CallView], other: Sequence[CallView]) -> tuple[_Places, _Places]:
    found: tuple[_Places, _Places] = ({}, {})

    def note(call: CallView | None, side: int, here: int | str | None, place: str) -> None:
        if call is not None and here is not None:
            found[side][call.call, here] = place

    for c, calls in enumerate(_aligned_calls(one, other)):
        rounds = [() if call is None else call.rounds for call in calls]
        for side, call in enumerate(calls):
            note(call, side, 0, f"{c}")
        for r, pair in enumerate(_aligned_rounds(*rounds)):
            tools = [() if each is None else each.tools for each in pair]
            for side, each in enumerate(pair):
                note(calls[side], side, each and each.number, f"{c} {r}")
            for t, uses in enumerate(_aligned_tools(*tools)):
                for side, use in enumerate(uses):
                    note(calls[side], side, use and use.id, f"{c} {r} {t}")
    return found


def _key(log: RunLog, event: EventEntry, places: _Places) -> str:
    """Return the key by which an event is aligned."""
    use = event.fields.get("tool_use")
    found = None if use is None else places.get((event.call, log.tool_use(use).id))
    place = found or places.get((event.call, event.iteration)) or f"{places[event.call, 0]} ({event.iteration})"
    return f"{place} {event.type}"


def _usage(calls: Sequence[CallView]) -> Usage:
    """Add up the usage of the calls; a sub-agent's usage is billed to its caller once the caller ends."""
    ended = {call.call for call in calls if not call.breaks_off}
    return Usage.total([call.usage for call in calls if call.parent not in ended])


def _aligned(one: Sequence[T], other: Sequence[T], key: Callable[[T], object]) -> Iterator[tuple[T | None, T | None]]:
    """Pair items by key; an item without a counterpart is paired with None."""
    for _, a_from, a_to, b_from, b_to in _matched([repr(key(a)) for a in one], [repr(key(b)) for b in other]):
        for n in range(max(a_to - a_from, b_to - b_from)):
            yield (
                one[a_from + n] if a_from + n < a_to else None,
                other[b_from + n] if b_from + n < b_to else None,
            )


def _matched(one: Sequence[str], other: Sequence[str]) -> Sequence[tuple[str, int, int, int, int]]:
    return SequenceMatcher(None, one, other, autojunk=False).get_opcodes()


def _aligned_calls(
    one: Sequence[CallView], other: Sequence[CallView]
) -> Iterator[tuple[CallView | None, CallView | None]]:
    return _aligned(one, other, lambda call: (call.source, call.agent))


def _aligned_rounds(
    one: Sequence[RoundView], other: Sequence[RoundView]
) -> Iterator[tuple[RoundView | None, RoundView | None]]:
    return _aligned(one, other, lambda each: (each.reply, [(tool.name, tool.input) for tool in each.tools]))


def _aligned_tools(
    one: Sequence[ToolView], other: Sequence[ToolView]
) -> Iterator[tuple[ToolView | None, ToolView | None]]:
    return _aligned(one, other, lambda tool: tool.name)


def _calls(one: Sequence[CallView], other: Sequence[CallView]) -> Iterator[Difference]:
    for a, b in _aligned_calls(one, other):
        here = a or b
        assert here is not None
        where = f"call of {here.source or here.agent or 'the agent'}"
        if a is None or b is None:
            yield Difference(where=where, what="call", one=a and a.input, other=b and b.input)
            continue
        yield from _field(where, "input", a, b)
        yield from _rounds(where, a.rounds, b.rounds)
        for name in ("decided", "error"):
            yield from _field(where, name, a, b)
        if a.breaks_off != b.breaks_off:
            yield Difference(where=where, what="end", one=_end(a), other=_end(b))
        else:
            yield from _field(where, "outcome", a, b)
        yield from _field(where, "reply", a, b)


def _end(call: CallView) -> str:
    return f"none: the log breaks off after {call.breaks_off}" if call.breaks_off else call.outcome


def _field(where: str, name: str, one: Any, other: Any, what: str = "") -> Iterator[Difference]:
    a, b = getattr(one, name), getattr(other, name)
    if a != b:
        hooks = tuple(dict.fromkeys((*one.hooks, *other.hooks)))
        yield Difference(where=where, what=what or name, one=a, other=b, hooks=hooks)


def _rounds(where: str, one: Sequence[RoundView], other: Sequence[RoundView]) -> Iterator[Difference]:
    for a, b in _aligned_rounds(one, other):
        here = a or b
        assert here is not None
        place = f"{where}, round {here.number}"
        if a is None or b is None:
            yield Difference(where=place, what="round", one=a and a.reply, other=b and b.reply, hooks=tuple(here.hooks))
            continue
        yield from _request(place, a, b)
        for name in ("model", "decided", "reply"):
            yield from _field(place, name, a, b)
        yield from _tools(place, a.tools, b.tools)


def _request(where: str, one: RoundView, other: RoundView) -> Iterator[Difference]:
    """Yield the first message in which two requests differ."""
    hooks = tuple(dict.fromkeys((*one.hooks, *other.hooks)))
    for a, b in _aligned(one.request, other.request, lambda said: said):
        if a != b:
            yield Difference(where=where, what="request", one=a, other=b, hooks=hooks)
            return


def _tools(where: str, one: Sequence[ToolView], other: Sequence[ToolView]) -> Iterator[Difference]:
    for a, b in _aligned_tools(one, other):
        here = a or b
        assert here is not None
        place = f"{where}, {here.name}"
        if a is None or b is None:
            yield Difference(
                where=place, what="tool call", one=a and _call(a), other=b and _call(b), hooks=tuple(here.hooks)
            )
            continue
        yield from _field(place, "input", a, b)
        yield from _field(place, "decided", a, b)
        if (a.state, a.text) != (b.state, b.text):
            hooks = tuple(dict.fromkeys((*a.hooks, *b.hooks)))
            yield Difference(where=place, what="result", one=_result(a), other=_result(b), hooks=hooks)


def _call(tool: ToolView) -> str:
    return f"{tool.name} {tool.input}"


def _result(tool: ToolView) -> str | None:
    return f"{tool.state}: {tool.text}" if tool.state else None
