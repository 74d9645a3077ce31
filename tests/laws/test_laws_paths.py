"""L3: one program, called in every way, produces the same events and the same facts."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import given, note
from laws_harness import Seen, World, run
from laws_programs import FRESH, AroundPlan, HookPlan, Path, Piece, Program, steady_programs

from agentflow.vocabulary.events import Event
from agentflow.vocabulary.messages import Msg

_OWN_ID = re.compile(r"\b(msg|call|run|session)_\w+")
_SKIPPED = {
    "_frame",
    "time",
    "duration_ms",
    "waited_ms",
    "_chunks",
    "_stop",
    "writable",
    "verdicts",
    "draft",
    "open_form",
    "sealed_form",
}


def normal(values: list[Any]) -> list[str]:
    """Return the events as text, without times, with ids numbered by first appearance."""
    names: dict[str, str] = {}
    return [_OWN_ID.sub(lambda m: names.setdefault(m[0], f"#{len(names)}"), _text(value)) for value in values]


def _text(value: Any) -> str:
    if isinstance(value, Event):
        fields = [n for c in type(value).__mro__ for n in getattr(c, "__annotations__", {}) if n not in _SKIPPED]
        shown = {n: _text(getattr(value, n)) for n in sorted(set(fields)) if hasattr(type(value), n)}
        return f"{type(value).__name__} {shown}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        shown = {n: _text(v) for n, v in zip(value._fields, value, strict=True) if n not in _SKIPPED}
        return f"{type(value).__name__} {shown}"
    if isinstance(value, Msg):
        return f"{value.role} {value.id} {value.content!r} {dict(value.metadata)} {value.usage} {value.finish_reason}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_text(v) for v in value)}]"
    if not isinstance(value, str) and hasattr(value, "__iter__"):
        return f"[{', '.join(_text(v) for v in value)}]"
    return repr(value)


async def _called(program: Program, kind: str, record: bool = True) -> tuple[World, Seen]:
    world = World(program, record=record)
    seen = await world.call(path=Path("stream" if kind == "stream" else "call"))
    await asyncio.gather(*world.spawned, return_exceptions=True)  # what hooks have left to tasks of their own
    return world, seen


def _origin(error: BaseException | None) -> BaseException | None:
    """Return the original error: an async iterator cannot raise StopAsyncIteration, so a stream (also one of a wrapping
    hook) raises it as a RuntimeError's cause.
    """
    cause = None if error is None else error.__cause__
    return cause if isinstance(cause, StopAsyncIteration) else error


def check_pair(program: Program) -> None:
    called, by_call = run(lambda: _called(program, "call"))
    streamed, by_stream = run(lambda: _called(program, "stream"))
    assert normal(by_call.observed) == normal(by_stream.observed)
    assert type(_origin(by_call.error)) is type(_origin(by_stream.error))
    assert called.ran == streamed.ran
    assert normal(list(called.history)) == normal(list(streamed.history))
    bare, unseen = run(lambda: _called(program, "call", record=False))
    assert normal(list(bare.history)) == normal(list(called.history))
    assert type(_origin(unseen.error)) is type(_origin(by_call.error))
    if unseen.reply is not None and by_call.reply is not None:
        assert _text(unseen.reply.text) == _text(by_call.reply.text)
        assert unseen.reply.outcome == by_call.reply.outcome
    assert bare.ran == called.ran


@given(steady_programs())
def test_call_and_stream_give_the_same_events_in_the_same_order(program: Program) -> None:
    """L3: an observer records the same events with and without a reader; history and reply are the same without an
    observer.
    """
    note(repr(program))
    check_pair(program)


@FRESH
@given(steady_programs())
def test_fresh_programs_give_the_same_events_called_and_streamed(program: Program) -> None:
    """L3 holds for other programs in each run."""
    note(repr(program))
    check_pair(program)


LOOK = (Piece("call", id="t1", name="look"),)
THREE = (
    Piece("call", id="t1", name="look", args='{"x": '),
    Piece("call", id="t2", name="look", args='{"y": 1}'),
    Piece("call", id="t3", name="look"),
)
UNSTEADY = {
    "a hook cancels the task that it runs in, which is the caller's or the stream's": Program(
        (LOOK,), (HookPlan("PostReasoning", "cancel"),)
    ),
    "a wrapper runs the call twice at once": Program((LOOK, LOOK), arounds=(AroundPlan("PreCall", "at-once", 0),)),
    "a wrapper runs the call once more without a delay": Program(
        (LOOK, LOOK), arounds=(AroundPlan("PreCall", "hedge", 0, 0.0),), max_iterations=2
    ),
    "a hook fails at the first of three parallel calls": Program((THREE,), (HookPlan("PostActing", "raise", 0),)),
}
"""What `steady_programs` leaves out, each in the smallest program for which `call` and `stream` differ."""


@pytest.mark.parametrize("program", UNSTEADY.values(), ids=UNSTEADY)
def test_what_is_left_out_needs_to_be(program: Program) -> None:
    """Each excluded program differs between the two paths, so `steady_programs` excludes no more than necessary."""
    with pytest.raises(AssertionError):
        check_pair(program)


STEADY = {
    "a tool interrupts the calls beside it": Program(((*LOOK, Piece("call", id="t2", name="halt"), LOOK[0]),)),
    "a hook interrupts a round": Program((LOOK * 2,), (HookPlan("PreActing", "interrupt", 2),)),
    "a hook interrupts with a message": Program((LOOK * 2,), (HookPlan("PostActing", "inject-interrupt"),)),
    "a hook raises a signal": Program((LOOK * 2,), (HookPlan("PreActing", "raise-base"),)),
    "a wrapper runs a round twice at once": Program((LOOK,), arounds=(AroundPlan("PreToolRound", "at-once", 0),)),
}


@pytest.mark.parametrize("program", STEADY.values(), ids=STEADY)
def test_an_end_from_within_is_the_same_on_both_paths(program: Program) -> None:
    """L3 holds for an interrupt, a signal and a refused second run."""
    check_pair(program)
