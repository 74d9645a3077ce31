"""`EditorAgent`: serves an agent as the agent side of ACP.

Rules:

1. A prompt is a call of the agent; its hooks, limits and store apply. One prompt at a time in a session.
2. A connection can load and resume sessions of editors (`acp_…`), and use only those that it created, loaded or resumed.
3. The user is asked about each pending tool call until none is left; see `permissions`. A call that a crash interrupted is
   continued before the next prompt.
4. A cancellation interrupts the call: the prompt ends with `cancelled`, in all cases.
5. A failure is an error of JSON-RPC with its type and message, without passwords.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Mapping, Sequence
from importlib.metadata import version
from typing import TypeVar
from uuid import uuid4

from agentflow._support.logs import logger
from agentflow._support.shown import described, one_line
from agentflow._support.validation import is_a
from agentflow.agent.agent import Agent
from agentflow.agent.agent_flux import AgentFlux
from agentflow.agent.as_tool import full_agent
from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.serve.acp.content import Block, message_of
from agentflow.serve.acp.permissions import (
    CANCELLED,
    READ_ONLY,
    CancelledRound,
    ChosenModel,
    Permissions,
    options_for,
    reason_of,
    scope_of,
)
from agentflow.serve.acp.sdk import PROTOCOL_VERSION, Client, RequestError, schema
from agentflow.serve.acp.updates import Preview, Update, Updates
from agentflow.serve.acp.workspace import Workspace
from agentflow.vocabulary.events import CallEnded
from agentflow.vocabulary.messages import Msg, Pending, Reply, undecided
from agentflow.vocabulary.verdicts import Approve, Deny, Resolution

T = TypeVar("T")

_ASK = "ask"
_ID = re.compile(r"acp_[0-9a-f]{32}\Z")
_MODES = (
    schema.SessionMode(id=_ASK, name="Ask", description="Tools that need an approval ask for it."),
    schema.SessionMode(id=READ_ONLY, name="Read only", description="Tools that can change something are refused."),
)
_MODEL = "model"
_Servers = Sequence[schema.HttpMcpServer | schema.SseMcpServer | schema.AcpMcpServer | schema.McpServerStdio]
_STOP_REASONS: Mapping[str, schema.StopReason] = {
    "denied": "refusal",
    "limited": "max_turn_requests",
    "interrupted": "cancelled",
}
_TOO_LONG = ("length", "max_tokens")


class _EditorSession:
    """A session that the editor has opened.

    Attributes:
        mode: The id of its mode.
        model: The chosen model; None means the agent's.
        cancelled: The event that cancels the running prompt; None: no prompt is running.
        task: The running prompt's task.
    """

    def __init__(self, workspace: Workspace, preview: Preview | None) -> None:
        self.updates = Updates(workspace, preview)
        self.workspace = workspace
        self.mode = _ASK
        self.model: str | None = None
        self.cancelled: asyncio.Event | None = None
        self.task: asyncio.Task[object] | None = None


class EditorAgent:
    """An agent for editors: `agentflow acp module:variable` serves it, like an `Agent`.

    It has the methods of the protocol's agent side, so the official package can serve it over other transports too.

    Args:
        agent: The agent. With a store, its sessions can be loaded after a restart.
        preview: Returns the change that a tool call would make, so that the user sees a diff before the call runs.
        models: Names of further models that the user may choose.
        deps: Objects that tools and hooks can request by type, in addition to the `Workspace`.

    Raises:
        UsageError: A model is not a name.

    Example:
        >>> editor = EditorAgent(agent, models=["openai/gpt-5"])
        >>> (await editor.initialize(1)).protocol_version
        1
    """

    def __init__(
        self,
        agent: Agent,
        *,
        preview: Preview | None = None,
        models: Sequence[str] = (),
        deps: Sequence[object] = (),
    ) -> None:
        if isinstance(models, str) or not all(is_a(name, str) and name for name in models):
            raise UsageError(f"EditorAgent(models={models!r:.60}): expected names of models, such as ['openai/gpt-5'].")
        self.agent = agent
        self._preview = preview
        self._deps = tuple(deps)
        self._models: tuple[str, ...] = (
            tuple(dict.fromkeys((full_agent(agent).config.view.model_name, *models))) if models else ()
        )
        self._opened: dict[str, _EditorSession] = {}
        self._client: Client | None = None

    # ---- the protocol's methods

    def on_connect(self, conn: Client) -> None:
        """Store the connection to the editor."""
        self._client = conn

    async def initialize(
        self,
        protocol_version: int,
        client_capabilities: schema.ClientCapabilities | None = None,
        client_info: schema.Implementation | None = None,
    ) -> schema.InitializeResponse:
        """Return the version of the protocol and the agent's capabilities."""
        return schema.InitializeResponse(
            protocol_version=PROTOCOL_VERSION,
            agent_capabilities=schema.AgentCapabilities(
                load_session=True,
                prompt_capabilities=schema.PromptCapabilities(image=True, audio=True, embedded_context=True),
                session_capabilities=schema.SessionCapabilities(
                    resume=schema.SessionResumeCapabilities(),
                    close=schema.SessionCloseCapabilities(),
                    additional_directories=schema.SessionAdditionalDirectoriesCapabilities(),
                ),
            ),
            agent_info=schema.Implementation(name=self.agent.name, version=version("agentflow-hooks")),
            auth_methods=[],
        )

    async def authenticate(self, method_id: str) -> None:
        """Refuse: there are no authentication methods."""
        raise RequestError.invalid_params({"details": "This agent needs no authentication."})

    async def new_session(
        self, cwd: str, additional_directories: list[str] | None = None, mcp_servers: _Servers | None = None
    ) -> schema.NewSessionResponse:
        """Create a session."""
        session_id = f"acp_{uuid4().hex}"
        opened = await self._open(session_id, cwd, additional_directories, mcp_servers)
        return schema.NewSessionResponse(
            session_id=session_id, modes=_modes(opened), config_options=self._options(opened)
        )

    async def load_session(
        self,
        cwd: str,
        session_id: str,
        mcp_servers: _Servers | None = None,
        additional_directories: list[str] | None = None,
    ) -> schema.LoadSessionResponse:
        """Open an earlier session, and send its conversation."""
        messages = await self._stored(session_id)
        opened = await self._open(session_id, cwd, additional_directories, mcp_servers)
        states = {result.tool_use_id: result for message in messages for result in message.tool_results}
        view = full_agent(self.agent).config.view
        for message in messages:
            for update in opened.updates.again(message, states, view):
                await self._send(session_id, update)
        return schema.LoadSessionResponse(modes=_modes(opened), config_options=self._options(opened))

    async def resume_session(
        self,
        session_id: str,
        cwd: str,
        additional_directories: list[str] | None = None,
        mcp_servers: _Servers | None = None,
    ) -> schema.ResumeSessionResponse:
        """Open an earlier session without sending its conversation."""
        await self._stored(session_id)
        opened = await self._open(session_id, cwd, additional_directories, mcp_servers)
        return schema.ResumeSessionResponse(modes=_modes(opened), config_options=self._options(opened))

    async def close_session(self, session_id: str) -> schema.CloseSessionResponse:
        """Cancel a session's prompt, and release the session."""
        opened = self._session_of(session_id)
        if opened.cancelled is not None:
            await self.cancel(session_id)
        self._opened.pop(session_id, None)
        return schema.CloseSessionResponse()

    async def set_session_mode(self, session_id: str, mode_id: str) -> schema.SetSessionModeResponse:
        """Choose whether tools may change something, from the next call on."""
        opened = self._session_of(session_id)
        if mode_id not in {mode.id for mode in _MODES}:
            raise RequestError.invalid_params({"details": f"There is no mode {one_line(mode_id[:100])!r}."})
        opened.mode = mode_id
        return schema.SetSessionModeResponse()

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool
    ) -> schema.SetSessionConfigOptionResponse:
        """Choose the model, from the next call on."""
        opened = self._session_of(session_id)
        if config_id != _MODEL or not isinstance(value, str) or value not in self._models:
            raise RequestError.invalid_params({"details": "There is no such option or value."})
        opened.model = None if value == self._models[0] else value
        return schema.SetSessionConfigOptionResponse(config_options=list(self._options(opened) or ()))

    async def prompt(self, session_id: str, prompt: list[Block]) -> schema.PromptResponse:
        """Run a call, and send its updates until it ends."""
        opened = self._session_of(session_id)
        if opened.cancelled is not None:
            raise RequestError.invalid_request({"details": "A prompt is running in this session; cancel it first."})
        message = message_of(prompt)
        cancelled = opened.cancelled = asyncio.Event()
        opened.task = asyncio.current_task()
        try:
            reply = await self._call(session_id, opened, message, cancelled)
        except (RequestError, ConnectionError):  # the official package handles both
            raise
        except Exception as error:
            if cancelled.is_set():
                return schema.PromptResponse(stop_reason="cancelled")
            raise RequestError.internal_error({"details": described(error)}) from error
        finally:
            opened.cancelled = opened.task = None
        if cancelled.is_set() or reply is None:
            return schema.PromptResponse(stop_reason="cancelled")
        return schema.PromptResponse(stop_reason=_stop_reason(reply), usage=_usage(reply))

    async def cancel(self, session_id: str) -> None:
        """Interrupt a session's prompt, if one is running."""
        opened = self._opened.get(session_id)
        if opened is not None and opened.cancelled is not None:
            opened.cancelled.set()
            self.agent.interrupt(session_id, CANCELLED)

    async def aclose(self) -> None:
        """Interrupt all prompts, and wait until their calls are closed."""
        tasks = [opened.task for opened in self._opened.values() if opened.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- sessions

    def _session_of(self, session_id: str) -> _EditorSession:
        opened = self._opened.get(session_id)
        if opened is None:
            raise RequestError.resource_not_found(one_line(session_id[:100]))
        return opened

    async def _stored(self, session_id: str) -> tuple[Msg, ...]:
        """Return the conversation of an earlier session."""
        messages = await self.agent.history(session_id) if _ID.match(session_id) else ()
        if not messages:
            self.agent.forget(session_id)
            raise RequestError.resource_not_found(one_line(session_id[:100]))
        return messages

    async def _open(
        self, session_id: str, cwd: str, more: list[str] | None, servers: _Servers | None
    ) -> _EditorSession:
        known = self._opened.get(session_id)
        if known is not None and known.cancelled is not None:
            raise RequestError.invalid_request({"details": "A prompt is running in this session."})
        if not all(os.path.isabs(path) and "\0" not in path for path in (cwd, *(more or ()))):
            raise RequestError.invalid_params({"details": "Folders must be absolute paths."})
        if servers:
            logger.warning(
                "ACP: {} does not connect the editor's MCP servers ({}). Add them to the agent as toolsets.",
                self.agent.name,
                one_line(", ".join(server.name for server in servers)),
            )
        opened = self._opened[session_id] = _EditorSession(Workspace(cwd, tuple(more or ())), self._preview)
        return opened

    def _options(
        self, opened: _EditorSession
    ) -> list[schema.SessionConfigOptionSelect | schema.SessionConfigOptionBoolean] | None:
        if not self._models:
            return None
        choices = [schema.SessionConfigSelectOption(value=name, name=name) for name in self._models]
        chosen = opened.model or self._models[0]
        return [
            schema.SessionConfigOptionSelect(
                id=_MODEL, name="Model", category="model", type="select", current_value=chosen, options=choices
            )
        ]

    # ---- calls

    async def _call(
        self, session_id: str, opened: _EditorSession, message: Msg, cancelled: asyncio.Event
    ) -> Reply | None:
        """Finish the session's open call, then run the prompt's; return None if the prompt was cancelled first."""
        agent, session = self.agent, self.agent.session(session_id)
        await agent.history(session)  # loads it
        reply: Reply | None = None
        started = False
        while not cancelled.is_set():
            if session.status in ("suspended", "unfinished"):
                pending = undecided(session.pending)
                if started and reply is not None and reply.outcome == "suspended" and not pending:
                    return reply  # parked: the next prompt continues it
                always: dict[str, tuple[bool, str]] = {}
                decisions = await self._decisions(session_id, opened, pending, always, cancelled)
                hooks = self._hooks(opened, always)
                if cancelled.is_set():
                    hooks.append(CancelledRound())
                stream = agent.resume_stream(session, decisions, deps=[opened.workspace, *self._deps], hooks=hooks)
            elif not started:
                started = True
                stream = agent.stream(
                    message, session=session, deps=[opened.workspace, *self._deps], hooks=self._hooks(opened, {})
                )
            else:
                return reply
            reply = await self._follow(session_id, opened, stream, cancelled)
        return None

    def _hooks(self, opened: _EditorSession, always: Mapping[str, tuple[bool, str]]) -> list[Hook]:
        hooks: list[Hook] = [Permissions(self.agent, opened.mode, always)]
        if opened.model is not None:
            hooks.append(ChosenModel(opened.model))
        return hooks

    async def _follow(
        self, session_id: str, opened: _EditorSession, stream: AgentFlux, cancelled: asyncio.Event
    ) -> Reply:
        """Send the updates of one call."""
        async with stream as events:
            async for event in events:
                if cancelled.is_set():
                    self.agent.interrupt(session_id, CANCELLED)  # the call may have started after the cancellation
                for update in opened.updates.of(event):
                    await self._send(session_id, update)
                if isinstance(event, CallEnded) and (window := event.context.window).limit:
                    used, size = window.used, window.limit
                    await self._send(
                        session_id, schema.UsageUpdate(session_update="usage_update", used=used, size=size)
                    )
            reply = await events.reply()
        if not cancelled.is_set():
            for update in opened.updates.ending(reply):
                await self._send(session_id, update)
        return reply

    async def _decisions(
        self,
        session_id: str,
        opened: _EditorSession,
        pending: Sequence[Pending],
        always: dict[str, tuple[bool, str]],
        cancelled: asyncio.Event,
    ) -> dict[str, Resolution]:
        """Ask the user about each pending call; add lasting answers to `always`."""
        decisions: dict[str, Resolution] = {}
        lasting: dict[str, bool] = {}
        for wait in pending:
            scope = scope_of(wait, self.agent)
            if cancelled.is_set():
                decisions[wait.id] = Deny(CANCELLED)
            elif wait.kind == "external":
                decisions[wait.id] = Deny("An editor cannot run this tool.")
            elif scope and scope in lasting:
                decisions[wait.id] = Approve() if lasting[scope] else Deny("The user refused it.")
            else:
                option = await self._ask(session_id, opened, wait, scope, cancelled)
                allows = option in ("allow", "allow_always")
                decisions[wait.id] = (
                    Approve() if allows else Deny(CANCELLED if option is None else "The user refused it.")
                )
                if option is not None and option.endswith("_always"):
                    lasting[scope], always[wait.id] = allows, (allows, scope)
        return decisions

    async def _ask(
        self, session_id: str, opened: _EditorSession, wait: Pending, scope: str, cancelled: asyncio.Event
    ) -> str | None:
        """Return the id of the chosen option; None if the user cancelled."""
        assert wait.tool_use is not None
        use = wait.tool_use
        view = full_agent(self.agent).config.view
        options = options_for(scope)
        call = opened.updates.request(use, view, one_line(reason_of(wait)))
        answer = await _unless(cancelled, self._connected.request_permission(session_id, call, options))
        if answer is None or isinstance(answer.outcome, schema.DeniedOutcome):
            cancelled.set()
            return None
        chosen = answer.outcome.option_id
        return chosen if chosen in {option.option_id for option in options} else "reject"  # rule 1 of `permissions`

    # ---- the connection

    @property
    def _connected(self) -> Client:
        if self._client is None:
            raise UsageError("The EditorAgent has no connection; serve it with the official package of ACP.")
        return self._client

    async def _send(self, session_id: str, update: Update) -> None:
        await self._connected.session_update(session_id, update)


async def _unless(cancelled: asyncio.Event, work: Awaitable[T]) -> T | None:
    """Return the result of the work; if the event is set first, cancel the work and return None."""
    doing, waiting = asyncio.ensure_future(work), asyncio.ensure_future(cancelled.wait())
    try:
        await asyncio.wait((doing, waiting), return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        for task in (doing, waiting):
            task.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)


def _modes(opened: _EditorSession) -> schema.SessionModeState:
    return schema.SessionModeState(current_mode_id=opened.mode, available_modes=list(_MODES))


def _stop_reason(reply: Reply) -> schema.StopReason:
    if reply.outcome == "completed" and reply.finish_reason in _TOO_LONG:
        return "max_tokens"
    return _STOP_REASONS.get(reply.outcome, "end_turn")


def _usage(reply: Reply) -> schema.Usage:
    usage = reply.usage
    return schema.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.input_tokens + usage.output_tokens,
        thought_tokens=usage.reasoning_tokens,
        cached_read_tokens=usage.cache_read_tokens,
        cached_write_tokens=usage.cache_write_tokens,
    )
