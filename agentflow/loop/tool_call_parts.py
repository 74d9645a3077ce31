"""The parts of a tool call that only some calls need: restored state, its effect on the round, the progress of its work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, NamedTuple

from agentflow.vocabulary.messages import Pending
from agentflow.vocabulary.verdicts import Resolution

__all__ = ["NO_EFFECT", "RestoredCall", "RoundEffect", "WorkProgress"]


class RestoredCall(NamedTuple):
    """The state of a tool call from before its run was resumed, and the decisions on it.

    Attributes:
        approval: The decision of a person.
        recovers: Whether it had started before the process ended.
        inner_decisions: The decisions on the calls of a sub-agent that is suspended in this call.
    """

    approval: Resolution | None = None
    recovers: bool = False
    inner_decisions: Mapping[str, Resolution] | None = None


class RoundEffect(NamedTuple):
    """How a tool call affects its round, other than by its result.

    Attributes:
        pending: The decisions that the call waits for.
        open_end: `halted` if a sub-agent in the call stopped at a safe point, `deferred` if the round was suspended
            before the call ran. In both cases the call's result does not become a fact.
        stop: The reason for which the round is the last one.
    """

    pending: tuple[Pending, ...] = ()
    open_end: Literal["", "halted", "deferred"] = ""
    stop: str | None = None


NO_EFFECT: Final = RoundEffect()


class WorkProgress:
    """The progress of a tool call's work, apart from its result.

    Attributes:
        subagents: The number of sub-agents that it has called.
        delivered: Whether a chunk was delivered, so that the tool is not tried again.
        chunk_error: The failure of a hook on a chunk, which ends the call even if the tool swallows it.
        consume: Receives each value of a streaming tool; None: they are collected.
    """

    __slots__ = ("chunk_error", "consume", "delivered", "subagents")

    def __init__(self) -> None:
        self.subagents = 0
        self.delivered = False
        self.chunk_error: Exception | None = None
        self.consume: Callable[[object], Awaitable[None]] | None = None

    def next_subagent(self) -> int:
        """Count another sub-agent, and return its number."""
        self.subagents += 1
        return self.subagents
