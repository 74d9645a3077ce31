"""Exceptions as they were recorded, raised again: of the same class where that is loaded, with the same text.

Rules:

1. A log never makes anything be imported: a class is looked up among the modules that are loaded.
2. No constructor runs: attributes that the log tells of are set, the text is the recorded one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, cast

from agentflow.ground.frozen import EMPTY
from agentflow.runlog.fields import ErrorData

__all__ = ["again"]


def again(words: ErrorData, ids: Mapping[str, str] = EMPTY) -> BaseException:
    """The exception that a log tells of.

    Args:
        words: What it says: `type`, `module`, `message`, `attributes`.
        ids: The ids of tool calls that are others now: an attribute that holds one gets the new one.
    """
    name, module, message = words["type"], words.get("module", ""), words.get("message") or ""
    known = _class_of(module, name)
    given = {key: value for key, value in words.get("attributes", {}).items() if not key.startswith("__")}
    attributes = {key: ids.get(value, value) if isinstance(value, str) else value for key, value in given.items()}
    if (known.__module__, known.__qualname__) == (module, name):
        error = _made(known, message, attributes)
        if error is not None and str(error) == message:
            return error

    def told(_self: object) -> str:
        return message

    body: dict[str, Any] = {"__str__": told, "__module__": module, "__qualname__": name}
    short = name.rpartition(".")[2].replace("\0", "")
    for base in (known, Exception):
        try:
            made = cast("type[BaseException]", type(short, (base,), dict(body)))
            error = _made(made, message, attributes)
        except Exception:
            continue
        if error is not None:
            return error
    return Exception(message)


def _made(kind: type[BaseException], message: str, attributes: Mapping[str, Any]) -> BaseException | None:
    """An exception of a class; None: it cannot be made without its constructor."""
    try:
        error = kind.__new__(kind, message)
    except Exception:
        return None
    if message and not error.args:  # `OSError` and its like take them in the constructor only
        error.args = (message,)
    for name, value in attributes.items():
        try:
            setattr(error, name, value)
        except (AttributeError, TypeError, ValueError):
            continue  # it is read-only
    return error


def _class_of(module: str, name: str) -> type[BaseException]:
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        return found
    return Exception
