"""Checks that several plugins share: name patterns, tools that may write, chunks with content, and the limit of a hook's
rejections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentflow._support.patterns import fits
from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import PreActing
from agentflow.vocabulary.specs import ToolSpec


@dataclass
class _RejectionCounts:
    """The rejections in a run: by the class of the hook's state, then by the hook's id."""

    def __post_init__(self) -> None:
        # This is not a dataclass field, so it is not stored with the session.
        self.rejections: dict[type[object], dict[int, int]] = {}


def may_reject(context: RunContext, hook: Hook, counted_in: type[object], total: int, limit: int) -> bool:
    """Return whether a hook may reject one more answer in this run, and count the rejection.

    Args:
        context: The context of the run.
        hook: The hook.
        counted_in: The class of the state that contains the total; hooks that pass the same class share it.
        total: The rejections by all hooks with this state. The caller stores it with the session. If it is higher than
            the sum of the counts in this process, the rest was counted in another process, before a suspension.
        limit: The maximum number of rejections by one hook.
    """
    counts = context.state[_RejectionCounts].rejections.setdefault(counted_in, {})
    # The id is not reused while the run lasts, because the agent holds the hook. Hooks need not be hashable.
    before = counts.setdefault(id(hook), total - sum(counts.values()))
    if before < limit:
        counts[id(hook)] = before + 1
    return before < limit


def strings(option: str, value: Iterable[str]) -> tuple[str, ...]:
    """Return the value of an option that takes a list of strings, as a tuple.

    Raises:
        UsageError: The value is one string, which would be iterated letter by letter.

    Example:
        >>> strings("ToolRetry(tools=...)", ["read_*"])
        ('read_*',)
    """
    if isinstance(value, str):
        raise UsageError(f"{option} takes a list of strings, not a string.")
    return tuple(value)


def matches(patterns: Sequence[str], name: str) -> bool:
    """Return whether one of the patterns matches a name.

    Example:
        >>> matches(("read_*", "list_*"), "read_file")
        True
    """
    if "*" in patterns or name in patterns:  # the most frequent cases, at a tenth of the cost of `fits`
        return True
    return fits(tuple(patterns), name)


def has_content(chunk: ModelChunk) -> bool:
    """Return whether this chunk contains a part of the reply."""
    return bool(chunk.text or chunk.tool_uses or chunk.thinking or chunk.blocks)


def spec_of(event: PreActing) -> ToolSpec | None:
    """Return the requested tool as a model sees it; None if it is unknown."""
    name = event.tool_use.name
    for spec in event.agent.tools:
        if spec.name == name:
            return spec
    return None


def may_write(event: PreActing) -> bool:
    """Return whether the requested tool may change something; true for an unknown one."""
    spec = spec_of(event)
    return spec is None or spec.writes
