"""The route of AG-UI: `POST /agents/{agent}/ag-ui`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from agentflow.serve import agui
from agentflow.serve.bodies import read_body
from agentflow.serve.chats import Chats, session_of, stream_of
from agentflow.serve.refusals import Refusal
from agentflow.serve.service import Service


def ag_ui(service: Service) -> Sequence[BaseRoute]:
    """Return the route of AG-UI. The protocol's package is imported on the first request."""
    routes = _Routes(service, Chats(service, "ag-ui"))
    return [Route("/agents/{agent}/ag-ui", routes.run, methods=["POST"])]


@dataclass(frozen=True)
class _Routes:
    service: Service
    chats: Chats

    async def run(self, request: Request) -> Any:
        """Start or find a run, and stream its events."""
        body = await read_body(request, _input_model(), self.service.limits)
        owner, ref = session_of(request, self.service, body.thread_id)
        chat = await self.chats.open(owner, ref, agui.request_of(body))
        pages = agui.PageStream(body, chat, self.service.view, lambda: self.service.history(ref))
        return stream_of(request, self.service, chat, pages.chunks())


def _input_model() -> type[agui.PageInput]:
    try:
        return agui.PageInput
    except ImportError as error:
        raise Refusal(501, "extra_missing", f"{error}.") from error
