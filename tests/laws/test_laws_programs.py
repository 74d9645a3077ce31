"""Random programs: whatever model, tools, hooks and callers do, the laws hold, and the next call works."""

from __future__ import annotations

import pytest
from hypothesis import Phase, example, given, note, seed, settings
from hypothesis import strategies as st
from laws_corners import CORNERS, Corner
from laws_harness import run
from laws_programs import FRESH, AroundPlan, HookPlan, Path, Piece, Program, programs
from laws_shares import features, report, shares
from laws_whole import check_program
from test_laws_replay import NAMES, lived

ADDED_BEHIND_A_RECOVERY = Program(
    replies=((Piece("call", id="t1", name="ask"),),),
    hooks=(HookPlan("PostCall", "inject", nth=0), HookPlan("Error", "Recover", nth=0)),
    arounds=(AroundPlan("PreCall", "then-error", nth=1),),
    session="named",
)
"""A call that has suspended fails and is given a reply, and a hook adds a message behind that."""

ANSWERED_ABOVE_AN_OPEN_ROUND = Program(
    replies=((Piece("call", id="t1", name="cleans"),),),
    hooks=(HookPlan("PostReasoning", "interrupt", nth=0, priority=100),),
    arounds=(AroundPlan("PreCall", "swallow", nth=0),),
    path=Path("cancel-call", 1, second="cancel"),
    max_iterations=1,
    session="named",
)
"""A layer around the call swallows the cut and answers, while a tool call has no result."""

INJECTED_AT_AN_ANSWER = Program(
    replies=(), hooks=(HookPlan("PreReasoning", "Answer", priority=5), HookPlan("ReasoningChunk", "inject"))
)
"""A hook answers in place of the model, and one adds a message when it sees the answer's piece."""

ASKED_AT_AN_INTERRUPTED_END = Program(
    replies=(), hooks=(HookPlan("CallEnded", "complete"),), path=Path("call", second="interrupt", again=3), store="slow"
)
"""A hook of `CallEnded` asks the model on the side, in a call that was interrupted."""

SUSPENDED_AND_CUT = Program(
    replies=((Piece("call", id="t1", name="ask"),),), hooks=(HookPlan("PostCall", "interrupt"),), session="named"
)
"""A call is interrupted when it is closed as suspended."""

ABANDONED_WHILE_IT_WRITES = Program(
    replies=((Piece("call", id="t1", name="look"), Piece("call", id="t1", name="look")),),
    hooks=(HookPlan("PostToolRound", "hang"),),
    path=Path("close", 0, slow_reader=True),
    max_iterations=1,
    session="implicit",
    store="slow",
)
"""A hook ignores cancellations until the driver is abandoned, which then still writes a fact."""


@given(programs())
@example(ADDED_BEHIND_A_RECOVERY)
@example(ABANDONED_WHILE_IT_WRITES)
@example(INJECTED_AT_AN_ANSWER)
@example(ASKED_AT_AN_INTERRUPTED_END)
@example(SUSPENDED_AND_CUT)
@example(ANSWERED_ABOVE_AN_OPEN_ROUND)
def test_the_laws_hold_whatever_model_hooks_and_callers_do(program: Program) -> None:
    """L1, L2, L4, L5, L7, L8 on every path; nothing leaks; the next call works."""
    note(repr(program))
    report(run(lambda: check_program(program)))


@FRESH
@given(programs())
def test_the_laws_hold_for_fresh_programs(program: Program) -> None:
    """The laws hold for other programs in each run."""
    note(repr(program))
    run(lambda: check_program(program))


RUNS = 60
"""How often eight programs are drawn."""

LEAST = {
    "tool call": 54,  # measured: 64
    "cut": 51,  # 61
    "hook acts": 51,  # 60
    "around acts": 46,  # 55
    "parallel calls": 45,  # 54
    "slow store": 23,  # 32
    "sub-agent": 12,  # 20
    "two rounds": 11,  # 19
    "cut: break": 10,  # 17
    "cut: interrupt": 6,  # 13
    "cut: cancel": 5,  # 11
    "cut: throw": 5,  # 11
    "cut: timeout": 1,  # 3
    "suspended and resumed": 1,  # 2
}
"""The least percentage of programs in which each of these happens: four standard deviations below what is measured, so that
other draws of the same generator pass, and a tamer one fails."""


def independent(start: int) -> list[set[str]]:
    """Draw programs that do not resemble each other, and return what happened in each.

    After ten examples, Hypothesis also varies earlier ones: shares of one long run differ by half from those of the next.
    The first two of each run are the smallest.
    """
    found: list[set[str]] = []

    @seed(start)
    @settings(max_examples=10, phases=[Phase.generate], derandomize=False, database=None)
    @given(programs(names=NAMES))
    def draws(program: Program) -> None:
        found.append(features(run(lambda: lived(program))))

    draws()
    return found[2:]


@pytest.mark.ci
def test_the_typical_program_has_rounds_parallel_calls_hooks_and_a_cut() -> None:
    """Measured with fixed seeds, by what happened in the runs, not by the plans."""
    measured = shares(found for start in range(RUNS) for found in independent(start))
    assert {name: measured.get(name, 0) for name, least in LEAST.items() if measured.get(name, 0) < least} == {}


@pytest.mark.parametrize("corner", CORNERS)
@settings(max_examples=settings().max_examples // 4)
@given(data=st.data())
def test_the_laws_hold_in_the_corners(corner: Corner, data: st.DataObject) -> None:
    """The laws hold for programs that combine what rarely meets by chance."""
    program = corner(data.draw)
    note(repr(program))
    run(lambda: check_program(program))


@pytest.mark.parametrize("action", ["inject-interrupt", "inject-raise"])
@pytest.mark.parametrize("nth", [0, 1, 2])
def test_a_suspended_reply_is_stored_once_if_a_hook_then_ends_the_call(action: str, nth: int) -> None:
    """Events fold to the history: an interrupted call can be resumed, and stores the reply then."""
    hooks = (
        HookPlan("PostCall", action, nth, priority=10),
        HookPlan("PostReasoning", "Suspend"),
    )
    run(lambda: check_program(Program((), hooks, session="named")))


def test_the_event_that_a_call_was_emitting_when_it_was_abandoned_is_emitted_again() -> None:
    """A hook of it ignored every cancellation; events still fold to the history."""
    hooks = (
        HookPlan("PostActing", "inject-raise", priority=10),
        HookPlan("Error", "swallow", 0, priority=10),
        HookPlan("MessagesAdded", "inject-raise", 0, on_failure="abort", priority=10),
    )
    calls = ((Piece("call", id="t1", name="slow_look"),),)
    run(lambda: check_program(Program(calls, hooks, path=Path("call", 0, 0.5), max_iterations=1)))
