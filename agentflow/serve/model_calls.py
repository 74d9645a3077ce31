"""Agents used as models: the part that the OpenAI and Anthropic routes share.

Rules:

1. The client sends the whole conversation with each request, so nothing is stored. Only the most recent conversations that
   wait for a client's tool, or that `previous_response_id` can continue, are kept in memory, each for its owner.
2. A call of a client's tool suspends the run. Its result continues a copy of the kept conversation, so a client can repeat the
   request. Of several such calls, each answer contains one.
3. A durable agent's conversation is a session of its store, and the ids sent to a client contain those of the run and its
   call. A tool's result continues the run itself. A repeated result does not start a second call: it returns the first.
4. The text of all rounds is one answer, with an empty line between two rounds.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from agentflow.agent.agent import Agent
from agentflow.durable.client_side import ClientSide, is_client_call
from agentflow.errors import FetchError, UsageError
from agentflow.loop.session import Session
from agentflow.serve.durable_runs import DurableRun, digest
from agentflow.serve.refusals import Refusal
from agentflow.serve.runs import Run, ServedCall, ServedRun, StoredSession
from agentflow.serve.service import Service
from agentflow.serve.view import EndEvent, ReplyEvent, TextEvent
from agentflow.vocabulary.messages import DataBlock, Msg, Pending
from agentflow.vocabulary.specs import ModelOptions, ToolSpec, Usage
from agentflow.vocabulary.verdicts import Answer, Resolution

_MAX_CONVERSATIONS: Final = 500
_WAITS: Final = "The previous response waits for results of tools."


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
    """A request to an agent used as a model.

    Attributes:
        agent: The agent's name.
        messages: The conversation, the oldest message first.
        results: Results of the client's tools at the end of the conversation, by the client's ids.
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
    """A complete answer.

    Attributes:
        text: The whole text.
        calls: The calls of the client's tools that wait for results.
        finish: Why it ended.
        usage: The usage of its model calls.
    """

    text: str
    calls: tuple[ClientCall, ...]
    finish: Literal["stop", "length", "tool_calls"]
    usage: Usage


@dataclass(frozen=True)
class _WaitingConversation:
    owner: str
    session: Session


class ModelCalls:
    """Opens calls of agents for clients of model APIs, and keeps conversations that wait.

    Args:
        service: Runs the agents.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        self._conversations: OrderedDict[str, _WaitingConversation] = OrderedDict()

    async def open(self, owner: str, request: ModelRequestData) -> ServedRun:
        """Start the call of a request.

        Raises:
            Refusal: The request is invalid.
        """
        agent = next((candidate for candidate in self.service.all_agents if candidate.name == request.agent), None)
        if agent is None:
            raise Refusal(
                404, "model_not_found", f"There is no model {request.agent!r:.80}. GET /v1/models lists them."
            )
        own = {tool.name for tool in agent.tools}
        if conflicts := [spec.name for spec in request.tools if spec.name in own]:
            raise bad_request(f"The agent has tools named {conflicts} of its own. Rename yours.")
        allowed = self.service.limits.message
        for msg in request.messages:
            if len(msg.text) > allowed:
                raise Refusal(413, "message_too_long", f"A message is too long: {allowed} characters are allowed.")
        side = ClientSide(request.system, request.tools, request.options)
        token = secrets.token_hex(8)
        durable = agent.name not in self.service.agents
        ref = StoredSession(agent, "", f"{owner}.{agent.name}.~{token}")  # not the id of a user's session
        call = ServedCall(owner=owner, ref=ref, run_id=f"model_{token}", side=side)
        if not request.results:
            history, messages = _split(request)
            if durable:
                await self._store(owner, request.previous, history, ref)
                return await self.service.open(replace(call, input=messages))
            session = self._copy(owner, request.previous) if request.previous else _new_session(history)
            return await self.service.open(replace(call, input=messages), session)
        # `call_KEY_NUMBER`, see `result`
        key = _key(request.previous or next(iter(request.results)).rpartition("_")[0])
        if durable:
            return await self._answer(owner, key, request.results, call)
        conversation = self._find(owner, key)
        answers = _answers(key, request.results, conversation.session.pending)
        return await self.service.open(replace(call, decisions=answers), conversation.session.copy(f"copy_{token}"))

    def _copy(self, owner: str, previous: str) -> Session:
        conversation = self._find(owner, _key(previous))
        if conversation.session.pending:
            raise bad_request(_WAITS)
        return conversation.session.copy(f"copy_{secrets.token_hex(8)}")

    def _find(self, owner: str, key: str) -> _WaitingConversation:
        conversation = self._conversations.get(key)
        if conversation is None or conversation.owner != owner:
            raise _not_kept_error()
        self._conversations.move_to_end(key)
        return conversation

    # ---- conversations of durable agents, which are sessions of the store

    async def _store(self, owner: str, previous: str | None, history: Sequence[Msg], ref: StoredSession) -> None:
        """Store the messages before a call in its session."""
        if previous is not None:
            run = await self._stored_run(owner, _key(previous), ref.agent)
            if run.reply is None or run.reply.pending:
                raise bad_request(_WAITS)
            await self.service.fork(StoredSession(ref.agent, "", run.session_id), ref)
        elif history:
            await self.service.import_(ref, _new_session(history, ref.stored))

    async def _answer(self, owner: str, key: str, results: Mapping[str, str], call: ServedCall) -> ServedRun:
        run = await self._stored_run(owner, key, call.ref.agent)
        waiting = () if run.reply is None else run.reply.pending
        answers = _answers(key, results, waiting)
        name = f"answer_{digest(*[part for pair in results.items() for part in pair])}"
        ref = StoredSession(call.ref.agent, "", run.session_id)
        await self.service.history(ref)
        if (repeated := run.with_key(name)) is not None:
            return repeated
        return await self.service.open(replace(call, ref=ref, decisions=answers, waiting=waiting, run_id=name))

    async def _stored_run(self, owner: str, key: str, agent: Agent[Any]) -> DurableRun:
        token, _, number = key.rpartition("_")
        run = await self.service.durable.find(owner, f"model_{token}")
        found = None if run is None or run.agent.name != agent.name else run.at(number)
        if found is None:
            raise _not_kept_error()
        return found

    async def deltas(self, run: ServedRun) -> AsyncGenerator[str | None]:
        """Yield the text of an answer as it streams; None after each `heartbeat` without an event."""
        streamed = earlier = False
        known = ""
        async for numbered in run.read_call():
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

    def result(self, run: ServedRun, text: str, *, keep: bool = False) -> ModelResult:
        """Return the complete answer once its text has been sent; keep the conversation if it can continue.

        Args:
            run: The ended run.
            text: Its text.
            keep: Whether the conversation is kept in any case.

        Raises:
            Refusal: The run failed, or waits for a person.
        """
        reply, end = run.reply, run.end
        if end is None or end.outcome == "parked":
            raise Refusal(503, "shutting_down", "The server is shutting down.", retry_after=5)
        if reply is None:
            raise Refusal(500, "failed", f"The agent failed (reference {end.reference}).")
        if reply.outcome == "interrupted":
            raise Refusal(500, "interrupted", "The run was interrupted.")
        if any(wait.tool_use is None or not is_client_call(wait) for wait in reply.pending):
            text = "The agent waits for a person's decision, which this API cannot express. Use /agents/{agent}/runs."
            raise Refusal(409, "approval_required", text)
        key = key_of(run)
        uses = [wait.tool_use for wait in reply.pending if wait.tool_use is not None]
        calls = tuple([ClientCall(f"call_{key}_{n}", use.name, use.arguments) for n, use in enumerate(uses)])
        if isinstance(run, Run) and (calls or keep):
            self._conversations[key] = _WaitingConversation(run.owner, run.session.copy(run.session.id))
            while len(self._conversations) > _MAX_CONVERSATIONS:
                self._conversations.popitem(last=False)
        limited = reply.outcome == "limited" or reply.finish_reason in ("length", "max_tokens")
        return ModelResult(text, calls, "tool_calls" if calls else "length" if limited else "stop", reply.usage)

    async def text_of(self, run: ServedRun) -> str:
        """Return the whole text of an answer."""
        return "".join([text async for text in self.deltas(run) if text is not None])


def key_of(run: ServedRun) -> str:
    """Return the key of a run's last call, which is part of the ids that a client gets."""
    return f"{run.id.removeprefix('model_')}_{run.number}"


def _key(public: str) -> str:
    """Return the key in an id that a client has sent."""
    return public.removeprefix("resp_").removeprefix("call_")


def _answers(key: str, results: Mapping[str, str], waiting: Sequence[Pending]) -> dict[str, Resolution]:
    """Return the results of a client's tools as decisions.

    Raises:
        Refusal: Some are missing or unknown.
    """
    ids = {f"call_{key}_{n}": wait.id for n, wait in enumerate(waiting)}
    unknown = [use_id for use_id in results if use_id not in ids]
    if unknown:
        raise bad_request(f"No call {unknown} waits for a result.")
    if len(results) < len(ids):
        raise bad_request("Some tool calls have no result. Send one for each.")
    return {ids[use_id]: Answer(value) for use_id, value in results.items()}


def _split(request: ModelRequestData) -> tuple[list[Msg], list[Msg]]:
    """Return the history and the new messages of a request.

    Raises:
        Refusal: The request is invalid.
    """
    messages = request.messages
    begin = max((n for n, msg in enumerate(messages, 1) if msg.role != "user"), default=0)
    if not any(msg.content for msg in messages[begin:]):
        raise bad_request("The last message must be a user's message with content, or the results of tools.")
    if request.previous is not None and begin:
        raise bad_request("With previous_response_id, send new messages only.")
    return messages[:begin], messages[begin:]


def _new_session(history: Sequence[Msg], id: str | None = None) -> Session:  # noqa: A002
    try:
        return Session.fresh(history, id)
    except UsageError as error:
        raise bad_request(f"The conversation is not valid: {error}") from error


def _not_kept_error() -> Refusal:
    text = "This conversation is no longer kept. Send the whole conversation again, ending with the user's message."
    return Refusal(400, "conversation_not_kept", text)


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
