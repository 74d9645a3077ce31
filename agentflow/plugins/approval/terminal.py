"""`TerminalAsker`: asks for approvals at the terminal of the program.

Rules:

1. One question at a time, in order of arrival, over all agents, calls, event loops and askers.
2. A closed input, an input that is not a terminal, and an error while reading mean no. Ctrl-C cancels the call, which
   withdraws its question.
3. A model's text is shown with control characters escaped: it cannot move the cursor, or imitate a question.
"""

from __future__ import annotations

import asyncio
import json
import select
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TextIO, cast

from agentflow._support.locks import FairLock
from agentflow._support.shown import printable
from agentflow.plugins.approval.hook import ApprovalDecision, ApprovalRequest, Choice

try:
    import termios
except ImportError:  # Windows
    termios = None

__all__ = ["Questions", "TerminalAsker", "at_terminal", "questions"]

_KEYS: dict[str, Choice] = {"y": "once", "s": "session", "a": "always", "n": "no"}
_MAX_LENGTH = 20_000
_POLL_INTERVAL = 0.1
"""Seconds between two checks whether the question is still open."""
_MAX_EFFECT_WAIT = 1.0
"""The maximum number of seconds that the next question waits until the answer to this one takes effect."""


class Questions:
    """Tracks whether a question is open at the terminal, so that other output waits.

    Attributes:
        pending: The number of open questions.
        turn: A lock held for one question, in order of arrival.
        terminal: A lock to hold from checking `pending` until the output is written.
    """

    def __init__(self) -> None:
        self.pending = 0
        self.turn = FairLock()
        self.terminal = threading.RLock()  # reentrant: a watcher may write, which acquires the lock again
        self._watchers: list[Callable[[], object]] = []

    def watch(self, on_begin: Callable[[], object]) -> Callable[[], None]:
        """Call a function before each question, in the asker's thread; return a function that unregisters it."""
        with self.terminal:
            self._watchers.append(on_begin)

        def unwatch() -> None:
            with self.terminal:
                if on_begin in self._watchers:
                    self._watchers.remove(on_begin)

        return unwatch

    @contextmanager
    def open(self) -> Generator[None]:
        """Register an open question until the end of the block."""
        with self.terminal:
            self.pending += 1
        try:
            with self.terminal:
                for on_begin in tuple(self._watchers):
                    on_begin()
            yield
        finally:
            with self.terminal:
                self.pending -= 1


questions = Questions()
"""The questions of this process, which has one terminal."""


class TerminalAsker:
    """Asks on standard error and reads a line from standard input, in a thread of its own.

    Args:
        read: Reads one line, `""` at the end of the input; `sys.stdin.readline` by default.
        write: The stream for the question; `sys.stderr` by default.
        interactive: Whether a person can answer; by default, whether standard input is a terminal.

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

    async def __call__(self, request: ApprovalRequest) -> ApprovalDecision:
        """Ask, and wait for the answer without blocking the event loop.

        If the call is cancelled, its question is withdrawn. A custom `read` that still waits gets the next line, which is
        discarded.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[ApprovalDecision] = loop.create_future()
        withdrawn, received = threading.Event(), threading.Event()

        def ask() -> None:
            try:
                decision = ApprovalDecision("once") if request.settled() else self._ask(request, withdrawn)
                with suppress(RuntimeError):  # the loop is closed, and the call has ended
                    loop.call_soon_threadsafe(_settle, answer, decision)
                    received.wait(_MAX_EFFECT_WAIT)  # the next question must see the effect of this answer
            finally:
                questions.turn.release()

        await questions.turn.acquire()
        # A daemon thread: waiting for a line must not keep the program from exiting.
        threading.Thread(target=ask, name="agentflow: approval", daemon=True).start()
        try:
            return await answer
        finally:
            withdrawn.set()
            loop.call_soon(received.set)  # runs after the caller has stored this answer
            if not answer.done() or answer.cancelled():
                self._say("\n  (withdrawn: the call was cancelled)")

    def _ask(self, request: ApprovalRequest, withdrawn: threading.Event) -> ApprovalDecision:
        try:
            if not self._can_ask():
                return ApprovalDecision(
                    "no", f"{request.tool_use.name} needs approval, and there is no terminal to ask at"
                )
            with questions.open():
                return self._dialogue(request, withdrawn)
        except (Exception, KeyboardInterrupt) as error:  # rule 2; a custom `read` may raise either
            return ApprovalDecision(
                "no", f"{request.tool_use.name} was not approved ({type(error).__name__} at the terminal)"
            )

    def _can_ask(self) -> bool:
        if self._interactive is not None:
            return self._interactive
        return self._read is not None or at_terminal()

    def _dialogue(self, request: ApprovalRequest, withdrawn: threading.Event) -> ApprovalDecision:
        if self._read is None and termios is not None:  # discard input typed before the question
            termios.tcflush(sys.stdin, termios.TCIFLUSH)
        self._say(question(request))
        offered = [key for key, choice in _KEYS.items() if choice in request.choices]
        while True:
            self._say(f"  {_legend(request, offered)}: ", end="")
            line = self._read() if self._read is not None else _line_of_terminal(withdrawn)
            if withdrawn.is_set():
                return ApprovalDecision("no")
            if not line:
                return ApprovalDecision("no", f"{request.tool_use.name} was not approved (the input is closed)")
            key, _, reason = line.strip().partition(" ")
            choice = _choice(key.lower(), offered)
            if choice == "no":
                return ApprovalDecision("no", reason.strip())
            if choice is not None and not reason:  # "y but not there" is not an approval
                return ApprovalDecision(choice)
            self._say("  Please enter one of the answers above.")

    def _say(self, text: str, end: str = "\n") -> None:
        write = self._write or sys.stderr
        write.write(text + end)
        write.flush()


def at_terminal() -> bool:
    """Return whether standard input is a terminal."""
    stdin = cast("TextIO | None", sys.stdin)  # standard input is None in a program without a console
    return stdin is not None and not stdin.closed and stdin.isatty()


def _choice(key: str, offered: list[str]) -> Choice | None:
    for letter in offered:
        choice = _KEYS[letter]
        if key in (letter, choice) or (choice == "once" and key == "yes"):
            return choice
    return None


def _line_of_terminal(withdrawn: threading.Event) -> str:
    """Read a line of standard input; empty once the question is withdrawn."""
    if termios is None:  # on Windows, `select` takes only sockets
        return sys.stdin.readline()
    # Polls instead of blocking in `readline`, so that a withdrawn question does not consume a line.
    while not select.select([sys.stdin], [], [], _POLL_INTERVAL)[0]:
        if withdrawn.is_set():
            return ""
    return sys.stdin.readline()


def _settle(answer: asyncio.Future[ApprovalDecision], decision: ApprovalDecision) -> None:
    # The call can be cancelled before the thread's answer arrives.
    if not answer.done():
        answer.set_result(decision)


def _legend(request: ApprovalRequest, offered: list[str]) -> str:
    scope = exactly(request.scope)
    legends = {
        "y": "y = once",
        "s": f"s = {scope} in this session",
        "a": f"a = {scope} always",
        "n": "n [reason] = no",
    }
    return ", ".join(legends[key] for key in offered)


def exactly(text: str) -> str:
    """Return the exact text, with control characters escaped; the middle of a very long text is left out."""
    if len(text) > _MAX_LENGTH:
        half = _MAX_LENGTH // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"
    return printable(text, exact=True)


def question(request: ApprovalRequest) -> str:
    """Return the call as text: the tool, then each argument; multi-line values are indented below their name."""
    use = request.tool_use
    lines = [f"\n{exactly(request.agent)} wants to run {exactly(use.name)} ({exactly(request.reason)})"]
    for name, value in use.input.items():
        text = exactly(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
        if "\n" in text:
            lines.append(f"  {exactly(name)}:")
            lines.extend(f"    | {row}" for row in text.split("\n"))
        else:
            lines.append(f"  {exactly(name)}: {text}")
    return "\n".join(lines)
