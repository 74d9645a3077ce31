"""`GoalJudge`: sends the agent back to work if its answer does not reach the goal, a limited number of times."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from pydantic import BaseModel, ValidationError

from agentflow._support.logs import log_failure, logger
from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.plugins._counting import clipped, last_request, render
from agentflow.plugins._matching import may_reject
from agentflow.vocabulary.events import HookEvent, PostReasoning
from agentflow.vocabulary.messages import Msg, with_metadata
from agentflow.vocabulary.ports.model import Model
from agentflow.vocabulary.verdicts import Again

__all__ = ["JUDGE", "GoalJudge", "GoalState", "Judge", "Judgement"]

JUDGE = """You judge whether the answer of an agent reaches its goal. Judge strictly by the criterion, and by nothing else.
Answer with one JSON object and no other text: {"done": true or false, "reason": "one or two sentences: what is missing"}"""

SOURCE = "goal_judge"


class Judgement(BaseModel):
    """A judge's result.

    Attributes:
        done: Whether the answer is accepted.
        reason: The reason why the answer is not accepted; the agent reads it.
    """

    done: bool
    reason: str = ""


Judge: TypeAlias = Callable[[PostReasoning], "Judgement | bool | str | Awaitable[Judgement | bool | str | None] | None"]
"""A custom judge: True or None accepts the answer, False or a string (the reason) rejects it; or it returns a `Judgement`."""


@dataclass
class GoalState:
    """The state of judging in a run: `event.context.state[GoalState]`.

    Attributes:
        verdict: `"met"`, `"unmet"`, or `"unjudged"` (no answer yet, or the judge failed).
        reason: The judge's last reason.
        sent_back: The number of rejected answers, by all judges together.
    """

    verdict: Literal["met", "unmet", "unjudged"] = "unjudged"
    reason: str = ""
    sent_back: int = 0


class GoalJudge(Hook):
    """Judges answers without tool calls; if the goal is not reached, the agent continues with the reason.

    A rejected answer stays in the history, followed by the reason as a user message marked `metadata["synthetic"] ==
    "goal_judge"`. After `max_rounds` rejections, any answer is accepted. The accepted answer has `metadata["goal"]`: `"met"`,
    `"unmet"` (then also `"goal_reason"`), or `"unjudged"`. If a judge fails, or its answer is invalid, the answer is accepted.
    Each rejection uses one of the agent's `max_iterations`.

    Priority 200 (behaviour).

    Args:
        criterion: Decides whether the goal is reached: a text for the judging model, or a function that takes the
            `PostReasoning` event and returns True, False, the reason for a rejection, or a `Judgement`.
        model: The judging model, or its name; the agent's own by default.
        max_rounds: The maximum number of rejections.
        prompt: The judging model's instructions. The task, the criterion, the last results and the answer follow.
        clip: The maximum number of characters of the task, and of each tool result, shown to the judging model.
        timeout: The time limit of one judgement, in seconds.

    Example:
        >>> def cites(event):
        ...     return "https://" in event.reasoning_result.text or "Name your sources."
        >>> agent = Agent("researcher", "openai/gpt-5", tools=[search], hooks=[GoalJudge(cites, max_rounds=2)])
    """

    priority = 200
    on_failure = "skip"
    events = (PostReasoning,)

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
            raise UsageError(f"GoalJudge(max_rounds={max_rounds}) must be 0 or more.")
        if isinstance(criterion, str):
            if not criterion.strip():
                raise UsageError(
                    "GoalJudge(criterion) is empty. Describe when the goal is reached, or pass a function."
                )
        elif model is not None:
            raise UsageError("GoalJudge: model= is only used with a text as criterion. Pass a text, or remove model=.")
        self.criterion = criterion
        self.model = model
        self.max_rounds = max_rounds
        self.prompt = prompt
        self.clip = clip
        self.timeout = timeout

    def concerns(self, reply: Msg) -> bool:
        """Return whether the reply is an answer without tool calls."""
        return not reply.tool_uses

    def on_event(self, event: HookEvent) -> HookEvent | Awaitable[Again | None]:
        """Judge the answer."""
        # The summary is the last model call, so `Again` is illegal for it.
        if not isinstance(event, PostReasoning) or event.purpose == "summary":
            return event
        answer = event.reasoning_result
        return event if answer.tool_uses or not answer.text.strip() else self._decide(event)

    async def _decide(self, event: PostReasoning) -> Again | None:
        state = event.context.state[GoalState]
        try:
            judgement = await self._judge(event)
        except Exception as error:  # a judge is user code or a model
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
            if may_reject(event.context, self, GoalState, state.sent_back, self.max_rounds):
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
        messages = event.context.history
        request = last_request(messages)
        task = request.text if request is not None else ""
        results = render([msg for msg in messages[-6:] if msg.role == "tool"], self.clip) or "none"
        question = (
            f"The task:\n{clipped(task, self.clip)}\n\nThe criterion:\n{self.criterion}\n\n"
            f"The last tool results:\n{results}\n\nThe answer:\n{event.reasoning_result.text}"
        )
        reply = await event.context.complete(
            (Msg.system(self.prompt), Msg.user(question)), model=self.model, source=SOURCE
        )
        return _parsed(reply.text)


def _follow_up(reason: str, id_: str) -> Msg:
    why = reason.strip() or "the goal is not reached"
    return Msg.user(
        f"[goal] This answer is not accepted: {why}\nKeep working, then answer again.",
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
        f"The function of a GoalJudge returned {type(found).__name__}. Return True, False, None, a string (the reason for "
        "sending back) or a Judgement."
    )


def _parsed(text: str) -> Judgement | None:
    """Return the judgement in a model's reply, or None if it is invalid; text or a fence around the object is ignored."""
    start, end = text.find("{"), text.rfind("}")
    try:
        return Judgement.model_validate_json(text[start : end + 1] if 0 <= start < end else text)
    except ValidationError:
        logger.warning("a goal judge's answer is invalid, so the answer is accepted: {!r}", text[:200])
        return None
