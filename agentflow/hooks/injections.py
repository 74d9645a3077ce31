"""What hooks and tools inject, noted for whoever listens; and where in the order of a run they decide over others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Literal, TypeAlias

from agentflow.context import port_of
from agentflow.events import Event
from agentflow.messages import Msg

__all__ = ["Injections", "Marked", "before_deciding", "injecting"]

Marked: TypeAlias = Callable[[Literal["injected", "decided"]], Awaitable[None] | None]
"""Notes the place of something in the order of the run."""


class Injections:
    """What some code has injected into its run: the messages of each call of `context.inject`, and its `keep`.

    Args:
        run: The run; what the code injects into another one is noted there.
        marked: Called when the code injects something (`"injected"`), and before it decides over work that runs beside it
            (`"decided"`): what it returns then is awaited first.
    """

    __slots__ = ("added", "marked", "run")

    def __init__(self, run: object, marked: Marked | None = None) -> None:
        self.run = run
        self.marked = marked
        self.added: list[tuple[tuple[Msg, ...], bool]] = []

    @classmethod
    def of(cls, event: Event, marked: Marked | None = None) -> Injections:
        """What a hook of an event injects into the event's run."""
        frame = event._frame  # pyright: ignore[reportPrivateUsage] - an event built by hand has none
        return cls(None if frame is None else port_of(frame.context), marked)

    def note(self, messages: tuple[Msg, ...], keep: bool) -> None:
        """Note what was injected."""
        self.added.append((messages, keep))
        if self.marked is not None:
            self.marked("injected")


injecting: ContextVar[Injections | None] = ContextVar("agentflow_injecting", default=None)
"""Where injections of the code that is running are noted: that of the innermost hook or tool that somebody listens to."""


async def before_deciding() -> None:
    """Announce that the running tool is about to decide over work that runs beside it, as the winner of a race does.

    A listener notes the place of the decision in the order of the run; a replay waits for its turn.
    """
    noting = injecting.get()
    waits = None if noting is None or noting.marked is None else noting.marked("decided")
    if waits is not None:
        await waits
