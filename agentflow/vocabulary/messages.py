"""Messages between the user, the model and tools; and the reply of a call, with the decisions that it waits for.

Rules:

1. Every value is frozen; `dataclasses.replace` makes changed copies.
2. Constructors do not validate; pydantic validates only external data (`Msg.from_dict`, `Msg.from_json`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, Unpack, assert_never, cast

from pydantic_core import ValidationError
from typing_extensions import TypeVar

from agentflow._support.frozen import EMPTY, FrozenDict
from agentflow._support.ids import new_id
from agentflow._support.validation import adapter_of, first_problem
from agentflow._support.values import TypedDict, fast_build, field, frozen, maker
from agentflow.errors import MissingOutputError, StoreError, UsageError
from agentflow.vocabulary.blocks import (
    Citation,
    ContentBlock,
    DataBlock,
    ServerToolBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolState,
    ToolUseBlock,
    WireBlock,
    shown,
    text_block,
    tool_result,
)
from agentflow.vocabulary.specs import Usage

__all__ = [
    "Citation",
    "ContentBlock",
    "DataBlock",
    "Msg",
    "MsgFields",
    "Outcome",
    "Pending",
    "Reply",
    "Role",
    "ServerToolBlock",
    "TextBlock",
    "ThinkingBlock",
    "ToolResultBlock",
    "ToolState",
    "ToolUseBlock",
    "shown",
    "text_block",
    "tool_result",
]

T_co = TypeVar("T_co", default=Any, covariant=True)
"""The type of a reply's output; a bare `Reply` may have any output."""

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
"""The author of a message."""

Outcome: TypeAlias = Literal["completed", "denied", "stopped", "suspended", "limited", "failed", "interrupted"]
"""How a call ended (`docs/glossary.md`, "How things end")."""


Content: TypeAlias = str | ContentBlock | Iterable[ContentBlock | str]
"""Text, a block, or several of either."""


class MsgFields(TypedDict, total=False):
    """The fields of a `Msg` other than its role and content."""

    name: str | None
    id: str
    metadata: Mapping[str, Any]
    usage: Usage | None
    finish_reason: str | None


def _content(content: Content, more: tuple[Content, ...] = ()) -> tuple[ContentBlock, ...]:
    if more:
        return tuple([block for part in (content, *more) for block in _content(part)])
    if isinstance(content, str):
        return (text_block(content),) if content else ()
    if isinstance(content, ContentBlock):
        return (content,)
    return tuple(TextBlock(part) if isinstance(part, str) else part for part in content)


def _fresh_id() -> str:
    return new_id("msg_")


@frozen
class Msg:
    """One message of a conversation.

    Attributes:
        role: The author; `"tool"` holds all results of one round, in call order.
        content: The blocks, in order.
        name: The author's name, if several share a role.
        id: A unique id.
        metadata: JSON-like data about the message. `synthetic` marks a message that neither the user nor the model
            wrote, and names its origin.
        usage: The usage of the model call that produced the message.
        finish_reason: Why the reply ended, as the provider reports it (`stop`, `tool_calls`, `length`, ...).

    Example:
        >>> Msg.user("hi").text
        'hi'
    """

    role: Role
    content: tuple[WireBlock, ...] = ()
    name: str | None = None
    id: str = field(default_factory=_fresh_id, compare=False)
    metadata: Mapping[str, Any] = field(default_factory=lambda: EMPTY)
    usage: Usage | None = None
    finish_reason: str | None = None

    @classmethod
    def user(cls, content: Content, *more: Content, **fields: Unpack[MsgFields]) -> Msg:
        """Build a user's message from text, a block, or several of either.

        Example:
            >>> Msg.user("What is this?", DataBlock.from_bytes(b"%PDF-1.7")).shown
            'What is this?[application/pdf, 8 bytes]'
        """
        if not fields:
            return message("user", _content(content, more), new_id("msg_"))  # the fast path
        return Msg("user", _content(content, more), **fields)

    @classmethod
    def assistant(cls, content: Content, *more: Content, **fields: Unpack[MsgFields]) -> Msg:
        """Build a model's message."""
        return Msg("assistant", _content(content, more), **fields)

    @classmethod
    def system(cls, content: Content, *more: Content, **fields: Unpack[MsgFields]) -> Msg:
        """Build a system message: instructions."""
        return Msg("system", _content(content, more), **fields)

    @classmethod
    def tool(cls, results: Iterable[ToolResultBlock], **fields: Unpack[MsgFields]) -> Msg:
        """Build the message that holds all results of one round, in call order."""
        return Msg("tool", tuple(results), **fields)

    @property
    def text(self) -> str:
        """The joined text of all text blocks (in a tool message, of all results)."""
        content = self.content  # most messages are one block of text
        if len(content) == 1 and type(content[0]) is TextBlock:
            return content[0].text
        return "".join([b.text for b in content if type(b) is TextBlock or type(b) is ToolResultBlock])

    @property
    def shown(self) -> str:
        """The text to display: data blocks are shown as type and size (`[image/png, 34 kB]`)."""
        content = self.content
        return content[0].text if len(content) == 1 and type(content[0]) is TextBlock else shown(content)

    @property
    def data(self) -> tuple[DataBlock, ...]:
        """The images, sounds and files of the message (not of its tool results), in order."""
        return tuple([b for b in self.content if type(b) is DataBlock])

    @property
    def citations(self) -> tuple[Citation, ...]:
        """The sources of the text, in order."""
        return tuple([cited for b in self.content if type(b) is TextBlock for cited in b.citations])

    @property
    def thinking(self) -> str:
        """The joined text of all thinking blocks."""
        return "".join(b.text for b in self.content if isinstance(b, ThinkingBlock))

    @property
    def tool_uses(self) -> tuple[ToolUseBlock, ...]:
        """The tool calls, in order."""
        return tuple([b for b in self.content if type(b) is ToolUseBlock])

    @property
    def tool_results(self) -> tuple[ToolResultBlock, ...]:
        """The tool results, in order."""
        return tuple([b for b in self.content if type(b) is ToolResultBlock])

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """Return the message as JSON-compatible data; `from_dict` reads it back."""
        return adapter_of(Msg).dump_python(self, mode="json", exclude_defaults=False)

    def to_json(self) -> str:
        """Return the message as JSON text."""
        return adapter_of(Msg).dump_json(self).decode()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Msg:
        """Build a message from JSON-compatible data.

        Raises:
            UsageError: The data is not a message; the error names each wrong field.
        """
        try:
            return adapter_of(Msg).validate_python(dict(data))
        except ValueError as error:
            raise UsageError(f"This is not a message: {error}") from error

    @classmethod
    def from_json(cls, text: str | bytes) -> Msg:
        """Build a message from JSON text (see `from_dict`)."""
        try:
            return adapter_of(Msg).validate_json(text)
        except ValueError as error:
            raise UsageError(f"This is not a message: {error}") from error


@fast_build(Msg)
def message(
    role: Role,
    content: tuple[ContentBlock, ...],
    id: str,  # noqa: A002 - the name of the field
    metadata: Mapping[str, Any] = EMPTY,
    usage: Usage | None = None,
    finish_reason: str | None = None,
) -> Msg:
    """Build a `Msg` on the loop's fast path; the content is not checked."""
    return Msg(role, content, None, id, metadata, usage, finish_reason)


@frozen
class Pending:
    """A decision that a suspended call waits for.

    Attributes:
        id: The key of the decision for `agent.resume`: the tool-use id, or `"call"` if no tool call is open.
        kind: `"approval"` (may the tool run?), `"external"` (the tool runs elsewhere), `"parked"` (no tool call is
            open).
        request: The value of the hook's `Suspend(request)`.
        tool_use: The waiting tool call, with its effective arguments.
        hook: The hook that suspended it.
        within: The tool call of this conversation in which a sub-agent waits; None if this conversation waits.
        source: The path of the sub-agent's name.
    """

    id: str
    kind: Literal["approval", "external", "parked"] = "approval"
    request: Any = None
    tool_use: ToolUseBlock | None = None
    hook: str = ""
    within: str | None = None
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data; values in `request` that have no JSON form become text.

        Example:
            >>> Pending("t1", tool_use=ToolUseBlock("t1", "pay", {"euros": 40})).to_dict()["tool_use"]["name"]
            'pay'
        """
        return cast("dict[str, Any]", adapter_of(Pending).dump_python(self, mode="json", fallback=str))

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Pending:
        """Build a `Pending` from the data of `to_dict`.

        Raises:
            StoreError: The data is not a saved `Pending`.
        """
        try:
            return adapter_of(Pending).validate_python(data)
        except ValidationError as error:
            problem = first_problem(error)
            raise StoreError(f"This is not a saved Pending: {problem}. Load data from to_dict().") from error


def undecided(pending: Iterable[Pending], decisions: Container[str] = ()) -> list[Pending]:
    """Return the pending calls that still need a decision; a parked call needs none."""
    return [wait for wait in pending if wait.kind != "parked" and wait.id not in decisions]


@frozen
class Reply(Msg, Generic[T_co]):
    """The message that a call returns: a `Msg` with the call's outcome.

    Attributes:
        outcome: How the call ended.
        run_id: The run's id (a run is a call and its resumes).
        pending: The decisions that a suspended call waits for.
        session_id: The session's id, for `agent.resume`.
        usage: The usage of the whole call, including sub-agents and side calls.
        value: The value of `output`.
        typed: Whether the call has a typed output.
    """

    outcome: Outcome = "completed"
    run_id: str = ""
    pending: tuple[Pending, ...] = ()
    value: T_co | None = None
    session_id: str = ""
    typed: bool = False
    if TYPE_CHECKING:
        usage: Usage = Usage()

    @property
    def output(self) -> T_co:
        """The typed output that was requested with `output=` of the agent or the call.

        Raises:
            MissingOutputError: No output was requested, the call ended before the model gave one, or a hook replaced
                the answer.

        Example:
            >>> agent = Agent("clerk", ScriptedModel(['{"answer": 3}']))
            >>> (await agent.call("How many?", output=Output(int, via="prompt"))).output
            3
        """
        if not self.typed:
            raise MissingOutputError(
                f"This reply (run {self.run_id!r}, outcome {self.outcome!r}) has no typed output. Read reply.text, or "
                "request an output with agent.call(..., output=Invoice); a call that is denied, stopped, suspended "
                "or limited has none."
            )
        return cast("T_co", self.value)

    def to_message(self) -> Msg:
        """Return the message as stored in the history, without the fields about the call."""
        return Msg(self.role, self.content, self.name, self.id, self.metadata, self.usage, self.finish_reason)

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Reply):
            return (self.content, self.outcome, self.run_id, self.pending) == (
                other.content,
                other.outcome,
                other.run_id,
                other.pending,
            )
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self.content, self.outcome, self.run_id))  # not `pending`, which holds any request

    @staticmethod
    def of(
        msg: Msg, outcome: Outcome, run_id: str, usage: Usage, pending: tuple[Pending, ...], session_id: str = ""
    ) -> Reply:
        """Build the reply of a call (used by the loop)."""
        return _reply(
            msg.role,
            msg.content,
            msg.name,
            msg.id,
            msg.metadata,
            usage,
            msg.finish_reason,
            outcome,
            run_id,
            pending,
            session_id,
        )


_reply = maker(
    Reply,
    (
        "role",
        "content",
        "name",
        "id",
        "metadata",
        "usage",
        "finish_reason",
        "outcome",
        "run_id",
        "pending",
        "session_id",
    ),
)


def with_metadata(msg: Msg, **notes: object) -> Msg:
    """Return a copy of the message with notes added to its metadata."""
    metadata = FrozenDict({**msg.metadata, **notes})
    return Msg(msg.role, msg.content, msg.name, msg.id, metadata, msg.usage, msg.finish_reason)


def as_messages(messages: str | Msg | Sequence[Msg | str], new_id: Callable[[str], str] = new_id) -> tuple[Msg, ...]:
    """Return a tuple of messages from the text of a user message, a message, or several of either.

    Raises:
        UsageError: An item is neither a text nor a message.
    """
    if isinstance(messages, str):
        return (Msg.user(messages, id=new_id("msg_")),)
    if isinstance(messages, Msg):
        return (messages,)
    value = cast("object", messages)  # from the user: it may have any type
    # A mapping is iterable, but only its keys would be read.
    if isinstance(value, Awaitable | Mapping) or not isinstance(value, Iterable):
        raise UsageError(
            f"Messages are a str, a Msg or a sequence of them, not {type(messages).__name__}.{_how_to_write(messages)}"
        )
    result: list[Msg] = []
    for item in cast("Iterable[object]", value):
        if isinstance(item, str):
            result.append(Msg.user(item, id=new_id("msg_")))
        elif isinstance(item, Msg):
            result.append(item)
        else:
            raise UsageError(
                f"A message is a str or a Msg, not {type(item).__name__} ({item!r:.60}).{_how_to_write(item)}"
            )
    return tuple(result)


def _how_to_write(value: object) -> str:
    """Return the fix for a value that is not a message."""
    match value:
        case Awaitable():
            return " Await it first."
        case DataBlock():
            return " Write Msg.user('What is this?', block)."
        case Mapping():
            return " Write Msg.user('hello'), or Msg.from_dict(...) for data that agentflow wrote."
        case _:
            return " Write 'hello' or Msg.user('hello')."


# ---- sizes

DATA_TOKENS = 1_500
"""The tokens of an image or a file: about what vendors charge for a picture of one megapixel."""


def data_blocks(msg: Msg) -> int:
    """Return the number of images and files in a message, including those in results of tools."""
    found = 0
    for block in msg.content:
        parts = block.content if isinstance(block, ToolResultBlock) and not isinstance(block.content, str) else (block,)
        found += sum(isinstance(part, DataBlock) for part in parts)
    return found


def characters(msg: Msg) -> int:
    """Return the length of a message's texts, calls and results, without images and files."""
    total = 0
    for block in msg.content:
        match block:
            case TextBlock(text=text) | ThinkingBlock(text=text):
                total += len(text)
            case ToolUseBlock():
                total += len(block.name) + len(block.raw)
            case ToolResultBlock():
                total += len(block.text)
            case ServerToolBlock():
                total += len(block.json)
            case DataBlock():
                pass
            case _:
                assert_never(block)
    return total
