"""Server-sent events as values, from the list of frames to the bytes of each write.

Rules:

1. A wire builds the whole list of frames first; breaking off, noise and cutting into writes come after, in that order.
2. A number in a `Point` counts frames of the reply, never noise (pings, comments, unknown events).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeAlias

from agentflow.errors import UsageError
from agentflow.testing.wire.jsonish import JsonObject, dump
from agentflow.testing.wire.reply import Plan, Point

FrameKind: TypeAlias = Literal["head", "block", "thinking", "text", "call", "stop", "usage", "end", "error", "ping"]


@dataclass(frozen=True, slots=True)
class Frame:
    """One event: what it is for, its data (an object, or text such as `[DONE]`), and its `event:` line if any."""

    kind: FrameKind
    data: JsonObject | str
    event: str | None = None

    def render(self, newline: str = "\n") -> str:
        """The event as text, blank line included."""
        data = self.data if isinstance(self.data, str) else dump(self.data)
        lines = [f"data: {data}", "", ""] if self.event is None else [f"event: {self.event}", f"data: {data}", "", ""]
        return newline.join(lines)


def position(frames: Sequence[Frame], after: Point) -> int:
    """How many frames go out before the given point.

    Raises:
        UsageError: The reply has no such place.
    """
    if isinstance(after, int):
        if 0 <= after <= len(frames):
            return after
        raise UsageError(f"a fault stands after frame {after}, but this reply streams {len(frames)} frames")
    kinds = [frame.kind for frame in frames]
    wanted: dict[str, FrameKind] = {"content": "stop", "all": "end"}
    if after == "all" and "end" not in kinds:  # the last event is the end mark
        return len(frames)
    kind: str = wanted.get(after, after)
    if kind not in kinds:
        raise UsageError(f"a fault stands at {after!r}, but this reply streams only {', '.join(sorted(set(kinds)))}")
    if after in wanted:
        return kinds.index(kind)
    if after == "call":
        return call_position(frames)
    return kinds.index(kind) + 1


def call_position(frames: Sequence[Frame]) -> int:
    """Just after the first piece of arguments, or after a call's head if there are no arguments."""
    calls = [place for place, frame in enumerate(frames) if frame.kind == "call"]
    return (calls[1] if len(calls) > 1 else calls[0]) + 1


def with_noise(frames: Sequence[Frame], plan: Plan, ping: Frame | None, unknown: Frame) -> Iterator[str]:
    """The text of each frame with the pings, comments and unknown events that the plan asks for around it."""
    for frame in frames:
        if plan.comments:
            yield f": keep-alive{plan.newline}{plan.newline}"
        if plan.unknown_events:
            yield unknown.render(plan.newline)
        yield frame.render(plan.newline)
        if ping is not None and frame.kind != "end":
            for _ in range(plan.pings):
                yield ping.render(plan.newline)


def writes(parts: Sequence[bytes], plan: Plan) -> list[bytes]:
    """Cut a body into writes as the plan asks; without a wish each part is one write."""
    if plan.split_size is None and not plan.split_at:
        return list(parts)
    whole = b"".join(parts)
    if plan.split_at:
        cuts = [0, *sorted({offset for offset in plan.split_at if offset < len(whole)}), len(whole)]
    else:
        cuts = [*range(0, len(whole), plan.split_size or 1), len(whole)]
    return [whole[start:end] for start, end in pairwise(cuts) if end > start]
