"""Tools with a schema of their arguments instead of a signature: those of `schema_tool` have a function, those of
`external_tool` have none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NoReturn

from agentflow._support.annotations import signature_of
from agentflow.errors import UsageError
from agentflow.tools.schema_arguments import Outside, SchemaArguments, WithSchema
from agentflow.tools.signature import ArgumentPlan
from agentflow.tools.tool import DEFAULT_TIMEOUT, Tool
from agentflow.tools.tool_context import ToolContext
from agentflow.vocabulary.specs import ToolType


def schema_tool(
    name: str,
    description: str,
    parameters: Mapping[str, Any] | type,
    run: Callable[[dict[str, Any], ToolContext], Awaitable[object]],
    *,
    type: ToolType = "action",  # noqa: A002 - as in `tool`
    timeout: float | None = DEFAULT_TIMEOUT,
    retries: int = 0,
    lock: bool = False,
    tags: Iterable[str] = (),
    idempotent: bool = False,
    requires_approval: bool = False,
) -> Tool[[dict[str, Any], ToolContext], Coroutine[Any, Any, object]]:
    """Make a tool from a function that takes all arguments as one mapping, for tools that are described elsewhere.

    The arguments are validated against the schema before the function runs, and problems are reported to the model.

    Args:
        name: The tool's name for the model.
        description: The description for the model.
        parameters: The arguments: a JSON schema of an object, shown to the model unchanged, or a pydantic model's
            class.
        run: The function; it receives the arguments and the call's `ToolContext`.
        type: This and the other options are those of `tool`.
        timeout: Seconds for one attempt; None means no limit.
        retries: How often the tool is retried.
        lock: Whether only one call of the tool runs at a time.
        tags: Free labels.
        idempotent: Whether it can safely run twice.
        requires_approval: Whether a call waits for a person.

    Raises:
        UsageError: The name is invalid, or the schema does not describe an object.

    Example:
        >>> async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        ...     return f"looked at {arguments['at']}"
        >>> look = schema_tool("look", "Look.", {"type": "object", "properties": {"at": {"type": "string"}}}, run)
        >>> list(look.spec.parameters["properties"])
        ['at']
    """
    return Tool(
        SchemaFunction(name, parameters, run),
        name=name,
        description=description,
        type=type,
        timeout=timeout,
        retries=retries,
        lock=lock,
        tags=tags,
        idempotent=idempotent,
        requires_approval=requires_approval,
    )


def external_tool(
    name: str,
    description: str,
    parameters: Mapping[str, Any] | type,
    *,
    type: ToolType = "action",  # noqa: A002 - as in `tool`
    tags: Iterable[str] = (),
    idempotent: bool = False,
) -> Tool[[], Coroutine[Any, Any, NoReturn]]:
    """Make a tool without a function: a call of the tool is suspended until code outside the agent answers it.

    The arguments are validated before the call is suspended; problems are reported to the model, which can try again.
    `@tool(external=True)` makes such a tool from the signature of a function.

    Args:
        name: The tool's name for the model.
        description: The description for the model.
        parameters: The arguments: a JSON schema of an object, shown to the model unchanged, or a pydantic model's class
            (a dataclass or `TypedDict` works too).
        type: As in `tool`.
        tags: Free labels.
        idempotent: Whether it can safely run twice.

    Raises:
        UsageError: The name is invalid, or the schema does not describe an object.

    Example:
        >>> ask = external_tool(
        ...     "ask_user",
        ...     "Ask the user a question.",
        ...     {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]},
        ... )
        >>> ask.external, list(ask.spec.parameters["properties"])
        (True, ['question'])
    """
    return Tool(
        Outside(name, parameters),
        name=name,
        description=description,
        type=type,
        tags=tags,
        idempotent=idempotent,
        external=True,
    )


class SchemaFunction(WithSchema):
    """Replaces the function of a tool: calls `run` with all arguments as one mapping, which a schema describes.

    Args:
        tool: The tool's name, for messages.
        parameters: A JSON schema of an object, or a class that pydantic knows.
        run: The function.
    """

    def __init__(
        self,
        tool: str,
        parameters: Mapping[str, Any] | type,
        run: Callable[[dict[str, Any], ToolContext], Awaitable[object]],
    ) -> None:
        super().__init__(tool, parameters)
        _check_run(tool, run)
        self.run = run

    def plan(self) -> ArgumentPlan:
        """Return the plan for filling in arguments: the whole mapping is one argument, so its keys cannot collide with
        other parameters.
        """
        return replace(super().plan(), validator=_Whole(self.arguments), fills=_FILLS)

    async def __call__(self, arguments: dict[str, Any], context: ToolContext) -> object:
        """Run the function."""
        return await self.run(arguments, context)


def _check_run(tool: str, run: object) -> None:
    """Refuse an object that cannot be called with the arguments and the context."""
    problem = ""
    if not callable(run) or isinstance(run, type):
        problem = f"it is {run!r:.60}"
    else:
        try:
            signature_of(run).bind({}, None)
        except ValueError:
            return  # Python cannot determine the signature
        except TypeError as error:
            problem = f"with these two arguments: {error}"
    if problem:
        raise UsageError(
            f"schema_tool({tool!r}) takes a function that is called with a mapping of the arguments and the ToolContext, but "
            f"{problem}. Write async def run(arguments, context)."
        )


class _Whole:
    """Validates arguments, and passes them on as one mapping."""

    def __init__(self, arguments: SchemaArguments) -> None:
        self._arguments = arguments

    def validate_json(self, data: str, /) -> tuple[tuple[()], dict[str, Any]]:
        """See `SchemaArguments`."""
        return (), {"arguments": self._arguments.validate_json(data)[1]}


def _context(context: ToolContext) -> object:
    return context


_FILLS: Final = (("context", _context),)
