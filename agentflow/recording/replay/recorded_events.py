"""Find the recorded event, hook failures and reader wait for each event of the new run."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from agentflow.hooks.hook import Hook
from agentflow.hooks.recorded_calls import in_awaited_hook
from agentflow.hooks.recording import HookCall
from agentflow.recording.replay.clock import ReplayClock
from agentflow.recording.replay.comparison import RunComparison
from agentflow.recording.replay.order import Key, Progress
from agentflow.recording.replay.reader import RecordedWait
from agentflow.recording.replay.script import Script
from agentflow.vocabulary.events import Event

__all__ = ["RecordedEvents"]

_UNKNOWN: Final[Key] = ("", "", 0)


class RecordedEvents:
    """Finds the recorded event for each event of the new run, the failures of its hooks and the wait for its reader.

    Args:
        script: The recorded run.
        compared: The comparison of the new run with it.
        progress: The progress of the replay.
        clock: The replay's clock.
    """

    def __init__(self, script: Script, compared: RunComparison, progress: Progress, clock: ReplayClock) -> None:
        self._script = script
        self._compared = compared
        self._progress = progress
        self._clock = clock
        self._keys: dict[tuple[str, int], Key | None] = {}
        self._waits: dict[tuple[str, int], Key] = {}
        self._failing: dict[tuple[str, int, str], Key] = {}

    def key_of(self, event: Event) -> Key | None:
        """Return the next recorded event with the same class and tool call; None if none remains."""
        recorded = self._compared.pairs.get(event.call_id)
        if recorded is None:
            return None
        known = self._keys.get((event.call_id, event.seq), _UNKNOWN)
        if known is not _UNKNOWN:
            return known
        use = getattr(event, "tool_use", None)
        number = "" if use is None else self._compared.normalizer.number(event.call_id, use.id)
        key = self._keys[event.call_id, event.seq] = self._progress.next_of(recorded, type(event).__name__, number)
        return key

    def known_key_of(self, event: Event) -> Key | None:
        """Return the recorded event that `key_of` has found for an event; None if there is none yet."""
        return self._keys.get((event.call_id, event.seq))

    def take(self, event: Event) -> Key | None:
        """Return the recorded event for an event after its other hooks, and keep its recorded wait for `reader_wait`."""
        key = self.key_of(event)
        self._keys.pop((event.call_id, event.seq), None)
        if key is not None:
            read: Key = ("read", key[1], self._script.order.seq(key))
            if not self._script.broken_off and read in self._script.waits:
                self._waits[event.call_id, event.seq] = read
        return key

    def reader_wait(self, event: Event) -> Awaitable[None] | None:
        """Return an awaitable for the run after an event, if the recorded run waited for its reader after that event."""
        key = self._waits.pop((event.call_id, event.seq), None)
        return None if key is None else RecordedWait(key, self._script.waits[key], self._progress, self._clock)

    def add_failure(self, call: HookCall) -> None:
        """Keep the recorded failure of an awaited hook until the hook's end; mark that of any other hook as done."""
        event, name = call.event, call.hook.name
        key = self.key_of(event)
        failure = None if key is None else self._progress.next_failure(key, name)
        if failure is not None and in_awaited_hook():
            self._failing[event.call_id, event.seq, name] = failure
        elif failure is not None:
            self._progress.mark_done(failure)

    def take_failure(self, hook: Hook, event: Event) -> Key | None:
        """Return the recorded failure of a hook that has failed."""
        return self._failing.pop((event.call_id, event.seq, hook.name), None)
