"""`lock=True`: one run at a time, in order of arrival, across copies, event loops and threads. And `retries`."""

import asyncio
import copy
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow._support.locks import FairLock
from agentflow.errors import UsageError
from agentflow.tools import Tool, tool


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_free_lock_is_taken_without_waiting() -> None:
    """A free lock is taken at once, without yielding to other tasks."""
    lock = FairLock()
    assert (lock.locked, lock.try_acquire(), lock.locked, lock.try_acquire()) == (False, True, True, False)
    lock.release()
    assert not lock.locked
    coro: Any = lock.acquire()
    with pytest.raises(StopIteration):
        coro.send(None)
    assert repr(lock) == "FairLock(locked=True)"


async def test_who_waits_is_let_in_by_order_of_arrival() -> None:
    """The lock is handed over: no later caller can take it in between."""
    lock = FairLock()
    order: list[int] = []
    inside: list[int] = []

    async def visit(number: int) -> None:
        await lock.acquire()
        inside.append(number)
        assert inside == [number]
        await asyncio.sleep(0)
        inside.remove(number)
        order.append(number)
        lock.release()
        assert not lock.try_acquire() or number == 99

    await asyncio.gather(*(visit(number) for number in range(100)))
    assert (order, lock.locked) == (list(range(100)), True)


@pytest.mark.parametrize("moment", ["waiting", "handed over", "woken"])
async def test_a_cancelled_waiter_gives_its_turn_on(moment: str) -> None:
    """Whenever the cancellation comes, the next in the line gets the lock and none is lost."""
    lock = FairLock()
    await lock.acquire()
    first = asyncio.create_task(lock.acquire())
    second = asyncio.create_task(lock.acquire())
    await settle()
    if moment == "waiting":
        first.cancel()
        await settle()
        lock.release()
    else:
        lock.release()
        if moment == "woken":
            await asyncio.sleep(0)
        first.cancel()
    await asyncio.wait([first, second])
    assert (first.cancelled(), second.cancelled(), lock.locked) == (True, False, True)
    lock.release()
    assert not lock.locked


@given(st.lists(st.tuples(st.sampled_from(["come", "cancel", "release", "step"]), st.integers(0, 9)), max_size=40))
def test_no_program_loses_or_doubles_the_lock(program: list[tuple[str, int]]) -> None:
    """Whoever comes, goes, or gives up in whatever order: one holds it at a time, and in the end it is free."""

    async def play() -> None:
        lock = FairLock()
        leave = asyncio.Event()
        inside: list[int] = []

        async def visit(number: int) -> None:
            await lock.acquire()
            inside.append(number)
            assert inside == [number]
            try:
                await leave.wait()
                leave.clear()
            finally:
                inside.remove(number)
                lock.release()

        visits: list[asyncio.Task[None]] = []
        for step, number in program:
            if step == "come":
                visits.append(asyncio.create_task(visit(len(visits))))
            elif step == "cancel" and visits:
                visits[number % len(visits)].cancel()
            elif step == "release" and inside:
                leave.set()
            else:
                await asyncio.sleep(0)
        for _ in range(10 * len(visits)):
            leave.set()
            await asyncio.sleep(0)
        assert all(visit.done() for visit in visits)
        assert [visit.exception() for visit in visits if not visit.cancelled()] == [None] * sum(
            not visit.cancelled() for visit in visits
        )
        assert not lock.locked

    asyncio.run(play())


async def test_a_waiter_whose_coroutine_is_closed_gives_its_turn_on() -> None:
    """A dropped coroutine does not keep its place."""
    lock = FairLock()
    await lock.acquire()
    dropped: Any = lock.acquire()
    dropped.send(None)
    waiting = asyncio.create_task(lock.acquire())
    await settle()
    dropped.close()
    lock.release()
    await waiting
    assert lock.locked


def test_a_waiter_whose_event_loop_is_closed_is_skipped() -> None:
    """An event loop that was closed with a waiter on it does not block the others."""
    lock = FairLock()
    assert lock.try_acquire()
    gone = asyncio.new_event_loop()
    waiting: Any = lock.acquire()
    gone.call_soon(waiting.send, None)
    gone.run_until_complete(settle())
    gone.close()
    lock.release()
    assert not lock.locked
    waiting.close()


def test_the_lock_holds_across_threads_with_event_loops_of_their_own() -> None:
    """Eight event loops, each in a thread, never hold it at once."""
    lock = FairLock()
    inside: list[int] = []
    most: list[int] = []

    async def visit(number: int) -> None:
        for _ in range(50):
            await lock.acquire()
            inside.append(number)
            most.append(len(inside))
            await asyncio.sleep(0)
            inside.pop()
            lock.release()

    threads = [threading.Thread(target=lambda n=n: asyncio.run(visit(n))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(most), set(most), lock.locked) == (400, {1}, False)


class Store:
    @tool(lock=True)
    async def write(self, text: str) -> str:
        return text


def test_copies_of_a_tool_share_its_lock() -> None:
    """A tool bound to objects, or under another name, is one tool: it runs once at a time."""
    bound = (Store().write, Store().write, Store.write, Store().write.renamed("put"), copy.copy(Store.write))
    bound = (*bound, copy.deepcopy(Store.write))
    assert {id(made.lock) for made in bound} == {id(Store.write.lock)}
    assert isinstance(Store.write.lock, FairLock)


def test_another_tool_of_a_function_has_a_lock_of_its_own() -> None:
    """A tool has no lock by default."""

    async def work() -> None: ...

    assert tool(work).lock is None
    one, two = tool(lock=True)(work), tool(work, lock=True)
    assert (one.lock is not None, one.lock is two.lock) == (True, False)


async def test_a_tool_called_directly_does_not_take_its_lock() -> None:
    """The lock is taken by runs of the tool; a direct call is the function's."""
    store = Store()
    assert Store.write.lock is not None
    assert Store.write.lock.try_acquire()
    assert await store.write("text") == "text"
    Store.write.lock.release()


@pytest.mark.parametrize("retries", [-1, 1.5, True, "2"])
def test_retries_are_whole_numbers(retries: Any) -> None:
    """How often a tool is tried again is checked where it is made."""

    async def work() -> None: ...

    assert (tool(work).retries, tool(work, retries=2).retries) == (0, 2)
    with pytest.raises(UsageError) as caught:
        Tool(work, retries=retries)
    assert str(caught.value) == (
        f"Tool 'work' has retries={retries!r}; use the number of further attempts, a whole number from 0."
    )
