"""`LiveToolset`: tools that are there once something is open, such as a connection to a server.

Rules:

1. It is opened when an agent first needs it, and not when it is made: making one does nothing.
2. It is open per event loop: `open` and `close` concern the loop that they are awaited in. Who uses it in another loop opens
   it there too. One that cannot be open in two loops says so in `open`, with a `UsageError`.
3. Whoever opens it names himself, and it is closed when all who have opened it are gone. `close()` without a name closes it
   for all.
4. Its tools may change while it is open. Those who watch are told; they read `tools` then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakMethod

from agentflow.ground.logs import log_failure
from agentflow.tools.tool import Tool

__all__ = ["LiveToolset"]

SomeTool: TypeAlias = Tool[..., Any]


class LiveToolset(ABC):
    """Tools that an agent opens and closes.

    A subclass says what they are and how they are opened, and calls `changed()` when they are others. An agent takes it like
    any toolset, `Agent(..., tools=[toolset])`. It opens it before its first call in an event loop, and closes it at the end of
    `async with agent`, in a shutdown, or when the loop ends.

    Attributes:
        name: What errors and logs call it.

    Example:
        >>> class Desk(LiveToolset):
        ...     name = "desk"
        ...     tools = ()
        ...     async def open(self, by: object) -> None:
        ...         self.tools = (look,)
        ...     async def close(self, by: object | None = None) -> None:
        ...         self.tools = ()
    """

    name: str = "toolset"
    _watchers: tuple[WeakMethod[Callable[[], object]], ...] = ()

    @property
    @abstractmethod
    def tools(self) -> tuple[SomeTool, ...]:
        """The tools as they are now; none before it was first open."""

    @abstractmethod
    async def open(self, by: object) -> None:
        """Make it usable in the running event loop; where it is, this does nothing but note the user.

        Several tasks may come at once, and all of them wait for the one opening.

        Args:
            by: Who uses it; it is told apart by identity, and not kept alive.

        Raises:
            ToolError: It cannot be opened.
            UsageError: It cannot be used in this event loop.
        """

    @abstractmethod
    async def close(self, by: object | None = None) -> None:
        """Close it in the running event loop if nobody else uses it there; closing it twice does nothing.

        Args:
            by: Who has no use for it any more; None: nobody has.
        """

    def watch(self, changed: Callable[[], object]) -> None:
        """Be told when the tools are others.

        Args:
            changed: A method, called in the event loop that has noticed; its object is not kept alive.
        """
        self._watchers = (*[watcher for watcher in self._watchers if watcher() is not None], WeakMethod(changed))

    def changed(self) -> None:
        """Tell those who watch; one that fails keeps nobody else from being told."""
        for watcher in self._watchers:
            tell = watcher()
            if tell is not None:
                try:
                    tell()
                except Exception as error:
                    log_failure("WARNING", error, "the changed tools of toolset {} were not taken", self.name)
