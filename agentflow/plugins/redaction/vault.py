"""The vault of `Redaction`: the hidden values of a session, and their placeholders.

A value has one placeholder in a session, and a placeholder one value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakSet

from pydantic_core import CoreSchema, core_schema

from agentflow._support.validation import adapter_of
from agentflow._support.values import NamedTuple
from agentflow.plugins.redaction.seal import Seal
from agentflow.plugins.redaction.text import MIN_SEARCHED_LENGTH, Scanner, contains_any
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.transcript import MessageView, Replacements

MAX_CLEAN_TEXTS = 1_000
"""The maximum number of clean texts that are remembered."""
_MAX_SCANNERS: Final = 8
"""The maximum number of scanners with results in a session; each hook has one scanner."""


@dataclass(slots=True, repr=False)
class _VaultContents:
    """The contents of a sealed vault."""

    values: dict[str, str]
    by_model: list[str]
    words: list[str]
    thoughts: dict[str, str]


@dataclass(slots=True, repr=False)
class _SealedVault:
    """The stored form of a vault with values. The stored form of a vault without values is only its counters."""

    counters: dict[str, int]
    sealed: str


_Stored = _SealedVault | dict[str, int]


class RedactedRequest(NamedTuple):
    """A request whose messages were redacted.

    Attributes:
        original: The messages before redaction.
        cleaned: The messages as they were sent.
        replacements: The redacted messages, by position.
    """

    original: MessageView
    cleaned: MessageView
    replacements: Replacements


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class ScanCache:
    """The cached results of one scanner in a session. They are valid until the vault gets a new value.

    Attributes:
        base: The scanner, without the values of the session.
        scanner: The scanner that also finds the values of the session; created when needed.
        clean: Texts that are known to be clean; arguments and results are checked many times.
        messages: Messages, by identity, and their form as they are sent, so that each is searched once.
        last: The last request: the next one usually extends it.
    """

    base: Scanner
    scanner: Scanner | None = None
    clean: set[object] = field(default_factory=set[object])
    messages: dict[int, tuple[Msg, Msg]] = field(default_factory=dict[int, tuple[Msg, Msg]])
    last: RedactedRequest | None = None

    def clear(self) -> None:
        """Forget everything, since a text that was clean may no longer be."""
        self.scanner = self.last = None
        self.clean.clear()
        self.messages.clear()


@dataclass(slots=True, eq=False, repr=False, weakref_slot=True)
class Vault:
    """The hidden values of one session, in its `session_state`; never printed.

    If a store keeps session states, it gets the counters, and with a seal (`Redaction(keys=...)`) an encrypted copy of the
    rest, so that placeholders can be resolved in the next process too. Without a seal, placeholders of an earlier process
    stay unresolved, and no new value gets their names.
    """

    __saved_as__ = "agentflow.plugins.redaction_text:Vault"  # the name in stored sessions

    _placeholders: dict[str, str] = field(default_factory=dict[str, str])
    _originals: dict[str, str] = field(default_factory=dict[str, str])
    _by_model: set[str] = field(default_factory=set[str])
    """The placeholders of values that only the model wrote."""
    _counters: dict[str, int] = field(default_factory=dict[str, int])
    _literals: list[str] = field(default_factory=list[str])
    """The values that detectors find only in context, so that they are searched for literally."""
    thoughts: dict[str, str] = field(default_factory=dict[str, str])
    """The original thoughts of a model, by their signature: its provider expects them unchanged."""
    begun: bool = False
    version: int = 0
    """Increased when a text that was clean may no longer be."""
    runs: dict[int, str] = field(default_factory=dict[int, str])
    """Maps a hook to the last run that used this vault."""
    _lost: Mapping[str, int] = field(default_factory=dict[str, int])
    """Maps a kind to the highest number that an earlier process used."""
    _caches: dict[int, ScanCache] = field(default_factory=dict[int, ScanCache])
    # Includes caches that are no longer in `_caches`, but that an open call still uses.
    _in_use: WeakSet[ScanCache] = field(default_factory=WeakSet[ScanCache])
    unsaved: bool = False
    """Whether the vault has changes that are not stored; if so, it is stored with the next fact."""
    _seal: Seal | None = None
    _sealed: str = ""
    """The sealed contents; empty if there are none, or they have changed."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.from_stored, serialization=core_schema.plain_serializer_function_ser_schema(cls.to_stored)
        )

    @classmethod
    def from_stored(cls, value: object) -> Vault:
        """Create a vault from its stored form.

        Raises:
            ValueError: The data is not a vault.
        """
        if isinstance(value, Vault):
            return value
        data = adapter_of(_Stored).validate_python(value)
        counters, sealed = (data.counters, data.sealed) if isinstance(data, _SealedVault) else (data, "")
        return cls(_counters=dict(counters), _lost=dict(counters), _sealed=sealed)

    def to_stored(self) -> dict[str, Any]:
        """Return the stored form."""
        if self._seal is not None and not self._sealed and (self._originals or self._thoughts_with_values()):
            self._sealed = self._seal.close(self._contents())
        self.unsaved = False
        return {"counters": dict(self._counters), "sealed": self._sealed} if self._sealed else dict(self._counters)

    def _contents(self) -> str:
        contents = _VaultContents(self._originals, sorted(self._by_model), self._literals, self._thoughts_with_values())
        return adapter_of(_VaultContents).dump_json(contents).decode()

    def _thoughts_with_values(self) -> dict[str, str]:
        """Return the thoughts that contain a value; the session has all others unchanged."""
        values = tuple(self._placeholders)
        return {by: thought for by, thought in self.thoughts.items() if contains_any(thought, values)}

    @property
    def has_lost(self) -> bool:
        """Whether there are placeholders of an earlier process, resolvable or not."""
        return bool(self._lost)

    @property
    def is_sealed(self) -> bool:
        """Whether the vault has sealed values."""
        return bool(self._sealed)

    def use(self, seal: Seal | None) -> None:
        """Seal values from now on, and open the values that are sealed already.

        Raises:
            UsageError: The sealed values cannot be opened.
        """
        if seal is None or self._seal is not None:
            return
        seal.ready()
        if self._sealed:
            text, newest = seal.open(self._sealed)
            contents = adapter_of(_VaultContents).validate_json(text)
            for placeholder, value in contents.values.items():
                if placeholder not in self._originals and value not in self._placeholders:
                    self._originals[placeholder] = value
                    self._placeholders[value] = placeholder
            self._by_model.update(contents.by_model)
            self._literals.extend(word for word in contents.words if word not in self._literals)
            self.thoughts = {**contents.thoughts, **self.thoughts}
            self._changed()
            if newest and len(self._originals) == len(contents.values):  # the stored form is still valid
                self._seal = seal
                return
        self._seal = seal
        self._touch()

    def _touch(self) -> None:
        """Mark the stored form as outdated."""
        self.unsaved = True  # the counters change too: a stored name must not be used again for another value
        if self._seal is not None:
            self._sealed = ""

    def _changed(self) -> None:
        """Forget which texts are clean, since a value was added."""
        self.version += 1
        for cache in self._in_use:
            cache.clear()

    def hide(self, value: str, kind: str, base: Scanner, *, by_model: bool) -> str:
        """Return the placeholder of a value; create one if the value is new.

        Args:
            value: The value to hide.
            kind: The kind of the value.
            base: The scanner that found it; a value that it finds only in context is searched for literally afterwards.
            by_model: Whether the model wrote it.
        """
        known = self._placeholders.get(value)
        if known is None:
            number = self._counters[kind] = self._counters.get(kind, 0) + 1
            known = f"<{kind}-{number}>"
            self._placeholders[value] = known
            self._originals[known] = value
            if by_model:
                self._by_model.add(known)
            if base.replace(value, lambda _kind, _text: "") and len(value) >= MIN_SEARCHED_LENGTH:
                self._literals.append(value)
                self._changed()
            self._touch()
        elif not by_model and known in self._by_model:  # a user or a tool wrote it too
            self._by_model.discard(known)
            self._touch()
        return known

    def keep_thought(self, signature: str, thought: str) -> None:
        """Keep a model's original thought, by its signature."""
        self.thoughts[signature] = thought
        if contains_any(thought, self._placeholders):
            self._touch()

    def original(self, placeholder: str) -> str | None:
        """Return the value of a placeholder. If it is unknown, reserve its name, and return None."""
        value = self._originals.get(placeholder)
        if value is None:
            kind, _, number = placeholder[1:-1].rpartition("-")
            self._counters[kind] = max(self._counters.get(kind, 0), int(number))
        return value

    def is_lost(self, placeholder: str) -> bool:
        """Return whether the value was known only in an earlier process of this session."""
        kind, _, number = placeholder[1:-1].rpartition("-")
        return placeholder not in self._originals and int(number) <= self._lost.get(kind, 0)

    def is_models_own(self, placeholder: str) -> bool:
        """Return whether only the model wrote the value."""
        return placeholder in self._by_model

    def cache_of(self, base: Scanner) -> ScanCache:
        """Return the cache of a scanner in this session."""
        found = self._caches.get(id(base))
        if found is None or found.base is not base:  # the id of a deleted scanner can be used again
            if len(self._caches) >= _MAX_SCANNERS:  # for example if each call has a separate hook
                del self._caches[next(iter(self._caches))]
            found = self._caches[id(base)] = ScanCache(base)
            self._in_use.add(found)
        elif len(found.clean) > MAX_CLEAN_TEXTS:
            found.clean.clear()
        return found

    def scanner(self, base: Scanner) -> Scanner:
        """Return the scanner that also finds the values known so far."""
        cache = self.cache_of(base)
        if cache.scanner is None:
            cache.scanner = base.with_values(self._literals)
        return cache.scanner
