"""How a call ends: with a reply, an error, an interrupt, at a safe point, or immediately.

Rules:

1. The caller receives the original error; a failure while it is reported is attached as a note.
2. An interrupted call leaves a legal history: its open round is answered, and the user's messages are kept. If it waits
   for a decision in a sub-agent, it stays suspended.
3. `CallEnded` is always the last event; a failure in its hooks does not change the outcome.
4. Every stored message is announced, even if a hook fails on another message or the call is interrupted meanwhile.

A hook, model or tool that swallows every cancellation holds the run's task indefinitely. If cleanup exceeds its time
limit, the run is detached from that task: a clone of the run closes the history, fires the last events and returns the
result to the caller, in another task. If this clone does not finish either, a second clone does the same without the
store; a third one only fires `CallEnded`. If the stuck code uses the old run again, `GeneratorExit` is raised in it, as
if its coroutine had been closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from copy import copy
from functools import partial
from typing import Any, Never, TypeVar, assert_never, cast

from agentflow._support.logs import ids_of, log_failure, logger
from agentflow.errors import CallTimeoutError, ShutdownError
from agentflow.loop.emitting import ALL_EVENTS, Events
from agentflow.loop.escalation import Halted, NotedOn, attach
from agentflow.loop.journal import Journal, StoredJournal, wait_if_needed
from agentflow.loop.reasoning import as_reply
from agentflow.loop.run import RunBase
from agentflow.loop.scope_parts import Cause
from agentflow.loop.states import State
from agentflow.loop.suspended import innermost
from agentflow.vocabulary.context import context_for
from agentflow.vocabulary.events import CallEnded, ErrorPhase, Event, PostCall
from agentflow.vocabulary.facts import CallClosed, Fact, RoundClosed, RoundSuspended, new_fact
from agentflow.vocabulary.messages import Msg, Outcome, Reply, tool_result
from agentflow.vocabulary.specs import Usage

__all__ = [
    "abandon_tasks",
    "abandoned_result",
    "answer_all",
    "detach",
    "end",
    "end_again",
    "end_halted",
    "end_now",
    "keep_in_memory",
    "respond",
    "stuck_in",
    "wind_up",
]


async def respond(run: RunBase, final: Msg, started: float) -> Reply:
    """Pass the final message through the Post chain, and close the call."""
    events, journal = run.events, run.journal
    if journal.unannounced or journal.requested:
        await journal.announce(events)
    # Otherwise messages that hooks of PostCall inject in this state would be stored at once, before the final message.
    if run.machine.state is State.ASSISTANT:
        journal.awaits_place = True
    duration = (run.config.clock.monotonic() - started) * 1000
    usage = run.usage  # for the event; the reply's usage also includes side calls by hooks of PostCall
    event: PostCall | None = None
    if PostCall not in events.handled:
        events.seq += 1
    else:
        emitted = events.decide(PostCall, (final, run.outcome, usage, duration))
        event = emitted if emitted is None or isinstance(emitted, Event) else await emitted
        if event is not None:
            final = event.final_message
    # The order is that of every event: store the fact, pass the event to the reader, store the messages of hooks.
    denied = run.machine.state is State.USER_INPUT  # the call was not opened
    if not denied:
        writing = journal.append(new_fact(CallClosed, (run.run_id, run.call_id, run.outcome, final)))
        if writing is not None:
            await writing
    if event is not None and (delivery := events.hand_over(event)) is not None:
        await delivery
    # The reply is stored, but if the call was cancelled meanwhile, its caller gets the cancellation.
    if run.scope.stopped:
        run.scope.check()
    if journal.unplaced and not denied:
        await journal.flush()
    if journal.unannounced or journal.requested:
        await journal.announce(events)
    pending = run.machine.suspension.pending if run.outcome == "suspended" else ()
    return Reply.of(final, run.outcome, run.run_id, usage if event is None else run.usage, pending, run.session.id)


def end(
    run: RunBase, outcome: Outcome, error: BaseException | None, reply: Reply | None = None
) -> Awaitable[None] | None:
    """Fire the last event. After this no message can be injected, and the outcome is fixed. Return an awaitable only if
    a hook or the reader receives the event.

    If the run is cancelled while hooks of `CallEnded` run, they have `cleanup_timeout` seconds left; see `end_again`.
    """
    scope, events = run.scope, run.events
    if events.abandoned:
        # The clone fires the last event. The stuck code must not continue, so this is not an `Exception`, which it
        # might catch.
        raise GeneratorExit("the run was abandoned")
    run.outcome = outcome
    # Set before the hooks run: if they block, `abandoned_result` returns this, and a cancellation cannot change it.
    scope.state, scope.value_and_error = "ending", (reply, error)
    if CallEnded not in events.handled:
        events.seq += 1
        return None
    return _report_end(run, error)


async def _report_end(run: RunBase, error: BaseException | None) -> None:
    scope, events = run.scope, run.events
    with scope.cleanup():
        emitted = events.decide(CallEnded, (run.outcome, error, run.usage))
        event = emitted if emitted is None or isinstance(emitted, Event) else await emitted
        if event is not None and events.buffer is not None:
            events.buffer.put(event)  # without waiting for the reader


async def end_again(run: RunBase) -> tuple[Reply | None, BaseException | None]:
    """Fire the last event again, after one of its hooks blocked the run until the driver was abandoned.

    Returns:
        The settled reply and error.
    """
    reply, error = run.scope.value_and_error
    usage = run.usage  # before the hooks of `CallEnded`, as in the first attempt
    with NotedOn(error):
        await wait_if_needed(end(run, run.outcome, error, reply))
    if reply is None and error is None:
        reply = _interrupted_reply(run, usage)
    return reply, error


def abandoned_result(run: RunBase) -> tuple[Reply | None, BaseException | None]:
    """Return the reply and the error of a run that no driver finished: the settled ones, or those for its cause."""
    reply, error = run.scope.value_and_error
    if reply is not None or error is not None:
        return reply, error
    error, cause = asyncio.CancelledError("the call was abandoned"), run.scope.cause
    if cause is not None and cause.kind == "interrupted":
        return _interrupted_reply(run, run.usage), None
    return None, _error_and_outcome(run, error, cause)[0]


async def end_halted(run: RunBase) -> BaseException:
    """End a call that stopped at a safe point: store the finished work, and leave the call open for a later process.

    Returns:
        The exception to raise: an error for the caller, or a signal if the caller is a tool of another call.
    """
    error = ShutdownError(run.config.view.name, run.session.id, stopped=True)
    with run.scope.cleanup():
        await _close_and_announce(run, run.journal.flush, error)
        await wait_if_needed(end(run, "interrupted", error))
    # A `BaseException`, so that the tool which made the call cannot treat it as a failure.
    return error if run.parent is None else Halted()


async def wind_up(run: RunBase, error: BaseException, started: float) -> tuple[Reply | None, BaseException | None]:
    """End a call that was cancelled or failed: make the history legal, report the error, fire the last event.

    Returns:
        The reply of an interrupted call or of a hook that recovered it; otherwise the error for the caller.
    """
    scope = run.scope
    if isinstance(error, asyncio.CancelledError):
        # Without a cause, the shutdown of an event loop would look like a failure from which a hook may recover.
        scope.adopt()
    cause = scope.cause
    with scope.cleanup(error):
        # A hook can recover from a failure, but not from a cancellation.
        if cause is None:
            recovered = await _recovered(run, error, started)
            if recovered is not None:
                return recovered, None
        ended, outcome = _error_and_outcome(run, error, cause)
        # During a shutdown nothing more is stored, so that a later process can continue the call as after a crash.
        if not scope.leaves() and not await _close_and_announce(run, partial(_close_history, run, outcome), error):
            end_now(run)  # closing has failed: make at least the history in memory legal
        usage = run.usage  # the same as in `CallEnded`
        interrupted = cause is not None and cause.kind == "interrupted"
        with NotedOn(ended):
            await wait_if_needed(end(run, outcome, None if interrupted and ended is error else ended))
    if interrupted and ended is error and isinstance(error, Exception | asyncio.CancelledError):
        return _interrupted_reply(run, usage), None
    return None, ended


def _interrupted_reply(run: RunBase, usage: Usage) -> Reply:
    """Return the reply of an interrupted call: the model's partial reply, or a synthetic one with the reason."""
    assert run.scope.cause is not None
    final = run.additions.partial or run.say(f"(interrupted: {run.scope.cause.reason})", "interrupted")
    return Reply.of(final, "interrupted", run.run_id, usage, run.session.pending, run.session.id)


def _error_and_outcome(run: RunBase, error: BaseException, cause: Cause | None) -> tuple[BaseException, Outcome]:
    """Return the error and the outcome of a call without a reply.

    A signal (`KeyboardInterrupt`) has precedence over the cause of a cancellation.
    """
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return error, "interrupted"
    if cause is None:
        return error, "failed"
    match cause.kind:
        case "timeout":
            assert run.scope.tasks.timeout is not None
            ended: BaseException = CallTimeoutError(run.scope.tasks.timeout, run.config.view.name)
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
    """Report a failure that was not reported yet. If a hook recovers with a reply, pass the reply through `PostCall`."""
    if not isinstance(error, Exception):
        return None
    reply: Reply | None = None
    with NotedOn(error):
        verdict = await run.events.report(error, ErrorPhase.CALL, fatal=True)
        if verdict is None:
            return None
        final = as_reply(verdict.value, "Recover", "Error", run.config.new_id)
        run.outcome = "completed"
        if await answer_all(run):
            reply = await respond(run, final, started)
        else:
            await run.journal.announce(run.events)
            reply = Reply.of(final, "completed", run.run_id, run.usage, (), run.session.id)
    if reply is not None:
        await wait_if_needed(end(run, "completed", None, reply))
    return reply


async def answer_all(run: RunBase) -> bool:
    """Store pending injections, and answer the calls of an open round. Return whether the call must still be closed."""
    machine = run.machine
    # False if the call failed before `CallOpened`: the machine is in the state of the previous run, so injections are
    # dropped.
    own_run = machine.run_id == run.run_id
    if not own_run:
        run.journal.unplaced = ()
    await run.journal.flush()
    if machine.state is State.USER_INPUT or not own_run or _closed_as_suspended(run):
        return False
    if machine.transcript.open_round:
        await wait_if_needed(run.journal.append(_closing_round(run), origin="interrupted"))
    return True


def _closed_as_suspended(run: RunBase) -> bool:
    """Whether the call was closed as suspended. A later cancellation must not change that, so that the call can be
    resumed."""
    if run.machine.state is not State.SUSPENDED:
        return False
    return any(isinstance(fact, CallClosed) and fact.call_id == run.call_id for fact in reversed(run.journal.facts))


async def _close_history(run: RunBase, outcome: Outcome) -> None:
    """Close the open round and the call. If a sub-agent is suspended in the round, close the call as suspended."""
    machine = run.machine
    inside = machine.waiting_inside() if machine.run_id == run.run_id else {}
    if inside and not _closed_as_suspended(run):
        await run.journal.flush()
        # The round may have written this fact before it was interrupted.
        if machine.state is not State.SUSPENDED:
            pending = tuple([wait for group in inside.values() for wait in group])
            await wait_if_needed(run.journal.append(RoundSuspended(run.run_id, pending, run.call_id)))
        await wait_if_needed(run.journal.append(CallClosed(run.run_id, run.call_id, "suspended", machine.final)))
        return
    if not await answer_all(run):
        return
    final = _accepted_reply(run)
    closed = CallClosed(run.run_id, run.call_id, outcome, final)
    announced = final is None or "synthetic" not in final.metadata  # a reply of the model is part of `PostReasoning`
    await wait_if_needed(run.journal.append(closed, origin=None if announced else "closing"))


async def _close_and_announce(run: RunBase, close: Callable[[], Awaitable[None]], error: BaseException) -> bool:
    """Close the history, and announce all messages that no event contains. Failures are noted on the error.

    Returns:
        True if nothing failed.
    """
    # A loop, since each failure ends one pass, and the remaining messages must still be stored and announced.
    closed, succeeded = False, True
    while not closed or run.journal.unannounced or run.journal.requested:
        try:
            if not closed:
                closed = True
                await close()
            await run.journal.announce(run.events)
        except BaseException as problem:  # for example a signal in a hook
            attach(error, problem)
            succeeded = False
            # A cancellation interrupts no write, but the history may still be open: close it in the next pass.
            if isinstance(problem, asyncio.CancelledError):
                closed = False
    return succeeded


def _accepted_reply(run: RunBase) -> Msg | None:
    """Return the reply that was accepted before the call was interrupted."""
    return None if run.machine.state is State.ASSISTANT else run.machine.final


def _closing_round(run: RunBase) -> RoundClosed:
    machine = run.machine
    results = [
        machine.round.finished.get(use.id) or tool_result(use.id, use.name, "Interrupted.", "interrupted")
        for use in machine.transcript.open_round
    ]
    return RoundClosed(run.run_id, run.config.new_id("msg_"), tuple(results))


def end_now(run: RunBase) -> None:
    """Make the history legal without awaiting or calling hooks, since the event loop was closed or cleanup has failed."""
    if run.events.abandoned:  # the clone of the run closes the history
        return
    machine = run.machine
    # Closed, suspended, never opened, or left for a later process: the history is legal as it is.
    if machine.state in (State.USER_INPUT, State.SUSPENDED) or machine.run_id != run.run_id or run.scope.leaves():
        return
    if machine.transcript.open_round:
        _append_unwaited(run, _closing_round(run))
    _append_unwaited(run, CallClosed(run.run_id, run.call_id, "interrupted", _accepted_reply(run)))


def _append_unwaited(run: RunBase, fact: Fact) -> None:
    try:
        run.session.record_now(fact)
    except Exception as error:  # only logged: there may be no caller and no event loop for it
        log_failure("ERROR", error, "the end of call {} could not be stored", run.call_id, where=run.events.frame)


R = TypeVar("R", bound=RunBase)


def _abandoned(*_: object, **__: object) -> Never:
    raise GeneratorExit("the run was abandoned")


_refuse: Any = _abandoned  # typed as `Any`, since it replaces methods of different signatures


class _DeadEvents(Events):
    """The class that the events of a detached run get. The stuck code cannot emit any event."""

    __slots__ = ()

    abandoned = True
    # All types, so that the stuck code skips no emission point: it ends at the first one that it reaches.
    handled = ALL_EVENTS
    fire = decide = hand_over = _after_hooks = _decided = report = _refuse


class _DeadJournal(Journal):
    """The class that the journal of a detached run gets. The stuck code cannot add any fact."""

    __slots__ = ()

    append = request = flush = announce = _refuse


class _DeadStoredJournal(StoredJournal):
    __slots__ = ()

    append = request = flush = announce = _refuse


def detach(run: R) -> R:
    """Detach a run from the tasks that hold it.

    Returns:
        The clone that continues instead.
    """
    # The clone shares scope, session and machine with the run, but gets its own events and journal. Those of the run
    # are disabled by a change of their class: so the stuck code, which refers to them, is stopped without a check in
    # each method.
    clone = copy(run)
    clone.events, clone.journal = run.events.of(clone), copy(run.journal)
    clone.journal.unannounced = (*run.journal.announcing, *run.journal.unannounced)
    clone.journal.announcing = ()
    # Hooks of the clone need a context that refers to the clone, since the old run now refuses their injections.
    cast("Any", clone)._context = context_for(run.context, clone)
    run.events.__class__ = _DeadEvents
    stored = isinstance(run.journal, StoredJournal)
    cast("Any", run.journal).__class__ = _DeadStoredJournal if stored else _DeadJournal
    return clone


class _UnstoredJournal(StoredJournal):
    """The class that the journal of a run gets if its store does not respond: it applies facts in memory only."""

    __slots__ = ()

    append = Journal.append
    pending_writes = Journal.pending_writes


def keep_in_memory(run: RunBase) -> None:
    """Stop using the store of a run. The next call on the session loads the stored facts."""
    # A write that never ends may hold the store's lock, so waiting for the lock would block this driver too.
    if run.session.link is not None:
        cast("Any", run.journal).__class__ = _UnstoredJournal
        run.session.link.stale = True


def stuck_in(tasks: list[asyncio.Task[Any]]) -> str:
    """Describe where tasks wait: for each task the innermost function outside asyncio, with its file and line."""
    found = [innermost(task) for task in tasks if not task.done()]
    return ", ".join(dict.fromkeys(found)) or "?"


def abandon_tasks(run: RunBase, seconds: float, tasks: list[asyncio.Task[Any]]) -> str:
    """Abandon tasks that ignore their cancellation: log where they are, and remove them from asyncio's registry.

    Returns:
        The logged message.
    """
    notice = f"cleanup of the cancelled call took longer than {seconds:g} s and was abandoned; it is still in {stuck_in(tasks)}"
    logger.bind(**ids_of(run.events.frame)).warning(notice)
    for task in tasks:
        # `asyncio.run` waits for all registered tasks, so Ctrl-C would not end the program.
        task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue] - no public API
        asyncio._unregister_task(task)  # pyright: ignore[reportPrivateUsage] - documented for extensions of asyncio
    return notice
