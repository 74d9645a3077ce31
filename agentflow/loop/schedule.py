"""`ToolSchedule`: in which order, and how many at a time, the calls of one round run. A value, without effects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from agentflow.errors import UsageError
from agentflow.ground.values import frozen
from agentflow.messages import ToolUseBlock
from agentflow.specs import Lane

__all__ = ["ToolSchedule"]

_ORDER: dict[Lane, int] = {"research": 0, "read": 1, "write": 2}


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
        self, calls: Sequence[ToolUseBlock], lane_of: Callable[[ToolUseBlock], Lane]
    ) -> list[list[ToolUseBlock]]:
        """Group calls: batches run one after the other, the calls of a batch in parallel.

        Args:
            calls: The round's calls.
            lane_of: The lane of a call; unknown tools are writes.
        """
        if self.policy == "parallel":
            return [list(calls)] if calls else []
        if self.policy == "sequential":
            return [[call] for call in calls]
        ordered = calls
        if self.policy == "by_type":
            ordered = sorted(calls, key=lambda call: _ORDER[lane_of(call)])
        batches: list[list[ToolUseBlock]] = []
        previous: Lane | None = None
        for call in ordered:
            lane = lane_of(call)
            if lane != "write" and lane == previous:
                batches[-1].append(call)
            else:
                batches.append([call])
            previous = lane
        return batches

    def waits(self, vetted: Lane, planned: Lane) -> bool:
        """Whether a call that hooks have moved to another lane has to wait for that lane."""
        return self.policy == "by_type" and _ORDER[vetted] > _ORDER[planned]


ToolSchedule.BY_TYPE = ToolSchedule("by_type")
ToolSchedule.IN_CALL_ORDER = ToolSchedule("in_call_order")
ToolSchedule.SEQUENTIAL = ToolSchedule("sequential")
ToolSchedule.PARALLEL = ToolSchedule("parallel")
