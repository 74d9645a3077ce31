"""A server's tools, resources and prompts, over each way to a server."""

from __future__ import annotations

import asyncio

import pytest
from demo_server import PIXEL, make
from ways import WAYS, demo, results, run

from agentflow import (
    ActingChunk,
    Agent,
    CallEnded,
    DataBlock,
    Hook,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
    ReasoningChunk,
    TextBlock,
    ToolUseBlock,
)
from agentflow.errors import ToolError
from agentflow.mcp import MCPServer, ProgressReport
from agentflow.testing import ScriptedModel


@pytest.mark.parametrize("way", WAYS)
async def test_a_round_over_each_way(way: str) -> None:
    """The events of a call are those of any tool, progress in between; the result is what the server returned."""
    async with demo(way) as server:
        model = ScriptedModel([ToolUseBlock("t1", "steps", {"count": 3}), "Done."])
        async with Agent("a", model, tools=[server]) as agent, agent.stream("Go") as stream:
            events = [event async for event in stream]
        assert [event.chunk for event in events if isinstance(event, ActingChunk)] == [
            ProgressReport(1, 3, "step 1"),
            ProgressReport(2, 3, "step 2"),
            ProgressReport(3, 3, "step 3"),
        ]
        reasoning = [PreReasoning, ReasoningChunk, PostReasoning]
        acting = [PreToolRound, PreActing, *[ActingChunk] * 3, PostActing, PostToolRound]
        expected = [PreCall, *reasoning, *acting, *reasoning, PostCall, CallEnded]
        kinds = [type(event) for event in events]
        once = [
            kind for at, kind in enumerate(kinds) if kind is not ReasoningChunk or kinds[at - 1] is not ReasoningChunk
        ]
        assert once == expected
        assert [(result.state, result.text) for result in results(agent)] == [("success", "3 steps")]


@pytest.mark.parametrize("way", WAYS)
async def test_results_of_each_kind(way: str) -> None:
    """Text, structured content, images and errors; tools of a round run side by side; names are made legal."""
    calls = [
        ToolUseBlock("t1", "add", {"a": 1, "b": 2}),
        ToolUseBlock("t2", "place"),
        ToolUseBlock("t3", "picture"),
        ToolUseBlock("t4", "fail"),
        ToolUseBlock("t5", "files_put_all", {"context": "x"}),
        ToolUseBlock("t6", "add", {"a": "no", "c": 1}),
    ]
    async with demo(way) as server:
        agent = await run(server, calls)
    added, place, picture, failed, put, wrong = results(agent)
    assert (added.state, added.text, put.text) == ("success", "3", "put x")
    assert place.text.replace(" ", "").replace("\n", "") == '{"row":3,"shelf":"b"}'
    assert picture.content == (TextBlock("A pixel:"), DataBlock("image/png", data=PIXEL))
    assert (failed.state, "\x1b" in failed.text, "fail" in failed.text) == ("error", False, True)
    assert (wrong.state, "its arguments do not fit" in wrong.text) == ("error", True)


class Patient(Hook):
    """Over HTTP notifications have a connection of their own, and may come after the result: it waits for them."""

    events = (PostActing,)

    def __init__(self, server: MCPServer) -> None:
        self.news = asyncio.Event()
        server.watch(self.tell)

    def tell(self) -> None:
        self.news.set()

    async def on_event(self, event: PostActing) -> None:  # type: ignore[override]
        await asyncio.wait_for(self.news.wait(), 10)


@pytest.mark.parametrize("way", WAYS)
async def test_a_tool_that_comes_is_in_the_next_round(way: str) -> None:
    """The server says that its tools are others; the next request shows them, and the new one can be called."""
    async with demo(way, allow=["grow", "grown"]) as server:
        model = ScriptedModel([ToolUseBlock("t1", "grow"), ToolUseBlock("t2", "grown"), "Done."])
        agent = Agent("a", model, tools=[server], hooks=[Patient(server)] if way == "http" else [])
        await agent.call("Go")
        assert [[spec.name for spec in request.tools] for request in model.requests] == [
            ["grow"],
            ["grow", "grown"],
            ["grow", "grown"],
        ]
        assert [result.text for result in results(agent)] == ["grew", "big"]


async def test_tools_may_be_pinned() -> None:
    """With `follow=False` what the server changes is not taken."""
    async with demo("memory", allow=["grow", "grown"], follow=False) as server:
        agent = await run(server, ToolUseBlock("t1", "grow"), ToolUseBlock("t2", "grown"))
        assert [result.state for result in results(agent)] == ["success", "not_found"]


@pytest.mark.parametrize("way", WAYS)
async def test_resources_and_prompts(way: str) -> None:
    """They are read by hand, or by the model's own tools for them."""
    async with demo(way, resources=True, allow="add", prefix="d_") as server:
        assert [one["uri"] for one in await server.resources()] == ["notes://today", "notes://picture"]
        assert await server.read("notes://today") == [TextBlock("buy milk")]
        assert await server.read("notes://picture") == [DataBlock("image/png", data=PIXEL, name="picture")]
        assert [(one["name"], one["description"]) for one in await server.prompts()] == [
            ("review", "Review something.")
        ]
        [message] = await server.prompt("review", code="x = 1")
        assert (message.role, message.text) == ("user", "Review x = 1, please.")
        with pytest.raises(ToolError, match="a resource"):
            await server.read("notes://nowhere")
        agent = await run(
            server,
            ToolUseBlock("t1", "d_list_resources"),
            ToolUseBlock("t2", "d_read_resource", {"uri": "notes://today"}),
        )
        assert [tool.name for tool in agent.tools] == ["d_add", "d_list_resources", "d_read_resource"]
        listed, read = results(agent)
        assert ("notes://today" in listed.text, read.text) == (True, "buy milk")


async def test_hints_make_types_and_approvals() -> None:
    """What only reads is of type read and idempotent; what says that it destroys waits for a person, by the policy."""
    names = ("add", "erase", "files_put_all", "place")
    expected = {
        "destructive": [False, True, False, False],
        "writes": [False, True, True, True],
        "always": [True] * 4,
        "never": [False] * 4,
    }
    for policy, waits in expected.items():
        async with demo("memory", approve=policy) as server, server:  # type: ignore[typeddict-item]
            tools = {tool.name: tool for tool in server.tools}
            assert [tools[name].requires_approval for name in names] == waits
    assert [tools[name].type for name in names] == ["read", "action", "action", "action"]
    assert [tools[name].idempotent for name in names] == [True, False, True, False]
    assert tools["add"].tags == {"mcp", "mcp:demo"}
    async with demo("memory", approve=lambda hints: hints.name == "place") as server, server:
        assert [tool.name for tool in server.tools if tool.requires_approval] == ["place"]


async def test_what_destroys_waits_for_a_person() -> None:
    """The call is suspended by the tool's hint, and runs when it is approved."""
    from agentflow import Approve

    async with demo("memory") as server:
        agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "erase", {"path": "x"}), "Done."]), tools=[server])
        reply = await agent.call("Go")
        assert (reply.outcome, [waits.hook for waits in reply.pending]) == ("suspended", ["requires_approval"])
        await agent.resume(decisions={"t1": Approve()})
        assert results(agent)[0].text == "erased x"


async def test_several_servers_in_one_agent() -> None:
    """Prefixes keep them apart; without, the first one's tool is taken and the other's is left out."""
    one, two = (MCPServer.in_memory(make(), prefix=prefix, allow="add") for prefix in ("one_", "two_"))
    agent = await run(one, ToolUseBlock("t1", "one_add", {"a": 1, "b": 1}))
    await one.close()
    same = MCPServer.in_memory(make(), prefix="one_", allow="add")
    agent = Agent("a", ScriptedModel(["Hi."]), tools=[[one, two], same])
    async with agent:
        assert [tool.name for tool in agent.tools] == ["one_add", "two_add"]
