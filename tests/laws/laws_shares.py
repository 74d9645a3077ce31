"""The composition of random programs, measured by what happened in their runs, not by their plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hypothesis import event
from laws_harness import World

from agentflow.errors import CallTimeoutError
from agentflow.vocabulary.events import PreActing, PreToolRound

__all__ = ["CUTS", "features", "report", "shares"]

CUTS = {
    "interrupt": ("interrupt",),
    "break": ("break", "close", "close-elsewhere"),
    "throw": ("throw",),
    "cancel": ("cancel-call", "cancel-task", "cancel-stream"),
}
"""The kinds of cuts, with the paths that make them; `timeout` is a kind of its own."""


def features(world: World) -> set[str]:
    """Name what happened in a world's first call and in its resumes."""
    events = [seen for call in world.calls for seen in call.observed]
    rounds = [seen for seen in events if isinstance(seen, PreToolRound)]
    called = {seen.tool_use.name for seen in events if isinstance(seen, PreActing)}
    found = set(world.acted)
    if called:
        found.add("tool call")
    if "helper" in called:
        found.add("sub-agent")
    if any(len(one.tool_uses) > 1 for one in rounds):
        found.add("parallel calls")
    if len({one.iteration for one in rounds}) > 1:
        found.add("two rounds")
    found |= _cuts(world)
    if world.program.store == "slow":
        found.add("slow store")
    return found


def _cuts(world: World) -> set[str]:
    first, path = world.calls[0], world.program.path
    found: set[str] = set()
    if first.left in ("cancelled", "interrupted", "closed", "thrown") or (
        path.kind == "break" and len(first.read) > path.at
    ):
        found |= {"cut"} | {f"cut: {kind}" for kind, kinds in CUTS.items() if path.kind in kinds}
    if isinstance(first.error, CallTimeoutError):
        found |= {"cut", "cut: timeout"}
    return found


def report(world: World) -> None:
    """Report to Hypothesis what happened in a world; `--hypothesis-show-statistics` prints the shares."""
    for name in sorted(features(world)):
        event(name)


def shares(all_features: Iterable[set[str]]) -> dict[str, float]:
    """Return the share of programs with each feature, in percent."""
    counted: Counter[str] = Counter()
    total = 0
    for found in all_features:
        counted.update(found)
        total += 1
    return {name: round(100 * count / total) for name, count in counted.most_common()}
