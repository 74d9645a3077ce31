"""Where a model's answer comes from: what adapters report of it beside its chunks, to those who trace model calls.

An adapter passes its reader of events through `noting_origin`; where nothing traces the call, that gives the reader back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar, cast

from agentflow.chunks import ModelChunk
from agentflow.ground.json_text import read_json_text

__all__ = ["AnswerOrigin", "answer_origin", "noting_origin"]

_LOOKS: Final = 4
"""In how many events of a stream an id is looked for: some servers send a ping or a role first."""

_LONGEST: Final = 256
"""Characters of an id or a name; a longer one is left out."""

_PORTS: Final = {"https": 443, "http": 80}


class _EventReader(Protocol):
    finish_reason: str | None
    ended: bool

    def read(self, data: bytes) -> Iterable[ModelChunk]: ...


R = TypeVar("R", bound=_EventReader)


class AnswerOrigin:
    """Where one answer comes from.

    Attributes:
        address: The server's host name; empty: not known.
        port: Its port; 0: not known.
        response_id: The provider's id of the answer; empty: not known.
        model: The model that gave it, in the provider's words; empty: not known.
    """

    __slots__ = ("address", "model", "port", "response_id")

    def __init__(self) -> None:
        self.address = self.response_id = self.model = ""
        self.port = 0

    def at(self, url: str) -> None:
        """Note the server of a URL; one that cannot be read is left out."""
        from urllib.parse import urlsplit  # not loaded with the package

        try:
            parts = urlsplit(url)
            self.address, self.port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
        except ValueError:
            self.address, self.port = "", 0

    def said(self, response_id: object, model: object) -> None:
        """Note the id of the answer, and the model, as far as they are texts."""
        self.response_id = self.response_id or _short(response_id)
        self.model = self.model or _short(model)


def _short(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _LONGEST else ""


answer_origin: ContextVar[AnswerOrigin | None] = ContextVar("agentflow_answer_origin", default=None)
"""Where adapters note it; None: nothing traces the call."""


class _Noting:
    """Reads events, and notes the origin that the first ones name."""

    def __init__(self, reader: _EventReader, origin: AnswerOrigin) -> None:
        self._reader = reader
        self._origin = origin
        self._looks = _LOOKS

    @property
    def finish_reason(self) -> str | None:
        return self._reader.finish_reason

    @property
    def ended(self) -> bool:
        return self._reader.ended

    def read(self, data: bytes) -> Iterable[ModelChunk]:
        if self._looks and not self._origin.response_id:
            self._looks -= 1
            self._look(data)
        return self._reader.read(data)

    def _look(self, data: bytes) -> None:
        """An answer's id is in its event (chat completions), or in the `message` or `response` within (the others)."""
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
                self._origin.said(found.get("id"), found.get("model"))
                return


def noting_origin(url: str, reader: R) -> R:
    """The reader of an answer from a URL, which also notes where it comes from if something traces the call."""
    origin = answer_origin.get()
    if origin is None:
        return reader
    origin.at(url)
    return cast("R", _Noting(reader, origin))
