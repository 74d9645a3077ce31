"""One tool call: vet it, run it, and close it on every path.

Rules:

1. Once its `PreActing` is emitted, a call has its `PostActing` on every path.
2. A failing tool produces an error result on which the model can act; it never ends the loop.
3. A `CancelledError` counts as a cancellation of the run only if the run was cancelled. Otherwise it is a failing tool.
4. The time limit and the duration of a tool count only its own work: not the wait for the reader, nor hooks that handle
   its chunks. The duration also excludes the `PreActing` chain (a person may decide there) and the wait for its lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, ClassVar, assert_never

from agentflow._support.time_limit import TimeLimit
from agentflow.errors import (
    HookContractError,
    ShutdownError,
    ToolArgumentError,
    ToolContractError,
    ToolError,
    ToolNotFoundError,
    TurnTimeoutError,
    Veto,
)
from agentflow.hooks.wrapping import Transform, Work
from agentflow.loop.escalation import Halted, ToolSuspended, attach
from agentflow.loop.journal import written
from agentflow.loop.run import current_turn
from agentflow.loop.stage import Stage, tool_source, wrap
from agentflow.loop.tool_call.attempts import held_locks, run_with_retries
from agentflow.loop.tool_call.chunks import ToolChunks
from agentflow.loop.tool_call.limit import LimitPassed, drive
from agentflow.loop.tool_call.vetting import Vetted
from agentflow.reactive import EMPTY
from agentflow.tools.results import failure_text, render
from agentflow.tools.tool import FullTool
from agentflow.tools.tool_context import ToolContext, ToolEmitter
from agentflow.tools.unexpected import warn_unexpected
from agentflow.vocabulary.events import ErrorPhase, Event, PostActing, PreActing
from agentflow.vocabulary.facts import ToolFinished, ToolStarted
from agentflow.vocabulary.messages import Pending, ToolResultBlock, ToolState, ToolUseBlock, tool_result
from agentflow.vocabulary.specs import ToolType
from agentflow.vocabulary.verdicts import Answer, Approve, Deny, Suspend

__all__ = ["Acting"]

UNKNOWN_OUTCOME = (
    "Outcome unknown: the process ended while this tool was running. Check whether it took effect before you repeat it."
)

HALTED = "Suspended: the process is ending; a later one will continue this."


class StandIn:
    """Work that a hook runs instead of a tool, with the interface of a tool.

    Args:
        name: The tool's name.
        work: The work.
    """

    __slots__ = ("_work", "name")

    timeout: ClassVar[float | None] = None
    wants_context: ClassVar[bool] = True
    streaming: ClassVar[bool] = False

    def __init__(self, name: str, work: Work) -> None:
        self.name = name
        self._work = work

    async def start(self, _use: ToolUseBlock, context: ToolContext | None) -> object:
        """Run the work."""
        assert context is not None
        return await self._work(context)


class Acting(Vetted):
    """The execution of one tool call."""

    __slots__ = ()

    attempt: int
    broken: Exception | None

    by_tool: ClassVar[bool] = True
    """Whether the tool determines the time limit of one attempt."""

    async def run_to_end(self, waits: Callable[[ToolType], bool] | None = None) -> bool:
        """Vet, run and close the call.

        Args:
            waits: Returns whether the call must be deferred if hooks have changed it to a tool of this type.

        Returns:
            True if it has finished; False if it was deferred: call this again in its turn.
        """
        try:
            if not self.vetted:
                await self.vet()
                if waits is not None and self.use is not self.original and self.verdict is None and waits(self.type):
                    return False
            if self.run.scope.stopped:
                self.run.scope.check()
            self.began = self.run.monotonic()
            if self.verdict is not None or (self.recovers and not self._repeatable()):
                self.result = self._decided()
            else:
                hooks = self.run.hooks if self.scope is None else self.scope
                try:
                    if hooks.wraps and hooks.arounds(PreActing):
                        self.result = await self._through_arounds()
                    else:
                        self.result = await self.work(None)
                except GeneratorExit:
                    raise
                except BaseException as error:
                    self.result = await self._came_to(error)
                    if self.result is None:
                        raise
            if self.broken is not None:
                self._break()
        except GeneratorExit:
            raise
        except BaseException as error:
            with self.run.scope.cleanup():
                try:
                    await self.abort(error)
                except Exception as problem:
                    attach(error, problem)
            raise
        await self.close()
        return True

    def _decided(self) -> ToolResultBlock:
        """Return the result for a verdict, or for a tool that was interrupted by a crash."""
        verdict = self.verdict
        match verdict:
            case None:
                return self._outcome_unknown()
            case Deny(reason=reason):
                return self._result(f"Denied: {reason}", "denied")
            case Answer(value=value):
                return self._block(value)
            case Suspend():
                return self._result("Suspended: waits for a decision.", "suspended")
            case _:
                assert_never(verdict)

    def _repeatable(self) -> bool:
        tool = self.tool
        return tool is None or tool.idempotent or isinstance(self.approval, Approve)

    def _outcome_unknown(self) -> ToolResultBlock:
        """Tell the model, or ask a person, after the process ended while the tool was running."""
        if self.run.config.on_unknown_outcome == "tell":
            return self._result(UNKNOWN_OUTCOME, "error")
        request = {"outcome": "unknown", "tool": self.use.name, "input": dict(self.use.input), "attempt": self.attempt}
        self.pending = (Pending(self.original.id, "approval", request, self.use, "on_unknown_outcome"),)
        return self._result("Suspended: its outcome is unknown, and a person is asked.", "suspended")

    def _result(self, text: Any, state: ToolState = "success") -> ToolResultBlock:
        return tool_result(self.original.id, self.use.name, text, state)

    def _block(self, value: object) -> ToolResultBlock:
        if isinstance(value, ToolResultBlock):
            return tool_result(self.original.id, value.name or self.use.name, value.content, value.state)
        return self._result(render(value))

    async def _came_to(self, error: BaseException) -> ToolResultBlock | None:
        """Return the result for an exception, or None if it ends the call."""
        run = self.run
        if isinstance(error, asyncio.CancelledError):
            if run.scope.is_cancelled():
                return None
            failure = ToolError(f"Tool {self.use.name!r} raised CancelledError, but the run was not cancelled.")
            failure.__cause__ = error
            return await self._failed(failure)
        if isinstance(error, Halted):  # a sub-agent stopped at a safe point
            if not run.can_halt:
                return await self._failed(ShutdownError(run.config.view.name, run.session.id, stopped=True))
            self.shelved = self.halted = True
            return self._result(HALTED, "suspended")
        if isinstance(error, Veto):
            self.verdict = Deny(error.reason)
            return self._result(f"Denied: {error.reason}", "denied")
        if isinstance(error, ToolSuspended):
            self.pending = error.pending_of(self.use)
            return self._result("Suspended: waits for a decision.", "suspended")
        if isinstance(error, HookContractError | KeyboardInterrupt | SystemExit):
            return None
        if isinstance(error, Exception):
            if error is self.broken:
                self.broken = None
                return None
            return await self._failed(error)
        recovered = await run.events.report(error, ErrorPhase.ACTING, fatal=True, tool_use=self.use, scope=self.scope)
        return None if recovered is None else self._block(recovered.value)

    def _break(self) -> None:
        """Raise a hook's failure on a chunk, which ends the call, if the tool or a wrapping hook swallowed it."""
        assert self.broken is not None
        try:
            raise self.broken
        finally:
            self.broken = None  # its traceback holds this

    async def _through_arounds(self) -> ToolResultBlock:
        run = self.run
        event = self.event
        if event is None:
            event = run.events.sealed(PreActing, (self.use, self.approval))
        stage = Stage(run, PreActing)
        try:
            value = await stage.outcome(wrap(run, PreActing, event, tool_source(stage, self.work), self.scope))
        finally:
            stage.over = True  # a failure while wrapping ends the stage too
        if value is EMPTY:
            return self._result("(no output)")
        return self._block(value)

    async def work(self, transform: Transform | None, instead: Work | None = None) -> ToolResultBlock:
        """Run the tool, or the work of a hook instead. Failures are raised, so that a wrapping hook can retry.

        This includes the tool's own lock and retries, which are invisible to wrapping hooks.
        """
        if instead is not None:
            self.value = value = await self.make_attempt(StandIn(self.use.name, instead), transform)
            return tool_result(self.original.id, self.use.name, render(value))
        tool = self.tool
        if tool is None:
            raise ToolNotFoundError(self.use.name, tuple(self.run.config.tools))
        if tool.lock is None and not tool.retries:
            value = await self.make_attempt(tool, transform)
        else:
            value = await run_with_retries(self, tool, transform)
        if tool.contract is not None:
            tool.checked(value)
        self.value = value
        return tool_result(self.original.id, self.use.name, render(value))

    def limit_of(self, tool: FullTool[..., Any]) -> float | None:
        """Return the time limit of one attempt in seconds."""
        return tool.timeout

    def key(self) -> str:
        """Return a key that is stable across retries and recoveries of this call."""
        return f"{self.run.run_id}:{self.use.id}"

    async def make_attempt(self, tool: FullTool[..., Any] | StandIn, transform: Transform | None) -> object:
        """One attempt."""
        run, use = self.run, self.use
        self.attempt += 1
        limit = tool.timeout if self.by_tool or isinstance(tool, StandIn) else self.limit_of(tool)
        chunks: ToolChunks | None = None
        context: ToolContext | None = None
        if tool.wants_context or tool.streaming:
            chunks = ToolChunks(self, TimeLimit(limit), transform)
            context = ToolContext(use, run.context, self.attempt, self.key(), ToolEmitter(chunks.emit))
        work: Any = tool.start(use, context)
        try:
            writing = run.journal.append_new(ToolStarted, (run.run_id, use.id, self.attempt, run.call_id))
            if writing is not None:
                await writing
        except BaseException:
            if not tool.streaming:
                work.close()
            raise
        place = copy_context()
        place.run(current_turn.set, self)
        if self.holding:
            place.run(held_locks.set, self.holding)
        for variable, value in run.inherits:
            place.run(variable.set, value)
        try:
            if chunks is None:
                return await drive(work, place, limit)
            return await chunks.of(work, place, tool.streaming)
        except LimitPassed as passed:
            raise TurnTimeoutError(tool.name, limit or 0.0, use.id, passed.late) from passed.__cause__

    async def _failed(self, error: Exception) -> ToolResultBlock:
        state: ToolState = "error"
        if isinstance(error, ToolNotFoundError):
            state = "not_found"
        elif isinstance(error, TurnTimeoutError) and error.turn == self.use.id:  # not of another turn that the tool ran
            state = "timeout"
        ours = isinstance(error, ToolNotFoundError | ToolArgumentError | ToolContractError | TurnTimeoutError)
        text = str(error) if ours else failure_text(error)  # before hooks see the error
        self._warn(error)
        await self.run.events.report(error, ErrorPhase.ACTING, fatal=False, tool_use=self.use, scope=self.scope)
        return self._result(text, state)

    def _warn(self, error: Exception) -> None:
        """Log an unexpected error of the tool's code, which otherwise only the model would see."""
        if self.tool is None or not isinstance(error, self.tool.expected_errors):
            warn_unexpected(self.use.name, error, self.run.events.frame)

    async def close(self) -> None:
        """Pass the result through its Post chain, make it a fact, and hand over the event."""
        run, result = self.run, self.result
        assert result is not None
        duration = 0.0 if self.began is None else (run.monotonic() - self.began) * 1000
        waited = self.waited * 1000
        self.opened = False
        event: PostActing | None = None
        try:
            emitted = run.events.decide(PostActing, (self.use, self.original, result, duration, waited), self.scope)
            event = emitted if emitted is None or isinstance(emitted, Event) else await emitted
        except GeneratorExit:
            raise
        except BaseException:
            await written(self._finished(result, duration))
            raise
        if event is not None:
            self.result = result = event.tool_result
            if event.decision is not None and (verdict := event.verdict) is not None:
                self.stop = verdict.reason
        writing = self._finished(result, duration)
        if writing is not None:
            await writing
        if event is not None and run.events.buffer is not None:
            await run.events.hand_over(event)

    def _finished(self, result: ToolResultBlock, duration: float) -> Awaitable[None] | None:
        run = self.run
        if self.pending or self.shelved or (run.scope.stopped and run.scope.leaves()):
            return None
        finished = (run.run_id, self.original.id, self.use, result, duration, self.stop, self.waited * 1000)
        return run.journal.append_new(ToolFinished, finished)

    async def dismiss(self, stop: str | None) -> None:
        """Close a call that was deferred and will not run because of a Stop or Suspend."""
        if stop is not None:
            self.result = self._result("Not run: the call was stopped.", "denied")
        else:
            self.result = self._result("Suspended: waits for a decision.", "suspended")
            self.shelved = True
        await self.close()

    def _waits_inside(self) -> bool:
        """Whether a sub-agent is suspended in it. If so, the call stays suspended however it ends."""
        if not self.pending and self.verdict is None:
            self.pending = self.run.machine.waiting_inside().get(self.original.id, ())
        return any(waits.within is not None for waits in self.pending)

    async def abort(self, error: BaseException) -> None:
        """Close a call that was interrupted: set its result, and emit its `PostActing`."""
        if self.result is None or self.opened:
            if self._waits_inside():
                self.result = self._result("Suspended: waits for a decision.", "suspended")
            else:
                cut = isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit)
                text = "Interrupted." if cut else f"Not finished: the call failed ({type(error).__name__})."
                self.result = self._result(text, "interrupted")
                self.pending = ()
        if self.opened:
            self.opened = False
            await self.close()
