"""Converts values for a `Recorder`'s records: a digest, and a short text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from typing import Any, cast

from agentflow.vocabulary.messages import Msg, TextBlock, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.specs import ModelOptions, ToolSpec

__all__ = ["Shown", "joined", "message_digest", "show"]


@dataclass(frozen=True, slots=True)
class Shown:
    """A value in a record.

    Attributes:
        digest: The same for equal values, ignoring message ids. Empty if there was no value.
        short: Its beginning, as text; empty if the recorder keeps digests only.
        parts: The id and digest of each message, call or result in it.
    """

    digest: str
    short: str = ""
    parts: tuple[tuple[str, str], ...] = ()


def digest_of(text: str) -> str:
    """Return sixteen hexadecimal digits as the digest of a text."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _shortened(text: str, short: int) -> str:
    if len(text) <= short:
        return text
    return f"{text[: max(0, short - 3)]}..."[:short]


def message_digest(msg: Msg) -> str:
    """Return a digest that messages with equal role and content share, whatever their ids."""
    return digest_of(json.dumps([msg.role, msg.to_dict()["content"]], sort_keys=True, default=str))


def _text_of(msg: Msg) -> str:
    calls = " ".join(f"[{use.name} {use.raw}]" for use in msg.tool_uses)
    return f"{msg.shown} {calls}".strip()


def show(value: Any, short: int, digest: Callable[[Msg], str] | None = None) -> Shown:
    """Convert a value of a writable field.

    Args:
        value: Messages, a message, a call, a result, results, tools, options or text; None: there was no value.
        short: The maximum number of characters of the short form.
        digest: Returns a message's digest, if digests are cached.
    """
    match value:
        case None:
            return Shown("")
        case Msg():
            made = (digest or message_digest)(value)
            return Shown(made, _shortened(_text_of(value), short), ((value.id, made),))
        case ToolUseBlock():
            made = digest_of(f"{value.name} {value.raw}")
            return Shown(made, _shortened(f"{value.name} {value.raw}", short), ((value.id, made),))
        case ToolResultBlock():
            blocks = value.content if isinstance(value.content, str) else [_plain(block) for block in value.content]
            made = digest_of(json.dumps([value.state, blocks], default=str))
            return Shown(made, _shortened(f"{value.state}: {value.shown}", short), ((value.tool_use_id, made),))
        case str():
            return Shown(digest_of(value), _shortened(value, short))
        case ModelOptions():
            options = {f.name: one for f in fields(value) if (one := getattr(value, f.name)) is not None and one != {}}
            text = ", ".join(f"{name}={one!r}" for name, one in options.items()) or "(none set)"
            return Shown(digest_of(text), _shortened(text, short))
        case Sequence():
            return _show_many(cast("Sequence[Any]", value), short, digest)
        case _:
            return Shown(digest_of(repr(value)), _shortened(repr(value), short))


def _plain(block: Any) -> object:
    return block.text if isinstance(block, TextBlock) else asdict(block)


def _show_many(values: Sequence[Any], short: int, digest: Callable[[Msg], str] | None) -> Shown:
    if values and all(isinstance(value, ToolSpec) for value in values):
        names = ", ".join(spec.name for spec in values)
        whole = json.dumps([[spec.name, spec.description, dict(spec.parameters)] for spec in values], default=str)
        return Shown(digest_of(whole), _shortened(names, short))
    if not values:
        return Shown(digest_of(""), _shortened("(none)", short))
    return joined([show(value, short, digest) for value in values], short)


def joined(shown: Sequence[Shown], short: int) -> Shown:
    """Join several values."""
    if not shown:
        return Shown(digest_of(""), _shortened("(none)", short))
    parts = tuple(part for one in shown for part in one.parts)
    texts = " | ".join(one.short for one in shown) if short else ""
    return Shown(digest_of(" ".join(one.digest for one in shown)), _shortened(texts, short), parts)
