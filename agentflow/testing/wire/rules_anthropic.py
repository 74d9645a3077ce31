"""What Anthropic's messages API refuses. See `rules` for how a row is read."""

from collections.abc import Callable

from agentflow.testing.wire import checks_anthropic as c
from agentflow.testing.wire import checks_thinking as t
from agentflow.testing.wire.rules import Mark, Rule, Subject, Violation


def _row(
    name: str,
    about: str,
    check: Callable[[Subject], Violation | None],
    text: str,
    source: str = "common knowledge",
    mark: Mark = "B",
    *,
    status: int = 400,
    kind: str = "invalid_request_error",
) -> Rule:
    return Rule(
        id=f"anthropic.{name}",
        wire="anthropic",
        about=about,
        check=check,
        text=text,
        source=source,
        mark=mark,
        status=status,
        type=kind,
    )


_AT = "messages.{n}.content.{m}"
_ID = "String should match pattern '^[a-zA-Z0-9_-]+$'"
_TAGS = "'document', 'image', 'redacted_thinking', 'search_result', 'text', 'thinking', 'tool_result', 'tool_use'"

ANTHROPIC_SHAPE: tuple[Rule, ...] = (
    _row(
        "key",
        "carries an x-api-key header",
        c.key_missing,
        "x-api-key header is required",
        status=401,
        kind="authentication_error",
    ),
    _row("version", "carries an anthropic-version header", c.version_missing, "anthropic-version: header is required"),
    _row(
        "too-large",
        "is not larger than 32 MB",
        c.too_large,
        "Request exceeds the maximum size",
        "platform.claude.com api/errors",
        status=413,
        kind="request_too_large",
    ),
    _row("json", "is a JSON object", c.not_json, "The request body is not valid JSON"),
    _row("model", "names a model", c.field_missing("model"), "model: Field required"),
    _row(
        "max-tokens-missing",
        "sets max_tokens",
        c.field_missing("max_tokens"),
        "max_tokens: Field required",
        "tickernelz/opencode-mem#50",
        "I",
    ),
    _row(
        "max-tokens-small",
        "sets max_tokens to at least 1",
        c.max_tokens_small,
        "max_tokens: Input should be greater than or equal to 1",
    ),
    _row(
        "max-tokens-large",
        "asks for no more output than the model gives",
        c.max_tokens_large,
        "max_tokens: {n} > {m}, which is the maximum allowed number of output tokens for {x}",
        "anomalyco/opencode#2055",
        "I",
    ),
    _row("messages-missing", "has messages", c.field_missing("messages"), "messages: Field required"),
    _row(
        "messages-empty",
        "has at least one message",
        c.messages_empty,
        "messages: at least one message is required",
    ),
    _row(
        "message-type",
        "has objects for messages",
        c.message_type,
        "messages.{n}: Input should be a valid dictionary or object to extract fields from",
    ),
    _row(
        "role",
        "uses the roles user and assistant",
        c.unknown_role,
        "messages.{n}.role: Input should be 'user' or 'assistant'",
    ),
    _row(
        "system-role",
        "has no system message among the messages (before 4.8)",
        c.system_role,
        'messages: Unexpected role "system". The Messages API accepts a top-level `system` parameter, not "system" as '
        "an input message role.",
        "ianarawjo/ChainForge#271",
        "I",
    ),
    _row(
        "system-place",
        "has a system message only right after a user turn (4.8 and later)",
        c.system_place,
        "role 'system' is not supported on this model",
        "simonw/llm-anthropic#73 (rule)",
    ),
    _row(
        "first-message",
        "begins with the user",
        c.first_message,
        'messages: first message must use the "user" role',
        "juspay/neurolink#1706 (rule)",
    ),
    _row(
        "alternate",
        "alternates the roles (older endpoint)",
        c.roles_in_a_row,
        'messages: roles must alternate between "user" and "assistant", but found multiple "{x}" roles in a row',
        "coaidev/coai#209",
        "I",
    ),
)

ANTHROPIC_CONTENT: tuple[Rule, ...] = (
    _row("content-missing", "has content on every message", c.content_missing, "messages.{n}.content: Field required"),
    _row(
        "content-type",
        "has a string or a list of blocks as content",
        c.content_type,
        "messages.{n}.content: Input should be a valid list",
    ),
    _row(
        "content-empty",
        "has content in every message but perhaps a final assistant one",
        c.content_empty,
        "messages.{n}: all messages must have non-empty content except for the optional final assistant message",
        "anthropics/claude-code#4416",
        "I",
    ),
    _row(
        "text-empty",
        "has no empty text block",
        c.text_empty,
        "messages: text content blocks must be non-empty",
        "stackblitz/bolt.new#7426",
        "I",
    ),
    _row(
        "text-blank",
        "has no text of white space alone",
        c.text_blank,
        "messages: text content blocks must contain non-whitespace text",
        "anthropics/claude-code#23440",
        "I",
    ),
    _row(
        "system-text-empty",
        "has no empty text block in system",
        c.system_text_empty,
        "system: text content blocks must be non-empty",
    ),
    _row(
        "block-type",
        "uses the known block types",
        c.block_type,
        f"{_AT}: Input tag '{{x}}' found using 'type' does not match any of the expected tags: {_TAGS}",
    ),
    _row(
        "call-place",
        "has tool_use blocks only in assistant messages",
        c.misplaced("assistant", "tool_use"),
        "messages.{n}: `{x}` blocks can only be in `assistant` messages",
    ),
    _row(
        "thinking-place",
        "has thinking blocks only in assistant messages",
        c.misplaced("assistant", "thinking", "redacted_thinking"),
        "messages.{n}: `{x}` blocks can only be in `assistant` messages",
    ),
    _row(
        "result-place",
        "has tool_result blocks only in user messages",
        c.misplaced("user", "tool_result"),
        "messages.{n}: `{x}` blocks can only be in `user` messages",
    ),
    _row(
        "image-type",
        "has images of the four formats",
        c.image_type,
        f"{_AT}.image.source.base64.media_type: Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'",
        "platform.claude.com build-with-claude/vision (rule)",
    ),
    _row(
        "image-size",
        "has images of at most 5 MB",
        c.image_size,
        f"{_AT}.image.source.base64.data: image exceeds 5 MB maximum: {{x}} bytes > {{limit}} bytes",
    ),
)

ANTHROPIC_CALLS: tuple[Rule, ...] = (
    _row(
        "call-id-pattern",
        "has call ids of letters, digits, underscore and dash",
        c.call_id_pattern,
        f"{_AT}.tool_use.id: {_ID}",
        "maximhq/bifrost#5097",
        "I",
    ),
    _row(
        "result-id-pattern",
        "has result ids of letters, digits, underscore and dash",
        c.result_id_pattern,
        f"{_AT}.tool_result.tool_use_id: {_ID}",
        "BlockRunAI/ClawRouter#17 (rule)",
    ),
    _row(
        "server-id-pattern",
        "has the vendor's form of ids on server tools",
        c.server_id_pattern,
        f"{_AT}.server_tool_use.id: String should match pattern '^srvtoolu_[a-zA-Z0-9_]+$'",
        "ding113/claude-code-hub#470",
        "I",
    ),
    _row(
        "server-result",
        "has a server tool's result behind its call",
        c.server_result,
        f"{_AT}: unexpected `tool_use_id` found in `{{x}}` blocks: {{id}}. Each `{{x}}` block must have a "
        "corresponding `server_tool_use` block before it.",
        "anthropics/claude-code#64383",
        "I",
    ),
    _row(
        "call-id-twice",
        "has no call id twice in the whole request",
        c.call_id_twice,
        f"{_AT}: `tool_use` ids must be unique",
        "trycua/cua#524",
        "I",
    ),
    _row(
        "call-input",
        "has an object as input of every call",
        c.call_input,
        f"{_AT}.tool_use.input: Input should be a valid dictionary",
    ),
    _row(
        "call-name-empty",
        "names the tool of every call",
        c.call_name_empty,
        f"{_AT}.tool_use.name: String should have at least 1 character",
    ),
    _row(
        "call-name-long",
        "has tool names of at most 200 characters in its history",
        c.call_name_long,
        f"{_AT}.tool_use.name: String should have at most 200 characters",
    ),
    _row(
        "error-result-empty",
        "has content in a result that is an error",
        c.error_result_empty,
        f"{_AT}.tool_result: content cannot be empty if `is_error` is true",
    ),
    _row(
        "double-result",
        "answers each call once",
        c.double_result,
        f"{_AT}: each tool_use must have a single result. Found multiple `tool_result` blocks with id: {{id}}",
        "vectorize-io/hindsight#4250",
        "I",
    ),
    _row(
        "unanswered",
        "answers every call at the head of the very next message, all in one",
        c.unanswered,
        "messages.{n}: `tool_use` ids were found without `tool_result` blocks immediately after: {ids}. Each "
        "`tool_use` block must have a corresponding `tool_result` block in the next message.",
        "anthropics/claude-code#5989",
        "I",
    ),
    _row(
        "unexpected-result",
        "answers only calls of the message before",
        c.unexpected_result,
        f"{_AT}: unexpected `tool_use_id` found in `tool_result` blocks: {{id}}. Each `tool_result` block must have a "
        "corresponding `tool_use` block in the previous message.",
        "anthropics/claude-code#13460",
        "I",
    ),
)

ANTHROPIC_TOOLS: tuple[Rule, ...] = (
    _row(
        "tools-missing",
        "defines tools while its history holds tool blocks",
        c.tools_missing,
        "Requests which include `tool_use` or `tool_result` blocks must define tools.",
        "quoted by public code",
    ),
    _row(
        "tool-name",
        "has tool names of 1 to 128 letters, digits, underscore and dash",
        c.tool_name,
        "tools.{n}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'",
        "modelcontextprotocol/modelcontextprotocol#1345",
        "I",
    ),
    _row("tool-name-twice", "has no tool name twice", c.tool_name_twice, "tools: Tool names must be unique."),
    _row(
        "tool-schema",
        "has an object as input_schema",
        c.tool_schema,
        "tools.{n}.custom.input_schema: Field required",
    ),
    _row(
        "tool-schema-type",
        "has the type object at the top of input_schema",
        c.tool_schema_type,
        "tools.{n}.custom.input_schema.type: Input should be 'object'",
    ),
    _row(
        "choice-alone",
        "sets tool_choice only with tools",
        c.choice_alone,
        "tool_choice may only be specified while providing tools",
    ),
    _row(
        "choice-unknown",
        "forces only a tool that is defined",
        c.choice_unknown,
        "Tool '{x}' not found in provided tools",
    ),
    _row(
        "marks-many",
        "has at most 4 cache_control marks, a top-level one included",
        c.marks_many,
        "A maximum of 4 blocks with cache_control may be provided. Found {n}.",
        "griffinmartin/opencode-claude-auth#121",
        "I",
    ),
    _row(
        "marks-order",
        "has long-lived cache_control marks before short ones",
        c.marks_order,
        "{path}.cache_control.ttl: a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block. "
        "Note that blocks are processed in the following order: tools, system, messages.",
        "headroomlabs-ai/headroom#2939",
        "I",
    ),
    _row(
        "marks-thinking",
        "has no cache_control mark on a thinking block",
        c.marked_thought,
        f"{_AT}.{{x}}.cache_control: Extra inputs are not permitted",
    ),
)

ANTHROPIC_THINKING: tuple[Rule, ...] = (
    _row(
        "thinking-setting",
        "says enabled, disabled or adaptive",
        t.setting_unknown,
        "thinking: Input tag '{x}' found using 'type' does not match any of the expected tags: 'adaptive', 'disabled', "
        "'enabled'",
    ),
    _row(
        "thinking-manual",
        "does not ask for a thinking budget (4.7 and later)",
        t.manual,
        '"thinking.type.enabled" is not supported for this model',
        "AAswordman/Operit#568",
        "I",
    ),
    _row(
        "budget-missing",
        "says how much thinking it wants",
        t.budget_missing,
        "thinking.enabled.budget_tokens: Field required",
    ),
    _row(
        "budget-small",
        "wants at least 1024 tokens of thinking",
        t.budget_small,
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
        "themaximalist/llm.js#30",
        "I",
    ),
    _row(
        "budget-large",
        "wants less thinking than max_tokens (unless interleaved)",
        t.budget_large,
        "`max_tokens` must be greater than `thinking.budget_tokens`.",
        "docs.claude.com extended-thinking (rule)",
    ),
    _row(
        "forced-choice",
        "forces no tool under manual thinking",
        t.forced_choice,
        "Thinking may not be enabled when tool_choice forces tool use.",
        "mastra-ai/mastra#7507",
        "I",
    ),
    _row(
        "temperature-withdrawn",
        "sets no temperature (4.7 and later)",
        t.temperature_withdrawn,
        "`temperature` is deprecated for this model.",
        "Comfy-Org/ComfyUI#13923",
        "I",
    ),
    _row(
        "temperature-range",
        "sets a temperature between 0 and 1",
        t.temperature_range,
        "temperature: range: 0..1",
    ),
    _row(
        "temperature",
        "leaves temperature at 1 under thinking",
        t.temperature,
        "`temperature` may only be set to 1 when thinking is enabled.",
        "MartialBE/one-hub#529",
        "I",
    ),
    _row("top-k", "sets no top_k under thinking", t.top_k, "`top_k` must be unset when thinking is enabled."),
    _row(
        "thinking-off",
        "has no thinking in a final assistant message or an open tool loop with thinking off",
        t.off_in_final,
        f"{_AT}: When thinking is disabled, an `assistant` message in the final position cannot contain `{{x}}`. To "
        "use thinking blocks, enable `thinking` in your request.",
        "tailcallhq/forgecode#1195",
        "I",
    ),
    _row(
        "thinking-head",
        "begins an open tool loop with a thinking block under manual thinking",
        t.head_missing,
        "messages.{n}.content.0.type: Expected `thinking` or `redacted_thinking`, but found `{x}`. When `thinking` is "
        "enabled, a final `assistant` message must start with a thinking block (preceeding the lastmost set of "
        "`tool_use` and `tool_result` blocks).",
        "anomalyco/opencode#3077",
        "I",
    ),
    _row(
        "signature-missing",
        "has a signature on every thinking block",
        t.signature_missing,
        f"{_AT}.thinking.signature: Field required",
    ),
    _row(
        "thinking-modified",
        "gives the thinking of the latest assistant message back as it was: all blocks, in order, unchanged",
        t.modified,
        f"{_AT}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be modified. These "
        "blocks must remain as they were in the original response.",
        "anthropics/claude-code#19539",
        "I",
    ),
    _row(
        "signature",
        "has signatures that were made here, for this text",
        t.signature,
        f"{_AT}: Invalid `signature` in `thinking` block",
        "lbjlaq/Antigravity-Manager#498",
        "I",
    ),
    _row(
        "redacted",
        "gives redacted thinking back as it was",
        t.redacted,
        f"{_AT}: Invalid `data` in `redacted_thinking` block",
    ),
)

ANTHROPIC_END: tuple[Rule, ...] = (
    _row(
        "prefill",
        "ends with the user's message (4.6 and later)",
        c.prefill,
        "This model does not support assistant message prefill. The conversation must end with a user message.",
        "platform.claude.com migration guide",
        "D",
    ),
    _row(
        "trailing-space",
        "has no white space at the end of a prefill",
        c.trailing_space,
        "messages: final assistant content cannot end with trailing whitespace",
        "tailcallhq/forgecode#1872",
        "I",
    ),
    _row(
        "prompt-long",
        "fits the context window",
        c.prompt_long,
        "prompt is too long: {n} tokens > {m} maximum",
        "quoted by public code",
    ),
    _row(
        "window",
        "fits the context window together with max_tokens",
        c.window,
        "input length and `max_tokens` exceed context limit: {n} + {m} > {limit}, decrease input length or "
        "`max_tokens` and try again",
        "Aider-AI/aider#3618",
        "I",
    ),
)

ANTHROPIC_RULES = (
    ANTHROPIC_SHAPE + ANTHROPIC_CONTENT + ANTHROPIC_CALLS + ANTHROPIC_TOOLS + ANTHROPIC_THINKING + ANTHROPIC_END
)
