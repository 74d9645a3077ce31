"""`Console`: show a stream in the terminal and return its reply."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from typing import Any, Generic, TextIO, TypeVar

from agentflow._support.validation import is_a
from agentflow.agent.agent_flux import AgentFlux
from agentflow.errors import UsageError
from agentflow.terminal.interrupts import interrupting
from agentflow.terminal.printer import make_console
from agentflow.terminal.screen import Screen
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import HookEvent
from agentflow.vocabulary.messages import Reply, T_co

T = TypeVar("T")


class Console(Generic[T_co]):
    """Shows a call in the terminal as it happens; awaiting it returns the reply.

    It prints the text as it streams, a line for each tool call and its result, vetoes and failures, the active work with
    its time and cost, and a summary. In a pipe the output is plain text without control characters; if `NO_COLOR` is set,
    it has no colours. While a question is open (`TerminalAsker`), nothing is drawn over it. The first Ctrl-C interrupts
    the call, whose reply then has the outcome `interrupted`; the second one raises `KeyboardInterrupt`.

    Args:
        stream: The result of `agent.stream(...)` or `agent.resume_stream(...)`. With `children=True`, sub-agents are shown
            too, below the tool that calls them.
        events: Whether to print a line for every event.
        quiet: Whether to print only the model's text.
        children: If False, sub-agents are shown only in the lines of active work.
        markdown: If False, the model's text is printed unchanged instead of being rendered as Markdown on a terminal.
        file: The output; standard output by default.

    Raises:
        Exception: The call's error, when awaited.

    Example:
        >>> reply = await Console(agent.stream("Hi"))
    """

    def __init__(
        self,
        stream: AgentFlux[T_co],
        *,
        events: bool = False,
        quiet: bool = False,
        children: bool = True,
        markdown: bool = True,
        file: TextIO | None = None,
    ) -> None:
        if not is_a(stream, AgentFlux):
            raise UsageError(f"Console shows a stream, not {type(stream).__name__}: Console(agent.stream('Hi')).")
        self._stream = stream
        self._events = events
        self._quiet = quiet
        self._children = children
        self._markdown = markdown
        self._file = file
        self._used = False

    def __await__(self) -> Generator[Any, Any, Reply[T_co]]:
        self._used = True
        return self._show().__await__()

    def __del__(self) -> None:
        if not getattr(self, "_used", True):  # unset if `__init__` raised
            warnings.warn(
                "Console(agent.stream(...)) was never awaited, so the call did not run. Await it.",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )

    async def _show(self) -> Reply[T_co]:
        screen = Screen(
            make_console(self._file),
            events=self._events,
            quiet=self._quiet,
            children=self._children,
            markdown=self._markdown,
        )
        reply = await follow(self._stream, screen)
        screen.summary_line()
        return reply


async def follow(
    stream: AgentFlux[T],
    screen: Screen,
    *,
    show: Callable[[HookEvent], object] | None = None,
    interrupt: Callable[[], bool] | None = None,
) -> Reply[T]:
    """Show a call on a screen; Ctrl-C interrupts the call.

    Args:
        stream: The call.
        screen: The screen.
        show: Called with each event; `screen.show` by default.
        interrupt: Interrupts the call, and returns whether one was active; by default, the call that `stream` shows.

    Raises:
        Exception: The call's error; it is not printed.

    Example:
        >>> reply = await follow(agent.stream("Hi"), Screen(make_console()))
    """
    running: RunContext | None = None
    shown = show or screen.show

    def end() -> bool:
        if running is None:
            return False
        running.interrupt("Ctrl-C")
        return True

    with screen.watching(), interrupting(interrupt or end):
        async with stream as events:
            async for event in events:
                if not event.source:  # interrupting a sub-agent would not end the call
                    running = event.context
                shown(event)
            return await events.reply()
