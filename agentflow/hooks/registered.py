"""What registering hooks gives: a handle that takes them off again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, cast

from reactivex.abc import DisposableBase

from agentflow.hooks.hook import Hook

__all__ = ["Registered"]


class Place(Protocol):
    """Where hooks are registered."""

    def remove(self, registered: Any) -> bool:
        """Take off what was registered."""
        ...


class Registered(DisposableBase):
    """Hooks where they were registered; `dispose()` takes them off. Also a context manager.

    What `@agent.on(PreActing)` makes of a function is one too, and can still be called as the function.

    Args:
        hooks: The hooks.
        place: Where they are.
        function: What the hook was made of.

    Example:
        >>> with agent.hook(after_llm(print)):
        ...     await agent.call("Hi")
    """

    def __init__(self, hooks: tuple[Hook, ...], place: Place, function: Callable[[Any], Any] | None = None) -> None:
        self.hooks = hooks
        self.function = function
        self._place = place
        if function is not None:
            functools.update_wrapper(cast("Any", self), function, updated=())

    def dispose(self) -> None:
        """Take the hooks off; doing so again does nothing."""
        self._place.remove(self)

    def __call__(self, event: Any) -> Any:
        """Call the function that was registered."""
        if self.function is None:
            raise TypeError(f"{', '.join(hook.name for hook in self.hooks)}: registered as a hook, not as a function.")
        return self.function(event)
