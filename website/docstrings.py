"""An extension of griffe for the conventions of our docstrings."""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)
_DATACLASS = griffe.ExprName("dataclass", parent=griffe.ExprName("dataclasses"))


class Docstrings(griffe.Extension):
    """Reads `Example:` sections, treats `@frozen` classes as dataclasses, and documents named events by their definition."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section `Example:` of an object to `Examples:`, which griffe reads as code."""
        if obj.docstring:
            obj.docstring.value = _EXAMPLE.sub(r"\1Examples:", obj.docstring.value)

    def on_class_instance(self, *, node: ast.AST | griffe.ObjectNode, cls: griffe.Class, **_: Any) -> None:
        """Replace `@frozen` of a class by `@dataclass`, so that griffe knows its signature."""
        for decorator in cls.decorators:
            if (name := str(decorator.value)).startswith("frozen"):
                keywords = griffe.ExprKeyword("kw_only", str("kw_only" in name))
                decorator.value = griffe.ExprCall(_DATACLASS, [keywords])

    def on_attribute_instance(self, *, node: ast.AST | griffe.ObjectNode, attr: griffe.Attribute, **_: Any) -> None:
        """Document a named event, such as `before_llm = NamedEvent("before_llm", PreReasoning, "when it fires")`."""
        match node:
            case ast.Assign(
                value=ast.Call(
                    func=ast.Name(id="NamedEvent"), args=[_, ast.Name(id=event), ast.Constant(value=str(about))]
                )
            ):
                text = f"A function of one `{event}` as a hook: {about}. Decorator, with options or without; see `on`."
                attr.docstring = griffe.Docstring(text, parent=attr)
            case _:
                pass
