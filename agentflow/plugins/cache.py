"""`ToolCache` and `ModelCache`: repeated work is answered from memory or disk.

Rules:

1. A hit replaces the work in `around`, after the whole chain: approvals and guards have already judged the call. (An `Answer`
   on the Pre event would work for a tool, but would skip the guards after it, and would turn a model's reply into one chunk.)
2. Only successful work is kept: no errors, no denied or suspended results, no replies that are empty or incomplete.
3. A failing store (a full disk, a locked file) costs the hit, never the call; it is logged.
4. Times are the run's clock. One cache serves any number of agents, event loops and threads; a `path` serves several processes.

In memory, values are kept as they are, since they are immutable. On disk they are rows of JSON in one SQLite table, using
Python's `sqlite3`: diskcache would be the usual choice, but has had no release since 2023 and reads pickles by default, so
anyone who can write to the file could run code.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import closing
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python
from reactivex import Observable

from agentflow._support.logs import logger
from agentflow.errors import ToolError, UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import ModelSource
from agentflow.plugins._calls import Repeats, canonical
from agentflow.plugins._counting import tail
from agentflow.plugins._matching import names, says_something, spec_of, writes
from agentflow.ports.model import ModelRequest
from agentflow.reactive import Flux, Mono
from agentflow.reactive.iterators import close
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import Event, HookEvent, PreActing, PreReasoning
from agentflow.vocabulary.messages import Msg, ThinkingBlock, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.specs import Clock, ToolSpec
from agentflow.vocabulary.transcript import MessageView

__all__ = ["CacheUse", "ModelCache", "ToolCache"]

T = TypeVar("T")
_FORMAT = "agentflow-cache-3"
_SHORT_KEY = 400
"""Characters; digests are longer than the keys that a `ToolCache` keeps as text, so the two cannot be confused."""


@dataclass(slots=True)
class CacheUse:
    """The use of caches in a run: `event.context.state[CacheUse]`.

    Attributes:
        hits: Answers from a cache.
        misses: Work that had to be done.
        shared: Hits that waited for the same work in another call or turn.
    """

    hits: int = 0
    misses: int = 0
    shared: int = 0


class _Memory:
    """The most recently used entries, in this process; the values are immutable."""

    def __init__(self, ttl: float | None, size: int) -> None:
        self._ttl = math.inf if ttl is None else ttl
        self._size = size
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[float, object]] = OrderedDict()

    def get(self, key: str, now: float) -> object:
        with self._lock:
            expires, value = self._entries.get(key, (0.0, None))
            if value is None:
                return None
            if expires <= now:
                del self._entries[key]
                return None
            self._entries.move_to_end(key)
            return value

    def put(self, key: str, value: object, now: float) -> None:
        with self._lock:
            self._entries[key] = now + self._ttl, value
            self._entries.move_to_end(key)
            if len(self._entries) > self._size:
                self._entries.popitem(last=False)


class _Disk:
    """The most recently used entries, in an SQLite file; a connection for each access, in a thread."""

    _TABLE = (
        "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, text TEXT, expires REAL, used REAL) WITHOUT ROWID"
    )

    def __init__(self, path: Path, ttl: float | None, size: int) -> None:
        self._path = path
        self._ttl = ttl
        self._size = size

    async def get(self, key: str, clock: Clock) -> str | None:
        return await asyncio.to_thread(self._read, key, clock.now())

    async def put(self, key: str, text: str, clock: Clock) -> None:
        await asyncio.to_thread(self._write, key, text, clock.now())

    def _connect(self) -> sqlite3.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self._path, timeout=10)
        try:
            connection.execute(self._TABLE)
        except BaseException:  # possibly not a database's error
            connection.close()
            raise
        return connection

    def _read(self, key: str, now: float) -> str | None:
        with closing(self._connect()) as connection, connection:
            select = "SELECT text FROM entries WHERE key = ? AND (expires IS NULL OR expires > ?)"
            row = connection.execute(select, (key, now)).fetchone()
            if row is None:
                return None
            connection.execute("UPDATE entries SET used = ? WHERE key = ?", (now, key))
            return str(row[0])

    def _write(self, key: str, text: str, now: float) -> None:
        with closing(self._connect()) as connection, connection:
            expires = None if self._ttl is None else now + self._ttl
            connection.execute("REPLACE INTO entries VALUES (?, ?, ?, ?)", (key, text, expires, now))
            connection.execute("DELETE FROM entries WHERE expires <= ?", (now,))
            connection.execute(
                "DELETE FROM entries WHERE key IN (SELECT key FROM entries ORDER BY used DESC LIMIT -1 OFFSET ?)",
                (self._size,),
            )


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class _Cached:
    """A store of values of one type; its failures are logged and cost only the hit."""

    def __init__(self, hook: str, kind: Any, ttl: float | None, size: int, path: str | Path | None) -> None:
        if size < 1 or (ttl is not None and ttl <= 0):
            raise UsageError(
                f"{hook}(ttl={ttl}, size={size}) would keep nothing. Use a size of 1 or more, and a ttl above 0 or None (no "
                "limit)."
            )
        self._hook = hook
        self._kind = kind
        self._memory = _Memory(ttl, size) if path is None else None
        self._disk = None if path is None else _Disk(Path(path), ttl, size)

    def key_of(self, text: str) -> str:
        """Return the key for a text: a short text that stays in memory is its own key, any other is hashed."""
        return text if self._memory is not None and len(text) <= _SHORT_KEY else _hash(text)

    async def get(self, key: str, clock: Clock) -> Any:
        """Return the value, or None."""
        if self._memory is not None:
            return self._memory.get(key, clock.monotonic())
        assert self._disk is not None
        try:
            text = await self._disk.get(key, clock)
            return None if text is None else _adapter(self._kind).validate_json(text)
        except (sqlite3.Error, OSError, ValidationError) as error:
            logger.warning("{} could not be read, so the work is done: {!r}", self._hook, error)
            return None

    async def put(self, key: str, value: object, clock: Clock) -> None:
        """Store a value."""
        if self._memory is not None:
            self._memory.put(key, value, clock.monotonic())
            return
        assert self._disk is not None
        try:
            await self._disk.put(key, _adapter(self._kind).dump_json(value).decode(), clock)
        except (sqlite3.Error, OSError) as error:
            logger.warning("{} could not be written, so the work will be done again: {!r}", self._hook, error)


_leading: ContextVar[tuple[tuple[object, str], ...]] = ContextVar("agentflow_cache_led", default=())
"""The work that the current code is part of: waiting for it would deadlock."""
_Place: TypeAlias = tuple[asyncio.AbstractEventLoop, str]


class _Flights:
    """Work in progress, so that equal work waits for it."""

    def __init__(self) -> None:
        self._going: dict[_Place, asyncio.Future[Any] | None] = {}
        """None: nothing waits for it yet."""

    def other(self, place: _Place) -> Awaitable[Any] | None:
        """Return the same work in progress, to wait for its value (None: it failed); None if there is none."""
        if place not in self._going or place in _leading.get():
            return None
        going = self._going[place]
        if going is None:
            going = self._going[place] = place[0].create_future()
        return asyncio.shield(going)

    async def lead(self, place: _Place, work: Awaitable[T]) -> T:
        """Do the work, and pass the value to those waiting for it."""
        led = _leading.get()
        if place in led:
            return await work
        self._going[place] = None
        value: T | None = None
        token = _leading.set((*led, place))
        try:
            value = await work
            return value
        finally:
            _leading.reset(token)
            waited = self._going.pop(place)
            if waited is not None:
                waited.set_result(value)


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str).encode


def _digest(*parts: object) -> str:
    return _hash(_encode((_FORMAT, *parts)))


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _spec(spec: ToolSpec) -> tuple[object, ...]:
    return spec.name, spec.description, to_jsonable_python(spec.parameters, fallback=str)


class ToolCache(Hook):
    """Answers a tool call with the result of an earlier call with the same arguments.

    Two calls are equal if name, description and parameters of the tool and the arguments (in any order) are. If the result
    depends on anything else, such as the user, `vary` should return it: all agents with the hook share the cache. The chunks of
    a streaming tool are not replayed; if such a tool runs as a turn (`turn.yielding()`, a queue), it is not cached, since its
    values matter.

    Priority 120 (behaviour): a hit needs no retry and no rate limit.

    Args:
        ttl: Seconds for which a result is valid; None: no limit.
        size: The maximum number of results; the least recently used are removed first.
        path: A file for the results; None: memory.
        tools: Patterns of tool names. None: the read-only tools (`type="read"` or `"research"`). A tool that writes is cached
            only if a pattern names it.
        vary: Returns further data that the result depends on, as JSON-like data.
        single_flight: If true, equal calls at the same time wait for one run.
        priority: The priority of the hook.

    Example:
        >>> twice = [ToolUseBlock("t1", "add", {"a": 1, "b": 2}), ToolUseBlock("t2", "add", {"b": 2, "a": 1})]
        >>> uses = []
        >>> agent = Agent("a", ScriptedModel([twice, "3."]), tools=[add], hooks=[ToolCache(ttl=600)])
        >>> subscription = agent.on("on_complete", lambda event: uses.append(event.context.state[CacheUse].hits))
        >>> reply = await agent.call("1 + 2?")
        >>> uses
        [1]
    """

    events: ClassVar[tuple[type[Event], ...] | None] = (PreActing,)
    wraps: ClassVar[tuple[type[Event], ...] | None] = (PreActing,)

    def __init__(
        self,
        *,
        ttl: float | None = 3600.0,
        size: int = 1000,
        path: str | Path | None = None,
        tools: tuple[str, ...] | None = None,
        vary: Callable[[PreActing], object] | None = None,
        single_flight: bool = True,
        priority: int = 120,
    ) -> None:
        self._cached = _Cached("ToolCache", ToolResultBlock, ttl, size, path)
        self._tools = tools if tools is None else tuple(tools)
        self._vary = vary
        self._flights = _Flights() if single_flight else None
        self._specs: dict[str, tuple[ToolSpec | None, str]] = {}
        self.priority = priority

    def on_event(self, event: HookEvent) -> HookEvent:
        """Register the cache, so that hooks that ask a person know which calls do not run."""
        if isinstance(event, PreActing):
            event.context.state[Repeats].cache = self
        return event

    def around(self, event: HookEvent, source: Any) -> Observable[Any]:
        """Wrap the tool."""
        if not isinstance(event, PreActing) or not self._covers(event):
            return source
        return Mono(partial(self._run, source, event))

    @property
    def shares(self) -> bool:
        """Whether equal calls at the same time share one run."""
        return self._flights is not None

    def key_of_call(self, event: PreActing) -> str:
        """Return a key that equal calls share; empty if the call is not cached."""
        return self._key(event) if self._covers(event) else ""

    async def known(self, key: str, event: PreActing) -> ToolResultBlock | None:
        """Return the cached result."""
        return await self._cached.get(key, event.context.clock)

    def _covers(self, event: PreActing) -> bool:
        if event.tool_use.input_error is not None or (event.iteration == 0 and _streams(event)):
            return False
        if self._tools is None:
            return not writes(event)
        return names(self._tools, event.tool_use.name)

    def _key(self, event: PreActing) -> str:
        use, spec = event.tool_use, spec_of(event)
        known = self._specs.get(use.name)
        if known is None or known[0] is not spec:
            known = self._specs[use.name] = spec, _digest("tool", use.name, None if spec is None else _spec(spec))
        vary = "" if self._vary is None else _encode(self._vary(event))
        return self._cached.key_of(f"{known[1]}{canonical(use)}\n{vary}")

    async def _run(self, source: Mono[ToolResultBlock], event: PreActing) -> Any:
        repeats = event.context.state[Repeats]
        try:
            return await self._answer(source, event, repeats)
        finally:
            repeats.done.add(event.tool_use.id)

    async def _answer(self, source: Mono[ToolResultBlock], event: PreActing, repeats: Repeats) -> Any:
        context = event.context
        key, clock, use = self._key(event), context.clock, context.state[CacheUse]
        kept = repeats.kept.pop(event.tool_use.id, None)
        while True:
            known = kept[1] if kept is not None and kept[0] == key else await self._cached.get(key, clock)
            if known is not None:
                use.hits += 1
                return known
            if self._flights is None:
                use.misses += 1
                return await self._work(source, key, clock, repeats)
            place = asyncio.get_running_loop(), key
            other = self._flights.other(place)
            if other is None:
                if repeats.follows.get(event.tool_use.id) in repeats.done:
                    raise ToolError(
                        "The same call failed or was cancelled. This one did not run: they were approved together. Call again."
                    )
                value = await self._flights.lead(place, self._work(source, key, clock, repeats))
                use.misses += 1
                return value
            value = await other
            if isinstance(value, ToolResultBlock) and not value.is_error:
                use.hits += 1
                use.shared += 1
                return value
            # The other call failed or was cancelled, so this one runs the tool itself.

    async def _work(self, source: Mono[ToolResultBlock], key: str, clock: Clock, repeats: Repeats) -> Any:
        result = await source.resolve()
        if isinstance(result, ToolResultBlock) and not result.is_error:
            await self._cached.put(key, result, clock)
            repeats.ran.add(key)
        return result


def _streams(event: PreActing) -> bool:
    """Return whether values go to a reader as they are produced, so that the result is only the last of them.

    That is the case for a streaming tool in a turn that no model requested (it belongs to no iteration).
    """
    name = event.tool_use.name
    return any(spec.streaming for spec in event.agent.tools if spec.name == name)


class ModelCache(Hook):
    """Answers a repeated request with the earlier reply, chunk by chunk, at no cost.

    Two requests are equal if the model, the messages (without ids and metadata), the tools and all options are. This is useful
    in tests, evaluations and demos, and for agents that get the same questions often; a sampled reply is repeated unchanged.
    Comparing requests costs 3 µs for each message that was not in the run's last request.

    Priority 120 (behaviour): inside `ModelFallback`, so a reply is kept under the name of its model; outside `ModelRetry` and
    `RateLimit`. Changes of hooks with higher priority to the chunks are kept, those of hooks with lower priority are not. The
    hook must see the request as it is sent, so outside `Redaction`, which changes it, the first call fails.

    Args:
        ttl: Seconds for which a reply is valid; None: no limit.
        size: The maximum number of replies; the least recently used are removed first.
        path: A file for the replies; None: memory.
        models: Patterns of model names.
        vary: Returns further data that the reply depends on, as JSON-like data.
        priority: The priority of the hook.

    Example:
        >>> model, cache = ScriptedModel(["Only once."]), ModelCache()
        >>> agents = [Agent(name, model, hooks=[cache]) for name in ("ann", "bob")]
        >>> replies = [await agent.call("Hi") for agent in agents]
        >>> [(reply.text, reply.usage.model_calls) for reply in replies]
        [('Only once.', 1), ('Only once.', 1)]
    """

    events: ClassVar[tuple[type[Event], ...] | None] = (PreReasoning,)
    wraps: ClassVar[tuple[type[Event], ...] | None] = (PreReasoning,)

    def __init__(
        self,
        *,
        ttl: float | None = 3600.0,
        size: int = 1000,
        path: str | Path | None = None,
        models: tuple[str, ...] = ("*",),
        vary: Callable[[PreReasoning], object] | None = None,
        priority: int = 120,
    ) -> None:
        self._cached = _Cached("ModelCache", tuple[ModelChunk, ...], ttl, size, path)
        self._models = tuple(models)
        self._vary = vary
        self.priority = priority

    def around(self, event: HookEvent, source: Any) -> Observable[Any]:
        """Wrap the model call."""
        if not isinstance(event, PreReasoning):
            return source
        if source.private:
            raise UsageError(
                f"ModelCache (priority {self.priority}) wraps a model call in which a hook further in (such as Redaction) "
                "inserts text of one session, so its replies must not be kept for others. Give it a higher priority than "
                "that hook: ModelCache(priority=...); agent.hooks.describe() prints the order."
            )
        return Flux(lambda: self._run(source, event))

    async def _run(self, source: ModelSource, event: PreReasoning) -> AsyncIterator[ModelChunk]:
        context, request = event.context, source.request
        covered = names(self._models, request.model)
        key = self._key(event, request) if covered else ""
        if covered:
            known = await self._cached.get(key, context.clock)
            if known is not None:
                context.state[CacheUse].hits += 1
                for chunk in known:
                    yield chunk
                return
            context.state[CacheUse].misses += 1
        recorded: list[ModelChunk] = []
        chunks = source.open()
        try:
            async for chunk in chunks:
                if chunk.restart:
                    recorded.clear()
                recorded.append(chunk)
                yield chunk
        finally:
            await close(chunks)
        if covered and _is_complete(recorded):
            await self._cached.put(key, _replayable(recorded), context.clock)

    def _key(self, event: PreReasoning, request: ModelRequest) -> str:
        digests = event.context.state[_Digests].by_hook
        digest = digests.get(id(self))
        if digest is None:
            digest = digests[id(self)] = _Digest()
        return digest.of(request, self._vary(event) if self._vary is not None else None)


def _is_complete(chunks: Sequence[ModelChunk]) -> bool:
    reasons = [chunk.finish_reason for chunk in chunks if chunk.finish_reason is not None]
    return any(says_something(chunk) for chunk in chunks) and reasons[-1:] != ["length"]


def _replayable(chunks: Sequence[ModelChunk]) -> tuple[ModelChunk, ...]:
    """Return the chunks for replay, without restarts and usage."""
    kept = [replace(chunk, usage=None, restart=False) for chunk in chunks]
    return tuple(chunk for chunk in kept if chunk != ModelChunk())


class _Digest:
    """Computes the keys of a run's requests; the part shared with the last request is not read again."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._read: Sequence[Msg] = ()
        self._lasting = 0
        self._hash = hashlib.sha256(_FORMAT.encode())
        # Ids of calls differ between runs; the key uses the position of the call that a result answers.
        self._places: dict[str, int] = {}

    def of(self, request: ModelRequest, vary: object) -> str:
        """Return the key of a request."""
        messages = request.messages
        lasting = messages.shared(messages) if isinstance(messages, MessageView) else 0
        if not isinstance(messages, MessageView) or messages.shared(self._read) != self._lasting:
            self._begin()
        for index in range(self._lasting, lasting):
            self._hash.update(_line(_message(messages[index], self._places)))
        self._read, self._lasting = messages, lasting
        whole, rest = self._hash.copy(), tail(messages, lasting)
        calls = any(msg.tool_uses or msg.tool_results for msg in rest)
        places = dict(self._places) if calls else self._places  # `rest` is part of this request only
        for msg in rest:
            whole.update(_line(_message(msg, places)))
        tools = [_spec(spec) for spec in request.tools]
        options = to_jsonable_python(request.options, fallback=str)
        whole.update(_line(("model", request.model, tools, options, vary)))
        return whole.hexdigest()


def _line(value: object) -> bytes:
    return f"{_encode(value)}\n".encode("utf-8", "surrogatepass")


@dataclass
class _Digests:
    """By hook; not stored with a session."""

    def __post_init__(self) -> None:
        self.by_hook: dict[int, _Digest] = {}


def _message(msg: Msg, places: dict[str, int]) -> tuple[object, ...]:
    blocks: list[object] = []
    for block in msg.content:
        if isinstance(block, ToolUseBlock):
            place = places.setdefault(block.id, len(places))
            arguments = block.raw if block.input_error else to_jsonable_python(block.input, fallback=str)
            blocks.append(("call", place, block.name, arguments))
        elif isinstance(block, ToolResultBlock):
            place = places.setdefault(block.tool_use_id, len(places))
            blocks.append(("result", place, block.name, to_jsonable_python(block.content), block.state))
        elif isinstance(block, ThinkingBlock):
            blocks.append(("thinking", block.text))
        else:
            blocks.append(to_jsonable_python(block))
    return msg.role, msg.name, blocks
