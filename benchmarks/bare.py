"""The other side: the code of a competent user without a library, and the model and tool that both sides share.

Rules:

1. Both sides use the same model object and the same tool function; the model builds new chunks each time, as an adapter does.
2. The loops leave nothing out that a working program needs: they join text, gather tool calls by index from fragments,
   validate arguments with pydantic, answer unknown tools and wrong arguments, keep the whole conversation, and stop at
   a limit. They have no hooks, sessions, cancellation rules, usage or ids: that is the difference in cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta

__all__ = [
    "TOOLS",
    "Chunks",
    "Script",
    "WaitingScript",
    "add",
    "answer",
    "bare_call",
    "bare_stream",
    "parallel_call",
    "tool_reply",
    "user",
    "wait_a_millisecond",
]

Message = dict[str, Any]
ToolTable = dict[str, tuple[TypeAdapter[Any], Callable[..., Awaitable[Any]]]]


# ---- shared by both sides


def answer(text: str = "It is 3.") -> tuple[ModelChunk, ...]:
    """A reply without tool calls, in one chunk."""
    return (ModelChunk(text, finish_reason="stop"),)


def tool_reply(round_number: int, name: str = "add", calls: int = 1) -> tuple[ModelChunk, ...]:
    """A reply that asks for tools, in one chunk."""
    arguments = '{"a": 1, "b": 2}' if name == "add" else "{}"
    deltas = [ToolUseDelta(i, f"call_{round_number}_{i}", name, arguments) for i in range(calls)]
    return (ModelChunk(tool_uses=tuple(deltas), finish_reason="tool_calls"),)


def _anew(chunk: ModelChunk) -> ModelChunk:
    """The chunk built once more, as an adapter builds each from its input."""
    deltas = chunk.tool_uses
    if deltas:
        deltas = tuple([ToolUseDelta(d.index, d.id, d.name, d.arguments) for d in deltas])
    return ModelChunk(chunk.text, tool_uses=deltas, usage=chunk.usage, finish_reason=chunk.finish_reason)


class Script:
    """A model that returns its replies in turn, over and over; it builds their chunks, and waits for nothing."""

    name = "script"

    def __init__(self, *replies: Sequence[ModelChunk]) -> None:
        self._replies = replies
        self._next = 0

    async def stream(self, request: object) -> AsyncIterator[ModelChunk]:
        """Yield the chunks of the next reply."""
        reply = self._replies[self._next]
        self._next = (self._next + 1) % len(self._replies)
        for chunk in reply:
            yield _anew(chunk)


class WaitingScript:
    """A model for many calls at once: it waits on a timer for each reply and finds its place by the conversation."""

    name = "waiting"

    def __init__(self, *replies: Sequence[ModelChunk]) -> None:
        self._replies = replies

    async def stream(self, request: Any) -> AsyncIterator[ModelChunk]:
        """Yield the chunks of the reply that comes next in this conversation, after a millisecond."""
        messages: Sequence[Any] = getattr(request, "messages", request)  # the bare loop passes its list
        reply = self._replies[len(messages) // 2]
        await asyncio.sleep(0.001)
        for chunk in reply:
            yield _anew(chunk)


class Chunks:
    """A model with a reply of `count` small chunks."""

    name = "chunks"

    def __init__(self, count: int) -> None:
        self._count = count

    async def stream(self, request: object) -> AsyncIterator[ModelChunk]:
        """Yield the chunks."""
        for _ in range(self._count):
            yield ModelChunk("word ")


async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


async def wait_a_millisecond() -> str:
    """Wait, as for a database."""
    await asyncio.sleep(0.001)
    return "done"


# ---- the bare loops


class _AddArguments(TypedDict):
    a: int
    b: int


class _NoArguments(TypedDict):
    pass


TOOLS: ToolTable = {
    "add": (TypeAdapter(_AddArguments), add),
    "wait_a_millisecond": (TypeAdapter(_NoArguments), wait_a_millisecond),
}


class _Call:
    __slots__ = ("arguments", "id", "name")

    def __init__(self, id: str, name: str, arguments: str) -> None:  # noqa: A002
        self.id = id
        self.name = name
        self.arguments = arguments


def user(text: str) -> Message:
    """A user's message."""
    return {"role": "user", "content": text}


def _assistant(text: str, calls: dict[int, _Call]) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in calls.values()
        ]
    return message


def _gather_fragments(calls: dict[int, _Call], deltas: Sequence[ToolUseDelta]) -> None:
    for delta in deltas:
        call = calls.get(delta.index)
        if call is None:
            calls[delta.index] = _Call(delta.id, delta.name, delta.arguments)
        else:
            call.arguments += delta.arguments


async def _run_tool(call: _Call) -> Message:
    """Validate the arguments, call the tool, and answer with a message; errors are answers too."""
    tool = TOOLS.get(call.name)
    if tool is None:
        content = f"Unknown tool {call.name}"
    else:
        adapter, function = tool
        try:
            content = await function(**adapter.validate_json(call.arguments))
        except ValidationError as error:
            content = f"Invalid arguments: {error}"
        except Exception as error:
            content = f"{type(error).__name__}: {error}"
    return {"role": "tool", "tool_call_id": call.id, "content": content}


async def bare_call(model: Any, messages: list[Message], max_iterations: int = 25) -> str:
    """The loop of `agent.call`: ask, run the tools one by one, ask again, until there are no tool calls."""
    for _ in range(max_iterations):
        texts: list[str] = []
        calls: dict[int, _Call] = {}
        async for chunk in model.stream(messages):
            if chunk.text:
                texts.append(chunk.text)
            if chunk.tool_uses:
                _gather_fragments(calls, chunk.tool_uses)
        text = "".join(texts)
        messages.append(_assistant(text, calls))
        if not calls:
            return text
        for call in calls.values():
            messages.append(await _run_tool(call))  # noqa: PERF401 - one after the other is meant
    raise RuntimeError("too many rounds")


async def bare_stream(model: Any, messages: list[Message], max_iterations: int = 25) -> AsyncIterator[object]:
    """The loop of `agent.stream`: the same as an async generator, which passes on chunks and tool results."""
    for _ in range(max_iterations):
        texts: list[str] = []
        calls: dict[int, _Call] = {}
        async for chunk in model.stream(messages):
            if chunk.text:
                texts.append(chunk.text)
            if chunk.tool_uses:
                _gather_fragments(calls, chunk.tool_uses)
            yield chunk
        messages.append(_assistant("".join(texts), calls))
        if not calls:
            return
        for call in calls.values():
            result = await _run_tool(call)
            messages.append(result)
            yield result
    raise RuntimeError("too many rounds")


async def parallel_call(model: Any, messages: list[Message], max_iterations: int = 25) -> str:
    """`bare_call` with the tools of one reply run by `asyncio.gather`."""
    for _ in range(max_iterations):
        texts: list[str] = []
        calls: dict[int, _Call] = {}
        async for chunk in model.stream(messages):
            if chunk.text:
                texts.append(chunk.text)
            if chunk.tool_uses:
                _gather_fragments(calls, chunk.tool_uses)
        text = "".join(texts)
        messages.append(_assistant(text, calls))
        if not calls:
            return text
        messages.extend(await asyncio.gather(*[_run_tool(call) for call in calls.values()]))
    raise RuntimeError("too many rounds")
