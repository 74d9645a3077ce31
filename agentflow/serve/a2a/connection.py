"""The connection to a remote agent: its card, within limits, and the meaning of failures.

Rules:

1. A card is not trusted: it may name addresses only of its own origin, or of origins that the program lists.
2. Every response is limited in size, redirects are not followed, and compressed responses are refused.
3. A failure is retryable only if the message was not sent, or was rejected with status 429 or 503.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from agentflow._support.shown import one_line
from agentflow.errors import ModelError, ModelFault, UsageError
from agentflow.serve.a2a.sdk import A2AError, AgentCardResolutionError, client, httpx, types

_CONNECT_SECONDS: Final = 10.0
_MAX_LENGTH: Final = 500
_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


class ResponseLimitError(Exception):
    """A response is larger than allowed, or compressed."""


def shown(text: str) -> str:
    """Return a remote text for an error: one line, of limited length."""
    return one_line(text[: 4 * _MAX_LENGTH])[:_MAX_LENGTH]


def origin(url: str) -> str:
    """Return scheme, host and port of an address.

    Raises:
        UsageError: It is not an HTTP address, or it contains a password.
    """
    try:
        address = httpx.URL(url)
    except (httpx.InvalidURL, TypeError, ValueError) as error:
        raise UsageError(f"{url!r:.200} is not the address of a remote agent.") from error
    if address.scheme not in ("http", "https") or not address.host:
        raise UsageError(f"A remote agent has an address such as 'https://host/agent', not {url!r:.200}.")
    if address.userinfo:
        raise UsageError("The address of a remote agent must not contain a password. Pass token= or headers=.")
    return f"{address.scheme}://{address.host}:{address.port or (443 if address.scheme == 'https' else 80)}"


class RemoteConnection:
    """The connection to a remote agent.

    Args:
        url: Its address; the card is below it.
        headers: HTTP headers of each request.
        origins: Further origins that the card may name.
        timeout: Seconds for a whole answer.
        max_bytes: The largest response.

    Raises:
        UsageError: An argument is invalid.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], origins: Sequence[str], timeout: float, max_bytes: int
    ) -> None:
        if isinstance(origins, str):
            raise UsageError("origins= takes a list: origins=['https://host'].")
        if not (timeout > 0 and max_bytes > 0):
            raise UsageError("timeout= and max_bytes= must be above 0.")
        self.url = url.rstrip("/")
        self.name = f"a2a:{origin(url).partition('://')[2]}{httpx.URL(url).path.rstrip('/')}"
        self.timeout = timeout
        # a small compressed response could become a huge one
        self._headers = {**headers, "accept-encoding": "identity"}
        self._origins = {origin(url), *map(origin, origins)}
        self._max_bytes = max_bytes
        self._card: types.AgentCard | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[client.Client]:
        """Open a connection for one answer.

        Raises:
            ModelError: The remote agent is unreachable, or its card is unusable.
        """
        async with self._http() as http:
            card = self._card or await self._fetch(http)
            config = client.ClientConfig(httpx_client=http, supported_protocol_bindings=["JSONRPC", "HTTP+JSON"])
            try:
                connection = client.ClientFactory(config).create(card)
            except Exception as error:
                raise self._error("has a card that names no protocol of this client (JSONRPC, HTTP+JSON)") from error
            self._card = card
            yield connection

    async def card(self) -> types.AgentCard:
        """Fetch the card.

        Raises:
            ModelError: The remote agent is unreachable, or its card is unusable.
        """
        async with self._http() as http:
            return await self._fetch(http)

    def forget(self) -> None:
        """Fetch the card again before the next message."""
        self._card = None

    def _http(self) -> httpx.AsyncClient:
        async def limit(response: httpx.Response) -> None:
            if response.headers.get("content-encoding", "identity") != "identity":
                raise ResponseLimitError("the response is compressed, which was not requested")
            response.stream = LimitedStream(response.stream, self._max_bytes)

        return httpx.AsyncClient(
            headers=self._headers,
            timeout=httpx.Timeout(self.timeout, connect=_CONNECT_SECONDS),
            event_hooks={"response": [limit]},
        )

    async def _fetch(self, http: httpx.AsyncClient) -> types.AgentCard:
        try:
            card = await client.A2ACardResolver(http, self.url).get_agent_card()
        except Exception as error:
            raise self.failure(error, "its card could not be read", sent=False) from error
        allowed = types.AgentCard()
        allowed.CopyFrom(card)
        del allowed.supported_interfaces[:]
        allowed.supported_interfaces.extend([offer for offer in card.supported_interfaces if self._allows(offer.url)])
        if not allowed.supported_interfaces:
            named = shown(", ".join([offer.url for offer in card.supported_interfaces]) or "no address")
            fix = "If the address is right, pass origins=['https://host']."
            raise self._error(f"has a card that names {named}, which is not of its own origin. {fix}")
        return allowed

    def _allows(self, url: str) -> bool:
        try:
            return origin(url) in self._origins
        except UsageError:
            return False

    def _error(self, text: str, *, retryable: bool = False, kind: ModelFault | None = None) -> ModelError:
        return ModelError(f"The remote agent {self.name} {text}", model=self.name, retryable=retryable, kind=kind)

    def failure(self, error: Exception, step: str, *, sent: bool) -> ModelError:
        """Return the error for a failed request.

        Args:
            error: The error of the SDK.
            step: The failed step.
            sent: Whether the message may have arrived.
        """
        if isinstance(error, ModelError):
            return error
        cause = error.__cause__ if error.__cause__ is not None else error  # the SDK wraps the errors of httpx
        reason = shown(str(error)) or type(error).__name__
        text = f"failed, {step}: {reason}"
        match cause:
            case httpx.HTTPStatusError(response=response):
                return self._of_status(response, f"answered with status {response.status_code}, {step}", sent)
            case _ if isinstance(cause, _NOT_SENT):
                return self._error(f"is unreachable, {step}: {reason}", retryable=True)
            case httpx.RequestError():
                return self._error(text, retryable=not sent)
            case types.ContentTypeNotSupportedError():
                return self._error(text, kind="unsupported_content")
            case A2AError() | ResponseLimitError() if not isinstance(cause, AgentCardResolutionError):
                return self._error(text)
            case _:
                return self._error(f"sent an invalid message, {step}: {reason}")

    def _of_status(self, response: httpx.Response, text: str, sent: bool) -> ModelError:
        status, wait = response.status_code, response.headers.get("retry-after", "")
        kinds: dict[int, ModelFault] = {401: "authentication", 403: "authentication", 429: "rate_limit"}
        fix = " Pass token= or headers=." if status in (401, 403) else ""
        return ModelError(
            f"The remote agent {self.name} {text}.{fix}",
            model=self.name,
            status=status,
            kind=kinds.get(status),
            retryable=status in (429, 503) or (status >= 500 and not sent),
            # A number of seconds; dates, and numbers of more than five digits, are ignored.
            retry_after=float(wait) if wait.isascii() and wait.isdecimal() and len(wait) < 6 else None,
        )


class LimitedStream(httpx.AsyncByteStream):
    """A response's bytes, up to a limit.

    Args:
        stream: The bytes.
        limit: The maximum number of bytes.
    """

    def __init__(self, stream: object, limit: int) -> None:
        assert isinstance(stream, httpx.AsyncByteStream)
        self._stream = stream
        self._limit = limit

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        """Yield the bytes.

        Raises:
            ResponseLimitError: The limit is exceeded.
        """
        remaining = self._limit
        async for chunk in self._stream:
            remaining -= len(chunk)
            if remaining < 0:
                raise ResponseLimitError(f"the response has more than {self._limit} bytes (max_bytes=)")
            yield chunk

    async def aclose(self) -> None:
        """Close the response."""
        await self._stream.aclose()
