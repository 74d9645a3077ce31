"""Redaction of text: a scanner that works on streams.

Rules:

1. The same text has the same result, however it is split into chunks.
2. Text is released as soon as nothing that follows could make it part of a secret.

Libraries: `regex` reports where a pattern begins to match at the end of a text (partial matching, which the standard library's
`re` does not have); holding back text needs that. detect-secrets is not used, because it reports only the line of a secret, not
its position in the line. Nor is Presidio, which finds names and places with a language model and needs whole sentences; you can
pass its results as `values=`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, compress
from operator import methodcaller
from typing import Any, Protocol, TypeAlias, cast

from agentflow.plugins.redaction.detectors import Detector, Match, Pattern, compiled

_CONTEXT = 80
"""The number of characters that a pattern may look back from a position."""
_PLACEHOLDER = "_p_"
_VALUE = "_v_"
MIN_SEARCHED_LENGTH = 4
"""Shorter values are too common to be searched for everywhere."""


class Replacer(Protocol):
    """Returns the replacement of a finding.

    Args:
        kind: The detector's kind, or `""` for a placeholder.
        text: The text of the finding.
    """

    def __call__(self, kind: str, text: str, /) -> str: ...


_ANCHOR = re.compile(r"(?<!\[)\^|\$|\\[AZbB]|\(\?<?[=!]")
"""Parts of a pattern that depend on the surrounding text."""


Searches: TypeAlias = dict[int, tuple[Pattern, Match | None]]
"""The last match of each pattern in a text, by the pattern's identity."""


class _Gates:
    """Rules out texts that need no search, for all detectors together.

    Args:
        hints: The needles and the hint of each detector.

    Attributes:
        floating: Whether a text that is ruled out also rules out all its parts.
    """

    __slots__ = ("_bare", "_hinted", "_hints", "_needles", "floating")

    def __init__(self, hints: Sequence[tuple[tuple[str, ...], str]]) -> None:
        # Each needle is searched separately: one pattern with alternatives would take twice as long.
        self._bare = [re.compile(hint) for needles, hint in hints if not needles]
        together: dict[str, tuple[str, ...]] = {}
        for needles, hint in hints:
            if needles:
                together[hint] = (*together.get(hint, ()), *needles)
        self._needles = tuple(dict.fromkeys(together.pop("", ())))
        self._hints = [re.compile(hint) for hint in together]
        self._hinted = [tuple(dict.fromkeys(needles)) for needles in together.values()]
        self.floating = not any(_ANCHOR.search(hint) for _, hint in hints)

    def open_for(self, text: str) -> bool:
        """Return whether a detector may find something."""
        contains, search = text.lower().__contains__, methodcaller("search", text)
        if any(map(contains, self._needles)) or any(map(search, self._bare)):
            return True
        # Search the hints first, since one detector has hundreds of needles.
        hinted = compress(self._hinted, map(search, self._hints))
        return any(map(contains, chain.from_iterable(hinted)))


def contains_any(text: str, needles: Iterable[str]) -> bool:
    """Return whether one of the needles is in a text."""
    for needle in needles:  # noqa: SIM110 - `any` takes three times as long
        if needle in text:
            return True
    return False


class Scanner:
    """Finds known values, placeholders and matches of detectors, in this order of precedence at one position.

    Args:
        detectors: The detectors to apply.
        values: Texts to find wherever they occur.

    Example:
        >>> from agentflow.plugins.redaction.detectors import EMAIL
        >>> Scanner((EMAIL,)).replace("write to ada@example.com", lambda kind, text: f"<{kind}>")
        'write to <email>'
    """

    __slots__ = ("_detectors", "_gates", "_patterns", "_started", "_starts", "_values")

    def __init__(self, detectors: Sequence[Detector], values: Iterable[str] = ()) -> None:
        kinds = sorted({d.kind for d in detectors} | {"secret"})
        self._detectors = {f"_d{index}_": detector for index, detector in enumerate(detectors)}
        parts = [(_PLACEHOLDER, rf"<(?:{'|'.join(kinds)})-\d{{1,9}}>")]
        parts.extend((name, detector.pattern) for name, detector in self._detectors.items() if not detector.starts)
        started = [(name, detector.pattern) for name, detector in self._detectors.items() if detector.starts]
        self._patterns = [_pair(parts)]
        self._started = _pair(started) if started else None
        self._starts = _word_starts(start for detector in detectors for start in detector.starts)
        self._values = _long_enough(values)
        if self._values:
            self._patterns.insert(0, _literals(self._values))
        self._gates: _Gates | None = None
        if all(detector.hint or detector.needles for detector in detectors):
            self._gates = _Gates(
                [(("<",), parts[0][1]), *((detector.needles, detector.hint) for detector in detectors)]
            )

    def with_values(self, values: Iterable[str]) -> Scanner:
        """Return a scanner that also finds these values."""
        known = _long_enough(values)
        if not known:
            return self
        other = object.__new__(Scanner)  # compiling the detectors again would be slow
        other._detectors = self._detectors
        other._patterns = [_literals(known), *self._patterns]
        other._started, other._starts = self._started, self._starts
        other._values = self._values + known
        other._gates = self._gates
        return other

    def may_find(self, text: str) -> bool:
        """Return whether a whole text must be searched; most texts are ruled out at a fraction of the cost."""
        if self._gates is None or self._gates.open_for(text):
            return True
        return bool(self._values) and contains_any(text, self._values)

    def may_find_within(self, text: str) -> bool:
        """Return whether a text, or any part of it, must be searched."""
        return self._gates is None or not self._gates.floating or self.may_find(text)

    def replace(self, text: str, replacer: Replacer) -> str:
        """Replace all findings in a whole text."""
        return "".join(scan(lambda: self, text, 0, True, replacer)[0])

    def next(self, text: str, look: int, final: bool, matches: Searches) -> tuple[int, str, int]:
        """Return the next finding from `look` on: its start, kind and length (0: a false match).

        `matches` keeps the last match of each pattern in this text, so that no part is searched twice for the same
        pattern. If no finding is certain yet, the length is -1, and the text before the start is clean.
        """
        match: Match | None = None
        limit = len(text)
        patterns = self._patterns
        if self._started is not None and _first(self._starts, text, look, matches) is not None:
            patterns = [*patterns, self._started]
        for complete, _ in patterns:
            other = _first(complete, text, look, matches)
            if other is not None and (match is None or other.start() < match.start()):
                match = other
        if not final:
            for _, unfinished in patterns:
                began = unfinished.search(text, look, partial=True)
                limit = limit if began is None else min(limit, began.start())
            if match is not None and match.end() == len(text):  # further text could make it longer
                limit = min(limit, match.start())
        if match is None or match.start() >= limit:
            return limit, "", -1
        kind, length = self._kind_and_length(match)
        return match.start(), kind, length

    def _kind_and_length(self, match: Match) -> tuple[str, int]:
        text = match.group()
        for name, value in match.groupdict().items():
            if value is None:
                continue
            if name in (_PLACEHOLDER, _VALUE):
                return "" if name == _PLACEHOLDER else "secret", len(text)
            detector = self._detectors.get(name)
            if detector is not None:
                return detector.kind, len(text) if detector.check is None else detector.check(text)
        return "", 0


def _pair(parts: Sequence[tuple[str, str]]) -> tuple[Pattern, Pattern]:
    """Return the combined pattern, and a variant that only matches partially, at the end of the text."""
    complete = "|".join(f"(?P<{name}>{pattern})" for name, pattern in parts)
    # `(?!)` never matches, so the second pattern can only report that a match may have begun.
    return compiled(complete), compiled(f"(?:{'|'.join(f'(?:{pattern})' for _, pattern in parts)})(?!)")


def _first(pattern: Pattern, text: str, look: int, matches: Searches) -> Match | None:
    """Return the first match from a position on; a known match after it is not searched again."""
    known = matches.get(id(pattern))
    if known is not None and (known[1] is None or known[1].start() >= look):
        return known[1]
    match = pattern.search(text, look)
    matches[id(pattern)] = pattern, match
    return match


def _word_starts(starts: Iterable[str]) -> Pattern:
    """Create a pattern for a word that begins, in any case, with one of the texts, or at the end of the text
    with a part of one."""
    tree: dict[str, Any] = {}
    for start in starts:
        node = tree
        for letter in start:
            node = node.setdefault(letter, {})
        node[""] = {}
    return cast("Pattern", re.compile(f"(?<![A-Za-z0-9]){_branches(tree)}" if tree else r"(?!)"))


def _branches(node: dict[str, Any]) -> str:
    if "" in node:
        return ""
    branches = [
        f"[{re.escape(letter)}{re.escape(letter.upper())}]{_branches(below)}" for letter, below in sorted(node.items())
    ]
    return rf"(?:{'|'.join(branches)}|\Z)"


def _long_enough(values: Iterable[str]) -> tuple[str, ...]:
    """Return the values that are long enough to be searched for, the longest first."""
    known = {value for value in values if len(value) >= MIN_SEARCHED_LENGTH}
    return tuple(sorted(known, key=lambda value: (-len(value), value)))  # `|` takes the first that matches


def _literals(values: Sequence[str]) -> tuple[Pattern, Pattern]:
    escaped = [re.escape(value) for value in values]
    return _pair([(_VALUE, "|".join(escaped))])


def scan(
    scanner: Callable[[], Scanner], text: str, start: int, final: bool, replacer: Replacer
) -> tuple[list[str], int]:
    """Scan a text.

    Args:
        scanner: Returns the scanner; called again after each finding, which may have added a value.
        text: The text; the part before `start` is context.
        start: Where to begin.
        final: Whether the text is complete.
        replacer: Returns the replacement of a finding.

    Returns:
        The parts that can be released, and the position in `text` after them.
    """
    out: list[str] = []
    position = look = start  # text is released up to `position`, and searched up to `look`
    current = scanner()
    searches: Searches = {}
    while position < len(text):
        at, kind, length = current.next(text, look, final, searches)
        if length < 0:
            out.append(text[position:at])
            return out, at
        if length == 0:
            look = at + 1
            continue
        out.append(text[position:at])
        position = look = at + length
        out.append(replacer(kind, text[at:position]))
        current = scanner()
    return out, position


class StreamScanner:
    """Replaces findings in a text that arrives in chunks; text that could become part of a finding is held back.

    Args:
        scanner: Returns the current scanner.
        replacer: Returns the replacement of a finding.

    Example:
        >>> from agentflow.plugins.redaction.detectors import EMAIL
        >>> stream = StreamScanner(lambda: Scanner((EMAIL,)), lambda kind, text: f"<{kind}>")
        >>> [stream.feed("write to ada"), stream.feed("@example.c"), stream.feed("om, soon"), stream.end()]
        ['write to ', '', '<email>, ', 'soon']
    """

    __slots__ = ("_context", "_pending", "_replacer", "_scanner")

    def __init__(self, scanner: Callable[[], Scanner], replacer: Replacer) -> None:
        self._scanner = scanner
        self._replacer = replacer
        self._context = ""
        self._pending = ""

    def feed(self, chunk: str) -> str:
        """Add a chunk; return the text that can be shown."""
        return self._advance(self._pending + chunk, final=False)

    def end(self) -> str:
        """Return the remaining text, and start over."""
        rest = self._advance(self._pending, final=True)
        self._context = ""
        return rest

    def _advance(self, pending: str, *, final: bool) -> str:
        if not pending:
            return ""
        text = self._context + pending
        out, reached = scan(self._scanner, text, len(self._context), final, self._replacer)
        self._pending = text[reached:]
        self._context = text[max(0, reached - _CONTEXT) : reached]
        return "".join(out)
