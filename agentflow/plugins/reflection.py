"""`Reflection`: after a round of tools, a model reviews the results, and the agent reads its remarks."""

from __future__ import annotations

from collections.abc import Awaitable

from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.plugins._counting import LastRequest, clipped, render
from agentflow.vocabulary.context import own
from agentflow.vocabulary.events import HookEvent, PostToolRound
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import Model

__all__ = ["REFLECT", "Reflection"]

REFLECT = """You watch over the shoulder of an agent that works with tools. Judge the last round only: did the results \
bring the task forward? Is one of them an error, empty, or in contradiction to another? Is a step missing?
Write at most three short sentences to the agent. If there is nothing worth saying, write only: NOTHING"""

QUIET = "NOTHING"
SOURCE = "reflection"


class Reflection(Hook):
    """After a round of tools, a side model call reviews the results; the agent reads the review with its next request.

    The review follows the results as a user message, marked `metadata["synthetic"] == "reflection"`. Its cost is added to the
    run. If it fails or takes too long, the run continues without it; the failure is logged, and reported as a non-fatal
    `Error`.

    Priority 300 (behaviour).

    Args:
        model: The reviewing model, or its name; the agent's own by default.
        prompt: The instructions. The task, the calls and their results follow.
        every: Review only after every n-th reply of the model, if it called tools; 1 reviews each round of tools.
        keep: Store the review in the history (consumers then see it in `MessagesAdded`); False: it is part of the next request
            only.
        clip: The maximum number of characters of one result shown to the reviewing model.
        timeout: The time limit of a review, in seconds.

    Example:
        >>> agent = Agent("coder", "openai/gpt-5", tools=[search], hooks=[Reflection(model="openai/gpt-5-mini")])
    """

    priority = 300
    on_failure = "skip"
    events = (PostToolRound,)

    def __init__(
        self,
        model: str | Model | None = None,
        prompt: str = REFLECT,
        every: int = 1,
        *,
        keep: bool = True,
        clip: int = 4_000,
        timeout: float | None = 60.0,
    ) -> None:
        if every < 1:
            raise UsageError(f"Reflection(every={every}) must be at least 1 reply.")
        self.model = model
        self.prompt = prompt
        self.every = every
        self.keep = keep
        self.clip = clip
        self.timeout = timeout

    def on_event(self, event: HookEvent) -> HookEvent | Awaitable[None]:
        """Review the results of a round."""
        if not isinstance(event, PostToolRound) or event.iteration % self.every:
            return event
        if any(result.state == "suspended" for result in event.tool_results):  # the round ends after the resume
            return event
        return self._reflect(event)

    async def _reflect(self, event: PostToolRound) -> None:
        context = event.context
        request = own(context, self, LastRequest).of(context.history)
        task = request.text if request is not None else ""
        happened = render((Msg.assistant(event.tool_uses), Msg.tool(event.tool_results)), self.clip)
        question = f"The task:\n{clipped(task, self.clip)}\n\nThe last round:\n{happened}"
        reply = await context.complete((Msg.system(self.prompt), Msg.user(question)), model=self.model, source=SOURCE)
        text = reply.text.strip()
        if text and text.rstrip(".").upper() != QUIET:
            context.inject(f"[reflection] {text}", keep=self.keep, source=SOURCE)
