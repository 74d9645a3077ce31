"""`TerminalDebugger`: handles paused runs in the terminal of the program.

Rules:

1. It handles one pause at a time; other pauses wait, while their time limits run.
2. Texts from models, tools and hooks are shown with control characters escaped.
3. Ctrl-C interrupts the call. If the input is closed or is not a terminal, no decision is made.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import Final, TextIO, TypeAlias

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, WordCompleter
from prompt_toolkit.formatted_text import FormattedText
from rich.text import Text

from agentflow._support.shown import printable
from agentflow.errors import UsageError
from agentflow.plugins.approval.terminal import at_terminal, questions
from agentflow.plugins.debugger.deciding import VERDICTS, form_of, parse_value, parse_verdict
from agentflow.plugins.debugger.pause import Pause, describe_end
from agentflow.terminal.lines import ProgramLines, prompt_session
from agentflow.terminal.phrases import duration_text, plural, shorten
from agentflow.terminal.printer import make_console
from agentflow.vocabulary.event_json import Json
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.text import message_text
from agentflow.vocabulary.verdicts import Deny

Read: TypeAlias = Callable[[Pause, str, str], Awaitable[str]]

_PROMPT = "debug> "
_LAST = 6
_BY_WORD: Final = {name.lower(): kind for name, kind in VERDICTS.items()}
_SHORT: Final = {"c": "continue", "s": "step", "d": "deny", "a": "answer", "e": "edit", "h": "history", "?": "help"}
_WITHOUT_FIELD: Final = frozenset({"type", "seq", "iteration", "time", "source", "run_id", "call_id", "session_id"})
_HELP = """\
  continue, c             continue the run, with the edits
  step, s                 the same, and pause at the run's next event
  show [FIELD]            show the event, or one field in full
  set FIELD VALUE         assign a writable field, or a part of it: set tool_use.input.path "/tmp/x"
                          (JSON, or else plain text)
  edit FIELD, e           the same, starting from the current value
  chain                   list the event's hooks, in order
  history [N], h          show the last messages of the conversation
  Ctrl-C                  interrupt the call"""


class TerminalDebugger:
    """Shows a paused run in the terminal, and executes the commands that the user types.

    Args:
        lines: The commands, for programs and tests; by default the user is asked, if there is a terminal.
        file: The output; standard error by default.

    Example:
        >>> from agentflow.plugins import Breakpoint
        >>> point = Breakpoint(PreActing, tools=["delete_*"], ask=TerminalDebugger())
    """

    def __init__(self, lines: AsyncIterable[str] | None = None, *, file: TextIO | None = None) -> None:
        self._lines = None if lines is None else ProgramLines(lines, self._say)
        self._file = file
        self._typed: PromptSession[str] | None = None

    async def __call__(self, pause: Pause) -> None:
        """Handle a paused run until it continues or the input ends."""
        if self._lines is None and not at_terminal():
            return
        await questions.turn.acquire()
        try:
            with questions.open():
                try:
                    await _Dialogue(pause, self._read, self._say).hold()
                finally:
                    if pause.ended in ("over", "cancelled") or pause.ended is None:
                        self._say(f"  (closed: {describe_end(pause) if pause.ended else 'it was cancelled'})", "dim")
        finally:
            questions.turn.release()

    async def _read(self, pause: Pause, prompt: str, initial: str = "") -> str:
        """Read the next line.

        Raises:
            EOFError: There are no more lines.
            KeyboardInterrupt: Ctrl-C was pressed.
        """
        if self._lines is not None:
            return await self._lines.read(prompt)
        if self._typed is None:
            self._typed = prompt_session()
        shown = FormattedText([("bold", prompt)])
        return await self._typed.prompt_async(
            shown, default=initial, handle_sigint=False, completer=_completer(pause), complete_while_typing=False
        )

    def _say(self, text: str, style: str = "") -> None:
        console = make_console(self._file or sys.stderr)
        console.print(Text(printable(text), style), soft_wrap=True)


def _completer(pause: Pause) -> Completer:
    words = ["continue", "step", "show", "set", "edit", "chain", "history", "help", *_legal(pause), *pause.writable]
    return WordCompleter(words)


def _legal(pause: Pause) -> list[str]:
    return [word for word, kind in _BY_WORD.items() if kind in pause.verdicts]


class _Dialogue:
    """The dialogue about a pause."""

    def __init__(self, pause: Pause, read: Read, say: Callable[..., None]) -> None:
        self._pause = pause
        self._read = read
        self._say = say

    async def hold(self) -> None:
        """Show the pause and execute commands until it ends."""
        self._show_event()
        while self._pause.ended is None:
            try:
                line = await self._read(self._pause, _PROMPT, "")
            except EOFError:
                return
            except KeyboardInterrupt:
                self._pause.event.context.interrupt("Ctrl-C")
                await self._pause.over  # until the call has ended
                return
            word, _, rest = line.strip().partition(" ")
            try:
                await self._do(_SHORT.get(word, word), rest.strip())
            except UsageError as error:
                self._say(f"  {error}", "red")
            except EOFError:
                return

    async def _do(self, word: str, rest: str) -> None:
        pause = self._pause
        match word:
            case "":
                pass
            case "continue" | "step" if rest:
                raise UsageError(f"{word} takes no arguments.")
            case "continue" | "step":
                pause.resume(step=word == "step")
            case "show":
                self._show(rest)
            case "set":
                path, _, value = rest.partition(" ")
                if not value.strip():
                    raise UsageError(f"Usage: set FIELD VALUE. Writable fields: {', '.join(pause.writable) or 'none'}.")
                self._edit(path, parse_value(value.strip()))
            case "edit":
                await self._edit_as_it_is(rest)
            case "chain":
                self._chain()
            case "history":
                self._history(rest)
            case "help":
                legal = "".join(f"\n  {form_of(kind)}" for kind in _BY_WORD.values() if kind in pause.verdicts)
                self._say(_HELP + legal, "dim")
            case _ if word in _BY_WORD:
                pause.decide(parse_verdict(_BY_WORD[word], rest))
            case _:
                raise UsageError(f"Unknown command {word!r:.40}. Type help for a list.")

    # ---- commands

    def _edit(self, path: str, value: Json) -> None:
        self._pause.edit(path, value)
        field = path.partition(".")[0].partition("[")[0]
        self._line(field, self._pause.value(field))

    async def _edit_as_it_is(self, path: str) -> None:
        writable = self._pause.writable
        if not path and len(writable) == 1:
            path = writable[0]
        if path not in writable:
            raise UsageError(f"Usage: edit FIELD. Writable fields: {', '.join(writable) or 'none'}.")
        try:
            # ASCII only, so that the prompt shows no control characters of a model.
            edited = await self._read(self._pause, f"{path} = ", json.dumps(self._pause.value(path), ensure_ascii=True))
        except KeyboardInterrupt:
            self._say("  (unchanged)", "dim")
            return
        self._edit(path, parse_value(edited))

    # ---- display

    def _show_event(self) -> None:
        pause, event = self._pause, self._pause.event
        prefix = f"{event.source}/" if event.source else ""
        countdown = "" if pause.limit is None else f" · {_otherwise(pause)} in {duration_text(pause.limit)}"
        others = "" if event.iteration == 0 else f" · round {event.iteration}"
        self._say(
            f"\n‖ {type(event).__name__}  {prefix}{event.agent.name}{others} · event {event.seq} of {event.run_id}{countdown}",
            "bold yellow",
        )
        for name, value in pause.fields.items():
            if name not in _WITHOUT_FIELD:
                self._line(name, value)
        self._chain()
        legal = [
            "continue",
            "step",
            *(["set", "edit"] if pause.writable else []),
            *_legal(pause),
            "show",
            "history",
            "help",
        ]
        self._say(f"  {' · '.join(legal)}", "dim")

    def _line(self, name: str, value: Json) -> None:
        mark = "*" if name in self._pause.writable else " "
        self._say(f"  {mark}{name:<20} {shorten(_abbreviate(value), 90)}")

    def _show(self, name: str) -> None:
        fields = self._pause.fields
        if not name:
            self._show_event()
        elif name in fields:
            self._say(json.dumps(fields[name], indent=2, ensure_ascii=False))
        else:
            raise UsageError(
                f"{type(self._pause.event).__name__} has no field {name!r:.40}. Its fields: {', '.join(fields)}."
            )

    def _chain(self) -> None:
        places = [
            f"{'▸ ' if entry.here else ''}{entry.hook} ({entry.kind}, {entry.priority:g})"
            for entry in self._pause.chain
        ]
        self._say(f"   {'hooks':<20} {' → '.join(places)}", "dim")

    def _history(self, rest: str) -> None:
        count = int(rest) if rest.isdecimal() and int(rest) else _LAST
        history = self._pause.history
        first = max(0, len(history) - count)
        if first:
            self._say(f"  ({plural(first, 'message')} before)", "dim")
        for msg in history[first:]:
            self._message(msg)
        if not history:
            self._say("  (no messages stored yet)", "dim")

    def _message(self, msg: Msg) -> None:
        self._say(f"  {msg.role:<10}{message_text(msg)}".replace("\n", "\n" + " " * 12))


def _abbreviate(value: Json) -> str:
    match value:
        case {"role": str(role), "content": list(content)}:
            return f"{role}: {' '.join(_abbreviate(item) for item in content)}"
        case {"text": str(text), "type": "text"}:
            return text
        case [{"role": str()}, *_] if len(value) > 1:
            return f"{len(value)} messages, last: {_abbreviate(value[-1])}"
        case [{"name": str()}, *_]:
            return ", ".join(str(item.get("name")) if isinstance(item, dict) else "?" for item in value)
        case _:
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _otherwise(pause: Pause) -> str:
    return "it is denied" if pause.otherwise == "deny" and Deny in pause.verdicts else "it continues"
