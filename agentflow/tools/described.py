"""`schema_tool`: a tool that runs, and whose arguments a JSON schema describes instead of a signature."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from agentflow.specs import ToolType
from agentflow.tools.schema_arguments import SchemaArguments, WithSchema
from agentflow.tools.signature import Plan
from agentflow.tools.tool import DEFAULT_TIMEOUT, Tool
from agentflow.tools.tool_context import ToolContext

__all__ = ["Described", "schema_tool"]


def schema_tool(
    name: str,
    description: str,
    parameters: Mapping[str, Any] | type,
    run: Callable[[dict[str, Any], ToolContext], Awaitable[object]],
    *,
    type: ToolType = "action",  # noqa: A002 - as in `tool`
    timeout: float | None = DEFAULT_TIMEOUT,
    retries: int = 0,
    tags: Iterable[str] = (),
    idempotent: bool = False,
    requires_approval: bool = False,
) -> Tool[[dict[str, Any], ToolContext], Coroutine[Any, Any, object]]:
    """Make a tool of a function that takes all arguments as one mapping: for tools that somebody else describes.

    The arguments are checked against the schema before it runs, and what is wrong goes to the model.

    Args:
        name: What the model calls it.
        description: What it does, for the model.
        parameters: The arguments: a JSON schema of an object, shown to the model as it is, or a pydantic model's class.
        run: What it does, with the arguments and the call's `ToolContext`.
        type: What it does, as in `tool`, like the rest.
        timeout: Seconds that one attempt may take; None is no limit.
        retries: How often it is tried again.
        tags: Free labels.
        idempotent: Running it twice does no harm.
        requires_approval: A call waits for a person.

    Raises:
        UsageError: The name is not legal, or the schema does not describe an object.

    Example:
        >>> async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        ...     return f"looked at {arguments['at']}"
        >>> look = schema_tool("look", "Look.", {"type": "object", "properties": {"at": {"type": "string"}}}, run)
        >>> list(look.spec.parameters["properties"])
        ['at']
    """
    return Tool(
        Described(name, parameters, run),
        name=name,
        description=description,
        type=type,
        timeout=timeout,
        retries=retries,
        tags=tags,
        idempotent=idempotent,
        requires_approval=requires_approval,
    )


class Described(WithSchema):
    """Stands where a function would be, and runs with a mapping of what a schema describes.

    Args:
        tool: The tool's name, for messages.
        parameters: A JSON schema of an object, or a class that pydantic knows.
        run: What it does.
    """

    def __init__(
        self,
        tool: str,
        parameters: Mapping[str, Any] | type,
        run: Callable[[dict[str, Any], ToolContext], Awaitable[object]],
    ) -> None:
        super().__init__(tool, parameters)
        self.run = run

    def plan(self) -> Plan:
        """The whole mapping is one argument, so that no name in it can be mistaken for another."""
        return replace(super().plan(), validator=_Whole(self.arguments), fills=_FILLS)

    async def __call__(self, arguments: dict[str, Any], context: ToolContext) -> object:
        """Run it."""
        return await self.run(arguments, context)


class _Whole:
    """Checks arguments, and hands them on as one."""

    def __init__(self, arguments: SchemaArguments) -> None:
        self._arguments = arguments

    def validate_json(self, data: str, /) -> tuple[tuple[()], dict[str, Any]]:
        """See `SchemaArguments`."""
        return (), {"arguments": self._arguments.validate_json(data)[1]}


def _context(context: ToolContext) -> object:
    return context


_FILLS: Final = (("context", _context),)
