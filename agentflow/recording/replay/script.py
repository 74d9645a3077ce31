"""A recorded run as a script: the replies and results of each call, in order and with their times.

Rules:

1. Data from a model or a tool is due at its recorded time, and in its turn (`order`).
2. If no entry was recorded between two steps, no other step can happen between them in the replay.
3. A cancellation has a position in the order too. If a hook requested it, the hook requests it again in the replay, and the
   cancellation happens in its turn.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentflow.recording.entries import (
    CallEntry,
    Injection,
    InterruptEntry,
    MarkEntry,
)
from agentflow.recording.fields import End, ErrorData
from agentflow.recording.log import RunLog
from agentflow.recording.replay.comparing import ComparableStep
from agentflow.recording.replay.order import Key, Order

__all__ = ["DueStep", "ReaderPause", "RecordedWork", "Script"]


@dataclass(slots=True)
class DueStep:
    """A step with its time.

    Attributes:
        time: Its time, by the recording's clock.
        events: The number of events before it.
        apart: Whether another entry was recorded between this step and the previous one.
        piece: The data of the step, such as a chunk.
    """

    time: float
    events: int
    apart: bool
    piece: Any = None


@dataclass(frozen=True, slots=True)
class ReaderPause:
    """A period in which the run waited for its reader.

    Attributes:
        time: Its end.
        cancelled: Whether it was cancelled.
    """

    time: float
    cancelled: bool


@dataclass(slots=True)
class RecordedWork:
    """A model's reply or a tool's work: chunks, then the end.

    Attributes:
        n: Its number in the recording.
        step: The request in comparable form; None for a tool's work.
        end_due: The end of the work; None if the recording breaks off.
        end: How it ended.
        error: The error, if it failed.
        use: The id of the tool call.
        result: The ref of a tool's result.
        children: The calls of sub-agents inside it.
        side_replies: The replies to the side calls of a tool.
        injected: The messages that a tool injected.
        marks: The positions of the injections, or of the decision of a race.
        interrupts: The reason for which it interrupted its call; None if it did not.
        cut: The last cancellation of the call before the work began, if there is one.
    """

    n: int
    time: float
    step: ComparableStep | None = None
    pieces: list[DueStep] = field(default_factory=list[DueStep])
    end_due: DueStep | None = None
    end: End = "cut"
    error: ErrorData | None = None
    use: str = ""
    result: str | None = None
    injected: tuple[Injection, ...] = ()
    marks: list[tuple[MarkEntry, DueStep]] = field(default_factory=list[tuple[MarkEntry, DueStep]])
    children: list[str] = field(default_factory=list[str])
    side_replies: list[RecordedWork] = field(default_factory=list["RecordedWork"])
    interrupts: str | None = None
    cut: Key | None = None


class Script:
    """A recorded run as a script. `read_script` fills it; a player takes its replies and works from it.

    Args:
        log: The log of one run.
        roots: The top-level calls: the first one, and those that resumed it.

    Attributes:
        order: The order of its steps.
        steps: The events of each call, in comparable form.
        cuts: The cancellations from outside, by call; without those by hooks and tools of the call or of its caller.
        requests: The interrupts by hooks, and failures of parallel tool calls, by key. Older logs do not have their positions.
        total: The number of events.
        waits: The waits for the reader.
        broken_off: The calls without an end in the log, because the process was killed.
        attempts: The number of attempts at a reply in each round of a call.
        last_events: The cancellations by an enclosing call that came while no work was running, by the last event before which
            the call could still begin work.
        owners: The call of each work, by number, and of each hook's step, by the name in its key.
        replies: The replies that are not replayed yet, by call, round and side call.
        works: The tools' works that are not replayed yet, by call and the number of the tool call.
        children: The sub-agents' calls that are not repeated yet, by call and the number of the tool call.
    """

    def __init__(self, log: RunLog, roots: Sequence[CallEntry]) -> None:
        self.log = log
        self.roots = roots
        self.order = Order()
        self.steps: dict[str, list[ComparableStep]] = defaultdict(list)
        self.cuts: dict[str, InterruptEntry] = {}
        self.requests: dict[Key, InterruptEntry | MarkEntry] = {}
        self.total = 0
        self.waits: dict[Key, ReaderPause] = {}
        self.broken_off: set[str] = set()
        self.attempts: Counter[tuple[str, int]] = Counter()
        self.last_events: dict[Key, InterruptEntry] = {}
        self.owners: dict[str | int, str] = {}
        self.replies: dict[tuple[str, int, str], deque[RecordedWork]] = defaultdict(deque)
        self.works: dict[tuple[str, str], deque[RecordedWork]] = defaultdict(deque)
        self.children: dict[tuple[str, str], deque[str]] = defaultdict(deque)

    def remaining_replies(self, call: str, iteration: int) -> Sequence[RecordedWork]:
        """Return the replies in a round of a call that are not replayed yet, except those to side calls."""
        return self.replies.get((call, iteration, ""), ())

    def reply(self, call: str, iteration: int, side: str) -> RecordedWork | None:
        """Return the next reply in a round of a call; None if there is none."""
        waiting = self.replies.get((call, iteration, side))
        return waiting.popleft() if waiting else None

    def work(self, call: str, number: str) -> RecordedWork | None:
        """Return the next execution of a tool call, given by its number in the call; None if there is none."""
        waiting = self.works.get((call, number))
        return waiting.popleft() if waiting else None

    def steps_of(self, work: RecordedWork) -> list[tuple[Key, DueStep]]:
        """List the chunks, injections and side calls of a tool's work, in order."""
        steps: list[tuple[Key, DueStep]] = [(("chunk", work.n, n), due) for n, due in enumerate(work.pieces)]
        steps += [(("mark", work.n, n), due) for n, (mark, due) in enumerate(work.marks) if mark.what == "injected"]
        for reply in work.side_replies:
            steps.append((("begun", reply.n, 0), DueStep(reply.time, 0, False)))
            steps += [(("chunk", reply.n, n), due) for n, due in enumerate(reply.pieces)]
            steps += [] if reply.end_due is None else [(("over", reply.n, 0), replace(reply.end_due, piece=reply))]
        return sorted(steps, key=lambda step: self.order.places[step[0]])

    def all_of(self, calls: Iterable[str]) -> list[Key]:
        """Return the steps of some calls and of the calls inside them, in order."""
        wanted = set(calls)
        for call, entry in self.log.calls.items():  # a caller's entry precedes its sub-agent's
            if entry.parent is not None and entry.parent.call in wanted:
                wanted.add(call)
        return [
            key
            for key in self.order
            if (self.owners[key[1]] if key[0] in ("begun", "chunk", "over", "mark", "failed") else key[1]) in wanted
        ]

    def child(self, call: str, number: str) -> str | None:
        """Return the next sub-agent's call of a tool call, given by its number; None if there is none."""
        waiting = self.children.get((call, number))
        return waiting.popleft() if waiting else None
