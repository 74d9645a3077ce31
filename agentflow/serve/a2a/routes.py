"""`A2A`: routes through which other agents use the agents of an `App`, with the request handler of the official SDK."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message as ASGIMessage

from agentflow.agent.agent import Agent
from agentflow.serve.a2a.executor import AgentTasks, text_of, ticking
from agentflow.serve.a2a.push import PushAddresses, PushCheck, Pusher, public_only
from agentflow.serve.a2a.sdk import (
    EventSourceResponse,
    ServerCallContext,
    ServerSentEvent,
    TaskStore,
    User,
    cluster,
    request_handlers,
    routes,
    tasks,
    types,
)
from agentflow.serve.a2a.task_stores import WORKING, LastTasks, TaskDatabase
from agentflow.serve.bodies import read_json
from agentflow.serve.guard import owner_of
from agentflow.serve.limits import Limits
from agentflow.serve.refusals import Refusal
from agentflow.serve.service import Service
from agentflow.serve.streams import EventStreamResponse

_CHECK_SECONDS = 2.0
_LEFT_SECONDS = 10.0
_CARD = "/.well-known/agent-card.json"
_LINE_ENDS = {ord(char): json.dumps(char)[1:-1] for char in "\x85\u2028\u2029"}  # they end a line in the SDK's client


@dataclass(frozen=True, kw_only=True)
class A2A:
    """The routes of A2A: pass it as one of the `routes` of an `App`.

    Each agent is at `/a2a/{agent}`, with its card below it; the first agent's card is also at the root.

    Args:
        url: The application's address for clients, which the cards contain; by default that of the request.
        version: The version that the cards state.
        push: Whether clients can request push notifications: to public addresses, or to those that a function allows.
        card: A function that changes a card before it is sent, called with the agent and the card.
        tasks: The database of the tasks, for all processes that serve them; or a store of the SDK. By default the most
            recent tasks are kept in memory.

    Example:
        >>> from agentflow.serve import STANDARD, App
        >>> app = App(Agent("assistant", ScriptedModel(["Hello!"])), routes=[*STANDARD, A2A()])
    """

    url: str | None = None
    version: str = "1.0.0"
    push: bool | PushCheck = False
    card: Callable[[Agent[Any], types.AgentCard], None] | None = None
    tasks: TaskStore | str | None = None

    def __call__(self, service: Service) -> Sequence[BaseRoute]:
        """Return the routes for a service."""
        shared = TaskDatabase.open(self.tasks) if isinstance(self.tasks, str) else self.tasks
        offers = [_OfferedAgent(service, agent, self, shared) for agent in service.all_agents]
        routes: list[BaseRoute] = [Route(_CARD, offers[0].card)]
        for offer in offers:
            service.closing.append(offer.close)
            routes += [Route(offer.path, offer.handle, methods=["POST"]), Route(f"{offer.path}{_CARD}", offer.card)]
        if isinstance(shared, TaskDatabase):
            service.closing.append(shared.engine.dispose)
        return routes


class _OfferedAgent:
    """An agent with its card and handler."""

    def __init__(
        self, service: Service, agent: Agent[Any], options: A2A, shared: TaskStore | TaskDatabase | None
    ) -> None:
        self.path = f"/a2a/{agent.name}"
        self._service = service
        self._agent = agent
        self._options = options
        self._addresses = PushAddresses()
        self._tasks = shared or LastTasks(service.limits, self._addresses)
        self._open: tuple[_LimitedHandler, Pusher | None] | None = None

    def _handler(self) -> _LimitedHandler:
        """Return the SDK's handler; create another one if it was closed."""
        if self._open is None:
            push, addresses = self._options.push, self._addresses
            check = None if isinstance(push, bool) else push
            pusher = Pusher(addresses, check) if push else None
            tasks = self._tasks
            store, events = (tasks.store, tasks.events) if isinstance(tasks, TaskDatabase) else (tasks, None)
            handler = _LimitedHandler(
                AgentTasks(self._service, self._agent.name),
                store,
                self._card(""),
                event_stream=events,
                push_config_store=addresses,
                push_sender=pusher,
                push_url_validator=check or public_only,
                interrupted_task_timeout=self._service.limits.finished_seconds,
            )
            handler.serve(self._service, self._agent.name)
            self._open = handler, pusher
        return self._open[0]

    async def close(self) -> None:
        """Stop the handler; tasks are kept."""
        if self._open is not None:
            (handler, pusher), self._open = self._open, None
            await handler.aclose()
            if pusher is not None:
                await pusher.close()

    async def card(self, request: Request) -> Response:
        base = self._options.url
        if base is None:
            base = f"{request.url.scheme}://{request.headers['host']}{request.scope.get('root_path', '')}"
        [route] = routes.create_agent_card_routes(self._card(base.rstrip("/")))
        return await route.endpoint(request)

    def _card(self, base: str) -> types.AgentCard:
        agent, view = self._agent, self._service.view
        described = agent.description or f"The agent {agent.name}."
        skills = [types.AgentSkill(id=agent.name, name=agent.name, description=described, tags=["agent"])]
        for tool in agent.tools:
            label = view.labels.get(tool.name)
            if view.tools == "label":
                if label is not None:
                    skills.append(
                        types.AgentSkill(id=f"skill-{len(skills)}", name=label, description=label, tags=["tool"])
                    )
            elif not tool.external:
                about = tool.spec.description or f"The tool {tool.name}."
                skills.append(types.AgentSkill(id=tool.name, name=label or tool.name, description=about, tags=["tool"]))
        card = types.AgentCard(
            name=agent.name,
            description=described,
            version=self._options.version,
            supported_interfaces=[
                types.AgentInterface(url=f"{base}{self.path}", protocol_binding="JSONRPC", protocol_version=version)
                for version in ("1.0", "0.3")
            ],
            capabilities=types.AgentCapabilities(streaming=True, push_notifications=bool(self._options.push)),
            default_input_modes=["text/plain", "application/json"],
            default_output_modes=["text/plain", "application/json"],
            skills=skills,
        )
        if self._options.card is not None:
            self._options.card(agent, card)
        return card

    async def handle(self, request: Request) -> Any:
        """Handle a request of the protocol; its body is read within the limits."""
        limits = self._service.limits
        body = json.dumps(await read_json(request, limits)).encode()

        async def receive() -> ASGIMessage:
            return {"type": "http.request", "body": body, "more_body": False}

        [route] = routes.create_jsonrpc_routes(self._handler(), "/", _OwnerBuilder(), enable_v0_3_compat=True)
        try:
            response = await route.endpoint(Request(request.scope, receive))
        except _RefusedRequest as refused:
            return refused.refusal.response()
        if not isinstance(response, EventSourceResponse):
            return response
        slot = self._service.runs.streams.take(owner_of(request.scope))
        events = cast("Any", response).body_iterator
        return EventStreamResponse(_chunks(events, limits), limits, slot)


async def _chunks(events: AsyncGenerator[dict[str, Any]], limits: Limits) -> AsyncGenerator[bytes | None]:
    async for event in ticking(events, lambda: limits.heartbeat):
        if event is None:
            yield None
        else:
            data = event["data"].translate(_LINE_ENDS)
            yield ServerSentEvent(**{**event, "data": data}, sep="\n").encode()


class _RefusedRequest(HTTPException):
    """A refusal that passes through the SDK, which forwards only this type."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(400)  # not 413, which the SDK answers itself
        self.refusal = refusal


class _LimitedHandler(request_handlers.DefaultRequestHandlerV2):
    """The SDK's handler, which checks the limits of the service before a task begins."""

    # The SDK's decorators leave these methods without types.
    _send: Callable[..., Awaitable[Any]] = cast("Any", request_handlers.DefaultRequestHandlerV2).on_message_send
    _send_stream: Callable[..., AsyncGenerator[Any]] = cast(
        "Any", request_handlers.DefaultRequestHandlerV2
    ).on_message_send_stream

    _subscribe: Callable[..., AsyncGenerator[Any]] = cast(
        "Any", request_handlers.DefaultRequestHandlerV2
    ).on_subscribe_to_task
    _get: Callable[..., Awaitable[Any]] = cast("Any", request_handlers.DefaultRequestHandlerV2).on_get_task
    _cancel: Callable[..., Awaitable[types.Task]] = cast("Any", request_handlers.DefaultRequestHandlerV2).on_cancel_task
    _executor: AgentTasks

    def serve(self, service: Service, agent: str) -> None:
        """Set the values for the checks."""
        self._service = service
        self._agent = agent
        self._executor = cast("AgentTasks", self.agent_executor)

    async def on_message_send(self, params: types.SendMessageRequest, context: ServerCallContext) -> Any:
        await self._check(params, context)
        return await self._send(params, context)

    async def on_message_send_stream(
        self, params: types.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any]:
        await self._check(params, context, streams=True)
        async for event in self._send_stream(params, context):
            yield event

    async def on_get_task(self, params: types.GetTaskRequest, context: ServerCallContext) -> Any:
        await self._complete(params.id, context)
        return await self._get(params, context)

    async def on_subscribe_to_task(
        self, params: types.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any]:
        await self._complete(params.id, context)
        async for event in ticking(self._subscribe(params, context), lambda: _CHECK_SECONDS):
            if event is None:
                await self._complete(params.id, context)
            else:
                yield event

    async def on_cancel_task(self, params: types.CancelTaskRequest, context: ServerCallContext) -> Any:
        task = await self._cancel(params, context)
        await self._executor.close(context.user.user_name, task.context_id)
        return task

    async def _complete(self, task_id: str, context: ServerCallContext) -> None:
        """Complete a task whose process died, if its run has ended."""
        if await self._active_task_registry.get(task_id) is not None:
            return
        found = await self._versioned_store.get(task_id, context)
        # The process of a recent task may be about to report the task's end.
        if found is None or found.task.status.state not in WORKING or _age(found.task) < _LEFT_SECONDS:
            return
        task = found.task
        manager = tasks.TaskManager(self._versioned_store, context, task.id, task.context_id, None)
        try:
            await self._executor.complete(context.user.user_name, task, manager.process)
        except cluster.ConcurrentTaskModificationError:
            return  # its process has just completed it

    async def _check(
        self, params: types.SendMessageRequest, context: ServerCallContext, *, streams: bool = False
    ) -> None:
        service, message, owner = self._service, params.message, context.user.user_name
        if message.task_id and not message.context_id:  # without an id, the SDK would create a context
            found = await self._versioned_store.get(message.task_id, context)
            message.context_id = "" if found is None else found.task.context_id
        if message.task_id:
            await self._complete(message.task_id, context)
        try:
            service.check_text(text_of(message))
            ref = service.session(owner, self._agent, message.context_id or None)
            if not message.task_id and await service.working(ref) is not None:
                raise Refusal(409, "session_busy", "A task is working in this context. Wait for it, or cancel it.")
            # This only checks that slots are free: the run and the response take theirs later.
            with service.runs.slots.take(owner), service.runs.streams.take(owner) if streams else nullcontext():
                pass
        except Refusal as refusal:
            if refusal.status in (404, 422):
                raise types.InvalidParamsError(refusal.text) from refusal
            raise _RefusedRequest(refusal) from refusal


def _age(task: types.Task) -> float:
    """Return the seconds since a task changed its status."""
    return time.time() - task.status.timestamp.ToNanoseconds() / 1e9


class _OwnerUser(User):
    """The user of a request, by the guard's key."""

    def __init__(self, key: str) -> None:
        self._key = key

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._key


class _OwnerBuilder(routes.DefaultServerCallContextBuilder):
    """Sets the user of each request, as determined by the guard."""

    def build_user(self, request: Request) -> User:
        return _OwnerUser(owner_of(request.scope))
