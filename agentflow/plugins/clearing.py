"""`ClearOldResults`: old tool results are removed from requests, and stay in the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from reactivex import Observable

from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import ModelSource
from agentflow.plugins._counting import fitting
from agentflow.reactive import Flux
from agentflow.vocabulary.events import HookEvent, PreReasoning
from agentflow.vocabulary.messages import DataBlock, Msg, ToolResultBlock, message, tool_result
from agentflow.vocabulary.transcript import MessageView, Replacements

__all__ = ["ClearOldResults"]

PLACEHOLDER = "[An old result of {name} was taken out here ({size} characters). Call the tool again if it is needed.]"


class _Results:
    """The tool results of the last request, so that only new messages are examined."""

    def __init__(self) -> None:
        self.messages: Sequence[Msg] = ()
        self.places: list[int] = []
        self.large: set[int] = set()
        self.judged = 0
        self.cleared: dict[int, Msg] = {}
        self.replacements = Replacements()

    def update(self, messages: Sequence[Msg], least: int) -> None:
        """Find the tool results in a request, and those large enough to clear; the part shared with the last one is known."""
        begin, before = messages.shared(self.messages) if isinstance(messages, MessageView) else 0, self.messages
        if self.cleared and not (isinstance(before, MessageView) and begin == before.shared(before)):
            self.replacements, self.cleared, self.judged = Replacements(), {}, 0  # another conversation
        if self.places and self.places[-1] >= begin:
            self.places = [index for index in self.places if index < begin]
            self.judged = min(self.judged, len(self.places))
            self.cleared = {index: msg for index, msg in self.cleared.items() if index < begin}
            self.large = {index for index in self.large if index < begin}
        for index in range(begin, len(messages)):
            msg = messages[index]
            if msg.role == "tool":
                self.places.append(index)
                for result in msg.content:
                    content = result.content if isinstance(result, ToolResultBlock) else ""
                    if not isinstance(content, str) or len(content) >= least:
                        self.large.add(index)
        self.messages = messages


@dataclass
class _Rounds:
    """The tool results of a run's last request, by hook; not stored with a session."""

    def __post_init__(self) -> None:
        self.by_hook: dict[int, _Results] = {}


class ClearOldResults(Hook):
    """Replaces old tool results in requests by a short placeholder. History, events and reply keep them.

    Rounds are cleared in steps: between two steps the start of the request stays the same, byte for byte, so a provider's
    prompt cache keeps working.

    If the provider reports that the conversation is too long, it clears all it may at once, if necessary also half of the
    rounds that `keep` protects, and sends the request once more.

    Priority 400 (behaviour).

    Args:
        keep: The number of most recent tool rounds that are never cleared.
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
    wraps = (PreReasoning,)

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

    def on_event(self, event: PreReasoning) -> PreReasoning:  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to one event
        """Clear the results that are old enough."""
        messages, by_hook = event.input_messages, event.context.state[_Rounds].by_hook
        rounds = by_hook.get(id(self))
        if rounds is None:
            rounds = by_hook[id(self)] = _Results()
        rounds.update(messages, self.min_chars)
        old = (len(rounds.places) - self.keep) // self.step * self.step
        if old > rounds.judged and rounds.large:
            self._clear(rounds, old)
        if rounds.cleared:
            if isinstance(messages, MessageView):
                event.input_messages = messages.with_replacements(rounds.replacements)
            else:
                changed = list(messages)
                for index, cleared in rounds.cleared.items():
                    changed[index] = cleared
                event.input_messages = changed
        return event

    def around(self, event: HookEvent, source: Any) -> Observable[Any]:
        """Send the request once more with fewer results if the conversation does not fit and any can be cleared."""
        if not isinstance(event, PreReasoning):
            return source
        rounds = event.context.state[_Rounds].by_hook.get(id(self))
        if rounds is None or not rounds.large or len(rounds.places) <= min(self.keep, 1):
            return source
        return Flux(partial(fitting, source, partial(self._shorter, event, source)))

    async def _shorter(self, event: PreReasoning, source: ModelSource) -> Sequence[Msg] | None:
        rounds = event.context.state[_Rounds].by_hook[id(self)]
        rounds_before, cleared_before = len(rounds.places), len(rounds.cleared)
        self._clear(rounds, max(0, rounds_before - self.keep))
        if len(rounds.cleared) == cleared_before:
            self._clear(rounds, rounds_before - min(self.keep, max(1, rounds_before // 2)))
        cleared = {msg.id: msg for msg in rounds.cleared.values()}
        messages = tuple([cleared.get(msg.id, msg) for msg in source.request.messages])
        return None if len(rounds.cleared) == cleared_before else messages

    def _clear(self, rounds: _Results, old: int) -> None:
        """Clear the first rounds; later requests of the run keep them cleared."""
        for index in rounds.places[rounds.judged : old]:
            if index in rounds.large and (cleared := self._cleared(rounds.messages[index])) is not None:
                rounds.cleared[index] = cleared
                if isinstance(rounds.messages, MessageView):
                    rounds.replacements.put(rounds.messages, index, cleared)
        rounds.judged = max(old, rounds.judged)

    def _cleared(self, msg: Msg) -> Msg | None:
        content = tuple([self._short(block) if isinstance(block, ToolResultBlock) else block for block in msg.content])
        if all(new is old for new, old in zip(content, msg.content, strict=True)):
            return None
        return message(msg.role, content, msg.id, msg.metadata)

    def _short(self, result: ToolResultBlock) -> ToolResultBlock:
        size = _size(result)
        if size < self.min_chars or any(fnmatchcase(result.name, pattern) for pattern in self.except_tools):
            return result
        text = self.placeholder.format(name=result.name, size=size)
        return tool_result(result.tool_use_id, result.name, text, result.state) if len(text) < size else result


def _size(result: ToolResultBlock) -> int:
    if isinstance(result.content, str):
        return len(result.content)
    data = sum(len(block.data or block.url or "") for block in result.content if isinstance(block, DataBlock))
    return len(result.text) + data
