"""`WorkListener`: it is notified of the work of models and tools, inside all wrappers."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from eventlog import use
from toolbox import add

from agentflow import (
    Agent,
    Flux,
    Hook,
    ModelChunk,
    Mono,
    PostActing,
    PreActing,
    PreReasoning,
    ToolResultBlock,
    on,
    tool,
)
from agentflow.hooks.recording import ModelWork, ToolWork, WorkListener
from agentflow.reactive.iterators import close
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.ports.model import ModelRequest


class Seen(WorkListener):
    """Writes down the begin, the chunks and the end of all work."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_model_work(self, event: PreReasoning, request: ModelRequest, work: ModelWork) -> ModelWork:
        async def watched() -> AsyncIterator[ModelChunk]:
            self.seen.append(f"{request.model} begins")
            reply = work()
            try:
                async for chunk in reply:
                    self.seen.append(chunk.text or chunk.tool_uses[0].name)
                    yield chunk
            finally:
                await close(reply)
            self.seen.append("it ends")

        return watched

    def on_tool_work(self, event: PreActing, work: ToolWork) -> ToolWork:
        async def watched() -> ToolResultBlock:
            self.seen.append(f"{event.tool_use.name} begins")
            try:
                result = await work()
            except BaseException as error:
                self.seen.append(type(error).__name__)
                raise
            self.seen.append(result.text)
            return result

        return watched


class Counts(WorkListener):
    """Counts the work, and passes it on unobserved."""

    begun = 0

    def on_model_work(self, event: PreReasoning, request: ModelRequest, work: ModelWork) -> None:
        self.begun += 1

    def on_tool_work(self, event: PreActing, work: ToolWork) -> None:
        self.begun += 1


class Wraps(Seen):
    """Wraps the work as well: it sees it there."""

    def around_tool(self, event: PreActing, source: Any) -> Any:
        return source


class Twice(Hook):
    """Runs tools twice."""

    def around_model(self, event: PreReasoning, source: Any) -> Flux[ModelChunk]:
        return source.catch(lambda error, _: source).map(lambda chunk: chunk)

    def around_tool(self, event: PreActing, source: Any) -> Mono[ToolResultBlock]:
        async def twice() -> ToolResultBlock:
            await source
            return await source

        return Mono(twice)


ONE = use("1", "add", a=1, b=2)
ALONE = ["scripted begins", "add", "it ends", "add begins", "3", "scripted begins", "done", "it ends"]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_listener_sees_all_work(streamed: bool) -> None:
    """The begin, each chunk and the end of each model call and tool, whether events are read or not."""
    listener = Seen()
    agent = Agent("a", ScriptedModel([ONE, "done"]), tools=[add], hooks=[listener])
    reply = await (agent.stream("go").reply() if streamed else agent.call("go"))
    assert (reply.text, listener.seen) == ("done", ALONE)


async def test_a_listener_is_inside_all_wrappers() -> None:
    """It sees each attempt of a wrapper that repeats the work."""
    listener = Seen()
    agent = Agent("a", ScriptedModel([ONE, "done"]), tools=[add], hooks=[listener, Twice()])
    assert (await agent.call("go")).text == "done"
    assert listener.seen == [*ALONE[:5], "add begins", "3", *ALONE[5:]]


async def test_a_listener_is_not_called_for_what_it_wraps() -> None:
    """It wraps tools only, so it is still notified of the work of models."""
    listener = Wraps()
    agent = Agent("a", ScriptedModel([ONE, "done"]), tools=[add], hooks=[listener])
    assert (await agent.call("go")).text == "done"
    assert listener.seen == [*ALONE[:3], *ALONE[5:]]


async def test_a_listener_that_returns_none_changes_nothing() -> None:
    """Two model calls and a tool begin, and the other listeners observe them."""
    counts, listener = Counts(), Seen()
    agent = Agent("a", ScriptedModel([ONE, "done"]), tools=[add], hooks=[listener, counts])
    assert (await agent.call("go")).text == "done"
    assert (counts.begun, listener.seen) == (3, ALONE)


@tool
async def broken() -> str:
    """Raise the error of a library that misuses cancellation."""
    raise asyncio.CancelledError("mine")


@pytest.mark.parametrize(
    "hooks", [[], [Seen()], [Twice()], [Seen(), Twice()]], ids=["none", "listener", "wrapper", "both"]
)
async def test_hooks_are_not_blamed_for_a_cancellation_by_the_tool(hooks: list[Any]) -> None:
    """The model gets the same text, however the tool was wrapped."""
    results: list[str] = []

    @on(PostActing)
    def look(event: PostActing) -> None:
        results.append(event.tool_result.text)

    agent = Agent("a", ScriptedModel([use("1", "broken"), "done"]), tools=[broken], hooks=[*hooks, look])
    assert (await agent.call("go")).text == "done"
    assert results == ["Tool 'broken' raised CancelledError, but the run was not cancelled."]
