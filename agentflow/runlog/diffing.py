"""Two runs beside each other: aligned by calls, rounds and tool calls, and where they part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, TypeVar

from agentflow.runlog.log import RunLog
from agentflow.runlog.rounds import CallView, RoundView, ToolView, calls_of
from agentflow.specs import Usage

__all__ = ["Difference", "RunDiff", "diff_runs"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that two runs do not have in common.

    Attributes:
        where: Call, round and tool call, in words.
        what: What differs: `"reply"`, `"request"`, `"tool call"`, `"result"` ...
        one: What the first run has; None: nothing.
        other: What the second one has.
        hooks: The hooks that had a hand in it, in either run.
    """

    where: str
    what: str
    one: Any = None
    other: Any = None
    hooks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiff:
    """What two runs do not have in common, in the order in which it shows; the first is where they part.

    Attributes:
        usage: What each consumed.
        rounds: How many rounds each had, sub-agents' included.
    """

    differences: tuple[Difference, ...]
    usage: tuple[Usage, Usage]
    rounds: tuple[int, int]

    @property
    def parts(self) -> Difference | None:
        """Where they part; None: nowhere."""
        return self.differences[0] if self.differences else None


def diff_runs(one: RunLog, other: RunLog) -> RunDiff:
    """Compare two runs.

    Args:
        one: The first run's log.
        other: The second one's.
    """
    calls = calls_of(one), calls_of(other)
    return RunDiff(
        differences=tuple(_calls(*calls)),
        usage=(_usage(calls[0]), _usage(calls[1])),
        rounds=(sum(len(call.rounds) for call in calls[0]), sum(len(call.rounds) for call in calls[1])),
    )


def _usage(calls: Sequence[CallView]) -> Usage:
    """What the calls at the top consumed: those of sub-agents are billed to them."""
    return Usage.total([call.usage for call in calls if not call.source])


def _aligned(one: Sequence[T], other: Sequence[T], key: Callable[[T], object]) -> Iterator[tuple[T | None, T | None]]:
    """Pairs of what belongs together; what has nothing on the other side stands alone."""
    matcher = SequenceMatcher(None, [repr(key(a)) for a in one], [repr(key(b)) for b in other], autojunk=False)
    for _, a_from, a_to, b_from, b_to in matcher.get_opcodes():
        for n in range(max(a_to - a_from, b_to - b_from)):
            yield (
                one[a_from + n] if a_from + n < a_to else None,
                other[b_from + n] if b_from + n < b_to else None,
            )


def _calls(one: Sequence[CallView], other: Sequence[CallView]) -> Iterator[Difference]:
    for a, b in _aligned(one, other, lambda call: (call.source, call.agent)):
        here = a or b
        assert here is not None
        where = f"call of {here.source or here.agent}"
        if a is None or b is None:
            yield Difference(where=where, what="call", one=a and a.input, other=b and b.input)
            continue
        yield from _field(where, "input", a, b)
        yield from _rounds(where, a.rounds, b.rounds)
        for name in ("decided", "error", "outcome", "reply"):
            yield from _field(where, name, a, b)


def _field(where: str, name: str, one: Any, other: Any, what: str = "") -> Iterator[Difference]:
    a, b = getattr(one, name), getattr(other, name)
    if a != b:
        hooks = tuple(dict.fromkeys((*one.hooks, *other.hooks)))
        yield Difference(where=where, what=what or name, one=a, other=b, hooks=hooks)


def _rounds(where: str, one: Sequence[RoundView], other: Sequence[RoundView]) -> Iterator[Difference]:
    for a, b in _aligned(one, other, lambda each: (each.reply, [(t.name, t.input) for t in each.tools])):
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
    """The first message in which two requests differ."""
    hooks = tuple(dict.fromkeys((*one.hooks, *other.hooks)))
    for a, b in _aligned(one.request, other.request, lambda said: said):
        if a != b:
            yield Difference(where=where, what="request", one=a, other=b, hooks=hooks)
            return


def _tools(where: str, one: Sequence[ToolView], other: Sequence[ToolView]) -> Iterator[Difference]:
    for a, b in _aligned(one, other, lambda tool: tool.name):
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
            said = (f"{a.state}: {a.text}", f"{b.state}: {b.text}")
            yield Difference(where=place, what="result", one=said[0], other=said[1], hooks=hooks)


def _call(tool: ToolView) -> str:
    return f"{tool.name} {tool.input}"
