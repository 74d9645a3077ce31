"""`ModelCache`: answers a repeated request with the earlier reply."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic_core import to_jsonable_python

from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import ModelSource
from agentflow.plugins._counting import SharedPart
from agentflow.plugins._matching import has_content, matches, strings
from agentflow.plugins.cache.storage import FORMAT, CacheUse, Storage, as_json, content_of
from agentflow.reactive import Flux
from agentflow.reactive.iterators import close
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import own
from agentflow.vocabulary.events import PreReasoning
from agentflow.vocabulary.messages import Msg, ThinkingBlock, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.ports.model import ModelRequest


class ModelCache(Hook):
    """Answers a repeated request with the earlier reply, chunk by chunk, at no cost.

    Two requests are equal if the model, the messages (without ids and metadata), the tools and all options are equal. This is
    useful in tests, evaluations and demos, and for agents that get the same questions often; a sampled reply is repeated
    unchanged. Comparing requests costs 3 µs for each message that was not in the run's last request.

    Priority 120 (behaviour): inside `ModelFallback`, so a reply is kept under the name of its model; outside `ModelRetry` and
    `RateLimit`. The stored chunks include changes by hooks with a higher priority, but not by hooks with a lower
    priority. The hook must see the request in the form in which it is sent, so if it is outside of `Redaction`, the
    first call fails.

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
        self._storage = Storage("ModelCache", tuple[ModelChunk, ...], ttl, size, path)
        self._models = strings("ModelCache(models=...)", models)
        self._vary = vary
        self.priority = priority

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        """Wrap the model call."""
        if source.private:
            raise UsageError(
                f"ModelCache (priority {self.priority}) wraps a model call in which an inner hook (such as Redaction) "
                "inserts text of one session, so its replies must not be kept for others. Give it a higher priority than "
                "that hook: ModelCache(priority=...); agent.hooks.describe() prints the order."
            )
        if not matches(self._models, source.request.model):
            return source
        return Flux(partial(self._run, source, event))

    async def _run(self, source: ModelSource, event: PreReasoning) -> AsyncIterator[ModelChunk]:
        context = event.context
        vary = self._vary(event) if self._vary is not None else None
        key = own(context, self, RequestDigest).of(source.request, vary)
        stored = await self._storage.get(key, context.clock)
        use = context.state[CacheUse]
        if stored is not None:
            use.hits += 1
            for chunk in stored:
                yield chunk
            return
        use.misses += 1
        reply: list[ModelChunk] = []
        chunks = source.open()
        try:
            async for chunk in chunks:
                if chunk.restart:
                    reply.clear()  # the reader discards these chunks too
                reply.append(chunk)
                yield chunk
        finally:
            await close(chunks)
        if _is_complete(reply):
            await self._storage.put(key, _for_replay(reply), context.clock)


def _is_complete(chunks: Sequence[ModelChunk]) -> bool:
    reasons = [chunk.finish_reason for chunk in chunks if chunk.finish_reason is not None]
    return any(has_content(chunk) for chunk in chunks) and reasons[-1:] != ["length"]


def _for_replay(chunks: Sequence[ModelChunk]) -> tuple[ModelChunk, ...]:
    """Return the chunks without restarts, and without usage, since a hit costs nothing."""
    plain = [replace(chunk, usage=None, restart=False) for chunk in chunks]
    return tuple([chunk for chunk in plain if chunk != ModelChunk()])


class RequestDigest:
    """Computes the keys of a run's requests; the part shared with the last request is not processed again."""

    def __init__(self) -> None:
        self._shared = SharedPart()
        self._begin()

    def _begin(self) -> None:
        self._hash = hashlib.sha256(FORMAT.encode())
        # Ids of calls differ between runs; the key uses the position of the call that a result answers.
        self._places: dict[str, int] = {}

    def of(self, request: ModelRequest, vary: object) -> str:
        """Return the key of a request."""
        extends, new, rest = self._shared.split(request.messages)
        if not extends:
            self._begin()
        for msg in new:
            self._hash.update(_line(_message(msg, self._places)))
        key = self._hash.copy()  # the next request continues the hash without `rest`
        calls = any(msg.tool_uses or msg.tool_results for msg in rest)
        places = dict(self._places) if calls else self._places  # `rest` belongs to this request only
        for msg in rest:
            key.update(_line(_message(msg, places)))
        tools = [content_of(spec) for spec in request.tools]
        options = to_jsonable_python(request.options, fallback=str)
        key.update(_line(("model", request.model, tools, options, vary)))
        return key.hexdigest()


def _line(value: object) -> bytes:
    return f"{as_json(value)}\n".encode("utf-8", "surrogatepass")  # models can write lone surrogates


def _message(msg: Msg, places: dict[str, int]) -> tuple[object, ...]:
    blocks: list[object] = []
    for block in msg.content:
        if isinstance(block, ToolUseBlock):
            position = places.setdefault(block.id, len(places))
            arguments = block.raw if block.input_error else to_jsonable_python(block.input, fallback=str)
            blocks.append(("call", position, block.name, arguments))
        elif isinstance(block, ToolResultBlock):
            position = places.setdefault(block.tool_use_id, len(places))
            blocks.append(("result", position, block.name, to_jsonable_python(block.content), block.state))
        elif isinstance(block, ThinkingBlock):
            blocks.append(("thinking", block.text))
        else:
            blocks.append(to_jsonable_python(block))
    return msg.role, msg.name, blocks
