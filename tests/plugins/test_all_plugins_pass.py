"""Every ready-made hook passes the suite for authors of hooks.

The hooks are found by introspection of `agentflow.plugins`; each has an entry in `FACTORIES` that says how it is made, and a
plugin without one fails here with a message that says so.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler

import agentflow.plugins
from agentflow.hooks.defaults import RetryEmptyAnswers, RetryTruncatedAnswers
from agentflow.hooks.hook import Hook
from agentflow.plugins._counting import count_tokens
from agentflow.plugins.approval import Allow, Approval
from agentflow.plugins.cache import ModelCache, ToolCache
from agentflow.plugins.clearing import ClearOldResults
from agentflow.plugins.compaction import SummaryCompaction
from agentflow.plugins.debugger import Breakpoint, Pause
from agentflow.plugins.evaluation import OnlineEvaluation, StaysWithin
from agentflow.plugins.fallback import ModelFallback
from agentflow.plugins.goal import GoalJudge
from agentflow.plugins.guardrails import InputGuardrail, OutputGuardrail, ToolGuardrail
from agentflow.plugins.limits import UsageLimits
from agentflow.plugins.logging import EventLog
from agentflow.plugins.memory import Memory, MemoryFiles, SqliteMemory
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
from agentflow.recording.recorder import Recorder
from agentflow.testing import ScriptedModel, check_hook
from agentflow.vocabulary.events import PreActing, PreReasoning
from agentflow.vocabulary.messages import Msg

Factory = Callable[[], Hook]


async def _later(verdict: str | None) -> str | None:
    return verdict


async def _resume(pause: Pause) -> None:
    pause.resume()


def _spare() -> ScriptedModel:
    """A model that always answers."""
    return ScriptedModel(lambda request: f"the spare one, asked {len(request.messages)} messages")


def _tracers(sampler: Sampler) -> TracerProvider:
    tracers = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
    return tracers


def _index() -> SqliteIndex:
    index = SqliteIndex(":memory:")
    asyncio.run(index.add("numbers.txt", "The number 7 is the question to be noted."))
    return index


FACTORIES: dict[type[Hook], dict[str, Factory]] = {
    Approval: {
        "nobody to ask": lambda: Approval([Allow("look")]),
        "suspends": lambda: Approval([Allow("look")], suspend=True),
    },
    ShellApproval: {
        "other tools": ShellApproval,
        "any tool": lambda: ShellApproval(["save"], "text", allow=["number *"]),
    },
    ToolCache: {"defaults": ToolCache, "all tools": lambda: ToolCache(tools=("*",))},
    ModelCache: {"defaults": ModelCache},
    ClearOldResults: {
        "early": lambda: ClearOldResults(1, min_chars=10, step=1),
        "everything": lambda: ClearOldResults(0, step=1, min_chars=0),
    },
    SummaryCompaction: {
        "own model": lambda: SummaryCompaction(at_messages=6, keep_rounds=1),
        "other model": lambda: SummaryCompaction(at_tokens=300, keep_rounds=2, model=_spare()),
        "each time": lambda: SummaryCompaction(at_messages=4, keep_rounds=1, cooldown=0, model=_spare()),
    },
    Breakpoint: {
        "resumed": lambda: Breakpoint(PreReasoning, PreActing, ask=_resume),
        "no terminal": lambda: Breakpoint(PreActing),
    },
    ModelFallback: {"one": lambda: ModelFallback(_spare()), "cooldown": lambda: ModelFallback(_spare(), cooldown=5)},
    GoalJudge: {
        "a criterion": lambda: GoalJudge("The question is answered.", max_rounds=1),
        "never content": lambda: GoalJudge(lambda event: "no", max_rounds=2),
    },
    InputGuardrail: {
        "before": lambda: InputGuardrail(lambda *_: None),
        "refuses": lambda: InputGuardrail(lambda *_: _later("not today")),
        "racing": lambda: InputGuardrail(lambda *_: _later(None), racing=True),
        "racing and refusing": lambda: InputGuardrail(lambda *_: _later("not today"), racing=True, hold=False),
    },
    OutputGuardrail: {
        "passes": lambda: OutputGuardrail(lambda *_: None),
        "refuses": lambda: OutputGuardrail(lambda *_: "too long", times=1),
    },
    ToolGuardrail: {
        "passes": lambda: ToolGuardrail(lambda event: None),
        "refuses": lambda: ToolGuardrail(lambda event: "not that", tools=["save"]),
    },
    UsageLimits: {
        "wide": lambda: UsageLimits(tokens=10_000_000, tool_calls=10_000, seconds=10_000),
        "narrow": lambda: UsageLimits(tool_calls=3, model_calls=3),
        "one each": lambda: UsageLimits(tool_calls=1, model_calls=1),
        "cost of the hook": lambda: UsageLimits(cost=1.0, per="hook", unknown_price="ignore"),
    },
    EventLog: {"text": EventLog, "JSON with chunks": lambda: EventLog(json=True, chunks=True)},
    Memory: {
        "nothing stored": lambda: Memory(":memory:", user="ada"),
        "tools only": lambda: Memory(SqliteMemory(":memory:"), user=lambda run: run.session_id, recall=0),
    },
    MemoryFiles: {"files": lambda: MemoryFiles(":memory:", user="ada")},
    OffloadResults: {
        "small": lambda: OffloadResults(20, preview_chars=10),
        "everything": lambda: OffloadResults(3, preview_chars=1),
    },
    ToolSearch: {"all hidden": ToolSearch, "some shown": lambda: ToolSearch(always=["look", "s*"], results=1)},
    Skills: {"samples": lambda: Skills(Path(__file__).parents[2] / "samples" / "skills")},
    OpenTelemetry: {
        "no provider": OpenTelemetry,
        "recorded, with content": lambda: OpenTelemetry(content=True, tracer_provider=_tracers(ALWAYS_ON)),
        "sampled out": lambda: OpenTelemetry(tracer_provider=_tracers(ALWAYS_OFF)),
    },
    OnlineEvaluation: {"all, without its block": lambda: OnlineEvaluation([StaysWithin(rounds=1)], share=1)},
    NoProgress: {"defaults": NoProgress, "strict": lambda: NoProgress(2)},
    RateLimit: {
        "wide": lambda: RateLimit(calls=10_000, tokens=10_000_000),
        "narrow": lambda: RateLimit(calls=2, per=1),
        "tools": lambda: RateLimit(calls=5, per=1, tools=("look",)),
        "any tool": lambda: RateLimit(calls=100, tools=("*",)),
    },
    ReActThoughts: {
        "kept": ReActThoughts,
        "not kept": lambda: ReActThoughts(keep=False),
        "own model": lambda: ReActThoughts(_spare()),
    },
    ChainOfThought: {"defaults": ChainOfThought},
    Recorder: {
        "memory": Recorder,
        "digests": lambda: Recorder(short=0, every_call=True),
        "a file": lambda: Recorder(os.devnull),
    },
    Redaction: {
        "restoring": Redaction,
        "final": lambda: Redaction(restore=False),
        "originals kept": lambda: Redaction(stored="original"),
    },
    Reflection: {
        "each round": Reflection,
        "every other": lambda: Reflection(every=2, keep=False),
        "own model": lambda: Reflection(_spare()),
    },
    SystemReminder: {
        "each time": lambda: SystemReminder("Be brief."),
        "every other": lambda: SystemReminder("!", every=2),
    },
    DynamicContext: {
        "time": lambda: DynamicContext(current_time()),
        "a function": lambda: DynamicContext(lambda event: "It rains."),
    },
    Retrieve: {
        "requests and tool": lambda: Retrieve(_index()),
        "tool only": lambda: Retrieve(_index(), passages=0),
        "no index": lambda: Retrieve(lambda run: None),
    },
    ModelRetry: {"restart": ModelRetry, "raise": lambda: ModelRetry(after_first_chunk="raise", jitter=0)},
    ToolRetry: {"defaults": ToolRetry, "writes": lambda: ToolRetry(writes=True)},
    Steering: {"defaults": Steering},
    RetryEmptyAnswers: {"defaults": RetryEmptyAnswers},
    RetryTruncatedAnswers: {"defaults": RetryTruncatedAnswers},
}
"""How each plugin is made: what it is called in the test's name → a function that makes it."""

ACCEPTED: dict[tuple[type[Hook], str], frozenset[str]] = {}
"""Findings that a plugin has by design, with the reason in a comment at its entry."""


def plugins() -> Iterator[type[Hook]]:
    """Every hook that a module of `agentflow.plugins` defines and does not hide."""
    for info in pkgutil.walk_packages(agentflow.plugins.__path__, "agentflow.plugins."):
        for name, found in vars(importlib.import_module(info.name)).items():
            hook = inspect.isclass(found) and issubclass(found, Hook) and found.__module__ == info.name
            if hook and name[0] != "_":
                yield found


@pytest.mark.parametrize("plugin", [pytest.param(kind, id=kind.__name__) for kind in plugins()])
def test_every_plugin_is_checked(plugin: type[Hook]) -> None:
    """A new plugin gets an entry here when it is written."""
    assert FACTORIES.get(plugin), (
        f"{plugin.__module__}.{plugin.__name__} has no entry in FACTORIES: say how it is made."
    )


@pytest.fixture(autouse=True, scope="module")
def _counter() -> None:
    """LiteLLM's import takes seconds: on a busy machine the suite would take that for a hook that hangs."""
    asyncio.run(count_tokens([Msg.user("Hi")], "openai/gpt-5"))


pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.ci]


SMALL = {"runs": 10, "orders": 4, "cancellations": 8}
"""With so many runs each planted defect is found (`tests/testing/test_check_hook.py`)."""


def rows() -> Iterator[Any]:
    for plugin, factories in FACTORIES.items():
        for name, factory in factories.items():
            yield pytest.param(plugin, name, factory, id=f"{plugin.__name__}-{name}")


@pytest.mark.parametrize(("plugin", "name", "factory"), list(rows()))
def test_a_plugin_passes_the_suite_for_hooks(plugin: type[Hook], name: str, factory: Factory) -> None:
    """No shared state between runs, no broken history, no blocked loop, no leak, the same streamed and not."""
    report = check_hook(factory, **SMALL)
    assert report.kinds - ACCEPTED.get((plugin, name), frozenset()) == set(), str(report)


BANDS = {"system": range(50), "checks": range(50, 100), "behaviour": range(100, 500), "output": range(500, 1_000)}
"""As the page of the hook options has them."""


@pytest.mark.parametrize(
    "plugin", sorted(FACTORIES, key=lambda plugin: plugin.__name__), ids=lambda plugin: plugin.__name__
)
def test_a_plugin_stands_where_its_docstring_says(plugin: type[Hook]) -> None:
    """With its priority, in the band of that name, and as a guard or an observer if it is one."""
    found = re.search(r"Priority (\d+)(?: \((\w+)[^)]*\)(.*))?", plugin.__doc__ or "")
    if found is None:
        assert plugin in (Breakpoint, OpenTelemetry, Recorder, RetryEmptyAnswers, RetryTruncatedAnswers)
        return
    option = inspect.signature(plugin).parameters.get("priority")
    assert int(found[1]) == (plugin.priority if option is None else option.default)
    if found[2]:
        assert int(found[1]) in BANDS[found[2]]
    for role, has in (("a guard", plugin.guard), ("an observer", plugin.observer)):
        assert has == found[3].startswith(f", {role}") if found[3] is not None else not has
