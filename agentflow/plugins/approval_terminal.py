"""`TerminalAsker`: asks for approvals at the terminal that the program was started in.

Rules:

1. One question at a time, in order of arrival, however many agents, calls, loops and askers ask.
2. A closed input, an input that is no terminal, and Ctrl-C mean no.
3. What a model wrote is shown with its control characters escaped: it cannot move the cursor, or draw a question of its own.
"""

from __future__ import annotations

import asyncio
import json
import select
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TextIO

from agentflow.ground.locks import FairLock
from agentflow.ground.shown import printable
from agentflow.plugins.approval import ApprovalRequest, Choice, Decision

try:
    import termios
except ImportError:  # Windows
    termios = None

__all__ = ["Questions", "TerminalAsker", "questions"]

_KEYS: dict[str, Choice] = {"y": "once", "s": "session", "a": "always", "n": "no"}
_LONGEST = 20_000
_LOOK = 0.1
"""Seconds between looks whether the question still stands."""
_TAKEN = 1.0
"""Seconds that the next question waits at most for the answer to this one to count."""


class Questions:
    """Whether a question stands at the terminal: what draws there meanwhile would draw over it, and others wait.

    Attributes:
        stand: How many do.
        turn: Whose turn it is to ask, in order of arrival; held for one question.
    """

    def __init__(self) -> None:
        self.stand = 0
        self.turn = FairLock()
        self._lock = threading.Lock()
        self._watchers: list[Callable[[], object]] = []

    def watch(self, begins: Callable[[], object]) -> Callable[[], None]:
        """Have a function called before a question is shown, in the asker's thread; what is returned ends that."""
        with self._lock:
            self._watchers.append(begins)

        def unwatch() -> None:
            with self._lock:
                if begins in self._watchers:
                    self._watchers.remove(begins)

        return unwatch

    @contextmanager
    def asked(self) -> Generator[None]:
        """For the time of one question."""
        with self._lock:
            self.stand += 1
            watchers = tuple(self._watchers)
        try:
            for begins in watchers:
                begins()
            yield
        finally:
            with self._lock:
                self.stand -= 1


questions = Questions()
"""Those of this process; it has one terminal."""


class TerminalAsker:
    """Asks on standard error and reads a line from standard input, in a thread of its own.

    Args:
        read: Reads one line, `""` at the end of the input; `sys.stdin.readline` by default.
        write: Where the question goes; `sys.stderr` by default.
        interactive: Whether somebody can answer; by default, whether standard input is a terminal.

    Example:
        >>> asker = TerminalAsker(read=lambda: "n too risky\\n", interactive=True)
        >>> request = ApprovalRequest("a", ToolUseBlock("t1", "pay", {"cents": 5}), "s", "no rule allows it", "pay")
        >>> (await asker(request)).reason
        'too risky'
    """

    def __init__(
        self, *, read: Callable[[], str] | None = None, write: TextIO | None = None, interactive: bool | None = None
    ) -> None:
        self._read = read
        self._write = write
        self._interactive = interactive

    async def __call__(self, request: ApprovalRequest) -> Decision:
        """Ask, and wait for the answer; the loop goes on meanwhile.

        A question whose call is cancelled is taken back: the line that its reader may still get is dropped.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Decision] = loop.create_future()
        gone, taken = threading.Event(), threading.Event()

        def ask() -> None:
            try:
                decision = Decision("once") if request.settled() else self._asked(request, gone)
                with suppress(RuntimeError):  # the loop has gone, and the call with it
                    loop.call_soon_threadsafe(_settle, answer, decision)
                    taken.wait(_TAKEN)  # the next question must see what this answer has settled
            finally:
                questions.turn.release()

        await questions.turn.acquire()
        # A daemon: a reader that waits for a line must not keep the program from ending.
        threading.Thread(target=ask, name="agentflow: approval", daemon=True).start()
        try:
            return await answer
        finally:
            gone.set()
            loop.call_soon(taken.set)
            if not answer.done() or answer.cancelled():
                self._say("\n  (taken back: the call was cancelled)")

    def _asked(self, request: ApprovalRequest, gone: threading.Event) -> Decision:
        try:
            if not self._can_ask():
                return Decision("no", f"{request.tool_use.name} needs an approval, and there is no terminal to ask at")
            with questions.asked():
                return self._dialogue(request, gone)
        except (Exception, KeyboardInterrupt) as error:
            return Decision("no", f"{request.tool_use.name} was not approved ({type(error).__name__} at the terminal)")

    def _can_ask(self) -> bool:
        if self._interactive is not None:
            return self._interactive
        return self._read is not None or (sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty())  # pyright: ignore[reportUnnecessaryComparison] - None without a console

    def _dialogue(self, request: ApprovalRequest, gone: threading.Event) -> Decision:
        if self._read is None and termios is not None:  # what was typed before the question is no answer
            termios.tcflush(sys.stdin, termios.TCIFLUSH)
        self._say(question(request))
        offered = [key for key, choice in _KEYS.items() if choice in request.choices]
        while True:
            self._say(f"  {_legend(request, offered)}: ", end="")
            line = self._read() if self._read is not None else _line_of_terminal(gone)
            if gone.is_set():
                return Decision("no")
            if not line:
                return Decision("no", f"{request.tool_use.name} was not approved (the input is closed)")
            key, _, reason = line.strip().partition(" ")
            choice = _choice(key.lower(), offered)
            if choice == "no":
                return Decision("no", reason.strip())
            if choice is not None and not reason:
                return Decision(choice)
            self._say("  That is none of the answers.")

    def _say(self, text: str, end: str = "\n") -> None:
        write = self._write or sys.stderr
        write.write(text + end)
        write.flush()


def _choice(key: str, offered: list[str]) -> Choice | None:
    for letter in offered:
        choice = _KEYS[letter]
        if key in (letter, choice) or (choice == "once" and key == "yes"):
            return choice
    return None


def _line_of_terminal(gone: threading.Event) -> str:
    """A line of standard input; empty once the question is taken back."""
    if termios is None:
        return sys.stdin.readline()
    while not select.select([sys.stdin], [], [], _LOOK)[0]:  # so that a question taken back eats no line
        if gone.is_set():
            return ""
    return sys.stdin.readline()


def _settle(answer: asyncio.Future[Decision], decision: Decision) -> None:
    if not answer.done():
        answer.set_result(decision)


def _legend(request: ApprovalRequest, offered: list[str]) -> str:
    scope = exactly(request.scope)
    words = {
        "y": "y = once",
        "s": f"s = {scope} in this session",
        "a": f"a = {scope} always",
        "n": "n [reason] = no",
    }
    return ", ".join(words[key] for key in offered)


def exactly(text: str) -> str:
    """The text as it is, character by character; cut in the middle where it is very long."""
    if len(text) > _LONGEST:
        half = _LONGEST // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"
    return printable(text, exact=True)


def question(request: ApprovalRequest) -> str:
    """The call as text: the tool, then each argument; what is longer than a line stands indented below its name."""
    use = request.tool_use
    lines = [f"\n{exactly(request.agent)} wants to run {exactly(use.name)} ({exactly(request.why)})"]
    for name, value in use.input.items():
        text = exactly(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
        if "\n" in text:
            lines.append(f"  {exactly(name)}:")
            lines.extend(f"    | {row}" for row in text.split("\n"))
        else:
            lines.append(f"  {exactly(name)}: {text}")
    return "\n".join(lines)
