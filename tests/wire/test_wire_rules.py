"""Every rule of the wire servers refuses what it names, in the vendor's words and shape; nothing legal is refused."""

import io
from collections.abc import Mapping, Sequence

import aiohttp
import pytest
from wire_examples import (
    ANTHROPIC,
    AUTH,
    KEYS,
    LONG,
    MARK,
    ON,
    OPENAI,
    RESPONSES,
    SIGNER,
    USER,
    Broken,
    answer_form,
    answers,
    asks,
    call,
    called,
    chat,
    function,
    message,
    reasoned,
    response,
    result,
    returned,
    round_of,
    says,
    sealed,
    spec,
    tells,
    text,
    thought,
    tool,
    tooled,
    use,
)

from agentflow.testing.wire import Dialect, Say, WireRequest, WireServer, describe_rules
from agentflow.testing.wire.jsonish import JsonObject, dump
from agentflow.testing.wire.rules import Subject, first_refusal
from agentflow.testing.wire.wires import ANTHROPIC as ANTHROPIC_WIRE
from agentflow.testing.wire.wires import OPENAI as OPENAI_WIRE
from agentflow.testing.wire.wires import RESPONSES as RESPONSES_WIRE
from agentflow.testing.wire.wires import Wire

WIRES: Mapping[str, Wire] = {"openai": OPENAI_WIRE, "responses": RESPONSES_WIRE, "anthropic": ANTHROPIC_WIRE}
EXAMPLES = {"openai": OPENAI, "responses": RESPONSES, "anthropic": ANTHROPIC}
HEADERS: Mapping[str, Mapping[str, str]] = {"openai": AUTH, "responses": AUTH, "anthropic": KEYS}
STATUS = {"key": 401, "too-large": 413, "reference": 404, "not-stored": 404}


def server_for(broken: Broken) -> WireServer:
    build = WireServer.anthropic if broken.rule.startswith("anthropic.") else WireServer.openai
    return build([Say("never")], dialect=broken.dialect)


@pytest.mark.parametrize("broken", [*OPENAI, *RESPONSES, *ANTHROPIC], ids=lambda broken: broken.rule)
async def test_a_broken_rule_is_answered_with_its_status_shape_and_whole_text(broken: Broken) -> None:
    """The refusal is the vendor's error body; it is recorded and uses up no reply."""
    wire, name = broken.rule.split(".", 1)
    headers = HEADERS[wire] if broken.headers is None else broken.headers
    sent = io.BytesIO(broken.raw or dump(broken.body).encode())
    async with (
        server_for(broken) as server,
        aiohttp.ClientSession() as session,
        session.post(server.base_url + WIRES[wire].path, headers=headers, data=sent) as answer,
    ):
        body = await answer.json()
        refused = server.requests[0]
        assert (refused.rule, refused.refused, refused.status) == (broken.rule, broken.message, answer.status)
        assert answer.status == STATUS.get(name, 400)
        rule = next(rule for rule in server.rules if rule.id == broken.rule)
        if wire == "anthropic":
            details = {} if rule.code is None else {"details": {"error_code": rule.code}}
            error = {"type": rule.type, "message": broken.message} | details
            assert body == {"type": "error", "error": error, "request_id": "req_wire_0"}
        else:
            inner = body if broken.dialect.family == "mistral" else body["error"]
            assert (inner["message"], inner["type"], inner["code"]) == (broken.message, rule.type, rule.code)
            assert (inner["param"] is None) == (rule.param is None)
        with pytest.raises(AssertionError, match="1 of 1 scripted replies were not used"):
            server.assert_done()


@pytest.mark.parametrize("wire", WIRES.values(), ids=lambda wire: wire.name)
@pytest.mark.parametrize(("text", "legal"), [(r"\ud83d\ude00", True), (r"\ud83d", False), (r"\uDE00\ud83d", False)])
async def test_half_a_surrogate_pair_is_no_json(wire: Wire, text: str, legal: bool) -> None:
    """As the vendors' parsers read it, whatever Python's own makes of it."""
    sent = (
        b'{"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "%b"}], "input": "a"}'
        % text.encode()
    )
    build = WireServer.anthropic if wire.name == "anthropic" else WireServer.openai
    async with build([Say("hi")]) as server, aiohttp.ClientSession() as session:
        async with session.post(
            server.base_url + wire.path, headers=HEADERS[wire.name], data=io.BytesIO(sent)
        ) as answer:
            await answer.read()
        assert (server.requests[0].rule == f"{wire.name}.json") is not legal


@pytest.mark.parametrize("wire", WIRES.values(), ids=lambda wire: wire.name)
def test_every_rule_has_a_request_that_breaks_it(wire: Wire) -> None:
    """Every rule has an example that it refuses; ids are unique."""
    ids = [rule.id for rule in wire.rules]
    assert sorted(ids) == sorted(broken.rule for broken in EXAMPLES[wire.name])
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("wire", WIRES.values(), ids=lambda wire: wire.name)
def test_the_rules_print_as_a_table_of_one_line_each(wire: Wire) -> None:
    """The printed table has a line for each rule, with its text as the vendor writes it."""
    lines = describe_rules(wire.rules).splitlines()
    assert len(lines) == len(wire.rules) + 2
    assert all(line.startswith(f"| `{rule.id}` |") for line, rule in zip(lines[2:], wire.rules, strict=True))
    if wire.name == "anthropic":
        assert any("^[a-zA-Z0-9_-]{1,128}$" in line for line in lines)


def many(count: int) -> JsonObject:
    calls = [call(f"c{n}") for n in range(count)]
    return chat(*round_of(*calls), tools=[tool()])


LEGAL_OPENAI: Mapping[str, JsonObject] = {
    "128 parallel calls": many(128),
    "a call with empty arguments": chat(*round_of(call(arguments=""))),
    "arguments that are no JSON": chat(*round_of(call(arguments='{"a":'))),
    "results in another order than the calls": chat(USER, asks(call(), call("c2")), answers("c2"), answers("c1")),
    "a user after a result": chat(*round_of(call()), USER),
    "the same role twice": chat(
        USER, USER, {"role": "assistant", "content": "x"}, {"role": "assistant", "content": ""}
    ),
    "an assistant first and last": chat({"role": "assistant", "content": "x"}),
    "late and repeated system messages": chat(
        USER, {"role": "system", "content": "x"}, {"role": "developer", "content": ""}
    ),
    "tool history without tools": chat(*round_of(call())),
    "an id used again in a later round": chat(*round_of(call()), *round_of(call())[1:]),
    "empty text": chat({"role": "user", "content": ""}),
    "an empty result": chat(USER, asks(call()), answers(content="")),
    "an unknown field of a message": chat({**USER, "x": 1}, metadata={"a": "b"}),
    "content left out beside calls": chat(
        USER,
        {"role": "assistant", "tool_calls": [call()]},
        answers(),
        {"role": "assistant", "content": None, "refusal": "no"},
    ),
    "content as parts": chat({"role": "user", "content": [{"type": "text", "text": "a"}]}),
    "a strict schema that is closed": chat(
        USER,
        tools=[
            tool(
                strict=True,
                parameters={
                    "type": "object",
                    "properties": {"a": {"type": ["integer", "null"]}},
                    "required": ["a"],
                    "additionalProperties": False,
                },
            )
        ],
    ),
    "audio that was heard before": chat(
        USER,
        {"role": "assistant", "audio": {"id": "audio_1"}},
        USER,
        {"role": "assistant", "content": None, "audio": {"id": "a"}},
    ),
    "a name in any script": chat({"role": "user", "content": "x", "name": "jörg.müller"}),
    "parameters that are null": chat(USER, tools=None, tool_choice=None, parallel_tool_calls=None),
    "a strict form of the answer that is closed": chat(
        USER,
        response_format=answer_form(
            {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
        ),
    ),
    "a forced tool": chat(USER, tools=[tool()], tool_choice={"type": "function", "function": {"name": "add"}}),
}


@pytest.mark.parametrize("name", LEGAL_OPENAI)
def test_openai_takes_what_is_legal_and_often_broken(name: str) -> None:
    """What OpenAI accepts is not refused."""
    subject = Subject(wire="openai", body=LEGAL_OPENAI[name], headers=AUTH)
    assert first_refusal(OPENAI_WIRE.rules, subject) is None


LEGAL_RESPONSES: Mapping[str, JsonObject] = {
    "a text as input": {"model": "m", "input": "hi"},
    "instructions, and a system message later": response(USER, {"role": "system", "content": "x"}, instructions="y"),
    "a round that was thought over": response(USER, reasoned(), called(id="fc_wire_0_1_after_0"), returned()),
    "calls without ids of their own": response(USER, called(), returned()),
    "a thought without its id's follower": response(USER, reasoned(), called(), returned(), store=False),
    "a stored thought": response(USER, reasoned(sealed=False), {"role": "assistant", "content": "x"}, USER),
    "two thoughts in a row": response(USER, reasoned(), reasoned("rs_wire_0_1"), called(), returned()),
    "results in another order, and a message between": response(
        USER, called(), called("c2"), returned("c2"), USER, returned()
    ),
    "a message as the vendor writes it": response(
        USER,
        {
            "id": "msg_wire_0_0",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "x", "annotations": []}],
        },
        USER,
    ),
    "an open schema that is not strict": response(USER, tools=[function(strict=False)], tool_choice="required"),
    "a tool of the vendor": response(USER, tools=[{"type": "web_search"}]),
    "arguments that are no JSON": response(USER, called(arguments='{"a'), returned()),
    "an empty result": response(USER, called(), returned(output="")),
}


@pytest.mark.parametrize("name", LEGAL_RESPONSES)
def test_responses_take_what_is_legal(name: str) -> None:
    """What OpenAI accepts over `/responses` is not refused."""
    subject = Subject(wire="responses", body=LEGAL_RESPONSES[name], headers=AUTH)
    assert first_refusal(RESPONSES_WIRE.rules, subject) is None


SERVER_CALL: JsonObject = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}

LEGAL_ANTHROPIC: Mapping[str, JsonObject] = {
    "128 parallel calls": tooled(
        USER, says(*(use(f"t{n}") for n in range(128))), tells(*(result(f"t{n}") for n in range(128)))
    ),
    "a call with no arguments": tooled(USER, says(use()), tells(result())),
    "results in another order than the calls": tooled(USER, says(use(), use("t2")), tells(result("t2"), result("t1"))),
    "text after results": tooled(USER, says(use()), tells(result(), text("and now?"))),
    "an empty result": tooled(USER, says(use()), tells(result(content=""))),
    "a result without content": tooled(USER, says(use()), tells({"type": "tool_result", "tool_use_id": "t1"})),
    "an empty-text thinking block with a signature": tooled(
        USER, says(thought(""), use()), tells(result()), thinking=ON
    ),
    "redacted thinking at the head": tooled(USER, says(sealed(), use()), tells(result()), thinking=ON),
    "several thinking blocks in order": tooled(
        USER, says(thought("a", 0, 2), sealed(1, 2), use()), tells(result()), thinking=ON
    ),
    "a loop whose second step has no thinking": tooled(
        USER, says(thought(), use()), tells(result()), says(use("t2")), tells(result("t2")), thinking=ON
    ),
    "thinking left out of an ended turn": tooled(USER, says(use()), tells(result()), says(text()), USER, thinking=ON),
    "thinking of an ended turn with thinking off": tooled(USER, says(thought(), text()), USER),
    "adaptive thinking with a forced tool": tooled(USER, thinking={"type": "adaptive"}, tool_choice={"type": "any"}),
    "a budget above max_tokens when interleaved": message(USER, thinking={"type": "enabled", "budget_tokens": 9000}),
    "the same role twice": message(USER, USER),
    "newer fields": message(USER, output_config={"effort": "low"}, service_tier="auto", inference_geo="us"),
    "interleaved thinking and the field of a beta": message(USER, context_management={"edits": []}),
    "a tool of the vendor": message(USER, tools=[{"type": "web_search_20250305", "name": "web_search"}]),
    "four marks, long ones first": message(
        tells(text(cache_control=MARK)),
        tools=[spec(cache_control=LONG)],
        system=[text(cache_control=LONG), text(cache_control=MARK)],
    ),
    "a server tool and its result": message(
        USER,
        says(
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
            {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
            text(),
        ),
        USER,
    ),
    **{
        f"a result of {kind}": message(
            USER, says(SERVER_CALL, {"type": kind, "tool_use_id": "srvtoolu_1", "content": {}}, text()), USER
        )
        for kind in (
            "code_execution_tool_result",
            "bash_code_execution_tool_result",
            "text_editor_code_execution_tool_result",
            "tool_search_tool_result",
            "web_fetch_tool_result",
        )
    },
    **{
        f"a block of a beta, {kind}": message(USER, says({"type": kind}, text()), USER)
        for kind in ("compaction", "fallback", "mcp_tool_listing")
    },
    "a pause with an open server tool": message(USER, says(text(), SERVER_CALL)),
    "a pause behind a server tool's result": message(
        USER, says(SERVER_CALL, {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []})
    ),
    "a warm-up of the cache": {**message(USER), "max_tokens": 0},
    "thinking between tools": tooled(USER, thinking={"type": "between_tools"}),
    "top_p of 0.95 under thinking": message(USER, thinking=ON, top_p=0.95),
    "two toolsets": message(
        USER,
        mcp_servers=[{"type": "url", "url": "https://a.com", "name": name} for name in ("a", "b")],
        tools=[{"type": "mcp_toolset", "mcp_server_name": "a"}, {"type": "mcp_toolset", "mcp_server_name": "b"}],
    ),
    "an answer's form that is closed": message(
        USER,
        output_config={"format": {"type": "json_schema", "schema": {"type": "object", "additionalProperties": False}}},
    ),
    "tools that may not be called": tooled(USER, says(use()), tells(result()), tool_choice={"type": "none"}),
}


@pytest.mark.parametrize("name", LEGAL_ANTHROPIC)
def test_anthropic_takes_what_is_legal_and_often_broken(name: str) -> None:
    """What Anthropic accepts is not refused."""
    headers = dict(KEYS)
    if "interleaved" in name:
        headers["anthropic-beta"] = "interleaved-thinking-2025-05-14"
    if "toolsets" in name:
        headers["anthropic-beta"] = "mcp-client-2025-11-20"
    subject = Subject(wire="anthropic", body=LEGAL_ANTHROPIC[name], headers=headers)
    assert first_refusal(ANTHROPIC_WIRE.rules, subject) is None


CHANGED: Mapping[str, tuple[JsonObject, str]] = {
    "order": (says(thought("b", 1, 2), thought("a", 0, 2), use()), "anthropic.thinking-modified"),
    "one of two left out": (says(thought("a", 0, 2), use()), "anthropic.thinking-modified"),
    "merged": (says({**thought("a", 0, 2), "thinking": "ab"}, use()), "anthropic.thinking-modified"),
    "trimmed": (says({**thought("a "), "thinking": "a"}, use()), "anthropic.thinking-modified"),
    "signature edited": (
        says({**thought(), "signature": SIGNER.sign("I think", 0, 1)[:-4] + "AAA="}, use()),
        "anthropic.signature",
    ),
}


@pytest.mark.parametrize("how", CHANGED)
def test_thinking_that_came_back_changed_is_refused(how: str) -> None:
    """Blocks out of order, left out, merged, trimmed or re-signed do not pass."""
    assistant, rule = CHANGED[how]
    subject = Subject(wire="anthropic", body=tooled(USER, assistant, tells(result()), thinking=ON), headers=KEYS)
    refusal = first_refusal(ANTHROPIC_WIRE.rules, subject)
    assert refusal is not None
    assert refusal.rule == rule


def test_thinking_changed_in_an_earlier_message_is_an_invalid_signature() -> None:
    """Only the latest assistant message gets the text about modification."""
    old = says({**thought(), "thinking": "other"}, text())
    subject = Subject(wire="anthropic", body=message(USER, old, USER, says(text()), USER, thinking=ON), headers=KEYS)
    refusal = first_refusal(ANTHROPIC_WIRE.rules, subject)
    assert refusal is not None
    assert (refusal.rule, refusal.message) == (
        "anthropic.signature",
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    )


def test_a_prefill_is_legal_for_older_models() -> None:
    """The dialect of 4.5 takes an assistant message at the end, even an empty one."""
    for last in (says(text("So:")), says(), {"role": "assistant", "content": ""}):
        subject = Subject(wire="anthropic", body=message(USER, last), headers=KEYS, dialect=Dialect.claude_4_5())
        assert first_refusal(ANTHROPIC_WIRE.rules, subject) is None


def test_a_late_system_message_is_legal_for_newer_models() -> None:
    """The dialect of 4.8 takes a system message right after a user turn."""
    body = message(USER, {"role": "system", "content": "be brief"})
    subject = Subject(wire="anthropic", body=body, headers=KEYS, dialect=Dialect.claude_4_8())
    assert first_refusal(ANTHROPIC_WIRE.rules, subject) is None


def test_compatible_vendors_take_a_clean_conversation() -> None:
    """Mistral, DeepSeek and strict templates accept calls answered in order and given back whole."""
    told = {**asks(call("abcdefgh1")), "reasoning_content": "hm"}
    body = chat({"role": "system", "content": "x"}, USER, told, answers("abcdefgh1"), tools=[tool()])
    for dialect in (Dialect.mistral(), Dialect.deepseek(), Dialect.template()):
        subject = Subject(wire="openai", body=body, headers=AUTH, dialect=dialect)
        assert first_refusal(OPENAI_WIRE.rules, subject) is None, dialect.name


def test_a_result_text_can_be_read_on_either_wire() -> None:
    """The recorded request speaks of system, user text and results in one language."""
    openai = WireRequest(
        wire="openai", index=0, body=chat({"role": "system", "content": "S"}, *round_of(call()), tools=[tool()])
    )
    responses = WireRequest(
        wire="responses", index=0, body=response(USER, called(), returned(), instructions="S", tools=[function()])
    )
    anthropic = WireRequest(
        wire="anthropic",
        index=0,
        body=tooled(USER, says(use("c1")), tells(result("c1", [text("2")])), system=[text("S")]),
    )
    for request in (openai, responses, anthropic):
        seen = (request.system, request.user_text, request.tool_names, [(r.id, r.text) for r in request.results])
        assert seen == ("S", "hi", ("add",), [("c1", "2")])


REFUSED_OPENAI: Sequence[tuple[JsonObject, str, str]] = [
    ({"temperature": "1"}, "temperature", "invalid_type"),
    ({"top_p": 2}, "top_p", "decimal_above_max_value"),
    ({"n": 0}, "n", "integer_below_min_value"),
    ({"n": 500}, "n", "integer_above_max_value"),
    ({"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
    ({"max_tokens": "5"}, "max_tokens", "invalid_type"),
    ({"logprobs": True, "top_logprobs": 50}, "top_logprobs", "integer_above_max_value"),
    ({"presence_penalty": 5}, "presence_penalty", "decimal_above_max_value"),
    ({"seed": "x"}, "seed", "invalid_type"),
    ({"user": 5}, "user", "invalid_type"),
    ({"metadata": {"a": {"b": 1}}}, "metadata.a", "invalid_type"),
    ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
    ({"tools": [tool()], "tool_choice": "sometimes"}, "tool_choice", "invalid_value"),
    ({"tools": [{"type": "zzz"}]}, "tools[0].type", "invalid_value"),
    ({"reasoning_effort": "zzz"}, "reasoning_effort", "invalid_value"),
    ({"service_tier": "zzz"}, "service_tier", "invalid_value"),
    ({"safety_identifier": "x" * 100}, "safety_identifier", "string_above_max_length"),
]
REFUSED_ANTHROPIC: Sequence[tuple[JsonObject, str]] = [
    ({"top_k": -5}, "top_k: Input should be greater than or equal to 0"),
    ({"top_k": "5"}, "top_k: Input should be a valid integer"),
    ({"stop_sequences": [""]}, "stop_sequences: each stop sequence must contain non-whitespace"),
    ({"stop_sequences": "x"}, "stop_sequences: Input should be a valid list"),
    ({"metadata": {"zzz": "x"}}, "metadata.zzz: Extra inputs are not permitted"),
    ({"metadata": {"user_id": "x" * 300}}, "metadata.user_id: String should have at most 256 characters"),
    (
        {"tools": [spec()], "tool_choice": "auto"},
        "tool_choice: Input should be a valid dictionary or object to extract fields from",
    ),
    (
        {"tools": [spec()], "tool_choice": {"type": "none", "name": "add"}},
        "tool_choice.none.name: Extra inputs are not permitted",
    ),
    ({"tools": [spec(description=None)]}, "tools.0.custom.description: Input should be a valid string"),
    (
        {"tools": [{"type": "web_search_19990101", "name": "web_search"}]},
        "tools.0: Input tag 'web_search_19990101' found using 'type'",
    ),
    ({"system": [{"type": "image"}]}, "system.0.type: Input should be 'text'"),
    ({"system": 5}, "system: Input should be a valid list"),
    ({"system": ""}, "system: text content blocks must be non-empty"),
    (
        {"thinking": {"type": "disabled", "budget_tokens": 2000}},
        "thinking.disabled.budget_tokens: Extra inputs are not permitted",
    ),
    (
        {"thinking": {"type": "adaptive", "budget_tokens": 2000}},
        "thinking.adaptive.budget_tokens: Extra inputs are not permitted",
    ),
    (
        {"output_config": {"effort": "zzz"}},
        "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
    ),
    ({"stream": "yes"}, "stream: Input should be a valid boolean"),
    ({"model": ""}, "model: String should have at least 1 character"),
    ({"container": 5}, "container: Input should be a valid string"),
    ({"messages": [{**USER, "zzz": 1}]}, "messages.0.zzz: Extra inputs are not permitted"),
    ({"messages": [tells(text(zzz=1))]}, "messages.0.content.0.text.zzz: Extra inputs are not permitted"),
    (
        {
            "messages": [
                tells(
                    {"type": "document", "source": {"type": "base64", "media_type": "application/zip", "data": "aGk="}}
                )
            ]
        },
        "messages.0.content.0.document.source.base64.media_type: Input should be 'application/pdf'",
    ),
]


@pytest.mark.parametrize(("fields", "where", "why"), REFUSED_OPENAI, ids=[dump(row[0]) for row in REFUSED_OPENAI])
def test_fields_that_openai_refuses(fields: JsonObject, where: str, why: str) -> None:
    """Types, ranges, words and lengths of what a request holds; a compatible server has rules of its own."""
    subject = Subject(wire="openai", body={**chat(USER), **fields}, headers=AUTH)
    refused = first_refusal(OPENAI_WIRE.rules, subject)
    assert refused is not None
    assert (refused.param, refused.code) == (where, why)


@pytest.mark.parametrize(("fields", "said"), REFUSED_ANTHROPIC, ids=[dump(row[0]) for row in REFUSED_ANTHROPIC])
def test_fields_that_anthropic_refuses(fields: JsonObject, said: str) -> None:
    """Types, ranges, words, lengths and further fields of what a request holds."""
    subject = Subject(wire="anthropic", body={**message(USER), **fields}, headers=KEYS)
    refused = first_refusal(ANTHROPIC_WIRE.rules, subject)
    assert refused is not None
    assert refused.message.startswith(said)
