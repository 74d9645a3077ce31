"""A request as received by the server, with its outcome, in terms shared by all wires."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from agentflow.testing.wire.jsonish import JsonObject, JsonValue, as_list, as_object, as_text, objects
from agentflow.testing.wire.reply import WireReply

WireName: TypeAlias = Literal["openai", "responses", "anthropic"]
_TEXTS = ("text", "input_text", "output_text")
Ending: TypeAlias = Literal["complete", "broken off", "client left", "server stopped"]


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The result of one tool call, as sent in the request."""

    id: str
    text: str


@dataclass(slots=True, kw_only=True, eq=False)
class WireRequest:
    """A received request.

    Attributes:
        wire: `"openai"` (chat completions), `"responses"` or `"anthropic"`.
        index: The position among the requests, from 0.
        body: The parsed body; empty if it was not a JSON object.
        headers: The headers, names in lower case.
        status: The HTTP status of the answer; None until it is known.
        refused: The message of the rule that refused the request, or None.
        rule: The id of that rule.
        reply: The scripted reply, or None if the script was not used.
        writes: The number of chunks of the answer that were sent.
        ending: How the answer ended; None while it is in progress.

    Example:
        >>> WireRequest(wire="openai", index=0, body={"messages": [{"role": "user", "content": "hi"}]}).user_text
        'hi'
    """

    wire: WireName
    index: int
    body: JsonObject
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    status: int | None = None
    refused: str | None = None
    rule: str | None = None
    reply: WireReply | None = None
    writes: int = 0
    ending: Ending | None = None

    @property
    def messages(self) -> list[JsonObject]:
        """The messages as received; for `/responses`, the items of the input."""
        if self.wire == "responses":
            source = self.body.get("input")
            return [{"role": "user", "content": source}] if isinstance(source, str) else objects(source)
        return objects(self.body.get("messages"))

    @property
    def tools(self) -> list[JsonObject]:
        """The tool definitions as received."""
        return objects(self.body.get("tools"))

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the tools that the model may call."""
        return tuple(as_text(tool.get("name", as_object(tool.get("function")).get("name"))) for tool in self.tools)

    @property
    def model(self) -> str:
        """The model's name as received."""
        return as_text(self.body.get("model"))

    @property
    def stream(self) -> bool:
        """Whether the reply should be streamed."""
        return self.body.get("stream") is True

    @property
    def thinking_on(self) -> bool:
        """Whether an Anthropic request enables thinking; for `/responses`, whether it requests a reasoning summary."""
        if self.wire == "responses":
            return as_object(self.body.get("reasoning")).get("summary") is not None
        return as_text(as_object(self.body.get("thinking")).get("type")) not in ("", "disabled")

    @property
    def system(self) -> str:
        """The text of the system prompt, on any wire."""
        if self.wire == "anthropic":
            return text_of(self.body.get("system"))
        texts = [m.get("content") for m in self.messages if m.get("role") in ("system", "developer")]
        if "instructions" in self.body:
            texts.insert(0, self.body["instructions"])
        return "\n".join(map(text_of, texts))

    @property
    def user_text(self) -> str:
        """The text of the last user message with text."""
        for message in reversed(self.messages):
            text = text_of(message.get("content"))
            if message.get("role") == "user" and text:
                return text
        return ""

    @property
    def results(self) -> tuple[ToolAnswer, ...]:
        """The tool results after the last assistant message, in order."""
        found: list[ToolAnswer] = []
        for message in reversed(self.messages):
            if message.get("role") == "assistant" or message.get("type") == "function_call":
                break
            found[:0] = answers_in(message)
        return tuple(found)


def answers_in(message: JsonObject) -> list[ToolAnswer]:
    """Return the tool results in one message of any wire."""
    if message.get("type") == "function_call_output":
        return [ToolAnswer(as_text(message.get("call_id")), text_of(message.get("output")))]
    if message.get("role") == "tool":
        return [ToolAnswer(as_text(message.get("tool_call_id")), text_of(message.get("content")))]
    blocks = [block for block in objects(message.get("content")) if block.get("type") == "tool_result"]
    return [ToolAnswer(as_text(block.get("tool_use_id")), text_of(block.get("content"))) for block in blocks]


def text_of(content: JsonValue) -> str:
    """Return the text of a content value, which is a string or a list of blocks."""
    if isinstance(content, str):
        return content
    blocks = [as_object(item) for item in as_list(content)]
    return "".join(as_text(block.get("text")) for block in blocks if block.get("type") in _TEXTS)
