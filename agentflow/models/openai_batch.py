"""`OpenAIBatch`: a model of OpenAI's wires through `/batches`.

Rules:

1. A batch is an uploaded file of requests for one endpoint. Its replies and its failures are in two files, in any order.
2. The metadata of each batch contains a name that agentflow chose, by which a restarted process finds the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from agentflow.models.batch_record import RecordedBatch
from agentflow.models.batching import CANCELLED, EXPIRED, BatchWire, EndedBatch, NoReply, Requests
from agentflow.models.loose import field, items
from agentflow.models.openai_wire import OpenAIWire
from agentflow.models.provider_errors import ProviderError
from agentflow.models.wire import encode

_BOUNDARY = "agentflow-batch-5b1f7a"  # a line of JSON never begins with "--", as a boundary does
_FINAL = frozenset({"completed", "expired", "cancelled"})  # not "failed", which has no files of results


class OpenAIBatch(OpenAIWire, BatchWire):
    """A model of OpenAI's chat completions or `/responses` through its batches: half the price, replies within 24 hours.

    Requests that runs make at the same time are submitted together; each run gets its reply as if it came from
    `OpenAIWire`. It takes the arguments of `OpenAIWire`, and these:

    Args:
        name: The model's name.
        path: The file that records submitted batches and their results (SQLite), one for each job. If a process is killed, the
            next one with the same requests gets their results.
        window: The seconds during which requests are collected, from the first one.
        poll: The longest wait between two requests for a batch's status, in seconds.
        max_requests: The largest batch; by default the provider's limit.
        keep_cancelled: Whether the provider continues a batch if all its runs were cancelled, so that the next process can
            use the results.

    Example:
        >>> OpenAIBatch("gpt-5-mini", path="job.db").name
        'openai/gpt-5-mini'
    """

    _most_requests = 50_000
    _most_bytes = 200_000_000
    _list = ("limit=100", "after")

    def _batches_url(self) -> str:
        return f"{self._base()}/batches"

    def _endpoint(self) -> str:
        # Batches name the endpoint by its path at OpenAI, even if a gateway has another path.
        return f"/v1{self._url().removeprefix(self._base())}"

    async def _create(self, requests: Requests) -> str:
        endpoint = self._endpoint()
        lines = [
            b'{"custom_id":"%b","method":"POST","url":"%b","body":%b}\n' % (name.encode(), endpoint.encode(), body)
            for name, body in requests.items()
        ]
        url, form = f"{self._base()}/files", {"content-type": f"multipart/form-data; boundary={_BOUNDARY}"}
        # A second upload costs nothing, so it may be repeated; a second batch would be billed.
        uploaded = await self._json_of(self._send("POST", url, _upload(lines), form), url)
        # `custom_id` is "batch-index" (`BatchWire._submit`).
        batch = next(iter(requests)).rpartition("-")[0]
        body = {
            "input_file_id": self._id_of(uploaded),
            "endpoint": endpoint,
            "completion_window": "24h",
            "metadata": {"agentflow": batch},
        }
        url = self._batches_url()
        return self._id_of(await self._json_of(self._send("POST", url, encode(body), repeatable=False), url))

    async def _find(self, known: RecordedBatch) -> str | None:
        for row, _ in await self._recent(known):
            if field(field(row, "metadata"), "agentflow") == known.name:
                return str(field(row, "id"))
        return None

    async def _look(self, batch_id: str) -> EndedBatch | None:
        found = await self._listed(self._batch_url(batch_id))
        status = found.get("status")
        if status == "failed":
            return EndedBatch((), _invalid(found))
        if status not in _FINAL:
            return None
        files = (found.get(name) for name in ("output_file_id", "error_file_id"))
        urls = tuple(
            [f"{self._base()}/files/{quote(file, safe='')}/content" for file in files if isinstance(file, str)]
        )
        if status == "completed":
            return EndedBatch(urls)
        return EndedBatch(urls, EXPIRED if status == "expired" else CANCELLED)

    def _events(self, line: bytes) -> Iterable[bytes] | NoReply | ProviderError:
        result = msgspec.json.decode(line, type=_FileLine)
        answer = result.response
        if answer is None:
            code = str(field(result.error, "code"))
            known = {"batch_expired": EXPIRED, "batch_cancelled": CANCELLED}
            # Such a line has no response: the request was never run.
            return known.get(code) or ProviderError(f"{code}: {field(result.error, 'message')}")
        if not 200 <= answer.status_code < 300:
            error: Mapping[str, Any] = answer.body.get("error") or answer.body
            return ProviderError(str(error.get("message") or error), answer.status_code, {}, error)
        return _replayed(answer.body)


class _Answer(msgspec.Struct, gc=False):
    status_code: int = 0
    body: dict[str, Any] = {}


class _FileLine(msgspec.Struct, gc=False):
    response: _Answer | None = None
    error: dict[str, Any] | None = None


def _replayed(body: Mapping[str, Any]) -> Iterable[bytes]:
    """Convert a complete reply to the events of a stream."""
    if "output" in body:
        for index, item in enumerate(body["output"]):
            yield encode({"type": "response.output_item.done", "output_index": index, "item": item})
        # The output is empty, because the items are in the events above.
        yield encode({"type": f"response.{body.get('status', 'completed')}", "response": {**body, "output": []}})
        return
    # The reader of a stream takes a complete message as one large delta.
    choices = [{**choice, "delta": choice.get("message")} for choice in body.get("choices") or ()]
    yield encode({**body, "choices": choices})
    yield b"[DONE]"


def _invalid(found: Mapping[str, object]) -> ProviderError:
    """Return the error of a batch that the provider did not accept; the error is temporary only if the provider's queue
    is full.
    """
    errors = items(field(found.get("errors"), "data"))
    first = errors[0] if errors else None
    code = str(field(first, "code") or "invalid_batch")
    problem = f"the batch failed: {field(first, 'message') or 'no reason'} ({code}, line {field(first, 'line')})"
    return ProviderError(problem, 429 if code == "token_limit_exceeded" else 400, {}, {"code": code})


def _upload(lines: Iterable[bytes]) -> bytes:
    """Return the multipart form that uploads a file of requests."""
    part = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; name="
    head = f'{part}"purpose"\r\n\r\nbatch\r\n{part}"file"; filename="batch.jsonl"\r\nContent-Type: application/jsonl\r\n\r\n'
    return b"".join([head.encode(), *lines, f"\r\n--{_BOUNDARY}--\r\n".encode()])
