"""The command line as a subprocess, with a module of agents in its folder."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

try:
    import pty
except ImportError:  # Windows
    pty = None

ROOT = Path(__file__).parent.parent.parent

LIMIT = 20.0
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")

SHOP = '''
import asyncio

from agentflow import Agent, Answer, Deny, PostReasoning, PreActing, PreCall, Suspend, ToolUseBlock, on, tool
from agentflow.errors import ModelError
from agentflow.testing import ScriptedModel


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def stubborn() -> str:
    """Does not let itself be cancelled, once."""
    print("stuck", flush=True)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        print("not yet")
        await asyncio.Event().wait()


def brain(request):
    last = request.messages[-1]
    if last.role == "tool":
        return ["The sum ", "is ", last.tool_results[0].text, "."]
    if last.text == "hang":
        return ["let me think", lambda: asyncio.Event().wait(), "never said"]
    if last.text == "down":
        return ModelError("the provider is down\\n(second line)")
    if last.text == "stubborn":
        return ToolUseBlock("s1", "stubborn")
    if "add" in last.text:
        return [f"({last.text}) ", ToolUseBlock("t1", "add", {"a": 1, "b": 2})]
    return ["You said: ", last.text]


@on(PreActing)
def ask_first(event):
    return Suspend("money")


@on(PreCall, guard=True, scope="tree", tags=["night"], on_failure="deny")
def closed(event):
    return Deny("the shop is closed")


@on(PreCall, priority=7)
def broken(event):
    raise ZeroDivisionError("by hand")


@on(PostReasoning)
def park(event):
    return Suspend("until tomorrow")


@on(PreActing, priority=50)
def cached(event):
    return Answer(3)


@on(PostReasoning)
def polite(event):
    reply = event.reasoning_result
    event.reasoning_result = type(reply).assistant(reply.text + ", please")


def agent_with(*hooks, **more):
    return Agent("clerk", ScriptedModel(brain), tools=[add, stubborn], hooks=hooks, **more)


clerk = agent_with()
careful = agent_with(ask_first)
shut = agent_with(closed)
faulty = agent_with(broken)
parked = agent_with(park)
quick = agent_with(cached)
friendly = agent_with(polite)
bare = agent_with(default_hooks=())
keyless = Agent("keyless", "openai/gpt-4o-mini")
evil = Agent("evil", ScriptedModel(lambda request: "red \\x1b[31m alert\\x07"))
helper = Agent("helper", ScriptedModel(lambda request: "from below"), description="Helps.")
boss = Agent("boss", ScriptedModel([ToolUseBlock("h1", "helper", {"message": "help"}), "from above"]), tools=[helper])


class shelf:
    clerk = clerk


number = 3
'''


KEPT = """
from shop import Agent, ScriptedModel, ToolUseBlock, add, ask_first
from agentflow.state.sql import SqlStore


def talk(request):
    return "Over." if request.messages[-1].role == "tool" else ToolUseBlock("t1", "add", {"a": 1, "b": 2})


keeper = Agent("keeper", ScriptedModel(talk), tools=[add], hooks=[ask_first], store=SqlStore("sqlite:///shop.db"))
"""


class Shop:
    """Runs `agentflow ...` in a folder that holds `shop.py`.

    Attributes:
        folder: The folder.
        environment: What the process sees.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            name: value for name, value in os.environ.items() if not name.endswith("_API_KEY") and name != "FORCE_COLOR"
        }
        self.environment.update(PYTHONPATH=str(ROOT), PYTHONUTF8="1")
        (folder / "shop.py").write_text(SHOP, "utf-8")
        (folder / "kept.py").write_text(KEPT, "utf-8")
        (folder / "torn.py").write_text("x = 1\nclerk = (", "utf-8")
        (folder / "lacking.py").write_text("import no_such_thing_here\n", "utf-8")
        (folder / "leaving.py").write_text("raise SystemExit('bye')\n", "utf-8")

    def command(self, *arguments: str) -> list[str]:
        """The command as the system starts it."""
        return [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-m", "agentflow", *arguments]

    def __call__(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run it to its end, in pipes."""
        return subprocess.run(
            self.command(*arguments),
            cwd=self.folder,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=60,
            check=False,
        )


@pytest.fixture
def shop(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`agentflow` in a folder of its own."""
    return Shop(tmp_path)


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
    if pty is None:
        pytest.skip("needs a pty")
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal(shop.command(*arguments), str(shop.folder), shop.environment))
        return opened[-1]

    yield start
    for one in opened:
        one.close()
