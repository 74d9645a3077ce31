"""Messages in LiteLLM's form, family by family."""

import base64
import tracemalloc

import pytest

from agentflow.models.conversion import EMPTY_TEXT, Conversation
from agentflow.models.options_out import Thinking, ToolMemory, options_out, thinking_out
from agentflow.models.profiles import PROFILES, profile_for
from agentflow.models.wire_names import wire_id, wire_name
from agentflow.vocabulary.messages import DataBlock, Msg, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ModelOptions, ToolSpec

OPENAI, ANTHROPIC, GEMINI = PROFILES["openai"], PROFILES["anthropic"], PROFILES["gemini"]
MODEL = "provider/model"


def convert(messages: list[Msg], family: str = "openai") -> list[dict]:
    return Conversation(MODEL, PROFILES[family]).convert(messages)


@pytest.mark.parametrize(
    ("provider", "model", "family"),
    [
        ("openai", "openai/gpt-5", "openai"),
        ("azure", "azure/my-deployment", "openai"),
        ("anthropic", "anthropic/claude-sonnet-4-5", "anthropic"),
        ("bedrock", "bedrock/anthropic.claude-sonnet-4-5", "anthropic"),
        ("vertex_ai", "vertex_ai/claude-sonnet-4-5", "anthropic"),
        ("vertex_ai", "vertex_ai/gemini-2.5-pro", "gemini"),
        ("bedrock", "bedrock/meta.llama3", "bedrock"),
        ("mistral", "mistral/mistral-large-latest", "mistral"),
        ("deepseek", "deepseek/deepseek-reasoner", "deepseek"),
        ("openrouter", "openrouter/deepseek/deepseek-v4", "reasoning"),
        ("moonshot", "moonshot/kimi-k2", "reasoning"),
        ("ollama_chat", "ollama_chat/gemma", "compatible"),
    ],
)
def test_a_family_follows_from_provider_and_name(provider: str, model: str, family: str) -> None:
    """The provider of the model decides the form of the wire."""
    assert profile_for(provider, model).family == family


def test_a_server_that_merely_speaks_openais_wire_is_told_apart() -> None:
    """With another address, `openai/` is any compatible server."""
    assert profile_for("openai", "openai/x", "http://127.0.0.1:8000/v1").family == "compatible"
    assert profile_for("openai", "openai/x", "https://api.openai.com/v1").family == "openai"


def test_a_conversation_in_openais_form() -> None:
    """The plain case, completely."""
    history = [
        Msg.system("Be brief."),
        Msg.user("hi", name="ann"),
        Msg.assistant([TextBlock("Adding."), ToolUseBlock("t1", "add", {"a": 1})]),
        Msg.tool([ToolResultBlock("t1", "add", "1")]),
    ]
    assert convert(history) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi", "name": "ann"},
        {
            "role": "assistant",
            "content": "Adding.",
            "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "1"},
    ]


def test_neighbours_of_one_role_are_one_message() -> None:
    """Texts are joined as paragraphs, media goes into one list, and messages with different names stay separate."""
    image = DataBlock("image/png", url="https://example.com/a.png")
    assert convert([Msg.user("a"), Msg.user(" "), Msg.user("b")], "compatible") == [
        {"role": "user", "content": "a\n\nb"}
    ]
    (merged,) = convert([Msg.user("a"), Msg.user([image])])
    assert [part["type"] for part in merged["content"]] == ["text", "image_url"]
    named = convert([Msg.user("a", name="ann"), Msg.user("b", name="bob")])
    assert [message["content"] for message in named] == ["a", "b"]


def test_merging_leaves_what_is_remembered_alone() -> None:
    """The same history gives the same dicts every time, even if those returned before were changed."""
    conversation = Conversation(MODEL, PROFILES["compatible"])
    history = [Msg.user("a"), Msg.user("b"), Msg.assistant("c"), Msg.assistant("d"), Msg.user("e")]
    first = conversation.convert(history)
    expected = [dict(message) for message in first]
    for message in first:
        message["content"] = "spoilt"
        message["cache_control"] = {"type": "ephemeral"}
    assert conversation.convert(history) == expected


def test_a_changed_message_with_the_same_id_is_converted_anew() -> None:
    """The cache is by object, not by id."""
    conversation = Conversation(MODEL, OPENAI)
    assert conversation.convert([Msg.user("a", id="m1")])[0]["content"] == "a"
    assert conversation.convert([Msg.user("b", id="m1")])[0]["content"] == "b"


def test_memory_is_bounded() -> None:
    """Messages of finished sessions are released, media at once."""
    conversation = Conversation(MODEL, OPENAI, memory=10)
    tracemalloc.start()
    try:
        for _ in range(200):
            conversation.convert([Msg.user("x" * 100_000)])
        for _ in range(20):
            conversation.convert([Msg.user([DataBlock("image/png", data="A" * 1_000_000)])])
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 3_000_000


def test_blank_content_gets_a_visible_word() -> None:
    """No empty text is sent; a failed result without a text has its state."""
    call = ToolUseBlock("t1", "add")
    contents = [
        message["content"]
        for message in convert(
            [
                Msg.user(" \n"),
                Msg.assistant([TextBlock("  "), call, ToolUseBlock("t2", "add")]),
                Msg.tool([ToolResultBlock("t1", "add", " "), ToolResultBlock("t2", "add", "", "denied")]),
                Msg.assistant(()),
                Msg.user("b"),
            ]
        )
    ]
    assert contents == ["(empty)", None, "(no output)", "(denied)", "(empty)", "b"]


def test_a_trailing_reply_becomes_a_marked_note() -> None:
    """A request never ends with an assistant message."""
    converted = convert([Msg.user("a"), Msg.assistant("I think so. ")], "anthropic")
    assert converted[-1] == {"role": "user", "content": "[assistant] I think so."}


@pytest.mark.parametrize(("raw", "sent"), [('{"a": ', "{}"), ("", "{}"), ("[1]", "{}"), ('{"a": 1}', '{"a": 1}')])
def test_arguments_are_always_an_object(raw: str, sent: str) -> None:
    """The model's arguments are sent back unchanged if they are an object, else as an empty one."""
    message = convert([Msg.assistant(ToolUseBlock.from_json("t1", "add", raw)), Msg.user("x")])[0]
    assert message["tool_calls"][0]["function"]["arguments"] == sent


@pytest.mark.parametrize("family", sorted(PROFILES))
@pytest.mark.parametrize("id", ["t1", "functions.Bash:0", "x" * 64, "", "call_1__thought__" + "A+/=" * 30])
def test_ids_are_legal_and_agree_on_both_sides(family: str, id: str) -> None:  # noqa: A002
    """A call and its result have the same legal id."""
    history = [Msg.user("a"), Msg.assistant(ToolUseBlock(id, "add")), Msg.tool([ToolResultBlock(id, "add", "1")])]
    _, call, result = convert(history, family)[:3]
    sent = call["tool_calls"][0]["id"]
    assert sent == result["tool_call_id"]
    if "__thought__" in id and family == "gemini":
        assert sent == id
    elif family == "mistral":
        assert len(sent) == 9
        assert sent.isalnum()
    else:
        assert 0 < len(sent) <= 40
        assert sent.replace("_", "").replace("-", "").isalnum()


def test_different_ids_stay_different() -> None:
    """Converting ids does not make two calls one."""
    ids = [f"toolu_{n:030d}" for n in range(2000)]
    assert len({wire_id(one, PROFILES["mistral"]) for one in ids}) == 2000


@pytest.mark.parametrize("name", ["a.b", "", "1st", "ünï", "x" * 100, "ok-name_1", "/", "a b"])
def test_names_are_cleaned(name: str) -> None:
    """Whatever name a model used for a tool, a legal name is sent."""
    sent = wire_name(name)
    assert sent.isascii()
    assert 0 < len(sent) <= 64
    assert sent[0].isalpha() or sent[0] == "_"
    assert wire_name(sent) == sent


def test_thoughts_go_where_they_belong() -> None:
    """Signed blocks go to Anthropic, plain text beside calls to DeepSeek, and nothing to OpenAI."""
    thought = ThinkingBlock("Hm.", "seal", model=MODEL)
    hidden = ThinkingBlock("", None, "secret", MODEL)
    unsealed = ThinkingBlock("lost", None, model=MODEL)
    foreign = ThinkingBlock("theirs", "seal", model="other/model")
    reply = Msg.assistant([thought, hidden, unsealed, foreign, TextBlock("ok"), ToolUseBlock("t1", "add")])
    history = [reply, Msg.user("x")]
    assert convert(history, "anthropic")[0]["thinking_blocks"] == [
        {"type": "thinking", "thinking": "Hm.", "signature": "seal"},
        {"type": "redacted_thinking", "data": "secret"},
    ]
    assert convert(history, "deepseek")[0]["reasoning_content"] == "Hm.lost"
    assert not {"thinking_blocks", "reasoning_content"} & convert(history, "openai")[0].keys()
    silent = Conversation(MODEL, ANTHROPIC).convert(history, thoughts=False)
    assert "thinking_blocks" not in silent[0]


def test_thoughts_between_texts_keep_their_place() -> None:
    """If a thought follows text, the order is kept in the content itself."""
    first, second = ThinkingBlock("1", "s1", model=MODEL), ThinkingBlock("2", "s2", model=MODEL)
    reply = Msg.assistant([first, TextBlock("a"), second, TextBlock("b "), ToolUseBlock("t1", "add")])
    content = convert([reply, Msg.user("x")], "anthropic")[0]["content"]
    assert [part.get("signature", part.get("text")) for part in content] == ["s1", "a", "s2", "b"]
    silent = Conversation(MODEL, ANTHROPIC).convert([reply, Msg.user("x")], thoughts=False)
    assert [part["text"] for part in silent[0]["content"]] == ["a", "b"]


def test_without_thoughts_the_rest_of_a_reply_stays() -> None:
    """A reply that consists of thoughts is sent as the text for empty content."""
    first, second = ThinkingBlock("1", "s1", model=MODEL), ThinkingBlock("2", "s2", model=MODEL)
    conversation = Conversation(MODEL, ANTHROPIC)
    for content, left in (([first, "a", second, "b"], ["a", "b"]), ([first, "a"], ["a"]), ([first], [EMPTY_TEXT])):
        sent = conversation.convert([Msg.assistant(content), Msg.user("x")], thoughts=False)[0]["content"]
        assert ([sent] if isinstance(sent, str) else [part["text"] for part in sent]) == left


def test_geminis_seal_goes_back_on_its_call() -> None:
    """The thought directly before a call has the call's signature."""
    sealed = ThinkingBlock("", "c2VhbA==", model=MODEL)
    calls = [sealed, ToolUseBlock("t1", "add"), ToolUseBlock("t2", "add")]
    one, two = convert([Msg.assistant(calls), Msg.user("x")], "gemini")[0]["tool_calls"]
    assert one["provider_specific_fields"] == {"thought_signature": "c2VhbA=="}
    assert "provider_specific_fields" not in two


def test_media_of_every_kind() -> None:
    """Images, sounds, files and texts each get LiteLLM's form."""
    text = base64.b64encode(b"a,b").decode()
    blocks = [
        DataBlock("image/png", data="AA=="),
        DataBlock("audio/mpeg", data="AA=="),
        DataBlock("application/pdf", data="AA==", name="a.pdf"),
        DataBlock("application/pdf", url="https://example.com/a.pdf"),
        DataBlock("text/csv", data=text, name="t.csv"),
    ]
    assert convert([Msg.user(blocks)])[0]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"}},
        {"type": "file", "file": {"file_id": "https://example.com/a.pdf", "format": "application/pdf"}},
        {"type": "text", "text": "[t.csv]\na,b"},
    ]


def test_images_of_results_follow_all_results_where_results_hold_none() -> None:
    """For OpenAI the images come in one user message after the last result; Anthropic accepts them inside."""
    image = DataBlock("image/png", data="AA==")
    history = [
        Msg.user("a"),
        Msg.assistant([ToolUseBlock("t1", "shot"), ToolUseBlock("t2", "add")]),
        Msg.tool([ToolResultBlock("t1", "shot", (image,)), ToolResultBlock("t2", "add", "2")]),
    ]
    outside = convert(history, "openai")
    assert [message["role"] for message in outside] == ["user", "assistant", "tool", "tool", "user"]
    assert [part["type"] for part in outside[-1]["content"]] == ["text", "image_url"]
    inside = convert(history, "anthropic")
    assert [message["role"] for message in inside] == ["user", "assistant", "tool", "tool"]
    assert inside[2]["content"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]


def test_mistral_gets_a_bridge_between_results_and_the_user() -> None:
    """A user message never directly follows results there."""
    history = [
        Msg.user("a"),
        Msg.assistant(ToolUseBlock("t1", "add")),
        Msg.tool([ToolResultBlock("t1", "add", "1")]),
        Msg.user("b"),
    ]
    assert [m["role"] for m in convert(history, "mistral")] == ["user", "assistant", "tool", "assistant", "user"]


def request(options: ModelOptions, tools: tuple[ToolSpec, ...] = (), messages: tuple[Msg, ...] = ()) -> ModelRequest:
    return ModelRequest(messages or (Msg.user("hi"),), tools, options, MODEL)


@pytest.mark.parametrize(
    ("thinking", "family", "expected"),
    [
        (None, "openai", {}),
        (True, "openai", {"reasoning_effort": "medium"}),
        (True, "anthropic", {"reasoning_effort": "medium"}),
        (True, "bedrock", {"reasoning_effort": "medium"}),
        ("high", "gemini", {"reasoning_effort": "high"}),
        (500, "openai", {"reasoning_effort": "low"}),
        (2000, "openai", {"reasoning_effort": "medium"}),
        (50_000, "openai", {"reasoning_effort": "high"}),
        (2000, "anthropic", {"thinking": {"type": "enabled", "budget_tokens": 2000}}),
        (False, "openai", {}),
        (False, "gemini", {"reasoning_effort": "none"}),
        (False, "deepseek", {"thinking": {"type": "disabled"}}),
        ("low", "deepseek", {"thinking": {"type": "enabled"}}),
    ],
)
def test_thinking_is_asked_for_in_the_familys_words(thinking: object, family: str, expected: dict) -> None:
    """A switch, an effort and a budget are converted for families with another form."""
    options = ModelOptions(thinking=thinking)  # pyright: ignore[reportArgumentType]
    asked = thinking_out(request(options), PROFILES[family], MODEL, {"reasoning_effort", "thinking"})
    assert asked.arguments == expected


@pytest.mark.parametrize(
    ("thinking", "family", "expected"),
    [
        ("low", "openai", {"reasoning_effort": "low", "allowed_openai_params": ["reasoning_effort"]}),
        ("low", "compatible", {"reasoning_effort": "low", "allowed_openai_params": ["reasoning_effort"]}),
        ("low", "mistral", {"reasoning_effort": "low"}),
        ("low", "bedrock", {"reasoning_effort": "low"}),
        (
            "medium",
            "anthropic",
            {"thinking": {"type": "enabled", "budget_tokens": 2048}, "allowed_openai_params": ["thinking"]},
        ),
    ],
)
def test_only_the_wires_own_words_pass_litellm_by(thinking: str, family: str, expected: dict) -> None:
    """An argument that LiteLLM does not translate is sent unchanged only if the wire has that very field."""
    asked = thinking_out(request(ModelOptions(thinking=thinking)), PROFILES[family], MODEL)  # pyright: ignore[reportArgumentType]
    assert asked.arguments == expected


def test_a_seed_is_left_out_where_there_is_none() -> None:
    """Anthropic has no seed; LiteLLM would refuse it."""
    assert options_out(ModelOptions(seed=1), ANTHROPIC, Thinking({})) == {}
    assert options_out(ModelOptions(seed=1), OPENAI, Thinking({})) == {"seed": 1}


def test_a_tool_is_written_once_and_never_shared_with_its_spec() -> None:
    """LiteLLM's changes to a schema do not affect the tool's own."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    spec = ToolSpec("files.read", "", schema)
    memory = ToolMemory()
    (sent,) = memory.arguments(request(ModelOptions(), (spec,)), OPENAI)["tools"]
    assert sent["function"] == {"name": "files_read", "parameters": schema}
    sent["function"]["parameters"]["properties"].clear()
    assert schema["properties"]
    (again,) = memory.arguments(request(ModelOptions(), (spec,)), OPENAI)["tools"]
    assert again["function"] is sent["function"]


def test_stubs_stand_in_where_a_history_of_calls_needs_tools() -> None:
    """Only the families that refuse such a history get stand-ins; Bedrock has no value for "none"."""
    history = (Msg.user("a"), Msg.assistant(ToolUseBlock("t1", "add")), Msg.tool([ToolResultBlock("t1", "add", "1")]))
    bare = request(ModelOptions(), (), history)
    assert ToolMemory().arguments(bare, OPENAI) == {}
    assert ToolMemory().arguments(bare, ANTHROPIC)["tool_choice"] == "none"
    assert "tool_choice" not in ToolMemory().arguments(bare, PROFILES["bedrock"])
    assert ToolMemory().arguments(request(ModelOptions()), ANTHROPIC) == {}
