"""The storage of `ToolCache` and `ModelCache`: memory or a SQLite file, keys, and the count of hits."""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_jsonable_python

from agentflow._support.logs import logger
from agentflow.errors import UsageError
from agentflow.vocabulary.specs import Clock, ToolSpec

FORMAT = "agentflow-cache-3"
"""Part of each key; change it whenever keys are built differently."""
_SHORT_KEY = 400
"""The maximum length of a text that is used as the key itself. Such a text has more than a digest, so it cannot equal the hash
of a longer text."""


@dataclass(slots=True)
class CacheUse:
    """The use of caches in a run: `event.context.state[CacheUse]`.

    Attributes:
        hits: The number of calls answered from a cache.
        misses: The number of calls that had to run.
        shared: The number of hits that waited for an equal call that was running.
    """

    __saved_as__ = "agentflow.plugins.cache:CacheUse"  # the name in stored sessions

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
            expires, value = self._entries.get(key, (0.0, None))  # no value is None
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
    """The most recently used entries, in a SQLite file; a connection for each access, in a thread."""

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

    @contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        """Open a connection for one transaction."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # The `with` block of a connection ends its transaction, but does not close it.
        with closing(sqlite3.connect(self._path, timeout=10)) as connection, connection:
            connection.execute(self._TABLE)
            yield connection

    def _read(self, key: str, now: float) -> str | None:
        with self._open() as connection:
            select = "SELECT text FROM entries WHERE key = ? AND (expires IS NULL OR expires > ?)"
            row = connection.execute(select, (key, now)).fetchone()
            if row is None:
                return None
            connection.execute("UPDATE entries SET used = ? WHERE key = ?", (now, key))
            return str(row[0])

    def _write(self, key: str, text: str, now: float) -> None:
        with self._open() as connection:
            expires = None if self._ttl is None else now + self._ttl
            connection.execute("REPLACE INTO entries VALUES (?, ?, ?, ?)", (key, text, expires, now))
            connection.execute("DELETE FROM entries WHERE expires <= ?", (now,))
            # SQLite has no OFFSET without LIMIT; -1 means no limit.
            connection.execute(
                "DELETE FROM entries WHERE key IN (SELECT key FROM entries ORDER BY used DESC LIMIT -1 OFFSET ?)",
                (self._size,),
            )


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


class Storage:
    """A store of values of one type. A failure is logged, not raised."""

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
        """Return the key for a text: a short text for a cache in memory is used unchanged, any other text is hashed."""
        return text if self._memory is not None and len(text) <= _SHORT_KEY else _sha256(text)

    async def get(self, key: str, clock: Clock) -> Any:
        """Return the value, or None."""
        if self._memory is not None:
            # Other processes read the file, so it needs the time of day. Memory uses the monotonic clock, because the time of
            # day can be set.
            return self._memory.get(key, clock.monotonic())
        assert self._disk is not None
        try:
            text = await self._disk.get(key, clock)
            return None if text is None else _adapter(self._kind).validate_json(text)
        except (sqlite3.Error, OSError, ValidationError) as error:  # another version may have written the entry
            logger.warning("{} could not be read, so the call runs: {!r}", self._hook, error)
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
            logger.warning("{} could not be written, so an equal call will run again: {!r}", self._hook, error)


as_json = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str).encode
"""Returns a value as JSON, the same for equal values."""


def digest(*parts: object) -> str:
    """Return a key for values."""
    return _sha256(as_json((FORMAT, *parts)))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def content_of(spec: ToolSpec) -> tuple[object, ...]:
    """Return the parts of a tool's specification that a model sees."""
    return spec.name, spec.description, to_jsonable_python(spec.parameters, fallback=str)
