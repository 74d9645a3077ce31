"""The hooks that an agent has unless told otherwise: an answer that is empty or cut off is asked for again.

They can be left out: `Agent(..., default_hooks=())` or `.default_hooks()` on the builder.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentflow.errors import ModelError
from agentflow.events import PostReasoning
from agentflow.hooks.hook import Hook
from agentflow.messages import Msg, TextBlock
from agentflow.verdicts import Again

__all__ = ["RetryEmptyAnswers", "RetryTruncatedAnswers", "default_hooks"]


@dataclass(slots=True, repr=False, eq=False)
class _Retries:
    """How often a run's model was asked again; saved with a run that waits."""

    empty: int = 0
    truncated: int = 0


class RetryEmptyAnswers(Hook):
    """An answer without words and without tool calls is asked for once more, with a reminder; then it is an error.

    Priority 20: before hooks that read the answer.

    Args:
        times: How often to ask again.
    """

    priority = 20
    events = (PostReasoning,)

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def concerns(self, reply: Msg) -> bool:
        """Replies without words and calls; a reply that was cut off before its first word is the other hook's."""
        for block in reply.content:
            if block.type != "thinking" and (type(block) is not TextBlock or block.text.strip()):
                return False
        return reply.finish_reason != "length"

    def on_event(self, event: PostReasoning) -> PostReasoning | Again:  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to one event
        if event.purpose == "summary" or not self.concerns(event.reasoning_result):
            return event
        state = event.context.state[_Retries]
        if state.empty >= self.times:
            raise ModelError(
                f"The model answered nothing, {state.empty + 1} times: no words and no tool call "
                f"(finish_reason {event.reasoning_result.finish_reason!r}).",
                retryable=True,
                model=event.agent.model_name,
            )
        state.empty += 1
        return Again("Your answer was empty. Answer with words, or call a tool.")


class RetryTruncatedAnswers(Hook):
    """An answer that was cut off by the token limit is asked for again, twice; then it is an error.

    Priority 21.

    Args:
        times: How often to ask again.
    """

    priority = 21
    events = (PostReasoning,)

    def __init__(self, times: int = 2) -> None:
        self.times = times

    def concerns(self, reply: Msg) -> bool:
        """Replies that were cut off."""
        return reply.finish_reason == "length"

    def on_event(self, event: PostReasoning) -> PostReasoning | Again:  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to one event
        if event.purpose == "summary" or not self.concerns(event.reasoning_result):
            return event
        state = event.context.state[_Retries]
        if state.truncated >= self.times:
            raise ModelError(
                f"The model's answer was cut off by its token limit {state.truncated + 1} times (finish_reason 'length'). "
                "Raise ModelOptions(max_tokens=...), or ask for less at once.",
                retryable=False,
                model=event.agent.model_name,
            )
        state.truncated += 1
        return Again("Your answer was cut off by the length limit. Answer again, shorter.")


def default_hooks() -> tuple[Hook, ...]:
    """The hooks of an agent that names none; they hold no state, so agents may share them."""
    return _DEFAULTS


_DEFAULTS: tuple[Hook, ...] = (RetryEmptyAnswers(), RetryTruncatedAnswers())
