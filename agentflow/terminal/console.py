"""`Console`: a stream shown at the terminal, and its reply."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator
from typing import Any, Generic, TextIO, TypeVar

from agentflow.agent.agent_flux import AgentFlux
from agentflow.context import RunContext
from agentflow.errors import UsageError
from agentflow.events import HookEvent
from agentflow.messages import Reply, T_co
from agentflow.terminal.interrupts import interrupting
from agentflow.terminal.screen import Screen, make_console

__all__ = ["Console", "follow"]

T = TypeVar("T")


class Console(Generic[T_co]):
    """Shows a call at the terminal as it happens; awaited, it gives the reply.

    Words as they stream, a line for each tool call and its result, vetoes and failures, what runs with its time and cost, and a
    summary. In a pipe it is plain text, without a control character; with `NO_COLOR` set it has no colours. While somebody is
    asked (`TerminalAsker`) nothing is drawn over the question. The first Ctrl-C interrupts the call: the reply's outcome is
    then `interrupted`. The second one is a `KeyboardInterrupt`.

    Args:
        stream: What `agent.stream(...)` or `agent.resume_stream(...)` gives. With `children=True` there, sub-agents are shown
            too, below the tool that asks them.
        events: A line for every event.
        quiet: Nothing but the model's words.
        children: False: sub-agents are in the lines of what runs only.
        markdown: False: on a terminal too, the model's words are shown as it writes them, and not rendered as Markdown.
        file: Where to; standard output by default.

    Raises:
        Exception: What the call fails with, when it is awaited.

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
        if not isinstance(stream, AgentFlux):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
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
        if not getattr(self, "_used", True):
            warnings.warn(
                "Console(agent.stream(...)) was never awaited, so nothing ran and nothing is shown; await it",
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
    """Show a call on a screen, and let Ctrl-C end it.

    Args:
        stream: The call.
        screen: Where to.
        show: What is done with each event; `screen.show` by default.
        interrupt: Ends the call, and says whether there was one; by default it is the call whose events have come.

    Raises:
        Exception: What the call fails with; it is not printed.

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
                if not event.source:
                    running = event.context
                shown(event)
            return await events.reply()
