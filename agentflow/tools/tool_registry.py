"""`ToolRegistry`, which holds tools by name, and the default registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast, overload

from agentflow._support.registry import NamedRegistry
from agentflow.errors import UsageError
from agentflow.tools.signature import plain_function
from agentflow.tools.tool import Tool
from agentflow.tools.tool import tool as make_tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentflow.vocabulary.specs import ToolSpec

SomeTool: TypeAlias = Tool[..., Any]
S = TypeVar("S", bound=SomeTool)
F = TypeVar("F")


if TYPE_CHECKING:

    class _Like(Generic[F]):
        """Gives a method the signature of a function for type checkers, so that its overloads need not be repeated."""

        def __init__(self, function: F) -> None: ...
        def __get__(self, instance: object, owner: type) -> F: ...


class ToolRegistry(NamedRegistry[SomeTool]):
    """Tools by name. Iterating over it yields the tools, so an agent accepts it: `Agent(..., tools=registry)`.

    An agent gets the tools that are registered when it is built; later registrations do not affect it.

    Example:
        >>> registry = ToolRegistry()
        >>> @registry.register
        ... @tool(type="read")
        ... async def look(where: str) -> str:
        ...     return f"nothing in {where}"
        >>> @registry.tool(type="write")
        ... async def put(what: str) -> str:
        ...     return f"{what} is there"
        >>> registry.names, registry["look"] is look
        (('look', 'put'), True)
    """

    _kind = "tool"
    _fix = "Give one of them another name: @tool(name=...), or register(..., name=...)."

    @overload
    def register(self, item: S, /, *, name: str | None = None) -> S: ...
    @overload
    def register(self, /, *, name: str) -> Callable[[S], S]: ...
    def register(self, item: object = None, /, *, name: str | None = None) -> object:
        """Register a tool, and return it unchanged. Registering the same tool again does nothing.

        Args:
            item: The tool.
            name: The name in the registry, which models see too; the tool's own name by default.

        Raises:
            UsageError: The item is not a tool, or the name is not legal.
            DuplicateNameError: Another tool has the name; the message names both places. (Also a `ValueError`.)
        """
        return super().register(cast("Any", item), name=name)

    def _check(self, item: object) -> None:
        if not isinstance(item, Tool):
            raise UsageError(
                f"A ToolRegistry takes tools, not {type(item).__name__} ({item!r:.60}). Put @tool below "
                "@registry.register, or use @registry.tool."
            )

    if TYPE_CHECKING:
        tool = _Like(make_tool)
    else:

        def tool(self, function=None, /, **options):
            """Make a tool and register it: `@registry.tool` and `@registry.tool(...)`, with the options of `@tool`."""
            registered = make_tool(function, **options) if function is not None else make_tool(**options)
            if function is not None:
                return self.register(registered)
            return lambda function: self.register(registered(function))

    def specs(self) -> tuple[ToolSpec, ...]:
        """Return the specs of the tools, as models see them."""
        return tuple(tool.spec for tool in self)

    def _stored(self, item: SomeTool, name: str) -> SomeTool:
        return item if item.name == name else item.renamed(name)  # models see the name in the registry

    def _place(self, item: SomeTool) -> str | None:
        plain = plain_function(item.function)
        return None if plain is None else f"{plain.__code__.co_filename}:{plain.__code__.co_firstlineno}"


default_tools = ToolRegistry()
"""The registry for programs that need only one. Tools are registered explicitly: put `@default_tools.register` above
`@tool`.
"""
