"""What the wire servers send when something is to go wrong."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import aiohttp
import pytest
from wire_client import Got, ask
from wire_examples import KEYS, USER, chat, message

from agentflow.errors import UsageError
from agentflow.testing.wire import Fault, Say, ScriptedCall, UseTool, WireReply, WireServer, WireUsage

USAGE = WireUsage(input=3, output=2)
TEXT = Say("grüße 日本", usage=USAGE, chunk=3)
CALL = UseTool("add", {"city": "Zürich"}, id="c1", usage=USAGE, chunk=4)


async def openai(reply: WireReply, *faults: Fault, stream: bool = True) -> Got:
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    async with WireServer.openai([reply.with_faults(*faults)]) as server:
        got = await ask(server, chat(USER), **more)
        server.assert_done()
        return got


async def anthropic(reply: WireReply, *faults: Fault, stream: bool = True) -> Got:
    async with WireServer.anthropic([reply.with_faults(*faults)]) as server:
        got = await ask(server, message(USER), stream=stream)
        server.assert_done()
        return got


# -- HTTP errors


@pytest.mark.parametrize(
    ("status", "openai_error", "anthropic_error"),
    [
        (400, ("invalid_request_error", None), "invalid_request_error"),
        (401, ("invalid_request_error", "invalid_api_key"), "authentication_error"),
        (404, ("invalid_request_error", "model_not_found"), "not_found_error"),
        (429, ("requests", "rate_limit_exceeded"), "rate_limit_error"),
        (500, ("server_error", None), "api_error"),
        (503, ("server_error", None), "api_error"),
        (529, ("server_error", None), "overloaded_error"),
        (418, ("invalid_request_error", None), "invalid_request_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_status_has_the_vendors_error_body(
    status: int, openai_error: tuple[str, str | None], anthropic_error: str, stream: bool
) -> None:
    """Type and code are the vendor's for the status, streamed or not."""
    got = await openai(TEXT, Fault.status(status), stream=stream)
    assert (got.status, got.json["error"]["type"], got.json["error"]["code"]) == (status, *openai_error)
    got = await anthropic(TEXT, Fault.status(status), stream=stream)
    assert (got.status, got.json["type"], got.json["error"]["type"]) == (status, "error", anthropic_error)


@pytest.mark.parametrize(
    ("fault", "headers"),
    [
        (Fault.status(429, retry_after=2), {"retry-after": "2"}),
        (Fault.status(429, retry_after=0.25), {"retry-after": "0.25"}),
        (
            Fault.status(429, retry_after=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
            {"retry-after": "Fri, 02 Jan 2026 03:04:05 GMT"},
        ),
        (Fault.status(429, retry_after="6m0s"), {"retry-after": "6m0s"}),
        (Fault.status(429, retry_after_ms=150), {"retry-after-ms": "150"}),
        (
            Fault.status(529, headers={"x-should-retry": "true", "anthropic-ratelimit-tokens-reset": "x"}),
            {"x-should-retry": "true", "anthropic-ratelimit-tokens-reset": "x"},
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
async def test_the_wait_is_told_in_each_known_form(fault: Fault, headers: dict[str, str]) -> None:
    """Seconds, fractions, dates, milliseconds and vendor headers go out as given, and nothing else."""
    got = await openai(TEXT, fault)
    sent = {name: value for name, value in got.headers.items() if name.startswith(("retry", "x-should", "anthropic"))}
    assert sent == headers


async def test_the_message_of_an_error_can_be_given() -> None:
    """A wait that is only in the message can be played."""
    got = await openai(TEXT, Fault.status(429, message="Please try again in 41.724s", code="insufficient_quota"))
    assert got.json["error"] == {
        "message": "Please try again in 41.724s",
        "type": "requests",
        "param": None,
        "code": "insufficient_quota",
    }
    got = await anthropic(TEXT, Fault.status(500, message="Overloaded", type="overloaded_error"))
    assert got.json["error"] == {"type": "overloaded_error", "message": "Overloaded"}


async def test_context_overflow_is_said_in_the_vendors_words() -> None:
    """A client can tell it from the code or the text."""
    got = await openai(TEXT, Fault.context_overflow())
    assert (got.status, got.json["error"]["code"]) == (400, "context_length_exceeded")
    assert got.json["error"]["message"].startswith("This model's maximum context length is 128000 tokens.")
    got = await anthropic(TEXT, Fault.context_overflow())
    assert (got.status, got.json["error"]["message"]) == (400, "prompt is too long: 200001 tokens > 200000 maximum")


async def test_bodies_that_are_no_json() -> None:
    """A gateway's page, nothing at all, and given bytes."""
    got = await openai(TEXT, Fault.html(502))
    assert (got.status, got.headers["content-type"]) == (502, "text/html")
    assert got.body.startswith(b"<html>")
    got = await anthropic(TEXT, Fault.empty_body())
    assert (got.status, got.body) == (200, b"")
    got = await openai(TEXT, Fault.raw_body('[{"error":{"code":400}}]', status=400))
    assert (got.status, got.json) == (400, [{"error": {"code": 400}}])


async def test_a_fault_alone_is_a_line_of_a_script() -> None:
    """A retry is two lines: the fault, then the answer."""
    async with WireServer.openai([Fault.status(429), "ok"]) as server:
        assert (await ask(server, chat(USER))).status == 429
        assert (await ask(server, chat(USER))).json["choices"][0]["message"]["content"] == "ok"
        server.assert_done()


# -- breaking off


def kinds(got: Got) -> list[str]:
    """What each event carries, for either wire."""
    found: list[str] = []
    for name, data in got.events:
        if data == "[DONE]":
            found.append("end")
        elif name is not None:
            found.append(data["delta"]["type"] if name == "content_block_delta" else name)
        elif "error" in data:
            found.append("error")
        elif not data["choices"]:
            found.append("usage")
        else:
            choice = data["choices"][0]
            found.append(choice["finish_reason"] or "+".join(choice["delta"]))
    return found


ROLE = "role+content+refusal"


@pytest.mark.parametrize(
    ("after", "openai_kinds", "anthropic_kinds"),
    [
        (0, [], []),
        (2, [ROLE, "content"], ["message_start", "content_block_start"]),
        ("head", [ROLE], ["message_start"]),
        ("text", [ROLE, "content"], ["message_start", "content_block_start", "ping", "text_delta"]),
    ],
)
async def test_an_error_event_comes_before_or_after_the_first_text(
    after: Any, openai_kinds: list[str], anthropic_kinds: list[str]
) -> None:
    """The stream says 200, then an error in the vendor's shape, and ends."""
    got = await openai(TEXT, Fault.error_event(after))
    assert (got.status, kinds(got), got.error) == (200, [*openai_kinds, "error"], None)
    assert got.events[-1][1]["error"]["type"] == "server_error"
    got = await anthropic(TEXT, Fault.error_event(after))
    assert (got.status, kinds(got), got.error) == (200, [*anthropic_kinds, "error"], None)
    error = {"type": "overloaded_error", "message": "Overloaded"}
    assert got.events[-1] == ("error", {"type": "error", "error": error})


async def test_an_error_event_of_a_whole_reply_is_an_http_error() -> None:
    """Without a stream the overload has a status."""
    assert (await openai(TEXT, Fault.error_event(), stream=False)).status == 503
    got = await anthropic(TEXT, Fault.error_event(type="api_error", message="x"), stream=False)
    assert (got.status, got.json["error"]) == (529, {"type": "api_error", "message": "x"})


@pytest.mark.parametrize("clean", [False, True], ids=["torn", "clean"])
@pytest.mark.parametrize(
    ("after", "last_openai", "last_anthropic"),
    [
        ("head", ROLE, "message_start"),
        ("call", "tool_calls", "input_json_delta"),
        ("content", "tool_calls", "content_block_stop"),
        ("stop", "tool_calls", "message_delta"),
        ("all", "usage", "message_delta"),
        (3, "tool_calls", "ping"),
    ],
)
async def test_a_stream_is_cut_at_the_named_place(
    after: Any, last_openai: str, last_anthropic: str, clean: bool
) -> None:
    """What precedes the place arrives, nothing after it; torn is an error to the client, clean is not."""
    for got, last in (
        (await openai(CALL, Fault.cut(after, clean=clean)), last_openai),
        (await anthropic(CALL, Fault.cut(after, clean=clean)), last_anthropic),
    ):
        assert kinds(got)[-1] == last
        assert (got.error is None) == clean


async def test_a_missing_end_mark_is_only_that() -> None:
    """Everything else is there, usage too."""
    assert kinds(await openai(TEXT, Fault.no_end_mark()))[-2:] == ["stop", "usage"]
    assert kinds(await anthropic(TEXT, Fault.no_end_mark()))[-1] == "message_delta"


async def test_a_whole_reply_is_cut_in_the_middle() -> None:
    """Half the body arrives, with or without a proper end."""
    whole = (await openai(TEXT, stream=False)).body
    for clean in (False, True):
        got = await openai(TEXT, Fault.cut(clean=clean), stream=False)
        assert got.body == whole[: len(whole) // 2]
        assert (got.error is None) == clean


@pytest.mark.parametrize("fault", [Fault.hang(), Fault.hang(0), Fault.hang("text")], ids=lambda fault: fault.name)
async def test_a_hang_lasts_until_the_client_leaves(fault: Fault) -> None:
    """The connection stays open while the client waits; once it has gone, none is left."""
    async with WireServer.anthropic([TEXT.with_faults(fault)]) as server:
        task = asyncio.create_task(ask(server, message(USER), stream=True))
        async with asyncio.timeout(10):
            await server.wait_requests()
        assert server.open_connections == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with asyncio.timeout(5):
            await server.wait_closed_connections()
        assert (server.open_connections, server.requests[0].ending) == (0, "client left")


async def test_a_server_that_stops_breaks_off_what_hangs() -> None:
    """Stopping does not wait for a reply that never comes."""
    async with WireServer.openai([Fault.hang()]) as server:
        task = asyncio.create_task(ask(server, chat(USER)))
        async with asyncio.timeout(10):
            await server.wait_requests()
    with pytest.raises(aiohttp.ClientError):
        await task
    assert (server.requests[0].ending, server.open_connections) == ("server stopped", 0)


async def test_a_client_that_closes_a_stream_early_is_noticed() -> None:
    """A reader that leaves in the middle leaves no open connection."""
    gate = asyncio.Event()
    async with (
        WireServer.anthropic([TEXT.with_faults(Fault.slow(gate, after=1))]) as server,
        aiohttp.ClientSession() as session,
    ):
        async with session.post(server.url, json=message(USER, stream=True), headers=KEYS) as response:
            assert (await response.content.readline()).startswith(b"event: message_start")
            assert server.open_connections == 1
        async with asyncio.timeout(5):
            await server.wait_closed_connections()
        assert server.requests[0].ending == "client left"


async def test_a_gate_holds_each_write() -> None:
    """A gate function is called before each write after the free ones, with its number."""
    asked: list[int] = []

    async def gate(number: int) -> None:
        asked.append(number)

    got = await openai(Say("abcdef", chunk=3), Fault.slow(gate, after=2))
    assert kinds(got) == [ROLE, "content", "content", "stop", "usage", "end"]
    assert asked == [2, 3, 4, 5]


async def test_a_pause_comes_before_each_write_that_is_slowed() -> None:
    """Seconds alone slow a reply without holding it."""
    got = await openai(TEXT, Fault.slow(after=5, seconds=0.001))
    assert kinds(got)[-1] == "end"


def test_a_slow_that_slows_nothing_is_refused() -> None:
    """Neither gate nor seconds is a mistake in the test."""
    with pytest.raises(UsageError, match="needs a gate or seconds"):
        Fault.slow()
    with pytest.raises(UsageError, match="positive sizes and offsets"):
        Fault.split_bytes(0)


# -- what the reply says


async def test_usage_is_missing_or_told_twice() -> None:
    """No counts at all, or cumulative counts in two places that must not be added."""
    assert b'"usage"' not in (await openai(TEXT, Fault.no_usage())).body
    assert b'"usage"' not in (await anthropic(TEXT, Fault.no_usage())).body
    assert "usage" not in (await openai(TEXT, Fault.no_usage(), stream=False)).json
    assert "usage" not in (await anthropic(TEXT, Fault.no_usage(), stream=False)).json
    told = [data["usage"] for _, data in (await openai(TEXT, Fault.usage_twice())).events if isinstance(data, dict)]
    assert [usage["completion_tokens"] for usage in told if usage] == [2, 2]
    events = (await anthropic(TEXT, Fault.usage_twice())).events
    told = [data["usage"]["output_tokens"] for name, data in events if name == "message_delta"]
    assert told == [2, 2]


async def test_length_stops_in_the_midst_of_a_call() -> None:
    """The arguments end in the middle and the reason says length."""
    got = await openai(CALL, Fault.length_mid_call(), stream=False)
    choice = got.json["choices"][0]
    assert (choice["finish_reason"], choice["message"]["tool_calls"][0]["function"]["arguments"]) == (
        "length",
        '{"city":',
    )
    events = (await anthropic(CALL, Fault.length_mid_call())).events
    parts = [data["delta"]["partial_json"] for name, data in events if name == "content_block_delta"]
    assert "".join(parts) == '{"city":'
    assert events[-2][1]["delta"]["stop_reason"] == "max_tokens"


async def test_stop_stands_beside_calls() -> None:
    """The reason says stop although there are calls."""
    assert (await openai(CALL, Fault.stop_beside_calls(), stream=False)).json["choices"][0]["finish_reason"] == "stop"
    got = await anthropic(CALL, Fault.stop_beside_calls(), stream=False)
    assert (got.json["stop_reason"], got.json["content"][0]["type"]) == ("end_turn", "tool_use")


async def test_an_answer_is_empty() -> None:
    """No text, no calls, and a reason as if that were an answer."""
    assert kinds(await openai(CALL, Fault.empty_answer())) == [ROLE, "stop", "usage", "end"]
    assert kinds(await anthropic(CALL, Fault.empty_answer())) == ["message_start", "message_delta", "message_stop"]
    assert (await openai(CALL, Fault.empty_answer(), stream=False)).json["choices"][0]["message"]["content"] == ""
    assert (await anthropic(CALL, Fault.empty_answer(), stream=False)).json["content"] == []


async def test_a_refusal_has_its_own_field_or_reason() -> None:
    """OpenAI has a field for it, Anthropic a stop reason."""
    choice = (await openai(TEXT, Fault.refusal("No."), stream=False)).json["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": "No."}
    got = await openai(TEXT, Fault.refusal("No."))
    assert [data["choices"][0]["delta"] for _, data in got.events[:2]] == [
        {"role": "assistant", "content": None, "refusal": None},
        {"refusal": "No."},
    ]
    body = (await anthropic(TEXT, Fault.refusal("No."), stream=False)).json
    assert (body["stop_reason"], body["content"]) == ("refusal", [{"type": "text", "text": "No."}])


# -- the shape of the stream


def openai_calls(got: Got) -> list[Any]:
    """The call deltas in order."""
    chunks = [data["choices"][0]["delta"] for _, data in got.events if isinstance(data, dict) and data.get("choices")]
    return [delta["tool_calls"][0] for delta in chunks if "tool_calls" in delta]


async def test_ids_and_indexes_of_calls_are_missing_or_repeated() -> None:
    """The three sloppy ways in which compatible servers key their calls."""
    assert all("id" not in one for one in openai_calls(await openai(CALL, Fault.no_ids())))
    assert all("index" not in one for one in openai_calls(await openai(CALL, Fault.no_index())))
    assert all(one["id"] == "c1" for one in openai_calls(await openai(CALL, Fault.repeated_ids())))
    whole = (await openai(CALL, Fault.no_ids(), stream=False)).json["choices"][0]["message"]["tool_calls"][0]
    assert "id" not in whole
    assert (await anthropic(CALL, Fault.no_ids(), stream=False)).json["content"][0]["id"] == ""


async def test_a_call_comes_in_one_piece() -> None:
    """Id, name and all arguments in a single chunk; two faults combine."""
    arguments = '{"city":"Zürich"}'
    function = {"name": "add", "arguments": arguments}
    assert openai_calls(await openai(CALL, Fault.whole_calls(), Fault.no_index())) == [
        {"id": "c1", "type": "function", "function": function}
    ]
    events = (await anthropic(CALL, Fault.whole_calls())).events
    assert [d["delta"]["partial_json"] for name, d in events if name == "content_block_delta"] == [arguments]


async def test_a_name_comes_in_two_pieces() -> None:
    """The name is split over the first two chunks."""
    names = [one["function"].get("name") for one in openai_calls(await openai(CALL, Fault.split_names()))]
    assert names[:3] == ["a", "dd", None]


@pytest.mark.parametrize(("how", "key"), [("null", True), ("absent", False)])
async def test_the_usage_chunk_has_no_choices_list(how: Any, key: bool) -> None:
    """`choices` is null or not there at all."""
    got = await openai(TEXT, Fault.usage_choices(how))
    chunk = next(data for _, data in got.events if isinstance(data, dict) and data["usage"])
    assert ("choices" in chunk) is key
    assert chunk.get("choices") is None


async def test_lines_end_in_crlf_between_comments_and_unknown_events() -> None:
    """Noise around the events leaves the events as they are."""
    plain = await anthropic(TEXT)
    got = await anthropic(TEXT, Fault.crlf(), Fault.comments(), Fault.unknown_events(), Fault.pings(2))
    assert b"\n\n" not in got.body
    assert got.body.count(b": keep-alive\r\n\r\n") == len(plain.events)
    noise = ("ping", "telemetry")
    assert [e for e in got.events if e[0] not in noise] == [e for e in plain.events if e[0] not in noise]
    assert sum(name == "ping" for name, _ in got.events) == 1 + 2 * (len(plain.events) - 1)
    assert sum(name == "telemetry" for name, _ in got.events) == len(plain.events)
    assert any("x_unknown" in data for _, data in (await openai(TEXT, Fault.unknown_events())).events)


@pytest.mark.parametrize(
    "fault", [Fault.split_bytes(), Fault.split_bytes(7), Fault.split_bytes(at=(5, 3, 10_000)), Fault.one_write()]
)
async def test_bytes_are_cut_anywhere(fault: Fault) -> None:
    """Writes respect neither events nor characters, and the bytes are the same."""
    whole = await openai(TEXT)
    async with WireServer.openai([TEXT.with_faults(fault)]) as server:
        got = await ask(server, chat(USER), stream=True, stream_options={"include_usage": True})
        expected = {
            "bytes split by 1": len(whole.body),
            "bytes split by 7": -(-len(whole.body) // 7),
            "one write": 1,
        }
        assert got.body == whole.body
        assert server.requests[0].writes == expected.get(fault.name, 3)


async def test_a_fault_at_a_place_that_is_not_there_is_told() -> None:
    """The answer is a 500 that names the place, and the script was not used exactly."""
    for fault in (Fault.cut("call"), Fault.cut(99), Fault.length_mid_call()):
        async with WireServer.openai([TEXT.with_faults(fault)]) as server:
            got = await ask(server, chat(USER), stream=True)
            assert got.status == 500
            assert got.json["error"]["message"].startswith("wire script: UsageError: ")
            with pytest.raises(AssertionError, match="failed, or was not fully used: UsageError"):
                server.assert_done()


def test_own_faults_are_a_name_and_an_edit() -> None:
    """A fault of one's own edits the plan like any other."""
    fault = Fault("nothing", lambda plan: plan)
    reply = WireReply("x", calls=(ScriptedCall("a"),), faults=fault)
    assert (reply.edits, fault.name) == ((fault,), "nothing")
