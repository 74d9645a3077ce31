"""One item in, at most one out: map, filter, scan and similar, fused.

Neighbouring steps run in one loop of one async generator, so a chain of them costs one layer, whatever its length, and
has no recursion limit. A step is a function from item to item; `DROP` means that the step has no output for this item.
An observer of the completion or failure (`tap`'s other two functions) is an `End` in the row.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from enum import Enum
from typing import Final, Literal, cast

from agentflow._support.values import NamedTuple
from agentflow.reactive.iterators import close

__all__ = ["DROP", "Drop", "End", "Step", "distinct", "distinct_until_changed", "fused", "pairwise", "scan", "skip"]

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
    ends = [(place, step) for place, step in enumerate(row) if isinstance(step, End)]
    return _watched(source, [(place, step) for place, step in enumerate(row) if not isinstance(step, End)], ends)


async def _stepped(source: AsyncIterator[object], steps: Sequence[Step]) -> AsyncIterator[object]:
    try:
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
    """Like `_stepped`, but also notify the `End`s: of a failure only those after the step that failed."""
    place = -1
    failure: Exception | None = None
    try:
        try:
            async for value in source:
                for place, step in steps:  # noqa: B007 - the handler below reads the failed place
                    value = step(value)
                    if value is DROP:
                        break
                else:
                    yield value
                place = -1  # what fails now is the source
        finally:
            await close(source)
        place = -1
        for place, end in ends:  # noqa: B007
            if end.on_completed is not None:
                end.on_completed()
    except Exception as error:
        failure = _notify_ends(error, place, ends)
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # its traceback holds this frame


def _notify_ends(error: Exception, failed: int, ends: Sequence[tuple[int, End]]) -> Exception:
    """Notify the `End`s after the failed step of a failure; if one of them fails, its failure replaces it."""
    try:
        for place, end in ends:
            if place > failed and end.on_error is not None:
                try:
                    end.on_error(error)
                except Exception as another:
                    error = another
        return error
    finally:
        del error  # its traceback may hold this frame


def keep_if(predicate: Callable[[object], object]) -> Step:
    """The step of `filter`."""
    return lambda value: value if predicate(value) else DROP


def side_effect(on_next: Callable[[object], object]) -> Step:
    """The step of `tap`."""

    def step(value: object) -> object:
        on_next(value)
        return value

    return step


def skip(count: int) -> StepFactory:
    """Drop the first `count` items."""

    def factory() -> Step:
        left = count

        def step(value: object) -> object:
            nonlocal left
            if left:
                left -= 1
                return DROP
            return value

        return step

    return factory


def skip_while(predicate: Callable[[object], object]) -> StepFactory:
    """Drop items until the predicate fails once."""

    def factory() -> Step:
        skipping = True

        def step(value: object) -> object:
            nonlocal skipping
            if skipping and predicate(value):
                return DROP
            skipping = False
            return value

        return step

    return factory


def scan(accumulator: Callable[[object, object], object], seed: object) -> StepFactory:
    """Each item folded into what came before; without a seed (`DROP`) the first item is the first result."""

    def factory() -> Step:
        state = seed

        def step(value: object) -> object:
            nonlocal state
            state = value if state is DROP else accumulator(state, value)
            return state

        return step

    return factory


def distinct(key: Callable[[object], object] | None, comparer: Callable[[object, object], bool] | None) -> StepFactory:
    """Only items with a key that was not seen in this run; hashed if possible."""

    def factory() -> Step:
        hashed: set[object] = set()
        others: list[object] = []

        def seen(mark: object) -> bool:
            if comparer is not None:
                return any(comparer(mark, other) for other in others)
            try:
                return mark in hashed
            except TypeError:
                return mark in others

        def step(value: object) -> object:
            mark = value if key is None else key(value)
            if seen(mark):
                return DROP
            if comparer is None:
                try:
                    hashed.add(mark)
                except TypeError:
                    others.append(mark)
            else:
                others.append(mark)
            return value

        return step

    return factory


def distinct_until_changed(
    key: Callable[[object], object] | None, comparer: Callable[[object, object], bool] | None
) -> StepFactory:
    """Drop an item if its key equals the previous one."""

    def factory() -> Step:
        last: object = DROP

        def step(value: object) -> object:
            nonlocal last
            mark = value if key is None else key(value)
            same = last is not DROP and (comparer(last, mark) if comparer is not None else last == mark)
            last = mark
            return DROP if same else value

        return step

    return factory


def pairwise() -> Step:
    """Each item together with the previous one."""
    last: object = DROP

    def step(value: object) -> object:
        nonlocal last
        before, last = last, value
        return DROP if before is DROP else (before, value)

    return step


def indexed(function: Callable[[object, int], object]) -> Callable[[], Callable[[object], object]]:
    """Turn a function of item and index into one of the item, counting from 0 in each run."""

    def factory() -> Callable[[object], object]:
        index = -1

        def step(value: object) -> object:
            nonlocal index
            index += 1
            return function(value, index)

        return step

    return factory
