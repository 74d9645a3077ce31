"""Checks of assignments to the fields of events: each returns the value to store, or raises an error that names the
expected type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from agentflow.vocabulary.context import port_of
from agentflow.vocabulary.events.base import Check, Event, frame_of
from agentflow.vocabulary.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.specs import ModelOptions, ToolSpec
from agentflow.vocabulary.transcript import MessageView

_MESSAGES = "a sequence of Msg, such as [Msg.user('hello')]"


def _wrong(event: Event, field: str, expected: str, value: object) -> TypeError:
    return TypeError(f"{type(event).__name__}.{field} takes {expected}, not {type(value).__name__} ({value!r:.80}).")


def of_messages(field: str) -> Check:
    """Return a check that the value is a sequence of messages, stored as a tuple or a view."""

    def check(event: Event, value: object) -> object:
        if type(value) is MessageView:  # read-only, and copying it would take time for each stored message
            return value
        if isinstance(value, Msg) or not isinstance(value, Sequence) or isinstance(value, str):
            raise _wrong(event, field, _MESSAGES, value)
        items = cast("Sequence[object]", value)
        for item in items:
            if not isinstance(item, Msg):
                raise _wrong(event, field, _MESSAGES, item)
        return tuple(items)  # a copy: the hook may change its list later

    return check


def input_messages(event: Event, value: object) -> object:
    """Check the first messages of a call, which will be stored."""
    checked = cast("tuple[Msg, ...]", of_messages("input_messages")(event, value))
    for msg in checked:
        if msg.role not in ("user", "assistant") or msg.tool_uses:
            raise TypeError(
                "PreCall.input_messages takes user and assistant messages without tool calls (they are stored); a system "
                f"message belongs in PreReasoning.input_messages or the agent's system=. Got role {msg.role!r}."
            )
    return checked


def of_type(field: str, kind: type, expected: str) -> Check:
    """Return a check that the value has a type."""

    def check(event: Event, value: object) -> object:
        if not isinstance(value, kind):
            raise _wrong(event, field, expected, value)
        return value

    return check


def specs(event: Event, value: object) -> object:
    """Check the specs of tools."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _wrong(event, "tools", "a sequence of ToolSpec", value)
    for item in cast("Sequence[object]", value):
        if not isinstance(item, ToolSpec):
            raise _wrong(event, "tools", "a sequence of ToolSpec", item)
    return tuple(cast("Sequence[ToolSpec]", value))


def assistant(event: Event, value: object) -> object:
    """Check a reply, and make its tool-use ids unique in the conversation."""
    if not isinstance(value, Msg) or value.role != "assistant":
        raise _wrong(event, "reasoning_result", "an assistant's Msg", value)
    frame = frame_of(event)
    return value if frame is None else port_of(frame.context).legal_reply(value)


def final(event: Event, value: object) -> object:
    """Check a final message, which must keep its tool calls."""
    if not isinstance(value, Msg) or value.role != "assistant":
        raise _wrong(event, "final_message", "an assistant's Msg", value)
    before = cast("Any", event).final_message.tool_uses
    if value.tool_uses != before:
        raise TypeError("PostCall.final_message cannot change its tool calls. Change them in PostReasoning.")
    return value


def tool_use(event: Event, value: object) -> object:
    """Check a changed call, which must keep its id."""
    if not isinstance(value, ToolUseBlock):
        raise _wrong(event, "tool_use", "a ToolUseBlock", value)
    expected = cast("Any", event).tool_use.id
    if value.id != expected:
        raise TypeError(
            f"PreActing.tool_use must keep its id {expected!r}, which the model's call expects; got {value.id!r}. "
            "Use event.tool_use.replace(name=..., input=...)."
        )
    return value


def tool_result(event: Event, value: object) -> object:
    """Check a result, which must be of the same call."""
    if not isinstance(value, ToolResultBlock):
        raise _wrong(event, "tool_result", "a ToolResultBlock", value)
    expected = cast("Any", event).tool_result.tool_use_id
    if value.tool_use_id != expected:
        raise TypeError(
            f"PostActing.tool_result must be for call {expected!r}; got a result for {value.tool_use_id!r}."
        )
    return value


def options(event: Any, value: object) -> ModelOptions:
    """Return the current options, overridden by the assigned ones."""
    if not isinstance(value, ModelOptions):
        raise _wrong(event, "options", "ModelOptions", value)
    return event.options.merge(value)
