"""Durable calls keep content: inputs, results of tools and replies cross the database unchanged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentflow import Agent, DataBlock, Msg, ToolUseBlock, tool
from agentflow.durable.agent import DurableAgent
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel

PICTURE = DataBlock.from_bytes(b"\x89PNG\r\n\x1a\n, and so on", name="dot.png")


async def test_pictures_cross_the_database(tmp_path: Path) -> None:
    """In, through a tool, and out."""

    @tool
    async def paint() -> Any:
        """Paint."""
        return ["Here:", PICTURE]

    def model(request: Any) -> Msg:
        if request.messages[-1].role == "user":
            assert request.messages[-1].data == (PICTURE,)
            return Msg.assistant(ToolUseBlock("t1", "paint"))
        return Msg.assistant("Done:", PICTURE)

    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with SqlStore(url) as store:
        agent = Agent("painter", ScriptedModel(model), tools=[paint], store=store)
        async with DurableAgent(agent, url, poll=0.02) as durable, durable.worker(poll=0.02):
            reply = await durable.call(Msg.user("Like this, please.", PICTURE), session="s")
        history = await agent.history("s")
    assert reply.shown == "Done:[dot.png, image/png, 19 bytes]"
    assert reply.data == (PICTURE,)
    assert history[2].tool_results[0].shown == "Here:[dot.png, image/png, 19 bytes]"
