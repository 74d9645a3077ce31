"""One tool call: its `PreActing` chain and approval, its result, and its `PostActing` chain.

Rules:

1. A decision that was committed before a crash is not made again.
2. No person is asked to approve a call with invalid arguments, which would not run: the model must fix the arguments.
3. Every `PreActing` is followed by the `PostActing` of its call, on every path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Literal, assert_never, cast

from agentflow.errors import HookContractError, ShutdownError, ToolError, Veto
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.wrapping import Transform, Work
from agentflow.loop.escalation import Halted, ToolSuspended, attach
from agentflow.loop.journal import wait_if_needed
from agentflow.loop.run import Resumption, RunBase
from agentflow.loop.stage import Stage, apply_steps, tool_source, wrap
from agentflow.loop.tool_attempt import HookWork, failure_of, fits, make_attempt, work_of
from agentflow.loop.tool_call_parts import NO_EFFECT, RestoredCall, RoundEffect, WorkProgress
from agentflow.loop.waits import Waits
from agentflow.reactive import EMPTY, Mono
from agentflow.reactive.mono import mono_steps_over
from agentflow.tools.results import render
from agentflow.tools.tool import FullTool
from agentflow.tools.unexpected import warn_unexpected
from agentflow.vocabulary.events import ErrorPhase, Event, OnACall, PostActing, PreActing
from agentflow.vocabulary.facts import ToolDecided, ToolFinished, new_fact
from agentflow.vocabulary.messages import Pending, ToolResultBlock, ToolState, ToolUseBlock, tool_result
from agentflow.vocabulary.specs import ToolType
from agentflow.vocabulary.verdicts import Answer, Approve, Deny, Resolution, Suspend

__all__ = ["ToolCall"]


UNKNOWN_OUTCOME = (
    "Outcome unknown: the process ended while this tool was running. Check whether it took effect before you repeat it."
)

HALTED = "Suspended: the process is ending; a later one will continue this."


class ToolCall:
    """The execution of one tool call.

    Args:
        run: The agent's call.
        use: The call as the model requested it.
        index: Its position in the round.

    Attributes:
        original: The call as the model requested it; `use` is the call after hooks.
        hooks: The hooks for its tool; None: the run's.
        phase: `decided` if a decision was committed before a crash, `opened` once `PreActing` is emitted, `vetted` after
            its chain and approval, `closed` with `PostActing`.
        attempt: The number of attempts that have started, including those before a crash.
        began: The time at which its work began, minus the time that it had waited before; None if work has not begun.
        waited: Its waits for locks, hooks, the reader and people; None if it has none and is not part of another call.
    """

    # Most calls never set these, so they become instance attributes only when they are set.
    restored: RestoredCall = RestoredCall()
    hooks: FullHookSet | None = None
    phase: Literal["new", "decided", "opened", "vetted", "closed"] = "new"
    event: PreActing | None = None
    verdict: OnACall | None = None
    result: ToolResultBlock | None = None
    effect: RoundEffect = NO_EFFECT
    attempt: int = 0
    began: float | None = None
    waited: Waits | None = None
    _progress: WorkProgress | None = None

    def __init__(self, run: RunBase, use: ToolUseBlock, index: int) -> None:
        self.run = run
        self.original = use
        self.use = use
        self.tool: FullTool[..., Any] | None = run.config.tools.get(use.name)
        self.index = index
        if run.resumption is not None:
            self._restore(run.resumption)

    def _restore(self, resumption: Resumption) -> None:
        """Restore the decision on the call, and the number of attempts before the agent's call was continued."""
        machine, call = self.run.machine, self.original.id
        started = machine.round.started
        approval: Resolution | None = None
        inner: Mapping[str, Resolution] | None = None
        if resumption.in_round:
            approval = resumption.decisions.get(call)
            inner = resumption.in_subagents.get(call)
            # The call itself needs no decision: it continues with those for its sub-agent.
            if inner is not None and call not in started:
                approval = Approve()
        if isinstance(approval, Approve) and approval.input is not None:
            self.use = self.use.replace(input=approval.input)
        if call in machine.round.decided:
            self.phase = "decided"
        self.restored = RestoredCall(approval, call in started, inner)
        self.attempt = started.get(call, 0)

    def suspend(self, pending: tuple[Pending, ...]) -> None:
        """Let the call wait for decisions."""
        self.effect = self.effect._replace(pending=pending)

    @property
    def progress(self) -> WorkProgress:
        """The progress of its work."""
        if self._progress is None:
            self._progress = WorkProgress()
        return self._progress

    @property
    def waits(self) -> Waits:
        """Its waits for people, hooks and readers, which do not count as the tool's time."""
        if self.waited is None:
            self.waited = Waits(self.run.config.clock.monotonic, self.run.scope.waits)
        return self.waited

    @property
    def type(self) -> ToolType:
        """The type of the tool after hooks; an unknown tool counts as a write tool."""
        return "write" if self.tool is None else self.tool.type

    # ---- before its work

    def _change(self, use: ToolUseBlock) -> None:
        """Set the call and its tool after hooks changed them."""
        self.use = use
        self.tool = self.run.config.tools.get(use.name)

    def _restore_decision(self) -> None:
        """Restore the decision that was committed before a crash."""
        committed = self.run.machine.round.decided[self.original.id]
        self._change(committed.tool_use)
        self.verdict = cast("OnACall | None", committed.verdict)
        self.hooks = self.run.hooks_of(self.tool)
        self.phase = "vetted"

    async def _waiting(self, hooks: Awaitable[PreActing | None]) -> PreActing | None:
        """Wait for hooks. The time does not count as work."""
        with self.waits:
            return await hooks

    async def _run_hooks_of_new_tool(self) -> str:
        """Run the hooks of the new tool after a hook has changed the call's tool. Return the name of the hook that decided,
        or an empty string.
        """
        run, tool = self.run, self.tool
        self.hooks = run.hooks_of(tool)
        if tool is None or not tool.hooks or self.verdict is not None:
            return ""
        # `shown=False`: the reader gets one `PreActing` for each call.
        emitted = run.events.decide(PreActing, (self.use, self.restored.approval), FullHookSet(tool.hooks), shown=False)
        event = emitted if emitted is None or isinstance(emitted, Event) else await self._waiting(emitted)
        if event is None:
            return ""
        self.event = event
        self._change(event.tool_use)
        if event.decision is None:
            return ""
        self.verdict = event.verdict
        return event.decision.hook

    def _take_approval(self, hook: str) -> None:
        """Decide on the call by its approval and the verdict of a hook."""
        approval, verdict, tool = self.restored.approval, self.verdict, self.tool
        # An external call cannot run here, so even after an approval it waits for its answer.
        if approval is not None and not (isinstance(approval, Approve) and tool is not None and tool.external):
            if verdict is None or isinstance(verdict, Suspend):
                self.verdict = None if isinstance(approval, Approve) else approval
            return
        kind: Literal["approval", "external"] = "approval"
        if verdict is None:
            if tool is None or not fits(tool, self.use):
                return  # the model receives the error instead
            if self.run.approved(self.use.id) and not tool.external:
                return
            kind = "external" if tool.external else "approval"
            self.verdict = verdict = Suspend({"tool": self.use.name, "input": dict(self.use.input)})
            hook = "external" if tool.external else "requires_approval"
        if isinstance(verdict, Suspend):
            self.suspend((Pending(self.use.id, kind, verdict.request, self.use, hook),))

    def _defers(self, defers: Callable[[ToolType], bool]) -> bool:
        """Whether the call must be deferred because hooks have changed it to a tool of another type."""
        return self.use is not self.original and self.verdict is None and defers(self.type)

    async def run_to_end(self, defers: Callable[[ToolType], bool] | None = None) -> bool:
        """Vet, run and close the call.

        Args:
            defers: Returns whether the call must be deferred if hooks have changed it to a tool of this type.

        Returns:
            True if the call has finished; False if it was deferred, so this must be called again later.
        """
        run = self.run
        events, scope = run.events, run.scope
        if scope.waits is not None:
            self.waits.enter()
        try:
            if self.phase == "new":
                use, tool, hook = self.use, self.tool, ""
                self.phase = "opened"
                if tool is not None and (tool.hooks or tool.tags):
                    self.hooks = run.hooks_of(tool)
                if self.hooks is None and PreActing not in events.handled:
                    events.seq += 1
                else:
                    emitted = events.fire(PreActing, (use, self.restored.approval), self.hooks)
                    event = emitted if emitted is None or isinstance(emitted, Event) else await self._waiting(emitted)
                    if event is not None:
                        self.event = event
                        if event.decision is not None:
                            self.verdict, hook = event.verdict, event.decision.hook
                        if event.tool_use is not use:
                            self.use = event.tool_use
                            if self.use.name != use.name:
                                self._change(self.use)
                                hook = await self._run_hooks_of_new_tool() or hook
                            use, tool = self.use, self.tool
                if (
                    self.restored.approval is not None
                    or self.verdict is not None
                    or (tool is not None and (tool.requires_approval or tool.external))
                ):
                    self._take_approval(hook)
                self.phase = "vetted"
                if not self.effect.pending:  # a suspended call is decided when it is resumed
                    decided = new_fact(ToolDecided, (run.run_id, use.id, use, self.verdict, run.call_id))
                    if (writing := run.journal.append(decided)) is not None:
                        await writing
                if defers is not None and self._defers(defers):
                    return False
            elif self.phase == "decided":
                self._restore_decision()
                if defers is not None and self._defers(defers):
                    return False
            if scope.stopped:  # cancelled while its decision was written: no tool may start
                scope.check()
            self.began = run.config.clock.monotonic()
            if self.waited is not None:
                self.began -= self.waited.seconds
            if self.verdict is not None or (self.restored.recovers and not self._repeatable()):
                self.result = self._decided()
            else:
                hooks = events.hooks if self.hooks is None else self.hooks
                try:
                    if PreActing in hooks.wraps and (not hooks.conditions or hooks.wraps_in(PreActing, run.context)):
                        self.result = await self._through_arounds(hooks)
                    elif hooks.tool_listeners:
                        event = self.event or events.sealed(PreActing, (self.use, self.restored.approval))
                        self.result = await hooks.observed_tool(event, self.work)()
                    else:
                        self.result = self._rendered(await work_of(self, self.tool, None))
                except BaseException as error:  # most failures become a result
                    self.result = await self._result_of(error)
                    if self.result is None:
                        raise
            if self._progress is not None and (chunk_error := self._progress.chunk_error) is not None:
                try:
                    raise chunk_error  # the tool or a wrapping hook swallowed it
                finally:
                    del chunk_error
                    self._progress.chunk_error = None  # its traceback holds this
        except BaseException as error:  # every call has its PostActing
            with scope.cleanup(error):
                try:
                    await self.abort(error)
                except Exception as problem:  # a note: the caller gets the original error
                    attach(error, problem)
            raise
        else:
            # Not in the `try`: after a failure here the call has had its PostActing, and `abort` must not emit another.
            if (closing := self.close()) is not None:
                await closing
            return True
        finally:
            if scope.waits is not None:
                self.waits.leave()

    # ---- its result

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
        return tool is None or tool.idempotent or isinstance(self.restored.approval, Approve)

    def _outcome_unknown(self) -> ToolResultBlock:
        """Return a result that informs the model, or suspend to ask a person, if the process ended while the tool ran."""
        if self.run.config.on_unknown_outcome == "tell":
            return self._result(UNKNOWN_OUTCOME, "error")
        use = self.use
        request = {"outcome": "unknown", "tool": use.name, "input": dict(use.input), "attempt": self.attempt}
        self.suspend((Pending(self.original.id, "approval", request, self.use, "on_unknown_outcome"),))
        return self._result("Suspended: its outcome is unknown, and a person is asked.", "suspended")

    def _result(self, text: Any, state: ToolState = "success") -> ToolResultBlock:
        return tool_result(self.original.id, self.use.name, text, state)

    def _block(self, value: object) -> ToolResultBlock:
        if isinstance(value, ToolResultBlock):
            if value.tool_use_id == self.original.id and value.name:
                return value
            return tool_result(self.original.id, value.name or self.use.name, value.content, value.state)
        return self._result(render(value))

    async def _result_of(self, error: BaseException) -> ToolResultBlock | None:
        """Return the result for an exception, or None if it ends the agent's call."""
        run = self.run
        if isinstance(error, HookContractError | KeyboardInterrupt | SystemExit | GeneratorExit):
            return None
        if isinstance(error, asyncio.CancelledError):
            if run.scope.is_cancelled():
                return None
            failure = ToolError(f"Tool {self.use.name!r} raised CancelledError, but the run was not cancelled.")
            failure.__cause__ = error
            return await self._failed(failure)
        if isinstance(error, Halted):  # a sub-agent stopped at a safe point
            if not run.can_halt:
                return await self._failed(ShutdownError(run.config.view.name, run.session.id, stopped=True))
            self.effect = self.effect._replace(open_end="halted")
            return self._result(HALTED, "suspended")
        if isinstance(error, Veto):
            self.verdict = Deny(error.reason)
            return self._result(f"Denied: {error.reason}", "denied")
        if isinstance(error, ToolSuspended):
            self.suspend(error.pending_of(self.use))
            return self._result("Suspended: waits for a decision.", "suspended")
        if isinstance(error, Exception):
            # The tool raised a hook's error unchanged: None ends the agent's call with this error.
            if self._progress is not None and error is self._progress.chunk_error:
                self._progress.chunk_error = None
                return None
            return await self._failed(error)
        recovered = await run.events.report(error, ErrorPhase.ACTING, fatal=True, tool_use=self.use, hooks=self.hooks)
        return None if recovered is None else self._block(recovered.value)

    async def _through_arounds(self, hooks: FullHookSet) -> ToolResultBlock:
        run = self.run
        event = self.event or run.events.sealed(PreActing, (self.use, self.restored.approval))
        stage = Stage(run, PreActing)
        try:
            tool = self.tool
            do = partial(stage.observe, partial(hooks.observed_tool, event)) if hooks.tool_listeners else stage.do
            inner = tool_source(do, self.work, tool is None or tool.wants_context)
            wrapped: Any = wrap(run, PreActing, event, inner, hooks)
            steps = mono_steps_over(wrapped, inner) if isinstance(wrapped, Mono) and not hooks.tool_listeners else None  # pyright: ignore[reportUnknownArgumentType] - the hook's value
            if steps is None:
                value = await stage.outcome(wrapped)
            else:
                value = rendered = self._rendered(await work_of(self, tool, None))
                if steps:
                    value = apply_steps(run, PreActing, steps, value, EMPTY)
                if value is rendered:
                    return rendered
        finally:
            stage.closed = True  # a failure while wrapping ends the stage too
        return self._result("(no output)") if value is EMPTY else self._block(value)

    async def work(self, transform: Transform | None = None, instead: Work | None = None) -> ToolResultBlock:
        """Run the tool, or the work of a hook instead. Failures are raised, so that a wrapping hook can retry.

        This includes the tool's own lock and retries, which are invisible to wrapping hooks.
        """
        if instead is None:
            return self._rendered(await work_of(self, self.tool, transform))
        return self._rendered(await make_attempt(self, HookWork(self.use.name, instead), transform), checked=False)

    def _rendered(self, value: object, checked: bool = True) -> ToolResultBlock:
        """Return a value as the call's result. If `checked`, check it against the tool's contract."""
        if checked and self.tool is not None and self.tool.contract is not None:
            self.tool.checked(value)
        return tool_result(self.original.id, self.use.name, render(value))

    def key(self) -> str:
        """Return a key that is stable across retries and recoveries of this call."""
        return f"{self.run.run_id}:{self.use.id}"

    async def _failed(self, error: Exception) -> ToolResultBlock:
        text, state = failure_of(error, self.use)
        self._notice(error)  # before hooks see the error
        await self.run.events.report(error, ErrorPhase.ACTING, fatal=False, tool_use=self.use, hooks=self.hooks)
        return self._result(text, state)

    def _notice(self, error: Exception) -> None:
        """Log an unexpected error of the tool's code, which otherwise only the model would see."""
        if self.tool is None or not isinstance(error, self.tool.expected_errors):
            warn_unexpected(self.use.name, error, self.run.events.frame)

    # ---- its end

    def close(self) -> Awaitable[object] | None:
        """Pass the result through its Post chain, make it a fact, and hand over the event. Return an awaitable only if
        this needs time."""
        run, waits, began = self.run, self.waited, self.began
        events = run.events
        waited = 0.0 if waits is None else waits.seconds * 1000
        duration = 0.0 if began is None else (run.config.clock.monotonic() - began) * 1000 - waited
        self.phase = "closed"  # before the hooks, so that `abort` emits no second event
        if self.hooks is None and PostActing not in events.handled:
            events.seq += 1
            return self._record(None, duration, waited)
        emitted = events.decide(PostActing, (self.use, self.original, self.result, duration, waited), self.hooks)
        if emitted is None or isinstance(emitted, Event):
            return self._record(emitted, duration, waited)
        return self._close_slowly(emitted, duration, waited)

    async def _close_slowly(self, emitted: Awaitable[PostActing | None], duration: float, waited: float) -> None:
        """Close the call after hooks of `PostActing` that need time."""
        try:
            event = await emitted
        except BaseException as error:  # the result stays, even if the event's hooks fail
            with self.run.scope.cleanup(error):
                await wait_if_needed(self._record(None, duration, waited))
            raise
        await wait_if_needed(self._record(event, duration, waited))

    def _record(self, event: PostActing | None, duration: float, waited: float) -> Awaitable[object] | None:
        """Make the result after hooks a fact, and hand over the event."""
        run, effect = self.run, self.effect
        if event is not None:
            self.result = event.tool_result
            if event.decision is not None and (verdict := event.verdict) is not None:
                self.effect = effect = effect._replace(stop=verdict.reason)
        writing: Awaitable[None] | None = None
        # Without a `ToolFinished` the call stays open, for a resume or for a later process.
        if not (effect.pending or effect.open_end or (run.scope.stopped and run.scope.leaves())):
            finished = (run.run_id, self.original.id, self.use, self.result, duration, effect.stop, waited)
            writing = run.journal.append(new_fact(ToolFinished, finished))
        return writing if event is None else run.events.hand_over_after(writing, event)

    async def dismiss(self, stop: str | None) -> None:
        """Close a call that was deferred and will not run because of a Stop or Suspend."""
        if stop is not None:
            self.result = self._result("Not run: the call was stopped.", "denied")
        else:
            self.result = self._result("Suspended: waits for a decision.", "suspended")
            self.effect = self.effect._replace(open_end="deferred")
        await wait_if_needed(self.close())

    def _waits_inside(self) -> bool:
        """Whether a sub-agent is suspended in the call. If so, the call stays suspended, however its work ends."""
        if not self.effect.pending and self.verdict is None:
            self.suspend(self.run.machine.waiting_inside().get(self.original.id, ()))
        return any(wait.within is not None for wait in self.effect.pending)

    async def abort(self, error: BaseException) -> None:
        """Close a call that was interrupted: set its result, and emit its `PostActing`."""
        is_open = self.phase in ("opened", "vetted")
        if self.result is None or is_open:
            if self._waits_inside():
                self.result = self._result("Suspended: waits for a decision.", "suspended")
            else:
                interrupted = isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit)
                text = "Interrupted." if interrupted else f"Not finished: the call failed ({type(error).__name__})."
                self.result = self._result(text, "interrupted")
                self.suspend(())
        if is_open:
            await wait_if_needed(self.close())
