"""Defaults are a part of the public surface: `tests/public_defaults.txt` lists the signatures of all public names.

`python tests/test_public_defaults.py` prints the list. A change there is a change for users: it belongs into CHANGELOG.md.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from enum import EnumType
from pathlib import Path
from typing import Any

import pytest

import agentflow
from website.build import MODULES

LISTED = Path(__file__).with_name("public_defaults.txt")


def _shown(default: Any) -> str:
    """A default as text; objects without a literal are `...`."""
    if isinstance(default, tuple):
        return f"({', '.join(map(_shown, default))})"
    return repr(default) if default is None or type(default) in (bool, int, float, str) else "..."


def _parameters(function: Any) -> list[str]:
    """The names of the parameters, with their defaults, and a star before those that have to be named."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a class without a signature, such as a Protocol
        return []
    parts = list[str]()
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not any(part[0] == "*" for part in parts):
            parts.append("*")
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        parts.append(f"{stars}{one.name}" + ("" if one.default is one.empty else f"={_shown(one.default)}"))
    return parts


def _lines(name: str, value: Any) -> Iterator[str]:
    """The lines of a function; those of a class, its methods and its attributes."""
    values: dict[str, Any] = vars(value) if inspect.isclass(value) else {}
    frozen = " frozen" if dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen else ""
    shown = [name, *_parameters(value)]
    if frozen or any("=" in part for part in shown):
        yield f"{name}({', '.join(shown[1:])}){frozen}"
    fields = {*getattr(value, "__dataclass_fields__", ()), *getattr(value, "_fields", ())}
    for member in values:
        found = inspect.getattr_static(value, member)
        if member.startswith("_") or member in fields:
            continue
        if type(found) in (bool, int, float):
            yield f"{name}.{member} = {found!r}"
        elif inspect.isfunction(function := getattr(found, "__func__", found)):
            parameters = _parameters(function)
            if any("=" in part for part in parameters):
                yield f"{name}.{member}({', '.join(parameters)})"


def defaults_of(module_name: str) -> list[str]:
    """The lines of the public names of a module; those of `agentflow` itself are in no other."""
    module = importlib.import_module(module_name)
    values = {f"{module_name}.{name}": getattr(module, name) for name in module.__all__}
    root = () if module is agentflow else [getattr(agentflow, name) for name in agentflow.__all__]
    chosen = {
        name: value
        for name, value in values.items()
        if inspect.isfunction(value) or (inspect.isclass(value) and not isinstance(value, EnumType))
    }
    return [line for name, value in chosen.items() if value not in root for line in _lines(name, value)]


@pytest.mark.parametrize("module_name", MODULES)
def test_the_public_defaults_are_these(module_name: str) -> None:
    """A default, the order of parameters and which of them have to be named change for everybody who relies on them."""
    try:
        found = defaults_of(module_name)
    except ImportError as error:
        pytest.skip(str(error))  # an extra is missing
    listed = LISTED.read_text("utf-8").split(f"== {module_name}\n")[1].split("\n== ")[0]
    assert found == listed.splitlines()


if __name__ == "__main__":
    print("\n".join(line for name in MODULES for line in (f"== {name}", *defaults_of(name))))
