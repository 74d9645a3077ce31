"""The events of a run as AG-UI events.

Rules:

1. Everything is made of the view's events, so a page receives what `View` allows, in another form.
2. A message, a reasoning or a call that was opened is closed before the run's last event. After an error there is nothing.
3. The protocol has no way to take back text. If hooks changed a reply, or it was restarted, a snapshot of the conversation
   replaces it at the end.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from agentflow.serve.agui.input import STORED, PageInput
from agentflow.serve.agui.sdk import EventEncoder, core
from agentflow.serve.chats import Chat, is_client_call
from agentflow.serve.view import (
    EndEvent,
    GapEvent,
    Public,
    Question,
    ReplyEvent,
    StateEvent,
    TextEvent,
    ThinkingEvent,
    ToolEvent,
    ToolOutputEvent,
    View,
)
from agentflow.vocabulary.messages import Msg

__all__ = ["PageStream"]

_APPROVAL: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "editedArgs": {"type": "object", "description": "Edited arguments, all of them."},
        "reason": {"type": "string", "description": "The reason of a refusal, for the model."},
    },
    "required": ["approved"],
}
"""The schema of `Approval`, as the protocol recommends it."""


@dataclass
class _PageCall:
    """A tool call that the page knows: whether its arguments are complete."""

    closed: bool = False


class PageStream:
    """Translates the events of a run.

    Args:
        body: The input of the run.
        chat: The run.
        view: The view.
        history: Returns the session's conversation.
    """

    def __init__(
        self, body: PageInput, chat: Chat, view: View, history: Callable[[], Awaitable[Sequence[Msg]]]
    ) -> None:
        self._body = body
        self._chat = chat
        self._view = view
        self._history = history
        self._encoder = EventEncoder()
        self._changed = False  # whether the page has text that is not the reply's
        self._count = 0
        self._parent = ""  # the message of the current reply
        self._text: str | None = None  # the text of the open message
        self._last = ""  # the text of the last message
        self._thinking = ""  # the id of the open reasoning
        self._state: dict[str, Any] | None = None
        self._calls = {key: _PageCall(closed=True) for key in chat.announced}

    async def chunks(self) -> AsyncGenerator[bytes | None]:
        """Yield the encoded events; None if nothing has happened for a while."""
        body = self._body
        yield self._encoded(
            core.RunStartedEvent(thread_id=body.thread_id, run_id=body.run_id, protocol_version=core.PROTOCOL_VERSION)
        )
        if self._chat.history is not None:
            yield self._encoded(self._snapshot(self._chat.history))
        async for numbered in self._chat.run.read():
            if numbered is None:
                yield None
                continue
            event = numbered.event
            for made in self._translated(event):
                yield self._encoded(made)
            if isinstance(event, EndEvent):
                if self._changed:
                    yield self._encoded(self._snapshot(await self._history(), event.questions))
                yield self._encoded(self._end(event))

    def _encoded(self, event: core.BaseEvent) -> bytes:
        return self._encoder.encode(event).encode()

    def _translated(self, event: Public) -> Iterator[core.BaseEvent]:
        if not isinstance(event, ThinkingEvent):
            yield from self._close_thinking()
        match event:
            case TextEvent(text=text, restart=restart):
                if restart:
                    self._changed = self._changed or bool(self._text)
                    yield from self._close_text()
                if text:
                    yield from self._add_text(text)
            case ThinkingEvent(text=text):
                yield from self._add_thinking(text)
            case ReplyEvent(text=text):
                if self._text is None:
                    yield from self._add_text(text)
                self._changed = self._changed or self._text != text
                self._last = text
                yield from self._close_text()
            case ToolEvent():
                yield from self._close_text()
                yield from self._tool(event)
            case ToolOutputEvent(id=key, text=text):
                yield core.CustomEvent(name="tool_output", value={"toolCallId": key, "text": text})
            case StateEvent(state=state):
                yield self._state_event(state)
            case GapEvent():
                self._changed = True
            case EndEvent(text=text, questions=questions):
                yield from self._close_text()
                if text and text != self._last:  # why the run ended
                    yield from self._add_text(text)
                    yield from self._close_text()
                for question in questions:
                    yield from self._waits(question)
                for key, call in self._calls.items():
                    yield from self._close_call(key, call)
            case _:
                pass

    # ---- text and thinking

    def _next_id(self) -> str:
        self._count += 1
        return f"{self._body.run_id}_{self._count}"

    def _add_text(self, text: str) -> Iterator[core.BaseEvent]:
        if self._text is None:
            self._text, self._parent = "", self._next_id()
            yield core.TextMessageStartEvent(message_id=self._parent)
        self._text += text
        yield core.TextMessageContentEvent(message_id=self._parent, delta=text)

    def _close_text(self) -> Iterator[core.BaseEvent]:
        if self._text is not None:
            self._text = None
            yield core.TextMessageEndEvent(message_id=self._parent)

    def _add_thinking(self, text: str) -> Iterator[core.BaseEvent]:
        if not self._thinking:
            key = self._thinking = self._next_id()
            yield core.ReasoningStartEvent(message_id=key)
            yield core.ReasoningMessageStartEvent(message_id=key)
        yield core.ReasoningMessageContentEvent(message_id=self._thinking, delta=text)

    def _close_thinking(self) -> Iterator[core.BaseEvent]:
        if self._thinking:
            key, self._thinking = self._thinking, ""
            yield core.ReasoningMessageEndEvent(message_id=key)
            yield core.ReasoningEndEvent(message_id=key)

    # ---- tools

    def _tool(self, event: ToolEvent) -> Iterator[core.BaseEvent]:
        if event.state == "suspended" or (event.state == "running" and event.name is None):
            return  # the question, or the result, has what is missing
        yield from self._open_call(event.id, event.name or event.label or "tool", event.label)
        call = self._calls[event.id]
        if event.input is not None:
            yield from self._close_call(event.id, call, event.input)
        if event.state == "running":
            return
        yield from self._close_call(event.id, call)
        self._parent = ""
        if event.id in self._chat.answered:
            return  # the page has its result
        content = event.state if event.result is None else event.result
        metadata = {"state": event.state}
        yield core.ToolCallResultEvent(
            message_id=f"{event.id}_result", tool_call_id=event.id, content=content, role="tool", metadata=metadata
        )

    def _open_call(self, key: str, name: str, label: str | None) -> Iterator[core.BaseEvent]:
        if key in self._calls:
            return
        self._calls[key] = _PageCall()
        self._parent = self._parent or self._next_id()
        yield core.ToolCallStartEvent(
            tool_call_id=key,
            tool_call_name=name,
            parent_message_id=self._parent,
            metadata=None if label is None else {"label": label},
        )

    def _close_call(
        self, key: str, call: _PageCall, arguments: Mapping[str, Any] | None = None
    ) -> Iterator[core.BaseEvent]:
        if not call.closed:
            call.closed = True
            yield core.ToolCallArgsEvent(tool_call_id=key, delta=json.dumps(arguments or {}))
            yield core.ToolCallEndEvent(tool_call_id=key)

    def _waits(self, question: Question) -> Iterator[core.BaseEvent]:
        """Complete a call that waits: its arguments are shown for the decision."""
        if question.name is None:
            return
        yield from self._open_call(question.id, question.name, question.label)
        yield from self._close_call(question.id, self._calls[question.id], question.input)

    def _state_event(self, state: dict[str, Any]) -> core.BaseEvent:
        before, self._state = self._state, state
        if before is None:
            return core.StateSnapshotEvent(snapshot=state)
        return core.StateDeltaEvent(delta=list(patch(before, state)))

    # ---- the end

    def _end(self, event: EndEvent) -> core.BaseEvent:
        usage = None
        if event.usage is not None:
            used = event.usage
            usage = [core.TokenUsage(input_tokens=used.input_tokens, output_tokens=used.output_tokens)]
        if event.outcome == "failed":
            return core.RunErrorEvent(
                message=f"The run failed (reference {event.reference}).", code="failed", usage=usage
            )
        if event.outcome == "parked":
            return core.RunErrorEvent(
                message="The server is restarting; the run continues afterwards.", code="parked", usage=usage
            )
        outcome: core.RunFinishedOutcome
        reply = self._chat.run.reply
        ours = {waits.id for waits in (() if reply is None else reply.pending) if is_client_call(waits)}
        interrupts = [_interrupt(one, self._calls) for one in event.questions if one.id not in ours]
        if event.outcome == "interrupted":
            outcome = core.RunFinishedCancelledOutcome()
        elif interrupts:
            outcome = core.RunFinishedInterruptOutcome(interrupts=interrupts)
        else:
            outcome = core.RunFinishedSuccessOutcome(pending_tool_call_ids=[one.id for one in event.questions] or None)
        cost = None if event.usage is None or event.usage.cost is None else {"cost": event.usage.cost}
        return core.RunFinishedEvent(
            thread_id=self._body.thread_id,
            run_id=self._body.run_id,
            outcome=outcome,
            result={"outcome": event.outcome},
            usage=usage,
            metadata=cost,
        )

    def _snapshot(self, history: Sequence[Msg], questions: Sequence[Question] = ()) -> core.BaseEvent:
        asked = {one.id: one.input for one in questions}
        sent = {one.id.removeprefix(STORED): one for one in self._body.messages if isinstance(one, core.UserMessage)}
        messages: list[Any] = []
        for one in self._view.history(history):
            key = f"{STORED}{one.id}"
            if one.role == "user":
                known = sent.get(one.id)  # with its images
                messages.append(core.UserMessage(id=key, content=one.text if known is None else known.content))
                continue
            calls = [_call(tool, tool.input or asked.get(tool.id) or {}) for tool in one.tools]
            messages.append(core.AssistantMessage(id=key, content=one.text or None, tool_calls=calls or None))
            messages += [
                core.ToolMessage(id=f"{tool.id}_result", tool_call_id=tool.id, content=tool.result or tool.state)
                for tool in one.tools
                if tool.state != "suspended"
            ]
        return core.MessagesSnapshotEvent(messages=messages)


def patch(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> Iterator[Any]:
    """Yield the operations of a JSON patch between two objects; a list is replaced."""
    for name in [*before, *[name for name in after if name not in before]]:
        place = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        old, new = before.get(name), after.get(name)
        if name not in after:
            yield {"op": "remove", "path": place}
        elif name not in before:
            yield {"op": "add", "path": place, "value": new}
        elif isinstance(old, dict) and isinstance(new, dict):
            yield from patch(cast("dict[str, Any]", old), cast("dict[str, Any]", new), place)
        elif old != new:
            yield {"op": "replace", "path": place, "value": new}


def _call(tool: ToolEvent, arguments: Mapping[str, Any]) -> core.ToolCall:
    name = tool.name or tool.label or "tool"
    return core.ToolCall(id=tool.id, function=core.FunctionCall(name=name, arguments=json.dumps(arguments)))


def _interrupt(question: Question, calls: dict[str, Any]) -> core.Interrupt:
    external = question.kind == "external"
    bound = question.id in calls
    reason = "input_required" if external else "tool_call" if bound else "confirmation"
    return core.Interrupt(
        id=question.id,
        reason=reason,
        message=question.question or question.label,
        tool_call_id=question.id if bound else None,
        response_schema={} if external else _APPROVAL,
    )
