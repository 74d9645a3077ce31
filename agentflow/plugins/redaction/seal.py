"""The encryption of what `Redaction` keeps with a session: Fernet tokens (AES and HMAC), under keys that can be rotated.

Rules:

1. What was sealed and cannot be opened is an error that says what to do; it is never replaced.
2. The first key seals, any of them opens; what an older key has sealed is sealed again at the next change.
3. Keys are asked for when they are first needed, and again when none of them opens what is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from agentflow.errors import UsageError

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

__all__ = ["KEYS_VARIABLE", "KeySource", "Keys", "Seal", "seal_from"]

KEYS_VARIABLE = "AGENTFLOW_REDACTION_KEYS"
Keys: TypeAlias = "str | bytes | Sequence[str | bytes]"
"""One Fernet key or several, the newest first; in a text they are separated by commas."""
KeySource: TypeAlias = "Keys | Callable[[], Keys]"

_MAKE_ONE = 'python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"'


def seal_from(keys: KeySource | None) -> Seal | None:
    """The seal under the given keys, or under those in the environment; None where there are none.

    Raises:
        UsageError: What was given is no key.
        ImportError: cryptography is not installed.
    """
    if keys is None:
        found = os.environ.get(KEYS_VARIABLE, "")
        return Seal(found) if found.strip() else None
    return Seal(keys)


class Seal:
    """Encrypts a text, and opens it again.

    Args:
        keys: Fernet keys, the newest first, or a function that gives them.

    Raises:
        UsageError: What was given is no key; of a function, when it is called.

    Example:
        >>> from cryptography.fernet import Fernet
        >>> old, new = Fernet.generate_key(), Fernet.generate_key()
        >>> token = Seal(old).close("ada@example.com")
        >>> Seal([new, old]).open(token)
        ('ada@example.com', False)
    """

    def __init__(self, keys: KeySource) -> None:
        self._source = keys
        self._keys: tuple[Fernet, ...] = ()
        if not callable(keys):
            self._keys = _fernets(keys)

    def ready(self) -> None:
        """Ask for the keys, where that has not been done.

        Raises:
            UsageError: What the function gives is no key.
        """
        if not self._keys:
            self._keys = _fernets(self._source)

    def close(self, text: str) -> str:
        """Encrypt a text with the newest key."""
        self.ready()
        return self._keys[0].encrypt(text.encode()).decode()

    def open(self, token: str) -> tuple[str, bool]:
        """The text, and whether the newest key has sealed it.

        Raises:
            UsageError: None of the keys opens it.
        """
        self.ready()
        found = _opened(self._keys, token)
        if found is None and callable(self._source):
            self._keys = _fernets(self._source)  # they may have been rotated meanwhile
            found = _opened(self._keys, token)
        if found is None:
            raise UsageError(
                "Redaction: none of the keys opens what is stored with the session, so its placeholders stand for nothing. "
                f"Add the key that it was sealed with behind the new one, keys=[new, old] (or in {KEYS_VARIABLE}, separated by "
                "a comma)."
            )
        return found


def _opened(keys: Sequence[Fernet], token: str) -> tuple[str, bool] | None:
    from cryptography.fernet import InvalidToken

    for number, key in enumerate(keys):
        try:
            return key.decrypt(token.encode()).decode(), number == 0
        except InvalidToken:
            continue
    return None


def _fernets(source: KeySource) -> tuple[Fernet, ...]:
    try:
        from cryptography.fernet import Fernet
    except ImportError as error:
        raise ImportError('Redaction(keys=...) needs cryptography: pip install "agentflow-hooks[redaction]"') from error
    given = source() if callable(source) else source
    try:
        keys = given.split(",") if isinstance(given, str) else [given] if isinstance(given, bytes) else list(given)
        found = tuple([Fernet(key.strip()) for key in keys])
    except (ValueError, TypeError, AttributeError):
        found = ()
    if not found:
        raise UsageError(
            "Redaction: keys= (or the environment's "
            + KEYS_VARIABLE
            + ") holds something that is no Fernet key: each is 32 "
            f"bytes in URL-safe base64. Make one with: {_MAKE_ONE}"
        )  # without the text of the key
    return found
