"""`GoalJudge`: an answer that does not reach the goal sends the agent back to work, a bounded number of times."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from pydantic import BaseModel, ValidationError

from agentflow.errors import UsageError
from agentflow.events import PostReasoning, PreReasoning
from agentflow.ground.logs import log_failure, logger
from agentflow.hooks.hook import Hook
from agentflow.messages import Msg, with_metadata
from agentflow.plugins._counting import clipped, last_request, render, tail
from agentflow.ports.model import Model
from agentflow.verdicts import Again

__all__ = ["JUDGE", "GoalJudge", "GoalState", "Judge", "Judgement"]

JUDGE = """You judge whether the answer of an agent reaches its goal. Judge strictly by the criterion, and by nothing else.
Answer with one JSON object and no other text: {"done": true or false, "reason": "one or two sentences: what is missing"}"""

SOURCE = "goal_judge"


class Judgement(BaseModel):
    """What a judge says.

    Attributes:
        done: Whether the answer is accepted.
        reason: What is missing; the agent is told.
    """

    done: bool
    reason: str = ""


Judge: TypeAlias = Callable[[PostReasoning], "Judgement | bool | str | Awaitable[Judgement | bool | str | None] | None"]
"""A judge of your own. True or None accepts; False or a reason (a text) sends back; or a `Judgement`."""


@dataclass
class GoalState:
    """How the judging of a run stands: `event.context.state[GoalState]`.

    Attributes:
        verdict: `"met"`, `"unmet"`, or `"unjudged"` (no answer yet, or the judge failed).
        reason: The judge's last words.
        sent_back: How often the agent was sent back, by all judges together.
    """

    verdict: Literal["met", "unmet", "unjudged"] = "unjudged"
    reason: str = ""
    sent_back: int = 0


@dataclass
class _Asked:
    """The last request of the run, and how often each judge of this process has sent back; not stored with a session."""

    def __post_init__(self) -> None:
        self.messages: Sequence[Msg] = ()
        self.rejections: dict[int, int] = {}


class GoalJudge(Hook):
    """An answer without tool calls is judged; if the goal is not reached, the agent goes back to work with the reason.

    A rejected answer stays in the history, the reason stands behind it as a user's note marked
    `metadata["synthetic"] == "goal_judge"`. After `max_rounds` rejections the next answer is accepted whatever it is. The
    accepted answer carries `metadata["goal"]`: `"met"`, `"unmet"` (then also `"goal_reason"`), or `"unjudged"`. A judge that
    fails, or answers nonsense, accepts. Each rejection spends one of the agent's `max_iterations`.

    Priority 200 (behaviour).

    Args:
        criterion: When the goal is reached: a text for the judging model, or a function of the `PostReasoning` event that
            returns True, False, the reason for sending back, or a `Judgement`.
        model: Who judges by a text: a model or its name; the agent's own by default.
        max_rounds: How often the agent is sent back at most.
        prompt: The judging model's instructions. The task, the criterion, the last results and the answer follow.
        clip: The most characters of one message that are shown to the judging model.
        timeout: Seconds that one judgement may take.

    Example:
        >>> def cites(event):
        ...     return "https://" in event.reasoning_result.text or "Name your sources."
        >>> agent = Agent("researcher", "openai/gpt-5", tools=[search], hooks=[GoalJudge(cites, max_rounds=2)])
    """

    priority = 200
    on_failure = "skip"
    events = (PreReasoning, PostReasoning)

    def __init__(
        self,
        criterion: str | Judge,
        model: str | Model | None = None,
        max_rounds: int = 3,
        *,
        prompt: str = JUDGE,
        clip: int = 4_000,
        timeout: float | None = 60.0,
    ) -> None:
        if max_rounds < 0:
            raise UsageError(f"GoalJudge(max_rounds={max_rounds}): it is a number of rejections, 0 or more.")
        if isinstance(criterion, str):
            if not criterion.strip():
                raise UsageError(
                    "GoalJudge(criterion) is empty; say in words when the goal is reached, or pass a function."
                )
        elif model is not None:
            raise UsageError("GoalJudge: model= judges by a text; a function judges by itself. Pass one of the two.")
        self.criterion = criterion
        self.model = model
        self.max_rounds = max_rounds
        self.prompt = prompt
        self.clip = clip
        self.timeout = timeout

    def concerns(self, reply: Msg) -> bool:
        """Answers without tool calls."""
        return not reply.tool_uses

    def on_event(  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to two events
        self, event: PreReasoning | PostReasoning
    ) -> PreReasoning | PostReasoning | Awaitable[Again | None]:
        """Note what was asked; judge the answer."""
        if isinstance(event, PreReasoning):
            if isinstance(self.criterion, str):
                event.context.state[_Asked].messages = event.input_messages
            return event
        answer = event.reasoning_result
        if event.purpose == "summary" or answer.tool_uses or not answer.text.strip():
            return event
        return self._decide(event)

    async def _decide(self, event: PostReasoning) -> Again | None:
        state = event.context.state[GoalState]
        try:
            judgement = await self._judge(event)
        except Exception as error:  # any: a judge is somebody's code or somebody's model
            log_failure(
                "WARNING", error, "a goal judge failed; the answer of {} is accepted", event.agent.name, where=event
            )
            judgement = None
        state.reason = judgement.reason if judgement is not None else ""
        if judgement is None:
            state.verdict = "unjudged"
        elif judgement.done:
            state.verdict = "met"
        else:
            state.verdict = "unmet"
            rejections = event.context.state[_Asked].rejections
            # What was not counted here was counted before the run was suspended, and resumed in another process.
            before = rejections.setdefault(id(self), state.sent_back - sum(rejections.values()))
            if before < self.max_rounds:
                rejections[id(self)] = before + 1
                state.sent_back += 1
                return Again(_follow_up(judgement.reason, event.context.new_id("msg_")))
        marks = {"goal": state.verdict}
        if state.verdict == "unmet":
            marks["goal_reason"] = state.reason
        event.reasoning_result = with_metadata(event.reasoning_result, **marks)
        return None

    async def _judge(self, event: PostReasoning) -> Judgement | None:
        if not isinstance(self.criterion, str):
            found: object = self.criterion(event)
            return _judgement(await cast("Awaitable[object]", found) if inspect.isawaitable(found) else found)
        messages = event.context.state[_Asked].messages
        asked = last_request(messages)
        task = asked.text if asked is not None else ""
        happened = render([msg for msg in tail(messages, len(messages) - 6) if msg.role == "tool"], self.clip) or "none"
        question = (
            f"The task:\n{clipped(task, self.clip)}\n\nThe criterion:\n{self.criterion}\n\n"
            f"The last tool results:\n{happened}\n\nThe answer:\n{event.reasoning_result.text}"
        )
        reply = await event.context.complete(
            (Msg.system(self.prompt), Msg.user(question)), model=self.model, source=SOURCE
        )
        return _parsed(reply.text)


def _follow_up(reason: str, id_: str) -> Msg:
    why = reason.strip() or "the goal is not reached"
    return Msg.user(
        f"[goal] This answer is not accepted: {why}\nGo on working, then answer again.",
        id=id_,
        metadata={"synthetic": SOURCE},
    )


def _judgement(found: object) -> Judgement:
    if found is None or found is True:
        return Judgement(done=True)
    if found is False:
        return Judgement(done=False)
    if isinstance(found, str):
        return Judgement(done=False, reason=found)
    if isinstance(found, Judgement):
        return found
    raise UsageError(
        f"The function of a GoalJudge returned {type(found).__name__}; legal are True, False, None, a text (the reason for "
        "sending back) and a Judgement."
    )


def _parsed(text: str) -> Judgement | None:
    """The verdict in a model's reply; words or a fence around the object are passed over."""
    start, end = text.find("{"), text.rfind("}")
    try:
        return Judgement.model_validate_json(text[start : end + 1] if 0 <= start < end else text)
    except ValidationError:
        logger.warning("a goal judge answered nonsense, so the answer is accepted: {!r}", text[:200])
        return None
