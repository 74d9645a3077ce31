"""A hook, model or tool that handles a failed `asyncio.TaskGroup` has not swallowed a cancellation.

Before Python 3.13 such a group leaves its task's `cancelling()` at 1 (`count_exactly` in `agentflow/_support/cancellation.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from agentflow import (
    Agent,
    Flux,
    Hook,
    HookEvent,
    HookResult,
    ModelChunk,
    ModelRequest,
    Mono,
    PreActing,
    PreReasoning,
    ToolEmitter,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
    tool,
)
from agentflow._support.virtual_time import run_virtual
from agentflow.hooks.wrapping import ModelSource, ToolSource
from agentflow.testing import ScriptedModel


async def fail() -> None:
    await asyncio.sleep(1)
    raise ValueError("one of several requests failed")


async def failed_group() -> None:
    """Handle the failure of a child, at which the group waits for another one."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            group.create_task(asyncio.sleep(60))
    except* ValueError:
        pass


class Fetching:
    """A model that handles a failed group before each of its two replies."""

    name = "fetching"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        await failed_group()
        if request.messages[-1].role == "tool":
            yield ModelChunk("done")
        else:
            yield ModelChunk(blocks=(ToolUseBlock("1", "fetch", {}), ToolUseBlock("2", "fetch", {})))


@tool(type="read")
async def fetch(emitter: ToolEmitter) -> str:
    """Fetch several pages."""
    await failed_group()
    await emitter.emit("fetched")
    return "fetched"


class Handling(Hook):
    """Handles a failed group at every event."""

    async def on_event(self, event: HookEvent) -> HookResult:
        await failed_group()
        return event


class Same(Hook):
    """Wraps model and tools by nothing."""

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        return source

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        return source


class Iterating(Same):
    """Reads the model's stream in its own generator, after it has handled a failed group itself."""

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        async def chunks() -> AsyncIterator[ModelChunk]:
            await failed_group()
            async for chunk in source:
                yield chunk

        return Flux(chunks)

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        async def result() -> ToolResultBlock:
            await failed_group()
            return await source

        return Mono(result)


class Merging(Same):
    """Reads the model's stream in another task, and a tool's chunks in a third."""

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        return Flux.merge(Mono(failed_group).ignore_elements(), source)

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        async def same(chunk: object) -> object:
            await failed_group()
            return chunk

        return source.chunks(lambda chunks: chunks.concat_map(lambda chunk: Mono(lambda: same(chunk))))


class Limited(Same):
    """Limits the time of model and tools, and would repeat them."""

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        return source.deadline(90).timeout(90).retry(2)

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        return source.deadline(90).retry(2)


@pytest.mark.parametrize("wrapper", [None, Same, Iterating, Merging, Limited])
def test_a_call_whose_parts_handle_failed_groups_completes(wrapper: type[Hook] | None) -> None:
    """Hooks before, after and around, a model, and parallel tools: the call completes, and every tool succeeds."""

    async def main() -> tuple[str, list[str]]:
        agent = Agent(
            "reader", Fetching(), tools=[fetch], hooks=[Handling()] if wrapper is None else [Handling(), wrapper()]
        )
        reply = await agent.call("Fetch them")
        history = await agent.history()
        results = [
            block.state for message in history for block in message.content if isinstance(block, ToolResultBlock)
        ]
        return f"{reply.outcome}: {reply.text}", results

    assert run_virtual(main()) == ("completed: done", ["success", "success"])


def test_a_turn_in_a_task_of_the_user_completes() -> None:
    """A turn that is run by hand, in a task that agentflow did not create."""

    async def main() -> tuple[str, int]:
        result = await Turn(fetch).returning()
        task = asyncio.current_task()
        return str(result), -1 if task is None else task.cancelling()

    assert run_virtual(main()) == ("fetched", 0)


def test_a_time_limit_that_a_failed_group_swallows_still_takes_effect() -> None:
    """Only the group's own request is not counted: a tool whose group fails because of a time limit ends as cancelled."""

    async def fail_when_cancelled() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("the connection was closed")

    @tool
    async def slow() -> str:
        """Handle a group that fails when it is cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(fail_when_cancelled())
        except* ValueError:
            pass
        return "late"

    class Limit(Hook):
        def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
            async def result() -> ToolResultBlock:
                async with asyncio.timeout(1):
                    return await source

            return Mono(result).catch(
                lambda error, _: Mono.just(ToolResultBlock(event.tool_use.id, event.tool_use.name, "limited"))
            )

    async def main() -> str:
        agent = Agent("a", ScriptedModel([ToolUseBlock("1", "slow", {}), "done"]), tools=[slow], hooks=[Limit()])
        await agent.call("go")
        (result,) = (await agent.history())[2].content
        assert isinstance(result, ToolResultBlock)
        return result.text

    assert run_virtual(main()) == "limited"
