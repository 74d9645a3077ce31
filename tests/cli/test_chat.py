"""`agentflow chat` in a real terminal (a pty), and in a pipe."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

pty = pytest.importorskip("pty")
if sys.platform == "win32":
    pytest.skip("needs a pty", allow_module_level=True)

LIMIT = 20.0
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")


class Terminal:
    """A process that believes in a person at a terminal."""

    def __init__(self, command: list[str], folder: str, environment: dict[str, str]) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execve(command[0], command, {**environment, "TERM": "xterm-256color", "COLUMNS": "80"})
        self.raw = ""
        self._seen = 0

    def wait_for(self, text: str) -> str:
        """Read until a text is on the screen behind what was waited for before; the text in between."""
        end = time.monotonic() + LIMIT
        while True:
            shown = ANSI.sub("", self.raw)
            place = shown.find(text, self._seen)
            if place >= 0:
                start, self._seen = self._seen, place + len(text)
                return shown[start : self._seen]
            ready, _, _ = select.select([self._fd], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} did not come within {LIMIT:g} s; on the screen: {shown!r}"
            try:
                piece = os.read(self._fd, 65536)
            except OSError:
                piece = b""
            assert piece, f"the program ended before {text!r} came; on the screen: {shown!r}"
            self.raw += piece.decode("utf-8", "replace")

    def type(self, text: str) -> None:
        """Press keys; "\\x03" is Ctrl-C, which the terminal turns into a signal."""
        os.write(self._fd, text.encode())

    def end(self, again: str = "") -> int:
        """Wait for the exit code; what is still printed is read.

        `again` is pressed each second until then: Python's `input()` misses a Ctrl-C that comes in the microseconds between
        its prompt and its wait for a key.
        """
        end = time.monotonic() + LIMIT
        while True:
            left = max(0.0, end - time.monotonic())
            ready, _, _ = select.select([self._fd], [], [], min(left, 1.0) if again else left)
            if not ready and again and left:
                self.type(again)
                continue
            assert ready, f"the program did not end within {LIMIT:g} s; it printed: {ANSI.sub('', self.raw)!r}"
            try:
                piece = os.read(self._fd, 65536)
            except OSError:  # Linux's way to say that the other side is gone
                break
            if not piece:
                break
            self.raw += piece.decode("utf-8", "replace")
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Leave nothing behind."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._fd)


@pytest.fixture
def terminal(shop: Any) -> Iterator[Any]:
    """Start `agentflow ...` in a terminal."""
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal(shop.command(*arguments), str(shop.folder), shop.environment))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_ctrl_c_interrupts_the_call_and_not_the_program(terminal: Any) -> None:
    """The call ends as interrupted, what was said is kept, and the next prompt works."""
    chat = terminal("chat", "shop:clerk")
    chat.wait_for("you> ")
    chat.type("hang\n")
    chat.wait_for("let me think")
    chat.type("\x03")
    chat.wait_for("── interrupted")
    chat.wait_for("you> ")
    chat.type("still there?\n")
    chat.wait_for("You said: still there?")
    chat.wait_for("── completed")
    chat.wait_for("you> ")
    chat.type("/history\n")
    history = chat.wait_for("4 messages in session 'clerk'")
    assert re.findall(r"^(user|assistant) +(.*)$", history, re.MULTILINE) == [
        ("user", "hang"),
        ("assistant", "let me think"),
        ("user", "still there?"),
        ("assistant", "You said: still there?"),
    ]
    chat.wait_for("you> ")
    chat.type("/exit\n")
    assert chat.end() == 0
    assert "Traceback" not in chat.raw


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["ctrl-c", "ctrl-d"])
def test_at_the_prompt_it_ends_the_program(terminal: Any, key: str) -> None:
    """Ctrl-C and Ctrl-D at the prompt are a clean goodbye."""
    chat = terminal("chat", "shop:clerk")
    chat.wait_for("you> ")
    chat.type(key)
    assert chat.end(again=key) == 0
    assert "Traceback" not in chat.raw


def test_a_suspended_call_asks_the_user(terminal: Any) -> None:
    """What a hook wants decided is asked at the terminal, and the call goes on with the answer."""
    chat = terminal("chat", "shop:careful")
    chat.wait_for("you> ")
    chat.type("add\n")
    chat.wait_for("may it run add(a=1, b=2)? (money) [y/N] ")
    chat.type("y\n")
    chat.wait_for("→ add(a=1, b=2)  approved")
    chat.wait_for("✓ add: 3")
    chat.wait_for("The sum is 3.")
    chat.wait_for("you> ")
    chat.type("add again\n")
    chat.wait_for("[y/N] ")
    chat.type("\n")
    chat.wait_for("The sum is Denied: the user said no.")
    chat.wait_for("you> ")
    chat.type("\x04")
    assert chat.end() == 0


def test_a_parked_call_does_not_go_on_unasked(terminal: Any) -> None:
    """A hook that parks every reply parks it once per Enter."""
    chat = terminal("chat", "shop:parked")
    chat.wait_for("you> ")
    chat.type("hi\n")
    chat.wait_for("the call waits (until tomorrow); Enter lets it go on ")
    chat.type("\n")
    chat.wait_for("── completed")
    chat.wait_for("you> ")
    chat.type("\x04")
    assert chat.end() == 0


def test_a_second_ctrl_c_ends_the_program(terminal: Any) -> None:
    """A tool that does not let itself be cancelled cannot hold the terminal."""
    chat = terminal("chat", "shop:clerk")
    chat.wait_for("you> ")
    chat.type("stubborn\n")
    chat.wait_for("stuck")
    chat.type("\x03")
    chat.wait_for("not yet")
    chat.type("\x03")
    assert chat.end() == 130
    assert "Traceback" not in chat.raw


def test_a_terminal_has_colours(terminal: Any) -> None:
    """On a terminal there are styles; the words of the model have none."""
    run = terminal("run", "shop:clerk", "add it")
    assert run.end() == 0
    assert "\x1b[32m" in run.raw
    assert "✓ add: 3" in ANSI.sub("", run.raw)


def test_a_conversation_in_a_pipe(shop: Any) -> None:
    """Lines in, plain text out: no prompts, no control codes; a failing call does not end it."""
    ran = shop("chat", "shop:clerk", "--session", "mine", stdin="one\ndown\n/what\n\n two \n/history\n")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    assert "you>" not in ran.stdout
    assert "✗ ModelError: the provider is down (second line)" in ran.stdout
    assert "There is no command '/what'." in ran.stdout
    assert "You said:  two" in ran.stdout
    assert "messages in session 'mine'" in ran.stdout
