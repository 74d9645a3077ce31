"""A local HTTP server that implements a vendor's wire, enforces the vendor's rules, and answers from a script.

Rules:

1. It binds only to 127.0.0.1. Like the vendor, it requires a key, but accepts any.
2. Every request for a reply is recorded before it is checked, even if it is refused. The requests in a batch are only in
   `batches`.
3. A connection serves one request, so an open connection means that an answer is unfinished.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from agentflow.errors import UsageError
from agentflow.testing.wire.batches import BatchPlan, VendorBatches, WireBatch
from agentflow.testing.wire.delivery import WireResponse, error_answer, json_answer, refusal_answer, reply_answer, send
from agentflow.testing.wire.jsonish import JsonObject, dump, parse
from agentflow.testing.wire.reply import HttpAnswer, WireReply, plan_for
from agentflow.testing.wire.request import WireRequest
from agentflow.testing.wire.rules import Dialect, Subject, WireRule, describe_rules, first_refusal
from agentflow.testing.wire.script import Script, ScriptPlayer
from agentflow.testing.wire.signing import Signer
from agentflow.testing.wire.wires import ANTHROPIC, OPENAI, RESPONSES, Wire


class WireServer:
    """A scripted model on a real HTTP wire.

    Create it with `openai` or `anthropic` and enter it with `async with`, or run it in a thread with `in_thread()`.

    Attributes:
        requests: The received requests for a reply, in order, including refused ones.
        other_requests: The requests for embeddings, lists of models, counts of tokens, files and batches.
        rules: The enforced rules.
        dialect: The simulated model generation or compatible vendor.

    Example:
        >>> server = WireServer.openai(["hello"])
        >>> server.rules[0].wire
        'openai'
    """

    def __init__(
        self,
        wires: tuple[Wire, ...],
        script: Script,
        *,
        dialect: Dialect,
        signing_key: bytes | None,
        batches: BatchPlan | None,
    ) -> None:
        self._wires = wires
        self._player = ScriptPlayer(script)
        self._signer = Signer() if signing_key is None else Signer(signing_key)
        self._runner: web.ServerRunner | None = None
        self._port: int | None = None
        self._traffic = _Traffic()
        self._handlers: set[asyncio.Task[object]] = set()
        self._without_thinking: set[str] = set()
        self._batches = VendorBatches(wires[0].name, batches or BatchPlan())
        self.dialect = dialect
        self.requests: list[WireRequest] = []
        self.other_requests: list[WireRequest] = []

    @classmethod
    def openai(cls, script: Script, *, dialect: Dialect | None = None, batches: BatchPlan | None = None) -> Self:
        """Create a server for OpenAI's wires (`POST {base_url}/chat/completions` and `POST {base_url}/responses`).

        Args:
            script: Replies in order, or a function from request to reply.
            dialect: The models or compatible vendor to simulate; None is the strict common subset.
            batches: How batches proceed; None ends them at the first poll.
        """
        return cls((OPENAI, RESPONSES), script, dialect=dialect or Dialect(), signing_key=None, batches=batches)

    @classmethod
    def anthropic(
        cls,
        script: Script,
        *,
        dialect: Dialect | None = None,
        signing_key: bytes | None = None,
        batches: BatchPlan | None = None,
    ) -> Self:
        """Create a server for Anthropic's messages wire (`POST {base_url}/v1/messages`).

        Args:
            script: Replies in order, or a function from request to reply.
            dialect: The model generation to simulate; None is the strict common subset.
            signing_key: The key for signing thinking; servers with the same key accept each other's signatures.
            batches: How batches proceed; None ends them at the first poll.
        """
        return cls((ANTHROPIC,), script, dialect=dialect or Dialect(), signing_key=signing_key, batches=batches)

    @property
    def rules(self) -> tuple[WireRule, ...]:
        """The rules that this server enforces, in order."""
        return tuple([rule for wire in self._wires for rule in wire.rules])

    def describe_rules(self) -> str:
        """Format the rules as a Markdown table."""
        return describe_rules(self.rules)

    @property
    def batches(self) -> list[WireBatch]:
        """The batches that clients created, in order."""
        return self._batches.list

    @property
    def base_url(self) -> str:
        """The base address for clients (`api_base`): OpenAI's ends in `/v1`, Anthropic's has no path.

        Raises:
            UsageError: The server is not running.
        """
        if self._port is None:
            raise UsageError("this wire server is not running. Enter it with `async with`, or start its in_thread()")
        return f"http://127.0.0.1:{self._port}{self._wires[0].prefix}"

    @property
    def url(self) -> str:
        """The full address for requests (OpenAI's: for chat completions).

        Raises:
            UsageError: The server is not running.
        """
        return self.base_url + self._wires[0].path

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return self._traffic.open

    async def wait_closed_connections(self) -> None:
        """Wait until no connection is open and no answer is in progress. Limit the wait with `asyncio.timeout`.

        Must be awaited in the server's event loop (with `in_thread()`, poll `open_connections` instead).
        """
        await self._traffic.wait(lambda: not self._traffic.open and not self._traffic.busy)

    async def wait_requests(self, count: int = 1) -> None:
        """Wait until this many requests have arrived. Limit the wait with `asyncio.timeout`.

        Must be awaited in the server's event loop.
        """
        await self._traffic.wait(lambda: len(self.requests) >= count)

    def assert_done(self) -> None:
        """Fail unless every reply was used, without errors.

        Raises:
            AssertionError: There were unused or too few replies, or the script failed.
        """
        self._player.check()

    # -- starting and stopping

    async def start(self) -> Self:
        """Bind a free port of 127.0.0.1 and listen.

        Raises:
            UsageError: The server is already running.
        """
        if self._runner is not None:
            raise UsageError(f"this wire server is already running at {self.base_url}")
        server = _CountingServer(self._handle, self._traffic)
        runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self._runner = runner
        self._port = int(runner.addresses[0][1])
        return self

    async def stop(self) -> None:
        """Interrupt answers in progress, and close the server; stopping it again does nothing."""
        runner, self._runner, self._port = self._runner, None, None
        if runner is None:
            return
        for task in tuple(self._handlers):
            task.cancel()
        await asyncio.gather(*self._handlers, return_exceptions=True)
        await runner.cleanup()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def in_thread(self) -> "WireServerThread":
        """Return the same server with an event loop in a thread, for synchronous code.

        Example:
            >>> with WireServer.openai(["hello"]).in_thread() as server:
            ...     server.base_url.startswith("http://127.0.0.1:")
            True
        """
        return WireServerThread(self)

    # -- a request

    async def _handle(self, raw: web.BaseRequest) -> web.StreamResponse:
        task = asyncio.current_task()
        if task is not None:
            self._handlers.add(task)
            task.add_done_callback(self._handlers.discard)
        self._traffic.count(answers=1)
        try:
            return await self._serve(raw, await raw.content.read())
        finally:
            self._traffic.count(answers=-1)

    async def _serve(self, raw: web.BaseRequest, data: bytes) -> web.StreamResponse:
        found = next((wire for wire in self._wires if raw.method == "POST" and raw.path.endswith(wire.path)), None)
        wire = found or self._wires[0]
        request = WireRequest(
            wire=wire.name,
            index=len(self.requests),
            body={},
            headers={name.lower(): value for name, value in raw.headers.items()},
        )
        subject = self._subject(request, data)
        if found is None:
            answered = await self._batch_answer(raw, request, data)
            return await send(answered or self._answer_other(raw, request, subject), raw, request)
        self.requests.append(request)
        self._traffic.count()
        try:
            return await send(await self._answer(wire, request, subject), raw, request)
        except (asyncio.CancelledError, ConnectionError):
            # `stop` clears `_runner` before it cancels the answers.
            request.ending = "server stopped" if self._runner is None else "client left"
            raise

    async def _batch_answer(self, raw: web.BaseRequest, request: WireRequest, data: bytes) -> WireResponse | None:
        """Answer a request about batches; return None for other requests."""

        async def play(path: str, body: JsonObject, headers: Mapping[str, str]) -> tuple[int, JsonObject]:
            wire = next((wire for wire in self._wires if wire.prefix + wire.path == path), self._wires[0])
            item = WireRequest(wire=wire.name, index=len(self.requests), body={}, headers=headers)
            self.requests.append(item)
            response = await self._answer(wire, item, self._subject(item, dump(body).encode()))
            item.status, item.ending = response.status, "complete"
            return response.status, _object(b"".join(response.writes)) or {}

        answered = await self._batches.answer(raw.method, raw.path, raw.query, request.headers, data, play, time.time())
        if answered is None:
            return None
        self.other_requests.append(request)
        answer_body = answered.body
        if isinstance(answer_body, HttpAnswer):
            return error_answer(self._wires[0], answer_body, request, self.dialect, 0)
        if not isinstance(answer_body, bytes):
            return json_answer(200, answer_body)
        headers = {"content-type": "application/x-jsonl"}
        # Before a halt, the header announces one byte more than is sent, so that the client notices the interruption.
        length = len(answer_body) if answered.halt is None else len(answer_body) + 1
        return WireResponse(status=200, headers=headers, writes=[answer_body], length=length, halt=answered.halt)

    def _answer_other(self, raw: web.BaseRequest, request: WireRequest, subject: Subject) -> WireResponse:
        """Answer a request to another endpoint, without consuming a scripted reply."""
        for (method, path), body in self._wires[0].other_routes.items():
            if raw.method == method and raw.path.endswith(path):
                self.other_requests.append(request)
                answer = body(request, subject.tokens)
                if isinstance(answer, HttpAnswer):
                    return error_answer(self._wires[0], answer, request, self.dialect, subject.tokens)
                return json_answer(200, answer)
        return self._unknown_path(raw, request)

    def _unknown_path(self, raw: web.BaseRequest, request: WireRequest) -> WireResponse:
        paths = " and ".join(f"POST {wire.prefix}{wire.path}" for wire in self._wires)
        message = f"Invalid URL ({raw.method} {raw.path}); this server takes {paths}"
        missing = HttpAnswer(status=404, message=message)
        return error_answer(self._wires[0], missing, request, self.dialect, 0)

    async def _answer(self, wire: Wire, request: WireRequest, subject: Subject) -> WireResponse:
        refusal = first_refusal(wire.rules, subject)
        if refusal is not None:
            request.refused, request.rule = refusal.message, refusal.rule
            return refusal_answer(wire, refusal, request, self.dialect)
        try:
            request.reply = await self._player.answer(request)
            plan = plan_for(request.reply)
            if plan.http is not None:
                return error_answer(wire, plan.http, request, self.dialect, subject.tokens)
            self._note_missing_thinking(wire, request, plan.reply)
            signer = self._signer.bound_to(request.body) if self.dialect.binds else self._signer
            return reply_answer(wire, plan, request, signer, self.dialect)
        except Exception as error:
            self._player.problems.append(f"{type(error).__name__}: {error}")
            failed = HttpAnswer(status=500, message=f"wire script: {type(error).__name__}: {error}")
            return error_answer(wire, failed, request, self.dialect, 0)

    def _note_missing_thinking(self, wire: Wire, request: WireRequest, reply: WireReply) -> None:
        """Record calls that are sent without the requested thinking, so that later requests need not return any."""
        wanted = request.thinking_on or wire.name == "openai"
        if wanted and not reply.thoughts and reply.redacted is None:
            self._without_thinking |= {wire.call_id(request, n, call) for n, call in enumerate(reply.calls)}

    def _subject(self, request: WireRequest, data: bytes) -> Subject:
        body = _object(data)
        request.body = body or {}
        return Subject(
            wire=request.wire,
            body=request.body,
            headers=request.headers,
            dialect=self.dialect,
            signer=self._signer,
            size=len(data),
            valid_json=body is not None,
            without_thinking=frozenset(self._without_thinking),
        )


class WireServerThread:
    """A wire server in a thread with its own event loop. Use it as a context manager, or call `start` and `stop`."""

    def __init__(self, server: WireServer) -> None:
        self._server = server
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._quit: asyncio.Event | None = None
        self._error: Exception | None = None

    def start(self) -> WireServer:
        """Start the thread and return the server once it is listening.

        Raises:
            UsageError: The thread was started before.
        """
        if self._thread is not None:
            raise UsageError("this wire server's thread was already started. Create a new server for another thread")
        self._thread = threading.Thread(target=self._run, name="wire-server", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error
        return self._server

    def stop(self) -> None:
        """Stop the server, and wait for its thread; stopping it again does nothing."""
        if self._loop is not None and self._quit is not None and self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._quit.set)
            self._thread.join()

    def __enter__(self) -> WireServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # raised by `start`
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._quit = asyncio.get_running_loop(), asyncio.Event()
        async with self._server:
            self._ready.set()
            await self._quit.wait()


class _Traffic:
    """Counts connections and answers in progress, and wakes tasks that wait for a count."""

    def __init__(self) -> None:
        self.open = 0
        self.busy = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def count(self, *, connections: int = 0, answers: int = 0) -> None:
        self.open += connections
        self.busy += answers
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, reached: Callable[[], bool]) -> None:
        while not reached():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)


class _CountingServer(web.Server):
    """aiohttp's low-level server, which reports each connection made and lost."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Coroutine[object, object, web.StreamResponse]],
        traffic: _Traffic,
    ) -> None:
        super().__init__(handler, handler_cancellation=True, access_log=None)  # a client that leaves cancels its answer
        self._traffic = traffic

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._traffic.count(connections=1)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._traffic.count(connections=-1)


def _object(data: bytes) -> JsonObject | None:
    try:
        value = parse(data)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
