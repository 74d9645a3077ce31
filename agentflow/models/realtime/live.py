"""A realtime model and its open connection, which serves the calls of one `RealtimeSession`.

Rules:

1. The connection is read continuously, in one task of the session. The parts of a reply are queued (`LiveReply`), and read by
   the model call, in the order of arrival.
2. A model call takes as long as its speech. Audio is passed to the player, 100 ms at a time, and text becomes chunks in
   proportion. So an interrupted call has the text that was played, give or take a word.
3. Only the session's own calls are answered. A side call (`context.complete`) on this model would be spoken, so it is refused.
4. A broken connection fails the reply in progress and everything after it.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, ClassVar, TypeAlias, TypedDict

from agentflow._support.frozen import EMPTY
from agentflow._support.logs import logger
from agentflow._support.values import NamedTuple
from agentflow.errors import ModelError, UsageError
from agentflow.models.provider_errors import no_key
from agentflow.models.realtime.socket import JsonSocket
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import AnswerModes, ModelRequest
from agentflow.vocabulary.specs import ModelOptions, ToolSpec

PlayAudio: TypeAlias = Callable[[AsyncIterator[bytes]], Awaitable[None]]
"""Plays the audio of one reply. It requests the next chunk after it has played the last one. An interrupt cancels it."""

NO_TRANSCRIPT = "(speech without a transcript)"
"""The user's input if the provider could not transcribe it; the model still has the audio."""

live_connection: ContextVar[LiveConnection | None] = ContextVar("agentflow_live_connection", default=None)
"""The connection of the voice session that runs the current call."""

_CHUNK_SECONDS = 0.1  # a finer step would make more calls of the player, a coarser one a less exact position
_UNSUPPORTED = ("temperature", "top_p", "stop", "seed", "thinking", "answer_schema", "cache", "server_tools")


class RealtimeOptions(TypedDict, total=False):
    """The keywords of a `RealtimeModel`, for its subclasses."""

    voice: str | None
    params: Mapping[str, Any]
    api_key: str | None
    url: str | None
    timeout: float
    max_pending: float
    max_frame: int


class RealtimeModel(ABC):
    """A speech-to-speech model, for an agent that is used through `RealtimeSession`.

    Args:
        name: The model's name, with or without the vendor's prefix.
        voice: The voice; by default the server's.
        turn_detection: How the server detects the end of a turn, in its own format; with None, `session.commit()` ends it.
        params: Further fields of the session, in the server's format.
        api_key: The key; by default the vendor's environment variable.
        url: The address of the server, without the query; by default the vendor's.
        timeout: Maximum seconds without data from the provider within a reply, and maximum seconds to connect.
        max_pending: The maximum length of the audio that waits for the player, in seconds.
        max_frame: The largest frame to receive, in bytes.
    """

    _vendor: ClassVar[str]
    """The vendor's name."""
    _home: ClassVar[str]
    """The vendor's address."""
    _keys: ClassVar[tuple[str, ...]]
    """The environment variables of the key."""
    _other_keys: ClassVar[tuple[str, ...]] = ()
    """The environment variables of the key for other servers."""
    input_rate: ClassVar[int] = 24_000
    """The sample rate of the user's audio: 16-bit PCM, mono, little-endian."""
    output_rate: ClassVar[int] = 24_000
    """The sample rate of the model's audio, in the same format."""

    def __init__(
        self,
        name: str,
        *,
        voice: str | None = None,
        turn_detection: Mapping[str, Any] | None = EMPTY,
        params: Mapping[str, Any] = EMPTY,
        api_key: str | None = None,
        url: str | None = None,
        timeout: float = 60.0,
        max_pending: float = 600.0,
        max_frame: int = 4 << 20,
    ) -> None:
        self.model = name.removeprefix(f"{self._vendor}/")
        self._name = f"{self._vendor}/{self.model}"
        self.voice = voice
        self.turn_detection = turn_detection
        self.params = params
        self._api_key = api_key
        self._url = url
        self.timeout = timeout
        self.max_pending = max_pending
        self.max_frame = max_frame

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    async def answer_modes(self) -> AnswerModes:
        """Return the supported ways to request a typed answer."""
        return AnswerModes(native=False)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        """Answer the request over the connection of the session.

        Raises:
            ModelError: The provider failed, or the connection is broken.
            UsageError: The call does not belong to a `RealtimeSession` with this model, or is a side call.
        """
        live = live_connection.get()
        # A session's task also runs side calls and sub-agents, for which `expected` is false (rule 3).
        if live is None or live.model is not self or not live.expected:
            raise UsageError(
                f"The realtime model {self._name!r} answers only the turns of a RealtimeSession, because it speaks. Open one "
                "with this agent; for side calls and sub-agents use a text model (context.complete(model=...))."
            )
        return live.stream(request)

    @property
    def address(self) -> str:
        """The address of the websocket."""
        return self._url or self._home

    def key(self) -> str | None:
        """Return the key; the vendor's variables are read only for the vendor's own server.

        Raises:
            ModelError: There is no key for the vendor's server.
        """
        names = self._keys if self._url is None else self._other_keys
        key = self._api_key or next((key for name in names if (key := os.environ.get(name))), None)
        if key is None and self._url is None:
            raise no_key(self.name, names[0])
        return key

    @abstractmethod
    def live(self, player: PlayAudio | None) -> LiveConnection:
        """Create a connection that is not open yet.

        Args:
            player: Plays the replies; None asks the model for text.

        Raises:
            ModelError: There is no key for the vendor's server.
        """


class ReplyPart(NamedTuple):
    """A part of a reply: audio, or a chunk.

    Attributes:
        item: The provider's id of the part's message.
        audio: The audio data of this part.
        chunk: The chunk; one with a finish reason is the last part.
        start: The position of its text in the message.
    """

    item: str
    audio: bytes = b""
    chunk: ModelChunk | None = None
    start: int = 0


class LiveReply:
    """The received parts of one reply, in order.

    Attributes:
        said: The text that was passed on, by message.
        played: The number of played bytes of audio, by message.
        audio: The number of received bytes of audio, by message.
        length: The number of received characters of text, by message.
        begun: Whether a part of the reply has arrived.
        ended: Whether the provider has finished the reply.
    """

    def __init__(self, limit: int) -> None:
        self._parts: deque[ReplyPart] = deque()
        self._arrived = asyncio.Event()
        self._failure: Exception | None = None
        self._waiting = 0
        self.limit = limit
        self.begun = False
        self.said: dict[str, str] = {}
        self.played: Counter[str] = Counter()
        self.audio: Counter[str] = Counter()
        self.length: Counter[str] = Counter()
        self.ended = False

    def put(self, part: ReplyPart) -> None:
        """Add a part; audio above the limit fails the reply."""
        self.begun = True
        self._waiting += len(part.audio)
        if part.audio:
            self.audio[part.item] += len(part.audio)
        elif part.chunk is not None:
            text = part.chunk.text
            # `is_due` compares the position of a text with that of the audio.
            part = part._replace(start=self.length[part.item])
            self.length[part.item] += len(text)
        self._parts.append(part)
        if self._waiting > self.limit:
            self.fail(
                ModelError(
                    f"{self._waiting} bytes of a reply's audio wait for the player, more than max_pending= allows. The player "
                    "is too slow, or has stopped: check play=."
                )
            )
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        """Fail the reply immediately, and discard its queued parts."""
        # The first failure is the cause; later ones may be its consequences.
        self._failure = self._failure or error
        # Otherwise the parts received so far would be played before the error is raised.
        self._parts.clear()
        self._arrived.set()

    async def next(self) -> ReplyPart:
        """Wait for the next part."""
        while not self._parts:
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await self._arrived.wait()
        part = self._parts.popleft()
        self._waiting -= len(part.audio)
        return part

    def is_due(self, part: ReplyPart) -> bool:
        """Return whether the audio of a text has begun to play. The text is assumed to be spread evenly over the audio."""
        return part.start * self.audio[part.item] < self.played[part.item] * self.length[part.item]


class _Speech:
    """The audio of one reply, as an iterator for the player. A request for a chunk means that the previous one was played."""

    def __init__(self, player: PlayAudio) -> None:
        self._player = player
        self._task: asyncio.Future[None] | None = None
        # b"" means that no chunk waits, None that the reply is complete.
        self._next: bytes | None = b""
        self._current = b""
        self._ready = asyncio.Event()
        self._played = asyncio.Event()

    def __aiter__(self) -> _Speech:
        return self

    async def __anext__(self) -> bytes:
        self._current = b""
        self._played.set()
        await self._ready.wait()
        self._ready.clear()
        if self._next is None:
            raise StopAsyncIteration
        self._current, self._next = self._next, b""
        return self._current

    async def say(self, chunk: bytes) -> None:
        """Play a chunk."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._player(self))
            self._task.add_done_callback(self._player_ended)
        elif self._task.done():
            return self._task.result()  # the player failed or has returned
        self._next = chunk
        self._played.clear()
        self._ready.set()
        # The loop ends when the player requests the next chunk, or has ended.
        while not self._task.done() and (self._next or self._current):
            self._played.clear()
            await self._played.wait()
        return self._task.result() if self._task.done() else None

    def _player_ended(self, task: object) -> None:
        self._played.set()

    async def finish(self) -> None:
        """Wait until the player has played everything."""
        if self._task is not None:
            self._next = None
            self._ready.set()
            await self._task

    async def stop(self) -> None:
        """Stop the player."""
        if self._task is None:
            return
        if not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            logger.debug("The player of a voice session failed: {!r}", error)


class LiveConnection(ABC):
    """An open connection to a realtime model.

    Args:
        model: The model.
        player: Plays its replies; None asks for text.

    Attributes:
        model: The model.
        expected: Whether the session's call requests a reply, or is about to do so.
        speaking: Whether a reply is being generated or played.
        turn: The turn of the current call: the argument of `on_turn`, or the typed text.
        on_turn: Called with the transcript of the user's speech.
        on_speech: Called when the user begins to speak.
    """

    def __init__(self, model: RealtimeModel, player: PlayAudio | None) -> None:
        self.model = model
        self.player = player
        self.key = model.key()
        self.secrets = [self.key] if self.key else []
        self.socket = JsonSocket(model.name, self.secrets)
        self.expected = self.speaking = False
        self.turn: object = None
        self.on_turn: Callable[[str | Msg], None] = _ignore
        self.on_speech: Callable[[], None] = _ignore_speech
        self.failure: ModelError | None = None
        self.reply: LiveReply | None = None

    # ---- implemented for each provider

    @abstractmethod
    async def open(self, system: object, tools: Sequence[ToolSpec], history: Sequence[Msg]) -> None:
        """Connect, and configure the session.

        The system prompt, tools and history are for providers that accept them only now.
        """

    @abstractmethod
    async def send_audio(self, audio: bytes) -> None:
        """Send the user's audio."""

    @abstractmethod
    async def commit(self) -> None:
        """End the user's turn, if the provider does not detect it."""

    @abstractmethod
    async def request(self, request: ModelRequest) -> LiveReply:
        """Request a reply."""

    @abstractmethod
    async def settle(self, reply: LiveReply, complete: bool) -> None:
        """Finish a reply, which was played completely or interrupted."""

    @abstractmethod
    async def handle(self, event: Mapping[str, Any]) -> None:
        """Handle an event of the server."""

    async def turn_over(self) -> None:  # noqa: B027 - optional
        """Handle the end of one of the session's calls; not called for a suspended call."""

    # ---- shared

    async def first(self, name: str) -> dict[str, Any]:
        """Wait for an event of type `name`, a message with the field `name`, or an error, before `listen` begins."""
        try:
            async with asyncio.timeout(self.model.timeout):
                while True:
                    event = await self.socket.receive()
                    if name in event or event.get("type") in (name, "error"):
                        return event
        except TimeoutError:
            raise ModelError(
                f"{self.model.name} opened no voice session within {self.model.timeout:g} s. Try again, or raise timeout=.",
                retryable=True,
                model=self.model.name,
            ) from None

    async def listen(self) -> None:
        """Handle events until the connection ends; then the reply in progress fails."""
        try:
            while True:
                event = await self.socket.receive()
                try:
                    await self.handle(event)
                except ValueError as error:  # msgspec.ValidationError is one
                    what = f"{self.model.name} sent an event in an unknown form ({error})."
                    raise ModelError(
                        f"{what} The voice session has ended; open another one.", model=self.model.name
                    ) from error
        except ModelError as error:
            logger.warning("The voice session with {} has ended: {}", self.model.name, error)
            self.failure = error
            if self.reply is not None:
                self.reply.fail(error)

    def release(self) -> None:
        """Drop the references to the session, which holds this connection."""
        self.on_turn, self.on_speech, self.turn = _ignore, _ignore_speech, None

    def check(self) -> None:
        """Raise the error that broke the connection, if it is broken."""
        if self.failure is not None:
            raise self.failure

    def new_reply(self) -> LiveReply:
        """Create a reply that fails if more audio waits than the model's `max_pending`."""
        return LiveReply(int(self.model.max_pending * self.model.output_rate * 2))

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        """Yield the chunks of one reply, while its audio is played."""
        self.check()
        speech = None if self.player is None else _Speech(self.player)
        reply: LiveReply | None = None
        complete = False
        try:
            reply = self.reply = await self.request(request)
            self.speaking = True
            async with aclosing(self._paced(reply, speech)) as parts:
                async for item, _, chunk, _ in parts:
                    assert chunk is not None
                    if chunk.finish_reason is not None:
                        # Reset with the last chunk: hooks that run after the reply may make side calls, which must be refused.
                        complete, self.expected = True, False
                    # Recorded before the yield, because a consumer that is interrupted there has received the chunk.
                    reply.said[item] = reply.said.get(item, "") + chunk.text
                    yield chunk
        finally:
            self.speaking, self.reply = False, None
            # First, so that `played` is final when `settle` reports it.
            if speech is not None:
                await speech.stop()
            # Nothing can be sent over a broken connection.
            if reply is not None and self.failure is None:
                try:
                    await self.settle(reply, complete)
                except ModelError as error:  # the next call raises the error
                    logger.debug("A reply of a voice session could not be finished: {}", error)

    async def _paced(self, reply: LiveReply, speech: _Speech | None) -> AsyncGenerator[ReplyPart, None]:
        """Play the audio of a reply, and yield its chunks as they are played."""
        # Counted in bytes: two for each sample.
        size = int(_CHUNK_SECONDS * self.model.output_rate) * 2
        waiting: deque[ReplyPart] = deque()
        last = False
        while not last:
            part = await self._next(reply)
            last = part.chunk is not None and part.chunk.finish_reason is not None
            if part.chunk is not None:
                waiting.append(part)
            elif speech is not None:
                for start in range(0, len(part.audio), size):
                    audio = part.audio[start : start + size]
                    # Returns when the player has played the chunk, which sets the pace of the whole call (rule 2).
                    await speech.say(audio)
                    reply.played[part.item] += len(audio)
                    while waiting and reply.is_due(waiting[0]):
                        yield waiting.popleft()
            if last and speech is not None:
                await speech.finish()
            # The rest of the text, at the end; without a player, each chunk on arrival.
            while waiting and (last or speech is None):
                yield waiting.popleft()

    async def _next(self, reply: LiveReply) -> ReplyPart:
        try:
            async with asyncio.timeout(self.model.timeout):
                return await reply.next()
        except TimeoutError:
            raise ModelError(
                f"{self.model.name} sent nothing for {self.model.timeout:g} s within a reply. Try again, or raise timeout=.",
                retryable=True,
                model=self.model.name,
            ) from None

    def refuse_options(self, options: ModelOptions) -> None:
        """Refuse options that realtime models do not have.

        Raises:
            UsageError: The request has such an option.
        """
        for name in _UNSUPPORTED:
            if getattr(options, name) is not None:
                raise UsageError(
                    f"The realtime model {self.model.name!r} does not support options.{name}. Leave it out of the options of "
                    "the agent and of the session."
                )


def _ignore(turn: str | Msg) -> None: ...


def _ignore_speech() -> None: ...
