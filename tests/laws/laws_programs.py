"""Random programs: the model's replies, the effects of hooks, the way of calling. Failures print their plain values.

A program is data only; `laws_harness` brings it to life.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.database import DirectoryBasedExampleDatabase
from thorough import THOROUGH

T = TypeVar("T")
FRESH = settings(
    deadline=None,
    max_examples=40 if THOROUGH else 25,
    derandomize=False,  # Hypothesis itself would settle otherwise, and keep nothing, where the environment names a CI
    print_blob=True,
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
    suppress_health_check=[HealthCheck.too_slow],
)
"""Settings of tests that draw other programs in each run."""

EVENTS = (
    "PreCall",
    "PreReasoning",
    "ReasoningChunk",
    "PostReasoning",
    "PreToolRound",
    "PreActing",
    "ActingChunk",
    "PostActing",
    "PostToolRound",
    "PostCall",
    "Error",
    "CallEnded",
    "MessagesAdded",
)
STAGES = ("PreCall", "PreReasoning", "PreToolRound", "PreActing")


@dataclass(frozen=True)
class Piece:
    """A part of a model's reply: `text`, `think`, `call`, `sleep`, `usage`, `finish`, `restart`, `raise`."""

    kind: str
    text: str = ""
    id: str = ""
    name: str = ""
    args: str = "{}"


@dataclass(frozen=True)
class HookPlan:
    """A hook that acts on the `nth` event of a type (0: on each event)."""

    event: str
    action: str
    nth: int = 1
    role: Literal["edit", "guard", "observer"] = "edit"
    style: Literal["sync", "async", "mono"] = "sync"
    on_failure: Literal["abort", "skip", "deny"] | None = None
    priority: int = 100
    serial: bool = False


@dataclass(frozen=True)
class AroundPlan:
    """A hook that wraps the work of a stage the `nth` time. It acts outside of the stage after `lag`."""

    stage: str
    action: str
    nth: int = 1
    lag: float = 0.0


@dataclass(frozen=True)
class Path:
    """How the caller calls and leaves: `at` counts events that were read, or turns of the loop.

    `second` happens `again` turns later, during the cleanup of the first.
    """

    kind: Literal[
        "call",
        "stream",
        "close",
        "break",
        "cancel-call",
        "cancel-task",
        "cancel-stream",
        "close-elsewhere",
        "interrupt",
        "throw",
    ] = "call"
    at: int = 0
    timeout: float | None = None
    slow_reader: bool = False
    second: Literal["cancel", "interrupt"] | None = None
    again: int = 0


@dataclass(frozen=True)
class Program:
    """One call of an agent, with everything that may go wrong."""

    replies: tuple[tuple[Piece, ...], ...]
    hooks: tuple[HookPlan, ...] = ()
    arounds: tuple[AroundPlan, ...] = ()
    path: Path = Path()
    max_iterations: int = 3
    schedule: str = "BY_TYPE"
    session: Literal["implicit", "named", "fresh"] = "implicit"
    store: Literal["memory", "slow"] = "memory"
    system: bool = True
    earlier: bool = False
    cleanup: Literal["plain", "beats", "quiet"] = "plain"
    """Whether the model's awaits a task that it has cancelled, and so swallows what comes then; or it just ends when cut."""

    @property
    def parallel(self) -> bool:
        """Whether tools of the program may overlap."""
        return any(sum(p.kind == "call" for p in reply) > 1 for reply in self.replies) or any(
            "calls" in h.action for h in self.hooks
        )


TOOLS = (
    "look",
    "read",
    "save",
    "slow_look",
    "slow_read",
    "slow_save",
    "boom",
    "kick",
    "bang",
    "lasts",
    "flow",
    "flow_bad",
    "talk",
    "injects",
    "ask",
    "again",
    "halt",
    "denies",
    "cleans",
    "recurses",
    "nosuchtool",
    "bad name!",
)
CALM_TOOLS = ("look", "read", "save", "slow_look", "slow_read", "slow_save", "boom", "flow", "talk", "again", "ask")

EDITS = {
    "PreCall": ("messages:drop", "messages:dup", "messages:reverse", "messages:assistant", "messages:system"),
    "PreReasoning": (
        "messages:drop",
        "messages:dup",
        "messages:reverse",
        "messages:assistant",
        "messages:system",
        "messages:rotate",
        "messages:halve",
        "tools:none",
        "options",
    ),
    "PostReasoning": (
        "calls:drop",
        "calls:dup",
        "calls:add",
        "calls:reuse",
        "reply:text",
        "reply:blank",
        "reply:think",
    ),
    "PreActing": ("use:rename", "use:unknown", "use:input", "use:id"),
    "PostActing": ("result:text", "result:empty", "result:foreign"),
    "PostCall": ("final:text", "final:blank", "final:calls"),
}
VERDICTS = (
    "Deny",
    "Answer",
    "AnswerBad",
    "AnswerNone",
    "AnswerCalls",
    "Again",
    "AgainNothing",
    "Stop",
    "Suspend",
    "Recover",
    "RecoverBad",
    "RecoverCalls",
)
ACTS = (
    "raise",
    "raise-veto",
    "raise-cancelled",
    "raise-base",
    "raise-stop-iteration",
    "cancel",
    "interrupt",
    "sleep",
    "inject",
    "inject-assistant",
    "inject-transient",
    "compact",
    "complete",
    "junk",
    "half-edit-raise",
    "inject-raise",
    "inject-interrupt",
    "swallow",
    "hang",
    "recurse",
)
AROUND_ACTS = {
    "*": (
        "raise",
        "veto",
        "error",
        "empty",
        "retry",
        "catch",
        "timeout",
        "deadline",
        "junk",
        "tap",
        "cancelled",
        "twice",
        "at-once",
        "hedge",
        "race",
        "zip",
        "switch",
        "swallow",
        "late",
        "beside",
        "background",
    ),
    "PreReasoning": ("using", "map", "take1", "merge", "just", "just-calls"),
    "PreActing": ("map", "just", "chunks"),
    "PreToolRound": ("drop", "dup", "reverse", "just"),
    "PreCall": ("map", "just", "map-calls", "just-calls", "then-error"),
}

GENTLE = ("sleep", "inject", "inject-transient", "compact", "complete", "swallow")
"""What hooks do behind which a call usually goes on: a program may have several of them and still reach its second round."""
PASSING = ("retry", "catch", "timeout", "deadline", "tap", "hedge", "race", "zip", "switch", "late", "beside", "map")
"""The same of wrappers."""

LAGS = st.sampled_from([0.0, 0.05, 0.5, 5.0])
_WHOLE = ("ok", "It is 3. ", " ", "", "ünï ")
_HALVES = (*_WHOLE, "\ud83d\ude00")
_ARGS = st.sampled_from(["{}", "{}", "{}", '{"x": 1}', '{"x": "no"}', '{"x": ', "", "[1]", "null", '{"y": 1}'])
_IDS = st.sampled_from(["t1", "t2", "t3", "t4", "t5", "t6", "", "t 7!", "t1"])
_THOUGHTS = st.builds(Piece, st.just("think"), text=st.sampled_from(["hm", "", "signed"]))
_HOSTILE = st.builds(Piece, st.sampled_from(["sleep", "usage", "finish", "restart", "raise", "raise-base"]))


def _often(usual: tuple[str, ...], all_of_them: tuple[str, ...]) -> st.SearchStrategy[str]:
    """Draw one of the usual values in three of four draws, else any value."""
    return st.integers(0, 3).flatmap(lambda n: st.sampled_from(usual if n else all_of_them))


@st.composite
def _replies(draw: st.DrawFn, names: st.SearchStrategy[str], hostile: bool, halves: bool) -> tuple[Piece, ...]:
    """Draw one reply: most request two or three tools, some are anything."""
    calls = st.builds(Piece, st.just("call"), id=_IDS, name=names, args=_ARGS)
    words = st.builds(Piece, st.just("text"), text=st.sampled_from(_HALVES if halves else _WHOLE))
    if draw(st.sampled_from([True, *[False] * 9])):
        kinds = [words, calls, calls, calls, _THOUGHTS, *([_HOSTILE] if hostile else [])]
        return tuple(draw(st.lists(st.one_of(kinds), max_size=5)))
    asked = draw(st.sampled_from([1, 2, 2, 3]))
    pieces = [draw(calls) for _ in range(asked)]
    if draw(st.booleans()):
        pieces.insert(draw(st.integers(0, asked)), draw(st.one_of([words, _THOUGHTS])))
    return tuple(pieces)


@st.composite
def replies(
    draw: st.DrawFn, names: tuple[str, ...] = TOOLS, hostile: bool = True, halves: bool = True
) -> tuple[tuple[Piece, ...], ...]:
    """Draw the model's replies, after which it says `done`. `halves`: with unpaired surrogates."""
    usual = tuple(name for name in names if name in (*CALM_TOOLS, "helper"))
    reply = _replies(_often(usual, names), hostile, halves)
    return tuple([draw(reply) for _ in range(draw(st.sampled_from([0, 1, 2, 2, 2, 2, 2, 3, 3, 3])))])


@st.composite
def hook_plans(draw: st.DrawFn, acts: tuple[str, ...] = ACTS) -> HookPlan:
    """Draw one hook with one behaviour on one event; in most draws the call may continue afterwards."""
    event = draw(st.sampled_from(EVENTS))
    edits = EDITS.get(event, ())
    gentle = tuple(act for act in GENTLE if act in acts)
    if draw(st.sampled_from([True, False, False])):
        action = draw(st.one_of([st.sampled_from(acts), st.sampled_from(VERDICTS)]))
    else:
        action = draw(st.one_of([st.sampled_from(words) for words in (gentle, edits) if words]))
    role = draw(st.sampled_from(["edit", "edit", "edit", *([] if ":" in action else ["guard", "observer"])]))
    policies = [None, None, "abort", "skip"] if role == "observer" else [None, None, "abort", "skip", "deny"]
    return HookPlan(
        event,
        action,
        draw(st.sampled_from([1, 1, 1, 2, 3, 0])),
        role,
        draw(st.sampled_from(["sync", "async", "mono"])),
        draw(st.sampled_from(policies)),
        draw(st.sampled_from([10, 100, 200])),
        draw(st.sampled_from([False, False, False, True])),
    )


@st.composite
def around_plans(draw: st.DrawFn) -> AroundPlan:
    """Draw one wrapper with one behaviour around one stage."""
    stage = draw(st.sampled_from(STAGES))
    action = draw(_often(PASSING, AROUND_ACTS["*"] + AROUND_ACTS[stage]))
    return AroundPlan(stage, action, draw(st.sampled_from([1, 1, 2, 0])), draw(LAGS))


@st.composite
def paths(draw: st.DrawFn) -> Path:
    """Draw one way to call."""
    kinds = ["call", "stream", "close", "break", "cancel-call", "cancel-task", "cancel-stream", "close-elsewhere"]
    kind = draw(st.sampled_from([*kinds, "interrupt", "interrupt", "interrupt", "throw", "throw"]))
    at = 0 if kind in ("call", "stream") else draw(st.sampled_from([0, 10, 20, 30, 40])) + draw(st.integers(0, 10))
    timeout = draw(st.sampled_from([None, None, None, 0.5, 2.5]))
    return Path(
        kind, at, timeout, draw(st.booleans()), *draw(st.sampled_from([(), (), ("cancel", 3), ("interrupt", 3)]))
    )


CLEANUPS = st.sampled_from(["plain", "plain", "beats", "quiet"])
ITERATIONS = st.sampled_from([1, 2, 3, 3, 3, 3])
SCHEDULES = st.sampled_from(["BY_TYPE", "BY_TYPE", "IN_CALL_ORDER", "SEQUENTIAL", "PARALLEL"])


def _several(draw: st.DrawFn, plans: st.SearchStrategy[T], *sizes: int) -> tuple[T, ...]:
    """Draw plans, as many as one of the sizes."""
    return tuple([draw(plans) for _ in range(draw(st.sampled_from(sizes)))])


@st.composite
def programs(
    draw: st.DrawFn,
    *,
    paths: st.SearchStrategy[Path] = paths(),  # noqa: B008 - a strategy is a value
    names: tuple[str, ...] = TOOLS,
) -> Program:
    """Draw any program."""
    return Program(
        draw(replies(names)),
        _several(draw, hook_plans(), 0, 1, 2, 2, 2, 3),
        _several(draw, around_plans(), 0, 1, 1, 1, 1, 2),
        draw(paths),
        draw(ITERATIONS),
        draw(SCHEDULES),
        draw(st.sampled_from(["implicit", "named", "fresh"])),
        draw(st.sampled_from(["memory", "memory", "slow"])),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(CLEANUPS),
    )


STEADY = tuple(act for act in ACTS if act != "cancel")


def _alone(plan: AroundPlan) -> bool:
    """A concurrent second run of the whole call is refused. How far the first one is at that time depends on the
    caller.
    """
    at_once = plan.action == "at-once" or (plan.action == "hedge" and plan.lag == 0)
    return not (plan.stage == "PreCall" and at_once)


def _in_turn(program: Program) -> Program:
    """If a hook fails at the first of several calls, how far the third one is depends on the order of the tasks."""
    more = any(plan.action.startswith("calls:") for plan in program.hooks)
    many = more or any(sum(piece.kind == "call" for piece in reply) > 2 for reply in program.replies)
    fails = any(plan.event in ("PreActing", "ActingChunk", "PostActing", "Error") for plan in program.hooks)
    return replace(program, schedule="SEQUENTIAL") if many and fails else program


@st.composite
def steady_programs(draw: st.DrawFn) -> Program:
    """Draw programs that end the same way however they are called: no caller leaves, and no hook cancels its own task.

    The other exclusions are in `test_laws_paths.UNSTEADY`, each as the smallest program that needs it.
    """
    program = Program(
        draw(replies()),
        _several(draw, hook_plans(STEADY), 0, 1, 1, 2, 2, 3),
        _several(draw, around_plans().filter(_alone), 0, 1),
        Path(),
        draw(ITERATIONS),
        draw(SCHEDULES),
        cleanup=draw(CLEANUPS),
    )
    return _in_turn(program)


@st.composite
def journals(draw: st.DrawFn, halves: bool = True) -> Program:
    """Draw runs in a named session whose facts are truncated and resumed. `halves`: with unpaired surrogates in
    texts.
    """
    acts = ("sleep", "inject", "inject-transient", "raise", "compact", "interrupt")
    return Program(
        draw(replies(CALM_TOOLS, hostile=False, halves=halves)),
        _several(draw, hook_plans(acts), 0, 1, 1, 2),
        (),
        Path(draw(st.sampled_from(["call", "stream"]))),
        draw(st.integers(1, 4)),
        draw(SCHEDULES),
        "named",
    )
