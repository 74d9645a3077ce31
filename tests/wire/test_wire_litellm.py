"""litellm, the client in use most of the time, holds a legal conversation with the wire servers on both wires."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentflow.testing.wire import Dialect, Fault, Say, ScriptedCall, WireReply, WireServer, WireUsage

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # litellm fetches it over the network on import otherwise

import litellm

litellm.suppress_debug_info = True

# Both stem from litellm's own types, on Python 3.11 and newer pydantic; neither is ours to fail on.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Item .* using the `ReadOnly` qualifier:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:litellm"),
]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
        },
    }
]
THINKING = {"type": "enabled", "budget_tokens": 1024}
USAGE = WireUsage(input=11, output=5, cache_read=4, cache_write=2)


@pytest.fixture(autouse=True)
async def _closed_clients() -> AsyncIterator[None]:  # pyright: ignore[reportUnusedFunction]
    yield
    await litellm.close_litellm_async_clients()


@dataclass
class Said:
    """The content of a reply after litellm: the parts an agent keeps."""

    text: str = ""
    thinking: str = ""
    signature: str | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    tokens: tuple[int, int] | None = None

    def message(self) -> dict[str, Any]:
        """The assistant message to send back."""
        made: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        if self.calls:
            made["tool_calls"] = self.calls
        if self.signature is not None:
            block = {"type": "thinking", "thinking": self.thinking, "signature": self.signature}
            made["thinking_blocks"] = [block]
        elif self.thinking:
            made["reasoning_content"] = self.thinking
        return made


def call_of(ident: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def whole(response: Any) -> Said:
    """Read a response that was not streamed."""
    choice = response.choices[0]
    message = choice.message
    blocks = getattr(message, "thinking_blocks", None) or []
    return Said(
        text=message.content or "",
        thinking=getattr(message, "reasoning_content", None) or "",
        signature=blocks[0]["signature"] if blocks else None,
        calls=[call_of(one.id, one.function.name, one.function.arguments) for one in message.tool_calls or []],
        finish=choice.finish_reason,
        tokens=(response.usage.prompt_tokens, response.usage.completion_tokens),
    )


async def streamed(chunks: Any) -> Said:
    """Fold a stream: calls by index, thinking from its text deltas, the signature from the blocks."""
    said, calls = Said(), dict[int, dict[str, Any]]()
    async for chunk in chunks:
        usage = getattr(chunk, "usage", None)
        if usage is not None:
            said.tokens = (usage.prompt_tokens, usage.completion_tokens)
        for choice in chunk.choices:
            delta = choice.delta
            said.text += delta.content or ""
            said.thinking += getattr(delta, "reasoning_content", None) or ""
            said.finish = choice.finish_reason or said.finish
            for block in getattr(delta, "thinking_blocks", None) or []:
                said.signature = block.get("signature") or said.signature
            for piece in delta.tool_calls or []:
                made = calls.setdefault(piece.index, call_of("", "", ""))
                made["id"] += piece.id or ""
                made["function"]["name"] += piece.function.name or ""
                made["function"]["arguments"] += piece.function.arguments or ""
    said.calls = [calls[index] for index in sorted(calls)]
    return said


class Client:
    """One conversation through litellm."""

    def __init__(self, server: WireServer, *, stream: bool, thinking: bool = False) -> None:
        openai = server.rules[0].wire == "openai"
        self._stream = stream
        self._fixed: dict[str, Any] = {
            "model": "openai/test" if openai else "anthropic/claude-sonnet-4-5",
            "api_base": server.base_url,
            "api_key": "sk-test",
            "max_tokens": 4096,
            "max_retries": 0,
            "num_retries": 0,
        }
        if thinking and not openai:
            self._fixed["thinking"] = THINKING
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}]

    async def say(self, **more: Any) -> Said:
        """Send the conversation and keep the answer in it."""
        if self._stream:
            more |= {"stream": True, "stream_options": {"include_usage": True}}
        response = await litellm.acompletion(messages=self.messages, **self._fixed, **more)
        said = await streamed(response) if self._stream else whole(response)
        self.messages.append(said.message())
        return said

    def answer(self, said: Said) -> None:
        """Answer each call of a reply."""
        for one in said.calls:
            self.messages.append({"role": "tool", "tool_call_id": one["id"], "content": "3"})

    def ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})


def server_of(wire: str, script: list[Any], dialect: Dialect | None = None) -> WireServer:
    return getattr(WireServer, wire)(script, dialect=dialect)


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_conversation_with_thinking_tools_and_a_second_turn_passes(wire: str, stream: bool) -> None:
    """Two parallel calls, a second step, an answer and a new turn; nothing is refused and all arrives as scripted."""
    script = [
        WireReply(
            "Let me add.",
            thinking="I should add, é.",
            calls=(ScriptedCall("add", {"a": 1, "b": 2}), ScriptedCall("add", {"a": "日本"})),
            usage=USAGE,
            chunk=3,
            interleave=True,
        ),
        WireReply(calls=(ScriptedCall("add"),)),
        Say("Three."),
        Say("Bye."),
    ]
    async with server_of(wire, script) as server:
        client = Client(server, stream=stream, thinking=True)
        client.ask("1 + 2?")
        first = await client.say(tools=TOOLS)
        ids = ["call_wire_0_0", "call_wire_0_1"] if wire == "openai" else ["toolu_wire_0_0", "toolu_wire_0_1"]
        assert (first.text, first.thinking, first.finish, first.tokens) == (
            "Let me add.",
            "I should add, é.",
            "tool_calls",
            (17, 5),
        )
        assert [(one["id"], one["function"]["name"]) for one in first.calls] == [(ids[0], "add"), (ids[1], "add")]
        client.answer(first)
        second = await client.say(tools=TOOLS)
        client.answer(second)
        third = await client.say(tools=TOOLS)
        client.ask("Thanks.")
        fourth = await client.say(tools=TOOLS)
        assert [one["function"]["name"] for one in second.calls] == ["add"]
        assert (third.text, third.finish, fourth.text) == ("Three.", "stop", "Bye.")
        assert [(request.rule, request.ending) for request in server.requests] == [(None, "complete")] * 4
        assert server.requests[1].tool_names == ("add",)
        assert [result.text for result in server.requests[1].results] == ["3", "3"]
        server.assert_done()
        async with asyncio.timeout(5):
            await server.wait_closed_connections()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_deepseek_gets_its_reasoning_back(stream: bool) -> None:
    """reasoning_content given back by the client satisfies the dialect that asks for it."""
    script = [WireReply(thinking="hm", calls=(ScriptedCall("add", {"a": 1}),)), Say("ok")]
    async with server_of("openai", script, Dialect.deepseek()) as server:
        client = Client(server, stream=stream)
        client.ask("go")
        client.answer(await client.say(tools=TOOLS))
        assert (await client.say(tools=TOOLS)).text == "ok"
        server.assert_done()


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_noise_and_odd_cuts_do_not_change_what_arrives(wire: str) -> None:
    """Single bytes, CRLF, comments, pings: litellm reads the same text."""
    faults = (Fault.split_bytes(1), Fault.crlf(), Fault.comments(), Fault.pings(2))
    async with server_of(wire, [Say("grüße 日本", chunk=2, faults=faults)]) as server:
        client = Client(server, stream=True)
        client.ask("go")
        assert (await client.say()).text == "grüße 日本"


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_a_refusal_reaches_the_caller_with_its_text(wire: str) -> None:
    """An unanswered call is a BadRequestError that names it."""
    async with server_of(wire, []) as server:
        client = Client(server, stream=False)
        client.ask("go")
        client.messages.append({"role": "assistant", "content": None, "tool_calls": [call_of("c1", "add", "{}")]})
        client.ask("well?")
        with pytest.raises(litellm.BadRequestError, match="c1"):
            await client.say(tools=TOOLS)
        assert server.requests[0].rule == f"{wire}.unanswered"


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_a_rate_limit_tells_how_long_to_wait(wire: str) -> None:
    """The status and the header arrive, after one request and no more."""
    async with server_of(wire, [Fault.status(429, retry_after=2), Say("ok")]) as server:
        client = Client(server, stream=False)
        client.ask("go")
        with pytest.raises(litellm.RateLimitError) as caught:
            await client.say()
        assert caught.value.litellm_response_headers["retry-after"] == "2"
        assert (await client.say()).text == "ok"
        assert len(server.requests) == 2


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_context_overflow_is_recognised(wire: str) -> None:
    """litellm distinguishes it from other bad requests."""
    async with server_of(wire, [Fault.context_overflow()]) as server:
        client = Client(server, stream=False)
        client.ask("go")
        with pytest.raises(litellm.ContextWindowExceededError):
            await client.say()


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_a_cancelled_call_leaves_no_connection(wire: str) -> None:
    """Cancelling a hanging request closes it at the server too."""
    async with server_of(wire, [Fault.hang()]) as server:
        client = Client(server, stream=True)
        client.ask("go")
        task = asyncio.create_task(client.say())
        async with asyncio.timeout(10):
            await server.wait_requests()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await server.wait_closed_connections()
        assert server.requests[0].ending == "client left"
