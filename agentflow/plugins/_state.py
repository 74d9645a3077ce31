"""What a hook keeps for one run in this process: its own objects, and how often it rejected an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

from agentflow.hooks.hook import Hook
from agentflow.vocabulary.context import RunContext

__all__ = ["may_reject", "own"]

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class _OfHooks:
    """The objects and rejections of all hooks in a run; it has no fields, so none of this is stored with a session."""

    def __post_init__(self) -> None:
        self.objects: dict[tuple[int, object], Any] = {}
        self.rejections: dict[type[object], dict[int, int]] = {}


def own(context: RunContext, hook: Hook, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return a hook's own object in a run, created on first use; it is not stored with a session.

    Args:
        context: The run.
        hook: The hook.
        make: The object's class.
        args: The arguments of the class.
        kwargs: Its keyword arguments.
    """
    objects = context.state[_OfHooks].objects
    key = id(hook), make
    found: T | None = objects.get(key)
    if found is None:
        found = objects[key] = make(*args, **kwargs)
    return found


def may_reject(context: RunContext, hook: Hook, counted_in: type[object], total: int, limit: int) -> bool:
    """Return whether a hook may reject one more answer in this run, and count the rejection.

    Args:
        context: The run.
        hook: The hook.
        counted_in: The state with the total; hooks of a subclass share it.
        total: The rejections by all hooks with this state. The caller stores it with the session; a difference to the counts
            of this process comes from before a suspension, in another process.
        limit: The maximum number of rejections by one hook.
    """
    counts = context.state[_OfHooks].rejections.setdefault(counted_in, {})
    before = counts.setdefault(id(hook), total - sum(counts.values()))
    if before < limit:
        counts[id(hook)] = before + 1
    return before < limit
