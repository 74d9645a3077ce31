"""`ToolSchedule`: in which order, and how many at a time, the calls of one round run. A value, without effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from agentflow.errors import UsageError
from agentflow.ground.values import frozen
from agentflow.messages import ToolUseBlock
from agentflow.specs import TOOL_ORDER, ToolType

__all__ = ["ToolSchedule"]

_WRITES = TOOL_ORDER["write"]


@frozen
class ToolSchedule:
    """A scheduling policy.

    Attributes:
        policy: `"by_type"`: research tools in parallel, then read tools in parallel, then write tools one by one;
            `"in_call_order"`: the model's order, neighbours that may run in parallel do; `"sequential"`: the model's
            order, one by one; `"parallel"`: all at once.
        max_concurrency: Most tools at a time.

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
            raise UsageError(f"ToolSchedule: max_concurrency={self.max_concurrency}; at least one tool has to run.")

    def limit(self, max_concurrency: int) -> ToolSchedule:
        """The same policy with another cap on concurrency."""
        return replace(self, max_concurrency=max_concurrency)

    def batches(
        self, calls: Sequence[ToolUseBlock], type_of: Callable[[ToolUseBlock], ToolType]
    ) -> list[list[ToolUseBlock]]:
        """Group calls: batches run one after the other, the calls of a batch in parallel.

        Args:
            calls: The round's calls.
            type_of: The type of the tool that is called; unknown ones write.
        """
        if self.policy == "parallel":
            return [list(calls)] if calls else []
        if self.policy == "sequential":
            return [[call] for call in calls]
        ordered = calls
        if self.policy == "by_type":
            ordered = sorted(calls, key=lambda call: TOOL_ORDER[type_of(call)])
        batches: list[list[ToolUseBlock]] = []
        previous = _WRITES
        for call in ordered:
            place = TOOL_ORDER[type_of(call)]
            if place != _WRITES and place == previous:
                batches[-1].append(call)
            else:
                batches.append([call])
            previous = place
        return batches

    def waits(self, vetted: ToolType, planned: ToolType) -> bool:
        """Whether a call that hooks have given to a tool of another type has to wait for the turn of that type."""
        return self.policy == "by_type" and TOOL_ORDER[vetted] > TOOL_ORDER[planned]


ToolSchedule.BY_TYPE = ToolSchedule("by_type")
ToolSchedule.IN_CALL_ORDER = ToolSchedule("in_call_order")
ToolSchedule.SEQUENTIAL = ToolSchedule("sequential")
ToolSchedule.PARALLEL = ToolSchedule("parallel")
