"""Pause runs at an event, so that a person can inspect, edit, refuse or continue them. Loaded on first use."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily

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
