"""Tools as the loop runs them: limits, faults, arguments, chunks, context variables."""

import asyncio
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import Any

import pytest
from eventlog import Recorder, history, streamed, use

from agentflow import (
    ActingChunk,
    Agent,
    Error,
    Hook,
    PostActing,
    ToolContext,
    ToolEmitter,
    ToolUseBlock,
    after_each_tool,
    on,
    tool,
)
from agentflow._support.virtual_time import run_virtual
from agentflow.testing import ScriptedModel

COLOUR: ContextVar[str] = ContextVar("colour", default="none")


def agent_of(calls: Any, *tools: Any, hooks: Any = ()) -> Agent:
    return Agent("a", ScriptedModel([calls, "end", "later"]), tools=tools, hooks=hooks)


def results(agent: Agent) -> str:
    return history(agent.session())[2].removeprefix("tool: ")


@tool(type="read")
async def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


@pytest.mark.parametrize("siblings", [0, 1])
def test_a_tool_that_passes_its_limit(siblings: int) -> None:
    """A tool that exceeds its timeout gets the state `timeout`; the loop continues, inline and in parallel."""

    @tool(timeout=5, type="read")
    async def slow() -> str:
        """Slow."""
        await asyncio.sleep(3600)
        return "never"

    agent = agent_of([use("t1", "slow"), *[use("t2", "add", a=1)] * siblings], slow, add)
    assert run_virtual(agent.call("go")).text == "end"
    assert results(agent).split(";")[0] == "t1 timeout \"Tool 'slow' did not finish within 5 s and was cancelled.\""


async def test_a_tools_own_timeouterror_is_an_error() -> None:
    """A TimeoutError that the tool raises itself is an error like any other."""

    @tool
    async def own() -> str:
        """Own."""
        raise TimeoutError("database")

    agent = agent_of(use("t1", "own"), own)
    await agent.call("go")
    assert results(agent) == "t1 error 'TimeoutError: database'"


@pytest.mark.parametrize(
    ("call", "state", "words"),
    [
        (use("t1", "add", a="x"), "error", ["'add'", "a:", "integer"]),
        (use("t1", "add"), "error", ["a: is missing"]),
        (use("t1", "add", a=1, c=2), "error", ["c: is not known"]),
        (ToolUseBlock.from_json("t1", "add", '{"a": 1'), "error", ["not valid JSON"]),
        (ToolUseBlock.from_json("t1", "add", "[1]"), "error", ["JSON array"]),
        (ToolUseBlock.from_json("t1", "add", "null"), "error", ["JSON null"]),
        (use("t1", "sub", a=1), "not_found", ["no tool named 'sub'", "Known tools: add"]),
    ],
)
async def test_calls_that_cannot_run(call: ToolUseBlock, state: str, words: list[str]) -> None:
    """Wrong arguments, malformed JSON and unknown tools: the result names the problem, hooks get Pre and Post, and
    the model continues.
    """
    recorder = Recorder()
    agent = agent_of([call], add, hooks=[recorder])
    assert (await agent.call("go")).text == "end"
    result = agent.session().messages[2].tool_results[0]
    assert result.state == state
    for word in words:
        assert word in result.text
    names = [text.split()[0] for text in recorder.log]
    assert names.count("PreActing") == names.count("PostActing") == 1


async def test_emitted_pieces_arrive_in_order() -> None:
    """The chunks of a tool arrive as ActingChunk between its Pre and its Post event."""

    @tool
    async def emits(emitter: ToolEmitter) -> str:
        """Emit."""
        await emitter.emit("one")
        await emitter.emit(2)
        return "three"

    assert (await streamed(agent_of(use("t1", "emits"), emits)))[5:9] == [
        "PreActing t1:emits()",
        "ActingChunk t1 'one'",
        "ActingChunk t1 2",
        "PostActing t1 success 'three'",
    ]


@pytest.mark.parametrize(
    ("values", "text"), [(["a", "b"], "ab"), ([{"n": 1}], '{"n":1}'), ([1, 2], "[1,2]"), ([], "(no output)")]
)
async def test_a_streaming_tool(values: list[Any], text: str) -> None:
    """Each yield is an ActingChunk; the result is the joined text, the single value, or the list."""

    @tool
    async def stream() -> Any:
        """Stream."""
        for value in values:
            yield value

    lines = await streamed(agent_of(use("t1", "stream"), stream))
    assert [line for line in lines if line.startswith("ActingChunk")] == [
        f"ActingChunk t1 {value!r}" for value in values
    ]
    assert f"PostActing t1 success {text!r}" in lines


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("watched", [False, True])
async def test_context_variables(count: int, watched: bool) -> None:
    """A ContextVar set before the call is visible in hooks and tools; what a tool sets leaks nowhere, inline or
    parallel.
    """
    seen: list[str] = []

    @tool(type="read")
    async def paint() -> str:
        """Set it."""
        seen.append(f"tool {COLOUR.get()}")
        COLOUR.set("spilt")
        await asyncio.sleep(0)
        return COLOUR.get()

    class Sees(Hook):
        def on_event(self, event: Any) -> Any:
            seen.append(f"hook {COLOUR.get()}")
            return event

    agent = agent_of([use(f"t{i}", "paint") for i in range(count)], paint, hooks=[Sees()])
    COLOUR.set("blue")
    await (streamed(agent) if watched else agent.call("go"))
    assert set(seen) == {"tool blue", "hook blue"}
    assert COLOUR.get() == "blue"


@pytest.mark.parametrize("count", [1, 2])
async def test_a_tool_that_raises_cancellederror_itself(count: int) -> None:
    """A CancelledError that the tool raises itself is a failing tool, inline and in parallel."""

    @tool(type="read")
    async def stray() -> str:
        """Raise."""
        raise asyncio.CancelledError("mine")

    agent = agent_of([use(f"t{i}", "stray") for i in range(count)], stray)
    assert (await agent.call("go")).text == "end"
    assert "raised CancelledError, but the run was not cancelled" in results(agent)
    assert [result.state for result in agent.session().messages[2].tool_results] == ["error"] * count


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("count", [1, 2])
def test_signals_end_the_call(signal: type[BaseException], count: int) -> None:
    """KeyboardInterrupt and SystemExit come out once, unwrapped, after CallEnded, with a legal history."""

    @tool(type="read")
    async def stops() -> str:
        """Raise."""
        raise signal("stop")

    @tool(type="read")
    async def waits() -> str:
        """Wait."""
        await asyncio.Event().wait()
        return ""

    recorder = Recorder()
    calls = [use("t1", "stops"), use("t2", "waits")][:count]
    agent = agent_of(calls, stops, waits, hooks=[recorder])

    async def main() -> str:
        with pytest.raises(signal, match="stop"):
            await agent.call("go")
        assert recorder.log[-1].startswith("CallEnded interrupted")
        return (await agent.call("next")).text

    assert asyncio.run(main()) == "end"
    assert [result.state for result in agent.session().messages[2].tool_results] == ["interrupted"] * count


async def test_the_tool_context() -> None:
    """ToolContext has the call, the attempt, and a key that is the same for all attempts."""
    seen: list[tuple[str, int, str]] = []

    @tool
    async def charge(context: ToolContext) -> str:
        """Charge."""
        seen.append((context.tool_use.id, context.attempt, context.idempotency_key))
        if context.attempt < 2:
            raise ConnectionError("again")
        return "charged"

    class Retry(Hook):
        def around(self, event: Any, source: Any) -> Any:
            return source.retry(2) if type(event).__name__ == "PreActing" else source

    await agent_of(use("t1", "charge"), charge, hooks=[Retry()]).call("go")
    assert [(call, attempt) for call, attempt, _ in seen] == [("t1", 1), ("t1", 2)]
    assert len({key for *_, key in seen}) == 1


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("work", [1.0, 2.0])
def test_the_limit_does_not_count_the_readers_time(work: float, at_once: bool) -> None:
    """A slow hook of a tool's chunks uses none of the tool's limit, even before the tool's first await."""

    @tool(timeout=5)
    async def emits(emitter: ToolEmitter) -> str:
        """Emit."""
        for number in range(3):
            if number or not at_once:
                await asyncio.sleep(work)
            await emitter.emit(number)
        await asyncio.sleep(work * at_once)
        return "in time"

    class Slow(Hook):
        async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            if type(event).__name__ == "ActingChunk":
                await asyncio.sleep(60)
            return event

    agent = agent_of(use("t1", "emits"), emits, hooks=[Slow()])
    run_virtual(agent.call("go"))
    assert results(agent).startswith("t1 success 'in time'" if work == 1 else "t1 timeout ")


async def test_a_tool_that_raises_is_tried_again() -> None:
    """`@tool(retries=2)` covers exceptions; there is one result and one PostActing."""
    tries: list[int] = []

    @tool(type="read", retries=2)
    async def flaky() -> str:
        """Fail twice."""
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return "at last"

    lines = await streamed(agent_of([use("t1", "flaky")], flaky))
    assert [line for line in lines if line.startswith("PostActing")] == ["PostActing t1 success 'at last'"]
    assert len(tries) == 3


def test_an_attempt_that_timed_out_is_over() -> None:
    """A tool that exceeds its limit is cancelled, and its cleanup awaited, before anything else happens."""
    ended: list[float] = []

    @tool(timeout=5)
    async def slow() -> str:
        """Take long."""
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(asyncio.get_running_loop().time())
        return "late"

    seen: list[tuple[str, int]] = []

    @after_each_tool
    def note(event: PostActing) -> None:
        seen.append((event.tool_result.state, len(ended)))

    run_virtual(agent_of([use("t1", "slow")], slow, hooks=[note]).call("go"))
    assert (seen, ended) == ([("timeout", 1)], [5])


@pytest.mark.parametrize("raw", ["{", "[1]", '"x"', "nonsense", "{'summary': 'x'}"])
async def test_malformed_arguments_are_told_to_the_model(raw: str) -> None:
    """The model reads the error. They are never replaced by an empty object, and the tool does not run."""
    runs: list[str] = []

    @tool
    async def note(summary: str = "") -> str:
        runs.append(summary)
        return ""

    errors: list[str] = []

    @on(Error)
    def keep(event: Error) -> None:
        errors.append(type(event.error).__name__)

    agent = agent_of(ToolUseBlock("t1", "note", raw), note, hooks=[keep])
    assert (await agent.call("go")).text == "end"
    result = agent.session().messages[2].tool_results[0]
    assert (runs, result.state, errors) == ([], "error", ["ToolArgumentError"])


@pytest.mark.parametrize("chunks", [0, 1, 3])
@pytest.mark.parametrize("watched", [False, True])
def test_a_streaming_tool_has_one_limit_for_all_its_steps(watched: bool, chunks: int) -> None:
    """It is ended in whatever step the time runs out, with hooks of its chunks or without."""

    @tool(type="read", timeout=5)
    async def drips() -> AsyncIterator[str]:
        """Emit, then hang."""
        for _ in range(chunks):
            await asyncio.sleep(1)
            yield "drip"
        await asyncio.sleep(3600)

    async def main() -> tuple[str, float]:
        agent = Agent("a", ScriptedModel([use("t1", "drips"), "end"]), tools=[drips])
        if watched:
            agent.on(ActingChunk, lambda event: None)
        await agent.call("go")
        return agent.session().messages[2].tool_results[0].state, asyncio.get_running_loop().time()

    assert run_virtual(main()) == ("timeout", 5)
