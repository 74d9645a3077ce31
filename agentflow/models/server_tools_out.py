"""Converts `ServerTool`s to each provider's entries; a tool or setting that a provider does not have is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from agentflow.errors import UsageError
from agentflow.models.conversion import thaw
from agentflow.models.profiles import claude_generation
from agentflow.vocabulary.server_tools import ServerTool

# `Any`: entries contain JSON.
Entry = dict[str, Any]

_ANTHROPIC: Final = {
    "web_search": "web_search_20250305",
    "web_fetch": "web_fetch_20250910",
    "code_execution": "code_execution_20250825",
}
BETAS: Final = {
    "computer_20250124": "computer-use-2025-01-24",
    "computer_20251124": "computer-use-2025-11-24",
    "mcp_toolset": "mcp-client-2025-11-20",
}
"""The betas that Anthropic's tools require, by type."""
_INCLUDED: Final = {
    "web_search": "web_search_call.action.sources",
    "file_search": "file_search_call.results",
    "code_execution": "code_interpreter_call.outputs",
}
"""The parts of the results that `/responses` returns only on request."""


def anthropic_server_tools(tools: Sequence[ServerTool], model: str) -> list[Entry]:
    """Return the entries of Anthropic's `tools`.

    Raises:
        UsageError: Anthropic does not have one of the tools.

    Example:
        >>> anthropic_server_tools([ServerTool.web_search(max_uses=2)], "anthropic/claude-sonnet-4-5")
        [{'type': 'web_search_20250305', 'name': 'web_search', 'max_uses': 2}]
    """
    entries: list[Entry] = []
    for tool in tools:
        if tool.name == "tool_search":  # handled in `deferring`
            continue
        settings = cast("Entry", thaw(tool.settings))
        if tool.name == "mcp":
            entries.append(_toolset(settings))
            continue
        kind = _ANTHROPIC.get(tool.name)
        if kind is None:
            raise _refused(model, tool, "Anthropic", *_ANTHROPIC, "mcp")
        if "user_location" in settings:
            # Anthropic and OpenAI know only this type, but require the field.
            settings["user_location"] = {"type": "approximate", **settings["user_location"]}
        if "max_tokens" in settings:
            settings["max_content_tokens"] = settings.pop("max_tokens")
        entries.append({"type": kind, "name": tool.name, **settings})
    return entries


def anthropic_servers(tools: Sequence[ServerTool]) -> list[Entry]:
    """Return Anthropic's `mcp_servers`.

    Example:
        >>> anthropic_servers([ServerTool.mcp("docs", "https://mcp.example.com")])
        [{'type': 'url', 'url': 'https://mcp.example.com', 'name': 'docs'}]
    """
    servers = [tool.settings for tool in tools if tool.name == "mcp"]
    return [{"type": "url", "url": server["url"], "name": server["label"]} for server in servers]


def computer_version(model: str) -> str | None:
    """Return the type of a Claude model's computer tool; None if it has none, or only the newer toolset.

    Example:
        >>> [computer_version(f"claude-{name}") for name in ("sonnet-4-5", "opus-4-5", "opus-5-5")]
        ['computer_20250124', 'computer_20251124', None]
    """
    generation = claude_generation(model)
    if not (4, 0) <= generation < (5, 5):
        return None
    old = generation < (4, 5) or (generation == (4, 5) and "opus" not in model)
    return "computer_20250124" if old else "computer_20251124"


def deferring(entries: Sequence[Entry], tools: Sequence[ServerTool]) -> list[Entry]:
    """Return Anthropic's `tools` with the hidden ones marked and the search tool added; unchanged if none is hidden.

    Example:
        >>> deferring([{"name": "add"}], [ServerTool.tool_search("add")])[0]
        {'name': 'add', 'defer_loading': True}
    """
    hidden = hidden_names(tools)
    if hidden.isdisjoint(entry.get("name") for entry in entries):
        return [*entries]
    search: Entry = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
    marked: list[Entry] = []
    for entry in entries:
        if entry.get("name") in hidden:
            entry = {**entry, "defer_loading": True}
            if (mark := entry.pop("cache_control", None)) is not None:  # Anthropic refuses this field on a hidden tool
                search["cache_control"] = mark
        marked.append(entry)
    return [*marked, search]


def hidden_names(tools: Sequence[ServerTool]) -> frozenset[str]:
    """Return the names of the tools that the provider should hide and search.

    Example:
        >>> hidden_names([ServerTool.tool_search("add")])
        frozenset({'add'})
    """
    return frozenset([name for tool in tools if tool.name == "tool_search" for name in tool.settings["tools"]])


def responses_server_tools(tools: Sequence[ServerTool], model: str) -> list[Entry]:
    """Return the entries of the `tools` of OpenAI's `/responses`.

    Raises:
        UsageError: OpenAI does not have one of the tools or settings.

    Example:
        >>> responses_server_tools([ServerTool.file_search("vs_1")], "openai/gpt-5.4")
        [{'type': 'file_search', 'vector_store_ids': ['vs_1']}]
    """
    entries: list[Entry] = []
    for tool in shown(tools):
        build = _RESPONSES.get(tool.name)
        if build is None:
            raise _refused(model, tool, "OpenAI's /responses", *_RESPONSES)
        if missing := [name for name in ("max_uses", "blocked_domains") if name in tool.settings]:
            raise UsageError(
                f"The model {model!r} has no {missing[0]}= for its {tool.name}; only Anthropic supports this setting. "
                "Leave it out."
            )
        entries.append(build(cast("Entry", thaw(tool.settings))))
    return entries


def included(tools: Sequence[ServerTool]) -> list[str]:
    """Return the fields to request from `/responses`, so that the blocks contain the results.

    Example:
        >>> included([ServerTool.web_search()])
        ['web_search_call.action.sources']
    """
    return [_INCLUDED[tool.name] for tool in tools if tool.name in _INCLUDED]


def litellm_search(tools: Sequence[ServerTool], model: str, row: Mapping[str, object]) -> Entry:
    """Return LiteLLM's argument for a web search, which it translates for each provider.

    Raises:
        UsageError: The model has no web search, or LiteLLM cannot request the tool or a setting.

    Example:
        >>> litellm_search([ServerTool.web_search(country="DE")], "gemini/gemini-2.5-pro", {"supports_web_search": True})
        {'web_search_options': {'user_location': {'type': 'approximate', 'approximate': {'country': 'DE'}}}}
    """
    options: Entry = {}
    for tool in shown(tools):
        if tool.name != "web_search":
            raise _refused(model, tool, "LiteLLM", "web_search")
        if row.get("supports_web_search") is not True:
            raise UsageError(
                f"The model {model!r} has no web search according to LiteLLM's list of models. Leave "
                "ServerTool.web_search() out, or use a model that has it."
            )
        settings = dict(tool.settings)
        location = settings.pop("user_location", None)
        if settings:
            raise UsageError(
                f"The model {model!r} has no {next(iter(settings))}= for its web_search over LiteLLM. Leave it out, or use a "
                "model over the wires of Anthropic or OpenAI."
            )
        if location is not None:
            options["user_location"] = {"type": "approximate", "approximate": thaw(location)}
    return {"web_search_options": options} if shown(tools) else {}


def shown(tools: Sequence[ServerTool]) -> list[ServerTool]:
    """Return the tools without a search for hidden ones, for models that see all tools.

    Example:
        >>> shown([ServerTool.tool_search("add")])
        []
    """
    return [tool for tool in tools if tool.name != "tool_search"]


def _refused(model: str, tool: ServerTool, where: str, *known: str) -> UsageError:
    return UsageError(
        f"The model {model!r} has no server tool {tool.name!r}: {where} has {', '.join(known)}. Leave it out of "
        "options.server_tools, or use another model; docs/server-tools.md lists the tools of each provider."
    )


def _web_search(settings: Entry) -> Entry:
    entry: Entry = {"type": "web_search"}
    if "allowed_domains" in settings:
        entry["filters"] = {"allowed_domains": settings["allowed_domains"]}
    if "user_location" in settings:
        entry["user_location"] = {"type": "approximate", **settings["user_location"]}
    return entry


def _file_search(settings: Entry) -> Entry:
    entry: Entry = {"type": "file_search", "vector_store_ids": settings["stores"]}
    return {**entry, "max_num_results": settings["max_results"]} if "max_results" in settings else entry


def _toolset(settings: Entry) -> Entry:
    entry: Entry = {"type": "mcp_toolset", "mcp_server_name": settings["label"]}
    if "tools" not in settings:
        return entry
    # All tools are off by default, except the named ones.
    allowed = {name: {"enabled": True} for name in settings["tools"]}
    return {**entry, "default_config": {"enabled": False}, "configs": allowed}


def _mcp(settings: Entry) -> Entry:
    entry: Entry = {"type": "mcp", "server_label": settings["label"], "server_url": settings["url"]}
    # Otherwise OpenAI would end the reply with a request for approval, an item that agents do not support.
    entry["require_approval"] = "never"
    return {**entry, "allowed_tools": settings["tools"]} if "tools" in settings else entry


_RESPONSES: Final[Mapping[str, Callable[[Entry], Entry]]] = {
    "web_search": _web_search,
    "file_search": _file_search,
    "code_execution": lambda _: {"type": "code_interpreter", "container": {"type": "auto"}},
    "image_generation": lambda settings: {"type": "image_generation", **settings},
    "mcp": _mcp,
}
