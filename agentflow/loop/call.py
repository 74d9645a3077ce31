"""The driver: performs the machine's next action, one at a time, until the call has a reply.

Rules:

1. One driver for every path: `call`, `stream`, `block` and durable workers run this coroutine; only the reader differs.
2. Exactly one `CallEnded` per call, and it is the last event, on success, failure, interrupt, cancellation and close.
3. The caller sees the original error; what fails while it is reported is attached to it as a note.
4. A call that was cut leaves a legal history: open rounds answered, the user's words kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any, cast

from agentflow.errors import ShutdownError, Veto
from agentflow.events import CallEnded, ErrorPhase, PostCall, PreCall
from agentflow.facts import CallClosed, CallOpened, CallResumed, Fact, RoundClosed
from agentflow.ground.frozen import EMPTY as NO_DECISIONS
from agentflow.ground.logs import log_failure
from agentflow.hooks.answers import check_final
from agentflow.loop.active import Halted
from agentflow.loop.machine import Machine, State
from agentflow.loop.reasoning import as_reply, reason
from agentflow.loop.round import act, in_tasks
from agentflow.loop.run import RunBase, attach
from agentflow.loop.session import Carried
from agentflow.loop.sources import Stage, sealed, wrap
from agentflow.loop.stream import Port
from agentflow.messages import Msg, Outcome, Reply, tool_result
from agentflow.reactive import EMPTY, Mono
from agentflow.verdicts import Answer, Deny, Resolution

__all__ = ["Run"]


_WORK = ("reason", "summary", "act")


def _outcome_so_far(machine: Machine) -> Outcome:
    """The outcome that a cut run had already come to: whether its last facts have stopped it."""
    if machine.state is State.RESPONSE and machine.final is not None:
        said = machine.final.metadata.get("synthetic")
        if said == "denied" or said == "stopped":
            return said
        if machine.stop is not None:
            return "stopped"
    return "completed"


class Run(RunBase):
    """One call of an agent. `execute` is the whole of it; the session must have been acquired, and is released."""

    input_messages: tuple[Msg, ...] = ()
    is_resume = False
    _given: Mapping[str, Resolution] = NO_DECISIONS

    def continuing(self, decisions: Mapping[str, Resolution]) -> Run:
        """Make this a resume: of a suspended run, with decisions; of one that a crash has cut, with those that it had."""
        machine = self.machine
        self.is_resume = True
        self._given = decisions
        answered = machine.suspended or machine.answers is not None
        if not machine.suspended and machine.answers is not None:
            decisions = machine.answers
        self.resuming = answered and machine.state is State.TOOL_EXECUTION
        self.decisions = decisions
        inside: dict[str, dict[str, Resolution]] = {}
        for waits in machine.pending if answered else ():
            if waits.within is not None:
                theirs = inside.setdefault(waits.within, {})
                if waits.id in decisions:
                    theirs[waits.id.removeprefix(f"{waits.within}/")] = decisions[waits.id]
        self.decided_inside = inside
        self.iteration = machine.iteration
        self.outcome = _outcome_so_far(machine)
        carried = self.session.carried
        if carried is not None and carried.run_id == self.run_id:
            self.seq, self.fact_list, self._state = carried.seq, carried.facts, carried.state
        self.session.carried = None
        return self

    async def execute(self) -> Reply:
        """Run the call from its first event to its last.

        Returns:
            The reply: completed, denied, stopped, limited, suspended or interrupted.

        Raises:
            Exception: What the call failed with, after `CallEnded`.
        """
        try:
            await self.take_task()
        except BaseException:
            self.over = True
            self.session.release()
            raise
        self.session.run = self
        if self.session.interrupted is not None:
            self.interrupt(self.session.interrupted)
        if self.timeout is not None:
            self.watch_the_clock()
        started = self.monotonic()
        running = self.config.running
        try:
            running.begin(self)
            try:
                final = await self._begin()
                if final is None:
                    await self._work()
                    final = self._final()
                if (
                    self.chains[PostCall] is None
                    and self.port is None
                    and not self.landed
                    and self.session.store is None
                ):
                    self.seq += 1
                    reply = self._replied(final)
                else:
                    reply = await self._respond(final, started)
            except GeneratorExit:
                self.cut()
                raise
            except Halted:
                raise await self._halted() from None
            except BaseException as error:
                recovered = await self._wind_up(error, started)
                if recovered is None:
                    raise
                return recovered
            if self.chains[CallEnded] is None and self.port is None:
                self.seq += 1
            else:
                await self._end(reply.outcome, None)
            return reply
        finally:
            self.over = True
            running.end(self)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self.reader is not None:
                self.reader.run = None
            if self.machine.suspended or (self.halting and self.machine.state is not State.USER_INPUT):
                state = self._state if self._context is None else self._context.state
                self.session.carried = Carried(self.run_id, self.seq, self.fact_list, state)
            # The run, its context, its last event, its errors and its task would keep each other until the collector comes.
            self._context = self._frame = self.task = None
            self._reported = ()
            if self.port is not None:
                self.port.event = None
            self.session.release()

    # ---- the beginning

    async def _begin(self) -> Msg | None:
        """Open or resume the call; returns the final message where a verdict gave it at once."""
        if self.config.system is not None:
            self.head = await self._system()
        if self.is_resume:
            await self.record(CallResumed(self.run_id, self.call_id, self._given))
            self.holding = False
            return None
        messages = self.input_messages
        event: PreCall | None = None
        if self.chains[PreCall] is None and self.port is None:
            self.seq += 1
        else:
            history = self.machine.transcript.messages
            event = cast("PreCall | None", await self.decide(PreCall, self.port, messages, history))
            if event is not None:
                messages = tuple(event.input_messages)
                decided = event.decision
                if decided is not None and isinstance(decided.verdict, Deny):
                    self.outcome = "denied"
                    await self.hand_over(event, self.port)
                    return self.say(decided.verdict.reason, "denied")
        answer: Msg | None = None
        if event is not None and event.decision is not None and isinstance(event.decision.verdict, Answer):
            answer = as_reply(event.decision.verdict.value, event.decision.hook, "PreCall", self.config.new_id)
        opened = CallOpened(self.run_id, self.call_id, messages, self.config.max_iterations, answer)
        kept = self.note(opened, "injected", *self.let_go()) if self.held else self.note(opened)
        cut = None if kept is None else await self.keep(kept)
        self.holding = False
        if event is not None:
            await self.hand_over(event, self.port)
        if cut is not None:
            raise cut
        if self.held:
            await self.let_in()
        if answer is not None:
            return answer
        return await self._through_arounds(event) if self.hooks.arounds(PreCall) else None

    async def _system(self) -> tuple[Msg, ...]:
        system: Any = self.config.system
        if callable(system):
            system = system(self.context)
            if isinstance(system, Awaitable):
                system = await cast("Awaitable[Any]", system)
        if system is None or system == "":
            return ()
        return (system if isinstance(system, Msg) else Msg("system", Msg.system(str(system)).content, id="system"),)

    async def _through_arounds(self, event: PreCall | None) -> Msg | None:
        if event is None:
            values = (self.input_messages, self.machine.transcript.messages)
            event = sealed(self, PreCall, *values)
        stage = Stage(self, PreCall)

        async def rest() -> Msg:
            await self._work()
            return self._final()

        bare = Mono(partial(stage.do, rest))
        try:
            source: Any = wrap(self, PreCall, event, bare)
        except Veto as veto:
            stage.over = True
            self.outcome = "denied"
            return self.say(veto.reason, "denied")
        if source is bare:
            stage.over = True
            return None
        found: list[Any] = []

        async def wrapped(port: Port | None) -> None:
            outer, self.port = self.port, port
            try:
                found.append(await stage.outcome(source))
            except Veto as veto:  # equals Deny, as far as the input is not stored already
                self.outcome = "denied"
                found.append(self.say(veto.reason, "denied"))
            finally:
                self.port = outer

        if self.port is None:
            await wrapped(None)
        else:
            await in_tasks(self, [wrapped], 1)
        if found[0] is EMPTY:
            return None if stage.begun else self.say("(no answer)", "closing")
        if self.machine.suspended:
            return None
        final = as_reply(found[0], "around", "PreCall", self.config.new_id)
        check_final(final, "around", "PreCall")
        return final

    # ---- the loop

    async def _work(self) -> None:
        machine = self.machine
        while True:
            if self.landed or self.unwritten:
                await self.fire_landed()
            if self.interrupting is not None:  # a tool may have swallowed the cancellation
                self.notice_interrupt()
            action = machine.next()
            if (self.halting or self.parent is not None) and action in _WORK and self.halts():
                raise Halted
            if action == "reason" or action == "summary":
                await reason(self, action)
            elif action == "act":
                await act(self)
                self.resuming = False
            else:
                break
        if self.landed:
            await self.fire_landed()

    def _final(self) -> Msg:
        machine = self.machine
        if machine.suspended:
            self.outcome = "suspended"
            stored = machine.transcript.messages
            if machine.final is not None:
                return machine.final
            if len(stored) and stored[-1].role == "assistant":
                return stored[-1]
            return self.say("(waits for a decision)", "suspended")
        if machine.limited and self.outcome == "completed":
            self.outcome = "limited"
        final = machine.final
        if final is None:
            final = self.say("(no answer)", "closing")
        return final

    # ---- the end

    async def _respond(self, final: Msg, started: float) -> Reply:
        """Pass the final message through the Post chain, and close the call."""
        if self.landed or self.unwritten:
            await self.fire_landed()
        duration = (self.monotonic() - started) * 1000
        event = cast(
            "PostCall | None", await self.decide(PostCall, self.port, final, self.outcome, self.usage, duration)
        )
        if event is not None:
            final = event.final_message
        cut = None
        if self.machine.state is not State.USER_INPUT:  # a denied call never opened
            cut = await self.keep(self.record(CallClosed(self.run_id, self.call_id, self.outcome, final)))
        if event is not None:
            await self.hand_over(event, self.port)
        if cut is not None:
            raise cut
        if self.landed:
            await self.fire_landed()
        return self._reply(final)

    def _replied(self, final: Msg) -> Reply:
        """Close the call where nobody listens and nothing has to be waited for."""
        if self.machine.state is not State.USER_INPUT:
            self.note(CallClosed(self.run_id, self.call_id, self.outcome, final))
        return self._reply(final)

    def _reply(self, final: Msg) -> Reply:
        pending = self.machine.pending if self.outcome == "suspended" else ()
        return Reply.of(final, self.outcome, self.run_id, self.usage, pending, self.session.id)

    async def _end(self, outcome: Outcome, error: BaseException | None) -> None:
        """Fire the last event; nothing that happens there takes it back, and nothing can be injected any more.

        Its hooks have the call's `timeout` once more; then, or at an interrupt, the one that holds it up is cut off.
        """
        self.outcome = outcome
        self.over = True
        if self.chains[CallEnded] is None and self.port is None:
            self.seq += 1
            return
        if self._timer is not None:
            self.watch_the_clock()
        self._ending = True
        try:
            event = await self.decide(CallEnded, self.port, outcome, error, self.usage)
        finally:
            self._ending = False
            self.take_back_cuts()
        if event is not None:
            await self.hand_over(event, self.port)

    async def _halted(self) -> BaseException:
        """The call has stopped at a safe point: keep what is done, end, and leave the rest to a later process.

        Returns:
            What to raise: to the caller an error, to the tool of the call that asked a signal.
        """
        error = ShutdownError(self.config.view.name, self.session.id, stopped=True)
        try:
            await self.let_in()
            if self.landed or self.unwritten:
                await self.fire_landed()
        except GeneratorExit:
            raise
        except BaseException as problem:
            self.absorb(problem)
            attach(error, problem)
        await self._end("interrupted", error)
        return error if self.parent is None else Halted()

    async def _wind_up(self, error: BaseException, started: float) -> Reply | None:
        """The call was cut or has failed: make the history legal, tell of it, end.

        Returns:
            The reply of an interrupted call, or of one that a hook recovered; None: the error is to be raised.
        """
        self.absorb(error)
        recovered = await self._recovered(error, started)
        if recovered is not None:
            return recovered
        # A signal that comes on top of an interrupt is not answered with a reply.
        reason = self.interrupted() if isinstance(error, Exception | asyncio.CancelledError) else None
        cut = reason is not None or (isinstance(error, asyncio.CancelledError) and self.is_cancelled())
        cut = cut or isinstance(error, KeyboardInterrupt | SystemExit)
        outcome: Outcome = "interrupted" if cut else "failed"
        ended: Exception | None = None
        if reason is not None:
            left = ShutdownError(self.config.view.name, self.session.id, stopped=True) if self.leaving else None
            ended = left or self.timed_out()
        shown = ended or (None if reason is not None else error)
        try:
            if not self.leaves():
                await self._close_history(outcome)
        except GeneratorExit:
            raise
        except BaseException as problem:
            attach(error, problem)
            self.cut()
        try:
            await self._end(outcome, shown)
        except GeneratorExit:
            raise
        except BaseException as problem:
            attach(error, problem)
            if isinstance(problem, asyncio.CancelledError) and not isinstance(error, asyncio.CancelledError):
                raise problem from error
        if ended is not None:
            try:
                raise ended
            finally:
                del ended, shown  # its traceback holds this frame
        if reason is not None:
            final = self.partial or self.say(f"(interrupted: {reason})", "interrupted")
            return Reply.of(final, "interrupted", self.run_id, self.usage, (), self.session.id)
        return None

    async def _recovered(self, error: BaseException, started: float) -> Reply | None:
        """Report a failure that nobody has reported yet; a hook may give the reply in its place, which passes `PostCall`."""
        if not isinstance(error, Exception) or self.interrupted() is not None:
            return None
        try:
            verdict = await self.report(error, ErrorPhase.CALL, fatal=True)
            if verdict is None:
                return None
            final = as_reply(verdict.value, "Recover", "Error", self.config.new_id)
            self.outcome = "completed"
            if await self._answer_all():
                reply = await self._respond(final, started)
            else:
                reply = self._reply(final)
        except GeneratorExit:
            raise
        except BaseException as problem:
            self.absorb(problem)
            attach(error, problem)
            return None
        await self._end("completed", None)
        return reply

    async def _answer_all(self) -> bool:
        """Store what was asked for, and answer the calls of an open round; returns whether the call is open."""
        machine = self.machine
        mine = machine.run_id == self.run_id
        if self.held and mine:
            await self.let_in()
        await self.settle()
        if machine.state is State.USER_INPUT or not mine:
            return False
        if machine.transcript.open_round:
            await self.record(self._closing_round())
            self.tell_results("interrupted")
        return True

    async def _close_history(self, outcome: Outcome) -> None:
        """Close what is open, and tell of all that no event has carried."""
        if await self._answer_all():
            final = self._accepted()
            await self.record(CallClosed(self.run_id, self.call_id, outcome, final))
            if final is not None and "synthetic" in final.metadata:
                self.landed = (((final,), "closing"), *self.landed)
        if self.landed:
            await self.fire_landed()

    def _accepted(self) -> Msg | None:
        """The reply that was accepted before the call was cut."""
        return self.machine.final if self.machine.state is State.RESPONSE else None

    def _closing_round(self) -> RoundClosed:
        machine = self.machine
        results = [
            machine.finished.get(use.id) or tool_result(use.id, use.name, "Interrupted.", "interrupted")
            for use in machine.transcript.open_round
        ]
        return RoundClosed(self.run_id, self.config.new_id("msg_"), tuple(results))

    def cut(self) -> None:
        """End without a chance to wait: the loop is gone. The history is made legal; hooks are not called."""
        machine = self.machine
        self.over = True
        if machine.state is State.USER_INPUT or machine.run_id != self.run_id or machine.suspended or self.leaves():
            return
        if machine.transcript.open_round:
            self._record_now(self._closing_round())
        self._record_now(CallClosed(self.run_id, self.call_id, "interrupted", self._accepted()))

    def _record_now(self, fact: Fact) -> None:
        try:
            self.session.record_now(fact)
        except Exception as error:
            log_failure("ERROR", error, "the end of call {} could not be stored", self.call_id)
