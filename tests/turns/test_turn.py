"""Running a turn: limits, locks, retries, verdicts, cancellation, streams, costs."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from turnlog import Log, add, count, worker

from agentflow import (
    ActingChunk,
    Agent,
    Answer,
    Approve,
    Deny,
    Error,
    Hook,
    PostActing,
    PreActing,
    RunContext,
    Stop,
    Suspend,
    ToolContext,
    ToolEmitter,
    ToolUseBlock,
    Turn,
    Usage,
    Veto,
    external_tool,
    on,
    tool,
)
from agentflow._support.virtual_time import run_virtual
from agentflow.agent import StopReason
from agentflow.errors import (
    ModelError,
    SafeExecutionError,
    ToolArgumentError,
    ToolError,
    TurnDeniedError,
    TurnTimeoutError,
    UsageError,
)
from agentflow.testing.scripted import ScriptedModel
from agentflow.tools import Tool
from agentflow.vocabulary.events import PostTurn, PreTurn, TurnValue


async def ends(turn: Turn[Any]) -> tuple[str, StopReason | None]:
    """Check what awaiting or reading a turn raises, its stop reason, and that it has ended."""
    try:
        if turn.tool.streaming:
            async for _ in turn.yielding():
                pass
        else:
            await turn.returning()
        raised = ""
    except BaseException as error:
        raised = type(error).__name__
    assert not turn.running
    assert turn.end_time is not None
    return raised, turn.stop_reason


async def read(turn: Turn[Any], got: list[Any], wait: float = 0) -> None:
    """Read a stream's values into a list, with a delay for each."""
    async for value in turn.yielding():
        got.append(value)
        await asyncio.sleep(wait)


# ---- limits


async def test_the_tools_own_timeout_error_is_no_timeout() -> None:
    """A `TimeoutError` that the tool raises is its own error, and is raised unchanged."""

    @tool
    async def slow_server() -> str:
        raise TimeoutError("the server")

    assert await ends(Turn(slow_server)) == ("TimeoutError", "failed")


def test_an_inner_turns_timeout_is_an_error_of_the_outer() -> None:
    """Only the turn that exceeded its limit has timed out."""

    @tool
    async def hang() -> str:
        await asyncio.sleep(100)
        return ""

    inner = Turn(hang, timeout=1)

    @tool
    async def outside() -> str:
        return await inner.returning()

    async def main() -> Any:
        outer = Turn(outside)
        return await ends(outer), inner.stop_reason

    assert run_virtual(main()) == (("TurnTimeoutError", "failed"), "timeout")


def test_an_inner_turns_timeout_in_a_call_is_an_error_too() -> None:
    """In a call, the result of the outer tool is an error and no timeout."""

    @tool
    async def hang() -> str:
        await asyncio.sleep(100)
        return ""

    @tool
    async def outside() -> str:
        return await Turn(hang, timeout=1).returning()

    async def main() -> Any:
        agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "outside", {}), "ok"]), tools=[outside])
        await agent.call("go")
        return agent.session().messages[2].tool_results[0].state

    assert run_virtual(main()) == "error"


def test_waiting_for_the_lock_does_not_count() -> None:
    """A turn with a limit of 5 s that waits 30 s for the lock and works 3 s does not time out."""

    @tool(lock=True, timeout=5)
    async def locked(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return asyncio.get_running_loop().time()

    async def main() -> Any:
        first = asyncio.create_task(Turn(locked, {"seconds": 30}, timeout=None).returning())
        await asyncio.sleep(0)
        second = Turn(locked, {"seconds": 3})
        third = Turn(locked, {"seconds": 6})
        return await first, await second.returning(), await ends(third)

    assert run_virtual(main()) == (30, 33, ("TurnTimeoutError", "timeout"))


def test_the_readers_time_does_not_count() -> None:
    """A reader that takes 100 s for each value of a stream with a limit of 5 s gets all of them."""

    @tool(timeout=5)
    async def drip() -> AsyncIterator[int]:
        for i in range(4):
            await asyncio.sleep(1)
            yield i

    async def main() -> Any:
        turn, got = Turn(drip), list[int]()
        async for value in turn.yielding():
            got.append(value)
            await asyncio.sleep(100)
        return got, turn.stop_reason

    assert run_virtual(main()) == ([0, 1, 2, 3], "completed")


def test_the_tools_time_counts_over_the_whole_stream() -> None:
    """Steps of 2 s with a limit of 5 s: two values, and then the limit, however long the reader takes; the stream is
    closed.
    """
    closed: list[float] = []

    @tool(timeout=5)
    async def drip() -> AsyncIterator[int]:
        try:
            for i in range(4):
                await asyncio.sleep(2)
                yield i
        finally:
            closed.append(asyncio.get_running_loop().time())

    async def main() -> Any:
        turn, got = Turn(drip), list[int]()
        with pytest.raises(TurnTimeoutError):
            await read(turn, got, 50)
        return got, turn.stop_reason, len(closed)

    assert run_virtual(main()) == ([0, 1], "timeout", 1)


def test_hooks_that_see_pieces_do_not_count() -> None:
    """A hook that takes 100 s for each chunk uses none of the tool's 5 s."""

    @tool(timeout=5)
    async def emits(emitter: ToolEmitter) -> str:
        for i in range(3):
            await asyncio.sleep(1)
            await emitter.emit(i)
        return "done"

    @on(ActingChunk)
    async def slow(event: ActingChunk) -> None:
        await asyncio.sleep(100)

    async def main() -> Any:
        return await Turn(emits, hooks=[slow]).returning()

    assert run_virtual(main()) == "done"


def test_a_tool_that_turns_its_cancellation_into_an_error() -> None:
    """It has timed out, and the task that ran it has no pending cancellation."""

    @tool(timeout=1)
    async def stubborn() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            raise RuntimeError("cleanup failed") from None
        return ""

    async def main() -> Any:
        turn = Turn(stubborn)
        with pytest.raises((TurnTimeoutError, RuntimeError)):
            await turn.returning()
        task = asyncio.current_task()
        assert task is not None
        return turn.stop_reason, task.cancelling()

    assert run_virtual(main()) == ("timeout", 0)


LATE = (
    "Tool 'finishes' did not finish within 1 s and was cancelled. It ignored the cancellation and finished "
    "later; that result was discarded."
)


@tool(timeout=1)
async def finishes(values: int) -> AsyncIterator[str]:
    """Continue as if nothing had happened."""
    for number in range(values):
        yield str(number)
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(100)


def test_a_tool_that_finishes_against_its_cancellation() -> None:
    """It has timed out: its return value is dropped, and the error says so."""

    @tool(timeout=1, name="finishes")
    async def returns() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(100)
        return "all the same"

    async def main() -> Any:
        turn = Turn(returns)
        with pytest.raises(TurnTimeoutError) as caught:
            await turn.returning()
        task = asyncio.current_task()
        assert task is not None
        assert caught.value.late
        return str(caught.value), turn.stop_reason, turn.output, task.cancelling()

    assert run_virtual(main()) == (LATE, "timeout", None, 0)


@pytest.mark.parametrize("values", [0, 2])
def test_a_stream_that_ends_against_its_cancellation(values: int) -> None:
    """It has timed out too; the reader has the values that came in time."""

    async def main() -> Any:
        turn, got = Turn(finishes, {"values": values}), list[str]()
        with pytest.raises(TurnTimeoutError) as caught:
            await read(turn, got)
        return str(caught.value), got, turn.stop_reason

    assert run_virtual(main()) == (LATE, ["0", "1"][:values], "timeout")


def test_a_models_tool_that_finishes_against_its_cancellation() -> None:
    """The same holds in a call: the model reads that it came too late."""

    async def main() -> Any:
        agent = Agent("a", ScriptedModel([ToolUseBlock("t", "finishes", {"values": 1}), "end"]), tools=[finishes])
        await agent.call("go")
        [result] = agent.session().messages[2].tool_results
        return result.text, result.state

    assert run_virtual(main()) == (LATE, "timeout")


def test_a_stream_that_ignores_its_cancellation() -> None:
    """It is closed at its next value, which is dropped: no tool works past its limit."""

    @tool(timeout=5)
    async def deaf() -> AsyncIterator[int]:
        for i in range(100):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(2)
            yield i

    async def main() -> Any:
        turn, got = Turn(deaf), list[int]()
        with pytest.raises(TurnTimeoutError):
            await read(turn, got)
        task = asyncio.current_task()
        assert task is not None
        return got, turn.stop_reason, task.cancelling()

    assert run_virtual(main()) == ([0, 1], "timeout", 0)


@pytest.mark.parametrize("retries", [0, 3])
def test_a_tool_that_ignores_a_cancellation_from_outside(retries: int) -> None:
    """The caller gets a cancelled turn; a late return value is dropped."""

    @tool(retries=retries)
    async def deaf() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
        return "late"

    async def main() -> Any:
        turn = Turn(deaf)
        task = asyncio.create_task(turn.returning())  # type: ignore[arg-type]
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return turn.stop_reason, turn.output

    assert run_virtual(main()) == ("interrupted", None)


async def test_a_tool_with_time_limits_of_its_own() -> None:
    """`asyncio.timeout` inside a tool is independent of the turn's cancellation."""

    @tool
    async def patient() -> str:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            return "gave up"
        return ""

    assert await Turn(patient).returning() == "gave up"


# ---- retries


class Flaky:
    """A tool's function that fails as scripted."""

    def __init__(self, *failures: BaseException | float) -> None:
        self.failures = list(failures)
        self.runs = 0

    async def work(self) -> str:
        self.runs += 1
        if self.failures:
            failure = self.failures.pop(0)
            if isinstance(failure, BaseException):
                raise failure
            await asyncio.sleep(failure)
        return f"run {self.runs}"


def flaky_tool(flaky: Flaky, **options: Any) -> Tool[..., Any]:
    async def flaky_work() -> str:
        """Fail as scripted."""
        return await flaky.work()

    return tool(**options)(flaky_work)


def test_retries_cover_exceptions_and_timeouts() -> None:
    """Each attempt has the whole limit; the waits between them do not count."""

    async def main() -> Any:
        flaky = Flaky(ValueError("one"), 100.0)
        turn = Turn(flaky_tool(flaky, retries=2, timeout=5))
        return await turn.returning(), turn.stop_reason, flaky.runs

    assert run_virtual(main()) == ("run 3", "completed", 3)


def test_retries_run_out() -> None:
    """The last error is raised, and reported once."""

    async def main() -> Any:
        flaky, log = Flaky(*[ValueError(str(i)) for i in range(9)]), Log()
        turn = Turn(flaky_tool(flaky, retries=2), hooks=[log])
        with pytest.raises(ValueError, match="2"):
            await turn.returning()
        return turn.stop_reason, flaky.runs, log.names

    names = ["PreTurn", "PreActing", "Error", "PostActing", "PostTurn"]
    assert run_virtual(main()) == ("failed", 3, names)


def test_retries_wait_as_long_as_they_are_asked_to() -> None:
    """A tool whose own model is busy is tried again after the requested wait, on its clock; if that is longer than a
    tool waits, its error is raised at once. A note names the tool that gave up.
    """

    def busy(seconds: float) -> ModelError:
        return ModelError("busy", retryable=True, retry_after=seconds)

    async def main() -> Any:
        flaky, patient = Flaky(busy(3.0), busy(0.5), ValueError("no")), Flaky(busy(6.0))
        turn = Turn(flaky_tool(flaky, retries=2))
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(ValueError, match="no") as caught:
            await turn.returning()
        waited = loop.time() - begun
        with pytest.raises(ModelError) as refused:
            await Turn(flaky_tool(patient, retries=2)).returning()
        notes = [getattr(one.value, "__notes__", []) for one in (caught, refused)]
        return waited, flaky.runs, patient.runs, notes

    assert run_virtual(main()) == (3.5, 3, 1, [["Tool 'flaky_work' gave up: 3 attempts failed"], []])


def test_retries_never_cover_cancellation() -> None:
    """A cancelled turn has finished at once."""

    async def main() -> Any:
        flaky = Flaky(100.0, 100.0)
        turn = Turn(flaky_tool(flaky, retries=5))
        task = asyncio.create_task(turn.returning())  # type: ignore[arg-type]
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return turn.stop_reason, flaky.runs

    assert run_virtual(main()) == ("interrupted", 1)


async def test_retries_never_cover_wrong_arguments() -> None:
    """They would not fit the second time either."""
    starts: list[int] = []

    @tool(retries=5)
    async def strict(n: int, context: ToolContext) -> int:
        starts.append(context.attempt)
        return n

    turn = Turn(strict, {"n": "many"})
    with pytest.raises(ToolArgumentError, match="n: "):
        await turn.returning()
    assert (starts, turn.stop_reason) == ([], "failed")


def test_retries_never_cover_a_stream_that_was_seen() -> None:
    """A reader with the first value gets the error; a reader without one gets the second attempt."""

    @tool(retries=1)
    async def breaks(after: int, context: ToolContext) -> AsyncIterator[int]:
        for i in range(2):
            if context.attempt == 1 and i == after:
                raise ConnectionError
            yield i

    async def main() -> Any:
        seen: list[int] = []
        with pytest.raises(ConnectionError):
            await read(Turn(breaks, {"after": 1}), seen)
        unseen = [value async for value in Turn(breaks, {"after": 0}).yielding()]
        return seen, unseen

    assert run_virtual(main()) == ([0], [0, 1])


def test_the_lock_is_free_between_attempts() -> None:
    """While a locked tool waits for its next attempt, other calls may take the lock."""

    async def main() -> Any:
        order: list[str] = []
        flaky = Flaky(ValueError())

        @tool(lock=True, retries=1)
        async def shared(who: str) -> None:
            order.append(who)
            if who == "first":
                await flaky.work()

        first = asyncio.create_task(Turn(shared, {"who": "first"}).returning())  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        await Turn(shared, {"who": "second"}).returning()
        await first
        return order

    assert run_virtual(main()) == ["first", "second", "first"]


# ---- locks


async def test_a_locked_tool_that_runs_itself_is_an_error_and_no_deadlock() -> None:
    """The inner turn raises the reason; the outer one fails with it, and the lock is free afterwards."""

    @tool(lock=True)
    async def again(deep: bool) -> str:
        return await Turn(again, {"deep": False}).returning() if deep else "bottom"

    with pytest.raises(ToolError, match="called itself while holding its own lock"):
        await Turn(again, {"deep": True}).returning()
    assert await Turn(again, {"deep": False}).returning() == "bottom"


def test_a_locked_tool_with_retries_that_runs_itself() -> None:
    """Another attempt would not help, so there is none."""
    runs: list[bool] = []

    @tool(lock=True, retries=3)
    async def again(deep: bool) -> str:
        runs.append(deep)
        return await Turn(again, {"deep": False}).returning() if deep else "bottom"

    async def main() -> Any:
        with pytest.raises(ToolError, match="called itself while holding its own lock"):
            await Turn(again, {"deep": True}).returning()
        return runs

    assert run_virtual(main()) == [True]


async def test_a_locked_tool_that_reaches_itself_through_a_sub_agent() -> None:
    """The sub-agent's model reads the error; nothing waits indefinitely."""

    @tool(lock=True)
    async def shared(deep: bool) -> str:
        if not deep:
            return "bottom"
        model = ScriptedModel([ToolUseBlock("t1", "shared", {"deep": False}), "gave up"])
        sub = Agent("sub", model, tools=[shared])
        reply = await sub.call("go")
        return f"{reply.text}: {sub.session().messages[2].tool_results[0].text}"

    assert "called itself while holding its own lock" in await Turn(shared, {"deep": True}).returning()


async def test_a_task_that_outlives_the_locked_tool_may_take_the_lock_later() -> None:
    """A task that a tool has started no longer holds its lock."""
    left: list[asyncio.Task[Any]] = []
    over = asyncio.Event()

    @tool(lock=True)
    async def shared(leave: bool) -> str:
        async def later() -> str:
            await over.wait()
            return await Turn(shared, {"leave": False}).returning()

        if leave:
            left.append(asyncio.create_task(later()))
        return "ran"

    await Turn(shared, {"leave": True}).returning()
    over.set()
    assert await left[0] == "ran"


async def test_two_locked_tools_may_nest() -> None:
    """Only a lock that the task itself holds is refused."""

    @tool(lock=True)
    async def inner() -> str:
        return "in"

    @tool(lock=True)
    async def outer() -> str:
        return await Turn(inner).returning()

    assert await Turn(outer).returning() == "in"


# ---- verdicts


async def test_deny() -> None:
    """The tool does not run, and the turn is denied with the reason."""

    @on(PreActing)
    def never(event: PreActing) -> Deny:
        return Deny("not today")

    turn = Turn(add, {"a": 1, "b": 2}, hooks=[never])
    with pytest.raises(TurnDeniedError, match="not today"):
        await turn.returning()
    assert turn.stop_reason == "denied"


async def test_veto_equals_deny() -> None:
    """It has the same effect."""

    @on(PreActing)
    def never(event: PreActing) -> None:
        raise Veto("not today")

    assert await ends(Turn(add, {"a": 1, "b": 2}, hooks=[never])) == ("TurnDeniedError", "denied")


async def test_answer() -> None:
    """The answer replaces the tool's value, as the same object."""
    answer = {"from": "the cache"}

    @on(PreActing)
    def cached(event: PreActing) -> Answer:
        return Answer(answer)

    turn = Turn(add, {"a": 1, "b": 2}, hooks=[cached])
    assert await turn.returning() is answer  # type: ignore[comparison-overlap]
    assert (turn.stop_reason, turn.output) == ("completed", answer)


async def test_answer_of_a_stream() -> None:
    """An answered stream has one value: the answer."""

    @on(PreActing)
    def cached(event: PreActing) -> Answer:
        return Answer("known")

    turn = Turn(count, {"n": 5}, hooks=[cached])
    assert [value async for value in turn.yielding()] == ["known"]
    assert turn.stop_reason == "completed"


async def test_a_suspend_is_a_denial_until_it_is_approved() -> None:
    """A turn cannot wait: it reports that it needs approval, and runs with one."""

    @on(PreActing)
    def asks(event: PreActing) -> Suspend:
        return Suspend("sure?")

    turn = Turn(add, {"a": 1, "b": 2}, hooks=[asks])
    with pytest.raises(TurnDeniedError, match=r"turn\.approval = Approve\(\)"):
        await turn.returning()
    assert turn.stop_reason == "denied"
    turn.approval = Approve()
    assert await turn.returning() == 3


@pytest.mark.parametrize(
    ("approval", "outcome"),
    [
        (None, "TurnDeniedError"),
        (Approve(), "deleted a"),
        (Approve(input={"path": "b"}), "deleted b"),
        (Deny("no"), "TurnDeniedError"),
        (Answer("by hand"), "by hand"),
    ],
)
async def test_a_tool_that_requires_approval(approval: Any, outcome: str) -> None:
    """It runs with an approval only; a denial and an answer count as in a call."""

    @tool(requires_approval=True)
    async def delete(path: str) -> str:
        return f"deleted {path}"

    turn = Turn(delete, {"path": "a"}, approval=approval)
    try:
        got = await turn.returning()
    except TurnDeniedError as error:
        got = type(error).__name__
    assert got == outcome


async def test_an_external_tool_takes_an_answer_alone() -> None:
    """Nothing can run it: without an answer the turn is denied and names the legal values; with an approval too."""
    ask = external_tool("ask_user", "Ask.", {"type": "object", "properties": {}})
    for approval in (None, Approve()):
        turn = Turn(ask, {}, approval=approval)
        with pytest.raises(TurnDeniedError, match=r"turn\.approval = Answer\("):
            await turn.returning()
        assert turn.stop_reason == "denied"
    assert await Turn(ask, {}, approval=Answer("blue")).returning() == "blue"  # type: ignore[comparison-overlap]


async def test_a_turn_of_a_suspended_sub_agent_says_who_waits() -> None:
    """Its approval cannot be passed through a turn, so the error does not ask for one."""

    @tool(requires_approval=True)
    async def delete() -> str:
        return "deleted"

    sub = Agent("sub", ScriptedModel([ToolUseBlock("t1", "delete", {})]), tools=[delete])
    with pytest.raises(TurnDeniedError, match=r"agent 'sub'.*'delete'"):
        await Turn(sub.as_tool(), {"message": "go"}).returning()


async def test_arguments_that_a_hook_edits() -> None:
    """They reach the tool; the turn keeps its own."""

    @on(PreActing)
    def double(event: PreActing) -> None:
        event.tool_use = event.tool_use.replace(input={"a": 10, "b": 20})

    turn = Turn(add, {"a": 1, "b": 2}, hooks=[double])
    assert await turn.returning() == 30
    assert dict(turn.arguments) == {"a": 1, "b": 2}


async def test_arguments_that_a_hook_spoils_are_checked() -> None:
    """The tool does not run with invalid arguments."""

    @on(PreActing)
    def spoil(event: PreActing) -> None:
        event.tool_use = event.tool_use.replace(input={"a": "x"})

    assert await ends(Turn(add, {"a": 1, "b": 2}, hooks=[spoil])) == ("ToolArgumentError", "failed")


async def test_a_result_that_a_hook_edits() -> None:
    """The caller gets the edited text instead of the value."""

    @on(PostActing)
    def mask(event: PostActing) -> None:
        event.tool_result = replace(event.tool_result, content="***")

    assert await Turn(add, {"a": 1, "b": 2}, hooks=[mask]).returning() == "***"  # type: ignore[comparison-overlap]


async def test_a_failure_that_a_hook_makes_good() -> None:
    """A successful result instead of the error is the turn's value."""

    @tool
    async def broken() -> str:
        raise ValueError

    @on(PostActing)
    def mend(event: PostActing) -> None:
        event.tool_result = replace(event.tool_result, content="a default", state="success")

    turn = Turn(broken, hooks=[mend])
    assert await turn.returning() == "a default"
    assert turn.stop_reason == "completed"


class Again(Hook):
    """Repeats the work of a tool once."""

    def around(self, event: Any, source: Any) -> Any:
        return source.retry(2) if isinstance(event, PreActing) else source


async def test_a_wrapping_hook_may_retry_a_turn() -> None:
    """It wraps the work that follows `PreActing`, as in a call."""
    flaky = Flaky(ValueError("once"))
    turn = Turn(flaky_tool(flaky), hooks=[Again()])
    assert (await turn.returning(), flaky.runs) == ("run 2", 2)


class Transforms(Hook):
    """Changes the chunks of a tool."""

    def around(self, event: Any, source: Any) -> Any:
        return source.chunks(lambda pieces: pieces.map(lambda n: n * 10)) if isinstance(event, PreActing) else source


async def test_a_wrapping_hook_may_change_the_values_of_a_turn() -> None:
    """Readers and hooks get the changed values."""
    log = Log()
    turn = Turn(count, {"n": 3}, hooks=[Transforms(), log])
    assert [value async for value in turn.yielding()] == [0, 10, 20]
    assert [event.chunk for event in log.seen if isinstance(event, ActingChunk)] == [0, 10, 20]


async def test_a_stop_on_a_turn_by_hand_ends_nothing_else() -> None:
    """There is no queue to end: the value is returned."""

    @on(PostActing)
    def enough(event: PostActing) -> Stop:
        return Stop("enough")

    assert await Turn(add, {"a": 1, "b": 2}, hooks=[enough]).returning() == 3


# ---- hooks that raise


KINDS = [PreTurn, PreActing, ActingChunk, TurnValue, PostActing, Error, PostTurn]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, KeyboardInterrupt])
@pytest.mark.parametrize("of", ["value", "stream", "failure"])
async def test_a_hook_that_raises_never_leaves_a_turn_running(kind: type, error: type[BaseException], of: str) -> None:
    """Whatever it raises, at whatever event, of a turn that works or fails: the turn has ended, and may run again."""
    armed = True

    @on(kind)
    def fail(event: Any) -> None:
        if armed:
            raise error("hook")

    @tool
    async def breaks() -> str:
        raise LookupError

    made: dict[str, Turn[Any]] = {
        "value": Turn(add, {"a": 1, "b": 2}, hooks=[fail]),
        "stream": Turn(count, {"n": 2}, hooks=[fail]),
        "failure": Turn(breaks, hooks=[fail]),
    }
    turn = made[of]
    await ends(turn)
    assert turn.stop_reason is not None
    armed = False
    await ends(turn)
    assert turn.stop_reason == ("failed" if of == "failure" else "completed")


async def test_the_original_error_comes_out_when_post_turn_fails_too() -> None:
    """A failure while the turn is closed is a note on it."""

    @tool
    async def breaks() -> str:
        raise LookupError("first")

    @on(PostTurn)
    def fail(event: PostTurn) -> None:
        raise ValueError("second")

    with pytest.raises(LookupError, match="first") as caught:
        await Turn(breaks, hooks=[fail]).returning()
    assert "while the turn was being closed: ValueError: second" in caught.value.__notes__


# ---- cancellation


class Bench:
    """A streaming and a returning tool that report their position, and record their cleanup."""

    def __init__(self) -> None:
        self.at = ""
        self.reached = asyncio.Event()
        self.cleaned = 0

        @tool(lock=True, timeout=None)
        async def value() -> str:
            """Wait."""
            try:
                await self.stay("tool")
            finally:
                self.cleaned += 1
            return "made"

        @tool(lock=True, timeout=None)
        async def stream() -> AsyncIterator[int]:
            """Yield two values, with a wait before each."""
            try:
                for i in range(2):
                    await self.stay(f"step {i}")
                    yield i
            finally:
                self.cleaned += 1

        self.value = value
        self.stream = stream
        self.hold = ""

    async def stay(self, at: str) -> None:
        if at == self.hold:
            self.reached.set()
            await asyncio.Event().wait()

    def hook(self) -> Hook:
        @on(PreTurn, PreActing, ActingChunk, TurnValue, PostActing, PostTurn)
        async def holding(event: Any) -> None:
            await self.stay(type(event).__name__)

        return holding


STEPS = ["PreTurn", "PreActing", "tool", "PostActing", "TurnValue", "PostTurn"]


@pytest.mark.parametrize("step", STEPS)
async def test_a_turn_whose_task_is_cancelled(step: str) -> None:
    """At every step: the tool cleans up once if it has begun, the lock is free, and the turn is cancelled."""
    bench = Bench()
    bench.hold = step
    turn = Turn(bench.value, hooks=[bench.hook()])
    task = asyncio.create_task(turn.returning())  # type: ignore[arg-type]
    await bench.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    begun = STEPS.index(step) >= STEPS.index("tool")
    assert (turn.stop_reason, turn.running, bench.cleaned) == ("interrupted", False, int(begun))
    assert bench.value.lock is not None
    assert not bench.value.lock.locked
    bench.hold = ""
    assert await turn.returning() == "made"


STREAM_STEPS = ["PreTurn", "PreActing", "step 0", "ActingChunk", "TurnValue", "step 1", "PostActing", "PostTurn"]


@pytest.mark.parametrize("step", STREAM_STEPS)
@pytest.mark.parametrize("way", ["cancel", "aclose"])
async def test_a_stream_that_is_cut_while_it_works(step: str, way: str) -> None:
    """Its reader is cancelled, or the block left, at every step: the generator is closed once, and the lock is free."""
    bench = Bench()
    bench.hold = step
    turn = Turn(bench.stream, hooks=[bench.hook()])
    async with turn.yielding() as stream:

        async def read() -> None:
            async for _ in stream:
                pass

        task = asyncio.create_task(read())
        await bench.reached.wait()
        if way == "cancel":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
    await asyncio.wait([task])
    assert task.cancelled()
    begun = STREAM_STEPS.index(step) >= STREAM_STEPS.index("step 0")
    assert (turn.stop_reason, turn.running, bench.cleaned) == ("interrupted", False, int(begun))
    assert bench.stream.lock is not None
    assert not bench.stream.lock.locked
    bench.hold = ""
    assert [value async for value in turn.yielding()] == [0, 1]


async def test_a_stream_that_its_reader_closes_between_two_values() -> None:
    """`aclose()` returns when the cleanup has finished, once."""
    bench = Bench()
    turn = Turn(bench.stream)
    stream = aiter(turn.yielding())
    assert await anext(stream) == 0
    await stream.aclose()  # type: ignore[attr-defined]
    assert (turn.stop_reason, turn.running, bench.cleaned) == ("interrupted", False, 1)
    await stream.aclose()  # type: ignore[attr-defined]
    assert bench.cleaned == 1


async def test_a_bare_break_is_cleaned_up_at_the_next_turn_of_the_loop() -> None:
    """The stream is not closed explicitly: it closes itself when it is dropped."""
    bench = Bench()
    turn = Turn(bench.stream)
    async for _ in turn.yielding():
        break
    gc.collect()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (turn.stop_reason, turn.running, bench.cleaned) == ("interrupted", False, 1)


async def test_async_with_is_cleaned_up_at_its_end() -> None:
    """Leaving the block closes the stream before the next line."""
    bench = Bench()
    turn = Turn(bench.stream)
    async with turn.yielding() as values:
        async for _ in values:
            break
    assert (turn.stop_reason, turn.running, bench.cleaned) == ("interrupted", False, 1)


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_subscription_that_is_disposed(streaming: bool) -> None:
    """Disposing cancels the turn, and the tool cleans up."""
    bench = Bench()
    bench.hold = "step 0" if streaming else "tool"
    turn: Turn[Any] = Turn(bench.stream if streaming else bench.value)
    got: list[Any] = []
    source: Any = turn.yielding() if streaming else turn.returning()
    subscription = source.subscribe(got.append)
    await bench.reached.wait()
    subscription.dispose()
    for _ in range(10):
        await asyncio.sleep(0)
    assert (turn.stop_reason, turn.running, bench.cleaned, got) == ("interrupted", False, 1, [])


async def test_a_waiter_for_the_lock_that_is_cancelled() -> None:
    """It has not begun: nothing is cleaned up, and the next one gets the lock."""
    bench = Bench()
    bench.hold = "tool"
    holder = asyncio.create_task(Turn(bench.value).returning())  # type: ignore[arg-type]
    await bench.reached.wait()
    waiting = Turn(bench.value)
    waiter = asyncio.create_task(waiting.returning())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert (waiting.stop_reason, bench.cleaned) == ("interrupted", 0)
    holder.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holder
    bench.hold = ""
    assert await waiting.returning() == "made"


async def test_a_tool_that_raises_cancelled_error_itself_has_failed() -> None:
    """There was no cancellation."""

    @tool
    async def odd() -> str:
        raise asyncio.CancelledError

    assert await ends(Turn(odd)) == ("ToolError", "failed")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
async def test_a_signal_in_the_tool_goes_through(error: type[BaseException]) -> None:
    """It is raised unwrapped; the turn was cancelled and has ended, and `PostTurn` fires."""

    @tool
    async def signalled() -> str:
        raise error

    log = Log()
    assert await ends(Turn(signalled, hooks=[log])) == (error.__name__, "interrupted")
    assert log.names[-2:] == ["PostActing", "PostTurn"]


@pytest.mark.parametrize("streaming", [False, True])
def test_control_c(streaming: bool) -> None:
    """Ctrl-C while a tool works: one cleanup, the lock is free, the turn is cancelled, and the program gets its
    interrupt.
    """
    body = "yield 1" if streaming else "pass"
    run = "async for _ in turn.yielding(): pass" if streaming else "await turn.returning()"
    program = textwrap.dedent(f"""
        import asyncio, os, signal
        from agentflow import Turn, tool
        @tool(lock=True)
        async def work():
            {body}
            asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
            try:
                await asyncio.Event().wait()
            finally:
                print("cleaned")
        turn = Turn(work)
        async def main():
            {run}
        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print(turn.stop_reason, turn.running, turn.end_time is not None, work.lock.locked)
    """)
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, cwd=root, check=False
    )
    assert (done.stdout.split("\n"), done.stderr) == (["cleaned", "interrupted False True False", ""], "")


# ---- streams


class Piece:
    """A value whose instances are counted."""

    __slots__ = ("__weakref__", "n")

    def __init__(self, n: int) -> None:
        self.n = n


async def test_a_long_stream_into_a_slow_reader_holds_one_value_at_a_time() -> None:
    """Of 10,000 values, one is alive while the reader has it; the generator is never ahead."""
    made = 0

    @tool(timeout=None)
    async def many(n: int) -> AsyncIterator[Piece]:
        nonlocal made
        for i in range(n):
            made += 1
            yield Piece(i)

    alive: weakref.WeakSet[Piece] = weakref.WeakSet()
    most = read = 0
    async for piece in Turn(many, {"n": 10_000}).yielding():
        read += 1
        alive.add(piece)
        if read % 100 == 0:
            await asyncio.sleep(0)  # the reader takes its time
            most = max(most, len(alive))
            assert made == read
    assert (read, most <= 2) == (10_000, True)


async def test_a_second_reader_of_a_stream_is_refused() -> None:
    """A stream has one reader at a time; another run of the turn meanwhile is refused as well."""
    bench = Bench()
    bench.hold = "step 0"
    turn = Turn(bench.stream)
    stream = aiter(turn.yielding())
    reading = asyncio.create_task(anext(stream))  # type: ignore[arg-type]
    await bench.reached.wait()
    with pytest.raises(UsageError, match="one reader"):
        await anext(stream)
    with pytest.raises(SafeExecutionError, match="running"):
        turn.yielding()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_streams_that_were_made_before_the_turn_ran() -> None:
    """Of two Fluxes of one turn the second is refused when it is iterated while the first one runs."""
    turn = Turn(count, {"n": 3})
    one, two = aiter(turn.yielding()), aiter(turn.yielding())
    assert await anext(one) == 0
    with pytest.raises(SafeExecutionError, match="running"):
        await anext(two)
    assert [value async for value in one] == [1, 2]


# ---- what a turn is in


def test_a_turn_in_a_tool_bills_the_call() -> None:
    """A sub-agent that a turn calls inside a tool is billed to the tool's call."""
    sub = Agent("sub", ScriptedModel(["from sub"]))

    @tool
    async def asks() -> str:
        return await Turn(sub.as_tool(), {"message": "hi"}).returning()

    async def main() -> Any:
        agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "asks", {}), "done"]), tools=[asks])
        return (await agent.call("go")).usage

    assert run_virtual(main()) == Usage(model_calls=3)


Contextual = Callable[[RunContext], "Awaitable[Any] | None"]


@pytest.mark.parametrize(
    ("use", "says"),
    [
        (lambda context: context.inject("hello"), r"context\.inject"),
        (lambda context: context.compact(0, []), r"context\.compact"),
        (lambda context: context.complete("hello"), r"context\.complete"),
    ],
    ids=["inject", "compact", "complete"],
)
async def test_what_needs_a_conversation_is_refused_in_a_turn(use: Contextual, says: str) -> None:
    """The error says that there is no conversation, or no model."""

    @tool
    async def works(context: RunContext) -> str:
        done = use(context)
        if done is not None:
            await done
        return ""

    with pytest.raises(UsageError, match=says):
        await Turn(works).returning()


async def test_complete_in_a_turn_of_an_agent_uses_its_model() -> None:
    """In an agent's queue, the agent's model is available."""

    @tool
    async def works(context: RunContext) -> str:
        return (await context.complete("hello")).text

    agent = Agent("a", ScriptedModel(["hi"]), tools=[works])
    await agent.put(Turn(works))
    assert [value async for _, value in agent.run()] == ["hi"]


async def test_deps_reach_the_tool() -> None:
    """A tool with a parameter of a class gets the turn's `deps`; without any the error names the class."""

    class Database:
        name = "db"

    @tool
    async def query(db: Database) -> str:
        return db.name

    assert await Turn(query, deps=Database()).returning() == "db"
    with pytest.raises(UsageError, match="Database"):
        await Turn(query).returning()


async def test_what_a_turn_says_after_each_end() -> None:
    """Its times are set, its output is the value or nothing, and a new run resets them."""
    fails = True

    @tool
    async def sometimes() -> str:
        if fails:
            raise ValueError
        return "ok"

    turn = Turn(sometimes)
    assert (turn.start_time, turn.end_time, turn.stop_reason, turn.output) == (None, None, None, None)
    await ends(turn)
    assert (turn.stop_reason, turn.output) == ("failed", None)
    fails = False
    await ends(turn)
    assert (turn.stop_reason, turn.output) == ("completed", "ok")
    assert turn.start_time is not None
    assert turn.end_time is not None
    assert turn.start_time <= turn.end_time


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Turn("nothing_like_it"), "No tool is registered"),
        (lambda: Turn(len), "takes a tool"),
        (lambda: Turn(add, [1, 2]), "mapping by name"),
        (lambda: Turn(add, {"a": object()}), "deps"),
        (lambda: Turn(add, {"a": [float("inf")]}), r"argument .a. is \[inf\], but JSON has only finite numbers"),
        (lambda: Turn(add, {}, timeout=0), "timeout=0"),
        (lambda: Turn(add, {}, timeout=-1), "timeout=-1"),
        (lambda: Turn(add, {}, timeout=float("nan")), "timeout=nan"),
        (lambda: Turn(add, a=1), "options are"),
    ],
)
def test_what_is_no_turn(make: Callable[[], Any], says: str) -> None:
    """It is refused when it is created, with the legal form."""
    with pytest.raises(UsageError, match=says):
        make()


async def test_a_turn_in_an_agents_queue_has_the_agents_source() -> None:
    """In a call, the events of a turn that is run by hand have the path of the running agent."""
    log = Log()
    inner = worker(add, name="helper", hooks=[log])

    @tool
    async def delegates() -> str:
        await inner.put(Turn(add, {"a": 1, "b": 2}))
        return str([value async for _, value in inner.run()])

    agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "delegates", {}), "done"]), tools=[delegates])
    await agent.call("go")
    assert {event.source for event in log.seen} == {"helper"}


async def test_locks_are_off_by_default() -> None:
    """Runs of a tool without a lock overlap."""
    inside, most = 0, 0

    @tool
    async def free() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    await asyncio.gather(*[Turn(free).returning() for _ in range(4)])
    assert (free.lock, most) == (None, 4)


async def test_a_lock_runs_a_tool_once_at_a_time() -> None:
    """`@tool(lock=True)` serialises it for every caller."""
    inside, most = 0, 0

    @tool(lock=True)
    async def shared() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    await asyncio.gather(*[Turn(shared).returning() for _ in range(100)])
    assert most == 1
