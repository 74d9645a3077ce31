"""`A2A`: routes through which other agents use the agents of an `App`, with the request handler of the official SDK."""

from __future__ import annotations

import json
from collections import OrderedDict
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
    request_handlers,
    routes,
    tasks,
    types,
)
from agentflow.serve.bodies import read_json
from agentflow.serve.guard import owner_of
from agentflow.serve.limits import Limits
from agentflow.serve.refusals import Refusal
from agentflow.serve.service import Service
from agentflow.serve.streams import EventStreamResponse

__all__ = ["A2A"]

_CARD = "/.well-known/agent-card.json"
_LINE_ENDS = {ord(char): json.dumps(char)[1:-1] for char in "\x85\u2028\u2029"}  # for the SDK's client they end a line
_WORKING = (types.TaskState.TASK_STATE_SUBMITTED, types.TaskState.TASK_STATE_WORKING)


@dataclass(frozen=True, kw_only=True)
class A2A:
    """The routes of A2A: pass it as one of the `routes` of an `App`.

    Each agent is at `/a2a/{agent}`, with its card below it; the first agent's card is also at the root.

    Args:
        url: The address of the application for clients, for the cards; by default that of the request.
        version: The version that the cards state.
        push: Whether clients can have notifications sent: to public addresses, or as a function decides.
        card: Changes a card before it is sent: it is called with the agent and the card.
        tasks: A store of tasks of the SDK; by default the last ones are kept in memory.

    Example:
        >>> from agentflow.serve import STANDARD, App
        >>> app = App(Agent("assistant", ScriptedModel(["Hello!"])), routes=[*STANDARD, A2A()])
    """

    url: str | None = None
    version: str = "1.0.0"
    push: bool | PushCheck = False
    card: Callable[[Agent[Any], types.AgentCard], None] | None = None
    tasks: TaskStore | None = None

    def __call__(self, service: Service) -> Sequence[BaseRoute]:
        """Return the routes for a service."""
        offers = [_OfferedAgent(service, agent, self) for agent in service.agents.values()]
        made: list[BaseRoute] = [Route(_CARD, offers[0].card)]
        for offer in offers:
            service.closing.append(offer.close)
            made += [Route(offer.path, offer.handle, methods=["POST"]), Route(f"{offer.path}{_CARD}", offer.card)]
        return made


class _OfferedAgent:
    """An agent as it is offered."""

    def __init__(self, service: Service, agent: Agent[Any], options: A2A) -> None:
        self.path = f"/a2a/{agent.name}"
        self._service = service
        self._agent = agent
        self._options = options
        self._addresses = PushAddresses()
        self._tasks = options.tasks or _LastTasks(service.limits, self._addresses)
        self._open: tuple[_LimitedHandler, Pusher | None] | None = None

    def _handler(self) -> _LimitedHandler:
        """Return the SDK's handler; a new one after it was closed."""
        if self._open is None:
            push, addresses = self._options.push, self._addresses
            check = None if isinstance(push, bool) else push
            pusher = Pusher(addresses, check) if push else None
            handler = _LimitedHandler(
                AgentTasks(self._service, self._agent.name),
                self._tasks,
                self._card(""),
                push_config_store=addresses,
                push_sender=pusher,
                push_url_validator=check or public_only,
                interrupted_task_timeout=self._service.limits.kept_seconds,
            )
            handler.serve(self._service, self._agent.name, self._tasks)
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
        """Handle a request of the protocol, whose body is read within the limits."""
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
    """A refusal on its way through the SDK, which passes only this type on."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(400)  # not 413, which the SDK answers itself
        self.refusal = refusal


_UNTYPED: Any = request_handlers.DefaultRequestHandlerV2  # its decorators leave its methods without types


class _LimitedHandler(request_handlers.DefaultRequestHandlerV2):
    """The SDK's handler, with the limits of the service before a task begins."""

    _send: Callable[..., Awaitable[Any]] = cast("Any", request_handlers.DefaultRequestHandlerV2).on_message_send
    _send_stream: Callable[..., AsyncGenerator[Any]] = cast(
        "Any", request_handlers.DefaultRequestHandlerV2
    ).on_message_send_stream

    def serve(self, service: Service, agent: str, tasks: TaskStore) -> None:
        """Set the values for the checks."""
        self._service = service
        self._agent = agent
        self._tasks = tasks

    async def on_message_send(self, params: types.SendMessageRequest, context: ServerCallContext) -> Any:
        await self._check(params, context)
        return await self._send(params, context)

    async def on_message_send_stream(
        self, params: types.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any]:
        await self._check(params, context, streams=True)
        async for event in self._send_stream(params, context):
            yield event

    async def _check(
        self, params: types.SendMessageRequest, context: ServerCallContext, *, streams: bool = False
    ) -> None:
        service, message, owner = self._service, params.message, context.user.user_name
        if message.task_id and not message.context_id:  # the SDK would make up one
            task = await self._tasks.get(message.task_id, context)
            message.context_id = "" if task is None else task.context_id
        try:
            service.check_text(text_of(message))
            place = service.session(owner, self._agent, message.context_id or None)
            if not message.task_id and service.runs.busy(place.agent.session(place.stored)):
                raise Refusal(409, "session_busy", "A task is working in this context. Wait for it, or cancel it.")
            with service.runs.slots.take(owner), service.runs.streams.take(owner) if streams else nullcontext():
                pass
        except Refusal as refusal:
            if refusal.status in (404, 422):
                raise types.InvalidParamsError(refusal.text) from refusal
            raise _RefusedRequest(refusal) from refusal


class _OwnerUser(User):
    """The user of a request, by the key that the guard gave it."""

    def __init__(self, key: str) -> None:
        self._key = key

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._key


class _OwnerBuilder(routes.DefaultServerCallContextBuilder):
    """Gives each request the user that the guard has determined."""

    def build_user(self, request: Request) -> User:
        return _OwnerUser(owner_of(request.scope))


class _LastTasks(tasks.InMemoryTaskStore):
    """The last tasks, for their owners."""

    def __init__(self, limits: Limits, addresses: PushAddresses) -> None:
        super().__init__()
        self._limits = limits
        self._addresses = addresses
        self._order: OrderedDict[str, tuple[ServerCallContext, bool]] = OrderedDict()

    async def save(self, task: types.Task, context: ServerCallContext) -> None:
        await super().save(task, context)
        self._order[task.id] = (context, task.status.state in _WORKING)
        self._order.move_to_end(task.id)
        over = len(self._order) - self._limits.kept
        for id in [id for id, (_, working) in self._order.items() if not working][: max(over, 0)]:  # noqa: A001
            owner, _ = self._order.pop(id)
            await self.delete(id, owner)
            await self._addresses.delete_info(id, owner)
