"""The plain routes: runs with their events, and sessions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from agentflow.loop.session import full_session
from agentflow.serve.bodies import CallBody, ForkBody, InterruptBody, ResumeBody, SteerBody, read_body
from agentflow.serve.durable_runs import digest
from agentflow.serve.event_history import NumberedEvent
from agentflow.serve.guard import owner_of
from agentflow.serve.refusals import Refusal
from agentflow.serve.runs import ServedRun, StoredSession
from agentflow.serve.service import Service
from agentflow.serve.streams import disconnected_or, run_stream, sse
from agentflow.serve.view import EndEvent, HistoryMessage, Public, Question

__all__ = [
    "AgentInfo",
    "Interrupted",
    "PlainRoutes",
    "RunEntry",
    "SessionCopy",
    "SessionEntry",
    "SessionHistory",
    "SessionList",
    "plain",
]

_PAGE = 200  # the maximum number of sessions in a response


class AgentInfo(Public):
    """An agent."""

    name: str = Field(description="Its name.")
    description: str = Field(description="Its purpose.")


class RunEntry(Public):
    """A run."""

    id: str = Field(description="Its id.")
    agent: str = Field(description="The agent's name.")
    session: str = Field(description="The session's id.")
    end: EndEvent | None = Field(default=None, description="Its `end` event; missing while it runs.")


class SessionEntry(Public):
    """An entry of the list of sessions."""

    id: str = Field(description="The session's id.")
    updated: float = Field(description="When it was last used, in seconds since the epoch.")
    status: Literal["idle", "unfinished", "suspended"] = Field(
        description="`unfinished`: a run works on it, or was interrupted by a restart; `suspended`: it waits for decisions."
    )
    title: str | None = Field(
        default=None, description="The beginning of the user's first message; only sent with `?titles=1`."
    )


class SessionList(Public):
    """A user's sessions with an agent."""

    total: int = Field(description="How many there are.")
    sessions: list[SessionEntry] = Field(description="The last used first.")


class SessionHistory(Public):
    """A session's conversation."""

    id: str = Field(description="The session's id.")
    status: Literal["idle", "running", "suspended", "unfinished"] = Field(
        description="`idle`: ready for a call; `suspended` or `unfinished`: resume it."
    )
    run: str | None = Field(default=None, description="The id of the run that works on it or waits.")
    messages: list[HistoryMessage] = Field(description="The messages, the oldest first.")
    questions: list[Question] = Field(description="The decisions that it waits for.")


class SessionCopy(Public):
    """A copy of a session."""

    session: str = Field(description="The copy's id.")


class Interrupted(Public):
    """The result of an interruption."""

    interrupted: bool = Field(description="Whether a call was running.")


def plain(service: Service) -> Sequence[BaseRoute]:
    """Return the plain routes of a server."""
    routes = PlainRoutes(service)
    session = "/agents/{agent}/sessions/{session}"
    return [
        Route("/agents", routes.agents),
        Route("/agents/{agent}/runs", routes.start, methods=["POST"]),
        Route("/agents/{agent}/call", routes.call, methods=["POST"]),
        Route("/runs", routes.runs),
        Route("/runs/{run}", routes.run),
        Route("/runs/{run}/events", routes.events),
        Route("/runs/{run}/interrupt", routes.interrupt, methods=["POST"]),
        Route("/runs/{run}/steer", routes.steer, methods=["POST"]),
        Route("/agents/{agent}/sessions", routes.sessions),
        Route(session, routes.history, methods=["GET"]),
        Route(session, routes.delete, methods=["DELETE"]),
        Route(f"{session}/resume", routes.resume, methods=["POST"]),
        Route(f"{session}/fork", routes.fork, methods=["POST"]),
    ]


@dataclass(frozen=True)
class PlainRoutes:
    """The handlers of the plain routes. Each determines the owner first, and uses only the owner's runs and sessions."""

    service: Service

    async def agents(self, request: Request) -> Response:
        """List the agents."""
        found = self.service.all_agents
        return _json([AgentInfo(name=agent.name, description=agent.description) for agent in found])

    async def start(self, request: Request) -> Response:
        """Start a run, which continues without a client."""
        return self._accepted(request, await self._call(request))

    async def call(self, request: Request) -> Response:
        """Run a call while the client waits; a disconnect interrupts it."""
        run = await self._call(request)
        if "text/event-stream" in request.headers.get("accept", ""):
            return self._stream(run, run.read(), interrupts=True)
        end = await disconnected_or(request, run, _drain(run))
        return _json(self._info(run).model_copy(update={"end": end}))

    async def _call(self, request: Request) -> ServedRun:
        body = await read_body(request, CallBody, self.service.limits)
        owner, agent = owner_of(request.scope), request.path_params["agent"]
        key = request.headers.get("idempotency-key")
        # A repeated request gets the same new session.
        public = body.session if body.session is not None or key is None else f"s_{digest(owner, agent, key)}"
        return await self.service.call(owner, self.service.session(owner, agent, public), body.input, key)

    async def runs(self, request: Request) -> Response:
        """List the user's runs that are in memory, and those of workers."""
        owner = owner_of(request.scope)
        runs = (*self.service.runs.of(owner), *await self.service.durable.of(owner))
        return _json([self._info(run) for run in runs])

    async def run(self, request: Request) -> Response:
        """Return a run."""
        return _json(self._info(await self._run(request)))

    async def events(self, request: Request) -> Response:
        """Stream a run's events, from the one after `Last-Event-ID`; a disconnect does not affect the run."""
        run = await self._run(request)
        events = run.after(request.headers.get("last-event-id"))
        if events is None:
            return Response(status_code=204)  # tells an EventSource not to reconnect
        return self._stream(run, events, interrupts=False)

    def _stream(self, run: ServedRun, events: AsyncGenerator[NumberedEvent | None], *, interrupts: bool) -> Any:
        async def chunks() -> AsyncGenerator[bytes | None]:
            async with aclosing(events):
                async for event in events:
                    yield None if event is None else sse(event)

        return run_stream(self.service.runs, run, chunks(), interrupts=interrupts)

    async def interrupt(self, request: Request) -> Response:
        """End a running call."""
        run = await self._run(request)
        body = await read_body(request, InterruptBody, self.service.limits)
        return _json(Interrupted(interrupted=await run.cancel(body.reason)))

    async def steer(self, request: Request) -> Response:
        """Send a message to a running call."""
        run = await self._run(request)
        body = await read_body(request, SteerBody, self.service.limits)
        await self.service.steer(run, body.text)
        return Response(status_code=202)

    async def sessions(self, request: Request) -> Response:
        """List the user's sessions with an agent."""
        owner, agent = owner_of(request.scope), request.path_params["agent"]
        found = await self.service.sessions(owner, agent)
        offset, limit = _number(request, "offset", 0), min(_number(request, "limit", 50), _PAGE)
        titled = _number(request, "titles", 0) > 0
        entries: list[SessionEntry] = []
        for public, info in found[offset : offset + limit]:
            title = await self.service.title(self.service.session(owner, agent, public)) if titled else None
            entries.append(SessionEntry(id=public, updated=info.updated, status=info.status, title=title))
        return _json(SessionList(total=len(found), sessions=entries))

    async def history(self, request: Request) -> Response:
        """Return a session's conversation."""
        ref = self._session(request)
        session, messages = await self.service.load(ref)
        status = await self.service.current_status(ref, session)
        working = await self.service.working(ref)  # a chat's run has an id of its own
        view = self.service.view
        return _json(
            SessionHistory(
                id=ref.public,
                status=status,
                run=working.id if working else None if status == "idle" else full_session(session).machine.run_id,
                messages=view.history(messages),
                questions=view.questions(session.pending),
            )
        )

    async def resume(self, request: Request) -> Response:
        """Continue a session with decisions, or after a restart."""
        ref = self._session(request)
        body = await read_body(request, ResumeBody, self.service.limits)
        return self._accepted(request, await self.service.resume(owner_of(request.scope), ref, body.decisions))

    async def fork(self, request: Request) -> Response:
        """Copy a session."""
        ref = self._session(request)
        body = await read_body(request, ForkBody, self.service.limits)
        copy = self.service.session(owner_of(request.scope), ref.agent.name, body.session)
        await self.service.fork(ref, copy, body.after, body.before)
        return _json(SessionCopy(session=copy.public), 201)

    async def delete(self, request: Request) -> Response:
        """Delete a session."""
        await self.service.delete(self._session(request))
        return Response(status_code=204)

    async def _run(self, request: Request) -> ServedRun:
        return await self.service.find_run(owner_of(request.scope), request.path_params["run"])

    def _session(self, request: Request) -> StoredSession:
        named = request.path_params
        return self.service.session(owner_of(request.scope), named["agent"], named["session"])

    def _accepted(self, request: Request, run: ServedRun) -> Response:
        base = request.scope.get("root_path", "").rstrip("/")
        return _json(self._info(run), 202, {"Location": f"{base}/runs/{run.id}"})

    def _info(self, run: ServedRun) -> RunEntry:
        return RunEntry(id=run.id, agent=run.agent.name, session=run.public_session, end=run.end)


async def _drain(run: ServedRun) -> EndEvent | None:
    """Read a run, and return its end event; None if the stream ends earlier because the server stops."""
    end: EndEvent | None = None
    async with aclosing(run.read()) as events:
        async for event in events:
            end = event.event if event is not None and isinstance(event.event, EndEvent) else end
    return end


def _json(value: Public | Sequence[Public], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    if isinstance(value, Public):
        return Response(value.line(), status, headers, "application/json")
    return JSONResponse([item.model_dump(exclude_none=True) for item in value], status, headers)


def _number(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Refusal(422, "invalid_query", f"{name} must be a number, 0 or more.")
    return int(text)
