"""Match untrusted regular expressions without backtracking.

Python's `re` backtracks, so a pattern of ten characters can block the process for hours. Here, patterns of JSON schema
(ECMA 262) are translated to the syntax of Rust's `regex`, which is part of pydantic and matches in linear time.

Rules:

1. A pattern that needs more than linear time (look-around, back references) is refused, and the error shows why.
2. A pattern has a weight, roughly the number of states of its automaton. The time of a match is at most weight times
   length, so limits on both limit the time (`SchemaPattern.weight`).
3. Escapes are those of ECMA 262: `\\d`, `\\w`, `\\b` and `\\B` are ASCII, `$` is the end of the text. Python's `\\A` and
   `\\Z` are supported too.
"""

from __future__ import annotations

import re
from typing import Final

from pydantic_core import SchemaError, SchemaValidator, core_schema

_MAX_LENGTH: Final = 4_000
_MAX_WEIGHT: Final = 4_000
# Compiled at first use, by `re`, which keeps them: most programs read no patterns.
_COUNT: Final = r"\{(\d{1,5})(,(\d{1,5})?)?\}"
_GROUP: Final = r"\?(?::|P?<(?![=!])\w{1,64}>)"
_FLAGS: Final = r"\?[ims]{1,3}(?:-[ims]{1,3})?[:)]|\?-[ims]{1,3}[:)]"
_HEX: Final = r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}"
_PROPERTY: Final = r"[pP]\{\^?[\w=:-]{1,64}\}"
_LOOKS: Final = ("?=", "?!", "?<=", "?<!")
_WIDE: Final = 8  # roughly the states of a class that contains non-ASCII characters
_PROPERTY_WEIGHT: Final = 250
_OUTSIDE_CLASSES: Final = {
    "d": "[0-9]",
    "D": "[^0-9]",
    "w": "[A-Za-z0-9_]",
    "W": "[^A-Za-z0-9_]",
    "s": r"\s",
    "S": r"\S",
}
_IN_CLASSES: Final = {**_OUTSIDE_CLASSES, "d": "0-9", "w": "A-Za-z0-9_", "b": r"\x08"}
_ANCHORS: Final = {"b": r"(?-u:\b)", "B": r"(?-u:\B)", "A": r"\A", "z": r"\z", "Z": r"\z"}


class PatternError(ValueError):
    """A pattern needs more than linear time, is too large, or is not a regular expression."""


class SchemaPattern:
    """A compiled regular expression.

    Args:
        text: The expression, in the syntax of ECMA 262.

    Attributes:
        text: The expression.
        weight: Roughly the number of states of its automaton, at most 4,000: the maximum cost of a match per character.

    Raises:
        PatternError: The expression has look-around or back references, is too large, or is not a regular expression.

    Example:
        >>> SchemaPattern("^(a+)+$").found_in("a" * 10_000 + "!")
        False
        >>> SchemaPattern("(?=a)b")
        Traceback (most recent call last):
        agentflow._support.patterns_outside.PatternError: the pattern '(?=a)b' looks around ('(?='), which needs backtracking
    """

    __slots__ = ("_validator", "text", "weight")

    def __init__(self, text: str) -> None:
        self.text = text
        translated, self.weight = _Translation(text).result()
        try:
            self._validator = SchemaValidator(
                core_schema.str_schema(pattern=translated, regex_engine="rust-regex", strict=True)
            )
        except SchemaError as error:
            reason = str(error).strip().rpartition("error: ")[2].splitlines()[0]
            raise PatternError(f"the pattern {text[:200]!r} is not a regular expression ({reason})") from error

    def found_in(self, text: str) -> bool:
        """Whether the expression matches anywhere in a text."""
        return self._validator.isinstance_python(text)


class _Translation:
    """Translates a pattern and computes its weight, in one pass."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._out: list[str] = []
        self._groups = [0]  # the weight of each open group
        self._last: int | None = None  # the weight of the atom that a quantifier would repeat
        self._dot = r"[^\n\r\x{2028}\x{2029}]"

    def result(self) -> tuple[str, int]:
        """Translate the pattern for Rust; return it with its weight."""
        text = self._text
        if len(text) > _MAX_LENGTH:
            raise PatternError(f"a pattern of {len(text)} characters is too long; the maximum is {_MAX_LENGTH}")
        while self._at < len(text):
            self._step(text[self._at])
            if self._groups[-1] + (self._last or 0) > _MAX_WEIGHT:
                raise self._refused("repeats too much")
        if len(self._groups) > 1:
            raise self._refused("has a group that is not closed")
        return "".join(self._out), max(1, self._groups[0] + (self._last or 0))

    def _refused(self, reason: str) -> PatternError:
        return PatternError(f"the pattern {self._text[:200]!r} {reason}")

    def _atom(self, out: str, weight: int | None, length: int = 0) -> None:
        """Append an atom; if it has a weight, a quantifier may follow."""
        self._out.append(out)
        self._groups[-1] += self._last or 0
        self._last = weight
        self._at += length

    def _step(self, char: str) -> None:
        match char:
            case "\\":
                out, weight = self._escape(_OUTSIDE_CLASSES)
                self._atom(out, weight)
            case "[":
                self._class()
            case "(":
                self._open()
            case ")":
                if len(self._groups) == 1:
                    raise self._refused("closes a group that is not open")
                self._atom(")", None, 1)
                # The whole group is now the atom that a quantifier would repeat.
                self._last = self._groups.pop() + 1
            case "*" | "+" | "?":
                self._repeat(char, 2 if char == "+" else 1)
            case "{" if count := re.compile(_COUNT).match(self._text, self._at):
                least, most = int(count[1]), int(count[3] or 0)
                # The automaton has one copy of the atom for each count; an open range adds a loop.
                self._repeat(count[0], max(least, most, 1) + (count[2] is not None and count[3] is None))
            case "|" | "^" | "$":
                self._atom(char, None, 1)
            case ".":
                self._atom(self._dot, _WIDE, 1)
            case "{" | "}" | "]":  # literal in ECMA 262 unless they belong to a quantifier or class, but not in Rust
                self._atom(f"\\{char}", 1, 1)
            case _:
                self._atom(char, 1, 1)

    def _repeat(self, quantifier: str, times: int) -> None:
        if self._last is None:
            raise self._refused(f"repeats nothing ({quantifier!r} at {self._at})")
        weight = self._last * times + 1
        self._last = None
        self._out.append(quantifier)
        self._at += len(quantifier)
        if self._text[self._at : self._at + 1] == "?":  # lazy: the same, because only the existence of a match counts
            self._at += 1
        self._groups[-1] += weight

    def _open(self) -> None:
        text, after = self._text, self._at + 1
        length = 1
        out = "(?:"
        if text.startswith("?", after):
            look = next((look for look in reversed(_LOOKS) if text.startswith(look, after)), None)
            if look is not None:
                raise self._refused(f"looks around ('({look}'), which needs backtracking")
            if flags := re.compile(_FLAGS).match(text, after):
                if "s" in flags[0].partition("-")[0]:
                    self._dot = "."
                length, out = 1 + len(flags[0]), f"({flags[0]}"
                if flags[0].endswith(")"):
                    self._atom(out, None, length)
                    return
            elif group := re.compile(_GROUP).match(text, after):
                length = 1 + len(group[0])
            else:
                raise self._refused(f"has a group of an unknown kind ({text[self._at : self._at + 4]!r})")
        self._atom(out, None, length)
        self._groups.append(0)

    def _escape(self, classes: dict[str, str]) -> tuple[str, int | None]:
        """Return the escape at this position, inside or outside a class, and its weight."""
        text, at = self._text, self._at + 1
        char = text[at : at + 1]
        self._at = at + 1
        if char in classes and char:
            return classes[char], 1 if char in "dw" else _WIDE
        if char in _ANCHORS and classes is _OUTSIDE_CLASSES:
            return _ANCHORS[char], None
        if (char.isdigit() and char != "0") or char == "k":
            raise self._refused(f"refers back ('\\{char}'), which needs backtracking")
        # A Unicode property may contain hundreds of ranges.
        if known := re.compile(_PROPERTY).match(text, at):
            self._at = known.end()
            return f"\\{known[0]}", _PROPERTY_WEIGHT
        if known := re.compile(_HEX).match(text, at):
            self._at = known.end()
            return self._code(int(known[1] or known[2] or known[3], 16)), 1
        if char == "c" and text[at + 1 : at + 2].isascii() and text[at + 1 : at + 2].isalpha():
            self._at = at + 2
            return f"\\x{ord(text[at + 1]) % 32:02x}", 1
        if char == "0":
            return r"\x00", 1
        if char in ("n", "r", "t", "f", "v"):
            return f"\\{char}", 1
        if not char or (char.isascii() and char.isalpha()):
            raise self._refused(f"has an unknown escape ('\\{char}')")
        return (char if char in "<>" or not char.isascii() or char == "_" else f"\\{char}"), 1

    def _code(self, code: int) -> str:
        """Return a character by its code; for half of a surrogate pair, also consume the other half."""
        if 0xD800 <= code < 0xDC00 and (
            low := re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})").match(self._text, self._at)
        ):
            self._at = low.end()
            code = 0x10000 + ((code - 0xD800) << 10) + (int(low[1], 16) - 0xDC00)
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            raise self._refused(f"names an invalid character (U+{code:04X})")
        return f"\\x{{{code:x}}}"

    def _class(self) -> None:
        text = self._text
        negated = text.startswith("^", self._at + 1)
        self._at += 2 if negated else 1
        out: list[str] = []
        weight = _WIDE if negated else 1
        while (char := text[self._at : self._at + 1]) != "]":
            if not char:
                raise self._refused("has a class that is not closed")
            if char == "\\":
                member, cost = self._escape(_IN_CLASSES) if text[self._at + 1 : self._at + 2] != "-" else ("\\-", 1)
                self._at += 2 if member == "\\-" else 0
                weight = max(weight, cost or 1)
            else:
                # Escape the operators of classes that only Rust has (nesting, &&, ~~, --), but not the - of a range.
                escaped = char in "[&~" or (char == "-" and (not out or out[-1] == "-"))
                member = f"\\{char}" if escaped else char
                weight = max(weight, 1 if char.isascii() else _WIDE)
                self._at += 1
            out.append(member)
        if not out:
            self._atom(r"(?s:.)" if negated else r"[^\x00-\x{10ffff}]", _WIDE, 1)
        else:
            self._atom(f"[{'^' if negated else ''}{''.join(out)}]", weight, 1)
