"""The base class of the direct wires, the adapters that use a provider's HTTP API without LiteLLM.

Rules:

1. A subclass builds the request and reads each event; everything else is shared. Failures are `ModelError`s.
2. The vendor's key is sent only to the vendor's host, or to the one set in the vendor's URL variable.
3. The connection is closed at once on every path, except after a reply that was read to its end: the next request reuses it.
4. A failure after the finish reason only loses the usage, not the reply.
"""

from __future__ import annotations

import asyncio
import os
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypedDict
from urllib.parse import urlsplit

import msgspec

from agentflow._support.frozen import EMPTY
from agentflow._support.json_text import read_json_text
from agentflow._support.shown import without_password
from agentflow.errors import ModelError, UsageError
from agentflow.models.adapter import Adapter, modes_of
from agentflow.models.conversion import Conversation
from agentflow.models.counting import count_here, limit_of
from agentflow.models.http import NO_JSON, TLS, failures, finish, loaded, refusal, send
from agentflow.models.listing import listed, price
from agentflow.models.loose import NotUnderstoodError
from agentflow.models.profiles import Family
from agentflow.models.provider_errors import ProviderError, broken_stream, chain_of, model_error, no_key
from agentflow.models.sse import EventReader, EventTooLargeError
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.ports.answer_origin import noting_origin
from agentflow.vocabulary.ports.model import AnswerModes, ModelRequest, TokenCount
from agentflow.vocabulary.saving.plain import dumps
from agentflow.vocabulary.specs import Usage

if TYPE_CHECKING:
    import aiohttp

_MAX_ANSWER_BYTES = 1 << 20
# Bodies of all other types are read as a stream, because servers send streams with any type.
_NO_STREAM = ("application/json", "text/html")
_json = msgspec.json.Encoder()
_decode = msgspec.json.Decoder().decode


def encode(body: object) -> bytes:
    """Encode a body as JSON."""
    try:
        return _json.encode(body)
    except UnicodeEncodeError:  # a text of a user or a hook contains half of a surrogate pair
        return dumps(body).encode()


class Vendor(NamedTuple):
    """The vendor of a wire.

    Attributes:
        provider: LiteLLM's name of the vendor, the first part of a model's name.
        base: The URL of the vendor's API.
        bases: Environment variables for another URL.
        keys: Environment variables for the key; the first one that is set is used.
        other_keys: Environment variables for the key of other servers.
    """

    provider: str
    base: str
    bases: tuple[str, ...]
    keys: tuple[str, ...]
    other_keys: tuple[str, ...]


class WireOptions(TypedDict, total=False):
    """The keywords of a direct wire, for its subclasses; `DirectWire` describes them."""

    api_base: str | None
    api_key: str | None
    retries: int
    max_wait: float
    timeout: float
    connect_timeout: float
    headers: Mapping[str, str] | None
    params: Mapping[str, Any]
    family: Family | None
    tls: TLS
    sleep: Callable[[float], Awaitable[None]]


class Named(NamedTuple):
    """The parts of a model's name."""

    name: str
    model: str
    base: str | None


class Reader(Protocol):
    """Reads the events of one reply."""

    finish_reason: str | None
    ended: bool
    """Whether the end mark was read."""

    def read(self, data: bytes) -> Iterable[ModelChunk]:
        """Return the chunks of one event.

        Raises:
            ProviderError: The event is an error.
            NotUnderstoodError: The event has meaningful data in an unknown form.
            msgspec.DecodeError: The event is not JSON.
        """
        ...


class DirectWire(Adapter):
    """A model reached without LiteLLM.

    Args:
        name: The model's name, with or without the vendor's name before it.
        api_base: The server's URL; by default the vendor's own, or the vendor's environment variable.
        api_key: The key; by default the vendor's environment variable.
        retries: Extra attempts if a call fails temporarily.
        max_wait: The longest wait before another attempt, in seconds. If the provider asks for more, the error is raised.
        timeout: Maximum seconds without data from the provider, before the reply and between its chunks.
        connect_timeout: The longest time to connect, in seconds, including the TLS handshake; a shorter `timeout`
            takes precedence.
        headers: Additional HTTP headers.
        params: Further fields of each request.
        family: The model's family, if the name does not show it: for a proxy or a gateway.
        tls: How the server's certificate is checked: an `ssl.SSLContext`, True (by `SSL_CERT_FILE` or `SSL_CERT_DIR`, else by
            the system's certificates) or False (no check).
        max_event: The largest event of a stream, in bytes.
        sleep: The function that waits between attempts.
    """

    vendor: ClassVar[Vendor]

    def __init__(
        self,
        name: str,
        *,
        api_base: str | None = None,
        api_key: str | None = None,
        retries: int = 2,
        max_wait: float = 60.0,
        timeout: float = 600.0,
        connect_timeout: float = 10.0,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] = EMPTY,
        family: Family | None = None,
        tls: TLS = True,
        max_event: int = 1 << 24,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        named = self._parts(name.strip())
        self._model, api_base = named.model, api_base or named.base
        super().__init__(
            named.name if named.model else "",
            api_base=api_base,
            api_key=api_key,
            retries=retries,
            max_wait=max_wait,
            timeout=timeout,
            headers=headers,
            params=params,
            family=family,
            sleep=sleep,
        )
        if api_base is not None and (wrong := _wrong_in(api_base)) is not None:
            raise UsageError(f"{self!r}: api_base={without_password(api_base)!r} is invalid: {wrong}.")
        self._connect_timeout = connect_timeout
        self._tls = tls
        self._max_event = max_event
        self._row: Mapping[str, object] = EMPTY

    @classmethod
    def _parts(cls, name: str) -> Named:
        """Return the full name, the server's name for the model, and the server's URL."""
        model = name.removeprefix(f"{cls.vendor.provider}/")
        return Named(f"{cls.vendor.provider}/{model}", model, None)

    async def answer_modes(self) -> AnswerModes:
        """Return the supported ways to request an answer that fits a schema."""
        family = (await self._known()).profile.family
        return modes_of(family, self._name, self._row)

    @property
    def context_limit(self) -> int | None:
        """The size of the model's context window in tokens, from LiteLLM's list."""
        self._converter()
        return limit_of(self._row)

    async def count_tokens(self, request: ModelRequest) -> TokenCount:
        """Count a request's tokens before it is sent."""
        return await count_here(request, self._name, (await self._known()).profile.family)

    async def _ready(self, request: ModelRequest) -> Conversation:
        await loaded()
        return await self._known()

    async def _known(self) -> Conversation:
        """Return the model's converter; the list of models is read in a thread."""
        if self._conversation is None:
            await asyncio.to_thread(listed, self.vendor.provider, self._model)
        return self._converter()

    def _converter(self) -> Conversation:
        """Return the model's converter; created on first use."""
        if self._conversation is None:
            provider = self.vendor.provider
            self._row = listed(provider, self._model)
            self._conversation = self._conversation_for(provider, self._model, self._row, self._elsewhere())
        return self._conversation

    async def _attempt(self, request: ModelRequest, conversation: Conversation) -> AsyncGenerator[ModelChunk, None]:
        extra = request.options.extra
        body = {**self._body(request, conversation), **self._extra_fields(extra)}
        reader = noting_origin(self._url(), self._reader(conversation))
        response: aiohttp.ClientResponse | None = None
        failure: ModelError | None = None
        try:
            response = await self._post(self._url(), body, extra.get("extra_headers") or EMPTY)
            # `readany` returns what has arrived, without waiting to fill a chunk.
            next_part = response.content.readany
            part = b""
            if not 200 <= response.status < 300 or response.status == 204:
                raise await refusal(response)
            # Read here if the head looks wrong; the loop below continues with this part.
            if response.content_type in _NO_STREAM and not _begins_a_stream(part := await next_part()):
                raise await refusal(response, part)
            events = EventReader(self._max_event)
            while not reader.ended and (part := part or await next_part()):
                for data in events.feed(part):
                    # A consumer that stops reading closes this generator here; `finally` closes the connection.
                    for chunk in reader.read(data):
                        yield chunk
                    # Anything after the end mark is left to `finish`.
                    if reader.ended:
                        break
                part = b""
            # Some servers omit the blank line after the last event.
            for data in () if reader.ended else events.rest():
                for chunk in reader.read(data):
                    yield chunk
            if reader.finish_reason is None:
                raise broken_stream(self._name)
            await finish(response)
        except (*failures(), *NO_JSON, ProviderError, NotUnderstoodError, EventTooLargeError) as error:
            if reader.finish_reason is None:
                failure = self._failed(error, self._url(), extra)
        finally:
            if response is not None:
                # No effect after `finish` released the connection.
                response.close()
        if failure is not None:
            raise failure  # outside the `except` block, so that the original error does not become the context of this one

    def _post(
        self, url: str, body: Mapping[str, object], headers: Mapping[str, str] = EMPTY
    ) -> Awaitable[aiohttp.ClientResponse]:
        return self._send("POST", url, encode(body), headers)

    def _send(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = EMPTY,
        *,
        repeatable: bool = True,
    ) -> Awaitable[aiohttp.ClientResponse]:
        return send(
            url,
            body,
            # The more specific setting wins: first the request's headers, then the model's, then the vendor's.
            {**self._signed(), **(self._headers or {}), **headers},
            timeout=self._timeout,
            connect_timeout=self._connect_timeout,
            tls=self._tls,
            method=method,
            repeatable=repeatable,
        )

    async def _post_json(
        self, url: str, body: Mapping[str, object], max_bytes: int = _MAX_ANSWER_BYTES
    ) -> Mapping[str, object]:
        """Send a request to another URL of the vendor, and return its answer, an object.

        Raises:
            ModelError: The vendor refused the request, was unreachable, or sent something other than an object.
        """
        return await self._json_of(self._post(url, body), url, max_bytes)

    async def _json_of(
        self, sent: Awaitable[aiohttp.ClientResponse], url: str, max_bytes: int = _MAX_ANSWER_BYTES
    ) -> Mapping[str, object]:
        """Return the answer of a request, an object.

        Raises:
            ModelError: As for `_post_json`.
        """
        failure: ModelError
        try:
            response = await sent
            async with response:
                if response.status != 200:
                    raise await refusal(response)
                body = bytearray()
                while part := await response.content.readany():
                    body += part
                    if len(body) > max_bytes:
                        raise ProviderError(f"the answer has more than {max_bytes:,} bytes", 413)
                return msgspec.json.decode(body, type=dict[str, object])
        except (*failures(), *NO_JSON, ProviderError) as error:
            failure = self._failed(error, url)
        raise failure

    def _failed(self, error: Exception, url: str, extra: Mapping[str, object] = EMPTY) -> ModelError:
        """Convert a failure of a request.

        Its cause has no traceback: the frames are aiohttp's, and tools that show the values of variables would show the
        headers.
        """
        for link in chain_of(error):
            link.__traceback__ = None
        if isinstance(error, NO_JSON):
            error = ProviderError(f"the server did not send readable JSON: {error}")
        return model_error(error, self._name, secrets=self._secrets(extra), address=url)

    @abstractmethod
    def _url(self) -> str:
        """Return the URL of requests."""

    @abstractmethod
    def _body(self, request: ModelRequest, conversation: Conversation) -> dict[str, object]:
        """Build the body of a request."""

    def _extra_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request's extra fields, without arguments that are not fields of the request."""
        return {name: value for name, value in fields.items() if name != "extra_headers"}

    @abstractmethod
    def _signed(self) -> dict[str, str]:
        """Return the vendor's headers, with the key.

        Raises:
            ModelError: There is no key.
        """

    @abstractmethod
    def _reader(self, conversation: Conversation) -> Reader:
        """Create the reader of one reply."""

    @property
    def key_variables(self) -> tuple[str, ...]:
        """The environment variables for the key, if `api_key` is not set."""
        # A URL from the vendor's environment variable counts as the vendor's own (rule 2).
        foreign = self._api_base is not None and _host(self._api_base) != _host(self.vendor.base)
        return self.vendor.other_keys if foreign else self.vendor.keys

    def _elsewhere(self) -> str | None:
        """Return the server's URL if it is not the vendor's own."""
        return self._api_base or next(filter(None, map(os.environ.get, self.vendor.bases)), None)

    def _base(self) -> str:
        return (self._elsewhere() or self.vendor.base).rstrip("/")

    def _key(self) -> str | None:
        """Return the key; None if there is none and the server is not the vendor's."""
        variables = self.key_variables
        candidates = (self._api_key, *map(os.environ.get, variables))
        key = next(
            (key for candidate in candidates if candidate and (key := candidate.strip())), None
        )  # a key read from a file may end in a line feed
        if key is None and variables is self.vendor.keys:
            raise no_key(self._name, variables[0])
        return key

    def _priced(self, usage: Usage, hour_cached: int = 0, searches: int = 0) -> ModelChunk:
        return ModelChunk(usage=replace(usage, cost=price(self._row, usage, hour_cached, searches)))


def anything(data: bytes) -> object:
    """Decode an event, whatever its fields contain; an event without data is None.

    msgspec refuses half of a surrogate pair, which a server sends if it splits a text within a character. The other half is in
    a later event; `fold` joins them.

    Raises:
        msgspec.DecodeError: The event is not JSON.
    """
    if not data.strip():
        return None
    try:
        return _decode(data)
    except msgspec.DecodeError as error:
        try:
            return read_json_text(data)
        except ValueError:
            raise error from None


def _begins_a_stream(part: bytes) -> bool:
    """Return whether the body is a stream of events despite its content type."""
    return part.removeprefix(b"\xef\xbb\xbf").startswith((b"data:", b"event:", b"id:", b"retry:", b":"))


def _wrong_in(url: str) -> str | None:
    """Explain why a URL is invalid; None if it is valid."""
    if not url.startswith(("http://", "https://")):
        return "it must begin with http:// or https://"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        return f"it is not a URL: {error}"
    if not host or port == 0 or any(character.isspace() for character in url):
        return "it has no host, has port 0, or contains a space"
    if parts.query or parts.fragment:
        return "it has a query or a fragment, but the endpoint's path is added at its end"
    return None


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].lower()
