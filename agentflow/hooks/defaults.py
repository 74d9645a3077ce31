"""The default hooks of an agent: they repeat a model call if the answer is empty or truncated.

They can be left out with `Agent(..., default_hooks=())` or `.default_hooks()` on the builder.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentflow.errors import ModelError
from agentflow.hooks.hook import Hook, NarrowHook
from agentflow.vocabulary.events import PostReasoning
from agentflow.vocabulary.messages import Msg, TextBlock
from agentflow.vocabulary.verdicts import Again


@dataclass(slots=True, repr=False, eq=False)
class _Retries:
    """The number of repeated model calls of a run; saved if the run is suspended."""

    empty: int = 0
    truncated: int = 0


class RetryEmptyAnswers(NarrowHook):
    """Repeat a model call once, with a reminder, if its answer has neither text nor tool calls; then fail. An answer that a
    content filter has emptied fails at once.

    Priority 20: runs before hooks that read the answer.

    Args:
        times: How many times to repeat the call.
    """

    priority = 20
    events = (PostReasoning,)

    def __init__(self, times: int = 1) -> None:
        self.times = times

    def concerns(self, reply: Msg) -> bool:
        """Whether a reply has neither text nor tool calls. A reply that was truncated before its first word does not
        count: `RetryTruncatedAnswers` handles it."""
        for block in reply.content:
            # White space or thinking alone is no answer.
            if block.text.strip() if type(block) is TextBlock else block.type != "thinking":
                return False
        return reply.finish_reason != "length"

    def on_event(self, event: PostReasoning) -> PostReasoning | Again:
        if event.purpose == "summary" or not self.concerns(event.reasoning_result):
            return event
        state = event.context.state[_Retries]
        # The same messages would be blocked again.
        if event.reasoning_result.finish_reason == "content_filter":
            raise ModelError(
                "The model refused to answer, or the provider's content filter blocked its answer (finish_reason "
                "'content_filter'). Change the messages, or use another model.",
                model=event.agent.model_name,
                kind="content_policy",
            )
        if state.empty >= self.times:
            raise ModelError(
                f"The model's answer was empty {state.empty + 1} times: neither text nor a tool call (finish_reason "
                f"{event.reasoning_result.finish_reason!r}).",
                retryable=True,
                model=event.agent.model_name,
            )
        state.empty += 1
        return Again("Your answer was empty. Answer with text, or call a tool.")


class RetryTruncatedAnswers(NarrowHook):
    """Repeat a model call, at most twice, if its answer was truncated by the token limit; then fail.

    Priority 21.

    Args:
        times: How many times to repeat the call.
    """

    priority = 21
    events = (PostReasoning,)

    def __init__(self, times: int = 2) -> None:
        self.times = times

    def concerns(self, reply: Msg) -> bool:
        """Whether a reply was truncated."""
        return reply.finish_reason == "length"

    def on_event(self, event: PostReasoning) -> PostReasoning | Again:
        if event.purpose == "summary" or not self.concerns(event.reasoning_result):
            return event
        state = event.context.state[_Retries]
        if state.truncated >= self.times:
            raise ModelError(
                f"The model's answer was truncated by the token limit {state.truncated + 1} times (finish_reason 'length'). "
                "Raise ModelOptions(max_tokens=...), or request a shorter answer.",
                retryable=False,
                model=event.agent.model_name,
            )
        state.truncated += 1
        return Again("Your answer was truncated by the length limit. Give a shorter answer.")


def default_hooks() -> tuple[Hook, ...]:
    """Return the hooks of an agent that is built without `default_hooks=`. These hooks are stateless, so agents may share
    them."""
    return _DEFAULTS


_DEFAULTS: tuple[Hook, ...] = (RetryEmptyAnswers(), RetryTruncatedAnswers())
