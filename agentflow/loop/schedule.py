"""`ToolSchedule`: the order and concurrency of the tool calls of one round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from agentflow._support.values import frozen
from agentflow.errors import UsageError
from agentflow.vocabulary.messages import ToolUseBlock
from agentflow.vocabulary.specs import TOOL_ORDER, ToolType

__all__ = ["ToolSchedule"]

_WRITES = TOOL_ORDER["write"]


@frozen
class ToolSchedule:
    """A scheduling policy.

    Attributes:
        policy: `"by_type"`: research tools in parallel, then read tools in parallel, then write tools one by one;
            `"in_call_order"`: the model's order, with adjacent calls in parallel if possible; `"sequential"`: the
            model's order, one by one; `"parallel"`: all at once.
        max_concurrency: The maximum number of tools running at the same time.

    Example:
        >>> ToolSchedule.BY_TYPE.limit(4).max_concurrency
        4
    """

    policy: Literal["by_type", "in_call_order", "sequential", "parallel"] = "by_type"
    max_concurrency: int = 16

    BY_TYPE: ClassVar[ToolSchedule]
    IN_CALL_ORDER: ClassVar[ToolSchedule]
    SEQUENTIAL: ClassVar[ToolSchedule]
    PARALLEL: ClassVar[ToolSchedule]

    def __post_init__(self) -> None:
        if self.max_concurrency < 1:
            raise UsageError(f"ToolSchedule: max_concurrency={self.max_concurrency}, but it must be at least 1.")

    def limit(self, max_concurrency: int) -> ToolSchedule:
        """Return the same policy with another limit on concurrency."""
        return replace(self, max_concurrency=max_concurrency)

    def batches(
        self, calls: Sequence[ToolUseBlock], type_of: Callable[[ToolUseBlock], ToolType]
    ) -> list[list[ToolUseBlock]]:
        """Group calls into batches: batches run one after another, the calls of a batch in parallel.

        Args:
            calls: The round's calls.
            type_of: Returns the type of a call's tool.
        """
        if self.policy == "parallel":
            return [list(calls)] if calls else []
        if self.policy == "sequential":
            return [[call] for call in calls]
        ordered = calls
        if self.policy == "by_type":
            ordered = sorted(calls, key=lambda call: TOOL_ORDER[type_of(call)])
        batches: list[list[ToolUseBlock]] = []
        previous = _WRITES  # a write never joins a batch, so the first call starts a batch
        for call in ordered:
            rank = TOOL_ORDER[type_of(call)]
            if rank != _WRITES and rank == previous:
                batches[-1].append(call)
            else:
                batches.append([call])
            previous = rank
        return batches

    def waits(self, vetted: ToolType, planned: ToolType) -> bool:
        """Whether a call must wait because hooks have changed its tool to a type that runs later."""
        # Only later types wait: a call that was changed to an earlier type has missed its batch, and runs now.
        return self.policy == "by_type" and TOOL_ORDER[vetted] > TOOL_ORDER[planned]


ToolSchedule.BY_TYPE = ToolSchedule("by_type")
ToolSchedule.IN_CALL_ORDER = ToolSchedule("in_call_order")
ToolSchedule.SEQUENTIAL = ToolSchedule("sequential")
ToolSchedule.PARALLEL = ToolSchedule("parallel")
