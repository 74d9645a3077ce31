"""Loopback websocket servers that speak the realtime protocols, scripted and strict: a model that hears and speaks, offline.

Rules:

1. It binds only to 127.0.0.1. It requires a key, and accepts any.
2. It keeps the vendor's state: the input buffer, the conversation, the reply in progress. An event that does not fit is refused
   with the vendor's error, and is in `refused`.
3. It hears speech in audio that is not silent, and the end of a turn after 200 ms of silence.
4. A reply's audio is a tone of 40 ms for each character of its text.
"""

from __future__ import annotations

import asyncio
import math
import struct
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeAlias

from aiohttp import WSMsgType, web

from agentflow._support.json_text import read_json_text
from agentflow.testing.wire.jsonish import dump
from agentflow.testing.wire.reply import Say, WireReply

__all__ = ["RealtimePeer", "RealtimeServer", "Spoken", "tone"]

# `Any`: events contain JSON.
Event = dict[str, Any]

Spoken: TypeAlias = "WireReply | str | Callable[[RealtimePeer], Awaitable[None]]"
"""A reply, or a function that sends anything over a connection instead of one."""

_PER_CHARACTER: Final = 0.04
_SILENCE: Final = 0.2
_FRAME: Final = 0.02


def tone(seconds: float, rate: int = 24_000) -> bytes:
    """Return a tone as 16-bit PCM, mono, which a realtime server hears as speech.

    Example:
        >>> len(tone(0.5))
        24000
    """
    return b"".join(struct.pack("<h", int(8000 * math.sin(n / 8)) or 1) for n in range(int(seconds * rate)))


class RefusedEventError(Exception):
    """A client's event that the vendor would refuse.

    Args:
        message: The vendor's text.
        code: The vendor's code.
    """

    def __init__(self, message: str, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.code = code


class RealtimeServer:
    """A scripted model that hears and speaks, on a websocket. Create it with `openai`, and enter it with `async with`.

    Attributes:
        received: The events of all clients, in order.
        sent: The events of the server.
        refused: The vendor's errors for what clients sent.
        contexts: What the model was shown for each reply: the role or type of each item, and its text.

    Example:
        >>> RealtimeServer.openai(["Hello."], heard=["Hi"]).refused
        []
    """

    def __init__(self, peer: type[RealtimePeer], script: Sequence[Spoken], heard: Sequence[str | None]) -> None:
        self._peer = peer
        self._runner: web.AppRunner | None = None
        self._port = 0
        self.script: deque[Spoken] = deque(script)
        self.heard: deque[str | None] = deque(heard)
        self.peers: list[RealtimePeer] = []
        self.received: list[Event] = []
        self.sent: list[Event] = []
        self.refused: list[str] = []
        self.contexts: list[list[tuple[str, str]]] = []

    @classmethod
    def openai(cls, script: Sequence[Spoken], *, heard: Sequence[str | None] = ()) -> Self:
        """Create a server for OpenAI's Realtime API.

        Args:
            script: The replies in order.
            heard: The transcripts of what users say, in order; None for one that fails.
        """
        return cls(_OpenAIPeer, script, heard)

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"ws://127.0.0.1:{self._port}{self._peer.path}"

    @property
    def open_connections(self) -> int:
        """The number of open connections."""
        return sum(not peer.socket.closed for peer in self.peers)

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get(self._peer.path, self._serve)
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._port = int(self._runner.addresses[0][1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for peer in self.peers:
            await peer.socket.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if (refusal := self._peer.refusal(request)) is not None:
            return refusal
        socket = web.WebSocketResponse(max_msg_size=15 << 20)
        await socket.prepare(request)
        peer = self._peer(self, socket, request.transport)
        self.peers.append(peer)
        try:
            await peer.serve()
        finally:
            await peer.stop()
        return socket


class RealtimePeer:
    """A connection of a realtime server; a function of its script sends over it.

    Args:
        server: The server.
        socket: The websocket.
        transport: Its connection.
    """

    path: ClassVar[str]
    input_rate: ClassVar[int]

    def __init__(
        self, server: RealtimeServer, socket: web.WebSocketResponse, transport: asyncio.Transport | None
    ) -> None:
        self.server = server
        self.socket = socket
        self._transport = transport
        self.replying: asyncio.Task[None] | None = None
        self.count = 0
        self._voice = bytearray()
        self._speaking = False
        self._silence = 0

    @staticmethod
    def refusal(request: web.Request) -> web.StreamResponse | None:
        """Return the answer to a handshake that the vendor refuses."""
        raise NotImplementedError

    async def greet(self) -> None:
        """Send what comes first."""

    async def handle(self, event: Event) -> None:
        """Handle an event of the client."""
        raise NotImplementedError

    async def refuse(self, error: RefusedEventError, event: Event) -> None:
        """Refuse an event in the vendor's way."""
        raise NotImplementedError

    async def heard_start(self) -> None:
        """Handle the start of speech."""
        raise NotImplementedError

    async def heard_end(self, voice: bytes) -> None:
        """Handle the end of a turn."""
        raise NotImplementedError

    async def send(self, event: Event) -> None:
        """Send an event."""
        self.server.sent.append(event)
        await self.raw(dump(event))

    async def raw(self, text: str) -> None:
        """Send a frame as it is."""
        await self.socket.send_str(text)

    async def abort(self) -> None:
        """Lose the connection without a closing handshake."""
        if self._transport is not None:
            self._transport.abort()

    async def serve(self) -> None:
        """Handle events until the client leaves."""
        await self.greet()
        async for frame in self.socket:
            if frame.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                continue
            event: Event = {}
            try:
                event = read_json_text(frame.data, constants=False)
                self.server.received.append(event)
                await self.handle(event)
            except (RefusedEventError, ValueError, KeyError, TypeError) as error:
                known = isinstance(error, RefusedEventError)
                refused = error if known else RefusedEventError(f"{type(error).__name__}: {error}")
                self.server.refused.append(str(refused))
                await self.refuse(refused, event)

    async def stop(self) -> None:
        """End the reply in progress."""
        if self.replying is not None:
            self.replying.cancel()
            await asyncio.wait([self.replying])
            self.replying = None

    def new_id(self, kind: str) -> str:
        """Return the next id."""
        self.count += 1
        return f"{kind}_{self.count}"

    def next_line(self) -> WireReply | Callable[[RealtimePeer], Awaitable[None]]:
        """Return the next line of the script."""
        if not self.server.script:
            raise RefusedEventError("the realtime script has no more replies", "script")
        line = self.server.script.popleft()
        return Say(line, chunk=5) if isinstance(line, str) else line

    async def hear(self, audio: bytes) -> None:
        """Detect speech and its end."""
        frame, rate = int(_FRAME * self.input_rate) * 2, self.input_rate * 2
        for start in range(0, len(audio), frame):
            piece = audio[start : start + frame]
            voiced = any(piece)
            if voiced and not self._speaking:
                self._speaking = True
                await self.heard_start()
            if self._speaking:
                self._voice += piece
                self._silence = 0 if voiced else self._silence + len(piece)
                if self._silence >= _SILENCE * rate:
                    voice, self._voice = bytes(self._voice), bytearray()
                    self._speaking, self._silence = False, 0
                    await self.heard_end(voice)


_CLIENT_EVENTS: Final[Mapping[str, frozenset[str]]] = {
    "session.update": frozenset({"session"}),
    "input_audio_buffer.append": frozenset({"audio"}),
    "input_audio_buffer.commit": frozenset(),
    "input_audio_buffer.clear": frozenset(),
    "conversation.item.create": frozenset({"item", "previous_item_id"}),
    "conversation.item.delete": frozenset({"item_id"}),
    "conversation.item.truncate": frozenset({"item_id", "content_index", "audio_end_ms"}),
    "response.create": frozenset({"response"}),
    "response.cancel": frozenset({"response_id"}),
}
_SESSION: Final = frozenset(
    {
        "type",
        "output_modalities",
        "audio",
        "instructions",
        "tools",
        "tool_choice",
        "max_output_tokens",
        "include",
        "model",
        "prompt",
        "tracing",
        "truncation",
        "parallel_tool_calls",
        "reasoning",
    }
)
_RESPONSE: Final = frozenset(
    {
        "audio",
        "conversation",
        "input",
        "instructions",
        "max_output_tokens",
        "metadata",
        "output_modalities",
        "parallel_tool_calls",
        "prompt",
        "reasoning",
        "tool_choice",
        "tools",
    }
)
_ITEM: Final[Mapping[str, frozenset[str]]] = {
    "message": frozenset({"id", "type", "role", "content", "status"}),
    "function_call": frozenset({"id", "type", "call_id", "name", "arguments", "status"}),
    "function_call_output": frozenset({"id", "type", "call_id", "output", "status"}),
}
_CONTENT: Final = {"user": {"input_text", "input_image"}, "system": {"input_text"}, "assistant": {"output_text"}}


class _OpenAIPeer(RealtimePeer):
    """A connection that speaks OpenAI's Realtime API."""

    path = "/v1/realtime"
    input_rate = 24_000

    def __init__(
        self, server: RealtimeServer, socket: web.WebSocketResponse, transport: asyncio.Transport | None
    ) -> None:
        super().__init__(server, socket, transport)
        self.items: list[Event] = []
        self.audio: dict[str, int] = {}
        self.session: Event = {"type": "realtime", "output_modalities": ["audio"], "model": "gpt-realtime"}
        self.response: Event | None = None
        self._buffer = bytearray()
        self._next_item = ""

    @staticmethod
    def refusal(request: web.Request) -> web.StreamResponse | None:
        """Refuse a handshake without a key or a model."""
        if not request.headers.get("authorization", "").startswith("Bearer "):
            return web.json_response({"error": {"message": "Missing bearer authentication"}}, status=401)
        if not request.query.get("model"):
            return web.json_response({"error": {"message": "You must provide a model parameter."}}, status=400)
        return None

    async def send(self, event: Event) -> None:
        """Send an event with an id."""
        await super().send({"event_id": self.new_id("event"), **event})

    async def greet(self) -> None:
        """Send the session."""
        await self.send({"type": "session.created", "session": self.session})

    async def refuse(self, error: RefusedEventError, event: Event) -> None:
        """Send an error event."""
        fields = {"type": "invalid_request_error", "code": error.code, "message": str(error), "param": None}
        await self.send({"type": "error", "error": {**fields, "event_id": event.get("event_id")}})

    @property
    def _detection(self) -> Event | None:
        hearing: Event = self.session.get("audio", {}).get("input", {})
        return hearing.get("turn_detection", {"type": "server_vad"})

    async def handle(self, event: Event) -> None:
        """Check an event, and do what it asks for."""
        kind = event["type"]
        if kind not in _CLIENT_EVENTS:
            raise RefusedEventError(f"Invalid value: '{kind}'.")
        _known(event, _CLIENT_EVENTS[kind] | {"type", "event_id"}, kind)
        match kind:
            case "session.update":
                await self._update(event["session"])
            case "input_audio_buffer.append":
                audio = b64decode(event["audio"], validate=True)
                if self._detection is None:
                    self._buffer += audio
                else:
                    await self.hear(audio)
            case "input_audio_buffer.commit":
                if len(self._buffer) < 0.1 * self.input_rate * 2:
                    raise RefusedEventError("Error committing input audio buffer: buffer too small.", f"{kind}_empty")
                voice, self._buffer = bytes(self._buffer), bytearray()
                self._next_item = self.new_id("item")
                await self._commit(voice)
            case "input_audio_buffer.clear":
                self._buffer.clear()
            case "conversation.item.create":
                await self._create(event["item"])
            case "conversation.item.delete":
                self.items.remove(self._item(event["item_id"]))
                await self.send({"type": "conversation.item.deleted", "item_id": event["item_id"]})
            case "conversation.item.truncate":
                await self._truncate(event)
            case "response.create":
                await self._respond(event.get("response") or {})
            case _:
                await self._cancel(event.get("response_id"))

    async def _update(self, session: Event) -> None:
        _known(session, _SESSION, "session")
        if session["type"] != "realtime":
            raise RefusedEventError("Invalid session type.")
        self.session = {**self.session, **session}
        await self.send({"type": "session.updated", "session": self.session})

    def _item(self, id_: str) -> Event:
        for item in self.items:
            if item["id"] == id_:
                return item
        raise RefusedEventError(f"Item with id '{id_}' does not exist.", "item_not_found")

    async def _create(self, item: Event) -> None:
        kind = item["type"]
        _known(item, _ITEM[kind], "item")
        if len(item.get("id", "")) > 32 or any(one["id"] == item.get("id") for one in self.items):
            raise RefusedEventError(f"Invalid item id '{item['id']}'.")
        if kind == "message":
            for part in item["content"]:
                if part["type"] not in _CONTENT[item["role"]]:
                    raise RefusedEventError(f"Invalid content type '{part['type']}' for role '{item['role']}'.")
        elif kind == "function_call_output" and not any(
            one["type"] == "function_call" and one["call_id"] == item["call_id"] for one in self.items
        ):
            raise RefusedEventError(
                f"Tool call ID '{item['call_id']}' not found in conversation.", "invalid_tool_call_id"
            )
        await self._add({"id": self.new_id("item"), **item})

    async def _add(self, item: Event, status: str = "completed") -> None:
        previous = self.items[-1]["id"] if self.items else None
        self.items.append(item)
        shown = {"object": "realtime.item", "status": status, **item}
        await self.send({"type": "conversation.item.added", "previous_item_id": previous, "item": shown})
        if status == "completed":
            await self.send({"type": "conversation.item.done", "previous_item_id": previous, "item": shown})

    async def _truncate(self, event: Event) -> None:
        id_, at = event["item_id"], event["audio_end_ms"]
        self._item(id_)
        length = self.audio.get(id_, 0) * 1000 // (self.input_rate * 2)
        if not 0 <= at <= length:
            raise RefusedEventError(f"Audio content of {length}ms is already shorter than {at}ms")
        self.audio[id_] = at * self.input_rate * 2 // 1000
        self._item(id_)["content"] = [{"type": "output_audio"}]
        await self.send({"type": "conversation.item.truncated", **{k: v for k, v in event.items() if k in _TRUNCATED}})

    # ---- the user

    async def heard_start(self) -> None:
        """Announce speech."""
        self._next_item = self.new_id("item")
        kind = "input_audio_buffer.speech_started"
        await self.send({"type": kind, "audio_start_ms": 0, "item_id": self._next_item})

    async def heard_end(self, voice: bytes) -> None:
        """Commit what was said; answer it if the session asks for that."""
        kind = "input_audio_buffer.speech_stopped"
        await self.send({"type": kind, "audio_end_ms": 0, "item_id": self._next_item})
        await self._commit(voice)
        if (self._detection or {}).get("create_response", True):
            await self._respond({})

    async def _commit(self, voice: bytes) -> None:
        id_ = self._next_item
        previous = self.items[-1]["id"] if self.items else None
        text = self.server.heard.popleft() if self.server.heard else ""
        await self.send({"type": "input_audio_buffer.committed", "item_id": id_, "previous_item_id": previous})
        content = [{"type": "input_audio", "transcript": text}]
        await self._add({"id": id_, "type": "message", "role": "user", "content": content})
        at = {"item_id": id_, "content_index": 0}
        kind = "conversation.item.input_audio_transcription"
        if text is None:
            failure = {"type": "transcription_error", "code": "audio_unintelligible", "message": "unintelligible"}
            await self.send({"type": f"{kind}.failed", **at, "error": failure})
            return
        usage = {"type": "duration", "seconds": len(voice) / (self.input_rate * 2)}
        await self.send({"type": f"{kind}.completed", **at, "transcript": text, "usage": usage})

    # ---- replies

    async def _respond(self, body: Event) -> None:
        _known(body, _RESPONSE, "response")
        if self.response is not None:
            raise RefusedEventError(
                f"Conversation already has an active response in progress: {self.response['id']}.",
                "conversation_already_has_active_response",
            )
        called = {item["call_id"] for item in self.items if item["type"] == "function_call"}
        if open_ := called - {item["call_id"] for item in self.items if item["type"] == "function_call_output"}:
            raise RefusedEventError(f"No tool output found for {sorted(open_)}.", "missing_tool_output")
        line = self.next_line()
        self.server.contexts.append([_shown(item) for item in self.items])
        modalities = body.get("output_modalities") or self.session["output_modalities"]
        self.response = {
            "id": self.new_id("resp"),
            "object": "realtime.response",
            "status": "in_progress",
            "output": [],
            "output_modalities": modalities,
            "metadata": body.get("metadata"),
        }
        await self.send({"type": "response.created", "response": {**self.response}})
        self.replying = asyncio.create_task(self._reply(line, self.response))

    async def _reply(self, line: WireReply | Callable[[RealtimePeer], Awaitable[None]], response: Event) -> None:
        with suppress(ConnectionError):  # the client left
            if not isinstance(line, WireReply):
                await line(self)
                return
            if line.text:
                await self.speak(line)
            for call in line.calls:
                name = {"call_id": call.id or self.new_id("call"), "name": call.name, "arguments": call.raw}
                await self._output({"id": self.new_id("item"), "type": "function_call", **name})
            if line.stop in ("stop", "tool_calls"):
                await self.finish("completed")
            else:
                reason = "max_output_tokens" if line.stop == "length" else "content_filter"
                await self.finish("incomplete", {"type": "incomplete", "reason": reason})

    async def _output(self, item: Event) -> None:
        """Add a whole item to the reply."""
        assert self.response is not None
        at = {"response_id": self.response["id"], "output_index": len(self.response["output"])}
        shown = {"object": "realtime.item", "status": "completed", **item}
        await self.send({"type": "response.output_item.added", **at, "item": {**shown, "status": "in_progress"}})
        await self._add(item)
        self.response["output"].append(shown)
        await self.send({"type": "response.output_item.done", **at, "item": shown})

    async def speak(self, line: WireReply) -> None:
        """Send a message: its transcript in chunks, each followed by its audio; or its text."""
        assert self.response is not None
        speaks = self.response["output_modalities"] == ["audio"]
        kind = "output_audio" if speaks else "output_text"
        item: Event = {"id": self.new_id("item"), "type": "message", "role": "assistant", "content": []}
        output = {"response_id": self.response["id"], "output_index": len(self.response["output"])}
        at = {**output, "item_id": item["id"], "content_index": 0}
        self.audio[item["id"]] = 0
        shown = {"object": "realtime.item", "status": "in_progress", **item}
        await self.send({"type": "response.output_item.added", **output, "item": shown})
        await self._add(item, "in_progress")
        await self.send({"type": "response.content_part.added", **at, "part": {"type": kind[7:]}})
        for piece in line.pieces(line.text):
            await asyncio.sleep(0)  # a cancellation comes between chunks
            if not speaks:
                await self.send({"type": "response.output_text.delta", **at, "delta": piece})
                continue
            await self.send({"type": "response.output_audio_transcript.delta", **at, "delta": piece})
            sound = tone(len(piece) * _PER_CHARACTER)
            self.audio[item["id"]] += len(sound)
            await self.send({"type": "response.output_audio.delta", **at, "delta": b64encode(sound).decode()})
        said = {"transcript": line.text} if speaks else {"text": line.text}
        if item["content"] == []:  # else it was truncated
            item["content"] = [{"type": kind, **said}]
        if speaks:
            await self.send({"type": "response.output_audio.done", **at})
            await self.send({"type": "response.output_audio_transcript.done", **at, **said})
        else:
            await self.send({"type": "response.output_text.done", **at, **said})
        whole = {"object": "realtime.item", "status": "completed", **item}
        self.response["output"].append(whole)
        await self.send({"type": "response.output_item.done", **output, "item": whole})

    async def finish(self, status: str, details: Event | None = None) -> None:
        """End the reply in progress."""
        response, self.response = self.response, None
        assert response is not None
        tokens = {"input_tokens": 10 * len(self.items), "output_tokens": 10 * len(response["output"])}
        usage = {**tokens, "total_tokens": sum(tokens.values()), "input_token_details": {"cached_tokens": 1}}
        ended = {**response, "status": status, "status_details": details, "usage": usage}
        await self.send({"type": "response.done", "response": ended})

    async def _cancel(self, id_: str | None) -> None:
        if self.response is None or id_ not in (None, self.response["id"]):
            raise RefusedEventError("Cancellation failed: no active response found", "response_cancel_not_active")
        await self.stop()
        await self.finish("cancelled", {"type": "cancelled", "reason": "client_cancelled"})


_TRUNCATED: Final = ("item_id", "content_index", "audio_end_ms")


def _known(fields: Event, names: frozenset[str] | set[str], where: str) -> None:
    if unknown := sorted(fields.keys() - names):
        raise RefusedEventError(f"Unknown parameter: '{where}.{unknown[0]}'.", "unknown_parameter")


def _shown(item: Event) -> tuple[str, str]:
    """Return what an item is, and its text; audio without a text is `(audio)`."""
    match item["type"]:
        case "message":
            texts = [part.get("text") or part.get("transcript") or "(audio)" for part in item["content"]]
            voice = any(part["type"] in ("input_audio", "output_audio") for part in item["content"])
            return f"{item['role']}{' voice' * voice}", " ".join(texts)
        case "function_call":
            return "call", f"{item['name']} {item['arguments']}"
        case _:
            return "output", item["output"]
