"""The queue between a run and its log: what was seen goes in, and entries come out, in order.

Rules:

1. The run only puts something in: it waits for no lock, makes no entry and writes no file.
2. Where the log is kept, a thread makes the entries and writes them, every `interval` seconds while something comes; `flush`
   does it at once. So a process that is killed loses what it saw since the last interval, and nothing else.
3. Without such a place, entries are made when somebody reads them.
4. The queue is bounded, and a full one never makes the run wait. With a thread, which is woken long before, what comes then
   is dropped, and the log says how much (`LogEntry.lost`); without one, the oldest goes, as memory forgets the oldest too.
5. A log that cannot be written is reported once, by a warning and in the library's log, and left alone from then on; memory
   goes on. (A store that may come back is another matter, see `files`.)
"""

from __future__ import annotations

import contextlib
import json
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence

from agentflow.errors import AgentFlowError
from agentflow.ground.logs import logger
from agentflow.plugins.recorder.entry_builder import FindsOfRun, Making
from agentflow.plugins.recorder.files import Sink
from agentflow.plugins.recorder.observations import Happened, Seen
from agentflow.runlog.encoding import Clean, Line, header_line
from agentflow.runlog.log import RunLog
from agentflow.runlog.reading import read_lines

__all__ = ["Target", "Writer", "as_text", "log_of"]

_LEAST_ROOM = 1_000
_ROOM_BESIDE_A_THREAD = 100_000
"""Things that wait to be written: some 20 MB, and several seconds of the fastest run."""
Target = Callable[[str], Sink]
"""Gives the place of a run's log, by the run at the top."""


class _Open:
    """A log that is being written."""

    def __init__(self, sink: Sink, mark: str, making: Making) -> None:
        self.sink = sink
        self.mark = mark
        self.making = making
        self.lines: list[Line] = []
        self.waiting: list[Seen] = []


class Writer:
    """Keeps what was seen, and makes and writes its entries.

    Args:
        target: Where logs are written; None: memory only.
        apart: Whether each run has a log of its own.
        most: How many things memory holds.
        interval: Seconds between two writes.
        content: Keep texts.
        clean: Takes secrets out of values.
        closed: Called when a log was closed.
        finds: Says where secrets are in a text that is not whole yet, if `clean` can tell.
    """

    def __init__(
        self,
        target: Target | None,
        apart: bool,
        most: int,
        interval: float,
        content: bool,
        clean: Clean | None,
        closed: Callable[[], None] | None = None,
        finds: FindsOfRun | None = None,
    ) -> None:
        self._target = target
        self._apart = apart
        self._interval = interval
        self._content = content
        self._clean = clean
        self._closed = closed
        self._finds = finds
        self._room = max(2 * most, _LEAST_ROOM if target is None else _ROOM_BESIDE_A_THREAD)
        self._lost: Counter[str] = Counter()  # by the run at the top: what found no room
        self.seen: deque[Seen] = deque()
        self.kept: deque[Seen] = deque(maxlen=most)
        self._logs: dict[str, _Open] = {}
        self._lock = threading.RLock()
        self.failure: Exception | None = None
        self._thread: threading.Thread | None = None
        self._threads = threading.Lock()  # held for the start of a thread, never while entries are made
        self._woken = threading.Event()

    def put(self, one: Seen) -> None:
        """Keep what was seen."""
        seen = self.seen
        waiting = len(seen)
        if self._target is None:
            seen.append(one)
            if waiting >= self._room:
                seen.popleft()
            return
        if waiting >= self._room and not _ends(one):
            self._drop(one)
            return
        seen.append(one)
        if self._thread is None:
            self._begin()
        elif waiting == self._room // 2:
            self._woken.set()

    def _drop(self, one: Seen) -> None:
        if not self._lost:
            _warn(
                f"the recorder cannot keep up: {self._room} entries wait to be written, and what a run does meanwhile is "
                "missing in its log, which cannot be replayed. Record fewer runs at once, or write to a faster disk or store."
            )
        self._lost[one.place.root if self._apart else ""] += 1

    def in_memory(self) -> list[Seen]:
        """What memory holds, oldest first."""
        with self._lock:
            self._work_off()
            return list(self.kept)

    def flush(self) -> None:
        """Write what was seen so far, and let the thread go if nothing else has come."""
        self._work_off()
        thread = self._thread
        self._woken.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=1.0)

    def close(self) -> None:
        """Write what was seen so far, and close what is open; the next thing that is seen opens it again."""
        self.flush()
        with self._lock:
            for root in list(self._logs):
                self._shut(root)

    # ---- the thread

    def _begin(self) -> None:
        with self._threads:
            if self._thread is None:
                self._woken.clear()
                self._thread = threading.Thread(target=self._keep_writing, name="agentflow-recorder", daemon=True)
                self._thread.start()

    def _keep_writing(self) -> None:
        """Write now and then, as long as something comes."""
        while True:
            self._woken.wait(self._interval)
            idle = not self.seen
            self._work_off()
            if idle or self._woken.is_set():
                self._thread = None
                # Whoever has put something in before that line may have taken this thread for one that goes on.
                if not self.seen or not self._goes_on():
                    return

    def _goes_on(self) -> bool:
        with self._threads:
            if self._thread is not None:
                return False
            self._woken.clear()
            self._thread = threading.current_thread()
            return True

    # ---- entries

    def _work_off(self) -> None:
        with self._lock:
            seen = self.seen
            ended: dict[str, None] = {}
            touched: dict[str, None] = {}
            while seen:
                one = seen.popleft()
                self.kept.append(one)
                if self._target is None or self.failure is not None:
                    continue
                root = one.place.root if self._apart else ""
                log = self._logs.get(root)
                if log is None and (log := self._open(root)) is None:
                    continue
                touched[root] = None
                log.waiting.append(one)
                if self._apart and _ends(one):
                    ended[root] = None
            for root in touched:
                self._write(root)
            for root in ended:
                self._shut(root)

    def _open(self, root: str) -> _Open | None:
        assert self._target is not None
        try:
            sink = self._target(root)
            mark = sink.open()
        except Exception as error:
            self._give_up(error)
            return None
        log = self._logs[root] = _Open(sink, mark, Making(self._content, self._clean, mark, self._finds))
        log.lines.append(header_line(mark, self._content))
        return log

    def _write(self, root: str, last: bool = False) -> None:
        log = self._logs.get(root)
        if log is None:
            return
        waiting, log.waiting = log.waiting, []
        if lost := self._lost.pop(root, 0):
            log.lines.append({**header_line(log.mark, self._content), "lost": lost})
        try:
            lines = [*log.lines, *log.making.lines(waiting), *(log.making.finish() if last else ())]
            log.lines = []
            if lines:
                log.sink.write([as_text(line) for line in lines])
        except Exception as error:
            self._give_up(error)

    def _shut(self, root: str) -> None:
        self._write(root, last=True)
        log = self._logs.pop(root, None)
        if log is not None:
            try:
                log.sink.close()
            except OSError as error:
                self._give_up(error)
        if self._closed is not None:
            self._closed()

    def _give_up(self, error: Exception) -> None:
        """Say once that nothing is written any more."""
        if not isinstance(error, OSError | ValueError | AgentFlowError):
            logger.opt(exception=error).debug("the recorder failed")
        if self.failure is None:
            self.failure = error
            _warn(f"the recorder stops writing: {error}; runs go on, memory goes on recording")


def _warn(text: str) -> None:
    """Report what cannot be raised: the run knows nothing of it."""
    logger.error("{}", text)
    with contextlib.suppress(RuntimeWarning):  # a filter has made an error of it, and this may be a thread
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _ends(one: Seen) -> bool:
    """Whether a run at the top is over with it, or waits."""
    return isinstance(one, Happened) and one.kind.__name__ == "CallEnded" and one.place.run == one.place.root


def as_text(line: Line) -> str:
    """An entry as a line."""
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str)


def log_of(seen: Sequence[Seen], content: bool, clean: Clean | None) -> RunLog:
    """The log of what memory holds."""
    making = Making(content, clean)
    lines = [header_line(content=content), *making.lines(seen), *making.finish()]
    return read_lines([as_text(line) for line in lines], "memory")
