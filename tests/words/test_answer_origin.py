"""The origin of a model's answer: read off its first events, and off the server's address."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from agentflow.vocabulary import ModelChunk
from agentflow.vocabulary.ports.answer_origin import AnswerOrigin, answer_origin, noting_origin

URL = "https://api.example.com/v1"


class Reader:
    """Reads nothing from events."""

    finish_reason: str | None = "stop"
    ended = True

    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def read(self, data: bytes) -> Iterable[ModelChunk]:
        self.seen.append(data)
        return ()


def origin_of(*events: Any, url: str = URL) -> tuple[str, int, str, str]:
    """Return what is noted of an answer; its reader gets all events."""
    origin, inner, data = AnswerOrigin(), Reader(), [json.dumps(event).encode() for event in events]
    token = answer_origin.set(origin)
    try:
        reader = noting_origin(url, inner)
    finally:
        answer_origin.reset(token)
    for one in data:
        assert tuple(reader.read(one)) == ()
    assert (inner.seen, reader.finish_reason, reader.ended) == (data, "stop", True)
    return origin.address, origin.port, origin.response_id, origin.model


@pytest.mark.parametrize("within", [None, "message", "response"])
@pytest.mark.parametrize("before", range(6))
def test_an_id_is_searched_in_the_first_four_events(before: int, within: str | None) -> None:
    """At the top level, or in the message or response of an event; the first one counts."""
    named = {"id": "r1", "model": "m"}
    event, later = named if within is None else {within: named}, {"id": "r2", "model": "n"}
    noted = origin_of(*[{"type": "ping"}] * before, event, later)
    assert noted[2:] == (("r1", "m") if before < 4 else ("", ""))


@pytest.mark.parametrize(
    ("event", "noted"),
    [
        ({"id": "x" * 256, "model": "y" * 256}, ("x" * 256, "y" * 256)),
        ({"id": "x" * 257, "model": "y" * 257}, ("", "")),
        ({"id": 1, "model": None}, ("", "")),
        ({"model": "m"}, ("", "")),
        ({"message": "text", "id": "r"}, ("r", "")),
        (["id"], ("", "")),
    ],
)
def test_only_short_texts_are_ids(event: Any, noted: tuple[str, str]) -> None:
    """A longer one, or one of another type, is ignored."""
    assert origin_of(event)[2:] == noted


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("https://api.example.com/v1", ("api.example.com", 443)),
        ("http://localhost/v1", ("localhost", 80)),
        ("http://localhost:8080", ("localhost", 8080)),
        ("ftp://example.com", ("example.com", 0)),
        ("https://example.com:99999", ("", 0)),
        ("nothing", ("", 0)),
    ],
)
def test_the_server(url: str, server: tuple[str, int]) -> None:
    """Its host, and the port of the URL or of its scheme; an invalid URL is ignored."""
    assert origin_of(url=url) == (*server, "", "")


def test_without_tracing_the_reader_is_unchanged() -> None:
    """Events are not read twice."""
    reader = Reader()
    assert noting_origin(URL, reader) is reader
