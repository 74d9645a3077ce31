"""A call of an agent: execute the machine's next action, one at a time, until there is a reply.

Rules:

1. There is one driver: `call`, `stream`, `block` and durable workers run this coroutine, in its own task.
2. The last event of each call is its only `CallEnded`, however the call ends: by success, failure, interrupt,
   cancellation or close.

See `agentflow.loop.endings` for the ways in which a call ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any, Self, assert_never, cast

from agentflow.errors import FailureNote, Veto
from agentflow.hooks.answers import check_final
from agentflow.loop.endings import (
    abandon_tasks,
    abandoned_result,
    answer_all,
    detach,
    end,
    end_again,
    end_halted,
    end_now,
    keep_in_memory,
    respond,
    wind_up,
)
from agentflow.loop.escalation import Halted
from agentflow.loop.journal import wait_if_needed
from agentflow.loop.machine import Machine
from agentflow.loop.reasoning import as_reply, reason
from agentflow.loop.round import act, close_open_round
from agentflow.loop.run import Resumption, RunBase
from agentflow.loop.session import OpenRun
from agentflow.loop.stage import Stage, wrap
from agentflow.loop.states import State
from agentflow.reactive import EMPTY, Mono
from agentflow.vocabulary.events import Event, PreCall
from agentflow.vocabulary.facts import CallOpened, CallResumed, new_fact
from agentflow.vocabulary.messages import Msg, Outcome, Reply
from agentflow.vocabulary.transcript import MessageTuple
from agentflow.vocabulary.verdicts import Answer, Deny, Resolution

__all__ = ["Call"]


_WORK = ("reason", "summary", "act")


def _outcome_so_far(machine: Machine) -> Outcome:
    """Return the outcome so far of a run that a call continues: a verdict may have decided it already."""
    if machine.state is not State.ASSISTANT and machine.final is not None:
        mark = machine.final.metadata.get("synthetic")
        if mark == "denied" or mark == "stopped":
            return mark
        if machine.stop is not None:
            return "stopped"
    return "completed"


class Call(RunBase):
    """One call of an agent. `start` runs it in its own task. The session must have been acquired; the call releases it."""

    __slots__ = ()

    def continuing(self, decisions: Mapping[str, Resolution]) -> Call:
        """Make this call continue a suspended run with the given decisions, or a run that a crash interrupted with its
        earlier decisions."""
        machine, original = self.machine, decisions
        suspended = machine.state is State.SUSPENDED
        # After a crash in a resumed round, the facts contain the decisions on that round, which are still valid.
        answered = suspended or machine.suspension.answers is not None
        if not suspended and machine.suspension.answers is not None:
            decisions = machine.suspension.answers
        inside: dict[str, dict[str, Resolution]] = {}
        for wait in machine.suspension.pending if answered else ():
            if wait.within is not None:
                inner_decisions = inside.setdefault(wait.within, {})
                if wait.id in decisions:
                    inner_decisions[wait.id.removeprefix(f"{wait.within}/")] = decisions[wait.id]
        self.resumption = Resumption(original, decisions, inside, answered and bool(machine.transcript.open_round))
        # Continued, so that the numbers of events and iterations are unique within the run.
        self.events.iteration = machine.iteration
        self.outcome = _outcome_so_far(machine)
        open_run = self.session.open_run
        if open_run is not None and open_run.run_id == self.run_id:
            self.events.seq = open_run.seq
            self.journal.facts = open_run.facts
            self.make_context(open_run.state)
        self.session.open_run = None  # this call owns the data now
        return self

    def start(self) -> None:
        """Run the call in its own task; `scope.result` waits for its reply."""
        session, scope, running = self.session, self.scope, self.config.running
        # Set before `interrupted` is read: from here on `Session.interrupt` reaches the call itself.
        session.run = self
        if session.interrupted is not None:
            scope.cancel("interrupted", session.interrupted)
        running.runs.add(self)
        if running.closed:  # the agent was closed after the call was permitted
            running.halt(self)
        # Last, because an eager task factory runs the call inside this statement.
        scope.start(self._execute(), self._abandon)

    async def _execute(self) -> None:
        """Run the call from its first event to its last. Errors are not raised here, but by `scope.result`."""
        scope = self.scope
        scope.state = "running"
        if scope.tasks.driver is None:  # an eager task, which runs before `scope.start` has set this
            scope.tasks.driver = asyncio.current_task()
        started = self.config.clock.monotonic()
        reply: Reply | None = None
        failure: BaseException | None = None
        try:
            try:
                final = await self._begin()
                if final is None:
                    await self._work()
                    final = self._final()
                reply = await respond(self, final, started)
            except Halted:
                failure = await end_halted(self)
            except BaseException as error:  # every call ends with CallEnded
                reply, failure = await wind_up(self, error, started)
            else:
                ending = end(self, reply.outcome, None, reply)
                if ending is not None:
                    await ending
            # Added after `CallEnded`: the output is only for the caller; events contain the text from which it is read.
            if reply is not None and (typed := self.settings.typed) is not None:
                reply = await typed(reply)
        except GeneratorExit:  # the event loop is closed, or the call was abandoned
            # `done` if a later call on the session has finished this one already; see `FullSession.acquire`.
            if not self.events.abandoned and self.scope.state != "done":
                end_now(self)
                self._finish(None, None)
            raise
        except BaseException as error:  # for example a KeyboardInterrupt in a hook of the last events
            reply, failure = None, error
        if self.events.abandoned:  # already finished by another task
            return
        self._finish(reply, failure)
        failure = None  # its traceback holds this frame

    def _finish(self, reply: Reply | None, failure: BaseException | None) -> None:
        """Release the session, and pass the reply or the error to the caller."""
        # `session.release()` is last, since the next call, perhaps in another thread, may begin at once.
        session, running = self.session, self.config.running
        running.runs.discard(self)
        if running.waiting:
            running.notify_if_idle()
        if self.machine.state is not State.USER_INPUT:
            self._keep_open()
        elif running.suspended:
            running.suspended.pop(session.id, None)
        # Finished before `release`, which wakes the reader: the reader looks for this state.
        self.scope.finish(reply, failure)
        self.release()
        session.release()

    def _keep_open(self) -> None:
        """Keep the data of an open run for the call that continues it."""
        session, scope, suspended = self.session, self.scope, self.config.running.suspended
        if self.machine.state is State.SUSPENDED:
            suspended[session.id] = session
        else:
            suspended.pop(session.id, None)
            # Not left open on purpose: closing it failed. `resume` can continue it, with new event numbers.
            if not scope.halting and (scope.cause is None or scope.cause.kind != "shutdown"):
                return
        state = None if self._context is None else self._context.state
        session.open_run = OpenRun(self.run_id, self.events.seq, self.journal.facts, state)

    def _abandon(self, step: int = 0) -> None:
        """Finish the call if its driver never started, or its cleanup does not finish.

        A clone of the call with another driver ends the call. If this driver blocks too, a second clone does the same
        without the store, which may hang (the next call loads the stored facts). A third only fires the last event. If
        even that blocks, the call is finished without awaiting.

        Args:
            step: The number of clones so far.
        """
        task = self.scope.tasks.driver
        # `finished` after the first step: the last event was fired twice, and its hooks have blocked each time.
        if task is None or task.done() or step == 3 or (step and self.finished):
            self._drop()
            return
        clone, notice = self._detach_from(task)
        if step == 1:
            keep_in_memory(clone)
        driver = clone._end_at_once(notice) if step == 2 else clone._end_without_driver(notice)
        self.scope.hand_to(driver, partial(clone._abandon, step + 1))

    def _detach_from(self, task: asyncio.Task[Any]) -> tuple[Self, str]:
        """Detach the call from its driver's task. Return the clone, and a message that says where the tasks are."""
        scope, running = self.scope, self.config.running
        notice = abandon_tasks(self, scope.tasks.cleanup_timeout, scope.tasks.running)
        running.runs.discard(self)
        clone = detach(self)
        running.runs.add(clone)
        self.session.run = clone
        return clone, notice

    async def _end_without_driver(self, notice: str) -> None:
        """End the call as its driver would have done."""
        reply: Reply | None = None
        failure: BaseException | None = None
        try:
            if self.finished:
                reply, failure = await end_again(self)
            else:
                # Marked as cleanup, so that hooks run although the run is stopped.
                with self.scope.cleanup():
                    # The abandoned driver may be writing a fact that decides what to close.
                    await wait_if_needed(self.journal.pending_writes())
                    await close_open_round(self)
                reply, failure = await wind_up(self, asyncio.CancelledError(), self.config.clock.monotonic())
            if reply is not None and (typed := self.settings.typed) is not None:
                reply = await typed(reply)
        except BaseException as error:  # passed to the caller
            failure = error
        self._finish_late(reply, failure, notice)
        failure = None  # its traceback holds this frame

    async def _end_at_once(self, notice: str) -> None:
        """Close the history without awaiting, and fire the last event."""
        end_now(self)
        reply, failure = abandoned_result(self)
        try:
            await wait_if_needed(end(self, "interrupted", failure, reply))
        except BaseException as error:  # passed to the caller
            failure = failure or error
        self._finish_late(reply, failure, notice)
        failure = None

    def _finish_late(self, reply: Reply | None, failure: BaseException | None, notice: str) -> None:
        """Finish the call, with a note about the abandoned tasks on its error."""
        if self.events.abandoned or self.scope.state == "done":  # already finished by another task
            return
        if failure is not None:
            failure.add_note(FailureNote(notice))
        self._finish(reply, failure)

    def _drop(self) -> None:
        """Finish the call at once, without awaiting."""
        end_now(self)
        self._finish(*abandoned_result(self))

    # ---- the beginning

    async def _begin(self) -> Msg | None:
        """Open or resume the call. Return the final message if a verdict supplied it."""
        events, journal = self.events, self.journal
        if self.config.system is not None:
            self.additions.head = await self._system()
        if self.resumption is not None:
            await wait_if_needed(journal.append(CallResumed(self.run_id, self.call_id, self.resumption.original)))
            await journal.flush()  # writes messages that a function for the system prompt has injected
            return None
        messages = self.settings.messages
        event: PreCall | None = None
        answer: Msg | None = None
        # Counted in any case, so that the numbers of events do not depend on the hooks.
        if PreCall not in events.handled:
            events.seq += 1
        else:
            shown = MessageTuple(messages)
            emitted = events.decide(PreCall, (shown, self.machine.transcript.view()))
            event = emitted if emitted is None or isinstance(emitted, Event) else await emitted
            if event is not None:
                if event.input_messages is not shown:  # a hook replaced them; a tuple never changes in place
                    messages = tuple(event.input_messages)
                if event.decision is not None:
                    verdict = event.verdict
                    match verdict:
                        case None:
                            pass
                        case Deny(reason=reason):
                            self.outcome = "denied"
                            await wait_if_needed(events.hand_over(event))
                            # Without `CallOpened`: the input of a denied call is not stored.
                            return self.say(reason, "denied")
                        case Answer(value=value):
                            answer = as_reply(value, event.decision.hook, "PreCall", self.config.new_id)
                        case _:
                            assert_never(verdict)
        # Written before the event is handed over: a reader never sees a call that a crash could undo.
        opened = (self.run_id, self.call_id, messages, self.config.max_iterations, answer)
        writing = journal.append(new_fact(CallOpened, opened))
        if writing is not None:
            await writing
        if event is not None and (delivery := events.hand_over(event)) is not None:
            await delivery
        if answer is not None:
            return answer
        hooks = events.hooks
        return await self._through_arounds(event) if PreCall in hooks.wraps else None

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
            event = self.events.sealed(PreCall, (self.settings.messages, self.machine.transcript.messages))
        stage = Stage(self, PreCall)

        async def rest() -> Msg:
            await self._work()
            return self._final()

        inner = Mono(partial(stage.do, rest))
        try:
            source: Any = wrap(self, PreCall, event, inner)
        except Exception as error:  # an `around` raised it when it was called, before any work
            stage.closed = True
            if not isinstance(error, Veto):
                raise
            self.outcome = "denied"
            return self.say(error.reason, "denied")
        # No hook wraps this call after all, so the loop runs without a stage and its checks.
        if source is inner:
            stage.closed = True
            return None
        try:
            found = await stage.outcome(source)
        except Veto as veto:  # like Deny, except that the input is stored already
            self.outcome = "denied"
            return self.say(veto.reason, "denied")
        if found is EMPTY:
            # The hook dropped the reply, but the work ran: the machine's own reply counts.
            return None if stage.begun else self.say("(no answer)", "closing")
        # A suspended run has no reply yet that a hook could replace.
        if self.machine.state is State.SUSPENDED:
            return None
        if self.machine.transcript.open_round:  # a wrapping hook may answer although a round failed or was interrupted
            await answer_all(self)
        final = as_reply(found, "around", "PreCall", self.config.new_id)
        check_final(final, "around", "PreCall")
        return final

    # ---- the loop

    async def _work(self) -> None:
        """Execute the machine's next action until it has a reply."""
        machine, journal, scope = self.machine, self.journal, self.scope
        while True:
            # Announced before the next action, so that hooks see a message before the model does.
            if journal.unannounced or journal.requested:
                await journal.announce(self.events)
            if scope.stopped:  # a tool may have swallowed the cancellation
                scope.check()
            action = machine.next()
            # A safe point: between two actions all finished work is stored. `halts` comes last, as the slowest check.
            if (scope.halting or scope.parent is not None) and action in _WORK and scope.halts():
                raise Halted
            if action == "reason" or action == "summary":
                await reason(self, action)
            elif action == "act":
                await act(self)
                if self.resumption is not None:
                    self.resumption.in_round = False  # the decisions apply to the first round only
            else:
                break

    def _final(self) -> Msg:
        """Return the final message, and set the outcome if the run was suspended or reached its limit."""
        machine = self.machine
        if machine.state is State.SUSPENDED:
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

    # ---- control from outside

    @property
    def inner(self) -> bool:
        """Whether it is a sub-agent's call."""
        return self.parent is not None

    @property
    def left_open(self) -> bool:
        """Whether its session contains a call that `agent.resume` can continue."""
        return self.machine.next() not in ("input", "suspended")

    @property
    def session_id(self) -> str:
        """The id of its session."""
        return self.session.id

    def halt(self) -> None:
        """Stop the call at its next safe point, and leave it open for a resume; see `agentflow.agent.graceful`."""
        self.scope.halting = True

    def leave(self, reason: str) -> None:
        """Cancel the call, and leave it open as after a crash."""
        self.scope.halting = True
        self.scope.cancel("shutdown", reason)

    def finish_lost(self) -> None:
        """Make the session legal at once, after the call's event loop was closed."""
        end_now(self)
        self._finish(None, None)
