"""Requests of the direct wires, using aiohttp: one session for each event loop, closed with it.

Rules:

1. A connection is reused only if its reply was read to the end; otherwise it is closed at once.
2. Proxy and certificates come from the environment (`environment.py`). Redirects are not followed, since the key would
   be sent to the new address.
3. Cookies and `.netrc` are not used, and no body is read without a limit.
4. If a reused connection turns out to be closed, this does not count as an attempt: the request is sent again on
   another connection. Servers close connections at any time, even directly after a reply that promised to keep the
   connection open (llama.cpp).
5. aiohttp is imported with the first request, in a thread: importing it takes longer than importing the rest of a wire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import urlsplit

import msgspec

from agentflow.models.clients import client_of_loop
from agentflow.models.environment import WrongSettingError, certificates, proxy_for
from agentflow.models.provider_errors import ProviderError

if TYPE_CHECKING:
    import ssl

    import aiohttp

TLS: TypeAlias = "ssl.SSLContext | bool"
"""A context with certificates; True means the certificates of the environment or the system, False means no check."""
NO_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""msgspec's exceptions for bytes that are not JSON, contain half of a surrogate pair, or are nested too deeply."""

_MAX_ERROR_BYTES = 1 << 20
_MAX_HEADER_BYTES = 100 * 1024  # h11's limit for all headers together
# aiohttp allows 128 by default; the vendors' clients (h11) limit only the total size.
_MAX_HEADERS = 1_000
_PATIENCE = 0.25  # seconds: about the time that it takes to open another connection


async def loaded() -> None:
    """Wait until aiohttp is imported."""
    if not _load.cache_info().currsize:
        await asyncio.to_thread(_load)


@cache
def _load() -> None:
    for name in ("aiohttp", "urllib.request"):
        import_module(name)


def failures() -> tuple[type[Exception], ...]:
    """Return the exceptions that a request and its answer may raise in transit."""
    import aiohttp

    return aiohttp.ClientError, OSError, WrongSettingError


async def send(
    url: str,
    body: bytes | None,
    headers: Mapping[str, str],
    *,
    timeout: float,
    connect_timeout: float,
    tls: TLS,
    method: str = "POST",
    repeatable: bool = True,
) -> aiohttp.ClientResponse:
    """Send a request, and wait for the head of its answer.

    Args:
        url: The URL.
        body: The body, as JSON.
        headers: Additional headers, including the key's.
        timeout: Maximum seconds without data, before the head and between chunks of the answer.
        connect_timeout: The longest time to connect, TLS handshake included.
        tls: How the server's certificate is checked.
        method: The HTTP method.
        repeatable: Whether the request may be sent again if a reused connection was closed, although the server may
            have received it.
    """
    import aiohttp

    session = await client_of_loop("aiohttp", _session, aiohttp.ClientSession.close)
    patience, argument = min((connect_timeout, "connect_timeout="), (timeout, "timeout="))
    # A reply may take any time; only the time without data is limited.
    limits = aiohttp.ClientTimeout(total=None, sock_connect=patience, sock_read=timeout)
    # A server that compresses may hold back the chunks of a stream.
    sent = {"content-type": "application/json", "accept-encoding": "identity", **headers}
    # Each repetition uses up one kept connection, so the last attempt opens a new one.
    while True:
        sending = _Sending()
        try:
            return await session.request(
                method,
                url,
                data=body,
                headers=sent,
                timeout=limits,
                ssl=certificates() if tls is True else tls,
                proxy=proxy_for(url),
                allow_redirects=False,
                trace_request_ctx=sending,
            )
        except aiohttp.ConnectionTimeoutError:
            hint = "; a server that expects http:// never answers a TLS handshake" * url.startswith("https:")
            raise aiohttp.ConnectionTimeoutError(
                f"no connection to {_origin(url)} within {patience:g} s ({argument}){hint}"
            ) from None
        except aiohttp.ClientConnectorSSLError as error:
            if "WRONG_VERSION_NUMBER" in str(error):
                raise aiohttp.ClientConnectionError(
                    f"{_origin(url)} does not support TLS; if the server is correct, use http://"
                ) from None
            raise
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            # `close_clients` closes the session, and its running requests should fail.
            if sending.on_kept_connection and repeatable and not session.closed:
                continue
            if isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str):
                # The error contains the received headers, including cookies.
                raise aiohttp.ServerDisconnectedError("the server disconnected within the head of its answer") from None
            raise


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


class _Sending:
    """One attempt to send a request."""

    on_kept_connection = False


def _session() -> aiohttp.ClientSession:
    import aiohttp

    known = aiohttp.ClientSession.__init__.__kwdefaults__ or {}
    # an argument that older versions of aiohttp lack
    limits: Any = {"max_headers": _MAX_HEADERS} if "max_headers" in known else {}
    tracing = aiohttp.TraceConfig()
    tracing.on_connection_reuseconn.append(_note_kept_connection)
    return aiohttp.ClientSession(
        # aiohttp's limit of 100 connections would make the 101st run wait without a message.
        connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60),
        cookie_jar=aiohttp.DummyCookieJar(),
        trace_configs=[tracing],
        max_line_size=_MAX_HEADER_BYTES,
        max_field_size=_MAX_HEADER_BYTES,
        **limits,
    )


async def _note_kept_connection(session: aiohttp.ClientSession, context: Any, params: object) -> None:
    del session, params
    # aiohttp reports this only to a trace; the context is the argument of `session.request`.
    context.trace_request_ctx.on_kept_connection = True


async def finish(response: aiohttp.ClientResponse) -> None:
    """Read the rest after the end mark, so that the connection can be reused; close it if the body does not end in time."""
    try:
        # `readany` returns b"" at the end of the body; only then does aiohttp reuse the connection.
        async with asyncio.timeout(_PATIENCE):
            while await response.content.readany():
                pass
    except failures():  # including a timeout
        response.close()
    else:
        response.release()


async def refusal(response: aiohttp.ClientResponse, head: bytes = b"") -> ProviderError:
    """Return the error that was sent instead of a reply.

    Args:
        response: The answer.
        head: The part of its body that was read already.
    """
    data = bytearray(head)
    try:
        while len(data) < _MAX_ERROR_BYTES and (part := await response.content.readany()):
            data += part
    except failures():
        pass  # the received part is enough for the error
    text = data.decode(errors="replace").strip()
    fields = error_fields(data)
    # A success status with an HTML page or other JSON usually means that api_base is wrong.
    if response.status < 300 and not ("message" in fields or "error" in fields):
        text = f"it answered without a stream of events: {text[:200] or 'an empty body'}"
    if 300 <= response.status < 400:
        text = f"it redirects to {response.headers.get('location')}, which is not followed, since the key would be sent there"
    headers = {name.lower(): value for name, value in response.headers.items()}
    return ProviderError(text or response.reason or "", response.status, headers, fields)


def error_fields(body: bytes | bytearray) -> Mapping[str, object]:
    """Return the fields of the error in an answer's JSON: those in its `error`, else all. Gateways wrap the JSON in a list."""
    try:
        answer: Any = msgspec.json.decode(body)
    except NO_JSON:
        return {}
    outer = _fields(answer[0] if answer and type(answer) is list else answer)
    return _fields(outer.get("error")) or outer


def _fields(value: Any) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}
