"""Exceptions in LiteLLM's form as `ModelError`s; the real ones come over HTTP in `test_adapters.py`."""

import httpx
import pytest

from agentflow.models.failure_facts import facts_of
from agentflow.models.provider_errors import ProviderError, broken_stream, model_error

MODEL = "openai/gpt-5"


class APIConnectionError(Exception):
    """LiteLLM's class of that name: its general error."""

    status_code = 500


class Timeout(APIConnectionError):  # noqa: N818 - told by its name
    """LiteLLM's class of that name."""


class MidStreamFallbackError(Exception):
    """LiteLLM's class of that name, around the error that broke the stream."""

    def __init__(self, original: Exception) -> None:
        super().__init__(f"litellm.MidStreamFallbackError: {original} Original exception: {original}")
        self.original_exception = original


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        (ConnectionResetError("reset by peer"), True),
        (TimeoutError("slow"), True),
        (httpx.ReadError("cut"), True),
        (caused(APIConnectionError("litellm.APIConnectionError: cut"), httpx.ReadError("cut")), True),
        (caused(APIConnectionError("No module named 'mcp'"), ModuleNotFoundError("No module named 'mcp'")), False),
        (MidStreamFallbackError(APIConnectionError("litellm.APIConnectionError: overloaded")), True),
        (MidStreamFallbackError(APIConnectionError("bad\ninvalid_request_error")), False),
        (Timeout("litellm.Timeout: too slow"), True),
        (ValueError("something else"), False),
    ],
)
def test_what_may_pass_is_told_from_what_will_not(error: Exception, retryable: bool) -> None:
    """Network faults are retried, faults in a program or a request are not."""
    assert model_error(error, MODEL).retryable is retryable


def test_the_message_is_one_clear_line() -> None:
    """Class names, JSON and traces are removed; the provider's text stays."""
    text = 'litellm.APIConnectionError: OpenAIException - {"error": {"message": "Too\\nbusy"}}\nTraceback ...'
    error = model_error(APIConnectionError(text), MODEL)
    assert str(error) == (
        "openai/gpt-5 could not be reached or broke off: Too busy. Check api_base=, that a server listens there, and the proxy "
        "variables (HTTPS_PROXY, NO_PROXY)."
    )


@pytest.mark.parametrize(
    ("status", "problem"),
    [(400, "refused"), (403, "denied permission"), (404, "was not found"), (422, "refused")],
)
def test_a_status_is_named_in_words(status: int, problem: str) -> None:
    """The number follows them."""
    assert str(model_error(ProviderError("no way", status), MODEL)).startswith(f"{MODEL} {problem}")


@pytest.mark.parametrize(
    ("said", "named"),
    [("Set GROQ_TOKEN first", "GROQ_TOKEN"), ("no such key", "OPENAI_API_KEY")],
)
def test_a_refused_key_is_named(said: str, named: str) -> None:
    """As the provider names it, or by the usual name."""
    assert f"Check {named} or api_key=." in str(model_error(ProviderError(said, 401), MODEL))


CAUSE = " See its cause for the reason: error.__cause__."


@pytest.mark.parametrize(
    "status", [400, 402, 403, 404, 405, 408, 409, 410, 413, 415, 418, 422, 429, 451, 500, 502, 503, 529]
)
def test_every_refusal_says_what_to_do(status: int) -> None:
    """The provider's text is followed by a remedy, for every status."""
    error = RuntimeError("no way")
    error.status_code = status  # pyright: ignore[reportAttributeAccessIssue]
    _, _, cure = str(model_error(error, MODEL)).partition("no way. ")
    assert cure.endswith(".")


@pytest.mark.parametrize(("status", "cure"), [(402, "Add credit"), (405, "Check that api_base= is the root")])
def test_an_answer_of_a_direct_wire_has_the_cure_of_its_status(status: int, cure: str) -> None:
    """A status with a remedy of its own does not get the general one."""
    assert f"failed ({status}): no way. {cure}" in str(model_error(ProviderError("no way", status), MODEL))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("No module named 'vllm'", "No module named 'vllm'"),
        ("'Not so.'", "Not so"),
        ("Not so.'", "Not so"),
        ("That can't be", "That can't be"),
    ],
)
def test_quotation_marks_come_in_pairs(said: str, told: str) -> None:
    """Those around the text, and half a pair at its end, are removed; those within it stay."""
    assert str(model_error(ValueError(said), MODEL)) == f"openai/gpt-5 could not be called: {told}.{CAUSE}"


def test_what_a_proxy_wraps_is_unwrapped() -> None:
    """LiteLLM's proxy answers with an error around the provider's; the provider's text is shown."""
    inner = '{"type":"error","error":{"type":"invalid_request_error","message":"messages.1: no thinking block."}}'
    wrapped = f"litellm.BadRequestError: AnthropicException - b'{inner}'. Received Model Group=claude\nAvailable: None"
    printed = f"litellm.BadRequestError: OpenAIException - Error code: 400 - {{'error': {{'message': {wrapped!r}}}}}"
    cause = ValueError("Error code: 400")
    cause.body = {"message": wrapped}  # pyright: ignore[reportAttributeAccessIssue]
    error = model_error(caused(ValueError(printed), cause), MODEL)
    assert str(error) == f"openai/gpt-5 could not be called: messages.1: no thinking block.{CAUSE}"


def test_a_long_message_is_cut() -> None:
    """A page of text is shortened; its end, which has the reason, is kept."""
    told = str(model_error(ValueError("x" * 10_000 + "the reason"), MODEL))
    assert len(told) < 700
    assert told.removesuffix(CAUSE).endswith("the reason.")


def test_an_endless_chain_of_causes_ends() -> None:
    """A chain of exceptions may be a ring."""
    one, two = ValueError("one"), ValueError("two")
    one.__cause__, two.__cause__ = two, one
    assert "one" in str(model_error(one, MODEL))


def test_a_broken_stream_is_retryable() -> None:
    """A stream without a finish reason is reported as such."""
    error = broken_stream(MODEL)
    assert (error.retryable, error.model) == (True, MODEL)
    assert "without a finish reason" in str(error)


def test_the_text_of_a_failure_is_that_of_its_first_three_causes() -> None:
    """In order, each text once; deeper causes are omitted."""
    error: Exception | None = None
    for text in ("too deep", "third", "second", "second", "first"):
        inner, error = error, ValueError(text)
        error.__cause__ = inner
    assert error is not None
    assert facts_of(error).raw == "first\nsecond"
    error.__cause__ = error.__cause__.__cause__ if error.__cause__ is not None else None
    assert facts_of(error).raw == "first\nsecond\nthird"
