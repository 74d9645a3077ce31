"""Readable texts of messages, events and errors: the same in the terminal, in logs and on web pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias, assert_never

from agentflow.vocabulary.events import (
    ActingChunk,
    CallEnded,
    Error,
    HookEvent,
    MessagesAdded,
    Paused,
    PostActing,
    PostCall,
    PostPut,
    PostReasoning,
    PostToolRound,
    PostTurn,
    PreActing,
    PreCall,
    PrePut,
    PreReasoning,
    PreToolRound,
    PreTurn,
    ReasoningChunk,
    Resumed,
    TurnValue,
    TurnView,
)
from agentflow.vocabulary.messages import Msg, ToolUseBlock
from agentflow.vocabulary.saving.plain import text_of
from agentflow.vocabulary.specs import Usage

Fields: TypeAlias = dict[str, object]


def message_text(msg: Msg, separator: str = "\n") -> str:
    """Return the text of a message, with its tool calls and results.

    Example:
        >>> message_text(Msg.assistant([ToolUseBlock("t1", "look", {"x": 1})]))
        '[look {"x":1}]'
    """
    calls = [f"[{use.name} {use.raw}]" for use in msg.tool_uses]
    results = [f"[{result.name}: {result.state}: {result.shown}]" for result in msg.tool_results]
    return separator.join([*([msg.shown] if msg.shown and not results else []), *calls, *results])


def fields_of(event: HookEvent) -> Fields:
    """Return an event's fields by name, for JSON and readable log lines.

    Example:
        >>> fields_of(PreActing(tool_use=ToolUseBlock("t1", "add", {"a": 1})))
        {'tool': 'add', 'id': 't1', 'input': '{"a":1}'}
    """
    match event:  # the most frequent events first
        case PreActing(tool_use=use):
            return {"tool": use.name, "id": use.id, "input": use.raw}
        case PostActing(tool_use=use, tool_result=result):
            fields: Fields = {"tool": use.name, "id": use.id, "state": result.state, "result": result.shown}
            fields["ms"] = rounded_ms(event.duration_ms)
            return {**fields, "waited_ms": rounded_ms(event.waited_ms)} if event.waited_ms >= 1 else fields
        case PostReasoning():
            reply = event.reasoning_result
            reply_fields: Fields = {
                "text": reply.shown,
                "calls": _calls(reply.tool_uses),
                "finish": reply.finish_reason,
            }
            reply_fields.update(_usage(event.usage), ms=rounded_ms(event.duration_ms))
            return reply_fields
        case PreCall():
            return {"input": _texts(event.input_messages), "history": len(event.history)}
        case PreReasoning():
            purpose = event.purpose if event.purpose != "reason" else None
            fields = {"model": event.model, "messages": len(event.input_messages), "tools": len(event.tools)}
            return fields if purpose is None else {**fields, "purpose": purpose}
        case ActingChunk(tool_use=use):
            return {"tool": use.name, "id": use.id, "chunk": text_of(event.chunk)}
        case ReasoningChunk():
            chunk = event.incremental_chunk
            calls = "".join(f"{part.name or ''}{part.arguments}" for part in chunk.tool_uses)
            again = {"attempt": event.attempt} if event.attempt > 1 else {}
            return {"text": chunk.text, "thinking": chunk.thinking, "calls": calls, **again}
        case PreToolRound():
            return {"calls": _calls(event.tool_uses)}
        case PostToolRound():
            return {"results": ", ".join(f"{result.name} {result.state}" for result in event.tool_results)}
        case PostCall():
            fields = {"outcome": event.outcome, "text": event.final_message.shown}
            return {**fields, "ms": rounded_ms(event.duration_ms)}
        case Error():
            fields = {"phase": event.phase.value, "fatal": event.fatal, "error": error_text(event.error)}
            return {**fields, "hook": event.hook, "tool": event.tool_use.name if event.tool_use is not None else None}
        case CallEnded():
            fields = {
                "outcome": event.outcome,
                "error": error_text(event.error),
                "model_calls": event.usage.model_calls,
            }
            return {**fields, **_usage(event.usage)}
        case MessagesAdded():
            return {"origin": event.origin, "messages": len(event.messages), "text": _texts(event.messages)}
        case PrePut() | PostPut() | PreTurn() | TurnValue() | PostTurn():
            return _turn(event)
        case Paused() | Resumed():
            return {}
    assert_never(event)


def _turn(event: PrePut | PostPut | PreTurn | TurnValue | PostTurn) -> Fields:
    turn: TurnView = event.turn
    fields: Fields = {"turn": turn.id, "tool": turn.tool_use.name}
    match event:
        case TurnValue():
            return {**fields, "value": text_of(event.value)}
        case PostTurn():
            took: Fields = {} if turn.duration_ms is None else {"ms": rounded_ms(turn.duration_ms)}
            return {**fields, "stop_reason": turn.stop_reason, **took, "error": error_text(event.error)}
        case _:
            return {**fields, "input": turn.tool_use.raw}


def _usage(usage: Usage) -> Fields:
    fields: Fields = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return fields if usage.cost is None else {**fields, "cost": round(usage.cost, 6)}


def _calls(uses: Sequence[ToolUseBlock]) -> str:
    return ", ".join([f"{use.name}({use.raw})" for use in uses])


def _texts(messages: Iterable[Msg]) -> str:
    return "\n".join(msg.shown for msg in messages)


def rounded_ms(duration: float) -> float:
    """Round a duration for display."""
    return round(duration * 10) / 10  # `round(duration, 1)` takes ten times as long, because it formats a text


def error_text(error: BaseException | None) -> str | None:
    """Return the class and the text of an exception; None for None."""
    return None if error is None else f"{type(error).__name__}: {text_of(error)}"
