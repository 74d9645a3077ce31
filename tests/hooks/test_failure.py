"""Failing hooks: policies, notes, timeouts, and hooks that are disabled."""

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest
from eventlog import Recorder, history, log, streamed, use

from agentflow import Agent, Deny, Hook, Mono, Msg, ToolEmitter, on, tool
from agentflow._support.virtual_time import run_virtual
from agentflow.errors import HookError, HookTimeoutError, UsageError
from agentflow.loop.history import fold_events
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import (
    ActingChunk,
    CallEnded,
    Error,
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

DECISIONS = [PreCall, PreReasoning, PostReasoning, PreToolRound, PreActing, PostActing, PostToolRound, PostCall]
NOTIFICATIONS = [ReasoningChunk, ActingChunk, CallEnded]


@tool
async def work(emitter: ToolEmitter) -> str:
    """Emits twice."""
    await emitter.emit("one")
    await emitter.emit("two")
    return "worked"


class Bad(Hook):
    """Fails on one event class; with `edits`, after having edited the event."""

    def __init__(self, kind: type, **options: Any) -> None:
        self.kind = kind
        self.calls = 0
        for name, value in options.items():
            setattr(self, name, value)

    def on_event(self, event: Any) -> Any:
        if isinstance(event, self.kind):
            self.calls += 1
            raise ValueError("hook broke")  # noqa: TRY004 - what a broken hook raises
        return event


def agent_of(*hooks: Any, script: list[Any] | None = None) -> Agent:
    lines = script if script is not None else [[use("t1", "work")], ["e", "n", "d"]]
    return Agent("a", ScriptedModel(lines), tools=[work], hooks=list(hooks))


@pytest.mark.parametrize("kind", DECISIONS, ids=lambda kind: kind.__name__)
async def test_a_failing_hook_aborts_on_a_decision(kind: type) -> None:
    """By default an exception on a decision event aborts the call: Error, then CallEnded. The caller gets the
    exception itself, with a note that names hook, priority and event; the history is legal and the next call works.
    """
    recorder = Recorder()
    bad = Bad(kind)
    agent = agent_of(bad, recorder, script=[[use("t1", "work")], "end", "end", "end"])
    with pytest.raises(ValueError, match="hook broke") as caught:
        await agent.call("go")
    assert caught.value.__notes__ == [f"raised by hook Bad (priority 100) on {kind.__name__}"]
    kinds = [type(event) for event in recorder.seen]
    assert kinds.count(CallEnded) == 1
    assert kinds[-1] is CallEnded
    assert kinds.count(PreActing) == kinds.count(PostActing)
    assert kinds.count(PreToolRound) == kinds.count(PostToolRound)
    errors = [event for event in recorder.seen if isinstance(event, Error)]
    assert [(error.phase, error.fatal, error.hook) for error in errors] == [("hook", True, "Bad")]
    bad.kind = type(None)
    assert (await agent.call("next")).text == "end"


@pytest.mark.parametrize("kind", NOTIFICATIONS, ids=lambda kind: kind.__name__)
async def test_a_failing_hook_is_skipped_and_disabled_on_a_notification(kind: type) -> None:
    """On a notification a failure is reported and skipped, and the hook is not called for that type again in this run.
    Other hooks are."""
    bad, other = Bad(kind), Recorder()
    agent = agent_of(bad, other)
    lines = await streamed(agent)
    assert lines[-1] == "CallEnded completed"
    assert bad.calls == 1
    assert other.log == lines
    reported = [text for text in lines if text.startswith("Error")]
    assert reported == ([] if kind is CallEnded else ["Error hook ValueError: hook broke"])


@tool(type="read")
async def secrets() -> Any:
    """Yields twice."""
    yield "one"
    yield "two"


@tool(type="read")
async def deaf(emitter: ToolEmitter) -> str:
    """Emit, and ignore any failure of that."""
    try:
        await emitter.emit("one")
    except ValueError:
        return "all is well"
    return "not reached"


class Wraps(Hook):
    """Retries tools, hides their failures, and reads their chunks."""

    def around(self, event: Any, source: Any) -> Any:
        if isinstance(event, PreActing):
            return (
                source.chunks(lambda pieces: pieces.map(str))
                .retry(2)
                .catch(lambda _error, _source: Mono.just("caught"))
            )
        return source


@pytest.mark.parametrize("around", [(), (Wraps(),)], ids=["bare", "wrapped"])
@pytest.mark.parametrize("calls", [["secrets"], ["deaf"], ["work", "deaf"]], ids="-".join)
@pytest.mark.parametrize("on_failure", ["abort", "deny"])
async def test_a_check_of_pieces_that_fails_ends_the_call(on_failure: str, calls: list[str], around: Any) -> None:
    """With `on_failure="abort"`, or "deny" on an event that cannot be denied, a hook that fails on a tool's chunk
    ends the call, as on a model's, whatever the tool or a wrapping hook does, in a single call and in a parallel round.
    It is reported once, the model is not called again, and it is not in the history.
    """
    recorder = Recorder()
    bad = Bad(ActingChunk, on_failure=on_failure)
    model = ScriptedModel([[use(f"t{n}", name) for n, name in enumerate(calls)], "went on"])
    agent = Agent("a", model, tools=[secrets, deaf, work], hooks=[bad, recorder, *around])
    with pytest.raises(ValueError, match="hook broke") as caught:
        await agent.call("go")
    assert caught.value.__notes__ == ["raised by hook Bad (priority 100) on ActingChunk"]
    assert len(model.requests) == 1
    errors = [(event.phase, event.fatal, event.hook) for event in recorder.seen if isinstance(event, Error)]
    assert errors == [("hook", True, "Bad")] * bad.calls
    assert recorder.log[-1] == "CallEnded failed ValueError: hook broke"
    assert {block.text for block in agent.session().messages[-1].tool_results} <= {
        "Not finished: the call failed (ValueError).",
        "Interrupted.",
    }


async def test_a_disabled_hook_is_back_in_the_next_call() -> None:
    """A hook is disabled for one run."""
    bad = Bad(ReasoningChunk)
    agent = agent_of(bad, script=["a", "b"])
    await agent.call("1")
    await agent.call("2")
    assert bad.calls == 2


async def test_a_failing_error_hook_leaves_the_original_error() -> None:
    """The failure of a hook that handles an error is attached as a note; the caller gets the original error."""
    error = RuntimeError("model down")
    agent = agent_of(Bad(Error), script=[error])
    with pytest.raises(RuntimeError) as caught:
        await agent.call("go")
    assert caught.value is error
    assert caught.value.__notes__ == ["while this was reported, hook 'Bad' failed: ValueError: hook broke"]


class Half(Hook):
    """Edits the event, then fails."""

    def __init__(self, on_failure: Any, kind: type, field: str, value: Any) -> None:
        self.on_failure = on_failure
        self.kind, self.field, self.value = kind, field, value

    def on_event(self, event: Any) -> Any:
        if isinstance(event, self.kind):
            setattr(event, self.field, self.value(event))
            raise ValueError("half way")  # noqa: TRY004 - what a broken hook raises
        return event


class HalfLater(Half):
    async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        await asyncio.sleep(0)
        return super().on_event(event)


class Alerts(Hook):
    """Gets errors, adds a note to them, and then fails."""

    def __init__(self, **options: Any) -> None:
        for name, value in options.items():
            setattr(self, name, value)

    def on_event(self, event: Any) -> None:
        if isinstance(event, Error):
            event.error.add_note("seen by Alerts")
            raise ConnectionError("cannot reach postgres://ops:hunter2@10.0.0.7/alerts")


FAILS_WHEN_TOLD = [{}, {"observer": True}, {"on_failure": "abort"}, {"observer": True, "on_failure": "abort"}]


@pytest.mark.parametrize("options", FAILS_WHEN_TOLD, ids=str)
async def test_what_fails_while_a_tools_error_is_told_is_not_read_by_the_model(options: Any) -> None:
    """The model reads the exception as the tool raised it, with the tool's own notes, but without the failures and
    notes of hooks that handled its `Error`.
    """

    @tool(type="read")
    async def query() -> str:
        """Fails."""
        error = LookupError("no such row")
        error.add_note("tables are: users, orders")
        raise error

    model = ScriptedModel([[use("t1", "query"), use("t2", "query")], use("t3", "query"), "end"])
    await Agent("a", model, tools=[query], hooks=[Alerts(**options)]).call("go")
    read = "LookupError: no such row\ntables are: users, orders"
    assert [block.text for msg in model.requests[-1].messages for block in msg.tool_results] == [read, read, read]


@pytest.mark.parametrize("options", FAILS_WHEN_TOLD, ids=str)
async def test_what_fails_while_a_sub_agents_error_is_told_is_not_read_by_its_caller(options: Any) -> None:
    """The sub-agent's own caller, a tool, gets the error with the further failures; the calling model reads the
    error.
    """
    inner = Agent("inner", ScriptedModel([RuntimeError("model down")]), hooks=[on(Error, **options)(lambda _: 1 / 0)])
    model = ScriptedModel([use("t1", "inner", message="go"), "end"])
    await Agent("outer", model, tools=[inner]).call("go")
    assert model.requests[-1].messages[-1].tool_results[0].text == "RuntimeError: model down"


@pytest.mark.parametrize("made", [Half, HalfLater])
async def test_skip_undoes_half_made_edits(made: Any) -> None:
    """`on_failure="skip"`: the failing hook's edits are undone, those of other hooks stay, and the call continues."""

    class Before(Hook):
        priority = 1

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PostActing):
                result = event.tool_result
                event.tool_result = type(result)(result.tool_use_id, result.name, "kept")
            return event

    def spoiled(event: Any) -> Any:
        result = event.tool_result
        return type(result)(result.tool_use_id, result.name, "spoiled")

    agent = agent_of(Before(), made("skip", PostActing, "tool_result", spoiled))
    lines = await streamed(agent)
    assert "PostActing t1 success 'kept'" in lines
    assert [text for text in lines if text.startswith("Error")] == ["Error hook ValueError: half way"]
    assert lines[-1] == "CallEnded completed"


async def test_a_skipped_hook_runs_again_on_the_next_decision() -> None:
    """`skip` on a decision event does not disable the hook: a check that failed once checks again."""
    bad = Bad(PreReasoning, on_failure="skip")
    await agent_of(bad).call("go")
    assert bad.calls == 2


@pytest.mark.parametrize("kind", [PreCall, PreReasoning, PreToolRound, PreActing], ids=lambda kind: kind.__name__)
async def test_deny_fails_closed(kind: type) -> None:
    """`on_failure="deny"`: a guard that crashes denies."""
    agent = agent_of(Bad(kind, on_failure="deny", guard=True), script=[[use("t1", "work")], "end"])
    lines = await streamed(agent)
    assert next(text for text in lines if text.startswith(kind.__name__)).endswith("-> Deny(Bad)")
    assert not any("worked" in text for text in lines)


@pytest.mark.parametrize("guard", [False, True])
async def test_deny_on_postacting_withholds_the_result(guard: bool) -> None:
    """`on_failure="deny"` on PostActing: the result is withheld from history, model and stream."""
    agent = agent_of(Bad(PostActing, on_failure="deny", guard=guard))
    lines = await streamed(agent)
    withheld = "t1 denied '(withheld: Bad failed with ValueError)'"
    assert f"PostActing {withheld}" in lines
    assert history(agent.session())[2] == f"tool: {withheld}"
    assert not any("worked" in text for text in lines)


@pytest.mark.parametrize("kind", [PostReasoning, PostToolRound, PostCall], ids=lambda kind: kind.__name__)
async def test_deny_aborts_where_it_is_illegal(kind: type) -> None:
    """`on_failure="deny"` where Deny is illegal aborts the call."""
    with pytest.raises(ValueError, match="hook broke"):
        await agent_of(Bad(kind, on_failure="deny")).call("go")


@pytest.mark.parametrize("on_failure", [None, "skip"])
async def test_a_failing_observer_harms_nothing(on_failure: Any) -> None:
    """A failing observer is reported and skipped, on decision events too."""
    agent = agent_of(Bad(PostActing, observer=True, on_failure=on_failure))
    lines = await streamed(agent)
    assert [text for text in lines if text.startswith("Error")] == ["Error hook ValueError: hook broke"]
    assert lines[-1] == "CallEnded completed"


@pytest.mark.parametrize("swallows", [False, True])
def test_a_hook_that_takes_too_long(swallows: bool) -> None:
    """`timeout`: a hook that exceeds it fails with a HookTimeoutError that names hook, event and limit, even if it swallows
    the cancellation."""

    class Slow(Hook):
        timeout = 2.0

        async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            if isinstance(event, PreActing):
                with suppress(asyncio.CancelledError if swallows else ()):
                    await asyncio.sleep(3600)
            return event

    recorder = Recorder()
    with pytest.raises(HookTimeoutError) as caught:
        run_virtual(agent_of(Slow(), recorder).call("go"))
    assert str(caught.value) == "Hook 'Slow' did not finish handling PreActing within its timeout of 2 s."
    assert recorder.log[-1].startswith("CallEnded failed HookTimeoutError")


def test_a_slow_guard_denies() -> None:
    """`timeout` with `on_failure="deny"`: a guard that does not answer in time denies."""

    class Slow(Hook):
        timeout = 2.0
        guard = True
        on_failure = "deny"

        async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            if isinstance(event, PreActing):
                await asyncio.sleep(3600)
            return event

    lines = run_virtual(streamed(agent_of(Slow())))
    assert "PostActing t1 denied 'Denied: Slow failed (HookTimeoutError), so the request was denied'" in lines


async def test_a_hooks_own_timeouterror_stays_itself() -> None:
    """A TimeoutError that the hook raises itself is not reported as the hook's limit."""

    class Own(Hook):
        timeout = 2.0

        async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine") as caught:
        await agent_of(Own()).call("go")
    assert type(caught.value) is TimeoutError


def test_a_timeout_on_a_synchronous_hook_is_refused() -> None:
    """A synchronous hook cannot be timed: it is refused when the agent is built, with two alternatives."""

    class Sync(Hook):
        timeout = 1.0

        def on_event(self, event: Any) -> Any:
            return event

    with pytest.raises(UsageError) as caught:
        agent_of(Sync())
    assert str(caught.value) == (
        "Hook 'Sync' has a timeout but is synchronous, so it cannot be interrupted. Make it `async def`, or set "
        "in_thread=True."
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"guard": True, "observer": True}, "A guard may veto, an observer must not"),
        ({"on_failure": "ignore"}, "it must be 'abort', 'skip', 'deny' or None"),
        ({"timeout": 0, "in_thread": True}, "must be above 0"),
        ({"timeout": -1, "in_thread": True}, "must be above 0"),
        ({"events": []}, "events"),
        ({"events": ["PreCall"]}, "events"),
        ({"scope": "global"}, "scope"),
        ({"priority": "high"}, "priority"),
    ],
)
def test_options_that_cannot_hold_are_refused(options: dict[str, Any], text: str) -> None:
    """Options that contradict each other or have no effect are refused at registration, by name."""
    with pytest.raises(UsageError, match="Bad") as caught:
        agent_of(Bad(PreCall, **options))
    assert text in str(caught.value)


async def test_in_thread_runs_outside_the_loops_thread() -> None:
    """`in_thread=True`: a blocking function runs in a thread, with the context variables of the call, and may veto."""
    threads: list[int] = []

    class Blocking(Hook):
        in_thread = True

        def on_event(self, event: Any) -> Any:
            threads.append(threading.get_ident())
            return Deny("from a thread") if isinstance(event, PreActing) else event

    lines = await streamed(agent_of(Blocking()))
    assert "PostActing t1 denied 'Denied: from a thread'" in lines
    assert threading.get_ident() not in threads


async def test_a_hook_that_raises_cancellederror_itself_is_a_failing_hook() -> None:
    """A CancelledError without a cancellation is a failing hook, not the end of the task."""

    class Stray(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreReasoning):
                raise asyncio.CancelledError("mine")
            return event

    recorder = Recorder()
    with pytest.raises(HookError, match="raised CancelledError on PreReasoning, but the run was not cancelled"):
        await agent_of(Stray(), recorder).call("go")
    assert recorder.log[-1].startswith("CallEnded failed HookError")


async def test_a_stray_cancellederror_follows_the_policy() -> None:
    """A hook with `on_failure="skip"` that raises CancelledError itself is skipped like any failing hook."""

    class Stray(Hook):
        on_failure = "skip"

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreReasoning):
                raise asyncio.CancelledError("mine")
            return event

    assert (await agent_of(Stray()).call("go")).text == "end"


async def test_a_stray_cancellederror_of_an_observer_harms_nothing() -> None:
    """An observer or a hook of a notification that raises CancelledError itself is skipped."""

    class Stray(Hook):
        observer = True

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreReasoning):
                raise asyncio.CancelledError("mine")

    assert (await agent_of(Stray()).call("go")).text == "end"


async def test_serial_hooks_do_not_overlap_with_themselves() -> None:
    """`serial=True` keeps a hook from overlapping with itself in parallel rounds; others do overlap."""

    class Counting(Hook):
        def __init__(self, serial: bool) -> None:
            self.serial = serial
            self.now = self.most = 0

        async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            if isinstance(event, PreActing):
                self.now += 1
                self.most = max(self.most, self.now)
                await asyncio.sleep(0)
                self.now -= 1
            return event

    @tool(type="read")
    async def look() -> str:
        """Look."""
        return "seen"

    serial, free = Counting(True), Counting(False)
    calls = [use(f"t{i}", "look") for i in range(4)]
    await Agent("a", ScriptedModel([calls, "end"]), tools=[look], hooks=[free, serial]).call("go")
    assert (serial.most, free.most) == (1, 4)


def test_serial_hooks_do_not_overlap_in_threads_either() -> None:
    """Runs on event loops of their own, in threads of their own, share the hook's lock; a cancelled wait gives it up."""
    running, overlaps = threading.Lock(), threading.Event()
    entered, leave = threading.Event(), threading.Event()

    class Serial(Hook):
        serial = True

        async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            if isinstance(event, PreActing):
                if not running.acquire(blocking=False):
                    overlaps.set()
                    return
                entered.set()
                await asyncio.to_thread(leave.wait, 5)
                running.release()

    hook = Serial()

    def run(limit: float | None = None) -> None:
        with suppress(TimeoutError):
            agent_of(hook).call("go", timeout=limit).block()

    first, second = threading.Thread(target=run), threading.Thread(target=run)
    first.start()
    assert entered.wait(5)
    second.start()
    run(0.2)
    assert first.is_alive()
    leave.set()
    first.join(5)
    second.join(5)
    assert [first.is_alive(), second.is_alive(), overlaps.is_set()] == [False] * 3


async def test_events_of_other_tools_do_not_wait_for_a_hook() -> None:
    """`tools=[...]` is tested before the options: the lock of a serial hook does not concern a call of another tool."""
    ran = asyncio.Event()

    @tool(type="read")
    async def slow() -> str:
        """Slow."""
        return "seen"

    @tool(type="read")
    async def quick() -> str:
        """Quick."""
        ran.set()
        return "seen"

    @on(PreActing, tools=["slow"], serial=True)
    async def waits(event: PreActing) -> None:
        await ran.wait()

    calls = [use("t1", "slow"), use("t2", "quick")]
    async with asyncio.timeout(5):
        reply = await Agent("a", ScriptedModel([calls, "end"]), tools=[slow, quick], hooks=[waits]).call("go")
    assert (reply.text, ran.is_set()) == ("end", True)


async def test_shadow_records_and_applies_nothing() -> None:
    """`shadow=True`: edits, verdicts and failures are recorded in the context, and nothing is applied."""
    shadows: list[Any] = []

    class Shadowy(Hook):
        shadow = True

        def on_event(self, event: Any) -> Any:
            match event:
                case PreActing():
                    return Deny("would be denied")
                case PostActing():
                    event.tool_result = type(event.tool_result)("t1", "work", "would be this")
                    return event
                case PostToolRound():
                    raise ValueError("would fail")
                case _:
                    return event

    class Read(Hook):
        observer = True

        def on_event(self, event: Any) -> Any:
            if isinstance(event, CallEnded):
                shadows.extend(event.context.shadows)

    agent = agent_of(Shadowy(), Read())
    reply = await agent.call("go")
    assert reply.text == "end"
    assert history(agent.session())[2] == "tool: t1 success 'worked'"
    assert [(s.event, {k: v.text for k, v in s.changes.items()}, type(s.verdict).__name__) for s in shadows] == [
        ("PreActing", {}, "Deny"),
        ("PostActing", {"tool_result": "would be this"}, "NoneType"),
        ("PostToolRound", {}, "ValueError"),
    ]


async def test_a_failed_event_is_handed_out_with_its_error() -> None:
    """An event whose chain failed still reaches observers and the reader, once, with the failure in `event.decision`."""
    seen: list[Any] = []

    async def read() -> None:
        async with agent_of(Bad(PreReasoning)).stream("go") as events:
            async for event in events:
                seen.append(event)  # noqa: PERF401 - the stream ends with an error, what came before counts

    with pytest.raises(ValueError, match="hook broke"):
        await read()
    assert sorted(log(seen)) == [
        "CallEnded failed ValueError: hook broke",
        "Error hook fatal ValueError: hook broke",
        "PreCall user: go",
        "PreReasoning 1 reason !! ValueError(Bad)",
    ]


async def test_an_illegal_answer_is_a_failure_like_any_other() -> None:
    """`skip` undoes the edits of a hook that answers an illegal value; `deny` refuses the work."""

    class Nonsense(Hook):
        def __init__(self, on_failure: Any) -> None:
            self.on_failure = on_failure

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreCall):
                event.input_messages = [Msg.user("changed")]
                return 5
            return event

    agent = Agent("a", ScriptedModel(["done"]), hooks=[Nonsense("skip")])
    assert (await agent.call("go")).text == "done"
    assert agent.session().messages[0].text == "go"
    refused = await Agent("b", ScriptedModel([]), hooks=[Nonsense("deny")]).call("go")
    assert (refused.outcome, refused.text) == (
        "denied",
        "Nonsense failed (HookContractError), so the request was denied",
    )


@pytest.mark.parametrize("watched", [False, True])
async def test_a_broken_observer_hides_nothing_when_the_call_is_interrupted(watched: bool) -> None:
    """An observer fails on PostActing after a hook has interrupted the call. The interrupt ends the reporting of its
    failure, and the observers after it get each event all the same (law L2).
    """

    class Broken(Hook):
        observer = True
        priority = 1

        def on_event(self, event: Any) -> None:
            match event:
                case PostActing():
                    raise RuntimeError("broken")
                case _:
                    pass

    @on(PreActing)
    def stop(event: PreActing) -> None:
        if event.tool_use.id == "t2":
            event.context.interrupt("enough")

    @tool(type="read")
    async def look() -> str:
        """Look."""
        await asyncio.sleep(0)
        return "seen"

    recorder = Recorder()
    script = [[use("t1", "look"), use("t2", "look")]]
    agent = Agent("a", ScriptedModel(script), tools=[look], hooks=[Broken(), stop, recorder])
    if watched:
        await agent.stream("go").to_list()
    else:
        assert (await agent.call("go")).outcome == "interrupted"
    names = [type(event).__name__ for event in recorder.seen]
    assert (names.count("PreActing"), names.count("PostActing")) == (2, 2)
    assert names[-2:] == ["PostToolRound", "CallEnded"]


# ---- what fails while a call is being closed


class Breaks(Hook):
    """Raises on one event class, and on another that closes it."""

    def __init__(self, *kinds: type) -> None:
        self.kinds = kinds

    def on_event(self, event: Any) -> Any:
        if isinstance(event, self.kinds):
            raise ValueError(f"at {type(event).__name__}")  # noqa: TRY004 - no type is wrong
        return event


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize(("first", "then"), [(PreActing, PostActing), (PreToolRound, PostToolRound)])
async def test_the_first_failure_counts(first: type, then: type, calls: int) -> None:
    """L8: a hook that fails while a call or a round is being closed does not replace the reason of the closing."""

    @tool(type="read")
    async def look() -> str:
        """Look."""
        return "seen"

    recorder = Recorder()
    model = ScriptedModel([[use(f"t{n}", "look") for n in range(calls)]])
    agent = Agent("a", model, tools=[look], hooks=[Breaks(first, then), recorder])
    with pytest.raises(ValueError, match=f"at {first.__name__}") as caught:
        await agent.call("go")
    assert caught.value.__notes__[-1] == f"while the call was being closed: ValueError: at {then.__name__}"
    assert recorder.log[-1] == f"CallEnded failed ValueError: at {first.__name__}"
    assert fold_events(recorder.seen) == tuple(agent.session().messages)


@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("then", [PostActing, PostToolRound])
async def test_a_hook_that_fails_while_a_cancelled_call_is_closed(then: type, calls: int) -> None:
    """The task is cancelled: the hook's failure does not hide that."""
    inside = asyncio.Event()

    @tool(type="read")
    async def hang() -> str:
        """Hang."""
        inside.set()
        await asyncio.Event().wait()
        return "never"

    recorder = Recorder()
    model = ScriptedModel([[use(f"t{n}", "hang") for n in range(calls)]])
    agent = Agent("a", model, tools=[hang], hooks=[Breaks(then), recorder])

    async def call() -> None:
        await agent.call("go")

    task = asyncio.create_task(call())
    await inside.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert recorder.log[-1] == "CallEnded interrupted CancelledError:"
    opened = [event for event in recorder.seen if isinstance(event, PreActing)]
    assert len(opened) == len([event for event in recorder.seen if isinstance(event, PostActing)])
