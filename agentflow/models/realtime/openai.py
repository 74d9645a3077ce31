"""`OpenAIRealtime`: OpenAI's Realtime API (GA) over a websocket.

Rules:

1. The server detects turns, but never answers or interrupts by itself: the session requests each reply, after its hooks.
2. Before each reply the server's conversation is made equal to the request, so that edits by hooks take effect. Equal
   items keep their audio; from the first difference on, items are deleted and created again as text.
3. A reply that is interrupted is cancelled, and its audio is truncated to what was played.
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Unpack
from urllib.parse import quote

import msgspec

from agentflow._support.logs import logger
from agentflow.errors import ModelError, UnsupportedContentError
from agentflow.models.provider_errors import ProviderError, model_error
from agentflow.models.realtime.live import (
    NO_TRANSCRIPT,
    LiveConnection,
    LiveReply,
    PlayAudio,
    RealtimeModel,
    RealtimeOptions,
    ReplyPart,
)
from agentflow.models.wire_names import wire_name
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta, text_chunk
from agentflow.vocabulary.messages import DataBlock, Msg, TextBlock, ToolUseBlock
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ToolSpec, Usage

# `Any`: items contain JSON.
Item = dict[str, Any]

_VAD: Final = {"type": "server_vad"}
_LOST: Final[Item] = {}
"""Recorded for an item that must match no request, so that it is deleted before the next reply."""


class _RealtimeItem(msgspec.Struct):
    id: str = ""
    type: str = ""
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class _RealtimeDetails(msgspec.Struct):
    reason: str | None = None
    error: dict[str, Any] | None = None


class _RealtimeTokens(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    input_token_details: dict[str, Any] | None = None


class _RealtimeResponse(msgspec.Struct):
    id: str = ""
    status: str | None = None
    status_details: _RealtimeDetails | None = None
    metadata: dict[str, Any] | None = None
    output: list[_RealtimeItem] = []
    usage: _RealtimeTokens | None = None


class _RealtimeEvent(msgspec.Struct):
    type: str
    item_id: str = ""
    previous_item_id: str | None = None
    response_id: str = ""
    output_index: int = 0
    delta: str = ""
    transcript: str = ""
    item: _RealtimeItem = msgspec.field(default_factory=_RealtimeItem)
    response: _RealtimeResponse = msgspec.field(default_factory=_RealtimeResponse)
    error: dict[str, Any] = {}


# Only these events are converted: other events may have fields of the same names with values of other types.
_KNOWN: Final = frozenset(
    {
        "conversation.item.added",
        "conversation.item.deleted",
        "conversation.item.input_audio_transcription.completed",
        "conversation.item.input_audio_transcription.failed",
        "error",
        "input_audio_buffer.committed",
        "input_audio_buffer.speech_started",
        "input_audio_buffer.speech_stopped",
        "response.created",
        "response.done",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_item.done",
        "response.output_text.delta",
    }
)


class OpenAIRealtime(RealtimeModel):
    """A model of OpenAI's Realtime API, such as `"gpt-realtime"`.

    The key is `OPENAI_API_KEY`; for another server (`url`), `OPENAI_COMPATIBLE_API_KEY`.

    Args:
        name: The model's name, with or without `openai/`.
        turn_detection: How the server detects the end of a turn, in its own format; with None, `session.commit()` ends it.
        transcription: How the user's audio is transcribed, in the server's format; hooks and the history get this text.
        options: As for every `RealtimeModel`.

    Example:
        >>> OpenAIRealtime("gpt-realtime", voice="marin").name
        'openai/gpt-realtime'
    """

    _vendor = "openai"
    _home = "wss://api.openai.com/v1/realtime"
    _keys = ("OPENAI_API_KEY",)
    _other_keys = ("OPENAI_COMPATIBLE_API_KEY",)

    def __init__(
        self,
        name: str,
        *,
        turn_detection: Mapping[str, Any] | None = _VAD,
        transcription: Mapping[str, Any] = {"model": "gpt-4o-mini-transcribe"},
        **options: Unpack[RealtimeOptions],
    ) -> None:
        super().__init__(name, turn_detection=turn_detection, **options)
        self.transcription = transcription

    @property
    def address(self) -> str:
        """The address of the websocket."""
        return f"{super().address}?model={quote(self.model)}"

    def live(self, player: PlayAudio | None) -> LiveConnection:
        """Create a connection that is not open yet."""
        return _OpenAILive(self, player)


class _OpenAILive(LiveConnection):
    """A connection to OpenAI's Realtime API."""

    def __init__(self, model: OpenAIRealtime, player: PlayAudio | None) -> None:
        super().__init__(model, player)
        self._transcription = model.transcription
        # The server's conversation, by id; None for an item with text that is not known yet.
        self._items: dict[str, Item | None] = {}
        self._uttered: deque[str] = deque()  # the user's items, in order, until their transcripts are passed on
        self._transcripts: dict[str, str] = {}
        # `_number` counts replies, for `metadata` and the ids of events; `_counter` makes ids unique.
        self._number = self._counter = 0
        self._response = ""
        # `_idle`: no response is in progress at the server. `_quiet`: the user is not speaking.
        self._idle, self._quiet = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._quiet.set()
        self._unbilled = Usage()  # the usage of interrupted replies, which the next reply reports

    async def open(self, system: object, tools: Sequence[ToolSpec], history: Sequence[Msg]) -> None:
        """Connect and configure the session; instructions, tools and history are sent with each reply."""
        model = self.model
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        await self.socket.open(model.address, headers, timeout=model.timeout, max_frame=model.max_frame)
        # The server confirms the configuration, or refuses it with an error.
        await self._send(self._configuration(), "setup")
        event = await self.first("session.updated")
        if event["type"] == "error":
            raise self._error(msgspec.convert(event, _RealtimeEvent).error)

    def _configuration(self) -> Item:
        model, pcm = self.model, {"type": "audio/pcm", "rate": 24_000}
        detection = model.turn_detection
        if detection is not None:
            # Rule 1: the session requests each reply, after its hooks.
            detection = {**detection, "create_response": False, "interrupt_response": False}
        output = {"format": pcm} | ({"voice": model.voice} if model.voice else {})
        hearing = {"format": pcm, "transcription": dict(self._transcription), "turn_detection": detection}
        # `params` come last, so that a user can set every field.
        session = {
            "type": "realtime",
            "output_modalities": ["text" if self.player is None else "audio"],
            "audio": {"input": hearing, "output": output},
            **model.params,
        }
        return {"type": "session.update", "session": session}

    async def _send(self, event: Item, group: str = "other") -> None:
        self._counter += 1
        # A later error names this id, so its group shows whether it concerns the reply (`_refused`).
        await self.socket.send({**event, "event_id": f"{group}.{self._counter}"})

    async def send_audio(self, audio: bytes) -> None:
        """Add audio to the server's input buffer."""
        await self._send({"type": "input_audio_buffer.append", "audio": b64encode(audio).decode()})

    async def commit(self) -> None:
        """Commit the buffer as a turn of the user."""
        await self._send({"type": "input_audio_buffer.commit"})

    # ---- replies

    async def request(self, request: ModelRequest) -> LiveReply:
        """Make the server's conversation equal to the request, and request a reply, once the user is silent."""
        body = self._body(request)
        with suppress(TimeoutError):  # if the microphone was muted, the server still waits for the end of speech
            async with asyncio.timeout(self.model.timeout):
                await self._quiet.wait()
        try:
            async with asyncio.timeout(self.model.timeout):
                await self._idle.wait()
        except TimeoutError:
            raise ModelError(
                f"{self.model.name} did not end its last reply within {self.model.timeout:g} s. Open another session.",
                model=self.model.name,
            ) from None
        # The connection may have failed during these waits.
        self.check()
        self._number += 1
        reply = self.new_reply()
        group = f"r{self._number}"
        # Events of the last response no longer match, so its late ones are ignored.
        self._response = ""
        self._idle.clear()
        self.reply = reply  # errors may arrive while the next events are sent
        for event in self._changes(_wanted(request.messages, self.model.name)):
            await self._send(event, group)
        # The server returns the metadata in `response.created`, which is how the response is recognised.
        body["metadata"] = {"request": str(self._number)}
        await self._send({"type": "response.create", "response": body}, f"{group}.create")
        return reply

    def _body(self, request: ModelRequest) -> Item:
        options = request.options
        self.refuse_options(options)
        body: Item = {**options.extra}
        if request.messages and request.messages[0].role == "system":
            body["instructions"] = request.messages[0].text
        if options.max_tokens is not None:
            body["max_output_tokens"] = options.max_tokens
        if request.tools:
            body["tools"] = [_function(spec) for spec in request.tools]
            if options.tool_choice is not None:
                named = options.tool_choice not in ("auto", "none", "required")
                choice = {"type": "function", "name": wire_name(options.tool_choice)}
                body["tool_choice"] = choice if named else options.tool_choice
        return body

    def _changes(self, wanted: Sequence[Item]) -> list[Item]:
        """Return the events that make the server's conversation equal to the request."""
        events: list[Item] = []
        same, differs = 0, False
        # A copy: items are deleted in the loop.
        for id_, item in [*self._items.items()]:
            if item is None:  # the user's latest speech, which is the next turn
                continue
            if not differs and same < len(wanted) and item == wanted[same]:
                same += 1
                continue
            # A lost item is deleted wherever it is, and does not make the items after it differ.
            differs = differs or item is not _LOST
            del self._items[id_]
            events.append({"type": "conversation.item.delete", "item_id": id_})
        for item in wanted[same:]:
            self._counter += 1
            # With an id of our own, the item is known before the server confirms it.
            id_ = f"item_af_{self._counter}"
            self._items[id_] = item
            events.append({"type": "conversation.item.create", "item": {"id": id_, **item}})
        return events

    async def settle(self, reply: LiveReply, complete: bool) -> None:
        """Record the form of the reply's items; cancel and truncate an interrupted reply."""
        if not complete and not reply.ended:
            # The id may still be missing: without one, the server cancels the response in progress.
            named = {"response_id": self._response} if self._response else {}
            await self._send({"type": "response.cancel", **named})
        for id_ in self._items.keys() & {*reply.length, *reply.audio}:
            # How much the server keeps of an interrupted text is unknown, so the item is deleted.
            known = complete or id_ in reply.audio
            self._items[id_] = _text("assistant", reply.said.get(id_, "")) if known else _LOST
        for id_, length in reply.audio.items() if not complete else ():
            if (played := reply.played[id_]) < length:
                # Two bytes are one sample.
                at = {"content_index": 0, "audio_end_ms": played * 1000 // (self.model.output_rate * 2)}
                await self._send({"type": "conversation.item.truncate", "item_id": id_, **at})

    # ---- events

    async def handle(self, event: Mapping[str, Any]) -> None:
        """Handle an event; unknown ones are ignored."""
        if event.get("type") in _KNOWN:
            await self._handle(msgspec.convert(event, _RealtimeEvent))

    async def _handle(self, event: _RealtimeEvent) -> None:
        match event.type:
            case "conversation.item.added":
                self._added(event.item.id, event.previous_item_id)
            case "conversation.item.deleted":
                self._items.pop(event.item_id, None)
            case "input_audio_buffer.speech_started":
                self._quiet.clear()
                self.on_speech()
            case "input_audio_buffer.speech_stopped":
                self._quiet.set()
            case "input_audio_buffer.committed":
                self._quiet.set()
                # Transcripts may arrive in another order than the turns were spoken.
                self._uttered.append(event.item_id)
            case "conversation.item.input_audio_transcription.completed":
                self._transcribed(event.item_id, event.transcript.strip())
            case "conversation.item.input_audio_transcription.failed":
                self._transcribed(event.item_id, NO_TRANSCRIPT)
            case "response.created":
                if self._is_current(event.response):
                    self._response = event.response.id
            case "response.done":
                if self._is_current(event.response):
                    self._done(event.response)
            case "error":
                self._refused(event.error)
            case _:
                if self.reply is not None and event.response_id == self._response:
                    self._replied(event, self.reply)

    def _added(self, id_: str, previous: str | None) -> None:
        if id_ in self._items:
            return
        ids = [*self._items]
        # The server inserts the user's speech at its place in time, which need not be the end.
        index = ids.index(previous) + 1 if previous in self._items else len(ids)
        ids.insert(index, id_)
        self._items = {item_id: self._items.get(item_id) for item_id in ids}

    def _transcribed(self, id_: str, text: str) -> None:
        """Pass on the turns that have a transcript, in the order in which they were spoken; silent turns are skipped."""
        if id_ in self._items:
            self._items[id_] = _text("user", text) if text else _LOST
        self._transcripts[id_] = text
        while self._uttered and self._uttered[0] in self._transcripts:
            if text := self._transcripts.pop(self._uttered.popleft()):
                self.on_turn(text)

    def _is_current(self, response: _RealtimeResponse) -> bool:
        return (response.metadata or {}).get("request") == str(self._number)

    def _replied(self, event: _RealtimeEvent, reply: LiveReply) -> None:
        """Queue a part of the reply."""
        if event.type == "response.output_audio.delta":
            reply.put(ReplyPart(event.item_id, audio=b64decode(event.delta, validate=True)))
        elif event.type != "response.output_item.done":
            reply.put(ReplyPart(event.item_id, chunk=text_chunk(event.delta)))
        elif event.item.type == "function_call":
            call = event.item
            # Converted to the form of `_wanted`, so that an unedited call counts as equal.
            self._items[call.id] = _call(call.call_id, call.name, call.arguments)
            delta = ToolUseDelta(event.output_index, call.call_id, call.name, call.arguments)
            reply.put(ReplyPart(call.id, chunk=ModelChunk(tool_uses=(delta,))))

    def _done(self, response: _RealtimeResponse) -> None:
        """End the reply; the usage of an interrupted reply is added to that of the next reply."""
        used, reply = self._unbilled + _usage(response.usage), self.reply
        self._idle.set()
        # The call was interrupted: its response ends without a reader.
        if reply is None:
            self._unbilled = used
            return
        reply.ended = True
        details = response.status_details or _RealtimeDetails()
        if response.status not in ("completed", "incomplete"):
            error = details.error or {"message": f"the response ended as {response.status} ({details.reason})"}
            reply.fail(self._error(error))
            return
        limit = {"max_output_tokens": "length", "content_filter": "content_filter"}.get(details.reason or "")
        called = any(item.type == "function_call" for item in response.output)
        finish = limit or ("tool_calls" if called else "stop")
        reply.put(ReplyPart("", chunk=ModelChunk(usage=used, finish_reason=finish)))
        self._unbilled = Usage()

    def _refused(self, error: Mapping[str, Any]) -> None:
        """Fail the reply if its request was refused; log other errors."""
        cause = str(error.get("event_id"))
        reply = self.reply
        if reply is None or not cause.startswith(f"r{self._number}."):
            logger.warning("The server of a voice session refused an event ({}): {}", cause, error.get("message"))
            return
        # A refused `response.create` begins no response, so no `response.done` will follow.
        if ".create." in cause:
            reply.ended = True
            self._idle.set()
        reply.fail(self._error(error))

    def _error(self, error: Mapping[str, Any]) -> ModelError:
        failure = ProviderError(str(error.get("message")), None, {}, error)
        return model_error(failure, self.model.name, secrets=self.secrets)


def _function(spec: ToolSpec) -> Item:
    return {
        "type": "function",
        "name": wire_name(spec.name),
        "description": spec.description,
        "parameters": {"type": "object", "properties": {}, **spec.parameters},
    }


def _wanted(messages: Sequence[Msg], model: str) -> list[Item]:
    """Return the items of a conversation; the system prompt is sent as instructions."""
    items: list[Item] = []
    for index, msg in enumerate(messages):
        if msg.role == "system" and not index:
            continue
        if msg.role == "tool":
            for result in msg.tool_results:
                output = {"type": "function_call_output", "call_id": result.tool_use_id, "output": result.text}
                items.append(output)
            continue
        for block in msg.content:
            match block:
                case ToolUseBlock():
                    items.append(_call(block.id, wire_name(block.name), block.arguments))
                case TextBlock(text=text) if text:
                    items.append(_text(msg.role, text))
                case DataBlock(media_type=kind) if kind.startswith("image/") and block.data is not None:
                    picture = {"type": "input_image", "image_url": f"data:{kind};base64,{block.data}"}
                    items.append({"type": "message", "role": msg.role, "content": [picture]})
                case DataBlock():
                    reason = "accepts text and images in addition to the user's voice"
                    raise UnsupportedContentError(model, str(block), reason, block.media_type)
                case _:  # thoughts of another model
                    pass
    return items


def _text(role: str, text: str) -> Item:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def _call(id_: str, name: str, arguments: str) -> Item:
    return {"type": "function_call", "call_id": id_, "name": name, "arguments": arguments}


def _usage(used: _RealtimeTokens | None) -> Usage:
    if used is None:
        return Usage()
    return Usage(used.input_tokens, used.output_tokens, (used.input_token_details or {}).get("cached_tokens") or 0)
