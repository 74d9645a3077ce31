"""Runs a workflow's function over what the facts of its run hold."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, cast

from agentflow.context import RunContext, port_of
from agentflow.errors import UsageError
from agentflow.facts import CallOpened, Reasoned, RoundClosed
from agentflow.ground.shown import one_line
from agentflow.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.orchestration.steps import Group, Step, StepError, working
from agentflow.saving.plain import plain

__all__ = ["Replayed", "before", "call_id", "contributions", "replay"]

_LONGEST_ID = 40
_ASKED = re.compile(r"-([0-9a-f]{8})\Z")
"""What the id of a step's call ends with: a digest of what was asked."""


def call_id(id: str, step: Step[Any]) -> str:  # noqa: A002
    """The id of a step's call, from which it can be told later whether the same was asked.

    It stands in the id since hooks may change the call itself: a redaction hides what it is given.
    """
    made = f"{id}-{_digest(step)}"
    return made if len(made) <= _LONGEST_ID else id


def _digest(step: Step[Any]) -> str:
    asked = json.dumps([step.name, _without_ids(plain(step.input))], sort_keys=True)
    return sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _without_ids(value: Any) -> Any:
    """Data without the ids of messages, which a workflow's function makes anew each time it runs."""
    if isinstance(value, dict):
        given = cast("dict[str, Any]", value)
        message = given.keys() >= {"role", "content", "id"}
        return {key: _without_ids(one) for key, one in given.items() if not (message and key == "id")}
    return [_without_ids(one) for one in cast("list[Any]", value)] if isinstance(value, list) else value


def _same(step: Step[Any], use: ToolUseBlock) -> bool:
    """Whether a call stands for a step; of one that was made before ids said so, the name."""
    asked = _ASKED.search(use.id)
    return step.name == use.name and (asked is None or asked[1] == _digest(step))


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
    open: tuple[ToolUseBlock, ...]


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
        group, value = _driven(work, list(journal.rounds), context.agent.name)
        if journal.open:
            _check(context.agent.name, group.steps if group is not None else (), journal.open)
        return Replayed(group, value, tuple(use.id for use in journal.open))
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
                    raise _other_way(name, "it has returned", rounds[0].uses) from None
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
            _check(name, group.steps, taken.uses)
            try:
                value = group.value(taken.results)
            except StepError as failed:
                error = failed
    finally:
        del error  # its traceback holds this frame


def _check(name: str, steps: Sequence[Step[Any]], uses: Sequence[ToolUseBlock]) -> None:
    """Refuse steps that are others than those that were taken before.

    Raises:
        UsageError: They are.
    """
    if len(steps) != len(uses) or not all(map(_same, steps, uses)):
        now = ", ".join(f"{step.name} {one_line(repr(step.input))[:80]}" for step in steps)
        raise _other_way(name, f"it asks for {now or 'nothing'}", uses)


def _other_way(name: str, now: str, before: Sequence[ToolUseBlock]) -> UsageError:
    then = ", ".join(f"{use.name} {one_line(use.raw)[:80]}" for use in before)
    return UsageError(
        f"Workflow {name!r} took other steps before: then it asked for {then}, and now {now}. Its way must depend on nothing "
        "but its input and what its steps gave: chance, time and files belong into tools. If its code has been edited since, "
        "begin a new run."
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
    return _Journal(said, tuple(rounds), uses)
