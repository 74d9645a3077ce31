"""`agentflow models`: which adapter a name gets, and whether its key is there."""

from __future__ import annotations

import pytest

from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.openai_wire import OpenAIWire
from agentflow.terminal.cli.main import main
from agentflow.vocabulary.ports.model import resolve_model

KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_COMPATIBLE_API_KEY", "GEMINI_API_KEY")
BASES = ("OPENAI_BASE_URL", "OPENAI_API_BASE", "ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:litellm")


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the environment have no effect."""
    for name in (*KEYS, *BASES):
        monkeypatch.delenv(name, raising=False)


def told(capsys: pytest.CaptureFixture[str], *names: str) -> list[list[str]]:
    """Return the rows, split into columns."""
    with pytest.raises(SystemExit) as ended:
        main(["models", *names])
    out, err = capsys.readouterr()
    assert (ended.value.code, err) == (0, "")
    return [line.split(maxsplit=4) for line in out.splitlines()[1:]]


def test_the_forms_of_names(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name it shows the forms that go direct, their variables, and which of those are set; no key is printed."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-secret")
    rows = told(capsys)
    assert [row[1:4] for row in rows] == [
        ["OpenAIWire", "OPENAI_API_KEY", "(not"],
        ["AnthropicWire", "ANTHROPIC_API_KEY", "(set)"],
        ["OpenAIWire", "OPENAI_COMPATIBLE_API_KEY", "(not"],
    ]
    assert "secret" not in str(rows)


def test_what_litellm_carries_is_said_with_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forced name, a provider without a direct wire, and a model that the wire does not speak."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    rows = told(capsys, "litellm/openai/gpt-4o", "mistral/mistral-large-latest", "openai/gpt-5-pro", "openai/whisper-1")
    assert [row[1] for row in rows] == ["LiteLLMModel"] * 4
    lines = [" ".join(" ".join(row).split()) for row in rows]
    assert "explicit in the name" in lines[0]
    assert "MISTRAL_API_KEY (not set) no direct wire" in lines[1]
    assert "all required variables are set it does not stream" in lines[2]
    assert "its mode is audio_transcription, not chat completions or /responses" in lines[3]


def test_a_name_that_nobody_knows_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and what a right name looks like."""
    for name in ("nonsense", "openai+http://nowhere"):
        with pytest.raises(SystemExit) as ended:
            main(["models", name])
        assert ended.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1


NAMES: dict[str, type] = {
    "openai/gpt-5": OpenAIWire,
    "openai/gpt-4o-mini": OpenAIWire,
    "openai/my-own-model": OpenAIWire,
    "openai://gpt-5": OpenAIWire,
    "openai+https://h/v1#m": OpenAIWire,
    "anthropic/claude-sonnet-4-5": AnthropicWire,
    "anthropic://claude-opus-4-8": AnthropicWire,
    "litellm/openai/gpt-5": LiteLLMModel,
    "litellm://anthropic/claude-sonnet-4-5": LiteLLMModel,
    "openai+https://h/v1#responses/m": OpenAIWire,
    "openai/responses/gpt-5": OpenAIWire,
    "openai/gpt-5-codex": OpenAIWire,
    "openai/gpt-5.4": OpenAIWire,
    "openai/gpt-6-mini": OpenAIWire,
    "openai/gpt-5-pro": LiteLLMModel,
    "openai/responses/o1-pro": LiteLLMModel,
    "gemini/gemini-2.5-pro": LiteLLMModel,
    "azure/gpt-5": LiteLLMModel,
    "litellm/gpt-5": LiteLLMModel,
}


@pytest.mark.parametrize("name", NAMES)
def test_which_adapter_a_name_gets(name: str) -> None:
    """The direct wire where it can, LiteLLM where it must; the name stays what hooks and histories know."""
    model = resolve_model(name)
    assert type(model) is NAMES[name]
    same = name.removeprefix("litellm/").removeprefix("litellm://").replace("i://", "i/").replace("c://", "c/")
    assert model.name == same


def test_a_token_without_a_key_is_litellms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token without a key is LiteLLM's to use."""
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "t")
    assert type(resolve_model("anthropic/claude-opus-4-8")) is LiteLLMModel
