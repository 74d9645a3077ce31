"""`ClearOldResults`: old tool results are taken out of requests, and stay in the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from agentflow.errors import UsageError
from agentflow.events import PreReasoning
from agentflow.hooks.hook import Hook
from agentflow.messages import DataBlock, Msg, ToolResultBlock, message, tool_result
from agentflow.transcript import MessageView

__all__ = ["ClearOldResults"]

PLACEHOLDER = "[An old result of {name} was taken out here ({size} characters). Call the tool again if it is needed.]"


class _Known:
    """What is known of the last request, so that only what came to it is looked at."""

    def __init__(self) -> None:
        self.messages: Sequence[Msg] = ()
        self.places: list[int] = []
        self.judged = 0
        self.cleared: dict[int, Msg] = {}

    def take_in(self, messages: Sequence[Msg]) -> None:
        """Find the results of tools in a request; what it shares with the last one is known."""
        begin = messages.shared(self.messages) if isinstance(messages, MessageView) else 0
        if self.places and self.places[-1] >= begin:
            self.places = [index for index in self.places if index < begin]
            self.judged = min(self.judged, len(self.places))
            self.cleared = {index: msg for index, msg in self.cleared.items() if index < begin}
        self.places += [index for index in range(begin, len(messages)) if messages[index].role == "tool"]
        self.messages = messages


@dataclass
class _Rounds:
    """The rounds of a run's last request, by hook; not stored with a session."""

    def __post_init__(self) -> None:
        self.by_hook: dict[int, _Known] = {}


class ClearOldResults(Hook):
    """Old tool results in a request are replaced by a short placeholder. History, events and reply keep them.

    Rounds are cleared in steps: between two steps the start of the request stays the same, byte for byte, so a
    provider's prompt cache keeps working.

    Priority 400 (behaviour).

    Args:
        keep: The last so many rounds of tools are left alone.
        min_chars: Shorter results are left alone: a placeholder would save nothing.
        step: So many rounds are cleared at a time.
        except_tools: Patterns of tools whose results are never cleared, such as `"read_offloaded"`.
        placeholder: What stands in their place; `{name}` and `{size}` are filled in.

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
                f"ClearOldResults(keep={keep}, min_chars={min_chars}, step={step}): keep and min_chars are 0 or more, "
                "step is 1 or more."
            )
        self.keep = keep
        self.min_chars = min_chars
        self.step = step
        self.except_tools = (except_tools,) if isinstance(except_tools, str) else tuple(except_tools)
        self.placeholder = placeholder

    def on_event(self, event: PreReasoning) -> PreReasoning:  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to one event
        """Clear what is old enough."""
        messages, rounds = event.input_messages, event.context.state[_Rounds].by_hook.setdefault(id(self), _Known())
        rounds.take_in(messages)
        old = max(0, len(rounds.places) - self.keep) // self.step * self.step
        for index in rounds.places[rounds.judged : old]:
            msg = messages[index]
            cleared = self._cleared(msg)
            if cleared is not msg:
                rounds.cleared[index] = cleared
        rounds.judged = max(old, rounds.judged)
        if rounds.cleared:
            changed = list(messages)
            for index, cleared in rounds.cleared.items():
                changed[index] = cleared
            event.input_messages = changed
        return event

    def _cleared(self, msg: Msg) -> Msg:
        content = tuple([self._short(block) if isinstance(block, ToolResultBlock) else block for block in msg.content])
        if all(new is old for new, old in zip(content, msg.content, strict=True)):
            return msg
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
