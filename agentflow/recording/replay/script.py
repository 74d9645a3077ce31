"""A recorded run as a script: the replies and results of each call, in order and with their times.

Rules:

1. Data from a model or a tool is due at its recorded time, and in its turn (`order`).
2. If no entry was recorded between two steps, no other step may happen between them in the replay.
3. A cancellation has a position in the order too. If a hook requests it, the hook of the replay requests it again, and it
   happens in its turn.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from agentflow.errors import StoreError
from agentflow.recording.entries import (
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
from agentflow.recording.fields import End, ErrorData
from agentflow.recording.log import RunLog
from agentflow.recording.replay.comparing import LogNormalizer, Step
from agentflow.recording.replay.order import Key, Order
from agentflow.vocabulary.verdicts import Resolution

__all__ = ["DueStep", "ReaderWait", "RecordedWork", "Script"]


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
class ReaderWait:
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
        asked: The replies to the side calls of a tool.
        injected: The messages that a tool injected.
        marks: The positions of the injections, or of a decision of a race.
        interrupts: The reason for which it interrupted its call; None if it did not.
        cut: The cancellation of the call, if it happened before the work began.
    """

    n: int
    time: float
    step: Step | None = None
    pieces: list[DueStep] = field(default_factory=list[DueStep])
    end_due: DueStep | None = None
    end: End = "cut"
    error: ErrorData | None = None
    use: str = ""
    result: str | None = None
    injected: tuple[Injection, ...] = ()
    marks: list[tuple[MarkEntry, DueStep]] = field(default_factory=list[tuple[MarkEntry, DueStep]])
    children: list[str] = field(default_factory=list[str])
    asked: list[RecordedWork] = field(default_factory=list["RecordedWork"])
    interrupts: str | None = None
    cut: Key | None = None


class Script:
    """A recorded run as a script.

    Args:
        log: The log of one run.

    Attributes:
        roots: The top-level calls: the first one, and those that resumed it.
        steps: The events of each call, in comparable form.
        cuts: The cancellations from outside, by call; not those by hooks and tools of the call or of its caller.
        requests: The interrupts by hooks, and failures of parallel tool calls, by key. Older logs do not have their positions.
        total: The number of events.
        waits: The waits for the reader.
        broken_off: The calls without an end in the log, because the process was killed.
        attempts: The number of attempts at a reply in each round of a call.
        last_events: The cancellations by an enclosing call between two steps, by the event after which nothing began.

    Raises:
        StoreError: The log has no call, or has lost a line.
    """

    def __init__(self, log: RunLog) -> None:
        _check_complete(log)
        self.log = log
        self.roots = [call for call in log.calls.values() if call.parent is None or call.parent.call not in log.calls]
        if not self.roots:
            raise StoreError(f"{log.name} contains no call.")
        self.normalizer = LogNormalizer(log)
        self.order = Order()
        self.steps: dict[str, list[Step]] = defaultdict(list)
        self.cuts: dict[str, InterruptEntry] = {}
        self.requests: dict[Key, InterruptEntry | MarkEntry] = {}
        self.total = 0
        self.inputs: dict[str, tuple[str, ...]] = {}
        self.decisions: dict[str, dict[str, Resolution]] = {}
        self.pending: dict[str, list[str]] = {}
        self.attempts: Counter[tuple[str, int]] = Counter()
        self._replies: dict[tuple[str, int, str], deque[RecordedWork]] = defaultdict(deque)
        self._works: dict[tuple[str, str], deque[RecordedWork]] = defaultdict(deque)
        self._children: dict[tuple[str, str], deque[str]] = defaultdict(deque)
        self._by_number: dict[int, RecordedWork] = {}
        self._owners: dict[str | int, str] = {}
        self._running: dict[str, dict[int, RecordedWork]] = defaultdict(dict)
        self._last: dict[int, int] = {}
        self._entries_seen = 0
        self._own_chunks: dict[int, int] = {}
        self._ahead: dict[int, Key] = {}
        self.waits: dict[Key, ReaderWait] = {}
        self.last_events: dict[Key, InterruptEntry] = {}
        self._ending: dict[str, InterruptEntry] = {}
        for entry in log.entries:
            self._read(entry)
        self.order.settle()
        self.broken_off = {call for call in log.calls if not any(step.type == "CallEnded" for step in self.steps[call])}

    # ---- reading

    def _read(self, entry: Entry) -> None:
        """Read one entry: a call, its events and its end; `_read_work` reads a model's reply or a tool's work."""
        match entry:
            case CallEntry():
                if entry.parent is not None:
                    number = self.normalizer.number(entry.parent.call, entry.parent.tool_use)
                    self._children[entry.parent.call, number].append(entry.call)
                    for works in self._running.get(entry.parent.call, {}).values():
                        if works.use == entry.parent.tool_use:
                            works.children.append(entry.call)
            case HookEntry() if self._is_first_edit(entry):
                self.inputs[entry.call] = self.log.messages(entry, "before")
            case HookEntry(via="on_event") if entry.error is not None and entry.error["type"] != "CancelledError":
                self._owners[f"{entry.call} {entry.seq} {entry.hook}"] = entry.call
                self.order.add_failure(entry)
            case EventEntry():
                if entry.type == "PreCall" and entry.call not in self.inputs:
                    self.inputs[entry.call] = self.log.messages(entry)
                position = len(self.steps[entry.call])
                self._events(entry, entry.time)
                use = entry.fields.get("tool_use")
                self._event_in_order(entry.call, position, entry.type, use, entry.seq, entry.time)
            case MarkEntry(what="read" | "unread"):
                self._wait(entry.call, entry.seq, entry.time, entry.what == "unread")
            case MarkEntry(what="twice" | "pending" | "swallowed"):
                pass  # such a log is refused, unless inexact
            case MarkEntry(what="failed"):
                self._request(("cut", entry.call, 1), entry)
            case MarkEntry(n=None):
                self._owners[f"{entry.call} {entry.seq}"] = entry.call
                self.order.add_mark(entry)
            case InterruptEntry():
                self._add_cancellation(entry)
            case FactEntry(fact="call_resumed"):
                self.decisions[entry.call] = self.log.decisions(entry)
            case FactEntry(fact="round_suspended"):
                self.pending[entry.call] = [wait["id"] for wait in entry.fields.get("pending", ())]
            case _:
                self._read_work(entry)

    def _is_first_edit(self, entry: HookEntry) -> bool:
        """Whether a hook was the first to change the messages of its call."""
        if entry.event != "PreCall" or entry.call in self.inputs:
            return False
        return any(change.field == "input_messages" for change in entry.changes)

    def _read_work(self, entry: Entry) -> None:
        """Read one entry of a model's reply or a tool's work."""
        match entry:
            case ChunksEntry():
                reply = None if entry.reply is None else self._by_number.get(entry.reply)
                self._in_order(reply, entry)
                if reply is not None:
                    self._pieces(reply, entry, ahead=True)
                self._events(entry, entry.time)
            case PiecesEntry():
                works = [work for work in self._running[entry.call].values() if self._is_chunk_of(work, entry)]
                self._in_order(works[0] if works else None, entry)
                for work in works[:1]:
                    self._pieces(work, entry, ahead=False)
                self._events(entry, entry.time)
            case RequestEntry():
                reply = RecordedWork(entry.n, entry.time, self.normalizer.request(entry))
                asking = None if entry.work is None else self._by_number.get(entry.work)
                if asking is None:
                    self._replies[entry.call, entry.iteration, entry.side].append(reply)
                    self.attempts[entry.call, entry.iteration] += not entry.side
                else:
                    asking.asked.append(reply)
                self._begin(reply, entry.call)
            case ReplyEntry():
                if entry.n in self._by_number:
                    self._in_order(self._by_number[entry.n], entry)
                    self._pieces(self._by_number[entry.n], entry, ahead=False)
            case StartedEntry():
                use = str(self.log.use_data(entry.tool_use)["id"])
                work = RecordedWork(entry.n, entry.time, use=use)
                number = self.normalizer.number(entry.call, use)
                self._works[entry.call, number].append(work)
                self._begin(work, entry.call)
            case AnsweredEntry() | FinishedEntry():
                self._end(entry)
            case MarkEntry(n=int(n)) if n in self._by_number:
                work = self._by_number[n]
                self.order.add(("mark", n, len(work.marks)), entry.time)
                work.marks.append((entry, DueStep(entry.time, self.total, self._entry_between(n))))
            case _:
                pass

    def _in_order(self, work: RecordedWork | None, entry: ChunksEntry | PiecesEntry | ReplyEntry) -> None:
        """Record the chunks of an entry, and the events of those chunks."""
        chunks_before = 0 if work is None else len(work.pieces)
        for n, at in enumerate(entry.at):
            time = entry.time + at / 1000
            seq = _next_event(entry) if isinstance(entry, ReplyEntry) else entry.seq + n
            if work is not None and (cancellation := self._ahead.pop(work.n, None)) is not None:
                self.order.put_back(work.n, chunks_before + n, cancellation, entry.call, seq)
            elif work is not None:
                self.order.add_chunk(work.n, chunks_before + n, entry.call, seq, time)
            position = len(self.steps[entry.call]) + n
            if isinstance(entry, ChunksEntry):
                self._event_in_order(entry.call, position, "ReasoningChunk", None, seq, time)
            elif isinstance(entry, PiecesEntry):
                self._event_in_order(entry.call, position, "ActingChunk", entry.tool_use, seq, time)
            if not isinstance(entry, ReplyEntry) and n < len(entry.paused) and entry.paused[n]:
                self._wait(entry.call, seq, time + entry.paused[n] / 1000)

    def _wait(self, call: str, seq: int, time: float, cancelled: bool = False) -> None:
        key: Key = ("read", call, seq)
        self.order.add(key, time)
        self.waits[key] = ReaderWait(time, cancelled)

    def _event_in_order(self, call: str, position: int, kind: str, use: str | None, seq: int, time: float) -> None:
        ending = self._ending.pop(call, None)
        if ending is not None and position and kind in ("PostToolRound", "CallEnded"):
            self.last_events["event", call, position - 1] = ending
        number = "" if use is None else self.normalizer.number(call, str(self.log.use_data(use)["id"]))
        self.order.add_event(call, position, kind, number, seq, time)

    def _events(self, entry: EventEntry | ChunksEntry | PiecesEntry, time: float) -> None:
        steps = self.normalizer.steps(entry)
        self.steps[entry.call].extend(steps)
        self.total += len(steps)
        self._entries_seen += 1
        for n, work in self._running[entry.call].items():
            if self._is_chunk_of(work, entry):  # its own chunks do not count as other entries
                self._own_chunks[n] = self._own_chunks.get(n, 0) + 1

    def _is_chunk_of(self, work: RecordedWork, entry: EventEntry | ChunksEntry | PiecesEntry) -> bool:
        """Whether an event is a chunk of the work."""
        match entry:
            case ChunksEntry():
                return work.step is not None and entry.reply in (None, work.n)
            case PiecesEntry():
                its_use = work.use == self.log.use_data(entry.tool_use)["id"]
                return work.step is None and its_use and entry.n in (None, work.n)
            case EventEntry():
                return False

    def _begin(self, reply: RecordedWork, call: str) -> None:
        self._entries_seen += 1
        self.order.add(("begun", reply.n, 0), reply.time)
        reply.cut = self.order.cuts.get(call)
        self._by_number[reply.n] = reply
        self._owners[reply.n] = call
        self._running[call][reply.n] = reply
        self._last[reply.n] = self._entries_seen

    def _entry_between(self, n: int) -> bool:
        """Whether another entry was recorded since the last step of the work."""
        between = self._entries_seen - self._last[n] - self._own_chunks.pop(n, 0) > 0
        self._last[n] = self._entries_seen
        return between

    def _pieces(self, reply: RecordedWork, entry: ChunksEntry | ReplyEntry | PiecesEntry, ahead: bool) -> None:
        between, before = self._entry_between(reply.n), self.total
        if not isinstance(entry, ReplyEntry):  # the failure of a hook was reported before it
            before -= sum(1 for _ in takewhile(lambda step: step.seq > entry.seq, reversed(self.steps[entry.call])))
        for n, (piece, at) in enumerate(zip(entry.pieces, entry.at, strict=True)):
            # A model's chunk comes before its event.
            reply.pieces.append(DueStep(entry.time + at / 1000, before + (n if ahead else 0), between and not n, piece))

    def _end(self, entry: AnsweredEntry | FinishedEntry) -> None:
        reply = self._by_number.get(entry.n)
        if reply is None:
            return
        self.order.add(("over", entry.n, 0), entry.time)
        reply.end_due = DueStep(entry.time, self.total, self._entry_between(entry.n))
        reply.end, reply.error = entry.end, entry.error
        if reply.cut is not None and reply.end == "cut" and not reply.pieces and not reply.marks:
            self.order.unreached.setdefault(reply.cut, []).extend([("begun", reply.n, 0), ("over", reply.n, 0)])
        if isinstance(entry, FinishedEntry):
            reply.result, reply.injected = entry.result, entry.injected
        self._entries_seen += 1
        self._running[entry.call].pop(entry.n, None)

    def _add_cancellation(self, entry: InterruptEntry) -> None:
        """Add a cancellation to the order, unless hooks or an enclosing call repeat it."""
        if entry.by_caller and not self._running[entry.call]:
            self._ending[entry.call] = entry
        elif entry.by_caller:
            self.order.add(("cut", entry.call, 2), entry.time)
        key: Key = ("cut", entry.call, 0)
        if entry.by_caller or entry.call in self.cuts:
            return
        if entry.by_itself and entry.work is None:
            self._request(key, entry)
            return
        self.order.add(key, entry.time)
        self._ahead.update(dict.fromkeys(entry.given, key))
        if entry.work is None:
            self.cuts[entry.call] = entry
        elif entry.work in self._by_number:
            self._by_number[entry.work].interrupts = entry.reason

    def _request(self, key: Key, entry: InterruptEntry | MarkEntry) -> None:
        """Add a cancellation that the run's own code requests."""
        if entry.at and key not in self.requests:
            self.order.add(key, entry.time)
            self._ahead.update(dict.fromkeys(entry.given, key))
            self.requests[key] = entry

    # ---- playing

    def replies_left(self, call: str, iteration: int) -> Sequence[RecordedWork]:
        """Return the replies in a round of a call that are not replayed yet."""
        return self._replies.get((call, iteration, ""), ())

    def reply(self, call: str, iteration: int, side: str) -> RecordedWork | None:
        """Return the next reply in a round of a call; None if there is none."""
        waiting = self._replies.get((call, iteration, side))
        return waiting.popleft() if waiting else None

    def work(self, call: str, number: str) -> RecordedWork | None:
        """Return the next execution of a tool call, given by its number in the call; None if there is none."""
        waiting = self._works.get((call, number))
        return waiting.popleft() if waiting else None

    def steps_of(self, work: RecordedWork) -> list[tuple[Key, DueStep]]:
        """List the chunks, injections and side calls of a tool's work, in order."""
        steps: list[tuple[Key, DueStep]] = [(("chunk", work.n, n), due) for n, due in enumerate(work.pieces)]
        steps += [(("mark", work.n, n), due) for n, (mark, due) in enumerate(work.marks) if mark.what == "injected"]
        for reply in work.asked:
            steps.append((("begun", reply.n, 0), DueStep(reply.time, 0, False)))
            steps += [(("chunk", reply.n, n), due) for n, due in enumerate(reply.pieces)]
            steps += [] if reply.end_due is None else [(("over", reply.n, 0), replace(reply.end_due, piece=reply))]
        return sorted(steps, key=lambda step: self.order.places[step[0]])

    def all_of(self, calls: Iterable[str]) -> list[Key]:
        """Return the steps of some calls, and of the calls inside them."""
        wanted = set(calls)
        for call, entry in self.log.calls.items():  # a caller's entry precedes its sub-agent's
            if entry.parent is not None and entry.parent.call in wanted:
                wanted.add(call)
        return [
            key
            for key in self.order
            if (self._owners[key[1]] if key[0] in ("begun", "chunk", "over", "mark", "failed") else key[1]) in wanted
        ]

    def child(self, call: str, number: str) -> str | None:
        """Return the next sub-agent's call of a tool call, given by its number; None if there is none."""
        waiting = self._children.get((call, number))
        return waiting.popleft() if waiting else None


def _next_event(entry: ReplyEntry) -> int:
    """Return the number of the first event of the call after some chunks; 0 if it is unknown."""
    return 0 if entry.after is None else entry.after + 1


def _check_complete(log: RunLog) -> None:
    """Refuse a log with an end but no start, because its oldest entries were discarded from memory. The reader refuses a
    log with other missing lines.

    Raises:
        StoreError: The log is incomplete.
    """
    work: dict[int, str] = {}
    ended: set[str] = set()
    for entry in log.entries:
        match entry:
            case RequestEntry() | StartedEntry():
                work[entry.n] = entry.call
            case ReplyEntry() | AnsweredEntry() | FinishedEntry() if entry.n not in work:
                raise _incomplete(
                    log, f"the start of the work that its entry {entry.kind!r} with n={entry.n} continues"
                )
            case EventEntry(type="CallEnded"):
                ended.add(entry.call)
            case _:
                pass
    for call in log.calls:
        if call not in ended and log.root_of(call).call in ended:
            raise _incomplete(log, f"the CallEnded event of call {call!r}")


def _incomplete(log: RunLog, what: str) -> StoreError:
    return StoreError(
        f"{log.name} cannot be replayed: a line is missing: {what}. The log was edited or damaged, "
        "or a Recorder in memory has discarded its oldest entries. Record the run again."
    )
