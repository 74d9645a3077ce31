"""Values that are still arriving: an object of the form that is asked for, as far as the model has said it.

Rules:

1. A partial value is one object that grows. A new one for each piece would cost as much as it is long.
2. Each field and each item is validated when it is whole, with the type that it has in the form; what does not fit is not
   shown. A string is shown while it grows. What is not there yet is the field's default, or None.
3. An object of a union, a dict or a tuple is shown as plain data until it is whole.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from typing import Annotated, Any, Final, Union, cast, get_args, get_origin, get_type_hints

from pydantic_core import to_json
from typing_extensions import is_typeddict

from agentflow.errors import UsageError
from agentflow.events import HookEvent, PreReasoning, ReasoningChunk
from agentflow.ground.validation import adapter_of
from agentflow.output.answer import Answered
from agentflow.output.form import WRAPPED
from agentflow.output.output import Output
from agentflow.output.partial_json import JsonFeed

__all__ = ["Partials", "growing"]

_STEPS: Final = 64
"""A growing string is shown anew when it has grown by this part of itself: then showing it costs the same for each character,
however long it is. Up to so many characters it is shown with each piece."""

_MISSING: Final[Any] = object()


class _Shape:
    """What a value is to be, as far as it can be shown before it is whole.

    Args:
        kind: Its type.
        fields: Its fields, where the type does not say.

    Attributes:
        texts: Whether it is a string.
        item: What the items are, if it is a list.
        make: Makes an empty one, if it is an object with fields.
    """

    __slots__ = ("_adapter", "_fields", "_kind", "item", "make", "texts")

    def __init__(self, kind: Any, fields: dict[str, tuple[str, Any]] | None = None) -> None:
        bare = _bare(kind)
        self._kind = kind
        self._adapter: Any = None
        self._fields = fields
        self.texts = bare is str
        self.item = _Shape(get_args(bare)[0]) if get_origin(bare) is list else None
        self.make = dict if fields is not None else _maker(bare)

    def valid(self, value: object) -> Any:
        """The value, of its type; `_MISSING`: it does not fit."""
        if self._adapter is None:
            self._adapter = adapter_of(self._kind)
        try:
            return self._adapter.validate_json(to_json(value))
        except (ValueError, RecursionError):
            return _MISSING

    def field(self, key: str) -> tuple[str | None, _Shape | None]:
        """The attribute that a key is, and what its value is to be; None: there is none."""
        if self._fields is None:
            self._fields = {key: (name, kind) for key, name, kind in _fields_of(_bare(self._kind))}
        name, kind = self._fields.get(key, (None, None))
        if name is None or isinstance(kind, _Shape):
            return name, kind
        shape = _Shape(kind)
        self._fields[key] = (name, shape)
        return name, shape


class _Node:
    """An object or a list that is open.

    Args:
        shape: What it is to be; None: nobody knows.
        raw: It as plain data, which is what is validated when it is whole.
        shown: The value that grows; the plain data itself where it cannot be of its type before it is whole.
    """

    __slots__ = ("key", "raw", "shape", "shown")

    def __init__(self, shape: _Shape | None, raw: Any, shown: Any) -> None:
        self.shape = shape
        self.raw = raw
        self.shown = shown
        self.key = ""

    def slot(self) -> tuple[str | None, _Shape | None]:
        """Where the next value goes (None: to the end), and what it is to be (None: nowhere)."""
        if self.shape is None or self.shown is self.raw:
            return None, None
        return (None, self.shape.item) if self.shape.item is not None else self.shape.field(self.key)

    def keep(self, value: Any) -> None:
        """Add to the plain data."""
        raw: Any = self.raw
        if isinstance(raw, list):
            cast("list[Any]", raw).append(value)
        else:
            raw[self.key] = value

    def show(self, name: str | None, value: Any, *, again: bool) -> None:
        """Show a value, `again`: in the place of what it was before."""
        shown = self.shown
        if isinstance(shown, list):
            items = cast("list[Any]", shown)
            items[len(items) - again :] = [value]
        elif isinstance(shown, dict):
            cast("dict[Any, Any]", shown)[name] = value
        elif name is not None:
            _assign(shown, name, value)


class Partials:
    """What an answer says so far.

    Args:
        output: The form that was asked for.

    Attributes:
        value: The growing value, once `feed` has said that there is one.

    Raises:
        UsageError: It is a function: what that returns is not known before it has run.
    """

    def __init__(self, output: Output[Any]) -> None:
        if output.runs:
            raise UsageError(
                f"partials() of output={output.name_of_form}: what a function returns is not there before it has run. Read "
                "the events: `ReasoningChunk.incremental_chunk.tool_uses` are the fragments of its arguments."
            )
        self._words = output.is_text
        self._wrapped = not output.is_text and output.shape.wrapped
        own = _Shape(output.form)
        self._root = _Shape(None, {WRAPPED: (WRAPPED, own)}) if self._wrapped else own
        self.begin()

    def begin(self) -> None:
        """Another answer begins."""
        self.value: Any = None
        self._top: Any = _MISSING
        self._nodes: list[_Node] = []
        self._texts: list[str] = []
        self._length = self._seen = 0
        self._changed = False
        self._feed = JsonFeed(self)

    def feed(self, text: str) -> bool:
        """Take in a piece of the answer.

        Returns:
            Whether there is more to see.
        """
        self._changed = False
        if self._words:
            self.piece(text)
        else:
            self._feed.feed(text)
            self.value = self._top
            if self._wrapped:
                self.value = _MISSING if self._top is _MISSING else self._top.get(WRAPPED, _MISSING)
        return self._changed and self.value is not _MISSING

    # ---- what the parser tells

    def opens(self, kind: type[dict[str, Any]] | type[list[Any]]) -> None:
        """An object or an array begins."""
        raw: Any = kind()
        above = self._nodes[-1] if self._nodes else None
        name, shape = (None, self._root) if above is None else above.slot()
        shown: Any = raw
        if shape is not None and kind is list and shape.item is not None:
            shown = []
        elif shape is not None and kind is dict and shape.make is not None:
            shown = cast("Any", shape.make())
        if above is None:
            self._top = shown
        else:
            above.keep(raw)
            if shape is not None:
                above.show(name, shown, again=False)
        self._changed = True
        self._nodes.append(_Node(shape, raw, shown))

    def key(self, name: str) -> None:
        """A key of the object is whole."""
        self._nodes[-1].key = name

    def piece(self, text: str) -> None:
        """A string has grown."""
        self._texts.append(text)
        self._length += len(text)
        if self._length - self._seen <= self._seen // _STEPS:
            return
        node = None if self._words else self._nodes[-1]
        name, shape = (None, None) if node is None else node.slot()
        if node is not None and (shape is None or not shape.texts):
            return
        whole = "".join(self._texts)
        if node is None:
            self.value = whole
        else:
            node.show(name, whole, again=self._seen > 0)
        self._texts, self._seen, self._changed = [whole], self._length, True

    def text_ends(self) -> None:
        """A string is whole."""
        text, again = "".join(self._texts), self._seen > 0
        self._texts, self._length, self._seen = [], 0, 0
        self._whole(text, again)

    def scalar(self, value: object) -> None:
        """A number, a boolean or null is whole."""
        self._whole(value, again=False)

    def closes(self) -> None:
        """The innermost object or array is whole."""
        node = self._nodes.pop()
        if not self._nodes:
            return
        above = self._nodes[-1]
        name, shape = above.slot()
        value = _MISSING if shape is None else shape.valid(node.raw)
        if value is not _MISSING:
            above.show(name, value, again=True)
        self._changed = True

    def _whole(self, value: object, again: bool) -> None:
        node = self._nodes[-1]
        node.keep(value)
        name, shape = node.slot()
        shown = _MISSING if shape is None else shape.valid(value)
        if shown is not _MISSING or again:
            node.show(name, None if shown is _MISSING else shown, again=again)
        if shape is not None or node.shown is node.raw:
            self._changed = True


async def growing(events: AsyncIterable[HookEvent], output: Output[Any]) -> AsyncIterator[Any]:
    """The values of a call's answer while it arrives, read from the call's events.

    Args:
        events: The events of the call, from the first.
        output: What it was asked for.
    """
    seen, tool = Partials(output), "" if output.is_text else output.tool.name
    own, by_tool, call = "", False, -1
    async for event in events:
        own = own or event.run_id
        if event.run_id != own:  # a sub-agent's
            continue
        if isinstance(event, PreReasoning):
            seen.begin()
            by_tool, call = event.context.state[Answered].way == "tool", -1
        elif isinstance(event, ReasoningChunk):
            if event.restart:
                seen.begin()
                call = -1
            chunk, news = event.incremental_chunk, False
            if by_tool:
                for fragment in chunk.tool_uses:
                    if fragment.name == tool and fragment.index != call:
                        seen.begin()
                        call = fragment.index
                    news = (fragment.index == call and seen.feed(fragment.arguments)) or news
            elif chunk.text:
                news = seen.feed(chunk.text)
            if news:
                yield seen.value


# ---- types


def _bare(kind: Any) -> Any:
    """A type without what is said about it, and without `| None`."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in (Union, types.UnionType):
        others = [member for member in get_args(kind) if member is not type(None)]
        return _bare(others[0]) if len(others) == 1 else kind
    return kind


def _maker(kind: Any) -> Callable[[], Any] | None:
    """What makes an empty object of a type; None: it has no fields that can be shown one by one."""
    if is_typeddict(kind):
        return dict
    if not isinstance(kind, type) or get_origin(kind) is not None:
        return None
    if dataclasses.is_dataclass(kind):
        return lambda: _empty_dataclass(kind)
    fields: Any = getattr(cast("Any", kind), "__pydantic_fields__", None)
    if fields is None or "root" in fields:
        return None
    return lambda: _empty_model(kind)


def _empty_model(kind: Any) -> Any:
    made = kind.model_construct()
    for name in kind.__pydantic_fields__:
        made.__dict__.setdefault(name, None)
    return made


def _empty_dataclass(kind: Any) -> Any:
    made = object.__new__(kind)
    for field in dataclasses.fields(kind):
        value: Any = None
        if field.default is not dataclasses.MISSING:
            value = field.default
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        object.__setattr__(made, field.name, value)
    return made


def _assign(shown: Any, name: str, value: Any) -> None:
    """Set a field of an object that may be frozen, or check what is assigned."""
    if dataclasses.is_dataclass(shown):
        object.__setattr__(shown, name, value)
        return
    shown.__dict__[name] = value
    shown.__pydantic_fields_set__.add(name)


def _fields_of(kind: Any) -> Iterator[tuple[str, str, Any]]:
    """The fields of a type: their keys in JSON, their names, their types."""
    fields = getattr(kind, "__pydantic_fields__", None)
    if fields is not None and not dataclasses.is_dataclass(kind):
        for name, field in fields.items():
            alias = field.validation_alias if isinstance(field.validation_alias, str) else field.alias
            annotated = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
            yield alias or name, name, annotated
        return
    try:
        hints = get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):  # names that only a checker knows
        return
    for name, hint in hints.items():
        yield name, name, hint
