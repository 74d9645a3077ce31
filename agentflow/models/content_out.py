"""Images, audio and files in LiteLLM's format, and the content that each family of models accepts (`content_rules.tsv`).

Rules:

1. If the model does not accept content of the user's newest message, an error is raised before the request is sent.
2. Such content in the history, or from a tool, is replaced with a description: the conversation must stay usable.
3. A family without rows is sent everything: the models of a compatible server are unknown.

The marks of the rows: D is the vendor's documentation, B common knowledge.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple, TypeAlias

from agentflow.errors import UnsupportedContentError
from agentflow.models.profiles import Family, rows
from agentflow.vocabulary.messages import DataBlock, Msg

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"
EMPTY_TEXT: Final = "(empty)"
_KINDS: Final = {
    "image": "images",
    "audio": "audio",
    "video": "video",
    "pdf": "PDF files",
    "text": "text",
    "file": "other files",
}
_SOUNDS: Final = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav"}


class ContentRule(NamedTuple):
    """The content of one kind that a family accepts. `types` are the last parts of media types (`png`); `*` means all."""

    family: str
    kind: str
    types: str
    mark: str
    source: str


@cache
def content_rules() -> Mapping[str, Mapping[str, ContentRule]]:
    """Return the rules, by family and kind."""
    found: dict[str, dict[str, ContentRule]] = {}
    for row in rows("content_rules.tsv"):
        rule = ContentRule(*row)
        found.setdefault(rule.family, {})[rule.kind] = rule
    return found


def refusal(block: DataBlock, family: Family, *, listens: bool = True) -> str | None:
    """Explain why a model of the family does not accept a block; return None if it does.

    Args:
        block: The block to send.
        family: The model's family.
        listens: Whether the model accepts audio, for families in which only some models do.

    Example:
        >>> refusal(DataBlock("audio/mpeg", data="AAAA"), "anthropic")
        'takes no audio; it takes images, PDF files, text'
        >>> refusal(DataBlock("image/tiff", data="AAAA"), "openai")
        'takes no image/tiff; of images it takes png, jpeg, gif, webp'
    """
    rules = content_rules().get(family)
    if rules is None:
        return None
    rule = rules.get(block.kind)
    if rule is None or (block.kind == "audio" and not listens):
        known = [_KINDS[kind] for kind in rules if kind != "audio" or listens]
        return f"takes no {_KINDS[block.kind]}; it takes {', '.join(known)}"
    ending = block.media_type.partition("/")[2].partition(";")[0].lower()
    # "jpg" is a common wrong ending for "jpeg".
    if rule.types == "*" or ending in (*rule.types.split(), "*") or ending == "jpg":
        return None
    return f"takes no {block.media_type}; of {_KINDS[block.kind]} it takes {', '.join(rule.types.split())}"


def check_content(messages: Sequence[Msg], model: str, family: Family, *, listens: bool) -> None:
    """Refuse the user's newest message if the model does not accept its content.

    Raises:
        UnsupportedContentError: The message contains such content.
    """
    for block in newest_user_content(messages):
        reason = refusal(block, family, listens=listens)
        if reason is not None:
            raise UnsupportedContentError(model, str(block), reason, block.media_type)


def newest_user_content(messages: Sequence[Msg]) -> tuple[DataBlock, ...]:
    """Return the media of the user's newest message; earlier media are replaced, not refused (rule 2)."""
    for index in range(len(messages) - 1, -1, -1):
        msg = messages[index]
        # After this reply or result there are only agentflow's notes, so there is no new user input.
        if msg.role != "user":
            break
        # agentflow's own notes may follow the user's message.
        if "synthetic" not in msg.metadata:
            return msg.data
    return ()


def listens(family: Family, known: Mapping[str, object]) -> bool:
    """Return whether an OpenAI model accepts audio, according to LiteLLM's list; true if unlisted, or for other families.

    Example:
        >>> listens("openai", {"mode": "chat"}), listens("openai", {})
        (False, True)
    """
    # In the other families, `content_rules.tsv` alone decides.
    return family != "openai" or not known or known.get("supports_audio_input") is True


def text_part(text: Json) -> Json:
    """Return text as a part of content."""
    return {"type": "text", "text": text}


def part(block: DataBlock) -> Json:
    """Return media in LiteLLM's format."""
    kind, _, subtype = block.media_type.partition("/")
    url = block.url if block.url is not None else f"data:{block.media_type};base64,{block.data}"
    if kind == "image":
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "audio" and block.data is not None:
        # OpenAI expects "mp3" and "wav" instead of the media types' names.
        sound = _SOUNDS.get(subtype, subtype)
        return {"type": "input_audio", "input_audio": {"data": block.data, "format": sound}}
    # Text files are sent as text, which every model accepts.
    if kind == "text" and block.data is not None and (words := _decoded(block.data)) is not None:
        return text_part(
            f"[{block.name or 'file'}]\n{words}" if words.strip() else f"[{block.name or 'file'}: {EMPTY_TEXT}]"
        )
    if block.url is not None:
        return {"type": "file", "file": {"file_id": url, "format": block.media_type}}
    name = block.name or f"file.{subtype or 'bin'}"
    return {"type": "file", "file": {"file_data": url, "filename": name}}


def _decoded(data: str) -> str | None:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
