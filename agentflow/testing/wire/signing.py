"""Signatures of thinking blocks, which the server uses to check returned blocks.

A signature contains the block's position among the thinking blocks of its message, and a digest of its text. A bound
signature also contains a digest of everything before the message: system prompt, tools and earlier messages. The same key
produces the same signatures in every process, so a stored conversation can be resumed with a new server.
"""

import base64
import binascii
import hashlib
import hmac
import struct
from dataclasses import dataclass, replace

from agentflow.testing.wire.jsonish import JsonObject, JsonValue, as_list, dump

_HEAD = struct.Struct(">HH12s")  # the first three fields of `BlockSeal`
_MAC = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class BlockSeal:
    """The content of a valid signature.

    Attributes:
        index: The position of the block among the thinking blocks of its message.
        total: The number of these blocks.
        digest: The digest of the text.
        prefix: The digest of everything before the message; empty if the signature is not bound to it.
    """

    index: int
    total: int
    digest: bytes
    prefix: bytes = b""

    def covers(self, text: str) -> bool:
        """Whether the text is the signed text."""
        return hmac.compare_digest(self.digest, _digest(text))


@dataclass(frozen=True, slots=True)
class Signer:
    """Signs thinking and checks signatures.

    Example:
        >>> signer = Signer(b"key")
        >>> seal = signer.check(signer.sign("I think", 0, 1))
        >>> seal is not None and seal.covers("I think")
        True
    """

    key: bytes = b"agentflow wire server"
    prefix: bytes = b""

    def bound_to(self, body: JsonObject) -> "Signer":
        """Return a signer that binds its signatures to this request."""
        return replace(self, prefix=prefix_of(body, len(as_list(body.get("messages")))))

    def sign(self, text: str, index: int, total: int) -> str:
        """Return the signature of one thinking block."""
        head = _HEAD.pack(index, total, _digest(text)) + self.prefix
        return base64.b64encode(head + self._mac(head)).decode()

    def check(self, signature: str) -> BlockSeal | None:
        """Return the content of a signature, or None if it was not made with this key."""
        try:
            data = base64.b64decode(signature, validate=True)
        except (binascii.Error, ValueError):
            return None
        head, mac = data[:-_MAC], data[-_MAC:]
        if len(head) < _HEAD.size or not hmac.compare_digest(mac, self._mac(head)):
            return None
        return BlockSeal(*_HEAD.unpack(head[: _HEAD.size]), prefix=head[_HEAD.size :])

    def _mac(self, head: bytes) -> bytes:
        return hmac.digest(self.key, head, hashlib.sha256)


def prefix_of(body: JsonObject, index: int) -> bytes:
    """Return the digest of everything before the message at a position, without cache marks."""
    before: JsonObject = {
        "system": body.get("system"),
        "tools": body.get("tools") or [],
        "messages": as_list(body.get("messages"))[:index],
    }
    return _digest(dump(_unmarked(before)))[:8]


def _unmarked(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {key: _unmarked(inner) for key, inner in sorted(value.items()) if key != "cache_control"}
    return [_unmarked(inner) for inner in value] if isinstance(value, list) else value


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:12]
