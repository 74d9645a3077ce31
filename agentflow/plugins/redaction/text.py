"""What `Redaction` knows of text: detectors, the vault of placeholders, and a scanner that works while text streams in.

Rules:

1. The same text gives the same result, however it is cut into pieces.
2. A piece of text is let go as soon as nothing that could follow would make it part of a secret.
3. A value has one placeholder in a session, and a placeholder one value.

Libraries: `regex` says where a pattern has begun to match at the end of a text and wants more (partial matching; the
standard library's `re` cannot), which is all that a hold-back needs. `python-stdnum` computes check digits. detect-secrets was
looked at: it says which line of a file holds a secret, not where in the line it begins and ends. Presidio finds names and
places by a language model and needs whole sentences; give what it finds as `values=`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast

from pydantic_core import CoreSchema, core_schema

from agentflow.ground.validation import adapter_of
from agentflow.ground.values import NamedTuple
from agentflow.messages import Msg
from agentflow.plugins.redaction.detectors import Detector, Match, Pattern, compiled
from agentflow.plugins.redaction.seal import Seal
from agentflow.transcript import MessageView, Replacements

__all__ = ["Found", "Scanner", "Streaming", "Vault", "scan"]

_CONTEXT = 80
"""How much of the text before a place a pattern may look back on."""
_PLACEHOLDER = "_p_"
_VALUE = "_v_"
_MOST_SPOTLESS = 1_000
_SHORTEST = 4
"""Values shorter than this are too common to be looked for wherever they occur."""


class Found(Protocol):
    """Says what stands for a thing that was found.

    Args:
        kind: The detector's kind, or `""` for a placeholder.
        text: What was found.
    """

    def __call__(self, kind: str, text: str, /) -> str: ...


_ANCHOR = re.compile(r"(?<!\[)\^|\$|\\[AZbB]|\(\?<?[=!]")
"""What makes it matter for a hint what stands around it."""


Searches: TypeAlias = dict[int, tuple[Pattern, Match | None]]
"""What each pattern, by its identity, has found last in a text."""


class _Gates:
    """Tells the texts that are not worth a search, whatever the detector.

    Args:
        hints: For each detector its needles and its hint.

    Attributes:
        floating: Whether a text that is not worth it has no part that is.
    """

    __slots__ = ("_bare", "_needles", "_one_by_one", "floating")

    def __init__(self, hints: Sequence[tuple[tuple[str, ...], str]]) -> None:
        self._needles = tuple(dict.fromkeys(needle for needles, _ in hints for needle in needles))
        bare = "|".join(hint for needles, hint in hints if not needles)
        self._bare = re.compile(bare) if bare else None
        self._one_by_one = [(needles, re.compile(hint) if hint else None) for needles, hint in hints if needles]
        self.floating = not any(_ANCHOR.search(hint) for _, hint in hints)

    def open_for(self, text: str) -> bool:
        """Whether a detector may find something."""
        if self._bare is not None and self._bare.search(text) is not None:
            return True
        lowered = text.lower()
        if not _has_one(lowered, self._needles):
            return False
        for needles, hint in self._one_by_one:
            if _has_one(lowered, needles) and (hint is None or hint.search(text) is not None):
                return True
        return False


def _has_one(text: str, needles: Iterable[str]) -> bool:
    for needle in needles:  # noqa: SIM110 - `any` takes three times as long
        if needle in text:
            return True
    return False


class Scanner:
    """Finds known values, placeholders, and what detectors look for, in this order of preference at one place.

    Args:
        detectors: What to look for.
        values: Texts to be found wherever they occur.

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
        parts.extend((name, one.pattern) for name, one in self._detectors.items() if not one.starts)
        started = [(name, one.pattern) for name, one in self._detectors.items() if one.starts]
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

    def knowing(self, values: Iterable[str]) -> Scanner:
        """The same scanner, which looks for these values too."""
        known = _long_enough(values)
        if not known:
            return self
        other = object.__new__(Scanner)
        other._detectors = self._detectors
        other._patterns = [_literals(known), *self._patterns]
        other._started, other._starts = self._started, self._starts
        other._values = self._values + known
        other._gates = self._gates
        return other

    def may_find(self, text: str) -> bool:
        """Whether a whole text has to be searched; most texts are told apart at a fraction of the cost."""
        if self._gates is None or self._gates.open_for(text):
            return True
        return bool(self._values) and _has_one(text, self._values)

    def may_find_within(self, text: str) -> bool:
        """Whether a text, or a part of it that somebody cuts out, has to be searched."""
        return self._gates is None or not self._gates.floating or self.may_find(text)

    def replace(self, text: str, found: Found) -> str:
        """The whole text with what was found replaced."""
        return "".join(scan(lambda: self, text, 0, True, found)[0])

    def next(self, text: str, look: int, final: bool, found: Searches) -> tuple[int, str, int]:
        """The next find from `look` on: where it begins, its kind, and its length (0: it was none after all).

        `found` is what each pattern has found in this text; no part of it is searched twice for the same.

        Where no find is certain yet, the length is -1, and what stands before the place is free.
        """
        match: Match | None = None
        limit = len(text)
        patterns = self._patterns
        if self._started is not None and _first(self._starts, text, look, found) is not None:
            patterns = [*patterns, self._started]
        for complete, _ in patterns:
            other = _first(complete, text, look, found)
            if other is not None and (match is None or other.start() < match.start()):
                match = other
        if not final:
            for _, unfinished in patterns:
                began = unfinished.search(text, look, partial=True)
                limit = limit if began is None else min(limit, began.start())
            if match is not None and match.end() == len(text):
                limit = min(limit, match.start())
        if match is None or match.start() >= limit:
            return limit, "", -1
        kind, length = self._judge(match)
        return match.start(), kind, length

    def _judge(self, match: Match) -> tuple[str, int]:
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
    """The pattern, and one that never matches as a whole, so that all it finds is a beginning that the text's end cut off."""
    complete = "|".join(f"(?P<{name}>{pattern})" for name, pattern in parts)
    return compiled(complete), compiled(f"(?:{'|'.join(f'(?:{pattern})' for _, pattern in parts)})(?!)")


def _first(pattern: Pattern, text: str, look: int, found: Searches) -> Match | None:
    """The first match from a place on; what is known of the text behind it is not searched again."""
    known = found.get(id(pattern))
    if known is not None and (known[1] is None or known[1].start() >= look):
        return known[1]
    match = pattern.search(text, look)
    found[id(pattern)] = pattern, match
    return match


def _word_starts(starts: Iterable[str]) -> Pattern:
    """Finds a word that begins with one of the texts, in whatever case, or that the text's end cuts off before it can tell."""
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
    """What is looked for by its letters, the longest first."""
    known = {value for value in values if len(value) >= _SHORTEST}
    return tuple(sorted(known, key=lambda value: (-len(value), value)))


def _literals(values: Sequence[str]) -> tuple[Pattern, Pattern]:
    escaped = [re.escape(value) for value in values]
    return _pair([(_VALUE, "|".join(escaped))])


def scan(scanner: Callable[[], Scanner], text: str, start: int, final: bool, found: Found) -> tuple[list[str], int]:
    """Go through a text.

    Args:
        scanner: Gives the scanner; asked again after each find, which may have taught it a value.
        text: The text; what stands before `start` is looked back on.
        start: Where to begin.
        final: No more text follows.
        found: Says what stands for a thing.

    Returns:
        What can be let go, and up to where in `text` that is.
    """
    out: list[str] = []
    position = look = start  # out up to `position`, searched up to `look`
    current = scanner()
    seen: Searches = {}
    while position < len(text):
        at, kind, length = current.next(text, look, final, seen)
        if length < 0:
            out.append(text[position:at])
            return out, at
        if length == 0:
            look = at + 1
            continue
        out.append(text[position:at])
        position = look = at + length
        out.append(found(kind, text[at:position]))
        current = scanner()
    return out, position


class Streaming:
    """Replaces in a text that comes in pieces; what could become part of a find is held back until that is known.

    Args:
        scanner: Gives the scanner as of now.
        found: Says what stands for a thing.

    Example:
        >>> from agentflow.plugins.redaction.detectors import EMAIL
        >>> stream = Streaming(lambda: Scanner((EMAIL,)), lambda kind, text: f"<{kind}>")
        >>> [stream.feed("write to ada"), stream.feed("@example.c"), stream.feed("om, soon"), stream.end()]
        ['write to ', '', '<email>, ', 'soon']
    """

    __slots__ = ("_context", "_found", "_held", "_scanner")

    def __init__(self, scanner: Callable[[], Scanner], found: Found) -> None:
        self._scanner = scanner
        self._found = found
        self._context = ""
        self._held = ""

    def feed(self, piece: str) -> str:
        """The next piece; returns what can be shown."""
        return self._advance(self._held + piece, final=False)

    def end(self) -> str:
        """Nothing follows; returns the rest, and begins anew."""
        rest = self._advance(self._held, final=True)
        self._context = ""
        return rest

    def _advance(self, pending: str, *, final: bool) -> str:
        if not pending:
            return ""
        text = self._context + pending
        out, reached = scan(self._scanner, text, len(self._context), final, self._found)
        self._held = text[reached:]
        self._context = text[max(0, reached - _CONTEXT) : reached]
        return "".join(out)


@dataclass(slots=True, repr=False)
class _Kept:
    """What is sealed."""

    values: dict[str, str]
    by_model: list[str]
    words: list[str]
    thoughts: dict[str, str]


@dataclass(slots=True, repr=False)
class _Sealed:
    """What a store has of a vault with values; of one without, the counters alone."""

    counters: dict[str, int]
    sealed: str


_Stored = _Sealed | dict[str, int]


class Sent(NamedTuple):
    """A request whose messages were cleaned.

    Attributes:
        base: The scanner.
        version: The vault's version then.
        given: The messages as they were.
        cleaned: The messages as they were sent.
        replacements: What takes the place of those that were not clean.
    """

    base: object
    version: int
    given: MessageView
    cleaned: MessageView
    replacements: Replacements


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Vault:
    """What was hidden in one session; lives in its `session_state`, and is never printed.

    Where a store keeps session states, it gets the counters, and with a seal (`Redaction(keys=...)`) an encrypted copy of the
    rest, so that placeholders stand for their values in the next process too. Without one, placeholders of an earlier
    process stay what they are, and no new value takes their names.
    """

    _placeholders: dict[str, str] = field(default_factory=dict[str, str])
    _originals: dict[str, str] = field(default_factory=dict[str, str])
    _written: set[str] = field(default_factory=set[str])
    _counters: dict[str, int] = field(default_factory=dict[str, int])
    _words: list[str] = field(default_factory=list[str])
    _scanners: dict[int, tuple[int, Scanner, Scanner]] = field(
        default_factory=dict[int, "tuple[int, Scanner, Scanner]"]
    )
    thoughts: dict[str, str] = field(default_factory=dict[str, str])
    """What a model really thought, by the signature over it: its provider wants it back unchanged."""
    clean: dict[tuple[int, int], tuple[object, int, Msg]] = field(
        default_factory=dict[tuple[int, int], "tuple[object, int, Msg]"]
    )
    """Messages as they are sent, so that each is looked through once."""
    begun: bool = False
    version: int = 0
    """Changes when a text that was clean may not be so any more."""
    runs: dict[int, str] = field(default_factory=dict[int, str])
    """By hook: the run that it has noted this vault for."""
    _lost: Mapping[str, int] = field(default_factory=dict[str, int])
    _spotless: dict[int, tuple[Scanner, set[object]]] = field(default_factory=dict[int, "tuple[Scanner, set[object]]"])
    sent: dict[int, Sent] = field(default_factory=dict[int, "Sent"])
    """The last request, by scanner: the next one usually is the same and a little more."""
    unsaved: bool = False
    """Whether it holds something that the store does not have: it is then stored with the next fact."""
    _seal: Seal | None = None
    _sealed: str = ""
    """What the store has of its values; empty: nothing, or no longer what they are."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.taken_in, serialization=core_schema.plain_serializer_function_ser_schema(cls.given_out)
        )

    @classmethod
    def taken_in(cls, value: object) -> Vault:
        """A vault of what a store has of it.

        Raises:
            ValueError: That is no vault.
        """
        if isinstance(value, Vault):
            return value
        data = adapter_of(_Stored).validate_python(value)
        counters, sealed = (data.counters, data.sealed) if isinstance(data, _Sealed) else (data, "")
        return cls(_counters=dict(counters), _lost=dict(counters), _sealed=sealed)

    def given_out(self) -> dict[str, Any]:
        """What a store gets of it."""
        if self._seal is not None and not self._sealed and (self._originals or self._kept_thoughts()):
            self._sealed = self._seal.close(self._contents())
        self.unsaved = False
        return {"counters": dict(self._counters), "sealed": self._sealed} if self._sealed else dict(self._counters)

    def _contents(self) -> str:
        kept = _Kept(self._originals, sorted(self._written), self._words, self._kept_thoughts())
        return adapter_of(_Kept).dump_json(kept).decode()

    def _kept_thoughts(self) -> dict[str, str]:
        """The thoughts that hold a value: of all others the session has what was thought."""
        values = tuple(self._placeholders)
        return {by: thought for by, thought in self.thoughts.items() if _has_one(thought, values)}

    @property
    def has_lost(self) -> bool:
        """Whether there are placeholders of an earlier process, known or not."""
        return bool(self._lost)

    @property
    def is_sealed(self) -> bool:
        """Whether the store has values of it."""
        return bool(self._sealed)

    def use(self, seal: Seal | None) -> None:
        """Keep values under a seal from now on, and take in what is kept.

        Raises:
            UsageError: What is kept cannot be opened.
        """
        if seal is None or self._seal is not None:
            return
        seal.ready()
        if self._sealed:
            text, newest = seal.open(self._sealed)
            kept = adapter_of(_Kept).validate_json(text)
            for placeholder, value in kept.values.items():
                if placeholder not in self._originals and value not in self._placeholders:
                    self._originals[placeholder] = value
                    self._placeholders[value] = placeholder
            self._written.update(kept.by_model)
            self._words.extend(word for word in kept.words if word not in self._words)
            self.thoughts = {**kept.thoughts, **self.thoughts}
            self._changed()
            if newest and len(self._originals) == len(kept.values):
                self._seal = seal
                return
        self._seal = seal
        self._touch()

    def _touch(self) -> None:
        """What is stored is not what is known any more."""
        self.unsaved = True  # the counters too: a name that is stored must not be given to another value
        if self._seal is not None:
            self._sealed = ""

    def _changed(self) -> None:
        """A text that was clean may not be so any more."""
        self.version += 1
        for _, texts in self._spotless.values():
            texts.clear()

    def hide(self, value: str, kind: str, base: Scanner, *, by_model: bool) -> str:
        """The placeholder of a value; a new one where it is seen for the first time.

        Args:
            value: The value.
            kind: What it is.
            base: Whoever found it; a value that it finds only in its surroundings is looked for by its letters from now on.
            by_model: The model wrote it.
        """
        known = self._placeholders.get(value)
        if known is None:
            number = self._counters[kind] = self._counters.get(kind, 0) + 1
            known = f"<{kind}-{number}>"
            self._placeholders[value] = known
            self._originals[known] = value
            if by_model:
                self._written.add(known)
            if base.replace(value, lambda _kind, _text: "") and len(value) >= _SHORTEST:
                self._words.append(value)
                self._changed()
            self._touch()
        elif not by_model and known in self._written:
            self._written.discard(known)
            self._touch()
        return known

    def sealed_thought(self, signature: str, thought: str) -> None:
        """Keep a thought as its model had it, by the signature over it."""
        self.thoughts[signature] = thought
        if _has_one(thought, self._placeholders):
            self._touch()

    def original(self, placeholder: str) -> str | None:
        """The value behind a placeholder; None for one that is not ours, which will then never get one."""
        value = self._originals.get(placeholder)
        if value is None:
            kind, _, number = placeholder[1:-1].rpartition("-")
            self._counters[kind] = max(self._counters.get(kind, 0), int(number))
        return value

    def is_lost(self, placeholder: str) -> bool:
        """Whether only an earlier process of this session knew what it stands for."""
        kind, _, number = placeholder[1:-1].rpartition("-")
        return placeholder not in self._originals and int(number) <= self._lost.get(kind, 0)

    def is_models_own(self, placeholder: str) -> bool:
        """Whether only the model wrote the value."""
        return placeholder in self._written

    def spotless(self, base: Scanner) -> set[object]:
        """Texts in which nothing is found with what is known by now; arguments and results are looked at many times.

        The set is one for the vault's life; it is emptied when a new value becomes known.
        """
        found = self._spotless.get(id(base))
        if found is None or found[0] is not base:
            found = self._spotless[id(base)] = (base, set())
        elif len(found[1]) > _MOST_SPOTLESS:
            found[1].clear()
        return found[1]

    def scanner(self, base: Scanner) -> Scanner:
        """The scanner that also finds the values known by now."""
        found = self._scanners.get(id(base))
        if found is None or found[0] != self.version or found[1] is not base:
            found = self._scanners[id(base)] = (self.version, base, base.knowing(self._words))
        return found[2]
