"""Server-sent events as values: from the list of frames to the bytes of each write.

Rules:

1. A wire builds the whole list of frames; then interruptions, noise and the split into writes are applied, in this order.
2. A number in a `Point` counts frames of the reply, not noise (pings, comments, unknown events).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from agentflow.errors import UsageError
from agentflow.testing.wire.jsonish import JsonObject, dump
from agentflow.testing.wire.reply import Point, ReplyPlan

FrameKind: TypeAlias = Literal["head", "block", "thinking", "text", "call", "stop", "usage", "end", "error", "ping"]


@dataclass(frozen=True, slots=True)
class WireFrame:
    """One event: its kind, its data (an object, or text such as `[DONE]`), and its `event:` line if any."""

    kind: FrameKind
    data: JsonObject | str
    event: str | None = None

    def render(self, newline: str = "\n") -> str:
        """Return the event as text, including the blank line."""
        data = self.data if isinstance(self.data, str) else dump(self.data)
        lines = [f"data: {data}", "", ""] if self.event is None else [f"event: {self.event}", f"data: {data}", "", ""]
        return newline.join(lines)


def position(frames: Sequence[WireFrame], after: Point) -> int:
    """Return the number of frames before the given point.

    Raises:
        UsageError: The reply has no such point.
    """
    if isinstance(after, int):
        if 0 <= after <= len(frames):
            return after
        raise UsageError(f"a fault cannot happen after frame {after}: this reply has {len(frames)} frames")
    kinds = [frame.kind for frame in frames]
    before: dict[str, FrameKind] = {"content": "stop", "all": "end"}
    if after == "all" and "end" not in kinds:  # on a wire without an end mark
        return len(frames)
    kind: str = before.get(after, after)
    if kind not in kinds:
        raise UsageError(f"a fault cannot happen at {after!r}: this reply streams only {', '.join(sorted(set(kinds)))}")
    if after in before:
        return kinds.index(kind)
    if after == "call":
        return call_position(frames)
    return kinds.index(kind) + 1


def call_position(frames: Sequence[WireFrame]) -> int:
    """Return the position just after the first fragment of arguments, or after the call's head if there are no arguments."""
    calls = [index for index, frame in enumerate(frames) if frame.kind == "call"]
    return (calls[1] if len(calls) > 1 else calls[0]) + 1


def with_noise(
    frames: Sequence[WireFrame], plan: ReplyPlan, ping: WireFrame | None, unknown: WireFrame
) -> Iterator[str]:
    """Yield the text of each frame, with the plan's pings, comments and unknown events around it."""
    for frame in frames:
        if plan.comments:
            yield f": keep-alive{plan.newline}{plan.newline}"
        if plan.unknown_events:
            yield unknown.render(plan.newline)
        yield frame.render(plan.newline)
        if ping is not None and frame.kind != "end":
            for _ in range(plan.pings):
                yield ping.render(plan.newline)


def writes(parts: Sequence[bytes], plan: ReplyPlan) -> list[bytes]:
    """Split a body into writes as planned; by default each part is one write."""
    whole = b"".join(parts)
    if plan.split_at:
        offsets = [0, *sorted({offset for offset in plan.split_at if offset < len(whole)}), len(whole)]
    elif plan.split_size:
        offsets = [*range(0, len(whole), plan.split_size), len(whole)]
    else:
        return list(parts)
    return [whole[start:end] for start, end in pairwise(offsets) if end > start]
