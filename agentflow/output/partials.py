"""Answers that are still arriving: the fields of the form that is asked for, as far as the model has said them.

Rules:

1. A partial answer is plain data, and typed as such: dicts, lists, strings, numbers, booleans and None, by the names of the
   fields. An object of the form would need values for fields that the model has not said yet, and no checker could know.
2. It is one mapping that grows. A new one for each piece would cost as much as the answer is long.
3. A number, a boolean, an enum's or a date's text is shown when it is whole and fits its field, as `model_dump(mode="json")`
   has it; what does not fit is not shown, nor is a key that the form does not know. A string is shown while it grows.
4. Where the form leaves the shape open (a union, a tuple), the data is shown as the model says it, and removed where it
   does not fit when it is whole.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Mapping
from typing import Annotated, Any, Final, Generic, TypeAlias, Union, cast, get_args, get_origin, get_type_hints

import typing_extensions
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import PydanticSerializationError, SchemaError, to_json
from typing_extensions import TypeAliasType, is_typeddict

from agentflow.errors import MissingOutputError, UsageError
from agentflow.events import HookEvent, PreReasoning, ReasoningChunk
from agentflow.ground.validation import adapter_of
from agentflow.messages import T_co
from agentflow.output.answer import Answered
from agentflow.output.form import WRAPPED
from agentflow.output.output import Output
from agentflow.output.partial_json import JsonFeed

__all__ = ["Partial", "Partials", "growing"]

_STEPS: Final = 64
"""A growing string is shown again when it has grown by this part of itself: then showing it costs the same for each character,
however long it is. Up to so many characters it is shown with each piece."""

_MISSING: Final[Any] = object()
_PLAIN: Final = (str, int, float, bool, types.NoneType)
_QUALIFIERS: Final = frozenset(
    getattr(module, name)
    for module in (typing, typing_extensions)
    for name in ("Required", "NotRequired", "ReadOnly")
    if hasattr(module, name)
)

_Data: TypeAlias = dict[str, Any] | list[Any]


class Partial(Mapping[str, Any], Generic[T_co]):
    """What a typed answer says so far: a mapping of its fields, as plain data, which grows while the model answers.

    A key is there when the model has begun to say a value that fits, so read it with `partial.get("title", "")`. A form that
    is no object has the one key `answer`. Nested objects are dicts, whatever they are in the form.

    Attributes:
        complete: Whether the answer is whole and accepted: then `output` is there.

    Example:
        >>> agent = Agent("clerk", ScriptedModel([['{"answer": [1, ', '2]}']]))
        >>> async for partial in agent.stream("Count.", output=Output(list[int], via="prompt")).partials():
        ...     print(partial["answer"])
        [1]
        [1, 2]
        [1, 2]
        >>> partial.output
        [1, 2]
    """

    __slots__ = ("_data", "_output", "complete")

    def __init__(self, data: Mapping[str, Any], output: Any = None, *, complete: bool = False) -> None:
        self._data = data
        self._output = output
        self.complete = complete

    def completed(self, output: T_co) -> Partial[T_co]:  # pyright: ignore[reportGeneralTypeIssues] - nobody can write to it
        """The same data, with the output."""
        return Partial(self._data, output, complete=True)

    @property
    def output(self) -> T_co:
        """The output itself, of its type; the same as `reply.output`.

        Raises:
            MissingOutputError: The answer is not complete.
        """
        if not self.complete:
            raise MissingOutputError(
                "This partial answer has no output: it is not complete. Read its fields, partial.get('title'); the last one "
                "of partials() has the output, if the call came to one."
            )
        return cast("T_co", self._output)

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def __len__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return f"Partial({self._data!r}{', complete=True' if self.complete else ''})"


def _adapter(kind: Any) -> Any:
    """The validator of a field's type; `_MISSING`: pydantic makes none of it outside of its class."""
    try:
        return adapter_of(kind)
    except (PydanticUserError, PydanticUndefinedAnnotation, SchemaError):
        return _MISSING


def _is_union(origin: Any) -> bool:
    return origin is Union or origin is types.UnionType


def _unqualified(kind: Any) -> Any:
    """A field's type without what says whether its key is required."""
    if get_origin(kind) in _QUALIFIERS:
        return _unqualified(get_args(kind)[0])
    if isinstance(kind, dataclasses.InitVar):
        return _unqualified(cast("Any", kind).type)
    if get_origin(kind) is Annotated:
        inner, *notes = get_args(kind)
        return Annotated[(_unqualified(inner), *notes)]
    return kind


def _bare(kind: Any) -> Any:
    """A type without its annotations and other names, and without `| None`."""
    if get_origin(kind) is Annotated:
        return _bare(get_args(kind)[0])
    if isinstance(kind, TypeAliasType):
        return _bare(kind.__value__)
    if isinstance(kind, typing.NewType):
        return _bare(kind.__supertype__)
    if _is_union(get_origin(kind)):
        others = [member for member in get_args(kind) if member is not types.NoneType]
        return _bare(others[0]) if len(others) == 1 else kind
    return kind


def _has_fields(kind: Any) -> bool:
    """Whether a type is a class with fields: a model, a dataclass, a `TypedDict`."""
    if is_typeddict(kind):
        return True
    if not isinstance(kind, type) or get_origin(kind) is not None:
        return False
    fields: Any = getattr(cast("Any", kind), "__pydantic_fields__", None)
    return dataclasses.is_dataclass(kind) or (fields is not None and "root" not in fields)


def _fields_of(kind: Any) -> Iterator[tuple[str, str, Any]]:
    """The fields of a class: their keys in JSON (several, where it takes several), their names, their types."""
    fields = getattr(kind, "__pydantic_fields__", None)
    if fields is None:
        try:
            hints = get_type_hints(kind, include_extras=True)
        except (NameError, TypeError):  # names that only a checker knows
            return
        for name, hint in hints.items():
            yield name, name, _unqualified(hint)
        return
    config = getattr(kind, "model_config", None) or getattr(kind, "__pydantic_config__", {})
    by_name = config.get("populate_by_name") or config.get("validate_by_name")
    for name, field in fields.items():
        annotated = Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        alias = field.validation_alias or field.alias or name
        for key in (*getattr(alias, "choices", (alias,)), *((name,) if by_name else ())):
            if isinstance(key, str):  # and no path into an object
                yield key, name, annotated


class _Shape:
    """What a value is to be, as far as it can be shown before it is whole.

    Args:
        kind: Its type.
        fields: Its fields, where the type does not say.

    Attributes:
        open: Whether the type says nothing of what is in it.
        texts: Whether a string is shown while it grows.
    """

    __slots__ = ("_adapter", "_each", "_fields", "_item", "_kind", "open", "texts")

    def __init__(self, kind: Any, fields: dict[str, tuple[str, Any]] | None = None) -> None:
        bare = _bare(kind)
        origin, members = get_origin(bare), get_args(bare)
        self._kind = kind
        self._adapter: Any = _MISSING if bare is Any else None
        self._fields = fields
        self._item = members[0] if origin is list else members[1] if origin is dict else None
        self._each: _Shape | None = None
        self.open = fields is None and self._item is None and not _has_fields(bare)
        self.texts = bare is str or bare is Any or (_is_union(origin) and str in members)

    def whole(self, value: object) -> Any:
        """A whole value as JSON data, of its type; `_MISSING`: it does not fit."""
        adapter = self._adapter
        if adapter is None:
            adapter = self._adapter = _adapter(self._kind)
        if adapter is _MISSING:
            return value
        try:
            made = adapter.validate_json(to_json(value))
            return made if type(made) in _PLAIN else adapter.dump_python(made, mode="json", warnings=False)
        except (PydanticSerializationError, PydanticUserError):  # a name that only its class can resolve
            return value
        except (ValueError, RecursionError):
            return _MISSING

    def takes(self, kind: type[object]) -> bool:
        """Whether an object (`dict`) or an array (`list`) may stand there."""
        return (get_origin(_bare(self._kind)) is list) == (kind is list)

    def at(self, key: str | None) -> tuple[str | None, _Shape | None]:
        """Where the value of a key goes, and what it is to be (None: it is not shown); without a key, an item of a list."""
        if self._item is not None:
            if self._each is None:
                self._each = _Shape(self._item)
            return key, self._each
        if key is None:
            return None, None
        if self._fields is None:
            self._fields = {key: (name, kind) for key, name, kind in _fields_of(_bare(self._kind))}
        name, kind = self._fields.get(key, (None, None))
        if name is None or isinstance(kind, _Shape):
            return name, kind
        shape = _Shape(kind)
        self._fields[key] = (name, shape)
        return name, shape


_OPEN: Final = _Shape(Any)


class _Node:
    """An object or a list that has begun.

    Args:
        shape: What it is to be.
        data: What is shown of it; None: nothing.
    """

    __slots__ = ("data", "key", "shape")

    def __init__(self, shape: _Shape | None, data: _Data | None) -> None:
        self.shape = shape
        self.data = data
        self.key = ""

    def slot(self) -> tuple[str | None, _Shape | None]:
        """Where the next value goes (None: to the end of a list), and what it is to be (None: it is not shown)."""
        if self.shape is None or self.data is None:
            return None, None
        key = self.key if isinstance(self.data, dict) else None
        return (key, _OPEN) if self.shape.open else self.shape.at(key)

    def show(self, name: str | None, value: Any, *, again: bool) -> None:
        """Show a value, or remove it (`_MISSING`); `again`: it is shown already."""
        data = self.data
        if isinstance(data, list):
            data[len(data) - again :] = [] if value is _MISSING else [value]
        elif data is not None and name is not None:
            if value is not _MISSING:
                data[name] = value
            elif again:
                del data[name]


class Partials:
    """Reads a typed answer that arrives in pieces.

    Args:
        output: The form that was asked for.

    Attributes:
        value: What it says so far, once `feed` has returned True.

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
        own = _Shape(output.form)
        wrapped = output.is_text or output.shape.wrapped
        self._root = _Shape(None, {WRAPPED: (WRAPPED, own)}) if wrapped else own
        self.begin()

    def begin(self) -> None:
        """Another answer begins."""
        self._top: dict[str, Any] = {}
        self.value: Partial[Any] = Partial(self._top)
        self._nodes: list[_Node] = []
        self._texts: list[str] = []
        self._length = self._seen = 0
        self._changed = False
        self._feed = JsonFeed(self)
        if self._words:
            self._nodes.append(_Node(self._root, self._top))
            self.key(WRAPPED)

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
        return self._changed

    # ---- called by the parser

    def opens(self, kind: type[dict[str, Any]] | type[list[Any]]) -> None:
        """An object or an array begins."""
        if not self._nodes:
            self._nodes.append(_Node(self._root, self._top))
            return
        above = self._nodes[-1]
        name, shape = above.slot()
        data = kind() if shape is not None and (shape.open or shape.takes(kind)) else None
        if data is not None:
            above.show(name, data, again=False)
            self._changed = True
        self._nodes.append(_Node(shape, data))

    def key(self, name: str) -> None:
        """A key of the object is whole."""
        self._nodes[-1].key = name

    def piece(self, text: str) -> None:
        """A string has grown."""
        self._texts.append(text)
        self._length += len(text)
        if self._length - self._seen <= self._seen // _STEPS:
            return
        name, shape = self._nodes[-1].slot()
        if shape is None or not shape.texts:
            return
        whole = "".join(self._texts)
        self._nodes[-1].show(name, whole, again=self._seen > 0)
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
        if node.data is not None and shape is not None and shape.open and shape is not _OPEN:
            above.show(name, shape.whole(node.data), again=True)
            self._changed = True

    def _whole(self, value: object, again: bool) -> None:
        name, shape = self._nodes[-1].slot()
        if shape is None:
            return
        shown = shape.whole(value)
        if shown is not _MISSING or again:
            self._nodes[-1].show(name, shown, again=again)
            self._changed = True


async def growing(events: AsyncIterable[HookEvent], output: Output[Any]) -> AsyncIterator[Partial[Any]]:
    """The partial answers of a call, read from its events.

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
