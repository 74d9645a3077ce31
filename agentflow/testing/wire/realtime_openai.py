"""A connection of a realtime server that speaks OpenAI's Realtime API."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final

from aiohttp import web

from agentflow.testing.wire.realtime_peer import (
    PER_CHARACTER,
    Event,
    RealtimePeer,
    RealtimeTraffic,
    RefusedEventError,
    refuse_unknown,
    tone,
)
from agentflow.testing.wire.reply import WireReply

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


class OpenAIPeer(RealtimePeer):
    """A connection that speaks OpenAI's Realtime API."""

    path = "/v1/realtime"
    input_rate = 24_000

    def __init__(
        self, server: RealtimeTraffic, socket: web.WebSocketResponse, transport: asyncio.Transport | None
    ) -> None:
        super().__init__(server, socket, transport)
        self.items: list[Event] = []
        self.audio: dict[str, int] = {}  # the bytes of audio, by item
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
        """Send the session's settings."""
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
        """Check an event, and act on it."""
        kind = event["type"]
        if kind not in _CLIENT_EVENTS:
            raise RefusedEventError(f"Invalid value: '{kind}'.")
        refuse_unknown(event, _CLIENT_EVENTS[kind] | {"type", "event_id"}, kind)
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
                # The vendor's minimum is 100 ms, and a sample has two bytes.
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
        refuse_unknown(session, _SESSION, "session")
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
        refuse_unknown(item, _ITEM[kind], "item")
        if len(item.get("id", "")) > 32 or any(known_item["id"] == item.get("id") for known_item in self.items):
            raise RefusedEventError(f"Invalid item id '{item['id']}'.")
        if kind == "message":
            for part in item["content"]:
                if part["type"] not in _CONTENT[item["role"]]:
                    raise RefusedEventError(f"Invalid content type '{part['type']}' for role '{item['role']}'.")
        elif kind == "function_call_output" and not any(
            known_item["type"] == "function_call" and known_item["call_id"] == item["call_id"]
            for known_item in self.items
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
        length = self.audio.get(id_, 0) * 1000 // (self.input_rate * 2)  # milliseconds; a sample has two bytes
        if not 0 <= at <= length:
            raise RefusedEventError(f"Audio content of {length}ms is already shorter than {at}ms")
        self.audio[id_] = at * self.input_rate * 2 // 1000
        self._item(id_)["content"] = [{"type": "output_audio"}]
        await self.send({"type": "conversation.item.truncated", **{k: v for k, v in event.items() if k in _TRUNCATED}})

    # ---- the user

    async def heard_start(self) -> None:
        """Send the event for the start of speech."""
        self._next_item = self.new_id("item")
        kind = "input_audio_buffer.speech_started"
        await self.send({"type": kind, "audio_start_ms": 0, "item_id": self._next_item})

    async def heard_end(self, voice: bytes) -> None:
        """Commit the speech, and answer it if the session is configured so."""
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
        refuse_unknown(body, _RESPONSE, "response")
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
        with suppress(ConnectionError):  # the client has disconnected
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
        """Add a complete item to the reply."""
        assert self.response is not None
        at = {"response_id": self.response["id"], "output_index": len(self.response["output"])}
        shown = {"object": "realtime.item", "status": "completed", **item}
        await self.send({"type": "response.output_item.added", **at, "item": {**shown, "status": "in_progress"}})
        await self._add(item)
        self.response["output"].append(shown)
        await self.send({"type": "response.output_item.done", **at, "item": shown})

    async def speak(self, line: WireReply) -> None:
        """Send a message in chunks: transcript and audio, or text."""
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
        pieces = line.pieces(line.text)
        for piece in pieces:  # the vendor sends a transcript ahead of its audio
            await asyncio.sleep(0)  # lets a cancellation arrive between chunks
            named = "output_audio_transcript" if speaks else "output_text"
            await self.send({"type": f"response.{named}.delta", **at, "delta": piece})
        for piece in pieces if speaks else ():
            await asyncio.sleep(0)
            sound = tone(len(piece) * PER_CHARACTER)
            self.audio[item["id"]] += len(sound)
            await self.send({"type": "response.output_audio.delta", **at, "delta": b64encode(sound).decode()})
        transcript = {"transcript": line.text} if speaks else {"text": line.text}
        if item["content"] == []:  # otherwise the client has truncated it
            item["content"] = [{"type": kind, **transcript}]
        if speaks:
            await self.send({"type": "response.output_audio.done", **at})
            await self.send({"type": "response.output_audio_transcript.done", **at, **transcript})
        else:
            await self.send({"type": "response.output_text.done", **at, **transcript})
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


def _shown(item: Event) -> tuple[str, str]:
    """Return an item's role or type, and its text; audio without a transcript is `(audio)`."""
    match item["type"]:
        case "message":
            texts = [part.get("text") or part.get("transcript") or "(audio)" for part in item["content"]]
            voice = any(part["type"] in ("input_audio", "output_audio") for part in item["content"])
            return f"{item['role']}{' voice' * voice}", " ".join(texts)
        case "function_call":
            return "call", f"{item['name']} {item['arguments']}"
        case _:
            return "output", item["output"]
