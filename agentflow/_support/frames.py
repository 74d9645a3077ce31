"""The frames of the running code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

frame_at: Final[Callable[[int], FrameType]] = sys._getframe  # pyright: ignore[reportPrivateUsage] - documented in `sys`
"""Returns a frame of this thread: 0 is the caller's own, 1 that of its caller, and so on."""
