"""Converts the events of OpenAI's `/responses` to `ModelChunk`s.

Rules:

1. Events and items have a `type`; an unknown one is skipped. An item that requests an unsupported action (a shell
   command) is an error, since the reply would otherwise look complete.
2. A call is identified by its index in the output: some gateways give each event a different `item_id`.
3. Later events repeat texts, calls and items. If a server has not sent them before, they are read from the later event.
4. The last event contains the outcome: no other event marks the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec

from agentflow.models.chunks_in import media_in
from agentflow.models.computer_calls import COMPUTER, call_id, split
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
from agentflow.models.responses_out import seal
from agentflow.models.wire import anything
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta, text_chunk
from agentflow.vocabulary.messages import Citation, ServerToolBlock
from agentflow.vocabulary.specs import Usage

_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "content_filter"}
# Errors within a reply that would occur again with the same request; all others are temporary.
_LASTING = re.compile(r"invalid_|image_|unsupported_|empty_|context_length|bio_policy|cyber_policy|data_residency")


_CALLS = frozenset({"function_call", "custom_tool_call"})
# Items of tools that the vendor runs, and the names of the tools.
_SERVER_TOOLS = {
    "web_search_call": "web_search",
    "file_search_call": "file_search",
    "code_interpreter_call": "code_execution",
    "mcp_call": "mcp",
    "tool_search_call": "tool_search",
    "tool_search_output": "tool_search",
}
_RUN_BY_VENDOR = frozenset({"image_generation_call", "mcp_list_tools"})
_FOR_THE_CLIENT = frozenset({"shell_call", "local_shell_call", "apply_patch_call", "mcp_approval_request"})


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    input: str | None = None
    content: list[Any] | None = None
    summary: list[Any] | None = None
    encrypted_content: str | None = None
    result: str | None = None
    output_format: str | None = None


class _Details(msgspec.Struct, gc=False):
    reason: str | None = None


class _InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _ResponsesOutputDetails(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _ResponsesUsage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _InputDetails | None = None
    output_tokens_details: _ResponsesOutputDetails | None = None


class _Response(msgspec.Struct, gc=False):
    output: list[Any] | None = None
    usage: _ResponsesUsage | None = None
    incomplete_details: _Details | None = None
    error: dict[str, Any] | None = None


class _ResponsesEvent(msgspec.Struct, gc=False):
    type: str = ""
    delta: str | None = None
    text: str | None = None
    refusal: str | None = None
    arguments: str | None = None
    output_index: int | None = None
    item_id: str | None = None
    summary_index: int | None = None
    item: _Item | None = None
    annotation: dict[str, Any] | None = None
    response: _Response | None = None
    error: dict[str, Any] | None = None
    message: str | None = None
    code: str | None = None


_decode = msgspec.json.Decoder(_ResponsesEvent).decode


class ItemsReader:
    """Reads one reply.

    Args:
        model: The model's name, for its thoughts.
        priced: Creates a chunk with usage and price, given the usage, the number of tokens cached for an hour, and the
            number of web searches.

    Example:
        >>> reader = ItemsReader("openai/gpt-5.4", lambda usage, *_: ModelChunk(usage=usage))
        >>> [chunk.text for chunk in reader.read(b'{"type": "response.output_text.delta", "delta": "Hi"}')]
        ['Hi']
    """

    def __init__(self, model: str, priced: Callable[[Usage, int, int], ModelChunk]) -> None:
        self._model = model
        self._priced = priced
        # Calls by the mark that their events share (`_index_of`), each with its index among the reply's calls.
        self._calls: dict[int | str, int] = {}
        self._known: set[str] = set()  # ids of calls that were read, which the last event repeats
        self._named: set[int] = set()  # indices of calls that have an id and a name
        self._silent: dict[int, str] = {}  # calls without fragments so far, with the arguments from their start events
        # Counts of fragments in the current part, and in the item's earlier parts (if any, later events only repeat their
        # text), and of searches.
        self._in_part = self._in_item = self._searches = 0
        # Whether a message has ended, and whether the current reasoning item had fragments.
        self._spoken = self._thought = False
        self._refused = False
        self.finish_reason: str | None = None
        self.ended = False

    def read(self, data: bytes) -> Sequence[ModelChunk]:
        """Return the chunks of one event."""
        if data == b"[DONE]":  # some servers mark the end in this way
            self.ended = True
            return ()
        try:
            event = _decode(data)
        except msgspec.DecodeError:
            event = _loose(anything(data))
        match event.type:
            case "response.output_text.delta":
                return self._text(event.delta)
            case "response.refusal.delta":
                self._refused = True
                return self._text(event.delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" if event.delta:
                self._thought = True
                return (ModelChunk(thinking=event.delta, model=self._model),)
            # The first part has the index 0: nothing precedes it.
            case "response.reasoning_summary_part.added" if event.summary_index:
                return (ModelChunk(thinking="\n\n", model=self._model),)
            case "response.function_call_arguments.delta" | "response.custom_tool_call_input.delta" if event.delta:
                return (self._call(event, arguments=event.delta),)
            case "response.output_text.annotation.added" if event.annotation is not None:
                return (ModelChunk(citations=(Citation.of(event.annotation, self._model),)),)
            case "response.output_item.added" if event.item is not None and event.item.type in _CALLS:
                return (self._begin(event, event.item),)
            case "response.output_item.done" if event.item is not None:
                # These items are sent back unchanged, so all of their fields are read, not only those of `_Item`.
                if event.item.type in _SERVER_TOOLS:
                    return self._server_work(field(anything(data), "item"))
                if event.item.type == "computer_call":
                    return self._computer_call(field(anything(data), "item"))
                return self._done(event, event.item)
            case _:
                return self._repeated(event)

    def _text(self, text: str | None) -> Sequence[ModelChunk]:
        if not text:
            return ()
        self._in_part += 1
        # `text_chunk` is the fast path: most events are short texts.
        return (text_chunk(text),)

    def _repeated(self, event: _ResponsesEvent) -> Sequence[ModelChunk]:
        """Read the last event, or, if fragments were not sent, the event that repeats them."""
        match event.type:
            case "response.output_text.done" | "response.refusal.done":
                self._refused |= event.type == "response.refusal.done"
                found = () if self._in_part else self._text(event.text or event.refusal)
                self._in_item += self._in_part
                self._in_part = 0
                return found
            case "response.function_call_arguments.done" if event.arguments:
                # The call of this event may be unknown: some servers send no start.
                new = len(self._calls)
                index = self._index_of(event)
                missing = index in self._silent or len(self._calls) > new
                return (self._call(event, event.arguments),) if missing else ()
            case _:
                return self._end(event)

    def _begin(self, event: _ResponsesEvent, item: _Item) -> ModelChunk:
        index = self._index_of(event)
        self._silent[index] = item.arguments or item.input or ""
        self._named.add(index)
        self._known.add(item.call_id or "")
        return ModelChunk(tool_uses=(ToolUseDelta(index, item.call_id or "", item.name or ""),))

    def _call(self, event: _ResponsesEvent, arguments: str) -> ModelChunk:
        index = self._index_of(event)
        self._silent.pop(index, None)
        return ModelChunk(tool_uses=(ToolUseDelta(index, arguments=arguments),))

    def _index_of(self, event: _ResponsesEvent) -> int:
        """Return the index of the event's call: the next index for a new call, the last call's if the event identifies none."""
        mark = event.output_index if event.output_index is not None else event.item_id
        if mark is None and event.item is not None:
            mark = event.item.id or len(self._calls)
        if mark is None:
            return max(0, len(self._calls) - 1)
        return self._calls.setdefault(mark, len(self._calls))

    def _done(self, event: _ResponsesEvent, item: _Item) -> Sequence[ModelChunk]:
        """Return the parts of a completed item that no earlier event contained."""
        match item.type:
            case "message":
                # The next message of the reply counts its fragments from 0.
                received, self._in_part, self._in_item = self._in_part + self._in_item, 0, 0
                self._spoken = True
                return () if received else self._content(item)
            case "reasoning":
                found: list[ModelChunk] = []
                if not self._thought and (thought := "\n\n".join(map(_part_text, item.summary or item.content or ()))):
                    found.append(ModelChunk(thinking=thought, model=self._model))
                self._thought = False
                if item.encrypted_content:
                    found.append(ModelChunk(signature=seal(item.id or "", item.encrypted_content), model=self._model))
                return found
            case "function_call" | "custom_tool_call":
                return self._called(event, item)
            case "image_generation_call" if item.result:
                block = media_in(f"data:image/{item.output_format or 'png'};base64,{item.result}")
                return () if block is None else (ModelChunk(blocks=(block,)),)
            case kind:
                if kind in _FOR_THE_CLIENT:
                    raise NotUnderstoodError(f"an item of type {kind!r} requests something that agents do not support")
                if kind not in _RUN_BY_VENDOR:
                    log_skipped(self._model, f"an item of type {kind!r}")
                return ()

    def _server_work(self, raw: object) -> Sequence[ModelChunk]:
        """Return the block with the call and result of a tool that the vendor ran."""
        item = cast("dict[str, Any]", raw)
        name = _SERVER_TOOLS[item["type"]]
        # Opening a page is an item of this type too, but only searches are billed.
        if name == "web_search" and field(item.get("action"), "type") in (None, "search"):
            self._searches += 1
        if name == "mcp":
            name = as_text(item.get("name"), "the name of a server tool")
        block = ServerToolBlock(as_text(item.get("id"), "the id of a server tool's call"), name, (item,), self._model)
        return (ModelChunk(blocks=(block,), model=self._model),)

    def _computer_call(self, raw: object) -> Sequence[ModelChunk]:
        """Return the tool calls of a `computer_call`; an unfinished `computer_call` yields none, since its last action
        may be incomplete.
        """
        item = cast("dict[str, Any]", raw)
        # The last event repeats the item.
        if item.get("status") == "incomplete" or (known := call_id(item)) in self._known:
            return ()
        self._known.add(known)
        found: list[ToolUseDelta] = []
        for ident, arguments in split(item):
            # The tool calls of one item share its output index, so their ids are the marks.
            found.append(ToolUseDelta(self._calls.setdefault(ident, len(self._calls)), ident, COMPUTER, arguments))
        return (ModelChunk(tool_uses=tuple(found)),)

    def _called(self, event: _ResponsesEvent, item: _Item) -> list[ModelChunk]:
        known = len(self._calls)
        index = self._index_of(event)
        found: list[ModelChunk] = []
        if len(self._calls) > known:
            found.append(self._begin(event, item))
        elif index not in self._named:  # the fragments of the item arrived before its start
            found.append(self._begin(event, item))
            self._silent.pop(index, None)
        if index in self._silent and (arguments := item.arguments or item.input or self._silent[index]):
            found.append(self._call(event, arguments))  # some servers send the complete item, without fragments
        return found

    def _content(self, item: _Item) -> list[ModelChunk]:
        """Read a message that was sent completely, without fragments."""
        found: list[ModelChunk] = []
        for part in item.content or ():
            if text := _part_text(part):
                self._refused |= field(part, "type") == "refusal"
                found.append(text_chunk(text))
            if cited := tuple(
                Citation.of(cast("dict[str, Any]", note), self._model)
                for note in items(field(part, "annotations"))
                if isinstance(note, dict)
            ):
                found.append(ModelChunk(citations=cited))
        return found

    def _end(self, event: _ResponsesEvent) -> Sequence[ModelChunk]:
        response = event.response
        match event.type:
            case "response.completed":
                missing = self._missing_parts(response)
                return [*missing, *self._finished("tool_calls" if self._calls else "stop", response)]
            case "response.incomplete":
                missing = self._missing_parts(response)
                details = response.incomplete_details if response is not None else None
                reason = (details.reason if details is not None else None) or "max_output_tokens"
                return [*missing, *self._finished(_INCOMPLETE.get(reason, reason), response)]
            case "response.failed":
                raise _failure((response.error if response is not None else None) or {})
            case "response.cancelled":
                raise _failure({"message": "it was cancelled at the vendor"})
            case "error":
                raise _failure(event.error or {"code": event.code, "message": event.message})
            case _:
                if event.error and not event.type:
                    raise _failure(event.error)
                return ()

    def _missing_parts(self, response: _Response | None) -> list[ModelChunk]:
        """Return the parts of the last event that no earlier event contained."""
        found = [
            ModelChunk(tool_uses=(ToolUseDelta(index, arguments=arguments),))
            for index, arguments in self._silent.items()
            if arguments
        ]
        # Texts are not compared part by part: if any part of a message arrived, no text is read again.
        spoken = self._spoken or self._in_part or self._in_item
        for index, part in enumerate((response.output if response is not None else None) or ()):
            item = _loose_item(part)
            if item.type == "message" and not spoken:
                found += self._content(item)
            elif item.type in _CALLS and (item.call_id or "") not in self._known:
                found += self._called(_ResponsesEvent(output_index=index, item=item), item)
            elif item.type == "computer_call":
                found += self._computer_call(part)
        return found

    def _finished(self, reason: str, response: _Response | None) -> Sequence[ModelChunk]:
        self.finish_reason = reason = "content_filter" if self._refused and reason == "stop" else reason
        self.ended = True
        found = [ModelChunk(finish_reason=reason)]
        if response is not None and (used := response.usage) is not None:
            read, written = used.input_tokens_details, used.output_tokens_details
            usage = Usage(
                input_tokens=used.input_tokens or 0,
                output_tokens=used.output_tokens or 0,
                cache_read_tokens=(read.cached_tokens or 0) if read is not None else 0,
                cache_write_tokens=(read.cache_write_tokens or 0) if read is not None else 0,
                reasoning_tokens=(written.reasoning_tokens or 0) if written is not None else 0,
                model_calls=1,
            )
            found.append(self._priced(usage, 0, self._searches))
        return found


def _part_text(part: object) -> str:
    return as_text(field(part, "text"), "text") or as_text(field(part, "refusal"), "refusal")


def _loose(value: object) -> _ResponsesEvent:
    """Read an event with fields of unexpected types, field by field; unknown fields are ignored.

    Raises:
        NotUnderstoodError: A field that carries meaning is unreadable.
    """
    kind = text_or_none(field(value, "type")) or ""
    event = _ResponsesEvent(kind, output_index=place(field(value, "output_index")))
    event.item_id = text_or_none(field(value, "item_id"))
    event.summary_index = place(field(value, "summary_index"))
    error = field(value, "error")
    if error and kind in ("", "error"):
        event.error = cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": str(error)}
    match kind:
        case "response.function_call_arguments.delta" | "response.function_call_arguments.done":
            event.delta, event.arguments = json_text(field(value, "delta")), json_text(field(value, "arguments"))
        case (
            "response.output_text.delta"
            | "response.refusal.delta"
            | "response.reasoning_summary_text.delta"
            | "response.reasoning_text.delta"
            | "response.custom_tool_call_input.delta"
        ):
            event.delta = as_text(field(value, "delta"), "delta")
        case "response.output_text.done" | "response.refusal.done":
            event.text, event.refusal = (
                as_text(field(value, "text"), "text"),
                as_text(field(value, "refusal"), "refusal"),
            )
        case "response.output_item.added" | "response.output_item.done":
            event.item = _loose_item(field(value, "item"))
        case "response.output_text.annotation.added":
            note = field(value, "annotation")
            event.annotation = cast("dict[str, Any]", note) if isinstance(note, dict) else None
        case "response.completed" | "response.incomplete" | "response.failed":
            event.response = _loose_response(field(value, "response"))
        case "error":
            event.message, event.code = (str(field(value, name) or "") for name in ("message", "code"))
        case _:
            pass
    return event


def _loose_item(value: object) -> _Item:
    kind = field(value, "type")
    item = _Item(kind if isinstance(kind, str) else repr(kind), text_or_none(field(value, "id")))
    match kind:
        case "function_call" | "custom_tool_call":
            item.call_id = as_text(field(value, "call_id"), "the id of a tool call")
            item.name = as_text(field(value, "name"), "the name of a tool call")
            item.arguments = json_text(field(value, "arguments"))
            item.input = as_text(field(value, "input"), "the input of a tool call")
        case "message" | "reasoning":
            item.content, item.summary = [*items(field(value, "content"))], [*items(field(value, "summary"))]
            item.encrypted_content = text_or_none(field(value, "encrypted_content"))
        case "image_generation_call":
            item.result = text_or_none(field(value, "result"))
            item.output_format = text_or_none(field(value, "output_format"))
        case _:
            pass
    return item


def _loose_response(value: object) -> _Response:
    error, used = field(value, "error"), field(value, "usage")
    reason = text_or_none(field(field(value, "incomplete_details"), "reason"))
    usage = None
    if isinstance(used, dict):
        fields = cast("dict[str, object]", used)
        read, written = fields.get("input_tokens_details"), fields.get("output_tokens_details")
        usage = _ResponsesUsage(
            count(fields.get("input_tokens")),
            count(fields.get("output_tokens")),
            _InputDetails(count(field(read, "cached_tokens")), count(field(read, "cache_write_tokens"))),
            _ResponsesOutputDetails(count(field(written, "reasoning_tokens"))),
        )
    return _Response(
        [*items(field(value, "output"))],
        usage,
        _Details(reason),
        cast("dict[str, Any]", error) if isinstance(error, dict) else {"message": str(error)} if error else None,
    )


def _failure(error: dict[str, Any]) -> ProviderError:
    code = str(error.get("code") or error.get("type") or "")
    text = str(error.get("message") or code or "it failed without a reason")
    # A failure within a stream has no status; 400 marks it as permanent.
    return ProviderError(text, 400 if _LASTING.match(code) else None, {}, error)
