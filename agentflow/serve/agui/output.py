"""The events of a run as AG-UI events.

Rules:

1. Events are built only from the view's events, so a page receives nothing that `View` hides.
2. An error is the last event.
3. If the page has text that differs from the reply, a snapshot of the conversation replaces it at the end.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

from agentflow.serve.agui.input import STORED, PageInput
from agentflow.serve.agui.sdk import EventEncoder, core
from agentflow.serve.chats import Chat
from agentflow.serve.parts import PageCall, PageChange, PagePart, PageParts, failure_text
from agentflow.serve.view import EndEvent, Question, StateEvent, ToolEvent, ToolOutputEvent, View
from agentflow.vocabulary.messages import Msg

_APPROVAL: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "editedArgs": {"type": "object", "description": "The complete arguments, edited."},
        "reason": {"type": "string", "description": "The reason for a refusal, for the model."},
    },
    "required": ["approved"],
}
"""The schema of `ApprovalPayload`, in the form that the protocol recommends."""


class PageStream:
    """Translates the events of a run.

    Args:
        body: The input of the run.
        chat: The run that the page reads.
        view: Decides which data the page receives.
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
        self._parent = ""  # the message of the current reply
        self._state: dict[str, Any] | None = None
        self._parts = PageParts(body.run_id, chat.announced)

    async def chunks(self) -> AsyncGenerator[bytes | None]:
        """Yield the encoded events; None if nothing has happened for a while."""
        body = self._body
        yield self._encoded(
            core.RunStartedEvent(thread_id=body.thread_id, run_id=body.run_id, protocol_version=core.PROTOCOL_VERSION)
        )
        if self._chat.history is not None:
            yield self._encoded(self._snapshot(self._chat.history))
        async for numbered in self._chat.run.read_call():
            if numbered is None:
                yield None
                continue
            event = numbered.event
            for change in self._parts.changes(event):
                for translated in self._translated(change):
                    yield self._encoded(translated)
            if isinstance(event, EndEvent):
                if self._parts.has_extra_text:
                    yield self._encoded(self._snapshot(await self._history(), event.questions))
                yield self._encoded(self._end(event))

    def _encoded(self, event: core.BaseEvent) -> bytes:
        return self._encoder.encode(event).encode()

    def _translated(self, change: PageChange) -> Iterator[core.BaseEvent]:
        match change:
            case PagePart("start", "text", key):
                self._parent = key
                yield core.TextMessageStartEvent(message_id=key)
            case PagePart("delta", "text", key, text):
                yield core.TextMessageContentEvent(message_id=key, delta=text)
            case PagePart("end", "text", key):
                yield core.TextMessageEndEvent(message_id=key)
            case PagePart("start", _, key):
                yield core.ReasoningStartEvent(message_id=key)
                yield core.ReasoningMessageStartEvent(message_id=key)
            case PagePart("delta", _, key, text):
                yield core.ReasoningMessageContentEvent(message_id=key, delta=text)
            case PagePart(_, _, key):
                yield core.ReasoningMessageEndEvent(message_id=key)
                yield core.ReasoningEndEvent(message_id=key)
            case PageCall(key, name, label, None):
                self._parent = self._parent or self._parts.next_id()
                metadata = None if label is None else {"label": label}
                yield core.ToolCallStartEvent(
                    tool_call_id=key, tool_call_name=name, parent_message_id=self._parent, metadata=metadata
                )
            case PageCall(key, input=arguments):
                yield core.ToolCallArgsEvent(tool_call_id=key, delta=json.dumps(arguments))
                yield core.ToolCallEndEvent(tool_call_id=key)
            case ToolEvent():
                yield from self._result(change)
            case ToolOutputEvent(id=key, text=text):
                yield core.CustomEvent(name="tool_output", value={"toolCallId": key, "text": text})
            case StateEvent(state=state):
                yield self._state_event(state)
            case _:
                pass

    def _result(self, event: ToolEvent) -> Iterator[core.BaseEvent]:
        self._parent = ""
        if event.id not in self._chat.answered:  # otherwise the page has its result
            yield core.ToolCallResultEvent(
                message_id=f"{event.id}_result",
                tool_call_id=event.id,
                content=event.state if event.result is None else event.result,
                role="tool",
                metadata={"state": event.state},
            )

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
        if (failure := failure_text(event)) is not None:
            return core.RunErrorEvent(message=failure, code=event.outcome, usage=usage)
        outcome: core.RunFinishedOutcome
        client_calls = self._chat.wanted
        interrupts = [_interrupt(q, self._parts.calls) for q in event.questions if q.id not in client_calls]
        if event.outcome == "interrupted":
            outcome = core.RunFinishedCancelledOutcome()
        elif interrupts:
            outcome = core.RunFinishedInterruptOutcome(interrupts=interrupts)
        else:
            outcome = core.RunFinishedSuccessOutcome(pending_tool_call_ids=[q.id for q in event.questions] or None)
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
        arguments = {q.id: q.input for q in questions}
        sent = {msg.id.removeprefix(STORED): msg for msg in self._body.messages if isinstance(msg, core.UserMessage)}
        messages: list[Any] = []
        for entry in self._view.history(history):
            key = f"{STORED}{entry.id}"
            if entry.role == "user":
                known = sent.get(entry.id)  # with its images
                messages.append(core.UserMessage(id=key, content=entry.text if known is None else known.content))
                continue
            calls = [_call(tool, tool.input or arguments.get(tool.id) or {}) for tool in entry.tools]
            messages.append(core.AssistantMessage(id=key, content=entry.text or None, tool_calls=calls or None))
            messages += [
                core.ToolMessage(id=f"{tool.id}_result", tool_call_id=tool.id, content=tool.result or tool.state)
                for tool in entry.tools
                if tool.state != "suspended"
            ]
        return core.MessagesSnapshotEvent(messages=messages)


def patch(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> Iterator[Any]:
    """Yield the operations of a JSON patch between two objects; a list is replaced."""
    for name in [*before, *[name for name in after if name not in before]]:
        # The escapes of JSON Pointer (RFC 6901); `~` first, since the escape of `/` contains it.
        pointer = f"{path}/{name.replace('~', '~0').replace('/', '~1')}"
        old, new = before.get(name), after.get(name)
        if name not in after:
            yield {"op": "remove", "path": pointer}
        elif name not in before:
            yield {"op": "add", "path": pointer, "value": new}
        elif isinstance(old, dict) and isinstance(new, dict):
            yield from patch(cast("dict[str, Any]", old), cast("dict[str, Any]", new), pointer)
        elif old != new:
            yield {"op": "replace", "path": pointer, "value": new}


def _call(tool: ToolEvent, arguments: Mapping[str, Any]) -> core.ToolCall:
    name = tool.name or tool.label or "tool"
    return core.ToolCall(id=tool.id, function=core.FunctionCall(name=name, arguments=json.dumps(arguments)))


def _interrupt(question: Question, calls: Mapping[str, object]) -> core.Interrupt:
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
