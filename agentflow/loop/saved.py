"""Turns as data, and how things that are code are named in it.

Rules:

1. What is code is saved by its name and found again by whoever loads: tools, hooks. What a name does not carry (a closure,
   a lambda) is refused when it is saved, with the reason.
2. Data says its format and its version; a newer one is refused, untouched.
3. A turn that is saved while it runs is restored as one that has not run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from inspect import unwrap
from types import FunctionType
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from pydantic_core import PydanticSerializationError, from_json, to_json, to_jsonable_python
from typing_extensions import TypedDict

from agentflow.errors import NotRegisteredError, StoreError, UsageError
from agentflow.hooks.hook import Hook
from agentflow.loop.turn import StopReason, Turn
from agentflow.tools.registry import ToolRegistry, default_tools
from agentflow.tools.tool import Tool
from agentflow.verdicts import Answer, Approve, Deny, Resolution

__all__ = [
    "FORMAT_VERSION",
    "Finder",
    "check_form",
    "hook_names",
    "named_function",
    "turn_from_dict",
    "turn_from_json",
    "turn_to_dict",
    "turn_to_json",
]

FORMAT_VERSION = 1
"""The version of the form of saved turns, queues and agents."""

D = TypeVar("D")


@with_config(ConfigDict(extra="forbid"))
class ResolutionData(TypedDict):
    """A decision on a turn."""

    verdict: Literal["approve", "deny", "answer"]
    value: Any


@with_config(ConfigDict(extra="forbid"))
class TurnData(TypedDict):
    """A turn."""

    format: Literal["agentflow.turn"]
    version: int
    id: str
    tool: str
    arguments: dict[str, Any]
    timeout: float | None
    tags: list[str]
    metadata: dict[str, Any]
    approval: ResolutionData | None
    hooks: list[str]
    sender: str
    sender_run: str
    start_time: float | None
    end_time: float | None
    stop_reason: StopReason | None
    output: Any


@cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)


def check_form(form: type[D], data: object, what: str) -> D:
    """Check what was loaded.

    Args:
        form: A `TypedDict` with `format` and `version`.
        data: What was loaded.
        what: What it should be, for errors.

    Raises:
        StoreError: It is something else, damaged, or newer than this code.
    """
    if isinstance(data, Mapping):
        version: object = data.get("version")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if type(version) is int and version > FORMAT_VERSION:
            raise StoreError(
                f"The saved {what} has version {version}; this agentflow reads versions up to {FORMAT_VERSION}. A newer one "
                "wrote it: upgrade agentflow here."
            )
    try:
        return _adapter(form).validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise StoreError(
            f"This is no saved {what}: {where or 'the whole'}: {first['msg']}. Load what {what}.to_dict() has written."
        ) from error


def as_data(what: str, value: object) -> Any:
    """A value as JSON data.

    Raises:
        UsageError: It is none; `what` says where it stands.
    """
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise UsageError(f"{what} cannot be saved: {error}. Only what JSON knows travels.") from error


# ---- names


def named_function(what: str, function: object) -> None:
    """Refuse a function that a name does not carry.

    Raises:
        UsageError: It is a lambda, or it closes over variables.
    """
    plain = unwrap(function) if callable(function) else None
    plain = getattr(plain, "__func__", plain)
    if not isinstance(plain, FunctionType):
        return
    if plain.__name__ == "<lambda>":
        raise UsageError(f"{what} cannot be saved: it is a lambda, which has no name to find it by. Make it a `def`.")
    if plain.__closure__:
        closed = ", ".join(plain.__code__.co_freevars)
        raise UsageError(
            f"{what} cannot be saved: it closes over {closed}, and a name does not carry these values. Define it at the "
            "top of a module, and hand the values in as fixed arguments, metadata or deps."
        )


def hook_names(hooks: Iterable[Hook], whose: str) -> list[str]:
    """The names of hooks, to find them by.

    Raises:
        UsageError: One is a closure or a lambda.
    """
    names: list[str] = []
    for hook in hooks:
        named_function(f"Hook {hook.name!r} of {whose}", getattr(hook, "handler", None))
        names.append(hook.name)
    return names


class Finder:
    """Finds by name what is code.

    Args:
        tools: A registry, or tools.
        hooks: Hooks; several of one name are taken in their order.
    """

    def __init__(self, tools: ToolRegistry | Iterable[Tool[..., Any]] | None = None, hooks: Iterable[Hook] = ()) -> None:
        self._registry = default_tools if tools is None else tools if isinstance(tools, ToolRegistry) else None
        self._tools = {} if tools is None or isinstance(tools, ToolRegistry) else {t.name: t for t in tools}
        self._hooks = tuple(hooks)

    def tool(self, name: str) -> Tool[..., Any]:
        """The tool of this name.

        Raises:
            NotRegisteredError: Nobody has given it.
        """
        if self._registry is not None:
            return self._registry[name]
        found = self._tools.get(name)
        if found is None:
            raise NotRegisteredError("tool", name, tuple(self._tools), tuple(get_close_matches(name, self._tools)))
        return found

    def hooks(self, names: Iterable[str]) -> tuple[Hook, ...]:
        """The hooks of these names, in order.

        Raises:
            NotRegisteredError: One was not given (as often as it was saved).
        """
        left = list(self._hooks)
        found: list[Hook] = []
        for name in names:
            match = next((hook for hook in left if hook.name == name), None)
            if match is None:
                known = tuple(hook.name for hook in self._hooks)
                raise NotRegisteredError("hook", name, known, tuple(get_close_matches(name, known)))
            left.remove(match)
            found.append(match)
        return tuple(found)


# ---- turns


def _resolution_out(turn: Turn[Any]) -> ResolutionData | None:
    what = f"The approval of turn {turn.id!r}"
    match turn.approval:
        case None:
            return None
        case Approve(input=given):
            return {"verdict": "approve", "value": None if given is None else as_data(what, dict(given))}
        case Deny(reason=reason):
            return {"verdict": "deny", "value": reason}
        case Answer(value=value):
            return {"verdict": "answer", "value": as_data(what, value)}


def _resolution_in(data: ResolutionData | None) -> Resolution | None:
    if data is None:
        return None
    made: dict[str, Callable[[Any], Resolution]] = {"approve": Approve, "deny": Deny, "answer": Answer}
    return made[data["verdict"]](data["value"])


def turn_to_dict(turn: Turn[Any]) -> dict[str, Any]:
    """A turn as JSON-compatible data; its tool and hooks by name, its `deps` not at all.

    Raises:
        UsageError: The tool or a hook is a closure; metadata or approval is no data.

    Example:
        >>> turn_to_dict(Turn(add, {"a": 1, "b": 2}))["tool"]
        'add'
    """
    whose = f"turn {turn.id!r}"
    named_function(f"Tool {turn.tool.name!r} of {whose}", turn.tool.function)
    try:
        output = to_jsonable_python(turn.output)
    except PydanticSerializationError:  # a live object: whoever loads the turn can run it again
        output = None
    data: TurnData = {
        "format": "agentflow.turn",
        "version": FORMAT_VERSION,
        "id": turn.id,
        "tool": turn.tool.name,
        "arguments": to_jsonable_python(turn.arguments),
        "timeout": turn.timeout,
        "tags": sorted(turn.tags),
        "metadata": as_data(f"The metadata of {whose}", turn.metadata),
        "approval": _resolution_out(turn),
        "hooks": hook_names(turn.hooks, whose),
        "sender": turn.sender,
        "sender_run": turn.sender_run,
        "start_time": None if turn.running else turn.start_time,
        "end_time": turn.end_time,
        "stop_reason": turn.stop_reason,
        "output": output,
    }
    return dict(data)


def turn_from_dict(data: Mapping[str, Any], find: Finder | None = None) -> Turn[Any]:
    """Make the turn again that `turn_to_dict` has saved.

    Args:
        data: The data.
        find: Where its tool and hooks are found; tools in the default registry by default.

    Raises:
        StoreError: The data is no turn, or newer than this code.
        NotRegisteredError: Its tool or a hook is not found.
    """
    saved = check_form(TurnData, data, "turn")
    finder = find or Finder()
    tool = finder.tool(saved["tool"])
    turn: Turn[Any] = Turn(
        tool,
        saved["arguments"],
        id=saved["id"],
        timeout=saved["timeout"],
        tags=saved["tags"],
        metadata=saved["metadata"],
        approval=_resolution_in(saved["approval"]),
        hooks=finder.hooks(saved["hooks"]),
    )
    turn.restore(
        saved["sender"],
        saved["sender_run"],
        saved["start_time"],
        saved["end_time"],
        saved["stop_reason"],
        saved["output"],
    )
    return turn


def turn_to_json(turn: Turn[Any]) -> str:
    """`turn_to_dict` as JSON text."""
    return to_json(turn_to_dict(turn)).decode()


def turn_from_json(text: str | bytes, find: Finder | None = None) -> Turn[Any]:
    """`turn_from_dict` of JSON text."""
    return turn_from_dict(read_json(text, "turn"), find)


def read_json(text: str | bytes, what: str) -> Any:
    """Parse JSON text.

    Raises:
        StoreError: It is none.
    """
    try:
        return from_json(text)
    except ValueError as error:
        raise StoreError(f"This is no saved {what}: the text is no JSON ({error}).") from error
