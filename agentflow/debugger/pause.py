"""A run that is paused at an event: what a person sees of it, and what they may do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias, cast

from agentflow.context import port_of
from agentflow.debugger.fields import assign, fields_of, value_of
from agentflow.errors import UsageError
from agentflow.event_json import Json
from agentflow.events import Event, HookEvent
from agentflow.ground.values import frozen
from agentflow.hooks.chain import Chain
from agentflow.hooks.hook import Hook
from agentflow.loop.run import RunBase
from agentflow.messages import Msg
from agentflow.verdicts import Deny, Verdict, verdict_value

__all__ = ["ChainPlace", "Otherwise", "Pause", "root_of", "told"]

Otherwise: TypeAlias = Literal["continue", "deny"]
Ending: TypeAlias = Literal["continued", "stepped", "decided", "over", "cancelled"]


@frozen
class ChainPlace:
    """A hook's place in the chain of an event.

    Attributes:
        hook: Its name.
        kind: `"edit"`, `"guard"` or `"observe"`.
        priority: Its priority.
        here: Whether it is the breakpoint: those in front of it have been called.
    """

    hook: str
    kind: Literal["edit", "guard", "observe"]
    priority: float
    here: bool = False


class Pause:
    """A run that waits at an event. Whoever attends to it looks, edits, and in the end lets it go on or decides.

    Attributes:
        id: Tells it from other pauses of the process.
        event: The event, open: its writable fields can be assigned.
        limit: Seconds that it lasts at most; None: as long as it takes.
        otherwise: What becomes of the run then, `"continue"` or `"deny"`.
        began: When it began, in seconds since the epoch, by the run's clock.
        ended: How it ended: `"continued"`, `"stepped"`, `"decided"`, `"over"` (the limit has passed, or nobody could be
            asked), `"cancelled"` (with its run); None: it lasts.
        verdict: What was decided.

    Example:
        >>> async def allow(pause: Pause) -> None:
        ...     pause.edit("tool_use.input.path", "/tmp/copy")
        ...     pause.go_on()
    """

    def __init__(self, id: str, event: HookEvent, hook: Hook, limit: float | None, otherwise: Otherwise) -> None:  # noqa: A002
        self.id = id
        self.event = event
        self.limit = limit
        self.otherwise: Otherwise = otherwise
        self.began = event.context.clock.now()
        self.ended: Ending | None = None
        self.verdict: Verdict | None = None
        self._hook = hook
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()

    # ---- what a person sees

    @property
    def chain(self) -> tuple[ChainPlace, ...]:
        """The hooks of the event, in their order."""
        run = port_of(self.event.context)
        chain = _chain_of(run, self.event) if isinstance(run, RunBase) else None
        if chain is None:
            return ()
        parts = (("edit", chain.editors), ("guard", chain.guards), ("observe", chain.observers))
        return tuple(
            [
                ChainPlace(entry.hook.name, cast("Any", kind), entry.hook.priority, entry.hook is self._hook)
                for kind, entries in parts
                for entry in entries
            ]
        )

    @property
    def history(self) -> Sequence[Msg]:
        """The stored conversation, as of now."""
        return self.event.context.history

    @property
    def writable(self) -> tuple[str, ...]:
        """The fields that can be edited."""
        return tuple(self.event.writable)

    @property
    def verdicts(self) -> tuple[type[Verdict], ...]:
        """What can be decided here."""
        return self.event.verdicts

    @property
    def fields(self) -> dict[str, Json]:
        """All that the event says of itself, as JSON."""
        return fields_of(self.event)

    def value(self, field: str) -> Json:
        """A field of the event, as JSON that `edit` takes back."""
        return value_of(self.event, field)

    # ---- what a person may do

    def edit(self, path: str, value: Json) -> None:
        """Put a value into a writable field; it is checked here, and the run goes on waiting.

        Args:
            path: The field, or a place in its value: `"model"`, `"tool_use.input.path"`, `"input_messages[0].content[0].text"`.
            value: As `value` shows it.

        Raises:
            UsageError: It cannot stand there, or the pause is over. Nothing has changed.
        """
        self._must_last(f"edit {path}")
        try:
            assign(self.event, path, value)
        except ValueError as error:
            raise UsageError(f"{type(self.event).__name__}, paused: {path} was not changed: {error}") from error

    def go_on(self, *, step: bool = False) -> None:
        """Let the run go on, with what was edited.

        Args:
            step: Pause it again at its next event (pieces of a stream are passed over), in sub-agents too if the breakpoint
                sees those.

        Raises:
            UsageError: The pause is over.
        """
        self._must_last("go on")
        self.end("stepped" if step else "continued")

    def decide(self, verdict: Verdict) -> None:
        """Decide, as a hook does that returns a verdict: `Deny("not today")`, `Answer("from me")`, `Stop("enough")`.

        Raises:
            UsageError: It is not legal on this event, or the pause is over.
        """
        self._must_last(f"say {type(verdict).__name__}")
        if not isinstance(verdict, self.event.verdicts):
            legal = ", ".join(kind.__name__ for kind in self.event.verdicts) or "nothing can be decided"
            raise UsageError(
                f"{type(self.event).__name__}, paused: {type(verdict).__name__} is not legal here; legal: {legal}."
            )
        self.end("decided", verdict)

    def _must_last(self, what: str) -> None:
        if self.ended is not None:
            raise UsageError(f"This pause is over ({told(self)}); it is too late to {what}.")

    # ---- what the breakpoint does

    def end(self, how: Ending, verdict: Verdict | None = None) -> None:
        """End it, from whatever thread; the first one counts."""
        if self.ended is None:
            self.ended, self.verdict = how, verdict
            with suppress(RuntimeError):  # the loop has gone, and the run with it
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    @property
    def over(self) -> asyncio.Future[None]:
        """Done when it has ended."""
        return self._over

    def __repr__(self) -> str:
        return f"<Pause {self.id} at {type(self.event).__name__} of {self.event.run_id}: {told(self)}>"


def told(pause: Pause) -> str:
    """What became of a pause, in words."""
    match pause.ended:
        case None:
            return "it lasts"
        case "decided" if pause.verdict is not None:
            said = verdict_value(pause.verdict)
            return f"{pause.verdict.said}: {said}" if isinstance(said, str) and said else pause.verdict.said
        case "over":
            done = "denied" if isinstance(pause.verdict, Deny) else "it went on"
            return f"nobody has decided in time; {done}"
        case _:
            return pause.ended


def root_of(event: Event) -> str:
    """The run that an event belongs to, or that has asked the sub-agents above it."""
    run = port_of(event.context)
    while isinstance(run, RunBase) and run.parent is not None:
        run = run.parent
    return run.run_id if isinstance(run, RunBase) else event.run_id


def _chain_of(run: RunBase, event: Event) -> Chain | None:
    use = getattr(event, "tool_use", None)
    scope = run.scope_of(run.config.tools.get(use.name)) if use is not None else None
    return (scope or run.hooks).chain(event.sealed_form)
