"""Convert the tools of a server to tools of an agent."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, cast

from pydantic_core import to_json

from agentflow._support.json_schema import JsonSchema, JsonSchemaError
from agentflow._support.logs import logger
from agentflow._support.shown import one_line
from agentflow.errors import UsageError
from agentflow.mcp.hints import Hints, needs_approval
from agentflow.mcp.sdk import types
from agentflow.mcp.settings import Settings
from agentflow.tools.schema_arguments import WithSchema
from agentflow.tools.schema_tools import schema_tool
from agentflow.tools.tool import Tool
from agentflow.tools.tool_context import ToolContext

_ILLEGAL = re.compile(r"[^a-zA-Z0-9_-]")
# Control, invisible and bidirectional characters and tags, which can hide instructions from people who read the text.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)
_MAX_NAME = 64  # the shortest limit of the providers
_MAX_TEXT = 8_000
_MAX_COST = 60_000
"""The maximum cost of all schemas of a server. It corresponds to tenths of a second, while the event loop is blocked."""


class RemoteTool(NamedTuple):
    """A tool at a server.

    Attributes:
        name: The tool's name at the server.
        repeatable: Whether it may be called again if its outcome is unknown.
        output: The schema of the structured content, if any.
    """

    name: str
    repeatable: bool
    output: JsonSchema | None


class ToolFunctions(NamedTuple):
    """The functions that implement the tools.

    Attributes:
        tool: Runs a tool with arguments and context.
        resources: Lists resources.
        read: Reads a resource.
    """

    tool: Callable[[RemoteTool, dict[str, Any], ToolContext], Awaitable[object]]
    resources: Callable[[], Awaitable[object]]
    read: Callable[[str], Awaitable[object]]


class _ConvertedTool(NamedTuple):
    """A listed tool, the tool created from it, and the cost of its schemas."""

    listed: types.Tool
    tool: Tool[..., Any] | None
    cost: int


class ToolMaker:
    """Creates tools from a server's list; an unchanged tool stays the same object.

    Args:
        settings: The server's settings.
        functions: The functions that implement the tools.
    """

    def __init__(self, settings: Settings, functions: ToolFunctions) -> None:
        self._settings = settings
        self._functions = functions
        self._converted: dict[str, _ConvertedTool] = {}
        self._for_resources = _resource_tools(settings, functions) if settings.resources else []

    def tools_of(self, listed: Iterable[types.Tool]) -> tuple[Tool[..., Any], ...]:
        """Return the tools; an unusable tool is left out, and logged."""
        settings = self._settings
        converted_tools: dict[str, _ConvertedTool] = {}
        cost = 0
        for listed_tool in listed:
            if not settings.takes(listed_tool.name):
                continue
            name = legal_name(settings.prefix + listed_tool.name)
            if name in converted_tools:
                _warn_left_out(settings, listed_tool.name, f"another tool is named {name} too")
                continue
            # Stop, since even reading the remaining tools would take time.
            if cost > _MAX_COST:
                _warn_left_out(
                    settings,
                    listed_tool.name,
                    "the server's schemas are too large altogether; this tool and the rest are not read",
                )
                break
            known = self._converted.get(name)
            converted_tools[name] = (
                # An unchanged tool stays the same object, so that adapters can cache its definition.
                known if known is not None and known.listed == listed_tool else self._tool(listed_tool, name)
            )
            cost += converted_tools[name].cost
        self._converted = converted_tools
        tools = {name: converted.tool for name, converted in converted_tools.items() if converted.tool is not None}
        for tool in self._for_resources:
            # The server's own tool of this name takes precedence.
            tools.setdefault(tool.name, tool)
        return tuple(tools.values())

    def _tool(self, listed_tool: types.Tool, name: str) -> _ConvertedTool:
        try:
            output = None if listed_tool.output_schema is None else JsonSchema(listed_tool.output_schema)
            tool = _tool(listed_tool, name, output, self._settings, self._functions)
        except (UsageError, JsonSchemaError, RecursionError, ValueError) as error:
            _warn_left_out(self._settings, listed_tool.name, str(error) or type(error).__name__)
            # The cost of an unusable tool counts towards the limit too.
            return _ConvertedTool(listed_tool, None, _cost_of_refused(listed_tool))
        cost = cast("WithSchema", tool.function).arguments.cost
        return _ConvertedTool(listed_tool, tool, cost + (0 if output is None else output.cost))


def _cost_of_refused(listed_tool: types.Tool) -> int:
    """Estimate the cost of finding that a tool's schemas are unusable."""
    try:
        return 100 + len(to_json([listed_tool.input_schema, listed_tool.output_schema])) // 8
    except ValueError:  # nested too deeply, which is detected quickly
        return 100


def _warn_left_out(settings: Settings, name: str, reason: str) -> None:
    logger.warning(
        "MCP server {}: its tool {} is left out: {}", settings.name, one_line(name[:200]), one_line(reason[:1000])
    )


def _tool(
    listed_tool: types.Tool, name: str, output: JsonSchema | None, settings: Settings, functions: ToolFunctions
) -> Tool[..., Any]:
    notes = listed_tool.annotations or types.ToolAnnotations()
    hints = Hints(
        listed_tool.name, notes.read_only_hint, notes.destructive_hint, notes.idempotent_hint, notes.open_world_hint
    )
    reads = hints.read_only is True
    repeatable = reads or hints.idempotent is True
    text = listed_tool.description or listed_tool.title or notes.title or ""
    return schema_tool(
        name,
        readable(text),
        listed_tool.input_schema,
        partial(functions.tool, RemoteTool(listed_tool.name, repeatable, output)),
        type="read" if reads else "action",
        timeout=settings.timeout,
        tags=_tags(settings),
        idempotent=repeatable,
        requires_approval=needs_approval(settings.approve, hints),
    ).prepare()


def readable(text: str) -> str:
    """Return a server's text without control characters, and limited in length, for a model."""
    return _CONTROLS.sub("", text)[:_MAX_TEXT]


def _tags(settings: Settings) -> list[str]:
    return ["mcp", f"mcp:{settings.name}"]


def _resource_tools(settings: Settings, functions: ToolFunctions) -> list[Tool[..., Any]]:
    async def list_resources(arguments: dict[str, Any], context: ToolContext) -> object:
        return await functions.resources()

    async def read_resource(arguments: dict[str, Any], context: ToolContext) -> object:
        return await functions.read(arguments["uri"])

    uri = {
        "type": "object",
        "properties": {"uri": {"type": "string"}},
        "required": ["uri"],
        "additionalProperties": False,
    }
    about = f"of {one_line(settings.name)}"
    options: dict[str, Any] = {"type": "read", "idempotent": True, "timeout": settings.timeout, "tags": _tags(settings)}
    return [
        schema_tool(
            legal_name(f"{settings.prefix}list_resources"),
            f"List the resources {about}: addresses and contents.",
            {"type": "object", "properties": {}, "additionalProperties": False},
            list_resources,
            **options,
        ),
        schema_tool(
            legal_name(f"{settings.prefix}read_resource"),
            f"Read a resource {about} by its address.",
            uri,
            read_resource,
            **options,
        ),
    ]


def legal_name(name: str) -> str:
    """Return a name that every provider accepts: the name itself if it is legal, otherwise a similar name.

    Example:
        >>> legal_name("files/read.all"), len(legal_name("x" * 100))
        ('files_read_all', 64)
    """
    legal = _ILLEGAL.sub("_", name)
    if not legal or not (legal[0].isalpha() or legal[0] == "_"):
        legal = f"_{legal}"
    if len(legal) <= _MAX_NAME:
        return legal
    digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]
    return f"{legal[: _MAX_NAME - 9]}_{digest}"
