"""`external_tool`: a tool with only a schema. A call of it waits for an answer from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from agentflow.tools.schema_arguments import Outside
from agentflow.tools.tool import Tool

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping

    from agentflow.vocabulary.specs import ToolType

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
    """Make a tool without a function: a call of it suspends, and is answered from outside.

    The arguments are validated before the call suspends; problems are reported to the model, which can try again. If
    there is a function to take the signature from, `@tool(external=True)` does the same.

    Args:
        name: The tool's name for the model.
        description: The description for the model.
        parameters: The arguments: a JSON schema of an object, shown to the model unchanged, or a pydantic model's class
            (a dataclass or `TypedDict` works too).
        type: As in `tool`.
        tags: Free labels.
        idempotent: Whether it can safely run twice.

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
