"""Traps known from reactivex and from async generators, each with the proof that it is not here."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from itertools import permutations
from typing import TYPE_CHECKING, Any
from weakref import ref

import pytest

from agentflow import Agent
from agentflow._support.virtual_time import run_virtual
from agentflow.errors import NotIterableError, UsageError
from agentflow.reactive import Flux, Mono, StreamIterator
from agentflow.testing import ScriptedModel
from agentflow.testing.verify import Probe, verify

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


async def test_long_chains_do_not_exhaust_the_stack() -> None:
    """10,000 maps and 5,000 flat_maps run, on Mono and (maps) on Flux; reactivex ends at 245 and 82."""
    mono: Mono[int] = Mono.just(0)
    flux: Flux[int] = Flux.of(0)
    for _ in range(10_000):
        mono, flux = mono.map(lambda x: x + 1), flux.map(lambda x: x + 1)
    assert await mono == 10_000
    assert await flux.to_list() == [10_000]
    mono = Mono.just(0)
    for _ in range(5_000):
        mono = mono.flat_map(lambda x: Mono.just(x + 1))
    assert await mono == 5_000


@pytest.mark.parametrize("make", [lambda: Flux.of(1, 2), lambda: Mono.just(1), lambda: Flux.of(1).map(str)])
@pytest.mark.parametrize("read", [iter, list, enumerate, lambda source: [*source]])
def test_a_plain_for_is_refused(read: Callable[[object], object], make: Callable[[], object]) -> None:
    """Read without `async`, a stream would give itself forever (Observable has `__getitem__`); it is refused, with the
    forms that work, and as Python itself refuses what cannot be iterated."""
    with pytest.raises(NotIterableError) as caught:
        read(make())
    assert isinstance(caught.value, TypeError)
    text = str(caught.value)
    assert [form for form in ("async for", "await", "mono.block()", ".to_list().block()") if form not in text] == []


def test_what_is_read_later_is_no_list_of_messages_hooks_or_tools() -> None:
    """A call that was not awaited is no input of another one, and says so; nor are sources hooks or tools."""
    with pytest.raises(UsageError, match=r"not Just\. Await it first"):
        Agent("a", ScriptedModel(["x"])).call(Mono.just("hi")).block()  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="not Flux"):
        Agent("a", ScriptedModel([]), hooks=Flux.of(1))  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="not Just"):
        Agent("a", ScriptedModel([]), tools=[Mono.just(1)])  # pyright: ignore[reportArgumentType]


async def test_recursion_through_flat_map_has_no_depth_limit() -> None:
    """A loop written as a flat_map that returns itself runs 20,000 turns, with and without suspending."""

    def turn(left: int) -> Mono[str]:
        return Mono.just(left).flat_map(lambda n: turn(n - 1) if n else Mono.just("done"))

    def suspending(left: int) -> Mono[str]:
        return Mono(lambda: asyncio.sleep(0, left)).flat_map(lambda n: suspending(n - 1) if n else Mono.just("done"))

    assert await turn(20_000) == "done"
    assert await suspending(1_000) == "done"


async def test_catch_and_retry_do_not_swallow_cancellation() -> None:
    """reactivex turns a CancelledError into on_error and retries it; here the task is cancelled."""
    probe = Probe(hang=True)
    stubborn = probe.flux.retry().catch(lambda _, source: source).timeout(60, Flux.of(1))
    reader = asyncio.create_task(stubborn.to_list().retry().catch(Mono.just([])))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert probe.subscriptions == probe.cancelled == 1


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_signals_pass_every_operator(signal: type[BaseException]) -> None:
    """They are no failures: nothing catches, retries or replaces them."""
    probe = Probe(error=signal())
    with pytest.raises(signal):
        probe.flux.retry().catch(Flux.of(1)).timeout(5, Flux.of(2)).to_list().catch(Mono.just([])).block()
    assert probe.subscriptions == 1


async def test_flat_map_takes_a_coroutine_function_and_is_cold() -> None:
    """reactivex's flat_map refuses one, and from_future runs before it is subscribed."""
    runs = 0

    async def work(value: int) -> int:
        nonlocal runs
        runs += 1
        return value + 1

    chain = Mono.just(1).flat_map(work)
    assert runs == 0
    assert [await chain, await chain] == [2, 2]
    assert runs == 2


def test_a_limit_never_cancels_the_readers_own_sleep() -> None:
    """asyncio.timeout held over a yield cancels whatever its reader awaits; these limits do not run meanwhile."""

    async def main(limited: Flux[Any]) -> list[Any]:
        read: list[Any] = []
        async with limited as items:
            async for item in items:
                await asyncio.sleep(10)
                read.append(item)
        return read

    source = Flux.of(1, 2)
    limits = (source.timeout(1), source.deadline(1), source.buffer_with_time(1))
    assert [run_virtual(main(limited)) for limited in limits] == [[1, 2], [1, 2], [[1, 2]]]


async def test_reading_as_a_task_and_a_second_reader() -> None:
    """`create_task(anext(it))` works; a second concurrent read is refused and the first continues."""
    gate = asyncio.Event()

    async def gated() -> AsyncIterator[int]:
        await gate.wait()
        yield 1

    async with Flux(gated) as items:
        first = asyncio.create_task(anext(items), name="first")
        await asyncio.sleep(0)
        with pytest.raises(UsageError, match="'first' is already waiting"):
            await anext(items)
        gate.set()
        assert await first == 1
    with pytest.raises(StopAsyncIteration):
        await anext(items)


async def test_closing_while_a_read_is_in_flight() -> None:
    """Leaving `async with` cancels the read and waits for the cleanup; the error of a bare aclose() says what to do first."""
    probe = Probe(hang=True)
    async with probe.flux as items:
        reader = asyncio.create_task(anext(items))
        await asyncio.sleep(0)
    assert reader.cancelled()
    assert probe.closed == probe.cancelled == 1

    bare = aiter(probe.flux)
    assert isinstance(bare, StreamIterator)
    reader = asyncio.create_task(anext(bare))
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="cancel and await that task first"):
        await bare.aclose()
    with pytest.raises(UsageError, match="another task is already waiting"):
        await anext(bare)
    reader.cancel()
    await asyncio.wait([reader])
    await bare.aclose()
    await bare.aclose()
    assert probe.closed == probe.cancelled == 2


async def test_a_bare_break_is_cleaned_up_at_the_next_turns() -> None:
    """The source of a dropped iterator is closed by the loop, through all operators."""
    probe = Probe(1, 2)
    async for _ in probe.flux.map(lambda x: x).retry(2).merge(Flux.never()):
        break
    gc.collect()
    for _ in range(5):
        await asyncio.sleep(0)
    assert probe.closed == 1


async def test_a_foreign_iterator_is_closed_after_a_bare_break() -> None:
    """So is one that is no async generator but has an aclose()."""

    class Foreign:
        closed = False

        def __aiter__(self) -> Foreign:
            return self

        async def __anext__(self) -> int:
            return 1

        async def aclose(self) -> None:
            self.closed = True

    foreign = Foreign()
    async for _ in Flux(lambda: foreign):
        break
    gc.collect()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert foreign.closed


async def test_one_flux_read_twice_at_once() -> None:
    """Two `async with` of one flux, nested and in two tasks, are independent runs."""
    probe = Probe(1, 2)
    flux = probe.flux
    async with flux as outer, flux as inner:
        assert [await anext(outer), await anext(inner), await anext(outer)] == [1, 1, 2]
    assert probe.subscriptions == probe.closed == 2

    async def read() -> list[int]:
        async with flux as items:
            return [x async for x in items]

    assert await asyncio.gather(read(), read()) == [[1, 2], [1, 2]]


@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_each_task_leaves_the_run_that_it_entered(order: tuple[int, ...]) -> None:
    """Tasks that enter one flux and leave it in any order close their own runs."""
    closed: list[str] = []

    async def named() -> AsyncIterator[str]:
        name = asyncio.current_task().get_name()  # type: ignore[union-attr]
        try:
            yield name
            yield name
        finally:
            closed.append(name)

    flux, leave = Flux(named), [asyncio.Event() for _ in order]

    async def read(number: int) -> None:
        async with flux as items:
            await anext(items)
            await leave[number].wait()

    tasks = [asyncio.create_task(read(number), name=str(number)) for number in sorted(order)]
    await asyncio.sleep(0)
    for number in order:
        leave[number].set()
        await tasks[number]
    assert closed == [str(number) for number in order]


async def test_our_iterator_is_handed_out_as_it_is() -> None:
    """A source that brings a StreamIterator gets no second layer."""
    own = StreamIterator(Probe(1).flux.open())
    assert aiter(Flux(lambda: own)) is own
    await own.aclose()


async def test_a_failing_sibling_leaves_no_task_and_no_lost_error() -> None:
    """Merge reports the first failure; a second one in the cleanup of a loser does not replace it."""

    async def bad_cleanup() -> AsyncIterator[int]:
        try:
            yield 1
            await asyncio.get_running_loop().create_future()
        finally:
            raise ValueError("in cleanup")

    merged = Flux.merge(Flux(bad_cleanup), Mono(lambda: asyncio.sleep(0)).then(Mono.error(OSError("first"))))
    with pytest.raises(OSError, match="first"):
        await merged.to_list()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    "joined",
    [
        lambda stubborn: Mono.just("first").amb(Mono(stubborn)),
        lambda stubborn: Flux.merge(Mono.just("first"), Mono(stubborn)).first(),
        lambda stubborn: Flux.merge(Mono.error(OSError("first")), Mono(stubborn)).to_list(),
        lambda stubborn: Mono.error(OSError("first")).zip(Mono(stubborn)),
    ],
    ids=["amb", "merge left early", "merge that fails", "zip that fails"],
)
async def test_what_a_cancelled_source_gives_all_the_same_is_dropped(joined: Callable[[object], Mono[object]]) -> None:
    """If its reader has gone, no task waits indefinitely for it to be taken."""
    ended: list[str] = []

    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
        return "too late"

    came: list[str] = []
    try:
        came.append(str(await asyncio.wait_for(joined(stubborn), 10)))
    except OSError as error:
        came.append(str(error))
    assert came == ["first"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert ended in (["cancelled"], [])  # (a source that was not begun has nothing to swallow)


async def test_a_zip_that_is_cancelled_again_waits_for_all_its_sources() -> None:
    """The first that has ended does not end the wait for the others."""
    ended: list[str] = []

    async def source(name: str, more: float) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            try:
                await asyncio.sleep(30)
            finally:
                await asyncio.sleep(more)
                ended.append(name)

    task = asyncio.ensure_future(
        Mono.zip(Mono(lambda: source("quick", 0)), Mono(lambda: source("slow", 0.01))).resolve()
    )
    for _ in range(2):
        await asyncio.sleep(0.005)
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert ended == ["quick", "slow"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_changes_to_context_variables_do_not_leak_from_subscriptions() -> None:
    """A subscription runs in a copy of its subscriber's context."""
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")
    await Mono.from_callable(lambda: user.set("leaked")).subscribe().closed()
    assert user.get() == "nobody"


async def test_a_subclass_keeps_all_operators() -> None:
    """A Flux with methods of its own returns plain Fluxes, so a loop can hand out a richer source."""

    class Source(Flux[int]):
        def using(self, model: str) -> Source:
            return Source(Flux.of(len(model)).open)

    source = Source(Probe(1, error=OSError()).flux.open)
    assert await source.catch(lambda _, __: source.using("gpt")).to_list() == [1, 3]
    assert type(source.retry(2)) is Flux
    await verify(source.timeout(5).deadline(30).map(str)).expect("1").expect_error(OSError)


async def test_a_reader_that_has_failed_is_freed() -> None:
    """An error of a race holds the race's tasks by its traceback; with the reader that it ended, it does not stay in memory."""

    class Held:
        pass

    async def read(held: Held) -> None:
        def fail(_: int) -> int:
            raise ValueError(f"planted, with {held}")

        await Flux.just(1).map(fail).amb(Flux.never()).to_list()

    held = Held()
    freed = ref(held)
    reader = asyncio.create_task(read(held))
    await asyncio.wait([reader])
    assert isinstance(reader.exception(), ValueError)
    del held, reader
    gc.collect()
    assert freed() is None


async def test_a_source_that_cannot_be_closed_is_read_too() -> None:
    """Of an iterator only `__anext__` is needed."""

    class Once:
        def __init__(self) -> None:
            self.left = [1, 2]

        def __aiter__(self) -> Once:
            return self

        async def __anext__(self) -> int:
            if not self.left:
                raise StopAsyncIteration
            return self.left.pop(0)

    async with StreamIterator(Once()) as numbers:
        assert [number async for number in numbers] == [1, 2]
    async with StreamIterator(Once()) as numbers:
        assert await anext(numbers) == 1
