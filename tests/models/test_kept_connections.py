"""Kept connections that a server has closed without notice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from wired import answered

from agentflow.errors import ModelError
from agentflow.models.openai_wire import OpenAIWire

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\nconnection: keep-alive\r\n\r\n"
    + b"%x\r\n%s\r\n0\r\n\r\n" % (len(EVENT), EVENT)
)


@asynccontextmanager
async def server(replies: int) -> AsyncIterator[tuple[str, list[int]]]:
    """Answer this many times on each connection, then close it on the next request; count the requests."""
    asked: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(0)
        connection = len(asked) - 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(int(length.partition(b":")[2]))
                asked[connection] += 1
                if asked[connection] > replies:
                    return
                writer.write(ANSWER)
                await writer.drain()
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1", asked


async def test_a_kept_connection_that_is_closed_costs_no_attempt(closed_clients: None) -> None:
    """The request is sent again on a new one, even without retries."""
    async with server(1) as (url, asked):
        model = OpenAIWire("m", api_base=url, api_key="k", retries=0)
        assert [await answered(model) for _ in range(3)] == ["hi"] * 3
        assert asked == [2, 2, 1]


async def test_a_new_connection_that_is_closed_is_a_failure(closed_clients: None) -> None:
    """A request is never sent twice beyond `retries=`."""
    async with server(0) as (url, asked):
        with pytest.raises(ModelError) as caught:
            await answered(OpenAIWire("m", api_base=url, api_key="k", retries=0))
        assert caught.value.retryable
        assert asked == [1]
