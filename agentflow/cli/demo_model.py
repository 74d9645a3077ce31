"""The model behind `agentflow demo`: a wire server on the loopback, and the brain that answers there.

The brain is a function of the conversation. It asks for what it does not know yet, and says what it has read: other files
in the folder make another sum.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from agentflow.ground.json_text import read_json_text
from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.openai_wire import OpenAIWire
from agentflow.ports.model import Model
from agentflow.specs import ModelOptions
from agentflow.testing.wire import Fault, Reply, ToolCall, WireRequest, WireServer
from agentflow.testing.wire.jsonish import JsonObject, as_object, as_text, objects
from agentflow.testing.wire.request import answers_in

__all__ = ["WIRES", "EmbeddedWire", "WireChoice", "bookkeeper"]

WireChoice: TypeAlias = Literal["openai", "anthropic"]


@dataclass(frozen=True)
class EmbeddedWire:
    """One wire of the embedded server.

    Attributes:
        name: The wire.
        model: The model that the server plays; a real name, so that its price is known.
        options: What the agent asks of it.
    """

    name: WireChoice
    model: str
    options: ModelOptions

    def server(self, pause: float) -> WireServer:
        """A server whose model is `bookkeeper`.

        Args:
            pause: Seconds between the pieces of a reply, so that a person sees them come.
        """

        def brain(request: WireRequest) -> Reply:
            return bookkeeper(request, (Fault.slow(seconds=pause),) if pause else ())

        return WireServer.openai(brain) if self.name == "openai" else WireServer.anthropic(brain)

    def model_at(self, base_url: str) -> Model:
        """The model as an agent uses it, over HTTP."""
        wire = OpenAIWire if self.name == "openai" else AnthropicWire
        return wire(self.model, api_base=base_url, api_key="sk-none-is-needed", retries=0)


WIRES: Final[Mapping[WireChoice, EmbeddedWire]] = MappingProxyType(
    {
        "openai": EmbeddedWire("openai", "openai/gpt-4o-mini", ModelOptions()),
        "anthropic": EmbeddedWire(
            "anthropic", "anthropic/claude-sonnet-4-5", ModelOptions(thinking=1024, max_tokens=4096)
        ),
    }
)


def bookkeeper(request: WireRequest, faults: Sequence[Fault] = ()) -> Reply:
    """Decide what to say from what the tools have said so far.

    Args:
        request: The conversation, on either wire.
        faults: How the reply travels.
    """
    told = _told(request)
    files = _names(told.get("list_files"))
    if "list_files" not in told:
        return _asks("I will see what is in the folder.", [ToolCall("list_files")], faults, "First the folder.")
    if "read_file" not in told:
        calls = [ToolCall("read_file", {"name": name}) for name in files]
        return _asks(f"There are {len(files)} files. I read them all.", calls, faults, "I must not guess amounts.")
    if "add_up" not in told:
        amounts = [float(found[1]) for text in told["read_file"] if (found := re.search(r"amount: ([\d.]+)", text))]
        call = ToolCall("add_up", {"amounts": amounts})
        return _asks("Now the sum.", [call], faults, "The tool adds better than I do.")
    total = told["add_up"][0]
    if "delete_file" not in told:
        calls = [ToolCall("delete_file", {"name": name}) for name in files]
        return _asks(f"They add up to {total}. Now I delete them.", calls, faults, "The user wants them deleted.")
    kept = [text for text in told["delete_file"] if text.startswith("Denied")]
    end = f"I may not delete them: {len(kept)} of {len(files)} deletions were refused." if kept else "They are deleted."
    return Reply(f"The {len(files)} invoices add up to {total}.\n{end}", faults=faults)


def _asks(text: str, calls: Sequence[ToolCall], faults: Sequence[Fault], thinking: str) -> Reply:
    return Reply(text, thinking=thinking, calls=tuple(calls), faults=faults)


def _names(results: Sequence[str] | None) -> list[str]:
    return [str(name) for name in read_json_text(results[0])] if results else []


def _told(request: WireRequest) -> dict[str, list[str]]:
    """What the tools said so far: name → results, in order."""
    names: dict[str, str] = {}
    told: dict[str, list[str]] = {}
    for message in request.messages:
        names.update(_asked(message))
        for answer in answers_in(message):
            told.setdefault(names.get(answer.id, ""), []).append(answer.text)
    return told


def _asked(message: JsonObject) -> dict[str, str]:
    """The calls that one message asks for, on either wire: id → tool."""
    calls = {as_text(call.get("id")): as_object(call.get("function")) for call in objects(message.get("tool_calls"))}
    blocks = [block for block in objects(message.get("content")) if block.get("type") == "tool_use"]
    calls.update({as_text(block.get("id")): block for block in blocks})
    return {call_id: as_text(call.get("name")) for call_id, call in calls.items()}
