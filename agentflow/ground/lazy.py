"""Names of a package that are loaded when they are first asked for (PEP 562), so that importing it stays cheap."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazily"]


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
            raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=sys.modules[package])
        value = getattr(importlib.import_module(place, package), name)
        setattr(sys.modules[package], name, value)
        return value

    return find, lambda: sorted({*vars(sys.modules[package]), *places})
