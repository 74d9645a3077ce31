"""`UsageLimits`: limits on tokens, cost, calls and time, checked before the work that would exceed them.

Rules:

1. A limit is checked before each model call of an agent, and before each tool. Side calls of hooks and tools are counted, but
   not refused. Running work is never interrupted.
2. It is a guard: it evaluates the request after the editing hooks. Its `around` is inside those of other hooks, so it
   checks each attempt of a retry and each fallback.
3. Tokens and cost are those that were billed to the run, including sub-agents and side calls.
4. A limit that cannot be evaluated fails closed: a bill without a price is an error, unless `prices` has a price or
   `unknown_price` ignores it. Tokens that a provider does not report are estimated.
5. State shared between runs changes under a lock, which is never held across an `await`.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from operator import ge
from typing import Any, Final, Literal, Never, TypeAlias, get_args

from pydantic_core import to_json

from agentflow._support.validation import is_a
from agentflow.errors import UsageError, Veto, unknown_keyword
from agentflow.hooks.options import getter
from agentflow.hooks.recording import SideWrapper
from agentflow.hooks.wrapping import ModelSource, ToolSource, checks_its_end
from agentflow.plugins._counting import CountTokens, RequestSize, count_tokens
from agentflow.plugins._matching import matches
from agentflow.reactive import Flux, Mono
from agentflow.reactive.iterators import close
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import RunContext, own
from agentflow.vocabulary.events import CallEnded, HookEvent, PreActing, PreCall, PreReasoning
from agentflow.vocabulary.messages import Msg, ToolResultBlock
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import Usage
from agentflow.vocabulary.verdicts import Deny, Stop

__all__ = ["Per", "SessionSpent", "Spent", "UnknownPrice", "UsageLimits"]

Per: TypeAlias = Literal["run", "session", "hook"]
UnknownPrice: TypeAlias = Literal["refuse", "ignore"]
_BILLED = ("tokens", "input_tokens", "output_tokens", "cost")

_WHERE: dict[Per, str] = {"run": "this run", "session": "this session", "hook": "all runs together"}


@dataclass(slots=True)
class Spent:
    """The amounts spent under a limit.

    Attributes:
        input_tokens: Prompt tokens.
        output_tokens: Completion tokens.
        cost: US dollars; with `unknown_price="ignore"`, a reply without a price adds nothing.
        model_calls: Model calls that began, failed attempts included.
        tool_calls: Tool runs that began, failed attempts included.
        seconds: Working time of calls; the time between a suspension and its resume does not count.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    model_calls: int = 0
    tool_calls: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """The number of input and output tokens together."""
        return self.input_tokens + self.output_tokens


@dataclass(slots=True)
class SessionSpent:
    """The amounts spent in a session: `agent.session("id").state[SessionSpent].by_key`."""

    by_key: dict[str, Spent] = field(default_factory=dict[str, Spent])


@dataclass(slots=True)
class _Meter:
    """The counters of one run.

    Attributes:
        spent: The amounts of the run; used if `per="run"`.
        call_id: The call that `seen`, `at` and `unbilled` belong to: the run's first call, or its last resume.
        seen: The usage of the call that has been counted already.
        at: The time of the last update, by the monotonic clock.
        unbilled: The number of attempts that were counted when they began; their bills do not count them again.
        unpriced: A model that was billed without a price.
        expected: Maps an agent call's id to the tokens of the call's next request, if `count_input` is set.
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
"""The run that pays for the current code, by `UsageLimits`. Set around each tool, so that the caller pays for sub-agents."""


_ELSEWHERE: Final = {
    **dict.fromkeys(("max_tokens", "total_tokens", "total_tokens_limit", "token_limit"), "tokens"),
    **dict.fromkeys(("max_cost", "budget", "max_budget", "cost_limit", "usd"), "cost"),
    **dict.fromkeys(("requests", "request_limit", "max_requests", "max_calls"), "model_calls"),
    **dict.fromkeys(("max_tool_calls", "tool_calls_limit"), "tool_calls"),
    **dict.fromkeys(("timeout", "max_seconds", "max_time"), "seconds"),
}
"""Maps other libraries' names for limits to ours."""


class _Checks:
    """The limits that apply to one kind of work.

    Args:
        limits: All limits.
        names: The names of the limits that apply.
    """

    __slots__ = ("_amounts", "_limits", "limits")

    def __init__(self, limits: Mapping[str, float], names: Sequence[str]) -> None:
        self.limits = [(name, limits[name]) for name in names]
        self._limits = [limits[name] for name in names]
        self._amounts = getter(tuple(names))

    def reached(self, spent: Spent) -> bool:
        """Return whether one of the limits is reached."""
        return any(map(ge, self._amounts(spent), self._limits))


class UsageLimits(SideWrapper):
    """Ends a call before it exceeds a limit. The reason names the limit and the amount.

    If a model call is no longer allowed, the call ends with `Stop`: the reply's outcome is `stopped`, its text the reason. If
    a tool is no longer allowed, it is denied: the model reads the reason, and can answer with its results so far. If a limit
    forbids another attempt of `ModelRetry` or `ToolRetry`, the earlier failure is raised. If it forbids a call by another hook
    (a fallback, `source.retry`), the reply's outcome is `denied`.

    The cost of a reply is known only afterwards: the call that exceeds a token or cost limit is the last one, and is
    completed. With `count_input=True`, the request's own tokens are counted before it is sent.

    Priority 90 (checks), a guard. It applies inside sub-agents too (`scope="tree"`), and counts for the run at the top. One
    instance serves any number of agents and runs.

    Args:
        tokens: The maximum number of input and output tokens together.
        input_tokens: The maximum number of input tokens.
        output_tokens: The maximum number of output tokens.
        cost: The maximum cost in US dollars.
        prices: Prices of models without a known price: a pattern for the model's name to dollars per million tokens of input
            and of output, such as `{"openai+http://*": (0.20, 0.80)}`; use `(0, 0)` for a model of your own.
        unknown_price: How to handle a reply without a price if there is a limit on `cost`: `"refuse"` raises a
            `UsageError`, since the limit would have no effect; `"ignore"` counts the reply as free.
        model_calls: The maximum number of model calls, including retries, sub-agents and side calls.
        tool_calls: The maximum number of tool runs, including retries.
        seconds: The maximum working time in seconds, by the run's clock.
        per: The scope of the limits: each run (a call and its resumes), each session, or all runs of this instance.
        count_input: Count the tokens of each request before it is sent, with LiteLLM's counter (loaded on first use).
        count: A custom counter instead: text and model's name to a number.
        key: The name of a session's account. By default it is derived from the limits, so that two `UsageLimits` do not share
            an account; if you set it, the account survives a change of the limits.

    Example:
        >>> limits = UsageLimits(tokens=200_000, cost=0.50, tool_calls=40, seconds=300)
        >>> agent = Agent("researcher", "openai/gpt-5", tools=[search], hooks=[limits])
    """

    priority = 90
    guard = True
    scope = "tree"
    events = (PreCall, PreReasoning, PreActing, CallEnded)

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
        options: dict[str, float | None] = {
            "tokens": tokens,
            "input_tokens": input_tokens,
            "output_tokens": output_tokens,
            "cost": cost,
            "model_calls": model_calls,
            "tool_calls": tool_calls,
            "seconds": seconds,
        }
        if unknown:
            known = (*options, "per", "count_input", "count", "key", "prices", "unknown_price")
            raise unknown_keyword("UsageLimits(...)", unknown, known, _ELSEWHERE)
        limits = {name: value for name, value in options.items() if value is not None}
        shown = ", ".join(f"{name}={value!r}" for name, value in limits.items())
        wrong = next(
            (name for name, value in limits.items() if isinstance(value, bool) or not is_a(value, int | float)), None
        )
        if wrong is not None:
            raise UsageError(f"UsageLimits({wrong}={limits[wrong]!r:.60}): it must be a number.")
        if not limits or any(value < 0 for value in limits.values()):
            raise UsageError(
                f"UsageLimits({shown}) needs at least one limit, and none below 0. Limits: {', '.join(options)}."
            )
        if per not in _WHERE:
            raise UsageError(f"UsageLimits(per={per!r}): use 'run', 'session' or 'hook'.")
        if unknown_price not in get_args(UnknownPrice):
            raise UsageError(f"UsageLimits(unknown_price={unknown_price!r}): use 'refuse' or 'ignore'.")
        self.prices = {pattern: _checked_price(pattern, price) for pattern, price in (prices or {}).items()}
        if cost is None and (self.prices or unknown_price != "refuse"):
            raise UsageError(
                "UsageLimits: prices= and unknown_price= have no effect without a limit on cost. Add cost=."
            )
        self.unknown_price: UnknownPrice = unknown_price
        self.limits: Mapping[str, float] = limits
        self.per: Per = per
        self.key = key if key is not None else f"{shown}, per {per}"
        self.count_input = count_input or count is not None
        self._count = count
        self._counts = self.count_input and not limits.keys().isdisjoint(("tokens", "input_tokens"))
        self._for_models = _Checks(limits, [name for name in limits if name != "tool_calls"])
        # Tokens and cost are spent by models, so their limits do not stop a tool.
        self._for_tools = _Checks(limits, [name for name in limits if name in ("tool_calls", "seconds")])
        self._total = Spent()
        self._expected = 0  # tokens of requests that run now, if `per="hook"`
        self._lock = threading.Lock()
        self._bills = not self.limits.keys().isdisjoint(_BILLED)

    @property
    def spent(self) -> Spent:
        """The amounts spent by all runs of this instance if `per="hook"`, otherwise 0."""
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

    def on_event(self, event: HookEvent) -> Awaitable[Stop | None] | Stop | Deny | None:
        """Count the amounts spent, and check before work begins."""
        root = self._root(event.context)
        meter = own(root, self, self._meter, root)
        if isinstance(event, PreReasoning):
            if self._counts:
                return self._counted(event, root, meter)
            reason = self._exceeded(root, meter, self._for_models)
            return None if reason is None else Stop(reason)
        if isinstance(event, PreActing):
            reason = self._exceeded(root, meter, self._for_tools)
            return None if reason is None else Deny(reason)
        with self._lock:
            self._sync(root, meter)
        return None

    async def _counted(self, event: PreReasoning, root: RunContext, meter: _Meter) -> Stop | None:
        reason = self._exceeded(root, meter, self._for_models)
        if reason is not None:
            return Stop(reason)
        expected = await self._tokens_of(event)
        reason = self._exceeded(root, meter, self._for_models, expected)
        with self._lock:
            meter.expected[event.call_id] = expected
        return None if reason is None else Stop(reason)

    async def _tokens_of(self, event: PreReasoning) -> int:
        messages = list(event.input_messages)
        if event.tools:
            specs = [[spec.name, spec.description, spec.parameters] for spec in event.tools]
            messages.append(Msg.system(to_json(specs, fallback=str).decode()))
        return await count_tokens(messages, event.model, self._count)

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        """Count each attempt as it begins; refuse one beyond the limit."""
        context = event.context
        return Flux(partial(self._run_model, self._root(context), context, source, False))

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        """Count each attempt as it begins; refuse one beyond the limit."""
        return Mono(partial(self._run_tool, self._root(event.context), source))

    def around_side(
        self, context: RunContext, request: ModelRequest, side: str, chunks: ModelSource
    ) -> Flux[ModelChunk]:
        """Estimate the usage of side model calls if it is not reported, and check their price."""
        return Flux(partial(self._run_model, self._root(context), context, chunks, True)) if self._bills else chunks

    @checks_its_end
    async def _run_model(
        self, root: RunContext, context: RunContext, inner: ModelSource, side: bool
    ) -> AsyncIterator[ModelChunk]:
        meter, expected = own(root, self, self._meter, root), 0
        if not side:
            expected = meter.expected.get(context.call_id, 0) if self.count_input else 0
            reason = self._exceeded(root, meter, self._for_models, expected, begin="model_calls")
            if reason is not None:
                raise Veto(reason)
        bill: Usage | None = None
        finished = False
        shown: list[ModelChunk] = []
        chunks = inner.open()
        try:
            async for chunk in chunks:
                if chunk.restart:  # an inner hook makes another attempt; the failed one has a bill of its own
                    self._note_unpriced(root, meter, inner, bill)
                    bill, shown = None, []
                if chunk.usage is not None:
                    bill = chunk.usage
                elif bill is None:  # only an estimate needs the chunks
                    shown.append(chunk)
                yield chunk
            finished = True
        finally:
            with self._lock:
                if not side and self.per == "hook":
                    self._expected -= expected  # no longer reserved: the bill or the estimate counts
                if not side and (finished or bill is not None):
                    meter.unbilled += 1  # the call was counted when it began; `_sync` must not count it again
            if finished and bill is None and self._bills:
                bill = self._estimate(root, meter, context, inner, shown)
            if bill is not None and bill.cost is None:  # also for a broken attempt, if it reported usage
                self._note_unpriced(root, meter, inner, bill)
            await close(chunks)
        if meter.unpriced is not None:
            raise self._unpriced(meter.unpriced)

    def _estimate(
        self, root: RunContext, meter: _Meter, context: RunContext, inner: ModelSource, shown: Iterable[ModelChunk]
    ) -> Usage:
        """Estimate the usage of a reply if the provider does not report it: four characters are a token."""
        written = sum(
            len(chunk.text) + len(chunk.thinking) + sum(len(use.arguments) for use in chunk.tool_uses)
            for chunk in shown
        )
        bill = Usage(own(context, self, RequestSize).tokens(inner.request.messages), max(1, written // 4))
        with self._lock:
            spent = self._spent(root, meter)
            spent.input_tokens += bill.input_tokens
            spent.output_tokens += bill.output_tokens
        return bill

    def _note_unpriced(self, root: RunContext, meter: _Meter, inner: ModelSource, bill: Usage | None) -> None:
        """Add the cost of a reply that was billed without a price; if no price is known, later work of the run is refused."""
        if bill is None or bill.cost is not None or "cost" not in self.limits:
            return
        model = inner.request.model
        price = next((price for pattern, price in self.prices.items() if matches((pattern,), model)), None)
        if price is not None:
            with self._lock:
                cost = (bill.input_tokens * price[0] + bill.output_tokens * price[1]) / 1_000_000
                self._spent(root, meter).cost += cost
        elif self.unknown_price == "refuse":
            meter.unpriced = model

    def _unpriced(self, model: str) -> UsageError:
        return UsageError(
            f"{self.name}(cost={self.limits['cost']:g}) cannot count the cost of this run: no price is known for the model "
            f"{model!r}. Set its price with prices={{{model!r}: (0.20, 0.80)}} (dollars per million tokens of input and of "
            "output), or ignore it with unknown_price='ignore'."
        )

    async def _run_tool(self, root: RunContext, inner: ToolSource) -> Any:
        reason = self._exceeded(root, own(root, self, self._meter, root), self._for_tools, begin="tool_calls")
        if reason is not None:
            raise Veto(reason)
        token = _roots.set({**(_roots.get() or {}), self: root})
        try:
            return await inner.resolve()
        finally:
            _roots.reset(token)

    # ---- the account

    def _root(self, context: RunContext) -> RunContext:
        """Return the run that pays: for a sub-agent, the run of its caller."""
        # A top-level run has an empty source.
        return (_roots.get() or {}).get(self, context) if context.source else context

    def _exceeded(
        self,
        root: RunContext,
        meter: _Meter,
        checks: _Checks,
        expected: int = 0,
        begin: Literal["model_calls", "tool_calls", ""] = "",
    ) -> str | None:
        """Return the limit that the next work would exceed, as a sentence; otherwise count the work as begun, and return
        None."""
        if meter.unpriced is not None:
            raise self._unpriced(meter.unpriced)
        with self._lock:
            spent = self._sync(root, meter)
            if expected or checks.reached(spent):  # this check without a Python loop is nearly always false
                for name, limit in checks.limits:
                    used = getattr(spent, name)
                    if expected and name in ("tokens", "input_tokens"):
                        if used + self._expected + expected > limit:
                            return self._reason(name, used, limit, expected)
                    elif used >= limit:
                        return self._reason(name, used, limit, 0)
            if begin == "model_calls":
                spent.model_calls += 1
                self._expected += expected if self.per == "hook" else 0  # reserved, as other runs share the limit
            elif begin == "tool_calls":
                spent.tool_calls += 1
            return None

    def _reason(self, name: str, used: float, limit: float, more: int) -> str:
        label = name.replace("_", " ")
        if name == "cost":
            amount = f"${used:.4f} of ${limit:.4f}"
        elif name == "seconds":
            amount = f"{used:.1f} of {limit:g} seconds"
        else:
            amount = f"{used:,} of {limit:,} {label}"
        text = f"Usage limit reached: {amount} are used in {_WHERE[self.per]}"
        return f"{text}, and the next request needs about {more:,} more." if more else f"{text}."

    def _meter(self, root: RunContext) -> _Meter:
        """Return the run's counters, for its current call."""
        meters = root.state[_Meters].by_key
        meter = meters.get(self.key)
        if meter is None:
            meter = meters[self.key] = _Meter()
        if meter.call_id != root.call_id:  # a resumed call: its usage starts at zero, and time before it does not count
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
        """Add the amounts spent since the last update to the account, and return it."""
        spent = meter.spent if self.per == "run" else self._account(root)
        now, usage, seen = root.clock.monotonic(), root.usage, meter.seen
        spent.seconds += now - meter.at
        meter.at = now
        if usage is not seen:  # each bill makes a new `Usage`
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
                f"UsageLimits(prices={{{pattern!r}: {price!r:.60}}}): a price must be two numbers, dollars per million tokens "
                "of input and of output, such as (0.20, 0.80)."
            )
