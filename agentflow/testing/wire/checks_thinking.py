"""The checks for Anthropic's rules on thinking. Each returns the values for the placeholders of its row's text, or None.

A tool loop is open if the request ends with tool results. Its head is the first assistant message after the last user message
without tool results; for the vendor, everything from the head on is one assistant turn.
"""

from agentflow.testing.wire.jsonish import JsonObject, JsonValue, as_object, as_text, objects
from agentflow.testing.wire.rules import Subject, Violation
from agentflow.testing.wire.signing import BlockSeal, prefix_of

THOUGHTS = ("thinking", "redacted_thinking")
MIN_BUDGET = 1024
INTERLEAVED = "interleaved-thinking"


def setting(s: Subject) -> str:
    """Return the request's `thinking.type`, or an empty string."""
    return as_text(as_object(s.body.get("thinking")).get("type"))


def is_on(s: Subject) -> bool:
    """Whether thinking is enabled in any form."""
    return setting(s) in ("enabled", "adaptive", "between_tools")


def _has_result(message: JsonObject) -> bool:
    return any(block.get("type") == "tool_result" for block in objects(message.get("content")))


def loop_head(s: Subject) -> int | None:
    """Return the position of the open tool loop's first assistant message, or None."""
    last = len(s.messages) - 1
    if s.role(last) != "user" or not _has_result(s.messages[last]):
        return None
    head = last
    while head >= 0 and not (s.role(head) == "user" and not _has_result(s.messages[head])):
        head -= 1
    return next((n for n in range(head + 1, last) if s.role(n) == "assistant"), None)


def latest(s: Subject) -> int | None:
    """Return the position of the last assistant message, or None."""
    return max((n for n, _ in s.with_role("assistant")), default=None)


def setting_unknown(s: Subject) -> Violation | None:
    if s.body.get("thinking") is None or is_on(s) or setting(s) == "disabled":
        return None
    return Violation(x=setting(s))


def manual(s: Subject) -> Violation | None:
    return Violation() if setting(s) == "enabled" and not s.dialect.manual_thinking else None


def _budget(s: Subject) -> JsonValue:
    return as_object(s.body.get("thinking")).get("budget_tokens")


def budget_missing(s: Subject) -> Violation | None:
    return Violation() if setting(s) == "enabled" and not isinstance(_budget(s), int) else None


def budget_small(s: Subject) -> Violation | None:
    value = _budget(s)
    return Violation() if setting(s) == "enabled" and isinstance(value, int) and value < MIN_BUDGET else None


def budget_large(s: Subject) -> Violation | None:
    value, limit = _budget(s), s.body.get("max_tokens")
    if setting(s) != "enabled" or INTERLEAVED in s.headers.get("anthropic-beta", ""):
        return None
    return Violation() if isinstance(value, int) and isinstance(limit, int) and value >= limit else None


def forced_choice(s: Subject) -> Violation | None:
    kind = as_text(as_object(s.body.get("tool_choice")).get("type"))
    return Violation() if setting(s) == "enabled" and kind in ("any", "tool") else None


def temperature_withdrawn(s: Subject) -> Violation | None:
    return Violation() if not s.dialect.sampling and s.body.get("temperature") is not None else None


def temperature_range(s: Subject) -> Violation | None:
    value = s.body.get("temperature")
    return Violation() if isinstance(value, (int, float)) and not 0 <= value <= 1 else None


def temperature(s: Subject) -> Violation | None:
    return Violation() if is_on(s) and s.body.get("temperature") not in (None, 1) else None


def top_k(s: Subject) -> Violation | None:
    return Violation() if is_on(s) and s.body.get("top_k") is not None else None


def top_p(s: Subject) -> Violation | None:
    value = s.body.get("top_p")
    return Violation() if is_on(s) and isinstance(value, (int, float)) and value < 0.95 else None


def off_in_final(s: Subject) -> Violation | None:
    """Check for thinking in a final assistant message or in the open loop while thinking is disabled."""
    last = len(s.messages) - 1
    first = last if s.role(last) == "assistant" else loop_head(s)
    if is_on(s) or first is None:
        return None
    return next((Violation(n=n, m=m, x=as_text(b["type"])) for n, m, b in s.blocks(*THOUGHTS) if n >= first), None)


def head_missing(s: Subject) -> Violation | None:
    last = len(s.messages) - 1
    head = last if s.role(last) == "assistant" else loop_head(s)
    if setting(s) != "enabled" or head is None:
        return None
    blocks = objects(s.messages[head].get("content"))
    kind = as_text(blocks[0].get("type")) if blocks else "text"
    calls = [as_text(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
    if kind in THOUGHTS or (calls and s.without_thinking.issuperset(calls)):
        return None
    return Violation(n=head, x=kind)


def signature_missing(s: Subject) -> Violation | None:
    for n, m, block in s.blocks("thinking"):
        if not isinstance(block.get("signature"), str):
            return Violation(n=n, m=m)
    return None


def _seal(s: Subject, block: JsonObject) -> BlockSeal | None:
    return s.signer.check(as_text(block.get("signature", block.get("data"))))


def modified(s: Subject) -> Violation | None:
    """Check for changed signed thinking in the latest assistant message."""
    n = latest(s)
    blocks = [] if n is None else objects(s.messages[n].get("content"))
    thoughts = [(m, block) for m, block in enumerate(blocks) if block.get("type") in THOUGHTS]
    for expected, (m, block) in enumerate(thoughts):
        seal = _seal(s, block)
        if seal is None or n is None:
            continue
        same = block["type"] == "redacted_thinking" or seal.covers(as_text(block.get("thinking")))
        if not same or seal.index != expected or seal.total != len(thoughts):
            return Violation(n=n, m=m)
    return None


def signature(s: Subject) -> Violation | None:
    for n, m, block in s.blocks("thinking"):
        seal = _seal(s, block)
        if seal is None or not seal.covers(as_text(block.get("thinking"))):
            return Violation(n=n, m=m)
    return None


def bound_elsewhere(s: Subject) -> Violation | None:
    """Check for thinking after a changed prefix, unless the request asks the vendor to drop such thinking."""
    binding = as_object(as_object(s.body.get("thinking")).get("block_binding"))
    if not s.dialect.binds or binding.get("prefix_mismatch_behavior") == "drop_block":
        return None
    for n, m, block in s.blocks(*THOUGHTS):
        seal = _seal(s, block)
        if seal is not None and seal.prefix and seal.prefix != prefix_of(s.body, n):
            return Violation(n=n, m=m)
    return None


def redacted(s: Subject) -> Violation | None:
    return next((Violation(n=n, m=m) for n, m, b in s.blocks("redacted_thinking") if _seal(s, b) is None), None)
