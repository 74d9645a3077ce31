"""Retry hooks: `ModelRetry` for model calls, `ToolRetry` for tools.

The `RetryPolicy` (`agentflow.ports.retry`) decides on retries and their waits.

Rules:

1. Waits use the run's clock, and cancelling the call ends them at once.
2. The hooks have no state: one instance serves any number of agents and calls.
3. If another attempt is refused (`Veto`, of a limit for example), the earlier failure is raised instead of the refusal.

Retries can happen on two levels, and their attempts multiply. A model adapter makes `retries + 1` attempts itself (three by
default) before its error arrives here, so `ModelRetry(attempts=3)` around it makes up to nine requests. If this hook should
decide, create the model with `LiteLLMModel(name, retries=0)`. The same applies to `@tool(retries=...)` and `ToolRetry`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

from reactivex import Observable

from agentflow.errors import Aside, Veto
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import ModelSource
from agentflow.plugins._matching import names, says_something, writes
from agentflow.ports.retry import RetryAttempts, RetryPolicy, model_may_recover, tool_may_recover
from agentflow.reactive import Flux, Mono
from agentflow.reactive.iterators import close
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import ActingChunk, Event, HookEvent, PreActing, PreReasoning
from agentflow.vocabulary.messages import ToolResultBlock

__all__ = [
    "AfterFirstChunk",
    "ModelRetry",
    "Retries",
    "RetryRecord",
    "ToolRetry",
    "model_may_recover",
    "tool_may_recover",
]

AfterFirstChunk = Literal["restart", "raise"]
"""The reaction to a failure after a part of the reply was delivered: `"restart"` it, or `"raise"` the error."""


@dataclass(frozen=True, slots=True)
class RetryRecord:
    """A failure that was followed by another attempt.

    Attributes:
        what: The model's or tool's name.
        attempt: The attempt that failed, from 1.
        error: Type and text of the error.
        waited: Seconds between that attempt and the next.
    """

    what: str
    attempt: int
    error: str
    waited: float


@dataclass(slots=True)
class Retries:
    """The retries of a run: `event.context.state[Retries].made`."""

    made: list[RetryRecord] = field(default_factory=list[RetryRecord])


@dataclass(slots=True)
class _Streamed:
    """The tool uses of a run with delivered chunks."""

    uses: set[str] = field(default_factory=set[str])


def _noting(context: RunContext, what: str) -> Callable[[int, BaseException, float], None]:
    def note(attempt: int, error: BaseException, waited: float) -> None:
        entry = RetryRecord(what, attempt, f"{type(error).__name__}: {error}", waited)
        context.state[Retries].made.append(entry)

    return note


def _raise_first(failed: Exception | None, error: Exception) -> None:
    """If another attempt was refused, raise the earlier failure with a note on the refusal.

    Raises:
        Exception: The earlier failure.
    """
    if failed is not None and isinstance(error, Veto):
        failed.add_note(Aside(f"There was no retry: {error.reason}"))
        raise failed from failed.__cause__


class ModelRetry(Hook):
    """Retries a model call that failed temporarily.

    Priority 130 (behaviour): inside `ModelFallback` and `ModelCache`, outside `RateLimit`, so the rate limit applies to each
    attempt. A hook with a higher priority wraps each attempt, one with a lower priority all of them.

    Args:
        attempts: The number of attempts, including the first one.
        after_first_chunk: If a part of the reply was delivered already: `"restart"` it (the next chunk has `restart=True`), or
            `"raise"` the error.
        first_wait: The approximate first wait, in seconds; each further wait is twice as long.
        max_wait: The longest wait, in seconds. If the provider asks for more, the error is raised at once.
        jitter: Up to this many seconds are added to a wait, so that many callers do not retry together.
        retry_if: Decides which errors to retry; None: `model_may_recover`.
        priority: The priority of the hook.

    Example:
        >>> model = ScriptedModel([ModelError("overloaded", retryable=True, retry_after=0), "Here I am."])
        >>> reply = await Agent("a", model, hooks=[ModelRetry(attempts=3)]).call("Hi")
        >>> reply.text
        'Here I am.'
    """

    events: ClassVar[tuple[type[Event], ...] | None] = (PreReasoning,)
    wraps: ClassVar[tuple[type[Event], ...] | None] = (PreReasoning,)

    def __init__(
        self,
        attempts: int = 3,
        *,
        after_first_chunk: AfterFirstChunk = "restart",
        first_wait: float = 0.5,
        max_wait: float = 60.0,
        jitter: float = 0.5,
        retry_if: Callable[[Exception], bool] | None = None,
        priority: int = 130,
    ) -> None:
        self._policy = RetryPolicy(
            who=self.name,
            attempts=attempts,
            first_wait=first_wait,
            max_wait=max_wait,
            jitter=jitter,
            should_retry=retry_if or model_may_recover,
        )
        self._after = after_first_chunk
        self.priority = priority

    def around(self, event: HookEvent, source: Any) -> Observable[Any]:
        """Wrap the model call."""
        if not isinstance(event, PreReasoning):
            return source
        return Flux(partial(self._run, source, event.context))

    async def _run(self, source: ModelSource, context: RunContext) -> AsyncIterator[ModelChunk]:
        delivered = void = False
        attempts: RetryAttempts | None = None
        failed: Exception | None = None
        try:
            while True:
                chunks = source.open()
                try:
                    try:
                        async for chunk in chunks:
                            if void:
                                void = False
                                chunk = replace(chunk, restart=True)
                            delivered = delivered or says_something(chunk)
                            yield chunk
                        return
                    finally:
                        await close(chunks)
                except Exception as error:
                    _raise_first(failed, error)
                    attempts = attempts or self._policy.start(
                        context.clock.sleep, _noting(context, source.request.model)
                    )
                    if (delivered and self._after == "raise") or not await attempts.another(error):
                        raise
                    void, failed = delivered, error
        finally:
            failed = None  # its traceback holds this frame


class ToolRetry(Hook):
    """Retries a tool that failed temporarily.

    Priority 130 (behaviour). Tools that write are not retried unless `writes=True`: a failure does not show whether they took
    effect. A tool with delivered chunks is not retried either.

    Args:
        attempts: The number of attempts, including the first one.
        tools: Patterns of tool names.
        writes: If true, tools that write (and unknown tools) are retried too; they can pass `ToolContext.idempotency_key`,
            which stays the same, to the service they call.
        first_wait: The approximate first wait, in seconds; each further wait is twice as long.
        max_wait: The longest wait, in seconds.
        jitter: Up to this many seconds are added to a wait.
        retry_if: Decides which errors to retry; None: `tool_may_recover`.
        priority: The priority of the hook.

    Example:
        >>> tries = []
        >>> @tool(type="read")
        ... async def fetch() -> str:
        ...     tries.append(1)
        ...     if len(tries) == 1:
        ...         raise ConnectionError("reset")
        ...     return "the page"
        >>> model = ScriptedModel([ToolUseBlock("t1", "fetch"), "Read."])
        >>> agent = Agent("a", model, tools=[fetch], hooks=[ToolRetry(first_wait=0, jitter=0)])
        >>> reply = await agent.call("Read it")
        >>> agent.session().messages[2].text
        'the page'
    """

    events: ClassVar[tuple[type[Event], ...] | None] = (ActingChunk,)
    wraps: ClassVar[tuple[type[Event], ...] | None] = (PreActing,)

    def __init__(
        self,
        attempts: int = 3,
        *,
        tools: tuple[str, ...] = ("*",),
        writes: bool = False,
        first_wait: float = 0.5,
        max_wait: float = 60.0,
        jitter: float = 0.5,
        retry_if: Callable[[Exception], bool] | None = None,
        priority: int = 130,
    ) -> None:
        self._policy = RetryPolicy(
            who=self.name,
            attempts=attempts,
            first_wait=first_wait,
            max_wait=max_wait,
            jitter=jitter,
            should_retry=retry_if or tool_may_recover,
        )
        self._tools = tuple(tools)
        self._writes = writes
        self.priority = priority

    def on_event(self, event: HookEvent) -> HookEvent:
        """Remember the tool uses with delivered chunks."""
        if isinstance(event, ActingChunk):
            event.context.state[_Streamed].uses.add(event.tool_use.id)
        return event

    def around(self, event: HookEvent, source: Any) -> Observable[Any]:
        """Wrap the tool."""
        if not isinstance(event, PreActing) or not self._covers(event):
            return source
        return Mono(partial(self._run, source, event))

    def _covers(self, event: PreActing) -> bool:
        if not names(self._tools, event.tool_use.name):
            return False
        return self._writes or not writes(event)

    async def _run(self, source: Mono[ToolResultBlock], event: PreActing) -> Any:
        attempts: RetryAttempts | None = None
        failed: Exception | None = None
        try:
            while True:
                try:
                    return await source.resolve()
                except Exception as error:
                    _raise_first(failed, error)
                    use, context = event.tool_use, event.context
                    attempts = attempts or self._policy.start(context.clock.sleep, _noting(context, use.name))
                    if use.id in context.state[_Streamed].uses or not await attempts.another(error):
                        raise
                    failed = error
        finally:
            failed = None  # its traceback holds this frame
