"""What the conformance suite uses as a server: an agent that is offered with its tools. `server.py PORT`."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import mcp_types as types
import uvicorn
from mcp.server import Server

from agentflow import Agent, DataBlock, Msg, TextBlock, ToolContext, ToolEmitter, tool
from agentflow.mcp import MCPServer, Suggest, agent_server
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
async def test_embedded_resource() -> DataBlock:
    """Show a document."""
    return DataBlock(
        "text/plain", data=base64.b64encode(b"This is an embedded resource content.").decode(), name="note"
    )


@tool
async def test_multiple_content_types() -> list[TextBlock | DataBlock]:
    """Show several things."""
    document = DataBlock("application/json", data=base64.b64encode(b"{}").decode(), name="data")
    return [TextBlock("Multiple content types test:"), DataBlock("image/png", data=PIXEL), document]


@tool
async def test_tool_with_logging(emitter: ToolEmitter) -> str:
    """Say how it goes."""
    for step in ("started", "processing", "completed"):
        await emitter.emit(step)
    return "done"


@tool(requires_approval=True)
async def test_elicitation(message: str) -> str:
    """Do what somebody has to approve."""
    return message


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


def test_simple_prompt() -> str:
    """A prompt without arguments."""
    return "This is a simple prompt for testing."


def test_prompt_with_arguments(
    arg1: Annotated[str, Suggest(lambda typed: [f"{typed}Value1", f"{typed}Value2"])], arg2: str
) -> str:
    """A prompt with arguments.

    Args:
        arg1: First test argument.
        arg2: Second test argument.
    """
    return f"Prompt with arguments: arg1={arg1!r}, arg2={arg2!r}"


def test_prompt_with_embedded_resource(resourceUri: str) -> list[Msg]:  # noqa: N803 - the suite's name
    """A prompt with a document."""
    document = DataBlock("text/plain", data=base64.b64encode(resourceUri.encode()).decode(), name="note")
    return [Msg("user", (document,)), Msg.user("Please process the embedded resource above.")]


def test_prompt_with_image() -> list[Msg]:
    """A prompt with an image."""
    return [Msg("user", (DataBlock("image/png", data=PIXEL),)), Msg.user("Please analyze the image above.")]


def template(id: str) -> dict[str, object]:  # noqa: A002 - the suite's name
    """Data by its number."""
    return {"id": id, "templateTest": True, "data": f"Data for ID: {id}"}


def choice(**rest: Any) -> dict[str, Any]:
    return {"type": "string", **rest}


FORMS: dict[str, dict[str, Any]] = {
    "test_elicitation_sep1034_defaults": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": choice(enum=["active", "inactive", "pending"], default="active"),
        "verified": {"type": "boolean", "default": True},
    },
    "test_elicitation_sep1330_enums": {
        "untitledSingle": choice(enum=["option1", "option2", "option3"]),
        "titledSingle": choice(oneOf=[{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]),
        "legacyEnum": choice(enum=["opt1", "opt2"], enumNames=["Option One", "Option Two"]),
        "untitledMulti": {"type": "array", "items": choice(enum=["option1", "option2", "option3"])},
        "titledMulti": {
            "type": "array",
            "items": {"anyOf": [{"const": f"value{n}", "title": f"Choice {n}"} for n in (1, 2, 3)]},
        },
    },
}
"""The forms that the tools of the agent's own MCP server request from a person, by tool."""


async def list_forms(context: Any, params: Any) -> types.ListToolsResult:
    tools = [types.Tool(name=name, description="Ask a person.", input_schema={"type": "object"}) for name in FORMS]
    return types.ListToolsResult(tools=tools)


async def ask_form(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    form = {"type": "object", "properties": FORMS[params.name]}
    answer = await context.session.elicit_form("Please fill this in.", form)
    text = f"Elicitation completed: action={answer.action}, content={answer.content}"
    return types.CallToolResult(content=[types.TextContent(text=text)])


forms = MCPServer.in_memory(
    Server("forms", on_list_tools=list_forms, on_call_tool=ask_form), protocol="legacy", approve="never"
)

PROMPTS = [
    test_simple_prompt,
    test_prompt_with_arguments,
    test_prompt_with_embedded_resource,
    test_prompt_with_image,
]
TOOLS = [
    test_simple_text,
    test_image_content,
    test_audio_content,
    test_embedded_resource,
    test_multiple_content_types,
    test_tool_with_logging,
    test_elicitation,
    test_error_handling,
    test_tool_with_progress,
    json_schema_2020_12_tool,
    forms,
]

if __name__ == "__main__":
    agent = Agent(
        "clerk", ScriptedModel(lambda request: "An apple is 40 cents."), tools=TOOLS, description="Knows prices."
    )
    with TemporaryDirectory() as folder:
        text, binary = Path(folder, "note.txt"), Path(folder, "pixel.png")
        text.write_text("This is the content of the static text resource.")
        binary.write_bytes(base64.b64decode(PIXEL))
        resources = {
            "test://static-text": text,
            "test://static-binary": binary,
            "test://template/{id}/data": template,
        }
        app = agent_server(agent, tools=True, prompts=PROMPTS, resources=resources, log=True).streamable_http_app()
        uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
