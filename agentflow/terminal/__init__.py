"""Calls in a terminal: `Console(stream)`, `chat(agent)`, and the `Screen` that both draw on. Loaded on first use."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily

if TYPE_CHECKING:
    from agentflow.terminal.console import Console, follow
    from agentflow.terminal.conversation import chat
    from agentflow.terminal.screen import Screen, make_console

__all__ = ["Console", "Screen", "chat", "follow", "make_console"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Console": ".console",
        "Screen": ".screen",
        "chat": ".conversation",
        "follow": ".console",
        "make_console": ".screen",
    },
)
