"""One call of a server's tool while it runs: its progress, the questions that the server asks meanwhile, what becomes of them.

Rules:

1. The server's progress is handed on by the tool's own task: a slow reader slows nobody else. What comes faster than it is
   read is thinned out, the newest is kept.
2. A question for a person is answered by the function that `elicitation` is, or suspends the call. Then it stays
   unanswered: the call is cancelled at the server. When it is resumed the tool runs again from its start, and the server
   gets the answers to the questions it asks again. Answers are remembered until the call has ended.
3. The server gets a model's answers only where `sampling` allows it, and no more than that in one call.
4. Whoever has asked is told apart by the SDK, for servers that speak the protocol of 2026; with older ones, a question that may
   belong to calls of several runs is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic_core import to_json

from agentflow.ground.shown import one_line
from agentflow.loop.run import current_turn
from agentflow.mcp.results import message_of
from agentflow.mcp.sdk import types
from agentflow.mcp.settings import Link, Settings
from agentflow.messages import Msg, Pending
from agentflow.specs import ModelOptions
from agentflow.tools.tool_context import ToolContext
from agentflow.verdicts import Answer, Approve, Deny, Resolution

__all__ = ["ActiveCall", "Answered", "Progress", "asked_of", "here"]

_MOST_PIECES = 64
_MOST_SAMPLED_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a server's tool is, as an `ActingChunk`.

    Attributes:
        done: How much is done; it grows.
        total: How much there is; None: unknown.
        message: What the server says of it.
    """

    done: float
    total: float | None = None
    message: str = ""

    def __str__(self) -> str:
        share = f"{self.done:g}" if self.total is None else f"{self.done:g}/{self.total:g}"
        return f"{share} {self.message}".rstrip()


@dataclass
class Answered:
    """What people have answered to servers in calls that have not ended; kept with the session.

    Attributes:
        answers: By tool use and question: what was done with it, and the content.
    """

    answers: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict[str, dict[str, dict[str, Any]]])


class ActiveCall:
    """A call of a server's tool.

    Args:
        context: The tool's.
        settings: The server's.
        link: The server's.

    Attributes:
        bell: Rung when there is something to look at.
        pieces: Progress that was not handed on yet.
        waits: What has to be answered by somebody, before the call can go on.
    """

    def __init__(self, context: ToolContext, settings: Settings, link: Link) -> None:
        self.context = context
        self.bell = asyncio.Event()
        self.pieces: deque[Progress] = deque(maxlen=_MOST_PIECES)
        self.waits: dict[str, Pending] = {}
        self._settings = settings
        self._link = link
        self._sampled = 0
        self._side: set[asyncio.Task[Any]] = set()
        self._ended = asyncio.Event()
        place = current_turn.get()
        self._answers: dict[str, dict[str, Any]] = {}
        if place is not None and (place.inner is not None or place.recovers):  # it was suspended, or cut
            self._remember(place.inner or {})

    @property
    def run_id(self) -> str:
        """The run that it belongs to."""
        return self.context.run.run_id

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """The server says how far it is."""
        self.pieces.append(Progress(progress, total, one_line(message or "")[:1000]))
        self.bell.set()

    # ---- questions to a person

    def _remember(self, given: Mapping[str, Resolution]) -> None:
        """Take what was answered before, and now."""
        kept = self.context.run.session_state[Answered].answers
        mine = kept.get(self.context.tool_use.id, {})
        for key, decision in given.items():
            mine[key] = _answer(decision)
        if given:
            kept[self.context.tool_use.id] = mine
        self._answers = mine

    async def elicit(self, params: types.ElicitRequestParams) -> types.ElicitResult:
        """The server has a question for a person."""
        ask = self._settings.elicitation
        if ask == "refuse":
            return types.ElicitResult(action="decline")
        key, request = _question(params, self._settings.name, self._link)
        found = self._answers.get(key)
        if found is None:
            pending = Pending(key, "approval", request, self.context.tool_use, f"mcp:{self._settings.name}")
            if ask == "suspend":
                self.waits[key] = pending
                self.bell.set()
                await self._ended.wait()  # the server is told that the call is cancelled, before it gets this
                return types.ElicitResult(action="cancel")
            found = _answer(await ask(pending))
        return types.ElicitResult.model_validate(_completed(found, params))

    # ---- questions to a model

    async def sample(self, params: types.CreateMessageRequestParams) -> types.CreateMessageResult | types.ErrorData:
        """The server wants a model's answer."""
        if self._sampled >= self._settings.sampling:
            return _refused(f"{self._settings.sampling} model calls are allowed in one call of a tool")
        self._sampled += 1
        task = asyncio.ensure_future(self._complete(params))
        self._side.add(task)
        task.add_done_callback(self._side.discard)
        await asyncio.wait([task])
        if task.cancelled():
            return _refused("the call has ended")
        error = task.exception()
        return _refused(f"the model failed: {type(error).__name__}") if error is not None else task.result()

    def _complete(self, params: types.CreateMessageRequestParams) -> Coroutine[Any, Any, types.CreateMessageResult]:
        messages = [message_of(message, self._settings.max_size) for message in params.messages]
        if params.system_prompt:
            messages.insert(0, Msg.system(params.system_prompt))
        options = ModelOptions(
            temperature=params.temperature,
            max_tokens=min(params.max_tokens, _MOST_SAMPLED_TOKENS),
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

    # ---- the end

    async def end(self, over: bool) -> None:
        """Nothing is asked any more.

        Args:
            over: The call has its result; else it will be made again.
        """
        if over and self._answers:
            self.context.run.session_state[Answered].answers.pop(self.context.tool_use.id, None)
        self._ended.set()
        side = list(self._side)
        for task in side:
            task.cancel()
        if side:
            await asyncio.wait(side)


here: ContextVar[ActiveCall | None] = ContextVar("agentflow_mcp_call", default=None)
"""The call that a request of the server belongs to, where the SDK knows."""


def asked_of(active: Iterable[ActiveCall]) -> ActiveCall | None:
    """The call that a server's question belongs to; None where it could be several.

    Args:
        active: The calls that run on the connection.
    """
    found = here.get()
    if found is not None:
        return found
    calls = list(active)
    return calls[-1] if len({call.run_id for call in calls}) == 1 else None


def _question(params: types.ElicitRequestParams, server: str, link: Link) -> tuple[str, dict[str, Any]]:
    """A question, and a key that is the same whenever it is asked."""
    request: dict[str, Any] = {"server": server, "message": link.clean(params.message)[:4000]}
    if isinstance(params, types.ElicitRequestURLParams):
        request["url"] = one_line(params.url)[:4000]
    else:
        request["schema"] = params.requested_schema
    digest = hashlib.sha256(to_json([params.message, request.get("url"), request.get("schema")])).hexdigest()
    return f"ask-{digest[:12]}", request


def _answer(decision: Resolution) -> dict[str, Any]:
    """A decision as MCP has it."""
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
    """An answer with the defaults of the fields that it leaves out, as the schema names them."""
    if answer["action"] != "accept" or isinstance(params, types.ElicitRequestURLParams):
        return answer
    fields: object = params.requested_schema.get("properties")
    given = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    described = {name: cast("dict[str, Any]", one) for name, one in given.items() if isinstance(one, dict)}
    defaults = {name: one["default"] for name, one in described.items() if "default" in one}
    return {**answer, "content": {**defaults, **answer["content"]}}


def _refused(why: str) -> types.ErrorData:
    return types.ErrorData(code=types.INVALID_REQUEST, message=f"Sampling was refused: {why}.")
