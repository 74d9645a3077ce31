"""The events of OpenAI's `/responses` as `ModelChunk`s.

Rules:

1. Events are told by their `type`; those of types that nobody knows are passed over.
2. A call is told by its place in the output: gateways write another `item_id` on each event.
3. The last event says how it ended: there is no other end mark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from agentflow.chunks import ModelChunk, ToolUseDelta, text_chunk
from agentflow.messages import Citation
from agentflow.models.chunks_in import media_in
from agentflow.models.provider_errors import ProviderError
from agentflow.models.responses_out import seal
from agentflow.models.wire import with_halves
from agentflow.specs import Usage

__all__ = ["ItemsReader"]

_CUT = {"max_output_tokens": "length", "content_filter": "content_filter"}
# The errors of a reply that is under way which the same request meets again; the others may pass.
_LASTING = re.compile(r"invalid_|image_|unsupported_|empty_|context_length|bio_policy|cyber_policy|data_residency")


class _Item(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    encrypted_content: str | None = None
    result: str | None = None
    output_format: str | None = None


class _Details(msgspec.Struct, gc=False):
    reason: str | None = None


class _Read(msgspec.Struct, gc=False):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _Written(msgspec.Struct, gc=False):
    reasoning_tokens: int | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Read | None = None
    output_tokens_details: _Written | None = None


class _Response(msgspec.Struct, gc=False):
    usage: _Usage | None = None
    incomplete_details: _Details | None = None
    error: dict[str, Any] | None = None


class _Event(msgspec.Struct, gc=False):
    type: str = ""
    delta: str | None = None
    output_index: int | None = None
    item_id: str | None = None
    summary_index: int | None = None
    item: _Item | None = None
    annotation: dict[str, Any] | None = None
    response: _Response | None = None
    error: dict[str, Any] | None = None
    message: str | None = None
    code: str | None = None


class _Kind(msgspec.Struct, gc=False):
    type: str = ""


_decode = msgspec.json.Decoder(_Event).decode
_decode_kind = msgspec.json.Decoder(_Kind).decode


class ItemsReader:
    """Reads one reply.

    Args:
        model: The model's name, written on its thoughts.
        priced: Makes the chunk of what was used.

    Example:
        >>> reader = ItemsReader("openai/gpt-5.4", lambda usage: ModelChunk(usage=usage))
        >>> [chunk.text for chunk in reader.read(b'{"type": "response.output_text.delta", "delta": "Hi"}')]
        ['Hi']
    """

    __slots__ = ("_calls", "_model", "_priced", "_silent", "ended", "finish_reason")

    def __init__(self, model: str, priced: Callable[[Usage], ModelChunk]) -> None:
        self._model = model
        self._priced = priced
        self._calls: dict[int | str, int] = {}
        self._silent: set[int] = set()
        self.finish_reason: str | None = None
        self.ended = False

    def read(self, data: bytes) -> Sequence[ModelChunk]:
        """The chunks in one event."""
        if data == b"[DONE]":  # of servers that end every stream so
            self.ended = True
            return ()
        try:
            event = _decode(data)
        except msgspec.ValidationError:
            return self._unknown(data)
        except msgspec.DecodeError as error:
            event = msgspec.convert(with_halves(data, error), _Event)
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                return (text_chunk(event.delta),) if event.delta else ()
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" if event.delta:
                return (ModelChunk(thinking=event.delta, model=self._model),)
            case "response.reasoning_summary_part.added" if event.summary_index:
                return (ModelChunk(thinking="\n\n", model=self._model),)
            case "response.function_call_arguments.delta" if event.delta:
                return (self._call(event, arguments=event.delta),)
            case "response.output_text.annotation.added" if event.annotation is not None:
                return (ModelChunk(citations=(Citation.of(event.annotation, self._model),)),)
            case "response.output_item.added" if event.item is not None and event.item.type == "function_call":
                return (self._begin(event, event.item),)
            case "response.output_item.done" if event.item is not None:
                return self._done(event, event.item)
            case _:
                return self._end(event)

    def _unknown(self, data: bytes) -> Sequence[ModelChunk]:
        """An event whose fields are of other types: of a type that nobody knows, or a fault."""
        kind = _decode_kind(data).type
        if kind == "error" or kind.startswith(
            ("response.output_", "response.function_call_arguments", "response.complet")
        ):
            raise ProviderError(f"an event is not as the wire has it: {data[:200].decode(errors='replace')}")
        return ()

    def _begin(self, event: _Event, item: _Item) -> ModelChunk:
        place = self._place(event)
        self._silent.add(place)
        return ModelChunk(tool_uses=(ToolUseDelta(place, item.call_id or "", item.name or ""),))

    def _call(self, event: _Event, arguments: str) -> ModelChunk:
        place = self._place(event)
        self._silent.discard(place)
        return ModelChunk(tool_uses=(ToolUseDelta(place, arguments=arguments),))

    def _place(self, event: _Event) -> int:
        """Which call of the reply it is; where nothing tells, the last one, or the first piece of the next."""
        mark = event.output_index if event.output_index is not None else event.item_id
        if mark is None and event.item is not None:
            mark = event.item.id or len(self._calls)
        if mark is None:
            return max(0, len(self._calls) - 1)
        return self._calls.setdefault(mark, len(self._calls))

    def _done(self, event: _Event, item: _Item) -> Sequence[ModelChunk]:
        """What an item says at its end that was not said before."""
        match item.type:
            case "reasoning" if item.encrypted_content:
                return (ModelChunk(signature=seal(item.id or "", item.encrypted_content), model=self._model),)
            case "function_call":
                known = len(self._calls)
                place = self._place(event)
                found = [self._begin(event, item)] if len(self._calls) > known else []
                if place in self._silent and item.arguments:  # some servers send it whole, and no pieces
                    found.append(self._call(event, item.arguments))
                return found
            case "image_generation_call" if item.result:
                block = media_in(f"data:image/{item.output_format or 'png'};base64,{item.result}")
                return () if block is None else (ModelChunk(blocks=(block,)),)
            case _:
                return ()

    def _end(self, event: _Event) -> Sequence[ModelChunk]:
        response = event.response
        match event.type:
            case "response.completed":
                return self._finished("tool_calls" if self._calls else "stop", response)
            case "response.incomplete":
                details = response.incomplete_details if response is not None else None
                reason = (details.reason if details is not None else None) or "max_output_tokens"
                return self._finished(_CUT.get(reason, reason), response)
            case "response.failed":
                raise _failure((response.error if response is not None else None) or {})
            case "error":
                raise _failure(event.error or {"code": event.code, "message": event.message})
            case _:
                return ()

    def _finished(self, reason: str, response: _Response | None) -> Sequence[ModelChunk]:
        self.finish_reason = reason
        self.ended = True
        found = [ModelChunk(finish_reason=reason)]
        if response is not None and (used := response.usage) is not None:
            read, written = used.input_tokens_details, used.output_tokens_details
            told = Usage(
                input_tokens=used.input_tokens or 0,
                output_tokens=used.output_tokens or 0,
                cache_read_tokens=(read.cached_tokens or 0) if read is not None else 0,
                cache_write_tokens=(read.cache_write_tokens or 0) if read is not None else 0,
                reasoning_tokens=(written.reasoning_tokens or 0) if written is not None else 0,
                model_calls=1,
            )
            found.append(self._priced(told))
        return found


def _failure(error: dict[str, Any]) -> ProviderError:
    code = str(error.get("code") or error.get("type") or "")
    said = str(error.get("message") or code or "it failed, and did not say why")
    return ProviderError(said, 400 if _LASTING.match(code) else None, {}, error)
