"""Retry hooks: `ModelRetry` for model calls, `ToolRetry` for tools.

The `RetryPolicy` (`agentflow.vocabulary.ports.retry`) decides on retries and their waits.

Rules:

1. Waits use the run's clock, and cancelling the call ends them at once.
2. The hooks have no state: one instance serves any number of agents and calls.
3. If another attempt is refused (`Veto`, for example by a limit), the earlier failure is raised instead of the refusal.

Retries can happen on two levels, and their attempts multiply. A model adapter makes `retries + 1` attempts itself (three by
default) before its error reaches this hook, so `ModelRetry(attempts=3)` around it makes up to nine requests. To leave all
retries to this hook, create the model with `LiteLLMModel(name, retries=0)`. The same applies to `@tool(retries=...)`
and `ToolRetry`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from agentflow.errors import FailureNote, Veto
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import ModelSource, ToolSource
from agentflow.plugins._attempts import Attempt, RetriedChunks
from agentflow.plugins._matching import may_write, strings
from agentflow.reactive import Flux, Mono
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import ActingChunk, HookEvent, PreActing, PreReasoning
from agentflow.vocabulary.messages import ToolResultBlock
from agentflow.vocabulary.ports.retry import RetryAttempts, RetryPolicy, model_may_recover, tool_may_recover

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
"""The reaction to a failure after part of the reply was delivered: `"restart"` the reply, or `"raise"` the error."""


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
    """The tool uses of a run that have delivered chunks."""

    uses: set[str] = field(default_factory=set[str])


class _Retrying:
    """The retries of one reply or one tool call.

    Args:
        policy: Decides on the retries.
        context: The context of the run.
        what: The model's or tool's name.
    """

    __slots__ = ("_attempts", "_context", "_failure", "_policy", "_what")

    def __init__(self, policy: RetryPolicy, context: RunContext, what: str) -> None:
        self._policy = policy
        self._context = context
        self._what = what
        self._attempts: RetryAttempts | None = None
        self._failure: Exception | None = None

    async def another(self, error: Exception) -> bool:
        """Wait for another attempt; False if there will be none, and the error should be raised.

        Raises:
            Exception: The earlier failure, with a note on the refusal, if the attempt was refused.
        """
        failure, self._failure = self._failure, None
        if failure is not None and isinstance(error, Veto):
            failure.add_note(FailureNote(f"There was no retry: {error.reason}"))
            raise failure from failure.__cause__  # otherwise the refusal would replace the failure's own cause
        if self._attempts is None:
            self._attempts = self._policy.start(self._context.clock.sleep, self._note)
        if not await self._attempts.another(error):
            return False
        self._failure = error
        return True

    def _note(self, attempt: int, error: BaseException, waited: float) -> None:
        entry = RetryRecord(self._what, attempt, f"{type(error).__name__}: {error}", waited)
        self._context.state[Retries].made.append(entry)


class ModelRetry(Hook):
    """Retries a model call that failed temporarily.

    Priority 130 (behaviour): inside `ModelFallback` and `ModelCache`, outside `RateLimit`, so the rate limit applies to each
    attempt. A hook with a higher priority wraps each attempt, a hook with a lower priority all attempts together.

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

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        """Wrap the model call."""
        return RetriedChunks(partial(self._first, source, event.context))

    def _first(self, source: ModelSource, context: RunContext) -> Attempt:
        retrying: _Retrying | None = None

        async def after_failure(error: Exception, delivered: bool) -> ModelSource | None:
            nonlocal retrying
            if delivered and self._after == "raise":
                return None
            retrying = retrying or _Retrying(self._policy, context, source.request.model)
            return source if await retrying.another(error) else None

        return Attempt(source, after_failure)


class ToolRetry(Hook):
    """Retries a tool that failed temporarily.

    Priority 130 (behaviour). Tools that write are not retried unless `writes=True`: a failure does not show whether they took
    effect. A tool that has delivered chunks is not retried either.

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

    events = (ActingChunk,)

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
        patterns = strings("ToolRetry(tools=...)", tools)
        self.only_tools = () if patterns == ("*",) else patterns
        self._retries = bool(patterns)  # an empty `only_tools` means every tool
        self._writes = writes
        self.priority = priority

    def on_event(self, event: HookEvent) -> HookEvent:
        """Record the tool uses that have delivered chunks."""
        if isinstance(event, ActingChunk):
            event.context.state[_Streamed].uses.add(event.tool_use.id)
        return event

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        """Wrap the tool."""
        covers = self._retries and (self._writes or not may_write(event))
        return Mono(partial(self._run, source, event)) if covers else source

    async def _run(self, source: ToolSource, event: PreActing) -> Any:
        use, context = event.tool_use, event.context
        retrying: _Retrying | None = None
        try:
            while True:
                try:
                    return await source.resolve()
                except Exception as error:
                    if use.id in context.state[_Streamed].uses:
                        raise
                    retrying = retrying or _Retrying(self._policy, context, use.name)
                    if not await retrying.another(error):
                        raise
        finally:
            del retrying  # breaks a reference cycle: the traceback of the last failure refers to this frame
