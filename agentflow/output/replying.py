"""The reply of a call that was asked for a form."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentflow.output.answer import Given
from agentflow.output.form import MisfitError
from agentflow.tools.results import read_back
from agentflow.tools.signature import MISSING, return_hint

if TYPE_CHECKING:
    from agentflow.messages import Reply
    from agentflow.output.output import Output
    from agentflow.typed_state import StateMap

__all__ = ["typed"]


def typed(reply: Reply[Any], output: Output[Any], state: StateMap | None = None) -> Reply[Any]:
    """The reply with its output, where its text says one; else as it is.

    Args:
        reply: The reply of a call.
        output: What was asked for.
        state: The state of its run, where that was in this process: it holds the output as an object.
    """
    if reply.outcome not in ("completed", "limited") or reply.tool_uses:
        return reply
    given = None if state is None else state[Given]
    if given is not None and given.says(reply.text):
        return replace(reply, value=given.value, typed=True)
    if output.is_text:
        return replace(reply, value=reply.text, typed=True)
    if output.runs:
        if reply.outcome == "limited":  # the summary, and no step ran
            return reply
        hint = return_hint(output.tool.function, {})
        value = reply.text if hint is MISSING else read_back(reply.text, hint)
        return replace(reply, value=value, typed=True)
    try:
        return replace(reply, value=output.shape.read(reply.text), typed=True)
    except MisfitError:  # the summary at the limit, or what a hook has made of the answer
        return reply
