"""`fetch`: download the content of an address, within limits.

Rules:

1. `fetch` runs only if a program calls it: an address in a message is sent to the provider unchanged.
2. Each hop is checked (scheme, address, size), and a redirect from https to http is never followed.
3. No proxy, no cookies, no `.netrc`; the caller's headers are sent only to the host of the given address.
4. The unpacked size is counted while reading; the size that a server declares only allows an earlier refusal.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

import aiohttp
from yarl import URL

from agentflow._support.media import MAX_BYTES, in_bytes, name_in, sniff, type_of_bytes, type_of_name
from agentflow.errors import FetchError, UsageError
from agentflow.models.addresses import CheckedResolver, RefusedAddressError, check_literal
from agentflow.vocabulary.messages import DataBlock

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_CHUNK_SIZE: Final = 1 << 16
# Servers send these types for files of unknown types.
_GENERIC_TYPES: Final = frozenset({"", "application/octet-stream", "binary/octet-stream", "text/plain"})


async def fetch(
    url: str,
    media_type: str | None = None,
    *,
    name: str | None = None,
    types: Collection[str] | None = None,
    max_bytes: int = MAX_BYTES,
    timeout: float = 30.0,
    redirects: int = 5,
    private: bool = False,
    headers: Mapping[str, str] | None = None,
) -> DataBlock:
    """Download the content of an address into a block.

    Args:
        url: `http://` or `https://`.
        media_type: The MIME type; by default detected from the first bytes, then from the server's header, then from
            the name.
        name: A file name to show; by default the name in the address.
        types: Patterns of accepted types, such as `["image/*", "application/pdf"]`; None accepts any.
        max_bytes: The maximum size, unpacked.
        timeout: The limit for the whole download, in seconds.
        redirects: The maximum number of redirects.
        private: Whether non-public addresses are allowed: loopback, private, link-local (at which clouds serve
            credentials), and so on. It should stay off for addresses that a model or a user chose.
        headers: HTTP headers to send, to the host of `url` only.

    Raises:
        FetchError: The download failed or was refused: address, size, type, status.
        UsageError: `url` is not an HTTP address.

    Example:
        >>> try:
        ...     block = await fetch("http://127.0.0.1/secret", types=["image/*"])
        ... except FetchError as error:
        ...     print(error.retryable)
        False
    """
    parsed = _check_url(url)
    read = partial(_block, media_type=media_type, name=name, types=types, max_bytes=max_bytes)
    try:
        block = await _follow(parsed, read, headers or {}, redirects, timeout, private=private)
    except FetchError:
        raise
    # The order matters: `TimeoutError` is an `OSError`.
    except TimeoutError as error:
        raise FetchError(url, f"it took longer than {timeout:g} s", retryable=True) from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # aiohttp wraps the resolver's error in a ClientConnectorError.
        cause = error.__cause__ if isinstance(error.__cause__, RefusedAddressError) else error
        if isinstance(cause, RefusedAddressError):
            raise FetchError(url, f"{cause}; allow such addresses with private=True") from error
        # aiohttp's errors of connections are `OSError`s; those of invalid URLs and answers are not.
        raise FetchError(url, str(error) or type(error).__name__, retryable=isinstance(error, OSError)) from error
    if block is None:
        raise FetchError(url, f"it redirects more than {redirects} times")
    return block


async def _follow(
    target: URL,
    read: Callable[[aiohttp.ClientResponse, URL], Awaitable[DataBlock]],
    headers: Mapping[str, str],
    redirects: int,
    timeout: float,
    *,
    private: bool,
) -> DataBlock | None:
    """Read the first answer that is not a redirect; return None if there are too many redirects."""
    resolver = None if private else CheckedResolver()
    async with aiohttp.ClientSession(
        # Without a cache and kept connections, the address of each hop is resolved and checked again.
        connector=aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False, force_close=True),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=timeout),
        trust_env=False,
        auto_decompress=False,  # `_unpack` does this within the limit of size
    ) as session:
        sent: Mapping[str, str] = {"accept-encoding": "identity", **headers}
        for _ in range(redirects + 1):
            # aiohttp calls no resolver for a literal address.
            if not private:
                check_literal(target.host or "")
            async with session.get(target, allow_redirects=False, headers=sent) as answer:
                if answer.status not in _REDIRECTS or "location" not in answer.headers:
                    return await read(answer, target)
                target, sent = _next(target, answer, sent)
    return None


def _check_url(url: str) -> URL:
    try:
        parsed = URL(url)
    except ValueError as error:
        raise UsageError(
            f"fetch({url!r}): this is not a valid address ({error}). Pass a URL such as "
            "'https://example.com/image.png'."
        ) from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise UsageError(
            f"fetch({url!r}): an address must begin with https:// or http://. For a file, use DataBlock.from_path."
        )
    if parsed.user or parsed.password:
        raise UsageError("fetch: the address contains a user or a password; pass it in headers={'authorization': ...}.")
    return parsed


def _next(target: URL, answer: aiohttp.ClientResponse, sent: Mapping[str, str]) -> tuple[URL, Mapping[str, str]]:
    try:
        redirect = target.join(URL(answer.headers["location"]))
    except ValueError as error:
        raise FetchError(str(target), "it redirects to something that is not an address") from error
    if redirect.scheme not in ("http", "https") or not redirect.host or redirect.user or redirect.password:
        raise FetchError(
            str(target),
            f"it redirects to {redirect.scheme or 'something that is not an address'}, which is not followed",
        )
    if target.scheme == "https" and redirect.scheme == "http":
        raise FetchError(str(target), "it redirects from https to http, which is not followed")
    return redirect, sent if redirect.origin() == target.origin() else {"accept-encoding": "identity"}


async def _block(
    answer: aiohttp.ClientResponse,
    target: URL,
    media_type: str | None,
    name: str | None,
    types: Collection[str] | None,
    max_bytes: int,
) -> DataBlock:
    url = str(target)
    if answer.status != 200:
        raise FetchError(url, f"the server answered {answer.status} {answer.reason}", retryable=answer.status >= 500)
    if (declared := answer.content_length) is not None and declared > max_bytes:
        raise _too_large(url, max_bytes)
    data = bytearray()
    async for chunk in _unpack(answer, url, max_bytes):
        data += chunk
        if len(data) > max_bytes:
            raise _too_large(url, max_bytes)
    detected = media_type or _type(bytes(data), answer.content_type, name_in(url))
    if types is not None and not any(fnmatchcase(detected, pattern) for pattern in types):
        raise FetchError(url, f"it is {detected}, and types= allows {', '.join(types)}")
    if not data:
        raise FetchError(url, "it is empty")
    return DataBlock.from_bytes(bytes(data), detected, name=name or name_in(url), max_bytes=None)


def _type(data: bytes, declared: str, name: str | None) -> str:
    """Return the type of content: from its first bytes, then from the server's header unless that is generic."""
    known = sniff(data)
    if known is not None:
        return known
    if declared not in _GENERIC_TYPES:
        return declared
    return (type_of_name(name) if name else None) or type_of_bytes(data)


async def _unpack(answer: aiohttp.ClientResponse, url: str, limit: int) -> AsyncIterator[bytes]:
    """Yield the content in chunks; packed content is never unpacked beyond the limit."""
    packed = answer.headers.get("content-encoding", "identity").strip().lower()
    if packed in ("", "identity"):
        async for chunk in answer.content.iter_chunked(_CHUNK_SIZE):
            yield chunk
        return
    if packed not in ("gzip", "deflate"):
        raise FetchError(url, f"it is packed with {packed[:20]}, which was not requested")
    # 47: zlib detects a header of gzip or zlib by itself (32 + 15).
    wbits = 47 if packed == "gzip" else zlib.MAX_WBITS
    unpacking: Any = None
    try:
        async for chunk in answer.content.iter_chunked(_CHUNK_SIZE):
            rest = chunk
            while rest:
                if unpacking is None or unpacking.eof:  # gzip may have several members (RFC 1952, section 2.2)
                    unpacking = zlib.decompressobj(wbits)
                # One byte above the limit shows that it was exceeded; 1 MB at a time, so that a small packet cannot
                # fill the memory.
                yield unpacking.decompress(rest, min(limit + 1, 1 << 20))
                rest = unpacking.unconsumed_tail or unpacking.unused_data
    except zlib.error as error:
        raise FetchError(url, f"its content is not valid {packed}") from error
    # Without a declared length, a connection that breaks off looks like the end.
    if unpacking is not None and not unpacking.eof:
        raise FetchError(url, f"the server ended the answer before the end of the {packed} data", retryable=True)


def _too_large(url: str, limit: int) -> FetchError:
    return FetchError(url, f"it has more than the {in_bytes(limit)} that max_bytes= allows")
