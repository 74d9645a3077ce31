"""Signatures of thinking blocks: the server signs what it hands out, so that it can tell what came back.

A signature seals the block's place among its siblings and a digest of its text. The same key gives the same signatures
in every process, so a stored conversation can be resumed against a new server.
"""

import base64
import binascii
import hashlib
import hmac
import struct
from dataclasses import dataclass

_HEAD = struct.Struct(">HH12s")


@dataclass(frozen=True, slots=True)
class Seal:
    """What a valid signature says: the block's place, how many siblings it had, and the digest of its text."""

    place: int
    total: int
    digest: bytes

    def covers(self, text: str) -> bool:
        """Whether the text is the one that was signed."""
        return hmac.compare_digest(self.digest, _digest(text))


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs thinking and checks what comes back.

    Example:
        >>> signer = Signer(b"key")
        >>> seal = signer.check(signer.sign("I think", 0, 1))
        >>> seal is not None and seal.covers("I think")
        True
    """

    key: bytes = b"agentflow wire server"

    def sign(self, text: str, place: int, total: int) -> str:
        """The signature of one thinking block."""
        head = _HEAD.pack(place, total, _digest(text))
        return base64.b64encode(head + self._mac(head)).decode()

    def check(self, signature: str) -> Seal | None:
        """What the signature says, or None if it was not made with this key."""
        try:
            data = base64.b64decode(signature, validate=True)
        except (binascii.Error, ValueError):
            return None
        head, mac = data[: _HEAD.size], data[_HEAD.size :]
        if len(head) < _HEAD.size or not hmac.compare_digest(mac, self._mac(head)):
            return None
        place, total, digest = _HEAD.unpack(head)
        return Seal(place, total, digest)

    def _mac(self, head: bytes) -> bytes:
        return hmac.digest(self.key, head, hashlib.sha256)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:12]
