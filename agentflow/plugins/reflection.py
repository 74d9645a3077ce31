"""`Reflection`: after a round of tools a model looks at the results, and the agent reads what it noticed."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from agentflow.errors import UsageError
from agentflow.events import PostToolRound, PreReasoning
from agentflow.hooks.hook import Hook
from agentflow.messages import Msg
from agentflow.plugins._counting import clipped, last_request, render, tail
from agentflow.ports.model import Model
from agentflow.transcript import MessageView

__all__ = ["REFLECT", "Reflection"]

REFLECT = """You watch over the shoulder of an agent that works with tools. Judge the last round only: did the results \
bring the task forward? Is one of them an error, empty, or in contradiction to another? Is a step missing?
Write at most three short sentences to the agent. If there is nothing worth saying, write only: NOTHING"""

QUIET = "NOTHING"
SOURCE = "reflection"


@dataclass
class _Asked:
    """The last request of the run, and the task that stands in it. It is not stored with a session."""

    def __post_init__(self) -> None:
        self.messages: Sequence[Msg] = ()
        self.searched: Sequence[Msg] = ()
        self.task: Msg | None = None

    def find_task(self) -> Msg | None:
        """The last thing that the user really said; only what came to the request since the last search is looked at."""
        messages = self.messages
        known = messages.shared(self.searched) if isinstance(messages, MessageView) else 0
        if known < (self.searched.shared(self.searched) if isinstance(self.searched, MessageView) else 1):
            known, self.task = 0, None
        found = last_request(tail(messages, known))
        self.searched, self.task = messages, found or self.task
        return self.task


class Reflection(Hook):
    """After a round of tools, a side model call reflects on the results; the agent reads it with its next request.

    The reflection stands behind the results as a user's note, marked `metadata["synthetic"] == "reflection"`. Its cost is
    added to the run. If it fails or takes too long, the run goes on without it: it is logged, and told as a non-fatal
    `Error`.

    Priority 300 (behaviour).

    Args:
        model: Who reflects: a model or its name; the agent's own by default.
        prompt: The instructions. The task, the calls and their results follow.
        every: Reflect after every so many replies of the model; 1 is after each round of tools.
        keep: Store the reflection in the history (consumers then see it in `MessagesAdded`); False: it is part of the
            next request only.
        clip: The most characters of one result that are shown to the reflecting model.
        timeout: Seconds that a reflection may take.

    Example:
        >>> agent = Agent("coder", "openai/gpt-5", tools=[search], hooks=[Reflection(model="openai/gpt-5-mini")])
    """

    priority = 300
    on_failure = "skip"
    events = (PreReasoning, PostToolRound)

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
            raise UsageError(f"Reflection(every={every}): it is a number of replies, at least 1.")
        self.model = model
        self.prompt = prompt
        self.every = every
        self.keep = keep
        self.clip = clip
        self.timeout = timeout

    def on_event(  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to two events
        self, event: PreReasoning | PostToolRound
    ) -> PreReasoning | PostToolRound | Awaitable[None]:
        """Note the request before a round, reflect behind it."""
        if isinstance(event, PreReasoning):
            event.context.state[_Asked].messages = event.input_messages
            return event
        if event.iteration % self.every or any(result.state == "suspended" for result in event.tool_results):
            return event
        return self._reflect(event)

    async def _reflect(self, event: PostToolRound) -> None:
        context = event.context
        asked = context.state[_Asked].find_task()
        task = asked.text if asked is not None else ""
        happened = render((Msg.assistant(event.tool_uses), Msg.tool(event.tool_results)), self.clip)
        question = f"The task:\n{clipped(task, self.clip)}\n\nThe last round:\n{happened}"
        reply = await context.complete((Msg.system(self.prompt), Msg.user(question)), model=self.model, source=SOURCE)
        text = reply.text.strip()
        if not text or text.rstrip(".").upper() == QUIET:
            return
        context.inject(f"[reflection] {text}", keep=self.keep, source=SOURCE)
