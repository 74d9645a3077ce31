"""`AnthropicBatch`: a model of Anthropic's messages API through message batches.

Rules:

1. A batch is one request with all bodies. Its results are one file, in any order.
2. A batch has no metadata. If it is unknown whether a batch was created, the batch is searched for by its time and
   size, and then by the ids in its results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from agentflow._support.frozen import EMPTY
from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.batch_record import RecordedBatch
from agentflow.models.batching import CANCELLED, EXPIRED, BatchWire, EndedBatch, NoReply, Requests
from agentflow.models.loose import NotUnderstoodError, count, field, items
from agentflow.models.server_tools_out import BETAS
from agentflow.models.wire import encode

_LATER = 3600  # seconds within which a batch is created, retries included
_COUNTS = ("processing", "succeeded", "errored", "canceled", "expired")


class AnthropicBatch(AnthropicWire, BatchWire):
    """A model of Anthropic's messages API through its message batches: half the price, replies within 24 hours.

    It takes the arguments of `AnthropicWire`, and those that `OpenAIBatch` describes.

    Example:
        >>> AnthropicBatch("claude-haiku-4-5", path="job.db").name
        'anthropic/claude-haiku-4-5'
    """

    _most_requests = 100_000
    _most_bytes = 256_000_000
    _list = ("limit=1000", "after_id")

    def _batches_url(self) -> str:
        return f"{self._url()}/batches"

    async def _create(self, requests: Requests) -> str:
        requests_json = [b'{"custom_id":"%b","params":%b}' % (name.encode(), body) for name, body in requests.items()]
        url, data = self._batches_url(), b'{"requests":[' + b",".join(requests_json) + b"]}"
        # The bytes are searched without parsing: quotes in texts are escaped, so only a tool's type can match.
        betas = [beta for kind, beta in BETAS.items() if b'"type":"%b"' % kind.encode() in data]
        headers = self._with_betas(betas, EMPTY)
        return self._id_of(await self._json_of(self._send("POST", url, data, headers, repeatable=False), url))

    async def _find(self, known: RecordedBatch) -> str | None:
        others = self._opened().ids()
        for row, age in await self._recent(known):
            # Candidates are unrecorded batches of the same size and time; the ids in their results decide.
            found, counts = str(field(row, "id")), field(row, "request_counts")
            size = sum(count(field(counts, kind)) for kind in _COUNTS)
            if found in others or size != known.size or age > _LATER:
                continue
            # This waits until the candidate ends: Anthropic shows the ids of requests only in results.
            await self._collect(known._replace(id=found), downloads=1)
            if self._opened().results(known.name):
                return found
        return None

    async def _look(self, batch_id: str) -> EndedBatch | None:
        found = await self._listed(self._batch_url(batch_id))
        if found.get("processing_status") != "ended":
            return None
        return EndedBatch((self._batch_url(batch_id, "/results"),))

    def _events(self, line: bytes) -> Iterable[bytes] | NoReply:
        result: dict[str, Any] = msgspec.json.decode(line, type=_MessageLine).result
        match result.get("type"):
            case "succeeded":
                return _replayed(result["message"])
            case "errored":
                error: object = result.get("error")
                return (encode({"type": "error", "error": field(error, "error") or error}),)
            case "expired":
                return EXPIRED
            case "canceled":
                return CANCELLED
            case kind:
                raise NotUnderstoodError(f"the result of a batch is of type {kind!r}")


class _MessageLine(msgspec.Struct, gc=False):
    result: dict[str, Any]


def _replayed(message: Mapping[str, Any]) -> Iterable[bytes]:
    """Convert a complete message to the events of a stream."""
    # Without content and stop reason: with them, the reader would take this event for the whole reply.
    yield encode({"type": "message_start", "message": {**message, "content": [], "stop_reason": None}})
    for index, block in enumerate(message.get("content") or ()):
        yield encode({"type": "content_block_start", "index": index, "content_block": block})
        # The reader takes citations only from deltas.
        for cited in items(field(block, "citations")):
            delta = {"type": "citations_delta", "citation": cited}
            yield encode({"type": "content_block_delta", "index": index, "delta": delta})
        yield encode({"type": "content_block_stop", "index": index})
    end = {"stop_reason": message.get("stop_reason")}
    yield encode({"type": "message_delta", "delta": end, "usage": message.get("usage")})
    yield encode({"type": "message_stop"})
