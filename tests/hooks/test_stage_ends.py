"""The end of a stage if its call is cancelled, a model cleans up badly, or a wrapper leaves its source open."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from eventlog import use

from agentflow import Agent, Flux, Hook, MemoryStore, Mono, Msg, tool
from agentflow._support.virtual_time import run_virtual
from agentflow.errors import CallTimeoutError, ModelError
from agentflow.plugins.cache import ModelCache
from agentflow.plugins.retry import ModelRetry
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import PreCall, PreReasoning
from agentflow.vocabulary.specs import Usage

CUTS = ("interrupt", "cancel", "timeout")


class Layer(Hook):
    """An async generator around the model."""

    def __init__(self, layer: Callable[[Flux[ModelChunk]], AsyncIterator[ModelChunk]]) -> None:
        self.layer = layer

    def around(self, event: Any, source: Any) -> Any:
        return Flux(lambda: self.layer(source)) if isinstance(event, PreReasoning) else source


class Streams:
    """A model whose streams are made by a function."""

    name = "streams"

    def __init__(self, make: Callable[[], AsyncIterator[ModelChunk]]) -> None:
        self.make = make
        self.asked = 0

    def stream(self, request: object) -> AsyncIterator[ModelChunk]:
        self.asked += 1
        return self.make()


class Own:
    """A foreign iterator, which cannot be closed after its end."""

    def __init__(self, words: list[str], error: Exception | None = None) -> None:
        self.words = words
        self.error = error
        self.closed = 0

    def __aiter__(self) -> "Own":
        return self

    async def __anext__(self) -> ModelChunk:
        if self.words:
            return ModelChunk(self.words.pop(0))
        raise self.error or StopAsyncIteration

    async def aclose(self) -> None:
        self.closed += 1
        raise RuntimeError("it is over")


async def half() -> AsyncIterator[ModelChunk]:
    """End normally on a cancellation in the middle."""
    try:
        yield ModelChunk("half ")
        await asyncio.sleep(3600)
        yield ModelChunk("whole")
    except asyncio.CancelledError:
        return


def closing_slowly(told: list[str]) -> Callable[[], AsyncIterator[ModelChunk]]:
    """Streams that take a second to clean up."""

    async def chunks() -> AsyncIterator[ModelChunk]:
        try:
            yield ModelChunk("one")
            yield ModelChunk("two")
        finally:
            await asyncio.sleep(1)
            told.append("closed")

    return chunks


async def through(source: Flux[ModelChunk]) -> AsyncIterator[ModelChunk]:
    async for chunk in source:
        yield chunk


async def cut(agent: Agent[Any], how: str) -> Any:
    """Cancel a call a second after it began; return its reply, its error, or "cancelled"."""
    task = asyncio.ensure_future(agent.call("go", session="s", timeout=1 if how == "timeout" else None))
    await asyncio.sleep(1)
    if how == "interrupt":
        agent.interrupt("s")
    elif how == "cancel":
        task.cancel()
    await asyncio.wait([task])
    if task.cancelled():
        return "cancelled"
    return task.exception() or task.result()


def ended(how: str, end: Any) -> bool:
    """Whether it ended as it was cancelled."""
    if how == "timeout":
        return isinstance(end, CallTimeoutError)
    return end == "cancelled" if how == "cancel" else end.outcome == "interrupted"


@pytest.mark.parametrize("how", CUTS)
def test_half_a_reply_of_a_model_that_ends_quietly_is_not_kept_for_a_whole_one(how: str) -> None:
    """It swallows the cancellation, and its stream ends normally: wrappers get the cancellation, and no cache stores
    the reply.
    """
    cache, whole = ModelCache(), list[str]()

    async def collects(source: Flux[ModelChunk]) -> AsyncIterator[ModelChunk]:
        async for chunk in source:
            yield chunk
        whole.append("over")

    async def main() -> None:
        end = await cut(Agent("a", Streams(half), hooks=[cache, Layer(collects)]), how)
        assert ended(how, end), end
        other = ScriptedModel(["whole"])
        assert (await Agent("b", other, hooks=[cache]).call("go")).text == "whole"
        assert (whole, len(other.requests)) == ([], 1)

    run_virtual(main())


@pytest.mark.parametrize("hooks", [[], [Layer(through)]], ids=["alone", "wrapped"])
async def test_a_reply_is_whole_though_its_stream_cannot_be_closed(hooks: list[Hook]) -> None:
    """It is complete when the stream has ended. A foreign iterator below wrappers is closed, and a failure of that is
    logged.
    """
    stream = Own(["one ", "two"])
    assert (await Agent("a", Streams(lambda: stream), hooks=hooks).call("go")).text == "one two"
    assert stream.closed == len(hooks)


async def test_what_a_model_fails_with_is_not_hidden_by_its_cleanup() -> None:
    """The model's failure is retried; that the stream could not be closed is logged."""
    broken = Own(["one "], ModelError("down", retryable=True))
    streams = iter([broken, Own(["two"])])
    model = Streams(lambda: next(streams))
    reply = await Agent("a", model, hooks=[ModelRetry(first_wait=0, jitter=0)]).call("go")
    assert (reply.text, model.asked, broken.closed) == ("two", 2, 1)


@pytest.mark.parametrize("how", CUTS)
def test_a_whole_reply_is_kept_where_the_call_is_cut_while_its_stage_closes(how: str) -> None:
    """As without the wrapper: what the user has read is in the history, marked as interrupted."""

    async def slow() -> AsyncIterator[ModelChunk]:
        try:
            yield ModelChunk("All of it.", usage=Usage(3, 4))
        finally:
            if model.asked == 2:
                await asyncio.sleep(3600)

    async def leaves(source: Any) -> AsyncIterator[ModelChunk]:
        async for chunk in source:
            yield chunk
        held.append(aiter(source))
        await anext(held[0])

    held: list[Any] = []
    model = Streams(slow)
    agent = Agent("a", model, hooks=[Layer(leaves)], store=MemoryStore())

    async def main() -> None:
        end = await cut(agent, how)
        assert ended(how, end), end
        said = [(msg.role, msg.text, msg.metadata.get("interrupted")) for msg in agent.session("s").messages]
        assert said == [("user", "go", None), ("assistant", "All of it.", True)]
        if how == "interrupt":
            assert (end.usage.input_tokens, end.usage.output_tokens) == (3, 4)

    run_virtual(main())


def test_a_calls_time_limit_counts_where_a_layers_has_passed_before_it() -> None:
    """A tool still cleans up after the wrapper's limit when the call's own limit passes: the call raises its own
    error.
    """

    @tool(type="read")
    async def slow(seconds: float) -> str:
        """Sleep, and take as long to clean up."""
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(seconds)
        return "done"

    class Limit(Hook):
        def around(self, event: Any, source: Any) -> Any:
            if not isinstance(event, PreCall):
                return source
            return source.timeout(1).catch(lambda error, _: Mono.just(Msg.assistant("too slow")))

    async def main(timeout: float) -> str:
        model = ScriptedModel([[use("t1", "slow", seconds=0), use("t2", "slow", seconds=4)], "end"])
        return (await Agent("a", model, tools=[slow], hooks=[Limit()]).call("go", timeout=timeout)).text

    with pytest.raises(CallTimeoutError):
        run_virtual(main(2))
    assert run_virtual(main(8)) == "too slow"


def test_a_cancellation_leaves_no_stream_open_behind_the_one_that_it_meets() -> None:
    """The first of two streams is being closed when the cancellation comes: the second one is closed too, before the
    call ends.
    """
    told: list[str] = []
    held: list[Any] = []

    async def holds(source: Any) -> AsyncIterator[ModelChunk]:
        for _ in range(2):
            held.append(aiter(source))
            yield await anext(held[-1])

    async def main() -> None:
        task = asyncio.ensure_future(Agent("a", Streams(closing_slowly(told)), hooks=[Layer(holds)]).call("go"))
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.wait([task])
        assert (task.cancelled(), told) == (True, ["closed"])

    run_virtual(main())


async def test_a_whole_stream_that_is_read_on_is_just_over() -> None:
    """This works after the stage as within it: nothing could be missed."""
    held: list[Any] = []

    async def reads(source: Any) -> AsyncIterator[ModelChunk]:
        held.append(aiter(source))
        async for chunk in held[0]:
            yield chunk

    assert (await Agent("a", ScriptedModel(["whole"]), hooks=[Layer(reads)]).call("go")).text == "whole"
    assert [chunk async for chunk in held[0]] == []
