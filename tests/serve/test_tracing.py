"""Traces over HTTP: a request's `traceparent` is the parent of the run's spans, and is returned."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import format_span_id, format_trace_id
from serve_client import connected, served

from agentflow import Agent
from agentflow.plugins import OpenTelemetry
from agentflow.serve import App
from agentflow.testing import ScriptedModel

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def test_a_run_is_part_of_the_trace_of_its_request() -> None:
    """With a `traceparent` the call's span is below it; without one, or with a malformed one, the call begins a trace."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    agent = Agent("a", ScriptedModel(lambda request: "Hello."), hooks=[OpenTelemetry(tracer_provider=provider)])
    sent: list[dict[str, str]] = [
        {"traceparent": f"00-{TRACE}-{PARENT}-01", "baggage": "k=v"},
        {},
        {"traceparent": "junk"},
    ]
    seen: list[Any] = []
    async with served(App(agent)) as url, connected(url) as client:
        for headers in sent:
            exporter.clear()
            body = {"input": "Hi"}
            async with client.http.post(f"{url}/agents/a/call", json=body, headers=headers) as response:
                assert response.status == 200
            [call] = [span for span in exporter.get_finished_spans() if span.name == "invoke_agent a"]
            assert call.context is not None
            above = None if call.parent is None else format_span_id(call.parent.span_id)
            in_trace = format_trace_id(call.context.trace_id) == TRACE
            seen.append((in_trace, above, response.headers.get("traceparent"), response.headers.get("baggage")))
    assert seen == [
        (True, PARENT, f"00-{TRACE}-{PARENT}-01", None),
        (False, None, None, None),
        (False, None, None, None),
    ]


def test_a_server_without_the_plugin_does_not_load_opentelemetry() -> None:
    """Nothing imports it for a server that has no traces."""
    code = "import sys, agentflow.serve.app; sys.exit('opentelemetry.propagate' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
