"""The reply of a call with a typed output."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from agentflow.errors import ToolError
from agentflow.loop.output.answer import AcceptedAnswers
from agentflow.loop.output.form import InvalidOutputError
from agentflow.loop.output.output import full_output

if TYPE_CHECKING:
    from agentflow.loop.output.output import Output
    from agentflow.vocabulary.context import RunContext
    from agentflow.vocabulary.messages import Reply
    from agentflow.vocabulary.typed_state import StateMap

__all__ = ["text_of", "with_output"]


async def with_output(
    reply: Reply[Any], output: Output[Any], state: StateMap | None = None, run: RunContext | None = None
) -> Reply[Any]:
    """Return the reply with its output; unchanged if its text has no valid output, or `validate` refuses it.

    Args:
        reply: The reply of a call.
        output: The output.
        state: The state of its run, which caches accepted values; None if the call ran in another process.
        run: The context of its run, for validators that read it; the cache makes it unnecessary after the run.
    """
    wanted = full_output(output)
    accepted = AcceptedAnswers() if state is None else state[AcceptedAnswers]
    limited = reply.outcome == "limited"
    # A limited reply is a summary; if the output is a function, it has not run.
    possible = (reply.outcome == "completed" or (limited and not wanted.runs)) and not reply.tool_uses
    if not possible and not (limited and accepted.knows(reply.text)):
        return reply
    try:
        accept = partial(wanted.accept, run=run, own=limited)
        return replace(reply, value=await accepted.accept(accept, wanted.answer_of(reply)), typed=True)
    except InvalidOutputError:  # a summary at the limit, or an answer that a hook changed
        return reply


def text_of(reply: Reply[Any], output: Output[Any] | None) -> str:
    """Return the text of a reply for another agent: its own, or the text of its value if `validate` changed the value.

    Raises:
        ToolError: The text holds a value that the call has not accepted.
        UsageError: `validate` returned a value that does not fit the form.
    """
    wanted = None if output is None else full_output(output)
    if wanted is None or (not wanted.validators and not wanted.runs):
        return reply.text
    try:
        value = wanted.read_result(reply.text)
    except InvalidOutputError:  # plain text, or a value that cannot be read without the context of the run
        if not reply.typed or not wanted.validators:
            return reply.text
        value = None
    if not reply.typed:
        raise ToolError(f"No answer was accepted as {wanted!r} (outcome {reply.outcome!r}). The last one: {reply.text}")
    return reply.text if value == reply.output else wanted.write(reply.output)
