"""Count the operations of Python while some work runs: bytecode instructions, functions entered, coroutines made.

On Python 3.12 and newer `sys.monitoring` counts, which is exact and sees every thread. On 3.11 `sys.setprofile` and
`sys.settrace` do; only `Counts.functions` and instructions of the package are available there.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import agentflow

__all__ = ["EXACT", "Counts", "counted", "instructions_of_ours"]

EXACT = sys.version_info >= (3, 12)
"""Whether `sys.monitoring` is available."""

_PACKAGE = str(Path(agentflow.__file__).parent)
_MADE = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_TOOL_ID = 4


class Counts(NamedTuple):
    """The counts.

    Attributes:
        functions: How often a function of the package was entered or resumed.
        bytecodes: Instructions of all Python code, the event loop's and the script's included; 0 on Python 3.11.
        coroutines: Coroutines and asynchronous generators of the package that were started; 0 on Python 3.11.
    """

    functions: float
    bytecodes: float
    coroutines: float

    def per(self, other: Counts, units: int = 1) -> Counts:
        """Return the difference to another count, divided by `units`."""
        return Counts(*((mine - its) / units for mine, its in zip(self, other, strict=True)))


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_PACKAGE)


async def counted(work: Callable[[], Awaitable[object]]) -> Counts:
    """Await `work` and count."""
    return await (_monitored(work) if EXACT else _profiled(work))


async def _monitored(work: Callable[[], Awaitable[object]]) -> Counts:
    functions = bytecodes = coroutines = 0

    def instruction(code: CodeType, offset: int) -> None:
        nonlocal bytecodes
        bytecodes += 1

    def start(code: CodeType, offset: int) -> None:
        nonlocal functions, coroutines
        if _is_ours(code):
            functions += 1
            coroutines += bool(code.co_flags & _MADE)

    def resume(code: CodeType, offset: int) -> None:
        nonlocal functions
        functions += _is_ours(code)

    events = sys.monitoring.events
    callbacks: dict[int, Callable[..., None]] = {
        events.INSTRUCTION: instruction,
        events.PY_START: start,
        events.PY_RESUME: resume,
    }
    await _watch(work, callbacks)
    return Counts(functions, bytecodes, coroutines)


async def _watch(work: Callable[[], Awaitable[object]], callbacks: dict[int, Callable[..., None]]) -> None:
    sys.monitoring.use_tool_id(_TOOL_ID, "agentflow.benchmarks")
    try:
        for event, callback in callbacks.items():
            sys.monitoring.register_callback(_TOOL_ID, event, callback)
        sys.monitoring.restart_events()  # a location that another count disabled stays so otherwise
        sys.monitoring.set_events(_TOOL_ID, sum(callbacks))
        try:
            await work()
        finally:
            sys.monitoring.set_events(_TOOL_ID, 0)
    finally:
        for event in callbacks:
            sys.monitoring.register_callback(_TOOL_ID, event, None)
        sys.monitoring.free_tool_id(_TOOL_ID)


async def _profiled(work: Callable[[], Awaitable[object]]) -> Counts:
    functions = 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal functions
        functions += event == "call" and _is_ours(frame.f_code)

    sys.setprofile(look)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return Counts(functions, 0, 0)


async def instructions_of_ours(work: Callable[[], Awaitable[object]]) -> int:
    """Await `work` and count the instructions of the package alone."""
    count = 0
    if EXACT:

        def instruction(code: CodeType, offset: int) -> Any:
            nonlocal count
            if not _is_ours(code):
                return sys.monitoring.DISABLE
            count += 1
            return None

        await _watch(work, {sys.monitoring.events.INSTRUCTION: instruction})
        return count

    def within(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        count += event == "opcode"
        return within

    def look(frame: FrameType, event: str, _: object) -> Any:
        if not _is_ours(frame.f_code):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return within

    sys.settrace(look)
    try:
        await work()
    finally:
        sys.settrace(None)
    return count
