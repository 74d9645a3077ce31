"""Local websocket servers for the realtime protocols of OpenAI and Gemini: a scripted model that hears and speaks, offline.

Rules:

1. A server binds only to 127.0.0.1. It requires a key, and accepts any.
2. It has the vendor's state: the input buffer, the conversation, the reply in progress. An event that is illegal in this
   state is refused with the vendor's error, which is recorded in `refused`.
3. Audio that is not silent counts as speech; 200 ms of silence end a turn.
4. A reply's audio is a tone of 40 ms for each character of its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from aiohttp import web

from agentflow.testing.wire.realtime_gemini import GeminiPeer
from agentflow.testing.wire.realtime_openai import OpenAIPeer
from agentflow.testing.wire.realtime_peer import RealtimePeer, RealtimeTraffic, Spoken, tone

__all__ = ["RealtimePeer", "RealtimeServer", "Spoken", "tone"]


class RealtimeServer(RealtimeTraffic):
    """A scripted model that hears and speaks. Create it with `openai` or `gemini`, and enter it with `async with`.

    Attributes:
        received: The events of all clients, in order.
        sent: The events of the server.
        refused: The vendor's errors for events of clients.
        contexts: The conversation before each reply: the role or type of each item, and its text.

    Example:
        >>> RealtimeServer.openai(["Hello."], heard=["Hi"]).refused
        []
    """

    def __init__(self, peer: type[RealtimePeer], script: Sequence[Spoken], heard: Sequence[str | None]) -> None:
        super().__init__(script, heard)
        self._peer = peer
        self._runner: web.AppRunner | None = None
        self._port = 0
        self.peers: list[RealtimePeer] = []

    @classmethod
    def openai(cls, script: Sequence[Spoken], *, heard: Sequence[str | None] = ()) -> Self:
        """Create a server for OpenAI's Realtime API.

        Args:
            script: The replies in order.
            heard: The transcripts of the users' speech, in order; None for a transcription that fails.
        """
        return cls(OpenAIPeer, script, heard)

    @classmethod
    def gemini(cls, script: Sequence[Spoken], *, heard: Sequence[str | None] = ()) -> Self:
        """Create a server for Gemini's Live API.

        Args:
            script: The replies in order.
            heard: The transcripts of the users' speech, in order; None for speech without a transcript.
        """
        return cls(GeminiPeer, script, heard)

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

    async def __aexit__(self, *_: object) -> None:
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
