"""The reverse: an agent as an MCP server, for editors, desktop applications and other people's agents.

Rules:

1. A call of the agent's tool is a call of the agent: its hooks, limits and store apply. Its own tools, where these are offered,
   run behind its hooks.
2. A call begins a conversation of its own, unless the server keeps conversations (`sessions=True`): then the client names one.
3. What waits for a person is asked of the client's user, where the client can do that; else nothing runs, and that is said.
4. A client that cancels cancels the call. What fails is told as its type and message, without passwords.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine, Iterable, Mapping
from contextvars import copy_context
from typing import Any, TypeVar, cast
from uuid import uuid4

from agentflow.agent.agent import Agent
from agentflow.agent.as_tool import full_agent
from agentflow.errors import TurnDeniedError, UsageError
from agentflow.events import ActingChunk, HookEvent, PostActing, PreActing, PreReasoning
from agentflow.ground.shown import described, one_line
from agentflow.hooks.functions import on
from agentflow.hooks.hook_set import full_hooks
from agentflow.loop.run import current_turn
from agentflow.loop.session import Session
from agentflow.loop.turns.turn import Turn, full_turn
from agentflow.loop.turns.turn_run import make_run, run_turn
from agentflow.mcp.sdk import Server as LowLevelServer
from agentflow.mcp.sdk import ServerRequestContext, ServerSession, anyio, types
from agentflow.messages import DataBlock, Pending, Reply, TextBlock
from agentflow.tools.results import render
from agentflow.tools.tool import Tool
from agentflow.verdicts import Approve, Deny, Resolution

__all__ = ["agent_server"]

T = TypeVar("T")
Context = ServerRequestContext[Any, Any]

_READS = ("research", "read", "memory_read")
_MOST_WAITING = 256
"""Conversations that wait for an answer of a client; the oldest is let go of."""
_DECISION: types.ElicitRequestedSchema = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Approve", "description": "Whether it may run."},
        "reason": {"type": "string", "title": "Reason", "description": "What the agent is told, if it may not."},
    },
    "required": ["approve"],
}


def agent_server(agent: Agent, *, tools: bool | Iterable[str] = False, sessions: bool = False) -> LowLevelServer[Any]:
    """An agent as an MCP server of the SDK.

    Its tool has the agent's name and takes a `message`. While it works it reports its rounds and tool calls as progress. Run it
    with what the SDK has for that: `server.run(...)`, `server.streamable_http_app()`; or from the command line, with
    `agentflow mcp module:agent`. What the agent's toolsets have opened is closed by `async with agent`, or with the event loop.

    Args:
        agent: The agent.
        tools: Whether its own tools are offered too; or the names of those that are. They run behind the agent's hooks.
        sessions: Whether a call may name a conversation (`session`) to go on with. Whoever can reach the server, and knows the
            name, can.

    Raises:
        UsageError: Two of what is offered have one name.

    Example:
        >>> from mcp import Client
        >>> async with Client(agent_server(agent)) as client:
        ...     [offered] = (await client.list_tools()).tools
        >>> offered.name == agent.name
        True
    """
    return _Offer(agent, tools, sessions).server()


class _Offer:
    """What is offered of an agent."""

    def __init__(self, agent: Agent, tools: bool | Iterable[str], sessions: bool) -> None:
        self._agent = agent
        self._chosen: frozenset[str] | None = None if isinstance(tools, bool) else frozenset(tools)
        self._offers = tools if isinstance(tools, bool) else True
        self._sessions = sessions
        self._waiting: OrderedDict[str, Session] = OrderedDict()
        if self._offers and any(tool.name == agent.name for tool in agent.tools):
            raise UsageError(f"Agent {agent.name!r} has a tool of its own name: so they cannot both be offered.")

    def server(self) -> LowLevelServer[Any]:
        """The SDK's server."""
        agent = self._agent
        return LowLevelServer(
            agent.name,
            version="1",
            instructions=agent.description or None,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )

    def _offered(self) -> dict[str, Tool[..., Any]]:
        if not self._offers:
            return {}
        chosen = self._chosen
        return {
            tool.name: tool
            for tool in self._agent.tools
            if not tool.external and (chosen is None or tool.name in chosen)
        }

    async def _list(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        await self._agent.open()  # what toolsets bring is known then
        properties: dict[str, Any] = {"message": {"type": "string", "description": "What is said to the agent."}}
        if self._sessions:
            properties["session"] = {
                "type": "string",
                "description": "A name for the conversation, to go on with it later.",
            }
        schema = {"type": "object", "properties": properties, "required": ["message"], "additionalProperties": False}
        about = self._agent.description or f"Ask the agent {self._agent.name}."
        listed = [types.Tool(name=self._agent.name, description=about, input_schema=schema)]
        for name, tool in self._offered().items():
            reads = tool.type in _READS
            hints = types.ToolAnnotations(read_only_hint=reads, idempotent_hint=tool.idempotent or None)
            parameters = dict(tool.spec.parameters)
            listed.append(
                types.Tool(name=name, description=tool.spec.description, input_schema=parameters, annotations=hints)
            )
        return types.ListToolsResult(tools=listed)

    async def _call(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        given = params.arguments or {}
        told = _Telling(context.session)
        if params.name == self._agent.name:
            return await _apart(self._asked(params, given, told))
        await self._agent.open()
        tool = self._offered().get(params.name)
        if tool is None:
            return _failed(f"There is no tool {one_line(params.name[:200])!r} here.")
        return await _apart(self._ran(tool, given, told))

    # ---- the agent

    async def _asked(
        self, params: types.CallToolRequestParams, given: Mapping[str, Any], told: _Telling
    ) -> types.CallToolResult | types.InputRequiredResult:
        message, named = given.get("message"), given.get("session") if self._sessions else None
        if not isinstance(message, str) or not message.strip() or not (named is None or isinstance(named, str)):
            return _failed(
                "'message' is to be a text that is not empty" + (", and 'session' a text." if named else ".")
            )
        state = params.request_state
        if state is not None:
            return await self._answered(state, params.input_responses or {}, told)
        session = Session.fresh() if named is None else self._agent.session(named)
        try:
            return await self._outcome(
                await self._reply(self._agent.stream(message, session=session), told), session, told
            )
        except Exception as error:
            return _failed(described(error))

    async def _reply(self, stream: Any, told: _Telling) -> Reply:
        async with stream as events:
            async for event in events:
                await told.event(event)
            return cast("Reply", await events.reply())

    async def _outcome(
        self, reply: Reply, session: Session, told: _Telling
    ) -> types.CallToolResult | types.InputRequiredResult:
        """What the client gets of a reply; its user is asked where somebody has to decide."""
        while reply.outcome == "suspended":
            waits = [one for one in reply.pending if one.kind != "parked"]
            if any(one.kind == "external" for one in waits) or not told.can_ask():
                return _failed(
                    f"It waits for a person to decide: {'; '.join(map(_question, waits)) or 'it is parked'}."
                )
            if not told.session.can_send_request:  # the protocol of 2026: the client calls again, with the answers
                return self._put_off(session, waits)
            decisions = {one.id: _decision(await told.ask(_question(one))) for one in waits}
            reply = await self._reply(self._agent.resume_stream(session, decisions), told)
        blocks = [block for block in reply.content if isinstance(block, TextBlock | DataBlock)]
        content = [part for part in map(_content, blocks) if part is not None] or [types.TextContent(text=reply.text)]
        return types.CallToolResult(content=content, is_error=reply.outcome in ("denied", "interrupted"))

    def _put_off(self, session: Session, waits: list[Pending]) -> types.InputRequiredResult:
        key = uuid4().hex  # nobody can guess it: who has it was given it
        self._waiting[key] = session
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popitem(last=False)
        asked: dict[str, types.InputRequest] = {
            one.id: types.ElicitRequest(
                params=types.ElicitRequestFormParams(message=_question(one), requested_schema=_DECISION)
            )
            for one in waits
        }
        return types.InputRequiredResult(input_requests=asked, request_state=key)

    async def _answered(
        self, key: str, answers: Mapping[str, Any], told: _Telling
    ) -> types.CallToolResult | types.InputRequiredResult:
        session = self._waiting.pop(key, None)
        if session is None:
            return _failed("The conversation that this answers is not here any more.")
        waits = [one for one in session.pending if one.kind != "parked"]
        decisions = {one.id: _decision(answers.get(one.id)) for one in waits}
        try:
            reply = await self._reply(self._agent.resume_stream(session, decisions), told)
            return await self._outcome(reply, session, told)
        except Exception as error:
            return _failed(described(error))

    # ---- its tools

    async def _ran(self, tool: Tool[..., Any], given: Mapping[str, Any], told: _Telling) -> types.CallToolResult:
        """A tool of the agent, run by hand behind the agent's hooks."""

        made: list[object] = []

        @on(ActingChunk)
        async def pieces(event: ActingChunk) -> None:
            if tool.streaming:
                made.append(event.chunk)
            await told.progress(str(event.chunk))

        agent, turn = self._agent, full_turn(Turn(tool, given, hooks=[pieces]))
        try:
            if tool.requires_approval:
                if not told.can_ask() or not told.session.can_send_request:
                    return _failed(f"{tool.name} needs an approval, and nobody can be asked here.")
                use = f"{tool.name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
                turn.approval = _decision(await told.ask(f"May {one_line(use)[:1000]} run?"))
            run = make_run(turn, full_agent(agent).config, full_hooks(agent.hooks), None, agent.name, None)
            run.start(run_turn(turn, run, None))
            value = await run.scope.result()
            if not tool.streaming:
                return _result(value)
            return _result("".join(map(str, made)) if all(isinstance(one, str) for one in made) else made)
        except TurnDeniedError as error:
            return _failed(f"Denied: {error.reason}")
        except Exception as error:
            return _failed(described(error))


class _Telling:
    """What a client is told, and asked, while a call runs."""

    def __init__(self, session: ServerSession) -> None:
        self.session = session
        self._count = 0

    async def event(self, event: HookEvent) -> None:
        """Tell how far the agent is."""
        match event:
            case PreReasoning(iteration=iteration):
                await self.progress(f"round {iteration}")
            case PreActing(tool_use=use):
                await self.progress(f"calls {use.name}")
            case PostActing(tool_use=use, tool_result=result):
                await self.progress(f"{use.name}: {result.state}")
            case _:
                pass

    async def progress(self, text: str) -> None:
        """One step further."""
        self._count += 1
        await self.session.report_progress(self._count, message=one_line(text)[:500])

    def can_ask(self) -> bool:
        """Whether the client says that its user can be asked."""
        can = self.session.client_capabilities
        return can is not None and can.elicitation is not None

    async def ask(self, message: str) -> types.ElicitResult:
        """Ask the client's user, now."""
        return await self.session.elicit_form(message, _DECISION)


async def _apart(work: Coroutine[Any, Any, T]) -> T:
    """Run a call in a task of its own: the server's cancellation comes again and again, and would cut its cleanup short."""
    place = copy_context()
    place.run(current_turn.set, None)  # also where the server runs inside of an agent's tool: it is a call of its own
    task = asyncio.get_running_loop().create_task(work, context=place)
    try:
        await asyncio.wait([task])
    finally:
        if not task.done():
            task.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])
    return task.result()


def _question(waits: Pending) -> str:
    use = waits.tool_use
    if use is None or waits.hook.startswith("mcp:"):
        return one_line(str(waits.request))[:2000]
    return one_line(f"May {use.name}({', '.join(f'{key}={value!r}' for key, value in use.input.items())}) run?")[:2000]


def _decision(answer: object) -> Resolution:
    """What a user has decided; anything but a clear yes is no."""
    if (
        isinstance(answer, types.ElicitResult)
        and answer.action == "accept"
        and (answer.content or {}).get("approve") is True
    ):
        return Approve()
    reason = (answer.content or {}).get("reason") if isinstance(answer, types.ElicitResult) else None
    return Deny(reason if isinstance(reason, str) and reason else "the user did not approve it")


def _content(block: TextBlock | DataBlock) -> types.ContentBlock | None:
    if isinstance(block, TextBlock):
        return types.TextContent(text=block.text)
    if block.data is None:
        return types.TextContent(text=block.url or "")
    if block.media_type.startswith("image/"):
        return types.ImageContent(data=block.data, mime_type=block.media_type)
    if block.media_type.startswith("audio/"):
        return types.AudioContent(data=block.data, mime_type=block.media_type)
    resource = types.BlobResourceContents(uri=f"data:{block.name or ''}", mime_type=block.media_type, blob=block.data)
    return types.EmbeddedResource(resource=resource)


def _result(value: object) -> types.CallToolResult:
    rendered = render(value)
    blocks = [TextBlock(rendered)] if isinstance(rendered, str) else rendered
    return types.CallToolResult(content=[part for part in map(_content, blocks) if part is not None])


def _failed(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
