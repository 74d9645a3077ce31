"""The origin of a model's answer: data that adapters report in addition to the chunks, for tracing of model calls.

An adapter passes its event reader through `noting_origin`, which returns the reader unchanged if no tracing is active.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar, cast

from agentflow._support.json_text import read_json_text
from agentflow.vocabulary.chunks import ModelChunk

_MAX_EVENTS: Final = 4
"""How many events of a stream are searched for an id; some servers send a ping or a role first."""

_MAX_LENGTH: Final = 256
"""The maximum length of an id or a name; a longer one is ignored."""

_PORTS: Final = {"https": 443, "http": 80}


class _EventReader(Protocol):
    finish_reason: str | None
    ended: bool

    def read(self, data: bytes) -> Iterable[ModelChunk]: ...


R = TypeVar("R", bound=_EventReader)


class AnswerOrigin:
    """The origin of one answer.

    Attributes:
        address: The server's host name; empty if unknown.
        port: Its port; 0 if unknown.
        response_id: The provider's id of the answer; empty if unknown.
        model: The provider's name of the model that answered; empty if unknown.
    """

    __slots__ = ("address", "model", "port", "response_id")

    def __init__(self) -> None:
        self.address = self.response_id = self.model = ""
        self.port = 0

    def at(self, url: str) -> None:
        """Set the server from a URL; an invalid URL is ignored."""
        from urllib.parse import urlsplit  # not loaded with the package

        try:
            parts = urlsplit(url)
            self.address, self.port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            self.address, self.port = "", 0

    def note(self, response_id: object, model: object) -> None:
        """Set the id of the answer and the model, if they are strings."""
        self.response_id = self.response_id or _short(response_id)
        self.model = self.model or _short(model)


def _short(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _MAX_LENGTH else ""


answer_origin: ContextVar[AnswerOrigin | None] = ContextVar("agentflow_answer_origin", default=None)
"""The record for adapters to fill; None if no tracing is active."""


class _OriginReader:
    """Reads events, and records the origin from the first ones."""

    def __init__(self, reader: _EventReader, origin: AnswerOrigin) -> None:
        self._reader = reader
        self._origin = origin
        self._remaining = _MAX_EVENTS

    @property
    def finish_reason(self) -> str | None:
        return self._reader.finish_reason

    @property
    def ended(self) -> bool:
        return self._reader.ended

    def read(self, data: bytes) -> Iterable[ModelChunk]:
        if self._remaining and not self._origin.response_id:  # later events cost no parsing
            self._remaining -= 1
            self._search(data)
        return self._reader.read(data)

    def _search(self, data: bytes) -> None:
        """Search an event for the answer's id: at the top level (chat completions), or in `message` or `response`."""
        try:
            event = read_json_text(data)
        except ValueError:
            return
        if not isinstance(event, Mapping):
            return
        fields = cast("Mapping[str, Any]", event)
        for within in (fields.get("message"), fields.get("response"), fields):
            if isinstance(within, Mapping) and "id" in within:
                found = cast("Mapping[str, Any]", within)
                self._origin.note(found.get("id"), found.get("model"))
                return


def noting_origin(url: str, reader: R) -> R:
    """Return a reader that also records the origin of the answer if tracing is active; otherwise `reader`."""
    origin = answer_origin.get()
    if origin is None:
        return reader
    origin.at(url)
    return cast("R", _OriginReader(reader, origin))
