"""Connect to a server at a URL with the SDK's streamable HTTP, with a size limit for answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from typing_extensions import override

from agentflow.mcp.sdk import httpx2, streamable_http_client


@asynccontextmanager
async def http_transport(
    url: str, headers: Mapping[str, str], auth: Any, connect_timeout: float, limit: int
) -> AsyncGenerator[Any, None]:
    """Open the streams to a server at a URL.

    Args:
        url: The server's URL.
        headers: The headers of each request.
        auth: The SDK's or httpx2's authentication, such as `OAuthClientProvider`.
        connect_timeout: Seconds to wait for a connection.
        limit: The maximum number of bytes of an answer that is not a stream, and of one event of a stream.
    """
    # No read timeout: a stream may be silent while a tool works, and tools have their own time limit.
    timeout = httpx2.Timeout(connect_timeout, read=None)

    async def limit_body(response: httpx2.Response) -> None:
        # The SDK limits only the events of a stream (`max_sse_event_size`).
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            response.stream = _BoundedStream(response.stream, limit)

    client = httpx2.AsyncClient(
        headers=dict(headers), auth=auth, timeout=timeout, event_hooks={"response": [limit_body]}
    )
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=limit) as streams:
        yield streams


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: Any, limit: int) -> None:
        self._inner = inner
        self._limit = limit

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        read = 0
        async for chunk in self._inner:
            read += len(chunk)
            if read > self._limit:
                raise httpx2.ReadError(f"an answer of more than {self._limit} bytes")
            yield chunk

    @override
    async def aclose(self) -> None:
        await self._inner.aclose()
