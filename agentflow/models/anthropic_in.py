"""Converts the events of Anthropic's messages API to `ModelChunk`s.

Rules:

1. Events, blocks and deltas have a `type`; an unknown one is skipped with all its fields, as Anthropic recommends.
2. An event with fields of unexpected types is read again by `loose.py`.
3. A call of a tool that Anthropic runs, with its result, becomes a block of the reply instead of a tool call.
4. Usage is cumulative: input tokens are in the first event, output tokens in the last ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from agentflow._support.json_text import read_json_text
from agentflow.models.loose import (
    NotUnderstoodError,
    as_text,
    count,
    field,
    items,
    json_text,
    log_skipped,
    place,
    text_or_none,
)
from agentflow.models.provider_errors import ProviderError
from agentflow.models.wire import anything
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta, text_chunk
from agentflow.vocabulary.messages import Citation, ServerToolBlock, ThinkingBlock
from agentflow.vocabulary.specs import Usage

PAUSED = "pause_turn"
"""The finish reason of a reply that Anthropic has paused."""
_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "pause_turn": PAUSED,
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
# Errors within a stream for which a retry does not help; all others are temporary.
_LASTING = {"invalid_request_error": 400, "authentication_error": 401, "permission_error": 403, "not_found_error": 404}


class _Delta(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    partial_json: str | None = None
    citation: dict[str, Any] | None = None
    stop_reason: str | None = None


class _Block(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    name: str | None = None
    input: Any = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class _CacheCreation(msgspec.Struct, gc=False):
    ephemeral_1h_input_tokens: int | None = None


class _OutputDetails(msgspec.Struct, gc=False):
    thinking_tokens: int | None = None


class _ServerToolUse(msgspec.Struct, gc=False):
    web_search_requests: int | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation: _CacheCreation | None = None
    output_tokens_details: _OutputDetails | None = None
    server_tool_use: _ServerToolUse | None = None


class _Message(msgspec.Struct, gc=False):
    usage: _Usage | None = None
    content: list[Any] | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    index: int = 0
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


_decode = msgspec.json.Decoder(_Event).decode
_SILENT = frozenset({"message_start", "content_block_stop", "message_stop", "ping"})


class AnthropicReader:
    """Reads one reply.

    Args:
        name: The model's name.
        priced: Creates a chunk with usage and price, given the usage, the number of tokens cached for an hour, and the
            number of web searches.
    """

    def __init__(self, name: str, priced: Callable[[Usage, int, int], ModelChunk]) -> None:
        self._name = name
        self._priced = priced
        # Calls are numbered in order of appearance: the indices of blocks count texts and thoughts too.
        self._begun = 0
        self._calls: dict[int, int] = {}
        self._foreign: dict[int, list[str]] = {}  # the fragments of the input of tools that Anthropic runs, by block
        # calls of these tools that have no result yet, by id
        self._server_calls: dict[str, tuple[dict[str, Any], list[str]]] = {}
        # Complete inputs from the start of a call, by block, until a fragment replaces them.
        self._inputs: dict[int, str] = {}
        self._used = _Usage()  # the newest count of each kind
        self.finish_reason: str | None = None
        self.ended = False

    def read(self, data: bytes) -> Sequence[ModelChunk]:
        """Return the chunks of one event."""
        try:
            event = _decode(data)
        except msgspec.DecodeError:
            # A field has an unexpected type, or a text contains half of a surrogate pair.
            event = _loose(anything(data))
        delta = event.delta
        match event.type:
            case "content_block_delta" if delta is not None:
                # The fast path: most events are short texts.
                if delta.type == "text_delta":
                    return (text_chunk(delta.text),) if delta.text else ()
                return self._delta(event.index, delta)
            case "content_block_start" if event.content_block is not None:
                return self._start(event.index, event.content_block, data)
            case "content_block_stop" if event.index in self._inputs:
                return (self._complete_input(event.index),)
            case "message_start" if event.message is not None:
                return self._begin(event.message)
            case "message_delta":
                return self._end(delta.stop_reason if delta is not None else None, event.usage)
            case "message_stop":
                self.ended = True
            case "error":
                raise _failure(event.error or {})
            case kind:
                if kind and kind not in _SILENT:
                    log_skipped(self._name, f"an event of type {kind!r}")
        return ()

    def _begin(self, message: _Message) -> Sequence[ModelChunk]:
        if message.usage is not None:
            self._count(message.usage)
        found: list[ModelChunk] = []
        for index, block in enumerate(message.content or ()):  # some servers send the whole answer at once
            found += self._start(index, _loose_block(block))
        return [*found, *self._end(message.stop_reason, None)] if message.stop_reason else found

    def _delta(self, index: int, delta: _Delta) -> Sequence[ModelChunk]:
        match delta.type:
            case "thinking_delta":
                return (ModelChunk(thinking=delta.thinking, model=self._name),) if delta.thinking else ()
            case "signature_delta":
                return (ModelChunk(signature=delta.signature, model=self._name),) if delta.signature else ()
            case "citations_delta":
                cited = delta.citation
                return () if cited is None else (ModelChunk(citations=(Citation.of(cited, self._name),)),)
            case "input_json_delta":
                if not delta.partial_json:
                    return ()
                if index in self._foreign:
                    self._foreign[index].append(delta.partial_json)
                    return ()
                # Fragments follow, so the input in the start was only a placeholder.
                self._inputs.pop(index, None)
                return (self._call(index, arguments=delta.partial_json),)
            case "":
                raise NotUnderstoodError("the delta of a block has no type")
            case kind:
                log_skipped(self._name, f"a delta of type {kind!r}")
                return ()

    def _start(self, index: int, block: _Block, data: bytes | None = None) -> Sequence[ModelChunk]:
        self._foreign.pop(index, None)
        match block.type:
            case "tool_use":
                before = [self._complete_input(index)] if index in self._inputs else []
                self._calls.pop(index, None)  # some servers give every block the same index
                if block.input:  # some servers send the complete input here instead of in fragments
                    self._inputs[index] = json_text(block.input)
                return [*before, self._call(index, block.id or "", block.name or "")]
            case "text":
                return (ModelChunk(block.text),) if block.text else ()
            case "thinking":
                chunks = [ModelChunk(thinking=block.thinking, model=self._name)] if block.thinking else []
                return [*chunks, ModelChunk(signature=block.signature, model=self._name)] if block.signature else chunks
            case "redacted_thinking":
                sealed = ThinkingBlock("", None, block.data or "", self._name)
                return (ModelChunk(blocks=(sealed,), model=self._name),)
            case kind:
                self._foreign[index] = fragments = []
                # Decoded again with all fields: these blocks are sent back unchanged.
                raw = None if data is None else field(anything(data), "content_block")
                block_of = cast("dict[str, Any]", raw if isinstance(raw, dict) else {})
                if kind in ("server_tool_use", "mcp_tool_use"):
                    self._server_calls[as_text(block_of.get("id"), "the id of a server tool's call")] = (
                        block_of,
                        fragments,
                    )
                    return ()
                if (call := self._server_calls.pop(str(block_of.get("tool_use_id")), None)) is not None:
                    return (self._work(*call, block_of),)
                log_skipped(self._name, f"a block of type {kind!r}")
                return ()

    def _work(self, call: dict[str, Any], fragments: list[str], *result: dict[str, Any]) -> ModelChunk:
        """Return the block with the call and result of a tool that Anthropic ran."""
        if fragments:
            try:
                # The start event's block has an empty input; the fragments contain the real input.
                call = {**call, "input": read_json_text("".join(fragments), constants=False)}
            except ValueError as error:
                raise NotUnderstoodError(f"the input of the server tool {call.get('name')!r} is not JSON") from error
        name = as_text(call.get("name"), "the name of a server tool")
        return ModelChunk(blocks=(ServerToolBlock(str(call["id"]), name, (call, *result), self._name),))

    def _call(self, index: int, id: str = "", name: str = "", arguments: str = "") -> ModelChunk:  # noqa: A002 - as in the event
        if index not in self._calls:
            self._calls[index] = self._begun
            self._begun += 1
        return ModelChunk(tool_uses=(ToolUseDelta(self._calls[index], id, name, arguments),))

    def _complete_input(self, index: int) -> ModelChunk:
        """Return the input of a call that was sent completely with the call's start, not in fragments."""
        return self._call(index, arguments=self._inputs.pop(index))

    def _count(self, usage: _Usage) -> None:
        """Replace earlier counts with newer ones."""
        for name in usage.__struct_fields__:
            if (value := getattr(usage, name)) is not None:
                setattr(self._used, name, value)

    def _end(self, reason: str | None, usage: _Usage | None) -> Sequence[ModelChunk]:
        # Some servers omit the end of a block.
        found = [self._complete_input(index) for index in list(self._inputs)] if reason else []
        if reason:  # calls still without a result: the reply was paused, or the server has omitted the result
            found += [self._work(*call) for call in self._server_calls.values()]
            self._server_calls = {}
        if reason and self.finish_reason is None:
            self.finish_reason = _FINISH.get(reason, reason)
            found.append(ModelChunk(finish_reason=self.finish_reason))
        if usage is not None:
            self._count(usage)
        used = self._used
        if used.input_tokens is None and used.output_tokens is None:
            return found
        read, written = used.cache_read_input_tokens or 0, used.cache_creation_input_tokens or 0
        kept, thought = used.cache_creation, used.output_tokens_details
        # Anthropic's `input_tokens` exclude those of the cache; `Usage` includes them.
        total = Usage(
            input_tokens=(used.input_tokens or 0) + read + written,
            output_tokens=used.output_tokens or 0,
            cache_read_tokens=read,
            cache_write_tokens=written,
            reasoning_tokens=(thought.thinking_tokens or 0) if thought is not None else 0,
            model_calls=1,
        )
        searches = used.server_tool_use.web_search_requests or 0 if used.server_tool_use is not None else 0
        hour_cached = kept.ephemeral_1h_input_tokens or 0 if kept is not None else 0
        found.append(self._priced(total, hour_cached, searches))
        return found


def _loose(value: object) -> _Event:
    """Read an event with fields of unexpected types, field by field; unknown fields are ignored.

    Raises:
        NotUnderstoodError: A field that carries meaning is unreadable.
    """
    kind = text_or_none(field(value, "type")) or ""
    index = place(field(value, "index")) or 0
    match kind:
        case "content_block_delta":
            return _Event(kind, index, delta=_loose_delta(field(value, "delta")))
        case "content_block_start":
            return _Event(kind, index, content_block=_loose_block(field(value, "content_block")))
        case "message_start":
            message = field(value, "message")
            content = [*items(field(message, "content"))]
            used, reason = _loose_usage(field(message, "usage")), text_or_none(field(message, "stop_reason"))
            return _Event(kind, message=_Message(used, content, reason))
        case "message_delta":
            reason = text_or_none(field(field(value, "delta"), "stop_reason"))
            return _Event(kind, delta=_Delta(stop_reason=reason), usage=_loose_usage(field(value, "usage")))
        case "error":
            error = field(value, "error")
            fields = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": error and str(error)}
            return _Event(kind, error=fields)
        case _:
            return _Event(kind, index)


def _loose_delta(value: object) -> _Delta:
    kind = text_or_none(field(value, "type")) or ""
    delta = _Delta(kind)
    match kind:
        case "text_delta":
            delta.text = as_text(field(value, "text"), "text")
        case "thinking_delta":
            delta.thinking = as_text(field(value, "thinking"), "thinking")
        case "signature_delta":
            delta.signature = as_text(field(value, "signature"), "signature")
        case "input_json_delta":
            delta.partial_json = json_text(field(value, "partial_json"))
        case "citations_delta":
            cited = field(value, "citation")
            delta.citation = cast("dict[str, Any]", cited) if isinstance(cited, dict) else None
        case _:
            pass
    return delta


def _loose_block(value: object) -> _Block:
    kind = field(value, "type")
    block = _Block(kind if isinstance(kind, str) else repr(kind))
    match kind:
        case "text":
            block.text = as_text(field(value, "text"), "text")
        case "tool_use":
            block.id = as_text(field(value, "id"), "the id of a tool call")
            block.name = as_text(field(value, "name"), "the name of a tool call")
            block.input = field(value, "input")
        case "thinking" | "redacted_thinking":
            for name in ("thinking", "signature", "data"):
                setattr(block, name, as_text(field(value, name), name))
        case _:
            pass
    return block


def _loose_usage(value: object) -> _Usage | None:
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, object]", value)
    names = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    counts = {name: None if fields.get(name) is None else count(fields[name]) for name in names}
    one_hour = field(fields.get("cache_creation"), "ephemeral_1h_input_tokens")
    thought = field(fields.get("output_tokens_details"), "thinking_tokens")
    searches = field(fields.get("server_tool_use"), "web_search_requests")
    return _Usage(
        **counts,
        cache_creation=None if one_hour is None else _CacheCreation(count(one_hour)),
        output_tokens_details=None if thought is None else _OutputDetails(count(thought)),
        server_tool_use=None if searches is None else _ServerToolUse(count(searches)),
    )


def _failure(error: dict[str, Any]) -> ProviderError:
    kind = str(error.get("type", ""))
    return ProviderError(str(error.get("message") or kind or error), _LASTING.get(kind), {}, error)
