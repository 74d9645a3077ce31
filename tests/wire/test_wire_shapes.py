"""What the wire servers send when nothing goes wrong, compared whole."""

import pytest
from wire_client import ask
from wire_examples import ON, USER, chat, message, spec, tool, tooled

from agentflow.testing.wire import Say, ScriptedCall, UseTool, WireReply, WireServer, WireUsage
from agentflow.testing.wire.signing import Signer

USAGE = WireUsage(input=11, output=5, cache_read=4, cache_write=2, reasoning=3)
FULL = WireReply(
    "Sure é",
    thinking="I think",
    calls=(ScriptedCall("add", {"a": 1}), ScriptedCall("now", "", id="mine")),
    usage=USAGE,
    chunk=4,
)
OPENAI_USAGE = {
    "prompt_tokens": 17,
    "completion_tokens": 5,
    "total_tokens": 22,
    "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 3, "audio_tokens": 0},
}
ANTHROPIC_USAGE = {
    "input_tokens": 11,
    "cache_creation_input_tokens": 2,
    "cache_read_input_tokens": 4,
    "output_tokens": 5,
    "output_tokens_details": {"thinking_tokens": 3},
}
ANTHROPIC_BEGINNING = {**ANTHROPIC_USAGE, "output_tokens": 1}
del ANTHROPIC_BEGINNING["output_tokens_details"]
SIGNATURE = Signer().sign("I think", 0, 1)


async def test_openai_answers_in_one_body() -> None:
    """Text, reasoning, calls and usage are where the vendor puts them."""
    async with WireServer.openai([FULL]) as server:
        got = await ask(server, chat(USER, tools=[tool()]))
        assert got.headers["content-type"] == "application/json"
        assert got.json == {
            "id": "chatcmpl-wire-0",
            "object": "chat.completion",
            "created": 1_760_000_000,
            "model": "gpt-test",
            "system_fingerprint": "fp_wire",
            "choices": [
                {
                    "index": 0,
                    "message": {
                        "role": "assistant",
                        "content": "Sure é",
                        "refusal": None,
                        "reasoning_content": "I think",
                        "tool_calls": [
                            {
                                "id": "call_wire_0_0",
                                "type": "function",
                                "function": {"name": "add", "arguments": '{"a":1}'},
                            },
                            {"id": "mine", "type": "function", "function": {"name": "now", "arguments": ""}},
                        ],
                    },
                    "logprobs": None,
                    "finish_reason": "tool_calls",
                }
            ],
            "usage": OPENAI_USAGE,
        }
        server.assert_done()


def openai_deltas(events: list[tuple[str | None, object]]) -> list[object]:
    """Delta and finish reason of each chunk, with the envelope checked and taken off."""
    found: list[object] = []
    for name, data in events:
        assert name is None
        if not isinstance(data, dict):
            found.append(data)
            continue
        envelope = {key: data[key] for key in ("id", "object", "created", "model", "system_fingerprint")}
        assert envelope == {
            "id": "chatcmpl-wire-0",
            "object": "chat.completion.chunk",
            "created": 1_760_000_000,
            "model": "gpt-test",
            "system_fingerprint": "fp_wire",
        }
        found += [(c["delta"], c["finish_reason"]) for c in data["choices"]] or [data["usage"]]
    return found


async def test_openai_streams_role_pieces_calls_reason_usage_and_mark() -> None:
    """Each part comes in chunks, calls by index with id and name first, usage last with no choices."""
    async with WireServer.openai([FULL]) as server:
        got = await ask(server, chat(USER), stream=True, stream_options={"include_usage": True})
        assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
        first, second = {"index": 0}, {"index": 1}
        assert openai_deltas(got.events) == [
            ({"role": "assistant", "content": "", "refusal": None}, None),
            ({"reasoning_content": "I th"}, None),
            ({"reasoning_content": "ink"}, None),
            ({"content": "Sure"}, None),
            ({"content": " é"}, None),
            (
                {
                    "tool_calls": [
                        first
                        | {"id": "call_wire_0_0", "type": "function", "function": {"name": "add", "arguments": ""}}
                    ]
                },
                None,
            ),
            ({"tool_calls": [first | {"function": {"arguments": '{"a"'}}]}, None),
            ({"tool_calls": [first | {"function": {"arguments": ":1}"}}]}, None),
            (
                {
                    "tool_calls": [
                        second | {"id": "mine", "type": "function", "function": {"name": "now", "arguments": ""}}
                    ]
                },
                None,
            ),
            ({}, "tool_calls"),
            OPENAI_USAGE,
            "[DONE]",
        ]
        usages = [data["usage"] for _, data in got.events if isinstance(data, dict)]
        assert usages == [None] * 10 + [OPENAI_USAGE]


async def test_openai_sends_usage_only_when_asked() -> None:
    """Without include_usage no chunk has the key."""
    async with WireServer.openai([Say("hi")]) as server:
        got = await ask(server, chat(USER), stream=True)
        assert all("usage" not in data for _, data in got.events if isinstance(data, dict))
        assert len(got.events) == 4


async def test_openai_interleaves_parallel_calls_by_index() -> None:
    """With interleave the chunks of parallel calls alternate."""
    reply = WireReply(calls=(ScriptedCall("a", '{"x":1}'), ScriptedCall("b", '{"y":22}')), interleave=True, chunk=4)
    async with WireServer.openai([reply]) as server:
        got = await ask(server, chat(USER), stream=True)
        calls = [
            delta["tool_calls"][0]
            for _, data in got.events
            if isinstance(data, dict) and "tool_calls" in (delta := data["choices"][0]["delta"])
        ]
        assert [(one["index"], one["function"]["arguments"]) for one in calls] == [
            (0, ""),
            (1, ""),
            (0, '{"x"'),
            (1, '{"y"'),
            (0, ":1}"),
            (1, ":22}"),
        ]


async def test_anthropic_answers_in_one_body() -> None:
    """Thinking with its signature, text and calls are blocks in this order; input is an object."""
    async with WireServer.anthropic([FULL]) as server:
        got = await ask(server, tooled(USER, thinking=ON))
        assert got.json == {
            "id": "msg_wire_0",
            "type": "message",
            "role": "assistant",
            "model": "claude-test",
            "content": [
                {"type": "thinking", "thinking": "I think", "signature": SIGNATURE},
                {"type": "text", "text": "Sure é"},
                {"type": "tool_use", "id": "toolu_wire_0_0", "name": "add", "input": {"a": 1}},
                {"type": "tool_use", "id": "mine", "name": "now", "input": {}},
            ],
            "stop_reason": "tool_use",
            "stop_sequence": None,
            "usage": ANTHROPIC_USAGE,
        }


async def test_anthropic_streams_blocks_in_order() -> None:
    """Every event's name repeats its type; indexes are places in the content; usage in the end is cumulative."""
    async with WireServer.anthropic([FULL]) as server:
        got = await ask(server, tooled(USER, thinking=ON), stream=True)
        assert all(name == data["type"] for name, data in got.events)
        start, delta, stop = "content_block_start", "content_block_delta", "content_block_stop"
        add = {"type": "tool_use", "id": "toolu_wire_0_0", "name": "add", "input": {}}
        assert [data for _, data in got.events] == [
            {
                "type": "message_start",
                "message": {
                    "id": "msg_wire_0",
                    "type": "message",
                    "role": "assistant",
                    "model": "claude-test",
                    "content": [],
                    "stop_reason": None,
                    "stop_sequence": None,
                    "usage": ANTHROPIC_BEGINNING,
                },
            },
            {"type": start, "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
            {"type": "ping"},
            {"type": delta, "index": 0, "delta": {"type": "thinking_delta", "thinking": "I th"}},
            {"type": delta, "index": 0, "delta": {"type": "thinking_delta", "thinking": "ink"}},
            {"type": delta, "index": 0, "delta": {"type": "signature_delta", "signature": SIGNATURE}},
            {"type": stop, "index": 0},
            {"type": start, "index": 1, "content_block": {"type": "text", "text": ""}},
            {"type": delta, "index": 1, "delta": {"type": "text_delta", "text": "Sure"}},
            {"type": delta, "index": 1, "delta": {"type": "text_delta", "text": " é"}},
            {"type": stop, "index": 1},
            {"type": start, "index": 2, "content_block": add},
            {"type": delta, "index": 2, "delta": {"type": "input_json_delta", "partial_json": ""}},
            {"type": delta, "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"a"'}},
            {"type": delta, "index": 2, "delta": {"type": "input_json_delta", "partial_json": ":1}"}},
            {"type": stop, "index": 2},
            {"type": start, "index": 3, "content_block": add | {"id": "mine", "name": "now"}},
            {"type": delta, "index": 3, "delta": {"type": "input_json_delta", "partial_json": ""}},
            {"type": stop, "index": 3},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "tool_use", "stop_sequence": None},
                "usage": ANTHROPIC_USAGE,
            },
            {"type": "message_stop"},
        ]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_anthropic_thinks_only_when_asked(stream: bool) -> None:
    """A request without thinking gets the same reply without its thinking, like from the vendor."""
    async with WireServer.anthropic([WireReply("x", thinking="y", redacted="z")]) as server:
        got = await ask(server, message(USER), stream=stream)
        assert b"thinking" not in got.body


async def test_anthropic_sends_redacted_and_empty_thinking() -> None:
    """A block without text keeps its signature; a redacted one is opaque; both come back unrefused."""
    script = [WireReply(thinking="", redacted="secret", calls=(ScriptedCall("add"),)), Say("done")]
    async with WireServer.anthropic(script) as server:
        got = await ask(server, tooled(USER, thinking=ON))
        empty, redacted, use = got.json["content"]
        assert (empty["thinking"], redacted["type"]) == ("", "redacted_thinking")
        assert "secret" not in redacted["data"]
        told = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"], "content": "2"}]}
        again = await ask(
            server, tooled(USER, {"role": "assistant", "content": got.json["content"]}, told, thinking=ON)
        )
        assert again.json["content"] == [{"type": "text", "text": "done"}]
        server.assert_done()


async def test_calls_handed_out_without_thinking_are_not_asked_for_it() -> None:
    """A script that calls without thinking under manual thinking stays playable."""
    async with WireServer.anthropic([UseTool("add"), Say("done")]) as server:
        got = await ask(server, tooled(USER, thinking=ON))
        ident = got.json["content"][0]["id"]
        told = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": ident, "content": "2"}]}
        again = await ask(
            server, tooled(USER, {"role": "assistant", "content": got.json["content"]}, told, thinking=ON)
        )
        assert again.status == 200


@pytest.mark.parametrize(
    ("finish", "openai", "anthropic"),
    [
        ("stop", "stop", "end_turn"),
        ("tool_calls", "tool_calls", "tool_use"),
        ("length", "length", "max_tokens"),
        ("refusal", "content_filter", "refusal"),
        ("pause_turn", "pause_turn", "pause_turn"),
    ],
)
async def test_a_finish_is_said_in_the_vendors_word(finish: str, openai: str, anthropic: str) -> None:
    """The four common reasons are translated; any other word goes out as it is."""
    async with WireServer.openai([WireReply("x", finish=finish)]) as server:
        assert (await ask(server, chat(USER))).json["choices"][0]["finish_reason"] == openai
    async with WireServer.anthropic([WireReply("x", finish=finish)]) as server:
        assert (await ask(server, message(USER))).json["stop_reason"] == anthropic


async def test_usage_is_estimated_from_the_request_when_not_scripted() -> None:
    """Four characters are a token, so longer requests cost more."""
    async with WireServer.anthropic([Say("x" * 40), Say("x" * 40)]) as server:
        short = (await ask(server, message(USER))).json["usage"]
        long = (await ask(server, message({"role": "user", "content": "y" * 400}))).json["usage"]
        assert (short["output_tokens"], long["output_tokens"]) == (10, 10)
        assert long["input_tokens"] > short["input_tokens"] + 90


async def test_ids_of_calls_differ_between_replies() -> None:
    """Two replies of one server never mint the same id."""
    async with WireServer.openai([UseTool("a"), UseTool("a")]) as server:
        ids = [(await ask(server, chat(USER))).json["choices"][0]["message"]["tool_calls"][0]["id"] for _ in range(2)]
        assert ids == ["call_wire_0_0", "call_wire_1_0"]


async def test_tools_and_names_are_recorded() -> None:
    """The recorded request holds tools, model and headers as they came."""
    async with WireServer.anthropic([Say("x")]) as server:
        await ask(server, message(USER, tools=[spec("one"), spec("two")]))
        request = server.requests[0]
        assert (request.tool_names, request.model, request.stream, request.refused) == (
            ("one", "two"),
            "claude-test",
            False,
            None,
        )
        assert request.headers["x-api-key"] == "sk-test"
