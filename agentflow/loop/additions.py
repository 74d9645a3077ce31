"""Validate messages that hooks and tools add to a conversation, before they become facts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentflow.errors import UsageError
from agentflow.hooks.injections import injecting
from agentflow.loop.machine import Machine
from agentflow.loop.window import estimated
from agentflow.vocabulary.context import Compaction
from agentflow.vocabulary.messages import Msg, with_metadata

__all__ = ["compacted", "injected", "note_injection"]

_MOST_IN_A_ROW: Final = 100


def injected(messages: Sequence[Msg], source: str, over: bool, telling: int) -> tuple[Msg, ...]:
    """Return the messages of `context.inject`, marked with their source.

    Args:
        messages: The messages, as passed.
        source: The name of the caller.
        over: Whether the call has ended.
        telling: The number of `MessagesAdded` events since the last step of the call.

    Raises:
        UsageError: The call has ended, hooks inject in an infinite loop, or a message has an illegal role or tool
            calls.
    """
    if over:
        raise UsageError("This call has ended, so no message can be injected into it.")
    if telling > _MOST_IN_A_ROW:
        raise UsageError(
            f"Infinite injection loop: a hook of MessagesAdded injected {_MOST_IN_A_ROW} messages in a row in response to its "
            "own. Skip events with the origin 'injected'."
        )
    for msg in messages:
        if msg.role not in ("user", "assistant") or msg.tool_uses:
            raise UsageError(
                f"context.inject takes user messages and assistant messages without tool calls, not {msg.role!r}."
            )
    return tuple([msg if "synthetic" in msg.metadata else with_metadata(msg, synthetic=source) for msg in messages])


def note_injection(run: object, messages: tuple[Msg, ...], keep: bool) -> None:
    """Record the messages that the running code injects into a run, if a listener needs them."""
    noting = injecting.get()
    if noting is not None and noting.run is run:
        noting.note(messages, keep)


def compacted(machine: Machine, iteration: int, until: int, messages: Sequence[Msg]) -> Compaction:
    """Describe the replacement that `context.compact` is about to make.

    Args:
        machine: The conversation.
        iteration: The round.
        until: The number of messages of the history to replace in requests.
        messages: The replacement.

    Raises:
        UsageError: The history is shorter, or calls would be separated from their results.
    """
    transcript = machine.transcript
    check_compacted(until, transcript.messages, bool(transcript.open_round))
    since, earlier = machine.compacted or (0, ())
    old = (*earlier, *[transcript.messages[place] for place in range(since, until)])
    return Compaction(iteration, len(old), estimated(old), len(messages), estimated(messages))


def check_compacted(until: int, stored: Sequence[Msg], round_is_open: bool) -> None:
    """Refuse a compaction that would separate tool calls from their results.

    Args:
        until: The number of messages to replace in requests.
        stored: The history.
        round_is_open: Whether the calls of its last message have no results yet.

    Raises:
        UsageError: The history is shorter, or calls would be separated from their results.
    """
    if not 0 <= until <= len(stored):
        raise UsageError(f"compact(until={until}): the history has {len(stored)} messages.")
    if (until == len(stored) and round_is_open) or (until < len(stored) and stored[until].role == "tool"):
        raise UsageError(f"compact(until={until}) would separate tool calls from their results.")
