"""Facts of every kind, with content that is easily damaged when it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

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
    SessionBegan,
    StateKept,
    ToolDecided,
    ToolFinished,
    ToolStarted,
)
from agentflow.vocabulary.messages import (
    DataBlock,
    Msg,
    Pending,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from agentflow.vocabulary.specs import Usage
from agentflow.vocabulary.verdicts import Again, Answer, AnyVerdict, Approve, Deny, Recover, Stop, Suspend, Verdict

_ODD = "tab\t, quote \", 'single', back\\slash, nul-free \u0001, ünï, \U0001f469\u200d\U0001f4bb, \u2028 line"
_DATA: Mapping[str, Any] = {
    "n": 1,
    "f": 0.5,
    "none": None,
    "yes": True,
    "list": [1, [2]],
    "deep": {"a": {"b": [{"c": ""}]}},
    "": _ODD,
}

VERDICTS: tuple[AnyVerdict, ...] = (
    Deny("no"),
    Answer(ToolResultBlock("t1", "pay", "42")),
    Answer(Msg.assistant("said", id="m_said")),
    Answer("plain"),
    Again((Msg.user("again", id="u_again"),)),
    Stop("enough"),
    Suspend({"euros": 40}),
    Recover("instead"),
    Approve(),
    Approve({"euros": 39}),
    *[kind("a text") for kind in get_args(Verdict)],
)
"""Verdicts and decisions of each kind."""


def a_call(number: int) -> list[Fact]:
    """Return the three facts of a call without tools."""
    run_id, call_id = f"run_{number}", f"call_{number}"
    reply = Msg.assistant(f"a{number}", id=f"m{number}")
    return [
        CallOpened(run_id, call_id, (Msg.user(f"q{number}", id=f"u{number}"),), 5),
        Reasoned(run_id, 1, reply, Usage(), 1.0),
        CallClosed(run_id, call_id, "completed", reply),
    ]


def samples() -> list[Fact]:
    """Return a fact of each kind, and several of those kinds whose content varies."""
    use = ToolUseBlock("t1", "pay", _DATA)
    malformed = ToolUseBlock.from_json("t2", "pay", '{"euros": ')
    image = DataBlock("image/png", data="aGk=")
    result = ToolResultBlock("t1", "pay", (TextBlock(_ODD), image), "error")
    thought = ThinkingBlock("hm", "sealed", None, "a-model")
    asks = Msg.assistant([thought, TextBlock("I pay."), use, malformed], id="m1")
    usage = Usage(input_tokens=3, output_tokens=4, cache_read_tokens=1, reasoning_tokens=2, cost=0.25, model_calls=1)
    pending = Pending("t1", "approval", {"why": _ODD}, use, "Guard", "t0", "helper")
    user = Msg.user([TextBlock(_ODD), image], id="u1")
    return [
        SessionBegan((Msg.system("Be brief.", id="s0"), user)),
        CallOpened("r", "c", (user,), 5),
        CallOpened("r", "c2", (), 1, Msg.assistant("at once", id="m2")),
        Reasoned("r", 1, asks, usage, 1.5, model="a-model"),
        Reasoned("r", 2, Msg.assistant("", id="m3"), Usage(), 0.0, accepted=False, follow_up=(user,)),
        Reasoned("r", 3, Msg.assistant("s", id="m4"), Usage(), 0.0, stop="limit", summary=True),
        *[ToolDecided("r", f"t{n}", use, verdict, "c") for n, verdict in enumerate((None, *VERDICTS))],
        ToolStarted("r", "t1", 2, "c"),
        ToolFinished("r", "t1", use, result, 2.5, "enough"),
        ToolFinished("r", "t2", malformed, ToolResultBlock("t2", "pay", "", "denied"), 0.0),
        RoundClosed("r", "m1", (result,), "enough"),
        RoundSuspended("r", (pending, Pending("call", "parked")), "c"),
        CallResumed("r", "c3", {"t1": Approve({"euros": 1}), "t2": Deny("no"), "t3": Answer("by hand")}),
        Injected("r", (user,), 1, "key", "c", 2),
        Compacted("r", 3, (user,), "c", 1),
        StateKept({"module:Class": {"n": 1, "text": _ODD}}),
        CallClosed("r", "c", "suspended", Msg.assistant("waits", id="m5")),
        CallClosed("r", "c4", "failed"),
    ]
