"""Agents in the role of models: the part that the OpenAI and Anthropic routes share.

Rules:

1. The client sends the whole conversation with each request, so nothing is stored. A conversation that waits for a client's
   tool, or that `previous_response_id` can continue, is kept in memory: the last ones, for their owner.
2. A client's tools are offered to the model in addition to the agent's own. A call of one suspends the run, and its result
   continues a copy of the kept conversation. So the same request can be repeated. Several calls come one by one.
3. The text of all rounds is one answer, with an empty line between two rounds.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from agentflow.errors import FetchError, ShutdownError, UsageError
from agentflow.hooks.hook import Hook
from agentflow.loop.session import Session
from agentflow.serve.refusals import Refusal
from agentflow.serve.runs import Run, RunRequest
from agentflow.serve.service import Service
from agentflow.serve.view import EndEvent, ReplyEvent, TextEvent
from agentflow.vocabulary.events import HookEvent, PreActing, PreReasoning
from agentflow.vocabulary.messages import DataBlock, Msg
from agentflow.vocabulary.specs import ModelOptions, ToolSpec, Usage
from agentflow.vocabulary.verdicts import Answer, Suspend

__all__ = ["ClientCall", "ModelCalls", "ModelRequestData", "ModelResult", "bad_request", "image"]

_KEPT: Final = 500


@dataclass(frozen=True)
class ClientCall:
    """A call of a client's tool.

    Attributes:
        id: Its id for the client.
        name: The tool's name.
        arguments: The arguments as JSON text.
    """

    id: str
    name: str
    arguments: str


@dataclass(kw_only=True)
class ModelRequestData:
    """A request to an agent in the role of a model.

    Attributes:
        agent: The agent's name.
        messages: The conversation, the oldest message first.
        results: Results of client's tools at its end, by the client's ids.
        system: Instructions in addition to the agent's own.
        tools: The client's tools.
        options: Options of the model calls.
        previous: The id of a kept conversation that is continued.
    """

    agent: str
    messages: list[Msg] = field(default_factory=list[Msg])
    results: dict[str, str] = field(default_factory=dict[str, str])
    system: str = ""
    tools: list[ToolSpec] = field(default_factory=list[ToolSpec])
    options: ModelOptions = field(default_factory=ModelOptions)
    previous: str | None = None


@dataclass(frozen=True)
class ModelResult:
    """The end of an answer.

    Attributes:
        text: The whole text.
        calls: The calls of the client's tools that wait for results.
        finish: Why it ended.
        usage: The usage.
    """

    text: str
    calls: tuple[ClientCall, ...]
    finish: Literal["stop", "length", "tool_calls"]
    usage: Usage


@dataclass(frozen=True)
class _Kept:
    owner: str
    session: Session
    waiting: Mapping[str, str]  # the loop's ids of waiting calls, by the client's


class ClientSide(Hook):
    """Adds a client's instructions and tools to a call, and suspends the call at a use of these tools."""

    events = (PreReasoning, PreActing)

    def __init__(self, system: str, tools: Sequence[ToolSpec]) -> None:
        self._system = system
        self._tools = {spec.name: spec for spec in tools}

    def on_event(self, event: HookEvent) -> Suspend | None:
        """Handle an event."""
        match event:
            case PreReasoning(input_messages=messages):
                if self._tools and event.purpose == "reason":
                    event.tools = (*event.tools, *self._tools.values())
                if self._system:
                    event.input_messages = _with_system(messages, self._system)
            case PreActing(tool_use=use, approval=None) if use.name in self._tools:
                return Suspend()
            case _:
                pass
        return None


def _with_system(messages: Sequence[Msg], system: str) -> list[Msg]:
    if messages and messages[0].role == "system":
        return [Msg.system(f"{messages[0].text}\n\n{system}", id=messages[0].id), *messages[1:]]
    return [Msg.system(system), *messages]


class ModelCalls:
    """Opens calls of agents for clients of model APIs, and keeps conversations that wait.

    Args:
        service: The service.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    async def open(self, owner: str, request: ModelRequestData) -> Run:
        """Start the call of a request.

        Raises:
            Refusal: It does not fit.
        """
        agent = self.service.agents.get(request.agent)
        if agent is None:
            raise Refusal(
                404, "model_not_found", f"There is no model {request.agent!r:.80}. GET /v1/models lists them."
            )
        own = {tool.name for tool in agent.tools}
        if taken := [spec.name for spec in request.tools if spec.name in own]:
            raise bad_request(f"The agent has tools named {taken} of its own. Rename yours.")
        for msg in request.messages:
            if len(msg.text) > self.service.limits.message:
                raise Refusal(413, "message_too_long", f"At most {self.service.limits.message} characters a message.")
        hook = ClientSide(request.system, request.tools)
        limit = self.service.limits.run_seconds
        if request.results:
            session, waiting = self._waiting(owner, request)
            answers = {waiting[key]: Answer(value) for key, value in request.results.items()}
            open_calls = {waits.id for waits in session.pending} - answers.keys()
            if open_calls:
                raise bad_request("Each tool call needs a result; some have none.")
            stream = agent.resume_stream(session, answers, options=request.options, timeout=limit, hooks=[hook])
        else:
            session, given = self._conversation(owner, request)
            stream = agent.stream(given, session=session, options=request.options, timeout=limit, hooks=[hook])
        run_id = f"model_{secrets.token_hex(8)}"
        return await self.service.start(RunRequest(owner, agent, session, "", stream, run_id))

    def _conversation(self, owner: str, request: ModelRequestData) -> tuple[Session, list[Msg]]:
        messages = request.messages
        begin = max((n for n, msg in enumerate(messages, 1) if msg.role != "user"), default=0)
        history, given = messages[:begin], messages[begin:]
        if not any(msg.content for msg in given):
            raise bad_request("The last message must be the user's, with a content, or results of tools.")
        if request.previous is not None:
            kept = self._find(owner, request.previous)
            if history:
                raise bad_request("With previous_response_id, send new messages only.")
            if kept.waiting:
                raise bad_request("The previous response waits for results of tools.")
            return kept.session.copy(f"copy_{secrets.token_hex(8)}"), given
        try:
            return Session.fresh(history), given
        except UsageError as error:
            raise bad_request(f"The conversation is not valid: {error}") from error

    def _waiting(self, owner: str, request: ModelRequestData) -> tuple[Session, Mapping[str, str]]:
        key = request.previous or next(iter(request.results)).rpartition("_")[0]
        kept = self._find(owner, key)
        unknown = [use_id for use_id in request.results if use_id not in kept.waiting]
        if unknown:
            raise bad_request(f"No call {unknown} waits for a result.")
        return kept.session.copy(f"copy_{secrets.token_hex(8)}"), kept.waiting

    def _find(self, owner: str, key: str) -> _Kept:
        kept = self._kept.get(key)
        if kept is None or kept.owner != owner:
            text = "This conversation is no longer kept. Send it again, up to the user's message."
            raise Refusal(400, "conversation_not_kept", text)
        self._kept.move_to_end(key)
        return kept

    async def deltas(self, run: Run) -> AsyncGenerator[str | None]:
        """Yield the text of an answer as it streams; None after each `heartbeat` without an event."""
        streamed = earlier = False
        known = ""
        async for numbered in run.read():
            text = ""
            match None if numbered is None else numbered.event:
                case None:
                    yield None
                case TextEvent(text=text, restart=restart):
                    streamed = streamed and not restart
                    if text and earlier and not streamed:
                        text = f"\n\n{text}"
                    streamed = streamed or bool(text)
                case ReplyEvent(text=known):
                    text = "" if streamed else f"\n\n{known}" if earlier else known
                    streamed = False
                case EndEvent(text=final):
                    text = "" if final == known else f"\n\n{final}" if earlier else final
                case _:
                    pass
            if text:
                earlier = True
                yield text

    def result(self, run: Run, text: str, response_id: str | None = None) -> ModelResult:
        """Return the end of an answer, after its text; keep the conversation if it can continue.

        Args:
            run: The ended run.
            text: Its text.
            response_id: The id under which the conversation is kept in any case.

        Raises:
            Refusal: The run failed, or waits for a person.
        """
        reply = run.reply
        if reply is None:
            if isinstance(run.error, ShutdownError):
                raise Refusal(503, "shutting_down", "The server is shutting down.", retry_after=5)
            reference = None if run.end is None else run.end.reference
            raise Refusal(500, "failed", f"The agent failed (reference {reference}).")
        if reply.outcome == "interrupted":
            raise Refusal(500, "interrupted", "The run was interrupted.")
        if any(waits.tool_use is None or waits.hook != ClientSide.__name__ for waits in reply.pending):
            text = "The agent waits for a person's decision, which this API has no form for. Use /agents/{agent}/runs."
            raise Refusal(409, "approval_required", text)
        token = response_id or f"call_{secrets.token_hex(8)}"
        ids = {f"{token}_{number}": waits.id for number, waits in enumerate(reply.pending)}
        uses = [waits.tool_use for waits in reply.pending if waits.tool_use is not None]
        calls = tuple([ClientCall(key, use.name, use.arguments) for key, use in zip(ids, uses, strict=True)])
        if ids or response_id is not None:
            self._kept[token] = _Kept(run.owner, run.session.copy(run.session.id), ids)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        limited = reply.outcome == "limited" or reply.finish_reason in ("length", "max_tokens")
        return ModelResult(text, calls, "tool_calls" if calls else "length" if limited else "stop", reply.usage)

    async def text_of(self, run: Run) -> str:
        """Return the whole text of an answer."""
        return "".join([text async for text in self.deltas(run) if text is not None])


def bad_request(text: str) -> Refusal:
    """Return the refusal of a request that is not valid."""
    return Refusal(400, "invalid_request_error", text)


def image(url: str) -> DataBlock:
    """Return an image from an address or a data URL.

    Raises:
        Refusal: It is neither.
    """
    try:
        return DataBlock.from_url(url, None if url.startswith("data:") else "image/*")
    except (UsageError, FetchError, ValueError) as error:
        raise bad_request(f"The image cannot be used: {error}") from error
