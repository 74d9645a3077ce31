"""The checks for `rules_openai.tsv`. Each returns the values for the placeholders of its row's text, or None.

The column `about` of a row describes its check.
"""

import re
from collections.abc import Callable, Iterator

from agentflow.testing.wire.jsonish import JsonObject, as_list, as_object, as_text, kind_of
from agentflow.testing.wire.rules import Subject, Violation, repeated, strict_objects

ROLES = ("system", "assistant", "user", "function", "tool", "developer")
PARTS = ("text", "image_url", "input_audio", "refusal", "audio", "file")
NAME = re.compile(r"[a-zA-Z0-9_-]+")
AUTHOR = re.compile(r"[^\s<|\\/>]+")
MAX_NAME, MAX_ID, MAX_CALLS, MAX_TOOLS = 64, 40, 128, 128


def key_missing(s: Subject) -> Violation | None:
    key = s.headers.get("api-key", "") or s.headers.get("authorization", "").strip()  # api-key is Azure's header
    return Violation() if key in ("", "Bearer") else None


def not_json(s: Subject) -> Violation | None:
    return None if s.valid_json else Violation()


def no_model(s: Subject) -> Violation | None:
    return None if as_text(s.body.get("model")) else Violation()


def no_messages(s: Subject) -> Violation | None:
    return None if "messages" in s.body else Violation()


def messages_empty(s: Subject) -> Violation | None:
    return Violation() if not as_list(s.body.get("messages")) else None


def message_type(s: Subject) -> Violation | None:
    for n, message in enumerate(as_list(s.body.get("messages"))):
        if not isinstance(message, dict):
            return Violation(n=n, kind=kind_of(message))
    return None


def role(s: Subject) -> Violation | None:
    for n, message in enumerate(s.messages):
        if as_text(message.get("role")) not in ROLES:
            return Violation(n=n, x=as_text(message.get("role")))
    return None


def system_role(s: Subject) -> Violation | None:
    if s.dialect.system_role:
        return None
    return next((Violation(n=n) for n, _ in s.with_role("system")), None)


def content_missing(s: Subject) -> Violation | None:
    for n, message in s.with_role("system", "developer", "user", "tool"):
        if "content" not in message:
            return Violation(n=n)
    return None


def content_null(s: Subject) -> Violation | None:
    for n, message in enumerate(s.messages):
        calls = message.get("role") == "assistant" and ("tool_calls" in message or "function_call" in message)
        refused = message.get("role") == "assistant" and any(message.get(kind) for kind in ("refusal", "audio"))
        if message.get("content") is None and not calls and not refused and message.get("role") != "function":
            return Violation(n=n)
    return None


def content_type(s: Subject) -> Violation | None:
    for n, message in enumerate(s.messages):
        content = message.get("content")
        if content is not None and not isinstance(content, (str, list)):
            return Violation(n=n, kind=kind_of(content))
    return None


def content_list_empty(s: Subject) -> Violation | None:
    return next((Violation(n=n) for n, message in enumerate(s.messages) if message.get("content") == []), None)


def part_type(s: Subject) -> Violation | None:
    for n, m, part in s.blocks():
        if as_text(part.get("type")) not in PARTS:
            return Violation(n=n, m=m, x=as_text(part.get("type")))
    return None


def message_name(s: Subject) -> Violation | None:
    for n, message in enumerate(s.messages):
        name = message.get("name")
        if isinstance(name, str) and not AUTHOR.fullmatch(name):
            return Violation(n=n)
    return None


def calls_empty(s: Subject) -> Violation | None:
    return next((Violation(n=n) for n, message in s.with_role("assistant") if message.get("tool_calls") == []), None)


def calls_many(s: Subject) -> Violation | None:
    for n, message in s.with_role("assistant"):
        count = len(as_list(message.get("tool_calls")))
        if count > MAX_CALLS:
            return Violation(n=n, x=count)
    return None


def call_id_missing(s: Subject) -> Violation | None:
    return next((Violation(n=n, m=m) for n, m, call in s.calls() if not isinstance(call.get("id"), str)), None)


def call_id_long(s: Subject) -> Violation | None:
    for n, m, call in s.calls():
        if len(as_text(call.get("id"))) > MAX_ID:
            return Violation(n=n, m=m, x=len(as_text(call.get("id"))))
    return None


def call_id_twice(s: Subject) -> Violation | None:
    for n, message in s.with_role("assistant"):
        ids = [as_text(as_object(call).get("id")) for call in as_list(message.get("tool_calls"))]
        duplicate = repeated(ids)
        if duplicate is not None:
            return Violation(n=n, id=duplicate)
    return None


def call_type(s: Subject) -> Violation | None:
    return next((Violation(n=n, m=m) for n, m, call in s.calls() if not as_text(call.get("type"))), None)


def functions_called(s: Subject) -> Iterator[tuple[int, int, JsonObject]]:
    """Yield positions and functions of the calls in all assistant messages."""
    for n, m, call in s.calls():
        if call.get("type") == "function":
            yield n, m, as_object(call.get("function"))


def call_name(test: Callable[[str], bool]) -> Callable[[Subject], Violation | None]:
    def check(s: Subject) -> Violation | None:
        for n, m, function in functions_called(s):
            name = as_text(function.get("name"))
            if test(name):
                return Violation(n=n, m=m, x=len(name))
        return None

    return check


def tool_name(test: Callable[[str], bool]) -> Callable[[Subject], Violation | None]:
    def check(s: Subject) -> Violation | None:
        for n, function in s.functions():
            name = as_text(function.get("name"))
            if test(name):
                return Violation(n=n, x=len(name))
        return None

    return check


def is_bad_name(name: str) -> bool:
    return bool(name) and NAME.fullmatch(name) is None


def is_long_name(name: str) -> bool:
    return len(name) > MAX_NAME


def is_empty(name: str) -> bool:
    return not name


call_name_empty, tool_name_empty = call_name(is_empty), tool_name(is_empty)
call_name_pattern, tool_name_pattern = call_name(is_bad_name), tool_name(is_bad_name)
call_name_long, tool_name_long = call_name(is_long_name), tool_name(is_long_name)


def arguments_missing(s: Subject) -> Violation | None:
    return next((Violation(n=n, m=m) for n, m, function in functions_called(s) if "arguments" not in function), None)


def arguments_type(s: Subject) -> Violation | None:
    for n, m, function in functions_called(s):
        value = function.get("arguments")
        if not isinstance(value, str):
            return Violation(n=n, m=m, kind=kind_of(value))
    return None


def call_ids(message: JsonObject) -> list[str]:
    return [as_text(as_object(call).get("id")) for call in as_list(message.get("tool_calls"))]


def calling_message(s: Subject, index: int) -> int | None:
    """Return the position of the assistant message with the calls to which a tool message belongs, or None.

    There can be other tool messages in between.
    """
    before = index - 1
    while before >= 0 and s.role(before) == "tool":
        before -= 1
    return before if s.role(before) == "assistant" and s.messages[before].get("tool_calls") else None


def answer_id_missing(s: Subject) -> Violation | None:
    return next((Violation(n=n) for n, m in s.with_role("tool") if not isinstance(m.get("tool_call_id"), str)), None)


def orphan(s: Subject) -> Violation | None:
    return next((Violation(n=n) for n, _ in s.with_role("tool") if calling_message(s, n) is None), None)


def unknown_answer(s: Subject) -> Violation | None:
    for n, message in s.with_role("tool"):
        position = calling_message(s, n)
        ident = as_text(message.get("tool_call_id"))
        if position is not None and ident not in call_ids(s.messages[position]):
            return Violation(n=n, id=ident)
    return None


def double_answer(s: Subject) -> Violation | None:
    first: dict[tuple[int, str], int] = {}
    for n, message in s.with_role("tool"):
        key = (calling_message(s, n) or 0, as_text(message.get("tool_call_id")))
        if key in first:
            return Violation(n=first[key], m=n, id=key[1])
        first[key] = n
    return None


def unanswered(s: Subject) -> Violation | None:
    for n, message in s.with_role("assistant"):
        end = n + 1
        while s.role(end) == "tool":
            end += 1
        answered = {as_text(answer.get("tool_call_id")) for answer in s.messages[n + 1 : end]}
        missing = [ident for ident in call_ids(message) if ident not in answered]
        if missing:
            return Violation(n=end, ids=", ".join(missing))
    return None


def tools_empty(s: Subject) -> Violation | None:
    return Violation() if s.body.get("tools") == [] else None


def tools_many(s: Subject) -> Violation | None:
    return Violation(x=len(s.tools)) if len(s.tools) > MAX_TOOLS else None


def description(s: Subject) -> Violation | None:
    limit = s.dialect.max_description
    for n, function in s.functions():
        size = len(as_text(function.get("description")))
        if limit is not None and size > limit:
            return Violation(n=n, limit=limit, x=size)
    return None


def parameters(s: Subject) -> Violation | None:
    for n, function in s.functions():
        value = function.get("parameters", {})
        if not isinstance(value, dict):
            return Violation(n=n, kind=kind_of(value))
    return None


def strict(violates: Callable[[JsonObject], bool]) -> Callable[[Subject], Violation | None]:
    def check(s: Subject) -> Violation | None:
        for _, function in s.functions():
            if function.get("strict") is not True:
                continue
            for path, schema in strict_objects(function.get("parameters")):
                if violates(schema):
                    return Violation(x=as_text(function.get("name")), path=repr(path))
        return None

    return check


def format_strict(violates: Callable[[JsonObject], bool]) -> Callable[[Subject], Violation | None]:
    def check(s: Subject) -> Violation | None:
        wanted = as_object(as_object(s.body.get("response_format")).get("json_schema"))
        if wanted.get("strict") is not True:
            return None
        for path, schema in strict_objects(wanted.get("schema")):
            if violates(schema):
                return Violation(x=as_text(wanted.get("name")), path=repr(path))
        return None

    return check


def is_open(schema: JsonObject) -> bool:
    return schema.get("additionalProperties") is not False


def is_optional(schema: JsonObject) -> bool:
    return set(as_object(schema.get("properties"))) - {as_text(key) for key in as_list(schema.get("required"))} != set()


strict_open, strict_optional = strict(is_open), strict(is_optional)
format_open, format_optional = format_strict(is_open), format_strict(is_optional)


def choice_alone(s: Subject) -> Violation | None:
    return Violation() if s.body.get("tool_choice") not in (None, "none") and "tools" not in s.body else None


def parallel_alone(s: Subject) -> Violation | None:
    return Violation() if s.body.get("parallel_tool_calls") is not None and "tools" not in s.body else None


def choice_unknown(s: Subject) -> Violation | None:
    name = as_text(as_object(as_object(s.body.get("tool_choice")).get("function")).get("name"))
    if name and name not in [as_text(function.get("name")) for _, function in s.functions()]:
        return Violation(x=name)
    return None


def options_alone(s: Subject) -> Violation | None:
    return Violation() if s.body.get("stream_options") is not None and s.body.get("stream") is not True else None


def max_tokens(s: Subject) -> Violation | None:
    return Violation() if not s.dialect.max_tokens and s.body.get("max_tokens") is not None else None


def temperature(s: Subject) -> Violation | None:
    value = s.body.get("temperature")
    return Violation(x=str(value)) if not s.dialect.sampling and value not in (None, 1) else None


def too_large(s: Subject) -> Violation | None:
    return Violation() if s.size > s.dialect.max_body else None


def ceiling(s: Subject) -> Violation | None:
    requested, limit = s.body.get("max_completion_tokens", s.body.get("max_tokens")), s.dialect.max_output
    if isinstance(requested, int) and limit is not None and requested > limit:
        return Violation(n=requested, m=limit)
    return None


def window(s: Subject) -> Violation | None:
    limit = s.dialect.window
    return Violation(n=limit, m=s.tokens) if limit is not None and s.tokens > limit else None
