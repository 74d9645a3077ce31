"""Ids: a random prefix for the process and a counter (0.14 µs; `uuid4().hex` costs 1.9 µs).

Unique over processes by the prefix (40 random bits and the process id), within one by the counter; a forked child draws
a new prefix. Every id matches `^[a-zA-Z0-9_-]{1,40}$`, the narrowest pattern that OpenAI and Anthropic share.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from itertools import count

__all__ = ["inner_session_id", "new_id"]

_LONGEST_PART = 64
_LONGEST = 255

_prefix = ""
_next = count(1).__next__


def _draw_prefix() -> None:
    global _prefix, _next  # noqa: PLW0603 - one generator per process, drawn anew in a forked child
    _prefix = f"{secrets.token_hex(5)}{os.getpid():x}_"
    _next = count(1).__next__


_draw_prefix()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_draw_prefix)


def new_id(kind: str = "") -> str:
    """Return a fresh id.

    Args:
        kind: A few letters that say what it names, such as `"run_"`.

    Example:
        >>> new_id("call_") != new_id("call_")
        True
    """
    return f"{kind}{_prefix}{_next()}"


def inner_session_id(session_id: str, tool_use_id: str) -> str:
    """Return the id of the session of a sub-agent that works behind a tool call.

    A provider chooses tool-use ids, and may make them kilobytes long. What is too long for a database's key, or cannot be
    printed, is put in by its digest.

    Args:
        session_id: The caller's session.
        tool_use_id: The call.

    Example:
        >>> inner_session_id("payments", "t1")
        'payments/t1'
    """
    part = _fit(tool_use_id, _LONGEST_PART)
    return f"{_fit(session_id, _LONGEST - 1 - len(part))}/{part}"


def _fit(text: str, longest: int) -> str:
    if 0 < len(text) <= longest and text.isprintable():
        return text
    return f"sha256-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"
