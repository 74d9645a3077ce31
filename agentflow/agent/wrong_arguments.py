"""Suggestions for arguments that `Agent` does not take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from agentflow.errors import UsageError, close_to

_HERE: Final = {
    "system": "system_prompt system_message instructions instruction prompt preamble backstory persona",
    "model": "llm lm chat_model model_name model_id model_client client",
    "tools": "functions toolsets toolkits mcp_servers handoffs sub_agents",
    "hooks": "callbacks callback_handler middleware plugins guardrails",
    "max_iterations": "max_turns max_steps max_iter max_loops max_tool_calls recursion_limit",
    "output": "output_type output_schema response_format response_model result_type structured_output",
    "store": "checkpointer memory session_service session_manager",
    "options": "model_settings generation_config model_kwargs temperature max_tokens top_p",
}
"""The names of arguments in other frameworks, by the name of the equivalent argument here."""

_NAMES: Final = {theirs: ours for ours, names in _HERE.items() for theirs in names.split()}


def refuse_unknown(given: Iterable[str], known: Sequence[str]) -> None:
    """Raise for an argument that `Agent` does not take.

    Args:
        given: The names that were written.
        known: The valid names.

    Raises:
        UsageError: An argument is unknown; the error shows the name used here, or a similar one.

    Example:
        >>> refuse_unknown(["instructions"], ["system"])
        Traceback (most recent call last):
        agentflow.errors.UsageError: Agent takes no instructions=; here that is system=.
    """
    for name in given:
        if name in known:
            continue
        ours = _NAMES.get(name)
        if ours is not None:
            example = "options=ModelOptions(temperature=..., max_tokens=...)" if ours == "options" else f"{ours}="
            raise UsageError(f"Agent takes no {name}=; here that is {example}.")
        close = close_to(name, known, 2)
        hint = f"did you mean {' or '.join(f'{one}=' for one in close)}?" if close else f"it takes {', '.join(known)}."
        raise UsageError(f"Agent takes no {name}=; {hint}")
