"""Hooks that stand around the one under check: before it, behind it, and behind everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from agentflow.events import EVENT_TYPES, CallEnded, Event, PostReasoning, PreCall, PreReasoning, TurnEvent, TurnView
from agentflow.ground.validation import adapter_of
from agentflow.hooks.answers import is_later, settle
from agentflow.hooks.chain import NoRun, run_chain
from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.options import handler_of
from agentflow.messages import Msg, ToolUseBlock
from agentflow.testing.hook_checks.judging import shown
from agentflow.typed_state import state_name

__all__ = ["After", "Before", "Canceller", "Offered", "Saves", "Witness", "illegal", "watch_cancellations"]

_FIRST = float("-inf")
_LAST = float("inf")
_TURN_EVENTS: tuple[type[Any], ...] = tuple(kind for kind in EVENT_TYPES if issubclass(kind, TurnEvent))


class Witness(Hook):
    """The last observer: writes down which events there were."""

    observer = True
    priority = _LAST  # pyright: ignore[reportAssignmentType] - a number is legal at run time

    def __init__(self) -> None:
        self.kinds: set[str] = set()

    def on_event(self, event: Event) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - every event is one
        """Write it down."""
        self.kinds.add(type(event).__name__)


class Before(Hook):
    """The first of the editing hooks: shows the hook under check what a queue of turns would fire, once a call.

    Args:
        hook: The hook under check.
        failed: Told of its failures there: the error and the event's name.
    """

    priority = _FIRST  # pyright: ignore[reportAssignmentType]
    events = (PreCall,)

    def __init__(self, hook: Hook, failed: Callable[[Exception, str], None]) -> None:
        self.hooks = FullHookSet([hook])
        self.failed = failed
        self.kinds: set[str] = set()

    async def on_event(self, event: PreCall) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to one event
        """Fire the events of a turn at the hook."""
        view = TurnView(id="turn_1", tool_use=ToolUseBlock("turn_1", "look", {"x": 1}))
        for kind in _TURN_EVENTS:
            self.kinds.add(kind.__name__)
            chain = self.hooks.chain(kind)
            if chain is None:
                continue
            own = [f.name for f in fields(kind)][len(fields(Event)) :]
            values = [view if name == "turn" else None for name in own]
            made = kind.make_open(event.frame, 1, 0, event.time, tuple(values))
            try:
                waits = run_chain(chain, made, _Faults(self.failed))
                if waits is not None:
                    await waits
            except Exception as error:
                self.failed(error, kind.__name__)


def watch_cancellations(hook: Hook, swallowed: Callable[[str], None]) -> None:
    """Report each cancellation that reaches a hook in `on_event` and does not come out of it again.

    Args:
        hook: The hook under check; its `on_event` is replaced on the object.
        swallowed: Gets what the hook did instead.
    """
    if type(hook).on_event is Hook.on_event:
        return
    handler: Callable[[Any], Any] = handler_of(hook)

    async def waited(answer: Any) -> Any:
        task = asyncio.current_task()
        before = 0 if task is None else task.cancelling()
        try:
            value = await settle(answer)
        except Exception as error:
            if task is not None and task.cancelling() > before:
                swallowed(f"it raised {shown(error)}")
            raise
        if task is not None and task.cancelling() > before:
            swallowed("it went on to its end")
        return value

    async def watched(event: Any) -> Any:
        return await waited(handler(event))

    @wraps(handler)
    def watched_if_awaited(event: Any) -> Any:
        answer = handler(event)
        return waited(answer) if is_later(answer) else answer

    with suppress(AttributeError):  # a hook with slots is checked without
        object.__setattr__(hook, "on_event", watched if iscoroutinefunction(handler) else watched_if_awaited)


class _Faults(NoRun):
    """Where a chain that no run drives reports its failures."""

    def __init__(self, failed: Callable[[Exception, str], None]) -> None:
        self._failed = failed

    async def hook_failed(self, kind: type[Event], hook: Hook, error: Exception, fatal: bool) -> bool:
        if not fatal:
            self._failed(error, kind.__name__)
        return not fatal


class After(Hook):
    """The last of the editing hooks: judges what the hook under check has made of requests and replies.

    Args:
        found: Told of what a provider would refuse: the event's name, what is wrong, and where.

    Attributes:
        repaired: Ids that had to be put in the place of repeated or empty ones; the stage fills it.
        offered: The ids of calls as the model gave them.
    """

    priority = _LAST  # pyright: ignore[reportAssignmentType]
    events = (PreReasoning, PostReasoning)

    def __init__(self, found: Callable[[str, str, str], None]) -> None:
        self.found = found
        self.repaired: set[str] = set()
        self.offered: set[str] = set()

    def on_event(self, event: PreReasoning | PostReasoning) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Judge it."""
        if isinstance(event, PreReasoning):
            for what, where in illegal(event.input_messages):
                self.found("PreReasoning", what, where)
        else:
            asked = {use.id for use in event.reasoning_result.tool_uses}
            repeated = (asked & self.repaired) - self.offered
            if repeated:
                what = "gives the reply tool calls whose ids are empty or stood before; they had to be renamed"
                self.found("PostReasoning", what, f"renamed to {sorted(repeated)}")


class Offered(Hook):
    """The first on `PostReasoning`: notes the ids as the model gave them."""

    priority = _FIRST  # pyright: ignore[reportAssignmentType]
    events = (PostReasoning,)

    def __init__(self, after: After) -> None:
        self.after = after

    def on_event(self, event: PostReasoning) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Note them."""
        self.after.offered |= {use.id for use in event.reasoning_result.tool_uses}


class Saves(Hook):
    """The last observer of a call: judges whether what hooks keep in the state of the run and of the session can be saved.

    Args:
        found: Told of a class whose objects cannot: what is wrong, and the evidence.
    """

    observer = True
    priority = _LAST  # pyright: ignore[reportAssignmentType]
    events = (CallEnded,)

    def __init__(self, found: Callable[[str, str], None]) -> None:
        self.found = found

    def on_event(self, event: CallEnded) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to one event
        """Save it, and load it again."""
        context = event.context
        for where, state in (("state", context.state), ("session_state", context.session_state)):
            values, refused = state.saved()
            for name in refused:
                self.found(
                    "keeps state that cannot be saved", f"{where}[{name}]: make it a dataclass or a pydantic model"
                )
            for kind in state:
                if (name := state_name(kind)) in values:
                    try:
                        adapter_of(kind).validate_python(values[name])
                    except ValueError as error:
                        self.found("keeps state that cannot be loaded again", f"{where}[{name}]: {error}")


def illegal(messages: Sequence[Msg]) -> list[tuple[str, str]]:
    """What a strict provider refuses in the order of a request: what is wrong, and where.

    The end of a request is not judged: a thought at its end is turned into a note for those who refuse it.
    """
    found: list[tuple[str, str]] = []
    asked: set[str] = set()
    spoken = [msg for msg in messages if msg.role != "system"]
    if not spoken:
        found.append(("leaves a request without any message", ""))
    elif spoken[0].role != "user":
        what = "makes a request begin with another message than a user's"
        found.append((what, f"it begins with {spoken[0].role}: {spoken[0].text!r:.60}"))
    for n, msg in enumerate(spoken):
        uses = [use.id for use in msg.tool_uses]
        results = [result.tool_use_id for result in msg.tool_results]
        before = [use.id for use in spoken[n - 1].tool_uses] if n else []
        if repeated := [use for use in uses if use in asked]:
            found.append(("repeats tool calls in a request", f"message {n}: {repeated}"))
        asked.update(uses)
        if results and results != before:
            found.append(("leaves tool results without the calls they answer", f"message {n} answers {results}"))
        after = [r.tool_use_id for r in spoken[n + 1].tool_results] if n + 1 < len(spoken) else []
        if uses and after != uses:
            found.append(
                ("leaves tool calls without their results", f"message {n} asks for {uses}, then comes {after}")
            )
    return found


class Canceller(Hook):
    """The first of all: cancels the task of the run at an event, some turns of the loop later.

    Args:
        at: The event, counted from 0.
        turns: Turns of the loop to wait.
        cancel: Called then.
    """

    priority = _FIRST  # pyright: ignore[reportAssignmentType]

    def __init__(self, at: int, turns: int, cancel: Callable[[], None]) -> None:
        self.at = at
        self.turns = turns
        self.cancel = cancel
        self.count = 0

    def on_event(self, event: Event) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Count it."""
        if self.count == self.at:
            self._later(self.turns)
        self.count += 1

    def _later(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._later, turns - 1)
        else:
            self.cancel()
