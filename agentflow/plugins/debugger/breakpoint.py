"""`Breakpoint`: a hook that pauses a run at an event until a person continues it.

Rules:

1. It is the last editing hook: the person sees the changes of all other editing hooks, and guards check the person's edits.
2. The first decision counts; other debuggers are cancelled. Without a decision, or after the limit, `otherwise` applies.
3. If a paused run is cancelled or interrupted, the pause ends at once.
4. Stepping pauses at the next event of the run, of any kind except the chunks of a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from itertools import count
from typing import Any, Literal, TypeAlias, cast

from agentflow._support.lazy import lazily
from agentflow._support.logs import log_failure
from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.options import about_a_tool
from agentflow.loop.run import RunBase
from agentflow.plugins.debugger.pause import Otherwise, Pause, root_of
from agentflow.vocabulary.context import port_of
from agentflow.vocabulary.events import ActingChunk, CallEnded, Event, HookEvent, ReasoningChunk, TurnEvent, TurnValue
from agentflow.vocabulary.messages import ToolUseBlock
from agentflow.vocabulary.specs import is_seconds
from agentflow.vocabulary.verdicts import Deny, Verdict

Debugger: TypeAlias = Callable[[Pause], Awaitable[object]]
"""Handles a paused run: an `async` function that returns after a decision, or if none can be obtained."""

_CHUNKS = (ReasoningChunk, ActingChunk, TurnValue)
_ids = count(1)
_terminal, _ = lazily("agentflow.terminal", {".debugger": "TerminalDebugger"})
"""Loads `TerminalDebugger` on first use: it is in a higher layer, and imports rich."""


class Breakpoint(Hook):
    """Pauses a run at events until a person continues it.

    Args:
        events: The event classes to pause at, including base classes such as `Decision`.
        tools: Patterns such as `"delete_*"`: for tool events, pause only for these tools.
        when: A function that takes the event; it must also return True.
        ask: The debugger or debuggers that ask; the terminal by default. If there is no terminal, `otherwise` applies.
        limit: Maximum duration of a pause in seconds, by the run's clock.
        otherwise: The action if no decision is made: `"continue"`, or `"deny"` (which continues if the event does not
            support Deny).
        priority: The breakpoint's priority among the editing hooks; by default it runs last. With 0 it shows events
            before hooks change them.
        scope: `"tree"`: pause in sub-agents too.

    Attributes:
        paused: The runs paused at this breakpoint.

    Raises:
        UsageError: An argument is invalid.

    Example:
        >>> async def deny(pause: Pause) -> None:
        ...     pause.decide(Deny("not on a Friday"))
        >>> registered = agent.hook(Breakpoint(PreActing, tools=["delete_*"], ask=deny))
    """

    def __init__(
        self,
        *events: type[Event],
        tools: Iterable[str] = (),
        when: Callable[[HookEvent], bool] | None = None,
        ask: Debugger | Sequence[Debugger] | None = None,
        limit: float | None = None,
        otherwise: Otherwise = "continue",
        priority: int = 990,
        scope: Literal["own", "tree"] = "own",
    ) -> None:
        kinds = [
            kind for kind in cast("tuple[object, ...]", events) if isinstance(kind, type) and issubclass(kind, Event)
        ]
        if not events or len(kinds) < len(events):
            raise UsageError(
                f"Breakpoint{events!r:.80}: pass the event classes to pause at, such as Breakpoint(PreActing)."
            )
        if isinstance(tools, str):
            raise UsageError(f"Breakpoint(tools={tools!r}): pass a list of patterns, tools=[{tools!r}].")
        if limit is not None and not is_seconds(limit):
            raise UsageError(f"Breakpoint(limit={limit!r}): it must be a number of seconds above 0, or None.")
        if otherwise not in ("continue", "deny"):
            raise UsageError(f"Breakpoint(otherwise={otherwise!r}): it must be 'continue' or 'deny'.")
        if scope not in ("own", "tree"):
            raise UsageError(f"Breakpoint(scope={scope!r}): it must be 'own' or 'tree'.")
        self.kinds = tuple(kinds)
        self.patterns = tuple(tools)
        self.when = when
        self.limit = limit
        self.otherwise: Otherwise = otherwise
        self.priority = priority
        self.scope = scope
        self.paused: tuple[Pause, ...] = ()
        debuggers: Debugger | Sequence[Debugger] = _terminal("TerminalDebugger")() if ask is None else ask
        self._debuggers: tuple[Debugger, ...] = (debuggers,) if callable(debuggers) else tuple(debuggers)
        if not self._debuggers:
            raise UsageError("Breakpoint(ask=[]): pass at least one debugger, or omit ask= for the terminal.")
        self._stepping: set[str] = set()  # runs that will pause at their next event

    def on_event(self, event: HookEvent) -> HookEvent | Awaitable[HookEvent | Verdict]:
        """Return the event, or pause at it."""
        if not self._stepping and not isinstance(event, self.kinds):
            return event
        if _is_ending(event) or not self._pauses_at(event):
            if self._stepping and isinstance(event, CallEnded) and not event.source:
                self._stepping.discard(root_of(event))  # the run has no further events
            return event
        return self._pause_at(event)

    def _pauses_at(self, event: HookEvent) -> bool:
        if self._stepping and not isinstance(event, _CHUNKS):
            root = root_of(event)
            if root in self._stepping:
                self._stepping.discard(root)
                return True
        return (
            isinstance(event, self.kinds)
            and (not self.patterns or self._concerns(event))
            and (self.when is None or self.when(event))
        )

    def _concerns(self, event: HookEvent) -> bool:
        """Return whether an event is about one of the tools, or about no tool at all."""
        uses: Sequence[ToolUseBlock] = getattr(event, "tool_uses", ())
        if isinstance(event, TurnEvent):
            turn = getattr(event, "turn", None)
            uses = () if turn is None else (turn.tool_use,)
        elif about_a_tool(type(event).sealed_form):
            use: ToolUseBlock | None = getattr(event, "tool_use", None)
            uses = () if use is None else (use,)
        elif not hasattr(event, "tool_uses"):
            return True
        return any(fnmatchcase(use.name, pattern) for use in uses for pattern in self.patterns)

    async def _pause_at(self, event: HookEvent) -> HookEvent | Verdict:
        pause = Pause(f"p{next(_ids)}", event, self, self.limit, self.otherwise)
        root = root_of(event)
        self.paused += (pause,)  # replaced, not changed: other threads iterate over it
        tasks = [asyncio.ensure_future(self._run_debugger(ask, pause)) for ask in self._debuggers]
        run = port_of(event.context)
        try:
            with run.waiting() if isinstance(run, RunBase) else nullcontext():
                await self._wait_for_decision(pause, tasks)
        finally:
            pause.end("cancelled")
            self.paused = tuple([other for other in self.paused if other is not pause])
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)  # let the debuggers clean up
        if pause.ended == "stepped" and not (isinstance(event, CallEnded) and not event.source):
            self._stepping.add(root)
        return event if pause.verdict is None else pause.verdict

    async def _wait_for_decision(self, pause: Pause, tasks: Sequence[asyncio.Future[None]]) -> None:
        """Wait for a decision, for the last debugger to return, or for the limit."""
        # If `asyncio.wait` is cancelled, it does not cancel the tasks.
        returned = asyncio.ensure_future(asyncio.wait(tasks))
        futures: list[asyncio.Future[Any]] = [pause.over, returned]
        if pause.limit is not None:
            futures.append(asyncio.ensure_future(pause.event.context.clock.sleep(pause.limit)))
        try:
            await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in futures[1:]:
                wait.cancel()
            await asyncio.gather(*futures[1:], return_exceptions=True)
        denies = pause.otherwise == "deny" and Deny in pause.event.verdicts
        pause.end("over", Deny("it was not approved in time") if denies else None)

    async def _run_debugger(self, ask: Debugger, pause: Pause) -> None:
        try:
            await ask(pause)
        except Exception as error:  # the other debuggers can still decide
            log_failure("WARNING", error, "a breakpoint's debugger failed at {}", pause.id, where=pause.event)


def _is_ending(event: Event) -> bool:
    """Return whether the event's run was cancelled or interrupted, so that a pause would be pointless."""
    run = port_of(event.context)
    return isinstance(run, RunBase) and run.scope.stopped
