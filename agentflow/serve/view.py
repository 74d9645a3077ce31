"""A client's view of a run and a session: these models, and nothing else.

Rules:

1. A client receives only the fields of the models below, each chosen here. New events and fields of the library are not sent.
2. System prompts, the messages of hooks, error texts and tools' arguments are not in the default view. A question shows
   the arguments of its call, because a person approves them.
3. The models are the only description: the OpenAPI document and the tables of the documentation are generated from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias, cast, get_args

from pydantic import BaseModel, ConfigDict, Field

from agentflow.errors import UsageError
from agentflow.vocabulary.event_json import Json
from agentflow.vocabulary.events import (
    ActingChunk,
    HookEvent,
    PostActing,
    PostCall,
    PostReasoning,
    PreActing,
    PreReasoning,
    ReasoningChunk,
)
from agentflow.vocabulary.events.base import frame_of
from agentflow.vocabulary.messages import (
    Msg,
    Outcome,
    Pending,
    Reply,
    ToolResultBlock,
    ToolState,
    ToolUseBlock,
)
from agentflow.vocabulary.specs import Usage
from agentflow.vocabulary.typed_state import state_name

__all__ = [
    "EVENTS",
    "EndEvent",
    "File",
    "GapEvent",
    "HistoryMessage",
    "PublicEvent",
    "Question",
    "ReplyEvent",
    "Source",
    "StartEvent",
    "StateEvent",
    "TextEvent",
    "ThinkingEvent",
    "TokenUsage",
    "ToolEvent",
    "ToolOutputEvent",
    "View",
]

CLOSING_TEXTS: Final = frozenset({"denied", "stopped", "limited"})
"""Synthetic messages that are meant for the user."""

ToolStatus: TypeAlias = Literal["running", ToolState]
PublicOutcome: TypeAlias = Literal[Outcome, "parked"]


class Public(BaseModel):
    """A value that clients receive."""

    model_config = ConfigDict(frozen=True)

    def line(self) -> bytes:
        """Return the value as JSON without its unset fields: one line, so that no text can forge an event."""
        return self.model_dump_json(exclude_none=True).encode()


class StartEvent(Public):
    """A run begins, or continues after a decision or a restart."""

    type: Literal["run"] = "run"
    run: str = Field(description="The run's id.")
    agent: str = Field(description="The agent's name.")
    session: str = Field(description="The session's id.")


class TextEvent(Public):
    """The model has streamed text."""

    type: Literal["text"] = "text"
    text: str = Field(description="The next text of the current reply.")
    restart: bool = Field(default=False, description="Whether the text of the current reply so far must be discarded.")


class ThinkingEvent(Public):
    """The model has streamed thinking; only sent with `View(thinking=True)`."""

    type: Literal["thinking"] = "thinking"
    text: str = Field(description="The next part of the thinking.")


class Source(Public):
    """A source that the model cites."""

    url: str | None = Field(default=None, description="Its address.")
    title: str | None = Field(default=None, description="Its title, or a file name.")
    quote: str | None = Field(default=None, description="The cited passage.")


class File(Public):
    """A file that the model has made."""

    media_type: str = Field(description="The MIME type.")
    url: str = Field(description="Its address, or a data URL with the content.")


class ReplyEvent(Public):
    """A reply of the model is complete. A run can have several, with tool calls between them."""

    type: Literal["reply"] = "reply"
    id: str = Field(description="The message's id, as in the session's history.")
    text: str = Field(description="The text after all hooks; it replaces the streamed text of this reply.")
    sources: list[Source] | None = Field(default=None, description="The sources that it cites.")
    files: list[File] | None = Field(default=None, description="Its images and other files.")


class ToolEvent(Public):
    """A tool call has changed its state."""

    type: Literal["tool"] = "tool"
    id: str = Field(description="The call's id.")
    name: str | None = Field(default=None, description='The tool\'s name; not sent with `View(tools="label")`.')
    label: str | None = Field(default=None, description="The text of `View(labels=...)` for this tool.")
    state: ToolStatus = Field(description="`running`, or how the call ended.")
    input: dict[str, Any] | None = Field(
        default=None, description='The arguments; only sent with `View(tools="full")`.'
    )
    result: str | None = Field(default=None, description='The result\'s text; only sent with `View(tools="full")`.')


class ToolOutputEvent(Public):
    """A running tool has emitted a value; only sent with `View(tools="full")`."""

    type: Literal["tool_output"] = "tool_output"
    id: str = Field(description="The call's id.")
    text: str = Field(description="The value as text.")


class StateEvent(Public):
    """The session's state has changed; only sent with `View(state=[...])`."""

    type: Literal["state"] = "state"
    state: dict[str, Any] = Field(description="The chosen values, by the names of their classes.")


class Question(Public):
    """A call that waits for a person or a program."""

    id: str = Field(description="The key of its decision.")
    kind: Literal["approval", "external", "parked"] = Field(
        description="`approval`: may the call run? `external`: return its result. `parked`: the run waits to continue."
    )
    question: str | None = Field(default=None, description='The text of a hook\'s `Suspend({"question": ...})`.')
    name: str | None = Field(default=None, description="The tool's name.")
    label: str | None = Field(default=None, description="The text of `View(labels=...)` for this tool.")
    input: dict[str, Any] | None = Field(default=None, description="The arguments that would be used.")


class TokenUsage(Public):
    """The usage of a run."""

    input_tokens: int = Field(description="Tokens of the requests.")
    output_tokens: int = Field(description="Tokens of the replies.")
    cost: float | None = Field(
        default=None, description="US dollars; only sent with `View(cost=True)`, if it is known."
    )


class EndEvent(Public):
    """The run has ended, or waits. It is the last event of a stream."""

    type: Literal["end"] = "end"
    outcome: PublicOutcome = Field(
        description="How it ended; `suspended`: it waits for decisions; `parked`: the server stopped, the run continues later."
    )
    text: str = Field(default="", description="The text of the last reply, or the reason for the end.")
    questions: list[Question] = Field(default=[], description="The decisions that a suspended run waits for.")
    usage: TokenUsage | None = Field(default=None, description="The usage of the call.")
    reference: str | None = Field(default=None, description="The text to search for in the server's log.")


class GapEvent(Public):
    """Some events before the next one are missing. Load the session's history."""

    type: Literal["gap"] = "gap"


class HistoryMessage(Public):
    """A message of a session."""

    id: str = Field(description="The message's id.")
    role: Literal["user", "assistant"] = Field(description="The author.")
    text: str = Field(description="The text.")
    thinking: str | None = Field(default=None, description="The thinking; only sent with `View(thinking=True)`.")
    sources: list[Source] | None = Field(default=None, description="The sources that it cites.")
    files: list[File] | None = Field(default=None, description="Its images and other files, if the model made them.")
    tools: list[ToolEvent] = Field(default=[], description="The calls of this message, with their states.")


PublicEvent: TypeAlias = Annotated[
    StartEvent
    | TextEvent
    | ThinkingEvent
    | ReplyEvent
    | ToolEvent
    | ToolOutputEvent
    | StateEvent
    | EndEvent
    | GapEvent,
    Field(discriminator="type"),
]
"""An event of a stream."""

EVENTS: Final[tuple[type[Public], ...]] = get_args(get_args(PublicEvent)[0])
"""The classes of events, in the order of the documentation."""


@dataclass(frozen=True, kw_only=True)
class View:
    """The choice of the data that clients receive.

    Args:
        tools: `"label"` sends the state and the label of tool calls, `"name"` also their names, `"full"` also arguments,
            output and results.
        labels: Texts that a page can show for a tool, by the tool's name.
        thinking: Whether the model's thinking is sent.
        cost: Whether the cost of a run is sent.
        state: Classes of the session's state (`context.session_state`) whose values are sent.
        redact: Applied to each text; for example `redaction.outside`. Parts of a text are not redacted reliably, so
            texts then arrive as whole replies only. To redact while a reply streams, add the `Redaction` plugin to the
            agent.

    Raises:
        UsageError: `tools` is none of the three.

    Example:
        >>> View().of_event(PreActing(tool_use=ToolUseBlock("t1", "pay", {"euros": 5}))).line()
        b'{"type":"tool","id":"t1","name":"pay","state":"running"}'
    """

    tools: Literal["label", "name", "full"] = "name"
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    thinking: bool = False
    cost: bool = False
    state: Sequence[type] = ()
    redact: Callable[[str], str] | None = None

    def __post_init__(self) -> None:
        if self.tools not in ("label", "name", "full"):
            raise UsageError(f"View(tools={self.tools!r}): use 'label', 'name' or 'full'.")

    def of_event(self, event: HookEvent) -> Public | None:
        """Return the view of an event; None if it is not sent."""
        if frame_of(event) is not None and event.source:  # events that were read from a store have no frame
            return None  # a sub-agent's
        match event:
            case ReasoningChunk(incremental_chunk=chunk, restart=restart):
                if (chunk.text or restart) and self.redact is None:
                    return TextEvent(text=chunk.text, restart=restart)
                if chunk.thinking and self.thinking and self.redact is None:
                    return ThinkingEvent(text=chunk.thinking)
                return None
            case PostReasoning(reasoning_result=reply) if reply.text or reply.data:
                return self._reply(reply)
            case PreActing(tool_use=use):
                return self._tool(use, "running", None)
            case PostActing(tool_use=use, tool_result=result):
                return self._tool(use, result.state, result)
            case ActingChunk(tool_use=use, chunk=value) if self.tools == "full":
                return ToolOutputEvent(id=use.id, text=self._text(str(value)))
            case _:
                return None

    def of_state(self, event: HookEvent) -> StateEvent | None:
        """Return the view of the session's state if this event may have changed it; None otherwise."""
        if not self.state or event.source or not isinstance(event, PreReasoning | PostActing | PostCall):
            return None
        return self.of_saved(event.context.session_state.saved()[0])

    def of_saved(self, saved: Mapping[str, Any]) -> StateEvent:
        """Return the view of a session's state from saved data."""
        chosen = {kind.__name__: saved[name] for kind in self.state if (name := state_name(kind)) in saved}
        return StateEvent(state=self._data(chosen))

    def of_reply(self, reply: Reply[Any]) -> EndEvent:
        """Return the end of a run."""
        text = reply.text if reply.metadata.get("synthetic") in {None, *CLOSING_TEXTS} else ""
        return EndEvent(
            outcome=reply.outcome,
            text=self._text(text),
            questions=self.questions(reply.pending),
            usage=self.usage(reply.usage),
        )

    def usage(self, usage: Usage) -> TokenUsage:
        """Return the view of a usage."""
        cost = usage.cost if self.cost else None
        return TokenUsage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cost=cost)

    def questions(self, pending: Sequence[Pending]) -> list[Question]:
        """Return the view of the calls that a suspended run waits for."""
        return [self._question(wait) for wait in pending]

    def _question(self, wait: Pending) -> Question:
        request: object = wait.request
        text: object = cast("Mapping[str, object]", request).get("question") if isinstance(request, Mapping) else None
        use = wait.tool_use
        name = None if use is None else use.name
        return Question(
            id=wait.id,
            kind=wait.kind,
            question=None if text is None else self._text(str(text)),
            name=name,
            label=None if name is None else self.labels.get(name),
            input=None if use is None else self._data(use.input),
        )

    def history(self, messages: Sequence[Msg]) -> list[HistoryMessage]:
        """Return the view of a conversation."""
        results = {result.tool_use_id: result for msg in messages for result in msg.tool_results}
        return [shown for msg in messages if (shown := self._message(msg, results)) is not None]

    def _message(self, msg: Msg, results: Mapping[str, ToolResultBlock]) -> HistoryMessage | None:
        synthetic = msg.metadata.get("synthetic")
        if msg.role == "user" and synthetic in (None, "steering"):
            return HistoryMessage(id=msg.id, role="user", text=self._text(msg.shown))
        if msg.role != "assistant" or synthetic not in {None, *CLOSING_TEXTS}:
            return None
        tools = [self._call(use, results.get(use.id)) for use in msg.tool_uses]
        if not (msg.text or tools or msg.data):
            return None
        thinking = self._text(msg.thinking) if self.thinking else ""
        return HistoryMessage(
            id=msg.id,
            role="assistant",
            text=self._text(msg.text),
            thinking=thinking or None,
            sources=self._sources(msg),
            files=_files(msg),
            tools=tools,
        )

    def _call(self, use: ToolUseBlock, result: ToolResultBlock | None) -> ToolEvent:
        return self._tool(use, "suspended" if result is None else result.state, result)

    def _tool(self, use: ToolUseBlock, state: ToolStatus, result: ToolResultBlock | None) -> ToolEvent:
        full = self.tools == "full"
        return ToolEvent(
            id=use.id,
            name=None if self.tools == "label" else use.name,
            label=self.labels.get(use.name),
            state=state,
            input=self._data(use.input) if full else None,
            result=self._text(result.shown) if full and result is not None else None,
        )

    def _reply(self, reply: Msg) -> ReplyEvent:
        return ReplyEvent(id=reply.id, text=self._text(reply.text), sources=self._sources(reply), files=_files(reply))

    def _sources(self, msg: Msg) -> list[Source] | None:
        """Return the sources of a message, each once."""
        found = dict.fromkeys((cited.url, cited.title, cited.text) for cited in msg.citations)
        return [
            Source(url=url, title=self._optional_text(title), quote=self._optional_text(quote))
            for url, title, quote in found
        ] or None

    def _optional_text(self, text: str | None) -> str | None:
        return None if text is None else self._text(text)

    def _text(self, text: str) -> str:
        return text if self.redact is None else self.redact(text)

    def _data(self, value: Mapping[str, Any]) -> dict[str, Json]:
        return cast("dict[str, Json]", self._redacted(value))

    def _redacted(self, value: object) -> Json:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            mapping = cast("Mapping[str, object]", value)
            return {self._text(key): self._redacted(part) for key, part in mapping.items()}
        if isinstance(value, list | tuple):
            return [self._redacted(part) for part in cast("Sequence[object]", value)]
        return cast("Json", value)


def _files(msg: Msg) -> list[File] | None:
    return [
        File(media_type=block.media_type, url=block.url or f"data:{block.media_type};base64,{block.data}")
        for block in msg.data
    ] or None
