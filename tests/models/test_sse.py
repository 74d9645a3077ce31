"""`EventReader`: the result does not depend on how the bytes are split."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from urllib.request import Request, urlopen

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import THOROUGH

from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.openai_wire import OpenAIWire
from agentflow.models.sse import EventReader, EventTooLargeError
from agentflow.testing.wire import Fault, ScriptedCall, WireReply, WireServer

LINES = st.sampled_from(
    ["data: x", "data:  x", "data:", "data: é😀", ": note", "event: e", "id: 1", "retry: 3", "other: y", "", "", ""]
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A stream of any lines with any line ends, and the reads in which it comes."""
    lines = draw(st.lists(LINES, max_size=12))
    mark = draw(st.sampled_from(["", "\ufeff"]))
    whole = (mark + "".join(line + draw(ENDS) for line in lines)).encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(whole)), max_size=8)))
    places = [0, *cuts, len(whole)]
    return whole, [whole[a:b] for a, b in pairwise(places)]


def by_the_standard(whole: bytes) -> list[bytes]:
    """Return the events of a whole stream, line by line, by the HTML standard."""
    text = whole.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    found: list[bytes] = []
    data: list[bytes] = []
    for line in text.split(b"\n")[:-1]:
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" "))
        elif not line and data:
            found.append(b"\n".join(data))
            data = []
    return found


def read(parts: Iterable[bytes]) -> list[bytes]:
    """Return the events of a reader for the reads."""
    reader = EventReader()
    return [data for part in parts for data in reader.feed(part)]


@settings(max_examples=400 if THOROUGH else 160, deadline=None)
@given(streams())
def test_any_split_gives_the_events_of_the_standard(stream: tuple[bytes, list[bytes]]) -> None:
    """Split between the bytes of a character, of a line end or of the mark: the events are those of the whole."""
    whole, parts = stream
    assert read(parts) == read([whole]) == by_the_standard(whole)


def body(wire: str) -> bytes:
    """A whole reply with thoughts, text and two calls, as a server sends it."""
    reply = WireReply(
        "Grüße, 😀!", thinking="Hm…", calls=(ScriptedCall("add", {"a": "é"}), ScriptedCall("add", {})), chunk=2
    )
    reply = replace(reply, faults=Fault.comments())
    build = WireServer.openai if wire == "openai" else WireServer.anthropic
    with build([reply]).in_thread() as server:
        asked = {"model": "m", "stream": True, "max_tokens": 4000, "messages": [{"role": "user", "content": "hi"}]}
        tool = {"name": "add", "input_schema": {"type": "object", "properties": {}}}
        if wire == "openai":
            asked |= {"stream_options": {"include_usage": True}}
        else:
            asked |= {"tools": [tool], "thinking": {"type": "enabled", "budget_tokens": 2000}}
        headers = {"x-api-key": "k", "authorization": "Bearer k", "anthropic-version": "2023-06-01"}
        headers["content-type"] = "application/json"
        with urlopen(Request(server.url, json.dumps(asked).encode(), headers)) as answer:
            return answer.read()


BODIES = {wire: body(wire) for wire in ("openai", "anthropic")}


@settings(max_examples=150 if THOROUGH else 60, deadline=None)
@given(st.sampled_from(sorted(BODIES)), st.data())
def test_any_split_gives_the_same_chunks(wire: str, data: st.DataObject) -> None:
    """The chunks of a reply are the same whether it comes at once, byte by byte, or split anywhere."""
    whole = BODIES[wire]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=12)))
    places = [0, *cuts, len(whole)]
    parts = [whole[a:b] for a, b in pairwise(places)]
    chunks = [chunks_of(wire, pieces) for pieces in ([whole], parts)]
    assert chunks[0] == chunks[1]
    assert len(chunks[0]) > 10


def chunks_of(wire: str, parts: list[bytes]) -> list[str]:
    """Return the chunks that a wire makes of the reads."""
    model = OpenAIWire("gpt-4o") if wire == "openai" else AnthropicWire("claude-sonnet-4-5")
    reader = model._reader(model._converter())
    return [repr(chunk) for data in read(parts) for chunk in reader.read(data)]


def test_an_event_without_an_end_is_refused() -> None:
    """A server cannot fill the memory: beyond the limit the reader fails, whatever the size of the reads."""
    reader = EventReader(limit=100)
    reader.feed(b"data: " + b"x" * 90)
    with pytest.raises(EventTooLargeError, match="more than 100 bytes"):
        reader.feed(b"x" * 10)


def test_a_stream_of_small_reads_costs_no_copy_of_what_came() -> None:
    """An event of a megabyte in reads of a hundred bytes is joined once."""
    reader = EventReader()
    for _ in range(10_000):
        assert reader.feed(b"x" * 100) == ()
    assert reader.feed(b"\n\ndata: one\n\n") == [b"one"]


def test_the_last_event_may_lack_its_blank_line() -> None:
    """The rest at the end of the stream is an event too, if it has data."""
    reader = EventReader()
    assert (reader.feed(b"data: one\n"), reader.rest(), reader.rest()) == ((), [b"one"], [])
