"""Load the names of a package on first use (PEP 562), so that importing the package stays cheap; explain a wrong name."""

from __future__ import annotations

import gc
import importlib
import opcode
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from agentflow.errors import UsageError, close_to

_MODULES = (
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
    """Return the error for a name that the package root lacks; it names the right module, or similar names.

    Args:
        name: The name in `from agentflow import …` or `agentflow.…`.

    Example:
        >>> print(wrong_name("UsageError"))
        agentflow has no 'UsageError' at its root; it is in agentflow.errors: from agentflow.errors import UsageError
    """
    text = f"agentflow has no {name!r} at its root"
    if name[:1] != "_":
        text += _hint(name)
    return no_such_name("agentflow", name, text, depth=3)


def _hint(name: str) -> str:
    for module_name in _MODULES:
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
    return f"; did you mean {' or '.join(repr(guess) for guess in close)}?" if close else "; see `agentflow.__all__`."


def lazily(
    package: str, names: Mapping[str, str], extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package.

    Args:
        package: The package's name.
        names: The names in each module, separated by spaces; the module is relative to the package (with a leading dot) or
            absolute.
        extra: The extra that provides the dependencies of the modules, for the error if one is missing.

    Example:
        >>> __getattr__, __dir__ = lazily("json", {".decoder": "JSONDecoder"})
        >>> __getattr__("JSONDecoder").__name__
        'JSONDecoder'
    """

    modules = {name: module for module, listed in names.items() for name in listed.split()}

    def find(name: str) -> Any:
        module = modules.get(name)
        if module is None:
            # `from package import module` looks for an attribute first, and discards this error
            if sys._getframe(1).f_code.co_name == "_handle_fromlist":  # pyright: ignore[reportPrivateUsage] - as below
                raise AttributeError(name)
            raise no_such_name(package, name, f"{package} has no {name!r}{_close_to(package, name)}")
        try:
            value = getattr(_imported(module, package), name)
        except ModuleNotFoundError as error:
            missing = (error.name or "agentflow").partition(".")[0]
            if extra is None or missing == "agentflow":  # a wrong import of our own, which no extra provides
                raise
            text = f"{package} needs {missing}, which is not installed: pip install 'agentflow-hooks[{extra}]'"
            raise ModuleNotFoundError(text, name=error.name) from error
        setattr(sys.modules[package], name, value)  # from now on, `__getattr__` is not called for this name
        return value

    return find, lambda: sorted({*vars(sys.modules[package]), *modules})


def later(module: str) -> Any:
    """Return a stand-in for a module; the module is imported when one of its names is first used.

    For a module that most programs never use. A type checker sees a plain import; `tests/test_layers.py` sees both branches:

        if TYPE_CHECKING:
            from agentflow.agent import graph
        else:
            graph = later("agentflow.agent.graph")

    Args:
        module: The module's full name.

    Example:
        >>> later("json.decoder").JSONDecoder.__name__
        'JSONDecoder'
    """
    return _Later(module)


class _Later:
    """See `later`."""

    def __init__(self, module: str) -> None:
        self.__name__ = module

    def __getattr__(self, name: str) -> Any:
        module = _imported(self.__name__)
        # Shares the module's names, so that later reads, and names that a test replaces, need no `__getattr__`.
        self.__dict__ = vars(module)
        return getattr(module, name)


def _imported(module: str, package: str | None = None) -> ModuleType:
    collects = gc.isenabled()
    gc.disable()  # an import leaves hardly any garbage, and collecting it takes 6 % of the time
    try:
        return importlib.import_module(module, package)
    finally:
        if collects:
            gc.enable()


def no_such_name(package: str, name: str, text: str, depth: int = 2) -> AttributeError | ImportError:
    """Return the error for a name that a package lacks, for its `__getattr__` to raise.

    Args:
        package: The package's name.
        name: The requested name.
        text: The message. In `from package import name`, Python would replace the text of an `AttributeError`, so an
            `ImportError` is returned there.
        depth: The number of frames between this function and the code that requests the name.
    """
    frame = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage] - loads no other module than this, for a fast import
    imported = opcode.opname[frame.f_code.co_code[frame.f_lasti]] == "IMPORT_FROM"
    # If `name` is a module that is being imported, Python finds it in `sys.modules` after an `AttributeError`.
    if imported and f"{package}.{name}" not in sys.modules:
        return ImportError(text, name=name)
    return AttributeError(text, name=name, obj=sys.modules[package])


def _close_to(package: str, name: str) -> str:
    from difflib import get_close_matches

    known: list[str] = getattr(sys.modules[package], "__all__", [])
    close = get_close_matches(name, known, 2, 0.7) if name[:1] != "_" else []
    return f"; did you mean {' or '.join(close)}?" if close else f"; see `{package}.__all__`."
