"""`AnthropicWire`: Anthropic's messages API without LiteLLM.

Rules:

1. A reply that Anthropic pauses is continued with further requests.
2. `anthropic_in.py` reads replies, `anthropic_out.py` writes messages and tools.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from agentflow._support.frozen import EMPTY
from agentflow.errors import ModelError
from agentflow.models.anthropic_in import PAUSED, AnthropicReader
from agentflow.models.anthropic_out import drop_lost, messages_out, thinking_fields, tool_fields
from agentflow.models.conversion import Conversation
from agentflow.models.options_out import options_out
from agentflow.models.profiles import claude, claude_generation
from agentflow.models.server_tools_out import (
    BETAS,
    anthropic_server_tools,
    anthropic_servers,
    computer_version,
    deferring,
)
from agentflow.models.wire import DirectWire, Reader, Vendor
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import ModelRequest, TokenCount
from agentflow.vocabulary.specs import ToolSpec, Usage

if TYPE_CHECKING:
    import aiohttp

__all__ = ["AnthropicWire"]

# OpenAI's arguments that this wire translates; LiteLLM has such a list for each model.
_SUPPORTED = frozenset({"reasoning_effort", "thinking"})
# Anthropic's token counter refuses other fields.
_COUNTED = ("model", "messages", "system", "tools", "mcp_servers", "tool_choice", "thinking")
_BETA = "anthropic-beta"
_MAX_PAUSES = 20  # a bound for the cost of one reply


class AnthropicWire(DirectWire):
    """A model of Anthropic's messages API, named `"anthropic/model"`; the arguments are those of `DirectWire`.

    The key is `ANTHROPIC_API_KEY`, the URL `ANTHROPIC_BASE_URL` (or `ANTHROPIC_API_BASE`). If `api_base` is another server, the
    key is `ANTHROPIC_COMPATIBLE_API_KEY`, or none.

    Example:
        >>> AnthropicWire("claude-sonnet-4-5").name
        'anthropic/claude-sonnet-4-5'
    """

    _reserved = frozenset({"model", "messages", "system", "tools", "stream"})
    _tells_errors = True
    _returns_server_tools = True

    vendor = Vendor(
        "anthropic",
        "https://api.anthropic.com",
        ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"),
        ("ANTHROPIC_API_KEY",),
        ("ANTHROPIC_COMPATIBLE_API_KEY",),
    )

    def _url(self) -> str:
        base = self._base()
        return f"{base}/messages" if base.endswith("/v1") else f"{base}/v1/messages"

    def _signed(self) -> dict[str, str]:
        # Some servers that need no key still require the header.
        return {"x-api-key": self._key() or "none", "anthropic-version": "2023-06-01"}

    def _attempt(self, request: ModelRequest, conversation: Conversation) -> AsyncGenerator[ModelChunk, None]:
        attempt = super()._attempt(request, conversation)
        return self._unpaused(attempt, request, conversation) if request.options.server_tools else attempt

    async def _unpaused(
        self, attempt: AsyncGenerator[ModelChunk, None], request: ModelRequest, conversation: Conversation
    ) -> AsyncGenerator[ModelChunk, None]:
        """Continue a reply each time Anthropic pauses it to run its own tools; add up the usage of all requests."""
        chunks: list[ModelChunk] = []
        before, used, pauses = Usage(), Usage(), 0
        while True:
            paused = False
            async with aclosing(attempt):
                async for chunk in attempt:
                    if chunk.finish_reason == PAUSED:
                        paused = pauses < _MAX_PAUSES
                        if paused:
                            continue
                    if chunk.usage is not None:
                        # A report replaces earlier ones of the same request; the usage of earlier requests is added.
                        used = replace(before + chunk.usage, model_calls=1)
                        chunk = ModelChunk(usage=used)
                    chunks.append(chunk)
                    yield chunk
            if not paused:
                return
            pauses, before = pauses + 1, used
            # Anthropic continues a reply if its beginning is the last message.
            attempt = super()._attempt(_Continued(request, fold(chunks)), conversation)

    def _body(self, request: ModelRequest, conversation: Conversation) -> dict[str, object]:
        prepared = self._prepare(request, conversation, _SUPPORTED, continues=isinstance(request, _Continued))
        wanted_tools = request.options.server_tools or ()
        server_tools = anthropic_server_tools(wanted_tools, self._name)
        generation = claude(self._model, self._row)
        options = options_out(request.options, conversation.profile, prepared.thinking)
        thinking = thinking_fields(options, generation)
        fields = {name: options[name] for name in ("temperature", "top_p") if name in options}
        if "stop" in options:
            fields["stop_sequences"] = options["stop"]
        system, messages = messages_out(prepared.messages, self._name)
        body: dict[str, object] = {
            "model": self._model,
            # Anthropic requires this field.
            "max_tokens": options.get("max_tokens", generation.ceiling),
            "messages": messages,
            "stream": True,
            **self._extra_fields(self._params),
            **fields,
            **thinking,
            **tool_fields(prepared.tools, self._typed(request.tools)),
        }
        tools = [*cast("list[dict[str, Any]]", body.get("tools", ())), *server_tools]
        if tools:
            body["tools"] = deferring(tools, wanted_tools) if self.searches_tools else tools
        if servers := anthropic_servers(wanted_tools):
            body["mcp_servers"] = servers
        # Called when the tools are complete, because the history is compared with them.
        drop_lost(messages, tools)
        if system:
            body["system"] = system
        if isinstance(prepared.form, dict):
            form: Any = prepared.form
            wanted = {"type": "json_schema", "schema": form["json_schema"]["schema"]}
            # This field also contains the effort for thinking.
            body["output_config"] = {**thinking.get("output_config", {}), "format": wanted}
        return body

    @property
    def searches_tools(self) -> bool:
        """Whether Anthropic can search the hidden tools for this model (`ServerTool.tool_search`)."""
        return claude_generation(self._model) >= (4, 5)

    def _typed(self, tools: Iterable[ToolSpec]) -> dict[str, Mapping[str, Any]]:
        """Return Anthropic's built-in definitions of the agent's tools, by name; models before Claude 4 have none."""
        if claude_generation(self._model) < (4, 0):
            return {}
        entries = ((spec, spec.native.get("anthropic")) for spec in tools)
        # Anthropic's definitions have fixed names, so a renamed tool is an ordinary one.
        typed = {spec.name: entry for spec, entry in entries if entry is not None and entry["name"] == spec.name}
        if "computer" in typed:
            version = computer_version(self._model)
            own = typed.pop("computer")
            if version is not None:
                typed["computer"] = {**own, "type": version}
        return typed

    def _post(
        self, url: str, body: Mapping[str, object], headers: Mapping[str, str] = EMPTY
    ) -> Awaitable[aiohttp.ClientResponse]:
        tools = cast("Iterable[Mapping[str, object]]", body.get("tools", ()))
        betas = [beta for tool in tools if (beta := BETAS.get(str(tool.get("type")))) is not None]
        return super()._post(url, body, self._with_betas(betas, headers))

    def _with_betas(self, betas: Iterable[str], headers: Mapping[str, str]) -> Mapping[str, str]:
        """Add betas to the headers of a request, after those of the user."""
        if not (added := [*dict.fromkeys(betas)]):
            return headers
        # The header of the request replaces that of the model (`DirectWire._send`), so both are joined here.
        own = [value for name, value in {**(self._headers or {}), **headers}.items() if name.lower() == _BETA]
        return {**headers, _BETA: ",".join(own + added)}

    async def count_tokens(self, request: ModelRequest) -> TokenCount:
        """Count a request's tokens with Anthropic's counter: a separate request, which is free.

        Raises:
            ModelError: The request failed.
        """
        body = self._body(request, await self._ready(request))
        answer = await self._post_json(
            f"{self._url()}/count_tokens", {name: body[name] for name in _COUNTED if name in body}
        )
        tokens = answer.get("input_tokens")
        if not isinstance(tokens, int):
            raise ModelError(
                f"{self._name} was asked to count tokens, but its answer has no input_tokens. Check that api_base= is "
                "Anthropic's API.",
                model=self._name,
            )
        return TokenCount(tokens, "provider")

    def _extra_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        named = super()._extra_fields(fields)
        if "user" in named:  # OpenAI's name for the user's id
            named["metadata"] = {"user_id": named.pop("user"), **named.get("metadata", {})}
        return named

    def _reader(self, conversation: Conversation) -> Reader:
        return AnthropicReader(self._name, self._priced)


class _Continued(ModelRequest):
    """A request whose last message is the beginning of the reply."""

    __slots__ = ()

    def __init__(self, request: ModelRequest, partial: Msg) -> None:
        super().__init__((*request.messages, partial), request.tools, request.options, request.model)
