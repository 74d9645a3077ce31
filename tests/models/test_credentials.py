"""No credential is in what a program prints, reports or stores of a model and its failures."""

from __future__ import annotations

import copy
import io
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from loguru import logger

from agentflow.errors import ModelError
from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.openai_wire import OpenAIWire
from agentflow.models.provider_errors import model_error
from agentflow.testing.wire import Fault, Say, WireServer
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import Model, ModelRequest
from agentflow.vocabulary.specs import ModelOptions

from .conftest import NAMES, adapter_of

DIGITS = "0123456789"
HEADERS = {"X-Proxy-Token": f"hdr-{DIGITS}", "proxy-authorization": f"Scheme sch-{DIGITS}"}
EXTRA = {"extra_headers": {"x-api-token": f"xtr-{DIGITS}"}}
SAID = f"I got key-{DIGITS}, hdr-{DIGITS}, sch-{DIGITS}, xtr-{DIGITS}, env-{DIGITS} and postgres://ann:{DIGITS}@x."


async def failure_of(model: Model) -> ModelError:
    request = ModelRequest([Msg.user("hi")], (), ModelOptions(extra=EXTRA), model.name)
    try:
        [_ async for _ in model.stream(request)]
    except ModelError as error:
        return error
    raise AssertionError("it did not fail")


def links(error: BaseException) -> Iterator[BaseException]:
    yield error
    for inner in (error.__cause__, error.__context__):
        if inner is not None:
            yield from links(inner)


def printed(error: BaseException, *, values: bool) -> str:
    """Return everything that reporters show of an error, with the values of variables, as loguru can."""
    said = io.StringIO()
    sink = logger.add(said, level="ERROR", backtrace=True, diagnose=values)
    logger.opt(exception=error).error("failed")
    logger.remove(sink)
    told = [f"{link} {link!r} {link.args} {vars(link)} {getattr(link, '__notes__', '')}" for link in links(error)]
    return "".join([*traceback.format_exception(error), said.getvalue(), *told])


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
@pytest.mark.parametrize("adapter", ["direct", "litellm"])
@pytest.mark.parametrize(
    "fault",
    [
        Fault.status(401, message=SAID),
        Fault.status(500, message=SAID),
        Say("Hello", faults=Fault.error_event("text", message=SAID)),
    ],
    ids=["refused", "failed", "in the stream"],
)
async def test_an_echoed_credential_is_in_no_part_of_the_error(
    wire: str, adapter: str, fault: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text, causes, contexts, arguments and fields: nothing that is printed or reported has a sent credential."""
    monkeypatch.setenv("SOME_API_KEY", f"env-{DIGITS}")
    build = WireServer.openai if wire == "openai" else WireServer.anthropic
    async with build([fault]) as server:
        model = adapter_of(adapter, wire)(
            NAMES[wire], api_base=server.base_url, api_key=f"key-{DIGITS}", headers=HEADERS, retries=0
        )
        error = await failure_of(model)
    assert "I got ***, ***, ***, ***, ***" in str(error)
    assert error.__cause__ is not None
    said = printed(
        error, values=adapter == "direct"
    )  # in a line of its own: the values of this line are printed as well
    assert DIGITS not in said


@pytest.mark.parametrize("build", [OpenAIWire, AnthropicWire])
async def test_a_server_that_is_away_shows_no_header(build: Callable[..., Any]) -> None:
    """A reporter that shows the values of variables shows none of aiohttp's, which include the headers."""
    error = await failure_of(
        build("m", api_base="http://127.0.0.1:9", api_key=f"key-{DIGITS}", headers=HEADERS, retries=0)
    )
    assert error.retryable
    said = printed(error, values=True)  # in a line of its own: the values of this line are printed as well
    assert DIGITS not in said


def test_a_secret_deep_in_the_chain_is_masked_and_the_facts_stay() -> None:
    """The copy has the status, headers and text; a chain without secrets is unchanged."""
    error = ConnectionError("reset")
    error.__context__ = ValueError("key-0123456789 was wrong")
    failure = model_error(error, "openai/m", secrets=["key-0123456789"])
    assert (str(failure.__cause__), failure.retryable) == ("ConnectionError: reset", True)
    assert list(links(failure)) == [failure, failure.__cause__]
    assert model_error(error, "openai/m").__cause__ is error


@pytest.mark.parametrize("build", [OpenAIWire, AnthropicWire, LiteLLMModel])
def test_a_model_with_a_key_is_not_pickled(build: Callable[..., Any]) -> None:
    """It is refused, with the remedy; a model without a key is restored unchanged."""
    model = build("openai/m", api_key=f"key-{DIGITS}")
    assert DIGITS not in f"{model!r} {model}"
    for given in ({"api_key": f"key-{DIGITS}"}, {"headers": HEADERS}, {"params": {"servers": [{"token": DIGITS}]}}):
        with pytest.raises(TypeError, match=r"contains a credential .* reads its key from the environment"):
            pickle.dumps(build("openai/m", **given))
    assert copy.copy(model) is copy.deepcopy(model) is model
    again = pickle.loads(pickle.dumps(build("openai/m", retries=5, headers={"x-tier": "1"})))
    assert (again.name, type(again)) == (build("openai/m").name, build)
