"""`LiteLLMModel` over real HTTP, against the strict wire servers."""

import asyncio
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentflow import plugins
from agentflow.errors import ModelError, UsageError
from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.openai_wire import OpenAIWire
from agentflow.models.profiles import PROFILES
from agentflow.models.wire_names import wire_id
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import Dialect, Fault, Say, Script, ScriptedCall, UseTool, WireReply, WireServer, WireUsage
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.messages import DataBlock, Msg, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.ports import model as model_port
from agentflow.vocabulary.ports.model import (
    AnswerModes,
    Model,
    ModelRequest,
    TokenCount,
    answer_modes,
    resolve_model,
    token_count,
)
from agentflow.vocabulary.specs import ModelOptions, ToolSpec, Usage

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
TWO_CALLS = WireReply(
    "Let me see.", calls=(ScriptedCall("add", {"a": 1}), ScriptedCall("add", {"a": 22})), chunk=3, interleave=True
)
wires = pytest.mark.parametrize("wire", ["openai", "anthropic"])
OFFLINE = LiteLLMModel("openai/gpt-5")
PROFILE = {"openai": PROFILES["compatible"], "anthropic": PROFILES["anthropic"]}


def serve(wire: str, script: Script, dialect: Dialect | None = None) -> WireServer:
    return (
        WireServer.openai(script, dialect=dialect)
        if wire == "openai"
        else WireServer.anthropic(script, dialect=dialect)
    )


def answered(reply: Msg, text: str = "3") -> Msg:
    return Msg.tool([ToolResultBlock(use.id, use.name, text) for use in reply.tool_uses])


@wires
async def test_text_comes_in_pieces_and_folds_to_the_whole(wire: str, asker: Callable) -> None:
    """Text is streamed chunk by chunk, followed by the finish reason and one usage with a price."""
    async with serve(wire, [Say("Hello there, world", chunk=5, usage=WireUsage(input=11, output=5))]) as server:
        chunks = await asker(server).chunks()
    assert [chunk.text for chunk in chunks if chunk.text] == ["Hello", " ther", "e, wo", "rld"]
    reply = fold(chunks)
    assert (reply.text, reply.finish_reason) == ("Hello there, world", "stop")
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.model_calls) == (11, 5, 1)
    assert reply.usage.cost is not None
    assert reply.usage.cost > 0


@wires
async def test_parallel_calls_are_put_together_by_index(wire: str, asker: Callable) -> None:
    """Interleaved fragments of two calls make two complete calls, and their results are sent back legally."""
    async with serve(wire, [TWO_CALLS, "It is 3."]) as server:
        model = asker(server)
        first = await model.ask("add", [ADD])
        second = await model.ask([Msg.user("add"), first, answered(first)], [ADD])
    assert [(use.name, dict(use.input)) for use in first.tool_uses] == [("add", {"a": 1}), ("add", {"a": 22})]
    assert (first.text, first.finish_reason, second.text) == ("Let me see.", "tool_calls", "It is 3.")
    sent = server.requests[1]
    assert [answer.id for answer in sent.results] == [wire_id(use.id, PROFILE[wire]) for use in first.tool_uses]


async def test_cached_and_reasoning_tokens_are_counted(asker: Callable) -> None:
    """The input includes cached tokens; the parts are counted separately."""
    usage = WireUsage(input=11, output=5, cache_read=4, cache_write=2)
    async with serve("anthropic", [Say("x", usage=usage)]) as server:
        reply = await asker(server).ask()
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.cache_read_tokens, reply.usage.cache_write_tokens) == (17, 4, 2)
    async with serve("openai", [Say("x", usage=WireUsage(input=11, output=5, reasoning=3))]) as server:
        reply = await asker(server).ask()
    assert reply.usage is not None
    assert reply.usage.reasoning_tokens == 3


async def test_an_unknown_model_has_no_price(asker: Callable) -> None:
    """If LiteLLM has no price the cost is None, not zero."""
    async with serve("openai", [Say("x", usage=WireUsage(input=1, output=1))]) as server:
        reply = await asker(server, "openai/made-up-model").ask()
    assert reply.usage == Usage(input_tokens=1, output_tokens=1, model_calls=1)


async def test_signed_thoughts_go_back_untouched_in_a_tool_loop(asker: Callable) -> None:
    """Thoughts, also empty and redacted ones, survive the round trip to a server that checks their signatures."""
    script = [
        WireReply(thinking=("I should add.", ""), redacted="secret", calls=(ScriptedCall("add", {"a": 1}),), chunk=4),
        WireReply("Three.", thinking="Easy."),
        "Bye.",
    ]
    options = ModelOptions(thinking=1024)
    async with serve("anthropic", script) as server:
        model = asker(server)
        first = await model.ask("add", [ADD], options)
        history = [Msg.user("add"), first, answered(first)]
        second = await model.ask(history, [ADD], options)
        third = await model.ask([*history, second, Msg.user("thanks")], [ADD], options)
    thoughts = [block for block in first.content if isinstance(block, ThinkingBlock)]
    assert [block.text for block in thoughts] == ["I should add.", "", ""]
    assert all(block.model == "anthropic/claude-sonnet-4-5" for block in thoughts)
    assert (second.thinking, second.text, third.text) == ("Easy.", "Three.", "Bye.")
    assert [request.refused for request in server.requests] == [None, None, None]


async def test_thoughts_of_another_model_stay_at_home(asker: Callable) -> None:
    """A thought of another model is left out, and the open loop that it began continues without thinking."""
    call = ToolUseBlock("t1", "add", {"a": 1})
    foreign = Msg.assistant([ThinkingBlock("Hm.", "seal", model="anthropic/claude-opus-4-1"), call])
    async with serve("anthropic", ["ok"]) as server:
        history = [Msg.user("add"), foreign, answered(foreign)]
        reply = await asker(server).ask(history, [ADD], ModelOptions(thinking=2000))
    assert reply.text == "ok"
    assert "seal" not in str(server.requests[0].body)
    assert not server.requests[0].thinking_on


@pytest.mark.parametrize(
    "options",
    [
        ModelOptions(thinking="low", temperature=0.2),
        ModelOptions(thinking="high", max_tokens=1500),
        ModelOptions(thinking=True, max_tokens=300),
        ModelOptions(thinking=True, tool_choice="add"),
        ModelOptions(thinking=False, seed=7, top_p=0.5, stop=("END",)),
        ModelOptions(tool_choice="required", max_tokens=10),
        ModelOptions(tool_choice="none"),
    ],
)
async def test_options_that_rule_each_other_out_are_resolved(options: ModelOptions, asker: Callable) -> None:
    """A request never combines options that Anthropic refuses together."""
    async with serve("anthropic", ["ok"]) as server:
        assert (await asker(server).ask("hi", [ADD], options)).text == "ok"


async def test_thoughts_are_dropped_when_a_forced_tool_bars_thinking(asker: Callable) -> None:
    """Within an open loop, a forced tool turns thinking off; the loop's thoughts are not sent then."""
    async with serve("anthropic", [WireReply(thinking="Hm.", calls=(ScriptedCall("add", {}),)), "ok"]) as server:
        model = asker(server)
        first = await model.ask("add", [ADD], ModelOptions(thinking=1024))
        history = [Msg.user("add"), first, answered(first)]
        forced = ModelOptions(thinking=1024, tool_choice="add")
        assert (await model.ask(history, [ADD], forced)).text == "ok"


@wires
async def test_options_reach_the_wire(wire: str, asker: Callable) -> None:
    """Sampling, stop texts and a named tool arrive in the provider's form."""
    options = ModelOptions(max_tokens=99, stop=("END",), tool_choice="add", extra={"user": "u1"})
    async with serve(wire, ["ok"]) as server:
        await asker(server, "openai/gpt-4o" if wire == "openai" else "").ask("hi", [ADD], options)
    body = server.requests[0].body
    assert body["max_tokens"] == 99
    if wire == "openai":
        assert (body["stop"], body["user"]) == (["END"], "u1")
        assert body["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    else:
        assert body["stop_sequences"] == ["END"]
        assert body["tool_choice"] == {"type": "tool", "name": "add"}


@wires
async def test_a_request_without_tools_is_legal_after_calls(wire: str, asker: Callable) -> None:
    """The last request, which offers no tools, is accepted although the history has calls."""
    async with serve(wire, [TWO_CALLS, "Summary."]) as server:
        model = asker(server)
        first = await model.ask("add", [ADD])
        reply = await model.ask([Msg.user("add"), first, answered(first)])
    assert reply.text == "Summary."
    if wire == "anthropic":
        assert server.requests[1].body["tool_choice"] == {"type": "none"}


@wires
async def test_images_are_seen_in_messages_and_results(wire: str, asker: Callable) -> None:
    """An image in a user message and one in a result reach the model, after all results if results cannot hold one."""
    image = DataBlock("image/png", data=PIXEL)
    async with serve(wire, [TWO_CALLS, "A pixel."]) as server:
        model = asker(server)
        start = Msg.user(["What is it?", image])
        first = await model.ask([start], [ADD])
        one, two = first.tool_uses
        results = Msg.tool(
            [ToolResultBlock(one.id, "add", (TextBlock("shot"), image)), ToolResultBlock(two.id, "add", "2")]
        )
        assert (await model.ask([start, first, results], [ADD])).text == "A pixel."
    body = str(server.requests[1].body)
    assert body.count(PIXEL) == 2
    roles = [message["role"] for message in server.requests[1].messages]
    behind = ["tool", "tool", "assistant", "user"]
    expected = ["user", "assistant", *(behind if wire == "openai" else ["user"])]
    assert roles == expected


CRUEL = [
    Msg.system("Be kind."),
    Msg.system("Be brief."),
    Msg.user("  "),
    Msg.user("one"),
    Msg.user(["two", " "]),
    Msg.assistant(" "),
    Msg.assistant("said  \n"),
    Msg.user("go", name="Ann Lee"),
    Msg.assistant(["", ToolUseBlock.from_json("call:" + "x" * 60, "files.read/all", '{"a": ')]),
    Msg.tool([ToolResultBlock("call:" + "x" * 60, "files.read/all", " ", "error")]),
    Msg.user("meanwhile"),
    Msg.assistant([ToolUseBlock("t2", "add"), ToolUseBlock("t3", "add", {"a": 1})]),
    Msg.tool([ToolResultBlock("t2", "add"), ToolResultBlock("t3", "add", "1")]),
    Msg.assistant("trailing "),
]


@pytest.mark.parametrize(
    ("wire", "dialect"),
    [
        ("openai", Dialect()),
        ("openai", Dialect.mistral()),
        ("openai", Dialect.deepseek()),
        ("openai", Dialect.template()),
        ("anthropic", Dialect()),
    ],
    ids=["openai", "mistral", "deepseek", "template", "anthropic"],
)
async def test_whatever_a_conversation_holds_is_accepted(wire: str, dialect: Dialect, asker: Callable) -> None:
    """Blank texts, adjacent messages of one role, odd ids and names, malformed arguments and a trailing reply are
    made legal.
    """
    names = {"deepseek": "deepseek/deepseek-reasoner"}
    async with serve(wire, ["ok"], dialect) as server:
        model = asker(server, names.get(dialect.family or "", ""), retries=0)
        assert (await model.ask(CRUEL, [ADD])).text == "ok"
    assert server.requests[0].refused is None


REFUSALS = [
    (Fault.status(400), False, 400, "refused the request"),
    (Fault.status(401), False, 401, "refused the API key"),
    (Fault.status(403), False, 403, "denied permission"),
    (Fault.status(404), False, 404, "was not found"),
    (Fault.status(408), True, 408, "did not answer in time"),
    (Fault.status(409), True, 409, "reported a conflict"),
    (Fault.status(413), False, 413, "found the request too large"),
    (Fault.status(429), True, 429, "limits the rate"),
    (Fault.status(429, code="insufficient_quota", message="You exceeded your current quota"), False, 429, "no quota"),
    (Fault.status(500), True, 500, "failed"),
    (Fault.status(500, message="Conversation roles must alternate user/assistant"), False, 500, "failed"),
    (Fault.status(503), True, 503, "failed"),
    (Fault.status(529), True, 529, "failed"),
    (Fault.status(500, headers={"x-should-retry": "false"}), False, 500, "failed"),
    (Fault.status(400, headers={"x-should-retry": "true"}), True, 400, "refused the request"),
    (Fault.context_overflow(), False, 400, "context window"),
    (Fault.html(502), True, 502, "failed"),
]


@wires
@pytest.mark.parametrize(("fault", "retryable", "status", "words"), REFUSALS)
async def test_every_refusal_is_a_model_error(
    wire: str, fault: Fault, retryable: bool, status: int, words: str, asker: Callable
) -> None:
    """The error of a refusal has `retryable`, status, model, cause, and one clear line."""
    async with serve(wire, [WireReply(faults=fault)]) as server:
        model = asker(server, retries=0)
        with pytest.raises(ModelError, match=words) as caught:
            await model.ask()
    error = caught.value
    assert (error.retryable, error.status, error.model) == (retryable, status, model.model.name)
    assert error.__cause__ is not None
    first = str(error).splitlines()[0]
    assert first.startswith(model.model.name)
    assert not any(trash in first for trash in ("litellm", "Exception", "{", "<", "b'"))


CURES = [
    (Fault.status(400), "Change the messages, tools, options= or"),
    (Fault.status(401), "or api_key="),
    (Fault.status(403), "Check that the key's account may use this model"),
    (Fault.status(404), "Check the model's name, and that api_base= is the root"),
    (Fault.status(408), "raise timeout="),
    (Fault.status(429), "RateLimit of agentflow.plugins"),
    (Fault.status(429, code="insufficient_quota", message="You exceeded your current quota"), "Add credit"),
    (Fault.status(500), "ModelFallback of agentflow.plugins"),
    (
        Fault.status(500, message="Conversation roles must alternate user/assistant"),
        "Change the messages, tools, options= or params= that it names",
    ),
    (Fault.context_overflow(), "SummaryCompaction and ClearOldResults of agentflow.plugins"),
    (Fault.html(502), "try again later, raise retries="),
]


@wires
@pytest.mark.parametrize(("fault", "cure"), CURES)
async def test_every_refusal_names_the_cure(wire: str, fault: Fault, cure: str, asker: Callable) -> None:
    """The error of a refused request ends with the remedy, on every wire and through LiteLLM."""
    async with serve(wire, [WireReply(faults=fault)]) as server:
        with pytest.raises(ModelError) as caught:
            await asker(server, retries=0).ask()
    assert cure in str(caught.value)
    named = re.search(r"(\w+)(?: and (\w+))? of agentflow\.plugins", str(caught.value))
    assert named is None or set(filter(None, named.groups())) <= set(plugins.__all__)


@wires
async def test_a_server_that_is_not_there_names_the_cure(wire: str, asker: Callable) -> None:
    """For an unused port, the error names `api_base=` and the address of the request."""
    async with serve(wire, ["ok"]) as server:
        model = asker(server, retries=0)
        base = server.base_url
    with pytest.raises(ModelError, match="Check api_base=, that a server listens there") as caught:
        await model.ask()
    assert f"The request went to {base}" in str(caught.value)


TEMPLATES = [
    (
        400,
        (
            "Unable to generate parser for this template. Automatic parser generation failed: \n------------\nWhile executing "
            "CallExpression at line 62\n ^\nError: Jinja Exception: Tool call IDs should be alphanumeric strings with length 9!"
        ),
        "Error: Jinja Exception: Tool call IDs should be alphanumeric strings with length 9!",
    ),
    (
        500,
        (
            "\n------------\nWhile executing FilterExpression at line 120, column 73 in source:\n...\n   ^\nError: Unknown "
            "(built-in) filter 'items' for type String"
        ),
        (
            "failed (500): While executing FilterExpression at line 120, column 73 in source: Error: Unknown (built-in) filter "
            "'items' for type String."
        ),
    ),
    (500, "image input is not supported - hint: you may need to provide the mmproj", "image input is not supported"),
]


@pytest.mark.parametrize(("status", "said", "words"), TEMPLATES)
async def test_what_a_local_server_will_never_take_is_told_whole(
    status: int, said: str, words: str, asker: Callable
) -> None:
    """A template's reason follows its first line: it reaches the reader, and nothing is retried."""
    async with serve("openai", [Fault.status(status, message=said)]) as server:
        with pytest.raises(ModelError) as caught:
            await asker(server, "openai/local").ask()
        assert len(server.requests) == 1
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert not caught.value.retryable


@wires
async def test_an_overload_in_the_stream_is_retryable(wire: str, asker: Callable) -> None:
    """An error event after HTTP 200 is a failure like any other."""
    async with serve(wire, [WireReply("never", faults=Fault.error_event(0))]) as server:
        with pytest.raises(ModelError, match="verload") as caught:
            await asker(server, retries=0).ask()
    assert caught.value.retryable


@wires
async def test_a_server_that_is_not_there_is_retryable(wire: str, asker: Callable) -> None:
    """A refused connection is reported as such, without a status."""
    async with serve(wire, []) as server:
        model = asker(server, retries=1)
    with pytest.raises(ModelError, match="could not be reached") as caught:
        await model.ask()
    assert (caught.value.retryable, caught.value.status, len(model.sleeps)) == (True, None, 1)


@wires
async def test_a_wait_that_the_provider_asks_for_is_kept(wire: str, asker: Callable) -> None:
    """The sleep before the next attempt is exactly the requested wait; without a request it grows."""
    busy = [Fault.status(429, retry_after=2.5), Fault.status(429, retry_after_ms=1500), "ok"]
    async with serve(wire, busy) as server:
        model = asker(server)
        assert (await model.ask()).text == "ok"
    assert model.sleeps == [2.5, 1.5]
    async with serve(wire, [Fault.status(503), Fault.status(503), "ok"]) as server:
        model = asker(server)
        assert (await model.ask()).text == "ok"
    assert 0.5 <= model.sleeps[0] <= 1.0 <= model.sleeps[1] <= 1.5


async def test_a_wait_beyond_the_cap_is_told_and_not_waited_for(asker: Callable) -> None:
    """If the provider requests more than max_wait, the error has the wait and nothing is retried."""
    async with serve("openai", [Fault.status(429, retry_after=90)]) as server:
        model = asker(server, max_wait=60.0)
        with pytest.raises(ModelError, match="wait 90 s") as caught:
            await model.ask()
    assert (caught.value.retry_after, caught.value.retryable, model.sleeps) == (90.0, True, [])


async def test_the_last_error_is_raised_when_the_attempts_are_used_up(asker: Callable) -> None:
    """retries=2 makes three requests; a permanent failure makes one."""
    async with serve("openai", [Fault.status(500), Fault.status(503), Fault.status(502)]) as server:
        with pytest.raises(ModelError) as caught:
            await asker(server).ask()
        server.assert_done()
    assert caught.value.status == 502
    async with serve("openai", [Fault.status(401)]) as server:
        with pytest.raises(ModelError):
            await asker(server).ask()
    assert len(server.requests) == 1


@wires
@pytest.mark.parametrize("status", [401, 400, 500])
async def test_a_key_that_the_provider_echoes_is_not_shown(
    wire: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys from arguments, headers or the environment are masked in the error's text."""
    monkeypatch.setenv("SOME_API_KEY", "env-0123456789")
    said = "I got key-0123456789, env-0123456789 and Bearer hdr-0123456789, at postgres://ann:pw@x."
    async with serve(wire, [Fault.status(status, message=said)] * 2) as server:
        model = LiteLLMModel(
            {"openai": "openai/gpt-5", "anthropic": "anthropic/claude-sonnet-4-5"}[wire],
            api_base=server.base_url,
            api_key="key-0123456789",
            headers={"X-Proxy-Token": "hdr-0123456789", "X-Tier": "standard"},
            retries=0,
        )
        with pytest.raises(ModelError) as caught:
            [_ async for _ in model.stream(ModelRequest([Msg.user("hi")], (), ModelOptions(), model.name))]
    assert "I got ***, *** and " in str(caught.value)
    assert "0123456789" not in str(caught.value)
    assert "pw@" not in str(caught.value)


@wires
@pytest.mark.parametrize(
    "fault",
    [Fault.cut("text"), Fault.cut("text", clean=True), Fault.error_event("text")],
    ids=["torn", "ended without a reason", "error event"],
)
async def test_a_broken_stream_starts_over_and_says_so(wire: str, fault: Fault, asker: Callable) -> None:
    """After delivered chunks, the next attempt begins with restart, and the fold is the second reply."""
    async with serve(wire, [WireReply("half of it and more", faults=fault), "whole"]) as server:
        model = asker(server)
        chunks = await model.chunks()
    assert [chunk.restart for chunk in chunks].count(True) == 1
    assert next(chunk for chunk in chunks if chunk.restart).text == "whole"
    assert fold(chunks).text == "whole"
    assert len(model.sleeps) == 1


async def test_a_broken_stream_counts_against_the_retries(asker: Callable) -> None:
    """With no attempt left, a broken stream is an error."""
    async with serve("openai", [WireReply("half of it", chunk=4, faults=Fault.cut("text"))]) as server:
        with pytest.raises(ModelError) as caught:
            await asker(server, retries=0).ask()
    assert caught.value.retryable


@wires
async def test_what_breaks_behind_the_finish_reason_costs_nothing_but_usage(wire: str, asker: Callable) -> None:
    """A reply whose connection breaks after the finish reason is complete."""
    async with serve(wire, [WireReply("whole", faults=Fault.cut("stop"))]) as server:
        reply = await asker(server, retries=0).ask()
    assert (reply.text, reply.finish_reason) == ("whole", "stop")


@wires
async def test_a_reader_that_stops_closes_the_connection(wire: str, asker: Callable) -> None:
    """`aclose()` after the first chunk ends the request at the server."""
    async with serve(wire, [WireReply("a long reply", chunk=2, faults=Fault.hang("text"))]) as server:
        model = asker(server)
        stream = model.model.stream(model.request("hi", (), ModelOptions()))
        assert (await anext(stream)).text == "a "
        await stream.aclose()
        async with asyncio.timeout(10):
            await server.wait_closed_connections()
        assert server.requests[0].ending == "client left"


@wires
@pytest.mark.parametrize("where", [None, "text"], ids=["before the headers", "between pieces"])
async def test_cancelling_closes_the_connection(wire: str, where: str | None, asker: Callable) -> None:
    """Cancelling the reader ends the request at once, without another attempt, and is not swallowed."""
    arrived = asyncio.Event()

    def brain(request: object) -> WireReply:
        arrived.set()
        return WireReply("a long reply", chunk=2, faults=Fault.hang(where))  # pyright: ignore[reportArgumentType]

    async with serve(wire, brain) as server:
        task = asyncio.create_task(asker(server).ask())
        await arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(10):
            await server.wait_closed_connections()
        assert len(server.requests) == 1


@wires
async def test_silence_beyond_the_timeout_is_an_error(wire: str) -> None:
    """A provider that is silent for longer than `timeout` is abandoned."""
    async with serve(wire, [WireReply("a long reply", faults=Fault.hang("text"))]) as server:
        name = "openai/gpt-5" if wire == "openai" else "anthropic/claude-sonnet-4-5"
        model = LiteLLMModel(name, api_base=server.base_url, api_key="k", retries=0, timeout=0.2)
        request = Asking(model)
        with pytest.raises(ModelError) as caught:
            await request.all()
    assert caught.value.retryable


class Asking:
    """One plain question to a model."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.request = ModelRequest([Msg.user("hi")], (), ModelOptions(), model.name)

    async def all(self) -> list[ModelChunk]:
        return [chunk async for chunk in self.model.stream(self.request)]


async def test_a_name_without_a_provider_says_what_to_write() -> None:
    """A model that LiteLLM does not know is an error with the form of a name."""
    with pytest.raises(ModelError, match="'provider/model'") as caught:
        await Asking(LiteLLMModel("gpt-nonsense")).all()
    assert (caught.value.retryable, caught.value.status) == (False, None)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "variable"), [("openai/gpt-5", "OPENAI_API_KEY"), ("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY")]
)
async def test_a_missing_key_names_the_variable(name: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key the error names the environment variable; nothing is sent."""
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ModelError, match=f"There is no API key for {name}: .*{variable}") as caught:
        await Asking(LiteLLMModel(name, api_base="http://127.0.0.1:9/v1")).all()
    assert (caught.value.status, caught.value.retryable) == (401, False)


def test_building_is_checked_and_cheap() -> None:
    """Wrong arguments are refused at once; the name is kept; a name resolves to the adapter."""
    assert isinstance(OFFLINE, Model)
    assert resolve_model("openai/gpt-5").name == "openai/gpt-5"
    with pytest.raises(UsageError, match="needs a model name"):
        LiteLLMModel(" ")
    with pytest.raises(UsageError, match="negative"):
        LiteLLMModel("openai/gpt-5", retries=-1)
    with pytest.raises(UsageError, match="num_retries"):
        LiteLLMModel("openai/gpt-5", params={"num_retries": 3})


def test_importing_and_building_loads_no_litellm() -> None:
    """The package that takes seconds to import is not loaded before the first request."""
    code = (
        "import sys\nfrom agentflow.models.litellm import LiteLLMModel\nLiteLLMModel('openai/gpt-5')\n"
        "assert 'litellm' not in sys.modules and 'openai' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_extra_cannot_take_over_what_the_adapter_sets() -> None:
    """Options pass only LiteLLM's other arguments."""
    request = ModelRequest([Msg.user("hi")], (), ModelOptions(extra={"stream": False}), OFFLINE.name)
    with pytest.raises(UsageError, match="the model 'openai/gpt-5' contains"):
        await anext(OFFLINE.stream(request))


@wires
async def test_nothing_is_printed(wire: str, asker: Callable, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither replies nor failures print anything to stdout or stderr."""
    async with serve(wire, ["ok", Fault.status(500), Fault.status(401)]) as server:
        model = asker(server, retries=0)
        await model.ask()
        for _ in range(2):
            with pytest.raises(ModelError):
                await model.ask()
    with pytest.raises(ModelError):
        await Asking(LiteLLMModel("gpt-nonsense")).all()
    assert capfd.readouterr() == ("", "")


ODD = [
    Fault.usage_choices("null"),
    Fault.usage_choices("absent"),
    Fault.no_ids(),
    Fault.repeated_ids(),
    Fault.whole_calls(),
    Fault.split_names(),
    Fault.crlf(),
    Fault.comments(),
    Fault.unknown_events(),
    Fault.pings(3),
    Fault.split_bytes(7),
    Fault.no_end_mark(),
]


@wires
@pytest.mark.parametrize("fault", ODD, ids=lambda fault: fault.name)
async def test_odd_but_common_streams_are_read(wire: str, fault: Fault, asker: Callable) -> None:
    """Missing or repeated ids, split names, noise and bytes split anywhere do not change the reply."""
    calls = (ScriptedCall("add", {"a": 1}), ScriptedCall("add", {"word": "żółw"}))
    async with serve(wire, [WireReply("Ünï ", calls=calls, chunk=3, faults=fault)]) as server:
        reply = await asker(server, retries=0).ask("hi", [ADD])
    assert reply.text.strip() == "Ünï"
    assert [(use.name, dict(use.input)) for use in reply.tool_uses] == [("add", {"a": 1}), ("add", {"word": "żółw"})]
    assert len({use.id for use in reply.tool_uses}) == 2
    assert all(use.id for use in reply.tool_uses)


async def test_a_refusal_of_the_model_is_told(asker: Callable) -> None:
    """The text of a refusal is not lost (OpenAI's `refusal` field is: LiteLLM drops it)."""
    async with serve("anthropic", [WireReply(faults=Fault.refusal("I cannot."))]) as server:
        assert (await asker(server, retries=0).ask()).text == "I cannot."


async def test_a_call_without_arguments_is_an_empty_object(asker: Callable) -> None:
    """A call whose arguments are empty text has no error and an empty input."""
    async with serve("openai", [UseTool("add", "")]) as server:
        (use,) = (await asker(server).ask("hi", [ADD])).tool_uses
    assert (dict(use.input), use.input_error, use.arguments) == ({}, None, "{}")


def test_an_installed_package_is_reached_by_its_scheme_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_schemes: None
) -> None:
    """An entry point named like a provider gets `gemini://` and not `gemini/`; our own schemes cannot be replaced."""
    (tmp_path / "acme-1.0.dist-info").mkdir()
    (tmp_path / "acme-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (tmp_path / "acme-1.0.dist-info" / "entry_points.txt").write_text(
        "[agentflow.models]\ngemini = acme_models:Taken\nopenai = acme_models:Taken\nlitellm = acme_models:Taken\n"
    )
    (tmp_path / "acme_models.py").write_text(
        "class Taken:\n    def __init__(self, rest):\n        self.name = f'taken {rest}'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    names = [
        "gemini/x",
        "gemini://x",
        "openai/gpt-5",
        "openai://gpt-5",
        "litellm/openai/gpt-5",
        "litellm://openai/gpt-5",
    ]
    assert [resolve_model(name).name for name in names] == ["gemini/x", "taken x", *["openai/gpt-5"] * 4]


@pytest.fixture
def new_schemes() -> Iterator[None]:
    """Return the currently installed schemes, before and after the test."""
    model_port._schemes.cache_clear()
    yield
    model_port._schemes.cache_clear()


async def test_a_model_that_does_not_describe_itself_calls_tools() -> None:
    """It can be forced to call one, has no JSON-schema mode, and its tokens are not counted."""
    plain = ScriptedModel(["hi"])
    assert await answer_modes(plain) == AnswerModes(native=False, native_with_tools=False, tools=True, forced=True)
    assert await token_count(plain, ModelRequest([Msg.user("hi")], (), ModelOptions(), "m")) is None


async def test_a_model_that_describes_itself_is_asked() -> None:
    """By its methods `answer_modes` and `count_tokens`."""

    class Own(ScriptedModel):
        async def answer_modes(self) -> AnswerModes:
            return AnswerModes(native=True, tools=False)

        async def count_tokens(self, request: ModelRequest) -> TokenCount:
            return TokenCount(len(request.messages), "tokenizer")

    own = Own(["hi"])
    assert await answer_modes(own) == AnswerModes(native=True, tools=False)
    assert await token_count(own, ModelRequest([Msg.user("hi")], (), ModelOptions(), "m")) == (1, "tokenizer")


@pytest.mark.parametrize("adapter", [OpenAIWire, AnthropicWire, LiteLLMModel])
def test_defaults_are_those_of_the_page(adapter: Callable[..., Model]) -> None:
    """Retries, and seconds to wait for them, for the next bytes, and for a connection."""
    page = (Path(__file__).parents[2] / "docs/providers.md").read_text()
    found = re.search(
        r"`retries` \((\d+)\), `max_wait` \((\d+) s\)[\s\S]*seconds without data \((\d+)\); seconds to connect \((\d+)\)",
        page,
    )
    assert found is not None
    documented = dict(zip(("retries", "max_wait", "timeout", "connect_timeout"), map(int, found.groups()), strict=True))
    defaults = {name: one.default for name, one in inspect.signature(adapter).parameters.items() if name in documented}
    assert defaults == {name: documented[name] for name in defaults}
    assert len(defaults) >= 3
