"""Tool-use ids and tool names that are legal for a provider: pure functions of the stored names."""

import re

from agentflow.models.profiles import WireProfile

SIGNATURE_MARK = "__thought__"
"""Begins a signature in LiteLLM's ids of Gemini's calls."""

# 40 characters are OpenAI's limit for ids.
_LEGAL_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}\Z")
_NINE = re.compile(r"[a-zA-Z0-9]{9}\Z")
# The intersection of the providers' rules: Gemini requires a letter or "_" first.
_LEGAL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}\Z")
_NAME_TRASH = re.compile(r"[^a-zA-Z0-9_-]+")
_ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def wire_id(id: str, profile: WireProfile) -> str:  # noqa: A002 - the field's own name
    """Make a tool-use id legal for a family, in the same way for a call and its result.

    Example:
        >>> from agentflow.models.profiles import MISTRAL, OPENAI
        >>> wire_id("call_1", OPENAI), len(wire_id("call_1", MISTRAL))
        ('call_1', 9)
    """
    if profile.ids == "nine":
        return id if _NINE.match(id) else _digest_nine(id)
    if _LEGAL_ID.match(id) or (profile.ids == "gemini" and SIGNATURE_MARK in id):
        return id
    import hashlib  # importing it takes 6 ms, and it is rarely needed

    # A digest, so that different long ids stay different.
    return "call_" + hashlib.sha256(id.encode()).hexdigest()[:24]


def _digest_nine(text: str) -> str:
    import hashlib

    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    letters: list[str] = []
    for _ in range(9):
        number, digit = divmod(number, len(_ALPHABET))
        letters.append(_ALPHABET[digit])
    return "".join(letters)


def wire_name(name: str) -> str:
    """Make a tool's name legal for every provider: `^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$`.

    Example:
        >>> wire_name("files.read"), wire_name("2fast"), wire_name("")
        ('files_read', '_2fast', 'unnamed_tool')
    """
    if _LEGAL_NAME.match(name):
        return name
    cleaned = _NAME_TRASH.sub("_", name)
    if not cleaned.strip("_"):
        return "unnamed_tool"
    return (cleaned if cleaned[0].isalpha() or cleaned[0] == "_" else f"_{cleaned}")[:64]
