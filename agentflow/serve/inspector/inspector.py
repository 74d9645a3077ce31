"""`Inspector`: an ASGI application that shows recorded runs, also while they run, and handles breakpoints.

Rules:

1. It reads the logs that recorders write, so a slow browser never slows a run.
2. It requires its token and an expected host name (`guard.py`).
3. A browser has one connection for updates: to the run on display, the list and the paused runs.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from agentflow._support.json_text import read_json_text
from agentflow.errors import StoreError, UsageError
from agentflow.plugins.debugger.pause import Pause
from agentflow.recording.keeping import LogStore
from agentflow.serve.guard import LOOPBACK
from agentflow.serve.inspector.comparing import compare
from agentflow.serve.inspector.evaluations import Evaluations
from agentflow.serve.inspector.guard import PageGuard
from agentflow.serve.inspector.logs import Logs, LogSource
from agentflow.serve.inspector.one_file import PAGE, page_with, script_of
from agentflow.serve.inspector.pauses import Pauses
from agentflow.serve.server import Server, open_socket
from agentflow.serve.web_chat import TYPES

_INTERVAL = 0.25
"""Seconds between two checks of the files."""
_HEARTBEAT = 15.0
_PATIENCE = 1.0
"""Seconds to spend on reading new logs for one answer; the page requests the rest later."""
_MAX_BODY = 16_000_000  # bytes of a request body
_MAX_UPDATE = 1_000_000  # bytes of lines in one update


class Inspector:
    """Shows recorded runs on a web page; an ASGI application.

    Args:
        runs: Run logs, and folders and stores that a `Recorder` writes to; a store may be given as `"sqlite:///runs.db"`.
        token: The token that a browser needs; random by default.
        hosts: The host names under which it is reachable, without ports; by default the loopback names.

    Attributes:
        token: The token, for links.

    Raises:
        UsageError: A file does not exist, or the token is too short.
        StoreError: A database does not exist.

    Example:
        >>> inspector = Inspector("runs")
        >>> async with inspector.serving() as link:
        ...     print(link.partition("=")[0])
        http://127.0.0.1:.../?token
    """

    def __init__(self, *runs: str | Path | LogStore, token: str | None = None, hosts: Sequence[str] = LOOPBACK) -> None:
        if token is not None and len(token) < 16:
            raise UsageError(
                "Inspector(token=...): the token must have at least 16 characters, so that it cannot be guessed."
            )
        if isinstance(hosts, str):
            raise UsageError(f"Inspector(hosts={hosts!r}): pass a list of names, hosts=[{hosts!r}].")
        self.token = token or secrets.token_urlsafe(32)
        self._logs = Logs(runs)
        self._pauses = Pauses()
        self._results = Evaluations(self._logs.folders)
        routes = [
            Route("/", self._index),
            Route("/page/{name}", self._file),
            Route("/api/runs", self._runs),
            Route("/api/runs/{id}", self._run),
            Route("/api/runs/{id}/export", self._export),
            Route("/api/diff/{one}/{other}", self._diff),
            Route("/api/evaluations", self._evaluations),
            Route("/api/evaluations/{id}", self._evaluation),
            Route("/api/news", self._news),
            Route("/api/pauses/{id}", self._decide, methods=["POST"]),
        ]
        self._app = PageGuard(Starlette(routes=routes), self.token, hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        await self._app(scope, receive, send)

    def link(self, base: str) -> str:
        """Return a link that contains the token.

        Args:
            base: The base URL, such as `"http://127.0.0.1:8000/inspect"`.
        """
        return f"{base.rstrip('/')}/?token={quote(self.token)}"

    async def show_pause(self, pause: Pause) -> None:
        """Handle a paused run on the page: `Breakpoint(PreActing, ask=inspector.show_pause)`."""
        await self._pauses.show(pause)

    @asynccontextmanager
    async def serving(self, *, host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[str]:
        """Serve in this event loop while the block runs.

        Args:
            host: The address to listen on.
            port: The port; 0 chooses a free one.

        Raises:
            UsageError: The port is in use, or the host is not an address of this machine.
        """
        listening = await asyncio.to_thread(open_socket, "inspector", host, port)
        server = Server(uvicorn.Config(self, log_config=None, lifespan="off", server_header=False, proxy_headers=False))
        running = asyncio.ensure_future(server.serve_on(listening))
        try:
            await server.listens.wait()
            if running.done():  # startup failed
                await running
            yield self.link(f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}")
        finally:
            server.should_exit = server.force_exit = True  # the streams of updates never end by themselves
            await running
            listening.close()

    # ---- routes

    async def _index(self, request: Request) -> Response:
        return FileResponse(PAGE / "index.html")

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _FILES:
            raise HTTPException(404)
        return FileResponse(script_of(name), media_type=TYPES[Path(name).suffix])

    async def _runs(self, request: Request) -> Response:
        text = request.query_params.get("text")
        if text is not None:
            return JSONResponse(await asyncio.to_thread(self._logs.search, text))
        found = await asyncio.to_thread(self._logs.runs, _PATIENCE)
        return JSONResponse([run.as_dict() for run in found], headers={"x-left": str(self._logs.left)})

    async def _source(self, run_id: str) -> LogSource:
        source = await asyncio.to_thread(self._logs.source, run_id)
        if source is None:
            raise HTTPException(404, "No such run.")
        if source.problem:
            raise HTTPException(409, source.problem)
        return source

    async def _run(self, request: Request) -> Response:
        source = await self._source(request.path_params["id"])
        lines, end = await asyncio.to_thread(source.lines)
        return PlainTextResponse(lines, headers={"x-end": str(end), "x-torn": str(source.torn)})

    async def _diff(self, request: Request) -> Response:
        one, other = [await self._source(request.path_params[name]) for name in ("one", "other")]
        try:
            return JSONResponse(await asyncio.to_thread(lambda: compare(one.lines()[0], other.lines()[0])))
        except StoreError as error:
            return PlainTextResponse(str(error), 409)

    async def _export(self, request: Request) -> Response:
        source = await self._source(request.path_params["id"])
        lines, _ = await asyncio.to_thread(source.lines)
        run = source.run.run
        page = await asyncio.to_thread(page_with, [(run, lines, source.torn)])
        name = "".join(c if c.isalnum() or c in "-_" else "_" for c in run)[:80]
        headers = {"content-disposition": f'attachment; filename="{name or "run"}.html"'}
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)

    async def _evaluations(self, request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(self._results.rows))

    async def _evaluation(self, request: Request) -> Response:
        name, baseline = request.path_params["id"], request.query_params.get("baseline", "")
        logs = {run.run: run.id for run in await asyncio.to_thread(self._logs.runs, _PATIENCE) if not run.problem}
        found = await asyncio.to_thread(self._results.one, name, baseline, logs)
        if found is None:
            raise HTTPException(404, "No such evaluation.")
        return PlainTextResponse(found["problem"], 409) if found["problem"] else JSONResponse(found)

    async def _decide(self, request: Request) -> Response:
        data = await _body(request)
        try:
            return JSONResponse(self._pauses.act(request.path_params["id"], data))
        except UsageError as error:
            return PlainTextResponse(str(error), 409)

    # ---- updates

    async def _news(self, request: Request) -> Response:
        run, begin = request.query_params.get("run"), request.headers.get("last-event-id")
        begin = begin or request.query_params.get("from", "0")
        if not begin.isdecimal():
            raise HTTPException(400, "from= must be a number of bytes.")
        source = None if run is None else await self._source(run)
        headers = {"x-accel-buffering": "no"}  # nginx must pass each update on immediately
        return StreamingResponse(self._updates(source, int(begin)), media_type="text/event-stream", headers=headers)

    async def _updates(self, source: LogSource | None, end: int) -> AsyncIterator[str]:
        """Yield updates as server-sent events; a slow reader gets larger ones."""
        stamp: int | None = None  # the first update includes the list, which may have changed since the page loaded it
        version, silent, damaged = -1, 0.0, False
        yield ":\n\n"  # a comment, so that the headers are sent immediately
        while True:
            updates: list[str] = []
            if source is not None:
                lines, end = await asyncio.to_thread(source.lines, end)
                updates += [_event({"lines": piece}, end) for piece in _portions(lines)]
                if source.problem and not damaged:
                    damaged = True
                    updates.append(_event({"problem": source.problem}, end))
            elif (now := await asyncio.to_thread(self._logs.stamp)) != stamp:
                stamp = now
                updates.append(_event({"runs": True}, end))
            if version != self._pauses.version:
                version = self._pauses.version
                updates.append(_event({"pauses": self._pauses.shown()}, end))
            silent = 0.0 if updates else silent + _INTERVAL
            for update in updates:
                yield update
            if silent >= _HEARTBEAT:
                silent = 0.0
                yield ":\n\n"
            await self._pauses.changed(version, _INTERVAL)


def _event(data: object, end: int) -> str:
    return f"id: {end}\ndata: {json.dumps(data)}\n\n"


def _portions(lines: bytes) -> list[str]:
    """Split lines into portions of bounded size."""
    found: list[str] = []
    while lines:
        end = lines.find(b"\n", _MAX_UPDATE) + 1 or len(lines)  # whole lines only
        found.append(lines[:end].decode("utf-8", "replace"))
        lines = lines[end:]
    return found


async def _body(request: Request) -> dict[str, Any]:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "The body must be application/json.")
    raw = b""
    async for piece in request.stream():
        raw += piece
        if len(raw) > _MAX_BODY:
            raise HTTPException(413, f"The body must not exceed {_MAX_BODY} bytes.")
    try:
        data: object = read_json_text(raw)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise HTTPException(400, "The body must be a JSON object.")
    return cast("dict[str, Any]", data)


_FILES = frozenset(path.name for path in PAGE.iterdir()) - {"index.html"} | {"dom.js"}
