"""Operators over one source: map, filter, scan and tap, fused; take, default_if_empty, buffer_with_count.

Neighbouring steps run in one loop of one async generator, so a chain of any length costs as much as one generator, and
does not hit the recursion limit. A step takes an item and returns an item, or `DROP` if it has no output for this item.
Observers of the completion or failure (`tap`'s other two functions) are `End`s among the steps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, Literal, TypeVar, cast

from agentflow._support.values import NamedTuple
from agentflow.reactive.iterators import close

if TYPE_CHECKING:
    from agentflow.reactive.publisher import Publisher

T = TypeVar("T")

Step = Callable[[object], object]
"""A function that is applied to each item of one run."""

StepFactory = Callable[[], Step]
"""Creates the step of one run, so that each run has its own state."""


class Drop(Enum):
    """The type of `DROP`."""

    DROP = "drop"


DROP: Final[Literal[Drop.DROP]] = Drop.DROP


class End(NamedTuple):
    """An observer of the completion or failure, at its place among the steps."""

    on_error: Callable[[Exception], object] | None
    on_completed: Callable[[], object] | None


def fused(source: AsyncIterator[object], row: Sequence[Step | End]) -> AsyncIterator[object]:
    """Pass each item through a row of steps."""
    if End not in map(type, row):
        return _stepped(source, cast("Sequence[Step]", row))
    ends = [(index, step) for index, step in enumerate(row) if isinstance(step, End)]
    return _watched(source, [(index, step) for index, step in enumerate(row) if not isinstance(step, End)], ends)


async def _stepped(source: AsyncIterator[object], steps: Sequence[Step]) -> AsyncIterator[object]:
    try:
        # The most frequent case, without an inner loop.
        if len(steps) == 1:
            step = steps[0]
            async for value in source:
                result = step(value)
                if result is not DROP:
                    yield result
            return
        async for value in source:
            for step in steps:
                value = step(value)
                if value is DROP:
                    break
            else:
                yield value
    finally:
        await close(source)


async def _watched(
    source: AsyncIterator[object], steps: Sequence[tuple[int, Step]], ends: Sequence[tuple[int, End]]
) -> AsyncIterator[object]:
    """Like `_stepped`, but also notify the `End`s; if a step fails, only those after it."""
    index = -1
    failure: Exception | None = None
    try:
        try:
            async for value in source:
                for index, step in steps:  # noqa: B007 - the handler below reads the index of the failed step
                    value = step(value)
                    if value is DROP:
                        break
                else:
                    yield value
                index = -1  # from here on, a failure is a failure of the source
        finally:
            await close(source)
        index = -1
        for index, end in ends:  # noqa: B007 - as above
            if end.on_completed is not None:
                end.on_completed()
    except Exception as error:
        failure = _notify_ends(error, index, ends)
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # its traceback refers to this frame, in a cycle


def _notify_ends(error: Exception, failed: int, ends: Sequence[tuple[int, End]]) -> Exception:
    """Notify the `End`s after the failed step; if one of them fails, its failure replaces the earlier one."""
    try:
        for index, end in ends:
            if index > failed and end.on_error is not None:
                try:
                    end.on_error(error)
                except Exception as another:
                    error = another
        return error
    finally:
        del error  # its traceback may refer to this frame, in a cycle


def keep_if(predicate: Callable[[object], object]) -> Step:
    """The step of `filter`."""
    return lambda value: value if predicate(value) else DROP


def side_effect(on_next: Callable[[object], object]) -> Step:
    """The step of `tap`."""

    def step(value: object) -> object:
        on_next(value)
        return value

    return step


def scan(accumulator: Callable[[object, object], object], seed: object) -> StepFactory:
    """The running result after each item; without a seed (`DROP`) the first item is the first result."""

    def factory() -> Step:
        state = seed

        def step(value: object) -> object:
            nonlocal state
            state = value if state is DROP else accumulator(state, value)
            return state

        return step

    return factory


async def take(source: Publisher[T], count: int) -> AsyncIterator[T]:
    """The first `count` items. The item after the last one is never pulled."""
    if count == 0:
        return
    iterator = source.open()
    try:
        async for value in iterator:
            count -= 1
            yield value
            if count == 0:
                return
    finally:
        await close(iterator)


async def default_if_empty(source: Publisher[T], default: T) -> AsyncIterator[T]:
    """The source, or one default item if it has none."""
    iterator = source.open()
    empty = True
    try:
        async for value in iterator:
            empty = False
            yield value
    finally:
        await close(iterator)
    if empty:
        yield default


async def buffer_with_count(source: Publisher[T], count: int) -> AsyncIterator[list[T]]:
    """Lists of `count` items; the last one can be shorter."""
    iterator = source.open()
    buffer: list[T] = []
    try:
        async for value in iterator:
            buffer.append(value)
            if len(buffer) == count:
                yield buffer
                buffer = []
    finally:
        await close(iterator)
    if buffer:
        yield buffer
