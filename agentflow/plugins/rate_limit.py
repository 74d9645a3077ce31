"""`RateLimit`: a limit on model calls, tokens or tool calls per period, for all agents that share the hook.

Rules:

1. First come, first served: each caller books a slot immediately, and sleeps until the slot is due, by its run's clock.
2. A cancelled wait frees its slot for later callers; those already waiting keep theirs.
3. Tokens are booked by an estimate and corrected by the provider's report, in both directions.
4. One hook is one budget, for any number of agents, event loops and threads of one process; other processes have their own. The
   clocks of the agents that share it must agree (`monotonic`), as system clocks do.

The arithmetic is pyrate-limiter's: its GCRA (a token bucket stored as one number) is a pure function of state, time and amount.
So it needs no event loop, follows a virtual clock exactly, and can book ahead and cancel. The alternatives cannot: aiolimiter
belongs to one event loop and its clock, `limits` reads the system's time and keeps one entry for each token, and
neither can correct a booking afterwards.
"""

from __future__ import annotations

import math
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentflow._support.undo import UndoOnFailure
from agentflow.errors import ModelError, ToolError, UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import ModelSource, checks_its_end
from agentflow.plugins._counting import RequestSize
from agentflow.plugins._matching import matches, strings
from agentflow.reactive import Flux, Mono
from agentflow.reactive.iterators import close
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import RunContext, own
from agentflow.vocabulary.events import HookEvent, PreActing, PreReasoning
from agentflow.vocabulary.messages import ToolResultBlock
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.ports.waits import Wait, waiting

try:
    from pyrate_limiter import GCRA, Rate
except ImportError as error:
    raise ImportError('RateLimit needs pyrate-limiter: pip install "agentflow-hooks[rate-limit]"') from error

__all__ = ["RateLimit", "RateLimitWaits", "estimated_tokens"]

_GCRA = GCRA()


@dataclass(slots=True)
class RateLimitWaits:
    """A run's waits for rate limits: `event.context.state[RateLimitWaits]`.

    Attributes:
        count: The number of waits.
        seconds: Their total length.
    """

    count: int = 0
    seconds: float = 0.0


def estimated_tokens(request: ModelRequest) -> int:
    """Estimate the tokens of a request's messages: one token for every four characters.

    Example:
        >>> from agentflow.vocabulary.ports.model import ModelRequest
        >>> estimated_tokens(ModelRequest([Msg.user("x" * 40)], (), ModelOptions(), "m"))
        10
    """
    return RequestSize().tokens(request.messages)


class _Bucket:
    """A budget that refills evenly; not thread-safe."""

    def __init__(self, limit: int, per: float, burst: int | None) -> None:
        self._rates = [Rate(limit, max(1, round(per * 1000)), burst)]
        self._burst = self._rates[0].burst
        self._state = _GCRA.initial(self._rates)

    def book(self, now: float, amount: int) -> float:
        """Book an amount, ahead of time if necessary; a negative amount is a refund. Return the seconds until it is due.

        An amount above the bucket's size is booked in parts, so that it is delayed instead of refused.
        """
        begin = due = math.ceil(now * 1000)  # GCRA counts whole milliseconds; rounded up, so that no call starts early
        while amount:
            part = max(-self._burst, min(self._burst, amount))
            state, decision = _GCRA.step(self._rates, self._state, due, part)
            if decision.allowed:
                self._state = state
                amount -= part
            else:
                due += max(1, decision.retry_after_ms or 0)  # at least 1, so that the loop ends
        return due / 1000 - now if due > begin else 0.0


class RateLimit(Hook):
    """Makes model calls (with `tools=`: calls of these tools) wait until the budget allows them.

    A bucket is full at first and refills evenly: with `calls=60, per=60`, sixty calls go out at once and then one a second.
    `burst=1` spaces them evenly from the start. Providers use such buckets too.

    Priority 140 (behaviour): inside `ModelCache` (a hit costs nothing) and `ModelRetry` (each attempt counts), outside
    hooks with a higher priority, whose time limits therefore do not include the wait. `PostReasoning.duration_ms` includes the
    wait; `RateLimitWaits` has its length.

    Args:
        calls: Calls per period.
        tokens: Tokens per period, input and output; for model calls only.
        per: The period, in seconds.
        burst: The maximum number of calls at once; None: `calls`.
        tools: Patterns of tool names: if set, the budget applies to these tools, not to model calls.
        models: Patterns of the model names that the budget applies to.
        max_wait: The longest wait, in seconds. If a call had to wait longer, an error is raised at once: a retryable
            `ModelError` (or a `ToolError`) with the time to wait. None: no maximum.
        estimate: A function that estimates the tokens of a request; None: `estimated_tokens`.
        priority: The priority of the hook.

    Example:
        >>> limit = RateLimit(calls=500, tokens=200_000, per=60)
        >>> agents = [Agent(name, ScriptedModel(["Hello."]), hooks=[limit]) for name in ("ann", "bob")]
        >>> [(await agent.call("Hi")).text for agent in agents]
        ['Hello.', 'Hello.']
    """

    def __init__(
        self,
        *,
        calls: int | None = None,
        tokens: int | None = None,
        per: float = 60.0,
        burst: int | None = None,
        tools: tuple[str, ...] = (),
        models: tuple[str, ...] = ("*",),
        max_wait: float | None = None,
        estimate: Callable[[ModelRequest], int] | None = None,
        priority: int = 140,
    ) -> None:
        self.only_tools = strings("RateLimit(tools=...)", tools)
        self._check(calls, tokens, per, burst, self.only_tools)
        self._calls = _Bucket(calls, per, burst) if calls is not None else None
        self._tokens = _Bucket(tokens, per, None) if tokens is not None else None
        self._models = strings("RateLimit(models=...)", models)
        self._max_wait = max_wait
        self._estimate = estimate
        self._lock = threading.Lock()  # the lock is held for microseconds, never across an `await`
        self.priority = priority
        self.wraps = (PreActing,) if self.only_tools else (PreReasoning,)

    @staticmethod
    def _check(calls: int | None, tokens: int | None, per: float, burst: int | None, tools: tuple[str, ...]) -> None:
        shown = f"RateLimit(calls={calls}, tokens={tokens}, per={per:g}, burst={burst}, tools={tools})"
        if calls is None and tokens is None:
            raise UsageError(f"{shown} limits nothing. Set calls=, tokens= or both.")
        if any(number is not None and number < 1 for number in (calls, tokens, burst)) or per <= 0:
            raise UsageError(f"{shown}: calls, tokens and burst must be 1 or more, and per above 0.")
        if burst is not None and calls is None:
            raise UsageError(f"{shown}: burst limits calls, so it needs calls=.")
        if tools and tokens is not None:
            raise UsageError(
                f"{shown}: tools cost no tokens. Use one RateLimit for the tools and another for model calls."
            )

    def around(self, event: HookEvent, source: Any) -> Any:
        """Wrap the model call or the tool."""
        if isinstance(event, PreActing):
            return Mono(partial(self._tool, source, event))
        if isinstance(event, PreReasoning) and matches(self._models, source.request.model):
            return Flux(partial(self._begin, source, event.context))
        return source

    async def _tool(self, source: Mono[ToolResultBlock], event: PreActing) -> Any:
        wait = self._book(event.context.clock.monotonic(), 1, 0)
        if wait > 0 and not await self._wait_until_due(event.context, wait, 0):
            raise ToolError(
                f"Tool {event.tool_use.name!r} was not run: its rate limit is used up for another {wait:.1f} s. Try again "
                "then, or continue without it."
            )
        return await source.resolve()

    def _begin(self, source: ModelSource, context: RunContext) -> AsyncIterator[ModelChunk]:
        """Book an attempt; if it need not wait and no tokens are counted, pass the reply through."""
        booked = 0
        if self._tokens is not None:
            request = source.request
            if self._estimate is None:  # reuses the size of the part shared with the run's last request
                booked = own(context, self, RequestSize).tokens(request.messages)
            else:
                booked = self._estimate(request)
        wait = self._book(context.clock.monotonic(), 1, booked)
        if wait <= 0 and self._tokens is None:
            return source.open()
        return self._model(source, context, wait, booked)

    @checks_its_end
    async def _model(
        self, source: ModelSource, context: RunContext, wait: float, booked: int
    ) -> AsyncIterator[ModelChunk]:
        request = source.request
        if wait > 0 and not await self._wait_until_due(context, wait, booked):
            raise ModelError(
                f"Model {request.model!r} was not called: the rate limit is used up for another {wait:.1f} s, and "
                f"RateLimit(max_wait={self._max_wait:g}) does not wait that long.",
                retryable=True,
                retry_after=wait,
                model=request.model,
            )
        spent, latest = 0, 0
        chunks = source.open()
        try:
            async for chunk in chunks:
                if chunk.restart:
                    spent, latest = spent + latest, 0  # the tokens of a failed attempt are spent too
                if chunk.usage is not None:
                    latest = chunk.usage.total_tokens
                yield chunk
        finally:
            # Without a report from the provider, the estimate remains booked: the cost of an interrupted reply is unknown.
            if self._tokens is not None and spent + latest:
                with self._lock:
                    self._tokens.book(context.clock.monotonic(), spent + latest - booked)
            await close(chunks)

    async def _wait_until_due(self, context: RunContext, wait: float, tokens: int) -> bool:
        """Wait until the booking is due; if that is too long, cancel the booking and return False."""
        clock = context.clock
        if self._max_wait is not None and wait > self._max_wait:
            self._book(clock.monotonic(), -1, -tokens)
            return False
        waits = context.state[RateLimitWaits]
        waits.count += 1
        begin = clock.monotonic()
        try:
            with (
                UndoOnFailure(lambda: self._book(clock.monotonic(), -1, -tokens)),  # later callers get the slot
                waiting(Wait(who=self.name, seconds=wait, reason="the rate limit is used up until then")),
            ):
                await clock.sleep(wait)
        finally:
            waits.seconds += clock.monotonic() - begin
        return True

    def _book(self, now: float, calls: int, tokens: int) -> float:
        with self._lock:
            wait = 0.0 if self._calls is None else self._calls.book(now, calls)
            return wait if self._tokens is None else max(wait, self._tokens.book(now, tokens))
