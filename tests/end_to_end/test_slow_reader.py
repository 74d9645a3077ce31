"""A slow reader slows the model, and a long reply costs no memory but its own."""

import gc
import tracemalloc
from collections.abc import AsyncIterator

import pytest
from eventlog import Recorder
from wired import Wired

from agentflow import Agent
from agentflow.chunks import ModelChunk
from agentflow.events import ReasoningChunk
from agentflow.ports.model import ModelRequest
from agentflow.testing.wire import Say


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


@pytest.mark.parametrize("observed", [False, True], ids=["alone", "observed"])
async def test_the_model_is_at_most_one_chunk_ahead(observed: bool) -> None:
    """While the reader holds the nth chunk, no more than one chunk behind it was pulled from the model."""
    model = Counts(500)
    agent = Agent("a", model, hooks=[Recorder()] if observed else [])
    held = 0
    async with agent.stream("go") as events:
        async for event in events:
            if isinstance(event, ReasoningChunk):
                held += 1
                assert held <= model.pulled <= held + 1
    assert (held, model.closed) == (500, 1)


async def test_piped_through_operators_it_still_waits() -> None:
    """The stream's own operators do not read ahead either."""
    model = Counts(100)
    words = Agent("a", model).stream("go").filter(lambda event: isinstance(event, ReasoningChunk)).map(lambda event: 1)
    held = 0
    async with words as ones:
        async for one in ones:
            held += one
            assert model.pulled <= held + 1
    assert held == 100


async def test_memory_stays_flat_over_http(wired: Wired) -> None:
    """Over a stream of thousands of pieces whose events are dropped, what is held grows with the text, not the events."""
    pieces = 6_000
    async with wired.serve([Say("warm"), Say("ab" * pieces, chunk=2)]) as server:
        agent = Agent("a", wired.model(server))
        await agent.call("warm up")
        seen, low = 0, 0
        async with agent.stream("go") as events:
            try:
                async for event in events:
                    if isinstance(event, ReasoningChunk):
                        seen += 1
                        if seen == 1_000:
                            tracemalloc.start()
                            gc.collect()
                            low = tracemalloc.get_traced_memory()[0]
                        elif seen == pieces - 500:
                            gc.collect()
                            grown = tracemalloc.get_traced_memory()[0] - low
            finally:
                tracemalloc.stop()
    assert seen >= pieces
    assert grown == 0
