"""`ClearOldResults`: removes old tool results from requests; they stay in the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import ModelSource
from agentflow.plugins._attempts import shorter_request
from agentflow.plugins._matching import matches
from agentflow.reactive import Flux
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import own
from agentflow.vocabulary.events import HookEvent, PreReasoning
from agentflow.vocabulary.messages import DataBlock, Msg, ToolResultBlock, tool_result
from agentflow.vocabulary.transcript import MessageView, Replacements

__all__ = ["ClearOldResults"]

PLACEHOLDER = "[An old result of {name} was removed here ({size} characters). Call the tool again if it is needed.]"


class _Results:
    """The tool results of the last request, so that only new messages are examined.

    Attributes:
        messages: The last request.
        places: The indices of its tool messages.
        large: Those of `places` with a result that is large enough to clear.
        examined: The number of `places` that `ClearOldResults` has handled.
        cleared: Maps the index of a tool message to the message that replaces it.
        replacements: The same for a `MessageView`.
    """

    def __init__(self) -> None:
        self.messages: Sequence[Msg] = ()
        self.places: list[int] = []
        self.large: set[int] = set()
        self.examined = 0
        self.cleared: dict[int, Msg] = {}
        self.replacements = Replacements()

    def update(self, messages: Sequence[Msg], least: int) -> None:
        """Find the tool results that are new since the last request, and those large enough to clear."""
        view, before = messages if isinstance(messages, MessageView) else None, self.messages
        begin, new = 0 if view is None else view.shared(before), messages
        if self.cleared and not (isinstance(before, MessageView) and begin == before.shared(before)):
            # This request belongs to another conversation.
            self.replacements, self.cleared, self.examined = Replacements(), {}, 0
        # The conversation is the same up to `begin`: forget the results after it.
        if self.places and self.places[-1] >= begin:
            self.places = [index for index in self.places if index < begin]
            self.examined = min(self.examined, len(self.places))
            self.cleared = {index: msg for index, msg in self.cleared.items() if index < begin}
            self.large = {index for index in self.large if index < begin}
        if view is not None:  # the head and the tail of a view contain no results
            begin = max(begin, len(view.head))
            new = view.since(begin)
        for index, msg in enumerate(new, begin):
            if msg.role == "tool":
                self.places.append(index)
                for result in msg.content:
                    content = result.content if isinstance(result, ToolResultBlock) else ""
                    # The size of media is computed only when they are cleared.
                    if not isinstance(content, str) or len(content) >= least:
                        self.large.add(index)
        self.messages = messages


class ClearOldResults(Hook):
    """Replaces old tool results in requests by a short placeholder. History, events and reply keep them.

    Rounds are cleared in steps: between two steps the start of the request stays the same, byte for byte, so a provider's
    prompt cache keeps working.

    If the provider reports that the conversation is too long, the hook clears all rounds before the last `keep` at once, and
    sends the request again. If these contain nothing to clear, it also clears some of the last `keep`, so that at most half of
    all rounds (but at least one) remain.

    Priority 400 (behaviour).

    Args:
        keep: The number of most recent tool rounds that are not cleared while the conversation fits.
        min_chars: Results shorter than this are not cleared: a placeholder would save nothing.
        step: The number of rounds to clear at a time.
        except_tools: Patterns of tools with results that are never cleared, such as `"read_offloaded"`.
        placeholder: The replacement; `{name}` and `{size}` are filled in.

    Example:
        >>> agent = Agent("reader", "openai/gpt-5", tools=[search], hooks=[ClearOldResults(keep=3, min_chars=400)])
    """

    priority = 400
    on_failure = "skip"
    events = (PreReasoning,)

    def __init__(
        self,
        keep: int = 3,
        *,
        min_chars: int = 400,
        step: int = 5,
        except_tools: Sequence[str] = (),
        placeholder: str = PLACEHOLDER,
    ) -> None:
        if keep < 0 or step < 1 or min_chars < 0:
            raise UsageError(
                f"ClearOldResults(keep={keep}, min_chars={min_chars}, step={step}): keep and min_chars must be 0 or more, "
                "step must be 1 or more."
            )
        self.keep = keep
        self.min_chars = min_chars
        self.step = step
        self.except_tools = (except_tools,) if isinstance(except_tools, str) else tuple(except_tools)
        self.placeholder = placeholder

    def on_event(self, event: HookEvent) -> HookEvent:
        """Clear the results that are old enough."""
        if not isinstance(event, PreReasoning):
            return event
        messages, results = event.input_messages, own(event.context, self, _Results)
        results.update(messages, self.min_chars)
        old = (len(results.places) - self.keep) // self.step * self.step
        if old > results.examined and results.large:
            self._clear(results, old)
        if results.cleared:
            if isinstance(messages, MessageView):
                event.input_messages = messages.with_replacements(results.replacements)
            else:
                changed = list(messages)
                for index, cleared in results.cleared.items():
                    changed[index] = cleared
                event.input_messages = changed
        return event

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        """If the conversation is too long and results can be cleared, send the request once more without them."""
        results = own(event.context, self, _Results)
        if not results.large or len(results.places) <= min(self.keep, 1):
            return source
        return shorter_request(source, partial(self._shorter, results, source))

    async def _shorter(self, results: _Results, source: ModelSource) -> Sequence[Msg] | None:
        count, cleared_before = len(results.places), len(results.cleared)
        self._clear(results, max(0, count - self.keep))
        if len(results.cleared) == cleared_before:
            self._clear(results, count - min(self.keep, max(1, count // 2)))
        if len(results.cleared) == cleared_before:
            return None
        # Messages are matched by id, not by index: later hooks may have moved them.
        cleared = {msg.id: msg for msg in results.cleared.values()}
        return tuple([cleared.get(msg.id, msg) for msg in source.request.messages])

    def _clear(self, results: _Results, old: int) -> None:
        """Clear the first `old` rounds, also for later requests of the run."""
        for index in results.places[results.examined : old]:
            if index in results.large and (cleared := self._cleared(results.messages[index])) is not None:
                results.cleared[index] = cleared
                if isinstance(results.messages, MessageView):
                    results.replacements.put(results.messages, index, cleared)
        results.examined = max(old, results.examined)

    def _cleared(self, msg: Msg) -> Msg | None:
        content = tuple([self._short(block) if isinstance(block, ToolResultBlock) else block for block in msg.content])
        if all(new is old for new, old in zip(content, msg.content, strict=True)):
            return None
        return replace(msg, content=content)

    def _short(self, result: ToolResultBlock) -> ToolResultBlock:
        size = _size(result)
        if size < self.min_chars or matches(self.except_tools, result.name):
            return result
        text = self.placeholder.format(name=result.name, size=size)
        return tool_result(result.tool_use_id, result.name, text, result.state) if len(text) < size else result


def _size(result: ToolResultBlock) -> int:
    if isinstance(result.content, str):
        return len(result.content)
    data = sum(len(block.data or block.url or "") for block in result.content if isinstance(block, DataBlock))
    return len(result.text) + data
