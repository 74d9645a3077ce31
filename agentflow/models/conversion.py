"""Converts messages to the OpenAI-style dicts that LiteLLM expects.

Rules (for every provider; the order of messages is legal already):

1. Each message is converted once; sending a long history again costs one dictionary lookup per message.
2. Blank text is left out; a message that would be empty gets a placeholder.
3. Tool-use ids and tool names are made legal by a pure function, so that a call and its result match.
4. Arguments are always the text of a JSON object.
5. Thoughts are sent back unchanged, and only to the model that created them.
6. The result consists of new dicts: LiteLLM modifies its messages.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import groupby
from typing import TypeAlias, cast

from agentflow.models.content_out import EMPTY_TEXT, Json, part, refusal, text_part
from agentflow.models.profiles import WireProfile
from agentflow.models.wire_names import wire_id, wire_name
from agentflow.vocabulary.messages import (
    ContentBlock,
    DataBlock,
    Msg,
    ServerToolBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from agentflow.vocabulary.transcript import NOTE, note

WireMessage: TypeAlias = dict[str, Json]

NO_OUTPUT = "(no output)"
BRIDGE = "(noted)"
IMAGES_FOLLOW = "(see the attached content below)"


@dataclass(eq=False, repr=False)
class Conversation:
    """Converts conversations for one model, and caches converted messages.

    Args:
        model: The model's name; thoughts of other models are left out.
        profile: The provider's rules.
        memory: About how many converted messages are cached (at most twice as many).
        listens: Whether the model accepts audio, for families in which only some models do.
        tells_errors: Whether the wire has a field `is_error` for a tool's message.
        server_tools: Whether requests may contain earlier calls and results of server tools.

    Example:
        >>> from agentflow.models.profiles import OPENAI
        >>> Conversation("openai/gpt-5", OPENAI).convert([Msg.user("hi")])
        [{'role': 'user', 'content': 'hi'}]
    """

    model: str
    profile: WireProfile
    memory: int = 16_384
    _: KW_ONLY
    listens: bool = True
    tells_errors: bool = False
    server_tools: bool = False

    def __post_init__(self) -> None:
        self._dropped: set[str] = set()  # ids of messages with thoughts that the provider has refused
        # Two generations: a used entry moves to the young one; when that is full, the old one is discarded.
        self._young: dict[str, tuple[Msg, tuple[WireMessage, ...]]] = {}
        self._old: dict[str, tuple[Msg, tuple[WireMessage, ...]]] = {}

    def convert(self, messages: Sequence[Msg], *, thoughts: bool = True, continues: bool = False) -> list[WireMessage]:
        """Return the messages as new dicts, which LiteLLM may modify.

        Args:
            messages: The conversation, in a legal order.
            thoughts: Whether sealed thoughts are sent; a provider refuses them if thinking is switched off.
            continues: Whether the last message is the beginning of a reply that the provider has paused.
        """
        beginning = messages[-1] if continues else None
        if beginning is not None:
            messages = messages[:-1]
        # A provider would continue an assistant's message at the end of a request, or refuse it.
        elif messages and messages[-1].role == "assistant":
            messages = (*messages[:-1], note(messages[-1], "assistant"))
        out: list[WireMessage] = []
        remembered = self._young.get
        # This loop runs for every message of each request, so what it looks up is in local variables.
        joins, bridge = not self.profile.merges, self.profile.bridge
        whole = self.profile.speaks == "messages"
        previous: Json = ""
        for msg in messages:
            entry = remembered(msg.id)
            # A changed message may keep its id, so the object is compared.
            if entry is None or entry[0] is not msg:
                entry = self._recall(msg)
                # `_recall` may have replaced the young generation.
                remembered = self._young.get
            for converted in entry[1]:
                role = converted["role"]
                if role == previous and joins and (merged := _merged(out[-1], converted)) is not None:
                    out[-1] = merged
                    continue
                if (
                    role == previous == "assistant"
                    and whole
                    and _thinks(converted)
                    and not _thinks(out[-1])
                    and "tool_calls" not in out[-1]
                ):
                    # If the messages were joined, text would precede thoughts, which no provider with sealed thoughts accepts.
                    out[-1] = {"role": "user", "content": NOTE.format(source="assistant", text=out[-1]["content"])}
                if bridge and role == "user" and previous == "tool":
                    out.append({"role": "assistant", "content": BRIDGE})
                out.append(converted.copy())
                previous = role
        if beginning is not None:
            out.append(self._assistant(beginning, unfinished=True))
        if not thoughts and self.profile.thinking == "blocks":
            _drop_thoughts(out)
        return out

    def drop_thoughts(self, messages: Iterable[Msg]) -> bool:
        """Omit the thoughts of these messages from now on; return whether any were sent before.

        This is permanent, because later thoughts are bound to the conversation without them.
        """
        thinking = {
            msg.id
            for msg in messages
            if msg.role == "assistant" and any(is_sealed(block, self.model) for block in msg.content)
        }
        # All are omitted already: the refusal has another cause, and a retry would send the same request.
        if thinking <= self._dropped:
            return False
        if len(self._dropped) > self.memory:
            self._dropped.clear()  # the provider will refuse these thoughts again, and they are dropped again
        self._dropped |= thinking
        for msg_id in thinking:
            self._young.pop(msg_id, None)
            self._old.pop(msg_id, None)
        return True

    def _recall(self, msg: Msg) -> tuple[Msg, tuple[WireMessage, ...]]:
        """Return the entry of a message that is not in the young generation."""
        entry = self._old.get(msg.id)
        if entry is None or entry[0] is not msg:
            entry = (msg, tuple(self._converted(msg)))
        # Media is not cached: converting it again is cheap, but the cache would keep megabytes of finished sessions.
        if not any(_is_media(block) for block in msg.content):
            if len(self._young) >= self.memory:
                self._old, self._young = self._young, {}
            self._young[msg.id] = entry
        return entry

    def _converted(self, msg: Msg) -> Iterable[WireMessage]:
        match msg.role:
            case "system":
                return ({"role": "system", "content": _text_of(msg.content) or EMPTY_TEXT},)
            case "user":
                return (self._user(msg),)
            case "assistant":
                return (self._assistant(msg),)
            case "tool":
                return self._results(msg)

    def _user(self, msg: Msg) -> WireMessage:
        message: WireMessage = {"role": "user", "content": self._user_content(msg.content)}
        if msg.name and self.profile.family == "openai":
            message["name"] = wire_name(msg.name)
        return message

    def _user_content(self, content: Sequence[ContentBlock]) -> Json:
        if not any(isinstance(block, DataBlock) for block in content):
            return _text_of(content) or EMPTY_TEXT
        parts: list[Json] = []
        for block in content:
            if isinstance(block, DataBlock):
                reason = self._refusal(block)
                parts.append(part(block) if reason is None else text_part(_left_out(block, reason)))
            elif isinstance(block, TextBlock) and block.text.strip():
                parts.append(text_part(block.text))
        return parts

    def _refusal(self, block: DataBlock) -> str | None:
        return refusal(block, self.profile.family, listens=self.listens)

    def _assistant(self, msg: Msg, *, unfinished: bool = False) -> WireMessage:
        calls = self._calls(msg.content)
        if self.profile.speaks == "items":
            return {"role": "assistant", "content": self._items(msg, calls)}
        # Anthropic: "final assistant content cannot end with trailing whitespace".
        text = _text_of(msg.content).rstrip()
        # Media that a model created is not accepted back, so a description replaces it.
        text = text or " ".join(str(block) for block in msg.content if isinstance(block, DataBlock))
        message: WireMessage = {"role": "assistant", "content": text or (None if calls else EMPTY_TEXT)}
        own = [block for block in msg.content if isinstance(block, ThinkingBlock) and block.model == self.model]
        if msg.id in self._dropped:
            own = []
        match self.profile.thinking:
            case "blocks":
                sealed: list[Json] = [part for block in own if (part := _sealed(block))]
                if sealed:
                    message["thinking_blocks"] = sealed
                cited = any(self._cited(block) for block in msg.content)
                # `thinking_blocks` are sent before the content, so if a thought follows text, the content becomes a list
                # of both, in the order of the reply.
                if sealed and (cited or _text_comes_first(msg.content)) and not any(block.redacted for block in own):
                    message["content"] = self._in_order(msg.content)
                    del message["thinking_blocks"]
                elif cited:
                    message["content"] = self._in_order([b for b in msg.content if isinstance(b, TextBlock)])
                if any(self._server_work(block, unfinished=unfinished) for block in msg.content):
                    message.pop("thinking_blocks", None)  # the position of thoughts among the blocks must not change
                    message["content"] = self._in_order(msg.content, thoughts=bool(own), unfinished=unfinished)
            case "text":
                if calls:
                    # A call without its reasoning is refused; a space replaces thoughts of another model.
                    message["reasoning_content"] = "".join(block.text for block in own) or " "
            case "none":
                pass
        if calls:
            message["tool_calls"] = calls
        return message

    def _items(self, msg: Msg, calls: list[Json]) -> list[Json]:
        """Return thoughts, texts and calls in order; a thought at the end is left out, since the provider refuses a
        thought without a following item.
        """
        items: list[Json] = []
        # `calls` are the tool uses of this message in order, converted already.
        remaining = iter(calls)
        for kind, run in groupby(msg.content, type):
            blocks = list(run)
            if kind is ToolUseBlock:
                items += [next(remaining) for _ in blocks]
            elif kind is TextBlock and (text := _text_of(blocks).rstrip()):
                items.append(text_part(text))
            elif kind is ServerToolBlock:
                items += [part for block in blocks for part in self._server_work(block)]
            elif kind is DataBlock:
                items.append(text_part(" ".join(str(block) for block in blocks)))
            elif msg.id not in self._dropped:
                own = (b for b in blocks if isinstance(b, ThinkingBlock) and b.model == self.model and not b.redacted)
                items += [part for b in own if (part := _sealed(b)) is not None]
        while items and isinstance(last := items[-1], dict) and last["type"] == "thinking":
            items.pop()
        return items or [text_part(EMPTY_TEXT)]

    def _server_work(self, block: ContentBlock, *, unfinished: bool = False) -> list[Json]:
        """Return the provider's own items of a server tool's work. A call without its result is left out, since it would be
        refused, except in an unfinished reply."""
        if not self.server_tools or not isinstance(block, ServerToolBlock) or block.model != self.model:
            return []
        # Anthropic's `raw` is the call and its result; other vendors have one item for both.
        if self.profile.family == "anthropic" and len(block.raw) == 1 and not unfinished:
            return []
        return [cast("Json", thaw(item)) for item in block.raw]

    def _in_order(
        self, content: Sequence[ContentBlock], *, thoughts: bool = True, unfinished: bool = False
    ) -> list[Json]:
        """Return texts, thoughts, and the calls and results of server tools in their original order."""
        parts: list[Json] = []
        cites = any(map(self._cited, content))
        for block in content:
            if isinstance(block, TextBlock) and block.text.strip():
                parts.append(self._text_item(block, whole=cites))
            elif isinstance(block, ThinkingBlock):
                if thoughts and block.model == self.model and (part := _sealed(block)) is not None:
                    parts.append(part)
            else:
                parts += self._server_work(block, unfinished=unfinished)
        return parts

    def _text_item(self, block: TextBlock, *, whole: bool) -> Json:
        """Return a text with this model's citations. The citations split sentences, so the spaces between the parts are
        kept.
        """
        part: dict[str, Json] = {"type": "text", "text": block.text if whole else block.text.rstrip()}
        return {**part, "citations": cited} if (cited := self._cited(block)) else part

    def _cited(self, block: ContentBlock) -> list[Json]:
        """Return a text's citations in the provider's own format, which other models do not understand."""
        if not isinstance(block, TextBlock) or self.profile.family != "anthropic":
            return []
        own = (cited for cited in block.citations if cited.model == self.model and cited.raw)
        return [cast("Json", thaw(cited.raw)) for cited in own]

    def _calls(self, content: Sequence[ContentBlock]) -> list[Json]:
        calls: list[Json] = []
        # The block before a call, in which the seal of Gemini's call is stored.
        before: ContentBlock | None = None
        for block in content:
            if isinstance(block, ToolUseBlock):
                call: dict[str, Json] = {
                    "id": wire_id(block.id, self.profile),
                    "type": "function",
                    "function": {"name": wire_name(block.name), "arguments": block.arguments},
                }
                if self.profile.ids == "gemini" and (signature := self._signature(before)) is not None:
                    call["provider_specific_fields"] = {"thought_signature": signature}
                calls.append(call)
            before = block
        return calls

    def _signature(self, before: ContentBlock | None) -> str | None:
        """Return the seal of a Gemini call, which is in the thought directly before it."""
        return before.signature if isinstance(before, ThinkingBlock) and before.model == self.model else None

    def _results(self, msg: Msg) -> Iterable[WireMessage]:
        """Return one message for each result, then a user message with the media that results cannot contain."""
        answers: list[WireMessage] = []
        later: list[Json] = []
        for result in msg.content:
            if not isinstance(result, ToolResultBlock):
                continue
            inside, outside, refused = self._split(result)
            content: Json = _result_text(result, refused)
            if outside:
                later.append(text_part(f"[content of the result of {result.name}]"))
                later.extend(part(block) for block in outside)
                # The model should know that the user message after the results belongs to this result.
                content = IMAGES_FOLLOW if content == NO_OUTPUT else f"{content}\n{IMAGES_FOLLOW}"
            if inside:
                texts: list[Json] = [] if content == NO_OUTPUT else [text_part(content)]
                content = texts + [part(block) for block in inside]
            answer: WireMessage = {"role": "tool", "tool_call_id": wire_id(result.tool_use_id, self.profile)}
            answer["content"] = content
            if self.tells_errors and result.state != "success":
                answer["is_error"] = True
            answers.append(answer)
        if later:
            answers.append({"role": "user", "content": later})
        return answers

    def _split(self, result: ToolResultBlock) -> tuple[list[DataBlock], list[DataBlock], list[str]]:
        """Return the media that this family accepts in results, the media that it accepts elsewhere, and notes on the rest."""
        inside: list[DataBlock] = []
        outside: list[DataBlock] = []
        refused: list[str] = []
        for block in () if isinstance(result.content, str) else result.content:
            if not isinstance(block, DataBlock):
                continue
            if (reason := self._refusal(block)) is not None:
                refused.append(_left_out(block, reason))
            else:
                (inside if self.profile.result_images and block.kind == "image" else outside).append(block)
        return inside, outside, refused


def _left_out(block: DataBlock, reason: str) -> str:
    return f"{block} (left out: this model {reason})"


def _thinks(message: WireMessage) -> bool:
    """Return whether an assistant's message has sealed thoughts."""
    content = message["content"]
    return "thinking_blocks" in message or (
        isinstance(content, list) and any(isinstance(p, dict) and "thinking" in str(p.get("type")) for p in content)
    )


def _merged(first: WireMessage, second: WireMessage) -> WireMessage | None:
    """Join adjacent messages of one role; None if that is not possible."""
    # Each result answers a call of its own; messages of different authors stay apart.
    if first["role"] == "tool" or first.get("name") != second.get("name"):
        return None
    # In a joined message, later text would precede the calls, and later thoughts would replace the first ones.
    if "tool_calls" in first or "thinking_blocks" in first:
        return None
    return {**first, **second, "content": _joined(first["content"], second["content"])}


def _joined(first: Json, second: Json) -> Json:
    if isinstance(first, list) or isinstance(second, list):
        return _as_parts(first) + _as_parts(second)
    texts = [text for text in (first, second) if isinstance(text, str) and text != EMPTY_TEXT]
    return "\n\n".join(texts) or second


def _as_parts(content: Json) -> list[Json]:
    if isinstance(content, list):
        return content
    return [] if not content or content == EMPTY_TEXT else [text_part(content)]


def _text_of(content: Iterable[ContentBlock]) -> str:
    """Join the non-empty text blocks as paragraphs; blocks with citations are parts of one text."""
    blocks = [block for block in content if isinstance(block, TextBlock)]
    if any(block.citations for block in blocks):
        return "".join(block.text for block in blocks).lstrip()
    return "\n\n".join(block.text for block in blocks if block.text.strip())


def _result_text(result: ToolResultBlock, more: Sequence[str] = ()) -> str:
    content = (TextBlock(result.content),) if isinstance(result.content, str) else result.content
    text = "\n\n".join([text for text in (_text_of(content), *more) if text])
    if text:
        return text
    return NO_OUTPUT if result.state == "success" else f"({result.state})"


def _is_media(block: ContentBlock) -> bool:
    if isinstance(block, ToolResultBlock) and not isinstance(block.content, str):
        return any(isinstance(inner, DataBlock) for inner in block.content)
    return isinstance(block, DataBlock)


def _text_comes_first(content: Sequence[ContentBlock]) -> bool:
    """Return whether a thought follows text."""
    spoken = False
    for block in content:
        if isinstance(block, ThinkingBlock) and spoken:
            return True
        spoken = spoken or (isinstance(block, TextBlock) and bool(block.text.strip()))
    return False


def is_sealed(block: ContentBlock, model: str) -> bool:
    """Return whether a block is a thought of the model that can be sent back."""
    return isinstance(block, ThinkingBlock) and block.model == model and _sealed(block) is not None


def _sealed(block: ThinkingBlock) -> Json:
    """Return a sealed thought in the provider's form; None without a seal, since the provider would refuse it."""
    if block.redacted is not None:
        return {"type": "redacted_thinking", "data": block.redacted}
    if block.signature is None:
        return None
    return {"type": "thinking", "thinking": block.text, "signature": block.signature}


def _drop_thoughts(messages: Iterable[WireMessage]) -> None:
    for message in messages:
        if message["role"] != "assistant":
            continue
        message.pop("thinking_blocks", None)
        content = message["content"]
        if isinstance(content, list):
            message["content"] = [p for p in content if isinstance(p, dict) and "thinking" not in str(p["type"])]
        if not message["content"] and "tool_calls" not in message:
            message["content"] = EMPTY_TEXT


def thaw(value: object) -> object:
    """Copy a value into plain dicts and lists: LiteLLM modifies its arguments."""
    if isinstance(value, Mapping):
        return {key: thaw(inner) for key, inner in cast("Mapping[str, object]", value).items()}
    if isinstance(value, (list, tuple)):
        return [thaw(inner) for inner in cast("Sequence[object]", value)]
    return value
