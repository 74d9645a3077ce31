"""Run a workflow's function with the results that the facts of its run contain."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, cast

from agentflow._support.shown import one_line
from agentflow.agent.orchestration.steps import Group, Step, StepError, working
from agentflow.errors import UsageError
from agentflow.vocabulary.context import RunContext, port_of
from agentflow.vocabulary.facts import CallOpened, Reasoned, RoundClosed
from agentflow.vocabulary.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.saving.plain import plain

_MAX_ID_LENGTH = 40  # OpenAI's limit for ids
_ASKED = re.compile(r"-([0-9a-f]{8})\Z")
"""The last part of the id of a step's call: a digest of its input."""


def call_id(new_id: str, step: Step[Any]) -> str:
    """Return the id of a step's call, which contains a digest of the step's input.

    The digest is in the id because hooks, such as a redaction, may change the call itself.
    """
    key = f"{new_id}-{_digest(step)}"
    return key if len(key) <= _MAX_ID_LENGTH else new_id


def _digest(step: Step[Any]) -> str:
    call = json.dumps([step.name, _without_ids(plain(step.input))], sort_keys=True)
    return sha256(call.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _without_ids(value: Any) -> Any:
    """Return data without the ids of messages, since a workflow's function creates new ones each time it runs."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        message = fields.keys() >= {"role", "content", "id"}
        return {key: _without_ids(item) for key, item in fields.items() if not (message and key == "id")}
    return [_without_ids(item) for item in cast("list[Any]", value)] if isinstance(value, list) else value


def _matches(step: Step[Any], use: ToolUseBlock) -> bool:
    """Whether a call belongs to a step. If its id has no digest (older sessions), only the name is compared."""
    match = _ASKED.search(use.id)
    return step.name == use.name and (match is None or match[1] == _digest(step))


class Replayed(NamedTuple):
    """The progress of a workflow.

    `group`: the next steps, or None if the function has returned `value`. `open`: the ids of the calls that were
    already created for these steps.
    """

    group: Group[Any] | None
    value: Any
    open: tuple[str, ...]


class _RecordedRound(NamedTuple):
    uses: tuple[ToolUseBlock, ...]
    results: tuple[ToolResultBlock, ...]


class _RecordedSteps(NamedTuple):
    said: tuple[Msg, ...]
    rounds: tuple[_RecordedRound, ...]
    open: tuple[ToolUseBlock, ...]


def replay(start: Callable[[Sequence[Msg]], Coroutine[Any, Any, Any]], context: RunContext) -> Replayed:
    """Run the function up to the first steps without results, or to its end.

    Args:
        start: Starts the function with the user's messages.
        context: The call's context.

    Raises:
        UsageError: The function awaits anything but steps, or its steps differ from the recorded ones.
    """
    journal = _journal(context)
    work = start(journal.said)
    steps: list[Step[Any]] = []
    # Set only while the function runs, in this task: a step outside of it is refused.
    token = working.set(steps)
    try:
        group, value = _driven(work, list(journal.rounds), context.agent.name, steps)
        if journal.open:
            _check(context.agent.name, group.steps if group is not None else (), journal.open)
        return Replayed(group, value, tuple(use.id for use in journal.open))
    finally:
        working.reset(token)
        # The function is abandoned at its next step; its `finally` blocks run now.
        work.close()


def _driven(
    work: Coroutine[Any, Any, Any], rounds: list[_RecordedRound], name: str, steps: Sequence[Step[Any]]
) -> tuple[Group[Any] | None, object]:
    value: object = None
    error: StepError | None = None
    awaited_steps: set[int] = set()
    try:
        while True:
            try:
                # Up to the next steps that the function awaits, or to its end.
                awaited: object = work.send(value) if error is None else work.throw(error)
            except StopIteration as end:
                if rounds:
                    raise _other_way(name, "it returned", rounds[0].uses) from None
                forgotten = next((step for step in steps if id(step) not in awaited_steps), None)
                if forgotten is not None:
                    raise UsageError(
                        f"Workflow {name!r} returned without awaiting its step {forgotten.label!r}, which therefore did not "
                        "run. Write await before the step, or pass it to gather(...) or race(...)."
                    ) from None
                return None, end.value
            if not isinstance(awaited, Group):
                if isinstance(awaited, asyncio.Future):
                    # Otherwise the future would stay pending without a reader.
                    cast("asyncio.Future[Any]", awaited).cancel()
                raise UsageError(
                    f"Workflow {name!r} awaits something other than a step. Its function runs again from its start after "
                    "each step, so I/O and waiting must be steps: await step(function, ...), or await use(my_tool, ...)."
                )
            group = cast("Group[Any]", awaited)
            value, error = None, None
            awaited_steps.update(map(id, group.steps))
            if group.steps and not rounds:
                return group, None
            # `gather()` without steps makes no round.
            recorded = rounds.pop(0) if group.steps else _RecordedRound((), ())
            _check(name, group.steps, recorded.uses)
            try:
                value = group.value(recorded.results)
            except StepError as failed:
                error = failed
    finally:
        del error  # its traceback holds this frame


def _check(name: str, steps: Sequence[Step[Any]], uses: Sequence[ToolUseBlock]) -> None:
    """Raise if steps differ from the recorded ones.

    Raises:
        UsageError: A step differs.
    """
    if len(steps) != len(uses) or not all(map(_matches, steps, uses)):
        now = ", ".join(f"{step.name} {one_line(repr(step.input))[:80]}" for step in steps)
        raise _other_way(name, f"its next steps are {now or 'none'}", uses)


def _other_way(name: str, now: str, before: Sequence[ToolUseBlock]) -> UsageError:
    recorded = ", ".join(f"{use.name} {one_line(use.raw)[:80]}" for use in before)
    return UsageError(
        f"Workflow {name!r} is not deterministic: its recorded steps are {recorded}, but now {now}. The steps must "
        "depend only on its input and the results of earlier steps: randomness, time and I/O belong in tools. If its "
        "code was edited, start a new run."
    )


def before(context: RunContext) -> tuple[Msg, ...]:
    """Return the conversation before this run."""
    history = context.history
    opened = _journal(context).said
    first = next((index for index, msg in enumerate(history) if opened and msg.id == opened[0].id), len(history))
    return tuple(history[:first])


def contributions(history: Sequence[Msg]) -> Iterator[Msg | ToolResultBlock]:
    """Return the user's messages in a session, and the results of agents that keep a conversation."""
    conversational: set[str] = set()
    for msg in history:
        if msg.role == "user" and "synthetic" not in msg.metadata:
            yield msg
        conversational |= {use.id for use in msg.tool_uses if use.input.get("conversation") is True}
        for result in msg.tool_results:
            if result.tool_use_id in conversational and result.state == "success":
                yield result


def _journal(context: RunContext) -> _RecordedSteps:
    """Read the facts of the run: its input, the closed rounds, and the calls of the open round."""
    call_messages: tuple[Msg, ...] = ()
    rounds: list[_RecordedRound] = []
    uses: tuple[ToolUseBlock, ...] = ()
    for fact in port_of(context).facts():
        match fact:
            case CallOpened(messages=messages):
                call_messages, rounds, uses = messages, [], ()
            case Reasoned(message=reply, accepted=True, summary=False):
                uses = reply.tool_uses
            case RoundClosed(results=results):
                rounds.append(_RecordedRound(uses, results))
                uses = ()
            case _:
                pass
    return _RecordedSteps(call_messages, tuple(rounds), uses)
