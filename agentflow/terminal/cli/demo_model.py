"""The model of `agentflow demo`: a wire server on the loopback interface, and the function that produces its replies.

The replies depend on the conversation: the function requests the data that it does not have yet, then the deletion of the
files, and then reports the sum of the invoices in the folder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

from agentflow._support.json_text import read_json_text
from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.openai_wire import OpenAIWire
from agentflow.testing.wire import Fault, ScriptedCall, WireReply, WireRequest, WireServer
from agentflow.testing.wire.jsonish import JsonObject, as_object, as_text, objects
from agentflow.testing.wire.request import answers_in
from agentflow.vocabulary.ports.model import Model
from agentflow.vocabulary.specs import ModelOptions

WireChoice: TypeAlias = Literal["openai", "anthropic"]


@dataclass(frozen=True)
class EmbeddedWire:
    """A provider's API (a wire) that the embedded server offers.

    Attributes:
        name: The wire's name.
        model: The name of the simulated model: that of a real one, so that its price is known.
        options: The agent's model options for it.
    """

    name: WireChoice
    model: str
    options: ModelOptions

    def server(self, pause: float) -> WireServer:
        """Create a server with `bookkeeper` as its model.

        Args:
            pause: Seconds between the chunks of a reply, so that the streaming is visible.
        """

        def brain(request: WireRequest) -> WireReply:
            return bookkeeper(request, (Fault.slow(seconds=pause),) if pause else ())

        return WireServer.openai(brain) if self.name == "openai" else WireServer.anthropic(brain)

    def model_at(self, base_url: str) -> Model:
        """Create the model that the agent uses, over HTTP."""
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


def bookkeeper(request: WireRequest, faults: Sequence[Fault] = ()) -> WireReply:
    """Choose the next reply from the tool results so far.

    Args:
        request: The conversation, on either wire.
        faults: Faults to inject into the reply's delivery.
    """
    results = _tool_results(request)
    files = _names(results.get("list_files"))
    if "list_files" not in results:
        return _calling("I will see what is in the folder.", [ScriptedCall("list_files")], faults, "First the folder.")
    if "read_file" not in results:
        calls = [ScriptedCall("read_file", {"name": name}) for name in files]
        return _calling(f"There are {len(files)} files. I read them all.", calls, faults, "I must not guess amounts.")
    if "add_up" not in results:
        amounts = [float(found[1]) for text in results["read_file"] if (found := re.search(r"amount: ([\d.]+)", text))]
        call = ScriptedCall("add_up", {"amounts": amounts})
        return _calling("Now the sum.", [call], faults, "The tool adds better than I do.")
    total = results["add_up"][0]
    if "delete_file" not in results:
        calls = [ScriptedCall("delete_file", {"name": name}) for name in files]
        return _calling(f"They add up to {total}. Now I delete them.", calls, faults, "The user wants them deleted.")
    refused = [text for text in results["delete_file"] if text.startswith("Denied")]
    end = (
        f"I may not delete them: {len(refused)} of {len(files)} deletions were refused."
        if refused
        else "They are deleted."
    )
    return WireReply(f"The {len(files)} invoices add up to {total}.\n{end}", faults=faults)


def _calling(text: str, calls: Sequence[ScriptedCall], faults: Sequence[Fault], thinking: str) -> WireReply:
    return WireReply(text, thinking=thinking, calls=tuple(calls), faults=faults)


def _names(results: Sequence[str] | None) -> list[str]:
    return [str(name) for name in read_json_text(results[0])] if results else []


def _tool_results(request: WireRequest) -> dict[str, list[str]]:
    """Return the tool results so far by tool name, in order."""
    names: dict[str, str] = {}
    results: dict[str, list[str]] = {}
    for message in request.messages:
        names.update(_requested_calls(message))
        for answer in answers_in(message):
            results.setdefault(names.get(answer.id, ""), []).append(answer.text)
    return results


def _requested_calls(message: JsonObject) -> dict[str, str]:
    """Return the tool calls of a message by id, on either wire."""
    calls = {as_text(call.get("id")): as_object(call.get("function")) for call in objects(message.get("tool_calls"))}
    blocks = [block for block in objects(message.get("content")) if block.get("type") == "tool_use"]
    calls.update({as_text(block.get("id")): block for block in blocks})
    return {call_id: as_text(call.get("name")) for call_id, call in calls.items()}
