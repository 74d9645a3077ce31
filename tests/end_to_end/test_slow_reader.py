"""A slow reader slows the model, and a long reply costs no memory but its own."""

import asyncio
import gc
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from eventlog import Recorder
from wired import Wired

import agentflow
from agentflow import Agent
from agentflow.testing.wire import Say
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import ReasoningChunk
from agentflow.vocabulary.ports.model import ModelRequest


class Counts:
    """A model that counts the chunks that were pulled of it."""

    name = "counts"

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.pulled = 0
        self.closed = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        del request
        try:
            for _ in range(self.chunks):
                self.pulled += 1
                yield ModelChunk("x")
        finally:
            self.closed += 1


@pytest.mark.parametrize("buffer", [0, 1, 8])
@pytest.mark.parametrize("observed", [False, True], ids=["alone", "observed"])
async def test_the_model_is_at_most_a_buffer_ahead(observed: bool, buffer: int) -> None:
    """While the reader holds the nth chunk, no more than the buffer and one chunk after it were pulled from the model."""
    model = Counts(500)
    agent = Agent("a", model, hooks=[Recorder()] if observed else [])
    held = 0
    async with agent.stream("go", buffer=buffer) as events:
        async for event in events:
            if isinstance(event, ReasoningChunk):
                held += 1
                assert held <= model.pulled <= held + buffer + 1
    assert (held, model.closed) == (500, 1)


async def test_piped_through_operators_it_still_waits() -> None:
    """The stream's own operators do not read ahead either."""
    model = Counts(100)
    words = (
        Agent("a", model)
        .stream("go", buffer=0)
        .filter(lambda event: isinstance(event, ReasoningChunk))
        .map(lambda event: 1)
    )
    held = 0
    async with words as ones:
        async for one in ones:
            held += one
            assert model.pulled <= held + 1
    assert held == 100


async def test_over_http_a_held_event_holds_the_server(wired: Wired) -> None:
    """While the reader holds the first text of a reply of 30 MB, the server waits with most of it unsent."""
    size, pieces = 100_000, 300
    async with wired.serve([Say("x" * (size * pieces), chunk=size)]) as server:
        agent = Agent("a", wired.model(server))
        async with agent.stream("go") as events:
            async for event in events:
                if isinstance(event, ReasoningChunk) and event.incremental_chunk.text:
                    break
            written, quiet = -1, 0
            while quiet < 500:  # turns of the loop in which nothing was written: the buffers of the sockets are full
                await asyncio.sleep(0)
                now = server.requests[0].writes
                written, quiet = now, quiet + 1 if now == written else 0
    assert 0 < written < pieces / 2
    assert server.requests[0].ending == "client left"


def live_events() -> int:
    """How many chunk events are in memory; what earlier tests left is swept away by a `gc.collect()` at a test's start."""
    return sum(issubclass(type(thing), ReasoningChunk) for thing in gc.get_objects())


async def test_memory_stays_flat() -> None:
    """Over 20,000 chunks whose events are dropped, the memory grows with the reply's own chunks, not with events."""
    gc.collect()
    elsewhere = live_events()
    chunks = 20_000
    agent = Agent("a", Counts(chunks))
    seen, low, high, living = 0, 0, 0, 0
    async with agent.stream("go") as events:
        try:
            async for event in events:
                if isinstance(event, ReasoningChunk):
                    seen += 1
                    if seen == 1_000:
                        tracemalloc.start()
                        low = tracemalloc.get_traced_memory()[0]
                    elif seen == chunks:
                        high = tracemalloc.get_traced_memory()[0]
                        living = live_events()
        finally:
            tracemalloc.stop()
    assert seen == chunks
    assert living - elsewhere <= 2
    assert high - low < 200 * chunks  # a `ModelChunk` and its place in a list


async def test_memory_stays_flat_over_http(wired: Wired) -> None:
    """Over HTTP too: no event is kept, and our own share of what is held stays that of the reply's pieces.

    LiteLLM keeps its own chunks, some kilobytes each, until the reply is there; they are not counted here.
    """
    gc.collect()
    elsewhere = live_events()
    pieces, begin, end = 1_500, 300, 1_400
    ours = tracemalloc.Filter(True, str(Path(agentflow.__file__).parent / "*"))
    async with wired.serve([Say("ab" * pieces, chunk=2)]) as server:
        agent = Agent("a", wired.model(server))
        seen, living, grown = 0, 0, 0
        before: tracemalloc.Snapshot | None = None
        async with agent.stream("go") as events:
            try:
                async for event in events:
                    if isinstance(event, ReasoningChunk):
                        seen += 1
                        if seen == begin:
                            tracemalloc.start()
                            before = tracemalloc.take_snapshot().filter_traces([ours])
                        elif seen == end:
                            assert before is not None
                            living = live_events()
                            after = tracemalloc.take_snapshot().filter_traces([ours])
                            grown = sum(change.size_diff for change in after.compare_to(before, "filename"))
            finally:
                tracemalloc.stop()
    assert seen >= pieces
    assert living - elsewhere <= 2
    assert grown < 400 * (end - begin)
