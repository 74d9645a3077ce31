"""The encryption of values that `Redaction` stores with a session: Fernet tokens (AES and HMAC), with rotating keys.

Rules:

1. A sealed value that cannot be opened is an error with advice; it is never replaced.
2. The first key seals, any key opens; a value sealed with an older key is sealed again at the next change.
3. The key function is called when a key is first needed, and again if no key opens a value.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from agentflow.errors import UsageError

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

KEYS_VARIABLE = "AGENTFLOW_REDACTION_KEYS"
Keys: TypeAlias = "str | bytes | Sequence[str | bytes]"
"""One Fernet key or several, the newest first; in a string they are separated by commas."""
KeySource: TypeAlias = "Keys | Callable[[], Keys]"

_CREATE_KEY = 'python -c "from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())"'


def seal_from(keys: KeySource | None) -> Seal | None:
    """Create the seal from the given keys, or those in the environment; None if there are none.

    Raises:
        UsageError: A value is not a key.
        ImportError: cryptography is not installed.
    """
    if keys is None:
        found = os.environ.get(KEYS_VARIABLE, "")
        return Seal(found) if found.strip() else None
    return Seal(keys)


class Seal:
    """Encrypts and decrypts texts.

    Args:
        keys: Fernet keys, the newest first, or a function that returns them.

    Raises:
        UsageError: A value is not a key; for a function, when it is called.

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
        """Load the keys if they are not loaded yet.

        Raises:
            UsageError: The function returned a value that is not a key.
        """
        if not self._keys:
            self._keys = _fernets(self._source)

    def close(self, text: str) -> str:
        """Encrypt a text with the newest key."""
        self.ready()
        return self._keys[0].encrypt(text.encode()).decode()

    def open(self, token: str) -> tuple[str, bool]:
        """Decrypt a text; also return whether the newest key sealed it.

        Raises:
            UsageError: No key can decrypt the text.
        """
        self.ready()
        found = _opened(self._keys, token)
        if found is None and callable(self._source):
            self._keys = _fernets(self._source)  # the keys may have been rotated meanwhile
            found = _opened(self._keys, token)
        if found is None:
            raise UsageError(
                "Redaction: no key opens the values stored with the session, so its placeholders cannot be resolved. "
                f"Add the key that sealed them after the new one, keys=[new, old] (or in {KEYS_VARIABLE}, separated by "
                "a comma)."
            )
        return found


def _opened(keys: Sequence[Fernet], token: str) -> tuple[str, bool] | None:
    from cryptography.fernet import InvalidToken

    for number, key in enumerate(keys):
        try:
            return key.decrypt(token.encode()).decode(), number == 0
        except InvalidToken:
            continue  # sealed with another key
    return None


def _fernets(source: KeySource) -> tuple[Fernet, ...]:
    try:
        from cryptography.fernet import Fernet
    except ImportError as error:
        raise ImportError('Redaction(keys=...) needs cryptography: pip install "agentflow-hooks[redaction]"') from error
    source_keys = source() if callable(source) else source
    try:
        keys = (
            source_keys.split(",")
            if isinstance(source_keys, str)
            else [source_keys]
            if isinstance(source_keys, bytes)
            else list(source_keys)
        )
        found = tuple([Fernet(key.strip()) for key in keys])
    except (ValueError, TypeError, AttributeError):
        found = ()
    if not found:
        raise UsageError(
            f"Redaction: keys= (or the environment variable {KEYS_VARIABLE}) contains an invalid Fernet key: each is 32 bytes "
            f"in URL-safe base64. Create one with: {_CREATE_KEY}"
        )  # the message does not contain the key
    return found
