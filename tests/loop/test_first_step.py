"""The first step of a call's task, and its caller: what each sees of the other, and how the call ends in it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextvars import ContextVar
from functools import partial
from typing import Any

import pytest
from eventlog import Recorder, use
from toolbox import add

from agentflow import Agent, Hook, ModelChunk, PreActing, PreReasoning, Session, on, tool
from agentflow._support.virtual_time import run_virtual
from agentflow.errors import CallTimeoutError
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import CallEnded, Error, Event, PostCall, PostReasoning, PreCall, ReasoningChunk

ROUND: list[Any] = [use("t1", "add", a=1, b=2), "end"]


class NotesTasks(Hook):
    """Collects the tasks in which hooks run."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[Any] | None] = set()

    def on_event(self, event: Event) -> None:
        self.tasks.add(asyncio.current_task())


# ---- when it runs


async def test_hooks_run_in_the_task_of_the_call() -> None:
    """In one task for all events, which is not the caller's; afterwards the current task is the caller's again."""
    notes, caller = NotesTasks(), asyncio.current_task()
    await Agent("a", ScriptedModel(ROUND), tools=[add], hooks=[notes]).call("go")
    assert len(notes.tasks) == 1
    assert caller not in notes.tasks
    assert asyncio.current_task() is caller


async def test_a_caller_lets_other_tasks_run_between_calls() -> None:
    """Calls that never wait do not lock up the loop."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    agent = Agent("a", ScriptedModel(["x"] * 20))
    for _ in range(20):
        await agent.call("go")
    task.cancel()
    assert turns >= 20


async def test_calls_that_start_at_once_take_turns() -> None:
    """A hundred calls, two in each task: the events come in the order in which the calls were made."""
    log: list[tuple[str, str]] = []

    @on(PreCall, CallEnded)
    def notes(event: Event) -> None:
        log.append((type(event).__name__, event.session_id))

    agent = Agent("a", ScriptedModel(["x"] * 200), hooks=[notes])
    names = [f"s{number}" for number in range(100)]

    async def two(name: str) -> None:
        await agent.call("one", session=name)
        await agent.call("two", session=name)

    await asyncio.gather(*map(two, names))
    assert log == 2 * [(kind, name) for name in names for kind in ("PreCall", "CallEnded")]


# ---- what the caller's code and the call's code see of each other


async def test_what_a_hook_opens_in_the_first_step_stays_in_the_run() -> None:
    """A time limit that is never closed does not reach the caller; neither does a context variable."""
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    @on(PreCall)
    async def opens(event: PreCall) -> None:
        variable.set("hook")
        await asyncio.timeout(0).__aenter__()
        await asyncio.TaskGroup().__aenter__()

    task = asyncio.current_task()
    assert task is not None
    reply = await Agent("a", ScriptedModel(["end"]), hooks=[opens]).call("go")
    await asyncio.sleep(0.01)
    assert (reply.outcome, variable.get(), task.cancelling()) == ("completed", "unset", 0)


async def test_an_exception_that_the_caller_handles_is_not_the_context_of_the_calls_own() -> None:
    """A call for help in an `except` block: hooks and errors are as in any other call."""
    seen: list[Any] = []

    @on(PreCall)
    def handled(event: PreCall) -> None:
        seen.append(sys.exc_info()[1])

    @on(Error)
    def failed(event: Error) -> None:
        seen.append(event.error.__context__)

    class Down(ScriptedModel):
        async def stream(self, request: Any) -> AsyncIterator[ModelChunk]:
            raise OSError("down")
            yield ModelChunk()

    try:
        raise KeyError("the caller's")
    except KeyError:
        with pytest.raises(OSError, match="down"):
            await Agent("a", Down([]), hooks=[handled, failed]).call("go")
    assert seen == [None, None]


@pytest.mark.parametrize("depth", [50, 300, 900])
async def test_a_caller_deep_in_the_stack_makes_calls(depth: int) -> None:
    """The call does not share its caller's limit of recursion."""

    async def deeper(left: int) -> str:
        if left:
            return await deeper(left - 1)
        return (await Agent("a", ScriptedModel(ROUND), tools=[add]).call("go")).text

    assert await deeper(depth) == "end"


async def test_calls_that_call_others_do_not_exhaust_the_stack() -> None:
    """Three hundred sub-agents, each the tool of the next; then three hundred calls in a hook of the call before."""
    agent = Agent("leaf", ScriptedModel(["leaf"]))
    for number in range(300):
        inner = agent.as_tool(name="inner", description="Call the inner agent.")
        agent = Agent(f"a{number}", ScriptedModel([use("t1", "inner"), "end"]), tools=[inner])
    assert (await agent.call("go")).text == "end"

    calls = 0

    @on(PreCall)
    async def again(event: PreCall) -> None:
        nonlocal calls
        calls += 1
        if calls < 300:
            await deep.call("go", session=Session.fresh())

    deep = Agent("deep", ScriptedModel(["end"] * 300), hooks=[again])
    assert ((await deep.call("go")).text, calls) == ("end", 300)


# ---- how it ends


class Raises(Hook):
    """Raises a signal at an event."""

    def __init__(self, kind: type[Event], error: type[BaseException]) -> None:
        self.kind = kind
        self.error = error

    def on_event(self, event: Event) -> None:
        if isinstance(event, self.kind):
            raise self.error("now")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("kind", [PreCall, PreReasoning, ReasoningChunk, PostReasoning, PreActing, PostCall, CallEnded])
def test_a_signal_in_the_first_step_is_raised_once(kind: type[Event], error: type[BaseException]) -> None:
    """By a hook: it arrives unwrapped, after the only `CallEnded`; the session is free, and its next call completes."""
    recorder, session, raised = Recorder(), Session.fresh(), list[BaseException]()

    async def main() -> None:
        agent = Agent("a", ScriptedModel(ROUND), tools=[add], hooks=[recorder, Raises(kind, error)])
        try:
            await agent.call("go", session=session)
        except BaseException as signal:
            raised.append(signal)
            raise

    with pytest.raises(error, match="now"):
        asyncio.run(main())
    assert [type(signal) for signal in raised] == [error]
    assert [text.startswith("CallEnded") for text in recorder.log].index(True) == len(recorder.log) - 1
    assert not session.busy

    async def again() -> str:
        return (await Agent("a", ScriptedModel(["fine"])).call("again", session=session)).text

    assert asyncio.run(again()) == "fine"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("where", ["system", "model"])
def test_a_signal_of_a_model_or_system_prompt_is_raised_once(where: str, error: type[BaseException]) -> None:
    """Before anything is awaited."""

    class Signals(ScriptedModel):
        def stream(self, request: Any) -> Any:
            raise error("now")

    def system(context: object) -> str:
        if where == "system":
            raise error("now")
        return "Be brief."

    recorder, session = Recorder(), Session.fresh()

    async def main() -> None:
        await Agent("a", Signals([]), system=system, hooks=[recorder]).call("go", session=session)

    with pytest.raises(error, match="now"):
        asyncio.run(main())
    assert [text.partition(" ")[0] for text in recorder.log].count("CallEnded") == 1
    assert recorder.log[-1].startswith("CallEnded interrupted")
    assert not session.busy


@pytest.mark.parametrize("waits", [False, True])
async def test_a_call_of_a_cancelled_task(waits: bool) -> None:
    """The cancellation is pending when the call is made: its first step runs, and then the call ends and raises it."""
    recorder, session = Recorder(), Session.fresh()
    model = ScriptedModel([[partial(asyncio.sleep, 60), "end"] if waits else "end"])

    async def work() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await Agent("a", model, hooks=[recorder]).call("go", session=session)

    task = asyncio.create_task(work())
    await asyncio.wait([task])
    assert task.cancelled()
    assert recorder.log[-1].startswith("CallEnded interrupted" if waits else "CallEnded completed")
    assert (session.busy, session.status) == (False, "idle")


def test_the_time_limit_of_a_call_includes_its_first_step() -> None:
    """It starts with the call, so before a wait that begins in this step; and it is gone with the call."""

    @on(PreCall)
    async def waits(event: PreCall) -> None:
        if event.input_messages[0].text == "slow":
            await asyncio.sleep(10)

    async def main() -> float:
        agent = Agent("a", ScriptedModel(["end"]), hooks=[waits])
        with pytest.raises(CallTimeoutError):
            await agent.call("slow", timeout=10)
        await agent.call("fast", timeout=3600)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 10


async def test_a_hook_that_interrupts_the_first_step_ends_the_call() -> None:
    """The cancellation is requested and raised within the step."""
    recorder = Recorder()

    @on(PreActing)
    async def enough(event: PreActing) -> None:
        event.context.interrupt("enough")

    agent = Agent("a", ScriptedModel(ROUND), tools=[add], hooks=[enough, recorder])
    assert (await agent.call("go", timeout=60)).outcome == "interrupted"
    assert recorder.log[-1] == "CallEnded interrupted"
    assert not agent.session().busy


# ---- loops that create tasks in their own way


class OwnLoop(asyncio.SelectorEventLoop):
    """Names the coroutines of its tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def create_task(self, coro: Any, **options: Any) -> Any:
        self.made.append(coro.__qualname__)
        return super().create_task(coro, **options)


@pytest.mark.parametrize("how", ["factory", "method"])
def test_a_loop_that_creates_tasks_in_its_own_way_creates_that_of_a_call(how: str) -> None:
    """With a task factory, or with a method of its own."""
    made: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(coro.__qualname__)
        return asyncio.Task(coro, loop=loop, **options)

    async def main() -> str:
        loop = asyncio.get_running_loop()
        if how == "factory":
            loop.set_task_factory(factory)
        return (await Agent("a", ScriptedModel(["end"])).call("go")).text

    with asyncio.Runner(loop_factory=OwnLoop if how == "method" else None) as runner:
        assert runner.run(main()) == "end"
        loop = runner.get_loop()
        assert "Call._execute" in (loop.made if isinstance(loop, OwnLoop) else made)


async def test_a_thousand_calls_at_once() -> None:
    """Each has its own task, and none is left."""

    @tool
    async def look() -> str:
        """Look."""
        await asyncio.sleep(0)
        return "seen"

    script = [use("t1", "look"), "end"]
    replies = await asyncio.gather(*[Agent("a", ScriptedModel(script), tools=[look]).call("go") for _ in range(1000)])
    assert {reply.text for reply in replies} == {"end"}
    assert asyncio.all_tasks() == {asyncio.current_task()}
