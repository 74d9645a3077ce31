"""A server at an address: the SDK's streamable HTTP, with a longest answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from typing_extensions import override

from agentflow.mcp.library import httpx2, streamable_http_client

__all__ = ["http_transport"]


def http_transport(
    url: str, headers: Mapping[str, str], auth: Any, connect_timeout: float, most: int
) -> AbstractAsyncContextManager[Any]:
    """The streams to a server at an address.

    Args:
        url: Where it is.
        headers: Sent with each request.
        auth: The SDK's or httpx2's authentication, such as `OAuthClientProvider`.
        connect_timeout: Seconds to get a connection.
        most: Most bytes of an answer that comes in one piece, and of one event of a stream.
    """
    return _connected(url, headers, auth, connect_timeout, most)


@asynccontextmanager
async def _connected(
    url: str, headers: Mapping[str, str], auth: Any, connect_timeout: float, most: int
) -> AsyncGenerator[Any, None]:
    # A stream may be silent for as long as a tool works; what a tool may take is counted elsewhere.
    timeout = httpx2.Timeout(connect_timeout, read=None)
    transport = _Bounded(httpx2.AsyncHTTPTransport(), most)
    async with (
        httpx2.AsyncClient(headers=dict(headers), auth=auth, timeout=timeout, transport=transport) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=most) as streams,
    ):
        yield streams


class _Bounded(httpx2.AsyncBaseTransport):
    """Refuses answers in one piece that are too long."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, most: int) -> None:
        self._inner = inner
        self._most = most

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _BoundedStream(response.stream, self._most)
        return response

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: Any, most: int) -> None:
        self._inner = inner
        self._most = most

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for chunk in self._inner:
            read += len(chunk)
            if read > self._most:
                raise httpx2.ReadError(f"an answer of more than {self._most} bytes")
            yield chunk

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()
