"""The reply of a call that was asked for an output."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentflow.errors import ToolError
from agentflow.output.answer import Given
from agentflow.output.form import MisfitError

if TYPE_CHECKING:
    from agentflow.messages import Reply
    from agentflow.output.output import Output
    from agentflow.typed_state import StateMap

__all__ = ["may_have_output", "text_of", "typed", "with_stored_output"]


def may_have_output(reply: Reply[Any], output: Output[Any]) -> bool:
    """Whether a reply may carry an output that is read from its text."""
    if reply.outcome == "limited" and output.runs:  # it is the summary, and no step ran
        return False
    return reply.outcome in ("completed", "limited") and not reply.tool_uses


async def typed(reply: Reply[Any], output: Output[Any], state: StateMap | None = None) -> Reply[Any]:
    """The reply with its output; as it is where its text says none, or none that `validate` accepts.

    Args:
        reply: The reply of a call.
        output: What was asked for.
        state: The state of its run, where that was in this process: it holds what was accepted.
    """
    given = Given() if state is None else state[Given]
    if not may_have_output(reply, output) and not (reply.outcome == "limited" and given.knows(reply.text)):
        return reply
    try:
        return replace(reply, value=await given.accept(output.accept, reply.text), typed=True)
    except MisfitError:  # the summary at the limit, or what a hook has made of the answer
        return reply


def with_stored_output(reply: Reply[Any], output: Output[Any]) -> Reply[Any]:
    """The reply with the output that `text_of` wrote: the call has validated it already."""
    try:
        return replace(reply, value=output.read_result(reply.text), typed=True)
    except MisfitError:
        return reply


def text_of(reply: Reply[Any], output: Output[Any] | None) -> str:
    """The text of a reply for another agent: its own, or where `validate` has made another value of it that value's.

    Raises:
        ToolError: The text says a value that the call has not accepted.
        UsageError: `validate` has made a value that is none of the form.
    """
    if output is None or (output.validate is None and not output.runs):
        return reply.text
    try:
        value = output.read_result(reply.text)
    except MisfitError:  # words, or a value that no other process can read
        return reply.text
    if not reply.typed:
        raise ToolError(f"No answer was accepted as {output!r} (outcome {reply.outcome!r}). The last one: {reply.text}")
    return reply.text if value == reply.output else output.write(reply.output)
