"""`NoProgress`: an agent that makes the same calls again and again is told so once, and then stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

from agentflow.errors import UsageError
from agentflow.events import PostReasoning
from agentflow.hooks.hook import Hook
from agentflow.messages import Msg, ToolUseBlock, with_metadata
from agentflow.plugins._calls import canonical
from agentflow.verdicts import Again, Stop

__all__ = ["NUDGE", "NoProgress"]

NUDGE = (
    "You have asked for the same thing {count} times in a row: {calls}. It will not give another result. Try something "
    "else, or answer with what you have."
)
SOURCE = "no_progress"

_Signature: TypeAlias = "tuple[str, ...]"


@dataclass(slots=True)
class _Repeats:
    """What the run did last, how often in a row, and how often it was told."""

    last: _Signature = ()
    count: int = 0
    nudges: int = 0


class NoProgress(Hook):
    """Watches for the same tool calls over and over.

    When a reply asks for the same set of calls (names and arguments; ids and order do not matter) for the `same`-th time in a
    row, the calls are not run: the model is told (`Again`, a note marked `metadata["synthetic"] == "no_progress"`). If its
    next reply is the same once more, the call is stopped: outcome `stopped`, and the reason names the calls. Other calls in
    between start the count over, and so does each run. Where another hook keeps sending an answer back and the model has no
    other, the `same`-th equal answer stops the call; that answer is the reply.

    Priority 110 (behaviour). One instance serves any number of agents and runs.

    Args:
        same: How many equal replies in a row are too many, this one included; at least 2.
        nudges: How often the model is told before it is stopped, 0 or more. Each time spends one of `max_iterations`.
        ignore: Patterns of tools that may be called with the same arguments as often as it takes, such as `"wait_*"`. A
            reply with such a call is not counted, and starts the count over.
        nudge: What the model is told; `{count}` and `{calls}` are filled in.

    Example:
        >>> agent = Agent("researcher", "openai/gpt-5", tools=[search], hooks=[NoProgress(same=3, ignore=["poll_*"])])
    """

    priority = 110
    events = (PostReasoning,)

    def __init__(self, same: int = 3, *, nudges: int = 1, ignore: Sequence[str] = (), nudge: str = NUDGE) -> None:
        if same < 2 or nudges < 0:
            raise UsageError(f"NoProgress(same={same}, nudges={nudges}): same is 2 or more, nudges 0 or more.")
        self.same = same
        self.nudges = nudges
        self.ignore = (ignore,) if isinstance(ignore, str) else tuple(ignore)
        self.nudge = nudge

    def on_event(self, event: PostReasoning) -> Again | Stop | None:  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to one event
        """Compare the reply with those before it."""
        if event.purpose == "summary":
            return None
        reply, state = event.reasoning_result, event.context.state[_Repeats]
        signature = self._signature(reply)
        if not signature or signature != state.last:
            state.last, state.count, state.nudges = signature, 1, 0
            return None
        state.count += 1
        if state.count < self.same:
            return None
        if not reply.tool_uses:
            return Stop(f"Stopped without progress: the same answer {state.count} times in a row.")
        calls = ", ".join(dict.fromkeys(_shown(use) for use in reply.tool_uses))
        if state.nudges < self.nudges:
            state.nudges += 1
            text = self.nudge.format(count=state.count, calls=calls)
            return Again(with_metadata(Msg.user(text, id=event.context.new_id("msg_")), synthetic=SOURCE))
        return Stop(f"Stopped without progress: the same calls {state.count} times in a row: {calls}.")

    def _signature(self, reply: Msg) -> _Signature:
        """What makes two replies the same; empty for one that does not count."""
        uses = reply.tool_uses
        if not uses:
            words = reply.text.strip()
            return ("", words) if words else ()
        if self.ignore and any(fnmatchcase(use.name, pattern) for use in uses for pattern in self.ignore):
            return ()
        if len(uses) == 1:
            return (f"{uses[0].name} {canonical(uses[0])}",)
        return tuple(sorted({f"{use.name} {canonical(use)}" for use in uses}))


def _shown(use: ToolUseBlock) -> str:
    text = use.raw
    return f"{use.name}({text if len(text) <= 200 else text[:199] + '…'})"
