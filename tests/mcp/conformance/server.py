"""What the conformance suite uses as a server: an agent that is offered with its tools. `server.py PORT`."""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

from agentflow import Agent, DataBlock, ToolContext, ToolEmitter, tool
from agentflow.mcp import agent_server
from agentflow.testing import ScriptedModel
from agentflow.tools import schema_tool

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="


@tool
async def test_simple_text() -> str:
    """Say something."""
    return "This is a simple text response for testing."


@tool
async def test_image_content() -> DataBlock:
    """Show something."""
    return DataBlock("image/png", data=PIXEL)


@tool
async def test_audio_content() -> DataBlock:
    """Let something be heard."""
    return DataBlock("audio/wav", data=SILENCE)


@tool
async def test_error_handling() -> str:
    """Fail."""
    raise ValueError("This tool intentionally returns an error for testing")


@tool
async def test_tool_with_progress(emitter: ToolEmitter) -> str:
    """Work in steps."""
    for step in ("0", "50", "100"):
        await emitter.emit(step)
    return "done"


async def nothing(arguments: dict[str, Any], context: ToolContext) -> str:
    return "ok"


json_schema_2020_12_tool = schema_tool(
    "json_schema_2020_12_tool",
    "Tool with JSON Schema 2020-12 features",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}
        },
        "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
        "additionalProperties": False,
    },
    nothing,
)

TOOLS = [
    test_simple_text,
    test_image_content,
    test_audio_content,
    test_error_handling,
    test_tool_with_progress,
    json_schema_2020_12_tool,
]

if __name__ == "__main__":
    agent = Agent(
        "clerk", ScriptedModel(lambda request: "An apple is 40 cents."), tools=TOOLS, description="Knows prices."
    )
    app = agent_server(agent, tools=True).streamable_http_app()
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
