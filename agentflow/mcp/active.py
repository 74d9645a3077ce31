"""A running call of a server's tool: its progress, and the questions that the server asks meanwhile.

Rules:

1. The task of the tool passes on the server's progress, so that a slow reader delays no other call. If progress arrives
   faster than it is read, the oldest reports are dropped.
2. A question for a person is declined (`elicitation="refuse"`), answered by the function `elicitation`, or, if the agent is
   served over MCP, by its client's user; otherwise it suspends the call. The question then stays unanswered, and the call is
   cancelled at the server. When the call is resumed, the tool runs again from its start, and the server gets the answers
   to the questions that it asks again. Answers are kept until the call has a result.
3. During one call, the server gets at most `sampling` answers of a model.
4. For servers with the protocol of 2026, the SDK knows to which call a question belongs. For older protocols, a question that
   may belong to calls of several runs is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic_core import to_json

from agentflow._support.shown import one_line
from agentflow.loop.run import current_turn
from agentflow.mcp.results import message_of
from agentflow.mcp.sdk import types
from agentflow.mcp.settings import Answering, Link, Settings
from agentflow.tools.tool_context import ToolContext
from agentflow.vocabulary.messages import Msg, Pending
from agentflow.vocabulary.specs import ModelOptions
from agentflow.vocabulary.verdicts import Answer, Approve, Deny, Resolution

_MAX_REPORTS = 64  # if the reader is slower, only the newest are kept
_MAX_SAMPLED_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """The progress of a server's tool, as an `ActingChunk`.

    Attributes:
        done: The finished amount of work, as the server reports it.
        total: The total amount; None if unknown.
        message: The server's message.
    """

    done: float
    total: float | None = None
    message: str = ""

    def __str__(self) -> str:
        share = f"{self.done:g}" if self.total is None else f"{self.done:g}/{self.total:g}"
        return f"{share} {self.message}".rstrip()


@dataclass
class ElicitationAnswers:
    """People's answers to servers' questions, in calls that have no result yet; stored with the session.

    Attributes:
        answers: Action and content, by tool use and question.
    """

    # The former name of the class, by which stored sessions refer to it.
    __saved_as__ = "agentflow.mcp.active:Answered"
    answers: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict[str, dict[str, dict[str, Any]]])


class ActiveCall:
    """A call of a server's tool.

    Args:
        context: The context of the tool's run.
        settings: The server's settings.
        link: The link to the server.

    Attributes:
        wakeup: Set when there is progress, a question, or the result.
        reports: Progress reports not passed on yet.
        waits: The questions that suspend the call.
    """

    def __init__(self, context: ToolContext, settings: Settings, link: Link) -> None:
        self.context = context
        self.wakeup = asyncio.Event()
        self.reports: deque[ProgressReport] = deque(maxlen=_MAX_REPORTS)
        self.waits: dict[str, Pending] = {}
        self._settings = settings
        self._link = link
        self._sampled = 0
        self._side: set[asyncio.Task[Any]] = set()  # model calls for the server, cancelled when the call ends
        self._ended = asyncio.Event()
        # Read here, because questions may arrive in a task of the connection, which has an empty context.
        self._user = client_user.get()
        turn = self._turn = current_turn.get()
        self._answers: dict[str, dict[str, Any]] = {}
        # If the call was suspended or interrupted before:
        if turn is not None and (turn.restored.inner_decisions is not None or turn.restored.recovers):
            self._remember(turn.restored.inner_decisions or {})

    @property
    def run_id(self) -> str:
        """The id of the call's run."""
        return self.context.run.run_id

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Accept a progress report of the server."""
        self.reports.append(ProgressReport(progress, total, one_line(message or "")[:1000]))
        self.wakeup.set()

    # ---- questions to a person

    def _remember(self, decisions: Mapping[str, Resolution]) -> None:
        """Add new answers to the earlier ones."""
        stored = self.context.run.session_state[ElicitationAnswers].answers
        own = stored.get(self.context.tool_use.id, {})
        for key, decision in decisions.items():
            own[key] = _answer(decision)
        # Sessions without answers store nothing.
        if decisions:
            stored[self.context.tool_use.id] = own
        self._answers = own

    async def elicit(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        """Answer a server's question for a person."""
        ask = self._settings.elicitation
        if ask == "refuse":
            return types.ElicitResult(action="decline")
        key, request = _question(params, self._settings.name, self._link)
        found = self._answers.get(key)
        if found is None:
            pending = Pending(key, "approval", request, self.context.tool_use, f"mcp:{self._settings.name}")
            if ask == "suspend" and self._user is not None:
                ask = self._user
            if ask == "suspend":
                self.waits[key] = pending
                self.wakeup.set()
                await self._ended.wait()  # the call is cancelled at the server before this answer could be sent
                return types.ElicitResult(action="cancel")
            # The time that a person takes does not count toward the tool's time limit.
            with nullcontext() if self._turn is None else self._turn.waits:
                found = _answer(await ask(pending))
        return types.ElicitResult.model_validate(_completed(found, params))

    # ---- questions to a model

    async def sample(self, params: types.CreateMessageRequestParams) -> types.CreateMessageResult | types.ErrorData:
        """Answer a server's sampling request with a model."""
        if self._sampled >= self._settings.sampling:
            return _refused(f"a tool call may request at most {self._settings.sampling} model calls")
        self._sampled += 1
        task = asyncio.ensure_future(self._complete(params))
        self._side.add(task)
        task.add_done_callback(self._side.discard)
        # `wait` instead of awaiting the task: if the end of the call cancels the task, the server still gets an answer.
        await asyncio.wait([task])
        if task.cancelled():
            return _refused("the call has ended")
        error = task.exception()
        # Only the type is sent, because the message may contain something that the server must not see.
        return _refused(f"the model failed: {type(error).__name__}") if error is not None else task.result()

    def _complete(self, params: types.CreateMessageRequestParams) -> Coroutine[Any, Any, types.CreateMessageResult]:
        messages = [message_of(message, self._settings.max_size) for message in params.messages]
        if params.system_prompt:
            messages.insert(0, Msg.system(params.system_prompt))
        options = ModelOptions(
            temperature=params.temperature,
            max_tokens=min(params.max_tokens, _MAX_SAMPLED_TOKENS),
            stop=tuple(params.stop_sequences) if params.stop_sequences else None,
        )
        run = self.context.run

        async def complete() -> types.CreateMessageResult:
            reply = await run.complete(messages, source=f"mcp:{self._settings.name}", options=options)
            return types.CreateMessageResult(
                role="assistant",
                content=types.TextContent(text=reply.text),
                model=run.agent.model_name,
                stop_reason="endTurn",
            )

        return complete()

    # ---- ending

    async def end(self, finished: bool) -> None:
        """Stop answering questions.

        Args:
            finished: Whether the call has its result; if False, it may be repeated, and then needs the answers again.
        """
        if finished and self._answers:
            self.context.run.session_state[ElicitationAnswers].answers.pop(self.context.tool_use.id, None)
        self._ended.set()
        side = list(self._side)
        for task in side:
            task.cancel()
        if side:
            await asyncio.wait(side)


client_user: ContextVar[Answering | None] = ContextVar("agentflow_mcp_client_user", default=None)
"""Asks the user of the MCP client that called the agent, if the client supports questions during a call."""

current_call: ContextVar[ActiveCall | None] = ContextVar("agentflow_mcp_call", default=None)
"""The call to which a server's request belongs, if the SDK knows it."""


def call_of_question(active: Iterable[ActiveCall]) -> ActiveCall | None:
    """Return the call to which a server's question belongs; None if several runs have calls, or none.

    Args:
        active: The calls that run on the connection.
    """
    found = current_call.get()
    if found is not None:
        return found
    calls = list(active)
    # If all calls belong to one run, any of them can pass on the question: the newest does.
    return calls[-1] if len({call.run_id for call in calls}) == 1 else None


def _question(params: types.ElicitRequestParams, server: str, link: Link) -> tuple[str, dict[str, Any]]:
    """Return a key that is the same each time the question is asked, and the question as data."""
    request: dict[str, Any] = {"server": server, "message": link.clean(params.message)[:4000]}
    if isinstance(params, types.ElicitRequestURLParams):
        request["url"] = one_line(params.url)[:4000]
    else:
        request["schema"] = params.requested_schema
    # A digest of the question, since the server changes the id of a repeated question.
    digest = hashlib.sha256(to_json([params.message, request.get("url"), request.get("schema")])).hexdigest()
    return f"ask-{digest[:12]}", request


def _answer(decision: Resolution) -> dict[str, Any]:
    """Convert a decision for MCP."""
    match decision:
        case Deny():
            return {"action": "decline"}
        case Approve(input=content):
            return {"action": "accept", "content": dict(content or {})}
        case Answer(value=value):
            return {
                "action": "accept",
                "content": cast("dict[str, Any]", value) if isinstance(value, dict) else {"value": value},
            }


def _completed(answer: dict[str, Any], params: types.ElicitRequestParams) -> dict[str, Any]:
    """Add the schema's defaults for the fields that are missing in an answer."""
    if answer["action"] != "accept" or isinstance(params, types.ElicitRequestURLParams):
        return answer
    fields: object = params.requested_schema.get("properties")
    declared = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    described = {name: cast("dict[str, Any]", schema) for name, schema in declared.items() if isinstance(schema, dict)}
    defaults = {name: schema["default"] for name, schema in described.items() if "default" in schema}
    return {**answer, "content": {**defaults, **answer["content"]}}


def _refused(reason: str) -> types.ErrorData:
    return types.ErrorData(code=types.INVALID_REQUEST, message=f"Sampling was refused: {reason}.")
