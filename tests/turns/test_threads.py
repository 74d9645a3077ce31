"""Agents that get questions and turns from many threads: each sender has an event loop of its own, and loops come and go.

Awaited work is answered, no turn runs twice, and nothing depends on a foreign event loop.
"""

from __future__ import annotations

import asyncio
import gc
import random
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from loguru import logger

from agentflow import Agent, Turn, tool
from agentflow.agent import AgentRegistry, Receipt
from agentflow.errors import SafeExecutionError, TurnDeniedError
from agentflow.testing.scripted import ScriptedModel

PATIENCE = 60.0
"""Seconds until a thread counts as hanging."""


class Threads:
    """Threads whose failures, and whose hanging, fail the test."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self, work: Callable[[], object]) -> None:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                self._errors.append(error)

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not any(thread.is_alive() for thread in self._threads), "a thread hangs"
        for error in self._errors:
            raise error


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Turns that were cancelled with their sender, and are not awaited, are logged when their receipts are dropped."""
    logger.disable("agentflow")
    yield
    gc.collect()
    logger.enable("agentflow")


@pytest.fixture
def threads() -> Threads:
    return Threads()


@tool
async def echo(number: int) -> int:
    """Return the argument."""
    await asyncio.sleep(0.002)
    return number


async def answered(request: Any) -> str:
    await asyncio.sleep(0.002)
    return "answer to " + request.messages[-1].text


def pair(agents: AgentRegistry, *tools: Any, answers: int = 0, **more: Any) -> tuple[Agent, Agent]:
    """Return a clerk, and a librarian with tools."""
    model = ScriptedModel([answered] * answers)
    librarian = agents.register(Agent("librarian", model, tools=tools, agents=agents, **more))
    return agents.register(Agent("clerk", ScriptedModel([]), agents=agents)), librarian


def eight(threads: Threads, work: Callable[[int], object]) -> list[object]:
    """Return the results of eight threads that began together."""
    gate, got = threading.Barrier(8), [None] * 8

    def one(number: int) -> None:
        gate.wait(PATIENCE)
        got[number] = work(number)  # type: ignore[call-overload]

    for number in range(8):
        threads.start(lambda number=number: one(number))
    threads.join()
    return got


@pytest.mark.parametrize("how", ["block", "asyncio.run"])
def test_eight_threads_ask_one_agent(how: str, agents: AgentRegistry, threads: Threads) -> None:
    """Each blocks in an event loop of its own, which ends with its answer."""
    clerk, librarian = pair(agents, answers=8)

    def ask(number: int) -> str:
        question = clerk.ask("librarian", f"question {number}")
        if how == "block":
            return question.block().text
        return asyncio.run(question).text

    assert eight(threads, ask) == [f"answer to question {number}" for number in range(8)]
    assert (len(librarian.queue), librarian.queue.running) == (0, False)


def test_eight_threads_send_to_one_agent(agents: AgentRegistry, threads: Threads) -> None:
    """Each awaits the receipt of its own turn."""
    clerk, librarian = pair(agents, echo)

    async def send(number: int) -> int:
        return await (await clerk.send("librarian", Turn(echo, {"number": number})))

    assert eight(threads, lambda number: asyncio.run(send(number))) == list(range(8))
    assert (len(librarian.queue), librarian.queue.running) == (0, False)


def test_a_turn_runs_in_the_event_loop_that_it_was_sent_from(agents: AgentRegistry, threads: Threads) -> None:
    """So its tool may use a connection or lock of the sender's loop."""
    homes: dict[int, tuple[object, object]] = {}

    @tool
    async def where(number: int) -> None:
        homes[number] = (homes[number][0], asyncio.get_running_loop())

    clerk, _ = pair(agents, where)

    async def send(number: int) -> None:
        homes[number] = (asyncio.get_running_loop(), None)
        await (await clerk.send("librarian", Turn(where, {"number": number})))

    eight(threads, lambda number: asyncio.run(send(number)))
    assert all(sent_from is ran_in for sent_from, ran_in in homes.values())


def test_turns_of_several_event_loops_run_in_the_order_of_sending(agents: AgentRegistry, threads: Threads) -> None:
    """They run one at a time, in the order of sending, even if another loop's turn takes long."""
    log: list[str] = []
    first_runs, second_sent = threading.Event(), threading.Event()

    @tool
    async def write(text: str) -> None:
        log.append(f"{text} begins")
        if text == "first":
            first_runs.set()
            await asyncio.to_thread(second_sent.wait, PATIENCE)
        log.append(f"{text} ends")

    clerk, _ = pair(agents, write)

    async def first() -> None:
        await (await clerk.send("librarian", Turn(write, {"text": "first"})))

    async def second() -> None:
        await asyncio.to_thread(first_runs.wait, PATIENCE)
        receipt = await clerk.send("librarian", Turn(write, {"text": "second"}))
        second_sent.set()
        await receipt

    threads.start(lambda: asyncio.run(first()))
    threads.start(lambda: asyncio.run(second()))
    threads.join()
    assert log == ["first begins", "first ends", "second begins", "second ends"]


# ---- senders that die


def dying(coroutine: Coroutine[Any, Any, Any], tidy: bool) -> Any:
    """Run a coroutine in a loop that ends with it: its tasks are cancelled, or the loop is closed under them."""
    if tidy:
        return asyncio.run(coroutine)
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


@pytest.mark.parametrize("tidy", [True, False])
def test_what_a_dead_sender_left_waiting_is_run_before_what_comes_behind_it(tidy: bool, agents: AgentRegistry) -> None:
    """It is not awaited, so it stays until a new turn is sent or a receipt awaited; then it runs in order."""
    ran: list[int] = []

    @tool
    async def note(number: int) -> int:
        ran.append(number)
        return number

    clerk, librarian = pair(agents, note)

    async def leave() -> Receipt[int]:
        return await clerk.send("librarian", Turn(note, {"number": 1}))

    librarian.queue.pause()
    left = dying(leave(), tidy)
    librarian.queue.resume()
    assert (ran, left.done) == ([], False)

    async def stay() -> int:
        return await (await clerk.send("librarian", Turn(note, {"number": 2})))

    assert (asyncio.run(stay()), ran, left.done, len(librarian.queue)) == (2, [1, 2], True, 0)


@pytest.mark.parametrize("tidy", [True, False])
def test_whoever_awaits_the_receipt_of_a_dead_sender_has_the_turn_run(tidy: bool, agents: AgentRegistry) -> None:
    """It runs in the event loop of the await."""
    clerk, librarian = pair(agents, echo)

    async def leave() -> Receipt[int]:
        return await clerk.send("librarian", Turn(echo, {"number": 7}))

    async def wait(receipt: Receipt[int]) -> int:
        return await receipt

    librarian.queue.pause()
    receipt = dying(leave(), tidy)
    librarian.queue.resume()
    assert asyncio.run(wait(receipt)) == 7


def test_what_a_dead_sender_left_in_a_full_queue_makes_place(agents: AgentRegistry) -> None:
    """A sender that waits for a place runs it."""
    clerk, librarian = pair(agents, echo, queue_limit=1)

    async def leave() -> None:
        await clerk.send("librarian", Turn(echo, {"number": 1}))

    async def stay() -> int:
        return await (await clerk.send("librarian", Turn(echo, {"number": 2})))

    librarian.queue.pause()
    asyncio.run(leave())
    librarian.queue.resume()
    assert asyncio.run(stay()) == 2


@pytest.mark.parametrize("tidy", [True, False])
def test_a_sender_that_dies_while_its_turn_runs_keeps_nobody_waiting(
    tidy: bool, agents: AgentRegistry, threads: Threads
) -> None:
    """Its turn is cancelled, and its receipt raises; the next one runs, although it has waited since before."""
    running, waiting = threading.Event(), threading.Event()

    @tool
    async def hang() -> None:
        running.set()
        await asyncio.Event().wait()

    clerk, _ = pair(agents, hang, echo)
    cut: list[Receipt[None]] = []
    turn = Turn(hang)

    async def leave() -> None:
        cut.append(await clerk.send("librarian", turn))
        while not waiting.is_set():  # noqa: ASYNC110 - the signal comes from another thread
            await asyncio.sleep(0.001)

    async def stay() -> int:
        await asyncio.to_thread(running.wait, PATIENCE)
        receipt = await clerk.send("librarian", Turn(echo, {"number": 3}))
        waiting.set()
        return await receipt

    threads.start(lambda: dying(leave(), tidy))
    got: list[int] = []
    threads.start(lambda: got.append(asyncio.run(stay())))
    threads.join()

    async def look() -> None:
        await cut[0]

    with pytest.raises(TurnDeniedError, match="it was cancelled while it ran"):
        asyncio.run(look())
    assert (got, turn.stop_reason, turn.running) == ([3], "interrupted", False)


class Hammer:
    """The actions of one thread on an agent, and the results that it must get."""

    def __init__(self, clerk: Agent, number: int, ran: Counter[int]) -> None:
        self.clerk = clerk
        self.random = random.Random(number)
        self.numbers = range(number * 1000, (number + 1) * 1000)
        self.ran = ran
        self.owed: list[int] = []
        self.left: list[int] = []

    def turn(self, step: int) -> Turn[int]:
        return Turn(self.clerk.tools[0], {"number": self.numbers[step]})

    async def send(self, step: int) -> int:
        return await (await self.clerk.send("librarian", self.turn(step)))

    async def leave(self, step: int) -> None:
        await self.clerk.send("librarian", self.turn(step))
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)

    async def give_up(self, step: int) -> None:
        receipt = await self.clerk.send("librarian", self.turn(step))
        try:
            async with asyncio.timeout(self.random.random() * 0.004):
                await receipt
        except TimeoutError:
            receipt.cancel()

    def run(self) -> None:
        for step in range(40):
            match self.random.randrange(6):
                case 0 | 1:
                    assert asyncio.run(self.send(step)) == self.numbers[step]
                    self.owed.append(self.numbers[step])
                case 2 | 3:
                    word = f"{self.numbers[step]}"
                    assert self.clerk.ask("librarian", word).block().text == f"answer to {word}"
                case 4:
                    dying(self.leave(step), tidy=self.random.random() < 0.5)
                    self.left.append(self.numbers[step])
                case _:
                    asyncio.run(self.give_up(step))
                    self.left.append(self.numbers[step])


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_eight_threads_hammer_one_agent(agents: AgentRegistry, threads: Threads) -> None:
    """They ask, send, give up and end; awaited work ran once and was answered, and nothing else ran more than once."""
    ran: Counter[int] = Counter()

    @tool
    async def work(number: int) -> int:
        ran[number] += 1
        await asyncio.sleep(0.001)
        return number

    librarian = agents.register(Agent("librarian", ScriptedModel([answered] * 8 * 40), tools=[work], agents=agents))
    clerk = Agent("clerk", ScriptedModel([]), tools=[work], agents=agents)
    hammers = [Hammer(clerk, number, ran) for number in range(8)]
    for hammer in hammers:
        threads.start(hammer.run)
    threads.join()

    async def rest() -> list[object]:
        return [value async for _, value in librarian.run()]

    asyncio.run(rest())
    assert (len(librarian.queue), librarian.queue.running) == (0, False)
    for hammer in hammers:
        assert [ran[number] for number in hammer.owed] == [1] * len(hammer.owed)
        assert all(ran[number] <= 1 for number in hammer.left)


def test_a_turn_that_threads_put_at_once_is_in_one_queue(threads: Threads) -> None:
    """One of them has it, and the others get its place; the same holds for running it by hand."""
    workers = [Agent(f"worker{number}", ScriptedModel([]), tools=[echo]) for number in range(8)]
    turn = Turn(echo, {"number": 1})

    async def put(number: int) -> str:
        try:
            await workers[number].put(turn)
        except SafeExecutionError:
            return ""
        return workers[number].name

    taken = [name for name in eight(threads, lambda number: asyncio.run(put(number))) if name]
    assert taken == [turn.queued]
