"""`Breakpoint`: pauses runs at an event, so that a person can inspect, edit, refuse or continue them (`docs/debugger.md`)."""

from agentflow.plugins.debugger.breakpoint import Breakpoint, Debugger
from agentflow.plugins.debugger.pause import ChainPlace, Pause

__all__ = ["Breakpoint", "ChainPlace", "Debugger", "Pause"]
