"""subscribe, dispose, closed: inside a loop, without one, and through reactivex's own machinery."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import reactivex as rx
from reactivex import operators as ops
from reactivex.scheduler.eventloop import AsyncIOScheduler, AsyncIOThreadSafeScheduler
from reactivex.subject import Subject

from agentflow._support.virtual_time import run_virtual
from agentflow.errors import UsageError
from agentflow.reactive import Flux, LoopScheduler, Mono, Subscription
from agentflow.reactive.subscription import _Background
from agentflow.testing.verify import Probe, verify

BROKEN = OSError("broken")


async def test_delivers_and_completes() -> None:
    """Callbacks get items in order, then the end; the subscription is ours and closes."""
    log: list[object] = []
    subscription = Flux.of(1, 2).subscribe(log.append, log.append, lambda: log.append("done"))
    assert isinstance(subscription, Subscription)
    assert isinstance(subscription, rx.abc.DisposableBase)
    assert log == []
    await subscription.closed()
    assert log == [1, 2, "done"]
    assert subscription.is_closed
    assert subscription.wait()


async def test_takes_an_observer_and_coroutine_callbacks() -> None:
    """An Observer's three methods are used; an async on_next is awaited before the next pull."""
    log: list[object] = []
    observer: rx.Observer[int] = rx.Observer(log.append, log.append, lambda: log.append("done"))
    await Flux.of(1).subscribe(observer).closed()
    assert log == [1, "done"]
    probe = Probe(1, 2)
    gate = asyncio.Event()

    async def slowly(_: int) -> None:
        await gate.wait()

    subscription = probe.flux.subscribe(slowly)
    for _ in range(5):
        await asyncio.sleep(0)
    assert probe.pulled == 1
    gate.set()
    await subscription.closed()
    assert probe.pulled == 2


async def test_an_error_without_handler_is_reported_not_lost() -> None:
    """It goes to the loop's exception handler, and so does a callback's own failure, which ends the subscription."""
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    await Flux.error(BROKEN).subscribe(print).closed()
    assert reported[0]["exception"] is BROKEN
    assert "no on_error handler" in reported[0]["message"]
    probe = Probe(1, 2)
    errors: list[Exception] = []
    await probe.flux.subscribe(lambda x: x / 0, on_error=errors.append).closed()
    assert isinstance(reported[1]["exception"], ZeroDivisionError)
    assert (probe.pulled, probe.closed, errors) == (1, 1, [])
    await Flux.from_iterable([1]).tap(lambda _: _cancelled()).subscribe(on_error=errors.append).closed()
    assert isinstance(reported[2]["exception"], asyncio.CancelledError)
    assert errors == []


def _cancelled() -> None:
    raise asyncio.CancelledError


async def test_dispose_inside_the_callback_stops_there() -> None:
    """A callback may dispose its own subscription: nothing more comes, and the cleanup is not disturbed."""
    log: list[object] = []
    probe = Probe(1, 2, 3)

    async def clean_up() -> None:
        await asyncio.sleep(0)
        log.append("cleaned up")

    def stop(value: int) -> None:
        log.append(value)
        subscription.dispose()

    subscription = probe.flux.finally_action(clean_up).subscribe(stop, on_completed=lambda: log.append("done"))
    await subscription.closed()
    assert log == [1, "cleaned up"]


@pytest.mark.parametrize("by", ["the source itself", "another, while the source waits"])
async def test_nothing_is_delivered_after_dispose(by: str) -> None:
    """Values that a source emits after it is disposed are dropped, even if it ignores its cancellation."""
    seen: list[int] = []
    waits = asyncio.Event()

    async def source() -> Any:
        yield 1
        if by == "the source itself":
            subscription.dispose()
        else:
            waits.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        yield 2

    subscription = Flux(source).subscribe(seen.append)
    if by != "the source itself":
        await waits.wait()
        subscription.dispose()
    await subscription.closed()
    assert seen == [1]


async def test_dispose_before_the_first_turn_runs_nothing() -> None:
    """Disposed at once, the source is never opened."""
    probe = Probe(1)
    subscription = probe.flux.subscribe()
    subscription.dispose()
    await subscription.closed()
    assert probe.pulled == 0
    assert subscription.is_disposed


def test_at_exit_the_background_loop_is_closed() -> None:
    """Its tasks are cancelled, its thread ends, and the next subscription gets another loop."""
    background = _Background()
    loop = background.loop()
    waiting = asyncio.run_coroutine_threadsafe(asyncio.sleep(3600), loop)
    background.stop()
    background.stop()
    assert (waiting.cancelled(), loop.is_running(), loop.is_closed()) == (True, False, True)
    assert background.loop() is not loop
    background.stop()


def test_without_a_loop_a_background_thread_serves() -> None:
    """Synchronous programs get callbacks on a daemon thread, with their context, and can wait and dispose."""
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")
    user.set("ada")
    log: list[object] = []

    def note(_: object) -> None:
        log.append((threading.current_thread().daemon, user.get()))

    assert Flux.of(1).subscribe(note).wait(5)
    assert log == [(True, "ada")]
    probe = Probe(1, hang=True)
    arrived = threading.Event()
    subscription = probe.flux.subscribe(lambda _: arrived.set())
    assert arrived.wait(5)
    assert not subscription.wait(0)
    subscription.dispose()
    assert subscription.wait(5)
    assert probe.cancelled == 1


async def test_wait_inside_a_loop_is_refused() -> None:
    """It would block the loop that has to do the work."""
    subscription = Flux.never().subscribe()
    with pytest.raises(UsageError, match="await closed"):
        subscription.wait()
    subscription.dispose()
    await subscription.closed()


async def test_a_scheduler_names_the_loop() -> None:
    """From another thread, an AsyncIOScheduler brings the run onto its loop."""
    loop = asyncio.get_running_loop()
    log: list[int] = []

    def elsewhere() -> Subscription:
        return Flux.of(1).subscribe(
            lambda _: log.append(threading.get_ident()), scheduler=AsyncIOThreadSafeScheduler(loop)
        )

    subscription = await asyncio.to_thread(elsewhere)
    await subscription.closed()
    assert log == [threading.get_ident()]


async def test_is_an_observable_among_observables() -> None:
    """reactivex's functions and operators accept ours as a source and as the result of flat_map's function."""
    assert sorted(await rx.merge(Flux.of(1), rx.of(2)).pipe(ops.to_list())) == [1, 2]
    assert await rx.of(1, 2).pipe(ops.concat_map(lambda x: Mono.just(x * 2)), ops.to_list()) == [2, 4]
    assert await rx.zip(Flux.of(1), Mono.just("a")) == (1, "a")
    assert await Flux.of(1, 2, 3).pipe(ops.map(str), ops.filter(lambda x: x > "1"), ops.to_list()) == ["2", "3"]
    assert await Flux.of(1, 2).sum() == 3
    assert await (Flux.of(1) + rx.of(2)).to_list() == [1, 2]


async def test_pipe_gives_a_flux() -> None:
    """The result is iterable; a connectable observable stays one; without operators nothing changes."""
    flux = Flux.of(1, 2)
    assert isinstance(flux.pipe(ops.map(str)), Flux)
    assert isinstance(flux.debounce(0.1), Flux)
    assert isinstance(Mono.just(1).pipe(ops.map(str)), Flux)
    assert hasattr(flux.publish(), "connect")
    assert flux.pipe() is flux
    assert [x async for x in flux.pipe(ops.map(str))] == ["1", "2"]


def test_reactivex_timers_run_on_the_loop_in_context() -> None:
    """buffer_with_time, delay, timeout and debounce of reactivex call back on the loop, in virtual time too."""
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")

    async def main() -> None:
        user.set("ada")
        seen: list[tuple[int, str]] = []
        ticks = Flux.range(4).concat_map(lambda tick: Mono.just(tick).delay(1))
        stream = ticks.pipe(
            ops.buffer_with_time(2.5), ops.do_action(lambda _: seen.append((threading.get_ident(), user.get())))
        )
        assert await stream.to_list() == [[0, 1], [2, 3]]
        assert set(seen) == {(threading.get_ident(), "ada")}
        assert await ticks.delay(5, LoopScheduler(asyncio.get_running_loop())).to_list() == [0, 1, 2, 3]
        assert await Mono.never().as_flux().pipe(ops.timeout(3, rx.of("late"))).to_list() == ["late"]
        assert await ticks.debounce(0.5).to_list() == [0, 1, 2, 3]
        assert await ticks.timeout(3, None, AsyncIOScheduler(asyncio.get_running_loop())).count() == 4

    run_virtual(main())


async def test_a_reader_that_is_cancelled_twice_still_waits_for_what_it_has_begun() -> None:
    """A run with two foreign operators ends before its reader does, however often the reader is cancelled."""
    told: list[str] = []
    begun, cleaning = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            try:
                cleaning.set()
                await asyncio.Event().wait()  # until the second cancellation
            finally:
                await asyncio.sleep(0)
                told.append("work")

    async def read() -> None:
        try:
            await Mono(work).pipe(ops.map(str)).pipe(ops.map(str)).to_list()
        finally:
            told.append("reader")

    reader = asyncio.ensure_future(read())
    for moment in (begun, cleaning):
        await moment.wait()
        reader.cancel()
    assert (await asyncio.wait([reader], timeout=10))[0]
    assert reader.cancelled()
    assert told == ["work", "reader"]


async def test_a_cancellation_while_a_foreign_operator_winds_up_counts() -> None:
    """If the value exists while other work is slow to end, a cancelled reader does not receive it."""
    cleaning = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaning.set()
            await asyncio.Event().wait()

    async def quick() -> int:
        for _ in range(5):
            await asyncio.sleep(0)
        return 1

    reader = asyncio.create_task(Flux.wrap(rx.merge(Mono(slow), Mono(quick))).first())
    await cleaning.wait()
    reader.cancel()
    assert (await asyncio.wait([reader], timeout=10))[0]
    assert reader.cancelled()


async def test_a_second_cancellation_reaches_all_that_foreign_operators_run() -> None:
    """If three runs of one operator clean up slowly, all are cancelled, and the reader ends when all have ended."""
    told: list[str] = []
    begun = [asyncio.Event() for _ in range(6)]

    def work(number: int) -> Flux[int]:
        async def items() -> AsyncIterator[int]:
            try:
                begun[number].set()
                await asyncio.Event().wait()
                yield 1
            finally:
                try:
                    begun[3 + number].set()
                    await asyncio.Event().wait()
                finally:
                    told.append("over")

        return Flux(items)

    reader = asyncio.create_task(Flux.wrap(rx.merge(*[work(number) for number in range(3)])).first())
    for moments in (begun[:3], begun[3:]):
        for moment in moments:
            await moment.wait()
        reader.cancel()
    assert (await asyncio.wait([reader], timeout=10))[0]
    assert reader.cancelled()
    assert told == ["over"] * 3


async def test_foreign_observables_are_read_without_a_hop_and_disposed_at_once() -> None:
    """A synchronous observable needs no loop turn; a subject loses its observer at the first value wanted."""
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1

    asyncio.get_running_loop().call_soon(turn)
    assert await Flux.wrap(rx.of(1, 2)).first() == 1
    assert await Mono.wrap(rx.of(1, 2)) == 2
    assert len(await Flux.wrap(rx.range(0, 100)).to_list()) == 100
    assert turns == 0
    subject: Subject[int] = Subject()
    waiting = asyncio.create_task(Flux.wrap(subject).first())
    await asyncio.sleep(0)
    assert len(subject.observers) == 1
    subject.on_next(5)
    assert await waiting == 5
    assert subject.observers == []
    waiting = asyncio.create_task(Flux.wrap(subject).first())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert subject.observers == []


async def test_pushes_from_other_threads_arrive() -> None:
    """An observable that emits on threads of its own is read on the loop."""
    source = rx.timer(0.01, scheduler=rx.scheduler.TimeoutScheduler()).pipe(ops.map(lambda _: threading.get_ident()))
    here = threading.get_ident()
    assert await Mono.wrap(source).map(lambda there: there != here)


async def test_a_failing_foreign_subscribe_is_an_error() -> None:
    """As in reactivex, an exception while subscribing is the error signal."""

    def subscribe(_observer: object, _scheduler: object = None) -> rx.abc.DisposableBase:
        raise BROKEN

    await verify(Flux.wrap(rx.Observable(subscribe))).expect_error(same=BROKEN)
