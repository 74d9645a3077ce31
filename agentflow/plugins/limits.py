"""`UsageLimits`: how much may be spent on tokens, money, calls and time; checked before the work that would pass a limit.

Rules:

1. A limit is checked before each model call and each tool; what has begun is never cut.
2. It is a guard: it judges what the other hooks made of the request, and its `around` is inside theirs, so each attempt
   of a retry and each fallback passes here.
3. What is spent is what the run was billed: sub-agents and side calls are in it.
4. A limit that cannot be evaluated fails closed: a bill without a price is an error, unless the user has said what it costs
   or that it does not matter. Tokens that a provider does not report are estimated.
5. What is shared between runs changes under a lock, which is never held while waiting.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, Never, TypeAlias, cast, get_args

from pydantic_core import to_json
from reactivex import Observable

from agentflow.chunks import ModelChunk
from agentflow.context import RunContext
from agentflow.errors import UsageError, Veto, unknown_keyword
from agentflow.events import CallEnded, PreActing, PreCall, PreReasoning
from agentflow.hooks.recording import SideWrapper
from agentflow.hooks.wrapping import ModelSource
from agentflow.messages import Msg
from agentflow.plugins._counting import CountTokens, RequestSizes, count_tokens
from agentflow.plugins._matching import names
from agentflow.ports.model import ModelRequest
from agentflow.reactive import Flux, Mono
from agentflow.reactive.iterators import close
from agentflow.specs import Usage
from agentflow.verdicts import Deny, Stop

__all__ = ["Per", "SessionSpent", "Spent", "UnknownPrice", "UsageLimits"]

Per: TypeAlias = Literal["run", "session", "hook"]
UnknownPrice: TypeAlias = Literal["refuse", "ignore"]
_BILLED = ("tokens", "input_tokens", "output_tokens", "cost")

_WHERE: dict[Per, str] = {"run": "this run", "session": "this session", "hook": "all runs together"}


@dataclass(slots=True)
class Spent:
    """What was spent under a limit.

    Attributes:
        input_tokens: Prompt tokens.
        output_tokens: Completion tokens.
        cost: US dollars; of replies without a price nothing, where `unknown_price="ignore"`.
        model_calls: Model calls that began, failed attempts included.
        tool_calls: Tool runs that began, failed attempts included.
        seconds: Working time of calls; time between a suspended call and its resume is not in it.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    model_calls: int = 0
    tool_calls: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens


@dataclass(slots=True)
class SessionSpent:
    """What was spent in a session: `agent.session("id").state[SessionSpent].by_key`."""

    by_key: dict[str, Spent] = field(default_factory=dict[str, Spent])


@dataclass(slots=True)
class _Meter:
    """How far one run has been counted.

    `unbilled`: attempts that were counted when they began and will be on the bill; they are not counted again then.
    `unpriced`: a model that was billed without a price.
    """

    spent: Spent = field(default_factory=Spent)
    call_id: str = ""
    seen: Usage = field(default_factory=Usage)
    at: float = 0.0
    unbilled: int = 0
    unpriced: str | None = None
    expected: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(slots=True)
class _Meters:
    by_key: dict[str, _Meter] = field(default_factory=dict[str, _Meter])


_roots: ContextVar[Mapping[UsageLimits, RunContext] | None] = ContextVar("agentflow_limited_runs", default=None)
"""The run that the code running here is billed to, by limit: set around each tool, so a sub-agent finds its caller."""


_ELSEWHERE: Final = {
    **dict.fromkeys(("max_tokens", "total_tokens", "total_tokens_limit", "token_limit"), "tokens"),
    **dict.fromkeys(("max_cost", "budget", "max_budget", "cost_limit", "usd"), "cost"),
    **dict.fromkeys(("requests", "request_limit", "max_requests", "max_calls"), "model_calls"),
    **dict.fromkeys(("max_tool_calls", "tool_calls_limit"), "tool_calls"),
    **dict.fromkeys(("timeout", "max_seconds", "max_time"), "seconds"),
}
"""What other libraries call a limit, and what it is called here."""


class UsageLimits(SideWrapper):
    """Ends a call before it spends more than it may. The reason names the limit and the amount.

    A model call that is not allowed any more is answered with `Stop`: the reply's outcome is `stopped`, its text the reason.
    A tool that is not allowed any more is denied: the model reads the reason, and may answer with what it has. An attempt that
    `ModelRetry` or `ToolRetry` may not make leaves the failure of the one before. Other hooks that ask the model again (a
    fallback, `source.retry`) are denied: then the reply's outcome is `denied`.

    What a reply will cost is not known before it is made: the call that passes a token or cost limit is the last one, and is
    not cut. With `count_input=True` the request's own tokens are counted before it is sent.

    Priority 90 (checks), a guard. It applies inside sub-agents too (`scope="tree"`), where it counts for the run at the top.
    One instance serves any number of agents and runs.

    Args:
        tokens: Most input and output tokens together.
        input_tokens: Most input tokens.
        output_tokens: Most output tokens.
        cost: Most US dollars.
        prices: What models cost for which no price is known: a pattern for the model's name to dollars for a million tokens
            of input and of output, such as `{"openai+http://*": (0.20, 0.80)}`; `(0, 0)` is a model of your own.
        unknown_price: What becomes of a reply without a price, where there is a limit on `cost`: `"refuse"` raises a
            `UsageError`, as the limit would mean nothing; `"ignore"` counts it as nothing.
        model_calls: Most model calls, attempts of retries, sub-agents and side calls included.
        tool_calls: Most tool runs, attempts of retries included.
        seconds: Most seconds of work, by the run's clock.
        per: What the limits are for: each run (a call and its resumes), each session, or all runs of this instance.
        count_input: Count the tokens of each request before it is sent, with LiteLLM's counter (loaded on first use).
        count: A counter of your own in its place: text and model's name to a number.
        key: What a session's account is called. By default it is made of the limits, so that two `UsageLimits` do not share
            one; name it, and the account lives on when the limits change.

    Example:
        >>> limits = UsageLimits(tokens=200_000, cost=0.50, tool_calls=40, seconds=300)
        >>> agent = Agent("researcher", "openai/gpt-5", tools=[search], hooks=[limits])
    """

    priority = 90
    guard = True
    scope = "tree"
    events = (PreCall, PreReasoning, PreActing, CallEnded)
    wraps = (PreReasoning, PreActing)

    def __init__(
        self,
        *,
        tokens: int | None = None,
        input_tokens: int | None = None,
        output_tokens: int | None = None,
        cost: float | None = None,
        model_calls: int | None = None,
        tool_calls: int | None = None,
        seconds: float | None = None,
        per: Per = "run",
        count_input: bool = False,
        count: CountTokens | None = None,
        key: str | None = None,
        prices: Mapping[str, tuple[float, float]] | None = None,
        unknown_price: UnknownPrice = "refuse",
        **unknown: Never,
    ) -> None:
        given: dict[str, float | None] = {
            "tokens": tokens,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "cost": cost,
            "model_calls": model_calls,
            "tool_calls": tool_calls,
            "seconds": seconds,
        }
        if unknown:
            known = (*given, "per", "count_input", "count", "key")
            raise unknown_keyword("UsageLimits(...)", unknown, known, _ELSEWHERE)
        limits = {name: value for name, value in given.items() if value is not None}
        shown = ", ".join(f"{name}={value!r}" for name, value in limits.items())
        if not limits or any(value < 0 for value in limits.values()):
            raise UsageError(
                f"UsageLimits({shown}): it takes at least one limit, and none below 0. Limits: {', '.join(given)}."
            )
        if per not in _WHERE:
            raise UsageError(f"UsageLimits(per={per!r}): legal are 'run', 'session' and 'hook'.")
        if unknown_price not in get_args(UnknownPrice):
            raise UsageError(f"UsageLimits(unknown_price={unknown_price!r}): legal are 'refuse' and 'ignore'.")
        self.prices = {pattern: _checked_price(pattern, price) for pattern, price in (prices or {}).items()}
        if cost is None and (self.prices or unknown_price != "refuse"):
            raise UsageError(
                "UsageLimits: prices= and unknown_price= are about a limit on cost, and there is none; add cost=."
            )
        self.unknown_price: UnknownPrice = unknown_price
        self.limits: Mapping[str, float] = limits
        self.per: Per = per
        self.key = key if key is not None else f"{shown}, per {per}"
        self.count_input = count_input or count is not None
        self._count = count
        self._for_models = [(name, limits[name]) for name in limits if name != "tool_calls"]
        self._for_tools = [(name, limits[name]) for name in limits if name in ("tool_calls", "seconds")]
        self._total = Spent()
        self._expected = 0
        self._lock = threading.Lock()
        self._bills = not self.limits.keys().isdisjoint(_BILLED)

    @property
    def spent(self) -> Spent:
        """What all runs of this instance have spent, as far as it is `per="hook"`."""
        with self._lock:
            total = self._total
            return Spent(
                total.input_tokens,
                total.output_tokens,
                total.cost,
                total.model_calls,
                total.tool_calls,
                total.seconds,
            )

    def on_event(self, event: PreCall | PreReasoning | PreActing | CallEnded) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to four events
        """Count what was spent, and check before work begins."""
        root = self._root(event.context)
        meter = self._meter(root)
        if isinstance(event, PreReasoning):
            if self.count_input and not self.limits.keys().isdisjoint(("tokens", "input_tokens")):
                return self._counted(event, root, meter)
            reason = self._passed(root, meter, self._for_models)
            return None if reason is None else Stop(reason)
        if isinstance(event, PreActing):
            reason = self._passed(root, meter, self._for_tools)
            return None if reason is None else Deny(reason)
        with self._lock:
            self._sync(root, meter)
        return None

    async def _counted(self, event: PreReasoning, root: RunContext, meter: _Meter) -> Stop | None:
        reason = self._passed(root, meter, self._for_models)
        if reason is not None:
            return Stop(reason)
        expected = await self._tokens_of(event)
        reason = self._passed(root, meter, self._for_models, expected)
        with self._lock:
            meter.expected[event.call_id] = expected
        return None if reason is None else Stop(reason)

    async def _tokens_of(self, event: PreReasoning) -> int:
        messages = list(event.input_messages)
        if event.tools:
            told = [[spec.name, spec.description, spec.parameters] for spec in event.tools]
            messages.append(Msg.system(to_json(told, fallback=str).decode()))
        return await count_tokens(messages, event.model, self._count)

    def around(self, event: Any, source: Any) -> Observable[Any]:
        """Count each attempt as it begins; one too many is refused."""
        if isinstance(event, PreReasoning):
            context = event.context
            root = self._root(context)
            return Flux(partial(self._ask, root, context, source, False))
        if isinstance(event, PreActing):
            return Mono(partial(self._run_tool, self._root(event.context), source))
        return cast("Observable[Any]", source)

    def around_side(
        self, context: RunContext, request: ModelRequest, side: str, chunks: ModelSource
    ) -> Flux[ModelChunk]:
        """Look at the price of what hooks and tools ask a model on the side."""
        return Flux(partial(self._ask, self._root(context), context, chunks, True)) if self._bills else chunks

    async def _ask(
        self, root: RunContext, context: RunContext, inner: ModelSource, side: bool
    ) -> AsyncIterator[ModelChunk]:
        meter, expected = self._meter(root), 0
        if not side:
            expected = meter.expected.get(context.call_id, 0) if self.count_input else 0
            reason = self._passed(root, meter, self._for_models, expected, begin="model_calls")
            if reason is not None:
                raise Veto(reason)
        bill: Usage | None = None
        finished = False
        written = 0
        chunks = inner.open()
        try:
            async for chunk in chunks:
                if chunk.restart:
                    self._note_unpriced(root, meter, inner, bill)
                    bill, written = None, 0
                if chunk.usage is not None:
                    bill = chunk.usage
                written += len(chunk.text) + len(chunk.thinking)
                for use in chunk.tool_uses:
                    written += len(use.arguments)
                yield chunk
            finished = True
        finally:
            with self._lock:
                if not side and self.per == "hook":
                    self._expected -= expected
                if not side and (finished or bill is not None):
                    meter.unbilled += 1
            if finished and bill is None and self._bills:
                bill = self._estimate(root, meter, context, inner, written)
            if bill is not None and bill.cost is None:  # of a torn attempt, as far as it was reported
                self._note_unpriced(root, meter, inner, bill)
            await close(chunks)
        if meter.unpriced is not None:
            raise self._unpriced(meter.unpriced)

    def _estimate(
        self, root: RunContext, meter: _Meter, context: RunContext, inner: ModelSource, written: int
    ) -> Usage:
        """What a reply took whose provider reports nothing: four characters are a token."""
        size = context.state[RequestSizes].of(self, inner.request.messages)
        with self._lock:
            bill = Usage(max(1, size // 4), max(1, written // 4))
            spent = self._spent(root, meter)
            spent.input_tokens += bill.input_tokens
            spent.output_tokens += bill.output_tokens
        return bill

    def _note_unpriced(self, root: RunContext, meter: _Meter, inner: ModelSource, bill: Usage | None) -> None:
        """Price a reply whose bill has no price; where that cannot be done, the run's account is worth nothing."""
        if bill is None or bill.cost is not None or "cost" not in self.limits:
            return
        model = inner.request.model
        price = next((price for pattern, price in self.prices.items() if names((pattern,), model)), None)
        if price is not None:
            with self._lock:
                cost = (bill.input_tokens * price[0] + bill.output_tokens * price[1]) / 1_000_000
                self._spent(root, meter).cost += cost
        elif self.unknown_price == "refuse":
            meter.unpriced = model

    def _unpriced(self, model: str) -> UsageError:
        return UsageError(
            f"{self.name}(cost={self.limits['cost']:g}) cannot count what this run costs: no price is known for the model "
            f"{model!r}. Say what it costs, prices={{{model!r}: (0.20, 0.80)}} (dollars for a million tokens of input and of "
            "output), or that it does not matter, unknown_price='ignore'."
        )

    async def _run_tool(self, root: RunContext, inner: Mono[Any]) -> Any:
        reason = self._passed(root, self._meter(root), self._for_tools, begin="tool_calls")
        if reason is not None:
            raise Veto(reason)
        token = _roots.set({**(_roots.get() or {}), self: root})
        try:
            return await inner.resolve()
        finally:
            _roots.reset(token)

    # ---- the account

    def _root(self, context: RunContext) -> RunContext:
        """The run that is billed: the caller's, for a sub-agent."""
        return (_roots.get() or {}).get(self, context) if context.source else context

    def _passed(
        self,
        root: RunContext,
        meter: _Meter,
        names: list[tuple[str, float]],
        expected: int = 0,
        begin: Literal["model_calls", "tool_calls", ""] = "",
    ) -> str | None:
        """The limit that the next work would pass, as a sentence; None and counted as begun (`begin`) if there is none."""
        if meter.unpriced is not None:
            raise self._unpriced(meter.unpriced)
        with self._lock:
            spent = self._sync(root, meter)
            for name, limit in names:
                used = getattr(spent, name)
                if expected and name in ("tokens", "input_tokens"):
                    if used + self._expected + expected > limit:
                        return self._reason(name, used, limit, expected)
                elif used >= limit:
                    return self._reason(name, used, limit, 0)
            if begin == "model_calls":
                spent.model_calls += 1
                self._expected += expected if self.per == "hook" else 0
            elif begin == "tool_calls":
                spent.tool_calls += 1
            return None

    def _reason(self, name: str, used: float, limit: float, more: int) -> str:
        what = name.replace("_", " ")
        if name == "cost":
            amount = f"${used:.4f} of ${limit:.4f}"
        elif name == "seconds":
            amount = f"{used:.1f} of {limit:g} seconds"
        else:
            amount = f"{used:,} of {limit:,} {what}"
        text = f"Usage limit reached: {amount} are used in {_WHERE[self.per]}"
        return f"{text}, and the next request needs about {more:,} more." if more else f"{text}."

    def _meter(self, root: RunContext) -> _Meter:
        meters = root.state[_Meters].by_key
        meter = meters.get(self.key)
        if meter is None:
            meter = meters[self.key] = _Meter()
        if meter.call_id != root.call_id:  # a resumed call is billed from nothing, and the time between is not work
            meter.call_id, meter.seen, meter.at, meter.unbilled = root.call_id, Usage(), root.clock.monotonic(), 0
            meter.expected.clear()
        return meter

    def _account(self, root: RunContext) -> Spent:
        if self.per == "hook":
            return self._total
        return root.session_state[SessionSpent].by_key.setdefault(self.key, Spent())

    def _spent(self, root: RunContext, meter: _Meter) -> Spent:
        return meter.spent if self.per == "run" else self._account(root)

    def _sync(self, root: RunContext, meter: _Meter) -> Spent:
        """Take in what was billed since the last look."""
        spent = meter.spent if self.per == "run" else self._account(root)
        now, usage, seen = root.clock.monotonic(), root.usage, meter.seen
        spent.seconds += now - meter.at
        meter.at = now
        if usage is not seen:
            calls = usage.model_calls - seen.model_calls
            counted = min(calls, meter.unbilled)
            meter.unbilled -= counted
            spent.model_calls += calls - counted
            spent.input_tokens += usage.input_tokens - seen.input_tokens
            spent.output_tokens += usage.output_tokens - seen.output_tokens
            spent.cost += (usage.cost or 0.0) - (seen.cost or 0.0)
            meter.seen = usage
        return spent


def _checked_price(pattern: str, price: object) -> tuple[float, float]:
    match price:
        case (int() | float() as into, int() | float() as out) if into >= 0 and out >= 0:
            return float(into), float(out)
        case _:
            raise UsageError(
                f"UsageLimits(prices={{{pattern!r}: {price!r:.60}}}): a price is two numbers, dollars for a million tokens of "
                "input and of output, such as (0.20, 0.80)."
            )
