"""`step`: any function as a recorded step of a workflow.

Rules:

1. A function's step is a tool call of the workflow's agent, like every step: hooks see it, and it is recorded.
2. Its value is always read from the recorded result, so it is the same in this process and after a restart.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar, cast, get_args, get_origin, overload

from pydantic.errors import PydanticUserError
from pydantic_core import PydanticSerializationError, from_json, to_json

from agentflow._support.annotations import signature_of
from agentflow._support.validation import adapter_of
from agentflow.agent.orchestration.asking import Live
from agentflow.agent.orchestration.steps import Step
from agentflow.errors import ToolError, UsageError
from agentflow.loop.run import current_turn
from agentflow.tools.code_names import found_by_name
from agentflow.tools.signature import MISSING, return_hint
from agentflow.tools.tool import Tool, tool
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.messages import ToolResultBlock
from agentflow.vocabulary.specs import WORKFLOW_STEP

P = ParamSpec("P")
T = TypeVar("T")


@overload
def step(function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> Step[T]: ...
@overload
def step(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Step[T]: ...
def step(function: Callable[..., Any], /, *args: object, **kwargs: object) -> Step[Any]:
    """Call a function as a step of a workflow: it runs once, and its result is recorded.

    So a workflow can wait, read a file, or get the current time without a separate tool. A plain function runs in a thread.

    Args:
        function: A function or another callable; it may return an awaitable. It need not be a participant.
        args: Its arguments: data, because they identify the step. Clients and connections belong in its closure.
        kwargs: Its keyword arguments, with the same requirements.

    Returns:
        When awaited, the function's return value, read from JSON by its return annotation (plain data if it has none).

    Raises:
        UsageError: An argument is not data.

    Example:
        >>> from agentflow.agent.orchestration import step, workflow
        >>> async def price(item: str) -> float:
        ...     return 2.5
        >>> @workflow()
        ... async def bill(item: str) -> float:
        ...     return 2 * await step(price, item)
        >>> (await bill.call("tea")).output
        5.0
    """
    if not callable(cast("object", function)):
        raise UsageError(
            f"step({function!r:.60}): pass the function and its arguments, step(fetch, url), not its result."
        )
    label = str(getattr(function, "__qualname__", None) or type(function).__name__)
    try:
        # Converted to the form that the recorded call has after a restart.
        identity = from_json(to_json({"function": label, "arguments": _named(function, args, kwargs)}))
    except (PydanticSerializationError, ValueError) as error:
        raise UsageError(
            f"step({label}, ...): an argument is not data ({error}), so the step cannot be recognized after a restart. Pass "
            "text, numbers, lists, dicts, dataclasses or models; a client belongs in the function's closure."
        ) from error
    hint = return_hint(function, {})
    return Step(
        WORKFLOW_STEP, identity, partial(_read, hint), work=partial(_run, function, args, kwargs, label), label=label
    )


def _named(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the arguments by name, if the signature is known."""
    try:
        return signature_of(function).bind(*args, **kwargs).arguments
    except ValueError:  # a builtin
        return [*args, kwargs] if kwargs else list(args)
    except TypeError as error:
        raise UsageError(f"step({getattr(function, '__name__', function)}, ...): {error}.") from error


async def _run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], label: str) -> str:
    if inspect.iscoroutinefunction(function):
        value = await function(*args, **kwargs)
    else:
        # A plain function may block; it may also return an awaitable.
        value = await asyncio.to_thread(function, *args, **kwargs)
        if inspect.isawaitable(value):
            value = await value
    try:
        return to_json(value).decode()
    except PydanticSerializationError as error:
        raise ToolError(f"{label} returned {type(value).__name__}, which is not data: {error}") from error


def _read(hint: Any, result: ToolResultBlock) -> Any:
    """Return the value in a recorded result's text, or the text itself if a hook has replaced it with other text."""
    if isinstance(origin := get_origin(hint), type) and issubclass(origin, Awaitable) and get_args(hint):
        hint = get_args(hint)[-1]
    text = result.text
    try:
        # A string is an annotation that could not be resolved.
        return from_json(text) if hint is MISSING or isinstance(hint, str) else adapter_of(hint).validate_json(text)
    except PydanticUserError:  # not a type of data
        return from_json(text)
    except ValueError:
        return text


def step_tool(pending: Callable[[RunContext], Live]) -> Tool[..., Any]:
    """Return the tool that runs the steps of functions.

    Args:
        pending: The steps of the open round.
    """

    async def run(function: str, arguments: Any, context: RunContext) -> str:
        place = current_turn.get()
        assert place is not None
        found = pending(context).steps.get(place.use.id)
        if found is None or found.work is None or found.input != dict(place.use.input):
            raise ToolError(
                "The step was not run: a hook has changed its arguments, but only the workflow's code can set them. "
                "Change the arguments in the code, or deny the step in the hook."
            )
        return str(await found.work())

    # The least strict type, so that this tool does not affect the type of a workflow that is used as a tool.
    decorate = tool(name=WORKFLOW_STEP, description="Run a function.", type="research", timeout=None, idempotent=True)
    return decorate(found_by_name(run))
