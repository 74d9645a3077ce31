"""HTTP clients by event loop: created on first use, closed with the loop.

Rules:

1. A connection belongs to the event loop that opened it. Each loop has one client of each kind, shared by all models.
2. A client is closed automatically when its loop ends (`asyncio.run`, `block()`); `close_clients()` closes it earlier.
"""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar, cast

C = TypeVar("C")


class _LoopClients:
    """The clients of one loop."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self.clients: dict[str, tuple[object, Callable[[Any], Awaitable[object]]]] = {}
        # The loop closes this generator when it ends (`loop.shutdown_asyncgens`), once `_begin` has started it.
        self.end = _end_of(loop)


_clients: dict[int, _LoopClients] = {}
"""The clients by the id of their loop. An id cannot be reused while its entry refers to the loop."""


async def client_of_loop(kind: str, make: Callable[[], C], close: Callable[[C], Awaitable[object]]) -> C:
    """Return the running loop's client of a kind; create it if there is none yet.

    Args:
        kind: The name of the kind; all clients of a kind have the same type.
        make: Creates a client.
        close: Closes a client.
    """
    loop = asyncio.get_running_loop()
    # Nothing is awaited between `get` and the assignment in `_begin`, so a loop never has two entries.
    own = _clients.get(id(loop)) or await _begin(loop)
    entry = own.clients.get(kind)
    if entry is None:
        entry = own.clients[kind] = (make(), close)
    return cast("C", entry[0])


async def close_clients() -> None:
    """Close the connections that models keep open on this event loop.

    The connections are closed when the loop ends (`asyncio.run`, `block()`); call this function to close them earlier.
    Models remain usable and open new connections; running requests on this loop fail.
    """
    own = _clients.get(id(asyncio.get_running_loop()))
    if own is None:
        return
    # Detached first: a request during the closing creates new clients.
    clients, own.clients = own.clients, {}
    async with AsyncExitStack() as closing:  # if one fails to close, the others are still closed
        for client, close in clients.values():
            closing.push_async_callback(close, client)


async def _begin(loop: AbstractEventLoop) -> _LoopClients:
    for mark, other in list(_clients.items()):
        if other.loop.is_closed():  # the loop was closed without ending its generators
            _clients.pop(mark, None)
    own = _clients[id(loop)] = _LoopClients(loop)
    # asyncio registers an async generator at its first step.
    await anext(own.end)
    return own


async def _end_of(loop: AbstractEventLoop) -> AsyncGenerator[None]:
    """Yield once, and clean up with the loop: `asyncio.run` and similar functions close the remaining generators."""
    try:
        yield
    finally:
        await close_clients()
        _clients.pop(id(loop), None)
