"""`App`: an ASGI application that serves agents over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from importlib import metadata
from typing import Any, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from agentflow.agent.agent import Agent
from agentflow.agent.graceful import GracefulShutdown
from agentflow.errors import UsageError
from agentflow.models.clients import close_clients
from agentflow.serve.agui_routes import ag_ui
from agentflow.serve.ai_sdk_routes import ai_sdk
from agentflow.serve.anthropic_routes import anthropic
from agentflow.serve.durable_runs import HasWorkers
from agentflow.serve.guard import LOOPBACK, Auth, Guard
from agentflow.serve.limits import Limits
from agentflow.serve.openai_routes import openai
from agentflow.serve.openapi import openapi
from agentflow.serve.plain import plain
from agentflow.serve.refusals import Refusal, refused
from agentflow.serve.service import RouteModule, Service
from agentflow.serve.trace_context import TraceContext
from agentflow.serve.view import View
from agentflow.serve.web_chat import web_chat
from agentflow.vocabulary.ports.store import Store

STANDARD: tuple[RouteModule, ...] = (plain, openai, anthropic, ag_ui, ai_sdk)
"""The route modules that an `App` has by default."""


class App:
    """Serves agents over HTTP: runs with their events, decisions, and sessions; an ASGI application.

    Without `auth`, only requests from this machine are admitted. Pass `lifespan` to the application that mounts this
    one, so that the next process can continue runs after a shutdown.

    Args:
        agents: An agent, or several with different names. Workers run the calls of a `DurableAgent`, and any number of
            processes can serve it.
        store: The store of all sessions; by default each agent's own, or the process's memory. Not for durable agents, which
            have their own.
        auth: Returns the id of a request's user, or None (401). No user sees the sessions and runs of another.
        limits: The limits on sizes, times and concurrency.
        view: The data that clients receive.
        hosts: The host names under which the server is reachable, without ports; `"*"` for any.
        origins: Origins of other sites with pages that use the server, such as `"https://example.com"`.
        routes: The route modules; `STANDARD` by default.
        ui: Whether to serve the web chat at `/`; its files are public, all data requires `auth`.
        resume: Whether to continue, at startup, the runs that the last process left unfinished. No other process should be
            working on the store then, unless calls wait (`SqlStore(..., on_conflict="wait")`).
        shutdown_seconds: Seconds for running calls at a shutdown; it should be below the server's own limit.

    Raises:
        UsageError: An argument is invalid.

    Example:
        >>> app = App(Agent("assistant", ScriptedModel(["Hello!"])), hosts=["chat.example.com"])
    """

    def __init__(
        self,
        agents: Agent[Any] | HasWorkers | Sequence[Agent[Any] | HasWorkers],
        *,
        store: Store | str | None = None,
        auth: Auth | None = None,
        limits: Limits | None = None,
        view: View | None = None,
        hosts: Sequence[str] = LOOPBACK,
        origins: Sequence[str] = (),
        routes: Sequence[RouteModule] = STANDARD,
        ui: bool = False,
        resume: bool = False,
        shutdown_seconds: float = 20.0,
    ) -> None:
        all_agents = [agents] if isinstance(agents, Agent | HasWorkers) else list(agents)
        if isinstance(hosts, str) or isinstance(origins, str):
            raise UsageError("App: hosts= and origins= take lists: hosts=['chat.example.com'].")
        for agent in cast("list[object]", all_agents):
            if not isinstance(agent, Agent | HasWorkers):
                raise UsageError(f"App(agents) takes an Agent, a DurableAgent or a list of these, not {agent!r}.")
        self.service = Service(all_agents, store, limits or Limits(), view or View())
        self.authenticates = auth is not None
        self._resume = resume
        self._shutdown_seconds = shutdown_seconds
        self._shutdown: GracefulShutdown | None = None
        inner = Starlette(
            routes=[Route("/openapi.json", _document), *[route for make in routes for route in make(self.service)]],
            exception_handlers={Refusal: refused, HTTPException: _http_error},
        )
        # Health checks come before the guard: they have no token, and name the host by its address.
        self._app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/ready", self._ready),
                *(web_chat() if ui else ()),
                Mount("/", Guard(TraceContext(inner), auth, hosts, origins)),
            ],
            lifespan=self.lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Serve while the block runs: pass it as `lifespan=` of the application that mounts this one.

        At shutdown, no new run starts, running ones stop at a safe point, and their streams end with the outcome `parked`.
        """
        service = self.service
        resuming: asyncio.Task[None] | None = None
        service.runs.closed = service.durable.closed = False  # an application can be started again
        try:
            async with GracefulShutdown(
                *service.all_agents, limit=self._shutdown_seconds, in_server=True
            ) as self._shutdown:
                ending = asyncio.create_task(self._end_streams(self._shutdown), name="agentflow: end durable streams")
                if self._resume:
                    resuming = asyncio.create_task(service.resume_unfinished(), name="agentflow: resume served runs")
                yield
                ending.cancel()
                if resuming is not None:
                    resuming.cancel()
        finally:
            if resuming is not None:
                with suppress(asyncio.CancelledError):
                    await resuming
            async with AsyncExitStack() as closing:  # if one fails to close, the others are still closed
                for close in (close_clients, *service.closing, service.runs.close):
                    closing.push_async_callback(close)

    async def _end_streams(self, shutdown: GracefulShutdown) -> None:
        await shutdown.wait()
        self.service.durable.end_streams()

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        if self._shutdown is not None and self._shutdown.requested:
            return JSONResponse({"status": "shutting down"}, 503)
        return JSONResponse({"status": "ok"})


async def _document(request: Request) -> Response:
    try:
        version = metadata.version("agentflow-hooks")
    except metadata.PackageNotFoundError:
        version = "source"
    return JSONResponse(openapi(request.scope.get("root_path", ""), version))


async def _http_error(request: Request, error: Exception) -> Response:
    """Return Starlette's own refusals (404, 405) in our form."""
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "refused")
    return Refusal(error.status_code, code, error.detail, headers=dict(error.headers or {})).response()
