"""A readable display of a call: text as it streams, a line per tool call, visible vetoes.

Rules:

1. On a terminal, there are colours, and lines for active work at the bottom. In a pipe, there is only the text.
2. With `events=True` every event has a line, which starts with its number and type; the chunks of a reply share one line.
3. If a hook changes text that has been streamed, the change is shown, so that the output agrees with the history.
4. A fatal error is not printed; the code that catches it should print it.
5. On a terminal the model's text is rendered as Markdown, each block once it is complete (`terminal/markdown.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final, assert_never

from rich.console import Console as RichConsole
from rich.console import Group
from rich.text import Text

from agentflow.terminal.phrases import call_text, duration_text, ends_of, plural, shorten, tokens_text
from agentflow.terminal.printer import Printer
from agentflow.terminal.progress import ProgressLines
from agentflow.terminal.tally import Tally
from agentflow.vocabulary.context import Compaction
from agentflow.vocabulary.events import (
    ActingChunk,
    CallEnded,
    Error,
    HookEvent,
    MessagesAdded,
    Origin,
    PostActing,
    PostCall,
    PostReasoning,
    PreActing,
    PreReasoning,
    ReasoningChunk,
)
from agentflow.vocabulary.messages import DataBlock, ServerToolBlock, TextBlock, ThinkingBlock, ToolState, shown
from agentflow.vocabulary.ports.waits import Wait, on_wait
from agentflow.vocabulary.saving.plain import text_of
from agentflow.vocabulary.text import error_text, fields_of
from agentflow.vocabulary.verdicts import Answer, Approve, Deny, Recover, Resolution, Verdict

_NAME_WIDTH = 14
_LABEL_WIDTH = 8 + _NAME_WIDTH
_SHOWN_WAIT_MS = 500
"""Shorter waits of tool calls are not shown, because most hooks take some time."""
_STATES: Final = MappingProxyType[ToolState, tuple[str, str]](
    {
        "success": ("✓", "green"),
        "error": ("✗", "red"),
        "not_found": ("✗", "red"),
        "timeout": ("✗", "red"),
        "denied": ("⊘", "bold yellow"),
        "interrupted": ("■", "magenta"),
        "suspended": ("‖", "yellow"),
    }
)
_ADDED: Final = MappingProxyType[Origin, str](
    {
        "injected": "added to the conversation",
        "superseded": "rejected by a hook",
        "stopped": "not run, because the call was stopped",
        "interrupted": "the partial reply of the interrupted call",
        "again": "the model is called again",
        "closing": "the call ends with",
        "recovered": "replaces a failure",
    }
)


class Screen:
    """Prints the events of calls.

    Args:
        console: The console, from `make_console()`.
        events: Whether to print a line for every event.
        quiet: Whether to print only the model's text.
        children: Whether to print the events of sub-agents; if False, they are only in the lines of active work.
        hold: Whether to hold all output until the model's first text.
        markdown: Whether to render the model's text as Markdown on a terminal; ignored with `events`.

    Example:
        >>> from agentflow.terminal import make_console
        >>> screen = Screen(make_console(), quiet=True)
        >>> async with agent.stream("Hi") as events:
        ...     with screen.watching():
        ...         async for event in events:
        ...             screen.show(event)
    """

    def __init__(
        self,
        console: RichConsole,
        *,
        events: bool = False,
        quiet: bool = False,
        children: bool = True,
        hold: bool = False,
        markdown: bool = True,
    ) -> None:
        self.console = console
        self.events = events
        self.quiet = quiet
        self.children = children
        self.tally = Tally()
        self._progress = ProgressLines()
        self._note = ""  # a wait that no event reports
        self._new_waits: list[str] = []  # the lines for new waits, not printed yet
        self._reply_text = ""  # the text of the current or last reply
        self._compacted: dict[str, Compaction] = {}  # the last compaction shown, by call
        self._deciders: dict[str, str] = {}  # tool-use id → the hook that decided
        self._printer = Printer(
            console,
            self._lines,
            draws=self._draws,
            markdown=markdown and not events,
            hold=hold,
            indent=0 if quiet else _LABEL_WIDTH if events else 2,
        )

    # ---- events

    @contextmanager
    def watching(self) -> Generator[None]:
        """Show waits in this context while the block runs, and restore the terminal at its end."""
        token = on_wait.set(self.wait)
        try:
            yield
        finally:
            on_wait.reset(token)
            self.end()

    def show(self, event: HookEvent) -> None:
        """Print an event."""
        self.tally.count(event)
        self._note = ""
        self._progress.process(event)
        if self.children or not event.source:
            self._show(event)
        self._draw()

    def wait(self, wait: Wait) -> Callable[[], None]:
        """Report a wait, with a countdown if possible; the returned function ends it."""
        if wait.attempt or wait.seconds >= 1 or self.events:  # a retry always has a line
            who, long = shorten(wait.who, 60), duration_text(wait.seconds)
            if wait.attempt:
                report = f"attempt {wait.attempt} failed; {who} retries in {long}: {wait.reason}"
            else:
                report = f"{who} waits {long}: {wait.reason}"
            self._new_waits.append(f"  ↻ {shorten(report, self._room)}")
        ended = self._progress.wait(wait)
        self._draw()
        try:  # later, because earlier events are still on their way to the reader
            asyncio.get_running_loop().call_soon(self._say_waits)
        except RuntimeError:  # no loop, so no event is pending
            self._say_waits()

        def end() -> None:
            self._say_waits()
            ended()

        return end

    def _say_waits(self) -> None:
        reports, self._new_waits = self._new_waits, []
        for text in reports:
            self._line(None, text, "yellow")
        if reports:
            self._draw()

    def _show(self, event: HookEvent) -> None:
        match event:
            case ReasoningChunk():
                self._chunk(event)
            case PreReasoning():
                self._pre_reasoning(event)
            case PostReasoning():
                self._post_reasoning(event)
            case PreActing():
                self._pre_acting(event)
            case ActingChunk(tool_use=use, chunk=chunk):
                if self.events or not self._draws:  # otherwise it is in the lines of active work
                    self._line(event, f"  … {use.name}: {shorten(text_of(chunk), self._room)}", "dim")
            case PostActing():
                self._post_acting(event)
            case PostCall():
                self._post_call(event)
            case Error():
                self._error(event)
            case MessagesAdded(messages=messages, origin=origin):
                texts = " / ".join(shorten(msg.shown, self._room) for msg in messages)
                self._line(event, f"  + {_ADDED[origin]}: {texts}", "dim")
            case _:  # not part of a conversation; the text is the same as in the log
                if isinstance(event, CallEnded):
                    self._compacted.pop(event.call_id, None)
                fields = [f"{name} {value}" for name, value in fields_of(event).items() if value not in (None, "")]
                self._event(event, shorten(", ".join(fields), self._room))

    def _pre_reasoning(self, event: PreReasoning) -> None:
        if not event.source:
            self._reply_text = ""
        if not self.quiet:
            room = self.console.width if self.console.is_terminal else 60
            title = f"── {f'{event.source}: ' if event.source else ''}round {event.iteration} · {event.model} "
            self._printer.line("", title + "─" * max(0, min(room, 80) - len(title)), "dim")
        self._compaction(event)
        sizes = f"{plural(len(event.input_messages), 'message')}, {plural(len(event.tools), 'tool')}"
        self._event(event, f"{sizes}{', for a summary' if event.purpose == 'summary' else ''}")

    def _chunk(self, event: ReasoningChunk) -> None:
        chunk = event.incremental_chunk
        if event.restart or chunk.restart:
            self._reply_text = ""
            self._line(event, "the reply was interrupted and restarts", "yellow")
        blocks = chunk.blocks
        thought = chunk.thinking + "".join(block.text for block in blocks if isinstance(block, ThinkingBlock))
        text = chunk.text + shown(
            block for block in blocks if isinstance(block, TextBlock | DataBlock | ServerToolBlock)
        )
        if thought and not self.quiet:
            self._stream(event, "thinking", thought, "dim italic")
        if text:
            self._reply_text += "" if event.source else text
            self._stream(event, "text", text, "")
        if any(call.name for call in chunk.tool_uses):
            self._printer.end_line()

    def _compaction(self, event: PreReasoning | PostReasoning) -> None:
        """Report a compaction by hooks, before a request or after one that was too long."""
        done = event.context.compaction
        if done is not None and done.iteration == event.iteration and self._compacted.get(event.call_id) is not done:
            self._compacted[event.call_id] = done
            self._line(event, f"  compacted {done}", "dim")

    def _post_reasoning(self, event: PostReasoning) -> None:
        self._compaction(event)
        reply = event.reasoning_result
        asks = plural(len(reply.tool_uses), "tool call") if reply.tool_uses else "an answer"
        if not event.source and reply.shown != self._reply_text:
            self._line(event, f"  a hook changed the reply: {shorten(reply.shown, self._room)}", "yellow")
            self._reply_text = reply.shown
        self._event(event, f"{asks}; {tokens_text(event.usage)}; {duration_text(event.duration_ms / 1000)}")

    def _pre_acting(self, event: PreActing) -> None:
        verdict = event.decision.verdict if event.decision is not None else None
        note = self._verdict(event)
        if event.approval is not None and verdict is None:
            note = f"  {_approval_text(event.approval)}"
        elif event.decision is not None and isinstance(verdict, Deny):
            note = f"  ⊘ vetoed by {event.decision.hook}"
        if event.decision is not None and verdict is not None:
            self._deciders[event.tool_use.id] = event.decision.hook
        room = max(30, self._room - len(note))
        self._line(event, f"  → {call_text(event.tool_use, room)}", "cyan", note)

    def _post_acting(self, event: PostActing) -> None:
        result = event.tool_result
        marker, style = _STATES[result.state]
        hook = self._deciders.pop(result.tool_use_id, None)
        state = "answered" if result.state == "success" else result.state.replace("_", " ")
        how = f" ({state} by {hook})" if hook is not None else "" if result.state == "success" else f" ({state})"
        took = f"  {duration_text(event.duration_ms / 1000)}" if not how else ""
        if event.waited_ms >= _SHOWN_WAIT_MS:
            took += f"  (waited {duration_text(event.waited_ms / 1000)})"
        shown = result.shown.removeprefix("Denied: ") if result.state == "denied" else result.shown
        text = ends_of(shown, max(30, self._room - len(result.name) - len(how) - len(took)))
        self._line(event, f"  {marker} {result.name}{how}: {text}", style, took)

    def _post_call(self, event: PostCall) -> None:
        final = event.final_message.shown
        if not event.source and final and final != self._reply_text:
            self._stream(event, "text", final, "")
            self._reply_text = final
        self._event(event, event.outcome)

    def _error(self, event: Error) -> None:
        recovered = event.decision is not None and isinstance(event.decision.verdict, Recover)
        if event.fatal and not recovered:
            self.stop_waiting()
            return
        if event.tool_use is not None and not self.events:  # the tool's result shows the error
            return
        where = f" of hook {event.hook}" if event.hook else f" of tool {event.tool_use.name}" if event.tool_use else ""
        text = shorten(error_text(event.error) or "", self._room)
        self._line(event, f"  ✗ failure{where}: {text}", "red", self._verdict(event))

    # ---- output

    @property
    def _room(self) -> int:
        return max(40, self.console.width - (_LABEL_WIDTH if self.events else 0) - 8)

    def _event(self, event: HookEvent, text: str) -> None:
        """Print a line if `events` is true or a hook returned a verdict."""
        verdict = self._verdict(event)
        if self.events:
            self._line(event, text, "", verdict)
        elif verdict:
            self._line(event, f"  ⊘ {type(event).__name__}", "bold yellow", verdict)

    def _verdict(self, event: HookEvent) -> str:
        decided = event.decision
        if decided is None or decided.verdict is None:
            return ""
        return f"  ⊘ {_verdict_text(decided.verdict, self._room)}, says {decided.hook}"

    def _line(self, event: HookEvent | None, text: str, style: str, note: str = "") -> None:
        if not self.quiet:
            self._printer.line(self._label(event), text, style, note)

    def _label(self, event: HookEvent | None) -> str:
        source = f"[{event.source}] " if event is not None and event.source else ""
        if not self.events or event is None:
            return source
        return f"{event.seq:>5}  {type(event).__name__:<{_NAME_WIDTH}} {source}"

    def _stream(self, event: ReasoningChunk | PostCall, kind: str, text: str, style: str) -> None:
        self._printer.stream(kind, event.source, "" if self.quiet else self._label(event), text, style)

    def say(self, text: str, style: str = "") -> None:
        """Print a line that does not belong to an event."""
        self._printer.end_line()
        self._printer.print(Text(self._printer.fit(text), style))

    @property
    def _draws(self) -> bool:
        """Whether the live display can be used."""
        return self.console.is_terminal and not self.console.is_dumb_terminal and not self.quiet

    def waiting(self, what: str) -> None:
        """Show a wait on a terminal until the next event."""
        self._note = what
        self._draw()

    def _draw(self) -> None:
        """Update the live display below the text, if it can be shown now."""
        if not self._below:
            self.stop_waiting()
        elif self._draws and not self._printer.has_open_line:
            self._printer.live.show()

    @property
    def _below(self) -> bool:
        """Whether there are lines to show below the text."""
        return bool(self._note or self._progress or self._printer.has_open_block)

    def _lines(self) -> Group:
        size = self.console.size
        lines = self._progress.lines(size.width, size.height, ascii_only=self._printer.plain_ascii)
        if not lines and self._note:
            lines = [Text(f"  {shorten(self._printer.fit(self._note), size.width - 6)} …", "dim")]
        return Group(*lines)

    def stop_waiting(self) -> None:
        """Remove the live display below the text."""
        self._printer.live.remove()

    def end(self) -> None:
        """Finish the call's output: end the line, and remove the live display."""
        self._say_waits()
        self._printer.end_line()
        self._note = ""
        self._progress.clear()
        self.stop_waiting()
        self._printer.live.write_waiting()

    def summary(self) -> None:
        """Print the summary of the call, row by row."""
        self._printer.release()
        self.say("")
        for name, value in self.tally.rows():
            self._printer.print(Text.assemble((f"  {name:<9}", "bold"), self._printer.fit(value)))
        self.say("")

    def summary_line(self) -> None:
        """Print the summary of the call on one line."""
        if not self.quiet:
            self.say(f"── {self.tally.line()}", "dim")

    def next_call(self) -> None:
        """Reset the counters for another call."""
        self.tally = Tally()
        self._deciders.clear()
        self._reply_text = ""


def _approval_text(approval: Resolution) -> str:
    match approval:
        case Approve():
            return "approved"
        case Answer():
            return "answered externally"
        case Deny():
            return "refused externally"
        case _:
            assert_never(approval)


def _verdict_text(verdict: Verdict, room: int) -> str:
    reason = getattr(verdict, "reason", "")
    return f"{verdict.label} ({shorten(reason, room)})" if reason else verdict.label
