"""What models, tools, hooks and providers say cannot steer the terminal: no command prints a control character of theirs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agentflow._support.shown import controls

MODULE = r'''
import asyncio
import os
import threading
import time

from agentflow import Agent, Deny, Error, PostReasoning, PreActing, PreCall, Suspend, ToolUseBlock, on, tool
from agentflow.errors import ModelError
from agentflow import Hook
from agentflow.errors import AgentFlowError
from agentflow.plugins.approval import Approval
from agentflow.plugins.approval.terminal import TerminalAsker
from agentflow.testing import ScriptedModel

E = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b3J\r\x7f\u202e"


@tool
async def show(x: str):
    """Shows."""
    yield "piece" + E
    yield "result" + E


@tool
async def fails(x: str) -> str:
    """Fails."""
    raise RuntimeError("failure" + E)


@tool(requires_approval=True)
async def pay(x: str) -> str:
    """Pays."""
    return "paid" + x


@tool(external=True)
async def ask(x: str) -> str:
    """Asks."""


@on(PostReasoning)
def edits(event):
    event.reasoning_result = type(event.reasoning_result).assistant(event.reasoning_result.text + "edited" + E)


@on(PreCall)
def denies(event):
    return Deny("denied" + E)


@on(PreActing)
def vetoes(event):
    return Deny("vetoed" + E)


@on(Error)
def breaks(event):
    raise RuntimeError("broken hook" + E)


class Named(Hook):
    name = "named" + E

    def on_event(self, event):
        return event


def use(name, n=1):
    return ToolUseBlock(f"t{n}", name, {"x": "input" + E})


def script(*calls):
    return ScriptedModel([["said" + E, *calls], "bye" + E, "bye" + E], name="model" + E)


tools = [show, fails, pay, ask]
malformed = ToolUseBlock.from_json("t4", "show", '{"x' + E)
worst = Agent("worst" + E, script(use("show"), use("fails", 2), use("unknown" + E, 3), malformed),
              tools=tools, hooks=[breaks, Named()])
editing = Agent("a", script(), hooks=[edits])
denying = Agent("a", script(), hooks=[denies])
vetoing = Agent("a", script(use("show")), tools=tools, hooks=[vetoes])
failing = Agent("a", ScriptedModel([ModelError("no model" + E)]))
raising = Agent("a", ScriptedModel([RuntimeError("no program" + E)] * 3))
waiting = Agent("a", script(use("pay")), tools=tools)
outside = Agent("a", script(use("ask")), tools=tools)


async def parked(event):
    return Suspend("until" + E)


parking = Agent("a", script(), hooks=[on(PostReasoning)(parked)])


class Slow(TerminalAsker):
    def _say(self, text, end="\n"):
        super()._say(text, end)
        if end == "":
            threading.Thread(target=later, daemon=True).start()


def later():
    while not os.path.exists("typed"):
        time.sleep(0.02)
    time.sleep(0.5)
    os.write(2, b"half a second later")


asking = Agent("a", script(use("show")), tools=tools, hooks=[Approval(ask=Slow())])
'''

COMMANDS = [
    *[
        ("run", f"evil:{name}", "hi", *option)
        for name in ("worst", "editing")
        for option in ((), ("--events",), ("-q",))
    ],
    *[("run", f"evil:{name}", "hi") for name in ("denying", "vetoing", "failing", "raising", "waiting", "parking")],
    ("hooks", "evil:worst"),
    ("chat", "evil:worst"),
    ("chat", "evil:waiting"),
    ("chat", "evil:outside"),
    ("chat", "evil:raising"),
]


@pytest.fixture
def evil(shop: Any) -> Any:
    """`agentflow` in a folder with a module of agents that print what they can."""
    (Path(shop.folder) / "evil.py").write_text(MODULE, "utf-8")
    return shop


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_prints_a_control_character(evil: Any, command: tuple[str, ...]) -> None:
    """In a pipe there is none at all, on either stream; what was there is visible as an escape."""
    ran = evil(*command, stdin="hi\ny\n/history\n/exit\n" if command[0] == "chat" else "")
    shown = ran.stdout + ran.stderr
    assert controls().search(shown) is None, shown
    assert "\\x1b]52;c;ZXZpbA==" in shown
    assert shown.count("Traceback") == shown.count("raise RuntimeError")  # of the tool that fails, as a warning


def test_json_has_none_either(evil: Any) -> None:
    """The lines of `--json` are JSON, and safe to look at."""
    ran = evil("run", "evil:worst", "hi", "--json")
    assert controls().search(ran.stdout) is None
    assert "\\u001b]52;c;ZXZpbA==\\u0007" in ran.stdout


@pytest.mark.parametrize("command", [("run", "evil:worst", "hi"), ("run", "evil:worst", "hi", "--events")])
def test_on_a_terminal(evil: Any, terminal: Any, command: tuple[str, ...]) -> None:
    """Where colours and the spinner are drawn, that is all that is drawn."""
    screen = terminal(*command)
    assert screen.end() == 0
    left = re.sub(r"\x1b\[(?:[0-9;]*m|\?25[lh]|1A|2K)|\r", "", screen.raw)  # colours, the cursor, the spinner's line
    assert controls().search(left) is None, left


def test_nothing_is_drawn_over_a_question(evil: Any, terminal: Any) -> None:
    """During a question at the terminal the spinner pauses: the person's input stays visible."""
    screen = terminal("run", "evil:asking", "hi")
    screen.wait_for("n [reason] = no: ")
    screen.type("n bec")
    screen.wait_for("n bec")
    (Path(evil.folder) / "typed").touch()
    drawn = screen.wait_for("half a second later")
    assert drawn == "half a second later"
    screen.type("ause\n")
    screen.wait_for("denied by")
    assert screen.end() == 0
