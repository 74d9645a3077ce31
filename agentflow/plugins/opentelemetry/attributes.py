"""The attribute names of OpenTelemetry's GenAI conventions that `OpenTelemetry` uses, and the conversion of values to them.

Two versions are supported (status: development). 1.41 is the last one in OpenTelemetry's common conventions; its registry is in
`opentelemetry-semantic-conventions`, and a test compares the names with it. 0.1 is the first one of
https://github.com/open-telemetry/semantic-conventions-genai, the new home of the conventions. Names that are in neither version
begin with `agentflow.`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, assert_never

from agentflow.vocabulary.messages import (
    ContentBlock,
    DataBlock,
    Msg,
    ServerToolBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from agentflow.vocabulary.ports.answer_origin import AnswerOrigin
from agentflow.vocabulary.specs import WORKFLOW, ModelOptions, ToolSpec, Usage

Attributes: TypeAlias = "dict[str, str | bool | int | float | Sequence[str]]"

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
STREAM: Final = "gen_ai.request.stream"
CONVERSATION: Final = "gen_ai.conversation.id"
AGENT_NAME: Final = "gen_ai.agent.name"
AGENT_DESCRIPTION: Final = "gen_ai.agent.description"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
TOOL_CALL: Final = "gen_ai.tool.call.id"
TOOL_DESCRIPTION: Final = "gen_ai.tool.description"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"
SYSTEM: Final = "gen_ai.system_instructions"
INPUT: Final = "gen_ai.input.messages"
OUTPUT: Final = "gen_ai.output.messages"
TOKEN_TYPE: Final = "gen_ai.token.type"
ERROR_TYPE: Final = "error.type"

RUN: Final = "agentflow.run.id"
CALL: Final = "agentflow.call.id"
ITERATION: Final = "agentflow.iteration"
ATTEMPT: Final = "agentflow.attempt"
OUTCOME: Final = "agentflow.outcome"
PURPOSE: Final = "agentflow.purpose"
COST: Final = "agentflow.usage.cost"
MODEL_CALLS: Final = "agentflow.usage.model_calls"
VERDICT: Final = "agentflow.verdict"
HOOK: Final = "agentflow.hook"
KIND: Final = "agentflow.kind"
EVENT: Final = "agentflow.event"
REASON: Final = "agentflow.reason"
ORIGIN: Final = "agentflow.origin"
MESSAGES: Final = "agentflow.messages"
PHASE: Final = "agentflow.phase"
TOKENS_BEFORE: Final = "agentflow.tokens.before"
TOKENS_AFTER: Final = "agentflow.tokens.after"
LINK: Final = "agentflow.link"

# The bucket boundaries that the conventions recommend.
DURATIONS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
LONG_DURATIONS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)
TOKENS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)

Version: TypeAlias = Literal["1.41", "0.1"]
"""A version of the conventions: 1.41 of the common conventions, or the newer 0.1 of the separate conventions for GenAI."""


class Conventions(NamedTuple):
    """The names that differ between the versions of the conventions.

    Attributes:
        schema_url: The URL of the schema.
        duration: The metric of a model call's duration.
        first_chunk: The metric of the time to the first chunk of a model call.
        tokens: The histogram of tokens, by `gen_ai.token.type`; empty if there is one for each type.
        cache_write: The attribute of the tokens written to a provider's cache.
    """

    schema_url: str
    duration: str
    first_chunk: str
    tokens: str
    cache_write: str


CONVENTIONS: Final[Mapping[Version, Conventions]] = {
    "1.41": Conventions(
        "https://opentelemetry.io/schemas/1.41.0",
        "gen_ai.client.operation.duration",
        "gen_ai.client.operation.time_to_first_chunk",
        "gen_ai.client.token.usage",
        "gen_ai.usage.cache_creation.input_tokens",
    ),
    "0.1": Conventions(
        "https://opentelemetry.io/schemas/gen-ai/0.1.0",
        "gen_ai.client.inference.duration",
        "gen_ai.client.inference.time_to_first_chunk",
        "",
        "gen_ai.usage.cache_write.input_tokens",
    ),
}

OPT_IN: Final = "OTEL_SEMCONV_STABILITY_OPT_IN"
"""OpenTelemetry's environment variable for the choice among versions."""

LATEST: Final = "gen_ai_latest_experimental"
"""The variable's value for the newest GenAI conventions."""

_PROVIDERS: Final[Mapping[str, str]] = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "bedrock_converse": "aws.bedrock",
    "cohere_chat": "cohere",
    "gemini": "gcp.gemini",
    "google": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "vertex_ai": "gcp.vertex_ai",
    "vertex_ai_beta": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""Prefixes of models' names, and the conventions' name of the provider if it differs."""

_FAMILIES: Final = (
    ("gpt-", "openai"),
    ("chatgpt-", "openai"),
    ("o1", "openai"),
    ("o3", "openai"),
    ("o4", "openai"),
    ("claude-", "anthropic"),
    ("gemini-", "gcp.gemini"),
    ("command-", "cohere"),
    ("mistral-", "mistral_ai"),
    ("deepseek-", "deepseek"),
    ("grok-", "x_ai"),
)
"""Prefixes of model names without a provider, and the conventions' name of the provider."""


@lru_cache(1024)
def model_and_provider(name: str) -> tuple[str, str]:
    """Return the name of a model without its provider, and the provider. If the provider is neither in the name nor known from
    its prefix, return the name twice.

    Example:
        >>> model_and_provider("openai/gpt-5"), model_and_provider("bedrock/anthropic.claude-3"), model_and_provider("mine")
        (('gpt-5', 'openai'), ('anthropic.claude-3', 'aws.bedrock'), ('mine', 'mine'))
    """
    rest = name.removeprefix("litellm/").removeprefix("litellm://")
    scheme, mark, model = rest.partition("://")
    if not mark:
        scheme, mark, model = rest.partition("/")
    if mark:
        return model, _PROVIDERS.get(scheme, scheme)
    for prefix, provider in _FAMILIES:
        if rest.startswith(prefix):
            return rest, provider
    return rest, rest


def operation_of(agent: str, model_name: str) -> tuple[str, dict[str, str]]:
    """Return the operation name of an agent's call, and the attributes of the agent.

    The attributes of a workflow contain its name both as an agent's and as a workflow's name: version 1.41 requires the
    former, 0.1 the latter.

    Example:
        >>> operation_of("team", "workflow")[0], operation_of("desk", "openai/gpt-5")[0]
        ('invoke_workflow', 'invoke_agent')
    """
    if model_name == WORKFLOW:
        return "invoke_workflow", {OPERATION: "invoke_workflow", "gen_ai.workflow.name": agent, AGENT_NAME: agent}
    model, provider = model_and_provider(model_name)
    return "invoke_agent", {
        OPERATION: "invoke_agent",
        PROVIDER: provider,
        AGENT_NAME: agent,
        REQUEST_MODEL: model,
    }


def error_type(error: BaseException) -> str:
    """Return the class of an exception, with its module unless it is a builtin."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def plain(text: str) -> str:
    """Make a text encodable: escape lone surrogates."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text


def options_of(options: ModelOptions) -> Attributes:
    """Return the options of a request that are set, as attributes."""
    values: dict[str, Any] = {
        "gen_ai.request.temperature": options.temperature,
        "gen_ai.request.max_tokens": options.max_tokens,
        "gen_ai.request.top_p": options.top_p,
        "gen_ai.request.seed": options.seed,
        "gen_ai.request.stop_sequences": options.stop,
        "gen_ai.output.type": None if options.answer_schema is None else "json",
    }
    return {name: value for name, value in values.items() if value is not None}


def usage_of(usage: Usage, cache_write: str) -> Attributes:
    """Return a usage as attributes. Tokens of caches and of reasoning are left out if 0, and an unknown cost.

    Args:
        usage: The usage to convert.
        cache_write: The conventions' name of the tokens written to a cache.
    """
    attributes: Attributes = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
    }
    if usage.cache_read_tokens:
        attributes["gen_ai.usage.cache_read.input_tokens"] = usage.cache_read_tokens
    if usage.cache_write_tokens:
        attributes[cache_write] = usage.cache_write_tokens
    if usage.reasoning_tokens:
        attributes["gen_ai.usage.reasoning.output_tokens"] = usage.reasoning_tokens
    if usage.cost is not None:
        attributes[COST] = usage.cost
    return attributes


def origin_of(origin: AnswerOrigin) -> Attributes:
    """Return the server and the model of an answer, if the adapter knows them."""
    attributes: dict[str, str | int] = {
        "gen_ai.response.id": plain(origin.response_id),
        RESPONSE_MODEL: plain(origin.model),
        "server.address": plain(origin.address),
        "server.port": origin.port if origin.address else 0,
    }
    return {name: value for name, value in attributes.items() if value}


def tool_name(name: str) -> str:
    """Return a tool's name, shortened: a model may write any text as a name."""
    return plain(name if len(name) <= 64 else f"{name[:64]}…")


def call_of(use: ToolUseBlock) -> dict[str, str]:
    """Return the name and the id of a tool call."""
    return {TOOL_NAME: tool_name(use.name), TOOL_CALL: plain(use.id)}


# ---- content


def system_and_messages(messages: Sequence[Msg]) -> tuple[str, str]:
    """Return the instructions and the conversation of a request, each as the conventions' JSON. The former is
    empty if there are no instructions."""
    rest = [msg for msg in messages if msg.role != "system"]
    system = [part for msg in messages if msg.role == "system" for part in _parts(msg)]
    return _json(system) if system else "", parts_of(rest)


def parts_of(messages: Sequence[Msg], finish_reason: str | None = None) -> str:
    """Return messages as the conventions' JSON.

    Example:
        >>> parts_of([Msg.user("Hi")])
        '[{"role":"user","parts":[{"type":"text","content":"Hi"}]}]'
    """
    converted: list[dict[str, Any]] = []
    for msg in messages:
        message: dict[str, Any] = {"role": msg.role, "parts": _parts(msg)}
        if msg.name:
            message["name"] = msg.name
        if finish_reason is not None:
            message["finish_reason"] = finish_reason
        converted.append(message)
    return _json(converted)


def tool_definitions(tools: Sequence[ToolSpec]) -> str:
    """Return the definitions of a model's tools, as the conventions' JSON."""
    return _json(
        [
            {"type": "function", "name": spec.name, "description": spec.description, "parameters": spec.parameters}
            for spec in tools
        ]
    )


def _parts(msg: Msg) -> list[dict[str, Any]]:
    return [_part(block) for block in msg.content]


def _part(block: ContentBlock) -> dict[str, Any]:
    match block:
        case TextBlock():
            return {"type": "text", "content": block.text}
        case ThinkingBlock():
            return {"type": "reasoning", "content": block.text}
        case ToolUseBlock():
            arguments = block.raw if block.input_error is not None else dict(block.input)
            return {"type": "tool_call", "id": block.id, "name": block.name, "arguments": arguments}
        case ToolResultBlock():
            return {"type": "tool_call_response", "id": block.tool_use_id, "response": block.text}
        case ServerToolBlock():
            return {"type": "server_tool_call", "id": block.id, "name": block.name, "arguments": dict(block.input)}
        case DataBlock():  # without the content, which may be megabytes
            modality = block.media_type.partition("/")[0]
            about: dict[str, Any] = {"mime_type": block.media_type, "modality": modality}
            if block.url is not None and not block.url.startswith("data:"):
                return {"type": "uri", **about, "uri": block.url}
            return {"type": "file", **about, "file_id": block.name or ""}
        case _:
            assert_never(block)


def _json(value: object) -> str:
    return plain(json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str))
