"""`AnthropicWire`: Anthropic's messages API without LiteLLM.

Rules:

1. Events are told by their `type`; those of types that nobody knows are passed over, as the vendor asks.
2. Usage is cumulative: what was read stands in the first event, what was written in the last ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from agentflow.chunks import ModelChunk, ToolUseDelta, text_chunk
from agentflow.errors import ModelError
from agentflow.messages import Citation, ThinkingBlock
from agentflow.models.anthropic_out import messages_out, thinking_fields, tool_fields
from agentflow.models.conversion import Conversation
from agentflow.models.options_out import options_out
from agentflow.models.profiles import claude
from agentflow.models.provider_errors import ProviderError
from agentflow.models.wire import DirectWire, Reader, Vendor, with_halves
from agentflow.ports.model import ModelRequest, TokenCount
from agentflow.specs import Usage

__all__ = ["AnthropicWire"]

_SUPPORTED = frozenset({"reasoning_effort", "thinking"})
_COUNTED = ("model", "messages", "system", "tools", "tool_choice", "thinking")
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
# The errors of a stream that is under way; the others may pass.
_LASTING = {"invalid_request_error": 400, "authentication_error": 401, "permission_error": 403, "not_found_error": 404}


class _Delta(msgspec.Struct, gc=False):
    type: str = ""
    text: str = ""
    thinking: str = ""
    signature: str = ""
    partial_json: str = ""
    citation: dict[str, Any] | None = None
    stop_reason: str | None = None


class _Block(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    name: str | None = None
    input: Any = None
    text: str = ""
    thinking: str = ""
    signature: str = ""
    data: str = ""


class _Kept(msgspec.Struct, gc=False):
    ephemeral_1h_input_tokens: int | None = None


class _Thought(msgspec.Struct, gc=False):
    thinking_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: _Kept | None = None
    output_tokens_details: _Thought | None = None


class _Message(msgspec.Struct, gc=False):
    usage: _Usage | None = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


class _Kind(msgspec.Struct, gc=False):
    type: str = ""


_decode = msgspec.json.Decoder(_Event).decode
_decode_kind = msgspec.json.Decoder(_Kind).decode


class AnthropicWire(DirectWire):
    """A model behind Anthropic's messages API, named `"anthropic/model"`; arguments as for every direct wire.

    The key is `ANTHROPIC_API_KEY`, the address `ANTHROPIC_BASE_URL` (or `ANTHROPIC_API_BASE`). With another server's
    `api_base` it is `ANTHROPIC_COMPATIBLE_API_KEY`, if there is one.

    Example:
        >>> AnthropicWire("claude-sonnet-4-5").name
        'anthropic/claude-sonnet-4-5'
    """

    __slots__ = ()

    _reserved = frozenset({"model", "messages", "system", "tools", "stream"})
    _tells_errors = True

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
        return {"x-api-key": self._key() or "none", "anthropic-version": "2023-06-01"}

    def _body(self, request: ModelRequest, conversation: Conversation) -> dict[str, object]:
        asked = self._prepare(request, conversation, _SUPPORTED)
        generation = claude(self._model, self._row)
        options = options_out(request.options, conversation.profile, asked.thinking)
        thinking = thinking_fields(options, generation)
        fields = {name: options[name] for name in ("temperature", "top_p") if name in options}
        if "stop" in options:
            fields["stop_sequences"] = options["stop"]
        system, messages = messages_out(asked.messages, self._name)
        body: dict[str, object] = {
            "model": self._model,
            "max_tokens": options.get("max_tokens", generation.ceiling),
            "messages": messages,
            "stream": True,
            **self._in_its_words(self._params),
            **fields,
            **thinking,
            **tool_fields(asked.tools),
        }
        if system:
            body["system"] = system
        if isinstance(asked.form, dict):
            form: Any = asked.form
            wanted = {"type": "json_schema", "schema": form["json_schema"]["schema"]}
            body["output_config"] = {**thinking.get("output_config", {}), "format": wanted}
        return body

    async def count_tokens(self, request: ModelRequest) -> TokenCount:
        """How many tokens a request has, as the vendor's counter says: a request of its own, which costs nothing.

        Raises:
            ModelError: It could not be asked.
        """
        body = self._body(request, await self._ready(request))
        answer = await self._asked(
            f"{self._url()}/count_tokens", {name: body[name] for name in _COUNTED if name in body}
        )
        tokens = answer.get("input_tokens")
        if not isinstance(tokens, int):
            raise ModelError(f"{self._name} was asked to count, and answered without input_tokens.", model=self._name)
        return TokenCount(tokens, "provider")

    def _in_its_words(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        words = super()._in_its_words(fields)
        if "user" in words:  # OpenAI's word
            words["metadata"] = {"user_id": words.pop("user"), **words.get("metadata", {})}
        return words

    def _reader(self, conversation: Conversation) -> Reader:
        return _Reply(self._name, self._priced)


class _Reply:
    """Reads one reply."""

    __slots__ = ("_calls", "_name", "_priced", "_unsaid", "_used", "ended", "finish_reason")

    def __init__(self, name: str, priced: Callable[[Usage, int], ModelChunk]) -> None:
        self._name = name
        self._priced = priced
        self._calls: dict[int, int] = {}
        self._unsaid: dict[int, str] = {}
        self._used = _Usage()
        self.finish_reason: str | None = None
        self.ended = False

    def read(self, data: bytes) -> Sequence[ModelChunk]:
        """The chunks in one event."""
        try:
            event = _decode(data)
        except msgspec.ValidationError:
            return self._unknown(data)
        except msgspec.DecodeError as error:
            event = msgspec.convert(with_halves(data, error), _Event)
        delta = event.delta
        match event.type:
            case "content_block_delta" if delta is not None:
                if delta.type == "text_delta":
                    return (text_chunk(delta.text),) if delta.text else ()
                return self._delta(event.index, delta)
            case "content_block_start" if event.content_block is not None:
                return self._start(event.index, event.content_block)
            case "content_block_stop" if event.index in self._unsaid:
                return (self._call(event.index, arguments=self._unsaid.pop(event.index)),)
            case "message_start" if event.message is not None and event.message.usage is not None:
                self._count(event.message.usage)
            case "message_delta":
                return self._end(delta, event.usage)
            case "message_stop":
                self.ended = True
            case "error":
                raise _failure(event.error or {})
            case _:
                pass
        return ()

    def _unknown(self, data: bytes) -> Sequence[ModelChunk]:
        """An event whose fields are of other types: of a type that nobody knows, or a fault."""
        if _decode_kind(data).type in ("content_block_delta", "content_block_start", "message_delta", "error"):
            raise ProviderError(f"an event is not as the wire has it: {data[:200].decode(errors='replace')}")
        return ()

    def _delta(self, index: int, delta: _Delta) -> Sequence[ModelChunk]:
        match delta.type:
            case "thinking_delta" if delta.thinking:
                return (ModelChunk(thinking=delta.thinking, model=self._name),)
            case "signature_delta" if delta.signature:
                return (ModelChunk(signature=delta.signature, model=self._name),)
            case "citations_delta" if delta.citation is not None:
                return (ModelChunk(citations=(Citation.of(delta.citation, self._name),)),)
            case "input_json_delta" if delta.partial_json:
                self._unsaid.pop(index, None)
                return (self._call(index, arguments=delta.partial_json),)
            case _:
                return ()

    def _start(self, index: int, block: _Block) -> Sequence[ModelChunk]:
        match block.type:
            case "tool_use":
                self._calls[index] = len(self._calls)
                if block.input:  # some servers send it whole, and no pieces
                    self._unsaid[index] = msgspec.json.encode(block.input).decode()
                return (self._call(index, block.id or "", block.name or ""),)
            case "text" if block.text:
                return (ModelChunk(block.text),)
            case "thinking":
                said = [ModelChunk(thinking=block.thinking, model=self._name)] if block.thinking else []
                return [*said, ModelChunk(signature=block.signature, model=self._name)] if block.signature else said
            case "redacted_thinking":
                return (ModelChunk(blocks=(ThinkingBlock("", None, block.data, self._name),), model=self._name),)
            case _:
                return ()

    def _call(self, index: int, id: str = "", name: str = "", arguments: str = "") -> ModelChunk:  # noqa: A002
        place = self._calls.setdefault(index, len(self._calls))
        return ModelChunk(tool_uses=(ToolUseDelta(place, id, name, arguments),))

    def _count(self, usage: _Usage) -> None:
        """What is known replaces what was known before."""
        for name in usage.__struct_fields__:
            if (value := getattr(usage, name)) is not None:
                setattr(self._used, name, value)

    def _end(self, delta: _Delta | None, usage: _Usage | None) -> Sequence[ModelChunk]:
        found: list[ModelChunk] = []
        if delta is not None and delta.stop_reason and self.finish_reason is None:
            self.finish_reason = _FINISH.get(delta.stop_reason, delta.stop_reason)
            found.append(ModelChunk(finish_reason=self.finish_reason))
        if usage is not None:
            self._count(usage)
            used = self._used
            read, written = used.cache_read_input_tokens or 0, used.cache_creation_input_tokens or 0
            kept, thought = used.cache_creation, used.output_tokens_details
            told = Usage(
                input_tokens=(used.input_tokens or 0) + read + written,
                output_tokens=used.output_tokens or 0,
                cache_read_tokens=read,
                cache_write_tokens=written,
                reasoning_tokens=(thought.thinking_tokens or 0) if thought is not None else 0,
                model_calls=1,
            )
            found.append(self._priced(told, kept.ephemeral_1h_input_tokens or 0 if kept is not None else 0))
        return found


def _failure(error: dict[str, Any]) -> ProviderError:
    kind = str(error.get("type", ""))
    return ProviderError(str(error.get("message") or kind or error), _LASTING.get(kind), {}, error)
