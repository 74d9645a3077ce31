"""Two plain HTTP servers: one records requests, and refuses them or sends given events; one keeps its connections open."""

import asyncio
import json
import threading
from types import TracebackType
from typing import Any, Self

from aiohttp import web


class Catcher:
    """Records the bodies of POST requests in `bodies` and their paths in `paths`, and answers each with a 400, or with
    the events.
    """

    def __init__(self, *events: dict[str, Any]) -> None:
        self._events = events
        self.bodies: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.url = ""

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", self._catch)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self._runner.cleanup()

    async def _catch(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            self.bodies.append(await request.json())
            self.paths.append(request.path)
        if self._events:
            lines = [f"data: {json.dumps(event)}\r\n\r\n" for event in self._events]
            return web.Response(text="".join(lines), content_type="text/event-stream")
        return web.json_response({"error": {"message": "caught", "type": "invalid_request_error"}}, status=400)


WORDS = [f"word {number} " for number in range(20)]
_OPENAI = [
    *({"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]} for word in WORDS),
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
]
_ANTHROPIC = [
    {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    *({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in WORDS),
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 20}},
    {"type": "message_stop"},
]


class KeepAlive:
    """A server in a thread that answers both wires, and like the vendors' servers keeps a connection for the next request.

    (The wire servers close each one, so that a test can wait for it.) `together` is how many requests must have arrived
    before they are answered.
    """

    def __init__(self, together: int = 1) -> None:
        self._together = asyncio.Barrier(together)
        self.port = 0
        self.answered = 0
        self.connections = 0
        self._known: set[object] = set()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._quit.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._quit = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_post("/{tail:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._quit.wait()
        await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        self.answered += 1
        self._known.add(request.transport)
        self.connections = len(self._known)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await self._together.wait()
        events: list[dict[str, Any]] = _ANTHROPIC if request.path.endswith("/messages") else _OPENAI
        for event in events:
            named = f"event: {event['type']}\n" if "type" in event else ""
            await response.write(f"{named}data: {json.dumps({'id': 'm', 'model': 'm', **event})}\n\n".encode())
        await response.write(b"" if "type" in events[0] else b"data: [DONE]\n\n")
        await response.write_eof()
        return response
