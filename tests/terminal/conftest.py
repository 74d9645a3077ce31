"""Programs of a user's, at a terminal and in pipes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from nursery import Nursery
from ttys import COLUMNS, ROWS, Terminal, have_terminals

ROOT = Path(__file__).parent.parent.parent

COMMON = '''
import asyncio
from agentflow import Agent, Answer, Console, Deny, PreCall, PreReasoning, PreToolRound, Stop, ToolUseBlock, on, tool
from agentflow.testing import ScriptedModel


@tool(type="read")
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(type="read")
async def hang(name: str):
    """Say something, then hang."""
    yield f"{name} has begun"
    await asyncio.Event().wait()
'''


class Program:
    """A program of a user's.

    Attributes:
        folder: Where it runs.
        environment: What it sees.
    """

    def __init__(self, folder: Path, commands: Nursery) -> None:
        self.folder = folder
        self._commands = commands
        drop = ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES")
        self.environment = {name: value for name, value in os.environ.items() if name not in drop}
        self.environment.update(PYTHONPATH=str(ROOT), PYTHONUTF8="1")
        self.opened: list[Terminal] = []

    def command(self, text: str) -> list[str]:
        """Write the program; its name, and no arguments."""
        (self.folder / "program.py").write_text(COMMON + dedent(text), "utf-8")
        return ["program.py"]

    def piped(self, text: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run it to its end, in pipes."""
        return self._commands.run(self.command(text), self.environment, stdin, cwd=str(self.folder), ignored=[])

    def at_terminal(self, text: str, rows: int = ROWS, columns: int = COLUMNS, **environment: str) -> Terminal:
        """Start it at a terminal."""
        if not have_terminals:
            pytest.skip("needs a pty")
        seen = {**self.environment, **environment}
        self.opened.append(Terminal(self.command(text), self.folder, seen, rows, columns, self._commands))
        return self.opened[-1]


@pytest.fixture
def program(tmp_path: Path, commands: Nursery) -> Iterator[Program]:
    """A program in a folder of its own."""
    made = Program(tmp_path, commands)
    yield made
    for terminal in made.opened:
        terminal.close()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    """Nothing of the environment says how to draw."""
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    return lambda value: value
