"""`ToolCache`: answers a tool call with the result of an earlier equal call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from agentflow.errors import ToolError
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import ToolSource
from agentflow.plugins._calls import Repeats, canonical
from agentflow.plugins._matching import matches, spec_of, strings
from agentflow.plugins.cache.storage import CacheUse, Storage, as_json, content_of, digest
from agentflow.reactive import Mono
from agentflow.vocabulary.events import HookEvent, PreActing
from agentflow.vocabulary.messages import ToolResultBlock
from agentflow.vocabulary.specs import Clock, ToolSpec

T = TypeVar("T")


_in_progress: ContextVar[tuple[tuple[object, str], ...]] = ContextVar("agentflow_cached_work", default=())
"""The work that the current code is part of; waiting for it would deadlock."""
_Work: TypeAlias = tuple[asyncio.AbstractEventLoop, str]
"""The event loop, and the key of the call."""


class _SharedWork:
    """Work in progress, so that equal work waits for it."""

    def __init__(self) -> None:
        self._running: dict[_Work, asyncio.Future[Any] | None] = {}
        """The result for waiting calls; None if no call waits."""

    def result_of_other(self, work: _Work) -> Awaitable[Any] | None:
        """Return a future of equal work in progress, or None if there is none, or if the current code is part of that work.

        The future's value is None if the work failed or was cancelled.
        """
        if work not in self._running or work in _in_progress.get():
            return None
        result = self._running[work]
        if result is None:
            result = self._running[work] = work[0].create_future()
        return asyncio.shield(result)  # a cancelled call should not cancel the future for others

    async def run(self, work: _Work, run: Awaitable[T]) -> T:
        """Do the work, and pass the value to those waiting for it."""
        outer = _in_progress.get()
        if work in outer:  # the tool has called itself with the same arguments
            return await run
        self._running[work] = None
        value: T | None = None
        token = _in_progress.set((*outer, work))
        try:
            value = await run
            return value
        finally:
            _in_progress.reset(token)
            result = self._running.pop(work)
            if result is not None:
                result.set_result(value)


class ToolCache(Hook):
    """Answers a tool call with the result of an earlier call with the same arguments.

    Two calls are equal if the tool's name, description and parameters are equal, and the arguments are equal in any
    order. If the result depends on anything else, such as the user, `vary` should return it: all agents with the hook
    share the cache. The chunks of a streaming tool are not replayed; if such a tool runs as a turn (`turn.yielding()`, a
    queue), it is not cached, because the caller of the turn reads all its values.

    Priority 120 (behaviour): a hit needs no retry and no rate limit.

    Args:
        ttl: Seconds for which a result is valid; None: no limit.
        size: The maximum number of results; the least recently used are removed first.
        path: A file for the results; None: memory.
        tools: Patterns of tool names. None: the read-only tools (`type="read"` or `"research"`). A tool that writes is cached
            only if a pattern names it.
        vary: Returns further data that the result depends on, as JSON-like data.
        single_flight: If true, equal calls at the same time share one run.
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

    events = (PreActing,)

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
        self._storage = Storage("ToolCache", ToolResultBlock, ttl, size, path)
        self._tools = tools if tools is None else strings("ToolCache(tools=...)", tools)
        self._vary = vary
        self._shared = _SharedWork() if single_flight else None
        self._specs: dict[str, tuple[ToolSpec | None, str]] = {}
        self.priority = priority

    def on_event(self, event: HookEvent) -> HookEvent:
        """Register the cache, so that hooks that ask a person can skip calls that will not run."""
        if isinstance(event, PreActing):
            event.context.state[Repeats].cache = self
        return event

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        """Wrap the tool."""
        spec = spec_of(event)
        return Mono(partial(self._run, source, event, spec)) if self._covers(event, spec) else source

    @property
    def shares(self) -> bool:
        """Whether equal calls at the same time share one run."""
        return self._shared is not None

    def key_of_call(self, event: PreActing) -> str:
        """Return a key that equal calls share; empty if the call is not cached."""
        spec = spec_of(event)
        return self._key(event, spec) if self._covers(event, spec) else ""

    async def find(self, key: str, event: PreActing) -> ToolResultBlock | None:
        """Return the cached result."""
        return await self._storage.get(key, event.context.clock)

    def _covers(self, event: PreActing, spec: ToolSpec | None) -> bool:
        # The result of a streaming tool in a turn that no model requested (iteration 0) is only the last of its values.
        streams = event.iteration == 0 and spec is not None and spec.streaming
        if event.tool_use.input_error is not None or streams:
            return False
        if self._tools is None:
            return spec is not None and not spec.writes
        return matches(self._tools, event.tool_use.name)

    def _key(self, event: PreActing, spec: ToolSpec | None) -> str:
        use = event.tool_use
        known = self._specs.get(use.name)
        if known is None or known[0] is not spec:  # agents that share the cache can have different tools of one name
            known = self._specs[use.name] = spec, digest("tool", use.name, None if spec is None else content_of(spec))
        vary = "" if self._vary is None else as_json(self._vary(event))
        return self._storage.key_of(f"{known[1]}{canonical(use)}\n{vary}")

    async def _run(self, source: ToolSource, event: PreActing, spec: ToolSpec | None) -> Any:
        repeats = event.context.state[Repeats]
        try:
            return await self._answer(source, event, self._key(event, spec), repeats)
        finally:
            repeats.done.add(event.tool_use.id)

    async def _answer(self, source: ToolSource, event: PreActing, key: str, repeats: Repeats) -> Any:
        context, use_id = event.context, event.tool_use.id
        clock, use = context.clock, context.state[CacheUse]
        found_key, result = repeats.cached.pop(use_id, ("", None))
        while True:
            # A result that was found instead of asking a person is used even if it has expired: the tool may not run.
            if found_key != key:
                result = await self._storage.get(key, clock)
            if result is not None:
                use.hits += 1
                return result
            if self._shared is None:
                use.misses += 1
                return await self._work(source, key, clock, repeats)
            work = asyncio.get_running_loop(), key
            other = self._shared.result_of_other(work)
            if other is None:
                # One approval allows one run of the tool. That run has ended without a result in the cache.
                if repeats.follows.get(use_id) in repeats.done:
                    raise ToolError(
                        "An equal call, which was approved together with this one, failed or was cancelled, so this one did "
                        "not run. Call again."
                    )
                use.misses += 1
                return await self._shared.run(work, self._work(source, key, clock, repeats))
            value = await other
            if isinstance(value, ToolResultBlock) and not value.is_error:
                use.hits += 1
                use.shared += 1
                return value
            # The other call failed or was cancelled: try again, usually by running the tool.

    async def _work(self, source: ToolSource, key: str, clock: Clock, repeats: Repeats) -> Any:
        result = await source.resolve()
        if isinstance(result, ToolResultBlock) and not result.is_error:
            await self._storage.put(key, result, clock)
            repeats.ran.add(key)
        return result
