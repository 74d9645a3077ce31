"""A loop written by hand: the code of a competent user without a library, and no more.

It joins text, gathers tool calls from fragments by index, validates arguments with pydantic, answers unknown tools and wrong
arguments, runs the tools of one reply at once, keeps the whole conversation, and stops at a limit. Over the wire it reads
server-sent events from aiohttp.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from benchmarks.peers import kit
from benchmarks.peers.kit import Plan

HOOKS = None
WITHOUT = {"hooks": "has no hooks; plain code would cost one function call"}
NOTES = (
    "Has no hooks, sessions, cancellation rules, usage or ids.",
    "Over the wire: aiohttp, and `json` for each event.",
)

Message = dict[str, Any]


class _Add(TypedDict):
    a: int
    b: int


class _Nothing(TypedDict):
    pass


TOOLS: dict[str, tuple[TypeAdapter[Any], Any]] = {
    "add": (TypeAdapter(_Add), kit.add),
    "wait_a_millisecond": (TypeAdapter(_Nothing), kit.wait_a_millisecond),
}


class Delta:
    """A chunk of a reply: of its text, or of a tool call."""

    __slots__ = ("arguments", "id", "index", "name", "text")

    def __init__(self, text: str = "", index: int = -1, id: str = "", name: str = "", arguments: str = "") -> None:  # noqa: A002
        self.text = text
        self.index = index
        self.id = id
        self.name = name
        self.arguments = arguments


class Model:
    """Replies as the plan says."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    async def stream(self, messages: list[Message]) -> AsyncIterator[Delta]:
        """Yield the chunks of the next reply."""
        plan = self._plan
        asks = plan.turn(messages[-1]["role"] == "tool", len(messages))
        if plan.wait:
            await asyncio.sleep(plan.wait)
        if asks:
            for index, id in enumerate(kit.ids(plan.calls)):  # noqa: A001
                yield Delta("", index, id, plan.tool, kit.ARGUMENTS[plan.tool])
        else:
            for text in plan.pieces:
                yield Delta(text)


class WireModel:
    """OpenAI's chat completions over HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def stream(self, messages: list[Message]) -> AsyncIterator[Delta]:
        """Yield the chunks of a reply as they arrive."""
        if self._session is None:
            self._session = aiohttp.ClientSession(headers={"Authorization": "Bearer sk-test"})
        body = {"model": "test", "messages": messages, "stream": True}
        async with self._session.post(f"{self._url}/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if line.startswith(b"data: ") and line[6:7] == b"{":
                    for choice in json.loads(line[6:])["choices"]:
                        if text := choice["delta"].get("content"):
                            yield Delta(text)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()


class _Call:
    __slots__ = ("arguments", "id", "name")

    def __init__(self, id: str, name: str, arguments: str) -> None:  # noqa: A002
        self.id = id
        self.name = name
        self.arguments = arguments


def _assistant(text: str, calls: dict[int, _Call]) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in calls.values()
        ]
    return message


async def _run_tool(call: _Call) -> Message:
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


async def _run_tools(calls: dict[int, _Call]) -> list[Message]:
    if len(calls) == 1:
        return [await _run_tool(call) for call in calls.values()]
    return list(await asyncio.gather(*[_run_tool(call) for call in calls.values()]))


async def _loop(model: Any, messages: list[Message], max_rounds: int) -> AsyncIterator[str]:
    """Pass on each chunk of text, until there are no tool calls."""
    for _ in range(max_rounds):
        texts: list[str] = []
        calls: dict[int, _Call] = {}
        async for delta in model.stream(messages):
            if delta.text:
                texts.append(delta.text)
                yield delta.text
            if delta.index >= 0:
                call = calls.get(delta.index)
                if call is None:
                    calls[delta.index] = _Call(delta.id, delta.name, delta.arguments)
                else:
                    call.arguments += delta.arguments
        messages.append(_assistant("".join(texts), calls))
        if not calls:
            return
        messages += await _run_tools(calls)
    raise RuntimeError("too many rounds")


def build(plan: Plan, hooks: bool = False) -> Model:
    """The model is all there is."""
    return Model(plan)


def history(count: int) -> list[Message]:
    """A conversation of so many messages."""
    return [{"role": "assistant" if place % 2 else "user", "content": f"Message {place}."} for place in range(count)]


async def call(model: Model, history: list[Message] | None = None) -> str:
    """A call in a conversation of its own."""
    messages = [*(history or ()), {"role": "user", "content": kit.PROMPT}]
    for _ in range(1_000):
        texts: list[str] = []
        calls: dict[int, _Call] = {}
        async for delta in model.stream(messages):
            if delta.text:
                texts.append(delta.text)
            if delta.index >= 0:
                found = calls.get(delta.index)
                if found is None:
                    calls[delta.index] = _Call(delta.id, delta.name, delta.arguments)
                else:
                    found.arguments += delta.arguments
        text = "".join(texts)
        messages.append(_assistant(text, calls))
        if not calls:
            return text
        messages += await _run_tools(calls)
    raise RuntimeError("too many rounds")


async def stream(model: Any, prompt: str = kit.PROMPT) -> list[str]:
    """The same, and the chunks of text as a reader receives them."""
    return [text async for text in _loop(model, [{"role": "user", "content": prompt}], 1_000)]


def wire(url: str) -> WireModel:
    """The same loop over HTTP."""
    return WireModel(url)


async def close(model: WireModel) -> None:
    """Close the connections that `wire` opened."""
    await model.close()
