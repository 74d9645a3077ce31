"""The handle that registering hooks returns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, cast

from reactivex.abc import DisposableBase

from agentflow.hooks.hook import Hook


class HookOwner(Protocol):
    """An object on which hooks are registered."""

    def remove(self, registered: Any) -> bool:
        """Remove registered hooks."""
        ...


class Registered(DisposableBase):
    """Hooks that were registered together; `dispose()` removes them. Also a context manager.

    `@agent.on(PreActing)` replaces a function with a `Registered`, which can still be called like the function.

    Args:
        hooks: The hooks.
        owner: The object on which the hooks are registered.
        function: The function that the hook was made from, if there is one.

    Example:
        >>> with agent.hook(after_llm(print)):
        ...     await agent.call("Hi")
    """

    def __init__(self, hooks: tuple[Hook, ...], owner: HookOwner, function: Callable[[Any], Any] | None = None) -> None:
        self.hooks = hooks
        self.function = function
        self._owner = owner
        if function is not None:
            functools.update_wrapper(cast("Any", self), function, updated=())

    def dispose(self) -> None:
        """Remove the hooks. Calling it again has no effect."""
        self._owner.remove(self)

    def __call__(self, event: Any) -> Any:
        """Call the function that was registered."""
        if self.function is None:
            names = ", ".join(hook.name for hook in self.hooks)
            raise TypeError(f"{names} cannot be called: it was registered as a hook, not as a function.")
        return self.function(event)
