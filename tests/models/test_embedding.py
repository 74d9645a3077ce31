"""Embedders over the wire: batches, retries, refusals, unusable answers, and prices."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from agentflow.errors import ModelError, UsageError
from agentflow.models import LiteLLMEmbedder, OpenAIEmbedder
from agentflow.testing.embedding import TermEmbedder
from agentflow.testing.wire import WireServer
from agentflow.vocabulary.ports.embedder import Embeddings, unit_vectors
from agentflow.vocabulary.specs import Usage

MODEL = "openai/text-embedding-3-small"
embedders = pytest.mark.parametrize("make", [OpenAIEmbedder, LiteLLMEmbedder])


@asynccontextmanager
async def answering(*answers: tuple[int, Any]) -> AsyncIterator[tuple[str, list[dict[str, Any]]]]:
    """A server with these answers, the last one repeated, and the bodies that it received."""
    left, received = list(answers), list[dict[str, Any]]()

    async def answer(request: web.BaseRequest) -> web.Response:
        received.append(await request.json())
        status, body = left.pop(0) if len(left) > 1 else left[0]
        return web.json_response(body, status=status, headers={"retry-after": "0"})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", received
    finally:
        await runner.cleanup()


@embedders
async def test_vectors_and_price(make: Callable[..., Any]) -> None:
    """Both ways return the vectors in order, with the usage and its price, in batches."""
    texts = [f"text {n}" for n in range(130)]
    async with WireServer.openai([]) as server:
        made: Embeddings = await make(MODEL, api_base=server.base_url, api_key="k", dimensions=16).embed(texts)
    assert [[*vector] for vector in made.vectors] == [TermEmbedder(16).vector(text) for text in texts]
    assert [len(request.body["input"]) for request in server.other_requests] == [96, 34]  # pyright: ignore[reportArgumentType]
    assert made.usage is not None
    tokens = made.usage.input_tokens
    assert made.usage == Usage(input_tokens=tokens, cost=pytest.approx(tokens * 2e-08))
    assert tokens > 0


@embedders
async def test_retries_and_refusals(make: Callable[..., Any]) -> None:
    """A temporary failure is repeated, a refusal is not; the error shows no key."""
    row = {"data": [{"index": 0, "embedding": [1.0]}], "usage": {"prompt_tokens": 1, "total_tokens": 1}}
    busy = 503, {"error": {"message": "busy"}}
    async with answering(busy, (200, {"object": "list", "model": "m", **row})) as (url, received):
        made = await make(MODEL, api_base=url, api_key="k").embed(["a"])
    assert (made.vectors, len(received)) == ([[1.0]], 2)
    async with answering((401, {"error": {"message": "wrong key sk-secret1234"}})) as (url, received):
        with pytest.raises(ModelError) as raised:
            await make(MODEL, api_base=url, api_key="sk-secret1234").embed(["a"])
    assert (raised.value.status, raised.value.kind, len(received)) == (401, "authentication", 1)
    assert "secret1234" not in str(raised.value)


async def test_the_server_is_strict() -> None:
    """The wire server refuses an empty text, too many and too long ones, a field that it does not know, and no key."""
    async with WireServer.openai([]) as server:
        embedder = OpenAIEmbedder("m", api_base=server.base_url, api_key="k")
        for texts in ([""], ["x" * 40_000]):
            with pytest.raises(ModelError, match=r"'\$\.input'|maximum context"):
                await embedder.embed(texts)
        assert len((await embedder.embed(["x" * 30_000])).vectors) == 1  # long, but within the limit
        wrong = OpenAIEmbedder("m", api_base=server.base_url, api_key=" ")
        assert [*(await wrong.embed(["a"])).vectors]  # another server takes any key, such as "none"
        with pytest.raises(ModelError, match="dimensions"):
            await OpenAIEmbedder(
                "m", api_base=server.base_url, api_key="k", headers={"x": "y"}, dimensions=1 << 70
            ).embed(["a"])
        assert await embedder.embed([]) == Embeddings([], None)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"data": None},
        {"data": []},
        {"data": [{"index": 0}]},
        {"data": [{"index": 0, "embedding": ["x"]}]},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": "AACAPw=="}]},
        [],
    ],
    ids=json.dumps,
)
async def test_unusable_answers(body: Any) -> None:
    """An answer without the right vectors is a `ModelError`."""
    async with answering((200, body)) as (url, _):
        with pytest.raises(ModelError, match="openai/m"):
            await OpenAIEmbedder("m", api_base=url, api_key="k", retries=0).embed(["a"])


async def test_an_answer_beyond_the_limit_of_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused with the limit, while it is read, and not called unreadable."""
    monkeypatch.setattr("agentflow.models.embedding._MAX_ANSWER_BYTES", 1000)
    async with answering((200, {"data": [{"index": 0, "embedding": [1.0] * 1000}]})) as (url, received):
        with pytest.raises(ModelError, match="the answer has more than 1,000 bytes") as raised:
            await OpenAIEmbedder("m", api_base=url, api_key="k").embed(["a"])
    assert (raised.value.retryable, len(received)) == (False, 1)


class Fixed:
    """An embedder with these vectors."""

    name = "fixed"

    def __init__(self, *vectors: list[float]) -> None:
        self.vectors = vectors

    async def embed(self, texts: list[str]) -> Embeddings:
        """Return them."""
        return Embeddings(self.vectors)


@pytest.mark.parametrize(
    "vectors",
    [[], [[1.0]], [[1.0], [1.0, 2.0]], [[], []], [[1.0], [0.0]], [[1.0], [float("nan")]], [[1.0], [float("inf")]]],
)
async def test_vectors_are_checked(vectors: list[list[float]]) -> None:
    """Too few vectors, of several lengths, or without a direction, are refused, with the name of the embedder."""
    with pytest.raises(ModelError, match="'fixed' returned"):
        await unit_vectors(Fixed(*vectors), ["a", "b"])  # pyright: ignore[reportArgumentType]


async def test_what_is_sent() -> None:
    """Long texts are shortened, blank ones replaced; the vectors have length 1."""
    embedder = TermEmbedder(4)
    made = await unit_vectors(embedder, ["x" * 9_000, " \n", "a a a"])
    assert ([len(text) for text in embedder.texts], embedder.texts[1]) == ([8_000, 1, 5], "-")
    assert [sum(number * number for number in vector) for vector in made] == [1.0, 1.0, 1.0]


@embedders
def test_wrong_options(make: Callable[..., Any]) -> None:
    """Numbers that make no sense are refused."""
    for options in ({"dimensions": 0}, {"retries": -1}):
        with pytest.raises(UsageError, match=next(iter(options))):
            make(MODEL, **options)
