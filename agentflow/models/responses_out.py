"""Converts a conversation and its options to the format of OpenAI's `/responses`.

Rules:

1. The input is in the format of chat completions, as for LiteLLM; the order of messages is already legal.
2. The vendor stores nothing (`store` is false): thoughts arrive sealed, and are sent back sealed, before the items that follow
   them.
3. Only thoughts are sent back with the vendor's ids: an id makes the vendor expect the adjacent items, which a hook may have
   removed.
4. If the vendor's search has loaded a tool, the tool's calls have a namespace with the tool's name, as recorded replies
   of OpenAI show. A search is sent back only while all tools that it found are still hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from agentflow._support.frozen import EMPTY
from agentflow.errors import UsageError
from agentflow.models.adapter import PreparedRequest
from agentflow.models.computer_calls import COMPUTER, joined
from agentflow.models.conversion import Json, WireMessage
from agentflow.models.profiles import WireProfile
from agentflow.models.server_tools_out import hidden_names, included, responses_server_tools
from agentflow.vocabulary.server_tools import ServerTool

# `Any`: items contain JSON.
Item = dict[str, Any]

_SEALED_THOUGHTS = "reasoning.encrypted_content"


def over_responses(profile: WireProfile) -> WireProfile:
    """Return a family's profile, changed for this endpoint.

    Example:
        >>> from agentflow.models.profiles import OPENAI
        >>> over_responses(OPENAI).speaks
        'items'
    """
    return replace(profile, speaks="items", merges=True, bridge=False, result_images=profile.family == "openai")


def seal(id: str, encrypted: str) -> str:  # noqa: A002 - the wire's own name
    """Return the signature of a thought: its id, and its content encrypted for the vendor.

    Example:
        >>> seal("rs_1", "gAAA")
        'rs_1:gAAA'
    """
    return f"{id}:{encrypted}"


def responses_body(
    model: str,
    prepared: PreparedRequest,
    options: Mapping[str, Json],
    params: Mapping[str, Any],
    *,
    reasons: bool,
    server_tools: Sequence[ServerTool] = (),
    searches: bool = False,
    typed: Mapping[str, Mapping[str, Any]] = EMPTY,
) -> Item:
    """Build a whole request.

    Args:
        model: The server's name for the model.
        prepared: The request in the format of chat completions.
        options: The options in that format.
        params: Further fields of each request, in the format of this endpoint.
        reasons: Whether the model is a reasoning model with sealed thoughts.
        server_tools: The tools that OpenAI runs.
        searches: Whether the model searches hidden tools; if not, it sees all tools.
        typed: OpenAI's own entries for some of the tools, by name.

    Raises:
        UsageError: This endpoint does not support a part of the request.
    """
    if "stop" in options:
        raise UsageError(
            f"The model {model!r} has stop sequences, which /responses does not support. Leave options.stop out, or shorten "
            "the text in a hook."
        )
    instructions, items = _items(prepared.messages, model)
    if COMPUTER in typed:
        items = joined(items, {str(message["tool_call_id"]) for message in prepared.messages if "is_error" in message})
    body: Item = {"model": model, "input": items, "stream": True, "store": False}
    if instructions:
        body["instructions"] = instructions
    if includes := [_SEALED_THOUGHTS] * reasons + included(server_tools):
        body["include"] = includes
    # The model's `params` may replace the fields above, but not those of this request below.
    body |= params
    for ours, theirs in (("max_tokens", "max_output_tokens"), ("temperature", "temperature"), ("top_p", "top_p")):
        if ours in options:
            body[theirs] = options[ours]
    if "reasoning_effort" in options:
        body["reasoning"] = {"effort": options["reasoning_effort"], "summary": "auto"}
    if isinstance(prepared.form, dict):
        form: Any = prepared.form
        body["text"] = {**body.get("text", {}), "format": {"type": "json_schema", **form["json_schema"]}}
    body |= _tool_fields(prepared.tools, typed)
    # Always called: calls and searches in the history depend on it even if nothing is hidden now.
    _hide(body, hidden_names(server_tools) if searches else frozenset())
    if server_tools:
        body["tools"] = [*body.get("tools", ()), *responses_server_tools(server_tools, f"openai/{model}")]
    return {**body, **prepared.cache}


def _items(messages: Iterable[WireMessage], model: str) -> tuple[str, list[Item]]:
    """Return the instructions, and the items after them."""
    instructions: list[str] = []
    items: list[Item] = []
    thought: set[str] = set()
    for message in messages:
        role, content = message["role"], message["content"]
        match role:
            # A system message within the conversation stays an item, at its place.
            case "system" if not items:
                instructions.append(str(content))
            case "tool":
                items.append({"type": "function_call_output", "call_id": message["tool_call_id"]})
                items[-1]["output"] = _content(content, model)
            case "assistant":
                for item in (_assistant_part(cast("Item", part)) for part in cast("list[Json]", content)):
                    if item.get("encrypted_content") == "":  # the thought was sealed for another wire
                        continue
                    if item.get("id") not in thought:  # the vendor refuses duplicates, which a hook can cause
                        items.append(item)
                    if "id" in item:
                        thought.add(item["id"])
            case _:
                items.append({"role": role, "content": _content(content, model)})
    if not items:  # the endpoint requires at least one input item
        return "", [{"role": "system", "content": "\n\n".join(instructions)}]
    return "\n\n".join(instructions), items


def _hide(body: Item, names: frozenset[str]) -> None:
    """Mark the tools that the vendor should hide, and put the calls of tools that a search has found into their
    namespaces. This changes the request in place.
    """
    tools: list[Item] = body.get("tools", [])
    hidden = names.intersection(tool.get("name") for tool in tools)
    if hidden:
        marked = [{**tool, "defer_loading": True} if tool.get("name") in hidden else tool for tool in tools]
        body["tools"] = [*marked, {"type": "tool_search"}]
    kept: list[Item] = []
    found: set[str] = set()
    for item in body["input"]:
        match item.get("type"):
            case "tool_search_output":
                loaded = {tool["name"] for tool in item["tools"]}
                if not hidden or not hidden.issuperset(loaded):
                    if kept and kept[-1].get("type") == "tool_search_call":
                        # The call of the search, which the vendor would refuse without its result.
                        kept.pop()
                    continue
                found |= loaded
            case "function_call" if item["name"] in found:
                item = {**item, "namespace": item["name"]}
            case _:
                pass
        kept.append(item)
    body["input"] = kept


def _assistant_part(part: Item) -> Item:
    """Convert a part of an assistant's message."""
    match part["type"]:
        case "function":
            function = part["function"]
            return {"type": "function_call", "call_id": part["id"], **function}
        case "thinking":
            # The reverse of `seal`.
            mark, _, encrypted = part["signature"].partition(":")
            summary = [{"type": "summary_text", "text": part["thinking"]}] if part["thinking"] else []
            return {"type": "reasoning", "id": mark, "summary": summary, "encrypted_content": encrypted}
        case "text":
            return {"role": "assistant", "content": part["text"]}
        case _:  # the call and result of a server tool
            return part


def _content(content: Json, model: str) -> Json:
    if isinstance(content, str) or not isinstance(content, list):
        return content
    return [_part(cast("Item", part), model) for part in content]


def _part(part: Item, model: str) -> Json:
    match part["type"]:
        case "image_url":
            return {"type": "input_image", "image_url": part["image_url"]["url"]}
        case "file":
            file: dict[str, str] = part["file"]
            if "file_data" in file:
                return {"type": "input_file", "filename": file["filename"], "file_data": file["file_data"]}
            file_id = file["file_id"]
            return {"type": "input_file", "file_url" if file_id.startswith("http") else "file_id": file_id}
        case "input_audio":
            raise UsageError(
                f"The model {model!r} was sent audio over /responses, which does not support it. Leave the audio out "
                "of the messages."
            )
        case _:
            return {"type": "input_text", "text": part["text"]}


def _tool_fields(prepared: Mapping[str, Json], typed: Mapping[str, Mapping[str, Any]]) -> Item:
    """Return `tools` and `tool_choice`; on this endpoint a function is strict by default."""
    if "tools" not in prepared:
        return {}
    functions = [tool["function"] for tool in cast("list[Item]", prepared["tools"])]
    entries = [typed.get(function["name"], {"type": "function", **function, "strict": False}) for function in functions]
    fields: Item = {"tools": entries}
    choice = prepared.get("tool_choice")
    if choice is not None:
        named = cast("Item", choice["function"])["name"] if isinstance(choice, dict) else None
        fields["tool_choice"] = choice if named is None else typed.get(named, {"type": "function", "name": named})
    return fields
