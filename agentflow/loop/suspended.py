"""Find out where tasks are suspended, for messages and for recordings of cancelled runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, FunctionType, GeneratorType
from typing import Any, Literal, TypeVar, cast

from agentflow._support.time_limit import drive
from agentflow.hooks import chain

__all__ = ["frames_of", "innermost", "position", "positions", "suspends_as"]

_PACKAGE = os.path.dirname(os.path.dirname(str(chain.__file__)))
_CHAIN = chain.__file__
_CURRENT = chain._current  # pyright: ignore[reportPrivateUsage] - finds the hook that a chain awaits
_PLACES: dict[CodeType, str] = {}
"""The functions at which a position ends, by code object, since a frame has its code but not its function."""

F = TypeVar("F", bound=Callable[..., object])


def suspends_as(place: Literal["model", "tool", "reader"]) -> Callable[[F], F]:
    """Mark a function as the innermost one of a position: the code that it calls differs in a replay.

    For `tool`, the function must have a variable `event`.
    """

    def register(function: F) -> F:
        _PLACES[cast("FunctionType", function).__code__] = place
        return function

    return register


def innermost(task: asyncio.Task[Any]) -> str:
    """Return the innermost function of a task outside asyncio, with its file and line."""
    location = "?"
    for frame in frames_of(task):
        code = frame.f_code
        if "/asyncio/" not in code.co_filename:
            location = f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
    return location


def position(task: asyncio.Task[Any]) -> str:
    """Return where a task is suspended, as text that is the same in a replay.

    Returns:
        The hooks that are running, outermost first, each as `Event: name`; then the code that waits: `model`, `tool
        NAME`, `reader`, or a function. For a function outside the library, the line is given relative to its first
        line.
    """
    parts: list[str] = []
    event: Any = None
    inside = ""
    for frame in frames_of(task):
        code = frame.f_code
        name, file = code.co_qualname, code.co_filename
        if file == _CHAIN:
            found = _hook(frame)
            if found is not None:
                # A second function of the chain for the same event: the inner one names the hook more exactly.
                if event is found[0] and parts:
                    parts.pop()
                event = found[0]
                parts.append(found[1])
                inside = ""
        elif file.startswith(_PACKAGE):
            if (location := _PLACES.get(code)) is not None:
                inside = f"tool {frame.f_locals['event'].tool_use.name}" if location == "tool" else location
                break
            inside = name
        elif "/asyncio/" not in file:
            event = None
            # Relative to the function, so that a change elsewhere in the file does not move the position.
            parts.append(f"{name}+{frame.f_lineno - code.co_firstlineno}")
            inside = ""
    return " > ".join([*parts, inside] if inside else parts)


def positions(
    driver: asyncio.Task[Any],
    parallel: Iterable[Iterable[asyncio.Task[Any]]],
    inside: Iterable[Iterable[str]],
    requester: asyncio.Task[Any] | None = None,
) -> tuple[str, ...]:
    """Return where a run is suspended.

    Args:
        driver: The task of its driver, which comes first.
        parallel: The tasks of its parallel tool calls, by group.
        inside: The positions of each of its child runs.
        requester: The task of the run that is running now, if there is one; its position is `here`.

    Returns:
        The positions; empty if they cannot be determined, since a cancellation must not fail because of this.
    """
    try:
        tasks = [driver, *(task for group in parallel for task in group if not task.done())]
        first, *others = ["here" if task is requester else position(task) for task in tasks]
        others += [f"{n}> {location}" for places in inside for n, location in enumerate(places)]
        # Sorted, so that the order in which the tasks started does not matter.
        return (first, *sorted(others))
    except Exception:  # a hook's `name` may raise
        return ()


def _hook(frame: FrameType) -> tuple[Any, str] | None:
    """Return the event that a chain's function handles, and its hook."""
    names = frame.f_locals
    hooks, event, entry = names.get("chain"), names.get("event"), names.get("entry")
    if hooks is None or event is None:
        return None
    if entry is None:
        if "editing" not in names or not hooks.editors:
            return None
        entry = _CURRENT(hooks, names["editing"])
    same = 0  # earlier hooks with the same name
    for other in hooks:
        if other is entry:
            break
        same += other.hook.name == entry.hook.name
    return event, f"{hooks.kind.__name__}: {entry.hook.name}" + (f" ({same + 1})" if same else "")


def frames_of(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """Yield the frames of a suspended task, outermost first, including awaited objects below its innermost frame."""
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame, awaited = _step(awaited)
        if frame is not None:
            yield frame


def _step(awaited: Any) -> tuple[FrameType | None, Any]:
    """Return the frame of an awaited object, and the object that it awaits."""
    if isinstance(awaited, CoroutineType):
        return awaited.cr_frame, awaited.cr_await
    if isinstance(awaited, AsyncGeneratorType):
        return awaited.ag_frame, awaited.ag_await
    if isinstance(awaited, GeneratorType):
        frame = awaited.gi_frame
        if frame is not None and frame.f_code is drive.__code__:  # it drives the tool's coroutine itself
            return frame, frame.f_locals.get("coro")
        return frame, cast("Any", awaited).gi_yieldfrom
    if not type(awaited).__name__.startswith(("async_generator", "coroutine_wrapper")):
        return None, None
    import gc  # needed only here

    # The awaitable of `anext` has no attribute for its generator.
    hidden: list[Any] = [
        found for found in gc.get_referents(awaited) if isinstance(found, AsyncGeneratorType | CoroutineType)
    ]
    return None, hidden[0] if hidden else None
