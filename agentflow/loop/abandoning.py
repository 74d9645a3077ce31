"""How a run ends whose cleanup does not: without its driver.

A hook, model or tool that swallows every cancellation holds the run's task for as long as it likes. When cleanup has used up
its time, the run is taken away from that task: a clone of the run closes the history, fires the last events and gives the
caller its result, in another task. What the stuck code still does with the old run raises `GeneratorExit`, as if it had been
closed.
"""

from __future__ import annotations

import asyncio
from copy import copy
from typing import Any, Never, TypeVar, cast

from agentflow.ground.logs import ids_of, logger
from agentflow.loop.emitting import Events
from agentflow.loop.journal import Journal, StoredJournal
from agentflow.loop.run import RunBase
from agentflow.loop.suspended import innermost

__all__ = ["detached", "leave_behind", "stuck_in"]

R = TypeVar("R", bound=RunBase)


class _DeadEvents(Events):
    """The events of a run that was taken away from its driver."""

    __slots__ = ()

    abandoned = True

    def _gone(self, *_: object, **__: object) -> Never:
        raise GeneratorExit("the run was abandoned")

    fire = decide = hand_over = _passed_on = _decided = report = _gone  # pyright: ignore[reportAssignmentType] - they only raise


class _DeadJournal(Journal):
    """The journal of such a run: what is told to it is lost."""

    __slots__ = ()

    def _gone(self, *_: object, **__: object) -> Never:
        raise GeneratorExit("the run was abandoned")

    append = append_new = hold = flush = announce = _gone  # pyright: ignore[reportAssignmentType] - they only raise


class _DeadStoredJournal(StoredJournal):
    __slots__ = ()

    append = append_new = hold = flush = announce = _DeadJournal._gone  # pyright: ignore[reportAssignmentType, reportPrivateUsage]


def detached(run: R) -> R:
    """Take a run away from the tasks that hold it.

    Returns:
        The clone that goes on in its place.
    """
    alive = copy(run)
    alive.events, alive.journal = run.events.of(alive), copy(run.journal)
    run.events.__class__ = _DeadEvents
    stored = isinstance(run.journal, StoredJournal)
    cast("Any", run.journal).__class__ = _DeadStoredJournal if stored else _DeadJournal
    return alive


def stuck_in(tasks: list[asyncio.Task[Any]]) -> str:
    """Where tasks wait, for people: the innermost function of each that is not asyncio's, with file and line."""
    found = [innermost(task) for task in tasks if not task.done()]
    return ", ".join(dict.fromkeys(found)) or "?"


def leave_behind(run: RunBase, seconds: float, tasks: list[asyncio.Task[Any]]) -> str:
    """Leave tasks to themselves.

    Returns:
        What to tell people: where the tasks are.
    """
    said = f"cleanup of the cancelled call took longer than {seconds:g} s and was abandoned; it is still in {stuck_in(tasks)}"
    logger.bind(**ids_of(run.events.frame)).warning(said)
    for task in tasks:
        # `asyncio.run` waits for every task that is registered, so Ctrl-C would not end the program.
        task._log_destroy_pending = False  # pyright: ignore[reportAttributeAccessIssue] - asyncio's own switch
        asyncio._unregister_task(task)  # pyright: ignore[reportPrivateUsage] - documented, for those who extend asyncio
    return said
