"""One round: the calls of one reply, ordered by type, in parallel if possible, and answered together.

Rules:

1. Once its `PreToolRound` is emitted, a round has its `PostToolRound` on every path.
2. Results are in call order; each event is delivered when its result is available.
3. A single call runs in the driver's task, several in their own tasks. No task outlives its round.
4. If a round is interrupted, every call is answered before anything else is stored; if a sub-agent is suspended in it,
   none is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from copy import copy
from functools import partial
from typing import Any, assert_never, cast

from agentflow.errors import StoreError, Veto
from agentflow.loop.escalation import Halted, attach
from agentflow.loop.journal import written
from agentflow.loop.run import RunBase, current_turn
from agentflow.loop.stage import Stage, wrap
from agentflow.loop.tasks import Work, in_tasks
from agentflow.loop.tool_call.acting import Acting
from agentflow.reactive import EMPTY, Mono
from agentflow.vocabulary.events import Event, Origin, PostToolRound, PreToolRound
from agentflow.vocabulary.facts import Fact, RoundClosed, RoundSuspended
from agentflow.vocabulary.messages import Pending, ToolResultBlock, ToolState, ToolUseBlock, tool_result
from agentflow.vocabulary.specs import ToolType
from agentflow.vocabulary.verdicts import Deny, Stop, Suspend

__all__ = ["act", "close_open_round"]


class _Round:
    """A running round."""

    __slots__ = ("actings", "calls", "halted", "results", "run", "stop", "suspended")

    def __init__(self, run: RunBase, calls: tuple[ToolUseBlock, ...]) -> None:
        self.run = run
        self.calls = calls
        self.results: dict[str, ToolResultBlock] = dict(run.machine.finished) if run.machine.finished else {}
        self.suspended: dict[str, tuple[Pending, ...]] = {}
        self.actings: dict[str, Acting] = {}
        self.stop: str | None = run.machine.stop
        self.halted = False

    def answer_rest(self, text: str, state: ToolState) -> None:
        """Set the result of every call without one."""
        for call in self.run.machine.transcript.open_round:
            if call.id not in self.results:
                self.results[call.id] = tool_result(call.id, call.name, text, state)

    def answer_cut(self, text: str) -> None:
        """Set the result of every call without one, unless a sub-agent is suspended in a call: then the round is
        suspended."""
        inside = self.run.machine.waiting_inside()
        self.suspended = {
            **{use_id: inside[use_id] for use_id in inside if use_id not in self.results},
            **self.suspended,
        }
        if not any(waits.within is not None for one in self.suspended.values() for waits in one):
            self.suspended = {}
            self.answer_rest(text, "interrupted")

    def ordered(self) -> tuple[ToolResultBlock, ...]:
        """Return the results in call order; calls without one are suspended."""
        results = self.results
        if len(results) == len(self.calls) == 1 and not self.run.machine.finished:
            return tuple(results.values())
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
        if self.suspended:  # the source is subscribed again
            return
        calls = [call for call in self.calls if call.id not in self.results] if self.results else self.calls
        if self.stop is None:
            await self._run_batches(calls)
            return
        # Stopped before a crash: finish the calls that had started.
        stop, self.stop = self.stop, None
        try:
            await self._run_batches([call for call in calls if call.id in self.run.machine.started])
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

            run.scope.check()
            if len(batch) == 1:
                if not await self.execute(batch[0], self._place(batch[0]), waits):
                    deferred.append(batch[0])
            else:
                works = [self._work(call, waits, deferred) for call in batch]
                buffer = run.events.buffer
                with nullcontext() if buffer is None else buffer.of_several_tasks():
                    await in_tasks(run.scope, works, schedule.max_concurrency)
            if run.scope.halts() and len(self.results) < len(run.machine.transcript.open_round):
                self.halted = True
        for call in deferred:  # its PreActing was emitted, but it will not run
            acting = self.acting(call, self._place(call))
            try:
                await acting.dismiss(self.stop)
            finally:
                if self.stop is not None and acting.result is not None:
                    self.results[call.id] = acting.result

    def _work(self, call: ToolUseBlock, waits: Callable[[ToolType], bool], deferred: list[ToolUseBlock]) -> Work:
        async def work() -> None:
            if self.stop is None and not self.halted:
                index = self._place(call)
                current_turn.set(self.acting(call, index))
                if not await self.execute(call, index, waits):
                    deferred.append(call)

        return work

    def acting(self, call: ToolUseBlock, index: int) -> Acting:
        """Return the execution of a call, which is kept if the call is deferred."""
        acting = self.actings.get(call.id)
        if acting is None:
            acting = self.actings[call.id] = Acting(self.run, call, index)
        return acting

    def _place(self, call: ToolUseBlock) -> int:
        """Return the position among all calls of the reply, including finished ones."""
        open_round = self.run.machine.transcript.open_round
        return open_round.index(call) if len(open_round) > 1 else 0

    async def execute(self, call: ToolUseBlock, index: int, waits: Callable[[ToolType], bool] | None) -> bool:
        """Execute a call. Return False if it must be deferred because hooks changed its type."""
        acting = self.acting(call, index)
        inline = len(self.run.machine.transcript.open_round) > 1 and current_turn.get() is not acting
        if inline:
            self.run.inline = index
        try:
            if not await acting.run_to_end(waits):
                return False
        except GeneratorExit:
            raise
        except BaseException:
            self.note(call, acting)
            raise
        finally:
            if inline:
                self.run.inline = None
        self.note(call, acting)
        return True

    def taken_by(self, run: RunBase) -> _Round:
        """Return the round for the clone of its run."""
        other = copy(self)
        other.run, other.actings = run, {}
        for call_id, acting in self.actings.items():
            other.actings[call_id] = taken = copy(acting)
            taken.run = run
        return other

    def note(self, call: ToolUseBlock, acting: Acting) -> None:
        """Record the result of a call, even if its Post chain failed."""
        if acting.pending:
            self.suspended[call.id] = acting.pending
        elif acting.halted:
            self.halted = True
        elif acting.result is not None:
            self.results[call.id] = acting.result
        if acting.stop is not None and self.stop is None:
            self.stop = acting.stop

    async def abort_waiting(self, error: BaseException) -> None:
        """Close calls that were vetted and deferred."""
        for call_id, acting in self.actings.items():
            if acting.opened and call_id not in self.results:
                try:
                    await acting.abort(error)
                except Exception as problem:
                    attach(error, problem)
                if acting.result is not None:
                    self.results[call_id] = acting.result


async def act(run: RunBase) -> None:
    """Run the open round and make its results a fact."""
    machine = run.machine
    calls = machine.open_calls if machine.finished else machine.transcript.open_round
    run.round = round_ = _Round(run, calls)
    if round_.stop is not None and not machine.finished:  # the reply itself was stopped
        round_.answer_rest("Not run: the call was stopped.", "denied")
        await written(_close(run, round_, round_.ordered(), origin="stopped"))
        return
    if not calls:  # crashed after the last result
        await _finish(run, round_)
        return
    try:
        hook = ""
        run.repeatable, run.injections = "round", 0
        emitted = run.events.fire(PreToolRound, (calls,))
        event: PreToolRound | None = emitted if emitted is None or isinstance(emitted, Event) else await emitted
        run.repeatable = ""
        verdict = None
        if event is not None and event.decision is not None:
            verdict, hook = event.verdict, event.decision.hook
        match verdict:
            case Deny(reason=reason):
                round_.answer_rest(f"Denied: {reason}", "denied")
            case Stop(reason=reason):
                round_.stop = reason
                round_.answer_rest(f"Not run: {reason}", "denied")
            case Suspend(request=request) if not run.resuming:
                for call in calls:
                    round_.suspended[call.id] = (Pending(call.id, "approval", request, call, hook),)
            case None | Suspend():  # a Suspend was resolved by resuming
                if run.hooks.wraps and run.hooks.arounds(PreToolRound):
                    await _through_arounds(run, round_, event)
                elif len(machine.transcript.open_round) == 1 and round_.stop is None:
                    call = calls[0]  # fast path for the common case
                    acting = round_.actings[call.id] = Acting(run, call, 0)
                    try:
                        await acting.run_to_end()
                    finally:
                        round_.note(call, acting)
                else:
                    await round_.run_calls()
            case _:
                assert_never(verdict)
    except GeneratorExit:
        raise
    except BaseException as error:
        await _cut(run, round_, error)
        raise
    await _finish(run, round_)


async def close_open_round(run: RunBase) -> None:
    """Close the round that was running when the run was detached from its driver; see `agentflow.loop.abandoning`."""
    if isinstance(run.round, _Round):
        run.round = taken = run.round.taken_by(run)
        await _cut(run, taken, asyncio.CancelledError())


async def _through_arounds(run: RunBase, round_: _Round, event: PreToolRound | None) -> None:
    if event is None:
        event = run.events.sealed(PreToolRound, (round_.calls,))

    async def work() -> tuple[ToolResultBlock, ...]:
        await round_.run_calls()
        return round_.ordered()

    stage = Stage(run, PreToolRound)
    bare = Mono(partial(stage.do, work))
    try:
        source: Any = wrap(run, PreToolRound, event, bare)
    except Exception as error:
        stage.over = True
        if not isinstance(error, Veto):
            raise
        round_.answer_rest(f"Denied: {error.reason}", "denied")
        return
    if source is bare:
        stage.over = True
        await round_.run_calls()
        return

    try:
        results = await stage.outcome(source)
    except Veto as veto:  # equivalent to Deny
        round_.suspended = {}
        round_.answer_rest(f"Denied: {veto.reason}", "denied")
        return
    open_ids = {
        call.id for call in run.machine.transcript.open_round
    }  # including calls that finished before a suspension
    for result in () if results is EMPTY else cast("Sequence[ToolResultBlock]", results):
        if result.state != "suspended" and result.tool_use_id in open_ids:
            round_.results[result.tool_use_id] = result
            round_.suspended.pop(result.tool_use_id, None)  # answered
    if not round_.suspended and round_.stop is None and not round_.halted:
        round_.answer_rest("(no result)", "error")


async def _finish(run: RunBase, round_: _Round) -> None:
    """Complete a round with all calls answered or suspended: Post chain, facts, then the event for the reader."""
    events, calls = run.events, run.machine.transcript.open_round
    if round_.halted and not round_.suspended:
        await events.emit(PostToolRound, (calls, round_.ordered()))
        raise Halted
    if round_.stop is not None:
        round_.answer_rest("Not run: the call was stopped.", "denied")
    results = tuple(round_.results.values()) if len(round_.results) == 1 == len(calls) else round_.ordered()
    try:
        emitted = events.decide(PostToolRound, (calls, results))
        if emitted is None or isinstance(emitted, Event):
            event = emitted
        else:
            run.round = None  # its end is reported, even if another task resumes the run
            event = await emitted
    except GeneratorExit:
        raise
    except BaseException:
        told = len(round_.results) == len(calls)  # otherwise the event said "suspended"
        round_.answer_cut("Interrupted.")
        await written(_close(run, round_, round_.ordered(), origin=None if told else "interrupted"))
        raise
    if round_.suspended or (event is not None and event.decision is not None):
        writing = _judged(run, round_, event)
    else:
        writing = _close(run, round_, results)
    if writing is not None:
        run.round = None
        await writing
    if event is not None and events.buffer is not None:
        await events.hand_over(event)


def _judged(run: RunBase, round_: _Round, event: PostToolRound | None) -> Awaitable[None] | None:
    """Make a round with a verdict or suspended calls a fact: closed, or open and suspended."""
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
    # The event showed suspended calls, so their results after a Stop are announced.
    return _close(run, round_, round_.ordered(), *also, origin="stopped" if round_.suspended else None)


def _close(
    run: RunBase, round_: _Round, results: tuple[ToolResultBlock, ...], *also: Fact, origin: Origin | None = None
) -> Awaitable[None] | None:
    """Make a round's results, or its pending calls, a fact; with an origin if no event contains them."""
    if round_.suspended and round_.stop is None:
        pending = tuple([waits for one in round_.suspended.values() for waits in one])
        return run.journal.append(RoundSuspended(run.run_id, pending, run.call_id))
    if round_.stop is not None:
        run.outcome = "stopped"
    closed = (run.run_id, run.config.new_id("msg_"), results, round_.stop)
    if origin is None and not also:
        return run.journal.append_new(RoundClosed, closed)
    return run.journal.append(RoundClosed(*closed), *also, origin=origin or "injected")


async def _cut(run: RunBase, round_: _Round, error: BaseException) -> None:
    """Close a round that was cancelled or has failed: answer all calls, emit the Post event, make the results a fact."""
    with run.scope.cleanup():
        try:
            await round_.abort_waiting(error)
        finally:
            cut = isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit)
            round_.answer_cut("Interrupted." if cut else f"Not finished: the call failed ({type(error).__name__}).")
            try:
                run.round = None
                await run.events.emit(PostToolRound, (run.machine.transcript.open_round, round_.ordered()))
            except Exception as problem:
                attach(error, problem)
            finally:
                round_.stop = None
                if not run.scope.leaves():
                    try:
                        await written(_close(run, round_, round_.ordered()))
                    except StoreError as problem:
                        attach(error, problem)
