"""`ClientSide`: the instructions, tools and options that a client adds to a call. It is sent as data in a request, and
is a hook in the worker that runs the call.

Rules:

1. A client's tools are offered to the model in addition to the agent's own. If the model calls a client's tool, the run
   is suspended until the client has run the tool and sends the result.
2. The additions are sent with each request, because a suspended call stores neither hooks nor options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from typing_extensions import TypedDict

from agentflow._support.validation import adapter_of
from agentflow.hooks.hook import Hook
from agentflow.vocabulary.events import HookEvent, PreActing, PreReasoning
from agentflow.vocabulary.messages import Msg, Pending, TextBlock
from agentflow.vocabulary.specs import ModelOptions, ToolSpec
from agentflow.vocabulary.verdicts import Suspend

_NO_OPTIONS: Final = ModelOptions()


class _StoredTool(TypedDict):
    name: str
    description: str
    parameters: dict[str, Any]


class StoredClientSide(TypedDict):
    """The form of `ClientSide.to_dict`."""

    system: str
    tools: list[_StoredTool]
    options: dict[str, Any]


class ClientSide(Hook):
    """Adds a client's instructions and tools to a call, and suspends the call if the model calls one of these tools.

    Args:
        system: Instructions in addition to the agent's own.
        tools: The client's tools.
        options: Options of the call's model calls.
    """

    events = (PreReasoning, PreActing)

    def __init__(self, system: str = "", tools: Sequence[ToolSpec] = (), options: ModelOptions = _NO_OPTIONS) -> None:
        self.options = options
        self._system = system
        self._tools = {spec.name: spec for spec in tools}

    def on_event(self, event: HookEvent) -> Suspend | None:
        """Add the instructions and tools, or suspend a call of these tools."""
        match event:
            case PreReasoning(input_messages=messages):
                if self._tools and event.purpose == "reason":
                    event.tools = (*event.tools, *self._tools.values())
                if self._system:
                    event.input_messages = _with_system(messages, self._system)
            # With an approval, the client has sent its result, so the call is not suspended again.
            case PreActing(tool_use=use, approval=None) if use.name in self._tools:
                return Suspend()
            case _:
                pass
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the additions as JSON-compatible data.

        Example:
            >>> side = ClientSide("Be brief.", options=ModelOptions(temperature=0.5))
            >>> ClientSide.from_dict(side.to_dict()).options.temperature
            0.5
        """
        options = adapter_of(ModelOptions).dump_python(self.options, mode="json", exclude_defaults=True)
        tools = [
            {"name": spec.name, "description": spec.description, "parameters": dict(spec.parameters)}
            for spec in self._tools.values()
        ]
        return {"system": self._system, "tools": tools, "options": options}

    @staticmethod
    def from_dict(data: StoredClientSide) -> ClientSide:
        """Rebuild a `ClientSide` from the data of `to_dict`.

        Raises:
            ValueError: The options are not valid.
        """
        options = adapter_of(ModelOptions).validate_python(data["options"])
        return ClientSide(data["system"], [ToolSpec(**spec) for spec in data["tools"]], options)


def _with_system(messages: Sequence[Msg], system: str) -> list[Msg]:
    if messages and messages[0].role == "system":
        return [replace(messages[0], content=(TextBlock(f"{messages[0].text}\n\n{system}"),)), *messages[1:]]
    return [Msg.system(system), *messages]


def is_client_call(wait: Pending) -> bool:
    """Return whether a call waits for the result of a client's tool."""
    return wait.hook == ClientSide.__name__ and not wait.within
