"""Behaviour that every operator of Flux and Mono shares, checked for each of them in the same way."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from reactivex import operators as ops

from agentflow._support.virtual_time import run_virtual
from agentflow.reactive import Flux, Mono
from agentflow.testing.verify import Probe, verify

Operator = Callable[[Flux[Any]], Flux[Any]]

OPERATORS: dict[str, Operator] = {
    "map": lambda s: s.map(lambda x: x),
    "filter": lambda s: s.filter(lambda _: True),
    "tap": lambda s: s.tap(lambda _: None),
    "tap_end": lambda s: s.tap(on_error=lambda _: None, on_completed=lambda: None),
    "scan": lambda s: s.scan(lambda _, x: x),
    "take": lambda s: s.take(100),
    "default_if_empty": lambda s: s.default_if_empty(0),
    "buffer_with_count": lambda s: s.buffer_with_count(1).map(lambda items: items[0]),
    "flat_map_one": lambda s: s.flat_map(Mono.just, max_concurrent=1),
    "flat_map": lambda s: s.flat_map(Mono.just),
    "concat_map": lambda s: s.concat_map(Mono.just),
    "merge": lambda s: s.merge(Flux.empty()),
    "merge_limited": lambda s: s.merge(Flux.empty(), max_concurrent=1),
    "concat": lambda s: s.concat(Flux.empty()),
    "amb": lambda s: s.amb(Flux.never()),
    "catch": lambda s: s.catch(lambda error, _: Flux.error(error)),
    "retry": lambda s: s.retry(1),
    "finally_action": lambda s: s.finally_action(lambda: None),
    "timeout": lambda s: s.timeout(60),
    "deadline": lambda s: s.deadline(60),
    "delay": lambda s: s.delay(1),
    "delay_subscription": lambda s: s.delay_subscription(1),
    "pipe": lambda s: s.pipe(lambda observable: observable.as_observable()),
}
FAILURE = ValueError("the source failed")
WORKS_AHEAD = {"flat_map", "flat_map_one", "delay", "pipe"}  # as their docstrings state

every = pytest.mark.parametrize("operator", [pytest.param(make, id=name) for name, make in OPERATORS.items()])
with_back_pressure = pytest.mark.parametrize(
    "operator", [pytest.param(make, id=name) for name, make in OPERATORS.items() if name not in WORKS_AHEAD]
)


async def assert_alone() -> None:
    """No task but this one is left."""
    assert asyncio.all_tasks() == {asyncio.current_task()}


@every
def test_is_cold_and_runs_anew(operator: Operator) -> None:
    """Building runs nothing; each of two runs subscribes once and returns all items."""
    probe = Probe(1, 2, 3)
    built = operator(probe.flux)
    assert probe.subscriptions == 0

    async def main() -> None:
        for run in (1, 2):
            await verify(built).expect(1, 2, 3).expect_complete()
            assert (probe.subscriptions, probe.closed) == (run, run)
        await assert_alone()

    run_virtual(main())


@every
def test_passes_a_failure_once_as_it_is(operator: Operator) -> None:
    """The very error object arrives after the items before it, and the source is closed."""
    probe = Probe(1, error=FAILURE)

    async def main() -> None:
        await verify(operator(probe.flux)).expect(1).expect_error(same=FAILURE)
        assert probe.closed == probe.subscriptions == 1
        await assert_alone()

    run_virtual(main())


@every
def test_closing_early_closes_the_source(operator: Operator) -> None:
    """A reader that stops after one item finds the source cleaned up when `aclose()` returned."""
    probe = Probe(1, 2, 3, hang=True)

    async def main() -> None:
        await verify(operator(probe.flux)).expect(1).then_cancel()
        assert probe.closed == probe.subscriptions == 1
        await assert_alone()

    run_virtual(main())


@every
def test_cancelling_the_reader_cancels_the_source(operator: Operator) -> None:
    """Cancellation reaches the source as cancellation, and comes out as cancellation."""
    probe = Probe(hang=True)

    async def main() -> None:
        reader = asyncio.create_task(operator(probe.flux).to_list())
        await asyncio.sleep(5)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert probe.cancelled == probe.closed == 1
        await assert_alone()

    run_virtual(main())


@every
def test_dispose_cancels_the_source(operator: Operator) -> None:
    """`dispose()` and `closed()` leave nothing running."""
    probe = Probe(hang=True)

    async def main() -> None:
        subscription = operator(probe.flux).subscribe()
        await asyncio.sleep(5)
        subscription.dispose()
        await subscription.closed()
        assert probe.cancelled == probe.closed == 1
        await assert_alone()

    run_virtual(main())


@every
def test_never_takes_a_signal_for_a_failure(operator: Operator) -> None:
    """A source that raises CancelledError itself is neither retried nor caught, and does not hang the reader."""
    probe = Probe(1, error=asyncio.CancelledError("from inside"))

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(operator(probe.flux).to_list())
        assert probe.subscriptions == 1
        await assert_alone()

    run_virtual(main())


@with_back_pressure
def test_does_not_work_ahead(operator: Operator) -> None:
    """After the reader requested n items, the source was pulled n times."""
    probe = Probe(1, 2, 3, 4)

    async def main() -> None:
        stream = aiter(operator(probe.flux))
        for count in (1, 2, 3):
            await anext(stream)
            await asyncio.sleep(5)
            assert probe.pulled == count
        await stream.aclose()  # type: ignore[attr-defined]

    run_virtual(main())


@every
def test_context_variables_are_visible(operator: Operator) -> None:
    """The source sees the context variables of its reader."""
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user")

    async def who() -> AsyncIterator[str]:
        yield user.get()

    async def main() -> None:
        user.set("ada")
        await verify(operator(Flux(who))).expect("ada").then_cancel()
        seen: list[str] = []
        await operator(Flux(who)).subscribe(seen.append, on_error=lambda _: None).closed()
        assert seen == ["ada"]

    run_virtual(main())


@every
def test_subscribes_through_reactivex(operator: Operator) -> None:
    """An operator of reactivex downstream gets the same items."""

    async def main() -> None:
        source = operator(Probe(1, 2, 3).flux)
        assert await source.pipe(ops.take(3), ops.to_list()) == [1, 2, 3]

    run_virtual(main())


MONO_OPERATORS: dict[str, Callable[[Mono[Any]], Mono[Any]]] = {
    "map": lambda m: m.map(lambda x: x),
    "filter": lambda m: m.filter(lambda _: True),
    "flat_map": lambda m: m.flat_map(Mono.just),
    "tap": lambda m: m.tap(lambda _: None),
    "default_if_empty": lambda m: m.default_if_empty(0),
    "switch_if_empty": lambda m: m.switch_if_empty(Mono.just(0)),
    "catch": lambda m: m.catch(lambda error, _: Mono.error(error)),
    "retry": lambda m: m.retry(1),
    "timeout": lambda m: m.timeout(60),
    "deadline": lambda m: m.deadline(60),
    "delay": lambda m: m.delay(1),
    "finally_action": lambda m: m.finally_action(lambda: None),
    "amb": lambda m: m.amb(Mono.never()),
    "zip": lambda m: m.zip(Mono.just(0)).map(lambda row: row[0]),
    "then": lambda m: Mono.just(0).then(m),
    "as_flux": lambda m: m.as_flux().first(),
}
every_mono = pytest.mark.parametrize("operator", [pytest.param(make, id=name) for name, make in MONO_OPERATORS.items()])


@every_mono
def test_mono_operator(operator: Callable[[Mono[Any]], Mono[Any]]) -> None:
    """Cold; each reading runs again, fails with the original error, is cancelled with its reader; a signal is not a failure."""
    log: list[str] = []

    async def work(outcome: object) -> object:
        log.append("run")
        await asyncio.sleep(1)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def main() -> None:
        good = operator(Mono(lambda: work(7)))
        assert log == []
        assert [await good, await good] == [7, 7]
        assert log == ["run", "run"]
        with pytest.raises(ValueError, match="the source failed") as caught:
            await operator(Mono(lambda: work(FAILURE)))
        assert caught.value is FAILURE
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(operator(Mono(lambda: work(asyncio.CancelledError()))))
        log.clear()
        reader = asyncio.create_task(good)
        await asyncio.sleep(0.5)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert log == ["run"]
        await assert_alone()

    run_virtual(main())
