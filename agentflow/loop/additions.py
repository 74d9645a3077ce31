"""What hooks and tools may add to a conversation: judged here, before it becomes a fact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentflow.context import Compaction
from agentflow.errors import UsageError
from agentflow.hooks.injections import injecting
from agentflow.loop.machine import Machine
from agentflow.loop.window import estimated
from agentflow.messages import Msg, with_metadata

__all__ = ["compacted", "injected", "note_injection"]

_MOST_IN_A_ROW: Final = 100


def injected(messages: Sequence[Msg], source: str, over: bool, telling: int) -> tuple[Msg, ...]:
    """The messages that `context.inject` adds, marked with where they come from.

    Args:
        messages: As they were given.
        source: Who adds them.
        over: Whether the call has ended.
        telling: How often stored messages have been told of since the last step of the call.

    Raises:
        UsageError: There is no conversation any more, or no end of additions; or such a message cannot stand by itself.
    """
    if over:
        raise UsageError("This call is over: nothing can be injected into it any more.")
    if telling > _MOST_IN_A_ROW:
        raise UsageError(
            f"context.inject: {_MOST_IN_A_ROW} messages have been added in a row, each while hooks of MessagesAdded were "
            "told of the one before it. A hook that injects there has to tell its own: their origin is 'injected'."
        )
    for msg in messages:
        if msg.role not in ("user", "assistant") or msg.tool_uses:
            raise UsageError(
                f"context.inject takes user messages and assistant messages without tool calls, not {msg.role!r}."
            )
    return tuple([msg if "synthetic" in msg.metadata else with_metadata(msg, synthetic=source) for msg in messages])


def note_injection(run: object, messages: tuple[Msg, ...], keep: bool) -> None:
    """Note for whoever listens what the code that is running has injected into a run."""
    noting = injecting.get()
    if noting is not None and noting.run is run:
        noting.note(messages, keep)


def compacted(machine: Machine, iteration: int, until: int, messages: Sequence[Msg]) -> Compaction:
    """What `context.compact` is about to replace.

    Args:
        machine: The conversation.
        iteration: The round.
        until: How many messages of the history are to be replaced in requests.
        messages: What is to stand for them.

    Raises:
        UsageError: There are not that many, or calls and their results are parted.
    """
    transcript = machine.transcript
    check_compacted(until, transcript.messages, bool(transcript.open_round))
    since, earlier = machine.compacted or (0, ())
    old = (*earlier, *[transcript.messages[place] for place in range(since, until)])
    return Compaction(iteration, len(old), estimated(old), len(messages), estimated(messages))


def check_compacted(until: int, stored: Sequence[Msg], round_is_open: bool) -> None:
    """Raise where `context.compact` would cut what belongs together.

    Args:
        until: How many messages are to be replaced in requests.
        stored: The history.
        round_is_open: Whether the calls of its last message have no results yet.

    Raises:
        UsageError: There are not that many, or calls and their results are parted.
    """
    if not 0 <= until <= len(stored):
        raise UsageError(f"compact(until={until}): the history has {len(stored)} messages.")
    if (until == len(stored) and round_is_open) or (until < len(stored) and stored[until].role == "tool"):
        raise UsageError(f"compact(until={until}) cuts between tool calls and their results.")
