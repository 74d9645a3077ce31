"""Rendering of a tool's result or exception for the model.

Rules:

1. Rendering never raises, whatever the tool returned, except for a value that was not awaited.
2. The text can be encoded for every provider: half a surrogate pair, which file names can contain, would make the
   history unusable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic.errors import PydanticUserError
from pydantic_core import from_json, to_json

from agentflow._support.shown import encodable
from agentflow._support.validation import adapter_of
from agentflow.errors import FailureNote, ToolArgumentError, ToolError, UsageError
from agentflow.vocabulary.messages import DataBlock, Msg, TextBlock, ToolResultBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import TypeAdapter

NO_OUTPUT = "(no output)"
"""The text for a tool that returned nothing: some providers refuse an empty result."""

_MAX_FAILURE_LENGTH = 4_000


def render(value: object) -> str | tuple[TextBlock | DataBlock, ...]:
    """Return the content of a tool's result.

    Text stays unchanged; None becomes `"(no output)"`; blocks, a sequence with blocks in it, a `ToolResultBlock` and a
    `Msg` become their content; everything else becomes JSON, in which values without a JSON form, including NaN and
    infinity, become their `str`.

    Example:
        >>> render({"found": 2})
        '{"found":2}'
    """
    if type(value) is str:  # the frequent case; ASCII needs no repair
        return value if value and value.isascii() else _clean(value)
    if value is None:
        return NO_OUTPUT
    if isinstance(value, str):
        # The text itself, even if a subclass, such as an enum, has another `__str__`.
        return _clean(str.__str__(value))
    if isinstance(value, ToolResultBlock):
        return value.content if isinstance(value.content, tuple) else _clean(value.content)
    if isinstance(value, Msg):
        return _blocks(tuple(block for block in value.content if isinstance(block, TextBlock | DataBlock)))
    if isinstance(value, TextBlock | DataBlock):
        return _blocks((value,))
    if isinstance(value, list | tuple) and _has_blocks(cast("Sequence[object]", value)):
        return _blocks(cast("Sequence[object]", value))
    if isinstance(value, bytes | bytearray):
        return _binary(bytes(value))
    if isinstance(value, Awaitable):
        raise _not_awaited(cast("object", value))
    return _json(cast("object", value))


def _not_awaited(value: object) -> UsageError:
    name = getattr(value, "__qualname__", type(value).__name__)
    if isinstance(value, Coroutine):
        value.close()  # so that Python does not warn too
    return UsageError(
        f"The result is {name}(...), which was not awaited, so it did not run. Write: return await {name}(...)."
    )


def read_back(text: str, hint: object, *, strict: bool = False) -> object:
    """Return the value that `render` turned into a text, or the text itself if no such value has this text.

    Args:
        text: The text of a result that did not come from the tool itself: from a cache, or changed by a hook.
        hint: The tool's return annotation. If it allows text, the text itself is the value.
        strict: Whether to raise instead of returning the text.

    Raises:
        ValueError: With `strict`, the text is not a value of that type.

    Example:
        >>> read_back("3", int), read_back("3", str), read_back("[hidden]", int)
        (3, '3', '[hidden]')
    """
    form = None if isinstance(hint, str) else _form(hint)
    if form is not None:
        if _reads(lambda: form.validate_python(text, strict=True)) is not _UNREAD:
            return text
        if text == NO_OUTPUT and _reads(lambda: form.validate_python(None, strict=True)) is None:
            return None
        for candidate in (text, to_json(text)):  # `render` removes the quotes of a date, an enum or a path
            value = _reads(partial(form.validate_json, candidate, strict=True))
            if value is not _UNREAD:
                return value
    if strict:
        raise ValueError(f"{text!r:.80} cannot be read as {hint!r:.80}.")
    return text


_UNREAD: Final = object()


def _reads(read: Callable[[], object]) -> object:
    try:
        return read()
    except ValueError:
        return _UNREAD


def _form(hint: Any) -> TypeAdapter[Any] | None:
    try:
        return adapter_of(hint)
    except (PydanticUserError, TypeError):  # the type is not data, such as a turn
        return None


def failure_text(error: BaseException) -> str:
    """Return the text of a tool's exception for the model: the type, the message and the error's notes.

    Example:
        >>> failure_text(FileNotFoundError("no such file: a.txt"))
        'FileNotFoundError: no such file: a.txt'
    """
    text = _failure(error)
    if len(text) > _MAX_FAILURE_LENGTH:
        text = f"{text[:_MAX_FAILURE_LENGTH]}… ({len(text) - _MAX_FAILURE_LENGTH} more characters)"
    return _clean(text)


def _failure(error: BaseException, indent: str = "") -> str:
    message = _text_of(error)
    # These messages are written for the model, so the class name would not help.
    text = message if type(error) is ToolError or isinstance(error, ToolArgumentError) else ""
    text = text or type(error).__name__
    if message and text is not message:
        text = f"{text}: {message}"
    lines = [text, *(str(note) for note in getattr(error, "__notes__", ()) if not isinstance(note, FailureNote))]
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        lines += [f"{indent}- {_failure(inner, indent + '  ')}" for inner in group.exceptions]
    return "\n".join(lines)


def _text_of(value: object) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001, RUF100 - a broken __str__ must not hide that the tool failed
        return f"({type(value).__name__} without a readable text)"


def _clean(text: str) -> str:
    return encodable(text) if text else NO_OUTPUT


def _has_blocks(values: Sequence[object]) -> bool:
    # Texts may be among the blocks.
    kinds = {isinstance(value, TextBlock | DataBlock) for value in values if not isinstance(value, str)}
    return kinds == {True}


def _blocks(values: Sequence[object]) -> str | tuple[TextBlock | DataBlock, ...]:
    blocks: list[TextBlock | DataBlock] = []
    for value in values:
        if isinstance(value, DataBlock):
            blocks.append(value)
        elif text := value.text if isinstance(value, TextBlock) else str(value):
            blocks.append(TextBlock(_clean(text)))
    if any(isinstance(block, DataBlock) for block in blocks):
        return tuple(blocks)
    return "".join(block.text for block in blocks if isinstance(block, TextBlock)) or NO_OUTPUT


def _binary(value: bytes) -> str:
    try:
        return value.decode() or NO_OUTPUT
    except UnicodeDecodeError:
        return f"({len(value)} bytes of binary data; a tool shows them to the model by returning a DataBlock)"


def _json(value: object) -> str:
    for bytes_mode in ("utf8", "base64"):  # bytes inside the value that are not UTF-8 raise in the first mode
        try:
            text = to_json(value, fallback=_text_of, inf_nan_mode="strings", bytes_mode=bytes_mode).decode()
        except (ValueError, RecursionError):
            continue
        # An enum, a date or a path is one JSON string: the quotes carry no information.
        return _clean(from_json(text) if text.startswith('"') else text)
    return _clean(_text_of(value))
