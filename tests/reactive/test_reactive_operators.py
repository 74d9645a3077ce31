"""Each operator, signal by signal, in virtual time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import reactivex as rx
from reactivex import operators as ops

from agentflow._support.virtual_time import run_virtual
from agentflow.errors import UsageError
from agentflow.reactive import EMPTY, Flux, Mono, SourceTimeoutError
from agentflow.testing.verify import Probe, verify

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

BROKEN = OSError("broken")


class _Signal(BaseException):
    """No `Exception`, so that no hook catches it."""


def slow(*values: int, gap: float = 1.0) -> Flux[int]:
    """Each value after a gap."""
    return Flux.of(*values).concat_map(lambda value: Mono.just(value).delay(gap))


def test_items_one_by_one() -> None:
    """map, filter and scan look at one item at a time."""
    verify(Flux.of(1, 2, 3).map(str)).expect("1", "2", "3").expect_complete().run_virtual()
    verify(Flux.range(6).filter(lambda x: x % 2)).expect(1, 3, 5).expect_complete().run_virtual()
    verify(Flux.of(1, 2, 3).scan(lambda a, b: a + b)).expect(1, 3, 6).expect_complete().run_virtual()
    verify(Flux.of(1, 2).scan(lambda a, b: a + b, 10)).expect(11, 13).expect_complete().run_virtual()
    verify(Flux.of(None, 0).filter(lambda x: x is None)).expect(None).expect_complete().run_virtual()


def test_ends_and_groups() -> None:
    """take, defaults and buffers; operators inherited from reactivex return a Flux."""
    verify(Flux.range(9).take(2)).expect(0, 1).expect_complete().run_virtual()
    verify(Flux.range(9).take(0)).expect_complete().run_virtual()
    inherited = Flux.wrap(Flux.of(1, 1, 5, 2).distinct().take_while(lambda x: x < 5).start_with(0))
    verify(inherited).expect(0, 1).expect_complete().run_virtual()
    verify(Flux.empty().default_if_empty(7)).expect(7).expect_complete().run_virtual()
    verify(Flux.range(5).buffer_with_count(2)).expect([0, 1], [2, 3], [4]).expect_complete().run_virtual()
    verify(Flux.range(4).buffer_with_count(2, 1)).expect([0, 1], [1, 2], [2, 3], [3]).expect_complete().run_virtual()


async def test_down_to_one_value() -> None:
    """first, to_list and then return a Mono; without an item it is EMPTY, not None."""
    numbers = Flux.of(3, 1, 2)
    assert await numbers.first() == 3
    assert await numbers.first(lambda x: x < 3) == 1
    assert await numbers == 2
    assert await numbers.reduce(lambda a, b: a + b) == 6
    assert await numbers.count() == 3
    assert await numbers.to_list() == [3, 1, 2]
    assert await Flux.empty().first().resolve() is EMPTY
    assert await Flux.of(None).first().resolve() is None
    assert await Flux.empty().to_list() == []
    assert await numbers.then(Mono.just("after")) == "after"
    with pytest.raises(rx.internal.SequenceContainsNoElementsError, match=r"has no items.*await flux\.to_list\(\)"):
        await Flux.empty()


def test_merge_takes_items_as_they_come_and_cancels_the_rest_on_failure() -> None:
    """A failing source ends the merge once; the other is cancelled and cleaned up before the error is seen."""
    verify(slow(1, 2, gap=2).merge(slow(10, 20, gap=3))).expect(1, 10, 2, 20).expect_complete().run_virtual()
    probe = Probe(hang=True)
    check = Mono.just(0).delay(5).flat_map(lambda _: Mono.error(BROKEN))
    verify(Flux.merge(check.ignore_elements(), probe.flux)).expect_error(same=BROKEN).run_virtual()
    assert probe.cancelled == probe.closed == 1
    verify(Flux.merge(Mono.empty(), Flux.of(1), max_concurrent=1)).expect(1).expect_complete().run_virtual()


def test_flat_map_concat_map_switch_map() -> None:
    """flat_map emits the first available item, concat_map keeps the order, switch_map drops overtaken items."""

    def later(seconds: float) -> Mono[float]:
        return Mono.just(seconds).delay(seconds)

    verify(Flux.of(3, 1, 2).flat_map(later)).expect(1, 2, 3).expect_complete().run_virtual()
    verify(Flux.of(3, 1, 2).concat_map(later)).expect(3, 1, 2).expect_complete().run_virtual()
    verify(Flux.of(3, 1, 2).switch_map(later)).expect(2).expect_complete().run_virtual()
    verify(slow(5, 1).switch_map(later)).expect(1).expect_complete().run_virtual()


def test_switch_map_withdraws_what_waits_for_a_busy_reader() -> None:
    """An item that was overtaken before the reader requested it is not read."""

    async def read() -> list[int]:
        got: list[int] = []
        async for value in slow(1, 2, 3).switch_map(lambda value: Flux.of(10 * value)):
            got.append(value)
            await asyncio.sleep(2.5)  # meanwhile 20 is offered, and overtaken
        return got

    assert run_virtual(read()) == [10, 30]


def test_flat_map_keeps_its_bound() -> None:
    """No more than `max_concurrent` runs are ever going on."""
    running = 0
    most = 0

    async def work(value: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1
        return value

    verify(Flux.range(20).flat_map(work, max_concurrent=3)).expect_count(20).expect_complete().run_virtual()
    assert most == 3


def test_flat_map_takes_any_source() -> None:
    """Coroutine functions, Monos, Fluxes and foreign observables are sources; a plain value is not, and says so."""

    async def double(value: int) -> int:
        return value * 2

    verify(Flux.of(1, 2).concat_map(double)).expect(2, 4).expect_complete().run_virtual()
    verify(Flux.of(1).concat_map(lambda x: Flux.of(x, x))).expect(1, 1).expect_complete().run_virtual()
    verify(Flux.of(1).flat_map(lambda x: rx.of(x, 9))).expect(1, 9).expect_complete().run_virtual()
    bad = Flux.of(1).concat_map(lambda x: x)  # type: ignore[arg-type, return-value]
    verify(bad).expect_error(UsageError, match=r"concat_map\(\) got 1 \(int\)").run_virtual()


def test_zip_amb_concat() -> None:
    """Rows, the fastest, one after the other."""
    probe = Probe(1, 2, 3, hang=True)
    verify(Flux.zip(Flux.of("a", "b"), probe.flux)).expect(("a", 1), ("b", 2)).expect_complete().run_virtual()
    assert probe.closed == 1
    loser = Probe(hang=True)
    verify(Flux.amb(loser.flux, slow(1, 2))).expect(1, 2).expect_complete().run_virtual()
    assert loser.cancelled == 1
    verify(Flux.of(1).concat(Mono.just(2), rx.of(3))).expect(1, 2, 3).expect_complete().run_virtual()


@pytest.mark.parametrize("failure", [ValueError("loser"), _Signal("loser"), asyncio.CancelledError("loser")])
def test_amb_ignores_a_failure_in_the_turn_after_the_winners_first_item(failure: BaseException) -> None:
    """The reader has not taken that item yet, so the loser is not cancelled before it fails."""

    async def wins() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def loses() -> AsyncIterator[int]:
        if failure is not None:
            raise failure
        yield 3

    verify(Flux.amb(Flux(wins), Flux(loses))).expect(1, 2).expect_complete().run_virtual()
    with pytest.raises(type(failure)):
        run_virtual(Flux.amb(Flux(loses), Flux(wins)).to_list())


def test_catch_retry() -> None:
    """Counts are reactivex's: retry(n) runs n times altogether; delivered items stay delivered."""
    failing = Probe(1, error=BROKEN)
    verify(failing.flux.retry(3)).expect(1, 1, 1).expect_error(same=BROKEN).run_virtual()
    assert failing.subscriptions == 3
    verify(failing.flux.catch(lambda error, _: Flux.of(str(error)))).expect(1, "broken").expect_complete().run_virtual()
    verify(failing.flux.catch(Flux.of(9))).expect(1, 9).expect_complete().run_virtual()
    again = failing.flux.catch(lambda _, source: source.take(1))
    verify(again).expect(1, 1).expect_complete().run_virtual()
    with pytest.raises(UsageError, match="would never run"):
        Flux.of(1).retry(0)


async def test_reactivex_counts_the_same() -> None:
    """The same retry in reactivex has the same number of runs."""
    runs = 0

    def fail(_: object) -> rx.Observable[int]:
        nonlocal runs
        runs += 1
        return rx.throw(BROKEN)

    with pytest.raises(OSError):
        await rx.defer(fail).pipe(ops.retry(3))
    assert runs == 3


def test_a_deadline_that_a_source_ignores_ends_its_next_item() -> None:
    """An item that comes late all the same is delivered; none is left for another, and the error says how much there was."""

    got: list[int] = []

    async def stubborn() -> AsyncIterator[int]:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            yield 1
        await asyncio.sleep(10)
        yield 2

    with pytest.raises(SourceTimeoutError, match=r"deadline\(3\).* within 3 s"):
        run_virtual(Flux(stubborn).deadline(3).tap(got.append).to_list())
    assert got == [1]


@pytest.mark.parametrize(
    ("fails_at", "told"),
    [
        ("source", ["inner BROKEN", "outer BROKEN"]),
        ("between", ["inner 1", "outer BROKEN"]),
        ("last", ["inner 1", "outer 1"]),
        ("nowhere", ["inner 1", "outer 1", "inner done", "outer done"]),
        ("inner done", ["inner 1", "outer 1", "inner done", "outer BROKEN"]),
    ],
)
def test_a_failure_is_told_to_the_taps_behind_it(fails_at: str, told: list[str]) -> None:
    """Steps in one row: those before the one that failed hear nothing of it, and no end either."""
    log: list[str] = []

    def step(place: str) -> Callable[[Any], Any]:
        def run(value: Any) -> Any:
            if place == fails_at:
                raise BROKEN
            return value

        return run

    def done(name: str) -> None:
        log.append(f"{name} done")
        if fails_at == f"{name} done":
            raise BROKEN

    def tapped(source: Flux[Any], name: str) -> Flux[Any]:
        def failed(error: Exception) -> None:
            assert error is BROKEN
            log.append(f"{name} BROKEN")

        return source.tap(lambda value: log.append(f"{name} {value}"), failed, lambda: done(name))

    source: Flux[Any] = Flux.error(BROKEN) if fails_at == "source" else Flux.of(1)
    row = tapped(tapped(source, "inner").map(step("between")), "outer").map(step("last"))
    if fails_at == "nowhere":
        verify(row).expect(1).expect_complete().run_virtual()
    elif fails_at == "inner done":
        verify(row).expect(1).expect_error(same=BROKEN).run_virtual()
    else:
        verify(row).expect_error(same=BROKEN).run_virtual()
    assert log == told


def test_tap_and_finally_see_the_end() -> None:
    """tap's three callbacks and finally_action are called once each, in order."""
    log: list[object] = []
    source = Flux.of(1).tap(log.append, log.append, lambda: log.append("done")).finally_action(lambda: log.append("x"))
    verify(source).expect(1).expect_complete().run_virtual()
    assert log == [1, "done", "x"]
    log.clear()
    verify(Flux.error(BROKEN).tap(on_error=log.append)).expect_error(same=BROKEN).run_virtual()
    assert log == [BROKEN]


def test_timeout_counts_the_gap_and_nothing_else() -> None:
    """The gap before each item is limited; the reader's time is not counted, and neither is the whole."""
    verify(slow(1, 2, 3).timeout(1.5)).expect(1).then_wait(100).expect(2, 3).expect_complete().run_virtual()
    probe = Probe(1, hang=True)
    limited = probe.flux.timeout(timedelta(seconds=2))
    verify(limited).expect(1).expect_error(SourceTimeoutError, match="no item came within 2 s").run_virtual()
    assert probe.cancelled == 1
    verify(Flux.never().timeout(1, Flux.of(9))).expect(9).expect_complete().run_virtual()
    past = datetime.now(UTC) - timedelta(hours=1)
    verify(Flux.never().timeout(past)).expect_error(SourceTimeoutError).run_virtual()


def test_timeout_tells_its_own_limit_from_the_sources() -> None:
    """A TimeoutError of the source, or an inner limit's, does not switch to `other`."""
    own = TimeoutError("the server's")
    verify(Flux.error(own).timeout(5, Flux.of(9))).expect_error(same=own).run_virtual()
    inner = Flux.never().timeout(1)
    verify(inner.timeout(5, Flux.of(9))).expect_error(SourceTimeoutError, match=r"timeout\(1").run_virtual()


def test_deadline_counts_the_sources_own_time() -> None:
    """Three seconds of work pass a deadline of 3.5 however slow the reader is; the fourth does not."""
    limited = slow(1, 2, 3, 4).deadline(3.5)
    expected = verify(limited).expect(1).then_wait(60).expect(2).then_wait(60).expect(3)
    expected.expect_error(SourceTimeoutError, match="did not end within").run_virtual()


def test_delay_and_buffers_in_time() -> None:
    """Delayed items keep their gaps."""
    late = verify(slow(1, 2).delay(10)).expect_no_signal(10.9).expect(1).expect_no_signal(0.9).expect(2)
    late.expect_complete().run_virtual()
    verify(slow(1, 2, 3).buffer_with_time(2.5)).expect([1, 2], [3]).expect_complete().run_virtual()
    verify(Flux.never().buffer_with_time(1)).expect([], []).then_cancel().run_virtual()
    verify(Flux.of(1).delay_subscription(3)).expect_no_signal(2.9).expect(1).expect_complete().run_virtual()


def test_an_outer_cancellation_wins_over_a_limit_that_fires_with_it() -> None:
    """When the task is cancelled while the limit fires, the task is cancelled, not timed out."""

    async def main() -> None:
        reader = asyncio.create_task(Flux.never().timeout(1).to_list())
        asyncio.get_running_loop().call_later(1, reader.cancel)
        with pytest.raises(asyncio.CancelledError):
            await reader

    run_virtual(main())


def test_a_coroutine_function_in_map_is_refused() -> None:
    """`map(async def)` would return coroutines that are never awaited."""

    async def fetch(value: int) -> int:
        return value

    with pytest.raises(UsageError, match="use concat_map"):
        Flux.of(1).map(fetch)
    with pytest.raises(UsageError, match="use flat_map"):
        Mono.just(1).map(fetch)


def test_a_source_that_fails_while_being_made_is_a_failing_stream() -> None:
    """`defer` may raise before there is anything to iterate; catch, retry and on_error see it."""
    made = 0

    def make() -> Flux[int]:
        nonlocal made
        made += 1
        raise BROKEN

    verify(Flux.defer(make).retry(2)).expect_error(same=BROKEN).run_virtual()
    assert made == 2
    verify(Flux.defer(make).catch(Flux.of(1))).expect(1).expect_complete().run_virtual()
    verify(Mono.defer(make).catch(Mono.just(1))).expect(1).expect_complete().run_virtual()
    seen: list[Exception] = []

    async def main() -> None:
        await Flux.defer(make).subscribe(on_error=seen.append).closed()

    run_virtual(main())
    assert seen == [BROKEN]


async def test_wrapping() -> None:
    """Flux.wrap and from_* take any source; if a generator object is read twice, an error explains it."""

    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    once = Flux.from_async_iterable(numbers())
    assert await once.to_list() == [1, 2]
    with pytest.raises(UsageError, match="second time"):
        await once.to_list()
    assert await Flux.wrap(rx.of(1, 2)).to_list() == [1, 2]
    assert await Flux.wrap(Mono.just(1)).to_list() == [1]
    assert await Flux.defer(lambda: Flux.of(4)).to_list() == [4]
    assert await Flux.from_observable(Flux.of(3)).to_list() == [3]
