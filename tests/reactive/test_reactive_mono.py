"""Mono: one value or none, as awaitable, coroutine, chain and call."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import warnings
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import reactivex as rx

from agentflow._support.virtual_time import run_virtual
from agentflow.errors import UsageError
from agentflow.reactive import EMPTY, CallMono, Flux, Just, Mono, SourceTimeoutError, threads
from agentflow.testing.verify import Probe, verify

if TYPE_CHECKING:
    from collections.abc import Callable

BROKEN = OSError("broken")


async def test_none_is_a_value_and_empty_is_none() -> None:
    """`await` shows both as None; `resolve()` and the operators tell them apart."""
    assert await Mono.empty() is None
    assert await Mono.empty().resolve() is EMPTY
    assert await Mono.just(None).resolve() is None
    assert await Mono.just(None).default_if_empty(1) is None
    assert await Mono.empty().default_if_empty(1) == 1
    assert await Mono.empty().switch_if_empty(Mono.just(2)) == 2
    assert await Mono.just(1).filter(lambda x: x > 1).map(str).resolve() is EMPTY
    assert await Mono.just(None).as_flux().to_list() == [None]
    assert await Mono.empty().as_flux().to_list() == []


async def test_just_is_peekable_by_exact_type() -> None:
    """The hook chain recognises a ready value without awaiting."""
    mono = Mono.just(5)
    assert type(mono) is Just
    assert mono.value == 5
    assert await mono == 5
    assert isinstance(mono, rx.Observable)


async def test_constructors() -> None:
    """wrap, defer, from_callable, from_awaitable, from_observable."""

    async def seven() -> int:
        return 7

    assert await Mono(seven) == 7
    assert await Mono.wrap(seven()) == 7
    assert await Mono.wrap(7) == 7
    assert await Mono.wrap(rx.of(1, 7)) == 7
    assert await Mono.wrap(rx.empty()).resolve() is EMPTY
    assert await Mono.defer(lambda: Mono.just(7)) == 7
    assert await Mono.from_callable(lambda: 7) == 7
    assert await Flux.wrap(rx.of(7, 8)).first() == 7
    mono = Mono.just(1)
    assert Mono.wrap(mono) is mono
    once = Mono.from_awaitable(seven())
    assert await once == 7
    with pytest.raises(UsageError, match="only once"):
        await once


async def test_is_a_coroutine_for_asyncio() -> None:
    """create_task, gather, wait_for and TaskGroup take a Mono; two tasks of one Mono are two runs."""
    runs = 0

    async def work() -> int:
        nonlocal runs
        runs += 1
        mine = runs
        await asyncio.sleep(0)
        return mine

    mono = Mono(work)
    assert asyncio.iscoroutine(mono)
    assert sorted(await asyncio.gather(mono, asyncio.create_task(mono))) == [1, 2]
    assert await asyncio.wait_for(mono, 5) == 3
    async with asyncio.TaskGroup() as group:
        task = group.create_task(mono)
    assert task.result() == 4


def test_asyncio_run_and_hand_driving() -> None:
    """`asyncio.run(mono)` works; so do send, throw and close, each on a run of its own."""
    assert asyncio.run(Mono.just(3).map(lambda x: x + 1)) == 4
    with pytest.raises(StopIteration) as stopped:
        Mono.just(3).send(None)
    assert stopped.value.value == 3
    log: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            log.append("cleaned up")

    mono = Mono.just(0).then(Mono(hang))

    async def main() -> None:
        mono.send(None)
        mono.close()
        assert log == ["cleaned up"]
        mono.send(None)
        with pytest.raises(OSError):
            mono.throw(BROKEN)
        mono.close()

    asyncio.run(main())


async def test_catch_and_tap_along_the_chain() -> None:
    """A failure travels to the nearest catch downstream, past maps; taps see it on its way."""
    seen: list[object] = []
    chain = (
        Mono.just(1)
        .map(lambda _: 1 / 0)
        .tap(seen.append, on_error=lambda error: seen.append(type(error)))
        .map(str)
        .catch(lambda error, _: Mono.just(type(error).__name__))
        .tap(seen.append)
        .catch(lambda _, __: Mono.just("unused"))
    )
    assert await chain == "ZeroDivisionError"
    assert seen == [ZeroDivisionError, "ZeroDivisionError"]
    assert await Mono.error(BROKEN).catch(Mono.just("second")) == "second"
    with pytest.raises(ZeroDivisionError):
        await Mono.error(BROKEN).catch(lambda _, __: 1 / 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError, match=r"flat_map\(\) got 5 \(int\)"):
        await Mono.just(1).flat_map(lambda _: 5)  # type: ignore[arg-type, return-value]
    with pytest.raises(OSError) as caught:
        await Mono.error(BROKEN).then(Mono.just("not reached"))
    assert caught.value is BROKEN


@pytest.mark.parametrize("wrong", [None, 5])
def test_an_argument_that_is_no_source_is_refused_at_once(wrong: Any) -> None:
    """Not when the chain runs, where a None would be skipped in silence."""
    for operator, take in [
        ("then", Mono.just(1).then),
        ("then", Flux.of(1).then),
        ("switch_if_empty", Mono.empty().switch_if_empty),
    ]:
        with pytest.raises(UsageError, match=rf"^{operator}\(\) got {wrong} "):
            take(wrong)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_retry_counts_runs_and_takes_no_time(count: int) -> None:
    """retry(n) runs n times altogether, each run directly after the one before, and raises the last failure."""

    async def main() -> list[float]:
        clock = asyncio.get_running_loop().time
        begin, runs = clock(), list[float]()

        async def fail() -> int:
            runs.append(clock() - begin)
            raise BROKEN

        with pytest.raises(OSError):
            await Mono(fail).retry(count)
        return runs

    assert run_virtual(main()) == [0.0] * count


def test_zip_runs_at_the_same_time() -> None:
    """Three seconds side by side take three seconds; a failure cancels the rest."""

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        begin = clock()
        assert await Mono.zip(Mono.just(1).delay(3), Mono.just("a").delay(2)) == (1, "a")
        assert clock() - begin == pytest.approx(3)
        probe = Probe(hang=True)
        with pytest.raises(OSError):
            await Mono.zip(Mono.error(BROKEN), probe.flux)
        assert await Mono.zip(Mono.just(1), Mono.empty()).resolve() is EMPTY
        assert await Mono.amb(Mono.never(), Mono.just(4).delay(1)) == 4

    run_virtual(main())


def test_zip_is_over_with_the_first_failure_or_end() -> None:
    """If a source fails or ends without a value, the others are cancelled at once, whatever its position."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        cancelled: list[float] = []

        async def slow() -> None:
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                cancelled.append(loop.time())
                raise

        with pytest.raises(OSError, match="broken"):
            await Mono.zip(Mono(slow), Mono.error(BROKEN).delay_subscription(3), Mono(slow))
        assert await Mono.zip(Mono(slow), Mono.empty()).resolve() is EMPTY
        assert cancelled == [3, 3, 3]

    run_virtual(main())


def test_delay_subscription_starts_the_work_later() -> None:
    """Each run begins when the time has passed, and not before."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        begun: list[float] = []

        async def work() -> str:
            begun.append(loop.time())
            return "done"

        later = Mono(work).delay_subscription(5)
        assert (await later, await later, begun) == ("done", "done", [5, 10])
        assert await Mono(work).delay_subscription(datetime.now(UTC) - timedelta(hours=1)) == "done"
        assert begun == [5, 10, 10]

    run_virtual(main())


def test_streams_from_a_mono() -> None:
    """flat_map_many returns a Flux, and so do the operators inherited from reactivex."""
    verify(Mono.just(1).repeat(2)).expect(1, 1).expect_complete().run_virtual()
    verify(Mono.just(2).flat_map_many(Flux.range)).expect(0, 1).expect_complete().run_virtual()


def test_limits() -> None:
    """timeout and deadline cancel the work and tell their own limit from the source's TimeoutError."""
    own = TimeoutError("the server's")
    probe = Probe(hang=True)
    verify(Mono(probe.flux.resolve).timeout(1)).expect_error(SourceTimeoutError, match="no value came").run_virtual()
    assert probe.cancelled == 1
    verify(Mono.never().deadline(1)).expect_error(SourceTimeoutError, match=r"deadline\(1\)").run_virtual()
    verify(Mono.never().timeout(1, Mono.just(2))).expect(2).expect_complete().run_virtual()
    verify(Mono.error(own).timeout(1, Mono.just(2))).expect_error(same=own).run_virtual()


def test_block() -> None:
    """block() runs to the end in this thread with this context; inside a loop it is refused, with the alternative."""
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")
    user.set("ada")
    assert Mono.from_callable(user.get).block() == "ada"
    assert Mono.empty().block() is None
    with pytest.raises(SourceTimeoutError, match=r"block\(0.01\)"):
        Mono.never().block(timeout=0.01)
    assert Flux.of(1, 2).first().block() == 1
    assert Flux.of(1, 2).to_list().block() == [1, 2]
    assert Flux.of(1, 2).run() == 2

    async def inside() -> None:
        with pytest.raises(UsageError, match="use `await`"):
            Mono.just(1).block()

    asyncio.run(inside())


async def test_threads() -> None:
    """A blocking callable moves to a thread with its context; the links after it stay on the loop."""
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")
    user.set("ada")
    here = threading.get_ident()
    work = Mono.from_callable(lambda: (threading.get_ident(), user.get()))
    where, who = (
        await work.map(lambda pair: (*pair, threading.get_ident()))
        .subscribe_on(threads())
        .map(lambda row: (row[0] != here and row[2] == here, row[1]))
    )
    assert (where, who) == (True, "ada")
    with pytest.raises(UsageError, match="from_callable"):
        Mono(asyncio.tasks.sleep).subscribe_on(threads())  # type: ignore[arg-type]


def unused(make: Callable[[CallMono[int]], object]) -> list[str]:
    """The warnings when a call is made, something is done with it, and all is dropped."""

    async def work() -> int:
        return 1

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result: Any = make(CallMono(work, "agent.call('Hi')"))
        del result
        gc.collect()
    return [str(warning.message) for warning in caught if warning.category is RuntimeWarning]


def test_a_call_that_is_cancelled_before_its_first_step_does_not_warn() -> None:
    """A coroutine does not either: the task that held it was cancelled before it ran."""

    async def failing() -> None:
        raise KeyError("fails at once")

    async def cancelled(call: Mono[Any]) -> None:
        task = asyncio.create_task(call)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def in_a_group(call: Mono[Any]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(failing())
                group.create_task(call)
                raise ValueError("the body fails too")
        except* (KeyError, ValueError):
            pass

    assert unused(lambda call: asyncio.run(cancelled(call))) == []
    assert unused(lambda call: asyncio.run(in_a_group(call))) == []


def test_a_dropped_call_warns() -> None:
    """If a call is never awaited, a warning names it, also with operators; a used one and other Monos do not warn."""
    expected = ["agent.call('Hi') was never awaited, so it did nothing; await it, or .subscribe() or .block()"]
    assert unused(lambda call: call) == expected
    assert unused(lambda call: call.map(str)) == expected
    assert unused(lambda call: call.block()) == []
    assert unused(lambda call: call.map(str).block()) == []
    assert unused(lambda call: call.subscribe().wait()) == []
    assert unused(lambda call: call.close()) == []
