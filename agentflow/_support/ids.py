"""Ids from a random prefix for the process and a counter (0.14 µs; `uuid4().hex` costs 1.9 µs).

The prefix (40 random bits and the process id) makes ids unique across processes, the counter within a process. A forked
child draws a new prefix. Every id matches `^[a-zA-Z0-9_-]{1,40}$`, the narrowest pattern that OpenAI and Anthropic share.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from itertools import count

CONVERSATION = "@"
"""The first character of the key of a sub-agent's conversation; generated tool-use ids do not start with it."""

GENERATED = re.compile(r"\b(?:[a-z]+_)?[0-9a-f]{11,}_[0-9]+(?:-[0-9a-f]{8})?\b", re.ASCII)
"""Matches ids of `new_id` anywhere in a text, with or without the digest of a workflow's step."""

_MAX_DERIVED = 40  # the limit of OpenAI
_MAX_PART = 64
_MAX_LENGTH = 255  # of a session's key in a database (`agentflow.state.statements`)

_prefix = ""
_next = count(1).__next__


def _draw_prefix() -> None:
    global _prefix, _next  # noqa: PLW0603 - one generator per process, renewed in a forked child
    _prefix = f"{os.urandom(5).hex()}{os.getpid():x}_"
    _next = count(1).__next__


_draw_prefix()
if hasattr(os, "register_at_fork"):  # missing on Windows
    os.register_at_fork(after_in_child=_draw_prefix)


def new_id(kind: str = "") -> str:
    """Return a fresh id.

    Args:
        kind: A short prefix that shows the kind of object, such as `"run_"`.

    Example:
        >>> new_id("call_") != new_id("call_")
        True
    """
    return f"{kind}{_prefix}{_next()}"


def derived_id(source: str, suffix: str) -> str:
    """Return an id for an object that belongs to another one: the same each time, and of at most 40 characters.

    Two sources have different ids: the suffix is shortened, but a longer source is replaced by its digest.

    Args:
        source: The id of the other object; providers, hooks and users choose ids of any length.
        suffix: The kind of object, such as `"-stop"`.

    Example:
        >>> derived_id("run_1", "-stop")
        'run_1-stop'
    """
    if len(source) <= _MAX_DERIVED - 2:  # two characters of the suffix show the kind of object
        return f"{source}{suffix}"[:_MAX_DERIVED]
    return f"{_hex_digest(source)[: _MAX_DERIVED - len(suffix)]}{suffix}"


def inner_session_id(session_id: str, tool_use_id: str) -> str:
    """Return the id of the session of a sub-agent that runs in a tool call.

    Tool-use ids are chosen by providers, and can be kilobytes long. A part that is not printable, or too long for a
    database's key, is replaced by its digest.

    Args:
        session_id: The caller's session.
        tool_use_id: The call.

    Example:
        >>> inner_session_id("payments", "t1")
        'payments/t1'
    """
    part = _fit(tool_use_id, _MAX_PART)
    return f"{_fit(session_id, _MAX_LENGTH - 1 - len(part))}/{part}"


def conversation_key(agent: str) -> str:
    """Return the key to use instead of a tool-use id if a sub-agent keeps one conversation inside its caller's session.

    Example:
        >>> inner_session_id("desk", conversation_key("billing"))
        'desk/@billing'
    """
    return f"{CONVERSATION}{agent}"


def inside(session_ids: Iterable[str]) -> Callable[[str], bool]:
    """Return a predicate that is true for the ids of sub-agents' sessions inside one of these sessions.

    Example:
        >>> inside(["payments"])("payments/t1/t2"), inside(["payments/t1"])("payments")
        (True, False)
    """
    outer = {form for id in session_ids for form in _forms(id)}  # noqa: A001

    def found(session_id: str) -> bool:
        parts = session_id.split("/")
        return any("/".join(parts[:n]) in outer for n in range(1, len(parts)))

    return found


def inner_prefixes(session_id: str) -> tuple[str, ...]:
    """Return texts of which one begins the id of each sub-agent's session inside a session.

    Example:
        >>> inner_prefixes("payments")
        ('payments/',)
    """
    return tuple([f"{form}/" for form in _forms(session_id)])


def _forms(session_id: str) -> tuple[str, ...]:
    """Return the forms that a session's id can have in the ids of the sessions inside it."""
    shortest = _MAX_LENGTH - 1 - _MAX_PART  # a longer id can be replaced by its digest
    return (session_id,) if len(session_id) <= shortest else (session_id, _fit(session_id, shortest))


def _fit(text: str, longest: int) -> str:
    if 0 < len(text) <= longest and text.isprintable():
        return text
    return f"sha256-{_hex_digest(text)[:40]}"


def _hex_digest(text: str) -> str:
    import hashlib  # 1 ms to import, rarely needed

    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
