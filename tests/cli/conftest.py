"""The command line as a subprocess, with a module of agents in its folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nursery import Nursery
from ttys import Terminal, have_terminals

ROOT = Path(__file__).parent.parent.parent

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

    def __init__(self, folder: Path, commands: Nursery) -> None:
        self.folder = folder
        self._commands = commands
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
        """Run it to its end, with its streams in files."""
        start, cwd = ["agentflow", *arguments], str(self.folder)
        return self._commands.run(start, self.environment, stdin, cwd=cwd, ignored=["DeprecationWarning"])


@pytest.fixture
def shop(tmp_path: Path, commands: Nursery) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`agentflow` in a folder of its own."""
    return Shop(tmp_path, commands)


@pytest.fixture
def terminal(shop: Any, commands: Nursery) -> Iterator[Any]:
    """Start `agentflow ...` in a terminal."""
    if not have_terminals:
        pytest.skip("needs a pty")
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        given = ["agentflow", *arguments], shop.folder, shop.environment
        opened.append(Terminal(*given, nursery=commands, ignored=["DeprecationWarning"]))
        return opened[-1]

    yield start
    for one in opened:
        one.close()
