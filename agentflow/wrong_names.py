"""What somebody may have meant who asks the package for a name that it has not."""

from __future__ import annotations

import importlib
import sys

from agentflow.errors import UsageError, close_to
from agentflow.ground.lazy import no_such_name
from agentflow.hooks.event_names import event_named

__all__ = ["wrong_name"]

_PLACES = (
    "errors",
    "events",
    "hooks",
    "tools",
    "turns",
    "agent",
    "stores",
    "models",
    "messages",
    "verdicts",
    "chunks",
    "context",
    "transcript",
    "specs",
    "reactive",
    "testing",
    "plugins",
    "orchestration",
    "mcp",
    "terminal",
    "facts",
)
"""Modules whose names are public, in the order in which they are looked through."""


def wrong_name(name: str) -> AttributeError | ImportError:
    """The error for a name that the package has not; it says where the name is, or which one is close.

    Args:
        name: What `from agentflow import …`, or `agentflow.…`, asked for.

    Example:
        >>> print(wrong_name("UsageError"))
        agentflow has no 'UsageError' at its root; it is in agentflow.errors: from agentflow.errors import UsageError
    """
    text = f"agentflow has no {name!r} at its root"
    if name[:1] != "_":
        text += _cure(name)
    return no_such_name("agentflow", name, text, depth=3)


def _cure(name: str) -> str:
    for place in _PLACES:
        module = importlib.import_module(f"agentflow.{place}")
        if name in getattr(module, "__all__", ()):
            return f"; it is in agentflow.{place}: from agentflow.{place} import {name}"
    try:
        event_named(name)
    except UsageError as error:
        if "could mean" in str(error):
            return f"; {str(error).partition('; ')[2]}"
    known = sys.modules["agentflow"].__all__
    close = close_to(name, known, 2, 0.7)
    return f"; did you mean {' or '.join(repr(one) for one in close)}?" if close else "; see `agentflow.__all__`."
