"""How a call ends: with a reply, an error, an interrupt, at a safe point, or with no time left.

Rules:

1. The caller sees the original error; what fails while it is reported is attached to it as a note.
2. A call that was cut leaves a legal history: open rounds answered, the user's words kept. One that waits for a sub-agent's
   decision stays suspended.
3. `CallEnded` comes last, on every path; nothing that happens there takes the end back.
4. What was stored is told: a hook that fails on a message, and whatever cuts the way to the end, keep none of the others from
   being told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import assert_never

from agentflow.errors import CallTimeoutError, ShutdownError
from agentflow.events import CallEnded, ErrorPhase, Event, PostCall
from agentflow.facts import CallClosed, Fact, RoundClosed, RoundSuspended
from agentflow.ground.logs import log_failure
from agentflow.loop.escalation import Halted, attach
from agentflow.loop.journal import written
from agentflow.loop.reasoning import as_reply
from agentflow.loop.run import RunBase
from agentflow.loop.scope import Cause
from agentflow.loop.states import State
from agentflow.messages import Msg, Outcome, Reply, tool_result
from agentflow.specs import Usage

__all__ = ["answer_all", "cut_short", "end", "end_again", "given_up", "halted", "respond", "wind_up"]


async def respond(run: RunBase, final: Msg, started: float) -> Reply:
    """Pass the final message through the Post chain, and close the call."""
    events, journal = run.events, run.journal
    if journal.landed or journal.asked:
        await journal.announce(events)
    if run.machine.state is State.ASSISTANT:  # no fact has the reply yet: what hooks of PostCall add comes after it
        journal.holding = True
    duration = (run.monotonic() - started) * 1000
    usage = run.usage
    heard = events.decide(PostCall, (final, run.outcome, usage, duration))
    event = heard if heard is None or isinstance(heard, Event) else await heard
    if event is not None:
        final = event.final_message
    denied = run.machine.state is State.USER_INPUT  # it never opened
    if not denied:
        writing = journal.append_new(CallClosed, (run.run_id, run.call_id, run.outcome, final))
        if writing is not None:
            await writing
    if event is not None and events.buffer is not None:
        await events.hand_over(event)
    if run.scope.stopped:
        run.scope.check()
    if journal.held and not denied:
        await journal.flush()
    if journal.landed or journal.asked:
        await journal.announce(events)
    return _reply(run, final, usage if event is None else run.usage)


def _reply(run: RunBase, final: Msg, usage: Usage) -> Reply:
    pending = run.machine.pending if run.outcome == "suspended" else ()
    return Reply.of(final, run.outcome, run.run_id, usage, pending, run.session.id)


async def end(run: RunBase, outcome: Outcome, error: BaseException | None, reply: Reply | None = None) -> None:
    """Fire the last event; nothing can be injected any more, and nothing changes the outcome.

    If the run is cancelled while hooks of `CallEnded` run, they have `cleanup_timeout` seconds left; see `end_again`.
    """
    scope, events = run.scope, run.events
    if events.abandoned:
        raise GeneratorExit("the run was abandoned")
    run.outcome = outcome
    scope.settle(reply, error)
    if events.buffer is None and events.chains[CallEnded] is None:
        events.seq += 1
        return
    with scope.cleanup():
        heard = events.decide(CallEnded, (outcome, error, run.usage))
        event = heard if heard is None or isinstance(heard, Event) else await heard
        if event is not None and events.buffer is not None:
            events.buffer.put(event)  # the run does not wait for its reader any more


async def end_again(run: RunBase) -> tuple[Reply | None, BaseException | None]:
    """Fire the last event once more: a hook of it has held the run up until its driver was abandoned.

    Returns:
        What was settled.
    """
    reply, error = run.scope.settled
    usage = run.usage
    try:
        await end(run, run.outcome, error, reply)
    except GeneratorExit:
        raise
    except BaseException as problem:
        if error is not None:
            attach(error, problem)
    if reply is None and error is None:
        reply = _interrupted(run, usage)
    return reply, error


def given_up(run: RunBase) -> tuple[Reply | None, BaseException | None]:
    """What the caller of a run gets whose end could not be waited for: what was settled, or what its cause comes to."""
    reply, error = run.scope.settled
    if reply is not None or error is not None:
        return reply, error
    error, cause = asyncio.CancelledError("the call was abandoned"), run.scope.cause
    if cause is not None and cause.kind == "interrupted":
        return _interrupted(run, run.usage), None
    return None, _ending(run, error, cause)[0]


async def halted(run: RunBase) -> BaseException:
    """The call has stopped at a safe point: keep what is done, end, and leave the rest to a later process.

    Returns:
        What to raise: to the caller an error, to the tool of the call that asked a signal.
    """
    error = ShutdownError(run.config.view.name, run.session.id, stopped=True)
    with run.scope.cleanup():
        await _closed_and_told(run, run.journal.flush, error)
        await end(run, "interrupted", error)
    return error if run.parent is None else Halted()


async def wind_up(run: RunBase, error: BaseException, started: float) -> tuple[Reply | None, BaseException | None]:
    """The call was cancelled or has failed: make the history legal, report it, end.

    Returns:
        The reply of an interrupted call, or of one that a hook recovered; else the error that the caller gets.
    """
    scope = run.scope
    if isinstance(error, asyncio.CancelledError):
        scope.adopt()
    cause = scope.cause
    with scope.cleanup():
        if cause is None:
            recovered = await _recovered(run, error, started)
            if recovered is not None:
                return recovered, None
        ended, outcome = _ending(run, error, cause)
        if not scope.leaves() and not await _closed_and_told(run, partial(_close_history, run, outcome), error):
            cut_short(run)
        usage = run.usage  # as `CallEnded` shows it
        interrupted = cause is not None and cause.kind == "interrupted"
        try:
            await end(run, outcome, None if interrupted and ended is error else ended)
        except GeneratorExit:
            raise
        except BaseException as problem:
            attach(ended, problem)
    if interrupted and ended is error and isinstance(error, Exception | asyncio.CancelledError):
        return _interrupted(run, usage), None
    return None, ended


def _interrupted(run: RunBase, usage: Usage) -> Reply:
    assert run.scope.cause is not None
    final = run.partial or run.say(f"(interrupted: {run.scope.cause.reason})", "interrupted")
    return Reply.of(final, "interrupted", run.run_id, usage, run.session.pending, run.session.id)


def _ending(run: RunBase, error: BaseException, cause: Cause | None) -> tuple[BaseException, Outcome]:
    """The error and the outcome of a call that has not come to a reply.

    A signal (`KeyboardInterrupt`) counts for more than the cause of a cancellation.
    """
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return error, "interrupted"
    if cause is None:
        return error, "failed"
    match cause.kind:
        case "timeout":
            assert run.scope.timeout is not None
            ended: BaseException = CallTimeoutError(run.scope.timeout, run.config.view.name)
        case "shutdown":
            ended = ShutdownError(run.config.view.name, run.session.id, stopped=True)
        case "interrupted":
            ended = error
        case "cancelled" | "closed":
            ended = error if isinstance(error, asyncio.CancelledError) else asyncio.CancelledError(cause.reason)
        case _:
            assert_never(cause.kind)
    return ended, "interrupted"


async def _recovered(run: RunBase, error: BaseException, started: float) -> Reply | None:
    """Report a failure that was not reported yet; a hook may give a reply instead, which passes `PostCall`."""
    if not isinstance(error, Exception):
        return None
    try:
        verdict = await run.events.report(error, ErrorPhase.CALL, fatal=True)
        if verdict is None:
            return None
        final = as_reply(verdict.value, "Recover", "Error", run.config.new_id)
        run.outcome = "completed"
        if await answer_all(run):
            reply = await respond(run, final, started)
        else:
            await run.journal.announce(run.events)
            reply = _reply(run, final, run.usage)
    except GeneratorExit:
        raise
    except BaseException as problem:
        attach(error, problem)
        return None
    await end(run, "completed", None, reply)
    return reply


async def answer_all(run: RunBase) -> bool:
    """Store what was asked for, and answer the calls of an open round; returns whether the call is open."""
    machine = run.machine
    mine = machine.run_id == run.run_id
    if not mine:
        run.journal.held = ()
    await run.journal.flush()
    if machine.state is State.USER_INPUT or not mine or _waits(run):
        return False
    if machine.transcript.open_round:
        await written(run.journal.append(_closing_round(run), origin="interrupted"))
    return True


def _waits(run: RunBase) -> bool:
    """Whether the call is closed as suspended: what cuts it behind that takes nothing from who resumes it."""
    if run.machine.state is not State.SUSPENDED:
        return False
    return any(isinstance(fact, CallClosed) and fact.call_id == run.call_id for fact in reversed(run.journal.facts))


async def _close_history(run: RunBase, outcome: Outcome) -> None:
    """Close what is open."""
    machine = run.machine
    inside = machine.waiting_inside() if machine.run_id == run.run_id else {}
    if inside and not _waits(run):
        await run.journal.flush()
        if machine.state is not State.SUSPENDED:
            pending = tuple([waits for one in inside.values() for waits in one])
            await written(run.journal.append(RoundSuspended(run.run_id, pending, run.call_id)))
        await written(run.journal.append(CallClosed(run.run_id, run.call_id, "suspended", machine.final)))
        return
    if not await answer_all(run):
        return
    final = _accepted(run)
    closed = CallClosed(run.run_id, run.call_id, outcome, final)
    told = final is None or "synthetic" not in final.metadata  # the reply of the model: an event carries it
    await written(run.journal.append(closed) if told else run.journal.append(closed, origin="closing"))


async def _closed_and_told(run: RunBase, close: Callable[[], Awaitable[None]], error: BaseException) -> bool:
    """Close what is open, and tell of all that no event has carried, whatever fails on the way: it is noted on the error.

    Returns:
        Whether nothing has failed.
    """
    closed, well = False, True
    while not closed or run.journal.landed or run.journal.asked:
        try:
            if not closed:
                closed = True
                await close()
            await run.journal.announce(run.events)
        except GeneratorExit:
            raise
        except BaseException as problem:
            attach(error, problem)
            well = False
            if isinstance(
                problem, asyncio.CancelledError
            ):  # what was being written is true, and more may be open behind it
                closed = False
    return well


def _accepted(run: RunBase) -> Msg | None:
    """The reply that was accepted before the call was cut."""
    return None if run.machine.state is State.ASSISTANT else run.machine.final


def _closing_round(run: RunBase) -> RoundClosed:
    machine = run.machine
    results = [
        machine.finished.get(use.id) or tool_result(use.id, use.name, "Interrupted.", "interrupted")
        for use in machine.transcript.open_round
    ]
    return RoundClosed(run.run_id, run.config.new_id("msg_"), tuple(results))


def cut_short(run: RunBase) -> None:
    """End without a chance to wait: the loop is gone. The history is made legal; hooks are not called."""
    machine = run.machine
    if machine.state in (State.USER_INPUT, State.SUSPENDED) or machine.run_id != run.run_id or run.scope.leaves():
        return
    if machine.transcript.open_round:
        _append_unwaited(run, _closing_round(run))
    _append_unwaited(run, CallClosed(run.run_id, run.call_id, "interrupted", _accepted(run)))


def _append_unwaited(run: RunBase, fact: Fact) -> None:
    try:
        run.session.record_now(fact)
    except Exception as error:
        log_failure("ERROR", error, "the end of call {} could not be stored", run.call_id, where=run.events.frame)
