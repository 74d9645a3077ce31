"""The laws, as checks of observed runs. They follow the contract and the rules of providers, not the code."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from hashlib import sha256
from typing import Any, ParamSpec, TypeVar

from laws_harness import HANGS, Bang, Seen, World
from laws_programs import Program

from agentflow.errors import CallTimeoutError
from agentflow.loop.history import fold_events, fold_facts
from agentflow.models.adapter import PreparedRequest
from agentflow.models.conversion import Conversation
from agentflow.models.options_out import Thinking
from agentflow.models.profiles import PROFILES
from agentflow.models.responses_out import over_responses, responses_body
from agentflow.models.wire_names import wire_name
from agentflow.testing.wire import Dialect
from agentflow.testing.wire.rules import Subject, first_refusal
from agentflow.testing.wire.wires import ANTHROPIC, OPENAI, RESPONSES
from agentflow.vocabulary.chunks import fold
from agentflow.vocabulary.events import (
    CallEnded,
    Error,
    Event,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
    ReasoningChunk,
)
from agentflow.vocabulary.messages import DataBlock, Msg, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock

ID = re.compile(r"[a-zA-Z0-9_-]{1,40}\Z")
P = ParamSpec("P")
R = TypeVar("R")
HELD: Counter[str] = Counter()
"""How often each law was looked at; for who wants to tell of it."""
KEYS = {"authorization": "Bearer k", "x-api-key": "k", "anthropic-version": "2023-06-01"}


def law(check: Callable[P, R]) -> Callable[P, R]:
    """Counts how often a law is checked."""

    @wraps(check)
    def counted(*given: P.args, **named: P.kwargs) -> R:
        HELD[check.__name__] += 1
        return check(*given, **named)

    return counted


# ---- L5: legal histories and requests


def check_pairs(messages: Sequence[Msg]) -> None:
    """Every call is answered once, directly after its message, in call order. Ids are unique and valid for all wires."""
    seen: set[str] = set()
    for n, msg in enumerate(messages):
        assert msg.content, f"message {n} is empty"
        uses = [b.id for b in msg.content if isinstance(b, ToolUseBlock)]
        results = [b.tool_use_id for b in msg.content if isinstance(b, ToolResultBlock)]
        assert not uses or msg.role == "assistant", f"message {n} ({msg.role}) holds calls"
        assert bool(results) == (msg.role == "tool"), f"message {n} ({msg.role}) holds results {results}"
        for one in uses:
            assert ID.match(one), f"message {n}: id {one!r} is refused"
            assert one not in seen, f"message {n}: id {one!r} stood before"
            seen.add(one)
        if uses:
            assert n + 1 < len(messages), f"message {n}: calls {uses} have no answer"
            after = messages[n + 1]
            assert after.role == "tool", f"message {n + 1} ({after.role}) stands where answers to {uses} belong"
            assert [r.tool_use_id for r in after.tool_results] == uses, f"message {n + 1} does not answer {uses}"
        if results:
            assert n > 0, "the first message is a result"
            assert messages[n - 1].tool_uses, f"message {n} answers nothing"


@law
def check_history(messages: Sequence[Msg], open_round: bool = False) -> None:
    """The history of a session between calls is legal."""
    if open_round:
        assert messages[-1].tool_uses, "a round is open and the last message asks for nothing"
        messages = messages[:-1]
    check_pairs(messages)
    for n, msg in enumerate(messages):
        assert msg.role in ("user", "assistant", "tool"), f"message {n} is stored as {msg.role}"
        if msg.role == "assistant":
            blank = all(isinstance(b, TextBlock) and not b.text.strip() for b in msg.content)
            assert not blank, f"message {n} of the assistant is blank"


@law
def check_request(messages: Sequence[Msg]) -> None:
    """A request to a model is legal."""
    roles = [m.role for m in messages]
    spoken = [r for r in roles if r != "system"]
    assert spoken, "nothing is asked"
    assert "system" not in roles[len(roles) - len(spoken) :], f"a late system message: {roles}"
    assert spoken[0] == "user", f"the request starts with {spoken[0]}"
    assert spoken[-1] in ("user", "tool"), f"the request ends with {spoken[-1]}"
    check_pairs([m for m in messages if m.role != "system"])
    for msg in messages:
        for text in (msg.text, *[r.text for r in msg.tool_results]):
            assert "raised by hook" not in text, f"the model reads of a hook's failure: {text}"
            assert "while this was reported" not in text, f"the model reads of a hook's failure: {text}"


TAKEN: set[tuple[str, str, bytes]] = set()
"""Requests that a wire has taken: a job that dies at every point asks the same ones again and again."""


@law
def check_wires(messages: Sequence[Msg], tools: Sequence[Any]) -> None:
    """The strict servers take the request."""
    for family, dialect in (
        ("openai", Dialect()),
        ("mistral", Dialect.mistral()),
        ("compatible", Dialect.template()),
        ("deepseek", Dialect.deepseek()),
    ):
        made = Conversation("m", PROFILES[family]).convert(messages)
        body: Any = {"model": "m", "messages": made, **_openai_tools(tools)}
        _refused(OPENAI, Subject(wire="openai", body=body, headers=KEYS, dialect=dialect))
    made = Conversation("m", over_responses(PROFILES["openai"])).convert(messages)
    asked = PreparedRequest(made, _openai_tools(tools), Thinking({}), None, {})
    body = responses_body("m", asked, {}, {}, reasons=True)
    _refused(RESPONSES, Subject(wire="responses", body=body, headers=KEYS))
    body = anthropic_body(messages, tools)
    _refused(ANTHROPIC, Subject(wire="anthropic", body=body, headers=KEYS))


def _refused(wire: Any, subject: Subject) -> None:
    asked = (wire.name, subject.dialect.name, sha256(json.dumps(subject.body).encode()).digest())
    if asked in TAKEN:
        return
    refusal = first_refusal(wire.rules, subject)
    assert refusal is None, f"{wire.name} ({subject.dialect.name}): {refusal}\n{subject.body}"
    TAKEN.add(asked)


def _openai_tools(tools: Sequence[Any]) -> dict[str, Any]:
    if not tools:
        return {}
    functions = [{"name": t.name, "description": t.description, "parameters": dict(t.parameters)} for t in tools]
    return {"tools": [{"type": "function", "function": f} for f in functions]}


def anthropic_body(messages: Sequence[Msg], tools: Sequence[Any]) -> Any:
    """The request in Anthropic's form, written by hand: neighbours of one role are merged, results come first."""
    system = "\n".join(m.text for m in messages if m.role == "system")
    turns: list[dict[str, Any]] = []
    for msg in messages:
        if msg.role == "system":
            continue
        role = "assistant" if msg.role == "assistant" else "user"
        blocks = [made for block in msg.content for made in _anthropic_block(block)]
        if not blocks:
            blocks = [{"type": "text", "text": "(empty)"}]
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    specs = [{"name": t.name, "description": t.description, "input_schema": dict(t.parameters)} for t in tools]
    if not specs and any(m.tool_uses for m in messages):
        specs = [{"name": "stub", "input_schema": {"type": "object", "properties": {}}}]
    body: dict[str, Any] = {"model": "m", "max_tokens": 100, "messages": turns}
    if system:
        body["system"] = system
    if specs:
        body["tools"] = specs
    return body


def _anthropic_block(block: Any) -> Iterable[dict[str, Any]]:
    match block:
        case TextBlock(text=text):
            return [{"type": "text", "text": text.rstrip()}] if text.strip() else []
        case ToolUseBlock():
            return [{"type": "tool_use", "id": block.id, "name": wire_name(block.name), "input": dict(block.input)}]
        case ToolResultBlock():
            return [
                {
                    "type": "tool_result",
                    "tool_use_id": block.tool_use_id,
                    "content": block.text.strip() or "(no output)",
                    "is_error": block.is_error,
                }
            ]
        case ThinkingBlock() | DataBlock():
            return []
        case _:
            raise AssertionError(block)


# ---- the laws on one call


@law
def check_ended(seen: Seen) -> CallEnded:
    """L1: `CallEnded` fires once, as the last event, and agrees with the reply or the error."""
    events = seen.observed
    ends = [n for n, e in enumerate(events) if isinstance(e, CallEnded)]
    assert len(ends) == 1, f"CallEnded at {ends} of {events}, which gave {seen.reply!r}, {seen.error!r}"
    assert ends[0] == len(events) - 1, f"events behind CallEnded: {[type(e).__name__ for e in events[ends[0] + 1 :]]}"
    ended = events[-1]
    assert isinstance(ended, CallEnded)
    if seen.reply is not None:
        assert seen.reply.outcome == ended.outcome
        assert ended.outcome != "failed", "a failed call returned a reply"
        assert seen.reply.usage == ended.usage
    return ended


@law
def check_error(seen: Seen, ended: CallEnded) -> None:
    """L8: a failure raises the original error, by identity, and `Error` reports it."""
    raised = seen.error
    if isinstance(ended.error, StopAsyncIteration) and isinstance(raised, RuntimeError):
        raised = raised.__cause__  # a stream cannot raise it as a failure
    if ended.outcome == "failed":
        if seen.left is None and raised is not None and not seen.hooked_cancel:
            assert raised is ended.error, f"raised {raised!r}, CallEnded says {ended.error!r}"
            assert not isinstance(raised, asyncio.CancelledError), "nobody cancelled the call"
        if isinstance(ended.error, Exception):
            told = [e for e in seen.observed if isinstance(e, Error) and e.error is ended.error]
            assert told, f"no Error event tells of {ended.error!r}"
    elif ended.outcome == "interrupted":
        if raised is not None and seen.left is None:  # a hook's signal passes, though the run was interrupted before it
            assert isinstance(raised, asyncio.CancelledError | CallTimeoutError | Bang), repr(raised)
    elif (
        seen.left is None and not seen.hooked_cancel and not isinstance(raised, Bang)
    ):  # a signal out of the last event passes
        assert raised is None or seen.read, f"{ended.outcome}, and raised {raised!r}"


@law
def check_told(seen: Seen) -> None:
    """A failing observer hides no event from the next one."""
    first, last = Counter(map(id, seen.observed)), Counter(map(id, seen.last))
    assert first == last, f"the last observer saw {[type(e).__name__ for e in seen.last]}\n{_difference(seen)}"


@law
def check_fatal(seen: Seen, ended: CallEnded, hidden: bool) -> None:
    """A failure reported as fatal ends the call, unless a hook recovers it, or a wrapper of the call hides it."""
    for event in seen.observed:
        if isinstance(event, Error) and event.fatal and event.decision is None and not hidden:
            assert ended.outcome in ("failed", "interrupted"), f"{event.error!r} was fatal: {ended.outcome}"


@law
def check_time(seen: Seen, program: Program, timeout: float | None) -> None:
    """`timeout` limits a hook that delays the call, also in its last event. Other hooks of the call's end have their
    own `timeout`.
    """
    if timeout is not None and all(h.event == "CallEnded" for h in program.hooks if h.action == "hang"):
        assert seen.seconds < HANGS, f"left by {seen.left}, with timeout={timeout}: took {seen.seconds} s"


@law
def check_cancelled(seen: Seen) -> None:
    """A cancellation from outside is never swallowed."""
    if seen.left == "cancelled":
        assert seen.error is not None, f"the cancelled call returned {seen.reply!r}"


@law
def check_numbers(seen: Seen, ordered: bool) -> None:
    """`seq` is unique, and increases where events do not overlap."""
    seqs = [e.seq for e in seen.observed]
    assert len(set(seqs)) == len(seqs), f"seq repeats: {seqs}"
    if ordered:  # an Error that tells of a hook comes out of the midst of another event's chain, and before it
        seqs = [e.seq for e in seen.observed if not (isinstance(e, Error) and e.phase == "hook")]
        assert seqs == sorted(seqs), f"seq does not grow: {seqs}"


@law
def check_reader(seen: Seen, whole: bool, ordered: bool) -> None:
    """Reader and observer see the same events."""
    observed = [id(e) for e in seen.observed]
    read = [id(e) for e in seen.read]
    if whole:
        assert Counter(read) == Counter(observed), _difference(seen)
    if ordered and not any(isinstance(e, Error) and e.phase == "hook" for e in seen.observed):
        assert read == observed[: len(read)], _difference(seen)
    else:
        assert set(read) <= set(observed), _difference(seen)


def _difference(seen: Seen) -> str:
    def names(events: Sequence[Event]) -> list[str]:
        return [f"{e.seq} {type(e).__name__}" for e in events]

    return f"observed {names(seen.observed)}\nread     {names(seen.read)}"


@law
def check_brackets(seen: Seen) -> None:
    """L2: each opening event has one closing event, in a call and in a round."""
    acting: Counter[str] = Counter()
    rounds = 0
    for event in seen.observed:
        if isinstance(event, PreToolRound):
            assert rounds == 0, "a round opens inside a round"
            rounds += 1
        elif isinstance(event, PostToolRound):
            assert rounds == 1, "PostToolRound without its PreToolRound"
            assert not +acting, f"PostToolRound while {dict(+acting)} are open"
            asked = [u.id for u in event.tool_uses]
            assert [r.tool_use_id for r in event.tool_results] == asked, "results out of call order"
            rounds -= 1
        elif isinstance(event, PreActing):
            assert rounds == 1, "PreActing outside a round"
            assert acting[event.tool_use.id] == 0, f"PreActing twice for {event.tool_use.id}"
            acting[event.tool_use.id] += 1
        elif isinstance(event, PostActing):
            acting[event.tool_result.tool_use_id] -= 1
            assert acting[event.tool_result.tool_use_id] == 0, f"PostActing without PreActing: {event!r}"
    assert rounds == 0, "a PreToolRound without its PostToolRound"
    assert not +acting, f"PreActing without PostActing: {dict(+acting)}"


@law
def check_chunks(seen: Seen) -> None:
    """L4: the fold of a reply's chunks is the reply before hooks edit it."""
    chunks: list[Any] = []
    given_up = False
    for event in seen.observed:
        if isinstance(event, PreReasoning):
            chunks, given_up = [], False
        elif isinstance(event, Error) and event.fatal:
            given_up = True  # a hook recovered: its value takes the reply's place
        elif isinstance(event, ReasoningChunk):
            if event.restart:
                chunks = []
            chunks.append(event.incremental_chunk)
        elif isinstance(event, PostReasoning) and not given_up:
            before = seen.unedited.get(id(event))
            if before is not None:
                assert _shape(fold(chunks)) == _shape(before), f"chunks {chunks}\nreply {before}"


def _shape(msg: Msg) -> list[Any]:
    return [(b.name, b.raw) if isinstance(b, ToolUseBlock) else b for b in msg.content]


@law
async def check_folds(world: World, start: Sequence[Msg]) -> None:
    """L4: events and facts fold to the history of the session."""
    events = [e for seen in world.calls for e in seen.observed]
    history = world.history
    folded = fold_events(events, start)
    assert folded == history, f"fold_events\n{_lines(folded)}\nhistory\n{_lines(history)}"
    if world.program.session == "named":
        stored = fold_facts(await world.facts(), start)
        assert stored == history, f"fold_facts\n{_lines(stored)}\nhistory\n{_lines(history)}"


def _lines(messages: Sequence[Msg]) -> str:
    return "\n".join(f"  {m.role} {m.content} {dict(m.metadata)}" for m in messages)


@law
def check_budget(seen: Seen, limit: int) -> None:
    """L7: at most N rounds of reasoning, then one summary."""
    reasons = [e for e in seen.observed if isinstance(e, PreReasoning)]
    summaries = [e for e in reasons if e.purpose == "summary"]
    assert len(summaries) <= 1, f"{len(summaries)} summaries"
    assert len(reasons) - len(summaries) <= limit, f"{len(reasons)} rounds of reasoning with a limit of {limit}"
    assert not summaries or reasons[-1] is summaries[0], "reasoning after the summary"


@law
def check_order(seen: Seen) -> None:
    """The call's own events are its first and its last."""
    kinds = [type(e) for e in seen.observed if not isinstance(e, Error)]
    assert PreCall not in kinds[1:], "PreCall is not the first event"
    if PostCall in kinds:
        after = kinds[kinds.index(PostCall) + 1 :]
        assert not {PreReasoning, PreToolRound, PreActing} & set(after), f"work after PostCall: {after}"
