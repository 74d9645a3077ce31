"""Load the names of a package on first use (PEP 562), so that importing the package stays cheap."""

from __future__ import annotations

import importlib
import opcode
import sys
from collections.abc import Callable, Mapping
from typing import Any


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
            raise no_such_name(package, name, f"{package} has no {name!r}{_close_to(package, name)}")
        try:
            value = getattr(importlib.import_module(module, package), name)
        except ModuleNotFoundError as error:
            missing = (error.name or "agentflow").partition(".")[0]
            if extra is None or missing == "agentflow":
                raise
            text = f"{package} needs {missing}, which is not installed: pip install 'agentflow-hooks[{extra}]'"
            raise ModuleNotFoundError(text, name=error.name) from error
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted({*vars(sys.modules[package]), *modules})


def no_such_name(package: str, name: str, text: str, depth: int = 2) -> AttributeError | ImportError:
    """Return the error for a name that a package does not have, to be raised by its `__getattr__`.

    Args:
        package: The package's name.
        name: The requested name.
        text: The message. For `from package import name` Python replaces the text of an `AttributeError`, so an
            `ImportError` is returned then.
        depth: The number of frames between this function and the code that requests the name.
    """
    frame = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage] - as `inspect.currentframe` does
    imported = opcode.opname[frame.f_code.co_code[frame.f_lasti]] == "IMPORT_FROM"
    if (
        imported and f"{package}.{name}" not in sys.modules
    ):  # otherwise Python finds the module in sys.modules, while it is being imported
        return ImportError(text, name=name)
    return AttributeError(text, name=name, obj=sys.modules[package])


def _close_to(package: str, name: str) -> str:
    from difflib import get_close_matches

    known: list[str] = getattr(sys.modules[package], "__all__", [])
    close = get_close_matches(name, known, 2, 0.7) if name[:1] != "_" else []
    return f"; did you mean {' or '.join(close)}?" if close else f"; see `{package}.__all__`."
