"""`OnlineEvaluation`: evaluates a share of the calls in production, after they have ended and separately from the runs.

Rules:

1. A run neither waits for its evaluation nor pays for it: judges are separate calls, and the plugin counts their usage.
2. The tasks that evaluate belong to the block `async with online:`. Outside of it, calls are counted in `dropped`.
3. Everything is limited: the share of calls, the number of waiting and of concurrent trials, and the time of each
   trial. Calls beyond a limit are counted in `dropped`, never reported as passed.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Final, Self, cast

from agentflow._support.logs import log_failure, logger
from agentflow._support.shown import described
from agentflow._support.time_limit import strict
from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.plugins.evaluation.trial import Case, Check, Trial, graded
from agentflow.vocabulary.context import own
from agentflow.vocabulary.events import CallEnded, HookEvent, PostCall, PostReasoning, PreActing, PreCall
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.specs import Usage

_evaluating: Final[ContextVar[bool]] = ContextVar("agentflow_evaluating", default=False)
"""Set in the evaluating tasks: calls of judges are not evaluated."""


@dataclass(slots=True)
class _CallSeen:
    """The data of a chosen call that is still running.

    Attributes:
        began: The time of its first event.
        start: The index of its input in the history; None for a resumed call.
        input: Its input.
        answer: Its final message.
        events: Its events.
    """

    began: float | None = None
    start: int | None = None
    input: Sequence[Msg] = ()
    answer: Msg | None = None
    events: list[HookEvent] = field(default_factory=list[HookEvent])


class OnlineEvaluation(Hook):
    """Evaluates a share of the calls with the checks of datasets, separately from the runs, and reports each result.

    The tasks that evaluate run in `async with online:`. At its end the waiting trials are still evaluated, for at most `grace`
    seconds. A run is chosen by its id, so the choice is the same in every process. Suspended and interrupted calls are not
    evaluated; a call that failed is a failed trial.

    Priority 950 (output), an observer.

    Args:
        checks: The checks. The model of a `Judge` is not billed to the runs.
        share: The share of the calls to evaluate, from 0 to 1.
        on_result: Called with each `Trial`; it may be async. `trial.case.name` is the run's id. By default, a line is logged.
        concurrency: The number of trials that are evaluated at the same time.
        max_pending: The number of trials that can wait.
        timeout: The time limit of one evaluation, in seconds; after it, the trial has an error.
        grace: How long the end of the block waits for the evaluations, in seconds.

    Attributes:
        evaluated: The number of trials that were evaluated.
        dropped: The number of chosen calls that were not evaluated.
        usage: The usage of all judges; it is not part of the runs' usage.

    Raises:
        UsageError: There are no checks, or a number is out of range.

    Example:
        >>> def brief(trial):
        ...     return len(trial.text) < 80
        >>> online = OnlineEvaluation([brief], share=1, on_result=lambda trial: print(trial.passed))
        >>> agent = Agent("clerk", ScriptedModel(["Hello."]), hooks=[online])
        >>> async with online:
        ...     reply = await agent.call("Hi")
        True
    """

    priority = 950
    observer = True
    events = (PreCall, PreActing, PostReasoning, PostCall, CallEnded)

    def __init__(
        self,
        checks: Iterable[Check],
        *,
        share: float = 0.1,
        on_result: Callable[[Trial], Awaitable[object] | object] | None = None,
        concurrency: int = 2,
        max_pending: int = 100,
        timeout: float = 60.0,
        grace: float = 30.0,
    ) -> None:
        self.checks = tuple(checks)
        if not self.checks:
            raise UsageError("OnlineEvaluation has no checks. Pass a list of them.")
        if not 0 <= share <= 1:
            raise UsageError(f"OnlineEvaluation(share={share}) must be from 0 to 1.")
        if concurrency < 1 or max_pending < 1 or not timeout > 0 or not grace >= 0:
            raise UsageError(
                f"OnlineEvaluation: concurrency={concurrency} and max_pending={max_pending} must be at least 1, "
                f"timeout={timeout} above 0, grace={grace} at least 0."
            )
        self.share = share
        self.evaluated = self.dropped = 0
        self.usage = Usage()
        self._on_result = on_result
        self._concurrency, self._max_pending, self._timeout, self._grace = concurrency, max_pending, timeout, grace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._queue: asyncio.Queue[Trial] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    def on_event(self, event: HookEvent) -> HookEvent:
        """Collect the events of a chosen call, and evaluate it when it has ended."""
        if _evaluating.get() or not self._chooses(event.run_id):
            return event
        collected = own(event.context, self, _CallSeen)
        if collected.began is None:
            collected.began = event.time
        collected.events.append(event)
        if isinstance(event, PreCall):
            collected.start, collected.input = len(event.history), event.input_messages
        elif isinstance(event, PostCall):
            collected.answer = event.final_message
        elif isinstance(event, CallEnded):
            # The events refer to `collected` through their context, so keeping them would be a reference cycle.
            events, collected.events = tuple(collected.events), []
            if event.outcome not in ("suspended", "interrupted"):
                self._send(_trial_of(event, collected, events))
        return event

    def _chooses(self, run_id: str) -> bool:
        digest = hashlib.sha256(run_id.encode()).digest()  # `hash` differs between processes
        return int.from_bytes(digest[:8], "big") < self.share * 2**64

    def _send(self, trial: Trial) -> None:
        try:
            if self._loop is None:
                self._drop(trial, "the block `async with online:` is not open")
            else:
                self._loop.call_soon_threadsafe(self._put, trial)  # the call may have run in another thread
        except RuntimeError:  # the loop was closed before the block ended
            self._drop(trial, "the event loop of its block is closed")

    def _put(self, trial: Trial) -> None:
        if self._loop is None:
            self._drop(trial, "the block `async with online:` has ended")
        elif self._queue.qsize() >= self._max_pending:
            self._drop(trial, f"{self._max_pending} others wait")
        else:
            self._queue.put_nowait(trial)

    def _drop(self, trial: Trial, reason: str) -> None:
        self.dropped += 1
        logger.log("WARNING" if self.dropped == 1 else "DEBUG", "run {} is not evaluated: {}", trial.case.name, reason)

    async def __aenter__(self) -> Self:
        """Start evaluating.

        Raises:
            UsageError: The block is open already.
        """
        if self._loop is not None:
            raise UsageError("OnlineEvaluation: its block is open already. Open it once, such as when a server starts.")
        self._loop = asyncio.get_running_loop()
        self._queue = asyncio.Queue()
        self._tasks = [self._loop.create_task(self._work()) for _ in range(self._concurrency)]
        return self

    async def __aexit__(self, *error: object) -> None:
        """Evaluate the waiting trials within the grace period, and end the tasks."""
        try:
            await asyncio.sleep(0)  # run the callbacks that put the trials of other threads into the queue
            async with asyncio.timeout(self._grace):
                await self._queue.join()
        except TimeoutError:
            pass
        finally:
            self._loop = None
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            while not self._queue.empty():
                self._drop(self._queue.get_nowait(), "the grace period has ended")

    async def _work(self) -> None:
        _evaluating.set(True)
        while True:
            trial = await self._queue.get()
            try:
                await self._evaluate(trial)
            except asyncio.CancelledError:
                self._drop(trial, "the grace period has ended")
                raise
            finally:
                self._queue.task_done()

    async def _evaluate(self, trial: Trial) -> None:
        try:
            # `strict` raises TimeoutError even if a check swallows the cancellation.
            async with strict(asyncio.timeout(self._timeout)):
                trial = await graded(trial, self.checks)
        except TimeoutError:
            trial = replace(trial, errors=(f"the evaluation took longer than {self._timeout:g} s",))
        self.evaluated += 1
        self.usage += trial.judging
        await self._report(trial)

    async def _report(self, trial: Trial) -> None:
        run = trial.case.name
        if self._on_result is None:
            problems = "; ".join((*trial.failures, *trial.errors))
            logger.log("INFO" if trial.passed else "WARNING", "evaluation of run {}: {}", run, problems or "passed")
            return
        try:
            returned = self._on_result(trial)
            if inspect.isawaitable(returned):
                await cast("Awaitable[object]", returned)
        except Exception as error:  # the user's own code
            log_failure("WARNING", error, "on_result failed for the evaluation of run {}", run)


def _trial_of(event: CallEnded, collected: _CallSeen, events: tuple[HookEvent, ...]) -> Trial:
    history = event.context.history
    start = collected.start
    if start is None:  # a resumed call: its run began with the last message of the user
        start = max((n for n, msg in enumerate(history) if msg.role == "user"), default=0)
    messages = tuple(history[start:])
    user_input = collected.input or messages[:1]
    error = event.error
    # `Trial.error` must be an Exception, but this can be a KeyboardInterrupt, for example.
    if error is not None and not isinstance(error, Exception):
        error = RuntimeError(described(error))
    return Trial(
        Case("\n".join(msg.text for msg in user_input), name=event.run_id),
        None,
        error,
        messages,
        event.time - (collected.began or event.time),
        value=collected.answer,
        events=events,
    )
