"""End a run without its driver, if its cleanup does not finish.

A hook, model or tool that swallows every cancellation holds the run's task indefinitely. If cleanup has used up its
time, the run is detached from that task: a clone of the run closes the history, fires the last events and returns the
result to the caller, in another task. If that does not finish either, a second clone does without the store, and a third
fires `CallEnded` alone. Any further use of the old run by the stuck code raises `GeneratorExit`, as if
its coroutine had been closed.
"""

from __future__ import annotations

import asyncio
from copy import copy
from typing import Any, Never, TypeVar, cast

from agentflow._support.logs import ids_of, logger
from agentflow.loop.emitting import Events
from agentflow.loop.journal import Journal, StoredJournal
from agentflow.loop.run import RunBase
from agentflow.loop.suspended import innermost

__all__ = ["abandon_tasks", "detached", "keep_in_memory", "stuck_in"]

R = TypeVar("R", bound=RunBase)


class _DeadEvents(Events):
    """The events of a run that was detached from its driver."""

    __slots__ = ()

    abandoned = True

    def _gone(self, *_: object, **__: object) -> Never:
        raise GeneratorExit("the run was abandoned")

    fire = decide = hand_over = _passed_on = _decided = report = _gone  # pyright: ignore[reportAssignmentType] - none returns


class _DeadJournal(Journal):
    """The journal of a detached run. It refuses all facts."""

    __slots__ = ()

    def _gone(self, *_: object, **__: object) -> Never:
        raise GeneratorExit("the run was abandoned")

    append = append_new = hold = flush = announce = _gone  # pyright: ignore[reportAssignmentType] - none returns


class _DeadStoredJournal(StoredJournal):
    __slots__ = ()

    append = append_new = hold = flush = announce = _DeadJournal._gone  # pyright: ignore[reportAssignmentType, reportPrivateUsage]


def detached(run: R) -> R:
    """Detach a run from the tasks that hold it.

    Returns:
        The clone that continues instead.
    """
    alive = copy(run)
    alive.events, alive.journal = run.events.of(alive), copy(run.journal)
    run.events.__class__ = _DeadEvents
    stored = isinstance(run.journal, StoredJournal)
    cast("Any", run.journal).__class__ = _DeadStoredJournal if stored else _DeadJournal
    return alive


class _UnstoredJournal(StoredJournal):
    """The journal of a run if its store does not respond: facts are kept in memory only."""

    __slots__ = ()

    append = Journal.append
    append_new = Journal.append_new


def keep_in_memory(run: RunBase) -> None:
    """Stop using the store of a run. The next call on the session loads the stored facts."""
    if isinstance(run.journal, StoredJournal):
        run.journal.__class__ = _UnstoredJournal
        run.session.reload()


def stuck_in(tasks: list[asyncio.Task[Any]]) -> str:
    """Describe the places at which tasks wait: for each the innermost function outside asyncio, with file and line."""
    found = [innermost(task) for task in tasks if not task.done()]
    return ", ".join(dict.fromkeys(found)) or "?"


def abandon_tasks(run: RunBase, seconds: float, tasks: list[asyncio.Task[Any]]) -> str:
    """Abandon tasks.

    Returns:
        A message that says where the tasks are.
    """
    said = f"cleanup of the cancelled call took longer than {seconds:g} s and was abandoned; it is still in {stuck_in(tasks)}"
    logger.bind(**ids_of(run.events.frame)).warning(said)
    for task in tasks:
        # `asyncio.run` waits for all registered tasks, so Ctrl-C would not end the program.
        task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue] - no public API
        asyncio._unregister_task(task)  # pyright: ignore[reportPrivateUsage] - documented for extensions of asyncio
    return said
