"""Hooks that are called before the hook under test, after it, or after all others, and check its effects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import wraps
from inspect import iscoroutinefunction
from types import SimpleNamespace
from typing import Any

from agentflow._support.cancellation import cancel_requests
from agentflow._support.validation import adapter_of
from agentflow.hooks.answers import is_later, settle
from agentflow.hooks.chain import NoRun, run_chain
from agentflow.hooks.hook import Hook, NarrowHook
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.options import handler_of
from agentflow.testing.hook_checks.judging import shown
from agentflow.vocabulary.events import (
    EVENT_TYPES,
    CallEnded,
    Event,
    PostReasoning,
    PreCall,
    PreReasoning,
    TurnEvent,
    TurnView,
)
from agentflow.vocabulary.messages import Msg, ToolUseBlock
from agentflow.vocabulary.typed_state import state_name

# Typed as `Any`, because `priority` is declared as an integer; at run time, any number works.
_FIRST: Any = float("-inf")
_LAST: Any = float("inf")
_TURN_EVENTS: tuple[type[Any], ...] = tuple(kind for kind in EVENT_TYPES if issubclass(kind, TurnEvent))


class Witness(NarrowHook):
    """Records the types of events, as the last observer."""

    observer = True
    priority = _LAST

    def __init__(self) -> None:
        self.kinds: set[str] = set()

    def on_event(self, event: Event) -> None:
        """Record the event."""
        self.kinds.add(type(event).__name__)


class Before(NarrowHook):
    """Fires the events of turns at the hook under test, because the scenes use no turn queue: once per call, as the first
    editing hook.

    Args:
        hook: The hook under test.
        failed: Called with each failure: the error and the event's name.
    """

    priority = _FIRST
    events = (PreCall,)

    def __init__(self, hook: Hook, failed: Callable[[Exception, str], None]) -> None:
        self.hooks = FullHookSet([hook])
        self.failed = failed
        self.kinds: set[str] = set()

    async def on_event(self, event: PreCall) -> None:
        """Fire the events of a turn at the hook."""
        view = TurnView(id="turn_1", tool_use=ToolUseBlock("turn_1", "look", {"x": 1}))
        for kind in _TURN_EVENTS:
            self.kinds.add(kind.__name__)
            chain = self.hooks.chain(kind)
            if chain is None:
                continue
            own = [f.name for f in fields(kind)][len(fields(Event)) :]  # those that `Event` does not have
            values = [view if name == "turn" else None for name in own]
            emitter = SimpleNamespace(_frame=event.frame, iteration=1, seq=0, now=lambda: event.time)
            turn_event = chain.make(emitter, tuple(values))
            try:
                pending = run_chain(chain, turn_event, _Faults(self.failed))
                if pending is not None:
                    await pending
            except Exception as error:
                self.failed(error, kind.__name__)


def watch_cancellations(hook: Hook, swallowed: Callable[[str], None]) -> None:
    """Report each cancellation that reaches `on_event` of a hook and is not raised from it.

    Args:
        hook: The hook under test; its `on_event` is replaced on the instance.
        swallowed: Called with a description of the hook's behaviour.
    """
    if type(hook).on_event is Hook.on_event:
        return
    handler: Callable[[Any], Any] = handler_of(hook)

    async def waited(answer: Any) -> Any:
        before = cancel_requests()
        try:
            value = await settle(answer)
        except Exception as error:
            if cancel_requests() > before:
                swallowed(f"it raised {shown(error)}")
            raise
        if cancel_requests() > before:
            swallowed("it ran to completion")
        return value

    async def watched(event: Any) -> Any:
        return await waited(handler(event))

    @wraps(handler)
    def watched_if_awaited(event: Any) -> Any:
        answer = handler(event)
        return waited(answer) if is_later(answer) else answer

    with suppress(AttributeError):  # a hook with slots cannot be watched
        object.__setattr__(hook, "on_event", watched if iscoroutinefunction(handler) else watched_if_awaited)


class _Faults(NoRun):
    """Receives failures in a chain without a run."""

    def __init__(self, failed: Callable[[Exception, str], None]) -> None:
        self._failed = failed

    async def hook_failed(self, kind: type[Event], hook: Hook, error: Exception, fatal: bool) -> bool:
        if not fatal:
            self._failed(error, kind.__name__)
        return not fatal


class After(NarrowHook):
    """Checks requests and replies after the hook under test, as the last editing hook.

    Args:
        found: Called with each problem that a provider would reject: the event's name, the problem, and the evidence.

    Attributes:
        repaired: The ids that replaced repeated or empty ones; filled by the stage.
        offered: The ids of calls as returned by the model.
    """

    priority = _LAST
    events = (PreReasoning, PostReasoning)

    def __init__(self, found: Callable[[str, str, str], None]) -> None:
        self.found = found
        self.repaired: set[str] = set()
        self.offered: set[str] = set()

    def on_event(self, event: PreReasoning | PostReasoning) -> None:
        """Check the event."""
        if isinstance(event, PreReasoning):
            for problem, evidence in illegal(event.input_messages):
                self.found("PreReasoning", problem, evidence)
        else:
            ids = {use.id for use in event.reasoning_result.tool_uses}
            repeated = (ids & self.repaired) - self.offered
            if repeated:
                problem = "adds tool calls with empty or repeated ids to the reply; they had to be renamed"
                self.found("PostReasoning", problem, f"renamed to {sorted(repeated)}")


class Offered(NarrowHook):
    """Records the ids of calls as returned by the model, as the first hook on `PostReasoning`."""

    priority = _FIRST
    events = (PostReasoning,)

    def __init__(self, after: After) -> None:
        self.after = after

    def on_event(self, event: PostReasoning) -> None:
        """Record the ids."""
        self.after.offered |= {use.id for use in event.reasoning_result.tool_uses}


class Saves(NarrowHook):
    """Checks that the state of the run and of the session can be saved, as the last observer of a call.

    Args:
        found: Called with each problem: a description, and the evidence.
    """

    observer = True
    priority = _LAST
    events = (CallEnded,)

    def __init__(self, found: Callable[[str, str], None]) -> None:
        self.found = found

    def on_event(self, event: CallEnded) -> None:
        """Save the state and load it again."""
        context = event.context
        for where, state in (("state", context.state), ("session_state", context.session_state)):
            values, refused = state.saved()
            for name in refused:
                self.found("keeps state that cannot be saved", f"{where}[{name}]: use a dataclass or a pydantic model")
            for kind in state:
                if (name := state_name(kind)) in values:
                    try:
                        adapter_of(kind).validate_python(values[name])
                    except ValueError as error:
                        self.found("keeps state that cannot be loaded again", f"{where}[{name}]: {error}")


def illegal(messages: Sequence[Msg]) -> list[tuple[str, str]]:
    """Return the violations of message order for which a strict provider rejects a request, with evidence.

    A trailing assistant message is allowed, since it becomes a user message for such providers.
    """
    found: list[tuple[str, str]] = []
    ids: set[str] = set()
    spoken = [msg for msg in messages if msg.role != "system"]  # providers take system messages separately
    if not spoken:
        found.append(("leaves a request without messages", ""))
    elif spoken[0].role != "user":
        problem = "makes a request start with a message that is not a user's"
        found.append((problem, f"it starts with {spoken[0].role}: {spoken[0].text!r:.60}"))
    for n, msg in enumerate(spoken):
        uses = [use.id for use in msg.tool_uses]
        results = [result.tool_use_id for result in msg.tool_results]
        before = [use.id for use in spoken[n - 1].tool_uses] if n else []
        if repeated := [use for use in uses if use in ids]:
            found.append(("repeats tool calls in a request", f"message {n}: {repeated}"))
        ids.update(uses)
        if results and results != before:
            found.append(("leaves tool results without their calls", f"message {n} answers {results}"))
        after = [r.tool_use_id for r in spoken[n + 1].tool_results] if n + 1 < len(spoken) else []
        if uses and after != uses:
            found.append(
                ("leaves tool calls without their results", f"message {n} asks for {uses}, then comes {after}")
            )
    return found


class Canceller(NarrowHook):
    """Cancels the task of the run some event-loop iterations after an event, as the first hook.

    Args:
        at: The index of the event, from 0.
        turns: The event-loop iterations to wait.
        cancel: Called to cancel the task.
    """

    priority = _FIRST

    def __init__(self, at: int, turns: int, cancel: Callable[[], None]) -> None:
        self.at = at
        self.turns = turns
        self.cancel = cancel
        self.count = 0

    def on_event(self, event: Event) -> None:
        """Count the event, and start the countdown at the event `at`."""
        if self.count == self.at:
            self._later(self.turns)
        self.count += 1

    def _later(self, turns: int) -> None:
        if turns:
            asyncio.get_running_loop().call_soon(self._later, turns - 1)
        else:
            self.cancel()
