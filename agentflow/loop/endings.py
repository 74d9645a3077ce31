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

from agentflow.errors import ShutdownError
from agentflow.events import CallEnded, ErrorPhase, Event, PostCall
from agentflow.facts import CallClosed, Fact, RoundClosed, RoundSuspended
from agentflow.ground.logs import log_failure
from agentflow.loop.escalation import Halted, attach
from agentflow.loop.journal import written
from agentflow.loop.reasoning import as_reply
from agentflow.loop.run import RunBase
from agentflow.loop.states import State
from agentflow.messages import Msg, Outcome, Reply, tool_result
from agentflow.specs import Usage

__all__ = ["answer_all", "cut_short", "end", "halted", "respond", "wind_up"]


async def respond(run: RunBase, final: Msg, started: float) -> Reply:
    """Pass the final message through the Post chain, and close the call."""
    events, journal, port = run.events, run.journal, run.port
    if journal.landed or journal.asked:
        await journal.announce(events, port)
    if run.machine.state is State.ASSISTANT:  # no fact has the reply yet: what hooks of PostCall add stands behind it
        journal.holding = True
    duration = (run.monotonic() - started) * 1000
    usage = run.usage
    heard = events.decide(PostCall, port, (final, run.outcome, usage, duration))
    event = heard if heard is None or isinstance(heard, Event) else await heard
    if event is not None:
        final = event.final_message
    cut = None
    denied = run.machine.state is State.USER_INPUT  # it never opened
    if not denied:
        writing = journal.append_new(CallClosed, (run.run_id, run.call_id, run.outcome, final))
        cut = None if writing is None else await journal.kept(writing)
    if event is not None:
        await events.hand_over(event, port)
    if cut is not None:
        raise cut
    if journal.held and not denied:
        await journal.flush()
    if journal.landed or journal.asked:
        await journal.announce(events, port)
    return _reply(run, final, usage if event is None else run.usage)


def _reply(run: RunBase, final: Msg, usage: Usage) -> Reply:
    pending = run.machine.pending if run.outcome == "suspended" else ()
    return Reply.of(final, run.outcome, run.run_id, usage, pending, run.session.id)


async def end(run: RunBase, outcome: Outcome, error: BaseException | None) -> None:
    """Fire the last event; nothing can be injected any more.

    Its hooks have the call's `timeout` once more; then, or at an interrupt, the one that holds it up is cut off.
    """
    run.outcome = outcome
    stopping, events = run.stopping, run.events
    stopping.over = True
    if run.port is None and events.chains[CallEnded] is None:
        events.seq += 1
        return
    stopping.begin_end()
    try:
        heard = events.decide(CallEnded, run.port, (outcome, error, run.usage))
        event = heard if heard is None or isinstance(heard, Event) else await heard
    finally:
        stopping.finish_end()
    if event is not None:
        await events.hand_over(event, run.port)


async def halted(run: RunBase) -> BaseException:
    """The call has stopped at a safe point: keep what is done, end, and leave the rest to a later process.

    Returns:
        What to raise: to the caller an error, to the tool of the call that asked a signal.
    """
    error = ShutdownError(run.config.view.name, run.session.id, stopped=True)
    await _closed_and_told(run, run.journal.flush, error)
    await end(run, "interrupted", error)
    return error if run.parent is None else Halted()


async def wind_up(run: RunBase, error: BaseException, started: float) -> Reply | None:
    """The call was cut or has failed: make the history legal, tell of it, end.

    Returns:
        The reply of an interrupted call, or of one that a hook recovered; None: the error is to be raised.
    """
    run.stopping.absorb(error)
    recovered = await _recovered(run, error, started)
    if recovered is not None:
        return recovered
    # A signal that comes on top of an interrupt is not answered with a reply.
    reason = run.stopping.interrupted() if isinstance(error, Exception | asyncio.CancelledError) else None
    cut = reason is not None or (isinstance(error, asyncio.CancelledError) and run.stopping.is_cancelled())
    cut = cut or isinstance(error, KeyboardInterrupt | SystemExit)
    outcome: Outcome = "interrupted" if cut else "failed"
    ended: Exception | None = None
    if reason is not None:
        left = ShutdownError(run.config.view.name, run.session.id, stopped=True) if run.stopping.leaving else None
        ended = left or run.stopping.timed_out()
    shown = ended or (None if reason is not None else error)
    if not run.stopping.leaves() and not await _closed_and_told(run, partial(_close_history, run, outcome), error):
        cut_short(run)
    usage = run.usage  # as `CallEnded` shows it
    try:
        await end(run, outcome, shown)
    except GeneratorExit:
        raise
    except BaseException as problem:
        attach(error, problem)
        if isinstance(problem, asyncio.CancelledError) and not isinstance(error, asyncio.CancelledError):
            raise problem from error
    if reason is not None and run.stopping.interrupted() is None:  # cancelled meanwhile: no reply, and no other error
        return None
    if ended is not None:
        try:
            raise ended
        finally:
            del ended, shown  # its traceback holds this frame
    if reason is not None:
        final = run.partial or run.say(f"(interrupted: {reason})", "interrupted")
        return Reply.of(final, "interrupted", run.run_id, usage, run.session.pending, run.session.id)
    return None


async def _recovered(run: RunBase, error: BaseException, started: float) -> Reply | None:
    """Report a failure that nobody has reported yet; a hook may give the reply in its place, which passes `PostCall`."""
    if not isinstance(error, Exception) or run.stopping.interrupted() is not None:
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
            await run.journal.announce(run.events, run.port)
            reply = _reply(run, final, run.usage)
    except GeneratorExit:
        raise
    except BaseException as problem:
        run.stopping.absorb(problem)
        attach(error, problem)
        return None
    await end(run, "completed", None)
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
            await run.journal.announce(run.events, run.port)
        except GeneratorExit:
            raise
        except BaseException as problem:
            run.stopping.absorb(problem)
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
    run.stopping.over = True
    if machine.state in (State.USER_INPUT, State.SUSPENDED) or machine.run_id != run.run_id or run.stopping.leaves():
        return
    if machine.transcript.open_round:
        _append_unwaited(run, _closing_round(run))
    _append_unwaited(run, CallClosed(run.run_id, run.call_id, "interrupted", _accepted(run)))


def _append_unwaited(run: RunBase, fact: Fact) -> None:
    try:
        run.session.record_now(fact)
    except Exception as error:
        log_failure("ERROR", error, "the end of call {} could not be stored", run.call_id, where=run.events.frame)
