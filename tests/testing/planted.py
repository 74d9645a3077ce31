"""Hooks with one planted defect each, and clean ones."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal

from agentflow import (
    Again,
    Deny,
    Hook,
    ModelOptions,
    Msg,
    PostActing,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    ToolUseBlock,
)
from agentflow.vocabulary.context import RunContext, port_of


class Sleeps(Hook):
    """Sleeps without regard to others."""

    def on_event(self, event: Any) -> Any:
        time.sleep(0.06)
        return event


class Computes(Hook):
    """Keeps the processor for itself before each request."""

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PreReasoning):
            end = time.thread_time() + 0.25
            while time.thread_time() < end:
                sum(range(1000))
        return event


class Swallows(Hook):
    """Takes a cancellation for a failure of its own."""

    async def on_event(self, event: Any) -> Any:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.004)
        return event


class Converts(Hook):
    """Makes another error of a cancellation."""

    raised = RuntimeError

    async def on_event(self, event: Any) -> Any:
        try:
            await asyncio.sleep(0.004)
        except asyncio.CancelledError:
            raise self.raised("planted: gave up") from None
        return event


class SaysTrue(Hook):
    """Takes truthiness for a verdict."""

    def on_event(self, event: Any) -> Any:
        return True if isinstance(event, PreActing) else event


class WritesAnywhere(Hook):
    """Assigns a field that is read-only."""

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PostActing):
            event.duration_ms = 0.0
        return event


class WritesLate(Hook):
    """An observer that writes."""

    observer = True

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PreReasoning):
            event.options = ModelOptions(temperature=0.0)
        return event


class TakesEveryEventForATool(Hook):
    """Fails on every event that has no tool."""

    def on_event(self, event: Any) -> Any:
        assert event.tool_use is not None
        return event


class NeedsASideAnswer(Hook):
    """Does not expect that its side call fails: the name of the answer is not bound then."""

    async def on_event(self, event: Any) -> Any:
        if isinstance(event, PostReasoning):
            answer = None
            with contextlib.suppress(Exception):
                answer = await event.context.complete("Is it good?")
            answer.text  # noqa: B018
        return event


class Waits(Hook):
    """Waits for what never comes."""

    async def on_event(self, event: Any) -> Any:
        if isinstance(event, PostActing) and event.tool_result.state != "success":
            await asyncio.Event().wait()
        return event


class KeepsTheLock(Hook):
    """Takes a lock and does not give it back when it is cancelled."""

    def __init__(self) -> None:
        self.locks: dict[Any, asyncio.Lock] = {}

    async def on_event(self, event: Any) -> Any:
        if isinstance(event, PreActing):
            lock = self.locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
            await lock.acquire()
            await asyncio.sleep(0.002)
            lock.release()
        return event


class KnowsOneLoop(Hook):
    """Has a lock that belongs to the first loop that it waits in; `block()` makes a loop for each call."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    async def on_event(self, event: Any) -> Any:
        if isinstance(event, PreActing):
            async with self.lock:
                await asyncio.sleep(0.002)
        return event


class Forgets(Hook):
    """Keeps the last four messages, wherever that cuts."""

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PreReasoning):
            event.input_messages = event.input_messages[-4:]
        return event


class KeepsTheEnd(Hook):
    """Keeps the last 17 messages: only a long conversation is cut, in the middle of a round."""

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PreReasoning):
            event.input_messages = event.input_messages[-17:]
        return event


class CallsTwice(Hook):
    """Doubles a tool call, id and all."""

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PostReasoning) and event.reasoning_result.tool_uses:
            reply = event.reasoning_result
            event.reasoning_result = Msg.assistant([*reply.content, reply.tool_uses[0]], usage=reply.usage)
        return event


class InjectsACall(Hook):
    """Injects a call without a result."""

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PostReasoning):
            event.context.inject(Msg.assistant([ToolUseBlock("x", "look", {"x": 1})]))
        return event


class CutsARound(Hook):
    """Compacts in the midst of a round."""

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PreReasoning):
            roles = [msg.role for msg in event.input_messages[1:]]
            if "tool" in roles:
                event.context.compact(roles.index("tool"), "(before)")
        return event


class Leaks(Hook):
    """Leaves a task running."""

    tasks: set[Any]

    def __init__(self) -> None:
        self.tasks = set()

    async def on_event(self, event: Any) -> Any:
        if isinstance(event, PreCall):
            self.tasks.add(asyncio.create_task(asyncio.sleep(3600), name="forgotten"))
        return event


class Drops(Hook):
    """Forgets to await."""

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PostReasoning):
            context: RunContext = event.context
            context.complete("Is it good?")  # pyright: ignore[reportUnusedCoroutine]
        return event


class Remembers(Hook):
    """Keeps what belongs to a run on itself."""

    def __init__(self) -> None:
        self.asked = ""

    async def on_event(self, event: Any) -> Any:
        if isinstance(event, PreCall):
            self.asked = event.input_messages[-1].text
        elif isinstance(event, PreReasoning):
            event.input_messages = (*event.input_messages, Msg.user(f"Remember: {self.asked}"))
        return event


class Counts(Hook):
    """Asks again once, not once a run."""

    def __init__(self) -> None:
        self.asked = 0

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PostReasoning) and event.purpose == "reason" and self.asked < 1:
            self.asked += 1
            return Again("Are you sure?")
        return event


class EditsStreams(Hook):
    """Edits replies only if the call has a reader."""

    events = (PostReasoning,)

    def on_event(self, event: Any) -> Any:
        run: Any = port_of(event.context)
        if run.events.buffer is not None and not event.reasoning_result.tool_uses:
            event.reasoning_result = Msg.assistant("All is well.", usage=event.reasoning_result.usage)
        return event


class ReadsHalf(Hook):
    """Leaves a generator before its end."""

    async def lines(self) -> AsyncIterator[str]:
        try:
            yield "one"
            yield "two"
        finally:
            await asyncio.sleep(0)

    async def on_event(self, event: Any) -> Any:
        if isinstance(event, PreCall):
            async for _ in self.lines():
                break
        return event


class Keeps(Hook):
    """Counts in an object that cannot be saved: a waiting session could not be saved."""

    class Counts:
        """Of one run."""

        def __init__(self) -> None:
            self.tools = 0

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PostActing):
            event.context.state[self.Counts].tools += 1
        return event


@dataclass
class Window:
    """Written as data, it is not read again: its fields are not what it is made of."""

    size: Literal[1, 2] = 1


class KeepsWhatDoesNotFit(Hook):
    """Puts into its state what the state's own type does not allow."""

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PreCall):
            window = event.context.session_state[Window]
            window.size = 3  # pyright: ignore[reportAttributeAccessIssue]
        return event


class ForgetsReturn(Hook):
    """Wraps the model's work, and forgets to return it."""

    def around(self, event: Any, source: Any) -> Any:
        if isinstance(event, PreReasoning):
            source.timeout(5)
            return None
        return source


class Vetoes(Hook):
    """An observer that thinks it can veto."""

    observer = True

    def on_event(self, event: Any) -> Any:
        return Deny("no") if isinstance(event, PreActing) else event


DEFECTS: list[tuple[str, Any, dict[str, Any]]] = [
    ("blocking", Sleeps, {}),
    ("blocking", Computes, {}),
    ("cancellation", Swallows, {}),
    ("cancellation", Converts, {"raises": (RuntimeError,)}),
    ("contract", SaysTrue, {}),
    ("contract", WritesAnywhere, {}),
    ("contract", WritesLate, {}),
    ("contract", Vetoes, {}),
    ("contract", ForgetsReturn, {}),
    ("crash", TakesEveryEventForATool, {}),
    ("crash", NeedsASideAnswer, {}),
    ("crash", KnowsOneLoop, {}),
    ("hang", Waits, {"timeout": 1.0}),
    ("hang", KeepsTheLock, {"timeout": 1.0}),
    ("history", Forgets, {}),
    ("history", KeepsTheEnd, {}),
    ("history", CallsTwice, {}),
    ("history", InjectsACall, {}),
    ("history", CutsARound, {}),
    ("leaked_task", Leaks, {}),
    ("never_awaited", Drops, {}),
    ("shared_state", Remembers, {}),
    ("shared_state", Counts, {}),
    ("streaming", EditsStreams, {}),
    ("unclosed_generator", ReadsHalf, {}),
    ("unsavable_state", Keeps, {}),
    ("unsavable_state", KeepsWhatDoesNotFit, {}),
]
"""The kind of finding, the hook that has it, and options of the check."""
