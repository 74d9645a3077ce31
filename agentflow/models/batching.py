"""`BatchWire`: the base class of wires that use a provider's batches, at half the price.

Rules:

1. A request waits in the batch that is being collected. The batch is submitted after its window, or when it is full.
2. Each batch has one task: it submits, polls, stores the results in the record, and passes each waiting run its result.
3. If a run is cancelled, the batch continues for the other runs. If all its runs are cancelled, the batch is cancelled
   at the provider.
4. If it is unknown whether a batch was created, it is looked up before another one is created.
5. A result without a reply is removed from the record, so that a retry is sent in the next batch.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from asyncio import AbstractEventLoop, Future, Task
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import aclosing
from copy import copy
from dataclasses import replace
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeAlias, Unpack
from urllib.parse import quote

import msgspec

from agentflow._support.ids import new_id
from agentflow._support.logs import logger
from agentflow.errors import ModelError, UsageError
from agentflow.models.batch_record import BatchRecord, RecordedBatch, Slot
from agentflow.models.conversion import Conversation
from agentflow.models.http import NO_JSON, failures, refusal
from agentflow.models.listing import batch_prices, price
from agentflow.models.loose import NotUnderstoodError, field, items
from agentflow.models.provider_errors import ProviderError, broken_stream
from agentflow.models.wire import DirectWire, WireOptions, encode
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.ports.answer_origin import noting_origin
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import Usage

if TYPE_CHECKING:
    import aiohttp

_FIRST_POLL = 5.0  # seconds; doubled up to `poll`
_MAX_FAILURES = 60  # in succession: an hour at the default `poll`
_MAX_DOWNLOADS = 3
_CANCELLING = 10.0  # seconds that a cancelled run waits for its batch to be cancelled
_STORE_BATCH = 500  # results in one transaction
_EARLIER = 300  # seconds by which the provider's clock may differ
_ENVELOPE = 200  # bytes that a line has in addition to a request's body
_MAX_LIST_BYTES = 1 << 24

Requests: TypeAlias = Mapping[str, bytes]
"""The bodies of a batch's requests, by `custom_id`."""


class NoReply(NamedTuple):
    """The outcome of a batched request that has no reply.

    Attributes:
        why: The reason, and advice for the user.
        retryable: Whether the request should be sent again.
    """

    why: str
    retryable: bool = False


EXPIRED = NoReply("the batch expired before this request was answered. Try again: it is sent in another batch", True)
CANCELLED = NoReply("the batch was cancelled at the provider. Start the program again to send it in another batch")
_MISSING = NoReply("the batch ended without a result for this request. Try again: it is sent in another batch", True)
_GONE = NoReply("the provider no longer has the batch. Start the program again to send it in another batch")

_Outcome: TypeAlias = bytes | NoReply | ProviderError | ModelError | None
"""The outcome of a request: its line of results, the reason why there is none, or the failure of the batch; None if the
batch was not created.
"""


class EndedBatch(NamedTuple):
    """A batch that ended at the provider.

    Attributes:
        urls: The addresses of the batch's files of results.
        missing: The reason why requests have no result; None if all requests should have one.
    """

    urls: tuple[str, ...]
    missing: NoReply | ProviderError | None = None


class _Line(msgspec.Struct, gc=False):
    custom_id: str


_decode_line = msgspec.json.Decoder(_Line).decode


class _Batch:
    """A batch with runs that wait for it."""

    def __init__(self, name: str) -> None:
        self.name = name
        # Both by place. Bodies are deleted once the batch is created; keys are stored in the record.
        self.bodies: dict[int, bytes] = {}
        self.keys: dict[int, str] = {}
        # `places` only grows: the place of a cancelled request is not used again.
        self.places = self.size = 0
        self.waiting: dict[int, Future[_Outcome]] = {}
        self.timer: Future[None] | None = None  # the timer that submits the batch; None if it was submitted already
        self.task: Task[None]
        self.recorded = False  # whether the batch is in the record; from then on, a cancelled request is sent anyway

    def close(self) -> None:
        """Submit the batch now."""
        if self.timer is not None:
            self.timer.cancel()


class BatchWire(DirectWire):
    """A model whose requests are sent in batches. `OpenAIBatch` describes the arguments."""

    _most_requests: ClassVar[int]
    _most_bytes: ClassVar[int]
    _list: ClassVar[tuple[str, str]]
    """The query for a list of batches: the page size, and the parameter for the last id of the previous page."""

    def __init__(
        self,
        name: str,
        *,
        path: str | Path,
        window: float = 60.0,
        poll: float = 60.0,
        max_requests: int | None = None,
        keep_cancelled: bool = False,
        **options: Unpack[WireOptions],
    ) -> None:
        super().__init__(name, **options)
        if window < 0 or poll <= 0 or (max_requests is not None and not 1 <= max_requests <= self._most_requests):
            raise UsageError(
                f"{self!r}: window={window} must be 0 or more seconds, poll={poll} above 0, and "
                f"max_requests={max_requests} from 1 to {self._most_requests:,}."
            )
        self._path = Path(path)
        self._window = window
        self._poll = poll
        self._most = max_requests or self._most_requests
        self._keep = keep_cancelled
        self._record: BatchRecord | None = None
        self._loop: AbstractEventLoop | None = None
        self._batches: dict[str, _Batch] = {}
        self._collecting: _Batch | None = None

    def close(self) -> None:
        """Close the file, so that another model can use it. A later request opens it again.

        Raises:
            UsageError: Requests are waiting.
        """
        if self._batches:
            raise UsageError(f"{self!r}.close(): requests are waiting for batches. Await or cancel their runs first.")
        if self._record is not None:
            self._record.close()
            self._record = None

    # -- one request

    async def _attempt(self, request: ModelRequest, conversation: Conversation) -> AsyncGenerator[ModelChunk, None]:
        extra = request.options.extra
        if extra.get("extra_headers"):
            raise UsageError(
                f"{self!r}: a request in a batch has no headers of its own. Remove extra_headers, or give the model headers=."
            )
        body = {**self._body(request, conversation), **self._extra_fields(extra)}
        for name in ("stream", "stream_options"):
            body.pop(name, None)
        reader = noting_origin(self._url(), self._reader(conversation))
        found: list[ModelChunk] = []
        failure: ModelError | None = None
        slot, answer = await self._answer(encode(body))
        try:
            events = self._events(answer) if isinstance(answer, bytes) else answer
            if isinstance(events, ProviderError):
                raise events
            if isinstance(events, NoReply):
                self._opened().drop(slot)
                raise ModelError(f"{self._name}: {events.why}.", retryable=events.retryable, model=self._name)
            for event in events:
                found += reader.read(event)
            if reader.finish_reason is None:
                raise broken_stream(self._name)
        except (*NO_JSON, ProviderError, NotUnderstoodError) as error:
            # Unreadable replies stay in the record: they were paid for, and are not retried.
            if isinstance(error, ProviderError):
                self._opened().drop(slot)
            failure = self._failed(error, self._url(), extra)
        if failure is not None:
            raise failure
        for chunk in found:
            yield chunk

    async def _answer(self, body: bytes) -> tuple[Slot, bytes | NoReply | ProviderError]:
        """Return a request's line of results, or the failure of the request."""
        if len(body) + _ENVELOPE > self._most_bytes:
            problem = f"the request has {len(body):,} bytes, and a batch at most {self._most_bytes:,}"
            raise self._failed(ProviderError(problem, 413), self._url())
        record = self._opened()
        key = blake2b(self._url().encode() + b"\n" + body, digest_size=16).hexdigest()
        # If a recorded batch turns out not to exist, the outcome is None: the request is claimed or collected again.
        while True:
            slot = record.claim(key)
            if slot is not None and record.done(slot.batch):
                return slot, record.result(slot) or _MISSING
            batch, slot = self._joined(slot, key, body)
            outcome = await self._outcome(batch, slot)
            if isinstance(outcome, ModelError):
                failure = copy(outcome)  # each run raises a separate error object
                failure.__cause__ = outcome.__cause__
                raise failure
            if outcome is not None:
                return slot, outcome

    def _joined(self, slot: Slot | None, key: str, body: bytes) -> tuple[_Batch, Slot]:
        """Return the batch of a recorded request, or add the request to the batch that is being collected."""
        loop = asyncio.get_running_loop()
        # Futures and tasks belong to an event loop. Those of a closed loop are discarded; the record is kept.
        if loop is not self._loop:
            if self._batches and self._loop is not None and not self._loop.is_closed():
                raise UsageError(f"{self!r} is used in two event loops at the same time. Use one model for each.")
            self._loop, self._batches, self._collecting = loop, {}, None
        if slot is not None:
            if (batch := self._batches.get(slot.batch)) is None:
                # A batch of an earlier process, or one whose task has failed: a new task waits for it.
                batch = self._started(_Batch(slot.batch))
                batch.recorded = True
            return batch, slot
        batch = self._collecting
        if batch is not None and batch.size + len(body) + _ENVELOPE > self._most_bytes:
            batch.close()
            batch = None
        if batch is None:
            batch = self._collecting = _Batch(new_id("batch"))
            batch.timer = asyncio.ensure_future(self._sleep(self._window))
            self._started(batch)
        index, batch.places = batch.places, batch.places + 1
        batch.bodies[index], batch.keys[index] = body, key
        batch.size += len(body) + _ENVELOPE
        if len(batch.bodies) == self._most:
            batch.close()
            self._collecting = None
        return batch, Slot(batch.name, index)

    async def _outcome(self, batch: _Batch, slot: Slot) -> _Outcome:
        future: Future[_Outcome] = asyncio.get_running_loop().create_future()
        batch.waiting[slot.place] = future
        try:
            outcome = await future
        except BaseException:  # the run was cancelled, so its request is withdrawn
            del batch.waiting[slot.place]
            self._opened().release(slot)
            if not batch.recorded:
                batch.size -= len(batch.bodies.pop(slot.place)) + _ENVELOPE
                del batch.keys[slot.place]
            if not batch.waiting and batch.name in self._batches:
                await self._abandon(batch)
            raise
        # Without an answer the request stays in the record, so that a retry claims it again.
        if outcome is None or isinstance(outcome, ModelError):
            self._opened().release(slot)
        return outcome

    # -- one batch

    def _started(self, batch: _Batch) -> _Batch:
        self._batches[batch.name] = batch
        batch.task = asyncio.get_running_loop().create_task(self._drive(batch))
        return batch

    async def _drive(self, batch: _Batch) -> None:
        """Submit a batch, wait until it ends, and pass the outcome of each request to its run."""
        outcomes: dict[int, _Outcome] = {}
        failure: ModelError | None = None
        record = self._opened()
        try:
            if batch.timer is not None:
                # `wait`, because a cancelled timer (`close`) means "submit now" and must not raise here.
                await asyncio.wait([batch.timer])
                # Closed to new requests before the batch is recorded: they belong to the next batch.
                if self._collecting is batch:
                    self._collecting = None
                # Recorded before it is sent (rule 4): if the process is killed in between, the batch is looked up.
                record.begin(batch.name, time.time(), batch.keys)
                batch.recorded = True
                await self._submit(batch)
                batch.bodies.clear()
            # Recorded without an id: its process ended before the provider's answer was stored.
            elif (known := record.batch(batch.name)).id is None:
                found = await self._find(known)
                if found is None:
                    record.forget(batch.name)
                    return  # the outcome of each request is None
                record.created(batch.name, found)
            missing = await self._collect(record.batch(batch.name))
            record.finish(batch.name)
            for index in batch.waiting:
                outcomes[index] = record.result(Slot(batch.name, index)) or missing
        except ModelError as error:
            failure = error
        except Exception as error:
            logger.exception("a batch of {} failed", self._name)
            failure = ModelError(f"{self!r}: a batch failed: {type(error).__name__}: {error}", model=self._name)
            failure.__cause__ = error
        finally:
            batch.close()
            self._batches.pop(batch.name, None)
            for index, future in batch.waiting.items():
                if not future.done():
                    future.set_result(outcomes.get(index, failure))

    async def _submit(self, batch: _Batch) -> None:
        """Create a batch at the provider, once."""
        record = self._opened()
        requests = {f"{batch.name}-{index}": body for index, body in batch.bodies.items()}
        attempts = self._policy.start(self._sleep)
        created: str | None = None
        unsure = False
        while created is None:
            try:
                if unsure:
                    created = await self._find(record.batch(batch.name))
                    unsure = False
                created = created or await self._create(requests)
            except ModelError as error:
                # After a lost answer or a server's error, the batch may exist all the same.
                unsure = unsure or error.status is None or error.status >= 500
                if await attempts.another(error):
                    continue
                if not unsure:  # the provider refused the batch
                    record.forget(batch.name)
                raise
        record.created(batch.name, created)

    async def _collect(self, known: RecordedBatch, downloads: int = _MAX_DOWNLOADS) -> NoReply | ProviderError:
        """Wait until a batch ends, and store its results.

        Args:
            known: The batch to wait for.
            downloads: The maximum number of downloads while results are missing.

        Returns:
            The reason why requests have no result.
        """
        # `failed` counts failures in succession.
        delays, failed = _waits(self._poll), 0
        while True:
            pause = next(delays)
            try:
                ended = await self._look(known.id or "")
                for url in ended.urls if ended is not None else ():
                    # Each file is read again from its start; results stored already are skipped.
                    await self._download(known.name, url)
                failed = 0
                if ended is not None:
                    downloads -= 1
                    complete = self._opened().results(known.name) >= known.size
                    if complete or ended.missing is not None or not downloads:
                        return ended.missing or _MISSING
            except ModelError as error:
                failed += 1
                # Three in succession: the batch was deleted, and more polls would not help.
                if error.status == 404:
                    if failed == _MAX_DOWNLOADS:
                        return _GONE
                elif not error.retryable or failed == _MAX_FAILURES:
                    raise
                pause = max(pause, error.retry_after or 0.0)
            await self._sleep(pause)

    async def _download(self, name: str, url: str) -> None:
        """Store the results of one file. If the file is truncated, it is read again later; the results read so far are
        stored already.
        """
        failure: ModelError | None = None
        lines: list[tuple[str, int, bytes]] = []
        try:
            async with await self._send("GET", url) as response:
                if response.status != 200:
                    raise await refusal(response)
                async with aclosing(self._lines_of(response)) as parts:
                    async for line in parts:
                        batch, _, index = _decode_line(line).custom_id.rpartition("-")
                        # A file may belong to another batch (`AnthropicBatch._find` tries several).
                        if batch == name and index.isdecimal():
                            lines.append((name, int(index), line))
                        if len(lines) == _STORE_BATCH:
                            self._opened().store(lines)
                            lines.clear()
        except (*failures(), *NO_JSON, ProviderError) as error:
            failure = self._failed(error, url)
        self._opened().store(lines)
        if failure is not None:
            raise failure

    async def _lines_of(self, response: aiohttp.ClientResponse) -> AsyncGenerator[bytes, None]:
        rest = b""
        while part := await response.content.readany():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if line.strip():
                    yield line
            if len(rest) > self._max_event:
                raise ProviderError(
                    f"a result has more than {self._max_event:,} bytes, the limit set with max_event=", 400
                )
        if rest.strip():
            yield rest

    async def _abandon(self, batch: _Batch) -> None:
        """Stop waiting for a batch that no run needs, and cancel it at the provider."""
        batch.task.cancel()
        await asyncio.wait([batch.task])
        if self._collecting is batch:
            self._collecting = None
        if not batch.recorded or self._keep:
            return
        record = self._opened()
        known = record.batch(batch.name)
        record.hide(batch.name)
        try:
            async with asyncio.timeout(_CANCELLING):
                if (batch_id := known.id or await self._find(known)) is not None:
                    await self._cancel(batch_id)
        except (ModelError, TimeoutError) as error:
            record.show(batch.name)
            logger.warning("a batch of {} may continue at the provider: cancelling it failed: {!r}", self._name, error)
        else:
            record.forget(batch.name)

    # -- shared by the providers

    def _opened(self) -> BatchRecord:
        if self._record is None:
            self._record = BatchRecord(self._path)
        return self._record

    def _priced(self, usage: Usage, hour_cached: int = 0, searches: int = 0) -> ModelChunk:
        return ModelChunk(usage=replace(usage, cost=price(batch_prices(self._row), usage, hour_cached, searches)))

    def _batch_url(self, batch_id: str, rest: str = "") -> str:
        return f"{self._batches_url()}/{quote(batch_id, safe='')}{rest}"

    async def _cancel(self, batch_id: str) -> None:
        url = self._batch_url(batch_id, "/cancel")
        await self._json_of(self._send("POST", url), url)

    async def _listed(self, url: str) -> Mapping[str, object]:
        return await self._json_of(self._send("GET", url), url, _MAX_LIST_BYTES)

    def _id_of(self, answer: Mapping[str, object]) -> str:
        found = answer.get("id")
        if isinstance(found, str) and found:
            return found
        raise ModelError(
            f"{self._name} created a batch or a file, but its answer has no id.", model=self._name, retryable=True
        )

    async def _recent(self, known: RecordedBatch) -> list[tuple[object, float]]:
        """Return the provider's batches since a recorded one, newest first, each with the seconds that it is newer."""
        limit, after = self._list
        found: list[tuple[object, float]] = []
        rest = f"?{limit}"
        while True:
            page = await self._listed(self._batches_url() + rest)
            rows = [(row, _moment(field(row, "created_at")) - known.at) for row in items(page.get("data"))]
            found += rows
            # Lists are sorted by time, newest first: older batches need not be read.
            if not rows or page.get("has_more") is not True or rows[-1][1] < -_EARLIER:
                return [(row, age) for row, age in found if age >= -_EARLIER]
            rest = f"?{limit}&{after}={quote(str(field(rows[-1][0], 'id')), safe='')}"

    # -- implemented for each provider

    @abstractmethod
    def _batches_url(self) -> str:
        """Return the URL of all batches."""

    @abstractmethod
    async def _create(self, requests: Requests) -> str:
        """Create a batch, and return its id."""

    @abstractmethod
    async def _find(self, known: RecordedBatch) -> str | None:
        """Find a batch that may or may not have been created; return None if it was not."""

    @abstractmethod
    async def _look(self, batch_id: str) -> EndedBatch | None:
        """Return the result of a batch that has ended; None if it is in progress."""

    @abstractmethod
    def _events(self, line: bytes) -> Iterable[bytes] | NoReply | ProviderError:
        """Return the events of the reply in a line of results, for the wire's reader, or the request's failure."""


def _moment(value: object) -> float:
    try:
        return float(value) if isinstance(value, (int, float)) else datetime.fromisoformat(str(value)).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _waits(longest: float) -> Iterator[float]:
    wait = min(_FIRST_POLL, longest)
    while True:
        yield wait
        wait = min(wait * 2, longest)
