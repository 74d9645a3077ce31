"""Names of a package that are loaded on first use (PEP 562), so that importing the package stays cheap."""

from __future__ import annotations

import importlib
import opcode
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazily", "no_such_name"]


def lazily(
    package: str, places: Mapping[str, str], extra: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package.

    Args:
        package: Its name.
        places: The module of each name, as a path below the package or, without a leading dot, an absolute one.
        extra: The extra that brings what the modules need; named in the error if it is missing.

    Example:
        >>> __getattr__, __dir__ = lazily("json", {"JSONDecoder": ".decoder"})
        >>> __getattr__("JSONDecoder").__name__
        'JSONDecoder'
    """

    def find(name: str) -> Any:
        place = places.get(name)
        if place is None:
            raise no_such_name(package, name, f"{package} has no {name!r}{_close_to(package, name)}")
        try:
            value = getattr(importlib.import_module(place, package), name)
        except ModuleNotFoundError as error:
            missing = (error.name or "agentflow").partition(".")[0]
            if extra is None or missing == "agentflow":
                raise
            text = f"{package} needs {missing}, which is not installed: pip install 'agentflow-hooks[{extra}]'"
            raise ModuleNotFoundError(text, name=error.name) from error
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted({*vars(sys.modules[package]), *places})


def no_such_name(package: str, name: str, text: str, depth: int = 2) -> AttributeError | ImportError:
    """Return the error for a name that a package does not have, to be raised by its `__getattr__`.

    Args:
        package: The package's name.
        name: The requested name.
        text: The message. For `from package import name` Python replaces the text of an `AttributeError`, so an
            `ImportError` is returned then.
        depth: How many frames above this function the requesting one is.
    """
    asked = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage] - as `inspect.currentframe` does
    imported = opcode.opname[asked.f_code.co_code[asked.f_lasti]] == "IMPORT_FROM"
    if (
        imported and f"{package}.{name}" not in sys.modules
    ):  # a module that is being imported: Python finds it in sys.modules
        return ImportError(text, name=name)
    return AttributeError(text, name=name, obj=sys.modules[package])


def _close_to(package: str, name: str) -> str:
    from difflib import get_close_matches

    known: list[str] = getattr(sys.modules[package], "__all__", [])
    close = get_close_matches(name, known, 2, 0.7) if name[:1] != "_" else []
    return f"; did you mean {' or '.join(close)}?" if close else f"; see `{package}.__all__`."
