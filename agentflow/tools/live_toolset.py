"""`LiveToolset`: tools that exist while something is open, such as a connection to a server.

Rules:

1. A toolset is opened when an agent first needs it, not when it is created.
2. A toolset is opened separately in each event loop: `open` and `close` apply to the loop in which they are awaited,
   and a user in another loop has to open the toolset there too. If a toolset supports only one loop, its `open`
   should raise a `UsageError`.
3. Each user passes itself to `open`, and the toolset is closed when all users have closed it. `close()` without a user
   closes it for all users.
4. The tools can change while the toolset is open. Watchers are then notified, and read `tools` again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakMethod

from agentflow._support.logs import log_failure
from agentflow.tools.tool import Tool

SomeTool: TypeAlias = Tool[..., Any]


class LiveToolset(ABC):
    """Tools that an agent opens and closes.

    A subclass defines the tools and how they are opened, and should call `changed()` after they have changed. An agent
    takes it like any toolset, `Agent(..., tools=[toolset])`. The agent opens it before its first call in an event loop,
    and closes it at the end of `async with agent`, in a shutdown, or when the loop ends.

    Attributes:
        name: The name in errors and logs.

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
        """The current tools; empty before the toolset is first opened."""

    @abstractmethod
    async def open(self, by: object) -> None:
        """Make the toolset usable in the running event loop. If it is open there already, only register the user.

        If several tasks call this at the same time, the toolset is opened once and all of them wait for it.

        Args:
            by: The user; compared by identity, and not kept alive.

        Raises:
            ToolError: The toolset could not be opened.
            UsageError: The toolset does not support this event loop.
        """

    @abstractmethod
    async def close(self, by: object | None = None) -> None:
        """Close the toolset in the running event loop, unless it has other users there. Closing it again does nothing.

        Args:
            by: The user that no longer needs it; None closes it for all users.
        """

    def watch(self, changed: Callable[[], object]) -> None:
        """Register a callback that is called when the tools change.

        Args:
            changed: A method, called in the event loop that detected the change. The method's object is not kept alive.
        """
        # Replaced, not changed: a watcher may be added while `changed` notifies. Dead watchers are removed here.
        self._watchers = (*[watcher for watcher in self._watchers if watcher() is not None], WeakMethod(changed))

    def changed(self) -> None:
        """Notify the watchers; if one fails, the others are still notified."""
        for watcher in self._watchers:
            callback = watcher()
            if callback is not None:
                try:
                    callback()
                except Exception as error:  # the others are still notified
                    log_failure(
                        "WARNING", error, "a watcher failed to handle the changed tools of toolset {}", self.name
                    )
