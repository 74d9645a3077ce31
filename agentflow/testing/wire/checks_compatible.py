"""The checks for `rules_compatible.tsv`: vendors that use OpenAI's wire with their own rules (Mistral, DeepSeek, strict chat
templates).

Each row belongs to one dialect family and precedes OpenAI's rows, so that the family's own error is the answer.
"""

import re
from collections.abc import Callable, Iterator, Sequence

from agentflow.testing.wire.checks_openai import call_ids, calling_message
from agentflow.testing.wire.jsonish import JsonObject, as_object, as_text, objects, parse
from agentflow.testing.wire.rules import Subject, Violation, repeated

MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")
MISTRAL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def neighbours(s: Subject) -> Iterator[tuple[int, str, str]]:
    """Yield the position and the roles of each message and the previous one."""
    return ((n, s.role(n - 1), s.role(n)) for n in range(1, len(s.messages)))


def unexpected_role(s: Subject) -> Violation | None:
    refused = {("tool", "user"), ("user", "tool"), ("system", "tool"), ("assistant", "system"), ("tool", "system")}
    return next(
        (Violation(x=role, before=before) for _, before, role in neighbours(s) if (before, role) in refused), None
    )


def results_of(s: Subject, index: int) -> list[str]:
    """Return the ids in the results of the assistant message at a position."""
    return [as_text(m.get("tool_call_id")) for n, m in s.with_role("tool") if calling_message(s, n) == index]


def counts_differ(s: Subject) -> Violation | None:
    for n, message in s.with_role("assistant"):
        if len(call_ids(message)) != len(results_of(s, n)):
            return Violation()
    return None


def result(test: Callable[[Sequence[str], Sequence[str]], str | None]) -> Callable[[Subject], Violation | None]:
    """Create a check that calls a test with the ids of a message's calls and of their results; it returns a wrong id."""

    def check(s: Subject) -> Violation | None:
        for n, message in s.with_role("assistant"):
            found = test(call_ids(message), results_of(s, n))
            if found is not None:
                return Violation(id=found)
        return None

    return check


def unknown_id(calls: Sequence[str], results: Sequence[str]) -> str | None:
    return next((ident for ident in results if ident not in calls), None)


unknown_result = result(unknown_id)
double_result = result(lambda _, results: repeated(results))


def mistral_id(s: Subject) -> Violation | None:
    for _, _, call in s.calls():
        ident = as_text(call.get("id"))
        if not MISTRAL_ID.fullmatch(ident):
            return Violation(id=ident)
    return None


def mistral_name(s: Subject) -> Violation | None:
    called = [as_text(as_object(call.get("function")).get("name")) for _, _, call in s.calls()]
    defined = [as_text(function.get("name")) for _, function in s.functions()]
    return next((Violation(x=name) for name in [*defined, *called] if not MISTRAL_NAME.fullmatch(name)), None)


def last_role(s: Subject) -> Violation | None:
    last = s.messages[-1] if s.messages else {}
    ended = last.get("role") in ("user", "tool") or (last.get("role") == "assistant" and last.get("prefix") is True)
    return None if ended or not last else Violation(x=as_text(last.get("role")))


def content_or_calls(s: Subject) -> Violation | None:
    for _, message in s.with_role("assistant"):
        if not message.get("content") and not message.get("tool_calls"):
            return Violation()
    return None


def reasoning_missing(s: Subject) -> Violation | None:
    for _, message in s.with_role("assistant"):
        ids = call_ids(message)
        if ids and not as_text(message.get("reasoning_content")) and not s.without_thinking.issuperset(ids):
            return Violation()
    return None


def deepseek_orphan(s: Subject) -> Violation | None:
    return next((Violation() for n, _ in s.with_role("tool") if calling_message(s, n) is None), None)


def deepseek_unanswered(s: Subject) -> Violation | None:
    for n, message in s.with_role("assistant"):
        if set(call_ids(message)) - set(results_of(s, n)):
            return Violation()
    return None


def late_system(s: Subject) -> Violation | None:
    return next((Violation() for n, _ in s.with_role("system") if n), None)


def developer(s: Subject) -> Violation | None:
    return next((Violation() for _ in s.with_role("developer")), None)


def not_alternating(s: Subject) -> Violation | None:
    wanted = "user"
    for _, message in s.with_role("user", "assistant"):
        if message.get("role") == "assistant" and message.get("tool_calls"):
            continue
        if message.get("role") != wanted:
            return Violation()
        wanted = "assistant" if wanted == "user" else "user"
    return None


def two_assistants(s: Subject) -> Violation | None:
    last = len(s.messages) - 1
    return Violation() if s.role(last) == "assistant" and s.role(last - 1) == "assistant" else None


def continued_call(s: Subject) -> Violation | None:
    last: JsonObject = s.messages[-1] if s.messages else {}
    return Violation() if last.get("role") == "assistant" and last.get("tool_calls") else None


def arguments_not_json(s: Subject) -> Violation | None:
    for n, m, call in s.calls():
        try:
            parse(as_text(as_object(call.get("function")).get("arguments")))
        except ValueError:
            return Violation(n=n, m=m)
    return None


def no_content(s: Subject) -> Violation | None:
    return next(
        (Violation() for m in objects(s.body.get("messages")) if m.get("role") != "assistant" and "content" not in m),
        None,
    )
