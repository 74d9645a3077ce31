"""One round: run the tool calls of one reply as the schedule orders them, and record their results together.

Rules:

1. Every `PreToolRound` is followed by the `PostToolRound` of its round, on every path.
2. Results are stored in call order. The events of each call are emitted while it runs, and do not wait for other calls.
3. Parallel calls run in tasks of their own, any other call in the driver's task. No task outlives its round.
4. If a round is interrupted, every call is answered before anything else is stored. But if a sub-agent is suspended in
   the round, the round is suspended too, and no call is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from copy import copy
from functools import partial
from typing import Any, assert_never, cast

from agentflow.errors import StoreError, Veto
from agentflow.loop.emitting import EmitResult
from agentflow.loop.escalation import Halted, attach
from agentflow.loop.journal import wait_if_needed
from agentflow.loop.parallel import Work, in_tasks
from agentflow.loop.run import RunBase, current_turn
from agentflow.loop.stage import Stage, wrap
from agentflow.loop.tool_call import ToolCall
from agentflow.loop.tool_call_parts import NO_EFFECT
from agentflow.reactive import EMPTY, Mono
from agentflow.vocabulary.events import Event, Origin, PostToolRound, PreToolRound
from agentflow.vocabulary.facts import Fact, RoundClosed, RoundSuspended, new_fact
from agentflow.vocabulary.messages import Pending, ToolResultBlock, ToolState, ToolUseBlock, tool_result
from agentflow.vocabulary.specs import ToolType
from agentflow.vocabulary.verdicts import Deny, Stop, Suspend

__all__ = ["act", "close_open_round"]


class _Round:
    """A running round. For a round of one call, without a verdict or a wrapping hook, its `ToolCall` is used instead."""

    __slots__ = ("calls", "halted", "results", "run", "stop", "suspended", "tool_calls")

    def __init__(self, run: RunBase, calls: tuple[ToolUseBlock, ...]) -> None:
        self.run = run
        self.calls = calls
        # Results from before a crash or a suspension. A copy, since the dict of the machine must only change with facts.
        self.results: dict[str, ToolResultBlock] = (
            dict(run.machine.round.finished) if run.machine.round.finished else {}
        )
        self.suspended: dict[str, tuple[Pending, ...]] = {}
        self.tool_calls: dict[str, ToolCall] = {}
        self.stop: str | None = run.machine.stop
        self.halted = False

    def answer_rest(self, text: str, state: ToolState) -> None:
        """Set the result of each call that has none."""
        for call in self.run.machine.transcript.open_round:
            if call.id not in self.results:
                self.results[call.id] = tool_result(call.id, call.name, text, state)

    def answer_interrupted(self, text: str) -> None:
        """Set the result of each call that has none. If a sub-agent is suspended in a call, suspend the round instead."""
        # A suspended sub-agent has an open call of its own, which nothing could resume if this call were answered.
        inside = self.run.machine.waiting_inside()
        self.suspended = {
            **{use_id: inside[use_id] for use_id in inside if use_id not in self.results},
            **self.suspended,
        }
        if not any(wait.within is not None for group in self.suspended.values() for wait in group):
            self.suspended = {}
            self.answer_rest(text, "interrupted")

    def answer_with(self, verdict: Deny | Stop | Suspend | None, hook: str) -> bool:
        """Apply a verdict on `PreToolRound`. Return whether it replaces the calls' work."""
        match verdict:
            case Deny(reason=reason):
                self.answer_rest(f"Denied: {reason}", "denied")
            case Stop(reason=reason):
                self.stop = reason
                self.answer_rest(f"Not run: {reason}", "denied")
            case Suspend(request=request):
                if self.run.resuming:  # the run was resumed with a decision on it
                    return False
                for call in self.calls:
                    self.suspended[call.id] = (Pending(call.id, "approval", request, call, hook),)
            case None:
                return False
            case _:
                assert_never(verdict)
        return True

    def ordered(self) -> tuple[ToolResultBlock, ...]:
        """Return the results in call order; for a call without one, a result with the state `suspended`."""
        results = self.results
        return tuple(
            [
                results.get(call.id) or tool_result(call.id, call.name, "Suspended: waits for a decision.", "suspended")
                for call in self.run.machine.transcript.open_round
            ]
        )

    def type_of(self, call: ToolUseBlock) -> ToolType:
        tool = self.run.config.tools.get(call.name)
        return "write" if tool is None else tool.type

    async def run_calls(self) -> None:
        """Run the calls without a result. If one is suspended, no further call starts."""
        if self.suspended:  # a wrapping hook has subscribed to the work again
            return
        calls = [call for call in self.calls if call.id not in self.results] if self.results else self.calls
        if self.stop is None:
            await self._run_batches(calls)
            return
        # Stopped before a crash: finish only the calls that had started. `stop` is cleared meanwhile, because
        # `_run_batches` starts nothing in a stopped round.
        stop, self.stop = self.stop, None
        try:
            await self._run_batches([call for call in calls if call.id in self.run.machine.round.started])
        finally:
            self.stop = stop

    async def _run_batches(self, calls: Sequence[ToolUseBlock]) -> None:
        run = self.run
        schedule = run.config.schedule
        batches = schedule.batches(calls, self.type_of)
        deferred: list[ToolUseBlock] = []
        while (batches or deferred) and self.stop is None and not self.suspended and not self.halted:
            if not batches:
                batches, deferred = [[call] for call in deferred], []
            batch = batches.pop(0)
            kind = self.type_of(batch[0])

            def waits(vetted: ToolType, planned: ToolType = kind) -> bool:
                return schedule.waits(vetted, planned)

            run.scope.check()  # the tools of the previous batch may have swallowed a cancellation
            if len(batch) == 1:
                if not await self.execute(batch[0], self._place(batch[0]), waits):
                    deferred.append(batch[0])
            else:
                works = [self._work(call, waits, deferred) for call in batch]
                buffer = run.events.buffer
                with nullcontext() if buffer is None else buffer.of_several_tasks():
                    await in_tasks(run.scope, works, schedule.max_concurrency)
            # A safe point, since no tool is running. But with all results the round is closed, and the run halts after it.
            if run.scope.halts() and len(self.results) < len(run.machine.transcript.open_round):
                self.halted = True
        for call in deferred:  # these will not run, but their `PreActing` was emitted: emit their `PostActing`
            tool_call = self.tool_call(call, self._place(call))
            try:
                await tool_call.dismiss(self.stop)
            finally:
                if self.stop is not None and tool_call.result is not None:
                    self.results[call.id] = tool_call.result

    def _work(self, call: ToolUseBlock, defers: Callable[[ToolType], bool], deferred: list[ToolUseBlock]) -> Work:
        async def work() -> None:
            if (replay := self.run.scope.replay) is not None:
                # A replay starts parallel calls in the recorded order.
                await replay.wait(call.id, self._starts_no_more)
            if not self._starts_no_more():
                index = self._place(call)
                # Each task has a context of its own, so only the hooks of this call see this value.
                current_turn.set(self.tool_call(call, index))
                if not await self.execute(call, index, defers):
                    deferred.append(call)

        return work

    def _starts_no_more(self) -> bool:
        """Whether the round starts no further call."""
        return self.stop is not None or self.halted

    def _wake_waiting(self) -> None:
        """Wake the calls that a replay holds back, since they will not start."""
        if (replay := self.run.scope.replay) is not None:
            replay.wake()

    def tool_call(self, call: ToolUseBlock, index: int) -> ToolCall:
        """Return the execution of a call, created on first use, so that a deferred call continues later."""
        tool_call = self.tool_calls.get(call.id)
        if tool_call is None:
            tool_call = self.tool_calls[call.id] = ToolCall(self.run, call, index)
        return tool_call

    def _place(self, call: ToolUseBlock) -> int:
        """Return the index of a call among all calls of the reply, including finished ones."""
        open_round = self.run.machine.transcript.open_round
        return open_round.index(call) if len(open_round) > 1 else 0

    async def execute(self, call: ToolUseBlock, index: int, defers: Callable[[ToolType], bool] | None) -> bool:
        """Execute a call. Return False if it must be deferred because hooks changed its type."""
        tool_call = self.tool_call(call, index)
        # `RunBase.inject` needs the index. In the driver's task `current_turn` is not set, since hooks of the round run
        # in that task too.
        inline = len(self.run.machine.transcript.open_round) > 1 and current_turn.get() is not tool_call
        if inline:
            self.run.additions.inline = index
        try:
            return await tool_call.run_to_end(defers)
        finally:
            self.note(call, tool_call)
            if inline:
                self.run.additions.inline = None

    def clone_for(self, run: RunBase) -> _Round:
        """Return a copy of the round for a clone of its run."""
        other = copy(self)
        # Copied too, because the abandoned tasks may still change the originals.
        other.run, other.results, other.tool_calls = run, dict(self.results), {}
        for call_id, tool_call in self.tool_calls.items():
            other.tool_calls[call_id] = clone = copy(tool_call)
            clone.run = run
        return other

    def note(self, call: ToolUseBlock, tool_call: ToolCall) -> None:
        """Record the result of a call and its effect on the round. Called even if the hooks of its `PostActing` failed."""
        effect = tool_call.effect
        if effect.pending:
            self.suspended[call.id] = effect.pending
        elif effect.open_end == "halted":
            self.halted = True
            self._wake_waiting()
        elif tool_call.result is not None:
            self.results[call.id] = tool_call.result
        if effect.stop is not None and self.stop is None:  # the first Stop counts
            self.stop = effect.stop
            self._wake_waiting()

    async def abort_waiting(self, error: BaseException) -> None:
        """Close the unfinished calls: deferred ones, and those that were running when the run was abandoned."""
        for call_id, tool_call in self.tool_calls.items():
            # In these phases `PreActing` was emitted, so `PostActing` must be emitted too.
            if tool_call.phase in ("opened", "vetted") and call_id not in self.results:
                try:
                    await tool_call.abort(error)
                except Exception as problem:  # the others must still be closed
                    attach(error, problem)
                if tool_call.result is not None:
                    self.results[call_id] = tool_call.result


async def act(run: RunBase) -> None:
    """Run the open round and record its results."""
    machine, events = run.machine, run.events
    open_round = machine.transcript.open_round
    calls = machine.open_calls if machine.round.finished else open_round
    if not calls or (machine.stop is not None and not machine.round.finished):
        await _close_without_work(run, calls)
        return
    wrapped = PreToolRound in events.hooks.wraps
    # Most rounds have one call, which runs faster without a round object, dicts and a schedule.
    running = ToolCall(run, calls[0], 0) if len(open_round) == 1 and not wrapped else _Round(run, calls)
    run.round = running  # for `close_open_round`, if this driver is abandoned
    event: PreToolRound | None = None
    try:
        if PreToolRound in events.handled:
            additions = run.additions
            # If the process crashes during these hooks, they run again later: numbered injections are not stored twice.
            additions.repeatable, additions.injections = "round", 0
            try:
                emitted = events.fire(PreToolRound, (calls,))
                event = emitted if emitted is None or isinstance(emitted, Event) else await emitted
            finally:
                additions.repeatable = ""
            if isinstance(running, ToolCall):
                running.tool = run.config.tools.get(running.use.name)  # a toolset may have changed during the hooks
        else:
            events.seq += 1
        if event is not None and (answered := _answered(run, calls, event)) is not None:
            run.round = running = answered
        elif isinstance(running, ToolCall):
            await running.run_to_end()
        elif wrapped:
            await _through_arounds(run, running, event)
        else:
            await running.run_calls()
    except BaseException as error:  # every PreToolRound has its PostToolRound
        run.round = round_ = _round_of(running)
        await _interrupt(run, round_, error)
        raise
    if isinstance(running, ToolCall):
        result = running.result
        results = () if result is None or running.effect != NO_EFFECT else (result,)
    else:
        results = () if running.halted or running.suspended or running.stop is not None else running.ordered()
    post: EmitResult[PostToolRound] = None
    # The usual end of a round. After a Stop, a suspension, a halt, a verdict or with asynchronous hooks, `_finish` ends it.
    if results:
        if PostToolRound in events.handled:
            post = events.decide(PostToolRound, (open_round, results))
        else:
            events.seq += 1
        if post is None or (isinstance(post, PostToolRound) and post.decision is None):
            # The hooks of the Post event have run: if this driver is abandoned, its clone must not emit the event again.
            run.round = None
            closed = new_fact(RoundClosed, (run.run_id, run.config.new_id("msg_"), results, None))
            writing: Awaitable[object] | None = run.journal.append(closed)
            if post is not None:
                writing = events.hand_over_after(writing, post)
            if writing is not None:
                await writing
            return
    await _finish(run, _round_of(running), post)


def _round_of(running: _Round | ToolCall, ended: bool = True) -> _Round:
    """Return the round, or create one for a single call. (A call that simply ends with its result needs no round.)

    Args:
        running: The round or the call.
        ended: Whether the call has ended, so that its result counts.
    """
    if isinstance(running, _Round):
        return running
    call = running.original
    round_ = _Round(running.run, (call,))
    round_.tool_calls[call.id] = running
    if ended:
        round_.note(call, running)
    return round_


def _answered(run: RunBase, calls: tuple[ToolUseBlock, ...], event: PreToolRound) -> _Round | None:
    """Apply the verdict on `PreToolRound`, if any. Return the round if the verdict replaces the work of its calls."""
    if event.decision is None:
        return None
    round_ = _Round(run, calls)
    return round_ if round_.answer_with(event.verdict, event.decision.hook) else None


async def _close_without_work(run: RunBase, calls: tuple[ToolUseBlock, ...]) -> None:
    """Close a round with nothing to run: its reply was stopped, or a crash interrupted it after its last result."""
    round_ = _Round(run, calls)
    if calls:
        round_.answer_rest("Not run: the call was stopped.", "denied")
        await wait_if_needed(_close(run, round_, round_.ordered(), origin="stopped"))
    else:
        await _finish(run, round_, None)


async def close_open_round(run: RunBase) -> None:
    """Close the round that was running when the run was detached from its driver; see `agentflow.loop.endings`."""
    if isinstance(run.round, _Round | ToolCall):
        # `ended=False`: a single call may still be running in the abandoned task.
        run.round = clone = _round_of(run.round, ended=False).clone_for(run)
        await _interrupt(run, clone, asyncio.CancelledError())


async def _through_arounds(run: RunBase, round_: _Round, event: PreToolRound | None) -> None:
    if event is None:
        event = run.events.sealed(PreToolRound, (round_.calls,))

    async def work() -> tuple[ToolResultBlock, ...]:
        await round_.run_calls()
        return round_.ordered()

    stage = Stage(run, PreToolRound)
    inner = Mono(partial(stage.do, work))
    try:
        source: Any = wrap(run, PreToolRound, event, inner)
    except Exception as error:  # an `around` raised it when it was called, before any work
        stage.closed = True
        if not isinstance(error, Veto):
            raise
        round_.answer_rest(f"Denied: {error.reason}", "denied")
        return
    if source is inner:
        stage.closed = True
        await round_.run_calls()
        return

    try:
        results = await stage.outcome(source)
    except Veto as veto:  # equivalent to Deny, but some calls may have run
        # Suspended calls are denied too, so that the round does not wait for a decision.
        round_.suspended = {}
        round_.answer_rest(f"Denied: {veto.reason}", "denied")
        return
    # All calls of the round: the hook also receives the results of calls that finished before a suspension.
    open_ids = {call.id for call in run.machine.transcript.open_round}
    for result in () if results is EMPTY else cast("Sequence[ToolResultBlock]", results):
        if result.state != "suspended" and result.tool_use_id in open_ids:
            round_.results[result.tool_use_id] = result
            round_.suspended.pop(result.tool_use_id, None)  # the hook has answered the call
    if not round_.suspended and round_.stop is None and not round_.halted:
        round_.answer_rest("(no result)", "error")  # these calls did not finish, and the hook did not answer them


async def _finish(run: RunBase, round_: _Round, emitted: EmitResult[PostToolRound]) -> None:
    """Complete a stopped, suspended or halted round, or one whose hooks are asynchronous or returned a verdict.

    Args:
        run: The call.
        round_: The round to complete.
        emitted: The result of emitting its `PostToolRound`, if this was done already.
    """
    run.round = round_
    events, calls = run.events, run.machine.transcript.open_round
    if round_.halted and not round_.suspended:
        # The round stays open for a later process, but its Pre event was emitted here, so its Post event must be too.
        await events.emit(PostToolRound, (calls, round_.ordered()))
        raise Halted
    if round_.stop is not None:
        round_.answer_rest("Not run: the call was stopped.", "denied")
    results = round_.ordered()
    try:
        if emitted is None:
            emitted = events.decide(PostToolRound, (calls, results))
        if emitted is None or isinstance(emitted, Event):
            event = emitted
        else:
            run.round = None  # the event is emitted: so that a clone does not emit it again if this driver is abandoned
            event = await emitted
    except BaseException as error:  # the results stay, even if the event's hooks fail
        with run.scope.cleanup(error):
            # If not complete, the event showed calls as suspended, so the results that they get now are announced.
            complete = len(round_.results) == len(calls)
            round_.answer_interrupted("Interrupted.")
            await wait_if_needed(_close(run, round_, round_.ordered(), origin=None if complete else "interrupted"))
        raise
    if round_.suspended or (event is not None and event.decision is not None):
        writing = _with_verdict(run, round_, event)
    else:
        writing = _close(run, round_, results)
    run.round = None
    if (delivery := events.hand_over_after(writing, event)) is not None:
        await delivery


def _with_verdict(run: RunBase, round_: _Round, event: PostToolRound | None) -> Awaitable[None] | None:
    """Record a round that has a verdict or suspended calls: closed, or open and suspended."""
    park: tuple[Pending, ...] = ()
    if event is not None and event.decision is not None:
        verdict = event.verdict
        match verdict:
            case None:
                pass
            case Stop(reason=reason):
                round_.stop = reason if round_.stop is None else round_.stop
            case Suspend(request=request):
                if not round_.suspended:
                    park = (Pending("call", "parked", request, None, event.decision.hook),)
            case _:
                assert_never(verdict)
    if round_.stop is not None or not round_.suspended:
        round_.answer_rest("Not run: the call was stopped.", "denied")
    also = (RoundSuspended(run.run_id, park, run.call_id),) if park else ()
    # The event showed these calls as suspended, so the results that a Stop gives them are announced.
    return _close(run, round_, round_.ordered(), *also, origin="stopped" if round_.suspended else None)


def _close(
    run: RunBase, round_: _Round, results: tuple[ToolResultBlock, ...], *also: Fact, origin: Origin | None = None
) -> Awaitable[None] | None:
    """Record a round's results or, if it is suspended, its pending calls. Pass an origin if no event has the results."""
    if round_.suspended and round_.stop is None:
        pending = tuple([wait for group in round_.suspended.values() for wait in group])
        return run.journal.append(RoundSuspended(run.run_id, pending, run.call_id))
    if round_.stop is not None:
        run.outcome = "stopped"
    closed = RoundClosed(run.run_id, run.config.new_id("msg_"), results, round_.stop)
    return run.journal.append(closed, *also, origin=origin)


async def _interrupt(run: RunBase, round_: _Round, error: BaseException) -> None:
    """Close a round that was cancelled or has failed: answer all calls, emit the Post event, record the results."""
    # Nested `finally`, so that a signal in one of these three steps does not prevent the next.
    with run.scope.cleanup(error):
        try:
            await round_.abort_waiting(error)
        finally:
            interrupted = isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit)
            round_.answer_interrupted(
                "Interrupted." if interrupted else f"Not finished: the call failed ({type(error).__name__})."
            )
            try:
                run.round = None
                await run.events.emit(PostToolRound, (run.machine.transcript.open_round, round_.ordered()))
            except Exception as problem:  # only noted, since the round must still be closed
                attach(error, problem)
            finally:
                round_.stop = None  # the call ends with the error, so its outcome is not "stopped"
                # A shutdown leaves the round open: a later process runs the missing calls.
                if not run.scope.leaves():
                    try:
                        await wait_if_needed(_close(run, round_, round_.ordered()))
                    except StoreError as problem:
                        attach(error, problem)
