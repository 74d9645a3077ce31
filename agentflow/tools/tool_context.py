"""Objects that are injected into a running tool. The model does not see parameters of these types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentflow.vocabulary.context import RunContext
    from agentflow.vocabulary.messages import ToolUseBlock

T = TypeVar("T")


class DepMark:
    """Marks a parameter as a dependency (see `Dep`)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Dep"


DEP_MARK: Final = DepMark()

Dep: TypeAlias = Annotated[T, DEP_MARK]
"""A parameter `db: Dep[Settings]` is filled from the call's `deps=`; for type checkers it is a `Settings`.

A class that JSON cannot describe (a client, a connection) needs no `Dep`. A class that JSON can describe (a dataclass, a
pydantic model) needs it: without `Dep`, the model has to provide the fields.
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
    """The tool call for which a tool is running.

    Attributes:
        tool_use: The call, as edited by hooks.
        run: The context of its run.
        attempt: The number of the attempt, from 1.
        idempotency_key: A key that stays the same in retries and recoveries of this call, for services that accept one.
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
