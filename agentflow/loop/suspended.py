"""Where tasks are suspended: for messages to people, and for recordings of cancelled runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any, cast

from agentflow.hooks import chain
from agentflow.loop.tool_call.limit import drive

__all__ = ["frames_of", "innermost", "position", "positions"]

_PACKAGE = os.path.dirname(os.path.dirname(str(chain.__file__)))
_CHAIN = chain.__file__
_CURRENT = chain._current  # pyright: ignore[reportPrivateUsage] - which hook a chain is waiting for
_RECORDED = {"Recorder._take": "model", "Recorder._work": "tool"}
"""What is done inside these functions is replaced in a replay, so a position ends there."""
_READER = ("Events.hand_over", "Events._after")


def innermost(task: asyncio.Task[Any]) -> str:
    """The innermost function of a task that is not asyncio's, with its file and line."""
    place = "?"
    for frame in frames_of(task):
        code = frame.f_code
        if "/asyncio/" not in code.co_filename:
            place = f"{code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
    return place


def position(task: asyncio.Task[Any]) -> str:
    """Where a task is suspended, in words that are the same in a replay.

    Returns:
        The hooks that it is in, outermost first, each as `Event: name`; then what waits: `model`, `tool NAME`, `reader`, or a
        function, with the line relative to its first one if the function is not the library's.
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
                if event is found[0] and parts:
                    parts.pop()
                event = found[0]
                parts.append(found[1])
                inside = ""
        elif file.startswith(_PACKAGE):
            if name in _RECORDED:
                inside = _RECORDED[name]
                if inside == "tool":
                    inside = f"tool {frame.f_locals['event'].tool_use.name}"
                break
            inside = "reader" if name in _READER else name
        elif "/asyncio/" not in file:
            event = None
            parts.append(f"{name}+{frame.f_lineno - code.co_firstlineno}")
            inside = ""
    return " > ".join([*parts, inside] if inside else parts)


def positions(
    driver: asyncio.Task[Any], beside: Iterable[Iterable[asyncio.Task[Any]]], inside: Iterable[Iterable[str]]
) -> tuple[str, ...]:
    """Where a run is suspended.

    Args:
        driver: The task of its driver; its position comes first.
        beside: The tasks of its parallel tool calls, by group.
        inside: The positions of the runs that belong to it.

    Returns:
        Nothing if it cannot be found out: a cancellation must not fail because of it.
    """
    try:
        others = [position(task) for tasks in beside for task in tasks if not task.done()]
        others += [f"{n}> {place}" for places in inside for n, place in enumerate(places)]
        return (position(driver), *sorted(others))
    except Exception:  # a hook's `name` may raise
        return ()


def _hook(frame: FrameType) -> tuple[Any, str] | None:
    """The event that a chain's function handles, and its hook."""
    here = frame.f_locals
    hooks, event, entry = here.get("chain"), here.get("event"), here.get("entry")
    if hooks is None or event is None:
        return None
    if entry is None:
        if "editing" not in here or not hooks.editors:
            return None
        entry = _CURRENT(hooks, here["editing"])
    same = 0  # hooks with its name in front of it
    for other in hooks:
        if other is entry:
            break
        same += other.hook.name == entry.hook.name
    return event, f"{hooks.kind.__name__}: {entry.hook.name}" + (f" ({same + 1})" if same else "")


def frames_of(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    """The frames of a suspended task, outermost first, also those that its innermost frame awaits."""
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame, awaited = _step(awaited)
        if frame is not None:
            yield frame


def _step(awaited: Any) -> tuple[FrameType | None, Any]:
    """The frame of something that is awaited, and what it awaits itself."""
    if isinstance(awaited, CoroutineType):
        return awaited.cr_frame, awaited.cr_await
    if isinstance(awaited, AsyncGeneratorType):
        return awaited.ag_frame, awaited.ag_await
    if isinstance(awaited, GeneratorType):
        frame = awaited.gi_frame
        if frame is not None and frame.f_code is drive.__code__:  # it steps the tool's coroutine by hand
            return frame, frame.f_locals.get("coro")
        return frame, cast("Any", awaited).gi_yieldfrom
    if not type(awaited).__name__.startswith(("async_generator", "coroutine_wrapper")):
        return None, None
    import gc  # not with the package: it is needed here alone

    # What `anext` gives hides the generator that it steps.
    hidden: list[Any] = [
        found for found in gc.get_referents(awaited) if isinstance(found, AsyncGeneratorType | CoroutineType)
    ]
    return None, hidden[0] if hidden else None
