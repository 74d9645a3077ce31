"""An agent's own queue: putting, running, pausing, and the remaining turns after a failure."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from loguru import logger
from turnlog import Log, add, broken, count, finished, say, saying, spell, worker

from agentflow import Agent, Approve, Deny, Hook, PostActing, PreActing, Stop, Turn, on, tool
from agentflow.agent.entries import Entries
from agentflow.errors import QueueFullError, SafeExecutionError, TurnDeniedError, TurnTimeoutError, UsageError
from agentflow.vocabulary.events import PostPut, PrePut, PreTurn, Resumed, TurnValue


async def values(agent: Agent) -> list[Any]:
    return [value async for _, value in agent.run()]


async def put_all(agent: Agent, *turns: Turn[Any]) -> None:
    for turn in turns:
        await agent.put(turn)


# ---- putting


async def test_what_was_put_runs_in_order_once() -> None:
    """First in, first out; a second run has nothing left."""
    agent = worker(say, spell)
    await put_all(agent, saying("a"), Turn(spell, {"word": "bc"}), saying("d"))
    assert [turn.tool.name for turn in agent.queue] == ["say", "spell", "say"]
    assert await values(agent) == ["a", "b", "c", "d"]
    assert (await values(agent), len(agent.queue)) == ([], 0)


async def test_put_fires_its_events(log: Log) -> None:
    """`PrePut` before the turn is in the queue, `PostPut` afterwards."""
    lengths: list[tuple[str, int]] = []

    @on(PrePut, PostPut)
    def look(event: Any) -> None:
        lengths.append((type(event).__name__, len(agent.queue)))

    agent = worker(say, hooks=[look])
    await agent.put(saying("a"))
    assert lengths == [("PrePut", 0), ("PostPut", 1)]


async def test_a_veto_keeps_a_turn_out() -> None:
    """It is in no queue, no `PostPut` fires, and it may be put elsewhere."""
    log = Log()

    @on(PrePut)
    def never(event: PrePut) -> Deny | None:
        return Deny("not here") if event.turn.tool_use.input["word"] == "bad" else None

    agent, turn = worker(say, hooks=[never, log]), saying("bad")
    with pytest.raises(TurnDeniedError, match="not here"):
        await agent.put(turn)
    assert (len(agent.queue), log.names, turn.queued) == (0, ["PrePut"], "")
    await worker(say).put(turn)


async def test_a_hook_that_fails_keeps_a_turn_out() -> None:
    """The turn is unchanged, as if it had never been put."""

    @on(PrePut)
    def fail(event: PrePut) -> None:
        raise ValueError("hook")

    agent, turn = worker(say, hooks=[fail], queue_limit=1), saying("a")
    for _ in range(2):  # no place is lost
        with pytest.raises(ValueError, match="hook"):
            await agent.put(turn, wait=False)
    assert (len(agent.queue), turn.queued) == (0, "")


async def test_a_turn_is_in_one_queue_at_a_time() -> None:
    """Put twice, it is refused with its place; a copy is another turn."""
    agent, other, turn = worker(say), worker(say, name="other"), saying("a")
    await agent.put(turn)
    for queue in (agent, other):
        with pytest.raises(SafeExecutionError, match="in the queue of agent 'worker' already"):
            await queue.put(turn)
    await other.put(turn.copy())
    assert (await values(agent), await values(other)) == (["a"], ["a"])
    await other.put(turn)
    assert await values(other) == ["a"]


@pytest.mark.parametrize(
    ("turn", "says"),
    [
        (Turn(broken), "has no tool 'broken'"),
        (Turn(tool(say.function, name="say"), {"word": "a"}), "different tool of that name"),
        ("say", "A queue takes turns"),
    ],
)
async def test_what_a_queue_does_not_take(turn: Any, says: str) -> None:
    """A turn of a tool that the agent does not have, or no turn at all."""
    with pytest.raises(UsageError, match=says):
        await worker(say).put(turn)


async def test_a_hook_of_put_may_put_another_turn() -> None:
    """A turn put by a hook comes before the one that the hook handles."""

    @on(PrePut)
    async def first(event: PrePut) -> None:
        if event.turn.tool_use.input["word"] == "b":
            await agent.put(saying("a"))

    agent = worker(say, hooks=[first])
    await asyncio.wait_for(agent.put(saying("b")), 5)
    assert await values(agent) == ["a", "b"]


# ---- a full queue


async def test_a_full_queue_makes_those_who_put_wait_in_order() -> None:
    """Each gets a place in the order of arrival, when a turn has begun."""
    agent = worker(say, queue_limit=1)
    await agent.put(saying("0"))
    puts = [asyncio.create_task(agent.put(saying(str(i)))) for i in (1, 2, 3)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert (len(agent.queue), [task.done() for task in puts]) == (1, [False, False, False])
    got: list[str] = []
    while len(got) < 4:
        got.extend(await values(agent))
        await asyncio.sleep(0)
    assert got == ["0", "1", "2", "3"]
    await asyncio.gather(*puts)


async def test_a_higher_limit_lets_those_in_who_wait() -> None:
    """`queue.limit` may be changed at any time; an invalid limit is refused."""
    agent = worker(say, queue_limit=1)
    await agent.put(saying("0"))
    puts = [asyncio.create_task(agent.put(saying(str(i)))) for i in (1, 2)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(agent.queue) == 1
    agent.queue.limit = 3
    await asyncio.gather(*puts)
    assert (await values(agent), agent.queue.limit) == (["0", "1", "2"], 3)
    with pytest.raises(UsageError, match="use the maximum number of waiting turns"):
        agent.queue.limit = 0


async def test_a_queue_holds_a_thousand_turns_by_default() -> None:
    """The documented default; `None` is no limit."""
    agent, unlimited = worker(say), worker(say, queue_limit=None)
    for _ in range(1000):
        await agent.put(saying("a"), wait=False)
        await unlimited.put(saying("a"), wait=False)
    with pytest.raises(QueueFullError):
        await agent.put(saying("a"), wait=False)
    await unlimited.put(saying("a"), wait=False)
    assert (len(agent.queue), len(unlimited.queue)) == (1000, 1001)


async def test_a_full_queue_without_waiting() -> None:
    """`wait=False` raises, with the remedy."""
    agent = worker(say, queue_limit=1)
    await agent.put(saying("a"), wait=False)
    with pytest.raises(QueueFullError, match=r"1 turns wait.*larger queue_limit"):
        await agent.put(saying("b"), wait=False)


async def test_a_queue_is_not_full_while_a_hook_looks_at_a_turn() -> None:
    """A slow `PrePut` hook takes one place, not all of them."""
    go = asyncio.Event()

    @on(PrePut)
    async def slow(event: PrePut) -> None:
        if event.turn.tool_use.input["word"] == "slow":
            await go.wait()

    agent = worker(say, hooks=[slow], queue_limit=2)
    first = asyncio.create_task(agent.put(saying("slow")))
    await asyncio.sleep(0)
    await agent.put(saying("fast"), wait=False)
    with pytest.raises(QueueFullError):
        await agent.put(saying("third"), wait=False)
    go.set()
    await first
    assert await values(agent) == ["fast", "slow"]


async def test_a_put_that_is_cancelled_while_it_waits() -> None:
    """Its turn is in no queue, and the next one in line gets the place."""
    agent = worker(say, queue_limit=1)
    await agent.put(saying("0"))
    lost = saying("lost")
    first, second = asyncio.create_task(agent.put(lost)), asyncio.create_task(agent.put(saying("1")))
    await asyncio.sleep(0)
    first.cancel()
    got = await values(agent)
    await second
    assert ([*got, *await values(agent)], lost.queued) == (["0", "1"], "")


async def test_what_a_running_turn_puts_into_its_own_full_queue_is_refused() -> None:
    """It would wait for itself; if there is a place, it is taken."""
    outcomes: list[str] = []

    @tool
    async def more(word: str) -> str:
        try:
            await agent.put(saying(word))
            outcomes.append("put")
        except QueueFullError as error:
            outcomes.append(str(error))
        return word

    @on(PreTurn)
    async def fill(event: PreTurn) -> None:
        await agent.put(saying("filler"))

    agent = worker(say, more, queue_limit=1)
    await agent.put(Turn(more, {"word": "a"}))
    assert await values(agent) == ["a", "a"]
    await agent.put(Turn(more, {"word": "b"}, hooks=[fill]))
    assert await values(agent) == ["b", "filler"]
    assert outcomes[0] == "put"
    assert "waiting would deadlock" in outcomes[1]


# ---- running


async def test_run_is_iterated_by_one_at_a_time() -> None:
    """A second reader is refused; afterwards the queue is free again."""
    agent = worker(say)
    await put_all(agent, saying("a"), saying("b"))
    async with agent.run() as first:
        assert (await anext(first))[1] == "a"
        with pytest.raises(SafeExecutionError, match="being iterated already"):
            await values(agent)
        assert [value async for _, value in first] == ["b"]
    assert await values(agent) == []


async def test_an_error_comes_out_after_its_events_and_the_rest_survives() -> None:
    """The failed turn has finished; the next run continues after it."""
    log = Log()
    agent = worker(say, broken, hooks=[log])
    await put_all(agent, saying("a"), Turn(broken), saying("b"))
    got: list[Any] = []

    async def read() -> None:
        async for _, value in agent.run():
            got.append(value)

    with pytest.raises(LookupError, match="lost"):
        await read()
    assert (got, len(agent.queue), log.names[-1]) == (["a"], 1, "PostTurn")
    assert await values(agent) == ["b"]


async def test_a_denied_turn_is_an_error_of_the_run() -> None:
    """It has not run, has finished, and the turns after it stay."""

    @on(PreActing)
    def never(event: PreActing) -> Deny | None:
        return Deny("no") if event.tool_use.input["word"] == "bad" else None

    agent, bad = worker(say, hooks=[never]), saying("bad")
    await put_all(agent, bad, saying("good"))
    with pytest.raises(TurnDeniedError):
        await values(agent)
    assert bad.stop_reason == "denied"
    assert await values(agent) == ["good"]


async def test_a_turn_that_times_out_is_an_error_of_the_run() -> None:
    """It is an error like any other."""

    @tool
    async def hang() -> str:
        await asyncio.Event().wait()
        return ""

    agent = worker(hang, say)
    await put_all(agent, Turn(hang, timeout=0.01), saying("next"))
    with pytest.raises(TurnTimeoutError):
        await values(agent)
    assert await values(agent) == ["next"]


async def test_a_completion_check_ends_a_run_when_it_is_true() -> None:
    """Its value is delivered first; the rest waits for the next run."""
    agent = worker(say, finished)
    await put_all(agent, Turn(finished, {"yes": False}), Turn(finished, {"yes": True}), saying("rest"))
    assert [await values(agent), await values(agent)] == [[False, True], ["rest"]]


async def test_a_stop_on_post_acting_ends_a_run() -> None:
    """The turn completes, its value is delivered, and the rest waits."""

    @on(PostActing)
    def enough(event: PostActing) -> Stop | None:
        return Stop("enough") if event.tool_use.input["word"] == "b" else None

    agent = worker(say, hooks=[enough])
    await put_all(agent, saying("a"), saying("b"), saying("c"))
    assert [await values(agent), await values(agent)] == [["a", "b"], ["c"]]


async def test_breaking_behind_a_value_has_cut_nothing() -> None:
    """The tool has returned: its turn is complete, its receipt has the value, and the rest waits."""
    agent = worker(say)
    turn = saying("a")
    receipt = await agent.put(turn)
    await agent.put(saying("b"))
    async with agent.run() as run:
        async for _, value in run:
            assert value == "a"
            break
    assert (turn.stop_reason, await receipt, len(agent.queue)) == ("completed", "a", 1)
    assert await values(agent) == ["b"]


async def test_breaking_within_a_stream_cancels_that_turn() -> None:
    """It has finished and its reason is set; awaiting its receipt raises."""
    agent = worker(spell, say)
    turn = Turn(spell, {"word": "abc"})
    receipt = await agent.put(turn)
    await agent.put(saying("next"))
    async with agent.run() as run:
        async for _ in run:
            break
    assert turn.stop_reason == "interrupted"
    with pytest.raises(TurnDeniedError, match="cancelled while it ran"):
        await receipt
    assert await values(agent) == ["next"]


async def test_a_tool_that_returns_a_turn_puts_it() -> None:
    """It goes to the end of the queue, through `PrePut`, and is not delivered itself."""

    @tool
    async def plan(words: list[str]) -> Turn[str]:
        return saying(words[0])

    @tool
    async def plans(words: list[str]) -> AsyncIterator[Any]:
        for word in words:
            yield word
            yield saying(word.upper())

    log = Log()
    agent = worker(say, plan, plans, hooks=[log])
    await put_all(agent, Turn(plan, {"words": ["x"]}), Turn(plans, {"words": ["a", "b"]}), saying("c"))
    assert await values(agent) == ["a", "b", "c", "x", "A", "B"]
    assert sum(isinstance(event, PostPut) for event in log.seen) == 6
    given = [event.value for event in log.seen if isinstance(event, TurnValue)]
    assert sum(isinstance(value, Turn) for value in given) == 3


async def test_a_turn_that_a_tool_returns_needs_no_place() -> None:
    """A full queue accepts it: the tool cannot wait for itself."""

    @tool
    async def plan() -> Turn[str]:
        return saying("planned")

    agent = worker(say, plan, queue_limit=1)
    await agent.put(Turn(plan))
    run = agent.run()

    @on(PreTurn)
    async def fill(event: PreTurn) -> None:
        await agent.put(saying("filler"))

    next(iter(agent.queue)).hook(fill)
    assert [value async for _, value in run] == ["filler", "planned"]


async def test_a_tool_that_returns_a_turn_of_a_strange_tool() -> None:
    """The turn that returned it fails, with the reason; nothing is put."""

    @tool
    async def plan() -> Turn[str]:
        return Turn(broken)

    agent = worker(say, plan)
    turn = Turn(plan)
    await agent.put(turn)
    with pytest.raises(UsageError, match="has no tool 'broken'"):
        await values(agent)
    assert (turn.stop_reason, len(agent.queue)) == ("failed", 0)


async def test_a_value_is_an_event_before_it_is_handed_out() -> None:
    """Hooks of `TurnValue` get each value first."""
    order: list[str] = []

    @on(TurnValue)
    def note(event: TurnValue) -> None:
        order.append(f"hook {event.value}")

    agent = worker(spell, hooks=[note])
    await agent.put(Turn(spell, {"word": "ab"}))
    async for _, value in agent.run():
        order.append(f"reader {value}")
    assert order == ["hook a", "reader a", "hook b", "reader b"]


async def test_deps_of_the_run_reach_turns_that_bring_none() -> None:
    """A turn's own deps take precedence."""

    class Name:
        def __init__(self, name: str) -> None:
            self.name = name

    @tool
    async def who(name: Name) -> str:
        return name.name

    agent = worker(who)
    await put_all(agent, Turn(who), Turn(who, deps=Name("own")))
    assert [value async for _, value in agent.run(deps=Name("shared"))] == ["shared", "own"]


# ---- pausing


async def test_pause_and_resume_act_between_turns() -> None:
    """The running turn continues; the next one waits; both events fire once."""
    log = Log()
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        begun.set()
        await go.wait()
        return "slow"

    agent = worker(say, slow, hooks=[log])
    await put_all(agent, Turn(slow), saying("next"))
    got: list[Any] = []

    async def read() -> None:
        async for _, value in agent.run():
            got.append(value)

    reading = asyncio.create_task(read())
    await begun.wait()
    agent.queue.pause()
    agent.queue.pause()
    go.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert (got, agent.queue.paused, reading.done()) == (["slow"], True, False)
    agent.queue.resume()
    agent.queue.resume()
    await reading
    assert got == ["slow", "next"]
    turns = [name for name in log.names if name in ("Paused", "Resumed", "PreTurn", "PostTurn")]
    assert turns == ["PreTurn", "PostTurn", "Paused", "Resumed", "PreTurn", "PostTurn"]


async def test_a_queue_that_is_paused_and_resumed_while_nobody_runs_it_says_nothing() -> None:
    """Events report what happened to a run."""
    log = Log()
    agent = worker(say, hooks=[log])
    agent.queue.pause()
    agent.queue.resume()
    await agent.put(saying("a"))
    await values(agent)
    assert not {"Paused", "Resumed"} & set(log.names)


async def test_a_hook_that_pauses_again_on_resumed() -> None:
    """No turn is started in between."""
    pauses = 1

    @on(Resumed)
    def again(event: Resumed) -> None:
        nonlocal pauses
        if pauses:
            pauses -= 1
            agent.queue.pause()

    agent = worker(say, hooks=[again])
    agent.queue.pause()
    await agent.put(saying("a"))
    reading = asyncio.create_task(values(agent))
    for _ in range(5):
        await asyncio.sleep(0)
    agent.queue.resume()
    for _ in range(10):
        await asyncio.sleep(0)
    assert (reading.done(), len(agent.queue), agent.queue.paused) == (False, 1, True)
    agent.queue.resume()
    assert await reading == ["a"]


async def test_putting_while_it_is_paused() -> None:
    """The queue takes turns, up to its limit."""
    agent = worker(say, queue_limit=2)
    agent.queue.pause()
    await put_all(agent, saying("a"), saying("b"))
    with pytest.raises(QueueFullError):
        await agent.put(saying("c"), wait=False)
    agent.queue.resume()
    assert await values(agent) == ["a", "b"]


# ---- taking out, receipts


async def test_a_turn_that_is_taken_out() -> None:
    """It does not run, is in no queue, frees its place, and its receipt raises."""
    agent = worker(say, queue_limit=2)
    turn = saying("a")
    receipt = await agent.put(turn)
    await agent.put(saying("b"))
    assert agent.queue.remove(turn)
    assert not agent.queue.remove(turn)
    with pytest.raises(TurnDeniedError, match="removed from the queue"):
        await receipt
    await agent.put(saying("c"), wait=False)
    assert (await values(agent), turn.queued, turn.stop_reason) == (["b", "c"], "", None)


async def test_clearing_returns_the_turns() -> None:
    """They may be put again."""
    agent = worker(say)
    turns = (saying("a"), saying("b"))
    await put_all(agent, *turns)
    assert agent.queue.clear() == turns
    assert (len(agent.queue), await values(agent)) == (0, [])
    await put_all(agent, *turns)
    assert await values(agent) == ["a", "b"]


async def test_a_receipt_has_the_value() -> None:
    """It can be awaited before, while or after the turn runs, any number of times."""
    agent = worker(say)
    receipt = await agent.put(saying("a"))
    waiting = asyncio.create_task(asyncio.wait_for(receipt, 5))
    await asyncio.sleep(0)
    assert not receipt.done
    await values(agent)
    assert [await waiting, await receipt, await receipt, receipt.done] == ["a", "a", "a", True]


async def test_cancelling_a_receipt() -> None:
    """In the queue the turn is removed; while it runs it is interrupted; afterwards nothing happens."""
    begun = asyncio.Event()
    cleaned: list[bool] = []

    @tool
    async def hang() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)
        return ""

    agent = worker(say, hang)
    waiting = await agent.put(saying("a"))
    waiting.cancel()
    with pytest.raises(TurnDeniedError, match="cancelled it"):
        await waiting
    turn = Turn(hang)
    running = await agent.put(turn)
    await agent.put(saying("next"))
    reading = asyncio.create_task(values(agent))
    await begun.wait()
    running.cancel()
    assert await reading == ["next"]  # the reader of the queue is unaffected
    with pytest.raises(TurnDeniedError, match="cancelled it"):
        await running
    running.cancel()
    assert (turn.stop_reason, cleaned) == ("interrupted", [True])


async def test_awaiting_a_receipt_within_the_same_queue_is_refused() -> None:
    """The later turn cannot begin before this one has ended: the error says so, and nothing hangs."""

    @tool(timeout=None)
    async def impatient() -> str:
        return await (await agent.put(saying("later")))

    agent = worker(say, impatient)
    await agent.put(Turn(impatient))
    with pytest.raises(UsageError, match="agent 'worker' runs one turn at a time"):
        await asyncio.wait_for(values(agent), 5)
    assert await values(agent) == ["later"]


async def test_dropped_turns_are_logged_by_nobody() -> None:
    """A cleared queue logs nothing: its caller has the turns."""
    lines: list[str] = []
    sink = logger.add(lines.append, level="WARNING")
    try:
        agent = worker(say)
        await put_all(agent, saying("a"), saying("b"))
        agent.queue.clear()
        gc.collect()
    finally:
        logger.remove(sink)
    assert lines == []


# ---- branches


async def test_a_branch_shares_nothing() -> None:
    """It has copies of the waiting turns; changes of one are not visible in the other."""
    agent = worker(say, hooks=[])
    agent.queue.pause()
    turn = saying("a", metadata={"n": 1})
    await agent.put(turn)
    twin = agent.branch("twin")
    assert (twin.name, twin.queue.paused, len(twin.queue)) == ("twin", True, 1)
    turn.metadata["n"] = 2
    agent.queue.clear()
    twin.queue.resume()
    [(copied, value)] = [pair async for pair in twin.run()]
    assert (value, copied is turn, copied.metadata, turn.stop_reason, agent.queue.paused) == (
        "a",
        False,
        {"n": 1},
        None,
        True,
    )


async def test_a_queue_takes_turns_that_need_an_approval() -> None:
    """Approved turns run in the queue as by hand."""

    @tool(requires_approval=True)
    async def delete(path: str) -> str:
        return f"deleted {path}"

    agent = worker(delete)
    await agent.put(Turn(delete, {"path": "a"}, approval=Approve()))
    assert await values(agent) == ["deleted a"]


def test_a_queue_has_room() -> None:
    """A limit below one is refused."""
    with pytest.raises(UsageError, match="queue_limit=0"):
        _ = worker(say, queue_limit=0).queue


async def test_a_run_hands_out_each_value_with_its_turn() -> None:
    """Single values once, streams value by value."""
    agent = worker(add, count)
    one, two = Turn(add, {"a": 1, "b": 2}), Turn(count, {"n": 2})
    await agent.put(one)
    await agent.put(two)
    assert [(turn, value) async for turn, value in agent.run()] == [(one, 3), (two, 0), (two, 1)]


async def test_a_turn_in_a_queue_is_not_run_by_hand() -> None:
    """It would run twice: it is refused when it is requested and when it is awaited, until it is removed."""
    agent = worker(add, count)
    turn, stream = Turn(add, {"a": 1, "b": 2}), Turn(count, {"n": 1})
    early = turn.returning()
    await agent.put(turn)
    await agent.put(stream)
    with pytest.raises(SafeExecutionError) as caught:
        turn.returning()
    with pytest.raises(SafeExecutionError):
        await early
    with pytest.raises(SafeExecutionError):
        stream.yielding()
    assert str(caught.value) == (
        f"Turn {turn.id!r} of tool 'add' waits in the queue of agent 'worker', which will run it. To run it directly, remove "
        "it first with agent.queue.remove(turn), or run turn.copy()."
    )
    assert await turn.copy().returning() == 3
    agent.queue.remove(turn)
    assert await turn.returning() == 3
    assert [value async for _, value in agent.run()] == [0]


async def test_a_paused_queue_ends_where_nothing_is_left_to_run() -> None:
    """It waits for `resume` only while there are turns that it could run then."""
    agent = worker(add)
    agent.queue.pause()
    assert [value async for _, value in agent.run()] == []

    held, log = asyncio.Event(), Log()

    class Held(Hook):
        def on_event(self, event: Any) -> None:
            if type(event).__name__ == "Paused":
                held.set()

    agent = worker(add, hooks=[Held(), log])
    await agent.put(Turn(add, {"a": 1, "b": 2}))
    agent.queue.pause()

    async def read() -> list[object]:
        return [value async for _, value in agent.run()]

    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read())
        await held.wait()
        assert not reading.done()
        agent.queue.clear()
    assert (reading.result(), log.names) == ([], ["PrePut", "PostPut", "Paused"])


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_queue_without_a_place_is_refused_when_the_agent_is_built(wrong: Any) -> None:
    """It is refused when it is created, not at its first use."""
    with pytest.raises(UsageError, match=r"Agent 'worker': queue_limit=.*at least 1"):
        worker(add, queue_limit=wrong)


async def test_waiting_for_ones_own_queue_is_told_in_words_for_one_agent() -> None:
    """There is no circle of agents to show."""
    told: list[str] = []

    @tool
    async def wait() -> None:
        receipt = await agent.put(Turn(add, {"a": 1, "b": 2}))
        try:
            await receipt
        except UsageError as error:
            told.append(str(error))

    agent = worker(wait, add)
    await agent.put(Turn(wait))
    assert [value async for _, value in agent.run()] == [None, 3]
    said = (
        "The current turn would wait for a queue that cannot continue until this turn has ended (agent 'worker' runs one "
        "turn at a time), so neither would ever end. "
        "Send a turn without awaiting its receipt there, or await it after the turn."
    )
    assert told == [said]


def test_turns_beyond_the_limit_take_no_slot_from_others() -> None:
    """A turn can be added beyond the limit; no place is free then, until fewer wait than the limit allows."""
    entries = Entries(2)
    waiting: Any = [SimpleNamespace(turn=SimpleNamespace(leave=lambda: None)) for _ in range(3)]
    for entry in waiting:
        entries.add(entry)
    taken = [entries.reserve()]
    for entry in waiting:
        entries.take_out(entry)
        taken.append(entries.reserve())
        if taken[-1]:
            entries.release()
    assert taken == [False, False, True, True]
    assert [entries.reserve() for _ in range(3)] == [True, True, False]
    assert [Entries(None).reserve() for _ in range(3)] == [True] * 3
