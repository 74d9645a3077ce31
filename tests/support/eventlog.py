"""What tests compare: a run as lines of text, whole.

The normal form of an event is one line: its type, its key fields, and ` -> Verdict(hook)` where its chain decided, or
` !! Error(hook)` where its chain failed. Left out: ids of runs, calls and messages, times, durations, and how a reply was
cut into chunks (neighbouring chunks of one attempt are one line). Ids of tool calls stay: scripts choose them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from agentflow.agent.agent import Agent
from agentflow.hooks.hook import Hook
from agentflow.loop.session import Session
from agentflow.vocabulary.events import (
    ActingChunk,
    CallEnded,
    Error,
    Event,
    MessagesAdded,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
    ReasoningChunk,
)
from agentflow.vocabulary.messages import Msg, ToolResultBlock, ToolUseBlock

__all__ = ["Recorder", "Requests", "history", "line", "log", "run", "said", "sent", "streamed", "use"]


def use(id: str, name: str, /, **arguments: Any) -> ToolUseBlock:  # noqa: A002
    """A tool call of a script."""
    return ToolUseBlock(id, name, arguments)


def _use(block: ToolUseBlock) -> str:
    return f"{block.id}:{block.name}({', '.join(f'{key}={value!r}' for key, value in block.input.items())})"


def _uses(blocks: Iterable[ToolUseBlock]) -> str:
    return ", ".join(_use(block) for block in blocks)


def _result(block: ToolResultBlock) -> str:
    return f"{block.tool_use_id} {block.state} {block.shown!r}"


def said(msg: Msg) -> str:
    """Return one message: its role, text, calls and results."""
    if msg.role == "tool":
        return f"tool: {'; '.join(_result(block) for block in msg.tool_results)}"
    parts = [msg.shown] if msg.shown else []
    parts.extend(f"[{_use(block)}]" for block in msg.tool_uses)
    return f"{msg.role}: {' '.join(parts)}"


def history(source: Session | Sequence[Msg]) -> list[str]:
    """A session's messages, one line each."""
    messages = source.messages if isinstance(source, Session) else source
    return [said(msg) for msg in messages]


def sent(agent: Agent, number: int) -> list[str]:
    """Return the model's request of that number, one line for each message."""
    return history(agent.config.model.requests[number].messages)  # type: ignore[union-attr]


def _error(error: BaseException | None) -> str:
    return f" {type(error).__name__}: {error}" if error is not None else ""


def _fields(event: Event) -> str:
    match event:
        case PreCall():
            return " | ".join(said(msg) for msg in event.input_messages)
        case PreReasoning():
            return f"{event.iteration} {event.purpose}"
        case PostReasoning():
            return said(event.reasoning_result).removeprefix("assistant: ")
        case PreToolRound():
            return _uses(event.tool_uses)
        case PreActing():
            return _use(event.tool_use) + (f" {type(event.approval).__name__}" if event.approval else "")
        case ActingChunk():
            return f"{event.tool_use.id} {event.chunk!r}"
        case PostActing():
            return _result(event.tool_result)
        case PostToolRound():
            return "; ".join(_result(block) for block in event.tool_results)
        case PostCall():
            return f"{event.outcome} {event.final_message.shown!r}"
        case Error():
            return f"{event.phase.value}{' fatal' if event.fatal else ''}{_error(event.error)}"
        case CallEnded():
            return f"{event.outcome}{_error(event.error)}"
        case MessagesAdded():
            return f"{event.origin} {' | '.join(said(msg) for msg in event.messages)}"
        case _:
            return ""


def _chunk(event: ReasoningChunk) -> str:
    chunk = event.incremental_chunk
    parts = [chunk.thinking, chunk.text, *(f"[{d.id}:{d.name} {d.arguments}]" for d in chunk.tool_uses)]
    parts.extend(f"[{_use(block)}]" for block in chunk.blocks if isinstance(block, ToolUseBlock))
    parts.extend(getattr(block, "text", "") for block in chunk.blocks if not isinstance(block, ToolUseBlock))
    return "".join(parts)


def line(event: Event) -> str:
    """One event in the normal form."""
    text = f"{type(event).__name__} {_fields(event)}".strip()
    decided = event.decision
    if decided is None:
        return text
    if decided.error is not None:
        return f"{text} !! {type(decided.error).__name__}({decided.hook})"
    return f"{text} -> {type(decided.verdict).__name__}({decided.hook})"


def log(events: Iterable[Event]) -> list[str]:
    """Events in the normal form, neighbouring chunks of one attempt as one line."""
    lines: list[str] = []
    open_chunk = False
    for event in events:
        if isinstance(event, ReasoningChunk):
            if not open_chunk or event.restart:
                lines.append(f"ReasoningChunk{f' attempt {event.attempt}' if event.restart else ''} ")
            lines[-1] += _chunk(event)
            open_chunk = True
            continue
        open_chunk = False
        lines.append(line(event))
    return [text.rstrip() for text in lines]


class Recorder(Hook):
    """Keeps every sealed event of the calls it sees."""

    observer = True
    priority = 1000

    def __init__(self) -> None:
        self.seen: list[Event] = []

    def on_event(self, event: Any) -> None:
        self.seen.append(event)

    @property
    def log(self) -> list[str]:
        """What was seen, in the normal form."""
        return log(self.seen)


class Requests(Hook):
    """Keeps what was going to be sent."""

    observer = True
    events = (PreReasoning,)

    def __init__(self) -> None:
        self.seen: list[tuple[Msg, ...]] = []

    def on_event(self, event: Any) -> None:
        self.seen.append(tuple(event.input_messages))


async def run(agent: Agent, path: str) -> None:
    """One call, by `path`: "call" or "stream"."""
    if path == "call":
        await agent.call("go")
        return
    async with agent.stream("go") as events:
        async for _ in events:
            pass


async def streamed(agent: Agent, text: str = "go", **options: Any) -> list[str]:
    """The log of one streamed call."""
    async with agent.stream(text, **options) as events:
        return log([event async for event in events])
