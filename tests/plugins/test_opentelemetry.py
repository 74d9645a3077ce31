"""`OpenTelemetry`: whole trees of spans, by the conventions; nothing leaks, and every span ends."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from clocks import in_virtual_time
from eventlog import use
from loguru import logger
from nursery import Nursery
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.trace import get_current_span
from spantree import Seen, printed, seen, tree
from wired import EVERY, Wired

from agentflow import (
    Again,
    Agent,
    Approve,
    Deny,
    Hook,
    ModelChunk,
    ModelOptions,
    Msg,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    ReasoningChunk,
    Session,
    Stop,
    Turn,
    Usage,
    on,
    tool,
)
from agentflow.agent.orchestration import ask, handoffs, workflow
from agentflow.durable.agent import DurableAgent
from agentflow.errors import ModelError, UsageError
from agentflow.plugins import ModelFallback, ModelRetry, OpenTelemetry, Redaction, SummaryCompaction, ToolRetry
from agentflow.plugins.opentelemetry import attributes as semconv
from agentflow.plugins.opentelemetry.attributes import model_and_provider
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import Say
from agentflow.vocabulary.chunks import ToolUseDelta
from agentflow.vocabulary.ports.answer_origin import AnswerOrigin, answer_origin, noting_origin
from agentflow.vocabulary.ports.memory_store import MemoryStore

BILLED = ModelChunk(usage=Usage(input_tokens=10, output_tokens=5, cache_read_tokens=4), finish_reason="tool_calls")


class Traced:
    """Providers whose spans and points stay in memory."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(shutdown_on_exit=False, **options)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.mine = self.tracers.get_tracer("mine")

    def plugin(self, **options: Any) -> OpenTelemetry:
        """The plugin, with these providers."""
        return OpenTelemetry(tracer_provider=self.tracers, meter_provider=self.meters, **options)

    @property
    def spans(self) -> list[Seen]:
        """The spans that have ended."""
        return seen(self.exporter.get_finished_spans())

    @property
    def tree(self) -> str:
        """The same as a tree, between line breaks as tests write it."""
        return f"\n{tree(self.spans)}\n"

    def points(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        """The metrics: attributes, and count or sum."""
        data = self.reader.get_metrics_data()
        found: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics if data is not None else ():
            for point in metric.data.data_points:
                value: Any = getattr(point, "value", None)  # of a counter
                if value is None:
                    value = point.sum if metric.unit == "{token}" else point.count  # type: ignore - histograms
                found.setdefault(metric.name, []).append((dict(point.attributes or {}), value))
        return found


@pytest.fixture
def traced() -> Traced:
    """Providers of this test."""
    return Traced()


@tool(type="read")
async def look(place: int = 0) -> str:
    """Look at a place."""
    return f"place {place}"


def known(span: Seen) -> dict[str, Any]:
    """Return its attributes, without those that differ from run to run."""
    changing = {"agentflow.run.id", "agentflow.call.id", "gen_ai.response.time_to_first_chunk"}
    return {name: value for name, value in span.attributes.items() if name not in changing}


# ---- whole trees


async def test_a_run_whole(traced: Traced) -> None:
    """Names, kinds, parents, attributes and events of a call with two parallel tools, and a span of the user's in each."""

    @tool(type="read")
    async def fetch(page: int) -> str:
        """Fetch a page."""
        with traced.mine.start_as_current_span(f"GET {page}"):
            await asyncio.sleep(0)
        return f"page {page}"

    script = [[use("t1", "fetch", page=1), use("t2", "fetch", page=2), BILLED], "Done."]
    agent = Agent("desk", ScriptedModel(script, name="openai/gpt-5"), tools=[fetch], hooks=[traced.plugin()])
    await agent.call("Both, please.", session="ada")

    call, first, one, get1, two, get2, last = sorted(traced.spans, key=lambda span: (span.start, span.name))
    if (one.attributes.get("gen_ai.tool.call.id"), get1.name) != ("t1", "GET 1"):  # both tools run at once
        spans = {span.attributes.get("gen_ai.tool.call.id", span.name): span for span in (one, get1, two, get2)}
        one, two, get1, get2 = spans["t1"], spans["t2"], spans["GET 1"], spans["GET 2"]
    parents = {span.id: span.name for span in traced.spans}
    assert [(span.name, span.kind, parents.get(span.parent)) for span in (call, first, one, get1, two, get2, last)] == [
        ("invoke_agent desk", "INTERNAL", None),
        ("chat gpt-5", "CLIENT", "invoke_agent desk"),
        ("execute_tool fetch", "INTERNAL", "invoke_agent desk"),
        ("GET 1", "INTERNAL", "execute_tool fetch"),
        ("execute_tool fetch", "INTERNAL", "invoke_agent desk"),
        ("GET 2", "INTERNAL", "execute_tool fetch"),
        ("chat gpt-5", "CLIENT", "invoke_agent desk"),
    ]
    assert (get1.parent, get2.parent) == (one.id, two.id)
    assert known(call) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "openai",
        "gen_ai.agent.name": "desk",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.conversation.id": "ada",
        "agentflow.outcome": "completed",
        "agentflow.usage.model_calls": 2,
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
    }
    request = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5",
        "gen_ai.request.stream": True,
        "gen_ai.conversation.id": "ada",
    }
    assert known(first) == {
        **request,
        "agentflow.iteration": 1,
        "gen_ai.response.finish_reasons": ("tool_calls",),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
    }
    assert known(last) == {**request, "agentflow.iteration": 2, "gen_ai.response.finish_reasons": ("stop",)}
    assert known(two) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "fetch",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "t2",
        "gen_ai.tool.description": "Fetch a page.",
        "gen_ai.agent.name": "desk",
        "agentflow.iteration": 1,
    }
    assert [(span.events, span.links, span.status) for span in traced.spans] == [([], [], "UNSET")] * 7
    chat = {name: request[name] for name in list(request)[:3]}
    tools = {name: known(two)[name] for name in ("gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.tool.type")}
    assert traced.points() == {
        "gen_ai.client.operation.duration": [(chat, 2)],
        "gen_ai.client.operation.time_to_first_chunk": [(chat, 2)],
        "gen_ai.client.token.usage": [
            ({**chat, "gen_ai.token.type": "input"}, 10),
            ({**chat, "gen_ai.token.type": "output"}, 5),
        ],
        "gen_ai.execute_tool.duration": [({**tools, "gen_ai.agent.name": "desk"}, 2)],
        "gen_ai.invoke_agent.duration": [({"gen_ai.agent.name": "desk"}, 1)],
    }


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_attempts_fallbacks_and_sub_agents(traced: Traced, how: str) -> None:
    """Each attempt is a span, at the model and at the tool, and the fallback's names its own model; the same streamed."""
    failing = [True]

    @tool(type="read")
    async def flaky() -> str:
        """Fails once."""
        if failing:
            failing.clear()
            raise ConnectionError("gone")
        return "here"

    retries = [ToolRetry(first_wait=0.0, jitter=0.0)]
    script = [use("s1", "flaky"), "It is here."]
    sub = Agent("helper", ScriptedModel(script, name="small"), tools=[flaky], hooks=retries)
    busy = ModelError("busy", retryable=True, retry_after=0.0)
    model = ScriptedModel([[busy], use("t1", "helper", message="Where?"), [busy], [busy]], name="anthropic/claude")
    spare = ScriptedModel(["Here."], name="gemini/spare")
    hooks: list[Hook] = [traced.plugin(), ModelRetry(attempts=2, first_wait=0.0, jitter=0.0), ModelFallback(spare)]
    agent = Agent("desk", model, tools=[sub.as_tool()], hooks=hooks)
    if how == "call":
        await agent.call("Where is it?")
    else:
        async with agent.stream("Where is it?", children=True) as events:
            async for _ in events:
                pass
    assert (
        traced.tree
        == """
invoke_agent desk  (completed)
├─ chat claude  (failed: agentflow.errors.ModelError)
├─ chat claude  (attempt 2)
├─ execute_tool helper  (t1)
│  └─ invoke_agent helper  (completed)
│     ├─ chat small
│     ├─ execute_tool flaky  (s1, failed: ConnectionError)
│     ├─ execute_tool flaky  (s1, attempt 2)
│     └─ chat small
├─ chat claude  (failed: agentflow.errors.ModelError)
├─ chat claude  (attempt 2, failed: agentflow.errors.ModelError)
└─ chat spare  (attempt 3)
"""
    )
    assert [span.attributes["gen_ai.provider.name"] for span in traced.spans if "chat" in span.name][-2:] == [
        "anthropic",
        "gcp.gemini",
    ]
    assert len({span.trace for span in traced.spans}) == 1


async def test_who_denied_what(traced: Traced) -> None:
    """A verdict is an event of the call's span: which one, whose, on what; the reason is content."""
    asked: list[int] = []

    @on(PreActing, guard=True, tools=["look"])
    def guard(event: PreActing) -> Deny | None:
        return Deny("secret reason") if event.tool_use.id == "t1" else None

    @on(PostReasoning)
    def again(event: PostReasoning) -> Again | None:
        if event.reasoning_result.text != "Hm.":
            return None
        asked.append(1)
        return Again("Are you sure?")

    script = [[use("t1", "look"), use("t2", "look", place=2)], "Hm.", "Yes."]
    agent = Agent("desk", ScriptedModel(script), tools=[look], hooks=[guard, again, traced.plugin()])
    await agent.call("Look.")
    assert (
        traced.tree
        == """
invoke_agent desk  (completed)
├─ chat scripted
├─ · verdict: Deny guard PreActing look t1
├─ execute_tool look  (t2)
├─ chat scripted
├─ · verdict: Again again PostReasoning
├─ · messages_added: again 1
└─ chat scripted
"""
    )
    events = traced.spans[0].events
    assert events[0] == (
        "agentflow.verdict",
        {
            "agentflow.verdict": "Deny",
            "agentflow.hook": "guard",
            "agentflow.event": "PreActing",
            "gen_ai.tool.name": "look",
            "gen_ai.tool.call.id": "t1",
        },
    )
    assert (
        "agentflow.verdict",
        {"agentflow.verdict": "Again", "agentflow.hook": "again", "agentflow.event": "PostReasoning"},
    ) in events
    assert "secret" not in str([(span.attributes, span.events, span.said) for span in traced.spans])


async def test_a_compaction_is_noted_where_it_was_sent(traced: Traced) -> None:
    """The attempt whose request was compacted says so, with how much it was: here the second, since the first did not fit."""
    looks = [use(f"t{i}", "look", place=i) for i in range(2)]
    model = ScriptedModel([*looks, ModelError("the prompt is too long"), "Done."], name="openai/gpt-5")
    compaction = SummaryCompaction(keep_rounds=1, model=ScriptedModel(["short"]))
    await Agent("desk", model, tools=[look], hooks=[traced.plugin(), compaction]).call("Go")
    chats = [span for span in traced.spans if span.name == "chat gpt-5"]
    assert [[name for name, _ in span.events] for span in chats] == [[], [], [], ["agentflow.compacted"]]
    assert chats[-1].events[0][1] == {
        "agentflow.hook": "SummaryCompaction",
        "agentflow.messages": 3,
        "agentflow.tokens.before": 16,
        "agentflow.tokens.after": 24,
    }


@pytest.mark.parametrize(
    ("kind", "verdict", "outcome"),
    [(PreCall, Deny("no"), "denied"), (PreReasoning, Stop("enough"), "stopped"), (PreReasoning, Deny("no"), "denied")],
)
async def test_a_call_that_a_hook_ends(traced: Traced, kind: Any, verdict: Any, outcome: str) -> None:
    """It is no error, and no model is called; the event names the hook."""
    ending = on(kind)(lambda event: verdict)
    await Agent("desk", ScriptedModel([]), hooks=[ending, traced.plugin()]).call("Hi")
    (span,) = traced.spans
    assert (span.attributes["agentflow.outcome"], span.status) == (outcome, "UNSET")
    assert [said["agentflow.verdict"] for _, said in span.events] == [type(verdict).__name__]


async def test_a_failed_call(traced: Traced) -> None:
    """Its span and the model's have the error; its text is content."""
    model = ScriptedModel([[ModelError("my key is sk-123", retryable=False)]])
    with pytest.raises(ModelError):
        await Agent("desk", model, hooks=[traced.plugin()]).call("Hi")
    kind = "agentflow.errors.ModelError"
    assert [(s.name, s.status, s.said, s.attributes["error.type"]) for s in traced.spans] == [
        ("invoke_agent desk", "ERROR", None, kind),
        ("chat scripted", "ERROR", None, kind),
    ]
    errors = [said.get("error.type") for points in traced.points().values() for said, _ in points]
    assert errors == [kind, kind]


async def test_a_hook_that_fails(traced: Traced) -> None:
    """It is an event: which hook, with what."""

    @on(PreReasoning, on_failure="skip")
    def broken(event: PreReasoning) -> None:
        raise ValueError("private")

    await Agent("desk", ScriptedModel(["Hello."]), hooks=[broken, traced.plugin()]).call("Hi")
    assert traced.spans[0].events == [
        ("exception", {"exception.type": "ValueError", "agentflow.phase": "hook", "agentflow.hook": "broken"})
    ]


async def test_a_system_prompt_that_fails(traced: Traced) -> None:
    """A call that fails before its first event has its span all the same."""

    def system(context: object) -> str:
        raise LookupError("no prompt")

    with pytest.raises(LookupError):
        await Agent("desk", ScriptedModel([]), system=system, hooks=[traced.plugin()]).call("Hi")
    (span,) = traced.spans
    assert (span.attributes["agentflow.outcome"], span.attributes["error.type"]) == ("failed", "LookupError")


async def test_a_turn_without_a_model(traced: Traced) -> None:
    """Its tool's span is below the current span."""
    agent = Agent("desk", ScriptedModel([]), tools=[look], hooks=[traced.plugin()])
    with traced.mine.start_as_current_span("job"):
        receipt = await agent.queue.put(Turn(look, {"place": 3}))
        assert [value async for _, value in agent.run()] == [await receipt]
    assert traced.tree == "\njob\n└─ execute_tool look  ({})\n".format(
        traced.spans[1].attributes["gen_ai.tool.call.id"]
    )


# ---- runs of several calls


@tool(requires_approval=True)
async def pay(amount: int) -> str:
    """Pay."""
    return f"{amount} paid"


@pytest.mark.parametrize("stored", [False, True])
async def test_a_resume_is_in_the_trace_of_its_run(traced: Traced, stored: bool) -> None:
    """Below the run's first call, linked to the last one, and to the request that brought the decision."""
    store = MemoryStore() if stored else None
    script = [use("t1", "pay", amount=5), use("t2", "pay", amount=6), "Paid."]
    model = ScriptedModel(script)

    def made() -> Agent:
        return Agent("desk", model, tools=[pay], hooks=[traced.plugin()], store=store)

    agent = made()
    await agent.call("Pay 5 and 6.", session="ada")
    agent = made() if stored else agent
    await agent.resume("ada", {"t1": Approve()})
    agent = made() if stored else agent
    with traced.mine.start_as_current_span("POST /decide"):
        await agent.resume("ada", {"t2": Approve()})
    first, *_ = spans = traced.spans
    request = next(span for span in spans if span.name == "POST /decide")
    run = [span for span in spans if span.trace == first.trace]
    assert (
        f"\n{tree(run, 'POST /decide')}\n"
        == """
invoke_agent desk  (suspended)
├─ chat scripted
├─ · suspended: requires_approval approval pay t1
├─ invoke_agent desk  (suspended) → resumes invoke_agent desk  (suspended)
│  ├─ execute_tool pay  (t1)
│  ├─ chat scripted
│  └─ · suspended: requires_approval approval pay t2
└─ invoke_agent desk  (completed) → resumes invoke_agent desk  (suspended) → resumed_in POST /decide
   ├─ execute_tool pay  (t2)
   └─ chat scripted
"""
    )
    calls = [span for span in run if span.name == "invoke_agent desk"]
    assert [[to for to, _ in span.links] for span in calls] == [[], [calls[0].id], [calls[1].id, request.id]]


async def test_both_calls_in_one_request(traced: Traced) -> None:
    """If the resume is made in the same trace, it is below the current span there, like any call."""
    agent = Agent("desk", ScriptedModel([use("t1", "pay", amount=5), "Paid."]), tools=[pay], hooks=[traced.plugin()])
    with traced.mine.start_as_current_span("job"):
        await agent.call("Pay 5.", session="ada")
        await agent.resume("ada", {"t1": Approve()})
    parents = {span.id: span.name for span in traced.spans}
    assert [parents[s.parent] for s in traced.spans if s.name == "invoke_agent desk"] == ["job", "job"]


async def test_a_sub_agent_that_was_suspended(traced: Traced) -> None:
    """Its second call is below the tool that asks it again, and linked to its first one."""
    sub = Agent("payer", ScriptedModel([use("s1", "pay", amount=5), "Paid."]), tools=[pay])
    model = ScriptedModel([use("t1", "payer", message="Pay 5."), "Done."])
    agent = Agent("desk", model, tools=[sub.as_tool()], hooks=[traced.plugin()])
    reply = await agent.call("Pay.", session="ada")
    await agent.resume("ada", {key.id: Approve() for key in reply.pending})
    assert (
        traced.tree
        == """
invoke_agent desk  (suspended)
├─ chat scripted
├─ execute_tool payer  (t1, suspended)
│  └─ invoke_agent payer  (suspended)
│     ├─ chat scripted
│     └─ · suspended: requires_approval approval pay s1
├─ · suspended: requires_approval approval pay s1
└─ invoke_agent desk  (completed) → resumes invoke_agent desk  (suspended)
   ├─ execute_tool payer  (t1)
   │  └─ invoke_agent payer  (completed) → resumes invoke_agent payer  (suspended)
   │     ├─ execute_tool pay  (s1)
   │     └─ chat scripted
   └─ chat scripted
"""
    )


# ---- what is current, and where


async def test_a_reader_of_a_stream_sees_no_span_of_the_run(traced: Traced) -> None:
    """Between two events the current span is the reader's own, in a tool's chunks too."""

    @tool
    async def count() -> Any:
        """Count."""
        for n in range(3):
            yield str(n)

    agent = Agent("desk", ScriptedModel([use("t1", "count"), ["a", "b"]]), tools=[count], hooks=[traced.plugin()])
    current: set[str] = set()
    with traced.mine.start_as_current_span("reader"):
        async with agent.stream("Count.") as events:
            async for _ in events:
                current.add(get_current_span().name)  # type: ignore - of the SDK
    assert current == {"reader"}


async def test_a_tool_in_a_thread_and_a_model_that_makes_spans(traced: Traced) -> None:
    """What they begin is below their spans."""

    class Remote:
        name = "remote"

        async def stream(self, request: Any) -> Any:
            with traced.mine.start_as_current_span("POST /chat"):
                if request.messages[-1].role == "tool":
                    yield ModelChunk("Do")
                    yield ModelChunk("ne.")
                else:
                    yield ModelChunk.of(Msg.assistant([use("t1", "blocking")]))

    @tool(in_thread=True)
    def blocking() -> str:
        """Work in a thread."""
        with traced.mine.start_as_current_span("in the thread"):
            return "done"

    await Agent("desk", Remote(), tools=[blocking], hooks=[traced.plugin()]).call("Go.")
    assert (
        traced.tree
        == """
invoke_agent desk  (completed)
├─ chat remote
│  └─ POST /chat
├─ execute_tool blocking  (t1)
│  └─ in the thread
└─ chat remote
   └─ POST /chat
"""
    )


async def test_hundred_calls_at_once(traced: Traced) -> None:
    """Each span is in the trace of its own call."""

    @tool(type="read")
    async def slow(n: int) -> str:
        """Wait a little."""
        await asyncio.sleep(0)
        with traced.mine.start_as_current_span(f"work {n}"):
            await asyncio.sleep(0)
        return str(n)

    plugin = traced.plugin()

    async def one(n: int) -> None:
        script = [[use("a", "slow", n=n), use("b", "slow", n=n)], "ok"]
        await Agent(f"agent{n}", ScriptedModel(script), tools=[slow], hooks=[plugin]).call(
            "Go", session=Session.fresh()
        )

    await asyncio.gather(*[one(n) for n in range(100)])
    traces: dict[str, list[str]] = {}
    for span in traced.spans:
        traces.setdefault(span.trace, []).append(span.name)
    assert len(traces) == 100
    for names in traces.values():
        number = next(name for name in names if name.startswith("invoke")).removeprefix("invoke_agent agent")
        assert sorted(names) == sorted(
            [f"invoke_agent agent{number}", *["chat scripted", "execute_tool slow", f"work {number}"] * 2]
        )


# ---- every span ends


class Open(SpanProcessor):
    """Counts spans that are open."""

    def __init__(self) -> None:
        self.count = 0

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """One more."""
        self.count += 1

    def on_end(self, span: Any) -> None:
        """One less."""
        self.count -= 1


@pytest.fixture
def opened(traced: Traced) -> Open:
    """How many are open."""
    counted = Open()
    traced.tracers.add_span_processor(counted)
    return counted


def hanging(started: asyncio.Event) -> Any:
    """A tool that does not end."""

    @tool(timeout=None)
    async def hang() -> str:
        """Hang."""
        started.set()
        await asyncio.Event().wait()
        return ""

    return hang


@pytest.mark.parametrize("how", ["interrupt", "cancel", "aclose", "timeout"])
@pytest.mark.parametrize("where", ["tool", "model"])
@in_virtual_time
async def test_every_span_ends(traced: Traced, opened: Open, how: str, where: str) -> None:
    """Interrupted, cancelled, closed or timed out: the spans end, and say so; nothing failed."""
    started = asyncio.Event()

    async def stuck() -> None:
        started.set()
        await asyncio.Event().wait()

    script: list[Any] = [["Hel", stuck]] if where == "model" else [use("t1", "hang")]
    agent = Agent("desk", ScriptedModel(script), tools=[hanging(started)], hooks=[traced.plugin()])
    events = aiter(agent.stream("Go"))
    call = asyncio.ensure_future(
        _until(events) if how == "aclose" else _called(agent, 0.05 if how == "timeout" else None)
    )
    await started.wait()
    if how == "interrupt":
        agent.interrupt()
    elif how == "cancel":
        call.cancel()
    elif how == "aclose":
        await events.aclose()  # type: ignore - of the stream
    await asyncio.gather(call, return_exceptions=True)
    assert opened.count == 0
    cut = [span for span in traced.spans if where == "model" or not span.name.startswith("chat")]
    assert [(span.attributes["agentflow.outcome"], span.status) for span in cut] == [("interrupted", "UNSET")] * 2


async def test_a_dropped_stream(traced: Traced, opened: Open) -> None:
    """A stream that is abandoned during a reply, without closing: open spans end with its cleanup."""
    agent = Agent("desk", ScriptedModel([["Hel", "lo"]]), hooks=[traced.plugin()])
    events = aiter(agent.stream("Go", buffer=0))
    while not isinstance(await anext(events), ReasoningChunk):
        pass
    assert opened.count == 2
    del events
    gc.collect()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})  # its run cleans up
    assert opened.count == 0


async def _until(events: Any) -> None:
    async for _ in events:
        pass


async def _called(agent: Agent, timeout: float | None) -> None:
    await agent.call("Go", timeout=timeout)


def test_a_loop_that_is_gone(traced: Traced, opened: Open) -> None:
    """A call whose loop is closed under it: its spans end when the rest of it is dropped."""
    loop = asyncio.new_event_loop()
    started = asyncio.Event()
    agent = Agent("desk", ScriptedModel([use("t1", "hang")]), tools=[hanging(started)], hooks=[traced.plugin()])
    held = [aiter(agent.stream("Go"))]

    async def begin() -> None:
        for _ in range(4):  # up to PreActing
            await anext(held[0])

    loop.run_until_complete(begin())
    loop.close()
    assert opened.count >= 1
    held.clear()
    gc.collect()
    assert opened.count == 0


# ---- what it does not do


@pytest.mark.parametrize("stored", ["redacted", "original"])
async def test_content_is_redacted(traced: Traced, stored: Any) -> None:
    """Content is exported on request, by the rules of a redaction, and never more."""

    @tool(type="read")
    async def mail(to: str) -> str:
        """Write a mail."""
        return f"sent to {to}, from bob@example.com"

    @on(PreActing, guard=True)
    def guard(event: PreActing) -> Deny | None:
        return Deny("ask carol@example.com") if event.tool_use.id == "t2" else None

    redaction = Redaction(stored=stored, values=["hunter2"])
    script = [
        [use("t1", "mail", to="<email-1>"), use("t2", "mail", to="dan@example.com")],
        "<email-1> has it, hunter2.",
    ]
    agent = Agent(
        "desk",
        ScriptedModel(script),
        system="The password is hunter2.",
        tools=[mail],
        hooks=[redaction, guard, traced.plugin(content=redaction)],
    )
    reply = await agent.call("Write to ada@example.com.")
    assert "ada@example.com" in reply.text
    told = str([(span.attributes, span.events) for span in traced.spans])
    assert "example.com" not in told
    assert "hunter2" not in told
    call, chat, run, _ = traced.spans
    assert call.attributes["gen_ai.input.messages"].startswith(
        '[{"role":"user","parts":[{"type":"text","content":"Write to <email'
    )
    assert chat.attributes["gen_ai.system_instructions"] == '[{"type":"text","content":"The password is <secret-1>."}]'
    assert run.attributes["gen_ai.tool.call.arguments"] == '{"to": "<email>"}'
    assert run.attributes["gen_ai.tool.call.result"] == "sent to <email>, from <email>"
    assert call.events[0][1]["agentflow.reason"] == "ask <email>"


async def test_content_by_default_rules(traced: Traced) -> None:
    """`content=True` takes out what `Redaction()` finds; an empty one takes out nothing."""
    for content, said in ((True, "I am <email>"), (Redaction([]), "I am ada@example.com")):
        await Agent("desk", ScriptedModel(["Hello."]), hooks=[traced.plugin(content=content)]).call(
            "I am ada@example.com"
        )
        told = traced.spans[-2].attributes
        assert told["gen_ai.input.messages"] == f'[{{"role":"user","parts":[{{"type":"text","content":"{said}"}}]}}]'
        assert told["gen_ai.output.messages"] == (
            '[{"role":"assistant","parts":[{"type":"text","content":"Hello."}],"finish_reason":"stop"}]'
        )
        traced.exporter.clear()
    with pytest.raises(UsageError, match="True, False or a Redaction"):
        OpenTelemetry(content="yes")  # type: ignore - what is refused


async def test_no_content_unless_asked_for(traced: Traced) -> None:
    """No text of a message, a result, a reason or an exception is exported."""

    @tool
    async def fail(word: str) -> str:
        """Fail."""
        raise ValueError(f"XYZZY {word}")

    script = [[use("t1", "fail", word="XYZZY"), use("t2", "fail", word=3)], "XYZZY"]
    agent = Agent("desk", ScriptedModel(script), system="XYZZY", tools=[fail], hooks=[traced.plugin()])
    await agent.call("XYZZY")
    assert "XYZZY" not in str([(span.attributes, span.events, span.said) for span in traced.spans])


async def test_odd_names_and_halves_of_characters(traced: Traced) -> None:
    """A model may write anything as a tool's name; what no encoding can hold is escaped, and the name is truncated."""
    half = "\ud83d"
    odd = ModelChunk(
        tool_uses=(ToolUseDelta(0, "t1", f"{half}x" * 100, '{"a": "\\ud83d"}'),), finish_reason="tool_calls"
    )
    script = [odd, f"{half}!"]
    await Agent("desk", ScriptedModel(script), tools=[look], hooks=[traced.plugin(content=True)]).call("Hi")
    for span in traced.spans:
        str((span.name, span.attributes)).encode()
    tool_span = traced.spans[2]
    assert len(tool_span.name) < 700
    assert tool_span.attributes["error.type"] == "agentflow.errors.ToolNotFoundError"


async def test_sampled_out() -> None:
    """No span is made, the spans of a tool are not sampled either, and metrics are recorded."""
    traced = Traced(sampler=ALWAYS_OFF)
    sampled: list[bool] = []

    @tool
    async def nested() -> str:
        """Begin a span."""
        with traced.mine.start_as_current_span("mine") as span:
            sampled.append(span.get_span_context().trace_flags.sampled)
        return ""

    await Agent(
        "desk", ScriptedModel([[use("t1", "nested"), BILLED], "ok"]), tools=[nested], hooks=[traced.plugin()]
    ).call("Hi")
    assert (traced.spans, sampled) == ([], [False])
    counts = {name: sum(value for _, value in points) for name, points in traced.points().items()}
    assert counts == {
        "gen_ai.client.operation.duration": 2,
        "gen_ai.client.operation.time_to_first_chunk": 2,
        "gen_ai.client.token.usage": 15,
        "gen_ai.execute_tool.duration": 1,
        "gen_ai.invoke_agent.duration": 1,
    }


async def test_sampled_out_without_metrics() -> None:
    """If metrics are not recorded either, nothing is wrapped, and no span below the run is sampled: not in parallel tools,
    a sub-agent or a resumed call. The caller's own span stays the current one."""
    traced = Traced(sampler=ALWAYS_OFF)
    wrapped: list[str] = []
    below: list[tuple[str, bool, bool]] = []
    calls: list[int] = []

    class Watched(OpenTelemetry):
        async def _chat(self, event: Any, source: Any) -> Any:
            wrapped.append("model")
            async for chunk in super()._chat(event, source):
                yield chunk

    def nest(name: str) -> str:
        with traced.mine.start_as_current_span("mine") as span:
            seen = span.get_span_context()
        calls.append(seen.trace_id)
        below.append((name, seen.trace_flags.sampled, seen.trace_id == calls[0]))
        return ""

    @tool(type="read")
    async def nested() -> str:
        """Begin a span."""
        return nest("nested")

    @tool(requires_approval=True)
    async def approved() -> str:
        """Begin a span."""
        return nest("approved")

    sub = Agent("sub", ScriptedModel([use("s1", "nested"), "ok"]), tools=[nested])
    script = [[use("t1", "nested"), use("t2", "nested")], use("t3", "sub", message="Hi"), use("t4", "approved"), "ok"]
    plugin = Watched(tracer_provider=traced.tracers, meter_provider=NoOpMeterProvider())
    agent = Agent("desk", ScriptedModel(script), tools=[nested, approved, sub.as_tool()], hooks=[plugin])
    before = get_current_span()
    await agent.call("Hi", session="ada")
    await agent.resume("ada", {"t4": Approve()})
    assert below == [("nested", False, True)] * 3 + [("approved", False, True)]
    assert (traced.spans, wrapped, get_current_span()) == ([], [], before)


class Broken(SpanProcessor):
    """Fails on every event."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Fail."""
        raise RuntimeError("the exporter is broken")

    def on_end(self, span: Any) -> None:
        """Fail."""
        raise RuntimeError("the exporter is broken")


async def test_a_broken_exporter_breaks_no_run(traced: Traced) -> None:
    """It is logged."""
    traced.tracers.add_span_processor(Broken())
    said: list[str] = []
    number = logger.add(said.append, level="WARNING", format="{message}")
    logger.enable("agentflow")
    try:
        agent = Agent("desk", ScriptedModel([use("t1", "look"), "ok"]), tools=[look], hooks=[traced.plugin()])
        assert (await agent.call("Hi")).text == "ok"
    finally:
        logger.remove(number)
    assert any("the exporter is broken" in line for line in said)


def heard(agent: Agent) -> set[str]:
    """Return the events that an agent's hooks handle, or wrap."""
    return {line for line in agent.hooks.describe().splitlines() if not line.startswith(" ")}


async def test_an_exception_that_cannot_be_told(traced: Traced) -> None:
    """The model reads what the tool raised, although its text raises too."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    @tool
    async def fail() -> str:
        """Fail."""
        raise MuteError

    model = ScriptedModel([use("t1", "fail"), "ok"])
    reply = await Agent("desk", model, tools=[fail], hooks=[traced.plugin(content=True)]).call("Hi")
    (failed,) = [span for span in traced.spans if span.name == "execute_tool fail"]
    assert (reply.text, failed.status, failed.attributes["error.type"].rpartition(".")[2]) == (
        "ok",
        "ERROR",
        "MuteError",
    )


async def test_a_saved_state_that_does_not_fit(traced: Traced) -> None:
    """A session whose trace cannot be read continues with a new one."""
    store = MemoryStore()
    await Agent("desk", ScriptedModel(["Hello."]), hooks=[traced.plugin()], store=store).call("Hi", session="ada")
    data = await store.export("ada")
    broken = json.loads(json.dumps(data).replace(traced.spans[0].trace, "zz").replace('"first"', '"frist"'))
    other = MemoryStore()
    await other.import_(broken)
    again = Agent("desk", ScriptedModel(["Hello again."]), hooks=[traced.plugin()], store=other)
    assert (await again.call("Hi", session="ada")).text == "Hello again."


async def test_what_nobody_decides_on_is_not_built(traced: Traced) -> None:
    """It handles most events for verdicts only: if no other hook handles them, they are not built for it."""
    plugin = traced.plugin()
    alone = Agent("a", ScriptedModel([]), tools=[look], hooks=[plugin], default_hooks=())
    assert heard(alone) == {"PreCall", "PreReasoning", "PreActing", "PostCall", "Error", "CallEnded", "MessagesAdded"}
    assert "observe" not in alone.hooks.describe().partition("PreActing")[2].partition("PostCall")[0]
    guarded = Agent("a", ScriptedModel([]), tools=[look], hooks=[plugin, on(PostToolRound)(lambda event: None)])
    assert heard(guarded) > heard(alone) | {"PostToolRound"}


# ---- the words


@pytest.fixture
def registry() -> Iterator[set[str]]:
    """The attributes of the conventions."""
    return {
        value
        for name, value in vars(gen_ai_attributes).items()
        if name.startswith("GEN_AI_") and isinstance(value, str)
    }  # type: ignore


NEWER = {"gen_ai.invoke_agent.duration", "gen_ai.execute_tool.duration"}
"""In https://github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai/gen-ai-metrics.md; not in the package yet."""


async def test_the_words_are_those_of_the_conventions(traced: Traced, registry: set[str]) -> None:
    """Every attribute and metric is in the conventions' own lists, or begins with `agentflow.`; so are the values."""
    constants = {value for value in vars(semconv).values() if isinstance(value, str) and value.startswith("gen_ai.")}
    assert constants <= registry
    options = ModelOptions(temperature=0.5, max_tokens=9, top_p=0.9, stop=("x",), seed=1)
    usage = ModelChunk(usage=Usage(1, 2, 3, 4, 5, 0.5), finish_reason="stop")
    agent = Agent("desk", ScriptedModel([use("t1", "look"), ["ok", usage]]), tools=[look], system="s", options=options)
    agent.hook(traced.plugin(content=True))
    await agent.call("Hi")
    used = {name for span in traced.spans for name in span.attributes}
    told = {name for span in traced.spans for _, said in span.events for name in said}
    assert {name for name in used | told if not name.startswith("agentflow.")} <= registry | {"error.type"}
    assert constants - used <= {"gen_ai.agent.description", "gen_ai.token.type", "gen_ai.response.model"}
    assert {
        f"gen_ai.request.{name}" for name in ("temperature", "max_tokens", "top_p", "stop_sequences", "seed")
    } <= used
    metrics = {
        value for value in vars(gen_ai_metrics).values() if isinstance(value, str) and value.startswith("gen_ai.")
    }
    assert set(traced.points()) <= metrics | NEWER
    operations = {one.value for one in gen_ai_attributes.GenAiOperationNameValues}
    assert {span.attributes["gen_ai.operation.name"] for span in traced.spans} <= operations


NEWEST = {
    "gen_ai.client.inference.duration",
    "gen_ai.client.inference.time_to_first_chunk",
    "gen_ai.client.inference.operation.input_tokens",
    "gen_ai.client.inference.operation.output_tokens",
    "gen_ai.client.inference.usage.input_tokens",
    "gen_ai.client.inference.usage.output_tokens",
    "gen_ai.client.inference.usage.cache_read.input_tokens",
    "gen_ai.client.inference.usage.cache_write.input_tokens",
    "gen_ai.client.inference.usage.reasoning.output_tokens",
    "gen_ai.invoke_agent.duration",
    "gen_ai.execute_tool.duration",
}
"""The metrics of https://github.com/open-telemetry/semantic-conventions-genai, docs/gen-ai/client-inference.md."""

SCHEMAS = {"1.41": "https://opentelemetry.io/schemas/1.41.0", "0.1": "https://opentelemetry.io/schemas/gen-ai/0.1.0"}


@pytest.mark.parametrize("by", ["argument", "variable"])
@pytest.mark.parametrize("version", ["1.41", "0.1"])
async def test_one_switch_chooses_the_version(
    traced: Traced, version: Any, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics, the one renamed attribute and the schema's URL change together; nothing else of the spans does."""
    listed = "http, gen_ai_latest_experimental" if version == "0.1" else "http"
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", listed if by == "variable" else "gen_ai_latest_experimental")
    options = {"conventions": version} if by == "argument" else {}
    usage = ModelChunk(usage=Usage(1, 2, 3, 4, 5, 0.5), finish_reason="stop")
    script = [use("t1", "look"), ["ok", usage]]
    await Agent("desk", ScriptedModel(script), tools=[look], hooks=[traced.plugin(**options)]).call("Hi")
    cache_write = {
        "1.41": "gen_ai.usage.cache_creation.input_tokens",
        "0.1": "gen_ai.usage.cache_write.input_tokens",
    }
    used = {name for span in traced.spans for name in span.attributes}
    assert {name for name in used if "cache_" in name and "read" not in name} == {cache_write[version]}
    points = traced.points()
    if version == "0.1":
        assert set(points) == NEWEST
        sums = {name.rpartition("inference.")[2]: sum(value for _, value in told) for name, told in points.items()}
        assert (sums["usage.input_tokens"], sums["usage.output_tokens"]) == (1, 2)
        assert (sums["operation.input_tokens"], sums["operation.output_tokens"]) == (1, 2)
    else:
        assert set(points) & NEWEST == NEWER
        assert "gen_ai.client.token.usage" in points
    scopes = {span.instrumentation_scope for span in traced.exporter.get_finished_spans()}
    assert {scope.schema_url for scope in scopes if scope is not None} == {SCHEMAS[version]}
    data = traced.reader.get_metrics_data()
    assert data is None or {one.scope.schema_url for one in data.resource_metrics[0].scope_metrics} == {
        SCHEMAS[version]
    }


def test_an_unknown_version_is_refused() -> None:
    """The error names those that are known."""
    with pytest.raises(UsageError, match=r"conventions='1\.36'.* use '1\.41' or '0\.1'"):
        OpenTelemetry(conventions="1.36")  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["1.41", "0.1"])
@pytest.mark.parametrize("kind", ["workflow", "handoffs"])
async def test_a_workflow_is_traced_as_one(traced: Traced, kind: str, version: Any) -> None:
    """`invoke_workflow` with its name, without a provider and a model; the agents that it asks are below its steps."""
    ann = Agent("ann", ScriptedModel(["done"], name="openai/gpt-5"))
    if kind == "workflow":

        @workflow(ann)
        async def team(task: str) -> str:
            return (await ask(ann, task)).text

        whole = team
    else:
        whole = handoffs(ann, Agent("bob", ScriptedModel([])), name="team")
    whole.hook(traced.plugin(conventions=version))
    assert (await whole.call("go")).text == "done"
    ended = traced.exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in ended if span.context is not None}
    assert {(span.name, span.parent and names[span.parent.span_id]) for span in ended} == {
        ("invoke_workflow team", None),
        ("execute_tool ann", "invoke_workflow team"),
        ("invoke_agent ann", "execute_tool ann"),
        ("chat gpt-5", "invoke_agent ann"),
    }
    [top] = [span for span in traced.spans if span.name == "invoke_workflow team"]
    told = {name: value for name, value in top.attributes.items() if name.startswith("gen_ai.")}
    usage = {name for name in told if name.startswith("gen_ai.usage.")}
    assert {name: told[name] for name in told if name not in usage} == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "team",
        "gen_ai.agent.name": "team",
        "gen_ai.conversation.id": "team",
    }
    durations = [attributes for attributes, _ in traced.points()["gen_ai.invoke_agent.duration"]]
    workflow_point = {"gen_ai.agent.name": "team", "gen_ai.operation.name": "invoke_workflow"}
    assert workflow_point in durations
    assert {"gen_ai.agent.name": "ann"} in durations


@pytest.mark.parametrize(("wire", "adapter"), EVERY)
async def test_the_origin_of_an_answer(traced: Traced, wire: str, adapter: str) -> None:
    """The provider's id and model, the server's address: of each answer its own, over every wire."""
    wired = Wired(wire, adapter)
    async with wired.serve([Say("One."), Say("Two."), Say("Three.")]) as server:
        agent = Agent("desk", wired.model(server), hooks=[traced.plugin()])
        assert [(await agent.call(text)).text for text in ("1", "2")] == ["One.", "Two."]
        assert answer_origin.get() is None
        assert (await Agent("plain", wired.model(server)).call("3")).text == "Three."
        port = urlsplit(server.url).port
    chats = [span.attributes for span in traced.spans if span.name.startswith("chat ")]
    ids = [told["gen_ai.response.id"] for told in chats]
    assert len({*ids}) == len(ids) == 2
    assert all(isinstance(told["gen_ai.response.model"], str) for told in chats)
    where = {(told.get("server.address"), told.get("server.port")) for told in chats}
    assert where == ({("127.0.0.1", port)} if adapter == "direct" else {(None, None)})


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("https://api.example.com/v1", ("api.example.com", 443)),
        ("http://user:secret@[::1]:8080/v1?key=secret", ("::1", 8080)),
        ("http://host", ("host", 80)),
        ("https://[broken", ("", 0)),
        ("https://host:99999/", ("", 0)),
        ("", ("", 0)),
    ],
)
def test_the_server_of_an_address(url: str, where: tuple[str, int]) -> None:
    """Host and port, and nothing else of a URL; one that cannot be read says nothing."""
    origin = AnswerOrigin()
    origin.at(url)
    assert (origin.address, origin.port) == where


class Silent:
    """Reads events, and finds nothing in them."""

    finish_reason: str | None = None
    ended = False

    def read(self, data: bytes) -> tuple[ModelChunk, ...]:
        return ()


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([b'{"id": "c1", "model": "m"}', b'{"id": "c2"}'], ("c1", "m")),
        ([b'{"type": "ping"}', b'{"type": "message_start", "message": {"id": "m1", "model": "m"}}'], ("m1", "m")),
        ([b'{"type": "response.created", "response": {"id": "r1"}}'], ("r1", "")),
        ([b"", b"[DONE]", b"[1]", b"nonsense", b'{"id": "late"}'], ("", "")),
        ([b'{"id": 5, "model": ["m"]}'], ("", "")),
        ([b'{"id": "' + b"x" * 300 + b'"}'], ("", "")),
        ([b"[" * 100_000], ("", "")),
    ],
)
def test_what_first_events_say_of_the_origin(events: list[bytes], found: tuple[str, str]) -> None:
    """What is no id of a sensible length is left out, and after a few events no more is looked for; nothing fails."""
    origin = AnswerOrigin()
    token = answer_origin.set(origin)
    try:
        reader = noting_origin("http://host", Silent())
    finally:
        answer_origin.reset(token)
    for data in events:
        assert reader.read(data) == ()
    assert (origin.response_id, origin.model) == found


def test_providers_are_called_what_the_conventions_call_them() -> None:
    """By the part before the `/`, or by the beginning of the model's name."""
    listed = {one.value for one in gen_ai_attributes.GenAiProviderNameValues} | {
        "moonshot_ai"
    }  # newer than the package
    names = [
        "openai/gpt-5", "azure/my-deployment", "azure_ai/x", "anthropic/claude", "bedrock/anthropic.claude", "gemini/g",
        "vertex_ai/g", "cohere_chat/c", "mistral/m", "deepseek/d", "groq/g", "xai/grok", "perplexity/p", "watsonx/w",
        "moonshot/k", "gpt-5", "o3-mini", "claude-opus", "gemini-3", "litellm/openai/gpt-5", "litellm://openai/gpt-5",
    ]  # fmt: skip
    assert {model_and_provider(name)[1] for name in names} <= listed
    assert model_and_provider("litellm/bedrock/anthropic.claude") == ("anthropic.claude", "aws.bedrock")
    assert model_and_provider("mine://small") == ("small", "mine")


def test_without_the_library() -> None:
    """agentflow is imported without OpenTelemetry; importing the plugin names the extra to install."""
    program = """
        import sys
        sys.modules["opentelemetry"] = None
        import agentflow, agentflow.plugins
        try:
            agentflow.plugins.OpenTelemetry
        except ImportError as error:
            print(error)
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert ran.stdout == 'OpenTelemetry needs its API: pip install "agentflow-hooks[otel]"\n'


# ---- a collector, and a run over three processes

PAGE = Path(__file__).parents[2] / "docs" / "plugins" / "opentelemetry.md"
PROGRAM = Path(__file__).parent / "otel_program.py"


@pytest.fixture
def collector() -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A third-party collector (OtelTap), as a process on loopback; it prints what it gets, a line of JSON each."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-u", "-m", "oteltap", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "Listening" in process.stdout.readline()
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.kill()


def test_one_trace_over_three_processes(
    collector: tuple[str, subprocess.Popen[str]], tmp_path: Path, commands: Nursery
) -> None:
    """Parallel tools, a retry, a sub-agent, a suspension, a crash: one trace, sent by OTLP; the docs have its picture."""
    endpoint, process = collector
    ends: list[int] = []
    for step in ("begin", "approve", "finish"):
        ran = commands.run([str(PROGRAM), step, str(tmp_path), endpoint], dict(os.environ), seconds=120)
        ends.append(ran.returncode)
        assert ran.stderr == ""
    assert ends == [0, 9, 0]
    lines: list[str] = []
    assert process.stdout is not None
    while (
        sum('"gen_ai.invoke_agent.duration"' in line for line in lines) < 2
    ):  # the last of the metrics; a killed one sends none
        lines.append(process.stdout.readline())
        assert lines[-1], "the collector has ended"
    spans = printed(lines)
    assert len({span.trace for span in spans}) == 1
    picture = tree(spans, "(never exported: its process was killed)")
    assert picture in PAGE.read_text(), f"The page has another picture than this:\n{picture}"
    metrics = {data["name"] for line in lines if "spanId" not in (data := json.loads(line))}
    assert metrics == {
        "gen_ai.client.operation.duration",
        "gen_ai.client.operation.time_to_first_chunk",
        "gen_ai.client.token.usage",
        "gen_ai.execute_tool.duration",
        "gen_ai.invoke_agent.duration",
    }


# ---- workers


async def test_a_durable_call_is_in_the_trace_of_who_submitted_it(traced: Traced, tmp_path: Path) -> None:
    """The worker's call is below the span in which it was submitted, and the resumed one links to the decision's
    span.
    """
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    script = [use("t1", "pay", amount=5), "Paid."]
    async with SqlStore(url) as store:
        agent = Agent("desk", ScriptedModel(script), tools=[pay], hooks=[traced.plugin()], store=store)
        async with DurableAgent(agent, url, poll=0.02) as durable, durable.worker(poll=0.02):
            with traced.mine.start_as_current_span("POST /orders"):
                run = await durable.submit("Pay 5.", session="ada", run_id="r")
                assert await durable.submit("Pay 5.", session="ada", run_id="r") == run  # the same, in whatever trace
            reply = await durable.result(run)
            with traced.mine.start_as_current_span("POST /decide"):
                await durable.decide(run, {waits.id: Approve() for waits in reply.pending})
            assert (await durable.result(run)).outcome == "completed"
    spans = traced.spans
    mine = [span for span in spans if span.trace == spans[0].trace]
    assert (
        f"\n{tree(mine, 'POST /decide')}\n"
        == """
POST /orders
└─ invoke_agent desk  (suspended)
   ├─ chat scripted
   ├─ · suspended: requires_approval approval pay t1
   └─ invoke_agent desk  (completed) → resumes invoke_agent desk  (suspended) → resumed_in POST /decide
      ├─ execute_tool pay  (t1)
      └─ chat scripted
"""
    )
