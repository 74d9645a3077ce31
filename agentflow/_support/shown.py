"""Make untrusted text safe to show: escape control characters, hide secrets in URLs, and repair invalid Unicode.

Rules:

1. Output of a model, tool, provider or database cannot move the cursor, hide text or forge it.
2. Control characters stay visible as escapes; nothing is dropped silently.
3. A database URL is shown without its password, even if it is malformed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache


def encodable(text: str) -> str:
    r"""Join the halves of surrogate pairs, which streams may split, and replace lone halves, which UTF-8 does not allow.

    Example:
        >>> encodable("\ud83d" + "\ude00 and \ud83d")
        '😀 and �'
    """
    if text.isascii():  # the frequent case, without a copy
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        # In UTF-16 a pair is two units, so decoding joins the halves.
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


_MAX_FAILURE = 1_000
_HIDDEN = "***"
# Applied to untrusted text of any length, so each takes linear time (tests/words/test_hostile_texts.py).
# `user:password@host` is an example in our own messages, and stays.
_WORD = r"[^\s'\"]+"
_IN_URL = r"(?i)\b(?!https?:|wss?:)[a-z][\w+.\-]{0,50}://[^\s:/@]*:(?!password@host)"
_IN_WEB_URL = r"(?i)(?P<start>\b(?:https?|wss?)://[^\s:/@]*):[^\s'\"/@]*@"
_IN_QUERY = r"(?i)(?P<start>\b(?:ssl)?(?:passw(?:or)?d|pwd)\s*=\s*)(?:'[^']*'|[^\s&'\"]+)"
_BEARER = r"(?i)(?P<start>\b(?:Bearer|Basic)\s+)[\w+/=.~\-]{8,}"
_MIN_SECRET = 8


_pattern = cache(re.compile)
"""Compile a pattern on first use, so that importing the package costs nothing."""


@cache
def controls() -> re.Pattern[str]:
    """Return the pattern of characters that control a terminal, break a line, reverse text or are invisible, except line
    feeds, tabs and the joiners of scripts.
    """
    return re.compile(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff"
        "\ufff9-\ufffb\U000e0000-\U000e007f]"
    )


def _escaped(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()


def printable(text: str, *, exact: bool = False) -> str:
    """Return the text with control characters as escapes; line feeds and tabs stay.

    Args:
        text: Any text.
        exact: Whether to also escape other characters that are not printed as themselves (unusual spaces, joiners).

    Example:
        >>> printable("a\\x1b[31mb\\r\\n\\u202e")
        'a\\\\x1b[31mb\\\\r\\n\\\\u202e'
    """
    if text.isprintable():
        return text
    if exact:
        return "".join(c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return controls().sub(_escaped, text)


def printable_json(text: str) -> str:
    """Return JSON text with the control characters that JSON allows as JSON escapes.

    Example:
        >>> printable_json('{"a":"\\x9b\\x7f"}')
        '{"a":"\\\\u009b\\\\u007f"}'
    """
    return text if text.isprintable() else controls().sub(_escaped_in_json, text)


def _escaped_in_json(found: re.Match[str]) -> str:
    return json.dumps(found[0])[1:-1].replace("\x7f", "\\u007f")  # JSON allows DEL in strings, so `dumps` keeps it


def one_line(text: str) -> str:
    """Return the printable text on one line, with single spaces.

    Example:
        >>> one_line("first\\n  second\\x1b[31m")
        'first second\\\\x1b[31m'
    """
    return printable(" ".join(text.split()))


def described(error: BaseException) -> str:
    """Return an error's type and message on one line, without passwords.

    Example:
        >>> described(ValueError("no such\\n thing"))
        'ValueError: no such thing'
    """
    try:
        message = without_password(one_line(str(error)))
    except Exception:  # noqa: BLE001, RUF100 - a broken __str__ must not hide the failure
        message = "(without a readable text)"
    message = message if len(message) <= _MAX_FAILURE else f"{message[:_MAX_FAILURE]}…"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def without_password(text: str) -> str:
    """Return the text with the passwords in URLs hidden, even in malformed ones.

    Example:
        >>> without_password("postgresql://ann:s3:cr@t@db:54x32/prod?sslpassword=abc")
        'postgresql://ann:***@db:54x32/prod?sslpassword=***'
    """
    if "://" in text:
        text = _pattern(_WORD).sub(_without_database_password, text)
        text = _pattern(_IN_WEB_URL).sub(rf"\g<start>:{_HIDDEN}@", text)
    return _pattern(_IN_QUERY).sub(rf"\g<start>{_HIDDEN}", text)


def _without_database_password(found: re.Match[str]) -> str:
    """Hide all text up to the last @ of the word, since a password may contain an unescaped @ or /."""
    word = found[0]
    last = word.rfind("@")
    login = _pattern(_IN_URL).search(word) if last > 0 and "://" in word else None
    return word if login is None or login.end() > last else f"{word[: login.end()]}{_HIDDEN}{word[last:]}"


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return the text with passwords in URLs, HTTP credentials, and these secrets hidden.

    Args:
        text: A text, such as a provider's answer.
        secrets: Texts to hide; those shorter than eight characters are ignored.

    Example:
        >>> without_secrets("Incorrect API key: sk-12345678.", ["sk-12345678"])
        'Incorrect API key: ***.'
    """
    # The longest first: a secret may contain another one, and its rest must not stay.
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= _MIN_SECRET:
            text = text.replace(secret, _HIDDEN)
    return _pattern(_BEARER).sub(rf"\g<start>{_HIDDEN}", without_password(text))
