"""The part of a realtime server's connection that both protocols share: frames, speech detection, the script.

`realtime.py` has the rules.
"""

from __future__ import annotations

import asyncio
import math
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Final, TypeAlias

from aiohttp import WSMsgType, web

from agentflow._support.json_text import read_json_text
from agentflow.testing.wire.jsonish import dump
from agentflow.testing.wire.reply import Say, WireReply

# `Any`: events contain JSON.
Event = dict[str, Any]

Spoken: TypeAlias = "WireReply | str | Callable[[RealtimePeer], Awaitable[None]]"
"""A reply, or a function that sends any data over a connection instead."""

PER_CHARACTER: Final = 0.04
"""The seconds of audio for each character of a reply."""
_SILENCE: Final = 0.2  # seconds that end a turn
_FRAME: Final = 0.02


def tone(seconds: float, rate: int = 24_000) -> bytes:
    """Return a tone as 16-bit PCM, mono, which a realtime server detects as speech.

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


class RealtimeTraffic:
    """The script of a realtime server, and its record.

    Attributes:
        script: The remaining replies.
        heard: The remaining transcripts.
        received: The events of all clients, in order.
        sent: The events of the server.
        refused: The vendor's errors for events of clients.
        contexts: The conversation before each reply: the role or type of each item, and its text.
    """

    def __init__(self, script: Sequence[Spoken], heard: Sequence[str | None]) -> None:
        self.script: deque[Spoken] = deque(script)
        self.heard: deque[str | None] = deque(heard)
        self.received: list[Event] = []
        self.sent: list[Event] = []
        self.refused: list[str] = []
        self.contexts: list[list[tuple[str, str]]] = []


class RealtimePeer(ABC):
    """A connection of a realtime server, over which functions of the script can send.

    Args:
        server: The server.
        socket: The websocket.
        transport: The transport of the websocket.

    Attributes:
        path: The path of the websocket's address.
        input_rate: The samples per second of the client's audio.
    """

    path: ClassVar[str]
    input_rate: ClassVar[int]

    def __init__(
        self, server: RealtimeTraffic, socket: web.WebSocketResponse, transport: asyncio.Transport | None
    ) -> None:
        self.server = server
        self.socket = socket
        self._transport = transport
        self.replying: asyncio.Task[None] | None = None
        self.count = 0
        self._voice = bytearray()
        self._speaking = False
        self._silence = 0  # in bytes

    @staticmethod
    @abstractmethod
    def refusal(request: web.Request) -> web.StreamResponse | None:
        """Return the answer to a handshake that the vendor refuses, or None."""

    async def greet(self) -> None:  # noqa: B027 - not every vendor sends an event first
        """Send the first event."""

    @abstractmethod
    async def handle(self, event: Event) -> None:
        """Handle an event of the client."""

    @abstractmethod
    async def refuse(self, error: RefusedEventError, event: Event) -> None:
        """Refuse an event as the vendor does."""

    @abstractmethod
    async def heard_start(self) -> None:
        """Handle the start of speech."""

    @abstractmethod
    async def heard_end(self, voice: bytes) -> None:
        """Handle the end of a turn."""

    async def send(self, event: Event) -> None:
        """Send an event."""
        self.server.sent.append(event)
        await self.raw(dump(event))

    async def raw(self, text: str) -> None:
        """Send a frame unchanged."""
        await self.socket.send_str(text)

    async def abort(self) -> None:
        """Close the connection without a closing handshake."""
        if self._transport is not None:
            self._transport.abort()

    async def serve(self) -> None:
        """Handle events until the client disconnects."""
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
                # The other errors come from a handler that reads an event with a wrong structure.
                is_refusal = isinstance(error, RefusedEventError)
                refused = error if is_refusal else RefusedEventError(f"{type(error).__name__}: {error}")
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
        """Detect speech and its end in the client's audio."""
        frame, rate = int(_FRAME * self.input_rate) * 2, self.input_rate * 2
        for start in range(0, len(audio), frame):
            part = audio[start : start + frame]
            voiced = any(part)
            if voiced and not self._speaking:
                self._speaking = True
                await self.heard_start()
            if self._speaking:
                self._voice += part
                self._silence = 0 if voiced else self._silence + len(part)
                if self._silence >= _SILENCE * rate:
                    voice, self._voice = bytes(self._voice), bytearray()
                    self._speaking, self._silence = False, 0
                    await self.heard_end(voice)


def refuse_unknown(fields: Event, names: frozenset[str] | set[str], where: str) -> None:
    """Refuse an event with fields other than the known names.

    Raises:
        RefusedEventError: There is another field.
    """
    if unknown := sorted(fields.keys() - names):
        raise RefusedEventError(f"Unknown parameter: '{where}.{unknown[0]}'.", "unknown_parameter")
