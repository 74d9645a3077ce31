"""Objects that are injected into a running tool. Parameters of these types are filled in, and the model does not see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentflow.vocabulary.context import RunContext
    from agentflow.vocabulary.messages import ToolUseBlock

__all__ = ["Dep", "ToolContext", "ToolEmitter"]

T = TypeVar("T")


class DepMark:
    """Marks a parameter as a dependency (see `Dep`)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Dep"


DEP_MARK: Final = DepMark()

Dep: TypeAlias = Annotated[T, DEP_MARK]
"""`db: Dep[Settings]` is filled from the call's `deps=`, and is a `Settings` to the type checker.

A class that JSON cannot describe (a client, a connection) needs no mark. A class that JSON can describe (a dataclass, a
pydantic model) needs it: without the mark, the model is asked for its fields.
"""


class ToolEmitter:
    """Delivers chunks of a tool's work to the reader of the call, each as an `ActingChunk`.

    Args:
        send: Delivers a chunk; awaiting it waits for the reader.

    Example:
        >>> async def download(url: str, emitter: ToolEmitter) -> str:
        ...     await emitter.emit("half of it is here")
        ...     return "done"
    """

    __slots__ = ("_send",)

    def __init__(self, send: Callable[[object], Awaitable[None]]) -> None:
        self._send = send

    def emit(self, value: object) -> Awaitable[None]:
        """Deliver one chunk. It should be awaited, so that a slow reader slows the tool."""
        return self._send(value)


class ToolContext:
    """The one tool call that a tool is running for.

    Attributes:
        tool_use: The call, as edited by hooks.
        run: The context of its run.
        attempt: Counts from 1.
        idempotency_key: The same over retries and recoveries of this call: pass it to services that take one.
        emitter: Delivers chunks of the work.

    Example:
        >>> async def charge(cents: int, context: ToolContext) -> str:
        ...     return f"charged {cents} under key {context.idempotency_key}"
    """

    __slots__ = ("attempt", "emitter", "idempotency_key", "run", "tool_use")

    def __init__(
        self, tool_use: ToolUseBlock, run: RunContext, attempt: int, idempotency_key: str, emitter: ToolEmitter
    ) -> None:
        self.tool_use = tool_use
        self.run = run
        self.attempt = attempt
        self.idempotency_key = idempotency_key
        self.emitter = emitter

    def __repr__(self) -> str:
        return f"ToolContext(tool_use={self.tool_use!r}, attempt={self.attempt})"
