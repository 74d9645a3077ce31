"""The contract of a tool's type: checked at decoration where possible, at first use, and on the tool's values.

Rules:

1. Decoration evaluates nothing: it checks a text annotation only if the text names a builtin.
2. Unknown annotations are not an error: a name that only type checkers know, `Any`, or a missing annotation (unless the
   contract requires one). The returned values are checked in any case.
"""

from __future__ import annotations

import re
import types
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Mapping
from typing import Annotated, Any, Final, Literal, LiteralString, Union, cast, get_args, get_origin

from agentflow._support.annotations import annotations_of
from agentflow.errors import ToolContractError
from agentflow.vocabulary.specs import ToolType

_GIVES: Final = "returns a value (None only if the annotation allows it, as in `-> Row | None`)"
_DEMANDS: Final[Mapping[ToolType, str]] = {
    "research": _GIVES,
    "read": _GIVES,
    "memory_read": _GIVES,
    "reasoning": "returns text: it is annotated `-> str`, or is an async generator of str",
    "completion_check": "is a coroutine function annotated `-> bool`, and returns True or False",
    "memory_write": "has at least one parameter that the model fills",
}
_BUILTIN_TYPES: Final[Mapping[str, object]] = {"None": None} | {
    kind.__name__: kind for kind in (bool, str, int, float, bytes, list, dict, tuple, set, object)
}
_PLAIN: Final[Mapping[ToolType, type]] = {"completion_check": bool, "reasoning": str}
_SAYS_NONE: Final = r"\b(None|Optional|Any|object)\b"
_STREAMS: Final = (AsyncIterator, AsyncGenerator, AsyncIterable)
_MAX_VALUE_LENGTH: Final = 80


class _Missing:
    def __repr__(self) -> str:
        return "no annotation"


MISSING: Final = _Missing()
"""A function without a return annotation."""


class Contract:
    """The contract of one tool's type; shared by all copies of the tool.

    Args:
        tool: The tool's name, for errors before it runs.
        type: The tool's type.
        streaming: Whether the tool is an async generator, each value of which is checked.
    """

    __slots__ = ("_allows_none", "_streaming", "_tool", "type")

    def __init__(self, tool: str, type: ToolType, streaming: bool) -> None:  # noqa: A002 - as the tool's attribute
        self.type: ToolType = type
        self._tool = tool
        self._streaming = streaming
        self._allows_none = False

    @property
    def demand(self) -> str:
        """The contract as text."""
        return _DEMANDS[self.type]

    @property
    def runs(self) -> bool:
        """Whether the contract also applies to values."""
        return self.type != "memory_write"

    def refusal(self, tool: str, got: str) -> ToolContractError:
        """Return the error for a tool that breaks the contract."""
        return ToolContractError(tool, self.type, got, self.demand)

    def judge(self, hint: object) -> None:
        """Check the return annotation. If it is a text that could not be evaluated, search the text for None.

        Raises:
            ToolContractError: The annotation breaks the contract.
        """
        check = self.type == "completion_check"
        if hint is MISSING:
            if check:
                raise self.refusal(self._tool, "has no return annotation")
            return
        if isinstance(hint, str):
            self._allows_none = re.search(_SAYS_NONE, hint) is not None
            return
        leaves = _leaves(_item(hint) if self._streaming else hint)
        self._allows_none = any(leaf in (None, types.NoneType, Any, object) for leaf in leaves)
        if check:
            legal = all(leaf is bool for leaf in leaves)
        elif self.type == "reasoning":
            legal = not any(_is_other(leaf, str) for leaf in leaves)
        else:
            legal = any(leaf not in (None, types.NoneType) for leaf in leaves)
        if not legal:
            raise self.refusal(
                self._tool, f"is annotated to {'yield' if self._streaming else 'return'} {_shown_hint(hint)}"
            )

    def judge_at_once(self, raw: object) -> None:
        """Check an unevaluated annotation, at decoration.

        Raises:
            ToolContractError: The annotation breaks the contract.
        """
        if isinstance(raw, str):
            raw = _BUILTIN_TYPES.get(raw, MISSING)
            if raw is MISSING:
                return
        if type(raw) is type and raw is _PLAIN.get(self.type, raw):  # a fast path for common annotations
            return
        self.judge(raw)

    def judge_parameters(self, count: int) -> None:
        """Check the number of parameters that the model fills.

        Raises:
            ToolContractError: There is no such parameter, and the type requires one.
        """
        if not count and not self.runs:
            raise self.refusal(self._tool, "has none")

    def check(self, tool: str, value: object) -> None:
        """Check a value of the tool.

        Args:
            tool: The tool's name, which copies may change.
            value: Its return value, or one of the values that it yielded.

        Raises:
            ToolContractError: The value breaks the contract.
        """
        kind = self.type
        if kind == "completion_check":
            legal = isinstance(value, bool)
        elif kind == "reasoning":
            legal = isinstance(value, str)
        else:
            legal = value is not None or self._allows_none
        if not legal:
            raise self.refusal(tool, f"{'yielded' if self._streaming else 'returned'} {_shown_value(value)}")


def contract_of(
    tool: str, kind: ToolType, plain: types.FunctionType | None, streaming: bool, fixed: Mapping[str, object] | None
) -> Contract | None:
    """Return the contract of a tool that is being created; None if its type has none.

    Raises:
        ToolContractError: The function visibly breaks the contract.
    """
    if kind not in _DEMANDS:  # write, action and the others demand nothing
        return None
    contract = Contract(tool, kind, streaming)
    if streaming and kind == "completion_check":  # a completion check has one answer
        raise contract.refusal(tool, "is an async generator")
    if plain is not None:
        if contract.runs:
            contract.judge_at_once(return_annotation(plain))
        else:
            code = plain.__code__
            # An upper bound: injected parameters are counted too. `Blueprint` counts exactly when the signature is
            # read.
            contract.judge_parameters(code.co_argcount + code.co_kwonlyargcount - len(fixed or ()))
    return contract


def return_annotation(function: Callable[..., Any]) -> object:
    """Return a function's return annotation, unevaluated: an object, a text, or `MISSING`."""
    return annotations_of(function).get("return", MISSING)


def _item(hint: object) -> object:
    """Return the type of the values that an async generator yields, from its annotation."""
    if get_origin(hint) in _STREAMS:
        return next(iter(get_args(hint)), Any)
    return Any


def _leaves(hint: object) -> list[object]:
    """Return the flattened members of a union, `Annotated`, alias or `NewType`; for a `Literal` the classes of its values."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Annotated:
        return _leaves(arguments[0])
    if origin is Literal:
        return [type(value) for value in arguments]
    if origin in (Union, types.UnionType):
        return [leaf for member in arguments for leaf in _leaves(member)]
    for attribute in ("__supertype__", "__value__"):  # NewType, and Python 3.12's `type` statement
        if hasattr(hint, attribute):
            return _leaves(getattr(hint, attribute))
    if hint is LiteralString:
        return [str]
    return [origin if isinstance(origin, type) else hint]


def _is_other(leaf: object, kind: type) -> bool:
    """Whether a member is certainly not of a class."""
    if leaf is None:
        return True
    # On Python 3.11 and later `Any` is a class.
    return isinstance(leaf, type) and leaf not in (object, Any) and not issubclass(cast("type[object]", leaf), kind)


def _shown_hint(hint: object) -> str:
    text = hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
    return text.replace("collections.abc.", "").replace("typing.", "")


def _shown_value(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001, RUF100 - a broken __repr__ must not hide the problem
        text = "a value without a readable repr"
    text = text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}…"
    return text if value is None else f"{text} ({type(value).__name__})"
