"""Runs a workflow's function over what the facts of its run hold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, NamedTuple, cast

from agentflow.context import RunContext, port_of
from agentflow.errors import UsageError
from agentflow.facts import CallOpened, Reasoned, RoundClosed
from agentflow.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.orchestration.steps import Group, StepError, working

__all__ = ["Replayed", "before", "contributions", "replay"]


class Replayed(NamedTuple):
    """How far a workflow has come.

    `group`: the steps that come next; None: it has returned `value`. `open`: the ids of the calls that stand for these steps
    already.
    """

    group: Group[Any] | None
    value: Any
    open: tuple[str, ...]


class _Round(NamedTuple):
    uses: tuple[ToolUseBlock, ...]
    results: tuple[ToolResultBlock, ...]


class _Journal(NamedTuple):
    said: tuple[Msg, ...]
    rounds: tuple[_Round, ...]
    open: tuple[str, ...]


def replay(start: Callable[[Sequence[Msg]], Coroutine[Any, Any, Any]], context: RunContext) -> Replayed:
    """Run the function to the first steps that have no results yet, or to its end.

    Args:
        start: Begins a run of it, with what the user said.
        context: The call's.

    Raises:
        UsageError: It awaits something else than steps, or took other steps before.
    """
    journal = _journal(context)
    work = start(journal.said)
    token = working.set(True)
    try:
        return Replayed(*_driven(work, list(journal.rounds), context.agent.name), journal.open)
    finally:
        working.reset(token)
        work.close()


def _driven(work: Coroutine[Any, Any, Any], rounds: list[_Round], name: str) -> tuple[Group[Any] | None, object]:
    value: object = None
    error: StepError | None = None
    try:
        while True:
            try:
                awaited: object = work.send(value) if error is None else work.throw(error)
            except StopIteration as end:
                if rounds:
                    raise _other_way(name, "it has returned", rounds[0]) from None
                return None, end.value
            if not isinstance(awaited, Group):
                if isinstance(awaited, asyncio.Future):
                    cast("asyncio.Future[Any]", awaited).cancel()
                raise UsageError(
                    f"Workflow {name!r} awaits something else than steps. It runs again from its start whenever steps have "
                    "ended, so what takes time or touches the world is a step: a tool, await use(my_tool, ...)."
                )
            group = cast("Group[Any]", awaited)
            value, error = None, None
            if group.steps and not rounds:
                return group, None
            taken = rounds.pop(0) if group.steps else _Round((), ())
            if [step.name for step in group.steps] != [use.name for use in taken.uses]:
                raise _other_way(name, f"it asks for {', '.join(step.name for step in group.steps)}", taken)
            try:
                value = group.value(taken.results)
            except StepError as failed:
                error = failed
    finally:
        del error  # its traceback holds this frame


def _other_way(name: str, now: str, before: _Round) -> UsageError:
    return UsageError(
        f"Workflow {name!r} took other steps before: then {', '.join(use.name for use in before.uses)}, and now {now}. Its way "
        "must depend on nothing but its input and what its steps gave: chance, time and files belong into tools."
    )


def before(context: RunContext) -> tuple[Msg, ...]:
    """The conversation as it was before this run."""
    history = context.history
    opened = _journal(context).said
    first = next((place for place, msg in enumerate(history) if opened and msg.id == opened[0].id), len(history))
    return tuple(history[:first])


def contributions(history: Sequence[Msg]) -> Iterator[Msg | ToolResultBlock]:
    """What a user and agents have said in a session: the user's messages, and what the agents that keep a conversation gave."""
    asked: set[str] = set()
    for msg in history:
        if msg.role == "user" and "synthetic" not in msg.metadata:
            yield msg
        asked |= {use.id for use in msg.tool_uses if use.input.get("conversation") is True}
        for result in msg.tool_results:
            if result.tool_use_id in asked and result.state == "success":
                yield result


def _journal(context: RunContext) -> _Journal:
    """What the facts of the run say: what was said, the rounds that are closed, and the calls of the one that is open."""
    said: tuple[Msg, ...] = ()
    rounds: list[_Round] = []
    uses: tuple[ToolUseBlock, ...] = ()
    for fact in port_of(context).facts():
        match fact:
            case CallOpened(messages=messages):
                said, rounds, uses = messages, [], ()
            case Reasoned(message=reply, accepted=True, summary=False):
                uses = reply.tool_uses
            case RoundClosed(results=results):
                rounds.append(_Round(uses, results))
                uses = ()
            case _:
                pass
    return _Journal(said, tuple(rounds), tuple(use.id for use in uses))
