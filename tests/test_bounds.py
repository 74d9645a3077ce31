"""Numeric options at their bounds: the last value that is refused, and the first one that is accepted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agentflow import Agent, ToolSchedule, tool
from agentflow.agent.graceful import GracefulShutdown
from agentflow.agent.orchestration import batch
from agentflow.durable.client import DurableClient
from agentflow.errors import UsageError
from agentflow.loop.output import Output
from agentflow.models import AnthropicWire, OpenAIBatch, OpenAIEmbedder
from agentflow.plugins import (
    ClearOldResults,
    EventLog,
    GoalJudge,
    Memory,
    MemoryFiles,
    ModelCache,
    ModelFallback,
    NoProgress,
    OffloadResults,
    OnlineEvaluation,
    OutputGuardrail,
    RateLimit,
    Reflection,
    Retrieve,
    Skills,
    Steering,
    SummaryCompaction,
    SystemReminder,
    ToolCache,
    ToolSearch,
    UsageLimits,
)
from agentflow.plugins.code.running import check_limits
from agentflow.plugins.reminders import FileContent
from agentflow.plugins.retrieval import SqliteIndex
from agentflow.reactive import Flux
from agentflow.recording import Recorder
from agentflow.recording.keeping import check_bounds
from agentflow.serve.limits import Limits
from agentflow.state import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.testing.faults import Crash
from agentflow.tools.computer import computer_tool
from agentflow.vocabulary import ServerTool
from agentflow.vocabulary.ports.retry import RetryPolicy

ABOVE_0, FROM_0, FROM_1 = (0, 1e-9), (-1, 0), (0, 1)
MODEL = ScriptedModel([])


def _tool(**options: Any) -> object:
    @tool(**options)
    async def look() -> None:
        """Look."""

    return look


BOUNDS: dict[str, tuple[Callable[..., object], dict[str, tuple[float, float]]]] = {
    "Agent": (partial(Agent, "a", MODEL), {"max_iterations": FROM_1, "queue_limit": FROM_1}),
    "Agent.stream": (lambda buffer: Agent("a", MODEL).stream("Hi", buffer=buffer), {"buffer": FROM_0}),
    "ToolSchedule": (ToolSchedule, {"max_concurrency": FROM_1}),
    "tool": (_tool, {"retries": FROM_0, "timeout": ABOVE_0}),
    "Output": (partial(Output, int), {"retries": FROM_0}),
    "GracefulShutdown": (partial(GracefulShutdown, Agent("a", MODEL)), {"limit": FROM_0}),
    "batch": (lambda concurrency: batch(Agent("a", MODEL), [], concurrency=concurrency), {"concurrency": FROM_1}),
    "DurableClient": (partial(DurableClient, "sqlite:///x.db"), {"poll": ABOVE_0}),
    "RetryPolicy": (RetryPolicy, {"attempts": FROM_1, "first_wait": FROM_0, "max_wait": FROM_0, "jitter": FROM_0}),
    "ServerTool.web_search": (ServerTool.web_search, {"max_uses": FROM_1}),
    "AnthropicWire": (partial(AnthropicWire, "m"), {"retries": FROM_0}),
    "OpenAIBatch": (
        partial(OpenAIBatch, "m", path="x.db"),
        {"window": FROM_0, "poll": ABOVE_0, "max_requests": FROM_1},
    ),
    "OpenAIBatch, most": (partial(OpenAIBatch, "m", path="x.db"), {"max_requests": (50_001, 50_000)}),
    "OpenAIEmbedder": (partial(OpenAIEmbedder, "m"), {"dimensions": FROM_1, "retries": FROM_0}),
    "computer_tool": (
        lambda **sides: computer_tool(lambda *_: None, **{"width": 9, "height": 9, **sides}),  # type: ignore[arg-type]
        {"width": FROM_1, "height": FROM_1},
    ),
    "SqlStore": (partial(SqlStore, "sqlite:///x.db"), {"lease_seconds": ABOVE_0, "timeout": ABOVE_0}),
    "Recorder": (Recorder, {"max_records": FROM_1, "short": FROM_0, "interval": ABOVE_0}),
    "prune_logs": (partial(check_bounds, max_age=None), {"max_bytes": FROM_1}),
    "Limits": (Limits, {field.name: ABOVE_0 for field in fields(Limits)}),
    "Crash": (Crash, {"at": FROM_1}),
    "Flux.take": (Flux.range(3).take, {"count": FROM_0}),
    "Flux.buffer_with_count": (Flux.range(3).buffer_with_count, {"count": FROM_1}),
    "Flux.flat_map": (partial(Flux.range(3).flat_map, Flux.just), {"max_concurrent": FROM_1}),
    "Flux.retry": (Flux.range(3).retry, {"retry_count": FROM_1}),
    "Flux.delay_subscription": (Flux.range(3).delay_subscription, {"duetime": (-1e-9, 0)}),
    "ClearOldResults": (ClearOldResults, {"keep": FROM_0, "min_chars": FROM_0, "step": FROM_1}),
    "EventLog": (EventLog, {"clip": FROM_1}),
    "FileContent": (partial(FileContent, "x"), {"limit": FROM_1}),
    "GoalJudge": (partial(GoalJudge, "done"), {"max_rounds": FROM_0}),
    "Memory": (partial(Memory, ":memory:", user="u"), {"recall": FROM_0, "max_length": FROM_1, "max_memories": FROM_1}),
    "MemoryFiles": (partial(MemoryFiles, ":memory:", user="u"), {"max_length": FROM_1, "max_files": FROM_1}),
    "ModelCache": (ModelCache, {"ttl": ABOVE_0, "size": FROM_1}),
    "ToolCache": (partial(ToolCache, tools=["look"]), {"ttl": ABOVE_0, "size": FROM_1}),
    "ModelFallback": (partial(ModelFallback, MODEL), {"cooldown": (-1e-9, 0)}),
    "NoProgress": (NoProgress, {"repeats": (1, 2), "nudges": FROM_0}),
    "OffloadResults": (OffloadResults, {"preview_chars": FROM_0, "over_chars": (999, 1_000)}),
    "OffloadResults, most": (OffloadResults, {"preview_chars": (8_001, 8_000)}),
    "OffloadResults without a preview": (partial(OffloadResults, preview_chars=0), {"over_chars": FROM_1}),
    "OnlineEvaluation": (
        partial(OnlineEvaluation, [lambda _: None]),
        {"share": (-1e-9, 0), "concurrency": FROM_1, "max_pending": FROM_1, "timeout": ABOVE_0, "grace": (-1e-9, 0)},
    ),
    "OnlineEvaluation, most": (partial(OnlineEvaluation, [lambda _: None]), {"share": (1 + 1e-9, 1)}),
    "OutputGuardrail": (partial(OutputGuardrail, lambda _: None), {"times": FROM_0}),
    "RateLimit": (partial(RateLimit, calls=1), {"calls": FROM_1, "tokens": FROM_1, "burst": FROM_1, "per": ABOVE_0}),
    "Reflection": (Reflection, {"every": FROM_1}),
    "Retrieve": (partial(Retrieve, lambda _: None), {"passages": FROM_0}),
    "Retrieve without a tool": (partial(Retrieve, lambda _: None, tool=None), {"passages": FROM_1}),
    "SqliteIndex": (partial(SqliteIndex, ":memory:"), {"max_length": (49, 50)}),
    "Skills": (Skills, {"max_bytes": FROM_1}),
    "Steering": (Steering, {"max_back": FROM_0}),
    "SummaryCompaction": (
        partial(SummaryCompaction, at_tokens=1),
        {"at_tokens": FROM_1, "at_messages": FROM_1, "keep_rounds": FROM_1, "cooldown": FROM_0, "clip": FROM_1},
    ),
    "SystemReminder": (partial(SystemReminder, "x"), {"every": FROM_1}),
    "ToolSearch": (ToolSearch, {"results": FROM_1}),
    "UsageLimits": (
        UsageLimits,
        dict.fromkeys(
            ("tokens", "input_tokens", "output_tokens", "cost", "model_calls", "tool_calls", "seconds"), (-1e-9, 0)
        ),
    ),
    "sandboxes": (partial(check_limits, "Monty"), {"seconds": ABOVE_0, "output": (float("inf"), 1e300)}),
}
"""How to make each thing, and of its options what is refused, and what is accepted next to it."""


def _rows() -> Iterator[Any]:
    for name, (make, options) in BOUNDS.items():
        for option, (refused, accepted) in options.items():
            shown = name.removeprefix("Flux.") if name.startswith("Flux.") else option  # operators name themselves
            yield pytest.param(make, option, shown, refused, accepted, id=f"{name}({option})")


@pytest.mark.parametrize(("make", "option", "shown", "refused", "accepted"), list(_rows()))
def test_the_bound_of_an_option(
    make: Callable[..., object],
    option: str,
    shown: str,
    refused: float,
    accepted: float,
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    """The error names the option or the operator; a legal value right beside the bound is accepted."""
    monkeypatch.chdir(tmp_path)  # some create a file
    with pytest.raises(UsageError, match=shown):
        make(**{option: refused})
    make(**{option: accepted})


def test_the_bound_of_an_age() -> None:
    """Logs can be pruned by any age above 0."""
    with pytest.raises(UsageError, match="max_age"):
        check_bounds(None, timedelta(0))
    check_bounds(None, timedelta(microseconds=1))
