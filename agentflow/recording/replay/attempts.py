"""Start the attempts at a reply in their recorded order, if wrappers make several at the same time.

Rules:

1. An attempt starts when the recorded start of the next reply is due.
2. If a race was won before an attempt started, the recording lacks that attempt. In the replay, the attempt waits in `start`
   until it is cancelled, and uses none of the recorded replies.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager

from agentflow.recording.replay.order import Progress
from agentflow.recording.replay.script import Script

__all__ = ["RecordedAttempts"]


class RecordedAttempts:
    """The attempts at replies that wait for their start or are running, by recorded call and round.

    Args:
        script: The recorded run.
        progress: The progress of the replay.
    """

    def __init__(self, script: Script, progress: Progress) -> None:
        self._script = script
        self._progress = progress
        self._waiting: Counter[tuple[str, int]] = Counter()
        self._running: Counter[tuple[str, int]] = Counter()

    @contextmanager
    def running(self, call: str, iteration: int) -> Generator[None]:
        """Count an attempt while it is running."""
        self._running[call, iteration] += 1
        try:
            yield
        finally:
            self._running[call, iteration] -= 1

    async def start(self, call: str, iteration: int) -> None:
        """Wait until an attempt should start, or until it is certain that the recording has no such attempt.

        Raises:
            CancelledError: The attempt is cancelled before its start, as in the recording.
        """
        remaining, round_ = self._script.remaining_replies(call, iteration), (call, iteration)
        task, early = asyncio.current_task(), 0

        def may_start() -> bool:
            if not remaining:
                # A running attempt may still win the race and cancel this one; otherwise the replay diverges.
                return not self._running[round_] or self._script.attempts[round_] == 1
            return self._progress.is_next(("begun", remaining[0].n, 0))

        self._waiting[round_] += 1
        try:
            while True:
                try:
                    await self._progress.wait_until(may_start)
                    break
                except asyncio.CancelledError:
                    # If the task has no cancellation request, other code raised this. With more attempts than replies, the
                    # recording lacks this attempt (rule 2).
                    if task is None or not task.cancelling() or self._waiting[round_] > len(remaining):
                        raise
                    early += 1  # the recorded attempt was cancelled after its start
                    task.uncancel()  # repeated after the start
        finally:
            self._waiting[round_] -= 1
        if early and task is not None:
            self._progress.on_early_cancellation(task, early)
