"""The checks for `rules_anthropic.tsv`. Each returns the values for the placeholders of its row's text, or None.

The column `about` of a row describes its check.
"""

import re
from collections.abc import Callable, Iterator
from itertools import chain

from agentflow.testing.wire.jsonish import JsonObject, JsonValue, as_list, as_object, as_text, objects
from agentflow.testing.wire.rules import Subject, Violation, repeated, strict_objects, texts

ID = re.compile(r"[a-zA-Z0-9_-]+")
SERVER_ID = re.compile(r"srvtoolu_[a-zA-Z0-9_]+")
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
BLOCKS = (
    *("text", "image", "document", "search_result", "tool_use", "tool_result", "thinking", "redacted_thinking"),
    *("server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result"),
    *("bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result"),
    *("container_upload", "mcp_tool_use", "mcp_tool_result", "advisor_tool_result", "tool_reference"),
    *("compaction", "fallback", "mcp_tool_listing", "tool_addition", "tool_removal"),
)
IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
MAX_MARKS, MAX_IMAGE = 4, 5 * (1 << 20)
FIELDS = frozenset(
    (
        *("model", "messages", "max_tokens", "system", "stream", "stop_sequences", "temperature", "top_p", "top_k"),
        *("metadata", "tools", "tool_choice", "thinking", "cache_control", "container", "diagnostics"),
        *("inference_geo", "output_config", "service_tier", "speed", "user_profile_id", "workspace_id"),
    )
)
BETA_FIELDS = frozenset(  # allowed only with an `anthropic-beta` header
    (
        *("billing_policy", "compaction", "context_management", "fallback_credit_token", "fallbacks"),
        *("mcp_servers", "output_format", "thread"),
    )
)
THOUGHTS = ("thinking", "redacted_thinking")


def key_missing(s: Subject) -> Violation | None:
    return None if s.headers.get("x-api-key") or s.headers.get("authorization") else Violation()


def version_missing(s: Subject) -> Violation | None:
    return None if s.headers.get("anthropic-version") else Violation()


def too_large(s: Subject) -> Violation | None:
    return Violation() if s.size > s.dialect.max_body else None


def not_json(s: Subject) -> Violation | None:
    return None if s.valid_json else Violation()


def field_missing(name: str) -> Callable[[Subject], Violation | None]:
    def check(s: Subject) -> Violation | None:
        return Violation() if s.body.get(name) is None else None

    return check


model_missing = field_missing("model")
max_tokens_missing = field_missing("max_tokens")
messages_missing = field_missing("messages")


def extra_field(s: Subject) -> Violation | None:
    known = FIELDS | BETA_FIELDS if s.headers.get("anthropic-beta") else FIELDS
    return next((Violation(x=name) for name in s.body if name not in known), None)


def thread(s: Subject) -> Violation | None:
    return None if s.body.get("thread") is None else Violation()


def max_tokens_small(s: Subject) -> Violation | None:
    value = s.body.get("max_tokens")  # 0 is legal: it fills the prompt cache without a reply
    return Violation() if not isinstance(value, int) or value < 0 else None


def max_tokens_large(s: Subject) -> Violation | None:
    value, limit = s.body.get("max_tokens"), s.dialect.max_output
    if isinstance(value, int) and limit is not None and value > limit:
        return Violation(n=value, m=limit, x=as_text(s.body.get("model")))
    return None


def messages_empty(s: Subject) -> Violation | None:
    return None if s.messages else Violation()


def message_type(s: Subject) -> Violation | None:
    for n, message in enumerate(as_list(s.body.get("messages"))):
        if not isinstance(message, dict):
            return Violation(n=n)
    return None


def system_role(s: Subject) -> Violation | None:
    return None if s.dialect.late_system else next((Violation() for _ in s.with_role("system")), None)


def system_position(s: Subject) -> Violation | None:
    return next((Violation() for n, _ in s.with_role("system") if s.role(n - 1) != "user"), None)


def unknown_role(s: Subject) -> Violation | None:
    for n in range(len(s.messages)):
        if s.role(n) not in ("user", "assistant", "system"):
            return Violation(n=n)
    return None


def first_message(s: Subject) -> Violation | None:
    return Violation() if s.role(0) != "user" else None


def roles_in_a_row(s: Subject) -> Violation | None:
    if not s.dialect.alternate:
        return None
    for n in range(1, len(s.messages)):
        if s.role(n) == s.role(n - 1):
            return Violation(x=s.role(n))
    return None


def content_missing(s: Subject) -> Violation | None:
    return next((Violation(n=n) for n, message in enumerate(s.messages) if "content" not in message), None)


def content_type(s: Subject) -> Violation | None:
    for n, message in enumerate(s.messages):
        if not isinstance(message.get("content"), (str, list)):
            return Violation(n=n)
    return None


def content_empty(s: Subject) -> Violation | None:
    for n, message in enumerate(s.messages):
        is_prefill = n == len(s.messages) - 1 and message.get("role") == "assistant"
        if not message.get("content") and not is_prefill:
            return Violation(n=n)
    return None


def all_texts(s: Subject) -> Iterator[str]:
    """Yield every text of the messages, including the text blocks in tool results."""
    for message in s.messages:
        yield from texts(message.get("content"))
    for _, _, block in s.blocks("tool_result"):
        if isinstance(block.get("content"), list):
            yield from texts(block.get("content"))


def text_empty(s: Subject) -> Violation | None:
    last = s.messages[-1] if s.messages else {}
    empty_prefill = last.get("role") == "assistant" and last.get("content") == ""
    count = sum(1 for text in all_texts(s) if not text)
    return Violation() if count > empty_prefill else None


def text_blank(s: Subject) -> Violation | None:
    message_texts = chain.from_iterable(texts(message.get("content")) for message in s.messages)
    return next((Violation() for text in message_texts if text and not text.strip()), None)


def system_text_empty(s: Subject) -> Violation | None:
    return next((Violation() for text in texts(s.body.get("system")) if not text), None)


def _paused(message: JsonObject) -> bool:
    """Whether an assistant message ends with the call or result of a server tool; clients may return such a message of a
    paused turn (`pause_turn`)."""
    kinds = [as_text(block.get("type")) for block in objects(message.get("content"))]
    if not kinds:
        return False
    return kinds[-1] in ("server_tool_use", "mcp_tool_use") or (
        kinds[-1] != "tool_result" and kinds[-1].endswith("_tool_result")
    )


def prefill(s: Subject) -> Violation | None:
    if s.dialect.prefill or s.role(len(s.messages) - 1) != "assistant" or _paused(s.messages[-1]):
        return None
    return Violation()


def trailing_space(s: Subject) -> Violation | None:
    if s.role(len(s.messages) - 1) != "assistant":
        return None
    last_texts = [*texts(s.messages[-1].get("content"))]
    return Violation() if last_texts and last_texts[-1] != last_texts[-1].rstrip() else None


def block_type(s: Subject) -> Violation | None:
    for n, m, block in s.blocks():
        if as_text(block.get("type")) not in BLOCKS:
            return Violation(n=n, m=m, x=as_text(block.get("type")))
    return None


def misplaced(role: str, *types: str) -> Callable[[Subject], Violation | None]:
    """Create a check that blocks of these types occur only in messages with the role."""

    def check(s: Subject) -> Violation | None:
        return next((Violation(n=n, x=as_text(b["type"])) for n, _, b in s.blocks(*types) if s.role(n) != role), None)

    return check


call_misplaced = misplaced("assistant", "tool_use")
thinking_misplaced = misplaced("assistant", *THOUGHTS)
result_misplaced = misplaced("user", "tool_result")


def call_id_pattern(s: Subject) -> Violation | None:
    for n, m, block in s.blocks("tool_use"):
        if not ID.fullmatch(as_text(block.get("id"))):
            return Violation(n=n, m=m)
    return None


def result_id_pattern(s: Subject) -> Violation | None:
    for n, m, block in s.blocks("tool_result"):
        if not ID.fullmatch(as_text(block.get("tool_use_id"))):
            return Violation(n=n, m=m)
    return None


def server_id_pattern(s: Subject) -> Violation | None:
    for n, m, block in s.blocks("server_tool_use"):
        if not SERVER_ID.fullmatch(as_text(block.get("id"))):
            return Violation(n=n, m=m)
    return None


def server_result(s: Subject) -> Violation | None:
    known: set[str] = set()
    for n, m, block in s.blocks():
        kind = as_text(block.get("type"))
        if kind == "server_tool_use":
            known.add(as_text(block.get("id")))
        elif kind.endswith("_tool_result") and not kind.startswith("mcp_"):
            ident = as_text(block.get("tool_use_id"))
            if ident not in known:
                return Violation(n=n, m=m, x=kind, id=ident)
    return None


def call_id_twice(s: Subject) -> Violation | None:
    ids: set[str] = set()
    for n, m, block in s.blocks("tool_use"):
        ident = as_text(block.get("id"))
        if ident in ids:
            return Violation(n=n, m=m)
        ids.add(ident)
    return None


def call_input(s: Subject) -> Violation | None:
    for n, m, block in s.blocks("tool_use"):
        if not isinstance(block.get("input"), dict):
            return Violation(n=n, m=m)
    return None


def call_name_empty(s: Subject) -> Violation | None:
    return next((Violation(n=n, m=m) for n, m, block in s.blocks("tool_use") if not as_text(block.get("name"))), None)


def call_name_long(s: Subject) -> Violation | None:
    for n, m, block in s.blocks("tool_use"):
        if len(as_text(block.get("name"))) > 200:
            return Violation(n=n, m=m)
    return None


def error_result_empty(s: Subject) -> Violation | None:
    for n, m, block in s.blocks("tool_result"):
        if block.get("is_error") is True and not block.get("content"):
            return Violation(n=n, m=m)
    return None


def _of_type(message: JsonObject, kind: str) -> list[JsonObject]:
    return [block for block in objects(message.get("content")) if block.get("type") == kind]


def _leading_results(message: JsonObject) -> list[str]:
    found: list[str] = []
    for block in objects(message.get("content")):
        if block.get("type") != "tool_result":
            break
        found.append(as_text(block.get("tool_use_id")))
    return found


def unanswered(s: Subject) -> Violation | None:
    for n, message in s.with_role("assistant"):
        answered = _leading_results(s.messages[n + 1]) if s.role(n + 1) == "user" else []
        requested = [as_text(block.get("id")) for block in _of_type(message, "tool_use")]
        missing = [ident for ident in requested if ident not in answered]
        if missing:
            return Violation(n=n, ids=", ".join(missing))
    return None


def unexpected_result(s: Subject) -> Violation | None:
    for n, m, block in s.blocks("tool_result"):
        before = s.messages[n - 1] if s.role(n - 1) == "assistant" else {}
        ident = as_text(block.get("tool_use_id"))
        if ident not in [as_text(use.get("id")) for use in _of_type(before, "tool_use")]:
            return Violation(n=n, m=m, id=ident)
    return None


def double_result(s: Subject) -> Violation | None:
    answered: set[tuple[int, str]] = set()
    for n, m, block in s.blocks("tool_result"):
        key = (n, as_text(block.get("tool_use_id")))
        if key in answered:
            return Violation(n=n, m=m, id=key[1])
        answered.add(key)
    return None


def tools_missing(s: Subject) -> Violation | None:
    used = next(s.blocks("tool_use", "tool_result"), None)
    return Violation() if used is not None and not s.tools else None


def own_tools(s: Subject) -> Iterator[tuple[int, JsonObject]]:
    """Yield positions and definitions of the client's own tools (the vendor's tools have other types)."""
    for n, tool in enumerate(s.tools):
        if as_text(tool.get("type")) in ("", "custom"):
            yield n, tool


def tool_name(s: Subject) -> Violation | None:
    for n, tool in own_tools(s):
        if not TOOL_NAME.fullmatch(as_text(tool.get("name"))):
            return Violation(n=n)
    return None


def tool_name_twice(s: Subject) -> Violation | None:
    named = [as_text(tool.get("name")) for tool in s.tools if "name" in tool]  # a toolset has none
    return Violation() if repeated(named) is not None else None


def tool_schema(s: Subject) -> Violation | None:
    return next((Violation(n=n) for n, tool in own_tools(s) if not isinstance(tool.get("input_schema"), dict)), None)


def tool_schema_type(s: Subject) -> Violation | None:
    for n, tool in own_tools(s):
        if as_object(tool.get("input_schema")).get("type") != "object":
            return Violation(n=n)
    return None


def format_open(s: Subject) -> Violation | None:
    wanted = as_object(as_object(s.body.get("output_config")).get("format"))
    schemas = strict_objects(wanted.get("schema")) if wanted.get("type") == "json_schema" else ()
    return next((Violation() for _, schema in schemas if schema.get("additionalProperties") is not False), None)


def choice_alone(s: Subject) -> Violation | None:
    return Violation() if s.body.get("tool_choice") is not None and not s.tools else None


def choice_unknown(s: Subject) -> Violation | None:
    name = as_text(as_object(s.body.get("tool_choice")).get("name"))
    return Violation(x=name) if name and name not in [as_text(tool.get("name")) for tool in s.tools] else None


def cache_marks(s: Subject) -> Iterator[tuple[str, JsonValue]]:
    """Yield the path and the mark of each object that can have a `cache_control`, in the order in which the vendor reads
    the request."""
    for n, tool in enumerate(s.tools):
        yield f"tools.{n}", tool.get("cache_control")
    for n, block in enumerate(objects(s.body.get("system"))):
        yield f"system.{n}", block.get("cache_control")
    for n, m, block in s.blocks():
        for k, inner in enumerate(objects(block.get("content"))):
            yield f"messages.{n}.content.{m}.content.{k}", inner.get("cache_control")
        yield f"messages.{n}.content.{m}", block.get("cache_control")
    yield "", s.body.get("cache_control")


def marks_many(s: Subject) -> Violation | None:
    count = sum(1 for _, mark in cache_marks(s) if mark is not None)
    return Violation(n=count) if count > MAX_MARKS else None


def marks_form(s: Subject) -> Violation | None:
    for path, mark in cache_marks(s):
        if mark is not None and as_object(mark).get("ttl", "5m") not in ("5m", "1h"):
            return Violation(path=path)
    return None


def marks_order(s: Subject) -> Violation | None:
    short = False
    for path, mark in cache_marks(s):
        if not isinstance(mark, dict) or not path:
            continue
        if mark.get("ttl") == "1h" and short:
            return Violation(path=path)
        short = short or mark.get("ttl", "5m") == "5m"
    return None


def marked_thinking(s: Subject) -> Violation | None:
    for n, m, block in s.blocks(*THOUGHTS):
        if block.get("cache_control") is not None:
            return Violation(n=n, m=m, x=as_text(block["type"]))
    return None


def _sources(s: Subject) -> Iterator[tuple[int, int, JsonObject]]:
    for n, m, block in s.blocks("image"):
        source = as_object(block.get("source"))
        if source.get("type") == "base64":
            yield n, m, source


def image_type(s: Subject) -> Violation | None:
    return next((Violation(n=n, m=m) for n, m, src in _sources(s) if src.get("media_type") not in IMAGES), None)


def image_size(s: Subject) -> Violation | None:
    for n, m, source in _sources(s):
        size = len(as_text(source.get("data"))) * 3 // 4  # base64: four characters for three bytes
        if size > MAX_IMAGE:
            return Violation(n=n, m=m, x=size, limit=MAX_IMAGE)
    return None


def prompt_long(s: Subject) -> Violation | None:
    limit = s.dialect.window
    return Violation(n=s.tokens, m=limit) if limit is not None and s.tokens > limit else None


def window(s: Subject) -> Violation | None:
    limit, requested = s.dialect.window, s.body.get("max_tokens")
    if limit is None or not isinstance(requested, int) or s.tokens + requested <= limit:
        return None
    return Violation(n=s.tokens, m=requested, limit=limit)
