"""For every rule of the wire servers, one request that breaks it and no earlier one, with the words of the answer.

Builders first, then a table for each wire. `Broken.message` is the whole text, its blanks filled.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agentflow.testing.wire import Dialect
from agentflow.testing.wire.checks_anthropic_fields import SERVER_TOOLS
from agentflow.testing.wire.jsonish import JsonObject, JsonValue
from agentflow.testing.wire.signing import Signer


@dataclass(frozen=True, slots=True)
class Broken:
    """A request that breaks one rule."""

    rule: str
    message: str
    body: JsonValue
    dialect: Dialect = field(default_factory=Dialect)
    headers: Mapping[str, str] | None = None
    raw: bytes | None = None


USER: JsonObject = {"role": "user", "content": "hi"}
AUTH = {"authorization": "Bearer sk-test"}
KEYS = {"x-api-key": "sk-test", "anthropic-version": "2023-06-01"}
SIGNER = Signer()


def call(ident: JsonValue = "c1", name: JsonValue = "add", arguments: JsonValue = "{}") -> JsonObject:
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def asks(*calls: JsonObject, **more: JsonValue) -> JsonObject:
    return {"role": "assistant", "content": None, "tool_calls": [*calls], **more}


def answers(ident: JsonValue = "c1", content: JsonValue = "2") -> JsonObject:
    return {"role": "tool", "tool_call_id": ident, "content": content}


def tool(name: JsonValue = "add", **more: JsonValue) -> JsonObject:
    schema: JsonObject = {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


def shown(url: str) -> JsonObject:
    return {"type": "image_url", "image_url": {"url": url}}


def chat(*messages: JsonValue, **more: JsonValue) -> JsonObject:
    return {"model": "gpt-test", "messages": [*messages], **more}


def round_of(*calls: JsonObject) -> list[JsonObject]:
    """A question, the calls, and an answer to each."""
    return [USER, asks(*calls), *(answers(one["id"]) for one in calls)]


STRICT_OPEN: JsonObject = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
STRICT_LOOSE: JsonObject = {**STRICT_OPEN, "required": [], "additionalProperties": False}


def answer_form(schema: JsonObject) -> JsonObject:
    """A strict `response_format` of this schema."""
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


EMPTY = "empty array. Expected an array with minimum length 1, but got an empty array instead."
NO_NAME = "empty string. Expected a string with minimum length 1, but got an empty string instead."
PATTERN = "string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."

OPENAI: Sequence[Broken] = (
    Broken(
        "openai.key",
        "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
        "(i.e. Authorization: Bearer YOUR_KEY).",
        chat(USER),
        headers={},
    ),
    Broken("openai.too-large", "Request too large.", chat(USER), Dialect(max_body=10)),
    Broken("openai.json", "We could not parse the JSON body of your request.", None, raw=b"{"),
    Broken("openai.model", "you must provide a model parameter", {"messages": [USER]}),
    Broken("openai.messages-missing", "Missing required parameter: 'messages'.", {"model": "m"}),
    Broken("openai.messages-empty", f"Invalid 'messages': {EMPTY}", chat()),
    Broken(
        "openai.message-type",
        "Invalid type for 'messages[1]': expected an object, but got a string instead.",
        chat(USER, "hi"),
    ),
    Broken(
        "openai.role",
        "Invalid value: 'bot'. Supported values are: 'system', 'assistant', 'user', 'function', 'tool', and "
        "'developer'.",
        chat({"role": "bot", "content": "x"}),
    ),
    Broken(
        "openai.system-role",
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        chat({"role": "system", "content": "x"}, USER),
        Dialect.o1(),
    ),
    Broken("openai.content-missing", "Missing required parameter: 'messages[0].content'.", chat({"role": "user"})),
    Broken(
        "openai.content-null",
        "Invalid value for 'content': expected a string, got null.",
        chat(USER, {"role": "assistant", "content": None}),
    ),
    Broken(
        "openai.content-type",
        "Invalid type for 'messages[0].content': expected one of a string or array of objects, but got an integer "
        "instead.",
        chat({"role": "user", "content": 3}),
    ),
    Broken(
        "openai.content-empty-list",
        f"Invalid 'messages[0].content': {EMPTY}",
        chat({"role": "user", "content": []}),
    ),
    Broken(
        "openai.part-type",
        "Invalid value: 'tool_use'. Supported values are: 'text', 'image_url', 'input_audio', 'refusal', 'audio', and "
        "'file'.",
        chat({"role": "user", "content": [{"type": "tool_use"}]}),
    ),
    Broken(
        "openai.message-name",
        "Invalid 'messages[0].name': string does not match pattern. Expected a string that matches the pattern "
        r"'^[^\s<|\\/>]+$'.",
        chat({"role": "user", "content": "x", "name": "a b"}),
    ),
    Broken("openai.calls-empty", f"Invalid 'messages[1].tool_calls': {EMPTY}", chat(USER, asks())),
    Broken(
        "openai.calls-many",
        "Invalid 'messages[1].tool_calls': array too long. Expected an array with maximum length 128, but got an array "
        "with length 129 instead.",
        chat(*round_of(*(call(f"c{n}") for n in range(129)))),
    ),
    Broken(
        "openai.call-id-missing",
        "Missing required parameter: 'messages[1].tool_calls[0].id'.",
        chat(*round_of(call(None))),
    ),
    Broken(
        "openai.call-id-long",
        "Invalid 'messages[1].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got a "
        "string with length 41 instead.",
        chat(*round_of(call("c" * 41))),
    ),
    Broken(
        "openai.call-id-twice",
        "Invalid parameter: Duplicate value for 'tool_call_id' of 'c1' in messages[1].",
        chat(USER, asks(call(), call()), answers()),
    ),
    Broken(
        "openai.call-type",
        "Missing required parameter: 'messages[1].tool_calls[0].type'.",
        chat(USER, asks({"id": "c1", "function": {"name": "add", "arguments": ""}}), answers()),
    ),
    Broken(
        "openai.call-name-empty",
        f"Invalid 'messages[1].tool_calls[0].function.name': {NO_NAME}",
        chat(*round_of(call(name=""))),
    ),
    Broken(
        "openai.call-name-pattern",
        f"Invalid 'messages[1].tool_calls[1].function.name': {PATTERN}",
        chat(*round_of(call(), call("c2", "a.b"))),
    ),
    Broken(
        "openai.call-name-long",
        "Invalid 'messages[1].tool_calls[0].function.name': string too long. Expected a string with maximum length 64, "
        "but got a string with length 65 instead.",
        chat(*round_of(call(name="a" * 65))),
    ),
    Broken(
        "openai.arguments-missing",
        "Missing required parameter: 'messages[1].tool_calls[0].function.arguments'.",
        chat(*round_of({"id": "c1", "type": "function", "function": {"name": "add"}})),
    ),
    Broken(
        "openai.arguments-type",
        "Invalid type for 'messages[1].tool_calls[0].function.arguments': expected a string, but got an object "
        "instead.",
        chat(*round_of(call(arguments={}))),
    ),
    Broken(
        "openai.answer-id-missing",
        "Missing required parameter: 'messages[2].tool_call_id'.",
        chat(USER, asks(call()), answers(None)),
    ),
    Broken(
        "openai.unknown-answer",
        "Invalid parameter: 'tool_call_id' of 'c2' not found in 'tool_calls' of previous message.",
        chat(*round_of(call()), answers("c2")),
    ),
    Broken(
        "openai.double-answer",
        "Invalid parameter: Duplicate value for 'tool_call_id' of 'c1', in messages[2] and messages[3].",
        chat(*round_of(call()), answers()),
    ),
    Broken(
        "openai.unanswered",
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        "The following tool_call_ids did not have response messages: c2, c3",
        chat(USER, asks(call(), call("c2"), call("c3")), answers(), USER, answers("c2")),
    ),
    Broken(
        "openai.orphan",
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
        chat(answers()),
    ),
    Broken("openai.tools-empty", f"Invalid 'tools': {EMPTY}", chat(USER, tools=[])),
    Broken(
        "openai.tools-many",
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 129 "
        "instead.",
        chat(USER, tools=[tool(f"t{n}") for n in range(129)]),
    ),
    Broken(
        "openai.tool-name-empty",
        f"Invalid 'tools[0].function.name': {NO_NAME}",
        chat(USER, tools=[tool("")]),
    ),
    Broken(
        "openai.tool-name-pattern",
        f"Invalid 'tools[1].function.name': {PATTERN}",
        chat(USER, tools=[tool(), tool("a/b")]),
    ),
    Broken(
        "openai.tool-name-long",
        "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but got a string "
        "with length 70 instead.",
        chat(USER, tools=[tool("a" * 70)]),
    ),
    Broken(
        "openai.tool-description-long",
        "Invalid 'tools[0].function.description': string too long. Expected a string with maximum length 1024, but got "
        "a string with length 1025 instead.",
        chat(USER, tools=[tool(description="d" * 1025)]),
        Dialect(max_description=1024),
    ),
    Broken(
        "openai.tool-parameters",
        "Invalid type for 'tools[0].function.parameters': expected an object, but got a string instead.",
        chat(USER, tools=[{"type": "function", "function": {"name": "add", "parameters": "{}"}}]),
    ),
    Broken(
        "openai.strict-closed",
        "Invalid schema for function 'add': In context=(), 'additionalProperties' is required to be supplied and to be "
        "false.",
        chat(
            USER, tools=[{"type": "function", "function": {"name": "add", "strict": True, "parameters": STRICT_OPEN}}]
        ),
    ),
    Broken(
        "openai.strict-required",
        "Invalid schema for function 'add': In context=(), 'required' is required to be supplied and to be an array "
        "including every key in properties.",
        chat(
            USER, tools=[{"type": "function", "function": {"name": "add", "strict": True, "parameters": STRICT_LOOSE}}]
        ),
    ),
    Broken(
        "openai.format-closed",
        "Invalid schema for response_format 'x': In context=('properties', 'a'), 'additionalProperties' is required to be "
        "supplied and to be false.",
        chat(
            USER,
            response_format=answer_form(
                {
                    "type": "object",
                    "properties": {"a": {"type": ["object", "null"]}},
                    "required": ["a"],
                    "additionalProperties": False,
                }
            ),
        ),
    ),
    Broken(
        "openai.format-required",
        "Invalid schema for response_format 'x': In context=(), 'required' is required to be supplied and to be an array "
        "including every key in properties.",
        chat(USER, response_format=answer_form(STRICT_LOOSE)),
    ),
    Broken(
        "openai.choice-alone",
        "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified.",
        chat(USER, tool_choice="auto"),
    ),
    Broken(
        "openai.parallel-alone",
        "Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when 'tools' are specified.",
        chat(USER, parallel_tool_calls=False),
    ),
    Broken(
        "openai.choice-unknown",
        "Invalid value for 'tool_choice': function 'sub' was not found in 'tools'.",
        chat(USER, tools=[tool()], tool_choice={"type": "function", "function": {"name": "sub"}}),
    ),
    Broken(
        "openai.stream-options-alone",
        "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
        chat(USER, stream_options={"include_usage": True}),
    ),
    Broken(
        "openai.max-tokens",
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        chat(USER, max_tokens=5),
        Dialect.reasoning(),
    ),
    Broken(
        "openai.temperature",
        "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is "
        "supported.",
        chat(USER, temperature=0.2),
        Dialect.reasoning(),
    ),
    Broken(
        "openai.max-output",
        "max_tokens is too large: 9. This model supports at most 8 completion tokens, whereas you provided 9.",
        chat(USER, max_tokens=9),
        Dialect(max_output=8),
    ),
    Broken(
        "openai.window",
        "This model's maximum context length is 10 tokens. However, your messages resulted in 265 tokens. Please "
        "reduce the length of the messages.",
        chat({"role": "user", "content": "x" * 1000}),
        Dialect(window=10),
    ),
    # -- Mistral
    Broken(
        "openai.mistral-role-order",
        "Unexpected role 'user' after role 'tool'",
        chat(*round_of(call("abcdefgh1")), USER),
        Dialect.mistral(),
    ),
    Broken(
        "openai.mistral-unknown-result",
        "Unexpected tool call id abcdefgh2 in tool results",
        chat(*round_of(call("abcdefgh1")), answers("abcdefgh2")),
        Dialect.mistral(),
    ),
    Broken(
        "openai.mistral-double-result",
        "Duplicate tool call id abcdefgh1 in tool results",
        chat(*round_of(call("abcdefgh1")), answers("abcdefgh1")),
        Dialect.mistral(),
    ),
    Broken(
        "openai.mistral-counts",
        "Not the same number of function calls and responses",
        chat(USER, asks(call("abcdefgh1"), call("abcdefgh2")), answers("abcdefgh1")),
        Dialect.mistral(),
    ),
    Broken(
        "openai.mistral-id",
        "Tool call id was c1 but must be a-z, A-Z, 0-9, with a length of 9.",
        chat(*round_of(call())),
        Dialect.mistral(),
    ),
    Broken(
        "openai.mistral-name",
        "Function name was a.b but must be a-z, A-Z, 0-9, or contain underscores and dashes, with a maximum length of "
        "64.",
        chat(USER, tools=[tool("a.b")]),
        Dialect.mistral(),
    ),
    Broken(
        "openai.mistral-last-role",
        "Expected last role User or Tool (or Assistant with prefix True) for serving but got assistant",
        chat(USER, {"role": "assistant", "content": "so"}),
        Dialect.mistral(),
    ),
    Broken(
        "openai.mistral-assistant-empty",
        "Assistant message must have either content or tool_calls, but not both.",
        chat(USER, {"role": "assistant", "content": ""}, USER),
        Dialect.mistral(),
    ),
    # -- DeepSeek
    Broken(
        "openai.deepseek-orphan",
        "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
        chat(USER, answers()),
        Dialect.deepseek(),
    ),
    Broken(
        "openai.deepseek-unanswered",
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        "(insufficient tool messages following tool_calls message)",
        chat(USER, asks(call())),
        Dialect.deepseek(),
    ),
    Broken(
        "openai.deepseek-reasoning",
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        chat(*round_of(call())),
        Dialect.deepseek(),
    ),
    # -- strict templates
    Broken(
        "openai.template-content",
        "All non-assistant messages must contain 'content'",
        chat({"role": "user"}),
        Dialect.template(),
    ),
    Broken(
        "openai.template-assistant-empty",
        "Assistant message must contain either 'content' or 'tool_calls'!",
        chat(USER, {"role": "assistant"}, USER),
        Dialect.template(),
    ),
    Broken(
        "openai.template-system-first",
        "System message must be at the beginning.",
        chat(USER, {"role": "system", "content": "x"}),
        Dialect.template(),
    ),
    Broken(
        "openai.template-developer",
        "Only user, assistant and tool roles are supported, got developer",
        chat({"role": "developer", "content": "x"}, USER),
        Dialect.template(),
    ),
    Broken(
        "openai.template-two-assistants",
        "Cannot have 2 or more assistant messages at the end of the list.",
        chat(USER, {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}),
        Dialect.template(),
    ),
    Broken(
        "openai.template-continued-call",
        "Cannot continue an assistant message that contains tool calls",
        chat(USER, asks(call())),
        Dialect.template(),
    ),
    Broken(
        "openai.template-alternate",
        "After the optional system message, conversation roles must alternate user and assistant roles except for tool "
        "calls and results.",
        chat(USER, USER),
        Dialect.template(),
    ),
    Broken(
        "openai.template-arguments",
        "Failed to parse the arguments of messages[1].tool_calls[0] as JSON",
        chat(*round_of(call(arguments='{"a":'))),
        Dialect.template(),
    ),
    Broken("openai.unknown-field", "Unrecognized request argument supplied: top_k", chat(USER, top_k=5)),
    Broken(
        "openai.field-type",
        "Invalid type for 'temperature': expected a decimal, but got a string instead.",
        chat(USER, temperature="1"),
    ),
    Broken(
        "openai.integer-low",
        "Invalid 'max_tokens': integer below minimum value. Expected a value >= 1, but got 0 instead.",
        chat(USER, max_tokens=0),
    ),
    Broken(
        "openai.integer-high",
        "Invalid 'n': integer above maximum value. Expected a value <= 128, but got 500 instead.",
        chat(USER, n=500),
    ),
    Broken(
        "openai.decimal-low",
        "Invalid 'presence_penalty': decimal below minimum value. Expected a value >= -2, but got -5 instead.",
        chat(USER, presence_penalty=-5),
    ),
    Broken(
        "openai.decimal-high",
        "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 3 instead.",
        chat(USER, temperature=3),
    ),
    Broken(
        "openai.word",
        "Invalid value: 'huge'. Supported values are: 'low', 'medium', and 'high'.",
        chat(USER, verbosity="huge"),
    ),
    Broken(
        "openai.assistant-part",
        "Invalid value: 'image_url'. Supported values are: 'text' and 'refusal'.",
        chat(USER, {"role": "assistant", "content": [shown("https://x.y/z.png")]}, USER),
    ),
    Broken(
        "openai.stops-many",
        "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array with length 5 instead.",
        chat(USER, stop=["a", "b", "c", "d", "e"]),
    ),
    Broken("openai.stops-empty", f"Invalid 'stop': {EMPTY}", chat(USER, stop=[])),
    Broken(
        "openai.logit-bias-key",
        "Invalid key in 'logit_bias': a. You should only be submitting non-negative integers.",
        chat(USER, logit_bias={"1": 5, "a": 5}),
    ),
    Broken(
        "openai.logit-bias-range",
        "Invalid value for 'logit_bias.1639': 500. Expected a value between -100 and 100.",
        chat(USER, logit_bias={"1639": 500}),
    ),
    Broken("openai.audio-missing", "Missing required parameter: 'audio'.", chat(USER, modalities=["text", "audio"])),
    Broken(
        "openai.key-long",
        "Invalid 'prompt_cache_key': string too long. Expected a string with maximum length 64, but got a string with length "
        "65 instead.",
        chat(USER, prompt_cache_key="x" * 65),
    ),
    Broken(
        "openai.metadata-many",
        "Invalid 'metadata': too many properties. Expected an object with at most 16 properties, but got an object with 17 "
        "properties instead.",
        chat(USER, metadata={str(n): "x" for n in range(17)}),
    ),
    Broken(
        "openai.limits-both",
        "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
        chat(USER, max_tokens=5, max_completion_tokens=5),
    ),
    Broken(
        "openai.logprobs-alone",
        "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.",
        chat(USER, top_logprobs=2),
    ),
    Broken(
        "openai.json-word",
        "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'.",
        chat(USER, response_format={"type": "json_object"}),
    ),
    Broken(
        "openai.format-name",
        "Missing required parameter: 'response_format.json_schema.name'.",
        chat(USER, response_format={"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}),
    ),
    Broken(
        "openai.format-name-pattern",
        f"Invalid 'response_format.json_schema.name': {PATTERN}",
        chat(USER, response_format={"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}}),
    ),
    Broken(
        "openai.array-items",
        "Invalid schema for function 'add': In context=('properties', 'a'), array schema missing items.",
        chat(USER, tools=[tool(parameters={"type": "object", "properties": {"a": {"type": "array"}}})]),
    ),
    Broken(
        "openai.tool-name-twice",
        "Invalid value for 'tools[1].function.name': 'add' is the name of another function.",
        chat(USER, tools=[tool(), tool()]),
    ),
    Broken(
        "openai.image-url",
        "Invalid 'messages[0].content[0].image_url.url'. Expected a URL or base64-encoded image data.",
        chat({"role": "user", "content": [shown("ftp://x.y/z.png")]}),
    ),
)


def response(*items: JsonValue, **more: JsonValue) -> JsonObject:
    return {"model": "gpt-test", "input": [*items], **more}


def called(ident: JsonValue = "c1", **more: JsonValue) -> JsonObject:
    return {"type": "function_call", "call_id": ident, "name": "add", "arguments": "{}", **more}


def returned(ident: JsonValue = "c1", output: JsonValue = "2") -> JsonObject:
    return {"type": "function_call_output", "call_id": ident, "output": output}


def reasoned(ident: str = "rs_wire_0_0", *, sealed: bool = True, **more: JsonValue) -> JsonObject:
    made: JsonObject = {"encrypted_content": SIGNER.sign("hm", 0, 1)} if sealed else {}
    return {"type": "reasoning", "id": ident, "summary": [], **made, **more}


def function(name: JsonValue = "add", **more: JsonValue) -> JsonObject:
    return {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}, **more}


def clicked(**more: JsonValue) -> JsonObject:
    act: JsonObject = {"type": "click", "button": "left", "x": 1, "y": 2}
    item: JsonObject = {"type": "computer_call", "id": "cu_1", "call_id": "c1", "status": "completed", "actions": [act]}
    return {**item, "pending_safety_checks": [], **more}


def shot(output: JsonValue = None) -> JsonObject:
    image: JsonObject = {"type": "computer_screenshot", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    return {"type": "computer_call_output", "call_id": "c1", "output": output or image}


def displayed(*items: JsonValue) -> JsonObject:
    return response(USER, *items, tools=[{"type": "computer"}])


def text_form(schema: JsonObject, name: str = "x") -> JsonObject:
    return {"format": {"type": "json_schema", "name": name, "strict": True, "schema": schema}}


def without(item: JsonObject, key: str) -> JsonObject:
    return {name: value for name, value in item.items() if name != key}


MISSING = "Missing required parameter: "
MOVED = (
    "In the Responses API, this parameter has moved to '{}'. Try again with the new parameter. See the API documentation "
    "for more information: https://platform.openai.com/docs/api-reference/responses/create."
)

RESPONSES: Sequence[Broken] = (
    Broken(
        "responses.key",
        "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
        "(i.e. Authorization: Bearer YOUR_KEY).",
        response(USER),
        headers={},
    ),
    Broken("responses.too-large", "Request too large.", response(USER), Dialect(max_body=10)),
    Broken("responses.json", "We could not parse the JSON body of your request.", None, raw=b"{"),
    Broken(
        "responses.moved",
        f"Unsupported parameter: 'response_format'. {MOVED.format('text.format')}",
        response(USER, response_format={}),
    ),
    Broken("responses.unknown", "Unknown parameter: 'stop'.", response(USER, stop=["x"])),
    Broken("responses.model", f"{MISSING}'model'.", {"input": "hi"}),
    Broken("responses.input-missing", f"{MISSING}'input'.", {"model": "m"}),
    Broken(
        "responses.input-type",
        "Invalid type for 'input': expected one of a string or array of objects, but got an integer instead.",
        {"model": "m", "input": 3},
    ),
    Broken(
        "responses.item-kind",
        "Invalid type for 'input[1]': expected an object, but got a string instead.",
        response(USER, "hi"),
    ),
    Broken("responses.item-type", f"{MISSING}'input[0].type'.", response({"content": "hi"})),
    Broken(
        "responses.role",
        "Invalid value: 'tool'. Supported values are: 'assistant', 'system', 'developer', and 'user'.",
        response(USER, answers()),
    ),
    Broken("responses.content", f"{MISSING}'input[1].content'.", response(USER, asks(call()))),
    Broken("responses.item-field", "Unknown parameter: 'input[0].name'.", response({**USER, "name": "ada"})),
    Broken(
        "responses.part-type",
        "Invalid value: 'text'. Supported values are: 'input_text', 'input_image', 'output_text', 'refusal', 'input_file', "
        "'computer_screenshot', and 'summary_text'.",
        response({"role": "user", "content": [{"type": "text", "text": "hi"}]}),
    ),
    Broken(
        "responses.image",
        f"{MISSING}'input[2].output[0].image_url'.",
        response(USER, called(), returned(output=[{"type": "input_image"}])),
    ),
    Broken("responses.call-id-missing", f"{MISSING}'input[1].call_id'.", response(USER, called(None))),
    Broken(
        "responses.call-id-long",
        "Invalid 'input[1].call_id': string too long. Expected a string with maximum length 64, but got a string with "
        "length 65 instead.",
        response(USER, called("c" * 65), returned("c" * 65)),
    ),
    Broken("responses.call-name-missing", f"{MISSING}'input[1].name'.", response(USER, without(called(), "name"))),
    Broken("responses.call-name-pattern", f"Invalid 'input[1].name': {PATTERN}", response(USER, called(name="a.b"))),
    Broken(
        "responses.arguments-missing", f"{MISSING}'input[1].arguments'.", response(USER, without(called(), "arguments"))
    ),
    Broken(
        "responses.arguments-type",
        "Invalid type for 'input[1].arguments': expected a string, but got an object instead.",
        response(USER, called(arguments={})),
    ),
    Broken("responses.output-missing", f"{MISSING}'input[2].output'.", response(USER, called(), returned(output=None))),
    Broken(
        "responses.summary-missing", f"{MISSING}'input[1].summary'.", response(USER, without(reasoned(), "summary"))
    ),
    Broken(
        "responses.previous",
        "Previous response with id 'resp_1' not found.",
        response(USER, previous_response_id="resp_1"),
    ),
    Broken(
        "responses.reference",
        "Item with id 'msg_1' not found.",
        response(USER, {"type": "item_reference", "id": "msg_1"}),
    ),
    Broken(
        "responses.not-stored",
        "Item with id 'rs_wire_0_0' not found. Items are not persisted when `store` is set to false. Try again with "
        "`store` set to true, or remove this item from your input.",
        response(USER, reasoned(sealed=False), called(), returned(), store=False),
    ),
    Broken(
        "responses.seal",
        "The encrypted content gAAA...Rg== could not be verified.",
        response(USER, reasoned(encrypted_content="gAAAAABpRg=="), called(), returned()),
    ),
    Broken(
        "responses.item-twice",
        "Duplicate item found with id rs_wire_0_0. Remove duplicate items from your input and try again.",
        response(USER, reasoned(), reasoned(), called(), returned()),
    ),
    Broken(
        "responses.orphan",
        "No tool call found for function call output with call_id c1.",
        response(USER, returned(), called()),
    ),
    Broken(
        "responses.unanswered",
        "No tool output found for function call c2.",
        response(called(), called("c2"), returned()),
    ),
    Broken(
        "responses.thought-missing",
        "Item 'fc_wire_0_1_after_0' of type 'function_call' was provided without its required 'reasoning' item: "
        "'rs_wire_0_0'.",
        response(USER, called(id="fc_wire_0_1_after_0"), returned()),
    ),
    Broken(
        "responses.thought-alone",
        "Item 'rs_wire_0_0' of type 'reasoning' was provided without its required following item.",
        response(USER, reasoned(), USER),
    ),
    Broken("responses.computer-id-missing", f"{MISSING}'input[1].id'.", displayed(without(clicked(), "id"), shot())),
    Broken(
        "responses.computer-id",
        "Invalid 'input[1].id': 'fc_1'. Expected an ID that begins with 'cu'.",
        displayed(clicked(id="fc_1"), shot()),
    ),
    Broken(
        "responses.computer-status", f"{MISSING}'input[1].status'.", displayed(without(clicked(), "status"), shot())
    ),
    Broken(
        "responses.computer-checks",
        f"{MISSING}'input[1].pending_safety_checks'.",
        displayed(without(clicked(), "pending_safety_checks"), shot()),
    ),
    Broken(
        "responses.action-type",
        "Invalid value: 'left_click'. Supported values are: 'click', 'double_click', 'drag', 'keypress', 'move', "
        "'screenshot', 'scroll', 'type', and 'wait'.",
        displayed(clicked(actions=[{"type": "screenshot"}, {"type": "left_click"}]), shot()),
    ),
    Broken(
        "responses.action-field",
        f"{MISSING}'input[1].actions[0].y'.",
        displayed(clicked(actions=[{"type": "move", "x": 1}]), shot()),
    ),
    Broken(
        "responses.screenshot-type",
        "Invalid value: 'input_text'. Supported values are: 'computer_screenshot'.",
        displayed(clicked(), shot({"type": "input_text", "text": "done"})),
    ),
    Broken(
        "responses.screenshot",
        f"{MISSING}'input[2].output.image_url'.",
        displayed(clicked(), shot({"type": "computer_screenshot"})),
    ),
    Broken(
        "responses.unacknowledged",
        "Computer tool has unacknowledged safety check for ['cu_sc_2']",
        displayed(
            clicked(pending_safety_checks=[{"id": "cu_sc_1"}, {"id": "cu_sc_2"}]),
            {**shot(), "acknowledged_safety_checks": [{"id": "cu_sc_1"}]},
        ),
    ),
    Broken(
        "responses.computer-alone",
        "Computer calls need the tool 'computer' in 'tools'.",
        response(USER, clicked(), shot()),
    ),
    Broken("responses.tool-type", f"{MISSING}'tools[0].type'.", response(USER, tools=[{"name": "add"}])),
    Broken("responses.tool-name-missing", f"{MISSING}'tools[0].name'.", response(USER, tools=[tool()])),
    Broken("responses.tool-name-empty", f"Invalid 'tools[0].name': {NO_NAME}", response(USER, tools=[function("")])),
    Broken(
        "responses.tool-name-pattern", f"Invalid 'tools[0].name': {PATTERN}", response(USER, tools=[function("a/b")])
    ),
    Broken(
        "responses.tool-name-long",
        "Invalid 'tools[0].name': string too long. Expected a string with maximum length 64, but got a string with length "
        "70 instead.",
        response(USER, tools=[function("a" * 70)]),
    ),
    Broken(
        "responses.strict-closed",
        "Invalid schema for function 'add': In context=(), 'additionalProperties' is required to be supplied and to be "
        "false.",
        response(USER, tools=[function(strict=True, parameters=STRICT_OPEN)]),
    ),
    Broken(
        "responses.strict-required",
        "Invalid schema for function 'add': In context=(), 'required' is required to be supplied and to be an array "
        "including every key in properties.",
        response(USER, tools=[function(strict=True, parameters=STRICT_LOOSE)]),
    ),
    Broken("responses.format-name", f"{MISSING}'text.format.name'.", response(USER, text=text_form(STRICT_OPEN, ""))),
    Broken(
        "responses.format-closed",
        "Invalid schema for response_format 'x': In context=(), 'additionalProperties' is required to be supplied and to "
        "be false.",
        response(USER, text=text_form(STRICT_OPEN)),
    ),
    Broken(
        "responses.format-required",
        "Invalid schema for response_format 'x': In context=(), 'required' is required to be supplied and to be an array "
        "including every key in properties.",
        response(USER, text=text_form(STRICT_LOOSE)),
    ),
    Broken(
        "responses.choice-unknown",
        "Tool choice 'sub' not found in 'tools' parameter.",
        response(USER, tools=[function()], tool_choice={"type": "function", "name": "sub"}),
    ),
    Broken(
        "responses.least-output",
        "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 5 instead.",
        response(USER, max_output_tokens=5),
    ),
    Broken(
        "responses.sampling",
        "Unsupported parameter: 'temperature' is not supported with this model.",
        response(USER, temperature=0.2),
        Dialect.reasoning(),
    ),
    Broken(
        "responses.max-output",
        "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= 32, but got 33 instead.",
        response(USER, max_output_tokens=33),
        Dialect(max_output=32),
    ),
    Broken(
        "responses.window",
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        response({"role": "user", "content": "x" * 1000}),
        Dialect(window=10),
    ),
)


def use(ident: JsonValue = "t1", name: JsonValue = "add", given: JsonValue = None, **more: JsonValue) -> JsonObject:
    return {"type": "tool_use", "id": ident, "name": name, "input": {} if given is None else given, **more}


def result(ident: JsonValue = "t1", content: JsonValue = "2", **more: JsonValue) -> JsonObject:
    return {"type": "tool_result", "tool_use_id": ident, "content": content, **more}


def text(value: JsonValue = "hm", **more: JsonValue) -> JsonObject:
    return {"type": "text", "text": value, **more}


def thought(value: str = "I think", place: int = 0, total: int = 1, **more: JsonValue) -> JsonObject:
    return {"type": "thinking", "thinking": value, "signature": SIGNER.sign(value, place, total), **more}


def sealed(place: int = 0, total: int = 1) -> JsonObject:
    return {"type": "redacted_thinking", "data": SIGNER.sign("secret", place, total)}


def says(*blocks: JsonValue) -> JsonObject:
    return {"role": "assistant", "content": [*blocks]}


def tells(*blocks: JsonValue) -> JsonObject:
    return {"role": "user", "content": [*blocks]}


def spec(name: JsonValue = "add", **more: JsonValue) -> JsonObject:
    return {"name": name, "input_schema": {"type": "object", "properties": {}}, **more}


def message(*messages: JsonValue, **more: JsonValue) -> JsonObject:
    return {"model": "claude-test", "max_tokens": 4096, "messages": [*messages], **more}


def document(cited: bool) -> JsonObject:
    source: JsonObject = {"type": "text", "media_type": "text/plain", "data": "x"}
    return {"type": "document", "source": source, "citations": {"enabled": cited}}


def bound(value: str) -> JsonObject:
    """A thought that was made after `message(USER)`."""
    signer = SIGNER.bound_to(message(USER))
    return {"type": "thinking", "thinking": value, "signature": signer.sign(value, 0, 1)}


def tooled(*messages: JsonValue, **more: JsonValue) -> JsonObject:
    return message(*messages, tools=[spec()], **more)


ON: JsonObject = {"type": "enabled", "budget_tokens": 1024}
MARK: JsonObject = {"type": "ephemeral"}
SEARCH_TOOL: JsonObject = {"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"}
SEARCHED: list[JsonValue] = [
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "tool_search_tool_bm25", "input": {"query": "subtract"}},
    {
        "type": "tool_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": {
            "type": "tool_search_tool_search_result",
            "tool_references": [{"type": "tool_reference", "tool_name": "sub"}],
        },
    },
]
LONG: JsonObject = {"type": "ephemeral", "ttl": "1h"}
ID = "String should match pattern '^[a-zA-Z0-9_-]+$'"
AGAIN = (
    "`thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These blocks must "
    "remain as they were in the original response."
)

ANTHROPIC: Sequence[Broken] = (
    Broken("anthropic.key", "x-api-key header is required", message(USER), headers={"anthropic-version": "2023-06-01"}),
    Broken(
        "anthropic.version", "anthropic-version: header is required", message(USER), headers={"x-api-key": "sk-test"}
    ),
    Broken("anthropic.too-large", "Request exceeds the maximum size", message(USER), Dialect(max_body=10)),
    Broken("anthropic.json", "The request body is not valid JSON", None, raw=b"[]"),
    Broken("anthropic.model", "model: Field required", {"messages": [USER], "max_tokens": 5}),
    Broken("anthropic.max-tokens-missing", "max_tokens: Field required", {"model": "m", "messages": [USER]}),
    Broken(
        "anthropic.max-tokens-small",
        "max_tokens: Input should be greater than or equal to 0",
        {"model": "m", "messages": [USER], "max_tokens": -1},
    ),
    Broken(
        "anthropic.max-tokens-large",
        "max_tokens: 64001 > 64000, which is the maximum allowed number of output tokens for claude-test",
        {**message(USER), "max_tokens": 64_001},
        Dialect.claude_4_5(),
    ),
    Broken(
        "anthropic.extra-field",
        "reasoning_effort: Extra inputs are not permitted",
        message(USER, reasoning_effort="low"),
    ),
    Broken(
        "anthropic.thread",
        "thread: Threads are not supported for this request. Send the full conversation without `thread`.",
        message(USER, thread={"type": "create"}),
        headers={**KEYS, "anthropic-beta": "message-threads-2026-08-12"},
    ),
    Broken("anthropic.messages-missing", "messages: Field required", {"model": "m", "max_tokens": 5}),
    Broken("anthropic.messages-empty", "messages: at least one message is required", message()),
    Broken(
        "anthropic.message-type",
        "messages.0: Input should be a valid dictionary or object to extract fields from",
        message("hi"),
    ),
    Broken(
        "anthropic.role",
        "messages.1.role: Input should be 'user' or 'assistant'",
        message(USER, {"role": "tool", "content": "x"}),
    ),
    Broken(
        "anthropic.system-role",
        'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, not "system" as '
        "an input message role.",
        message({"role": "system", "content": "x"}, USER),
    ),
    Broken(
        "anthropic.system-place",
        "role 'system' is not supported on this model",
        message({"role": "system", "content": "x"}, USER),
        Dialect.claude_4_8(),
    ),
    Broken("anthropic.first-message", 'messages: first message must use the "user" role', message(says(text()), USER)),
    Broken(
        "anthropic.alternate",
        'messages: roles must alternate between "user" and "assistant", but found multiple "user" roles in a row',
        message(USER, USER),
        Dialect(alternate=True),
    ),
    Broken("anthropic.content-missing", "messages.0.content: Field required", message({"role": "user"})),
    Broken(
        "anthropic.content-type",
        "messages.0.content: Input should be a valid list",
        message({"role": "user", "content": None}),
    ),
    Broken(
        "anthropic.content-empty",
        "messages.1: all messages must have non-empty content except for the optional final assistant message",
        message(USER, says(), USER),
    ),
    Broken("anthropic.text-empty", "messages: text content blocks must be non-empty", message(tells(text("")))),
    Broken(
        "anthropic.text-blank",
        "messages: text content blocks must contain non-whitespace text",
        message({"role": "user", "content": " \n"}),
    ),
    Broken(
        "anthropic.system-text-empty",
        "system: text content blocks must be non-empty",
        message(USER, system=[text("")]),
    ),
    Broken(
        "anthropic.block-type",
        "messages.0.content.0: Input tag 'image_url' found using 'type' does not match any of the expected tags: "
        "'document', 'image', 'redacted_thinking', 'search_result', 'text', 'thinking', 'tool_result', 'tool_use'",
        message(tells({"type": "image_url"})),
    ),
    Broken(
        "anthropic.call-place",
        "messages.0: `tool_use` blocks can only be in `assistant` messages",
        tooled(tells(use())),
    ),
    Broken(
        "anthropic.thinking-place",
        "messages.0: `thinking` blocks can only be in `assistant` messages",
        message(tells(thought(), text())),
    ),
    Broken(
        "anthropic.result-place",
        "messages.1: `tool_result` blocks can only be in `user` messages",
        tooled(USER, says(result()), USER),
    ),
    Broken(
        "anthropic.image-type",
        "messages.0.content.0.image.source.base64.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' "
        "or 'image/webp'",
        message(tells({"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": "AAAA"}})),
    ),
    Broken(
        "anthropic.image-size",
        "messages.0.content.0.image.source.base64.data: image exceeds 5 MB maximum: 5242881 bytes > 5242880 bytes",
        message(
            tells({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * 6_990_508}})
        ),
    ),
    Broken(
        "anthropic.call-id-pattern",
        f"messages.1.content.0.tool_use.id: {ID}",
        tooled(USER, says(use("functions.add:0")), tells(result("functions.add:0"))),
    ),
    Broken(
        "anthropic.result-id-pattern",
        f"messages.2.content.0.tool_result.tool_use_id: {ID}",
        tooled(USER, says(use()), tells(result("t.1"))),
    ),
    Broken(
        "anthropic.server-id-pattern",
        "messages.1.content.0.server_tool_use.id: String should match pattern '^srvtoolu_[a-zA-Z0-9_]+$'",
        message(USER, says({"type": "server_tool_use", "id": "t1", "name": "web_search", "input": {}}), USER),
    ),
    Broken(
        "anthropic.server-result",
        "messages.1.content.0: unexpected `tool_use_id` found in `web_search_tool_result` blocks: srvtoolu_1. Each "
        "`web_search_tool_result` block must have a corresponding `server_tool_use` block before it.",
        message(USER, says({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}), USER),
    ),
    Broken(
        "anthropic.call-id-twice",
        "messages.3.content.0: `tool_use` ids must be unique",
        tooled(USER, says(use()), tells(result()), says(use()), tells(result())),
    ),
    Broken(
        "anthropic.call-input",
        "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
        tooled(USER, says(use(given="{}")), tells(result())),
    ),
    Broken(
        "anthropic.call-name-empty",
        "messages.1.content.0.tool_use.name: String should have at least 1 character",
        tooled(USER, says(use(name="")), tells(result())),
    ),
    Broken(
        "anthropic.call-name-long",
        "messages.1.content.0.tool_use.name: String should have at most 200 characters",
        tooled(USER, says(use(name="a" * 201)), tells(result())),
    ),
    Broken(
        "anthropic.error-result-empty",
        "messages.2.content.0.tool_result: content cannot be empty if `is_error` is true",
        tooled(USER, says(use()), tells(result(content="", is_error=True))),
    ),
    Broken(
        "anthropic.double-result",
        "messages.2.content.1: each tool_use must have a single result. Found multiple `tool_result` blocks with id: "
        "t1",
        tooled(USER, says(use()), tells(result(), result())),
    ),
    Broken(
        "anthropic.unanswered",
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: t2, t3. Each `tool_use` "
        "block must have a corresponding `tool_result` block in the next message.",
        tooled(USER, says(use(), use("t2"), use("t3")), tells(result()), tells(result("t2"), result("t3"))),
    ),
    Broken(
        "anthropic.unexpected-result",
        "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: t1. Each `tool_result` block "
        "must have a corresponding `tool_use` block in the previous message.",
        tooled(tells(result())),
    ),
    Broken(
        "anthropic.tools-missing",
        "Requests which include `tool_use` or `tool_result` blocks must define tools.",
        message(USER, says(use()), tells(result())),
    ),
    Broken(
        "anthropic.tool-name",
        "tools.0.custom.name: String should match pattern '^[a-zA-Z0-9_-]{1,128}$'",
        message(USER, tools=[spec("a.b")]),
    ),
    Broken("anthropic.tool-name-twice", "tools: Tool names must be unique.", message(USER, tools=[spec(), spec()])),
    Broken(
        "anthropic.tool-schema",
        "tools.0.custom.input_schema: Field required",
        message(USER, tools=[{"name": "add"}]),
    ),
    Broken(
        "anthropic.tool-schema-type",
        "tools.0.custom.input_schema.type: Input should be 'object'",
        message(USER, tools=[spec(input_schema={})]),
    ),
    Broken(
        "anthropic.choice-alone",
        "tool_choice may only be specified while providing tools",
        message(USER, tool_choice={"type": "auto"}),
    ),
    Broken(
        "anthropic.choice-unknown",
        "Tool 'sub' not found in provided tools",
        tooled(USER, tool_choice={"type": "tool", "name": "sub"}),
    ),
    Broken(
        "anthropic.marks-many",
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
        message(
            tells(text(cache_control=MARK), text(cache_control=MARK)),
            tools=[spec(cache_control=MARK)],
            system=[text(cache_control=MARK)],
            cache_control=MARK,
        ),
    ),
    Broken(
        "anthropic.marks-form",
        "messages.0.content.0.cache_control.ttl: Input should be '5m' or '1h'",
        message(tells(text(cache_control={"type": "ephemeral", "ttl": "2h"}))),
    ),
    Broken(
        "anthropic.marks-order",
        "messages.0.content.0.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' "
        "cache_control block. Note that blocks are processed in the following order: tools, system, messages.",
        message(tells(text(cache_control=LONG)), system=[text(cache_control=MARK)]),
    ),
    Broken(
        "anthropic.marks-thinking",
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
        message(USER, says(thought(cache_control=MARK), text()), USER),
    ),
    Broken(
        "anthropic.thinking-setting",
        "thinking: Input tag 'on' found using 'type' does not match any of the expected tags: 'adaptive', "
        "'between_tools', 'disabled', 'enabled'",
        message(USER, thinking={"type": "on"}),
    ),
    Broken(
        "anthropic.thinking-manual",
        '"thinking.type.enabled" is not supported for this model',
        message(USER, thinking=ON),
        Dialect.claude_4_8(),
    ),
    Broken(
        "anthropic.budget-missing",
        "thinking.enabled.budget_tokens: Field required",
        message(USER, thinking={"type": "enabled"}),
    ),
    Broken(
        "anthropic.budget-small",
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        message(USER, thinking={"type": "enabled", "budget_tokens": 1023}),
    ),
    Broken(
        "anthropic.budget-large",
        "`max_tokens` must be greater than `thinking.budget_tokens`.",
        message(USER, thinking={"type": "enabled", "budget_tokens": 4096}),
    ),
    Broken(
        "anthropic.forced-choice",
        "Thinking may not be enabled when tool_choice forces tool use.",
        tooled(USER, thinking=ON, tool_choice={"type": "any"}),
    ),
    Broken(
        "anthropic.temperature-withdrawn",
        "`temperature` is deprecated for this model.",
        message(USER, temperature=1),
        Dialect.claude_4_8(),
    ),
    Broken("anthropic.temperature-range", "temperature: range: 0..1", message(USER, temperature=1.5)),
    Broken(
        "anthropic.temperature",
        "`temperature` may only be set to 1 when thinking is enabled.",
        message(USER, temperature=0.5, thinking=ON),
    ),
    Broken(
        "anthropic.top-p",
        "`top_p` must be greater than or equal to 0.95 or unset when thinking is enabled.",
        message(USER, top_p=0.9, thinking=ON),
    ),
    Broken(
        "anthropic.format-open",
        "output_config.format.schema: For 'object' type, 'additionalProperties' must be explicitly set to false",
        message(USER, output_config={"format": {"type": "json_schema", "schema": STRICT_OPEN}}),
    ),
    Broken("anthropic.top-k", "`top_k` must be unset when thinking is enabled.", message(USER, top_k=3, thinking=ON)),
    Broken(
        "anthropic.thinking-off",
        "messages.1.content.0: When thinking is disabled, an `assistant` message in the final position cannot contain "
        "`thinking`. To use thinking blocks, enable `thinking` in your request.",
        tooled(USER, says(thought(), use()), tells(result())),
    ),
    Broken(
        "anthropic.thinking-head",
        "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `tool_use`. When `thinking` "
        "is enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost set of "
        "`tool_use` and `tool_result` blocks).",
        tooled(USER, says(use()), tells(result()), thinking=ON),
    ),
    Broken(
        "anthropic.signature-missing",
        "messages.1.content.0.thinking.signature: Field required",
        message(USER, says({"type": "thinking", "thinking": "hm"}, text()), USER, thinking=ON),
    ),
    Broken(
        "anthropic.thinking-modified",
        f"messages.1.content.0: {AGAIN}",
        tooled(USER, says({**thought(), "thinking": "I thought"}, use()), tells(result()), thinking=ON),
    ),
    Broken(
        "anthropic.signature",
        "messages.1.content.0: Invalid `signature` in `thinking` block",
        message(USER, says({**thought(), "signature": "Zm9yZWlnbg=="}, text()), USER, thinking=ON),
    ),
    Broken(
        "anthropic.redacted",
        "messages.1.content.0: Invalid `data` in `redacted_thinking` block",
        message(USER, says({"type": "redacted_thinking", "data": "Zm9yZWlnbg=="}, text()), USER, thinking=ON),
    ),
    Broken(
        "anthropic.thinking-bound",
        "messages.1.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation. "
        'Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block". That setting '
        "requires the `thinking-binding-controls-2026-08-01` value in the `anthropic-beta` header.",
        message(USER, says(bound("I think"), text()), USER, system="changed", thinking={"type": "adaptive"}),
        Dialect.claude_5_5(),
    ),
    Broken(
        "anthropic.prefill",
        "This model does not support assistant message prefill. The conversation must end with a user message.",
        message(USER, says(text())),
    ),
    Broken(
        "anthropic.trailing-space",
        "messages: final assistant content cannot end with trailing whitespace",
        message(USER, says(text("so")), USER, says(text("so "))),
        Dialect.claude_4_5(),
    ),
    Broken(
        "anthropic.prompt-long",
        "prompt is too long: 270 tokens > 100 maximum",
        message({"role": "user", "content": "x" * 1000}),
        Dialect(window=100),
    ),
    Broken(
        "anthropic.window",
        "input length and `max_tokens` exceed context limit: 21 + 4096 > 4100, decrease input length or `max_tokens` "
        "and try again",
        message(USER),
        Dialect(window=4100),
    ),
    Broken(
        "anthropic.field",
        "service_tier: Input should be 'auto' or 'standard_only'",
        message(USER, service_tier="fast"),
    ),
    Broken(
        "anthropic.extra-inside",
        "tools.0.custom.parameters: Extra inputs are not permitted",
        message(USER, tools=[spec(parameters={})]),
    ),
    Broken(
        "anthropic.choice-tag",
        "tool_choice: Input tag 'required' found using 'type' does not match any of the expected tags: 'auto', 'any', 'tool', "
        "'none'",
        tooled(USER, tool_choice={"type": "required"}),
    ),
    Broken(
        "anthropic.tool-tag",
        "tools.0: Input tag 'function' found using 'type' does not match any of the expected tags: "
        + ", ".join(f"'{tag}'" for tag in sorted(("custom", *SERVER_TOOLS))),
        message(USER, tools=[{"type": "function", "name": "add"}]),
    ),
    Broken(
        "anthropic.vendor-tool",
        "tools.1.memory_20250818.input_schema: Extra inputs are not permitted",
        message(
            USER, tools=[spec(), {"type": "memory_20250818", "name": "memory", "input_schema": {"type": "object"}}]
        ),
    ),
    Broken(
        "anthropic.mcp-server",
        "mcp_servers: 'docs' must be the name of one server and of one mcp_toolset",
        message(USER, mcp_servers=[{"type": "url", "url": "https://a.com", "name": "docs"}]),
        headers={**KEYS, "anthropic-beta": "mcp-client-2025-11-20"},
    ),
    Broken(
        "anthropic.deferred-mark",
        "Tool 'add' cannot have both defer_loading=true and cache_control set. Tools with defer_loading cannot use prompt "
        "caching.",
        message(USER, tools=[spec(defer_loading=True, cache_control=MARK), SEARCH_TOOL]),
    ),
    Broken(
        "anthropic.deferred-all",
        "At least one tool must have defer_loading=false. All tools cannot be deferred",
        message(USER, tools=[spec(defer_loading=True)]),
    ),
    Broken(
        "anthropic.lost-reference",
        "Tool reference 'sub' has no corresponding tool definition",
        message(USER, says(*SEARCHED), USER, tools=[spec(defer_loading=True), SEARCH_TOOL]),
    ),
    Broken(
        "anthropic.stop-blank",
        "stop_sequences: each stop sequence must contain non-whitespace",
        message(USER, stop_sequences=["\n"]),
    ),
    Broken(
        "anthropic.samplers-both",
        "`temperature` and `top_p` cannot both be specified for this model. Please use only one.",
        message(USER, temperature=0.5, top_p=0.5),
    ),
    Broken("anthropic.top-p-range", "top_p: range: 0..1", message(USER, top_p=2)),
    Broken(
        "anthropic.schema-union",
        "tools.0.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level",
        message(USER, tools=[spec(input_schema={"type": "object", "anyOf": []})]),
    ),
    Broken(
        "anthropic.schema-draft",
        "tools.0.custom.input_schema: JSON schema is invalid. It must match JSON Schema draft 2020-12 "
        "(https://json-schema.org/draft/2020-12). Learn more about tool use at https://docs.claude.com/en/docs/tool-use.",
        message(USER, tools=[spec(input_schema={"type": "object", "properties": {"a": {"type": "int"}}})]),
    ),
    Broken(
        "anthropic.schema-keys",
        "tools.0.custom.input_schema.properties: Property keys should match pattern '^[a-zA-Z0-9_.-]{1,64}$'",
        message(USER, tools=[spec(input_schema={"type": "object", "properties": {"filter[id]": {"type": "string"}}})]),
    ),
    Broken(
        "anthropic.image-data",
        "messages.0.content.0.image.source.base64: invalid base64 data",
        message(tells({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "!!!"}})),
    ),
    Broken(
        "anthropic.image-kind",
        "messages.0.content.0.image.source.base64.data: Image does not match the provided media type image/png",
        message(tells({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "/9j/4A=="}})),
    ),
    Broken(
        "anthropic.image-url",
        "messages.0.content.0.image.source.url: Only HTTPS URLs are supported.",
        message(tells({"type": "image", "source": {"type": "url", "url": "ftp://x.y/z.png"}})),
    ),
    Broken(
        "anthropic.citations-mixed",
        "messages.0.content.1.document.citations: Citations must be enabled on all or none of the documents within a request.",
        message(tells(document(True), document(False))),
    ),
)
