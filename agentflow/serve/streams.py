"""Event streams (SSE) for clients that may be slow, silent or disconnected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import AbstractContextManager, ExitStack, aclosing
from typing import Any, Final, TypeVar

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from agentflow._support.frozen import EMPTY
from agentflow.serve.event_history import NumberedEvent
from agentflow.serve.limits import Limits
from agentflow.serve.refusals import Refusal
from agentflow.serve.runs import Runs, ServedRun

T = TypeVar("T")

_DISCONNECTED: Final = "the client disconnected"
_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx must pass each event on immediately
]


def sse(event: NumberedEvent) -> bytes:
    """Return an event in the format of server-sent events."""
    head = f"id: {event.id}\n" if event.id else ""
    kind: str = getattr(event.event, "type", "message")
    return b"%sevent: %s\ndata: %s\n\n" % (head.encode(), kind.encode(), event.data)


class EventStreamResponse:
    """Sends events until they end, the client disconnects or stops reading, or nothing has happened for too long.

    Args:
        events: The serialised events; None after each `heartbeat` without one.
        limits: The limits.
        slot: Held while the stream is open; entered before the first byte, so that the request can still be refused.
        on_disconnect: Called if the stream ends before the events: the client disconnects or stops reading, or `idle` passes.
        headers: Further headers.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes | None],
        limits: Limits,
        slot: AbstractContextManager[None],
        on_disconnect: Callable[[], object] = lambda: None,
        headers: Mapping[str, str] = EMPTY,
    ) -> None:
        self._events = events
        self._limits = limits
        self._slot = slot
        self._on_disconnect = on_disconnect
        self._headers = [*_HEADERS, *[(name.encode(), value.encode()) for name, value in headers.items()]]
        self._sending_since: float | None = None  # by the loop's clock; None if no data is being sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response.

        Raises:
            Refusal: No slot is free; nothing was sent.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(self._slot)
            except Refusal:
                self._on_disconnect()
                raise
            await self._exchange(receive, send)

    async def _exchange(self, receive: Receive, send: Send) -> None:
        complete = False
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_disconnected(receive))
        try:
            while (left := self._send_seconds_left()) > 0:
                done, _ = await asyncio.wait([sending, leaving], timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    break
            complete = sending.done() and sending.exception() is None
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            if not complete:
                self._on_disconnect()
        if not complete and not sending.cancelled():
            failure = sending.exception()
            if failure is not None and not isinstance(failure, OSError):  # an OSError: the client is gone
                raise failure

    def _send_seconds_left(self) -> float:
        since, limit = self._sending_since, self._limits.send_seconds
        return limit if since is None else since + limit - asyncio.get_running_loop().time()

    async def _send_all(self, send: Send) -> None:
        silent = 0.0
        loop = asyncio.get_running_loop()
        await send({"type": "http.response.start", "status": 200, "headers": self._headers})
        async with aclosing(self._events) as events:
            async for event in events:
                silent = 0.0 if event is not None else silent + self._limits.heartbeat
                if silent >= self._limits.idle:
                    self._on_disconnect()
                    break
                self._sending_since = loop.time()
                await send({"type": "http.response.body", "body": event or b":\n\n", "more_body": True})
                self._sending_since = None
        await send({"type": "http.response.body", "body": b""})


def run_stream(runs: Runs, run: ServedRun, chunks: AsyncGenerator[bytes | None], *, interrupts: bool = True) -> Any:
    """Return the response that streams a run; with `interrupts`, the run is interrupted if the client disconnects."""

    def leave() -> None:
        if interrupts:
            run.interrupt(_DISCONNECTED)

    return EventStreamResponse(chunks, runs.limits, runs.streams.take(run.owner), leave)


async def disconnected_or(request: Request, run: ServedRun, work: Coroutine[Any, Any, T]) -> T:
    """Wait for work that depends on a run, and return its result; interrupt the run if the client disconnects first.

    Raises:
        Refusal: The client has disconnected.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait([working, leaving], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Refusal(400, "disconnected", "The client has disconnected.")
    finally:
        if not working.done():
            run.interrupt(_DISCONNECTED)
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    """Wait until the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
