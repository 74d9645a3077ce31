"""pydantic-ai: its AG-UI adapter in a Starlette application."""

from __future__ import annotations

from typing import Any

from pydantic_ai.ui.ag_ui import AGUIAdapter
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.peers.kit import Plan
from benchmarks.peers.sides.pydantic_ai_ import build


def app(plan: Plan, streams: int) -> Any:
    """Return the application."""
    agent = build(plan)

    async def call(request: Request) -> Response:
        return await AGUIAdapter.dispatch_request(request, agent=agent)

    return Starlette(routes=[Route("/", call, methods=["POST"])])
