"""What those refuse who speak OpenAI's wire with rules of their own: Mistral, DeepSeek, strict chat templates.

Each row belongs to one dialect family and stands before OpenAI's rows, so that the family's own words are answered.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from agentflow.testing.wire.checks_openai import asker, call_ids
from agentflow.testing.wire.jsonish import JsonObject, as_object, as_text, objects, parse
from agentflow.testing.wire.rules import Family, Mark, Rule, Subject, Violation, repeated

MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")
MISTRAL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def _neighbours(s: Subject) -> Iterator[tuple[int, str, str]]:
    """Place and roles of each message and the one before it."""
    return ((n, s.role(n - 1), s.role(n)) for n in range(1, len(s.messages)))


def _unexpected_role(s: Subject) -> Violation | None:
    refused = {("tool", "user"), ("user", "tool"), ("system", "tool"), ("assistant", "system"), ("tool", "system")}
    return next(
        (Violation(x=role, before=before) for _, before, role in _neighbours(s) if (before, role) in refused), None
    )


def _results_of(s: Subject, place: int) -> list[str]:
    return [as_text(m.get("tool_call_id")) for n, m in s.with_role("tool") if asker(s, n) == place]


def _counts_differ(s: Subject) -> Violation | None:
    for n, message in s.with_role("assistant"):
        if len(call_ids(message)) != len(_results_of(s, n)):
            return Violation()
    return None


def _result(test: Callable[[Sequence[str], Sequence[str]], str | None]) -> Callable[[Subject], Violation | None]:
    def check(s: Subject) -> Violation | None:
        for n, message in s.with_role("assistant"):
            found = test(call_ids(message), _results_of(s, n))
            if found is not None:
                return Violation(id=found)
        return None

    return check


def _unasked(asked: Sequence[str], given: Sequence[str]) -> str | None:
    return next((ident for ident in given if ident not in asked), None)


def _nine(s: Subject) -> Violation | None:
    for _, _, call in s.calls():
        ident = as_text(call.get("id"))
        if not MISTRAL_ID.fullmatch(ident):
            return Violation(id=ident)
    return None


def _mistral_name(s: Subject) -> Violation | None:
    called = [as_text(as_object(call.get("function")).get("name")) for _, _, call in s.calls()]
    defined = [as_text(function.get("name")) for _, function in s.functions()]
    return next((Violation(x=name) for name in [*defined, *called] if not MISTRAL_NAME.fullmatch(name)), None)


def _last_role(s: Subject) -> Violation | None:
    last = s.messages[-1] if s.messages else {}
    ended = last.get("role") in ("user", "tool") or (last.get("role") == "assistant" and last.get("prefix") is True)
    return None if ended or not last else Violation(x=as_text(last.get("role")))


def _neither(s: Subject) -> Violation | None:
    for _, message in s.with_role("assistant"):
        if not message.get("content") and not message.get("tool_calls"):
            return Violation()
    return None


def _reasoning_missing(s: Subject) -> Violation | None:
    for _, message in s.with_role("assistant"):
        ids = call_ids(message)
        if ids and not as_text(message.get("reasoning_content")) and not s.thoughtless.issuperset(ids):
            return Violation()
    return None


def _deepseek_orphan(s: Subject) -> Violation | None:
    return next((Violation() for n, _ in s.with_role("tool") if asker(s, n) is None), None)


def _deepseek_unanswered(s: Subject) -> Violation | None:
    for n, message in s.with_role("assistant"):
        if set(call_ids(message)) - set(_results_of(s, n)):
            return Violation()
    return None


def _late_system(s: Subject) -> Violation | None:
    return next((Violation() for n, _ in s.with_role("system") if n), None)


def _developer(s: Subject) -> Violation | None:
    return next((Violation() for _ in s.with_role("developer")), None)


def _not_alternating(s: Subject) -> Violation | None:
    wanted = "user"
    for _, message in s.with_role("user", "assistant"):
        if message.get("role") == "assistant" and message.get("tool_calls"):
            continue
        if message.get("role") != wanted:
            return Violation()
        wanted = "assistant" if wanted == "user" else "user"
    return None


def _two_assistants(s: Subject) -> Violation | None:
    last = len(s.messages) - 1
    return Violation() if s.role(last) == "assistant" and s.role(last - 1) == "assistant" else None


def _continued_call(s: Subject) -> Violation | None:
    last: JsonObject = s.messages[-1] if s.messages else {}
    return Violation() if last.get("role") == "assistant" and last.get("tool_calls") else None


def _arguments_not_json(s: Subject) -> Violation | None:
    for n, m, call in s.calls():
        try:
            parse(as_text(as_object(call.get("function")).get("arguments")))
        except ValueError:
            return Violation(n=n, m=m)
    return None


def _no_content(s: Subject) -> Violation | None:
    return next(
        (Violation() for m in objects(s.body.get("messages")) if m.get("role") != "assistant" and "content" not in m),
        None,
    )


def _row(
    family: Family,
    name: str,
    about: str,
    check: Callable[[Subject], Violation | None],
    text: str,
    source: str = "common knowledge",
    mark: Mark = "B",
    *,
    kind: str = "invalid_request_error",
    code: str | None = None,
) -> Rule:
    return Rule(
        id=f"openai.{family}-{name}",
        wire="openai",
        family=family,
        about=about,
        check=check,
        text=text,
        source=source,
        mark=mark,
        type=kind,
        code=code,
    )


_MC = "mistralai/mistral-common validator"
_LC = "llama.cpp server source"
_ORDER = "invalid_request_message_order"

MISTRAL_RULES: tuple[Rule, ...] = (
    _row(
        "mistral",
        "role-order",
        "has no user or system right after a tool, and no tool after them",
        _unexpected_role,
        "Unexpected role '{x}' after role '{before}'",
        "pipecat-ai/pipecat-flows#178",
        "I",
        kind=_ORDER,
        code="3230",
    ),
    _row(
        "mistral",
        "unknown-result",
        "answers only calls that were asked for",
        _result(_unasked),
        "Unexpected tool call id {id} in tool results",
        _MC,
        "D",
        kind=_ORDER,
        code="3230",
    ),
    _row(
        "mistral",
        "double-result",
        "answers each call once",
        _result(lambda _, given: repeated(given)),
        "Duplicate tool call id {id} in tool results",
        _MC,
        "D",
        kind=_ORDER,
        code="3230",
    ),
    _row(
        "mistral",
        "counts",
        "has as many results as calls",
        _counts_differ,
        "Not the same number of function calls and responses",
        "mistralai/client-ts#106",
        "I",
        kind=_ORDER,
        code="3230",
    ),
    _row(
        "mistral",
        "id",
        "has call ids of 9 letters or digits",
        _nine,
        "Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9.",
        "langchain-ai/langchain#24668",
        "I",
        kind="invalid_function_call",
        code="3280",
    ),
    _row(
        "mistral",
        "name",
        "has function names of 1 to 64 letters, digits, underscore and dash",
        _mistral_name,
        "Function name was {x} but must be a-z, A-Z, 0-9, or contain underscores and dashes, with a maximum length of "
        "64.",
        _MC,
        "D",
        kind="invalid_function_call",
        code="3280",
    ),
    _row(
        "mistral",
        "last-role",
        "ends with user or tool",
        _last_role,
        "Expected last role User or Tool (or Assistant with prefix True) for serving but got {x}",
        "0xPlaygrounds/rig#1130",
        "I",
        kind=_ORDER,
        code="3230",
    ),
    _row(
        "mistral",
        "assistant-empty",
        "has content or calls in every assistant message",
        _neither,
        "Assistant message must have either content or tool_calls, but not both.",
        _MC,
        "D",
        kind="invalid_request_assistant_message",
        code="3240",
    ),
)

DEEPSEEK_RULES: tuple[Rule, ...] = (
    _row(
        "deepseek",
        "orphan",
        "has tool messages only behind calls",
        _deepseek_orphan,
        "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
        "FoundationAgents/OpenManus#23",
        "I",
        code="invalid_request_error",
    ),
    _row(
        "deepseek",
        "unanswered",
        "answers every call",
        _deepseek_unanswered,
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        "(insufficient tool messages following tool_calls message)",
        "langgenius/dify#32222",
        "I",
        code="invalid_request_error",
    ),
    _row(
        "deepseek",
        "reasoning",
        "gives reasoning_content back with every message that called tools",
        _reasoning_missing,
        "The `reasoning_content` in the thinking mode must be passed back to the API.",
        "api-docs.deepseek.com guides/thinking_mode",
        "D",
        code="invalid_request_error",
    ),
)

TEMPLATE_RULES: tuple[Rule, ...] = (
    _row(
        "template",
        "content",
        "has the key content on every message that is not the assistant's",
        _no_content,
        "All non-assistant messages must contain 'content'",
        _LC,
        "D",
    ),
    _row(
        "template",
        "assistant-empty",
        "has content or calls in every assistant message",
        _neither,
        "Assistant message must contain either 'content' or 'tool_calls'!",
        _LC,
        "D",
    ),
    _row(
        "template",
        "system-first",
        "has one system message, at the start",
        _late_system,
        "System message must be at the beginning.",
        "vllm-project/vllm#41114",
        "I",
        kind="BadRequestError",
    ),
    _row(
        "template",
        "developer",
        "has no developer message",
        _developer,
        "Only user, assistant and tool roles are supported, got developer",
        "anomalyco/opencode#5034 (for system)",
        kind="BadRequestError",
    ),
    _row(
        "template",
        "two-assistants",
        "does not end with two assistant messages",
        _two_assistants,
        "Cannot have 2 or more assistant messages at the end of the list.",
        _LC,
        "D",
    ),
    _row(
        "template",
        "continued-call",
        "does not end with calls",
        _continued_call,
        "Cannot continue an assistant message that contains tool calls",
        "quoted by public code",
    ),
    _row(
        "template",
        "alternate",
        "alternates user and assistant, calls and results aside",
        _not_alternating,
        "After the optional system message, conversation roles must alternate user and assistant roles except for tool "
        "calls and results.",
        "eclipse-theia/theia#17104",
        "I",
        kind="BadRequestError",
    ),
    _row(
        "template",
        "arguments",
        "has arguments that are JSON, because the template parses them",
        _arguments_not_json,
        "Failed to parse the arguments of messages[{n}].tool_calls[{m}] as JSON",
        kind="BadRequestError",
    ),
)

COMPATIBLE_RULES = MISTRAL_RULES + DEEPSEEK_RULES + TEMPLATE_RULES
