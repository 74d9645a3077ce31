"""`NoProgress`: an agent that repeats the same calls is warned once, and then stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.plugins._calls import canonical
from agentflow.plugins._matching import matches
from agentflow.vocabulary.events import HookEvent, PostReasoning
from agentflow.vocabulary.messages import Msg, ToolUseBlock, with_metadata
from agentflow.vocabulary.verdicts import Again, Stop

__all__ = ["NUDGE", "NoProgress"]

NUDGE = (
    "You have asked for the same thing {count} times in a row: {calls}. It will not give another result. Try something "
    "else, or answer with what you have."
)
SOURCE = "no_progress"

_Signature: TypeAlias = "tuple[str, ...]"


@dataclass(slots=True)
class _RepeatedCalls:
    """The calls (or the answer) of the run's last reply, how many times in a row they occurred, and the number of warnings."""

    __saved_as__ = "agentflow.plugins.progress:_Repeats"  # the name in stored sessions

    last: _Signature = ()
    count: int = 0
    nudges: int = 0


class NoProgress(Hook):
    """Detects repeated tool calls.

    If a reply makes the same set of calls (names and arguments, in any order) for the `repeats`-th time in a row,
    the calls are not run: the model gets a warning (`Again`, a note marked `metadata["synthetic"] == "no_progress"`). If its
    next reply makes the same calls again, the agent's call is stopped: outcome `stopped`, and the reason names the calls.
    Different calls in between, or a new run, reset the count. If another hook keeps rejecting an answer and the model
    repeats it, the `repeats`-th equal answer stops the call, and is the reply.

    Priority 110 (behaviour). One instance serves any number of agents and runs.

    Args:
        repeats: The number of equal replies in a row that leads to a warning or a stop, including the current one; at least 2.
        nudges: The number of warnings before the stop, 0 or more. Each uses one of `max_iterations`.
        ignore: Patterns of tools that may be repeated with the same arguments, such as `"wait_*"`. A reply with such a call is
            not counted, and resets the count.
        nudge: The warning; `{count}` and `{calls}` are filled in.

    Example:
        >>> agent = Agent("researcher", "openai/gpt-5", tools=[search], hooks=[NoProgress(repeats=3, ignore=["poll_*"])])
    """

    priority = 110
    events = (PostReasoning,)

    def __init__(self, repeats: int = 3, *, nudges: int = 1, ignore: Sequence[str] = (), nudge: str = NUDGE) -> None:
        if repeats < 2 or nudges < 0:
            raise UsageError(
                f"NoProgress(repeats={repeats}, nudges={nudges}): repeats must be 2 or more, nudges 0 or more."
            )
        self.repeats = repeats
        self.nudges = nudges
        self.ignore = (ignore,) if isinstance(ignore, str) else tuple(ignore)
        self.nudge = nudge

    def on_event(self, event: HookEvent) -> Again | Stop | None:
        """Compare the reply with the earlier ones."""
        # The summary at the iteration limit is the last reply, so `Again` is illegal.
        if not isinstance(event, PostReasoning) or event.purpose == "summary":
            return None
        reply, state = event.reasoning_result, event.context.state[_RepeatedCalls]
        signature = self._signature(reply)
        if not signature or signature != state.last:
            state.last, state.count, state.nudges = signature, 1, 0
            return None
        state.count += 1
        if state.count < self.repeats:
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
        """Return a key that equal replies share; empty for a reply that does not count."""
        uses = reply.tool_uses
        if not uses:
            text = reply.text.strip()
            return ("", text) if text else ()
        if self.ignore and any(matches(self.ignore, use.name) for use in uses):
            return ()
        if len(uses) == 1:  # the usual reply: a set would only cost time
            return (f"{uses[0].name} {canonical(uses[0])}",)
        return tuple(sorted({f"{use.name} {canonical(use)}" for use in uses}))


def _shown(use: ToolUseBlock) -> str:
    text = use.raw
    return f"{use.name}({text if len(text) <= 200 else text[:199] + '…'})"
