"""Partial answers: the fields of the typed output that the model has streamed so far.

Rules:

1. A partial answer is plain data, and typed as such: dicts, lists, strings, numbers, booleans and None, by the names of
   the fields. An instance of the form's type would need values for fields that have not arrived yet, and type checkers
   could not report that such a field is read.
2. It is one growing mapping: building a new mapping for each chunk would take longer as the answer grows.
3. A number, a boolean, or the text of an enum or a date is shown when it is complete and fits its field, in the format
   of `model_dump(mode="json")`; values that do not fit are not shown, nor are unknown keys. A string is shown while it
   grows.
4. If the form leaves the shape open (a union, a tuple), the data is shown as the model streams it, and removed if the
   complete value does not fit.
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

from agentflow._support.validation import adapter_of
from agentflow.errors import MissingOutputError
from agentflow.loop.output.answer import AnswerState
from agentflow.loop.output.choices import DATA, KIND
from agentflow.loop.output.form import WRAPPED
from agentflow.loop.output.output import FullOutput
from agentflow.loop.output.partial_json import JsonFeed
from agentflow.tools.signature import plain_function
from agentflow.vocabulary.events import HookEvent, PreReasoning, ReasoningChunk
from agentflow.vocabulary.messages import T_co

__all__ = ["Partial", "Partials", "growing"]

_STEPS: Final = 64
"""A growing string is shown again after it has grown by 1/64 of its length, so the cost per character stays constant. Up
to 64 characters it is shown with each chunk.
"""

_MISSING: Final[Any] = object()
_PLAIN: Final = (str, int, float, bool, types.NoneType)
_QUALIFIERS: Final = frozenset(
    getattr(module, name)
    for module in (typing, typing_extensions)
    for name in ("Required", "NotRequired", "ReadOnly")
    if hasattr(module, name)
)

_PREFIX: Final = f'{{"{WRAPPED}":{{"{KIND}":"%s","{DATA}":'

_Data: TypeAlias = dict[str, Any] | list[Any]


class Partial(Mapping[str, Any], Generic[T_co]):
    """A partial typed answer: a mapping of its fields, as plain data, which grows while the model streams.

    A key exists once the model has begun a value that fits, so it should be read with `partial.get("title", "")`. A
    form that is not an object has the one key `answer`. Nested objects are dicts, whatever their type in the form.

    Attributes:
        complete: Whether the answer is complete and accepted, so that `output` is available.
        kind: If there are several outputs, the name of this output's tool, such as `final_answer_Invoice`; None for text.

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

    __slots__ = ("_data", "_output", "complete", "kind")

    def __init__(
        self, data: Mapping[str, Any], output: Any = None, *, complete: bool = False, kind: str | None = None
    ) -> None:
        self._data = data
        self._output = output
        self.complete = complete
        self.kind = kind

    def completed(self, output: T_co) -> Partial[T_co]:  # pyright: ignore[reportGeneralTypeIssues] - read-only, so covariance is safe
        """Return the same data, with the output."""
        return Partial(self._data, output, complete=True, kind=self.kind)

    @property
    def output(self) -> T_co:
        """The output itself, of its type; the same as `reply.output`.

        Raises:
            MissingOutputError: The answer is not complete.
        """
        if not self.complete:
            raise MissingOutputError(
                "This partial answer has no output: it is not complete. Read its fields, partial.get('title'); the "
                "last one of partials() has the output, if the call has one."
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
    """Return the validator of a field's type; `_MISSING` if pydantic can build it only as a part of its class."""
    try:
        return adapter_of(kind)
    except (PydanticUserError, PydanticUndefinedAnnotation, SchemaError):
        return _MISSING


def _is_union(origin: Any) -> bool:
    return origin is Union or origin is types.UnionType


def _unqualified(kind: Any) -> Any:
    """Return a field's type without `Required`, `NotRequired`, `ReadOnly` and `InitVar`."""
    if get_origin(kind) in _QUALIFIERS:
        return _unqualified(get_args(kind)[0])
    if isinstance(kind, dataclasses.InitVar):
        return _unqualified(cast("Any", kind).type)
    if get_origin(kind) is Annotated:
        inner, *notes = get_args(kind)
        return Annotated[(_unqualified(inner), *notes)]
    return kind


def _unwrapped(kind: Any) -> Any:
    """Return a type without its annotations and aliases, and without `| None`."""
    if get_origin(kind) is Annotated:
        return _unwrapped(get_args(kind)[0])
    if isinstance(kind, TypeAliasType):
        return _unwrapped(kind.__value__)
    if isinstance(kind, typing.NewType):
        return _unwrapped(kind.__supertype__)
    if _is_union(get_origin(kind)):
        others = [member for member in get_args(kind) if member is not types.NoneType]
        return _unwrapped(others[0]) if len(others) == 1 else kind
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
    """Yield the fields of a class: their keys in JSON (some have several), their names, their types."""
    fields = getattr(kind, "__pydantic_fields__", None)
    if fields is None:
        try:
            hints = get_type_hints(kind, include_extras=True)
        except (NameError, TypeError):  # names that only type checkers know
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
            if isinstance(key, str):  # not a path into an object
                yield key, name, annotated


class _Shape:
    """The shape of a value: which parts of it are shown, and under which names.

    Args:
        kind: The type of the value.
        fields: The fields of the value, if the type does not define them.

    Attributes:
        open: Whether the type names neither fields nor items, so that any content is shown (a union, a tuple, `Any`).
        texts: Whether a string is shown while it grows.
    """

    __slots__ = ("_adapter", "_each", "_fields", "_item", "_kind", "open", "texts")

    def __init__(self, kind: Any, fields: dict[str, tuple[str, Any]] | None = None) -> None:
        unwrapped = _unwrapped(kind)
        origin, members = get_origin(unwrapped), get_args(unwrapped)
        self._kind = kind
        self._adapter: Any = _MISSING if unwrapped is Any else None
        self._fields = fields
        self._item = members[0] if origin is list else members[1] if origin is dict else None
        self._each: _Shape | None = None
        self.open = fields is None and self._item is None and not _has_fields(unwrapped)
        self.texts = unwrapped is str or unwrapped is Any or (_is_union(origin) and str in members)

    def to_data(self, value: object, context: Any) -> Any:
        """Return a complete value as JSON data of its type; `_MISSING` if it does not fit."""
        adapter = self._adapter
        if adapter is None:
            adapter = self._adapter = _adapter(self._kind)
        if adapter is _MISSING:
            return value
        try:
            result = adapter.validate_json(to_json(value), context=context)
            return result if type(result) in _PLAIN else adapter.dump_python(result, mode="json", warnings=False)
        # A value without a JSON form, or a type with a name that only its class can resolve.
        except (PydanticSerializationError, PydanticUserError):
            return value
        except (ValueError, RecursionError):
            return _MISSING

    def takes(self, kind: type[object]) -> bool:
        """Whether an object (`dict`) or an array (`list`) is valid here."""
        return (get_origin(_unwrapped(self._kind)) is list) == (kind is list)

    def at(self, key: str | None) -> tuple[str | None, _Shape | None]:
        """Return the name under which the value of a key is shown, and its shape (None if it is not shown). A key of None
        means an item of a list.
        """
        if self._item is not None:
            if self._each is None:
                self._each = _Shape(self._item)
            return key, self._each
        if key is None:
            return None, None
        if self._fields is None:
            self._fields = {key: (name, kind) for key, name, kind in _fields_of(_unwrapped(self._kind))}
        name, kind = self._fields.get(key, (None, None))
        if name is None or isinstance(kind, _Shape):
            return name, kind
        shape = _Shape(kind)
        self._fields[key] = (name, shape)
        return name, shape


_OPEN: Final = _Shape(Any)


class _NamedOutput(_Shape):
    """The shape of an answer that names its output: `{"kind": ..., "data": ...}`.

    Args:
        shapes: The shapes of the outputs, by name.
    """

    __slots__ = ("kind", "shapes")

    def __init__(self, shapes: Mapping[str, _Shape]) -> None:
        super().__init__(None, {})
        self.kind: str | None = None
        self.shapes = shapes

    def at(self, key: str | None) -> tuple[str | None, _Shape | None]:
        """See `_Shape.at`; the data are shown once the output's name is known."""
        return (None, None) if key != DATA or self.kind is None else (key, self.shapes.get(self.kind))


def _shape_of(output: FullOutput[Any]) -> _Shape:
    """Return the shape of the data of one output; for a function, of its arguments."""
    if output.runs:
        try:
            hints = get_type_hints(plain_function(output.tool.function), include_extras=True)
        except (NameError, TypeError):  # names that only type checkers know
            hints = {}
        fields = {name: (name, hints.get(name, Any)) for name in output.shape.schema.get("properties", ())}
        return _Shape(None, fields)
    if output.is_schema:
        return _Shape(dict[str, Any])
    own = _Shape(output.form)
    return _Shape(None, {WRAPPED: (WRAPPED, own)}) if output.is_text or output.shape.wrapped else own


class _Node:
    """An object or a list that has begun.

    Args:
        shape: The shape of the object or list.
        data: The shown data; None if nothing is shown.
    """

    __slots__ = ("data", "key", "shape")

    def __init__(self, shape: _Shape | None, data: _Data | None) -> None:
        self.shape = shape
        self.data = data
        self.key = ""

    def slot(self) -> tuple[str | None, _Shape | None]:
        """Return the key of the next value (None for an item of a list), and its shape (None if it is not shown)."""
        if self.shape is None or self.data is None:
            return None, None
        key = self.key if isinstance(self.data, dict) else None
        return (key, _OPEN) if self.shape.open else self.shape.at(key)

    def show(self, name: str | None, value: Any, *, again: bool) -> None:
        """Show a value, or remove it (`_MISSING`); `again` is True if an earlier state of the value is shown."""
        data = self.data
        if isinstance(data, list):
            data[len(data) - again :] = [] if value is _MISSING else [value]
        elif data is not None and name is not None:
            if value is not _MISSING:
                data[name] = value
            elif again:
                del data[name]


class Partials:
    """Reads a typed answer that arrives in chunks.

    Args:
        output: The output. For a function, its arguments are shown; its return value is unknown until it has run.
        context: Pydantic's validation context.

    Attributes:
        value: The partial answer so far, once `feed` has returned True.
        takes_text: Whether plain text can be an answer.
    """

    def __init__(self, output: FullOutput[Any], context: Any = None) -> None:
        self.context = context
        self.takes_text = output.takes_text or output.shape.may_be_text
        # An answer that begins with such a character is JSON or a code fence; plain text can begin with the others.
        self._json_starts = "{`" if output.takes_text else '{`["'
        self._has_form = bool(output.tools)
        self._text = _Shape(None, {WRAPPED: (WRAPPED, _Shape(str))})
        self._named: _NamedOutput | None = None
        if output.several:
            self._named = _NamedOutput(
                {choice.tool.name: _shape_of(choice) for choice in output.choices if choice.has_tool}
            )
            self._root = _Shape(None, {WRAPPED: (WRAPPED, self._named)})
        else:
            self._root = _shape_of(output) if output.has_tool or output.is_text else self._text
        self.begin()

    def begin(self) -> None:
        """Start another answer."""
        self._top: dict[str, Any] = {}
        self._is_text: bool | None = None if self.takes_text else False
        if self._named is not None:
            self._named.kind = None
        self.value: Partial[Any] = Partial(self._top)
        self._nodes: list[_Node] = []
        self._texts: list[str] = []
        self._length = self._seen = 0
        self._changed = False
        self._feed = JsonFeed(self)

    def feed(self, text: str) -> bool:
        """Read a chunk of the answer.

        Returns:
            Whether the partial answer has changed.
        """
        self._changed = False
        if self._is_text is None and (start := text.lstrip()):  # the first character decides
            self._is_text = not self._has_form or start[0] not in self._json_starts
            if self._is_text:
                self._nodes.append(_Node(self._text, self._top))
                self.key(WRAPPED)
        if self._is_text:
            self.text(text)
        else:
            self._feed.feed(text)
        return self._changed

    # ---- called by the parser

    def opens(self, kind: type[dict[str, Any]] | type[list[Any]]) -> None:
        """Handle the start of an object or an array."""
        if not self._nodes:
            self._nodes.append(_Node(self._root, self._top))
            return
        above = self._nodes[-1]
        name, shape = above.slot()
        data = kind() if shape is not None and (shape.open or shape.takes(kind)) else None
        named = self._named
        if named is not None and above.shape is named and isinstance(data, dict):
            self.value, self._changed = Partial(data, kind=named.kind), True
        elif data is not None and (named is None or shape is not named):
            above.show(name, data, again=False)
            self._changed = True
        self._nodes.append(_Node(shape, data))

    def key(self, name: str) -> None:
        """Handle a complete key."""
        self._nodes[-1].key = name

    def text(self, text: str) -> None:
        """Handle more text of a string."""
        self._texts.append(text)
        self._length += len(text)
        if self._length - self._seen <= self._seen // _STEPS:
            return
        name, shape = self._nodes[-1].slot()
        if shape is None or not shape.texts:
            return
        so_far = "".join(self._texts)
        self._nodes[-1].show(name, so_far, again=self._seen > 0)
        self._texts, self._seen, self._changed = [so_far], self._length, True

    def text_ends(self) -> None:
        """Handle the end of a string."""
        text, again = "".join(self._texts), self._seen > 0
        self._texts, self._length, self._seen = [], 0, 0
        named = self._named
        if named is not None and self._nodes[-1].shape is named and self._nodes[-1].key == KIND:
            named.kind = text
        self._show_complete(text, again)

    def scalar(self, value: object) -> None:
        """Handle a complete number, boolean or null."""
        self._show_complete(value, again=False)

    def closes(self) -> None:
        """Handle the end of the innermost object or array."""
        node = self._nodes.pop()
        if not self._nodes:
            return
        above = self._nodes[-1]
        name, shape = above.slot()
        if node.data is not None and shape is not None and shape.open and shape is not _OPEN:
            above.show(name, shape.to_data(node.data, self.context), again=True)
            self._changed = True

    def _show_complete(self, value: object, again: bool) -> None:
        name, shape = self._nodes[-1].slot()
        if shape is None:
            return
        shown = shape.to_data(value, self.context)
        if shown is not _MISSING or again:
            self._nodes[-1].show(name, shown, again=again)
            self._changed = True


async def growing(events: AsyncIterable[HookEvent], output: FullOutput[Any]) -> AsyncIterator[Partial[Any]]:
    """Yield the partial answers of a call, read from its events.

    Args:
        events: The events of the call, from the first.
        output: The output.
    """
    partials, prefix = Partials(output), {name: "" if not output.several else _PREFIX % name for name in output.tools}
    own, by_tool, call = "", False, -1
    async for event in events:
        own = own or event.run_id
        if event.run_id != own:  # an event of a sub-agent
            continue
        if isinstance(event, PreReasoning):
            partials.context = output.context_of(event.context)
            partials.begin()
            # The reader receives `PreReasoning` after its hooks, so this request is final.
            by_tool, call = event.context.state[AnswerState].way == "tool", -1
        elif isinstance(event, ReasoningChunk):
            if event.restart:
                partials.begin()
                call = -1
            chunk, news = event.incremental_chunk, False
            if by_tool:
                for fragment in chunk.tool_uses:
                    if fragment.name in prefix and fragment.index != call:
                        partials.begin()
                        partials.feed(prefix[fragment.name])
                        call = fragment.index
                    news = (fragment.index == call and partials.feed(fragment.arguments)) or news
            # Text before or after a call of the final tool is not the answer.
            if chunk.text and call < 0 and (not by_tool or partials.takes_text):
                news = partials.feed(chunk.text) or news
            if news:
                yield partials.value
