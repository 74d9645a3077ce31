"""HTTP clients by event loop: made when they are first used, closed with the loop.

Rules:

1. A connection belongs to the event loop that opened it. Each loop has one client of a kind, whichever model uses it there.
2. A client is closed when its loop ends (`asyncio.run`, `block()`), without being told to; `close_clients()` is for earlier.
"""

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar, cast

__all__ = ["client_of_loop", "close_clients"]

C = TypeVar("C")


class _Kept:
    """The clients of one loop."""

    __slots__ = ("clients", "end", "loop")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.loop = loop
        self.clients: dict[str, tuple[object, Callable[[Any], Awaitable[object]]]] = {}
        self.end = _end_of(loop)


_kept: dict[int, _Kept] = {}
"""By the loop's id, which cannot pass to another one while the loop stands here."""


async def client_of_loop(kind: str, make: Callable[[], C], close: Callable[[C], Awaitable[object]]) -> C:
    """The running loop's client of a kind, made if there is none yet.

    Args:
        kind: Its name; each kind has one type of client.
        make: Makes one.
        close: Closes it.
    """
    loop = asyncio.get_running_loop()
    mine = _kept.get(id(loop)) or await _begin(loop)
    held = mine.clients.get(kind)
    if held is None:
        held = mine.clients[kind] = (make(), close)
    return cast("C", held[0])


async def close_clients() -> None:
    """Close the connections that models keep open on this event loop.

    They are closed when the loop ends (`asyncio.run`, `block()`); call this to close them earlier. Models go on working
    and open new ones; requests that are under way on this loop fail.
    """
    mine = _kept.get(id(asyncio.get_running_loop()))
    if mine is None:
        return
    clients, mine.clients = mine.clients, {}
    async with AsyncExitStack() as closing:  # one that cannot be closed keeps no other open
        for client, close in clients.values():
            closing.push_async_callback(close, client)


async def _begin(loop: AbstractEventLoop) -> _Kept:
    for mark, other in list(_kept.items()):
        if other.loop.is_closed():  # without having ended its generators
            _kept.pop(mark, None)
    mine = _kept[id(loop)] = _Kept(loop)
    await anext(mine.end)
    return mine


async def _end_of(loop: AbstractEventLoop) -> AsyncGenerator[None]:
    """A generator that ends with its loop: `asyncio.run` and its like close what generators are left."""
    try:
        yield
    finally:
        await close_clients()
        _kept.pop(id(loop), None)
