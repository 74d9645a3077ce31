"""A call of an agent: the machine's next action, one at a time, until there is a reply.

Rules:

1. One driver for every path: `call`, `stream`, `block` and durable workers run this coroutine; only the reader differs.
2. Exactly one `CallEnded` per call, and it is the last event, on success, failure, interrupt, cancellation and close.

How a call ends, by itself or otherwise, stands in `endings`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any, assert_never, cast

from agentflow.errors import Veto
from agentflow.events import Event, PreCall
from agentflow.facts import CallOpened, CallResumed
from agentflow.hooks.answers import check_final
from agentflow.loop.conversation import Carried
from agentflow.loop.endings import answer_all, cut_short, end, halted, respond, wind_up
from agentflow.loop.escalation import Halted
from agentflow.loop.journal import written
from agentflow.loop.machine import Machine
from agentflow.loop.reasoning import as_reply, reason
from agentflow.loop.round import act
from agentflow.loop.run import RunBase
from agentflow.loop.sources import wrap
from agentflow.loop.stage import Stage
from agentflow.loop.states import State
from agentflow.loop.stream import Port
from agentflow.loop.tasks import in_tasks
from agentflow.messages import Msg, Outcome, Reply
from agentflow.reactive import EMPTY, Mono
from agentflow.transcript import MessageTuple
from agentflow.verdicts import Answer, Deny, Resolution

__all__ = ["Call"]


_WORK = ("reason", "summary", "act")


def _outcome_so_far(machine: Machine) -> Outcome:
    """The outcome that a cut run had already come to: whether its last facts have stopped it."""
    if machine.state is not State.ASSISTANT and machine.final is not None:
        said = machine.final.metadata.get("synthetic")
        if said == "denied" or said == "stopped":
            return said
        if machine.stop is not None:
            return "stopped"
    return "completed"


class Call(RunBase):
    """One call of an agent. `execute` is the whole of it; the session must have been acquired, and is released."""

    __slots__ = ()

    def continuing(self, decisions: Mapping[str, Resolution]) -> Call:
        """Make this a resume: of a suspended run, with decisions; of one that a crash has cut, with those that it had."""
        machine = self.machine
        self.given = decisions
        suspended = machine.state is State.SUSPENDED
        answered = suspended or machine.answers is not None
        if not suspended and machine.answers is not None:
            decisions = machine.answers
        self.resuming = answered and bool(machine.transcript.open_round)
        self.decisions = decisions
        inside: dict[str, dict[str, Resolution]] = {}
        for waits in machine.pending if answered else ():
            if waits.within is not None:
                theirs = inside.setdefault(waits.within, {})
                if waits.id in decisions:
                    theirs[waits.id.removeprefix(f"{waits.within}/")] = decisions[waits.id]
        self.decided_inside = inside
        self.events.iteration = machine.iteration
        self.outcome = _outcome_so_far(machine)
        carried = self.session.carried
        if carried is not None and carried.run_id == self.run_id:
            self.events.seq, self._state = carried.seq, carried.state
            self.journal.go_on(carried.facts)
        self.session.carried = None
        return self

    async def execute(self) -> Reply:
        """Run the call from its first event to its last.

        Returns:
            The reply: completed, denied, stopped, limited, suspended or interrupted.

        Raises:
            Exception: What the call failed with, after `CallEnded`.
        """
        session, stopping, running = self.session, self.stopping, self.config.running
        try:
            if stopping.take_task():
                await stopping.await_earlier()
        except BaseException:
            stopping.over = True
            session.release()
            raise
        session.run = self
        if session.interrupted is not None:
            stopping.interrupt(session.interrupted)
        if stopping.timeout is not None:
            stopping.watch_the_clock()
        started = self.monotonic()
        try:
            running.runs.add(self)
            if running.closed:  # between its permission and now
                running.halt(self)
            try:
                final = await self._begin()
                if final is None:
                    await self._work()
                    final = self._final()
                reply = await respond(self, final, started)
            except GeneratorExit:
                cut_short(self)
                raise
            except Halted:
                raise await halted(self) from None
            except BaseException as error:
                recovered = await wind_up(self, error, started)
                if recovered is None:
                    raise
                reply = recovered
            else:
                await end(self, reply.outcome, None)
            return reply
        finally:
            running.runs.discard(self)
            if running.waiting:
                running.tell()
            where = self.machine.state
            if where is State.SUSPENDED:
                running.suspended[session.id] = session
            elif running.suspended:
                running.suspended.pop(session.id, None)
            if where is State.SUSPENDED or (stopping.halting and where is not State.USER_INPUT):
                state = self._state if self._context is None else self._context.state
                session.carried = Carried(self.run_id, self.events.seq, self.journal.facts, state)
            self.let_go()
            session.release()

    # ---- the beginning

    async def _begin(self) -> Msg | None:
        """Open or resume the call; returns the final message where a verdict gave it at once."""
        events, journal, port = self.events, self.journal, self.port
        if self.config.system is not None:
            self.head = await self._system()
        if self.given is not None:
            await written(journal.append(CallResumed(self.run_id, self.call_id, self.given)))
            journal.holding = False
            return None
        messages = self.input_messages
        event: PreCall | None = None
        answer: Msg | None = None
        if port is None and events.chains[PreCall] is None:
            events.seq += 1
        else:
            shown = MessageTuple(messages)
            heard = events.decide(PreCall, port, (shown, self.machine.transcript.view()))
            event = heard if heard is None or isinstance(heard, Event) else await heard
            if event is not None:
                if event.input_messages is not shown:
                    messages = tuple(event.input_messages)
                if event.decision is not None:
                    verdict = event.verdict
                    match verdict:
                        case None:
                            pass
                        case Deny(reason=reason):
                            self.outcome = "denied"
                            await events.hand_over(event, port)
                            return self.say(reason, "denied")
                        case Answer(value=value):
                            answer = as_reply(value, event.decision.hook, "PreCall", self.config.new_id)
                        case _:
                            assert_never(verdict)
        opened = (self.run_id, self.call_id, messages, self.config.max_iterations, answer)
        writing = journal.append_new(CallOpened, opened)
        cut = None if writing is None else await journal.kept(writing)
        if event is not None:
            await events.hand_over(event, port)
        if cut is not None:
            raise cut
        if answer is not None:
            return answer
        return await self._through_arounds(event) if self.hooks.wraps and self.hooks.arounds(PreCall) else None

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
            event = self.events.sealed(PreCall, (self.input_messages, self.machine.transcript.messages))
        stage = Stage(self, PreCall)

        async def rest() -> Msg:
            await self._work()
            return self._final()

        bare = Mono(partial(stage.do, rest))
        try:
            source: Any = wrap(self, PreCall, event, bare)
        except Exception as error:
            stage.over = True
            if not isinstance(error, Veto):
                raise
            self.outcome = "denied"
            return self.say(error.reason, "denied")
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
            try:
                await wrapped(None)
            finally:
                self.stopping.take_back()
        else:
            try:
                await in_tasks(self, [wrapped], 1)
            finally:
                stage.over = True  # cut before its first step, it has not ended by itself
        if found[0] is EMPTY:
            return None if stage.begun else self.say("(no answer)", "closing")
        if self.machine.state is State.SUSPENDED:
            return None
        if self.machine.transcript.open_round:  # a layer answers for a round that was cut or has failed
            await answer_all(self)
        final = as_reply(found[0], "around", "PreCall", self.config.new_id)
        check_final(final, "around", "PreCall")
        return final

    # ---- the loop

    async def _work(self) -> None:
        """Ask the machine what comes next, and do it, until it has a reply."""
        machine, journal, stopping = self.machine, self.journal, self.stopping
        while True:
            if journal.landed or journal.asked:
                await journal.announce(self.events, self.port)
            if stopping.interrupting is not None:  # a tool may have swallowed the cancellation
                stopping.notice()
            action = machine.next()
            if (stopping.halting or self.parent is not None) and action in _WORK and stopping.halts():
                raise Halted
            if action == "reason" or action == "summary":
                await reason(self, action)
            elif action == "act":
                await act(self)
                self.resuming = False
            else:
                break
        if journal.landed:
            await journal.announce(self.events, self.port)

    def _final(self) -> Msg:
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

    # ---- what others may do to it

    @property
    def inner(self) -> bool:
        """Whether it is a sub-agent's."""
        return self.parent is not None

    @property
    def left_open(self) -> bool:
        """Whether its session holds a call that `agent.resume` goes on with."""
        return self.machine.next() not in ("input", "suspended")

    @property
    def session_id(self) -> str:
        """The id of its session."""
        return self.session.id

    def halt(self) -> None:
        """See `Stopping.halt`."""
        self.stopping.halt()

    def leave(self, reason: str) -> None:
        """See `Stopping.leave`."""
        self.stopping.leave(reason)

    def cut(self) -> None:
        """Nothing can be awaited any more."""
        cut_short(self)
