"""`check_model` finds each planted defect, and nothing else; our own models are clean."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from planted_models import DEFECTS, Mine, provider

from agentflow.errors import ModelError, UsageError
from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.litellm_library import library
from agentflow.models.openai_wire import OpenAIWire
from agentflow.testing import ScriptedModel, check_model, check_model_async
from agentflow.testing.check_model import ModelFlaw
from agentflow.testing.model_scenes import SCENES, ModelScene, StagedModel
from agentflow.testing.wire import Fault, ScriptedCall, WireReply, WireServer, WireUsage
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:litellm")


@pytest.mark.parametrize(("kind", "model"), [pytest.param(*row, id=f"{row[0]}-{row[1].__name__}") for row in DEFECTS])
def test_a_planted_defect_is_found_and_nothing_else(kind: ModelFlaw, model: Any) -> None:
    """A model with one defect gets findings of that kind only."""
    report = check_model(provider(model), timeout=1)
    assert report.kinds == {kind}, str(report)


def test_every_kind_of_finding_has_a_planted_defect() -> None:
    """No kind is listed that nothing can show."""
    assert {row[0] for row in DEFECTS} == set(get_args(ModelFlaw))


def test_the_page_tells_of_every_kind_and_scene() -> None:
    """`docs/testing-models.md` says of each kind what it means and what to do, and of each scene what is played."""
    page = (Path(__file__).parents[2] / "docs" / "testing-models.md").read_text("utf-8")
    assert [word for word in (*get_args(ModelFlaw), *SCENES) if f"`{word}`" not in page] == []


# ---- our own


def test_a_model_without_a_defect_is_clean() -> None:
    """The model in which the defects are planted has none itself; every check is made."""
    report = check_model(provider(Mine))
    report.assert_clean()
    assert (set(report.checks), report.notes) == (set(get_args(ModelFlaw)) - {"hang"}, ())


def scripted(scene: ModelScene) -> StagedModel:
    """The scene as a script."""
    deltas = [
        ModelChunk(tool_uses=(ToolUseDelta(n, call.id, call.name, call.arguments),))
        for n, call in enumerate(scene.calls)
    ]
    errors = {
        "torn": ModelError("torn", retryable=True),
        "busy": ModelError("busy", retryable=True, retry_after=scene.retry_after),
        "refused": ModelError("no"),
        "silent": asyncio.Event().wait,
    }
    last = errors.get(scene.ends) or ModelChunk(usage=scene.usage, finish_reason=scene.finish_reason)
    model = ScriptedModel(lambda request: [*scene.chunks, *deltas, last])
    return StagedModel(model, lambda: model.open_streams)


def test_the_scripted_model_is_clean() -> None:
    """A test's model behaves like a real one."""
    report = check_model(scripted)
    report.assert_clean()
    assert report.notes == ("not checked: options (the sent request is unknown: pass StagedModel(sent=))",)


_NAMES = {
    "openai": "openai/gpt-4o",
    "responses": "openai/responses/gpt-4o",
    "anthropic": "anthropic/claude-sonnet-4-5",
}


def wired(wire: str, adapter: str) -> Any:
    """The scene on a server, and the adapter before it."""
    direct: Any = AnthropicWire if wire == "anthropic" else OpenAIWire
    adapted: Any = direct if adapter == "direct" else LiteLLMModel

    @contextmanager
    def play(scene: ModelScene) -> Iterator[StagedModel]:
        calls = tuple(ScriptedCall(call.name, call.arguments, call.id or None) for call in scene.calls)
        faults: dict[str, Any] = {
            "torn": Fault.cut("text"),
            "silent": Fault.hang("text"),
            "busy": Fault.status(429, retry_after=scene.retry_after),
            "refused": Fault.status(400),
        }
        named = [faults[scene.ends]] if scene.ends != "well" else []
        if scene.name == "no ids":
            named.append(Fault.no_ids())
        used = WireUsage(input=scene.usage.input_tokens, output=scene.usage.output_tokens)
        reply = WireReply(scene.text, calls=calls, usage=used, chunk=5, faults=named)
        build = WireServer.anthropic if wire == "anthropic" else WireServer.openai
        with build(lambda request: reply).in_thread() as server:
            name = _NAMES[wire]
            model = adapted(name, api_base=server.base_url, api_key="k", retries=0, timeout=20)
            yield StagedModel(model, lambda: server.open_connections, lambda: server.requests[-1].body)

    return play


@pytest.fixture(scope="module")
def loaded() -> None:
    """Load LiteLLM, whose loading time counts for no limit of a reply."""
    asyncio.run(library())


@pytest.mark.ci
@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize(
    ("adapter", "wire"),
    [(adapter, wire) for adapter in ("direct", "litellm") for wire in ("openai", "anthropic")]
    + [("direct", "responses")],
)
def test_the_adapters_are_clean_on_both_wires(adapter: str, wire: str) -> None:
    """`OpenAIWire` (over `/responses` too), `AnthropicWire` and `LiteLLMModel` pass every check on the vendor's wire."""
    report = check_model(wired(wire, adapter), timeout=30)
    report.assert_clean()
    assert (set(report.checks), report.notes) == (set(get_args(ModelFlaw)) - {"hang"}, ())


# ---- the report


def test_scenes_that_are_not_played_are_left_out() -> None:
    """A model whose provider plays one scene is checked on that one; the notes name the others."""
    report = check_model(lambda scene: provider(Mine)(scene) if scene.name == "words" else None)
    report.assert_clean()
    assert "not checked: empty (the scene 'empty' is not played)" in report.notes


async def test_in_a_coroutine() -> None:
    """In a coroutine, `check_model` says what to write."""
    with pytest.raises(UsageError, match="await check_model_async"):
        check_model(scripted)
    assert (await check_model_async(scripted)).clean
