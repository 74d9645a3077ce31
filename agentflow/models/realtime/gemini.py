"""`GeminiLive`: Gemini's Live API over a websocket.

Rules:

1. The server answers a spoken turn by itself; the answer is played after the call's hooks have accepted the turn. If hooks
   deny the call or edit the transcript, this answer is not played; an edited transcript is sent as a typed turn.
2. System prompt and tools are fixed when the session opens, and the history is sent then. A call that changes them is refused.
3. The protocol has no items: a reply ends with `turnComplete`, or with tool calls, whose results begin the next reply.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentflow._support.logs import logger
from agentflow.errors import UnsupportedContentError, UsageError
from agentflow.models.realtime.live import (
    NO_TRANSCRIPT,
    LiveConnection,
    LiveReply,
    PlayAudio,
    RealtimeModel,
    ReplyPart,
)
from agentflow.models.wire_names import wire_name
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta, text_chunk
from agentflow.vocabulary.messages import DataBlock, Msg, TextBlock, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.saving.plain import dumps
from agentflow.vocabulary.specs import ToolSpec, Usage

# `Any`: contents contain JSON.
Content = dict[str, Any]


# The protocol is protobuf's JSON: names are in camel case, and fields with default values are left out.
class _LiveBlob(msgspec.Struct):
    data: str = ""


class _LivePart(msgspec.Struct, rename="camel"):
    text: str = ""
    thought: bool = False
    inline_data: _LiveBlob | None = None


class _LiveContent(msgspec.Struct):
    parts: list[_LivePart] = []


class _LiveTranscript(msgspec.Struct):
    text: str = ""


class _LiveServerContent(msgspec.Struct, rename="camel"):
    model_turn: _LiveContent | None = None
    input_transcription: _LiveTranscript | None = None
    output_transcription: _LiveTranscript | None = None
    interrupted: bool = False
    turn_complete: bool = False


class _LiveCall(msgspec.Struct):
    name: str
    id: str = ""
    args: dict[str, Any] = {}


class _LiveCalls(msgspec.Struct, rename="camel"):
    function_calls: list[_LiveCall] = []


class _LiveTokens(msgspec.Struct, rename="camel"):
    prompt_token_count: int = 0
    response_token_count: int = 0
    thoughts_token_count: int = 0
    cached_content_token_count: int = 0


class _LiveMessage(msgspec.Struct, rename="camel"):
    server_content: _LiveServerContent | None = None
    tool_call: _LiveCalls | None = None
    usage_metadata: _LiveTokens | None = None
    go_away: dict[str, Any] | None = None


class GeminiLive(RealtimeModel):
    """A model of Gemini's Live API, such as `"gemini-2.5-flash-native-audio-preview-12-2025"`.

    The key is `GEMINI_API_KEY` or `GOOGLE_API_KEY`; for another server (`url`), pass `api_key`.

    Args:
        name: The model's name, with or without `gemini/`.
        options: As for every `RealtimeModel`; `params` are further fields of the setup, such as
            `{"contextWindowCompression": {"slidingWindow": {}}}`.

    Example:
        >>> GeminiLive("gemini-live-2.5-flash", voice="Kore").name
        'gemini/gemini-live-2.5-flash'
    """

    _vendor = "gemini"
    _home = "wss://generativelanguage.googleapis.com/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"
    _keys = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    input_rate = 16_000

    def live(self, player: PlayAudio | None) -> LiveConnection:
        """Create a connection that is not open yet."""
        return _GeminiConnection(self, player)


class _GeminiConnection(LiveConnection):
    """A connection to Gemini's Live API."""

    def __init__(self, model: GeminiLive, player: PlayAudio | None) -> None:
        super().__init__(model, player)
        self._system = ""
        self._tools: tuple[str, ...] = ()
        self._incoming: LiveReply | None = None  # the reply that the server's content belongs to
        self._expected: deque[LiveReply] = deque()  # replies that were requested before the current one had ended
        self._spoken: deque[tuple[object, LiveReply]] = deque()  # replies to spoken turns, until their calls begin
        self._continued: LiveReply | None = None  # the last reply to results of tools
        self._unheard: LiveReply | None = None  # the reply to a spoken turn that has no transcript yet
        self._transcript = ""
        # `_interrupted`: the server has stopped the current reply. `_active`: a turn that `commit` ends has begun.
        self._interrupted = self._active = False
        # Tool calls without results; the server generates nothing until all are answered.
        self._calls: list[_LiveCall] = []
        self._tokens = _LiveTokens()  # the newest counts of the current reply replace earlier ones

    async def open(self, system: object, tools: Sequence[ToolSpec], history: Sequence[Msg]) -> None:
        """Connect, configure the session, and send the history."""
        model = self.model
        if callable(system):
            raise UsageError(
                f"The agent's system prompt is a function, but {model.name!r} takes it only when a session opens. Use a text."
            )
        self._system = system.text if isinstance(system, Msg) else str(system or "")
        self._tools = tuple([spec.name for spec in tools])
        headers = {"x-goog-api-key": self.key} if self.key else {}
        await self.socket.open(model.address, headers, timeout=model.timeout, max_frame=model.max_frame)
        await self.socket.send({"setup": self._setup(tools)})
        await self.first("setupComplete")
        if turns := _contents(history, model.name):
            # `turnComplete` is false, so that the server does not answer the history.
            await self.socket.send({"clientContent": {"turns": turns, "turnComplete": False}})

    def _setup(self, tools: Sequence[ToolSpec]) -> Content:
        model, detection = self.model, self.model.turn_detection
        generation: Content = {"responseModalities": ["TEXT" if self.player is None else "AUDIO"]}
        if model.voice:
            generation["speechConfig"] = {"voiceConfig": {"prebuiltVoiceConfig": {"voiceName": model.voice}}}
        automatic = {"disabled": True} if detection is None else dict(detection)
        setup: Content = {
            "model": f"models/{model.model}",
            "generationConfig": generation,
            "realtimeInputConfig": {"automaticActivityDetection": automatic},
            "inputAudioTranscription": {},
        }
        if self.player is not None:
            # Without transcripts the history would have no text of a spoken reply.
            setup["outputAudioTranscription"] = {}
        if self._system:
            setup["systemInstruction"] = {"parts": [{"text": self._system}]}
        if tools:
            setup["tools"] = [{"functionDeclarations": [_declaration(spec) for spec in tools]}]
        return {**setup, **model.params}

    async def send_audio(self, audio: bytes) -> None:
        """Send the user's audio; without turn detection, the first chunk starts a turn."""
        if self.model.turn_detection is None and not self._active:
            self._active = True
            await self.socket.send({"realtimeInput": {"activityStart": {}}})
        blob = {"mimeType": f"audio/pcm;rate={self.model.input_rate}", "data": b64encode(audio).decode()}
        await self.socket.send({"realtimeInput": {"audio": blob}})

    async def commit(self) -> None:
        """End a turn, if the server does not detect it."""
        if self._active:
            self._active = False
            await self.socket.send({"realtimeInput": {"activityEnd": {}}})

    # ---- replies

    async def request(self, request: ModelRequest) -> LiveReply:
        """Return the reply to the spoken turn, or send a typed turn or the results of tools."""
        self._check(request)
        last = request.messages[-1]
        if last.role == "tool":
            reply = self._expect()
            await self._respond({result.tool_use_id: result for result in last.tool_results})
            return reply
        # Replies before this turn's belong to turns that were denied or failed; they are not played.
        while self._spoken and any(turn is self.turn for turn, _ in self._spoken):
            turn, reply = self._spoken.popleft()
            # If a hook has edited the transcript, the server has answered another text (rule 1).
            if turn is self.turn and last.text == getattr(turn, "text", ""):
                return reply
        reply = self._expect()
        turns = _contents(_unanswered(request.messages), self.model.name)
        await self.socket.send({"clientContent": {"turns": turns, "turnComplete": True}})
        return reply

    def _check(self, request: ModelRequest) -> None:
        self.refuse_options(request.options)
        options, first = request.options, request.messages[0]
        system = first.text if first.role == "system" else ""
        changed = [name for name in ("max_tokens", "extra") if getattr(options, name)]
        # "none", which agentflow sets at the iteration limit, is ignored: the protocol cannot express it.
        changed += ["tool_choice"] * (options.tool_choice not in (None, "auto", "none"))
        if changed or system != self._system or tuple([spec.name for spec in request.tools]) != self._tools:
            what = f"options.{changed[0]}" if changed else "another system prompt, or other tools"
            raise UsageError(
                f"A call of this voice session has {what}, but {self.model.name!r} takes these only when the session opens. "
                "Set them on the agent, or in params= of the model."
            )

    def _expect(self) -> LiveReply:
        """Create the reply to the next request."""
        reply = self.new_reply()
        if self._incoming is None:
            self._incoming = reply
        else:
            self._expected.append(reply)
        return reply

    async def _respond(self, results: Mapping[str, ToolResultBlock]) -> None:
        # `_continued` is the newest reply requested: the one that `_expect` has just created.
        calls, self._calls, self._continued = self._calls, [], self._expected[-1] if self._expected else self._incoming
        answers = [_response(call, results.get(call.id)) for call in calls]
        await self.socket.send({"toolResponse": {"functionResponses": answers}})

    async def settle(self, reply: LiveReply, complete: bool) -> None:
        """Do nothing: the protocol cannot cancel a reply, and does not record what was played."""

    async def turn_over(self) -> None:
        """Answer the tool calls of an interrupted agent call, so that the server continues; its reply to them is not played."""
        if self._calls:
            self._expect()
            await self._respond({})

    # ---- messages of the server

    async def handle(self, event: Mapping[str, Any]) -> None:
        """Handle a message; unknown fields are ignored."""
        # One message may have several of these fields; usage first, because `_finish` takes it.
        message = msgspec.convert(event, _LiveMessage)
        if message.usage_metadata is not None:
            self._tokens = message.usage_metadata
        if message.go_away is not None:
            logger.warning("{} will close the voice session soon: {}", self.model.name, message.go_away)
        if message.server_content is not None:
            self._content(message.server_content)
        if message.tool_call is not None and message.tool_call.function_calls:
            self._called(message.tool_call.function_calls)

    def _content(self, content: _LiveServerContent) -> None:
        if content.input_transcription is not None:
            self._user_said(content.input_transcription.text)
        if content.interrupted:
            self._interrupted = True
            if self.reply is self._incoming:  # otherwise a typed turn has interrupted it
                self.on_speech()
        audible = self.player is not None
        for part in content.model_turn.parts if content.model_turn is not None else ():
            if part.inline_data is not None and audible:
                self._put(ReplyPart("", audio=b64decode(part.inline_data.data, validate=True)))
            # If audio is played, its transcript is the text; parts with text would repeat it.
            elif part.text and not part.thought and not audible:
                self._put(ReplyPart("", chunk=text_chunk(part.text)))
        if content.output_transcription is not None and content.output_transcription.text and audible:
            self._put(ReplyPart("", chunk=text_chunk(content.output_transcription.text)))
        if content.turn_complete:
            self._finish("stop")

    def _user_said(self, text: str) -> None:
        """Record the user's words, which may arrive late, early, or while the agent still speaks."""
        if self._unheard is not None and text.strip():
            self._turn(text)
        # While a reply is generated, this text is from the turn that it answers, which was passed on already.
        elif self._incoming is None or self._interrupted:
            self._transcript += text
            if self.speaking and self.reply is not None and self.reply.ended:
                self.on_speech()  # the server assumes that all was played

    def _put(self, part: ReplyPart) -> None:
        # Output that no request expects; while tool calls wait for results, it belongs to no reply.
        if self._incoming is None and not self._calls:  # the answer to a spoken turn
            self._incoming = self._unheard = self.new_reply()
            if self._transcript.strip():
                self._turn(self._transcript)
        if self._incoming is not None:
            self._incoming.put(part)

    def _turn(self, transcript: str) -> None:
        """Pass on a spoken turn, with the reply that has begun."""
        reply, self._unheard, self._transcript = self._unheard, None, ""
        assert reply is not None
        turn = Msg.user(transcript.strip())
        self._spoken.append((turn, reply))
        self.on_turn(turn)

    def _called(self, calls: list[_LiveCall]) -> None:
        # Calls may arrive in several messages, and each needs an index of its own in the reply.
        start = len(self._calls)
        for index, call in enumerate(calls, start):
            delta = ToolUseDelta(index, call.id, call.name, dumps(call.args))
            self._put(ReplyPart("", chunk=ModelChunk(tool_uses=(delta,))))
        self._calls += calls
        self._finish("tool_calls")

    def _finish(self, reason: str) -> None:
        """End the reply. Some models end a turn a second time after its tool calls; that must not end the next reply."""
        reply = self._incoming
        repeated = reply is self._continued and not self._interrupted
        self._interrupted = False
        if reply is None or (repeated and not reply.begun):
            return
        # No transcript will come: the turn is passed on without one.
        if self._unheard is reply:
            self._turn(self._transcript.strip() or NO_TRANSCRIPT)
        used, self._tokens = self._tokens, _LiveTokens()
        output = used.response_token_count + used.thoughts_token_count
        usage = Usage(used.prompt_token_count, output, used.cached_content_token_count, 0, used.thoughts_token_count)
        reply.ended = True
        reply.put(ReplyPart("", chunk=ModelChunk(usage=usage, finish_reason=reason)))
        # The protocol has no ids: replies arrive in the order of the requests.
        self._incoming = self._expected.popleft() if self._expected else None


def _declaration(spec: ToolSpec) -> Content:
    # Sent as a JSON schema, since the field `parameters` accepts only a subset of OpenAPI's schemas.
    parameters: Content = {"type": "object", "properties": {}, **spec.parameters}
    return {"name": wire_name(spec.name), "description": spec.description, "parametersJsonSchema": parameters}


def _response(call: _LiveCall, result: ToolResultBlock | None) -> Content:
    if result is None:
        answer = {"error": "The call was interrupted."}
    else:
        # Gemini's documentation names these two keys.
        answer = {"output" if result.state == "success" else "error": result.text}
    return {"id": call.id, "name": call.name, "response": answer}


def _unanswered(messages: Sequence[Msg]) -> list[Msg]:
    """Return the messages after the model's last one."""
    found: list[Msg] = []
    for msg in reversed(messages):
        if msg.role == "assistant":
            break
        found.insert(0, msg)
    return found


def _contents(messages: Sequence[Msg], model: str) -> list[Content]:
    """Return messages in the vendor's form; the system prompt is part of the setup."""
    contents: list[Content] = []
    for msg in messages:
        parts = [part for block in msg.content if (part := _part(block, model)) is not None]
        if parts and msg.role != "system":
            contents.append({"role": "model" if msg.role == "assistant" else "user", "parts": parts})
    return contents


def _part(block: object, model: str) -> Content | None:
    match block:
        case TextBlock(text=text) if text:
            return {"text": text}
        case ToolUseBlock():
            return {"functionCall": {"id": block.id, "name": wire_name(block.name), "args": {**block.input}}}
        case ToolResultBlock():
            answer = {"output" if block.state == "success" else "error": block.text}
            return {"functionResponse": {"id": block.tool_use_id, "name": wire_name(block.name), "response": answer}}
        case DataBlock(media_type=kind) if kind.startswith("image/") and block.data is not None:
            return {"inlineData": {"mimeType": kind, "data": block.data}}
        case DataBlock():
            reason = "accepts text and images in addition to the user's voice"
            raise UnsupportedContentError(model, str(block), reason, block.media_type)
        case _:
            return None
