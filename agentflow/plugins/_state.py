"""Counts how often each hook rejected an answer in a run, in this process."""

from __future__ import annotations

from dataclasses import dataclass

from agentflow.hooks.hook import Hook
from agentflow.vocabulary.context import RunContext


@dataclass
class _OfHooks:
    """The rejections of all hooks in a run; without fields, so that none is stored with a session."""

    def __post_init__(self) -> None:
        self.rejections: dict[type[object], dict[int, int]] = {}


def may_reject(context: RunContext, hook: Hook, counted_in: type[object], total: int, limit: int) -> bool:
    """Return whether a hook may reject one more answer in this run, and count the rejection.

    Args:
        context: The run.
        hook: The hook.
        counted_in: The state with the total; hooks of a subclass share it.
        total: The rejections by all hooks with this state. The caller stores it with the session. If it is higher than the
            counts of this process, the others were counted in another process, before a suspension.
        limit: The maximum number of rejections by one hook.
    """
    counts = context.state[_OfHooks].rejections.setdefault(counted_in, {})
    before = counts.setdefault(id(hook), total - sum(counts.values()))
    if before < limit:
        counts[id(hook)] = before + 1
    return before < limit
