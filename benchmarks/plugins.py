"""The cost of the ready-made hooks: each alone, and all plugins in one agent, per ReAct round.

`python -m benchmarks.plugins` prints every plugin; `python -m benchmarks --only plugins` the summary. A round is measured
as in `benchmarks.loops`: the slope of a call with many rounds and one with none.

Rules:

1. Each plugin is measured in an ordinary round. If it acts only now and then, *idle* is the ordinary
   round, and *active* is the round in which it acts.
2. Work that is another model's (a judge, a summary, a thought) is done by a model without any waiting.
3. All plugins together are a plausible set for one agent, nothing acting that would end the work.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import inspect
import pstats
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from loguru import logger
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from reactivex import Observable

from agentflow import Agent, Hook, HookEvent, PreActing, PreReasoning, Session, Usage, tool
from agentflow.hooks.wrapping import ModelSource
from agentflow.plugins.approval import Allow, Approval
from agentflow.plugins.cache import ModelCache, ToolCache
from agentflow.plugins.clearing import ClearOldResults
from agentflow.plugins.compaction import SummaryCompaction
from agentflow.plugins.debugger import Breakpoint
from agentflow.plugins.evaluation import OnlineEvaluation
from agentflow.plugins.fallback import ModelFallback
from agentflow.plugins.goal import GoalJudge
from agentflow.plugins.guardrails import InputGuardrail, OutputGuardrail, ToolGuardrail
from agentflow.plugins.limits import UsageLimits
from agentflow.plugins.logging import EventLog
from agentflow.plugins.memory import Memory, MemoryFiles
from agentflow.plugins.offload import OffloadResults
from agentflow.plugins.opentelemetry import OpenTelemetry
from agentflow.plugins.progress import NoProgress
from agentflow.plugins.rate_limit import RateLimit
from agentflow.plugins.react import ChainOfThought, ReActThoughts
from agentflow.plugins.redaction import Redaction
from agentflow.plugins.reflection import Reflection
from agentflow.plugins.reminders import DynamicContext, SystemReminder, current_time
from agentflow.plugins.retrieval import Retrieve, SqliteIndex
from agentflow.plugins.retry import ModelRetry, ToolRetry
from agentflow.plugins.shell import ShellApproval
from agentflow.plugins.skills import Skills
from agentflow.plugins.steering import Steering
from agentflow.plugins.tool_search import ToolSearch
from agentflow.reactive import Flux, Mono
from agentflow.reactive.iterators import close
from agentflow.recording.recorder import Recorder
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta
from benchmarks.bare import Script, add, answer, bare_call, user
from benchmarks.counting import Counts, counted
from benchmarks.measure import Body, Effort, fit, measure
from benchmarks.report import Figure, line, title

if TYPE_CHECKING:
    from loguru import Logger

__all__ = [
    "BUDGET",
    "PLUGINS",
    "Case",
    "added",
    "all_plugins",
    "counted_round",
    "plugins",
    "spans",
    "together",
    "with_hooks",
]

BUDGET = 39.0
"""The round of the fastest full-featured peer, against the bare loop's in the same run."""

_ROUNDS = 20
_READ = tool(type="read")(add)
_FOREVER = 1_000_000_000
_USAGE = Usage(100, 10, cost=0.0001)
_SKILLS = Path(__file__).parents[1] / "samples" / "skills"
_PRICES = {"*": (1.0, 1.0)}
EFFORT = Effort(turns=30, seconds=0.005)
"""Many short turns: a busy machine leaves some of them alone."""


class Case(NamedTuple):
    """A plugin as it is measured.

    Attributes:
        name: How it is printed.
        make: Makes new hooks for each agent.
    """

    name: str
    make: Callable[[], Sequence[Hook]]


def _log(level: str) -> Logger:
    """A log of its own with one sink, which takes lines of a level and discards them: a terminal's speed is not ours."""
    logger.remove()  # loguru's own sink; a logger with sinks cannot be copied
    log = deepcopy(logger)
    log.add(_discard, level=level, format="{message}")
    return log


def _discard(message: object) -> None:
    """Keep nothing."""


def sampling(sampler: Sampler) -> OpenTelemetry:
    """Traces without an exporter: an exporter's speed is not ours."""
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(SpanProcessor())
    return OpenTelemetry(tracer_provider=provider)


def _other() -> Script:
    """The model that judges, summarises, thinks."""
    return Script(answer("All is well."))


def _passes(text: str) -> None:
    """A check that finds nothing."""


def _allows(event: PreActing) -> None:
    """A check of a tool call that finds nothing."""


def _now_and_then() -> SystemReminder:
    return SystemReminder("Never touch the production database.", every=_FOREVER)


PLUGINS: tuple[Case, ...] = (
    Case("EventLog, no sink takes its level", lambda: [EventLog(log=_log("WARNING"))]),
    Case("EventLog, 3 lines at INFO", lambda: [EventLog(log=_log("INFO"))]),
    Case("EventLog, 6 lines at DEBUG", lambda: [EventLog(log=_log("DEBUG"))]),
    Case("EventLog, 6 lines of JSON", lambda: [EventLog(log=_log("DEBUG"), json=True)]),
    Case(
        "UsageLimits",
        lambda: [UsageLimits(tokens=_FOREVER, cost=1e9, tool_calls=_FOREVER, seconds=1e9, prices=_PRICES)],
    ),
    Case("ModelRetry", lambda: [ModelRetry()]),
    Case("ModelFallback", lambda: [ModelFallback(_other())]),
    Case("RateLimit, calls", lambda: [RateLimit(calls=_FOREVER, per=1)]),
    Case("RateLimit, calls and tokens", lambda: [RateLimit(calls=_FOREVER, tokens=_FOREVER, per=1)]),
    Case("ToolRetry", lambda: [ToolRetry()]),
    Case("ToolCache, misses", lambda: [ToolCache(size=1)]),
    Case("ToolCache, hits", lambda: [ToolCache()]),
    Case("ModelCache, misses", lambda: [ModelCache(size=1)]),
    Case("Approval, a rule allows", lambda: [Approval([Allow("add")])]),
    Case("ShellApproval, other tools", lambda: [ShellApproval()]),
    Case("Breakpoint, other tools", lambda: [Breakpoint(PreActing, tools=["other"])]),
    Case("Redaction", lambda: [Redaction()]),
    Case("InputGuardrail", lambda: [InputGuardrail(_passes)]),
    Case("OutputGuardrail", lambda: [OutputGuardrail(_passes)]),
    Case("ToolGuardrail", lambda: [ToolGuardrail(_allows)]),
    Case("Reflection, idle", lambda: [Reflection(_other(), every=_FOREVER)]),
    Case("Reflection, each round", lambda: [Reflection(_other(), keep=False)]),
    Case("ReActThoughts, each round", lambda: [ReActThoughts(_other(), keep=False)]),
    Case("ChainOfThought", lambda: [ChainOfThought()]),
    Case("GoalJudge, a function", lambda: [GoalJudge(lambda event: True)]),
    Case("NoProgress", lambda: [NoProgress()]),
    Case("SummaryCompaction, below its limit", lambda: [SummaryCompaction(at_tokens=_FOREVER)]),
    Case("ClearOldResults, nothing old", lambda: [ClearOldResults(keep=_FOREVER)]),
    Case("ClearOldResults", lambda: [ClearOldResults(keep=3, min_chars=0, placeholder="-")]),
    Case("OffloadResults, short results", lambda: [OffloadResults()]),
    Case("Steering, nothing said", lambda: [Steering()]),
    Case("SystemReminder, not now", lambda: [_now_and_then()]),
    Case("SystemReminder, each round", lambda: [SystemReminder("Never touch the production database.")]),
    Case("DynamicContext, the time", lambda: [DynamicContext(current_time())]),
    Case("ToolSearch, all tools listed", lambda: [ToolSearch(always=["add"])]),
    Case("Skills, none read", lambda: [Skills(_SKILLS)]),
    Case("Memory, nothing stored", lambda: [Memory(":memory:", user="ada")]),
    Case("MemoryFiles, none", lambda: [MemoryFiles(":memory:", user="ada")]),
    Case("Retrieve, no documents", lambda: [Retrieve(SqliteIndex(":memory:"))]),
    Case("OnlineEvaluation, no call chosen", lambda: [OnlineEvaluation([lambda trial: True], share=0)]),
    Case("Recorder, to memory", lambda: [Recorder()]),
    Case("OpenTelemetry, sampled out: 2 spans", lambda: [sampling(ALWAYS_OFF)]),
    Case("OpenTelemetry, recorded: 2 spans", lambda: [sampling(ALWAYS_ON)]),
)
"""Every plugin alone, in the order of the documentation."""


def all_plugins(level: str = "INFO") -> list[Hook]:
    """All plugins, as one agent might have it; for a record of every change, the `Recorder` is added."""
    return [
        EventLog(log=_log(level)),
        UsageLimits(tokens=_FOREVER, cost=1e9, tool_calls=_FOREVER, seconds=1e9, prices=_PRICES),
        ModelRetry(),
        ModelFallback(_other()),
        RateLimit(calls=_FOREVER, per=1),
        ToolRetry(),
        ToolCache(size=1),
        Approval([Allow("add")]),
        ShellApproval(),
        Redaction(),
        InputGuardrail(_passes),
        OutputGuardrail(_passes),
        ToolGuardrail(_allows),
        Reflection(_other(), every=_FOREVER),
        ChainOfThought(),
        GoalJudge(lambda event: True),
        NoProgress(),
        SummaryCompaction(at_tokens=_FOREVER),
        ClearOldResults(),
        OffloadResults(),
        Steering(),
        SystemReminder("Never touch the production database.", every=5),
        DynamicContext(current_time()),
    ]


# ---- a round


def _script(rounds: int) -> Script:
    """Replies that ask for the tool with other arguments each time: nothing repeats itself, so no guard steps in."""
    asks = [
        (
            ModelChunk(
                tool_uses=(ToolUseDelta(0, f"call_{i}", "add", f'{{"a": {i}, "b": 2}}'),),
                usage=_USAGE,
                finish_reason="tool_calls",
            ),
        )
        for i in range(rounds)
    ]
    # A provider reports the usage of all replies or of none: without it, `UsageLimits` would estimate that of the last one.
    return Script(*asks, (ModelChunk("It is 3.", usage=_USAGE, finish_reason="stop"),))


def with_hooks(hooks: Callable[[], Sequence[Hook]], rounds: int) -> Body:
    """A call with so many rounds on an agent with these hooks."""
    agent = Agent(
        "benchmark",
        _script(rounds),
        system="You are a careful assistant.",
        tools=[_READ],
        max_iterations=1_000,
        hooks=list(hooks()),
    )

    async def body(count: int) -> None:
        for _ in range(count):
            await agent.call("What is 1 + 2?", session=Session.fresh())

    return body


def _bare(rounds: int) -> Body:
    model = _script(rounds)

    async def body(count: int) -> None:
        for _ in range(count):
            await bare_call(model, [user("What is 1 + 2?")], 1_000)

    return body


def _nothing() -> list[Hook]:
    return []


async def _figures(effort: Effort, cases: Sequence[Case]) -> list[Figure]:
    """The round of each case against the bare loop's, and its addition to the round without plugins."""
    n = 2 if effort.quick else _ROUNDS
    sides: list[Body] = [_bare(0), _bare(n), with_hooks(_nothing, 0), with_hooks(_nothing, n)]
    for case in cases:
        sides += [with_hooks(case.make, 0), with_hooks(case.make, n)]
    turns = await measure(effort, *sides)
    bare, none = turns.slope(1, 0, n), turns.slope(3, 2, n)
    figures = [Figure("plugins", "no plugin", none / bare, detail=f"{none * 1e6:.1f} µs; by hand {bare * 1e6:.2f} µs")]
    for index, case in enumerate(cases):
        side = 4 + 2 * index
        took = turns.slope(side + 1, side, n)
        detail = f"{took * 1e6:.1f} µs, its share {(took - none) * 1e6:.1f}"
        budget = BUDGET if case.name.startswith("all plugins") else None
        figures.append(Figure("plugins", case.name, took / bare, budget=budget, detail=detail))
    return figures


async def together(effort: Effort) -> list[Figure]:
    """The round with all plugins at once."""
    return await _figures(
        effort,
        (
            Case("all plugins, log at INFO", all_plugins),
            Case("  log at DEBUG", lambda: all_plugins("DEBUG")),
            Case("  log at WARNING: no lines", lambda: all_plugins("WARNING")),
            Case("  log at INFO, and the Recorder", lambda: [*all_plugins(), Recorder()]),
        ),
    )


class _Layer(Hook):
    """Wraps model and tools, and does nothing: the loop's own cost for a wrapper."""

    wraps = (PreReasoning, PreActing)

    def around(self, event: HookEvent, source: Any) -> Observable[Any]:
        """Hand on."""
        if isinstance(event, PreReasoning):
            return Flux(partial(self._chunks, source))
        return Mono(source.resolve)

    async def _chunks(self, source: ModelSource) -> AsyncIterator[ModelChunk]:
        chunks = source.open()
        try:
            async for chunk in chunks:
                yield chunk
        finally:
            await close(chunks)


async def spans(effort: Effort) -> list[Figure]:
    """The cost of a span that is sampled out: the loop's own part of a layer, and the plugin's, of two spans a round."""
    n = 2 if effort.quick else _ROUNDS
    cases = _nothing, lambda: [_Layer()], lambda: [sampling(ALWAYS_OFF)]
    sides: list[Body] = [_bare(0), _bare(n)]
    for make in cases:
        sides += [with_hooks(make, 0), with_hooks(make, n)]
    turns = await measure(effort, *sides)
    bare, none, layer, traced = (turns.slope(at + 1, at, n) for at in (0, 2, 4, 6))
    span, own = (traced - none) / 2, (traced - layer) / 2
    detail = f"{span * 1e6:.1f} µs, OpenTelemetry's own part {own * 1e6:.1f}; a round by hand {bare * 1e6:.2f} µs"
    return [Figure("spans", "a span that is sampled out", span / bare, detail=detail)]


async def plugins(effort: Effort) -> list[Figure]:
    """The round with each plugin alone."""
    figures: list[Figure] = []
    for start in range(0, len(PLUGINS), 6):  # a few at a time, so that the sides of a row stay near each other in time
        some = await _figures(effort, PLUGINS[start : start + 6])
        figures += some if not start else some[1:]
    return figures


# ---- the command


async def added(make: Callable[[], Sequence[Hook]]) -> Counts:
    """Count what hooks add to a round."""
    return (await counted_round(make)).per(await counted_round(_nothing))


async def counted_round(make: Callable[[], Sequence[Hook]]) -> Counts:
    """Count one more round with these hooks."""

    async def of(rounds: int) -> Counts:
        body = with_hooks(make, rounds)
        await body(2)
        return await counted(lambda: body(1))

    return (await of(_ROUNDS)).per(await of(_ROUNDS // 2), _ROUNDS // 2)


async def _count(cases: Sequence[Case]) -> None:
    for case in cases:
        print(f"{case.name:45} {(await added(case.make)).bytecodes:9,.0f}", flush=True)


def _profile(case: Case) -> None:
    body = with_hooks(case.make, _ROUNDS)
    profile = cProfile.Profile()

    async def profiled() -> None:
        count = await fit(body, Effort())
        profile.enable()
        await body(count * 10)
        profile.disable()

    asyncio.run(profiled())
    pstats.Stats(profile).sort_stats("tottime").print_stats(60)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plugins", description=inspect.getdoc(sys.modules[__name__])
    )
    parser.add_argument("--only", metavar="TEXT", help="the plugins with this in their line")
    parser.add_argument("--quick", action="store_true", help="only see that it runs")
    parser.add_argument(
        "--count", action="store_true", help="count the bytecodes that each adds to a round (Python 3.12)"
    )
    parser.add_argument("--profile", metavar="TEXT", help="profile the first plugin with this in its line, or 'all'")
    asked = parser.parse_args()
    if asked.profile:
        everything = Case("all plugins", all_plugins)
        found = [] if asked.profile == "all" else [case for case in PLUGINS if asked.profile in case.name]
        _profile(found[0] if found else everything)
        return
    if asked.count:
        asyncio.run(_count([case for case in PLUGINS if (asked.only or "") in case.name]))
        return
    effort = Effort.smoke() if asked.quick else EFFORT
    print(title(), flush=True)
    if asked.only:
        figures = asyncio.run(_figures(effort, [case for case in PLUGINS if asked.only in case.name]))
    else:
        figures = asyncio.run(plugins(effort)) + asyncio.run(together(effort))
    for figure in figures:
        print(line(figure))


if __name__ == "__main__":
    main()
