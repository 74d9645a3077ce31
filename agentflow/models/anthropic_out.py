"""Converts a conversation and its options to Anthropic's format.

Rules:

1. The input is in OpenAI's format, as for LiteLLM; the order of messages is already legal.
2. System messages become a separate list; adjacent messages of one role are joined, results first.
3. Nothing is parsed unnecessarily: arguments are sent as their JSON text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from agentflow._support.frozen import EMPTY
from agentflow.errors import UsageError
from agentflow.models.content_out import EMPTY_TEXT
from agentflow.models.conversion import Json, WireMessage
from agentflow.models.options_out import MIN_BUDGET, budget_of, effort_of
from agentflow.models.profiles import Claude

# `Any`: blocks hold JSON, and raw JSON text.
Block = dict[str, Any]


def messages_out(messages: Iterable[WireMessage], model: str) -> tuple[list[Block], list[Block]]:
    """Return the blocks of the system prompt, and the messages.

    Raises:
        UsageError: A message contains something that Anthropic does not support.

    Example:
        >>> messages_out([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hi"}], "claude")
        ([{'type': 'text', 'text': 'Be kind.'}], [{'role': 'user', 'content': [{'type': 'text', 'text': 'hi'}]}])
    """
    system: list[Block] = []
    out: list[Block] = []
    for message in messages:
        role = message["role"]
        blocks = _blocks(message, model)
        if role == "system":
            system += blocks
            continue
        spoken = "assistant" if role == "assistant" else "user"
        # Anthropic expects the roles to alternate; tool results are sent in user messages.
        if out and out[-1]["role"] == spoken:
            out[-1]["content"] += blocks
        else:
            out.append({"role": spoken, "content": blocks})
    return system, out


def drop_lost(messages: Iterable[Block], tools: Iterable[Block]) -> None:
    """Remove, in place, what Anthropic would refuse: searches for hidden tools that found a tool which the
    request no longer contains, and calls to MCP servers that it no longer contains.
    """
    entries = [*tools]
    known = {tool.get("name") for tool in entries}
    servers = {tool.get("mcp_server_name") for tool in entries}
    for message in messages:
        dangling = {
            block["tool_use_id"]
            for block in message["content"]
            if block["type"] == "tool_search_tool_result" and not known.issuperset(_found(block["content"]))
        }
        dangling |= {
            block["id"]
            for block in message["content"]
            if block["type"] == "mcp_tool_use" and block["server_name"] not in servers
        }
        if dangling:
            # A result has `tool_use_id`, a call `id`.
            remaining = [part for part in message["content"] if part.get("tool_use_id", part.get("id")) not in dangling]
            message["content"] = remaining or [{"type": "text", "text": EMPTY_TEXT}]


def _found(result: Block) -> list[str]:
    return [str(found["tool_name"]) for found in result.get("tool_references", ())]


def _blocks(message: WireMessage, model: str) -> list[Block]:
    content = message["content"]
    match message["role"]:
        case "tool":
            result: Block = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
            result["content"] = content if isinstance(content, str) else _parts(content, model)
            if message.get("is_error") is True:
                result["is_error"] = True
            return [_marked(result, message)]
        case "assistant":
            blocks = [*cast("list[Block]", message.get("thinking_blocks") or ()), *_parts(content, model)]
            for call in cast("list[Block]", message.get("tool_calls") or ()):
                function = call["function"]
                use: Block = {"type": "tool_use", "id": call["id"], "name": function["name"]}
                # `Raw` is written into the request unparsed.
                use["input"] = msgspec.Raw(function["arguments"].encode())
                blocks.append(_marked(use, call))
            return blocks
        case _:
            return _parts(content, model)


def _marked(block: Block, source: Mapping[str, object]) -> Block:
    """Copy the mark for the prompt cache from the source to the block."""
    if "cache_control" in source:
        block["cache_control"] = source["cache_control"]
    return block


def _parts(content: Json, model: str) -> list[Block]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [_part(cast("Block", part), model) for part in content] if isinstance(content, list) else []


def _part(part: Block, model: str) -> Block:
    match part["type"]:
        case "image_url":
            return _marked({"type": "image", "source": _source(part["image_url"]["url"])}, part)
        case "file":
            return _marked(_document(part["file"]), part)
        case "input_audio":
            raise UsageError(
                f"The model {model!r} was sent audio, which Anthropic does not support. Leave the audio out of the messages."
            )
        case _:  # texts, and thoughts between them
            return part


def _source(url: str) -> Block:
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    media_type, _, data = url.removeprefix("data:").partition(";base64,")
    return {"type": "base64", "media_type": media_type, "data": data}


def _document(file: Mapping[str, str]) -> Block:
    source = file.get("file_data") or file["file_id"]
    # The id of a file that was uploaded to Anthropic.
    if not source.startswith(("data:", "http://", "https://")):
        return {"type": "document", "source": {"type": "file", "file_id": source}}
    document: Block = {"type": "document", "source": _source(source)}
    return {**document, "title": file["filename"]} if "filename" in file else document


def tool_fields(fields: Mapping[str, Json], typed: Mapping[str, Mapping[str, Any]] = EMPTY) -> Block:
    """Return `tools` and `tool_choice`; empty if there are no tools.

    Args:
        fields: `tools` and `tool_choice` in OpenAI's format.
        typed: Anthropic's own entries for some of the tools, by name.
    """
    if "tools" not in fields:
        return {}
    tools: list[Block] = []
    for tool in cast("list[Block]", fields["tools"]):
        function = tool["function"]
        own = typed.get(function["name"])
        entry: Block = {"name": function["name"], "input_schema": function["parameters"]} if own is None else {**own}
        if own is None and "description" in function:
            entry["description"] = function["description"]
        tools.append(_marked(entry, tool))
    choice = fields.get("tool_choice")
    if choice is None:
        return {"tools": tools}
    if isinstance(choice, dict):
        named = cast("Block", choice["function"])
        return {"tools": tools, "tool_choice": {"type": "tool", "name": named["name"]}}
    return {"tools": tools, "tool_choice": {"type": "any" if choice == "required" else choice}}


def thinking_fields(fields: Mapping[str, Json], claude: Claude) -> Block:
    """Return the arguments for thinking: a budget, or an effort for generations that choose the budget themselves.

    Example:
        >>> thinking_fields({"reasoning_effort": "low"}, Claude(adaptive=False, budgets=True, ceiling=64_000))
        {'thinking': {'type': 'enabled', 'budget_tokens': 1024}}
    """
    budget = cast("Block", fields.get("thinking") or {}).get("budget_tokens")
    effort = fields.get("reasoning_effort")
    if budget is None and not isinstance(effort, str):
        return {}
    # For generations that accept both, a budget is sent if it was requested, otherwise an effort.
    if claude.budgets and (budget is not None or not claude.adaptive):
        # The budget is part of `max_tokens`, which needs room for at least one token of the answer.
        tokens = min(budget if budget is not None else budget_of(str(effort)), claude.ceiling - 1)
        limit = fields.get("max_tokens")
        if isinstance(limit, int) and limit <= tokens:  # the limit restricts budgets, but not efforts
            tokens = limit // 2
        return {"thinking": {"type": "enabled", "budget_tokens": tokens}} if tokens >= MIN_BUDGET else {}
    return {
        "thinking": {
            "type": "adaptive",
            "display": "summarized",
        },  # without this argument, thoughts are returned without text
        "output_config": {"effort": effort_of(budget) if budget is not None else effort},
    }
