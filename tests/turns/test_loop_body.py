"""The state of a turn in the body of `async for turn, value in agent.run()`, and what the body may do: the turn has
finished.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from loguru import logger
from turnlog import Log, say, saying, spell, worker

from agentflow import Agent, Error, ToolUseBlock, Turn, on, tool
from agentflow.agent import Receipt
from agentflow.errors import QueueFullError, TurnDeniedError, UsageError
from agentflow.testing.scripted import ScriptedModel
from agentflow.vocabulary.events import PostTurn, PreTurn


@tool(type="completion_check")
async def enough() -> bool:
    """Whether it is enough."""
    return True


@pytest.fixture
def warnings() -> Any:
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(str(line).strip()), level="WARNING", format="{message}")
    yield lines
    logger.remove(sink)


# ---- a turn of a single value has ended when the value is delivered


async def test_a_turn_that_is_handed_out_is_finished(log: Log) -> None:
    """Output, reason and times are set, `PostTurn` has fired, its receipt is settled, and the queue no longer has it."""
    agent = worker(say, hooks=[log])
    receipt = await agent.put(saying("a"))
    async for turn, value in agent.run():
        assert (value, turn.output, turn.stop_reason) == ("a", "a", "completed")
        assert turn.start_time is not None
        assert turn.end_time is not None
        assert log.names[-2:] == ["TurnValue", "PostTurn"]
        assert (receipt.done, await receipt) == (True, "a")
        assert (turn.running, agent.queue.current, agent.queue.to_dict()["turns"]) == (False, None, [])
    assert log.names[-1] == "PostTurn"


async def test_a_turn_may_be_put_again_from_the_loop_that_got_it() -> None:
    """It is free: it can be put, changed and run by hand there."""
    agent = worker(say)
    await agent.put(saying("a"))
    got: list[str] = []
    async for turn, value in agent.run():
        got.append(value)
        if len(got) < 3:
            turn.arguments = {"word": value + "!"}
            await agent.put(turn)
        else:
            assert await turn.returning() == value
    assert got == ["a", "a!", "a!!"]


async def test_the_readers_time_is_not_the_turns() -> None:
    """A turn of a single value ends before the reader gets the value."""
    agent = worker(say)
    await agent.put(saying("a"))
    async for turn, _ in agent.run():
        ended = turn.end_time
        await asyncio.sleep(0.01)
        assert turn.end_time == ended


async def test_a_generators_turn_is_over_with_its_loop() -> None:
    """Its values arrive as they are produced: until the last one it is running, and the queue's current turn."""
    agent = worker(spell, say)
    receipt = await agent.put(Turn(spell, {"word": "ab"}))
    await agent.put(saying("c"))
    states = [(value, turn.running, agent.queue.current is turn, receipt.done) async for turn, value in agent.run()]
    assert states == [("a", True, True, False), ("b", True, True, False), ("c", False, False, True)]


async def test_a_hook_of_post_turn_that_fails_comes_before_the_value() -> None:
    """The run raises before it delivers the value: only values of successful turns are delivered."""

    @on(PostTurn)
    def fails(event: PostTurn) -> None:
        raise LookupError("no")

    agent = worker(say)
    receipt = await agent.put(saying("a", hooks=[fails]))
    got: list[object] = []

    async def read() -> None:
        async for _, value in agent.run():
            got.append(value)

    with pytest.raises(LookupError):
        await read()
    assert (got, receipt.turn.stop_reason, receipt.turn.output) == ([], "failed", None)


# ---- a sender who takes a turn back


@tool
async def hang(word: str) -> str:
    """Never end."""
    await asyncio.Event().wait()
    return word


@tool
async def drip(word: str) -> AsyncIterator[str]:
    """Yield one value, then hang."""
    yield word
    await asyncio.Event().wait()


@tool
async def stubborn(word: str) -> str:
    """Fail when it is cancelled."""
    try:
        await asyncio.Event().wait()
    finally:
        raise LookupError("in the cleanup")


@pytest.mark.parametrize("waits", [hang, stubborn], ids=["is cut", "fails in its cleanup"])
async def test_a_running_turn_that_is_taken_back_is_skipped(waits: Any) -> None:
    """The loop continues with the next one; the receipt has the outcome."""
    begun = asyncio.Event()

    @on(PreTurn)
    def tell(event: PreTurn) -> None:
        begun.set()

    agent = worker(waits, say)
    receipt: Receipt[Any] = await agent.put(Turn(waits, {"word": "a"}, hooks=[tell]))
    await agent.put(saying("b"))

    async def read() -> list[object]:
        return [value async for _, value in agent.run()]

    reading = asyncio.create_task(read())
    await begun.wait()
    await asyncio.sleep(0)
    receipt.cancel()
    assert await reading == ["b"]
    with pytest.raises((TurnDeniedError, LookupError)):
        await receipt
    assert receipt.turn.stop_reason in ("interrupted", "failed")


@pytest.mark.parametrize("which", [say, drip], ids=["single", "stream"])
async def test_a_turn_whose_value_is_held_is_taken_back(which: Any) -> None:
    """A finished turn is unchanged; a stream ends where it is. The loop gets the following turns."""
    agent = worker(which, *([] if which is say else [say]))
    receipt: Receipt[Any] = await agent.put(Turn(which, {"word": "a"}))
    await agent.put(saying("b"))
    got: list[object] = []
    async for _, value in agent.run():
        got.append(value)
        if value == "a":
            receipt.cancel()
    assert got == ["a", "b"]
    if which is say:
        assert (await receipt, receipt.turn.stop_reason) == ("a", "completed")
    else:
        with pytest.raises(TurnDeniedError, match="its sender cancelled it"):
            await receipt
        assert receipt.turn.stop_reason == "interrupted"


async def test_a_turn_that_is_taken_back_by_its_own_first_hook_does_not_run() -> None:
    """The interrupt is noticed before the tool runs."""
    ran: list[str] = []

    @tool
    async def work() -> None:
        ran.append("work")

    receipts: list[Receipt[None]] = []

    @on(PreTurn)
    def regret(event: PreTurn) -> None:
        receipts[0].cancel()

    agent = worker(work, say)
    receipts.append(await agent.put(Turn(work, hooks=[regret])))
    await agent.put(saying("b"))
    assert [value async for _, value in agent.run()] == ["b"]
    assert ran == []


# ---- waiting for a queue that is not run


async def test_the_task_that_runs_a_queue_does_not_wait_for_a_place_in_it() -> None:
    """It would wait for itself: `QueueFullError`, in the loop's body and in a hook."""
    said: list[str] = []

    @on(PostTurn)
    async def more(event: PostTurn) -> None:
        if event.turn.tool_use.input["word"] == "1":
            try:
                await agent.put(saying("from a hook"))
            except QueueFullError as error:
                said.append(str(error))

    agent = worker(say, hooks=[more], queue_limit=2)
    for word in "123":
        agent.queue.limit = 3
        await agent.put(saying(word))
    agent.queue.limit = 2
    got: list[str] = []
    async for _, value in agent.run():
        got.append(value)
        if value == "1":
            with pytest.raises(QueueFullError) as caught:
                await agent.put(saying("from the body"))
            said.append(str(caught.value))
    assert got == ["1", "2", "3"]
    refusal = (
        "The queue of agent 'worker' is full: 2 turns wait, and the task that calls put() also runs the "
        "queue: waiting would deadlock. Let it run (agent.run()), put the turn later, or give the agent "
        "a larger queue_limit."
    )
    assert said == [refusal, refusal]


async def test_a_put_that_waits_for_nobody_warns_once(warnings: list[str]) -> None:
    """The queue may be run later, so it waits; but it logs a warning."""
    agent = worker(say, queue_limit=1)
    await agent.put(saying("a"))
    puts = [asyncio.create_task(agent.put(saying(word))) for word in "bc"]
    while not warnings:  # noqa: ASYNC110 - each waits in a task of its own
        await asyncio.sleep(0)
    async with agent.run(wait=True) as values:
        assert [(await anext(values))[1] for _ in range(3)] == ["a", "b", "c"]
    await asyncio.gather(*puts)
    [line] = warnings
    assert line == (
        "put() waits for a free slot in the queue of agent worker, which is full (1 turns), and the queue is not "
        "running: put() waits until agent.run() is iterated. With wait=False, put() raises an error instead; with "
        "queue_limit=None the queue has no limit"
    )


async def test_a_put_that_the_body_has_begun_warns_once(warnings: list[str]) -> None:
    """In a task of its own it may wait until the loop continues; if the loop waits for it, the log has the reason."""
    agent = worker(say, queue_limit=1)
    await agent.put(saying("a"))
    puts: list[asyncio.Task[Any]] = []
    got: list[str] = []
    async for _, value in agent.run():
        got.append(value)
        if value == "a":
            puts = [asyncio.create_task(agent.put(saying(word))) for word in "bc"]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
    await asyncio.gather(*puts)
    assert [*got, *[value async for _, value in agent.run()]] == ["a", "b", "c"]
    [line] = warnings
    reason = "was started in the body of the loop over agent.run(): if the body awaits that code, they deadlock"
    assert f"the code that calls put() {reason}" in line


async def test_the_loop_does_not_wait_for_a_receipt_of_its_own_queue() -> None:
    """It is refused, in the body and in a hook; after the loop the value is available."""
    agent = worker(say)
    await agent.put(saying("a"))
    later = await agent.put(saying("b"))
    async for _, value in agent.run():
        if value == "a":
            with pytest.raises(UsageError, match="Deadlock: the task that runs the queue of agent 'worker'"):
                await later
    assert await later == "b"


# ---- waiting for more, and choosing


async def test_a_run_that_waits_goes_on_with_what_comes_later() -> None:
    """An empty queue does not end it; a completion check does."""
    agent = worker(say, enough)
    got: list[object] = []

    async def read() -> None:
        async for _, value in agent.run(wait=True):
            got.append(value)

    reading = asyncio.create_task(read())
    for word in "ab":
        assert await (await agent.put(saying(word))) == word
        assert not reading.done()
    await agent.put(Turn(enough))
    await asyncio.wait_for(reading, 10)
    assert got == ["a", "b", True]


async def test_a_run_that_waits_is_closed_while_it_waits() -> None:
    """Leaving it ends it, and the queue is free again."""
    agent = worker(say)
    async with agent.run(wait=True) as values:
        await agent.put(saying("a"))
        assert (await anext(values))[1] == "a"
        waiting = asyncio.create_task(anext(values))
        await asyncio.sleep(0)
    with pytest.raises((asyncio.CancelledError, StopAsyncIteration)):
        await waiting
    await agent.put(saying("b"))
    assert [value async for _, value in agent.run()] == ["b"]


async def test_a_hook_of_pre_turn_puts_turns_and_chooses_what_comes_next() -> None:
    """A preferred turn comes next, before all others that wait."""

    @on(PreTurn)
    async def choose(event: PreTurn) -> None:
        if event.turn.tool_use.input["word"] == "1":
            await agent.put(saying("4", tags=["urgent"]))
        for turn in agent.queue.turns:
            if "urgent" in turn.tags:
                assert agent.queue.prefer(turn)

    agent: Agent = worker(say, hooks=[choose])
    for word in "123":
        await agent.put(saying(word))
    assert [value async for _, value in agent.run()] == ["1", "4", "2", "3"]
    assert not agent.queue.prefer(saying("elsewhere"))


# ---- what hooks know of a turn


async def test_a_hook_knows_what_became_of_a_turn() -> None:
    """Its output, times and metadata; they are empty before it has begun and while it runs."""
    seen: list[tuple[Any, ...]] = []

    @on(PreTurn, PostTurn)
    def look(event: PreTurn | PostTurn) -> None:
        turn = event.turn
        timed = [turn.start_time is not None, turn.end_time is not None, turn.duration_ms is not None]
        seen.append((type(event).__name__, turn.output, turn.stop_reason, timed, dict(turn.metadata)))

    agent = worker(say, hooks=[look])
    await agent.put(saying("a", metadata={"for": "Ada"}))
    async for turn, _ in agent.run():
        assert turn.start_time is not None
        assert turn.end_time is not None
        assert turn.duration_ms == (turn.end_time - turn.start_time) * 1000
    assert seen == [
        ("PreTurn", None, None, [True, False, False], {"for": "Ada"}),
        ("PostTurn", "a", "completed", [True, True, True], {"for": "Ada"}),
    ]


async def test_an_error_names_its_turn() -> None:
    """From the queue and by hand; in a call of a model there is no turn."""
    seen: list[Any] = []

    @on(Error)
    def look(event: Error) -> None:
        seen.append(None if event.turn is None else (event.turn.id, dict(event.turn.metadata)))

    @tool
    async def fails() -> None:
        raise LookupError("no")

    agent = Agent("a", ScriptedModel([ToolUseBlock("t", "fails"), "end"]), tools=[fails], hooks=[look])
    queued, by_hand = Turn(fails, id="queued", metadata={"n": 1}), Turn(fails, id="by hand", hooks=[look])
    await agent.put(queued)
    with pytest.raises(LookupError):
        await agent.run()
    with pytest.raises(LookupError):
        await by_hand.returning()
    await agent.call("go")
    assert seen == [("queued", {"n": 1}), ("by hand", {}), None]
