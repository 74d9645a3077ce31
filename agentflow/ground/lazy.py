"""Names of a package that are loaded when they are first asked for (PEP 562), so that importing it stays cheap."""

from __future__ import annotations

import importlib
import opcode
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazily", "no_such_name"]


def lazily(package: str, places: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the `__getattr__` and `__dir__` of a package.

    Args:
        package: Its name.
        places: The module of each name, as a path below the package or, without a leading dot, an absolute one.

    Example:
        >>> __getattr__, __dir__ = lazily("json", {"JSONDecoder": ".decoder"})
        >>> __getattr__("JSONDecoder").__name__
        'JSONDecoder'
    """

    def find(name: str) -> Any:
        place = places.get(name)
        if place is None:
            raise no_such_name(package, name, f"{package} has no {name!r}{_close_to(package, name)}")
        value = getattr(importlib.import_module(place, package), name)
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted({*vars(sys.modules[package]), *places})


def no_such_name(package: str, name: str, text: str, depth: int = 2) -> AttributeError | ImportError:
    """The error for a name that a package has not, to be raised by what its `__getattr__` calls.

    Args:
        package: Its name.
        name: The name that was asked for.
        text: What the error says. Python replaces the text of an `AttributeError` where somebody wrote
            `from package import name`; an `ImportError` is shown there.
        depth: How many frames above this function the one that asks is.
    """
    asked = sys._getframe(depth)  # pyright: ignore[reportPrivateUsage]
    imported = opcode.opname[asked.f_code.co_code[asked.f_lasti]] == "IMPORT_FROM"
    if (
        imported and f"{package}.{name}" not in sys.modules
    ):  # else a module that is being imported: Python finds it there
        return ImportError(text, name=name)
    return AttributeError(text, name=name, obj=sys.modules[package])


def _close_to(package: str, name: str) -> str:
    from difflib import get_close_matches

    known: list[str] = getattr(sys.modules[package], "__all__", [])
    close = get_close_matches(name, known, 2, 0.7) if name[:1] != "_" else []
    return f"; did you mean {' or '.join(close)}?" if close else f"; see `{package}.__all__`."
