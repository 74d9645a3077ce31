"""Repeat a recorded cancellation, in order and at the point at which the run was suspended.

Rules:

1. A cancellation follows all earlier entries of the recording, and happens when all tasks of the run are suspended at the
   recorded positions. This is checked after each step of a task, because the next step may resume one of them.
2. If they never reach these positions (because the agent was changed, or the log is older), the run is cancelled as soon as
   it makes no progress and the recorded time has passed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final, cast

from agentflow.hooks.recorded_calls import in_awaited_hook
from agentflow.loop.run import RunBase
from agentflow.loop.scope import RunScope
from agentflow.loop.scope_parts import CauseKind, Requester
from agentflow.loop.session import FullSession
from agentflow.recording.entries import InterruptEntry
from agentflow.recording.replay.clock import PATIENCE, ReplayClock
from agentflow.recording.replay.order import Key, Progress, cancel_again
from agentflow.recording.replay.script import Script

__all__ = ["Cancellations", "RecordedCancellation", "kind_of"]

_TURNS: Final = 30
"""The number of event loop iterations without progress after which the run can only be waiting for a timer."""
_LOOKS: Final = 40
"""The number of checks while the recorded time passes."""
_PLACES: Final[dict[Requester, int]] = {"interrupt": 0, "failure": 1, "caller": 2}
"""The last part of a cancellation's key in the recorded order."""


def kind_of(entry: InterruptEntry) -> CauseKind:
    """Return the kind of a recorded cancellation."""
    if entry.how == "left":
        return "closed" if entry.reason else "cancelled"
    return "interrupted" if entry.how == "interrupt" else entry.how


def cancel_from_outside(entry: InterruptEntry, scope: RunScope) -> None:
    """Cancel a run as it was cancelled in the recording."""
    kind = kind_of(entry)
    if kind == "timeout" and scope.tasks.timeout is None:  # the replayed run has no time limit that could have passed
        kind = "interrupted"
    scope.cancel(kind, entry.reason or "its caller was cancelled")


class CancellationRequest:
    """A request by a run's own code to cancel the run, or the tool calls parallel to one that failed. It waits for its turn.

    Args:
        cancel: Cancels the run.

    Attributes:
        task: The task in which the hook runs; None for a failure, after which its task has ended.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self.task = asyncio.current_task()
        self._cancel = cancel
        self._performed = asyncio.get_running_loop().create_future()

    def perform(self) -> None:
        """Perform the cancellation, and let the hook's task continue."""
        if not self._performed.done():
            self._performed.set_result(None)
        self._cancel()

    def performed(self) -> Awaitable[None] | None:
        """Return a future for the hook's task to await; None if the request was performed already, or if another task
        calls this."""
        if self._performed.done() or self.task is not asyncio.current_task():
            return None
        return self._performed


class RecordedCancellation:
    """One recorded cancellation.

    Args:
        at: The positions at which the run was suspended.
        wait: Seconds between the previous recorded step and the cancellation.
        scope: Returns the scope of the run, once it exists.
        perform: Cancels the run.
        on_finished: Called when the cancellation is done or not needed.
        requester: The task of the hook that requests it.
    """

    def __init__(
        self,
        at: tuple[str, ...],
        wait: float,
        scope: Callable[[], RunScope | None],
        perform: Callable[[RunScope], None],
        on_finished: Callable[[], None],
        requester: asyncio.Task[Any] | None = None,
    ) -> None:
        self._at = at
        self._wait = wait
        self._scope = scope
        self._perform = perform
        self._on_finished = on_finished
        self._requester = requester
        self._seen: tuple[str, ...] | None = None
        self._unchanged = 0
        self._waited = 0.0
        self._turn = 0
        self._done = False

    def start(self) -> None:
        """Check the positions after each step of a task, until the cancellation is done."""
        loop = asyncio.get_running_loop()
        loop.call_soon(self._check)
        self._check_between(loop, 0, self._turn)

    def _check_between(self, loop: asyncio.AbstractEventLoop, position: int, turn: int) -> None:
        """Insert a check before a callback that is already scheduled."""
        # There is no public API for this, and only asyncio's own loops have `_ready`. With others, `_check` alone decides.
        ready = getattr(loop, "_ready", None)
        if isinstance(ready, deque):
            cast("deque[asyncio.Handle]", ready).insert(
                position, asyncio.Handle(self._check_at_step, (loop, turn), loop)
            )

    def _check_at_step(self, loop: asyncio.AbstractEventLoop, turn: int) -> None:
        """Cancel the run if it is at the recorded position; otherwise check after the next step in this turn of the loop."""
        if self._done or turn != self._turn:
            return
        scope = self._scope()
        if scope is None or scope.cause is not None or scope.state in ("ending", "done"):
            return
        # Now, since the next step may resume one of the suspended tasks.
        if scope.positions(self._requester) == self._at:
            self._cancel(scope)
        else:
            self._check_between(loop, 1, turn)

    def _check(self) -> None:
        """Cancel the run if it is at the recorded position; otherwise check again soon."""
        if self._done:
            return
        self._turn += 1
        scope = self._scope()
        if scope is None:
            if self._check_later(()):
                self._finish()
            return
        if scope.cause is not None or scope.state in ("ending", "done"):
            self._finish()
            return
        positions = scope.positions(self._requester)
        if positions == self._at or self._check_later(positions):
            self._cancel(scope)

    def _check_later(self, positions: tuple[str, ...]) -> bool:
        """Schedule another check, or return True if the run makes no progress and the recorded time has passed (rule 2)."""
        loop = asyncio.get_running_loop()
        if positions != self._seen:
            self._seen, self._unchanged = positions, 0
        self._unchanged += 1
        if self._unchanged < _TURNS:
            loop.call_soon(self._check)
            self._check_between(loop, 1, self._turn)
            return False
        # If the driver is at its recorded position, the other tasks will not reach theirs either.
        if self._waited >= self._wait + (0 if positions else PATIENCE) or positions[:1] == self._at[:1] != ():
            return True
        step = max(self._wait / _LOOKS, 1e-3)
        self._waited += step
        # Starts above 0, since nothing has moved for a while: fewer iterations are enough after each timer.
        self._unchanged = _TURNS // 2
        loop.call_later(step, self._check)
        return False

    def _cancel(self, scope: RunScope) -> None:
        self._perform(scope)
        self._finish()

    def _finish(self) -> None:
        self._done = True
        self._on_finished()


class Cancellations:
    """The cancellations of a replayed run: those from outside, and those that its own code requests.

    Args:
        script: The recorded run.
        progress: The progress of the replay.
        clock: The replay's clock.
        paced: Whether the replay waits for recorded times.
        runs: The runs of the replay, by call.
        new: The replay's calls, by recorded call.

    Attributes:
        calling: The recorded call that is being repeated, and its session.
        closed: The recorded calls with streams that were closed.
    """

    def __init__(
        self,
        script: Script,
        progress: Progress,
        clock: ReplayClock,
        paced: bool,
        runs: Mapping[str, RunBase],
        new: Mapping[str, str],
    ) -> None:
        self._script = script
        self._progress = progress
        self._clock = clock
        self._paced = paced
        self._runs = runs
        self._new = new
        self._requests: dict[Key, CancellationRequest] = {}
        self.calling: tuple[str, FullSession] | None = None
        self.closed: set[str] = set()
        progress.on_cancellation = self._schedule
        progress.on_early_cancellation = self._cancel_again

    def delay(self, call: str, cancel: Callable[[], None], requester: Requester) -> None:
        """Perform a requested cancellation in its recorded turn: of a call, by an awaited hook or by the caller's run, or
        of tool calls after a failure."""
        key: Key = ("cut", call, _PLACES[requester])
        known = self._progress.is_ahead(key) and not self._progress.free()
        if known and requester == "caller" and key in self._requests:
            return  # the earlier request will cancel the run
        known = known and key not in self._requests
        if known and requester == "interrupt":
            known = key in self._script.requests and in_awaited_hook()
        elif not known and requester == "failure":  # in the recording, the run was cancelled before this failure
            known = not self._progress.free() and self._progress.is_ahead(("cut", call, 0))
        if not known:
            cancel()
            return
        self._requests[key] = CancellationRequest(cancel)
        if self._progress.next_key == key:
            self._progress.report_cancellation()

    def requested(self, call: str) -> Awaitable[None] | None:
        """Return the future that a hook awaits if it has requested an interrupt; None if it has not."""
        request = self._requests.get(("cut", call, 0))
        return None if request is None else request.performed()

    def perform(self) -> None:
        """Perform all requests, because the replay has diverged."""
        for request in self._requests.values():
            request.perform()

    def _schedule(self, key: Key) -> None:
        """Schedule the cancellation that is next."""
        call = str(key[1])
        request, recorded = self._requests.get(key), self._script.cuts.get(call)
        if self._progress.free():
            return
        if key[2] == _PLACES["caller"]:
            asyncio.get_running_loop().call_soon(self._cancel_by_caller, key)
            return
        wait, scope = self._script.order.wait_before(key), partial(self._scope_of, call)
        if request is not None:
            known = self._script.requests[key]
            finish = partial(self._finish, key, known.time)
            cancellation = RecordedCancellation(
                known.at, wait, scope, lambda _: request.perform(), finish, request.task
            )
            cancellation.start()
        elif recorded is not None and not key[2]:  # otherwise a tool or a hook causes the cancellation
            if kind_of(recorded) == "closed":
                self.closed.add(call)
            finish = partial(self._finish, key, recorded.time)
            RecordedCancellation(recorded.at, wait, scope, partial(cancel_from_outside, recorded), finish).start()

    def _cancel_by_caller(self, key: Key) -> None:
        """Cancel a call if its caller has already requested this; otherwise the caller will cancel it."""
        if (request := self._requests.get(key)) is not None:
            request.perform()
        self._progress.mark_done(key)

    def _finish(self, key: Key, time: float) -> None:
        if not self._paced:
            # Otherwise cleanup would first wait until the clock reaches this time, and exceed its limit.
            self._clock.jump(time)
        self._progress.mark_done(key)

    def _cancel_again(self, task: asyncio.Task[Any], times: int) -> None:
        scope = next((run.scope for run in self._runs.values() if run.scope.tasks.includes(task)), None)
        if scope is not None and scope.stopped:  # its next checkpoint raises, and its cleanup is not cancelled
            asyncio.get_running_loop().call_soon(_cancel_unless_cleaning, scope, task, times)
        else:
            cancel_again(task, times)

    def _scope_of(self, call: str) -> RunScope | None:
        """Return the scope of a recorded call, even before its first event."""
        found = self._runs.get(self._new.get(call, ""))
        if found is not None:
            return found.scope
        if self.calling is not None and call == self.calling[0]:
            own_run = cast("RunBase | None", self.calling[1].run)
            return None if own_run is None else own_run.scope
        parent = self._script.log.calls[call].parent
        above = None if parent is None else self._scope_of(parent.call)
        known = [run.scope for run in self._runs.values()]
        return None if above is None else next((inner for inner in above.inner if inner not in known), None)


def _cancel_unless_cleaning(scope: RunScope, task: asyncio.Task[Any], times: int) -> None:
    if not scope.tasks.is_stopping(task):
        cancel_again(task, times)
