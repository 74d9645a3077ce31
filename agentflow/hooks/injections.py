"""Record the messages that hooks and tools inject, and the points at which they decide a race."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Literal, TypeAlias

from agentflow.vocabulary.context import port_of
from agentflow.vocabulary.events import Event
from agentflow.vocabulary.events.base import frame_of
from agentflow.vocabulary.messages import Msg

Marked: TypeAlias = Callable[[Literal["injected", "decided"]], Awaitable[None] | None]
"""Records a position in the order of the run."""


class Injections:
    """The messages that a hook or tool injected into its run: one entry for each `context.inject`, with its `keep`.

    Args:
        run: The run. Injections into another run are not recorded here.
        marked: Called if the hook or tool injects messages (`"injected"`), and before it decides a race
            (`"decided"`); then an awaitable that it returns is awaited before the decision.
    """

    __slots__ = ("added", "marked", "run")

    def __init__(self, run: object, marked: Marked | None = None) -> None:
        self.run = run
        self.marked = marked
        self.added: list[tuple[tuple[Msg, ...], bool]] = []

    @classmethod
    def of(cls, event: Event, marked: Marked | None = None) -> Injections:
        """Return the record for a hook that handles an event."""
        frame = frame_of(event)
        return cls(None if frame is None else port_of(frame.context), marked)

    def note(self, messages: tuple[Msg, ...], keep: bool) -> None:
        """Record injected messages."""
        self.added.append((messages, keep))
        if self.marked is not None:
            self.marked("injected")


# A context variable, because hooks of parallel tool calls inject at the same time.
injecting: ContextVar[Injections | None] = ContextVar("agentflow_injecting", default=None)
"""The record for the running code: it belongs to the innermost hook or tool that has a listener."""


async def before_deciding() -> None:
    """Announce that the running tool is about to decide a race of concurrent calls.

    A listener records the position of this decision in the order of the run's events. A replay waits until the run
    reaches this position.
    """
    record = injecting.get()
    work = None if record is None or record.marked is None else record.marked("decided")
    if work is not None:
        await work
