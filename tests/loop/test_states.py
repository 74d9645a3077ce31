"""The states of the loop: where facts lead, and from which state a suspended run continues."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentflow import Approve, Msg, ToolUseBlock
from agentflow.errors import UsageError
from agentflow.loop.machine import Machine
from agentflow.loop.states import TRANSITIONS, State
from agentflow.vocabulary.facts import (
    CallClosed,
    CallOpened,
    CallResumed,
    Compacted,
    Fact,
    Injected,
    Reasoned,
    RoundClosed,
    RoundSuspended,
    StateKept,
    ToolDecided,
)
from agentflow.vocabulary.messages import Pending, ToolResultBlock
from agentflow.vocabulary.specs import Usage

USE = ToolUseBlock("t1", "pay", {})
OPENED = CallOpened("r", "c1", (Msg.user("Pay."),), 3)
ASKED = Reasoned("r", 1, Msg.assistant([USE]), Usage(), 0.0)
ANSWERED = Reasoned("r", 1, Msg.assistant("Paid."), Usage(), 0.0)
ROUND = RoundClosed("r", "m1", (ToolResultBlock("t1", "pay", "paid"),))
WAITS = RoundSuspended("r", (Pending("t1"),), "c1")
LEFT = CallClosed("r", "c1", "suspended", None)
RESUMED = CallResumed("r", "c2", {"t1": Approve()})


@pytest.mark.parametrize(
    ("before", "state", "action"),
    [
        ([OPENED], State.ASSISTANT, "reason"),
        ([OPENED, ASKED], State.TOOL_EXECUTION, "act"),
        ([OPENED, ASKED, ROUND], State.ASSISTANT, "reason"),
        ([OPENED, ANSWERED], State.RESPONSE, "respond"),
    ],
)
def test_a_suspended_run_goes_on_in_the_state_where_it_was(before: list[Fact], state: State, action: str) -> None:
    """Suspending is a state of its own; closing the call keeps it, and the resume leads back with the decisions."""
    machine = Machine.from_facts(before)
    assert machine.state is state
    for fact in (WAITS, LEFT):
        machine.apply(fact)
        assert (machine.state, machine.next(), machine.suspension.pending) == (
            State.SUSPENDED,
            "suspended",
            (Pending("t1"),),
        )
    machine.apply(RESUMED)
    assert (machine.state, machine.next(), machine.suspension.answers) == (state, action, {"t1": Approve()})


@pytest.mark.parametrize("fact", [OPENED, ASKED, WAITS, ToolDecided("r", "t1", USE, None)])
def test_a_suspended_session_takes_no_work(fact: Fact) -> None:
    """Until it is resumed, no call opens, no model answers, no tool is vetted, and it is not suspended again."""
    machine = Machine.from_facts([OPENED, ASKED, WAITS])
    for refuses in (machine.apply, machine.check):
        with pytest.raises(UsageError, match=rf"A fact {type(fact).__name__} is not legal in state SUSPENDED"):
            refuses(fact)
    assert machine.state is State.SUSPENDED


@pytest.mark.parametrize(
    ("before", "fact"),
    [
        ([], CallOpened("r", "c1", (Msg.assistant([USE]),), 3)),
        ([], CallOpened("r", "c1", (), 3, Msg.assistant(["Paid.", USE]))),
        ([OPENED, ANSWERED], CallClosed("r", "c1", "completed", Msg.assistant([USE]))),
    ],
    ids=["input", "answer", "last message"],
)
def test_no_tool_call_comes_from_elsewhere_than_a_reply(before: list[Fact], fact: Fact) -> None:
    """It would not run."""
    with pytest.raises(UsageError, match="contains a ToolUseBlock"):
        Machine.from_facts(before).check(fact)


def test_a_suspended_call_that_fails_ends_like_any_other() -> None:
    """Its open round is closed first; a second failure cannot leave the session waiting."""
    machine = Machine.from_facts([OPENED, ASKED, WAITS])
    failed = CallClosed("r", "c1", "failed", None)
    with pytest.raises(UsageError, match="A call cannot close while"):
        machine.apply(failed)
    machine.apply(ROUND)
    assert (machine.state, machine.suspension.pending) == (State.ASSISTANT, ())
    machine.apply(failed)
    assert (machine.state, machine.next()) == (State.USER_INPUT, "input")


def test_a_call_that_nothing_suspended_does_not_close_as_suspended() -> None:
    """Nothing could resume it: the machine reports the error, and is unchanged."""
    machine = Machine.from_facts([OPENED, ANSWERED])
    with pytest.raises(UsageError, match=r"state RESPONSE cannot close as suspended"):
        machine.apply(LEFT)
    assert machine.state is State.RESPONSE


def test_what_is_injected_behind_a_suspended_answer_lands_behind_it() -> None:
    """The answer was accepted first, so it is stored first."""
    machine = Machine.from_facts([OPENED, ANSWERED, WAITS, Injected("r", (Msg.user("And Bob?"),))])
    assert [msg.text for msg in machine.transcript.messages] == ["Pay."]
    machine.apply(RESUMED)
    machine.apply(CallClosed("r", "c2", "completed", machine.final))
    assert [msg.text for msg in machine.transcript.messages] == ["Pay.", "Paid.", "And Bob?"]


def test_each_state_can_be_reached_and_left() -> None:
    """Facts lead from `USER_INPUT` to every state, and from every state back."""
    ways = {
        state: {to for entry in row.values() for to in ([entry] if isinstance(entry, State) else entry.values())}
        for state, row in TRANSITIONS.items()
    }
    for start in State:
        seen = {start}
        while more := {to for state in seen for to in ways[state]} - seen:
            seen |= more
        assert seen == set(State)


STOPPED = RoundClosed("r", "m1", (ToolResultBlock("t1", "pay", "paid"),), "enough")
BEFORE: dict[str, list[Fact]] = {
    "nothing": [],
    "opened": [OPENED],
    "asked": [OPENED, ASKED],
    "between rounds": [OPENED, ASKED, ROUND],
    "answered": [OPENED, ANSWERED],
    "waits in a round": [OPENED, ASKED, WAITS],
    "waits between rounds": [OPENED, ASKED, ROUND, WAITS],
    "waits with the answer": [OPENED, ANSWERED, WAITS],
    "left in a round": [OPENED, ASKED, WAITS, LEFT],
    "left between rounds": [OPENED, ASKED, ROUND, WAITS, LEFT],
    "left with the answer": [OPENED, ANSWERED, WAITS, LEFT],
    "stopped": [OPENED, ASKED, STOPPED],
}
LEADING: list[Fact] = [
    CallOpened("r2", "c9", (Msg.user("Pay."),), 3),
    Reasoned("r", 2, Msg.assistant([ToolUseBlock("t9", "pay", {})]), Usage(), 0.0),
    Reasoned("r", 2, Msg.assistant([ToolUseBlock("t9", "pay", {})]), Usage(), 0.0, summary=True),
    Reasoned("r", 2, Msg.assistant("Again."), Usage(), 0.0, accepted=False),
    ANSWERED,
    ROUND,
    STOPPED,
    RESUMED,
    LEFT,
    CallClosed("r", "c1", "completed", Msg.assistant("Paid.")),
    CallClosed("r", "c1", "failed", None),
]
ALONG: list[Fact] = [
    Compacted("r", 1, (Msg.user("Sum."),)),
    Injected("r", (Msg.user("Hm."),)),
    RoundSuspended("r", (), "c1"),
    StateKept({}),
]


def _refused(apply: Callable[..., object], *facts: Fact) -> bool:
    try:
        apply(*facts)
    except UsageError:
        return True
    return False


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
@pytest.mark.parametrize("leading", LEADING, ids=lambda fact: type(fact).__name__)
def test_what_can_be_written_together_can_be_applied_in_turn(before: list[Fact], leading: Fact) -> None:
    """The second of two facts is checked in the state to which the first one leads."""
    for along in ALONG:
        machine, same = Machine.from_facts(before), Machine.from_facts(before)
        refused = _refused(machine.apply, leading) or _refused(machine.apply, along)
        assert _refused(same.check, leading, along) == refused, along
        assert same.state is Machine.from_facts(before).state, "a check changes nothing"


@pytest.mark.parametrize("length", [1, 20, 29, 30, 36, 38, 39, 40, 41, 80])
def test_synthetic_messages_have_ids_of_their_own(length: int) -> None:
    """Hooks and users choose ids of any length, which may differ in the first or the last character only."""
    made: list[str] = []
    x = "x" * (length - 1)
    for run_id in (f"a{x}", f"b{x}", f"{x}a" if x else "c"):
        machine = Machine.from_facts([CallOpened(run_id, "c1", (), 9)])
        for n, reply_id in enumerate((f"{x}1", f"{x}2", f"3{x}")):
            reply = Msg.assistant([ToolUseBlock(f"r{n}", "pay")], id=reply_id)
            (closed,) = machine.apply(Reasoned(run_id, n, reply, Usage(), 0.0, accepted=False))
            assert closed.id != reply.id
            made += [closed.id] if run_id[0] == "a" else []
        machine.apply(ASKED._replace(run_id=run_id))
        machine.apply(ROUND._replace(run_id=run_id, stop="enough"))
        assert machine.final is not None
        made.append(machine.final.id)
    assert len(set(made)) == len(made) == 6
    assert max(map(len, made)) <= 40


def test_the_ids_of_synthetic_messages_stay_the_same() -> None:
    """Old facts, with ids as agentflow makes them, result in the same history."""
    machine = Machine.from_facts([CallOpened("r", "c1", (), 9)])
    for reply_id, made in (("msg_0", "msg_0-superseded"), ("m" * 36, f"{'m' * 36}-sup")):
        reply = Msg.assistant([ToolUseBlock(reply_id, "pay")], id=reply_id)
        assert [msg.id for msg in machine.apply(Reasoned("r", 1, reply, Usage(), 0.0, accepted=False))] == [made]
