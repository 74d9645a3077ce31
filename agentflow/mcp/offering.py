"""Serve an agent as an MCP server, for editors, desktop applications and other agents.

Rules:

1. One tool represents the agent, and each call of it is a call of the agent: the agent's hooks, limits and store apply.
   The agent's own tools, if offered, run with its hooks.
2. A call begins a new conversation, unless the server keeps conversations (`sessions=True`) and the client names one.
3. Decisions for a person are requested from the client's user, if the client supports that; otherwise nothing runs, and
   the result reports this.
4. A cancellation by the client cancels the call. A failure is reported as its type and message, without passwords.
5. A client's log contains only its own calls: names, states, errors. The chunks of tools are logged at level debug.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, cast
from uuid import uuid4
from weakref import WeakKeyDictionary

from agentflow._support.shown import described, one_line
from agentflow._support.validation import is_a
from agentflow.agent.agent import Agent
from agentflow.agent.as_tool import full_agent
from agentflow.errors import TurnDeniedError, UsageError
from agentflow.hooks.functions import on
from agentflow.hooks.hook_set import full_hooks
from agentflow.loop.session import Session
from agentflow.loop.turn import Turn, full_turn
from agentflow.loop.turn_run import make_run, run_turn
from agentflow.mcp.active import client_user
from agentflow.mcp.offers import (
    PromptFunction,
    Prompts,
    Resources,
    ResourceSource,
    completion_handler,
    content_of,
    in_own_task,
)
from agentflow.mcp.sdk import (
    MODERN_PROTOCOL_VERSIONS,
    ServerConnection,
    ServerRequestContext,
    ServerSession,
    allowed_log_levels,
    types,
)
from agentflow.mcp.sdk import Server as LowLevelServer
from agentflow.tools.results import render
from agentflow.tools.tool import Tool
from agentflow.vocabulary.events import ActingChunk, CallEnded, Error, HookEvent, PostActing, PreActing, PreReasoning
from agentflow.vocabulary.messages import DataBlock, Pending, Reply, TextBlock, ToolUseBlock, undecided
from agentflow.vocabulary.verdicts import Approve, Deny, Resolution

Context = ServerRequestContext[Any, Any]

_LEVELS: tuple[types.LoggingLevel, ...] = (
    *("debug", "info", "notice", "warning"),
    *("error", "critical", "alert", "emergency"),
)
_READS = ("research", "read", "memory_read")
_MAX_WAITING = 256
"""The maximum number of conversations that wait for a client's answer; with more, the oldest is discarded."""
_DECISION: types.ElicitRequestedSchema = {
    "type": "object",
    "properties": {
        "approve": {"type": "boolean", "title": "Approve", "description": "Whether it may run."},
        "reason": {
            "type": "string",
            "title": "Reason",
            "description": "If it must not run: the reason, for the agent.",
        },
    },
    "required": ["approve"],
}


def agent_server(
    agent: Agent,
    *,
    tools: bool | Iterable[str] = False,
    sessions: bool = False,
    prompts: Iterable[PromptFunction] = (),
    resources: Mapping[str, ResourceSource] | None = None,
    log: bool = False,
) -> LowLevelServer[Any]:
    """Create an MCP server of the SDK from an agent.

    The server's tool has the agent's name and takes a `message`; it reports rounds and tool calls as progress. Run the server
    with the SDK: `server.run(...)`, `server.streamable_http_app()`; or from the command line, with `agentflow mcp
    module:agent`. Connections of the agent's toolsets are closed by `async with agent`, or with the event loop.

    Args:
        agent: The agent to offer.
        tools: Whether the agent's own tools are offered too, or the names of those to offer. They run with its hooks.
        sessions: If true, a call may name a conversation (`session`) to continue. Any client that can reach the server and
            knows the name can do so.
        prompts: Functions as prompts: clients see the name, docstring and parameters (strings).
        resources: Files (`pathlib.Path`) and functions, by URI. `{names}` in a URI are a function's parameters. Clients can
            read nothing else.
        log: If true, clients get log messages of their calls: rounds, tool calls, failures. Clients of protocols before 2026
            set the level (by default `info`), those of 2026 request messages with a call.

    Raises:
        UsageError: Two offers have the same name, or a prompt or resource is invalid.

    Example:
        >>> from mcp import Client
        >>> async with Client(agent_server(agent)) as client:
        ...     [offered] = (await client.list_tools()).tools
        >>> offered.name == agent.name
        True
    """
    if not is_a(agent, Agent):
        raise UsageError(f"agent_server(...) takes one agent, not {agent!r:.60}. Start a server for each agent.")
    return _AgentOffers(agent, tools, sessions, Prompts(prompts), Resources(resources or {}), log).server()


class _AgentOffers:
    """The tools, prompts and resources that an agent offers."""

    def __init__(
        self,
        agent: Agent,
        tools: bool | Iterable[str],
        sessions: bool,
        prompts: Prompts,
        resources: Resources,
        log: bool,
    ) -> None:
        self._agent = agent
        self._prompts = prompts
        self._resources = resources
        self._log = LogLevels() if log else None
        self._chosen: frozenset[str] | None = None if isinstance(tools, bool) else frozenset(tools)
        self._offers = tools if isinstance(tools, bool) else True
        self._sessions = sessions
        self._waiting: OrderedDict[str, Session] = OrderedDict()
        if self._offers and any(tool.name == agent.name for tool in agent.tools):
            raise UsageError(f"Agent {agent.name!r} has a tool with the agent's name, so they cannot both be offered.")

    def server(self) -> LowLevelServer[Any]:
        """Create the SDK's server."""
        agent = self._agent
        prompts, resources = self._prompts, self._resources
        server = LowLevelServer[Any](
            agent.name,
            version="1",
            instructions=agent.description or None,
            on_list_tools=self._list,
            on_call_tool=self._call,
            # Without a handler, the SDK does not announce the capability.
            on_list_prompts=prompts.list if prompts.functions else None,
            on_get_prompt=prompts.get if prompts.functions else None,
            on_list_resources=resources.list if resources.fixed or resources.templates else None,
            on_list_resource_templates=resources.list_templates if resources.templates else None,
            on_read_resource=resources.read if resources.fixed or resources.templates else None,
            on_completion=completion_handler(prompts, resources),
        )
        if self._log is not None:
            server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._log.set)
        return server

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
        await self._agent.open()  # toolsets must be open to know their tools
        properties: dict[str, Any] = {"message": {"type": "string", "description": "The message to the agent."}}
        if self._sessions:
            properties["session"] = {
                "type": "string",
                "description": "A name for the conversation, to continue it later.",
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
        arguments = params.arguments or {}
        reporter = _Reporter(context, self._agent.name, self._log)
        # Set in the context of this request only; `in_own_task` copies the context for the call.
        client_user.set(reporter.ask if reporter.can_ask() and reporter.session.can_send_request else None)
        if params.name == self._agent.name:
            return await in_own_task(self._call_agent(params, arguments, reporter))
        await self._agent.open()
        tool = self._offered().get(params.name)
        if tool is None:
            return _failed(f"There is no tool {one_line(params.name[:200])!r} here.")
        return await in_own_task(self._run_tool(tool, arguments, reporter))

    # ---- the agent

    async def _call_agent(
        self, params: types.CallToolRequestParams, arguments: Mapping[str, Any], reporter: _Reporter
    ) -> types.CallToolResult | types.InputRequiredResult:
        message, named = arguments.get("message"), arguments.get("session") if self._sessions else None
        if not isinstance(message, str) or not message.strip() or not (named is None or isinstance(named, str)):
            return _failed("'message' must be a non-empty string" + (", and 'session' a string." if named else "."))
        state = params.request_state
        if state is not None:
            return await self._resume(state, params.input_responses or {}, reporter)
        session = Session.fresh() if named is None else self._agent.session(named)
        try:
            return await self._outcome(
                await self._reply(self._agent.stream(message, session=session), reporter), session, reporter
            )
        except Exception as error:
            return _failed(described(error))

    async def _reply(self, stream: Any, reporter: _Reporter) -> Reply:
        async with stream as events:
            async for event in events:
                await reporter.event(event)
            return cast("Reply", await events.reply())

    async def _outcome(
        self, reply: Reply, session: Session, reporter: _Reporter
    ) -> types.CallToolResult | types.InputRequiredResult:
        """Return the result for the client; if the call is suspended, ask the client's user for the decisions first."""
        while reply.outcome == "suspended":
            pending = undecided(reply.pending)
            if any(wait.kind == "external" for wait in pending) or not reporter.can_ask():
                return _failed(
                    f"The agent waits for a person's decision: {'; '.join(map(_question, pending)) or 'the call is suspended'}."
                )
            if not reporter.session.can_send_request:  # the protocol of 2026: the client calls again, with the answers
                return self._defer(session, pending)
            decisions = {wait.id: await reporter.ask(wait) for wait in pending}
            reply = await self._reply(self._agent.resume_stream(session, decisions), reporter)
        blocks = [block for block in reply.content if isinstance(block, TextBlock | DataBlock)]
        content: list[types.ContentBlock] = list(map(content_of, blocks)) or [types.TextContent(text=reply.text)]
        # The other outcomes have an answer, even if it is incomplete, so they are not errors.
        return types.CallToolResult(content=content, is_error=reply.outcome in ("denied", "interrupted"))

    def _defer(self, session: Session, pending: list[Pending]) -> types.InputRequiredResult:
        key = uuid4().hex  # the id cannot be guessed, so only this client can use it
        self._waiting[key] = session
        if len(self._waiting) > _MAX_WAITING:
            self._waiting.popitem(last=False)
        requests: dict[str, types.InputRequest] = {
            wait.id: types.ElicitRequest(
                params=types.ElicitRequestFormParams(message=_question(wait), requested_schema=_form(wait))
            )
            for wait in pending
        }
        return types.InputRequiredResult(input_requests=requests, request_state=key)

    async def _resume(
        self, key: str, answers: Mapping[str, Any], reporter: _Reporter
    ) -> types.CallToolResult | types.InputRequiredResult:
        # Remove the session, so that an answer can be used only once.
        session = self._waiting.pop(key, None)
        if session is None:
            return _failed("The conversation of this answer no longer exists. Call the tool again.")
        pending = undecided(session.pending)
        decisions = {wait.id: _decision(wait, answers.get(wait.id)) for wait in pending}
        try:
            reply = await self._reply(self._agent.resume_stream(session, decisions), reporter)
            return await self._outcome(reply, session, reporter)
        except Exception as error:
            return _failed(described(error))

    # ---- its tools

    async def _run_tool(
        self, tool: Tool[..., Any], arguments: Mapping[str, Any], reporter: _Reporter
    ) -> types.CallToolResult:
        """Run a tool of the agent, with the agent's hooks."""
        chunks: list[object] = []

        @on(ActingChunk)
        async def report(event: ActingChunk) -> None:
            # The result of a streaming tool is its chunks, not its value.
            if tool.streaming:
                chunks.append(event.chunk)
            await reporter.progress(str(event.chunk))
            await reporter.log("debug", f"{tool.name}: {event.chunk}")

        agent, turn = self._agent, full_turn(Turn(tool, arguments, hooks=[report]))
        try:
            # Ask before the run, since a turn outside a call cannot be suspended.
            if tool.requires_approval:
                if not reporter.can_ask() or not reporter.session.can_send_request:
                    return _failed(f"{tool.name} needs approval, but this client cannot ask its user.")
                use = ToolUseBlock(turn.id, tool.name, arguments)
                turn.approval = await reporter.ask(Pending(turn.id, "approval", {}, use))
            run = make_run(turn, full_agent(agent).config, full_hooks(agent.hooks), None, agent.name, None)
            await reporter.log("info", f"calls {tool.name}")
            run.start(run_turn(turn, run, None))
            value = await run.scope.result()
            await reporter.log("info", f"{tool.name}: success")
            if not tool.streaming:
                return _result(value)
            return _result("".join(map(str, chunks)) if all(isinstance(chunk, str) for chunk in chunks) else chunks)
        except TurnDeniedError as error:
            await reporter.log("warning", f"{tool.name}: denied")
            return _failed(f"Denied: {error.reason}")
        except Exception as error:
            await reporter.log("error", f"{tool.name}: {described(error)}")
            return _failed(described(error))


class LogLevels:
    """The minimum level of log messages for each client."""

    def __init__(self) -> None:
        # Weak: an entry disappears with its connection.
        self._least: WeakKeyDictionary[ServerConnection, types.LoggingLevel] = WeakKeyDictionary()

    async def set(self, context: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        """Set the level, for a client of a protocol before 2026."""
        self._least[_connection(context)] = params.level
        return types.EmptyResult()

    def of(self, context: Context) -> frozenset[types.LoggingLevel]:
        """Return the levels that may be sent for a request."""
        allowed = allowed_log_levels(context.protocol_version, cast("Mapping[str, Any] | None", context.meta))
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return allowed
        return allowed.intersection(_LEVELS[_LEVELS.index(self._least.get(_connection(context), "info")) :])


def _connection(context: Context) -> ServerConnection:
    return context.session._connection  # pyright: ignore[reportPrivateUsage] - the SDK has no public name for it


class _Reporter:
    """Reports to a client while a call runs, and asks the client's user."""

    def __init__(self, context: Context, name: str, levels: LogLevels | None) -> None:
        self.session: ServerSession = context.session
        self._count = 0
        self._name = name
        self._request_id = context.request_id
        self._log = frozenset[types.LoggingLevel]() if levels is None else levels.of(context)

    async def event(self, event: HookEvent) -> None:
        """Report a step of the agent."""
        match event:
            case PreReasoning(iteration=iteration):
                await self._step("info", f"round {iteration}")
            case PreActing(tool_use=use):
                await self._step("info", f"calls {use.name}")
            case PostActing(tool_use=use, tool_result=result):
                await self._step("info" if result.state == "success" else "warning", f"{use.name}: {result.state}")
            case ActingChunk(tool_use=use, chunk=chunk):
                await self.log("debug", f"{use.name}: {chunk}")
            case Error(error=error):
                await self.log("error", described(error))
            case CallEnded(outcome=outcome):
                await self.log("info", outcome)
            case _:
                pass

    async def _step(self, level: types.LoggingLevel, text: str) -> None:
        await self.progress(text)
        await self.log(level, text)

    async def log(self, level: types.LoggingLevel, text: str) -> None:
        """Send a log message, if the client requests its level."""
        if level in self._log:
            params = types.LoggingMessageNotificationParams(level=level, data=one_line(text)[:1000], logger=self._name)
            await self.session.send_notification(types.LoggingMessageNotification(params=params), self._request_id)

    async def progress(self, text: str) -> None:
        """Report one step of progress."""
        # MCP requires progress to increase; the number of steps is not known, so there is no total.
        self._count += 1
        await self.session.report_progress(self._count, message=one_line(text)[:500])

    def can_ask(self) -> bool:
        """Return whether the client can ask its user."""
        can = self.session.client_capabilities
        return can is not None and can.elicitation is not None

    async def ask(self, wait: Pending) -> Resolution:
        """Ask the client's user, and wait for the decision."""
        # With the id of the client's request; otherwise the question would be sent on another stream, which might be closed.
        return _decision(wait, await self.session.elicit_form(_question(wait), _form(wait), self._request_id))


def _question(wait: Pending) -> str:
    use = wait.tool_use
    if _requested_schema(wait) is not None:
        return one_line(f"{wait.request['server']}: {wait.request['message']}")[:2000]
    if use is None or wait.hook.startswith("mcp:"):
        return one_line(str(wait.request))[:2000]
    return one_line(f"May {use.name}({', '.join(f'{key}={value!r}' for key, value in use.input.items())}) run?")[:2000]


def _requested_schema(wait: Pending) -> types.ElicitRequestedSchema | None:
    """Return the form requested by an MCP server of the agent; None for any other question."""
    return wait.request.get("schema") if wait.hook.startswith("mcp:") else None


def _form(wait: Pending) -> types.ElicitRequestedSchema:
    """Return the form for a question."""
    return _requested_schema(wait) or _DECISION


def _decision(wait: Pending, answer: object) -> Resolution:
    """Return a user's decision; any answer but a clear yes is a denial."""
    if _requested_schema(wait) is not None and isinstance(answer, types.ElicitResult) and answer.action == "accept":
        return Approve(input=answer.content or {})
    if (
        isinstance(answer, types.ElicitResult)
        and answer.action == "accept"
        and (answer.content or {}).get("approve") is True
    ):
        return Approve()
    reason = (answer.content or {}).get("reason") if isinstance(answer, types.ElicitResult) else None
    return Deny(reason if isinstance(reason, str) and reason else "the user did not approve it")


def _result(value: object) -> types.CallToolResult:
    rendered = render(value)
    blocks = [TextBlock(rendered)] if isinstance(rendered, str) else rendered
    return types.CallToolResult(content=list(map(content_of, blocks)))


def _failed(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)
