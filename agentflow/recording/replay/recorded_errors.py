"""Rebuild recorded exceptions with the same text, and of the same class if its module is loaded.

Rules:

1. A log never triggers an import: a class is looked up only in loaded modules.
2. No constructor runs: the recorded attributes are set, and the text is the recorded one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, cast

from agentflow._support.frozen import EMPTY
from agentflow.recording.fields import ErrorData

__all__ = ["rebuild_error"]


def rebuild_error(recorded: ErrorData, ids: Mapping[str, str] = EMPTY) -> BaseException:
    """Rebuild a recorded exception.

    Args:
        recorded: The recorded `type`, `module`, `message` and `attributes`.
        ids: New ids of tool calls, by recorded id. They replace the recorded ids in attributes.
    """
    name, module, message = recorded["type"], recorded.get("module", ""), recorded.get("message") or ""
    known = _class_of(module, name)
    values = {key: value for key, value in recorded.get("attributes", {}).items() if not key.startswith("__")}
    attributes = {key: ids.get(value, value) if isinstance(value, str) else value for key, value in values.items()}
    if (known.__module__, known.__qualname__) == (module, name):
        error = _build(known, message, attributes)
        # A class may compute its text from its attributes. If the result is another text, a subclass returns the recorded one.
        if error is not None and str(error) == message:
            return error

    def text_of(_self: object) -> str:
        return message

    body: dict[str, Any] = {"__str__": text_of, "__module__": module, "__qualname__": name}
    # `type` refuses a name with a null character, which a damaged log may contain.
    short = name.rpartition(".")[2].replace("\0", "")
    for base in (known, Exception):
        try:
            cls = cast("type[BaseException]", type(short, (base,), dict(body)))
            error = _build(cls, message, attributes)
        except Exception:  # some classes refuse subclasses, or attributes
            continue
        if error is not None:
            return error
    return Exception(message)


def _build(kind: type[BaseException], message: str, attributes: Mapping[str, Any]) -> BaseException | None:
    """Create an exception without its constructor; None if that fails."""
    try:
        # Without `__init__`: its parameters are unknown, and it may have effects.
        error = kind.__new__(kind, message)
    except Exception:  # `__new__` of any class
        return None
    if message and not error.args:  # `OSError` and similar classes set `args` in the constructor only
        error.args = (message,)
    for name, value in attributes.items():
        try:
            setattr(error, name, value)
        except (AttributeError, TypeError, ValueError):
            continue  # the attribute is read-only
    return error


def _class_of(module: str, name: str) -> type[BaseException]:
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and issubclass(found, BaseException):
        return found
    return Exception
