"""The batches of both vendors: files and `/batches` at OpenAI, `/messages/batches` at Anthropic.

Rules:

1. A batch ends after a number of polls by the client (`BatchPlan.polls`). Only then is each request checked by the wire's
   rules and answered by the script, like a separate request.
2. The form of the requests is checked too: at Anthropic before the batch is created, at OpenAI when it ends. OpenAI lists
   failed requests in the error file. Results are in reverse order, since the vendors promise no order.
3. Sources: the API references and clients of both vendors; the texts of errors are not verified.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email import message_from_bytes
from typing import Literal, TypeAlias

from agentflow.testing.wire.jsonish import JsonObject, JsonValue, as_list, as_object, as_text, dump, merged, parse
from agentflow.testing.wire.reply import Halt, HttpAnswer

CREATED = 1_760_000_000
ENDPOINTS = ("/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/completions")
_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_FILE = 200_000_000  # the limits of the vendors, here and below
_MAX_REQUESTS: Mapping[str, int] = {"openai": 50_000, "anthropic": 100_000}

Play: TypeAlias = Callable[[str, JsonObject, Mapping[str, str]], Awaitable[tuple[int, JsonObject]]]
"""Answers one request to a path, with a status and a body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """How a server's batches proceed.

    Attributes:
        polls: The number of the poll with which a batch ends; 1: the first poll.
        invalid: The error code with which every batch fails validation (OpenAI).
        expired: The positions of requests that expire, in each batch.
        cancelled: The positions of requests that are cancelled, in each batch.
        missing: The positions of requests without a result.
        repeated: The positions of requests with a second, different result.
        truncated: How many downloads of results break off in the middle.
        incomplete: How many downloads of results end properly, but without the last line.
        dropped: How many requests to create a batch get no answer, because the connection is closed; the batches exist.
        statuses: The statuses of the first requests about batches and files; 200 is the ordinary answer.
        page: The maximum number of batches on a page of the list.
        unanswered: How many requests to create a batch get no answer, while the connection stays open; the batches exist.
    """

    polls: int = 1
    invalid: str | None = None
    expired: Collection[int] = ()
    cancelled: Collection[int] = ()
    missing: Collection[int] = ()
    repeated: Collection[int] = ()
    truncated: int = 0
    incomplete: int = 0
    dropped: int = 0
    unanswered: int = 0
    statuses: Sequence[int] = ()
    page: int = 1_000


@dataclass(slots=True, kw_only=True, eq=False)
class WireBatch:
    """A batch that a client created.

    Attributes:
        id: The id of the batch.
        requests: The bodies by `custom_id`.
        status: `"in_progress"`, `"ended"`, `"failed"` or `"cancelled"`.
        polls: How often the client polled the batch.
        downloads: How often the results were requested.
        fields: The vendor's other fields.
        headers: The headers of the request that created it, which apply to its requests.
        results: The lines of the results, or at OpenAI of the output file.
        failed: The lines of OpenAI's error file.
    """

    id: str
    requests: dict[str, JsonObject]
    status: Literal["in_progress", "ended", "failed", "cancelled"] = "in_progress"
    polls: int = 0
    downloads: int = 0
    fields: JsonObject = field(default_factory=dict[str, JsonValue])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    results: list[JsonObject] = field(default_factory=list[JsonObject])
    failed: list[JsonObject] = field(default_factory=list[JsonObject])


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """An answer to a request about batches: a refusal, or a body that may break off."""

    body: JsonObject | bytes | HttpAnswer
    halt: Halt | None = None


class VendorBatches:
    """The batches and files of a vendor."""

    def __init__(self, vendor: str, plan: BatchPlan) -> None:
        self.vendor = vendor
        self.plan = plan
        self.list: list[WireBatch] = []
        self._files: dict[str, bytes] = {}
        # How many of these faults remain.
        self._truncated, self._incomplete = plan.truncated, plan.incomplete
        self._dropped, self._unanswered = plan.dropped, plan.unanswered
        self._statuses = [*plan.statuses]

    async def answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        data: bytes,
        play: Play,
        now: float,
    ) -> BatchAnswer | None:
        """Answer a request; None if it is not about batches or files."""
        if self.vendor == "anthropic":
            found = re.fullmatch(r".*/v1/messages/batches(?:/([^/]+))?(?:/(cancel|results))?", path)
        else:
            found = re.fullmatch(r".*/v1/(?:batches|files)(?:/([^/]+))?(?:/(cancel|content))?", path)
        if found is None:
            return None
        if refused := self._missing_key(headers):
            return BatchAnswer(refused)
        if self._statuses and (status := self._statuses.pop(0)) != 200:
            return BatchAnswer(HttpAnswer(status=status))
        id, action = found.groups()  # noqa: A001
        if "/files" in path:
            return self._upload(headers, data) if method == "POST" else self._file_content(id)
        if id is None:
            return self._create(data, headers, now) if method == "POST" else BatchAnswer(self._page(query))
        batch = next((known_batch for known_batch in self.list if known_batch.id == id), None)
        if batch is None:
            return BatchAnswer(HttpAnswer(status=404, message=f"No batch found with id '{id}'."))
        if action == "results":
            return self._results(batch)
        if method == "POST":
            if batch.status != "in_progress":
                return BatchAnswer(HttpAnswer(status=409, message=f"The batch {id} is {batch.status}."))
            batch.status = "cancelled"
            if self.vendor == "anthropic":
                batch.results = [self._failed_line(request, "cancelled") for request in batch.requests]
        elif batch.status == "in_progress":
            batch.polls += 1
            if batch.polls >= self.plan.polls:
                await self._end(batch, play)
        return BatchAnswer(self._batch_body(batch))

    def _missing_key(self, headers: Mapping[str, str]) -> HttpAnswer | None:
        if self.vendor == "openai":
            signed = headers.get("authorization", "").startswith("Bearer ")
            return None if signed else HttpAnswer(status=401, message="You didn't provide an API key.")
        if not headers.get("x-api-key"):
            return HttpAnswer(status=401, message="x-api-key header is required")
        return (
            None
            if headers.get("anthropic-version")
            else HttpAnswer(status=400, message="anthropic-version: header is required")
        )

    # -- creation

    def _upload(self, headers: Mapping[str, str], data: bytes) -> BatchAnswer:
        # A multipart form has the syntax of an email with attachments.
        form = message_from_bytes(f"content-type: {headers.get('content-type', '')}\r\n\r\n".encode() + data)
        parts = {
            part.get_param("name", header="content-disposition"): part
            for part in form.walk()
            if not part.is_multipart()
        }
        if "purpose" not in parts or "file" not in parts:
            return BatchAnswer(HttpAnswer(status=400, message="Missing required parameter: 'file' and 'purpose'."))
        purpose, file = (parts[name].get_payload(decode=True) for name in ("purpose", "file"))
        name = parts["file"].get_filename() or ""
        if purpose != b"batch" or not isinstance(file, bytes) or not name.endswith(".jsonl"):
            return BatchAnswer(HttpAnswer(status=400, message="Expected a .jsonl file with the purpose 'batch'."))
        if len(file) > _MAX_FILE:
            return BatchAnswer(HttpAnswer(status=413, message="The file is larger than 200 MB."))
        ident = f"file-wire-{len(self._files)}"
        self._files[ident] = file
        entry: JsonObject = {"id": ident, "object": "file", "bytes": len(file), "created_at": CREATED, "filename": name}
        return BatchAnswer(entry | {"purpose": "batch"})

    def _create(self, data: bytes, headers: Mapping[str, str], now: float) -> BatchAnswer:
        try:
            request_body = as_object(parse(data))
            requests, fields = self._creation_fields(request_body)
        except ValueError as error:
            return BatchAnswer(HttpAnswer(status=400, message=str(error)))
        ident = f"batch_wire_{len(self.list)}"
        batch = WireBatch(id=ident, requests=requests, fields=fields | {"at": now}, headers=headers)
        self.list.append(batch)
        if self._dropped:
            self._dropped -= 1
            return BatchAnswer(b"{", Halt(after=0, how="abort"))
        if self._unanswered:
            self._unanswered -= 1
            return BatchAnswer(b"{", Halt(after=0, how="hang", headers=False))
        return BatchAnswer(self._batch_body(batch))

    def _creation_fields(self, request_body: JsonObject) -> tuple[dict[str, JsonObject], JsonObject]:
        """Return the requests and the other fields of a new batch.

        Raises:
            ValueError: The batch cannot be created; the message is the vendor's.
        """
        if self.vendor == "anthropic":
            return dict(_params_of(as_list(request_body.get("requests")))), {}
        file, metadata = as_text(request_body.get("input_file_id")), as_object(request_body.get("metadata"))
        if file not in self._files:
            raise ValueError(f"Invalid input_file_id: no file {file!r}.")
        if request_body.get("completion_window") != "24h" or request_body.get("endpoint") not in ENDPOINTS:
            raise ValueError("Invalid 'completion_window' or 'endpoint'.")
        long = [
            key for key, value in metadata.items() if len(key) > 64 or not isinstance(value, str) or len(value) > 512
        ]
        if long or len(metadata) > 16:
            raise ValueError(f"Invalid 'metadata': {long}.")
        common: JsonObject = {
            name: request_body.get(name) for name in ("input_file_id", "endpoint", "completion_window")
        }
        return {}, merged(common, {"metadata": metadata})

    # -- progress

    async def _end(self, batch: WireBatch, play: Play) -> None:
        if self.vendor == "openai" and (errors := self._validation_errors(batch)):
            batch.status, batch.fields["errors"] = "failed", {"object": "list", "data": [*errors]}
            return
        batch.status = "ended"
        lines: list[tuple[bool, JsonObject]] = []
        for index, (ident, body) in enumerate(batch.requests.items()):
            line = await self._line(index, ident, body, batch, play)
            if index not in self.plan.missing:
                lines.append((line[0], line[1]))
            if index in self.plan.repeated:
                lines.insert(0, (True, self._failed_line(ident, "expired")))
        for answered, line in reversed(lines):
            (batch.results if answered or self.vendor == "anthropic" else batch.failed).append(line)

    async def _line(
        self, index: int, ident: str, body: JsonObject, batch: WireBatch, play: Play
    ) -> tuple[bool, JsonObject]:
        """Return whether a request succeeded, and its line in the results or the error file."""
        if index in self.plan.expired or index in self.plan.cancelled:
            return False, self._failed_line(ident, "expired" if index in self.plan.expired else "cancelled")
        status, answer = await play(as_text(batch.fields.get("endpoint")), body, batch.headers)
        if self.vendor == "anthropic":
            result: JsonObject = (
                {"type": "succeeded", "message": answer} if status == 200 else {"type": "errored", "error": answer}
            )
            return status == 200, {"custom_id": ident, "result": result}
        response: JsonObject = {"status_code": status, "request_id": f"req_{ident}", "body": answer}
        return status == 200, {"id": f"batch_req_{ident}", "custom_id": ident, "response": response, "error": None}

    def _failed_line(self, ident: str, kind: Literal["expired", "cancelled"]) -> JsonObject:
        if self.vendor == "anthropic":
            return {"custom_id": ident, "result": {"type": "canceled" if kind == "cancelled" else kind}}
        ended = "has expired" if kind == "expired" else "was cancelled"
        error: JsonObject = {
            "code": f"batch_{kind}",
            "message": f"This request could not be executed: the batch {ended}.",
        }
        return {"id": f"batch_req_{ident}", "custom_id": ident, "response": None, "error": error}

    def _validation_errors(self, batch: WireBatch) -> list[JsonValue]:
        """Read OpenAI's file of requests, and return its errors."""
        if self.plan.invalid is not None:
            return [_error(self.plan.invalid, 1)]
        errors: list[JsonValue] = []
        models: set[str] = set()
        for number, text in enumerate(self._files[as_text(batch.fields["input_file_id"])].splitlines(), 1):
            try:
                line = as_object(parse(text))
            except ValueError:
                line = {}
            body, ident = as_object(line.get("body")), as_text(line.get("custom_id"))
            models.add(as_text(body.get("model")))
            wrong = {
                "invalid_json_line": not line,
                "duplicate_custom_id": ident in batch.requests,
                "missing_required_parameter": not ident or not body,
                "invalid_method": line.get("method") != "POST",
                "invalid_url": line.get("url") != batch.fields["endpoint"],
                "stream_unsupported": bool(body.get("stream")),
                "mismatched_model": len(models) > 1,
                "too_many_tasks": number > _MAX_REQUESTS["openai"],
            }
            batch.requests[ident] = body
            errors += [_error(code, number) for code, yes in wrong.items() if yes]
        return errors if errors or batch.requests else [_error("empty_file", 0)]

    # -- answers

    def _batch_body(self, batch: WireBatch) -> JsonObject:
        index, size = self.list.index(batch), len(batch.requests)
        ended = batch.status != "in_progress"
        if self.vendor == "anthropic":
            kinds = [as_text(as_object(line.get("result")).get("type")) for line in batch.results]
            counts: JsonObject = {kind: kinds.count(kind) for kind in ("succeeded", "errored", "canceled", "expired")}
            counts["canceled" if batch.status == "cancelled" else "processing"] = size - len(kinds) if not kinds else 0
            return merged(
                {"id": batch.id, "type": "message_batch", "processing_status": "ended" if ended else "in_progress"},
                {"request_counts": {"processing": 0} | counts, "created_at": _rfc3339(batch), "archived_at": None},
                {"results_url": f"https://example.invalid/v1/messages/batches/{batch.id}/results" if ended else None},
            )
        at = batch.fields["at"]
        files: JsonObject = {
            name: f"file-{kind}-{index}" if lines else None
            for name, kind, lines in (
                ("output_file_id", "output", batch.results),
                ("error_file_id", "error", batch.failed),
            )
        }
        done: JsonObject = {"total": size, "completed": len(batch.results), "failed": len(batch.failed)}
        return merged(
            {name: value for name, value in batch.fields.items() if name != "at"},
            {"id": batch.id, "object": "batch", "created_at": int(at) if isinstance(at, (int, float)) else 0},
            {"status": {"ended": "expired" if self.plan.expired else "completed"}.get(batch.status, batch.status)},
            {"request_counts": done},
            files,
        )

    def _page(self, query: Mapping[str, str]) -> JsonObject:
        """Return one page of the list, newest batches first."""
        newest = self.list[::-1]
        after = query.get("after") or query.get("after_id")
        start = next((n + 1 for n, batch in enumerate(newest) if batch.id == after), 0)
        rows = newest[start : start + min(int(query.get("limit", "20")), self.plan.page)]
        return {
            "object": "list",
            "data": [self._batch_body(batch) for batch in rows],
            "has_more": start + len(rows) < len(newest),
        }

    def _file_content(self, ident: str | None) -> BatchAnswer:
        for index, batch in enumerate(self.list):
            for kind, lines in (("output", batch.results), ("error", batch.failed)):
                if lines and ident == f"file-{kind}-{index}":
                    return self._file(batch, lines)
        return BatchAnswer(HttpAnswer(status=404, message=f"No such File object: {ident}"))

    def _results(self, batch: WireBatch) -> BatchAnswer:
        if batch.status == "in_progress":
            return BatchAnswer(HttpAnswer(status=404, message=f"Batch {batch.id} has no available results."))
        return self._file(batch, batch.results)

    def _file(self, batch: WireBatch, lines: list[JsonObject]) -> BatchAnswer:
        batch.downloads += 1
        if self._incomplete:
            self._incomplete -= 1
            lines = lines[:-1]
        data = "".join(f"{dump(line)}\n" for line in lines).encode()
        if self._truncated:
            self._truncated -= 1
            return BatchAnswer(data[: len(data) * 2 // 3], Halt(after=0, how="abort"))
        return BatchAnswer(data)


def _params_of(requests: list[JsonValue]) -> Iterator[tuple[str, JsonObject]]:
    """Check the requests of Anthropic's batch, and yield the id and the parameters of each.

    Raises:
        ValueError: A request is invalid; the message is the vendor's.
    """
    if not 1 <= len(requests) <= _MAX_REQUESTS["anthropic"]:
        raise ValueError(f"requests: List should have 1 to {_MAX_REQUESTS['anthropic']} items")
    keys: set[str] = set()
    for index, request in enumerate(map(as_object, requests)):
        ident, params = as_text(request.get("custom_id")), as_object(request.get("params"))
        if not _CUSTOM_ID.fullmatch(ident):
            raise ValueError(f"requests.{index}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'")
        if ident in keys:
            raise ValueError(f"requests.{index}.custom_id: custom_id must be unique within a batch")
        if not params or params.get("stream"):
            raise ValueError(f"requests.{index}.params: Field required, and stream is not supported")
        keys.add(ident)
        yield ident, params


def _error(code: str, line: int) -> JsonValue:
    return {"code": code, "message": f"The batch was not accepted: {code}.", "param": None, "line": line}


def _rfc3339(batch: WireBatch) -> str:
    at = batch.fields["at"]
    return datetime.fromtimestamp(at if isinstance(at, (int, float)) else 0, UTC).isoformat().replace("+00:00", "Z")
