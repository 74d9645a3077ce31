"""How a stage ends where its call is cut, a model cleans up badly, or a layer leaves the closing to others."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import reactivex.operators as ops
from eventlog import use

from agentflow import Agent, Flux, Hook, MemoryStore, Mono, Msg, tool
from agentflow.chunks import ModelChunk
from agentflow.errors import CallTimeoutError, ModelError, UsageError
from agentflow.events import PreCall, PreReasoning, ReasoningChunk
from agentflow.plugins.cache import ModelCache
from agentflow.plugins.retry import ModelRetry
from agentflow.specs import Usage
from agentflow.testing import ScriptedModel
from agentflow.testing.virtual_time import run_virtual

CUTS = ("interrupt", "cancel", "timeout")


class Layer(Hook):
    """An async generator around the model."""

    def __init__(self, layer: Callable[[Flux[ModelChunk]], AsyncIterator[ModelChunk]]) -> None:
        self.layer = layer

    def around(self, event: Any, source: Any) -> Any:
        return Flux(lambda: self.layer(source)) if isinstance(event, PreReasoning) else source


class Streams:
    """A model whose streams a function makes."""

    name = "streams"

    def __init__(self, make: Callable[[], AsyncIterator[ModelChunk]]) -> None:
        self.make = make
        self.asked = 0

    def stream(self, request: object) -> AsyncIterator[ModelChunk]:
        self.asked += 1
        return self.make()


class Own:
    """An iterator of somebody's own, which cannot be closed once it is over."""

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
    """Ends quietly where it is cancelled in the midst."""
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
    """A call that is cut a second after it began: its reply, what it raised, or "cancelled"."""
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
    """Whether it ended as it was cut."""
    if how == "timeout":
        return isinstance(end, CallTimeoutError)
    return end == "cancelled" if how == "cancel" else end.outcome == "interrupted"


@pytest.mark.parametrize("how", CUTS)
def test_half_a_reply_of_a_model_that_ends_quietly_is_not_kept_for_a_whole_one(how: str) -> None:
    """It swallows the cancellation, and its stream just ends: layers see that it was cut, and no cache keeps it."""
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


def test_a_cancellation_between_two_chunks_concerns_no_model() -> None:
    """A layer's worker is cancelled while it does something else, and goes on: the reply that it then reads is whole."""
    whole: list[str] = []

    async def reads(source: Flux[ModelChunk]) -> AsyncIterator[ModelChunk]:
        async def work() -> None:
            said: list[str] = []
            async for chunk in source:
                said.append(chunk.text)
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(3)
            whole.extend(said)

        worker = asyncio.ensure_future(work())
        await asyncio.sleep(1)
        worker.cancel()
        await worker
        yield ModelChunk("mine")

    async def main() -> None:
        assert (await Agent("a", ScriptedModel([["one ", "two"]]), hooks=[Layer(reads)]).call("go")).text == "mine"
        assert "".join(whole) == "one two"

    run_virtual(main())


def test_a_layers_task_that_its_stage_cancels_has_no_whole_reply() -> None:
    """The model ends quietly there too; the task ends cancelled."""
    tasks: list[asyncio.Task[list[ModelChunk]]] = []

    async def collects(source: Flux[ModelChunk]) -> AsyncIterator[ModelChunk]:
        tasks.append(asyncio.ensure_future(source.to_list()))
        await asyncio.sleep(1)
        yield ModelChunk("busy")

    async def main() -> None:
        assert (await Agent("a", Streams(half), hooks=[Layer(collects)]).call("go")).text == "busy"
        assert tasks[0].cancelled()

    run_virtual(main())


def test_what_a_model_says_behind_its_stage_is_heard_by_nobody() -> None:
    """It takes no notice of the cancellation; the layer's task that reads it is told, and has no more of the reply."""
    said: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def stubborn() -> AsyncIterator[ModelChunk]:
        yield ModelChunk("one")
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3600)
        yield ModelChunk("two")

    async def leaves(source: Flux[ModelChunk]) -> AsyncIterator[ModelChunk]:
        async def read() -> None:
            async for chunk in source:
                said.append(chunk.text)  # noqa: PERF401 - each as it comes

        tasks.append(asyncio.ensure_future(read()))
        await asyncio.sleep(1)
        yield ModelChunk("busy")

    async def main() -> None:
        async with asyncio.timeout(100):
            assert (await Agent("a", Streams(stubborn), hooks=[Layer(leaves)]).call("go")).text == "busy"
        with pytest.raises(UsageError, match="used when its stage was over"):
            await tasks[0]
        assert said == ["one"]

    run_virtual(main())


@pytest.mark.parametrize("hooks", [[], [Layer(through)]], ids=["alone", "wrapped"])
async def test_a_reply_is_whole_though_its_stream_cannot_be_closed(hooks: list[Hook]) -> None:
    """It is whole when the stream has ended; behind layers an iterator of somebody's own is closed, and a failure logged."""
    stream = Own(["one ", "two"])
    assert (await Agent("a", Streams(lambda: stream), hooks=hooks).call("go")).text == "one two"
    assert stream.closed == len(hooks)


async def test_what_a_model_fails_with_is_not_hidden_by_its_cleanup() -> None:
    """The failure is what is retried; that the stream could not be closed is logged."""
    broken = Own(["one "], ModelError("down", retryable=True))
    streams = iter([broken, Own(["two"])])
    model = Streams(lambda: next(streams))
    reply = await Agent("a", model, hooks=[ModelRetry(first_wait=0, jitter=0)]).call("go")
    assert (reply.text, model.asked, broken.closed) == ("two", 2, 1)


@pytest.mark.parametrize("begun", [True, False])
def test_a_stage_waits_for_a_stream_that_a_task_closes(begun: bool) -> None:
    """The model has cleaned up when its stage is over, whoever closes it, and it is not cancelled in that."""
    told: list[str] = []

    async def closes(source: Any) -> AsyncIterator[ModelChunk]:
        chunks = aiter(source)
        yield await anext(chunks)
        tasks.append(asyncio.ensure_future(chunks.aclose()))
        if begun:
            await asyncio.sleep(0)

    tasks: list[asyncio.Task[None]] = []

    async def main() -> None:
        assert (await Agent("a", Streams(closing_slowly(told)), hooks=[Layer(closes)]).call("go")).text == "one"
        assert told == ["closed"]
        await tasks[0]

    run_virtual(main())


@pytest.mark.parametrize("how", CUTS)
def test_a_whole_reply_is_kept_where_the_call_is_cut_while_its_stage_closes(how: str) -> None:
    """As without the layer: what the user has read stands in the history, marked as interrupted."""

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


def test_who_reads_through_an_operator_is_told_that_the_stage_has_cancelled_its_run() -> None:
    """reactivex runs the source in a task of its own; without a word the reader would wait for ever."""
    tasks: list[asyncio.Task[Any]] = []

    async def leaves(source: Any) -> AsyncIterator[ModelChunk]:
        same: Callable[[ModelChunk], ModelChunk] = lambda chunk: chunk  # noqa: E731
        tasks.append(asyncio.ensure_future(Flux.from_observable(source.pipe(ops.map(same))).to_list()))
        await asyncio.sleep(1)
        yield ModelChunk("busy")

    async def main() -> None:
        assert (await Agent("a", Streams(half), hooks=[Layer(leaves)]).call("go")).text == "busy"
        await asyncio.wait(tasks, timeout=1)
        assert tasks[0].cancelled()

    run_virtual(main())


def test_a_calls_time_limit_counts_where_a_layers_has_passed_before_it() -> None:
    """A tool still cleans up for the layer's limit when the call's own passes: the call raises its own."""

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


@pytest.mark.parametrize("leaves", ["held", "reader"])
def test_a_layer_with_a_task_group_that_is_left_loses_no_reply(leaves: str) -> None:
    """A group makes a `BaseExceptionGroup` of its generator's closing, which is no failure of the call."""

    async def grouped(source: Any) -> AsyncIterator[ModelChunk]:
        chunks: asyncio.Queue[ModelChunk] = asyncio.Queue()

        async def read() -> None:
            async for chunk in source:
                await chunks.put(chunk)

        async with asyncio.TaskGroup() as group:
            group.create_task(read())
            while True:
                yield await chunks.get()

    held: list[Any] = []

    async def two(source: Any) -> AsyncIterator[ModelChunk]:
        held.append(aiter(source))
        yield await anext(held[0])
        yield await anext(held[0])

    hooks = [Layer(two), Layer(grouped)] if leaves == "held" else [Layer(grouped)]
    agent = Agent("a", ScriptedModel([["one ", "two", "!"], "fine"]), hooks=hooks, store=MemoryStore())

    async def main() -> None:
        if leaves == "held":
            assert (await agent.call("go", session="s")).text == "one two"
            return
        async with agent.stream("go", session="s") as events:
            async for event in events:
                if isinstance(event, ReasoningChunk):
                    break
        said = [(msg.text, msg.metadata.get("interrupted")) for msg in agent.session("s").messages]
        assert said[:2] == [("go", None), ("one ", True)]

    run_virtual(main())


def test_who_comes_while_a_stage_closes_comes_too_late() -> None:
    """To the stream that is being closed, and with a subscription of its own: both are told, and the model is not asked."""
    told: list[str] = []
    model = Streams(closing_slowly(told))
    tasks: list[asyncio.Task[Any]] = []

    async def comes_late(source: Any) -> AsyncIterator[ModelChunk]:
        chunks = aiter(source)

        async def reads_on() -> list[ModelChunk]:
            await asyncio.sleep(0.5)
            return [chunk async for chunk in chunks]

        async def asks_anew() -> list[ModelChunk]:
            await asyncio.sleep(0.5)
            return [chunk async for chunk in source]

        yield await anext(chunks)
        tasks.extend([asyncio.ensure_future(reads_on()), asyncio.ensure_future(asks_anew())])

    async def main() -> None:
        async with asyncio.timeout(100):
            assert (await Agent("a", model, hooks=[Layer(comes_late)]).call("go")).text == "one"
        assert (told, model.asked) == (["closed"], 1)
        for task in tasks:
            with pytest.raises(UsageError, match="used when its stage was over"):
                await task

    run_virtual(main())


def test_a_cancellation_leaves_no_stream_open_behind_the_one_that_it_meets() -> None:
    """The first of two is being closed when it comes: the second is closed all the same, before the call ends."""
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
    """Behind the stage as within it: there is nothing that could be missed."""
    held: list[Any] = []

    async def reads(source: Any) -> AsyncIterator[ModelChunk]:
        held.append(aiter(source))
        async for chunk in held[0]:
            yield chunk

    assert (await Agent("a", ScriptedModel(["whole"]), hooks=[Layer(reads)]).call("go")).text == "whole"
    assert [chunk async for chunk in held[0]] == []


@pytest.mark.parametrize(
    "through_tasks",
    [Flux.merge, lambda source: Flux.of(1).switch_map(lambda _: source), lambda source: Flux.amb(source, Flux.never())],
    ids=["merge", "switch_map", "amb"],
)
def test_half_a_reply_that_operators_read_in_tasks_is_not_kept_for_a_whole_one(through_tasks: Any) -> None:
    """The stage cancels those tasks of the operator, and who reads behind it is told; a cache keeps nothing."""
    cache = ModelCache()

    class Inner(Hook):
        priority = 999

        def around(self, event: Any, source: Any) -> Any:
            return through_tasks(source) if isinstance(event, PreReasoning) else source

    tasks: list[asyncio.Task[Any]] = []

    async def answers_itself(source: Flux[ModelChunk]) -> AsyncIterator[ModelChunk]:
        tasks.append(asyncio.ensure_future(source.to_list()))
        await asyncio.sleep(1)
        yield ModelChunk("busy")

    outer = Layer(answers_itself)
    outer.priority = 1

    async def slow() -> AsyncIterator[ModelChunk]:
        yield ModelChunk("half ")
        await asyncio.sleep(3600)
        yield ModelChunk("whole")

    async def main() -> None:
        async with asyncio.timeout(100):
            assert (await Agent("a", Streams(slow), hooks=[outer, cache, Inner()]).call("go")).text == "busy"
            await asyncio.wait(tasks)
        assert tasks[0].cancelled()
        assert (await Agent("b", ScriptedModel(["complete"]), hooks=[cache]).call("go")).text == "complete"

    run_virtual(main())
