"""A recorded run as a script: what each call's models and tools gave, in which order, and when.

Rules:

1. What a model or a tool gives is due when the recording says so, and in its turn (`order`).
2. Where nothing else happened between two things, nothing may happen between them in the replay either.
3. A cancellation from outside has a place in the order too. What hooks cancel they cancel again.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from agentflow.errors import StoreError
from agentflow.replay.comparing import Facing, Step
from agentflow.replay.order import Key, Order
from agentflow.runlog.entries import (
    AnsweredEntry,
    CallEntry,
    ChunksEntry,
    Entry,
    EventEntry,
    FactEntry,
    FinishedEntry,
    HookEntry,
    Injection,
    InterruptEntry,
    MarkEntry,
    PiecesEntry,
    ReplyEntry,
    RequestEntry,
    StartedEntry,
)
from agentflow.runlog.fields import End, ErrorData
from agentflow.runlog.log import RunLog
from agentflow.verdicts import Resolution

__all__ = ["Due", "Reply", "Script", "Work"]


@dataclass(slots=True)
class Due:
    """Something that is given at a time.

    Attributes:
        time: When, by the recording's clock.
        events: How many events stand before it.
        apart: Whether anything else happened since the thing before it.
        piece: What is given.
    """

    time: float
    events: int
    apart: bool
    piece: Any = None


@dataclass(slots=True)
class Reply:
    """A model's reply, or a tool's work: pieces, then its end.

    Attributes:
        n: Its number in the recording.
        step: What was asked, as it is compared; of a tool's work None.
        over: Its end; None: the recording breaks off.
        end: How it ended.
        error: What it failed with.
        use: The id of the tool call.
        result: The ref of what a tool's work came to.
        children: The calls of sub-agents inside it.
        injected: What a tool has put into the conversation.
        marks: Where in the order it did so, or decided over other work.
        interrupts: Why it has interrupted its call; None: it has not.
    """

    n: int
    time: float
    step: Step | None = None
    pieces: list[Due] = field(default_factory=list[Due])
    over: Due | None = None
    end: End = "cut"
    error: ErrorData | None = None
    use: str = ""
    result: str | None = None
    injected: tuple[Injection, ...] = ()
    marks: list[tuple[MarkEntry, Due]] = field(default_factory=list[tuple[MarkEntry, Due]])
    children: list[str] = field(default_factory=list[str])
    interrupts: str | None = None


Work = Reply


class Script:
    """A run as a script.

    Args:
        log: The log of one run.

    Attributes:
        roots: The calls of the run itself: the first one, and those that went on with it.
        steps: The events of each call, as they are compared.
        cuts: The cancellations from outside, by call: not those by hooks and tools of the call, or of its caller.
        total: How many events there are.
        broken_off: The calls whose end the log does not tell of: the process was killed.

    Raises:
        StoreError: The log holds no call, or has lost a line.
    """

    def __init__(self, log: RunLog) -> None:
        _check_complete(log)
        self.log = log
        self.roots = [call for call in log.calls.values() if call.parent is None or call.parent.call not in log.calls]
        if not self.roots:
            raise StoreError(f"{log.name} holds no call.")
        self.facing = Facing(log)
        self.order = Order()
        self.steps: dict[str, list[Step]] = defaultdict(list)
        self.cuts: dict[str, InterruptEntry] = {}
        self.total = 0
        self.inputs: dict[str, tuple[str, ...]] = {}
        self.decisions: dict[str, dict[str, Resolution]] = {}
        self.pending: dict[str, list[str]] = {}
        self._replies: dict[tuple[str, int, str], deque[Reply]] = defaultdict(deque)
        self._works: dict[tuple[str, str], deque[Work]] = defaultdict(deque)
        self._children: dict[tuple[str, str], deque[str]] = defaultdict(deque)
        self._by_number: dict[int, Reply] = {}
        self._owners: dict[str | int, str] = {}
        self._running: dict[str, dict[int, Reply]] = defaultdict(dict)
        self._last: dict[int, int] = {}
        self._doings = 0
        self._mine: dict[int, int] = {}
        self._ahead: dict[int, Key] = {}
        for entry in log.entries:
            self._read(entry)
        self.order.settle()
        self.broken_off = {call for call in log.calls if not any(step.type == "CallEnded" for step in self.steps[call])}

    # ---- reading

    def _read(self, entry: Entry) -> None:
        match entry:
            case CallEntry():
                if entry.parent is not None:
                    number = self.facing.number(entry.parent.call, entry.parent.tool_use)
                    self._children[entry.parent.call, number].append(entry.call)
                    for works in self._running.get(entry.parent.call, {}).values():
                        if works.use == entry.parent.tool_use:
                            works.children.append(entry.call)
            case HookEntry() if entry.event == "PreCall" and entry.call not in self.inputs:
                if any(change.field == "input_messages" for change in entry.changes):
                    self.inputs[entry.call] = self.log.messages(entry, "before")
            case EventEntry():
                if entry.type == "PreCall" and entry.call not in self.inputs:
                    self.inputs[entry.call] = self.log.messages(entry)
                place = len(self.steps[entry.call])
                self._events(entry, entry.time)
                use = entry.fields.get("tool_use")
                self._event_in_order(entry.call, place, entry.type, use, entry.seq, entry.time)
            case ChunksEntry():
                reply = None if entry.reply is None else self._by_number.get(entry.reply)
                self._in_order(reply, entry)
                if reply is not None:
                    self._pieces(reply, entry, ahead=True)
                self._events(entry, entry.time)
            case PiecesEntry():
                use = self.log.use_data(entry.tool_use)["id"]
                running = [work for work in self._running[entry.call].values() if work.step is None and work.use == use]
                self._in_order(running[0] if running else None, entry)
                for work in running:
                    self._pieces(work, entry, ahead=False)
                self._events(entry, entry.time)
            case RequestEntry():
                reply = Reply(entry.n, entry.time, self.facing.request(entry))
                self._replies[entry.call, entry.iteration, entry.side].append(reply)
                self._begin(reply, entry.call)
            case ReplyEntry():
                if entry.n in self._by_number:
                    self._in_order(self._by_number[entry.n], entry)
                    self._pieces(self._by_number[entry.n], entry, ahead=False)
            case StartedEntry():
                use = str(self.log.use_data(entry.tool_use)["id"])
                work = Work(entry.n, entry.time, use=use)
                self._works[entry.call, self.facing.number(entry.call, use)].append(work)
                self._begin(work, entry.call)
            case AnsweredEntry() | FinishedEntry():
                self._end(entry)
            case MarkEntry(n=None):
                self._owners[f"{entry.call} {entry.seq}"] = entry.call
                self.order.add_mark(entry)
            case MarkEntry(n=int(n)) if n in self._by_number:
                work = self._by_number[n]
                self.order.add(("mark", n, len(work.marks)), entry.time)
                work.marks.append((entry, Due(entry.time, self.total, self._apart(n))))
            case InterruptEntry():
                self._cut(entry)
            case FactEntry(fact="call_resumed"):
                self.decisions[entry.call] = self.log.decisions(entry)
            case FactEntry(fact="round_suspended"):
                self.pending[entry.call] = [waits["id"] for waits in entry.fields.get("pending", ())]
            case _:
                pass

    def _in_order(self, given: Reply | None, entry: ChunksEntry | PiecesEntry | ReplyEntry) -> None:
        """Take down the chunks of an entry, and the events that they are."""
        begun = 0 if given is None else len(given.pieces)
        for n, at in enumerate(entry.at):
            time = entry.time + at / 1000
            seq = 0 if isinstance(entry, ReplyEntry) else entry.seq + n
            if given is not None and (cut := self._ahead.pop(given.n, None)) is not None:
                self.order.put_back(given.n, begun + n, cut)
            elif given is not None:
                self.order.add_chunk(given.n, begun + n, entry.call, seq, time)
            place = len(self.steps[entry.call]) + n
            if isinstance(entry, ChunksEntry):
                self._event_in_order(entry.call, place, "ReasoningChunk", None, seq, time)
            elif isinstance(entry, PiecesEntry):
                self._event_in_order(entry.call, place, "ActingChunk", entry.tool_use, seq, time)

    def _event_in_order(self, call: str, place: int, kind: str, use: str | None, seq: int, time: float) -> None:
        number = "" if use is None else self.facing.number(call, str(self.log.use_data(use)["id"]))
        self.order.add_event(call, place, kind, number, seq, time)

    def _events(self, entry: EventEntry | ChunksEntry | PiecesEntry, time: float) -> None:
        made = self.facing.steps(entry)
        self.steps[entry.call].extend(made)
        self.total += len(made)
        self._doings += 1
        for n, work in self._running[entry.call].items():
            if self._comes_of(work, entry):  # that is nothing else
                self._mine[n] = self._mine.get(n, 0) + 1

    def _comes_of(self, work: Reply, entry: EventEntry | ChunksEntry | PiecesEntry) -> bool:
        """Whether an event is a piece of what a model or a tool gives."""
        match entry:
            case ChunksEntry():
                return work.step is not None and entry.reply in (None, work.n)
            case PiecesEntry():
                return work.step is None and work.use == self.log.use_data(entry.tool_use)["id"]
            case EventEntry():
                return False

    def _begin(self, reply: Reply, call: str) -> None:
        self._doings += 1
        self.order.add(("begun", reply.n, 0), reply.time)
        self._by_number[reply.n] = reply
        self._owners[reply.n] = call
        self._running[call][reply.n] = reply
        self._last[reply.n] = self._doings

    def _apart(self, n: int) -> bool:
        """Whether anything else happened since what came of it last."""
        apart = self._doings - self._last[n] - self._mine.pop(n, 0) > 0
        self._last[n] = self._doings
        return apart

    def _pieces(self, reply: Reply, entry: ChunksEntry | ReplyEntry | PiecesEntry, ahead: bool) -> None:
        apart, before = self._apart(reply.n), self.total
        if not isinstance(entry, ReplyEntry):  # what failed in its hooks was told before it
            before -= sum(1 for _ in takewhile(lambda step: step.seq > entry.seq, reversed(self.steps[entry.call])))
        for n, (piece, at) in enumerate(zip(entry.pieces, entry.at, strict=True)):
            # A model's piece stands before the event that it becomes.
            reply.pieces.append(Due(entry.time + at / 1000, before + (n if ahead else 0), apart and not n, piece))

    def _end(self, entry: AnsweredEntry | FinishedEntry) -> None:
        reply = self._by_number.get(entry.n)
        if reply is None:
            return
        self.order.add(("over", entry.n, 0), entry.time)
        reply.over = Due(entry.time, self.total, self._apart(entry.n))
        reply.end, reply.error = entry.end, entry.error
        if isinstance(entry, FinishedEntry):
            reply.result, reply.injected = entry.result, entry.injected
        self._doings += 1
        self._running[entry.call].pop(entry.n, None)

    def _cut(self, entry: InterruptEntry) -> None:
        """Put a cancellation into the order, unless hooks do it again, or the call that it belongs to."""
        if entry.by_caller or (entry.by_itself and entry.work is None) or entry.call in self.cuts:
            return
        key: Key = ("cut", entry.call, 0)
        self.order.add(key, entry.time)
        self._ahead.update(dict.fromkeys(entry.given, key))
        if entry.work is None:
            self.cuts[entry.call] = entry
        elif entry.work in self._by_number:
            self._by_number[entry.work].interrupts = entry.reason

    # ---- giving

    def reply(self, call: str, iteration: int, side: str) -> Reply | None:
        """The next reply that a call's model gave in a round; None: it gave no more."""
        waiting = self._replies.get((call, iteration, side))
        return waiting.popleft() if waiting else None

    def work(self, call: str, number: str) -> Work | None:
        """The next result of a tool call, which its number in the call names; None: it was not run again."""
        waiting = self._works.get((call, number))
        return waiting.popleft() if waiting else None

    def all_of(self, calls: Iterable[str]) -> list[Key]:
        """What happened in some calls, and in those that they made."""
        wanted = set(calls)
        for call, entry in self.log.calls.items():  # a caller's entry stands before that of its sub-agent
            if entry.parent is not None and entry.parent.call in wanted:
                wanted.add(call)
        return [
            key
            for key in self.order
            if (self._owners[key[1]] if key[0] in ("begun", "chunk", "over", "mark") else key[1]) in wanted
        ]

    def child(self, call: str, number: str) -> str | None:
        """The next call of a sub-agent for a tool call, which its number names; None: there was none."""
        waiting = self._children.get((call, number))
        return waiting.popleft() if waiting else None


def _check_complete(log: RunLog) -> None:
    """Refuse a log that tells of the end of what it has not seen begin: memory has forgotten its oldest entries.

    A line that is missing in its midst is refused where it is read.

    Raises:
        StoreError: It does.
    """
    work: dict[int, str] = {}
    ended: set[str] = set()
    for entry in log.entries:
        match entry:
            case RequestEntry() | StartedEntry():
                work[entry.n] = entry.call
            case ReplyEntry() | AnsweredEntry() | FinishedEntry() if entry.n not in work:
                raise _incomplete(log, f"the one that begins what its entry {entry.kind!r} of number {entry.n} ends")
            case EventEntry(type="CallEnded"):
                ended.add(entry.call)
            case _:
                pass
    for call in log.calls:
        if call not in ended and log.root_of(call).call in ended:
            raise _incomplete(log, f"the CallEnded event of call {call!r}")


def _incomplete(log: RunLog, what: str) -> StoreError:
    return StoreError(
        f"{log.name} cannot be replayed: a line is missing, {what}. Somebody has edited the log, a disk has lost a part of it, "
        "or it is the end of what a Recorder keeps in memory; record the run again."
    )
