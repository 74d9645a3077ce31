"""Our adapters drive servers that others wrote: each adapter, on each server, through each case."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from agentflow import Agent, Msg, tool
from agentflow.errors import ModelError, ModelFault
from agentflow.loop.output import Output
from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.clients import close_clients
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.openai_wire import OpenAIWire
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.ports.model import Model, ModelRequest
from agentflow.vocabulary.specs import ModelOptions
from benchmarks.interop.driven import Row
from benchmarks.interop.servers import HELLO, KEY, TOTAL, Running, Server, run

__all__ = ["drive_server"]

CLAUDE, GPT = "claude-sonnet-4-5", "gpt-4o"
ADAPTERS: dict[str, Callable[[str, str], Model]] = {
    "OpenAIWire": lambda url, key: OpenAIWire(GPT, api_base=f"{url}/v1", api_key=key, retries=1),
    "AnthropicWire": lambda url, key: AnthropicWire(CLAUDE, api_base=url, api_key=key, retries=1),
    "LiteLLMModel openai/": lambda url, key: LiteLLMModel(
        f"openai/{GPT}", api_base=f"{url}/v1", api_key=key, retries=1
    ),
    "LiteLLMModel anthropic/": lambda url, key: LiteLLMModel(
        f"anthropic/{CLAUDE}", api_base=url, api_key=key, retries=1
    ),
}
GATEWAY: dict[str, Callable[[str, str], Model]] = {
    "OpenAIWire on Claude": lambda url, key: OpenAIWire(
        CLAUDE, api_base=f"{url}/v1", api_key=key, retries=1, family="anthropic"
    ),
    "LiteLLMModel litellm_proxy/": lambda url, key: LiteLLMModel(
        f"litellm_proxy/{CLAUDE}", api_base=url, api_key=key, retries=1, family="anthropic"
    ),
}
"""With a gateway in between, the wire does not report the provider of the model."""


class Point(BaseModel):
    """A point."""

    x: int
    y: str


@dataclass(frozen=True)
class Driver:
    """One adapter on one server."""

    who: str
    model: Model
    wrong: Model
    server: Running

    def stream(self, words: str) -> AsyncIterator[ModelChunk]:
        """Ask the adapter itself."""
        return self.model.stream(ModelRequest([Msg.user(words)], (), ModelOptions(max_tokens=50), self.model.name))

    async def pieces(self, words: str) -> list[ModelChunk]:
        """All that is streamed."""
        async with aclosing(self.stream(words)) as chunks:
            return [chunk async for chunk in chunks]


async def _words(it: Driver) -> None:
    reply = fold(await it.pieces("hello"))
    _same((reply.text.strip(), reply.finish_reason), (HELLO, "stop"))


async def _streamed(it: Driver) -> None:
    texts = [chunk.text for chunk in await it.pieces("hello") if chunk.text]
    assert len(texts) > 1, texts


async def _at_once(it: Driver) -> None:
    replies = await asyncio.gather(*(it.pieces("hello") for _ in range(8)))
    _same({fold(reply).text.strip() for reply in replies}, {HELLO})


async def _tool_loop(it: Driver) -> None:
    asked: list[tuple[int, int]] = []

    @tool
    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        asked.append((a, b))
        return str(a + b)

    reply = await Agent("adder", it.model, tools=[add]).call(f"add, {it.who}")
    _same((asked, reply.text.strip()), ([(1, 2)], TOTAL))


async def _typed(it: Driver) -> None:
    reply = await Agent("clerk", it.model, output=Output(Point, via="native")).call("json")
    _same(reply.output, Point(x=1, y="b"))


async def _leaves(it: Driver) -> None:
    begun = asyncio.Event()

    async def read() -> None:
        async with aclosing(it.stream("long")) as chunks:
            async for chunk in chunks:
                if chunk.text:
                    begun.set()

    reading = asyncio.create_task(read())
    async with asyncio.timeout(60):
        await begun.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert reading.cancelled()
        while any(wire.open_connections for wire in it.server.behind):  # noqa: ASYNC110 - it runs in another thread
            await asyncio.sleep(0.05)
    await _words(it)


def _failing(
    words: str, status: int, kind: ModelFault | None, *, retryable: bool
) -> Callable[[Driver], Awaitable[None]]:
    async def case(it: Driver) -> None:
        await _fails(it.pieces(words), status, kind, retryable)

    return case


async def _wrong_key(it: Driver) -> None:
    other = Driver(it.who, it.wrong, it.wrong, it.server)
    await _fails(other.pieces("hello"), 401, "authentication", retryable=False)


async def _fails(asked: Awaitable[object], status: int, kind: ModelFault | None, retryable: bool) -> None:
    try:
        reply = await asked
    except ModelError as error:
        _same((error.status, error.kind, error.retryable), (status, kind, retryable))
    else:
        raise AssertionError(f"a reply came: {reply!r}"[:200])


def _same(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"found {found!r}, wanted {wanted!r}")


CASES: dict[str, Callable[[Driver], Awaitable[None]]] = {
    "words": _words,
    "a stream": _streamed,
    "eight at once": _at_once,
    "a tool loop": _tool_loop,
    "a typed answer": _typed,
    "a reader that is cancelled": _leaves,
    "429": _failing("busy", 429, "rate_limit", retryable=True),
    "500": _failing("broken", 500, None, retryable=True),
    "401": _failing("locked", 401, "authentication", retryable=False),
    "a wrong key": _wrong_key,
}


def drive_server(server: Server, home: Path) -> Iterator[Row]:
    """All adapters and cases on one server.

    Args:
        server: Which.
        home: The environment that it is installed in.
    """
    with run(server, home) as running:
        for who, build in (ADAPTERS | GATEWAY if server.backends else ADAPTERS).items():
            yield from asyncio.run(_drive(server, running, who, build))


async def _drive(server: Server, running: Running, who: str, build: Callable[[str, str], Model]) -> list[Row]:
    driver = Driver(who, build(running.url, KEY), build(running.url, "sk-wrong"), running)
    rows: list[Row] = []
    for case, body in CASES.items():
        if case == "a wrong key" and not server.checks_keys:
            continue
        theirs = server.theirs.get(f"{who}: {case}") or server.theirs.get(case, "")
        row = Row(server.name, f"{who}: {case}", True, theirs=theirs)
        try:
            async with asyncio.timeout(120):
                await body(driver)
        except Exception as error:  # any: whatever goes wrong is the row
            row.ok, row.why = False, f"{type(error).__name__}: {error}"[:300]
        rows.append(row)
    await close_clients()
    return rows
