"""Find the work of a tool to which the running code belongs."""

from __future__ import annotations

from contextvars import ContextVar
from types import CodeType
from typing import Final, TypeAlias

from agentflow._support.frames import frame_at
from agentflow.hooks import chain
from agentflow.recording.recorder.entry_builder import RecordedCall

__all__ = ["WORKS", "in_hook", "work_of"]

Works: TypeAlias = "tuple[RecordedCall, int, Works] | None"
"""Nested work, innermost first: its call, as one recorder represents it, its number, and the work around it."""
WORKS: Final[ContextVar[Works]] = ContextVar("WORKS", default=None)
"""The work of which the running code is a part, also in tasks that it creates; set by the recorder."""


def work_of(owner: RecordedCall) -> int | None:
    """Return the number of the call's work to which the running code belongs; None if there is none. Hooks that handle
    a tool's chunk belong to the tool's work."""
    works = WORKS.get()
    # Work nests through sub-agents, and each recorder adds its own entry.
    while works is not None and works[0] is not owner:
        works = works[2]
    return None if works is None else works[1]


def in_hook(work: CodeType) -> bool:
    """Return whether the running code belongs to a hook, such as one that handles a tool's chunk, and not to the tool.

    Args:
        work: The code of the recorder's coroutine around the tool's work.
    """
    frame = frame_at(0)
    while frame is not None and frame.f_code is not work:
        if frame.f_code.co_filename == chain.__file__:
            return True
        frame = frame.f_back
    return False
