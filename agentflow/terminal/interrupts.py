"""Ctrl-C while a call is shown.

Rules:

1. The first one ends the call and not the program: its cleanup runs, its reply is kept, the history stays legal.
2. A second one, or one that meets no call, is a `KeyboardInterrupt`, as it would be without us.
3. It is taken only in the main thread, and only from Python or asyncio: who handles it themselves goes on doing so.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, cast

__all__ = ["interrupting"]


@contextmanager
def interrupting(end: Callable[[], bool]) -> Generator[None]:
    """Let Ctrl-C end a call, for as long as the block lasts; to be used in a running event loop.

    Args:
        end: Ends the call that runs; says whether there was one.
    """
    before: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not _ours_to_take(before):
        yield
        return
    presses = 0

    def pressed(number: int, frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses > 1 or not end():
            raise KeyboardInterrupt

    loop = asyncio.get_running_loop()
    with suppress(NotImplementedError):  # Windows has none, and no such race
        # Gives the loop a wake-up pipe: without one, a signal that comes just before the loop begins to wait is not noticed
        # until something else wakes it.
        loop.add_signal_handler(signal.SIGINT, _nothing)
    signal.signal(signal.SIGINT, pressed)
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


def _nothing() -> None:
    """The signal's own handler has done it."""


def _ours_to_take(handler: object) -> bool:
    """Whether nobody but Python, or asyncio's runner, handles Ctrl-C."""
    if isinstance(handler, partial):  # of `asyncio.Runner._on_sigint`
        function = cast("partial[object]", handler).func
        return isinstance(getattr(function, "__self__", None), asyncio.Runner)
    return handler is signal.default_int_handler
