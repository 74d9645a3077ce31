"""What a scripted model answers, in words that belong to no vendor.

A `Reply` says what the model says; a `Plan` says how it travels. Each `PlanEdit` (a fault) turns one plan into another,
so faults combine in the order in which they are listed.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, TypeAlias

from agentflow.errors import UsageError
from agentflow.testing.wire.jsonish import JsonObject, dump, parse

Finish: TypeAlias = Literal["stop", "tool_calls", "length", "refusal"]
Point: TypeAlias = int | Literal["head", "thinking", "text", "call", "content", "stop", "all"]
"""A place in a streamed reply: behind so many frames, or behind a part of it."""

Gate: TypeAlias = asyncio.Event | Callable[[int], Awaitable[None]]
"""What holds writes back: an event, or an async function of the number of the write."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call that the scripted model asks for.

    Args:
        name: The tool's name.
        arguments: A mapping, or the raw text a model would write (which need not be JSON).
        id: The call's id; None lets the server mint one in the vendor's form.

    Example:
        >>> ToolCall("add", {"a": 1}).raw
        '{"a":1}'
    """

    name: str
    arguments: Mapping[str, object] | str = field(default_factory=dict[str, object])
    id: str | None = None

    @property
    def raw(self) -> str:
        """The arguments as the text that goes over the wire."""
        return self.arguments if isinstance(self.arguments, str) else dump(dict(self.arguments))

    @property
    def input(self) -> JsonObject:
        """The arguments as an object; text that is not a JSON object gives an empty one."""
        try:
            value = parse(self.raw)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class WireUsage:
    """Token counts of one reply. `input` leaves out what came from or went to the cache; `output` includes `reasoning`.

    Example:
        >>> WireUsage(input=11, output=5, cache_read=4, cache_write=2).prompt
        17
    """

    input: int
    output: int
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0

    @property
    def prompt(self) -> int:
        """All tokens of the request, cached or not (OpenAI's `prompt_tokens`)."""
        return self.input + self.cache_read + self.cache_write


class PlanEdit(Protocol):
    """Something that changes how a reply travels; `Fault` is the one that ships."""

    @property
    def name(self) -> str:
        """How the edit is called in messages."""
        ...

    def edit(self, plan: "Plan") -> "Plan":
        """Return the plan as this edit wants it."""
        ...


@dataclass(frozen=True, slots=True)
class Cite:
    """What the scripted model says its text stands on; each wire writes it in its own form.

    Args:
        url: The address of the page.
        title: Its title.
        text: The words there.

    Example:
        >>> Cite("https://example.com", "Grass").text
        ''
    """

    url: str
    title: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the scripted model; the same value serves both wires.

    Args:
        text: The visible text. Empty text sends no text at all.
        thinking: Reasoning text, several blocks as a tuple. `""` is a thinking block without text (it still has a
            signature). The Anthropic wire sends it only to a request that has thinking on, like the vendor.
        redacted: Reasoning that the Anthropic wire sends as an opaque, sealed block.
        calls: The tool calls, all in one message.
        finish: Why the model stopped; None derives it. A word outside `Finish` goes out as it is.
        usage: Token counts; None counts four characters as a token.
        chunk: Characters per streamed piece; 0 sends each part whole.
        interleave: On the OpenAI wire, stream the arguments of parallel calls in turns.
        faults: What goes wrong, in order of application. One fault may stand alone.
        cites: What the text stands on.
        images: Images that the model made, as `data:` addresses; the OpenAI wire alone has them.
        audio: What it speaks, in base64 (16 bits, 24 kHz), with the text as what it says; the OpenAI wire alone.

    Example:
        >>> Reply("Let me look.", calls=(ToolCall("search", {"q": "rx"}),)).stop
        'tool_calls'
    """

    text: str = ""
    thinking: str | tuple[str, ...] | None = None
    redacted: str | None = None
    calls: tuple[ToolCall, ...] = ()
    finish: Finish | str | None = None
    usage: WireUsage | None = None
    chunk: int = 12
    interleave: bool = False
    faults: PlanEdit | Sequence[PlanEdit] = ()
    cites: tuple[Cite, ...] = ()
    images: tuple[str, ...] = ()
    audio: str | None = None

    def __post_init__(self) -> None:
        if self.chunk < 0:
            raise UsageError(
                f"a Reply cannot be cut into pieces of {self.chunk} characters; chunk is 0 (whole) or more"
            )

    @property
    def thoughts(self) -> tuple[str, ...]:
        """The thinking blocks, none if there is no thinking."""
        if self.thinking is None:
            return ()
        return (self.thinking,) if isinstance(self.thinking, str) else self.thinking

    @property
    def stop(self) -> str:
        """The finish as scripted, or as the content implies it."""
        return self.finish or ("tool_calls" if self.calls else "stop")

    @property
    def edits(self) -> tuple[PlanEdit, ...]:
        """The faults as a tuple."""
        return tuple(self.faults) if isinstance(self.faults, Sequence) else (self.faults,)

    def with_faults(self, *faults: PlanEdit) -> "Reply":
        """The same reply with these faults in place of its own.

        Example:
            >>> Say("hello").with_faults().edits
            ()
        """
        return Reply(
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
        )

    def pieces(self, text: str) -> list[str]:
        """Cut a text into the pieces in which it is streamed; an empty text has none."""
        size = self.chunk or max(1, len(text))
        return [text[start : start + size] for start in range(0, len(text), size)]

    def usage_for(self, request: JsonObject) -> WireUsage:
        """The scripted usage, or an estimate of four characters a token."""
        if self.usage is not None:
            return self.usage
        thought = sum(map(len, self.thoughts))
        said = len(self.text) + thought + sum(len(call.name) + len(call.raw) for call in self.calls)
        return WireUsage(input=max(1, len(dump(request)) // 4), output=max(1, said // 4), reasoning=thought // 4)


class Say(Reply):
    """A `Reply` that is text.

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


class Call(Reply):
    """A `Reply` that is one tool call.

    Example:
        >>> Call("add", {"a": 1}).calls
        (ToolCall(name='add', arguments={'a': 1}, id=None),)
    """

    def __init__(
        self,
        name: str,
        arguments: Mapping[str, object] | str | None = None,
        *,
        id: str | None = None,  # noqa: A002 - the wire's own word, as in ToolCall
        text: str = "",
        thinking: str | tuple[str, ...] | None = None,
        usage: WireUsage | None = None,
        chunk: int = 12,
        faults: PlanEdit | Sequence[PlanEdit] = (),
    ) -> None:
        call = ToolCall(name, {} if arguments is None else arguments, id)
        super().__init__(text, thinking=thinking, calls=(call,), usage=usage, chunk=chunk, faults=faults)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """An HTTP answer that takes the place of the reply.

    `body` as bytes goes out as it is; None builds the vendor's error body from the rest, and what is None there is
    filled with what that vendor says for the status. `overflow` asks for the vendor's context-overflow error.
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
    """Where a reply breaks off, and how: connection torn, stream ended too soon, silence, or an error event."""

    after: Point
    how: Literal["abort", "close", "hang", "error"]
    headers: bool = True
    error_type: str | None = None
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A reply and everything about how it is sent. Faults edit it; the wires read it."""

    reply: Reply
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

    def call_pieces(self, call: ToolCall) -> list[str]:
        """The pieces in which a call's arguments are streamed."""
        return [call.raw] if self.whole_calls else self.reply.pieces(call.raw)


def plan_for(reply: Reply) -> Plan:
    """The plan of a reply after all its faults."""
    plan = Plan(reply=reply.with_faults())
    for edit in reply.edits:
        plan = edit.edit(plan)
    return plan


def without_last_half(plan: Plan) -> Plan:
    """The plan with the last call's arguments cut in the middle and the stop reason `length`.

    Raises:
        UsageError: The reply has no call to cut.
    """
    reply = plan.reply
    if not reply.calls:
        raise UsageError("Fault.length_mid_call() needs a reply with a tool call; this one has none")
    last = reply.calls[-1]
    half = replace(last, arguments=last.raw[: max(1, len(last.raw) // 2)])
    return replace(plan, reply=replace(reply, calls=(*reply.calls[:-1], half), finish="length"))
