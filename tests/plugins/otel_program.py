"""A call over three processes, traced by OTLP: the first suspends, the second is killed in a tool, the third ends it.

`python otel_program.py begin|approve|finish FOLDER ENDPOINT`
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from agentflow import Agent, Approve, Deny, Hook, ModelChunk, PreActing, ToolUseBlock, Usage, tool
from agentflow.errors import ModelError
from agentflow.plugins import ModelRetry, OpenTelemetry
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.ports.model import ModelRequest

STEP, FOLDER, ENDPOINT = sys.argv[1], Path(sys.argv[2]), sys.argv[3]


@tool(type="read")
async def look(place: str) -> str:
    """Look something up."""
    return f"{place}: nothing special"


@tool
async def wipe() -> str:
    """Delete everything."""
    return "gone"


@tool(requires_approval=True)
async def refund(amount: int) -> str:
    """Pay money back."""
    return f"{amount} paid back"


@tool(idempotent=True)
async def ship(item: str) -> str:
    """Send something."""
    if STEP == "approve":
        os._exit(9)  # the process is gone, in the midst of it
    return f"{item} sent"


class Guard(Hook):
    """Nothing is wiped."""

    guard = True

    def on_event(self, event: Any) -> Any:
        """Deny it."""
        return Deny("not here") if isinstance(event, PreActing) and event.tool_use.name == "wipe" else None


FAILURES = [ModelError("busy", retryable=True, retry_after=0.0)]


def says(*calls: ToolUseBlock, text: str = "") -> list[Any]:
    """One reply."""
    reason = "tool_calls" if calls else "stop"
    return [*calls, text, ModelChunk(usage=Usage(input_tokens=10, output_tokens=5), finish_reason=reason)]


def desk(request: ModelRequest) -> list[Any]:
    """Return the model's reply, by the number of rounds before."""
    match sum(msg.role == "tool" for msg in request.messages):
        case 0 if FAILURES:
            return [FAILURES.pop()]
        case 0:
            return says(ToolUseBlock("t1", "look", {"place": "order"}), ToolUseBlock("t2", "look", {"place": "stock"}))
        case 1:
            return says(ToolUseBlock("t3", "researcher", {"message": "Who is it?"}), ToolUseBlock("t4", "wipe", {}))
        case 2:
            return says(ToolUseBlock("t5", "refund", {"amount": 20}))
        case 3:
            return says(ToolUseBlock("t6", "ship", {"item": "lamp"}))
        case _:
            return says(text="Refunded, and a new lamp is on its way.")


def researcher(request: ModelRequest) -> list[Any]:
    """What the sub-agent's model says."""
    if any(msg.role == "tool" for msg in request.messages):
        return says(text="Ada.")
    return says(ToolUseBlock("s1", "look", {"place": "customer"}))


async def main() -> None:
    """Do one step."""
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{ENDPOINT}/v1/traces")))
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(f"{ENDPOINT}/v1/metrics"))])
    sub = Agent(
        "researcher", ScriptedModel(researcher, name="openai/gpt-5-mini"), tools=[look], description="Finds out."
    )
    async with SqlStore(f"sqlite:///{FOLDER / 'sessions.db'}") as store:
        agent = Agent(
            "desk",
            ScriptedModel(desk, name="openai/gpt-5"),
            tools=[look, wipe, refund, ship, sub.as_tool()],
            hooks=[OpenTelemetry(tracer_provider=tracers, meter_provider=meters), Guard(), ModelRetry(jitter=0)],
            store=store,
        )
        if STEP == "begin":
            reply = await agent.call("The lamp came broken.", session="ada")
        else:
            reply = await agent.resume("ada", {"t5": Approve()} if STEP == "approve" else None)
        print(reply.outcome)
    tracers.shutdown()
    meters.shutdown()


asyncio.run(main())
