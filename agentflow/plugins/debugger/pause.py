"""A run that is paused at an event: its data, and the actions of a person."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias, cast

from agentflow._support.values import frozen
from agentflow.errors import UsageError
from agentflow.hooks.chain import Chain
from agentflow.hooks.hook import Hook
from agentflow.loop.run import RunBase
from agentflow.plugins.debugger.fields import assign, value_of
from agentflow.vocabulary.context import port_of
from agentflow.vocabulary.event_json import Json, event_to_dict
from agentflow.vocabulary.events import Event, HookEvent
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.verdicts import Deny, Verdict, verdict_value

Otherwise: TypeAlias = Literal["continue", "deny"]
Ending: TypeAlias = Literal["continued", "stepped", "decided", "over", "cancelled"]


@frozen
class ChainPlace:
    """A hook in the chain of an event.

    Attributes:
        hook: The hook's name.
        kind: `"edit"`, `"guard"` or `"observe"`.
        priority: The hook's priority.
        here: Whether this hook is the breakpoint. Only the hooks before it have been called.
    """

    hook: str
    kind: Literal["edit", "guard", "observe"]
    priority: float
    here: bool = False


class Pause:
    """A run paused at an event. A debugger inspects and edits it, and finally continues it or decides.

    Attributes:
        id: An id that is unique in the process.
        event: The open event: its writable fields can be assigned.
        limit: Maximum duration in seconds; None means no limit.
        otherwise: The action after the limit, `"continue"` or `"deny"`.
        began: The start, in seconds since the epoch, by the run's clock.
        ended: How it ended: `"continued"`, `"stepped"`, `"decided"`, `"over"` (the limit has passed, or no debugger
            decided), `"cancelled"` (with its run); None while it lasts.
        verdict: The decision.

    Example:
        >>> async def allow(pause: Pause) -> None:
        ...     pause.edit("tool_use.input.path", "/tmp/copy")
        ...     pause.resume()
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
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()

    # ---- data

    @property
    def chain(self) -> tuple[ChainPlace, ...]:
        """The hooks of the event, in order."""
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
        """The stored conversation at this time."""
        return self.event.context.history

    @property
    def writable(self) -> tuple[str, ...]:
        """The fields that can be edited."""
        return tuple(self.event.writable)

    @property
    def verdicts(self) -> tuple[type[Verdict], ...]:
        """The verdicts that are allowed for this event."""
        return self.event.verdicts

    @property
    def fields(self) -> dict[str, Json]:
        """All fields of the event, as JSON; the writable ones as `edit` takes them."""
        return {**event_to_dict(self.event), **{name: self.value(name) for name in self.event.writable}}

    def value(self, field: str) -> Json:
        """Return a field of the event as JSON, as `edit` takes it."""
        return value_of(self.event, field)

    # ---- actions

    def edit(self, path: str, value: Json) -> None:
        """Assign a value to a writable field; it is validated, and the run stays paused.

        Args:
            path: The field, or a path into its value: `"model"`, `"tool_use.input.path"`,
                `"input_messages[0].content[0].text"`.
            value: The new value, as JSON like that of `value()`.

        Raises:
            UsageError: The field is not writable, the value is not valid, or the pause has ended. Nothing is changed.
        """
        self._check_active(f"edit {path}")
        try:
            assign(self.event, path, value)
        except ValueError as error:
            raise UsageError(f"{type(self.event).__name__}, paused: {path} was not changed: {error}") from error

    def resume(self, *, step: bool = False) -> None:
        """Continue the run, with the edits.

        Args:
            step: Pause it again at its next event (except chunks of a stream), also in sub-agents if the breakpoint covers
                those.

        Raises:
            UsageError: The pause has ended.
        """
        self._check_active("continue")
        self.end("stepped" if step else "continued")

    def decide(self, verdict: Verdict) -> None:
        """Decide like a hook that returns a verdict: `Deny("not today")`, `Answer("from me")`, `Stop("enough")`.

        Raises:
            UsageError: The verdict is not legal for this event, or the pause has ended.
        """
        self._check_active(f"say {type(verdict).__name__}")
        if not isinstance(verdict, self.event.verdicts):
            legal = ", ".join(kind.__name__ for kind in self.event.verdicts) or "none"
            raise UsageError(
                f"{type(self.event).__name__}, paused: {type(verdict).__name__} is not allowed for this event. "
                f"Allowed: {legal}."
            )
        self.end("decided", verdict)

    def _check_active(self, what: str) -> None:
        if self.ended is not None:
            raise UsageError(f"This pause has ended ({describe_end(self)}), so it is too late to {what}.")

    # ---- used by the breakpoint

    def end(self, how: Ending, verdict: Verdict | None = None) -> None:
        """End the pause, from any thread; only the first call counts."""
        with self._lock:
            if self.ended is not None:
                return
            self.ended, self.verdict = how, verdict
        with suppress(RuntimeError):  # the loop is closed, and the run has ended
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._over.done():  # cancelling a task that awaits the future cancels the future too
            self._over.set_result(None)

    @property
    def over(self) -> asyncio.Future[None]:
        """A future that completes when the pause ends."""
        return self._over

    def __repr__(self) -> str:
        return f"<Pause {self.id} at {type(self.event).__name__} of {self.event.run_id}: {describe_end(self)}>"


def describe_end(pause: Pause) -> str:
    """Describe how a pause ended."""
    match pause.ended:
        case None:
            return "still paused"
        case "decided" if pause.verdict is not None:
            value = verdict_value(pause.verdict)
            return f"{pause.verdict.label}: {value}" if isinstance(value, str) and value else pause.verdict.label
        case "over":
            done = "denied" if isinstance(pause.verdict, Deny) else "it continued"
            return f"no decision in time; {done}"
        case _:
            return pause.ended


def root_of(event: Event) -> str:
    """Return the id of an event's run; for a sub-agent, of the top-level run."""
    run = port_of(event.context)
    while isinstance(run, RunBase) and run.parent is not None:
        run = run.parent
    return run.run_id if isinstance(run, RunBase) else event.run_id


def _chain_of(run: RunBase, event: Event) -> Chain | None:
    use = getattr(event, "tool_use", None)
    scope = run.hooks_of(run.config.tools.get(use.name)) if use is not None else None
    return (scope or run.hooks).chain(event.sealed_form)
