"""agentflow: `App` with its standard routes; only its limits on concurrency are raised."""

from __future__ import annotations

from typing import Any

from agentflow.serve import App, Limits
from benchmarks.peers.kit import Plan
from benchmarks.peers.sides.ours import build


def app(plan: Plan, streams: int) -> Any:
    """Return the application."""
    most = streams + 10
    return App(build(plan), limits=Limits(runs=most, runs_per_user=most, streams=most, streams_per_user=most))
