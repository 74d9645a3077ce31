"""A connection of a realtime server that speaks Gemini's Live API."""

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

_SETUP: Final = frozenset(
    {
        "model",
        "generationConfig",
        "systemInstruction",
        "tools",
        "realtimeInputConfig",
        "sessionResumption",
        "contextWindowCompression",
        "inputAudioTranscription",
        "outputAudioTranscription",
        "proactivity",
        "historyConfig",
    }
)
_INPUT: Final = frozenset({"audio", "video", "text", "activityStart", "activityEnd", "audioStreamEnd"})
_GENERATION: Final = frozenset(
    {"responseModalities", "speechConfig", "maxOutputTokens", "temperature", "topP", "topK", "thinkingConfig"}
)
_PARTS: Final[Mapping[str, str]] = {"functionCall": "call", "functionResponse": "output"}


class GeminiPeer(RealtimePeer):
    """A connection that speaks Gemini's Live API; a refused message closes it, as the vendor does."""

    path = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"
    input_rate = 16_000

    def __init__(
        self, server: RealtimeTraffic, socket: web.WebSocketResponse, transport: asyncio.Transport | None
    ) -> None:
        super().__init__(server, socket, transport)
        self.setup: Event | None = None
        self.context: list[tuple[str, str]] = []
        self.calls: list[str] = []
        self.generating = False
        self._active = False
        self._spoken = ""

    @staticmethod
    def refusal(request: web.Request) -> web.StreamResponse | None:
        """Refuse a handshake without a key."""
        if not (request.headers.get("x-goog-api-key") or request.query.get("key")):
            return web.json_response(
                {"error": {"code": 403, "message": "Method doesn't allow unregistered callers"}}, status=403
            )
        return None

    async def raw(self, text: str) -> None:
        """Send a frame unchanged, as binary data like the vendor."""
        await self.socket.send_bytes(text.encode())

    async def refuse(self, error: RefusedEventError, event: Event) -> None:
        """Close the connection with the error."""
        await self.stop()
        await self.socket.close(code=1007, message=str(error).encode()[:120])  # a close frame has space for 123 bytes

    async def handle(self, event: Event) -> None:
        """Check a message, and act on it."""
        kinds = [*event]
        if len(kinds) != 1 or (self.setup is None) != (kinds == ["setup"]):
            raise RefusedEventError(f"Request contains an invalid argument: {kinds}.")
        match event:
            case {"setup": setup}:
                refuse_unknown(setup, _SETUP, "setup")
                refuse_unknown(setup.get("generationConfig", {}), _GENERATION, "generationConfig")
                if not setup["model"].startswith("models/"):
                    raise RefusedEventError(f"model {setup['model']} is not found")
                self.setup = setup
                await self.send({"setupComplete": {}})
            case {"realtimeInput": message}:
                refuse_unknown(message, _INPUT, "realtimeInput")
                await self._hear(message)
            case {"clientContent": content}:
                refuse_unknown(content, {"turns", "turnComplete"}, "clientContent")
                await self._interrupt()
                for turn in content["turns"]:
                    self._note(turn)
                if content.get("turnComplete"):
                    await self._answer()
            case {"toolResponse": message}:
                refuse_unknown(message, {"functionResponses"}, "toolResponse")
                await self._results(message["functionResponses"])
            case _:
                raise RefusedEventError(f"Unknown name {kinds[0]!r}")

    def _note(self, turn: Event) -> None:
        refuse_unknown(turn, {"role", "parts"}, "content")
        if turn["role"] not in ("user", "model"):
            raise RefusedEventError("Please use a valid role: user, model.")
        for part in turn["parts"]:
            kind, value = next(iter(part.items()))
            self.context.append((turn["role"], value) if kind == "text" else (_PARTS[kind], value["name"]))

    # ---- the user

    @property
    def _manual(self) -> bool:
        setup = self.setup or {}
        return bool(setup.get("realtimeInputConfig", {}).get("automaticActivityDetection", {}).get("disabled"))

    async def _hear(self, message: Event) -> None:
        match message:
            case {"audio": {"mimeType": str() as kind, "data": data}}:
                if kind != f"audio/pcm;rate={self.input_rate}":
                    raise RefusedEventError(f"Unsupported mime type {kind}")
                audio = b64decode(data, validate=True)
                if not self._manual:
                    await self.hear(audio)
                elif not self._active:
                    raise RefusedEventError("Audio outside of an activity.")
            case {"activityStart": _} if self._manual and not self._active:
                self._active = True
                await self.heard_start()
            case {"activityEnd": _} if self._manual and self._active:
                self._active = False
                await self.heard_end(b"")
            case _:
                raise RefusedEventError(
                    "Explicit activity control is not supported when automatic detection is enabled."
                )

    async def heard_start(self) -> None:
        """Interrupt the reply; the vendor has no message for speech itself."""
        await self._interrupt()

    async def heard_end(self, voice: bytes) -> None:
        """Transcribe the speech, and answer it."""
        text = self.server.heard.popleft() if self.server.heard else ""
        for part in (text or "").partition(" "):
            if part:
                await self.send({"serverContent": {"inputTranscription": {"text": part}}})
        self.context.append(("user voice", text or "(audio)"))
        await self._answer()

    async def _interrupt(self) -> None:
        """End the reply in progress, if any."""
        if not self.generating:
            return
        await self.stop()
        self.generating = False
        self._keep()
        await self.send({"serverContent": {"interrupted": True}})
        await self.send({"serverContent": {"turnComplete": True}})

    # ---- replies

    async def _answer(self) -> None:
        if self.calls:
            raise RefusedEventError(f"Function calls {self.calls} have no responses.")
        line = self.next_line()
        self.server.contexts.append([*self.context])
        self.generating = True
        self.replying = asyncio.create_task(self._reply(line))

    async def _results(self, responses: list[Event]) -> None:
        if [response["id"] for response in responses] != self.calls:
            raise RefusedEventError(f"Function responses must match the calls {self.calls}.")
        for response in responses:
            refuse_unknown(response, {"id", "name", "response", "willContinue", "scheduling"}, "functionResponse")
            self.context.append(("output", str(response["response"].get("output", response["response"].get("error")))))
        self.calls = []
        # Some models complete the turn with the calls only after the results.
        await self.send({"serverContent": {"turnComplete": True}})
        await self._answer()

    async def _reply(self, line: WireReply | Callable[[RealtimePeer], Awaitable[None]]) -> None:
        with suppress(ConnectionError):  # the client has disconnected
            if not isinstance(line, WireReply):
                await line(self)
                return
            await self.speak(line)
            if line.calls:
                called = [(call.id or self.new_id("function-call"), call) for call in line.calls]
                self.calls = [id_ for id_, _ in called]
                self.context += [("call", f"{call.name} {call.raw}") for _, call in called]
                shown = [{"id": id_, "name": call.name, "args": call.input} for id_, call in called]
                self.generating = False
                await self.send({"toolCall": {"functionCalls": shown}})
                return
            await self.finish()

    async def speak(self, line: WireReply) -> None:
        """Send the reply in chunks: audio and, independently, its transcript; or text."""
        speaks = (self.setup or {})["generationConfig"]["responseModalities"] == ["AUDIO"]
        for chunk in line.pieces(line.text):
            await asyncio.sleep(0)  # lets an interruption arrive between chunks
            self._spoken += chunk
            if not speaks:
                await self._send_part({"text": chunk})
                continue
            sound = b64encode(tone(len(chunk) * PER_CHARACTER)).decode()
            await self._send_part({"inlineData": {"mimeType": "audio/pcm;rate=24000", "data": sound}})
            await self.send({"serverContent": {"outputTranscription": {"text": chunk}}})
        if line.text and line.calls:
            self._keep()

    async def _send_part(self, part: Event) -> None:
        await self.send({"serverContent": {"modelTurn": {"role": "model", "parts": [part]}}})

    def _keep(self) -> None:
        if self._spoken:
            self.context.append(("model", self._spoken))
        self._spoken = ""

    async def finish(self) -> None:
        """End the reply, with its usage."""
        self.generating = False
        self._keep()
        await self.send({"serverContent": {"generationComplete": True}})
        usage = {"promptTokenCount": 10 * len(self.context), "responseTokenCount": 10, "totalTokenCount": 0}
        await self.send({"serverContent": {"turnComplete": True}, "usageMetadata": usage})
