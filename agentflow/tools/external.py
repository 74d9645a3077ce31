"""`external_tool`: a tool that is only a schema. A call of it waits for an answer from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from agentflow.tools.schema_arguments import Outside
from agentflow.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping

    from agentflow.specs import ToolType

__all__ = ["external_tool"]


def external_tool(
    name: str,
    description: str,
    parameters: Mapping[str, Any] | type,
    *,
    type: ToolType = "action",  # noqa: A002 - as in `tool`
    tags: Iterable[str] = (),
    idempotent: bool = False,
) -> Tool[[], Coroutine[Any, Any, NoReturn]]:
    """Make a tool that has no function: a call of it suspends, and the outside answers.

    The arguments are checked before the call suspends; what is wrong goes to the model, which may try again. With a
    function to take the signature from, `@tool(external=True)` does the same.

    Args:
        name: What the model calls it.
        description: What it does, for the model.
        parameters: The arguments: a JSON schema of an object, shown to the model as it is, or a pydantic model's class
            (a dataclass or `TypedDict` will do).
        type: What it does, as in `tool`.
        tags: Free labels.
        idempotent: Running it twice does no harm.

    Raises:
        UsageError: The name is not legal, or the schema does not describe an object.

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
