"""A session of the soak, by its seed: a program of the laws, the wire, the store, and the provider's faults.

Rules:

1. A seed results in the same plan in every process: the servers make theirs from it too.
2. The possible steps are in the tables of `tests/laws/laws_programs.py`; here it is only drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Literal, NamedTuple

from agentflow.testing.wire import Fault, ScriptedCall, WireReply
from benchmarks.soak import laws
from benchmarks.soak.laws import AroundPlan, HookPlan, Path, Piece, Program

__all__ = ["DATABASES", "EXPERT", "Line", "Plan", "line_of", "plan_of"]

DATABASES = ("sqlite", "postgresql")
EXPERT = "expert"
"""The tool that is an agent."""

_HANGS = "hang"
"""Waits 50,000 s, which the laws do in virtual time."""

_ENDS = (*("call", "stream") * 5, "close", "break", "cancel-call", "cancel-task")
_ENDS += ("cancel-stream", "close-elsewhere", "interrupt", "throw")
_WORDS = ("ok", "It is 3. ", " ", "", "ünï ", "\U0001f600", "a long story " * 20)
_ARGS = ("{}", "{}", '{"x": 1}', '{"x": 1}', '{"x": "no"}', '{"x": ', "", "[1]", "null", '{"y": 1}')
_IDS = ("t1", "t2", "t3", "t4", "t5", "t6", "", "t 7!", "t1")


class Line(NamedTuple):
    """Which reply is requested.

    Attributes:
        agent: `"agent"` or `EXPERT`.
        number: Its place; None: there are no more faults, and the answer is "done".
        attempt: How often the adapter has requested it before.
    """

    agent: str
    number: int | None
    attempt: int


class Plan(NamedTuple):
    """A session.

    Attributes:
        seed: Its seed.
        program: The actions of its model, hooks and callers.
        expert: The replies of its sub-agent's model.
        wire: The wire over which its models are called.
        store: Its store.
    """

    seed: int
    program: Program
    expert: tuple[tuple[Piece, ...], ...]
    wire: Literal["openai", "anthropic"]
    store: str


def plan_of(seed: int) -> Plan:
    """The plan of a seed."""
    draw = Random(seed)
    replies = tuple(_reply(draw, (*laws.TOOLS, EXPERT, EXPERT, EXPERT)) for _ in range(draw.randint(1, 5)))
    program = Program(
        replies,
        tuple(_hook(draw) for _ in range(draw.choice((0, 0, 1, 1, 2, 3)))),
        tuple(_around(draw) for _ in range(draw.choice((0, 0, 0, 1, 2)))),
        _path(draw),
        draw.randint(1, 4),
        draw.choice(("BY_TYPE", "BY_TYPE", "IN_CALL_ORDER", "SEQUENTIAL", "PARALLEL")),
        draw.choice(("implicit", "named", "fresh")),
        system=draw.random() < 0.5,
        earlier=draw.random() < 0.5,
    )
    expert = tuple(_reply(draw, ("look", "read", "boom")) for _ in range(draw.randint(0, 2)))
    wire: Literal["openai", "anthropic"] = draw.choice(("openai", "anthropic"))
    store = draw.choice(("memory", "slow", "sqlite", "postgresql"))
    kept = {"session": "named"} if store in DATABASES else {"store": store}
    return Plan(seed, replace(program, **kept), expert, wire, store)


def _reply(draw: Random, tools: Sequence[str]) -> tuple[Piece, ...]:
    return tuple(_piece(draw, tools) for _ in range(draw.randint(1, 5)))


def _piece(draw: Random, tools: Sequence[str]) -> Piece:
    kind = draw.choice(("text", "text", "call", "call", "call", "call", "think", "raise"))
    if kind == "text":
        return Piece("text", text=draw.choice(_WORDS))
    if kind == "think":
        return Piece("think", text=draw.choice(("hm", "well, then")))
    if kind == "raise" and draw.random() < 0.5:
        return Piece("raise")
    name = draw.choice(tuple(tools))
    args = '{"message": "What is it?"}' if name == EXPERT else draw.choice(_ARGS)
    return Piece("call", id=draw.choice(_IDS), name=name, args=args)


def _hook(draw: Random) -> HookPlan:
    event = draw.choice(laws.EVENTS)
    acts = tuple(act for act in laws.ACTS if act != _HANGS)
    role = draw.choice(("edit", "edit", "edit", "guard", "observer"))
    policies = (None, None, "abort", "skip") if role == "observer" else (None, None, "abort", "skip", "deny")
    return HookPlan(
        event,
        draw.choice(draw.choice((acts, laws.VERDICTS, laws.EDITS.get(event, acts)))),
        draw.choice((1, 1, 1, 2, 3, 0)),
        role,
        draw.choice(("sync", "async", "mono")),
        draw.choice(policies),
        draw.choice((10, 100, 200)),
        serial=draw.random() < 0.25,
    )


def _around(draw: Random) -> AroundPlan:
    stage = draw.choice(laws.STAGES)
    action = draw.choice(laws.AROUND_ACTS["*"] + laws.AROUND_ACTS[stage])
    return AroundPlan(stage, action, draw.choice((1, 1, 2, 0)), draw.choice((0.0, 0.05, 0.5, 5.0)))


def _path(draw: Random) -> Path:
    kind = draw.choice(_ENDS)
    timeout = draw.choice((None, None, None, None, None, 2.5, 10.0))
    slow = draw.random() < 0.25
    if kind in ("call", "stream"):
        return Path(kind, 0, timeout, slow)
    again = draw.choice(((), (), ("cancel", 3), ("interrupt", 3)))
    return Path(kind, draw.randint(0, draw.choice((10, 25, 60))), timeout, slow, *again)


# ---- the provider's answers

_BREAKS: tuple[Callable[[], Fault], ...] = (
    lambda: Fault.status(429, retry_after=1),
    lambda: Fault.status(429, retry_after_ms=300),
    lambda: Fault.status(500),
    lambda: Fault.status(503),
    lambda: Fault.status(529),
    lambda: Fault.status(401),
    Fault.context_overflow,
    Fault.html,
    Fault.empty_body,
    lambda: Fault.raw_body(b"\x00\xff nonsense"),
    lambda: Fault.raw_body(b"data: {{{\n\n", content_type="text/event-stream"),
    lambda: Fault.error_event("head"),
    lambda: Fault.cut("head"),
    lambda: Fault.cut("head", clean=True),
    lambda: Fault.cut("content"),
    lambda: Fault.cut("all"),
    lambda: Fault.hang("head"),
    Fault.no_end_mark,
    Fault.refusal,
    Fault.empty_answer,
)
_NOISES: tuple[Callable[[], Fault], ...] = (
    Fault.crlf,
    Fault.comments,
    Fault.unknown_events,
    lambda: Fault.pings(2),
    lambda: Fault.split_bytes(3),
    Fault.one_write,
    Fault.no_usage,
    Fault.usage_twice,
    Fault.whole_calls,
    Fault.no_ids,
    lambda: Fault.slow(seconds=0.002),
)


def line_of(plan: Plan, line: Line) -> WireReply:
    """A provider's answer: the planned reply, with its fault."""
    replies: Mapping[str, tuple[tuple[Piece, ...], ...]] = {"agent": plan.program.replies, EXPERT: plan.expert}
    if line.number is None or line.number >= len(replies[line.agent]):
        return WireReply("done")
    pieces = replies[line.agent][line.number]
    draw = Random(f"{plan.seed} {line.agent} {line.number}")
    reply = WireReply(
        "".join(piece.text for piece in pieces if piece.kind == "text") or ("" if pieces else " "),
        thinking="".join(piece.text for piece in pieces if piece.kind == "think") or None,
        calls=tuple(ScriptedCall(piece.name, piece.args, piece.id or None) for piece in pieces if piece.kind == "call"),
        chunk=draw.choice((0, 1, 12)),
    )
    broken = any(piece.kind == "raise" for piece in pieces)
    if draw.random() < 0.25 or broken:
        attempts = 10 if broken else draw.randint(1, 2)
        if line.attempt < attempts:
            return reply.with_faults(draw.choice(_BREAKS)())
    if draw.random() < 0.25:
        return reply.with_faults(draw.choice(_NOISES)())
    return reply
