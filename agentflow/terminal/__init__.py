"""Agents in a terminal: `Console(stream)`, `chat(agent)`, `TerminalDebugger`, `progress_bar()`. The CLI is in `cli/`.

Loaded on first use.
"""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily

if TYPE_CHECKING:
    from agentflow.terminal.bar import progress_bar
    from agentflow.terminal.console import Console, follow
    from agentflow.terminal.conversation import chat
    from agentflow.terminal.debugger import TerminalDebugger
    from agentflow.terminal.printer import make_console
    from agentflow.terminal.screen import Screen

__all__ = ["Console", "Screen", "TerminalDebugger", "chat", "follow", "make_console", "progress_bar"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".console": "Console follow",
        ".printer": "make_console",
        ".screen": "Screen",
        ".debugger": "TerminalDebugger",
        ".conversation": "chat",
        ".bar": "progress_bar",
    },
)
