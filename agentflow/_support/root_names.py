"""Suggestions for names that the package root does not have."""

from __future__ import annotations

import importlib
import sys

from agentflow._support.lazy import no_such_name
from agentflow.errors import UsageError, close_to

_PLACES = (
    "errors",
    "vocabulary",
    "hooks",
    "tools",
    "agent",
    "state",
    "models",
    "reactive",
    "testing",
    "recording",
    "plugins",
    "agent.orchestration",
    "mcp",
    "terminal",
)
"""Modules with public names, in the order of search; imported by name, since they are in layers above this one."""


def wrong_name(name: str) -> AttributeError | ImportError:
    """Return the error for a name that the package root does not have; it names the right module, or similar names.

    Args:
        name: The name in `from agentflow import …` or `agentflow.…`.

    Example:
        >>> print(wrong_name("UsageError"))
        agentflow has no 'UsageError' at its root; it is in agentflow.errors: from agentflow.errors import UsageError
    """
    text = f"agentflow has no {name!r} at its root"
    if name[:1] != "_":
        text += _cure(name)
    return no_such_name("agentflow", name, text, depth=3)


def _cure(name: str) -> str:
    for module_name in _PLACES:
        module = importlib.import_module(f"agentflow.{module_name}")
        if name in getattr(module, "__all__", ()):
            return f"; it is in agentflow.{module_name}: from agentflow.{module_name} import {name}"
    try:
        importlib.import_module("agentflow.hooks.event_names").event_named(name)
    except UsageError as error:
        if "could mean" in str(error):
            return f"; {str(error).partition('; ')[2]}"
    known = sys.modules["agentflow"].__all__
    close = close_to(name, known, 2, 0.7)
    return f"; did you mean {' or '.join(repr(one) for one in close)}?" if close else "; see `agentflow.__all__`."
