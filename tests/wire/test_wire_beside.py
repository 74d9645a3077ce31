"""What clients ask of a vendor beside replies: several choices, probabilities, lists of models, token counts."""

from __future__ import annotations

import aiohttp
import openai
import pytest

from agentflow.testing.wire import Say, WireServer

HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}


async def test_openai_gives_as_many_choices_as_are_asked_for_streamed_or_not() -> None:
    """`n=3` is three choices of the one reply, each with its index, and in a stream its own chunks and end."""
    async with (
        WireServer.openai([Say("Hello", chunk=3), Say("Hello", chunk=3)]) as server,
        openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client,
    ):
        whole = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], n=3)
        assert [(c.index, c.message.content, c.finish_reason) for c in whole.choices] == [
            (n, "Hello", "stop") for n in range(3)
        ]
        said = ["", "", ""]
        async for chunk in await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], n=3, stream=True
        ):
            said[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert said == ["Hello"] * 3


async def test_openai_gives_probabilities_where_they_are_asked_for() -> None:
    """`logprobs` has a token for each chunk, `top_logprobs` that many alternatives; without it there is none."""
    async with (
        WireServer.openai(["Hi", "Hi"]) as server,
        openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client,
    ):
        asked = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=2
        )
        tokens = asked.choices[0].logprobs
        assert tokens is not None
        assert tokens.content is not None
        assert "".join(token.token for token in tokens.content) == "Hi"
        assert {len(token.top_logprobs) for token in tokens.content} == {2}
        plain = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert plain.choices[0].logprobs is None


async def test_lists_of_models_and_token_counts_use_up_no_reply() -> None:
    """Azure's header is a key too; requests of other routes are not recorded."""
    async with (
        WireServer.openai(["only one"]) as server,
        openai.AsyncAzureOpenAI(
            azure_endpoint=server.base_url.removesuffix("/v1"), api_key="k", api_version="2024-10-21", max_retries=0
        ) as azure,
        openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client,
    ):
        assert [model.id async for model in client.models.list()] == ["wire"]
        reply = await azure.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        assert reply.choices[0].message.content == "only one"
        assert len(server.requests) == 1


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/models"), ("POST", "/v1/messages/count_tokens")])
async def test_anthropic_lists_models_and_counts_tokens(method: str, path: str) -> None:
    """Both answer in the vendor's shape; the count is the server's estimate."""
    async with WireServer.anthropic(["x"]) as server, aiohttp.ClientSession(headers=HEADERS) as session:
        body = {"model": "m", "messages": [{"role": "user", "content": "hi" * 50}]}
        async with session.request(method, server.base_url + path, json=body) as response:
            got = await response.json()
    assert response.status == 200
    if method == "GET":
        assert [model["id"] for model in got["data"]] == ["wire"]
    else:
        assert got["input_tokens"] > 25
