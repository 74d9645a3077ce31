"""Hooks that try again: `ModelRetry` a model call, `ToolRetry` a tool.

Rules:

1. Only what may pass is tried again. Cancellation, `Veto`, `UsageError` and what hooks do wrong never are.
2. A wait that a provider asked for (`retry_after`) is kept exactly; one beyond `max_wait` is not waited for.
3. Waiting is done on the run's clock, and cancelling the call ends it at once.
4. Nothing is kept on the hook: one instance serves any number of agents and calls.

Tenacity counts and times the attempts.

Two layers can try again, and their attempts multiply. `LiteLLMModel` asks `retries + 1` times by itself (three times by
default) before its error comes here, so `ModelRetry(attempts=3)` around it makes up to nine requests. Where this hook is
to decide, build the model with `LiteLLMModel(name, retries=0)`. Likewise `@tool(retries=...)` and `ToolRetry`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from reactivex import Observable
from tenacity import (
    AsyncRetrying,
    AttemptManager,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from agentflow.chunks import ModelChunk
from agentflow.context import RunContext
from agentflow.errors import (
    AgentFlowError,
    HookError,
    ModelError,
    SafeExecutionError,
    ToolArgumentError,
    ToolError,
    ToolNotFoundError,
    UsageError,
    Veto,
    WrongRunMethodError,
)
from agentflow.events import ActingChunk, Event, HookEvent, PreActing, PreReasoning
from agentflow.hooks.hook import Hook
from agentflow.messages import ToolResultBlock
from agentflow.plugins.sources import ModelSource, ToolSource, lane_of, names, says_something
from agentflow.ports.model import ModelRequest
from agentflow.reactive import Flux, Mono
from agentflow.reactive.iterators import close
from agentflow.reactive.signals import SourceTimeoutError

__all__ = ["AfterFirstChunk", "ModelRetry", "Retried", "Retries", "ToolRetry", "model_may_recover", "tool_may_recover"]

AfterFirstChunk = Literal["restart", "raise"]
"""What a failure does when the reader has seen a part of the reply: `"restart"` it, or `"raise"` the error."""


@dataclass(frozen=True, slots=True)
class Retried:
    """One failure that was answered with another attempt.

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
    """What was tried again in a run: `event.context.state[Retries].made`."""

    made: list[Retried] = field(default_factory=list[Retried])


@dataclass(slots=True)
class _Shown:
    """The tool uses of a run of which somebody has seen a piece."""

    uses: set[str] = field(default_factory=set[str])


@dataclass(frozen=True, slots=True)
class _Patience:
    """How often, and with what waits."""

    attempts: int
    first_wait: float
    max_wait: float
    jitter: float
    worth_it: Callable[[Exception], bool]

    def check(self, hook: str) -> None:
        if self.attempts < 1 or min(self.first_wait, self.max_wait, self.jitter) < 0:
            raise UsageError(
                f"{hook} was built with attempts={self.attempts}, first_wait={self.first_wait:g}, max_wait={self.max_wait:g} "
                f"and jitter={self.jitter:g}. Legal are attempts of 1 or more (1 never tries again) and waits of 0 or more."
            )

    def allows(self, error: BaseException) -> bool:
        """Whether another attempt may help, and may be waited for."""
        if not isinstance(error, Exception) or isinstance(error, UsageError | Veto | HookError):
            return False
        asked = _retry_after(error)
        return (asked is None or asked <= self.max_wait) and self.worth_it(error)


class _Rounds:
    """The attempts of one piece of work, from its first failure on: work that goes well pays nothing for tenacity."""

    __slots__ = ("_attempt", "_context", "_hook", "_patience", "_retrying", "_what")

    def __init__(self, patience: _Patience, hook: str, what: str, context: RunContext) -> None:
        self._patience = patience
        self._hook = hook
        self._what = what
        self._context = context
        self._retrying: AsyncRetrying | None = None
        self._attempt: AttemptManager | None = None

    async def again(self, error: Exception) -> None:
        """Wait until it is time for another attempt; if there is to be none, the error is raised."""
        patience = self._patience
        if self._retrying is None or self._attempt is None:
            if not patience.allows(error):
                raise error
            self._retrying = aiter(self._tenacity())
            self._attempt = await anext(self._retrying)
        state = self._attempt.retry_state
        if state.attempt_number == patience.attempts > 1 and patience.allows(error):
            error.add_note(f"{self._hook} gave up: {patience.attempts} attempts failed")
        # Not `with attempt`: it would swallow the GeneratorExit and the cancellation of a stream that is read in it.
        state.set_exception((type(error), error, error.__traceback__))
        self._attempt = await anext(self._retrying)

    def _tenacity(self) -> AsyncRetrying:
        patience = self._patience
        backoff = wait_exponential(multiplier=patience.first_wait, max=patience.max_wait) + wait_random(
            0, patience.jitter
        )

        def wait(state: RetryCallState) -> float:
            asked = _retry_after(_error_of(state))
            return asked if asked is not None else min(backoff(state), patience.max_wait)

        def note(state: RetryCallState) -> None:
            error = _error_of(state)
            waited = state.next_action.sleep if state.next_action is not None else 0.0
            entry = Retried(self._what, state.attempt_number, f"{type(error).__name__}: {error}", waited)
            self._context.state[Retries].made.append(entry)

        return AsyncRetrying(
            stop=stop_after_attempt(patience.attempts),
            wait=wait,
            retry=retry_if_exception(patience.allows),
            sleep=self._context.clock.sleep,
            before_sleep=note,
            reraise=True,
        )


def _error_of(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome is not None else None


def _retry_after(error: BaseException | None) -> float | None:
    return error.retry_after if isinstance(error, ModelError) else None


def model_may_recover(error: Exception) -> bool:
    """Whether a model call is tried again by default.

    A `ModelError` says so itself (`retryable`). Of what other models raise, and time limits that hooks set, only
    broken connections and passed limits are.

    Example:
        >>> model_may_recover(ModelError("overloaded", retryable=True)), model_may_recover(ValueError())
        (True, False)
    """
    if isinstance(error, ModelError):
        return error.retryable
    if isinstance(error, AgentFlowError):
        return isinstance(error, SourceTimeoutError)
    return isinstance(error, ConnectionError | TimeoutError)


_SETTLED = (
    ToolArgumentError,
    ToolNotFoundError,
    SafeExecutionError,
    WrongRunMethodError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    NameError,
    ArithmeticError,
    AssertionError,
    NotImplementedError,
    FileNotFoundError,
    FileExistsError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)
"""Errors that the same arguments bring again: wrong arguments, facts about files, faults of the tool's code."""


def tool_may_recover(error: Exception) -> bool:
    """Whether a tool is tried again by default: unless the same arguments are bound to fail in the same way.

    Example:
        >>> tool_may_recover(ConnectionError()), tool_may_recover(FileNotFoundError())
        (True, False)
    """
    if isinstance(error, ModelError):
        return error.retryable
    if isinstance(error, AgentFlowError):
        return isinstance(error, ToolError | SourceTimeoutError) and not isinstance(error, _SETTLED)
    return not isinstance(error, _SETTLED)


class ModelRetry(Hook):
    """A model call that fails in a way that may pass is made again.

    Priority 130 (behaviour): inside `ModelFallback` and `ModelCache`, outside `RateLimit`, so each attempt asks the rate
    limit. A hook of higher priority wraps each attempt, one of lower priority all of them.

    Args:
        attempts: Attempts altogether, the first one included.
        after_first_chunk: When a part of the reply was seen already: `"restart"` it (the next chunk says `restart=True`), or
            `"raise"` the error.
        first_wait: About the first wait, in seconds; it doubles from there.
        max_wait: Longest wait, in seconds. If the provider asks for more, the error is raised at once.
        jitter: Up to this many seconds are added to a wait, so that many callers do not come back together.
        retry_if: Which errors to try again; None: `model_may_recover`.
        priority: Where it wraps.

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
        self._patience = _Patience(attempts, first_wait, max_wait, jitter, retry_if or model_may_recover)
        self._patience.check("ModelRetry")
        self._after = after_first_chunk
        self.priority = priority

    def around(self, event: HookEvent, source: Observable[Any]) -> Observable[Any]:
        """Wrap the model call."""
        if not isinstance(event, PreReasoning):
            return source
        return ModelSource(event, source, lambda inner, request: self._run(inner, request, event.context))

    async def _run(
        self, source: Flux[ModelChunk], request: ModelRequest, context: RunContext
    ) -> AsyncIterator[ModelChunk]:
        delivered = void = False
        rounds = _Rounds(self._patience, self.name, request.model, context)
        while True:
            chunks = source.open()
            try:
                async for chunk in chunks:
                    if void:
                        void = False
                        chunk = replace(chunk, restart=True)
                    delivered = delivered or says_something(chunk)
                    yield chunk
                return
            except Exception as error:
                if delivered and self._after == "raise":
                    raise
                failure = error
            finally:
                await close(chunks)
            void = delivered
            try:
                await rounds.again(failure)
            finally:
                del failure  # its traceback holds this frame


class ToolRetry(Hook):
    """A tool that fails in a way that may pass is run again.

    Priority 130 (behaviour). Tools that write are left alone unless `writes=True`: a failure does not tell whether they
    took effect. A tool whose pieces somebody has seen is not run again either.

    Args:
        attempts: Attempts altogether, the first one included.
        tools: Patterns of tool names.
        writes: Whether tools that write (and tools nobody knows) are run again too; they can hand
            `ToolContext.idempotency_key`, which stays the same, to the service they call.
        first_wait: About the first wait, in seconds; it doubles from there.
        max_wait: Longest wait, in seconds.
        jitter: Up to this many seconds are added to a wait.
        retry_if: Which errors to try again; None: `tool_may_recover`.
        priority: Where it wraps.

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
        self._patience = _Patience(attempts, first_wait, max_wait, jitter, retry_if or tool_may_recover)
        self._patience.check("ToolRetry")
        self._tools = tuple(tools)
        self._writes = writes
        self.priority = priority

    def on_event(self, event: HookEvent) -> HookEvent:
        """Note whose pieces were shown."""
        if isinstance(event, ActingChunk):
            event.context.state[_Shown].uses.add(event.tool_use.id)
        return event

    def around(self, event: HookEvent, source: Observable[Any]) -> Observable[Any]:
        """Wrap the tool."""
        if not isinstance(event, PreActing) or not self._covers(event):
            return source
        return ToolSource(source, lambda inner: self._run(inner, event))

    def _covers(self, event: PreActing) -> bool:
        name = event.tool_use.name
        if not names(self._tools, name):
            return False
        return self._writes or lane_of(event) != "write"

    async def _run(self, source: Mono[ToolResultBlock], event: PreActing) -> Any:
        use, context = event.tool_use, event.context
        rounds = _Rounds(self._patience, self.name, use.name, context)
        while True:
            try:
                return await source.resolve()
            except Exception as error:
                if use.id in context.state[_Shown].uses:
                    raise
                failure = error
            try:
                await rounds.again(failure)
            finally:
                del failure  # its traceback holds this frame
