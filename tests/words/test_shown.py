"""The filters of displayed text: control characters, and secrets in addresses and answers."""

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow._support.shown import (
    controls,
    described,
    one_line,
    printable,
    printable_json,
    without_password,
    without_secrets,
)

KEPT = "\n\t\u200c\u200d"
VISIBLE_FORMATS = {"Arabic", "Syriac", "Kaithi", "Egyptian", "Shorthand", "Musical"}  # signs of scripts, drawn as such


def test_every_control_character_of_unicode() -> None:
    """Nothing that Unicode calls a control, a surrogate, a line separator or an invisible format gets through."""
    through = [chr(n) for n in range(sys.maxunicode + 1) if controls().match(chr(n)) is None]
    bad = [c for c in through if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in KEPT]
    assert {unicodedata.name(c).split()[0].title() for c in bad} <= VISIBLE_FORMATS


@given(st.text(st.characters()))
def test_what_is_shown(text: str) -> None:
    """What is shown has no control characters; text without any stays as it is; one line is one line."""
    assert controls().search(printable(text)) is None
    assert printable(text) == text or controls().search(text) is not None
    assert all(c == "\n" or c.isprintable() for c in printable(text, exact=True))
    assert "\n" not in one_line(text)
    said = printable_json(json.dumps({"a": text}, ensure_ascii=False))
    assert controls().search(said) is None
    assert json.loads(said) == {"a": text}


def test_what_is_taken_out_is_visible() -> None:
    """Each control character is its escape; words of any script stay."""
    assert printable("\x1b[2J\x9b\r\x07\u202eevil\U000e0041\ud800") == (
        "\\x1b[2J\\x9b\\r\\x07\\u202eevil\\U000e0041\\ud800"
    )
    for words in ("naïve 你好 \U0001f468\u200d\U0001f469 می\u200cخواهم", "a\tb\n\u00a0c"):
        assert printable(words) == words
    assert printable("rm\u00a0-rf\u200d", exact=True) == "rm\\xa0-rf\\u200d"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql+psycopg://ann:pw@db:54x32/prod", "postgresql+psycopg://ann:***@db:54x32/prod"),
        ("'postgres://ann:a@b:/c#d@db/x?password=q&y=1', and", "'postgres://ann:***@db/x?password=***&y=1', and"),
        ("redis://:pw@h mysql://u:pw@h", "redis://:***@h mysql://u:***@h"),
        ("host=h PASSWORD = 'a b' user=u", "host=h PASSWORD = *** user=u"),
        (
            "http://127.0.0.1:8000/v1/a@b and http://u:pw@h:1/c@d",
            "http://127.0.0.1:8000/v1/a@b and http://u:***@h:1/c@d",
        ),
        ("sqlite:////tmp/a@b.db", "sqlite:////tmp/a@b.db"),
        ("postgresql://user:password@host/database", "postgresql://user:password@host/database"),
        ("no address", "no address"),
    ],
)
def test_passwords_in_addresses(text: str, shown: str) -> None:
    """They are hidden whether or not an address can be parsed."""
    assert without_password(text) == shown


def test_secrets_that_are_known() -> None:
    """They are hidden in any place, the longest first; a short value is no secret."""
    text = "key sk-1234567 (sk-1234567-more), Authorization: Bearer abc.def-123=, on"
    assert without_secrets(text, ["sk-1234567", "sk-1234567-more", "on", ""]) == (
        "key *** (***), Authorization: Bearer ***, on"
    )


def test_an_error_on_one_line() -> None:
    """Its type and its text, without control characters and passwords, shortened if it is long."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert described(ValueError("a\n  b\x1b postgres://u:pw@h")) == "ValueError: a b\\x1b postgres://u:***@h"
    assert described(ValueError()) == "ValueError"
    assert described(MuteError()) == "MuteError: (without a readable text)"
    assert described(ValueError("x" * 1_000)) == f"ValueError: {'x' * 1_000}"
    assert described(ValueError("x" * 1_001)) == f"ValueError: {'x' * 1_000}…"
