"""Read a run's log as a script."""

from __future__ import annotations

from collections import defaultdict
from itertools import takewhile

from agentflow.errors import StoreError
from agentflow.recording.entries import (
    AnsweredEntry,
    CallEntry,
    ChunksEntry,
    Entry,
    EventEntry,
    FinishedEntry,
    HookEntry,
    InterruptEntry,
    MarkEntry,
    PiecesEntry,
    ReplyEntry,
    RequestEntry,
    StartedEntry,
)
from agentflow.recording.log import RunLog
from agentflow.recording.replay.comparing import LogNormalizer
from agentflow.recording.replay.order import Key
from agentflow.recording.replay.script import DueStep, ReaderPause, RecordedWork, Script

__all__ = ["read_script"]


def read_script(log: RunLog) -> Script:
    """Return the script of one run.

    Raises:
        StoreError: The log has no call, or has lost a line.
    """
    _check_complete(log)
    roots = [call for call in log.calls.values() if call.parent is None or call.parent.call not in log.calls]
    if not roots:
        raise StoreError(f"{log.name} contains no call.")
    script = Script(log, roots)
    reader = _EntryReader(script)
    for entry in log.entries:
        reader.read(entry)
    script.order.settle()
    script.broken_off = {call for call in log.calls if not any(step.type == "CallEnded" for step in script.steps[call])}
    return script


class _EntryReader:
    """Reads the entries of a log into a script, and tracks the running work.

    Args:
        script: The script, which is empty at first.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._log = script.log
        self._order = script.order
        self._steps = script.steps
        self._normalizer = LogNormalizer(script.log)
        self._by_number: dict[int, RecordedWork] = {}
        self._running: dict[str, dict[int, RecordedWork]] = defaultdict(dict)
        self._entries_seen = 0
        self._last: dict[int, int] = {}  # the entries seen at the last step of each work
        self._own_chunks: dict[int, int] = {}  # the chunks of each work since then
        self._ahead: dict[int, Key] = {}  # the cancellation logged before a chunk that precedes it
        self._ending: dict[str, InterruptEntry] = {}  # cancellations by an enclosing call while no work ran

    def read(self, entry: Entry) -> None:
        """Read the next entry of the log."""
        match entry:
            case CallEntry():
                if entry.parent is not None:
                    number = self._normalizer.number(entry.parent.call, entry.parent.tool_use)
                    self._script.children[entry.parent.call, number].append(entry.call)
                    for work in self._running.get(entry.parent.call, {}).values():
                        if work.use == entry.parent.tool_use:
                            work.children.append(entry.call)
            case HookEntry(via="on_event") if entry.error is not None and entry.error["type"] != "CancelledError":
                self._script.owners[f"{entry.call} {entry.seq} {entry.hook}"] = entry.call
                self._order.add_failure(entry)
            case EventEntry():
                position = len(self._steps[entry.call])
                self._add_events(entry)
                use = entry.fields.get("tool_use")
                self._order_event(entry.call, position, entry.type, use, entry.seq, entry.time)
            case MarkEntry(what="read" | "unread"):
                self._order_wait(entry.call, entry.seq, entry.time, entry.what == "unread")
            case MarkEntry(what="twice" | "pending" | "swallowed"):
                pass  # such a log is refused, unless inexact
            case MarkEntry(what="failed"):
                self._request(("cut", entry.call, 1), entry)
            case MarkEntry(n=None):
                self._script.owners[f"{entry.call} {entry.seq}"] = entry.call
                self._order.add_mark(entry)
            case InterruptEntry():
                self._add_cancellation(entry)
            case _:
                self._read_work(entry)

    def _read_work(self, entry: Entry) -> None:
        """Read an entry of a model's reply or a tool's work; ignore any other."""
        match entry:
            case ChunksEntry():
                reply = None if entry.reply is None else self._by_number.get(entry.reply)
                self._order_chunks(reply, entry)
                if reply is not None:
                    self._add_chunks(reply, entry, ahead=True)
                self._add_events(entry)
            case PiecesEntry():
                works = [work for work in self._running[entry.call].values() if self._is_chunk_of(work, entry)]
                self._order_chunks(works[0] if works else None, entry)
                for work in works[:1]:
                    self._add_chunks(work, entry, ahead=False)
                self._add_events(entry)
            case RequestEntry():
                reply = RecordedWork(entry.n, entry.time, self._normalizer.request(entry))
                tool_work = None if entry.work is None else self._by_number.get(entry.work)
                if tool_work is None:
                    self._script.replies[entry.call, entry.iteration, entry.side].append(reply)
                    self._script.attempts[entry.call, entry.iteration] += not entry.side
                else:
                    tool_work.side_replies.append(reply)
                self._begin(reply, entry.call)
            case ReplyEntry():
                if entry.n in self._by_number:
                    self._order_chunks(self._by_number[entry.n], entry)
                    self._add_chunks(self._by_number[entry.n], entry, ahead=False)
            case StartedEntry():
                use = str(self._log.use_data(entry.tool_use)["id"])
                work = RecordedWork(entry.n, entry.time, use=use)
                number = self._normalizer.number(entry.call, use)
                self._script.works[entry.call, number].append(work)
                self._begin(work, entry.call)
            case AnsweredEntry() | FinishedEntry():
                self._end(entry)
            case MarkEntry(n=int(n)) if n in self._by_number:
                work = self._by_number[n]
                self._order.add(("mark", n, len(work.marks)), entry.time)
                work.marks.append((entry, DueStep(entry.time, self._script.total, self._entry_between(n))))
            case _:
                pass

    def _order_chunks(self, work: RecordedWork | None, entry: ChunksEntry | PiecesEntry | ReplyEntry) -> None:
        """Add the chunks of an entry to the order, with their events and the waits for their reader."""
        chunks_before = 0 if work is None else len(work.pieces)
        for n, at in enumerate(entry.at):
            time = entry.time + at / 1000
            seq = _next_event(entry) if isinstance(entry, ReplyEntry) else entry.seq + n
            if work is not None and (cancellation := self._ahead.pop(work.n, None)) is not None:
                self._order.add_chunk_before(cancellation, work.n, chunks_before + n, entry.call, seq)
            elif work is not None:
                self._order.add_chunk(work.n, chunks_before + n, entry.call, seq, time)
            position = len(self._steps[entry.call]) + n
            if isinstance(entry, ChunksEntry):
                self._order_event(entry.call, position, "ReasoningChunk", None, seq, time)
            elif isinstance(entry, PiecesEntry):
                self._order_event(entry.call, position, "ActingChunk", entry.tool_use, seq, time)
            if not isinstance(entry, ReplyEntry) and n < len(entry.paused) and entry.paused[n]:
                self._order_wait(entry.call, seq, time + entry.paused[n] / 1000)

    def _order_wait(self, call: str, seq: int, time: float, cancelled: bool = False) -> None:
        key: Key = ("read", call, seq)
        self._order.add(key, time)
        self._script.waits[key] = ReaderPause(time, cancelled)

    def _order_event(self, call: str, position: int, kind: str, use: str | None, seq: int, time: float) -> None:
        ending = self._ending.pop(call, None)
        if ending is not None and position and kind in ("PostToolRound", "CallEnded"):
            self._script.last_events["event", call, position - 1] = ending
        number = "" if use is None else self._normalizer.number(call, str(self._log.use_data(use)["id"]))
        self._order.add_event(call, position, kind, number, seq, time)

    def _add_events(self, entry: EventEntry | ChunksEntry | PiecesEntry) -> None:
        steps = self._normalizer.steps(entry)
        self._steps[entry.call].extend(steps)
        self._script.total += len(steps)
        self._entries_seen += 1
        for n, work in self._running[entry.call].items():
            if self._is_chunk_of(work, entry):  # its own chunks do not count as other entries
                self._own_chunks[n] = self._own_chunks.get(n, 0) + 1

    def _is_chunk_of(self, work: RecordedWork, entry: EventEntry | ChunksEntry | PiecesEntry) -> bool:
        """Return whether an entry contains chunks of the work."""
        match entry:
            case ChunksEntry():
                return work.step is not None and entry.reply in (None, work.n)
            case PiecesEntry():
                its_use = work.use == self._log.use_data(entry.tool_use)["id"]
                return work.step is None and its_use and entry.n in (None, work.n)
            case EventEntry():
                return False

    def _begin(self, work: RecordedWork, call: str) -> None:
        self._entries_seen += 1
        self._order.add(("begun", work.n, 0), work.time)
        work.cut = self._order.cuts.get(call)
        self._by_number[work.n] = work
        self._script.owners[work.n] = call
        self._running[call][work.n] = work
        self._last[work.n] = self._entries_seen

    def _entry_between(self, n: int) -> bool:
        """Return whether another entry was recorded since the last step of the work."""
        between = self._entries_seen - self._last[n] - self._own_chunks.pop(n, 0) > 0
        self._last[n] = self._entries_seen
        return between

    def _add_chunks(self, work: RecordedWork, entry: ChunksEntry | ReplyEntry | PiecesEntry, ahead: bool) -> None:
        """Add the chunks of an entry to their work. `ahead`: each chunk came before its event."""
        between, before = self._entry_between(work.n), self._script.total
        if not isinstance(entry, ReplyEntry):  # an `Error` event of a failed hook is logged before the hook's event
            before -= sum(1 for _ in takewhile(lambda step: step.seq > entry.seq, reversed(self._steps[entry.call])))
        for n, (piece, at) in enumerate(zip(entry.pieces, entry.at, strict=True)):
            work.pieces.append(DueStep(entry.time + at / 1000, before + (n if ahead else 0), between and not n, piece))

    def _end(self, entry: AnsweredEntry | FinishedEntry) -> None:
        work = self._by_number.get(entry.n)
        if work is None:
            return
        self._order.add(("over", entry.n, 0), entry.time)
        work.end_due = DueStep(entry.time, self._script.total, self._entry_between(entry.n))
        work.end, work.error = entry.end, entry.error
        if work.cut is not None and work.end == "cut" and not work.pieces and not work.marks:
            self._order.unreached.setdefault(work.cut, []).extend([("begun", work.n, 0), ("over", work.n, 0)])
        if isinstance(entry, FinishedEntry):
            work.result, work.injected = entry.result, entry.injected
        self._entries_seen += 1
        self._running[entry.call].pop(entry.n, None)

    def _add_cancellation(self, entry: InterruptEntry) -> None:
        """Add a cancellation to the script, according to its origin."""
        if entry.by_caller and not self._running[entry.call]:
            self._ending[entry.call] = entry
        elif entry.by_caller:
            self._order.add(("cut", entry.call, 2), entry.time)
        key: Key = ("cut", entry.call, 0)
        if entry.by_caller or entry.call in self._script.cuts:
            return
        if entry.by_itself and entry.work is None:
            self._request(key, entry)
            return
        self._order.add(key, entry.time)
        self._ahead.update(dict.fromkeys(entry.given, key))
        if entry.work is None:
            self._script.cuts[entry.call] = entry
        elif entry.work in self._by_number:
            self._by_number[entry.work].interrupts = entry.reason

    def _request(self, key: Key, entry: InterruptEntry | MarkEntry) -> None:
        """Add a cancellation that the run's own code requests; older logs have no positions for it."""
        if entry.at and key not in self._script.requests:
            self._order.add(key, entry.time)
            self._ahead.update(dict.fromkeys(entry.given, key))
            self._script.requests[key] = entry


def _next_event(entry: ReplyEntry) -> int:
    """Return the number of the call's first event after the chunks of an entry; 0 if it is unknown."""
    return 0 if entry.after is None else entry.after + 1


def _check_complete(log: RunLog) -> None:
    """Refuse a log that lacks the start of some work, or the end of a call inside a call that has ended, for example because
    a recorder has discarded its oldest entries from memory. `LogReader` refuses a log with other missing lines.

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
