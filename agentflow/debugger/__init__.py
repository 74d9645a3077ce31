"""Runs that pause at an event, for a person who looks, edits, refuses, and lets them go on. Loaded when first asked for."""

from typing import TYPE_CHECKING

from agentflow.ground.lazy import lazily

if TYPE_CHECKING:
    from agentflow.debugger.breakpoint import Breakpoint, Debugger
    from agentflow.debugger.pause import ChainPlace, Pause
    from agentflow.debugger.terminal import TerminalDebugger

__all__ = ["Breakpoint", "ChainPlace", "Debugger", "Pause", "TerminalDebugger"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Breakpoint": ".breakpoint",
        "ChainPlace": ".pause",
        "Debugger": ".breakpoint",
        "Pause": ".pause",
        "TerminalDebugger": ".terminal",
    },
)
