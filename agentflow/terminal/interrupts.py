"""Ctrl-C while a call is displayed.

Rules:

1. The first Ctrl-C ends the call, not the program: cleanup runs, the reply is kept, and the history stays legal.
2. A second one, or one without an active call, raises `KeyboardInterrupt` as usual.
3. Ctrl-C is handled only in the main thread, and only if the current handler is Python's or asyncio's.
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


@contextmanager
def interrupting(end: Callable[[], bool]) -> Generator[None]:
    """Let Ctrl-C end a call while the block runs; use it in a running event loop.

    Args:
        end: Ends the active call; returns whether there was one.
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
    with suppress(NotImplementedError):  # not available on Windows, which does not have this race
        # Gives the loop a wake-up pipe: without one, a signal just before the loop starts to wait is not noticed until the
        # loop wakes up for another reason.
        loop.add_signal_handler(signal.SIGINT, _nothing)
    signal.signal(signal.SIGINT, pressed)  # after the loop, which has set a handler of its own
    try:
        yield
    finally:
        with suppress(NotImplementedError):
            loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)  # after the loop, which restores Python's handler


def _nothing() -> None:
    """Do nothing: the signal handler did the work."""


def _ours_to_take(handler: object) -> bool:
    """Whether Ctrl-C is handled by Python or asyncio's runner, not by other code."""
    if isinstance(handler, partial):  # of `asyncio.Runner._on_sigint`
        function = cast("partial[object]", handler).func
        return isinstance(getattr(function, "__self__", None), asyncio.Runner)
    return handler is signal.default_int_handler
