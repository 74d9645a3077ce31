"""The queue between a run and its log: observations go in, and entries come out, in order.

Rules:

1. The run only appends observations: it waits for no lock, builds no entry and writes no file.
2. If there is a file or store, a thread builds and writes the entries, every `interval` seconds while there are observations;
   `flush` writes them at once. So a process that is killed loses only the observations since the last interval.
3. Otherwise entries are built when they are read.
4. The queue is bounded, and a full one never makes the run wait. If a thread writes the log, further observations
   are dropped, and the log contains their number (`LogEntry.lost`); otherwise the oldest are dropped.
5. If a log cannot be written, this is reported once, by a warning and in the library's log, and writing stops; memory
   continues. (For a store that is temporarily unreachable, see `files`.)
"""

from __future__ import annotations

import contextlib
import json
import threading
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence

from agentflow._support.logs import logger
from agentflow.errors import AgentFlowError
from agentflow.recording.encoding import Line
from agentflow.recording.log import RunLog
from agentflow.recording.reading import read_lines
from agentflow.recording.recorder.entry_builder import EntryBuilder, EventSeen, Observation
from agentflow.recording.recorder.files import Sink
from agentflow.vocabulary.events import CallEnded

__all__ = ["Target", "Writer", "as_text", "log_of"]

_MIN_CAPACITY = 1_000
_CAPACITY_WITH_THREAD = 100_000
"""The minimum capacity of the queue to the thread: some 20 MB, and several seconds of the fastest run."""
Target = Callable[[str], Sink]
"""Returns the sink of a log, by its name: the id of the outermost run, or empty if all runs share a log."""


class _Open:
    """A log that is being written."""

    def __init__(self, name: str, sink: Sink, builder: EntryBuilder) -> None:
        self.name = name
        self.sink = sink
        self.builder = builder
        self.lines = [builder.header()]
        self.waiting: list[Observation] = []
        self.ended = False


class _Logs:
    """Builds the entries of observations and writes them to their logs; see `Writer` for the arguments.

    Attributes:
        failure: The error that stopped writing.
        lost: The number of dropped observations, by log; the next line of the log contains it.
    """

    def __init__(
        self, builder: Callable[..., EntryBuilder], target: Target, apart: bool, closed: Callable[[], None] | None
    ) -> None:
        self._builder = builder
        self._target = target
        self._apart = apart
        self._closed = closed
        self._open: dict[str, _Open] = {}
        self.failure: Exception | None = None
        self.lost: Counter[str] = Counter()

    def name_of(self, observation: Observation) -> str:
        """Return the name of the log: the id of the outermost run if each has its own log, otherwise an empty string."""
        return observation.owner.root if self._apart else ""

    def add(self, observation: Observation) -> None:
        """Queue an observation for `write`, unless writing has stopped."""
        if self.failure is not None:
            return
        name = self.name_of(observation)
        log = self._open.get(name)
        if log is None:
            try:
                sink = self._target(name)
                log = self._open[name] = _Open(name, sink, self._builder(mark=sink.open()))
            except Exception as error:  # a store may be the user's code; a recorder breaks no run
                self._give_up(error)
                return
        log.waiting.append(observation)
        log.ended = log.ended or (self._apart and _ends(observation))

    def write(self) -> None:
        """Write the queued observations, and close the logs of runs that have ended."""
        for log in [log for log in self._open.values() if log.waiting]:
            self._write(log)
        for log in [log for log in self._open.values() if log.ended]:
            self._close(log)

    def close(self) -> None:
        """Close all logs; the next observation opens them again."""
        for log in list(self._open.values()):
            self._close(log)

    def _write(self, log: _Open, last: bool = False) -> None:
        # Removed first, so that a failure does not cause them to be written twice.
        waiting, log.waiting = log.waiting, []
        if lost := self.lost.pop(log.name, 0):
            log.lines.append(log.builder.header(lost))
        try:
            lines = [*log.lines, *log.builder.lines(waiting), *(log.builder.finish() if last else ())]
            log.lines = []
            if lines:
                log.sink.write([as_text(line) for line in lines])
        except Exception as error:  # as in `add`
            self._give_up(error)

    def _close(self, log: _Open) -> None:
        if self._open.get(log.name) is not log:
            return  # closed meanwhile by the recorder's finalizer
        self._write(log, last=True)
        self._open.pop(log.name, None)
        try:
            log.sink.close()
        except OSError as error:
            self._give_up(error)
        if self._closed is not None:
            self._closed()

    def _give_up(self, error: Exception) -> None:
        """Stop writing, and report it once."""
        if not isinstance(error, OSError | ValueError | AgentFlowError):
            logger.opt(exception=error).debug("the recorder failed")
        if self.failure is None:
            self.failure = error
            _warn(f"the recorder stops writing: {error}; runs continue, and so does recording in memory")


class Writer:
    """Keeps observations in memory, and writes their entries in a thread.

    Args:
        builder: Returns the builder of a log's entries, given the suffix of their refs.
        target: Returns the sinks of logs; None: memory only.
        apart: Whether each run has a separate log.
        most: The number of observations kept in memory.
        interval: Seconds between two writes.
        closed: Called after a log was closed.
    """

    def __init__(
        self,
        builder: Callable[..., EntryBuilder],
        target: Target | None,
        apart: bool,
        most: int,
        interval: float,
        closed: Callable[[], None] | None = None,
    ) -> None:
        self._logs = None if target is None else _Logs(builder, target, apart, closed)
        self._interval = interval
        self._room = max(2 * most, _MIN_CAPACITY if target is None else _CAPACITY_WITH_THREAD)
        self._latest: Observation | None = None
        self.seen: deque[Observation] = deque(maxlen=self._room if target is None else None)
        # `deque.append` is atomic, so threads that record at the same time need no lock.
        self.put: Callable[[Observation], None] = self.seen.append if target is None else self._put
        """Adds an observation."""
        self.kept: deque[Observation] = deque(maxlen=most)
        # Reentrant, since the garbage collector may call `close` in the thread that holds the lock.
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        # A lock of its own for starting the thread, so that a run never waits while entries are built.
        self._threads = threading.Lock()
        self._woken = threading.Event()

    def _put(self, observation: Observation) -> None:
        self._latest = observation
        queue = self.seen
        waiting = len(queue)
        # The end of a run is never dropped, since its log would stay open.
        if waiting >= self._room and not _ends(observation):
            self._drop(observation)
            return
        queue.append(observation)
        if self._thread is None:
            self._begin()
        elif waiting == self._room // 2:  # `==`, not `>=`: wake the thread only once
            self._woken.set()

    def _drop(self, observation: Observation) -> None:
        assert self._logs is not None
        if not self._logs.lost:
            _warn(
                f"the recorder cannot keep up: {self._room} entries wait to be written, and further ones are missing in the "
                "log, which cannot be replayed. Record fewer runs at once, or write to a faster disk or store."
            )
        self._logs.lost[self._logs.name_of(observation)] += 1

    @property
    def failure(self) -> Exception | None:
        """The error that stopped writing."""
        return None if self._logs is None else self._logs.failure

    def latest(self) -> Observation | None:
        """Return the latest observation."""
        if self._logs is not None:
            return self._latest
        return next((queue[-1] for queue in (self.seen, self.kept) if queue), None)

    def in_memory(self) -> list[Observation]:
        """Return the observations in memory, oldest first."""
        with self._lock:
            self._process()
            return list(self.kept)

    def flush(self) -> None:
        """Write the observations so far, and end the thread if there are no new ones."""
        self._process()
        thread = self._thread
        self._woken.set()
        if thread is not None and thread is not threading.current_thread():
            # Limited: everything is written already, and a thread that was woken ends soon.
            thread.join(timeout=1.0)

    def close(self) -> None:
        """Write the observations so far, and close open logs; the next observation opens them again."""
        self.flush()
        with self._lock:
            if self._logs is not None:
                self._logs.close()

    # ---- the thread

    def _begin(self) -> None:
        with self._threads:
            if self._thread is None:
                self._woken.clear()
                self._thread = threading.Thread(target=self._keep_writing, name="agentflow-recorder", daemon=True)
                self._thread.start()

    def _keep_writing(self) -> None:
        """Write at intervals as long as there are observations."""
        while True:
            self._woken.wait(self._interval)
            idle = not self.seen
            self._process()
            if idle or self._woken.is_set():
                self._thread = None
                # A caller that added an observation before `_thread` was cleared relies on this thread.
                if not self.seen or not self._continue():
                    return

    def _continue(self) -> bool:
        with self._threads:
            if self._thread is not None:
                return False
            self._woken.clear()
            self._thread = threading.current_thread()
            return True

    def _process(self) -> None:
        with self._lock:
            while self.seen:
                observation = self.seen.popleft()
                # Kept first, so that `in_memory` is complete even if writing fails.
                self.kept.append(observation)
                if self._logs is not None:
                    self._logs.add(observation)
            if self._logs is not None:
                self._logs.write()


def _warn(text: str) -> None:
    """Report an error that must not reach the run."""
    logger.error("{}", text)
    with contextlib.suppress(RuntimeWarning):  # a filter may turn it into an exception, possibly in a thread
        warnings.warn(text, RuntimeWarning, stacklevel=2)


def _ends(observation: Observation) -> bool:
    """Return whether the observation ends or suspends an outermost run."""
    return (
        isinstance(observation, EventSeen)
        and observation.kind is CallEnded
        and observation.owner.run == observation.owner.root
    )


def as_text(line: Line) -> str:
    """Return an entry as a line."""
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str)


def log_of(observations: Sequence[Observation], builder: EntryBuilder) -> RunLog:
    """Return the log of observations in memory."""
    lines = [builder.header(), *builder.lines(observations), *builder.finish()]
    return read_lines([as_text(line) for line in lines], "memory")
