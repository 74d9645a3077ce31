"""Simulated failures of processes, disks, networks and clocks, to test that no data is lost.

| Fault | Use |
|---|---|
| the process dies before or after an effect (model call, tool, commit) | `Crash(at=n)` around store, model and tools |
| the model's connection breaks between chunks | `cut_connection(model, after=2)`; over HTTP `agentflow.testing.wire.Fault` |
| the disk is full, a lock times out, the answer to a write is lost | `full_disk`, `lock_timeout`, `lost_answer` |
| the store is slow | `slow(store, seconds)` |
| a fact is delivered twice | `delivered_twice(store)` |
| two workers write at the same moment | `Barrier(2).store(store)`, `concurrently(call, call)` |
| a call is submitted twice | `concurrently(call, call)` |
| the clock jumps | `JumpingClock()` |

Rules:

1. A fault has only the described effect; everything else is passed on to the wrapped object.
2. Nothing depends on chance or time: faults are counted, starting at 1.
3. After a `Crash`, the objects that it wraps write nothing more. Continue with new objects, as a new process would.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal, TypeVar, cast

from agentflow.errors import ModelError, StoreError, UsageError
from agentflow.tools.tool import Tool
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.facts import Fact
from agentflow.vocabulary.ports.clock import SystemClock
from agentflow.vocabulary.ports.model import Model, ModelRequest
from agentflow.vocabulary.ports.store import Claim, SessionStore
from agentflow.vocabulary.ports.store_wrapper import StoreWrapper

__all__ = [
    "Barrier",
    "Crash",
    "JumpingClock",
    "ProcessDied",
    "concurrently",
    "cut_connection",
    "delivered_twice",
    "full_disk",
    "lock_timeout",
    "lost_answer",
    "slow",
]

T = TypeVar("T")
AnyTool = TypeVar("AnyTool", bound=Tool[..., Any])


# ---- crashes


class ProcessDied(BaseException):
    """The simulated death of the process (`Crash(by="raise")`). `except Exception` does not catch it."""


class Crash:
    """Kills the process at one of its effects.

    There are points before and after each effect, counted over all objects that one `Crash` wraps. Without `at=` the points
    are only recorded. So run a test once without `at=`, and then with each `at` from 1 to `len(crash.points)`.

    Args:
        at: The point at which the process dies; None means never.
        by: `"raise"`: raise `ProcessDied`, after which no wrapped object works; `"sigkill"`: kill the process with SIGKILL.

    Attributes:
        points: The names of the points passed so far.
        dead: Whether the process has died.

    Example:
        >>> crash = Crash()
        >>> agent = Agent("a", crash.model(ScriptedModel(["Hello."])), store=crash.store(MemoryStore()))
        >>> await agent.call("Hi")
        >>> crash.points[:4]
        ['before commit CallOpened', 'after commit CallOpened', 'before model', 'in model']
    """

    def __init__(self, at: int | None = None, *, by: Literal["raise", "sigkill"] = "raise") -> None:
        if at is not None and at < 1:
            raise UsageError(f"Crash(at={at}): points are counted from 1.")
        self.at = at
        self.by = by
        self.points: list[str] = []
        self.dead = False

    def point(self, name: str) -> None:
        """Record a point, and die if it is the one that `at` selects. Call this for effects that nothing wraps.

        Raises:
            ProcessDied: The process dies at this point, or died earlier.
        """
        if self.dead:
            raise ProcessDied(f"dead since {self.points[-1]!r}")
        self.points.append(name)
        if len(self.points) == self.at:
            self.dead = True
            if self.by == "sigkill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ProcessDied(name)

    def store(self, store: SessionStore) -> SessionStore:
        """Wrap a store, with points before and after each commit."""
        return _DyingStore(store, self)

    def model(self, model: Model) -> Model:
        """Wrap a model, with points before each call, after the first chunk, and after the last."""
        return _DyingModel(model, self)

    def tool(self, tool: AnyTool) -> AnyTool:
        """Wrap a tool, with points before and after each run of its function."""
        wrapped = tool.renamed(tool.name)  # a copy
        call = cast("Callable[..., Any]", tool.__dict__["_call"])

        def called(*args: object, **kwargs: object) -> Any:
            work = partial(call, *args, **kwargs)
            return self._streamed(tool.name, work) if tool.streaming else self._ran(tool.name, work)

        wrapped.__dict__["_call"] = called  # a tool refuses ordinary assignments
        return wrapped

    async def _ran(self, name: str, work: Callable[[], Awaitable[T]]) -> T:
        self.point(f"before tool {name}")
        value = await work()
        self.point(f"after tool {name}")
        return value

    async def _streamed(self, name: str, work: Callable[[], AsyncIterator[T]]) -> AsyncIterator[T]:
        self.point(f"before tool {name}")
        async for chunk in work():
            yield chunk
        self.point(f"after tool {name}")


class _DyingStore(StoreWrapper):
    def __init__(self, store: SessionStore, crash: Crash) -> None:
        super().__init__(store)
        self._crash = crash

    def append(
        self, session_id: str, facts: Sequence[Fact], *, expected: int | None = None, claim: Claim | None = None
    ) -> Awaitable[None] | None:
        names = ", ".join(type(fact).__name__ for fact in facts)
        self._crash.point(f"before commit {names}")
        commit = self.inner.append(session_id, facts, expected=expected, claim=claim)
        if commit is not None:
            return self._await_commit(commit, names)
        self._crash.point(f"after commit {names}")
        return None

    async def _await_commit(self, commit: Awaitable[None], names: str) -> None:
        await commit
        self._crash.point(f"after commit {names}")


class _DyingModel:
    def __init__(self, model: Model, crash: Crash) -> None:
        self.name = model.name
        self._model = model
        self._crash = crash

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        self._crash.point("before model")
        first = True
        async with _closing(self._model.stream(request)) as chunks:
            async for chunk in chunks:
                yield chunk
                if first:
                    self._crash.point("in model")
                    first = False
        self._crash.point("after model")


# ---- stores that fail


class _FailingStore(StoreWrapper):
    def __init__(self, store: SessionStore, message: str, at: int, times: int | None, written: bool) -> None:
        super().__init__(store)
        self._message = message
        self._first = at
        self._last = None if times is None else at + times - 1
        self._written = written
        self._appends = 0

    def append(
        self, session_id: str, facts: Sequence[Fact], *, expected: int | None = None, claim: Claim | None = None
    ) -> Awaitable[None] | None:
        self._appends += 1
        if self._appends < self._first or (self._last is not None and self._appends > self._last):
            return self.inner.append(session_id, facts, expected=expected, claim=claim)
        commit = self.inner.append(session_id, facts, expected=expected, claim=claim) if self._written else None
        return self._fail(commit)

    async def _fail(self, commit: Awaitable[None] | None) -> None:
        if commit is not None:
            await commit
        raise StoreError(self._message)


def full_disk(store: SessionStore, *, at: int = 1, times: int | None = None) -> SessionStore:
    """Wrap a store so that its disk is full: commits fail, loading works.

    Args:
        store: The store.
        at: The first commit that fails.
        times: The number of commits that fail before there is space again; None means that all later ones fail.

    Example:
        >>> agent = Agent("a", ScriptedModel(["Hello."]), store=full_disk(MemoryStore(), at=2))
        >>> await agent.call("Hi")
        Traceback (most recent call last):
        agentflow.errors.StoreError: No space is left. ...
    """
    return _FailingStore(store, "No space is left. Free space on the disk and repeat the call.", at, times, False)


def lock_timeout(store: SessionStore, *, at: int = 1, times: int | None = 1) -> SessionStore:
    """Wrap a store so that commits fail because another process holds the lock for too long.

    Args:
        store: The store.
        at: The first commit that fails.
        times: The number of commits that fail; None means that all later ones fail.
    """
    message = "Another process held the database for too long. Repeat the call."
    return _FailingStore(store, message, at, times, False)


def lost_answer(store: SessionStore, *, at: int = 1, times: int | None = 1) -> SessionStore:
    """Wrap a store so that its connection breaks after a commit: the facts are stored, but the writer gets an error.

    Args:
        store: The store.
        at: The first commit with a lost answer.
        times: The number of commits with a lost answer; None means that all later answers are lost.
    """
    message = "The connection was lost; it is not known whether the facts were stored. Repeat the call."
    return _FailingStore(store, message, at, times, True)


class _SlowStore(StoreWrapper):
    def __init__(self, store: SessionStore, seconds: float) -> None:
        super().__init__(store)
        self._seconds = seconds

    def append(
        self, session_id: str, facts: Sequence[Fact], *, expected: int | None = None, claim: Claim | None = None
    ) -> Awaitable[None]:
        # The append starts now and only its end is delayed, so commits keep the order of the calls.
        commit = self.inner.append(session_id, facts, expected=expected, claim=claim)
        return self._delay(commit)

    async def _delay(self, commit: Awaitable[None] | None) -> None:
        await asyncio.sleep(self._seconds)
        if commit is not None:
            await commit


def slow(store: SessionStore, seconds: float) -> SessionStore:
    """Wrap a store so that its commits are slow.

    Args:
        store: The store.
        seconds: The additional time of each commit; in a `VirtualClockLoop` it takes no real time.

    Example:
        >>> run_virtual(Agent("a", ScriptedModel(["Hello."]), store=slow(MemoryStore(), 60)).call("Hi")).text
        'Hello.'
    """
    return _SlowStore(store, seconds)


class _TwiceStore(StoreWrapper):
    def append(
        self, session_id: str, facts: Sequence[Fact], *, expected: int | None = None, claim: Claim | None = None
    ) -> Awaitable[None] | None:
        commit = self.inner.append(session_id, facts, expected=expected, claim=claim)
        again = self.inner.append(session_id, facts, expected=expected, claim=claim)
        return commit if again is None else self._both(commit, again)

    async def _both(self, commit: Awaitable[None] | None, again: Awaitable[None]) -> None:
        if commit is not None:
            await commit
        await again


def delivered_twice(store: SessionStore) -> SessionStore:
    """Wrap a store so that every write is delivered twice, as if the sender had not received the first answer.

    Example:
        >>> store = MemoryStore()
        >>> await Agent("a", ScriptedModel(["Hello."]), store=delivered_twice(store)).call("Hi", session="s")
        >>> len(store.load("s"))
        3
    """
    return _TwiceStore(store)


# ---- concurrency


class Barrier:
    """Makes writers wait for each other before their first commit, so that they write at the same moment.

    Args:
        parties: The number of writers.

    Example:
        >>> store, barrier = MemoryStore(), Barrier(2)
        >>> agents = [Agent("a", ScriptedModel(["Hello."]), store=barrier.store(store)) for _ in range(2)]
        >>> replies = await concurrently(*[agent.call("Hi", session="s") for agent in agents])
        >>> sorted(type(reply).__name__ for reply in replies)
        ['Reply', 'SessionConflictError']
    """

    def __init__(self, parties: int = 2) -> None:
        self._missing = parties
        self._all_arrived = asyncio.Event()

    def store(self, store: SessionStore) -> SessionStore:
        """Wrap the store for one writer."""
        return _BarrierStore(store, self)

    async def arrive(self) -> None:
        """Wait for the other writers."""
        self._missing -= 1
        if self._missing <= 0:
            self._all_arrived.set()
        await self._all_arrived.wait()


class _BarrierStore(StoreWrapper):
    def __init__(self, store: SessionStore, barrier: Barrier) -> None:
        super().__init__(store)
        self._barrier = barrier
        self._arrived = False

    def append(
        self, session_id: str, facts: Sequence[Fact], *, expected: int | None = None, claim: Claim | None = None
    ) -> Awaitable[None] | None:
        if self._arrived:
            return self.inner.append(session_id, facts, expected=expected, claim=claim)
        self._arrived = True
        return self._first(session_id, facts, expected, claim)

    async def _first(self, session_id: str, facts: Sequence[Fact], expected: int | None, claim: Claim | None) -> None:
        await self._barrier.arrive()
        commit = self.inner.append(session_id, facts, expected=expected, claim=claim)
        if commit is not None:
            await commit


async def concurrently(*works: Awaitable[T]) -> list[T | BaseException]:
    """Run several awaitables concurrently, such as the same call twice; a failure is returned as an exception.

    Example:
        >>> replies = await concurrently(*[agent.call("Hi", session="s") for _ in range(2)])
        >>> [reply.text for reply in replies]
        ['Hi', 'Hi']
    """

    async def wait(work: Awaitable[T]) -> T:  # `gather` itself awaits an object only once if it is passed twice
        return await work

    return await asyncio.gather(*[wait(work) for work in works], return_exceptions=True)


# ---- models and clocks


@asynccontextmanager
async def _closing(chunks: AsyncIterator[ModelChunk]) -> AsyncGenerator[AsyncIterator[ModelChunk], None]:
    try:
        yield chunks
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()


class _CutModel:
    def __init__(self, model: Model, after: int, times: int | None) -> None:
        self.name = model.name
        self._model = model
        self._after = after
        self._remaining = times

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        if self._remaining == 0:
            async for chunk in self._model.stream(request):
                yield chunk
            return
        if self._remaining is not None:
            self._remaining -= 1
        count = 0
        async with _closing(self._model.stream(request)) as chunks:
            while count < self._after:
                chunk = await anext(chunks, None)
                if chunk is None:
                    break
                yield chunk
                count += 1
        raise ModelError(
            f"The connection to {self.name!r} broke after {count} {'chunk' if count == 1 else 'chunks'}.",
            retryable=True,
            model=self.name,
        )


def cut_connection(model: Model, *, after: int = 1, times: int | None = 1) -> Model:
    """Wrap a model so that its connection breaks.

    Args:
        model: The model.
        after: The number of chunks before the connection breaks.
        times: The number of affected calls, starting with the first; None means all.

    Example:
        >>> model = cut_connection(ScriptedModel([["Hel", "lo."]]), after=1)
        >>> await Agent("a", model).call("Hi")
        Traceback (most recent call last):
        agentflow.errors.ModelError: The connection to 'scripted' broke after 1 chunk.
    """
    return _CutModel(model, after, times)


class JumpingClock(SystemClock):
    """A clock that can be set while it runs. This affects `now`, but not `monotonic` and `sleep`.

    Example:
        >>> clock = JumpingClock()
        >>> before = clock.now()
        >>> clock.jump(-3600)
        >>> clock.now() < before
        True
    """

    def __init__(self) -> None:
        self._offset = 0.0

    def jump(self, seconds: float) -> None:
        """Set the clock forward, or back if `seconds` is negative."""
        self._offset += seconds

    def now(self) -> float:
        """Return the seconds since the epoch, including all jumps."""
        return super().now() + self._offset
