"""The replies of a scripted model, in vendor-neutral terms.

A `WireReply` is the model's content; a `ReplyPlan` describes how it is sent. Each `PlanEdit` (a fault) turns one plan into
another, so faults apply in the order of the list.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

from agentflow.errors import UsageError
from agentflow.testing.wire.jsonish import JsonObject, JsonValue, as_object, dump, parse

Finish: TypeAlias = Literal["stop", "tool_calls", "length", "refusal"]
Point: TypeAlias = int | Literal["head", "thinking", "text", "call", "content", "stop", "all"]
"""A point in a streamed reply: after a number of frames, or after a part of it."""

Gate: TypeAlias = asyncio.Event | Callable[[int], Awaitable[None]]
"""Delays writes: an event to wait for, or an async function of the number of the write."""


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call of the scripted model.

    Args:
        name: The tool's name.
        arguments: A mapping, or the raw text from the model (which need not be JSON).
        id: The call's id; None lets the server create one in the vendor's format.

    Example:
        >>> ScriptedCall("add", {"a": 1}).raw
        '{"a":1}'
    """

    name: str
    arguments: Mapping[str, object] | str = field(default_factory=dict[str, object])
    id: str | None = None

    @property
    def raw(self) -> str:
        """The arguments as text."""
        return self.arguments if isinstance(self.arguments, str) else dump(dict(self.arguments))

    @property
    def input(self) -> JsonObject:
        """The arguments as an object; empty if the text is not a JSON object."""
        try:
            value = parse(self.raw)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class WireUsage:
    """The token counts of a reply. `input` excludes tokens read from or written to the cache; `output` includes
    `reasoning`; `searches` is the number of web searches, which only Anthropic reports.

    Example:
        >>> WireUsage(input=11, output=5, cache_read=4, cache_write=2).prompt
        17
    """

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    searches: int = 0

    @property
    def prompt(self) -> int:
        """All tokens of the request, cached or not (OpenAI's `prompt_tokens`)."""
        return self.input + self.cache_read + self.cache_write


class PlanEdit(Protocol):
    """A change of how a reply is sent; implemented by `Fault`."""

    @property
    def name(self) -> str:
        """The name of the edit in messages."""
        ...

    def edit(self, plan: "ReplyPlan") -> "ReplyPlan":
        """Return the edited plan."""
        ...


@dataclass(frozen=True, slots=True)
class Cite:
    """A citation of the scripted model; each wire has its own format.

    Args:
        url: The address of the page.
        title: Its title.
        text: The cited text.

    Example:
        >>> Cite("https://example.com", "Grass").text
        ''
    """

    url: str
    title: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class ServerCall:
    """A call of a tool that the scripted vendor runs, before the text.

    Args:
        name: The tool: on the Anthropic wire its own name, on `/responses` `web_search`, `file_search`,
            `code_interpreter`, `mcp` or `tool_search`.
        arguments: The input (Anthropic) or further fields of the item (`/responses`).
        result: The content of the result (Anthropic), or the tools that `tool_search` has found (`/responses`); None for
            a call without a result, as in a paused reply.
        server: The MCP server that has the tool (Anthropic).

    Example:
        >>> ServerCall("web_search", {"query": "rx"}, []).name
        'web_search'
    """

    name: str
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])
    result: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None
    server: str | None = None

    @property
    def input(self) -> JsonObject:
        """The arguments as JSON."""
        return as_object(parse(dump(dict(self.arguments))))

    @property
    def content(self) -> JsonValue:
        """The result as JSON."""
        return parse(dump(self.result))


@dataclass(frozen=True, slots=True)
class WireReply:
    """A reply of the scripted model, for all wires.

    Args:
        text: The visible text. If empty, no text is sent.
        thinking: Reasoning text; a tuple for several blocks. `""` is a thinking block without text (with a signature). Like
            the vendor, the Anthropic wire sends it only if the request enables thinking.
        redacted: Reasoning that the Anthropic wire sends as an opaque, encrypted block, and `/responses` without a summary.
        calls: The tool calls, all in one message. On `/responses`, a call of `computer` is a `computer_call` with the
            arguments as its fields (`actions`, `pending_safety_checks`), if the request has OpenAI's tool of that type.
        finish: The finish reason; None derives it from the content. A value outside `Finish` is sent unchanged.
        usage: Token counts; None estimates one token per four characters.
        chunk: The number of characters per streamed chunk; 0 sends each part as a whole.
        interleave: Whether to interleave the arguments of parallel calls; only on OpenAI's wires.
        faults: The faults in order of application, or a single fault.
        cites: The citations of the text.
        images: Images from the model, as `data:` addresses; only on OpenAI's wires.
        audio: Speech in base64 (16 bits, 24 kHz), with the text as its transcript; only in chat completions.
        server: The work of tools that the vendor runs; on the Anthropic wire and on `/responses`.

    Example:
        >>> WireReply("Let me look.", calls=(ScriptedCall("search", {"q": "rx"}),)).stop
        'tool_calls'
    """

    text: str = ""
    thinking: str | tuple[str, ...] | None = None
    redacted: str | None = None
    calls: tuple[ScriptedCall, ...] = ()
    finish: Finish | str | None = None
    usage: WireUsage | None = None
    chunk: int = 12
    interleave: bool = False
    faults: PlanEdit | Sequence[PlanEdit] = ()
    cites: tuple[Cite, ...] = ()
    images: tuple[str, ...] = ()
    audio: str | None = None
    server: tuple[ServerCall, ...] = ()

    def __post_init__(self) -> None:
        if self.chunk < 0:
            raise UsageError(f"WireReply(chunk={self.chunk}): it must be 0 (send parts whole) or more")

    @property
    def thoughts(self) -> tuple[str, ...]:
        """The thinking blocks; empty if there is no thinking."""
        if self.thinking is None:
            return ()
        return (self.thinking,) if isinstance(self.thinking, str) else self.thinking

    @property
    def stop(self) -> str:
        """The scripted finish reason, or the one implied by the content."""
        return self.finish or ("tool_calls" if self.calls else "stop")

    @property
    def edits(self) -> tuple[PlanEdit, ...]:
        """The faults as a tuple."""
        return tuple(self.faults) if isinstance(self.faults, Sequence) else (self.faults,)

    def with_faults(self, *faults: PlanEdit) -> "WireReply":
        """Return the same reply with other faults.

        Example:
            >>> Say("hello").with_faults().edits
            ()
        """
        # Not `replace`, because the constructors of subclasses take other arguments.
        return WireReply(
            self.text,
            thinking=self.thinking,
            redacted=self.redacted,
            calls=self.calls,
            finish=self.finish,
            usage=self.usage,
            chunk=self.chunk,
            interleave=self.interleave,
            faults=faults,
            cites=self.cites,
            images=self.images,
            audio=self.audio,
            server=self.server,
        )

    def pieces(self, text: str) -> list[str]:
        """Split a text into streamed chunks; an empty text has none."""
        size = self.chunk or max(1, len(text))
        return [text[start : start + size] for start in range(0, len(text), size)]

    def usage_for(self, request: JsonObject) -> WireUsage:
        """Return the scripted usage, or an estimate of four characters per token."""
        if self.usage is not None:
            return self.usage
        thought = sum(map(len, self.thoughts))
        length = len(self.text) + thought + sum(len(call.name) + len(call.raw) for call in self.calls)
        searches = sum(call.name == "web_search" for call in self.server)
        size = max(1, len(dump(request)) // 4)
        return WireUsage(input=size, output=max(1, length // 4), reasoning=thought // 4, searches=searches)


class Say(WireReply):
    """A `WireReply` with text.

    Example:
        >>> Say("hello").text
        'hello'
    """

    def __init__(
        self,
        text: str,
        *,
        thinking: str | tuple[str, ...] | None = None,
        usage: WireUsage | None = None,
        chunk: int = 12,
        faults: PlanEdit | Sequence[PlanEdit] = (),
    ) -> None:
        super().__init__(text, thinking=thinking, usage=usage, chunk=chunk, faults=faults)


class UseTool(WireReply):
    """A `WireReply` with one tool call.

    Example:
        >>> UseTool("add", {"a": 1}).calls
        (ScriptedCall(name='add', arguments={'a': 1}, id=None),)
    """

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, object] | str | None = None,
        *,
        id: str | None = None,  # noqa: A002 - the wire's own name, as in ToolCall
        text: str = "",
        thinking: str | tuple[str, ...] | None = None,
        usage: WireUsage | None = None,
        chunk: int = 12,
        faults: PlanEdit | Sequence[PlanEdit] = (),
    ) -> None:
        call = ScriptedCall(name, {} if arguments is None else arguments, id)
        super().__init__(text, thinking=thinking, calls=(call,), usage=usage, chunk=chunk, faults=faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """An HTTP answer instead of the reply.

    `body` as bytes is sent unchanged; None builds the vendor's error body from the other fields, with the vendor's
    defaults for those that are None. `overflow` requests the vendor's context-overflow error.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes | None = None
    content_type: str = "application/json"
    message: str | None = None
    type: str | None = None
    code: str | None = None
    overflow: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """The point and kind of an interruption: an aborted connection, a stream that ends too soon, silence, or an error event.

    With `headers=False`, silence begins before the HTTP headers.
    """

    after: Point
    how: Literal["abort", "close", "hang", "error"]
    headers: bool = True
    error_type: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPlan:
    """A reply and all details of how it is sent. Faults edit it (see the methods of `Fault`); the wires read it."""

    reply: WireReply
    http: HttpAnswer | None = None
    halt: Halt | None = None
    gate: Gate | None = None
    gate_after: int = 0
    seconds: float = 0.0
    refusal: str | None = None
    end_mark: bool = True
    call_ids: Literal["once", "none", "repeat"] = "once"
    call_index: bool = True
    whole_calls: bool = False
    split_names: bool = False
    usage: Literal["once", "none", "twice"] = "once"
    usage_choices: Literal["empty", "null", "absent"] = "empty"
    newline: str = "\n"
    comments: bool = False
    unknown_events: bool = False
    pings: int = 0
    split_size: int | None = None
    split_at: tuple[int, ...] = ()

    def call_pieces(self, call: ScriptedCall) -> list[str]:
        """Return the fragments of a call's arguments, as streamed."""
        return [call.raw] if self.whole_calls else self.reply.pieces(call.raw)


def plan_for(reply: WireReply) -> ReplyPlan:
    """Return the plan of a reply with all its faults applied."""
    plan = ReplyPlan(reply=reply.with_faults())
    for edit in reply.edits:
        plan = edit.edit(plan)
    return plan


def without_last_half(plan: ReplyPlan) -> ReplyPlan:
    """Return the plan with the last call's arguments truncated in the middle and the stop reason `length`.

    Raises:
        UsageError: The reply has no call to truncate.
    """
    reply = plan.reply
    if not reply.calls:
        raise UsageError("Fault.length_mid_call() needs a reply with a tool call; this one has none")
    last = reply.calls[-1]
    half = replace(last, arguments=last.raw[: max(1, len(last.raw) // 2)])
    return replace(plan, reply=replace(reply, calls=(*reply.calls[:-1], half), finish="length"))
