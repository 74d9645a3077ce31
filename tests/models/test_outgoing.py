"""Requests to providers that have no wire server here, recorded by a server that refuses them."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from agentflow.errors import ModelError, UsageError
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.litellm_library import cost_of, library
from agentflow.models.profiles import PROFILES, Family, claude
from agentflow.models.wire_names import wire_id
from agentflow.vocabulary.messages import Msg, ThinkingBlock, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.ports.model import ModelRequest, resolve_model
from agentflow.vocabulary.specs import ModelOptions, ToolSpec

from .catcher import Catcher
from .conftest import DIRECT

NO_OPTIONS = ModelOptions()
KEYS = {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SK", "AWS_REGION_NAME": "us-east-1"}


@pytest.mark.parametrize("thinking", ["low", 2000], ids=str)
@pytest.mark.parametrize(
    "name",
    [
        "anthropic/claude-sonnet-4-5",
        "anthropic/claude-opus-4-8",
        "bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0",
        "bedrock/us.anthropic.claude-opus-4-8",
        "gemini/gemini-2.5-pro",
        "mistral/magistral-medium-latest",
        "ollama_chat/qwen3",
        "hosted_vllm/qwen3",
        "openai/gpt-5",
    ],
)
async def test_asking_for_thinking_adds_no_field_of_our_own(
    name: str, thinking: str | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is the one that LiteLLM makes of an effort or a budget, with nothing else."""
    for key, value in KEYS.items():
        monkeypatch.setenv(key, value)
    options = ModelOptions(thinking=thinking, max_tokens=4000)  # pyright: ignore[reportArgumentType]
    asked: dict[str, object] = {"reasoning_effort": thinking if isinstance(thinking, str) else "medium"}
    if isinstance(thinking, int) and ("claude" in name or "gemini" in name):
        asked = {"thinking": {"type": "enabled", "budget_tokens": thinking}}
    async with Catcher() as ours, Catcher() as plain:
        model = LiteLLMModel(name, api_base=ours.url, api_key="k", retries=0)
        with pytest.raises(ModelError):
            await anext(model.stream(ModelRequest([Msg.user("hi")], (), options, name)))
        with pytest.raises(Exception, match="caught"):
            await plainly(model=name, api_base=plain.url, max_tokens=4000, **asked)
    assert ours.bodies == plain.bodies != []


CALLED = ToolUseBlock("toolu_1", "add", {"a": 1})
HISTORY = [
    Msg.user("add"),
    Msg.assistant([ThinkingBlock("Hm.", "seal", model="openai/our-claude"), CALLED]),
    Msg.tool([ToolResultBlock("toolu_1", "add", "1")]),
]


async def body_of(name: str, options: ModelOptions = NO_OPTIONS, family: Family | None = None) -> dict[str, Any]:
    """Return the body that a proxy gets."""
    async with Catcher() as proxy:
        model = LiteLLMModel(name, api_base=f"{proxy.url}/v1", api_key="k", retries=0, family=family)
        with pytest.raises(ModelError):
            await anext(model.stream(ModelRequest(HISTORY, (ToolSpec("add"),), options, name)))
    return proxy.bodies[0]


async def test_a_family_says_whose_model_a_proxy_serves() -> None:
    """Signed thoughts and the provider's ids pass through the proxy if the family requires them, else they are left
    out.
    """
    options = ModelOptions(thinking=2000)
    body = await body_of("openai/our-claude", options, "anthropic")
    said, result = body["messages"][1:]
    assert said["thinking_blocks"] == [{"type": "thinking", "thinking": "Hm.", "signature": "seal"}]
    assert [said["tool_calls"][0]["id"], result["tool_call_id"]] == ["toolu_1", "toolu_1"]
    assert (body["reasoning_effort"], body.get("thinking")) == ("medium", None)
    said, result = (await body_of("openai/our-claude", options))["messages"][1:]
    assert "thinking_blocks" not in said
    assert said["tool_calls"][0]["id"] == result["tool_call_id"] == wire_id("toolu_1", PROFILES["mistral"])


@pytest.mark.parametrize("name", ["openai/mistral-small-3.2", "hosted_vllm/mistralai/Mistral-Nemo-Instruct-2407"])
async def test_any_compatible_server_gets_ids_of_nine(name: str) -> None:
    """Any server may use a template of Mistral's open models, whatever the model's name."""
    said, result = (await body_of(name))["messages"][1:]
    assert said["tool_calls"][0]["id"] == result["tool_call_id"] == wire_id("toolu_1", PROFILES["mistral"])


def test_an_unknown_family_is_refused() -> None:
    """The error lists the families."""
    with pytest.raises(UsageError, match=r"unknown family\. Use one of openai, compatible, anthropic"):
        LiteLLMModel("openai/x", family="claude")  # pyright: ignore[reportArgumentType]


async def test_ollamas_older_endpoint_is_not_asked_with_tools() -> None:
    """LiteLLM would write the tools into the prompt: the error has the right name, and nothing is sent."""
    async with Catcher() as ollama:
        model = LiteLLMModel("ollama/qwen3", api_base=ollama.url, retries=0)
        with pytest.raises(UsageError, match="'ollama_chat/qwen3'"):
            await anext(model.stream(ModelRequest([Msg.user("hi")], (ToolSpec("add"),), NO_OPTIONS, model.name)))
        assert ollama.bodies == []
        with pytest.raises(ModelError):
            await anext(model.stream(ModelRequest([Msg.user("hi")], (), NO_OPTIONS, model.name)))
        assert len(ollama.bodies) == 1


async def test_a_price_is_told_over_the_responses_bridge() -> None:
    """The endpoint does not change the price, whatever LiteLLM's own sum is."""
    litellm = await library()
    usage = litellm.Usage(prompt_tokens=1000, completion_tokens=500)  # pyright: ignore[reportAttributeAccessIssue]
    chunk = SimpleNamespace(_hidden_params={"response_cost": 0.0}, usage=usage)
    straight = cost_of(litellm, chunk, "openai/gpt-5")
    assert straight == cost_of(litellm, chunk, "openai/responses/gpt-5") == cost_of(litellm, chunk, "responses/gpt-5")
    assert straight is not None
    assert straight > 0


async def plainly(**asked: object) -> None:
    """Make a request through LiteLLM alone."""
    litellm = await library()
    messages = [{"role": "user", "content": "hi"}]
    said = {"messages": messages, "api_key": "k", "max_retries": 0, "stream_options": {"include_usage": True}}
    stream = await litellm.acompletion(**said, **asked, stream=True)
    await anext(aiter(stream))  # some providers are not asked before


@pytest.mark.parametrize(
    ("thinking", "name", "sent"),
    [
        ("minimal", "openai/gpt-5", {"reasoning_effort": "minimal"}),
        ("xhigh", "openai/gpt-5", {"reasoning_effort": "xhigh"}),
        ("max", "anthropic/claude-opus-4-8", "max"),
        ("xhigh", "anthropic/claude-opus-4-8", "xhigh"),
        ("xhigh", "anthropic/claude-sonnet-4-5", 8192),
        ("max", "anthropic/claude-sonnet-4-5", 4500),  # half of max_tokens
    ],
)
async def test_efforts_that_one_vendor_has(thinking: Any, name: str, sent: object) -> None:
    """They are sent in the vendor's form, and as a budget if the model accepts nothing else."""
    vendor = name.partition("/")[0]
    async with Catcher() as server:
        model = DIRECT[vendor](name, api_base=server.url, api_key="k", retries=0, family=vendor)
        options = ModelOptions(thinking=thinking, max_tokens=9000)
        with pytest.raises(ModelError):
            await anext(model.stream(ModelRequest([Msg.user("hi")], (), options, name)))
    body = server.bodies[0]
    if isinstance(sent, int):
        assert body["thinking"] == {"type": "enabled", "budget_tokens": sent}
    elif isinstance(sent, str):
        assert (body["output_config"], body["thinking"]["type"]) == ({"effort": sent}, "adaptive")
    else:
        assert {key: body[key] for key in ("reasoning_effort",)} == sent


@pytest.mark.parametrize(
    ("thinking", "name", "takes"),
    [
        ("max", "openai/gpt-5", "'minimal', 'low', 'medium', 'high', 'xhigh', True, False"),
        ("minimal", "anthropic/claude-opus-4-8", "'low', 'medium', 'high', 'xhigh', 'max', True, False"),
    ],
)
@pytest.mark.parametrize("adapter", ["direct", "litellm"])
async def test_an_effort_that_a_model_does_not_have(thinking: Any, name: str, takes: str, adapter: str) -> None:
    """It is refused before anything is sent, with the supported values."""
    build = DIRECT[name.partition("/")[0]] if adapter == "direct" else LiteLLMModel
    request = ModelRequest([Msg.user("hi")], (), ModelOptions(thinking=thinking, max_tokens=9000), name)
    with pytest.raises(UsageError, match=takes):
        await anext(build(name, api_key="k").stream(request))


@pytest.mark.parametrize("thinking", ["none", "", "HIGH", 0, -1, 1.5, ["low"], {}])
def test_thinking_is_a_closed_type(thinking: Any) -> None:
    """Anything else is refused when the options are built, with the legal values."""
    with pytest.raises(
        UsageError, match=r"it must be True, False .* 'low', 'medium', 'high' for every model; 'minimal'"
    ):
        ModelOptions(thinking=thinking)


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("gpt-5", "'openai/gpt-5'"),
        ("openai:gpt-5", "'openai/gpt-5'"),
        ("claude-sonnet-4-5", "'anthropic/claude-sonnet-4-5'"),
        ("qwen3:8b", "'provider/qwen3:8b'"),
    ],
)
def test_a_name_without_a_provider_is_refused_at_once(name: str, cure: str) -> None:
    """No adapter is loaded to interpret it; `litellm/` before it lets LiteLLM guess."""
    with pytest.raises(UsageError, match=re.escape(f"such as {cure}; with 'litellm/{name}' LiteLLM guesses")):
        resolve_model(name)
    assert resolve_model(f"litellm/{name}").name == name


def test_the_longest_reply_of_a_claude_model_by_its_name() -> None:
    """Generations before 3.7 refuse a longer one."""
    names = ("claude-2.1", "claude-3-haiku-20240307", "claude-3-5-haiku", "claude-3-7-sonnet", "claude-opus-4-6")
    assert [claude(name, {}).ceiling for name in names] == [4_096, 4_096, 4_096, 32_000, 32_000]
