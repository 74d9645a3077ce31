"""Random programs of certain kinds. Each combines what rarely meets by chance, and leaves the rest to chance.

A program drawn from everything rarely has an approval, a renaming hook and a wrapped round at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from laws_programs import (
    CLEANUPS,
    EVENTS,
    LAGS,
    SCHEDULES,
    STAGES,
    VERDICTS,
    AroundPlan,
    HookPlan,
    Path,
    Piece,
    Program,
    around_plans,
    hook_plans,
    paths,
)

Draw = Callable[[st.SearchStrategy[Any]], Any]
Corner = Callable[[Draw], Program]
Reply = tuple[Piece, ...]

CALL, STREAM = Path("call"), Path("stream")
WAYS = st.sampled_from([CALL, STREAM])
WORKS = ("look", "read", "save", "slow_look", "flow", "ask")
ROLES = st.sampled_from(["edit", "edit", "guard", "observer"])
NTH = st.sampled_from([0, 1, 1, 2])


def _of(draw: Draw, *values: Any) -> Any:
    return draw(st.sampled_from(values))


def _round(draw: Draw, names: tuple[str, ...], least: int = 1, most: int = 3) -> Reply:
    """A reply that asks for some of these tools."""
    chosen = draw(st.lists(st.sampled_from(names), min_size=least, max_size=most))
    return tuple([Piece("call", id=f"t{n + 1}", name=name) for n, name in enumerate(chosen)])


def _asks(draw: Draw, *names: str) -> Reply:
    """A reply that asks for these tools, in any order."""
    return tuple([Piece("call", id=f"t{n + 1}", name=name) for n, name in enumerate(draw(st.permutations(names)))])


def _program(draw: Draw, replies: tuple[Reply, ...], **settled: Any) -> Program:
    rest: dict[str, Any] = {
        "path": draw(WAYS),
        "schedule": draw(SCHEDULES),
        "session": _of(draw, "named", "named", "implicit", "fresh"),
        "store": _of(draw, "memory", "memory", "slow"),
        "earlier": draw(st.booleans()),
        "cleanup": draw(CLEANUPS),
    }
    return Program(replies, **{**rest, **settled})


def kept_sources(draw: Draw) -> Program:
    """A hook subscribes to its source late, twice, concurrently, or in a task of its own."""
    action = _of(draw, "late", "beside", "background", "hedge", "at-once", "twice")
    plan = AroundPlan(_of(draw, *STAGES), action, _of(draw, 0, 1), draw(LAGS))
    more = draw(st.lists(around_plans(), max_size=1))
    pause = (Piece("sleep"), Piece("text", "ok"))
    return _program(draw, (_round(draw, WORKS), pause), arounds=_of(draw, (plan, *more), (*more, plan)))


def second_cuts(draw: Draw) -> Program:
    """The call is ended twice, inside an operator that runs it in a task of its own."""
    kind = _of(draw, "cancel-call", "cancel-task", "cancel-stream", "interrupt", "close-elsewhere", "call")
    at, again = draw(st.integers(0, 35)), draw(st.integers(0, 25))
    path = Path(kind, at, None, False, _of(draw, "cancel", "interrupt"), again)
    around = AroundPlan(_of(draw, *STAGES), _of(draw, "race", "zip", "switch", "timeout", "beside", "swallow"), 0)
    ends = HookPlan(_of(draw, "PreActing", "PostActing", "PostReasoning"), _of(draw, "interrupt", "sleep"), draw(NTH))
    calls = _round(draw, ("cleans", "look", "nosuchtool", "slow_look", "cleans"))
    return _program(draw, (calls,), path=path, arounds=(around,), hooks=_of(draw, (), (ends,)))


def strange_replies(draw: Draw) -> Program:
    """Replies that request tools although they end the call, and empty verdicts."""
    carried = _of(draw, "AnswerCalls", "AnswerNone", "RecoverCalls", "Recover")
    event = "Error" if carried.startswith("Recover") else _of(draw, "PreCall", "PreCall", "PreReasoning")
    hooks = [HookPlan(event, carried, 0)]
    if event == "Error":
        hooks.append(HookPlan(_of(draw, "PreCall", "PreReasoning", "PostReasoning", "PostCall"), "raise"))
    plan = AroundPlan("PreCall", _of(draw, "map-calls", "just-calls", "then-error", "raise", "error"))
    arounds = _of(draw, (), (plan,)) if event != "Error" else _of(draw, (plan,), ())
    return _program(
        draw, draw(st.lists(st.just((Piece("text", "ok"),)), max_size=1)) and (), hooks=tuple(hooks), arounds=arounds
    )


def renamed_calls(draw: Draw) -> Program:
    """Hooks turn calls into calls of another type while one waits for a person."""
    renames = HookPlan("PreActing", "use:rename", _of(draw, 0, 1, 2), on_failure=None)
    more = draw(st.lists(hook_plans(("sleep", "raise", "inject")), max_size=1))
    calls = _asks(draw, "ask", "look", *_of(draw, (), ("read",), ("save",), ("look", "ask")))
    return _program(draw, (calls,), hooks=(renames, *more))


def failing_observers(draw: Draw) -> Program:
    """Observers fail while the call is ending."""
    fails = HookPlan(
        _of(draw, *EVENTS),
        "raise",
        _of(draw, 0, 1),
        "observer",
        on_failure=_of(draw, None, "abort", "skip"),
        priority=10,
    )
    ends = HookPlan(_of(draw, "PreActing", "PostActing", "PreReasoning", "PostReasoning"), "interrupt", draw(NTH))
    other = HookPlan("PostActing", "raise", 0, "observer", priority=10)
    return _program(
        draw, (_round(draw, ("look", "read", "boom"), 2),), hooks=_of(draw, (fails, ends), (fails, ends, other))
    )


def late_words(draw: Draw) -> Program:
    """Messages are injected just before the call is cancelled, fails, or is recovered."""
    spoken = HookPlan(
        _of(draw, *EVENTS), _of(draw, "inject", "inject-raise", "inject-interrupt"), _of(draw, 0, 1), priority=10
    )
    ends = HookPlan(
        _of(draw, "PostReasoning", "PostCall", "PreToolRound", "PostActing", "PostToolRound", "PreReasoning"),
        _of(draw, "raise", "interrupt", "inject-raise", "Suspend", "Stop"),
    )
    saved = _of(draw, (), (HookPlan("Error", "Recover", 0),))
    arounds = _of(draw, (), (), (AroundPlan("PreCall", "then-error"),))
    replies = _of(draw, (), (_round(draw, WORKS),))
    return _program(draw, replies, hooks=(spoken, ends, *saved), arounds=arounds)


def swallowed(draw: Draw) -> Program:
    """A hook swallows a cancellation."""
    kind = _of(draw, "cancel-call", "cancel-task", "cancel-stream", "interrupt", "close-elsewhere", "call")
    path = Path(kind, draw(st.integers(0, 35)), _of(draw, None, None, 0.5, 2.5))
    event = _of(draw, "PreCall", "PreReasoning", "PostReasoning", "PreToolRound", "PreActing", "PostActing", "PostCall")
    hook = HookPlan(event, "swallow", _of(draw, 0, 1), draw(ROLES), _of(draw, "async", "mono"))
    around = AroundPlan(_of(draw, *STAGES), "swallow", 0)
    calls = _round(draw, ("look", "slow_look", "cleans"))
    both: Any = _of(draw, ((hook,), ()), ((), (around,)), ((hook,), (around,)))
    return _program(draw, (calls,), path=path, hooks=both[0], arounds=both[1])


def hanging(draw: Draw) -> Program:
    """A hook hangs; its time limit or an interrupt ends that."""
    hangs = HookPlan(_of(draw, "CallEnded", "CallEnded", *EVENTS), "hang", _of(draw, 0, 1), draw(ROLES))
    path = _of(draw, Path("call", 0, 0.5), Path("stream", 0, 2.5), Path("interrupt", 30), Path("cancel-call", 30))
    return _program(draw, (_round(draw, WORKS),), hooks=(hangs,), path=path)


def saved(draw: Draw) -> Program:
    """Default hooks have asked the model again before the call waits for a person."""
    poor: tuple[Reply, ...] = _of(draw, ((),), ((Piece("text", "cut"), Piece("finish")),), ((Piece("think", "hm"),),))
    more = draw(st.lists(hook_plans(("inject", "sleep")), max_size=1))
    return _program(draw, (*poor, _asks(draw, "ask", "look")), hooks=tuple(more))


def failing_pieces(draw: Draw) -> Program:
    """A hook fails on a tool's chunks, or on an `Error` event, and has an `on_failure`."""
    event = _of(draw, "ActingChunk", "ActingChunk", "Error", "ReasoningChunk")
    fails = HookPlan(event, "raise", _of(draw, 0, 1), draw(ROLES), on_failure=_of(draw, "abort", "deny", None, "skip"))
    if fails.role == "observer" and fails.on_failure == "deny":
        fails = HookPlan(event, "raise", fails.nth, "observer", on_failure="abort")
    around = AroundPlan("PreActing", _of(draw, "chunks", "catch", "map"), 0)
    calls = _round(draw, ("flow", "talk", "flow_bad", "boom"), most=2)
    return _program(draw, (calls,), hooks=(fails,), arounds=_of(draw, (), (around,)))


def recursion(draw: Draw) -> Program:
    """A tool or a hook calls its own agent in the current session."""
    hook = HookPlan(_of(draw, *EVENTS), "recurse", 1, draw(ROLES), on_failure=None)
    around = AroundPlan(_of(draw, *STAGES), _of(draw, "race", "deadline", "tap"), 0)
    calls = _round(draw, ("recurses", "recurses", "look"))
    hooks = _of(draw, (), (hook,))
    return _program(draw, (calls,), hooks=hooks, arounds=_of(draw, (), (around,)), session=_of(draw, "named", "fresh"))


def waiting_rounds(draw: Draw) -> Program:
    """Rounds that wait for a person, with wrappers, or with later hooks that end the call."""
    ends = HookPlan(_of(draw, "PostToolRound", "PostActing"), _of(draw, "raise", "interrupt", "Stop"), _of(draw, 0, 1))
    around = AroundPlan(_of(draw, "PreToolRound", "PreActing"), _of(draw, "twice", "hedge", "retry", "drop", "late"), 0)
    both: Any = _of(draw, ((ends,), ()), ((), (around,)), ((ends,), (around,)))
    return _program(draw, (_asks(draw, "ask", *_of(draw, (), ("look",), ("ask",))),), hooks=both[0], arounds=both[1])


def own_cancellations(draw: Draw) -> Program:
    """`CancelledError`s without a cancellation, and calls that are cancelled before their first step."""
    around = AroundPlan(_of(draw, *STAGES), "cancelled", _of(draw, 0, 1))
    hook = HookPlan(_of(draw, *EVENTS), "raise-cancelled", 1, draw(ROLES), _of(draw, "async", "mono"))
    path = _of(draw, draw(paths()), CALL, STREAM, Path("cancel-task", draw(st.integers(0, 2))))
    both: Any = _of(draw, ((hook,), ()), ((), (around,)), ((), ()))
    return _program(draw, (_round(draw, WORKS),), path=path, hooks=both[0], arounds=both[1])


def given_replies(draw: Draw) -> Program:
    """A verdict, a wrapper, a limit or a recovery supplies the reply, and messages are injected around it."""
    verdict = HookPlan(
        _of(draw, "PreCall", "PreCall", "PreReasoning", "PostReasoning"), _of(draw, *VERDICTS), priority=200
    )
    given = _of(draw, (verdict,), (verdict,), (), (HookPlan("PreReasoning", "raise"), HookPlan("Error", "Recover", 0)))
    spoken = [
        HookPlan(_of(draw, *EVENTS), _of(draw, "inject", "inject", "inject-interrupt", "inject-raise"), _of(draw, 0, 1))
        for _ in range(draw(st.integers(1, 2)))
    ]
    acts = ("veto", "error", "empty", "catch", "timeout", "map", "just", "swallow", "raise")
    layer = AroundPlan(_of(draw, "PreCall", "PreReasoning"), _of(draw, *acts), 0, draw(LAGS))
    replies = _of(draw, (), (_round(draw, WORKS),))
    hooks = (*given, *spoken)
    return _program(draw, replies, hooks=hooks, arounds=_of(draw, (), (layer,)), max_iterations=_of(draw, 1, 3))


def untold_words(draw: Draw) -> Program:
    """Hooks of `MessagesAdded` end or delay the reporting of messages, while the call is cancelled, fails, or
    completes.
    """
    failure = _of(draw, "abort", "abort", None)
    action = _of(
        draw, "raise", "raise", "inject-raise", "interrupt", "sleep", "cancel", "raise-base", "raise-cancelled"
    )
    fails = HookPlan("MessagesAdded", action, draw(NTH), draw(ROLES), _of(draw, "sync", "async"), failure, 10)
    spoken = HookPlan(_of(draw, *EVENTS), "inject", _of(draw, 0, 1, 2), priority=_of(draw, 10, 200))
    again = HookPlan(_of(draw, *EVENTS), _of(draw, "inject", "interrupt", "raise", "Again", "Stop"), draw(NTH))
    saves = _of(draw, (), (), (HookPlan("Error", _of(draw, "Recover", "raise", "inject"), 0),))
    kind = _of(draw, "call", "call", "stream", "cancel-call", "cancel-stream", "interrupt", "close-elsewhere", "throw")
    second = _of(draw, (), ("cancel", draw(st.integers(0, 20))), ("interrupt", 3))
    path = Path(kind, draw(st.integers(0, 30)), _of(draw, None, 0.5, 0.5, 2.5), draw(st.booleans()), *second)
    said = (Piece("text", "ok"), *_of(draw, (), (Piece("sleep"), Piece("text", "no"))))
    replies = _of(draw, (said,), (_round(draw, (*WORKS, "injects")), said), (_round(draw, (*WORKS, "halt")),))
    limit = _of(draw, 1, 1, 3)
    return _program(draw, replies, path=path, hooks=(fails, spoken, again, *saves), max_iterations=limit)


CORNERS: tuple[Corner, ...] = (
    given_replies,
    untold_words,
    kept_sources,
    second_cuts,
    strange_replies,
    renamed_calls,
    failing_observers,
    late_words,
    swallowed,
    hanging,
    saved,
    failing_pieces,
    recursion,
    waiting_rounds,
    own_cancellations,
)
