"""A websocket to a provider, using aiohttp: JSON objects out, JSON objects in.

Rules:

1. The session that opened the websocket owns it, and closes it on every path.
2. Every failure is a `ModelError`: a refused handshake, a lost connection, a frame that is too large or not a JSON object.
3. Proxy and certificates come from the environment, as for the direct wires (`http.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from agentflow._support.json_text import read_json_text
from agentflow.errors import ModelError
from agentflow.models.environment import certificates, proxy_for
from agentflow.models.http import failures, loaded
from agentflow.models.provider_errors import ProviderError, model_error
from agentflow.vocabulary.saving.plain import dumps

if TYPE_CHECKING:
    import aiohttp

_HEARTBEAT = 20.0  # seconds; a connection without a pong is lost


class JsonSocket:
    """An open websocket.

    Args:
        model: The model's name, for errors.
        secrets: Texts that errors must not show.
    """

    def __init__(self, model: str, secrets: Sequence[str]) -> None:
        self._model = model
        self._secrets = secrets
        self._client: aiohttp.ClientSession | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None

    async def open(self, url: str, headers: Mapping[str, str], *, timeout: float, max_frame: int) -> None:
        """Connect.

        Args:
            url: The address (`wss://…`).
            headers: Additional headers, including the key's.
            timeout: The longest time to connect, in seconds.
            max_frame: The largest frame to receive, in bytes.

        Raises:
            ModelError: The server is unreachable, or refuses the connection.
        """
        await loaded()
        import aiohttp

        # The proxy variables know only the schemes http and https.
        over_http = f"http{url.removeprefix('ws')}"
        # Not the shared client of `http.py`: this one is closed with its websocket (rule 1).
        self._client = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=None, sock_connect=timeout)
        )
        failure: Exception
        try:
            self._socket = await self._client.ws_connect(
                url,
                headers=headers,
                heartbeat=_HEARTBEAT,
                max_msg_size=max_frame,
                ssl=certificates(),
                proxy=proxy_for(over_http),
            )
            return
        except aiohttp.WSServerHandshakeError as error:
            failure = ProviderError(error.message, error.status, dict(error.headers or {}))
        except failures() as error:
            failure = error
        # Outside the `except` block, so that the client's error, which may show the key, is not chained.
        await self.close()
        raise model_error(failure, self._model, secrets=self._secrets, address=over_http)

    async def send(self, event: Mapping[str, Any]) -> None:
        """Send an object.

        Raises:
            ModelError: The connection is lost.
        """
        try:
            if self._socket is None or self._socket.closed:
                raise ConnectionResetError("the connection is closed")
            await self._socket.send_str(dumps(event))
        except failures() as error:
            failure = error
        else:
            return
        raise self._lost_error(failure)

    async def receive(self) -> dict[str, Any]:
        """Return the next object.

        Raises:
            ModelError: The connection is lost, or the frame is too large or not a JSON object.
        """
        from aiohttp import WSMsgType

        assert self._socket is not None
        frame = await self._socket.receive()
        if frame.type in (WSMsgType.TEXT, WSMsgType.BINARY):  # Gemini sends JSON in binary frames
            try:
                value = read_json_text(frame.data)
            except ValueError as error:
                raise self._unreadable(f"a frame that is not JSON ({error})") from None
            if not isinstance(value, dict):
                raise self._unreadable(f"a frame with a {type(value).__name__} instead of an object")
            return cast("dict[str, Any]", value)
        if frame.type is WSMsgType.ERROR:
            raise self._lost_error(frame.data)  # the data is the error, such as a frame that is too large
        # All other frames mean that the connection is closed; aiohttp answers pings itself.
        code = self._socket.close_code
        reason = frame.extra if frame.type is WSMsgType.CLOSE else ""
        raise self._lost_error(
            ConnectionResetError(f"the server closed the connection ({code}){f': {reason}' * bool(reason)}")
        )

    async def close(self) -> None:
        """Close the websocket. Closing it twice is allowed."""
        # Cleared before the first await, so that a concurrent second `close` does nothing.
        socket, client, self._socket, self._client = self._socket, self._client, None, None
        try:
            if socket is not None:
                await socket.close()
        finally:
            if client is not None:
                await client.close()

    def _unreadable(self, what: str) -> ModelError:
        return ModelError(
            f"{self._model} sent {what}. The voice session has ended; open another one.", model=self._model
        )

    def _lost_error(self, error: BaseException) -> ModelError:
        return model_error(error, self._model, secrets=self._secrets)
