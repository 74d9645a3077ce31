"""How turns, queues and agents are saved as data, and how what is code is named in it.

Rules:

1. What is code is saved by its name and found again by whoever loads: tools, hooks. What a name does not carry (a closure,
   a lambda) is refused when it is saved, with the reason.
2. Data says its format and its version; a newer one is refused, untouched.
3. A turn that is saved while it runs is restored as one that has not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import unwrap
from types import FunctionType
from typing import Any, TypeVar, cast
from weakref import WeakSet

from pydantic_core import PydanticSerializationError, ValidationError, from_json, to_json

from agentflow.errors import NotRegisteredError, StoreError, UsageError, close_to
from agentflow.ground.validation import adapter_of
from agentflow.hooks.functions import FunctionHook
from agentflow.hooks.hook import Hook
from agentflow.tools.tool import Tool
from agentflow.tools.tool_registry import ToolRegistry, default_tools

__all__ = [
    "FORMAT_VERSION",
    "Finder",
    "as_data",
    "check_form",
    "found_by_name",
    "hook_names",
    "named_function",
    "not_data",
    "not_saved",
    "read_json",
]

FORMAT_VERSION = 2
"""The version of the form of saved turns, queues and agents."""

D = TypeVar("D")
F = TypeVar("F")


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
        version = cast("Mapping[str, object]", data).get("version")
        if type(version) is int and version > FORMAT_VERSION:
            raise StoreError(
                f"The saved {what} has version {version}; this agentflow reads versions up to {FORMAT_VERSION}. A newer one "
                "wrote it: upgrade agentflow here."
            )
    try:
        return adapter_of(form).validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise not_saved(what, where or "the whole", first["msg"]) from error


def not_saved(what: str, where: str, why: str) -> StoreError:
    """Why something is none of what was saved."""
    return StoreError(f"This is no saved {what}: {where}: {why}. Load what {what}.to_dict() has written.")


def as_data(what: str, value: object) -> Any:
    """A value as JSON data.

    Raises:
        UsageError: It is none; `what` says where it stands.
    """
    try:
        return from_json(to_json(value, inf_nan_mode="strings"))
    except PydanticSerializationError as error:
        raise not_data(what, error) from error


def not_data(what: str, why: object) -> UsageError:
    """Why something cannot be saved."""
    return UsageError(f"{what} cannot be saved: {why}. Only what JSON knows travels.")


# ---- names


_by_name: WeakSet[FunctionType] = WeakSet()


def found_by_name(function: F) -> F:
    """Mark a closure of our own whose name carries all: an agent as a tool is the agent of that name."""
    assert isinstance(function, FunctionType)
    _by_name.add(function)
    return function


def named_function(what: str, function: object) -> None:
    """Refuse a function that a name does not carry.

    Raises:
        UsageError: It is a lambda, or it closes over variables.
    """
    plain = unwrap(function) if callable(function) else None
    plain = getattr(plain, "__func__", plain)
    if not isinstance(plain, FunctionType) or plain in _by_name:
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
        if isinstance(hook, FunctionHook):
            named_function(f"Hook {hook.name!r} of {whose}", cast("FunctionHook[Any]", hook).handler)
        names.append(hook.name)
    return names


class Finder:
    """Finds by name what is code.

    Args:
        tools: A registry, or tools.
        hooks: Hooks; several of one name are taken in their order.
    """

    def __init__(
        self, tools: ToolRegistry | Iterable[Tool[..., Any]] | None = None, hooks: Iterable[Hook] = ()
    ) -> None:
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
            raise NotRegisteredError("tool", name, tuple(self._tools), close_to(name, self._tools))
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
                raise NotRegisteredError("hook", name, known, close_to(name, known))
            left.remove(match)
            found.append(match)
        return tuple(found)


def read_json(text: str | bytes, what: str) -> Any:
    """Parse JSON text.

    Raises:
        StoreError: It is none.
    """
    try:
        return from_json(text)
    except ValueError as error:
        raise StoreError(f"This is no saved {what}: the text is no JSON ({error}).") from error
