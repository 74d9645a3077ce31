"""The secrets of services: each rule finds its own, and costs no more than the text is long."""

from __future__ import annotations

import random
import re
import re._parser as parser
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import regex
from thorough import THOROUGH

from agentflow.errors import UsageError
from agentflow.plugins.redaction.detectors import DETECTORS, RULES_SOURCE, SECRET_RULES, Detector, SecretRule
from agentflow.plugins.redaction.text import Scanner, StreamScanner, scan
from agentflow.plugins.redaction.values import Cleaning
from agentflow.plugins.redaction.vault import Vault

PAGE = Path(__file__).parents[2] / "docs/plugins/redaction.md"
SCANNER = Scanner(DETECTORS)


def masked(kind: str, found: str) -> str:
    return f"<{kind}>" if kind else found


def plain(pattern: str) -> Any:
    """A pattern as Python's own parser knows it."""
    without = re.sub(r"\(\?-?i\)", "", re.sub(r"\(\?-?i:", "(?:", pattern)).replace("[[:alnum:]]", "[A-Za-z0-9]")
    return parser.parse(without)


def example(parts: Any, pick: random.Random) -> str:
    """A text that a pattern matches."""
    text = ""
    for kind, value in parts:
        match str(kind):
            case "LITERAL":
                text += chr(value)
            case "IN":
                text += pick.choice(_letters(value))
            case "ANY":
                text += "x"
            case "BRANCH":
                text += example(pick.choice(value[1]), pick)
            case "SUBPATTERN":
                text += example(value[3], pick)
            case "MAX_REPEAT":
                least, most, inner = value
                text += "".join(example(inner, pick) for _ in range(pick.randint(least, min(most, least + 3))))
            case "AT":
                pass
            case other:
                raise AssertionError(other)
    return text


def _letters(parts: Any) -> str:
    found = ""
    for kind, value in parts:
        match str(kind):
            case "LITERAL":
                found += chr(value)
            case "RANGE":
                found += "".join(map(chr, range(value[0], value[1] + 1)))
            case "CATEGORY":
                found += "abcXYZ019_" if str(value) == "CATEGORY_WORD" else "0123456789"
            case other:
                raise AssertionError(other)
    return found


AROUND = ("my key is {} thanks", '{{"value": "{}"}}', "It is {}.", "({})", "KEY={}\n", "<b>{}</b>")


@pytest.mark.parametrize("rule", SECRET_RULES, ids=lambda rule: rule.id)
def test_a_secret_of_each_service_is_found(rule: SecretRule) -> None:
    """In the middle of prose, in quotes, at the end of a sentence: nothing of it is left; letter by letter too."""
    pick = random.Random(rule.id)
    for _ in range(3 if THOROUGH else 1):
        secret = example(plain(rule.pattern), pick)
        shown = [SCANNER.replace(around.format(secret), masked) for around in AROUND]
        assert all(secret not in text for text in shown), shown
        assert all("<secret>" in text or "<card>" in text or "<iban>" in text for text in shown), shown
    place, stream = pick.randrange(len(AROUND)), StreamScanner(lambda: SCANNER, masked)
    assert "".join([*map(stream.feed, AROUND[place].format(secret)), stream.end()]) == shown[place]


@pytest.mark.parametrize("rule", SECRET_RULES, ids=lambda rule: rule.id)
def test_a_rule_can_be_searched_in_time(rule: SecretRule) -> None:
    """It compiles, its length is bounded, no open repetition is nested in another, and its needles are in its finds."""
    assert regex.compile(rule.pattern, regex.V1)
    parsed = plain(rule.pattern)
    assert parsed.getwidth()[1] <= 10_000
    assert not _nested(parsed, False)
    pick = random.Random(rule.id)
    for _ in range(20 if THOROUGH else 8):
        secret = example(parsed, pick).lower()
        assert any(secret.startswith(needle) if rule.starts else needle in secret for needle in rule.needles)


def _nested(parts: Any, within: bool) -> bool:
    """Whether a repetition of many lengths is nested in another."""
    for kind, value in parts:
        match str(kind):
            case "MAX_REPEAT" | "MIN_REPEAT":
                least, most, inner = value
                many = most - least > 1
                if (many and within) or _nested(inner, within or many):
                    return True
            case "SUBPATTERN":
                if _nested(value[3], within):
                    return True
            case "BRANCH":
                if any(_nested(branch, within) for branch in value[1]):
                    return True
            case _:
                pass
    return False


HOSTILE = {
    "addresses": "a@b.cc ",
    "assigned": "password=abc1234x, ",
    "beginnings": "ghp_ sk- eyJ- AKIA xox- ",
    "digits": "4 ",
    "tokens": "eyJ-eyJ-",
    "hex": "ab12",
    "placeholders": "<email-1>",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_is_searched_once(name: str) -> None:
    """Twice the text, twice the searches at most, and no part of it is searched by one pattern again and again."""

    class Counted:
        def __init__(self, pattern: Any) -> None:
            self.pattern, self.searched = pattern, 0

        def search(self, text: str, pos: int = 0, **options: Any) -> Any:
            found = self.pattern.search(text, pos, **options)
            self.searched += (len(text) if found is None else found.end()) - pos
            return found

    def letters(text: str) -> int:
        scanner = Scanner(DETECTORS)
        counted: list[Counted] = []

        def watched(pattern: Any) -> Any:
            counted.append(Counted(pattern))
            return counted[-1]

        scanner._patterns = [(watched(one), two) for one, two in scanner._patterns]
        assert scanner._started is not None
        scanner._started = (watched(scanner._started[0]), scanner._started[1])
        scanner._starts = watched(scanner._starts)
        scan(lambda: scanner, text, 0, True, masked)
        return max(one.searched for one in counted)

    text = HOSTILE[name] * 300
    assert letters(text) <= 25 * len(text)
    assert letters(text * 2) <= 2.2 * letters(text) + 100


def test_values_that_are_learned_are_masked_everywhere() -> None:
    """Many secrets that only their context shows: each is found again without its context."""
    vault = Vault()
    cleaning = Cleaning(SCANNER, True, vault)
    values = [f"abc1234x{n:02}" for n in range(50)]
    text = " ".join(f"password={value}" for value in values) + " later: " + " ".join(values)
    shown = cleaning.text(text, cleaning.masking())
    assert Counter(re.findall(r"<secret-\d+>", shown)) == {f"<secret-{n + 1}>": 2 for n in range(50)}


def test_the_page_counts_the_covered_services() -> None:
    """The text between the marks on the page has the number of services: replace it with `expected`."""
    services = sorted({rule.id.partition("-")[0] for rule in SECRET_RULES})
    expected = f"{len(services)} services, from {services[0]} to {services[-1]} ({RULES_SOURCE})."
    listed = PAGE.read_text().partition("<!-- covered -->\n")[2].partition("\n<!-- /covered -->")[0]
    assert listed == expected


def test_beginnings_are_small_letters() -> None:
    """As needles are: a mistake there would hide every find."""
    with pytest.raises(UsageError, match="lower-case"):
        Detector("key", "X-[0-9]{9}", starts=("X-",))
