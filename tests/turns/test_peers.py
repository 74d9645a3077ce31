"""Agents that communicate: turns that are sent, questions, and their owners and costs."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
from loguru import logger
from turnlog import Log, add, broken, say, worker

from agentflow import Agent, Deny, Msg, PreActing, Turn, Usage, on, tool
from agentflow.agent import AgentRegistry
from agentflow.errors import DuplicateNameError, NotRegisteredError, QueueFullError, TurnDeniedError, UsageError
from agentflow.testing.scripted import ScriptedModel
from agentflow.vocabulary.events import PrePut, PreTurn
from agentflow.vocabulary.messages import ToolUseBlock


def saying(word: str) -> Turn[str]:
    return Turn(say, {"word": word})


def talker(agents: AgentRegistry, name: str, *script: Any, tools: Any = (), **more: Any) -> Agent:
    """Return a registered agent that can be asked."""
    return agents.register(Agent(name, ScriptedModel(script), tools=tools, agents=agents, **more))


async def settle(times: int = 20) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


# ---- sending


async def test_a_sent_turn_wakes_an_idle_agent(agents: AgentRegistry) -> None:
    """The other agent's queue is not being run: it runs the turn itself."""
    talker(agents, "worker", tools=[say])
    boss = talker(agents, "boss")
    receipt = await boss.send("worker", saying("hello"))
    assert await receipt == "hello"


async def test_a_turn_that_is_put_by_hand_waits_for_a_run(agents: AgentRegistry) -> None:
    """A sent turn is run by the queue itself, a turn that was only put is run by `run()`."""
    other = talker(agents, "worker", tools=[say])
    boss = talker(agents, "boss")
    by_hand = await other.put(saying("by hand"))
    assert await (await boss.send("worker", saying("sent"))) == "sent"
    await settle()
    assert (by_hand.done, len(other.queue)) == (False, 1)
    assert [value async for _, value in other.run()] == ["by hand"]


async def test_sent_turns_go_to_whoever_iterates_a_run(agents: AgentRegistry) -> None:
    """While the queue is iterated, sent turns are yielded there, in order."""
    other = talker(agents, "worker", tools=[say])
    boss = talker(agents, "boss")
    await other.put(saying("first"))
    got: list[Any] = []
    receipt = None
    async for _, value in other.run():
        got.append(value)
        if receipt is None:
            receipt = await boss.send("worker", saying("sent"))
            await settle()
            assert not receipt.done
    assert got == ["first", "sent"]
    assert receipt is not None
    assert await receipt == "sent"


async def test_what_was_sent_is_run_though_the_reader_leaves(agents: AgentRegistry) -> None:
    """The queue starts for it; turns that were put stay."""
    other = talker(agents, "worker", tools=[say])
    boss = talker(agents, "boss")
    await other.put(saying("first"))
    await other.put(saying("second"))
    async with other.run() as run:
        await anext(run)
        receipt = await boss.send("worker", saying("sent"))
    assert await asyncio.wait_for(receipt, 5) == "sent"
    assert [turn.arguments["word"] for turn in other.queue] == ["second"]


async def test_a_run_takes_over_from_the_task_that_was_woken(agents: AgentRegistry) -> None:
    """The running turn is finished first; the run yields the rest."""
    go = asyncio.Event()

    @tool
    async def slow() -> str:
        await go.wait()
        return "slow"

    other = talker(agents, "worker", tools=[say, slow])
    boss = talker(agents, "boss")
    first = await boss.send("worker", Turn(slow))
    await settle()
    await boss.send("worker", saying("rest"))

    async def read() -> list[Any]:
        return [value async for _, value in other.run()]

    reading = asyncio.create_task(read())
    await settle()
    go.set()
    assert (await reading, await first) == (["rest"], "slow")


async def test_the_task_survives_errors(agents: AgentRegistry) -> None:
    """Each sender gets its error; the next turn runs."""
    talker(agents, "worker", tools=[say, broken])
    boss = talker(agents, "boss")
    failed = await boss.send("worker", Turn(broken))
    fine = await boss.send("worker", saying("fine"))
    with pytest.raises(LookupError, match="lost"):
        await failed
    assert await fine == "fine"


async def test_who_sent_a_turn_is_on_its_events(agents: AgentRegistry) -> None:
    """Sender and run are part of the turn, and the receiver's hooks get them."""
    log = Log()
    talker(agents, "worker", tools=[say], hooks=[log])

    @tool
    async def delegate() -> str:
        return await (await boss.send("worker", saying("done")))

    boss = talker(agents, "boss", ToolUseBlock("t1", "delegate", {}), "ok", tools=[delegate])
    reply = await boss.call("go")
    first = log.seen[0]
    assert isinstance(first, PrePut)
    assert (first.turn.sender, first.turn.sender_run) == ("boss", reply.run_id)
    later = next(event for event in log.seen if isinstance(event, PreTurn))
    assert (later.turn.sender, later.turn.sender_run, later.source) == ("boss", reply.run_id, "worker")


async def test_a_receiver_may_refuse_by_the_sender(agents: AgentRegistry) -> None:
    """`PrePut` has the sender."""

    @on(PrePut)
    def friends(event: PrePut) -> Deny | None:
        return None if event.turn.sender == "boss" else Deny("I do not know you")

    talker(agents, "worker", tools=[say], hooks=[friends])
    boss, stranger = talker(agents, "boss"), talker(agents, "stranger")
    assert await (await boss.send("worker", saying("a"))) == "a"
    with pytest.raises(TurnDeniedError, match="do not know"):
        await stranger.send("worker", saying("b"))


async def test_an_unknown_agent(agents: AgentRegistry) -> None:
    """The errors of sending and asking list the existing names; the turn is unchanged."""
    boss = talker(agents, "boss")
    turn = saying("a")
    with pytest.raises(NotRegisteredError, match=r"No agent is registered as 'bos'. Did you mean 'boss'\?"):
        await boss.send("bos", turn)
    with pytest.raises(NotRegisteredError):
        await boss.ask("nobody", "hello?")
    assert (turn.sender, turn.queued) == ("", "")


async def test_two_agents_of_one_name(agents: AgentRegistry) -> None:
    """The second is refused; the error has both places."""
    talker(agents, "boss")
    with pytest.raises(DuplicateNameError, match=r"test_peers\.py:\d+.*test_peers\.py:\d+"):
        talker(agents, "boss")


async def test_a_full_mailbox(agents: AgentRegistry) -> None:
    """Senders wait for a place, or get an error at once."""
    go = asyncio.Event()

    @tool
    async def slow() -> str:
        await go.wait()
        return "slow"

    talker(agents, "worker", tools=[say, slow], queue_limit=1)
    boss = talker(agents, "boss")
    await boss.send("worker", Turn(slow))
    await settle()
    await boss.send("worker", saying("a"))
    with pytest.raises(QueueFullError, match="worker"):
        await boss.send("worker", saying("b"), wait=False)
    with pytest.raises(QueueFullError, match="worker"):
        await boss.ask("worker", "hello?", wait=False)
    waiting = asyncio.create_task(boss.send("worker", saying("c")))
    await settle()
    assert not waiting.done()
    go.set()
    assert await (await waiting) == "c"


async def test_sent_errors_that_nobody_awaits_are_logged_once(agents: AgentRegistry) -> None:
    """They are logged when the receipt is dropped; an awaited receipt logs nothing."""
    lines: list[str] = []
    sink = logger.add(lines.append, level="WARNING", format="{message}")
    try:
        talker(agents, "worker", tools=[broken])
        boss = talker(agents, "boss")
        await boss.send("worker", Turn(broken))
        seen = await boss.send("worker", Turn(broken))
        with pytest.raises(LookupError):
            await seen
        del seen
        await settle()
        gc.collect()
    finally:
        logger.remove(sink)
    assert [line.rstrip() for line in lines] == [
        "a turn that was sent to worker failed, and its receipt was not awaited: LookupError: lost"
    ]


async def test_the_woken_task_carries_nothing_of_its_first_sender(agents: AgentRegistry) -> None:
    """If a locked tool sends a turn of itself to another agent, that agent does not hold the tool's lock."""

    @tool(lock=True)
    async def shared(deep: bool) -> str:
        if deep:
            receipts.append(await boss.send("worker", Turn(shared, {"deep": False})))
        return "ran"

    receipts: list[Any] = []
    talker(agents, "worker", tools=[shared])
    boss = talker(agents, "boss")
    assert await Turn(shared, {"deep": True}).returning() == "ran"
    assert await asyncio.wait_for(receipts[0], 5) == "ran"


async def test_the_woken_task_waits_for_a_lock_that_its_sender_holds() -> None:
    """The sender does not run there, so the lock is not its own: the turn waits, and is not refused."""
    agents, begun = AgentRegistry(), asyncio.Event()

    @on(PreActing)
    def tell(event: PreActing) -> None:
        begun.set()

    @tool(lock=True)
    async def shared(deep: bool) -> str:
        if deep:
            receipts.append(await boss.send("worker", Turn(shared, {"deep": False}, hooks=[tell])))
            await begun.wait()
            await settle()
            assert not receipts[0].done
        return "deep" if deep else "sent"

    receipts: list[Any] = []
    talker(agents, "worker", tools=[shared])
    boss = talker(agents, "boss")
    assert await Turn(shared, {"deep": True}).returning() == "deep"
    assert await asyncio.wait_for(receipts[0], 5) == "sent"


# ---- asking


async def test_ask(agents: AgentRegistry) -> None:
    """The other agent's reply is returned."""
    other = talker(agents, "worker", "hello yourself")
    boss = talker(agents, "boss")
    reply = await boss.ask("worker", "hello")
    assert (reply.text, reply.outcome) == ("hello yourself", "completed")
    assert other.session().messages == ()


async def test_questions_are_lazy(agents: AgentRegistry) -> None:
    """Nothing is asked before the Mono is awaited; each await is a question of its own."""
    other = talker(agents, "worker", "one", "two")
    boss = talker(agents, "boss")
    question = boss.ask("worker", "hello")
    await settle()
    assert other.config.model.requests == []  # type: ignore[union-attr]
    assert [(await question).text, (await question).text] == ["one", "two"]


async def test_asking_in_a_session(agents: AgentRegistry) -> None:
    """With a session the conversation continues; without one, each question is independent."""
    other = talker(agents, "worker", "one", "two", "three")
    boss = talker(agents, "boss")
    await boss.ask("worker", "first", session="talk")
    await boss.ask("worker", "second", session="talk")
    await boss.ask("worker", "alone")
    assert [msg.text for msg in other.session("talk").messages] == ["first", "one", "second", "two"]


async def test_asking_with_messages(agents: AgentRegistry) -> None:
    """A question may be messages, as in a call."""
    other = talker(agents, "worker", "both")
    boss = talker(agents, "boss")
    await boss.ask("worker", [Msg.user("one"), Msg.user("two")], session="s")
    assert [msg.text for msg in other.session("s").messages] == ["one", "two", "both"]


async def test_questions_are_answered_one_at_a_time_in_order(agents: AgentRegistry) -> None:
    """A busy agent answers after the questions before."""
    order: list[str] = []

    def answer(request: Any) -> str:
        order.append(request.messages[-1].text)
        return "ok"

    agents.register(Agent("worker", ScriptedModel(answer), agents=agents))
    boss = talker(agents, "boss")
    await asyncio.gather(*[boss.ask("worker", str(i)) for i in range(5)])
    assert order == ["0", "1", "2", "3", "4"]


async def test_an_error_of_the_other_agents_call_comes_back(agents: AgentRegistry) -> None:
    """It is raised unchanged."""
    talker(agents, "worker", LookupError("model down"))
    boss = talker(agents, "boss")
    with pytest.raises(LookupError, match="model down"):
        await boss.ask("worker", "hello")


async def test_cancelling_a_question_takes_it_back(agents: AgentRegistry) -> None:
    """A waiting question is withdrawn; one that is being answered is interrupted."""
    begun, ended = asyncio.Event(), list[str]()

    async def think() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("interrupted")

    other = talker(agents, "worker", [think, "never"], "next")
    boss = talker(agents, "boss")

    async def ask(what: str) -> str:
        return (await boss.ask("worker", what)).text

    first = asyncio.create_task(ask("first"))
    await begun.wait()
    second = asyncio.create_task(ask("second"))
    await settle()
    assert len(other.queue) == 1
    second.cancel()
    first.cancel()
    await asyncio.wait([first, second])
    await settle()
    assert (first.cancelled(), second.cancelled(), ended, len(other.queue)) == (True, True, ["interrupted"], 0)
    assert await ask("third") == "next"


async def test_the_cost_of_an_answer_is_billed_to_whoever_asked(agents: AgentRegistry) -> None:
    """The asking call's usage has the other agent's model calls."""
    talker(agents, "worker", "an answer")

    @tool
    async def consult() -> str:
        return (await boss.ask("worker", "what?")).text

    boss = talker(agents, "boss", ToolUseBlock("t1", "consult", {}), "ok", tools=[consult])
    assert (await boss.call("go")).usage == Usage(model_calls=3)


async def test_a_circle_of_questions_is_refused_with_the_way(agents: AgentRegistry) -> None:
    """The question that closes the circle raises at once, with the names in order; nothing hangs."""
    for name, asks in (("ann", "bob"), ("bob", "cid"), ("cid", "ann")):

        @tool(name=f"ask_{asks}", timeout=None)
        async def consult(who: str, me: str) -> str:
            return (await agents[me].ask(who, "what?")).text  # type: ignore[attr-defined]

        use = ToolUseBlock("t1", f"ask_{asks}", {"who": asks, "me": name})
        talker(agents, name, use, f"{name} is done", tools=[consult])
    boss = talker(agents, "boss")
    reply = await asyncio.wait_for(boss.ask("ann", "begin", session="s"), 5)
    assert reply.text == "ann is done"
    told = agents["cid"].config.model.requests[1].messages[-1].tool_results[0].text  # type: ignore[attr-defined]
    assert "cid → ann → bob → cid" in told


async def test_asking_oneself_is_refused(agents: AgentRegistry) -> None:
    """Within a question to the agent itself."""

    @tool(timeout=None)
    async def muse() -> str:
        return (await boss.ask("boss", "who am I?")).text

    boss = talker(agents, "boss", ToolUseBlock("t1", "muse", {}), "done", "never asked", tools=[muse])
    reply = await asyncio.wait_for(boss.ask("boss", "think"), 5)
    assert reply.text == "done"
    assert "agent 'boss' runs one turn at a time" in boss.config.model.requests[1].messages[-1].tool_results[0].text  # type: ignore[union-attr]


async def test_asking_back_is_fine_where_nobody_waits(agents: AgentRegistry) -> None:
    """A turn that was sent without waiting may ask its sender: the sender's turn ends, and then the sender answers."""
    receipts: list[Any] = []

    @tool
    async def ask_back() -> str:
        return (await agents["worker"].ask("boss", "what did you mean?")).text  # type: ignore[attr-defined]

    @tool
    async def send_on() -> str:
        receipts.append(await boss.send("worker", Turn(ask_back)))
        return "sent"

    talker(agents, "worker", tools=[ask_back])
    boss = talker(agents, "boss", "just that", tools=[send_on])
    assert await (await talker(agents, "chief").send("boss", Turn(send_on))) == "sent"
    assert await asyncio.wait_for(receipts[0], 5) == "just that"


async def test_a_call_may_ask_an_agent_that_asks_back(agents: AgentRegistry) -> None:
    """A call is no turn of the queue: the agent can be asked meanwhile, in another session."""

    @tool
    async def consult(who: str, me: str) -> str:
        return (await agents[me].ask(who, "what?")).text  # type: ignore[attr-defined]

    to_worker = ToolUseBlock("t1", "consult", {"who": "worker", "me": "boss"})
    to_boss = ToolUseBlock("t1", "consult", {"who": "boss", "me": "worker"})
    boss = talker(agents, "boss", to_worker, "asked back", "boss done", tools=[consult])
    talker(agents, "worker", to_boss, "worker done", tools=[consult])
    assert (await asyncio.wait_for(boss.call("go"), 5)).text == "boss done"


async def test_two_full_queues_that_fill_each_other(agents: AgentRegistry) -> None:
    """Turns of two agents wait for a place in the other's queue: the second is refused instead of waiting
    indefinitely.
    """
    outcomes: list[str] = []
    begun: list[str] = []
    go = asyncio.Event()

    @tool(timeout=None)
    async def pass_on(me: str, to: str) -> str:
        begun.append(me)
        await go.wait()
        try:
            await agents[me].send(to, saying("more"))  # type: ignore[attr-defined]
            outcomes.append("sent")
        except QueueFullError:
            outcomes.append("full")
        return me

    boss = talker(agents, "boss")
    for name in ("ann", "bob"):
        talker(agents, name, tools=[say, pass_on], queue_limit=1)
    first = await boss.send("ann", Turn(pass_on, {"me": "ann", "to": "bob"}))
    second = await boss.send("bob", Turn(pass_on, {"me": "bob", "to": "ann"}))
    await settle()
    assert begun == ["ann", "bob"]
    for name in begun:
        await boss.send(name, saying("filler"), wait=False)
    go.set()
    assert await asyncio.wait_for(asyncio.gather(first, second), 5) == ["ann", "bob"]
    assert outcomes == ["full", "sent"]


async def test_an_agent_with_a_tool_named_ask(agents: AgentRegistry) -> None:
    """Questions and turns of its own tool are distinguished, also in saved queues."""

    @tool
    async def ask(message: str, session: str | None = None) -> str:
        return f"own: {message}"

    other = talker(agents, "worker", "model", "model", tools=[tool(name="ask")(ask.function)])
    boss = talker(agents, "boss")
    own = other.tools[0]
    assert (await boss.ask("worker", "hello")).text == "model"
    receipt = await boss.send("worker", Turn(own, {"message": "hello"}))
    assert await receipt == "own: hello"


# ---- threads


def test_agents_on_two_event_loops() -> None:
    """Turns are sent from one thread to an agent in another one; no wake-up is lost."""
    agents = AgentRegistry()
    talker(agents, "worker", tools=[say])
    boss = talker(agents, "boss")
    got: dict[int, list[str]] = {0: [], 1: []}
    errors: list[BaseException] = []

    def live(number: int) -> None:
        async def main() -> None:
            for i in range(150):
                receipt = await boss.send("worker", saying(f"{number}-{i}"))
                got[number].append(await asyncio.wait_for(receipt, 10))

        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=live, args=(number,)) for number in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert got == {number: [f"{number}-{i}" for i in range(150)] for number in got}


async def test_sending_what_is_no_turn(agents: AgentRegistry) -> None:
    """It is refused, with an example."""
    boss = talker(agents, "boss")
    with pytest.raises(UsageError, match=r"send\('other', Turn\("):
        await boss.send("boss", "hello")  # type: ignore[arg-type]


async def test_a_worker_without_a_registry_is_not_found() -> None:
    """Agents are found in their registry, and nowhere else."""
    lonely = worker(say, agents=AgentRegistry())
    with pytest.raises(NotRegisteredError, match="nothing"):
        await lonely.send("worker", saying("a"))


async def test_agents_are_found_by_name_and_sent_turns(agents: AgentRegistry) -> None:
    """A sent turn runs in the other agent's queue, and has its sender."""
    log = Log()
    agents.register(worker(add, hooks=[log], agents=agents))
    boss = Agent("boss", ScriptedModel([]), agents=agents)
    receipt = await boss.send("worker", Turn(add, {"a": 1, "b": 2}))
    assert await receipt == 3
    first = log.seen[0]
    assert isinstance(first, PrePut)
    assert (first.turn.sender, first.agent.name) == ("boss", "worker")
