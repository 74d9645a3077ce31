"""The queue between a run and its records: what was seen goes in, and records come out, in order.

Rules:

1. The run only puts something in: it waits for no lock, makes no record and writes no file.
2. With a file, a thread makes the records and writes them, every `interval` seconds while something comes; `flush` does it
   at once. So a process that is killed loses what it saw since the last interval, and nothing else.
3. Without a file, records are made when somebody reads them.
4. The queue is bounded. With a file, whoever finds it full makes room by writing; without one, the oldest goes, as memory
   forgets the oldest records too.
5. A file that cannot be written is reported once, and left alone from then on; memory goes on.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, TypeAlias

from agentflow.ground.logs import logger
from agentflow.plugins.recorder_records import Record, record_to_json

__all__ = ["Make", "Writer"]

Make: TypeAlias = Callable[[], Iterable[Record]]
"""Makes the records of one thing that was seen."""

_LEAST_ROOM = 1_000


class Writer:
    """Keeps what was seen, and makes and writes its records.

    Args:
        path: The file; None: memory only.
        most: How many records memory holds.
        interval: Seconds between two writes.
    """

    def __init__(self, path: Path | None, most: int, interval: float) -> None:
        self._path = path
        self._interval = interval
        self._room = max(2 * most, _LEAST_ROOM)
        self._seen: deque[Make] = deque()
        self._records: deque[Record] = deque(maxlen=most)
        self._lock = threading.RLock()
        self._file: IO[str] | None = None
        self._broken = False
        self._thread: threading.Thread | None = None
        self._threads = threading.Lock()  # held for the start of a thread, never while records are made
        self._woken = threading.Event()

    def put(self, make: Make) -> None:
        """Keep what was seen."""
        self._seen.append(make)
        if self._path is None:
            if len(self._seen) > self._room:
                self._seen.popleft()
            return
        if len(self._seen) > self._room:
            self._work_off()
        if self._thread is None:
            self._begin()

    @property
    def records(self) -> tuple[Record, ...]:
        """What memory holds, oldest first."""
        with self._lock:
            self._work_off()
            return tuple(self._records)

    def flush(self) -> None:
        """Write what was seen so far, and let the thread go if nothing else has come."""
        self._work_off()
        thread = self._thread
        self._woken.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=1.0)

    def close(self) -> None:
        """Write what was seen so far, and close the file; the next record opens it again."""
        self.flush()
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

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
            idle = not self._seen
            self._work_off()
            if idle or self._woken.is_set():
                self._thread = None
                # Whoever has put something in before that line may have taken this thread for one that goes on.
                if not self._seen or not self._goes_on():
                    return

    def _goes_on(self) -> bool:
        with self._threads:
            if self._thread is not None:
                return False
            self._woken.clear()
            self._thread = threading.current_thread()
            return True

    # ---- records

    def _work_off(self) -> None:
        with self._lock:
            lines: list[str] = []
            while self._seen:
                for record in self._seen.popleft()():
                    self._records.append(record)
                    if self._path is not None and not self._broken:
                        lines.append(record_to_json(record) + "\n")
            if lines:
                self._write("".join(lines))

    def _write(self, lines: str) -> None:
        assert self._path is not None
        try:
            if self._file is None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                torn = _is_torn(self._path)
                self._file = self._path.open("a", encoding="utf-8")
                lines = f"\n{lines}" if torn else lines
            self._file.write(lines)
            self._file.flush()
        except (OSError, ValueError) as error:
            self._broken = True
            logger.error(
                "the recorder stops writing to {}: {}; runs go on, memory goes on recording", self._path, error
            )


def _is_torn(path: Path) -> bool:
    """Whether a process was killed while it wrote the last line."""
    if not path.exists() or path.stat().st_size == 0:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
