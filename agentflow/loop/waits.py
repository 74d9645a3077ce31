"""The time for which the work of a tool call waits for people, hooks, locks and readers.

Rules:

1. Work counts as waiting during its own waits, and while all its running parts are waiting. Its parts are the calls and turns
   that a tool call makes, and their tool calls. So parallel waits count once; waits during other work do not count.
2. Each part is measured with the clock of its own run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["Waits"]

_changing = threading.RLock()  # parts can run in several threads


class Waits:
    """The waits of a tool call, or of a call or turn inside one.

    Args:
        monotonic: The clock of its run.
        outer: The waits of the work that this work is a part of.
    """

    __slots__ = ("_inside", "_monotonic", "_outer", "_own", "_parts", "_since", "_total", "_waiting_parts")

    def __init__(self, monotonic: Callable[[], float], outer: Waits | None = None) -> None:
        self._monotonic = monotonic
        self._outer = outer
        self._inside = False  # whether this work counts as a running part of `outer`
        self._own = 0
        self._parts = 0
        self._waiting_parts = 0
        self._since: float | None = None
        self._total = 0.0

    @property
    def seconds(self) -> float:
        """The time waited so far."""
        since = self._since
        return self._total if since is None else self._total + self._monotonic() - since

    def __enter__(self) -> None:
        """Begin a wait of this work itself. Such waits can overlap."""
        self._change(own=1)

    def __exit__(self, *_: object) -> None:
        """End a wait of this work."""
        self._change(own=-1)

    def enter(self) -> None:
        """Count as a running part of the outer work until `leave` is called. A second call has no effect."""
        with _changing:
            if self._outer is not None and not self._inside:
                self._inside = True
                self._outer._change(parts=1, waiting_parts=self._since is not None)

    def leave(self) -> None:
        """Stop counting as a running part of the outer work. This has no effect without an earlier `enter`."""
        with _changing:
            if self._outer is not None and self._inside:
                self._inside = False
                # A part that leaves while it waits must not be counted as a waiting part afterwards.
                self._outer._change(parts=-1, waiting_parts=-(self._since is not None))

    def _change(self, own: int = 0, parts: int = 0, waiting_parts: int = 0) -> None:
        with _changing:
            self._own += own
            self._parts += parts
            self._waiting_parts += waiting_parts
            # `0 <`, since work without parts is not waiting, although "all its parts" are.
            waiting = self._own > 0 or 0 < self._parts == self._waiting_parts
            if waiting == (self._since is not None):
                return
            if self._since is None:
                self._since = self._monotonic()
            else:
                self._total += self._monotonic() - self._since
                self._since = None
            if self._outer is not None and self._inside:
                self._outer._change(waiting_parts=1 if waiting else -1)
