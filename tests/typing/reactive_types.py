"""What the checker must infer for Mono and Flux (pyright strict; never run)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never, assert_type

from reactivex import Observable
from reactivex import operators as ops

from agentflow.reactive import EMPTY, Empty, Flux, Just, Mono, Subscription, threads

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Animal: ...


class Dog(Animal): ...


async def number() -> int:
    return 1


async def numbers() -> AsyncIterator[int]:
    yield 1


async def double(value: int) -> str:
    return str(value)


def wants_animals(source: Mono[Animal], stream: Flux[Animal], both: Observable[Animal]) -> None: ...


async def mono_types(mono: Mono[int], foreign: Observable[int]) -> None:
    assert_type(Mono(number), Mono[int])
    assert_type(Mono.just(1), Just[int])
    assert_type(Mono.just("x").value, str)
    assert_type(await mono, int)
    assert_type(await mono.resolve(), int | Empty)
    value = await mono.resolve()
    if value is not EMPTY:
        assert_type(value, int)
    assert_type(mono.map(str), Mono[str])
    assert_type(mono.flat_map(double), Mono[str])
    assert_type(mono.flat_map(lambda x: Mono.just([x])), Mono[list[int]])
    assert_type(mono.filter(lambda x: x > 1), Mono[int])
    assert_type(mono.default_if_empty("none"), Mono[int | str])
    assert_type(mono.catch(lambda error, source: source), Mono[int])
    assert_type(mono.catch(lambda error, source: Mono.just(str(error))), Mono[int | str])
    assert_type(mono.retry(2).deadline(3).delay(1).finally_action(print), Mono[int])
    assert_type(mono.timeout(3, Mono.just("late")), Mono[int | str])
    assert_type(mono.ignore_elements(), Mono[Never])
    assert_type(mono.then(Mono.just("x")), Mono[str])
    assert_type(mono.as_flux(), Flux[int])
    assert_type(Mono.zip(mono, Mono.just("a")), Mono[tuple[int, str]])
    assert_type(Mono.wrap(foreign), Mono[int])
    assert_type(Mono.wrap(number()), Mono[int])
    assert_type(Mono.wrap(3), Mono[int])
    assert_type(Mono.from_callable(lambda: 3).subscribe_on(threads()), Mono[int])
    assert_type(mono.block(), int)
    assert_type(mono.subscribe(print, on_error=print), Subscription)


async def flux_types(flux: Flux[int], mono: Mono[int], check: Mono[str], foreign: Observable[int]) -> None:
    assert_type(Flux(numbers), Flux[int])
    assert_type(Flux.of(1, 2), Flux[int])
    assert_type(flux.map(str).filter(bool).take(2), Flux[str])
    assert_type(flux.flat_map(double), Flux[str])
    assert_type(flux.concat_map(lambda x: Flux.of(str(x))), Flux[str])
    assert_type(flux.switch_map(lambda x: Mono.just(str(x))), Flux[str])
    assert_type(flux.scan(lambda text, x: text + str(x), ""), Flux[str])
    assert_type(flux.buffer_with_count(2), Flux[list[int]])
    assert_type(flux.buffer_with_time(0.2), Flux[list[int]])
    assert_type(flux.retry(2).timeout(5).deadline(30), Flux[int])
    assert_type(flux.catch(lambda error, source: source.take(1)), Flux[int])
    assert_type(Flux.merge(check.ignore_elements(), flux), Flux[int])
    assert_type(Flux.concat(flux, mono), Flux[int])
    assert_type(Flux.zip(flux, check), Flux[tuple[int, str]])
    assert_type(flux.zip(check, mono), Flux[tuple[int, str, int]])
    assert_type(flux.first(), Mono[int])
    assert_type(flux.to_list(), Mono[list[int]])
    assert_type(Flux.from_observable(foreign), Flux[int])
    assert_type(flux.pipe(ops.map(str)), Flux[str])
    assert_type(flux.pipe(ops.map(str), ops.buffer_with_time(0.2)), Flux[list[str]])
    assert_type(mono.pipe(ops.map(str)), Flux[str])
    assert_type(await flux, int)
    async with flux as events:
        assert_type(await anext(events), int)
    async for item in flux:
        assert_type(item, int)


def covariance(dogs: Mono[Dog], stream: Flux[Dog]) -> None:
    wants_animals(dogs, stream, dogs)
