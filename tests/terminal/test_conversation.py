"""`await agent.chat()`: a conversation from given lines, from a pipe, and with a person at a terminal."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from agentflow import Agent, MemoryStore, RunContext, ToolUseBlock, tool
from agentflow.errors import ModelError
from agentflow.plugins import Approval
from agentflow.testing import ScriptedModel
from agentflow.testing.faults import Crash, ProcessDied


async def given(*lines: str) -> AsyncIterator[str]:
    """Lines, one by one."""
    for line in lines:
        yield line


async def talked(agent: Agent, *lines: str, **options: Any) -> list[str]:
    """The printed lines, without durations and rules."""
    file = io.StringIO()
    await agent.chat(given(*lines), file=file, **options)
    text = re.sub(r"<1 ms|\d+ ms|\d+\.\d+ s", "TIME", file.getvalue())
    return [line.strip() for line in text.splitlines() if not line.startswith("── round")]


def echo(request: Any) -> str:
    return f"You said: {request.messages[-1].text}"


async def test_given_lines_are_shown_and_answered() -> None:
    """Input, answers, `/history`, an unknown command, a blank line, `/exit`: as if it were typed."""
    agent = Agent("a", ScriptedModel(echo))
    assert await talked(agent, "one", "", "/what", "/history", "/exit", "never") == [
        "you> one",
        "You said: one",
        "── completed · 1 round · TIME",
        "you>",
        "you> /what",
        (
            "Unknown command '/what'. /history shows the conversation, /exit or Ctrl-D ends it, Ctrl-C interrupts a "
            "call."
        ),
        "you> /history",
        "user      one",
        "assistant You said: one",
        "2 messages in session 'a'",
        "you> /exit",
    ]


async def test_a_session_deps_and_hooks_are_those_of_each_call() -> None:
    """They go to the call as with `agent.call`."""

    @tool(type="read")
    async def who(name: str, context: RunContext) -> str:
        """Who."""
        return f"{name} {context.deps(int)}"

    agent = Agent("a", ScriptedModel([ToolUseBlock("t", "who", {"name": "Ada"}), "So it is."]), tools=[who])
    seen: list[str] = []
    hooks = {"on_complete": lambda event: seen.append(event.session_id)}
    assert "✓ who: Ada 42  TIME" in await talked(agent, "Who?", session="s", deps=42, hooks=hooks)
    assert seen == ["s"]
    assert len(agent.session("s").messages) == 4


async def test_a_failing_call_is_one_line_and_the_conversation_goes_on() -> None:
    """Also if the error has several lines."""
    agent = Agent("a", ScriptedModel([ModelError("down\n(second line)"), "Up again."]))
    lines = await talked(agent, "one", "two")
    assert "✗ ModelError: down (second line)" in lines
    assert "Up again." in lines


async def test_a_call_that_waits_asks_for_the_decision() -> None:
    """Questions are answered from the same lines; if these end, the call still waits."""

    @tool(requires_approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        return f"paid {cents}"

    script = [[ToolUseBlock("p1", "pay", {"cents": 5}), ToolUseBlock("p2", "pay", {"cents": 7})], "Done."]
    agent = Agent("a", ScriptedModel(script * 2), tools=[pay])
    lines = await talked(agent, "Pay them.", "y", "n")
    assert "Run pay(cents=5)? [y/N] y" in lines
    assert [line for line in lines if line[:1] in "✓⊘"][-2:] == [
        "✓ pay: paid 5  TIME",
        "⊘ pay (denied): the user refused",
    ]
    await talked(agent, "And again.")
    assert len(agent.session().pending) == 1


async def test_an_approval_is_asked_for_with_its_reason() -> None:
    """The call is shown once, and the reason as text."""

    @tool(type="write")
    async def save(path: str) -> str:
        """Save."""
        return "saved"

    model = ScriptedModel([ToolUseBlock("t", "save", {"path": "x"}), "Done."])
    lines = await talked(Agent("a", model, tools=[save], hooks=[Approval(suspend=True)]), "go", "y")
    assert "Run save(path='x')? (no rule allows it) [y/N] y" in lines


async def test_a_call_that_a_crash_interrupted_is_continued_first() -> None:
    """Before a line is read: nothing else may be done with such a session."""
    store, model = MemoryStore(), ScriptedModel(["lost", "Hello.", "Again."])
    crash = Crash(4)
    with suppress(ProcessDied):
        await Agent("a", crash.model(model), store=crash.store(store)).call("hi", session="s")
    assert crash.dead
    lines = await talked(Agent("a", model, store=store), "more", session="s")
    assert lines[0] == "The last call was interrupted by a crash or a shutdown. It continues."
    assert [line for line in lines if line in ("lost", "Hello.", "you> more", "Again.")] == [
        "Hello.",
        "you> more",
        "Again.",
    ]


async def test_the_loop_goes_on_while_a_line_is_awaited() -> None:
    """A slow speaker delays no other one."""
    beats = 0

    async def slowly() -> AsyncIterator[str]:
        nonlocal beats
        for _ in range(5):
            await asyncio.sleep(0)
            beats += 1
        yield "hello"

    await Agent("a", ScriptedModel(echo)).chat(slowly(), file=io.StringIO())
    assert beats == 5


# ---- in a pipe, and at a terminal

TALK = """
    @tool(requires_approval=True)
    async def pay(cents: int) -> str:
        \"\"\"Pay.\"\"\"
        return f"paid {cents}"

    def brain(request):
        last = request.messages[-1]
        if last.role == "tool":
            return "It says: " + last.tool_results[0].text
        if last.text == "hang":
            return ["Let me think. ", ToolUseBlock("h", "hang", {"name": "thinking"})]
        if last.text == "pay":
            return ToolUseBlock("p", "pay", {"cents": 5})
        return f"{len(request.messages)}: {last.text}"

    async def main():
        await Agent("ada", ScriptedModel(brain), tools=[hang, pay]).chat()
        print("over")

    asyncio.run(main())
"""


def test_in_a_pipe(program: Any) -> None:
    """Lines in, plain text out, no prompt; the last line needs no end, and bytes that are no text end nothing."""
    ran = program.piped(TALK, stdin="one\r\ntwo\npay\ny\nthree")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    assert "you>" not in ran.stdout
    assert [line.strip() for line in ran.stdout.splitlines() if line[0] == " " and line[2] not in "→✓‖"] == [
        "1: one",
        "3: two",
        "It says: paid 5",
        "9: three",
    ]
    assert ran.stdout.endswith("over\n")


def test_a_flood_of_lines_is_read_as_it_is_worked_off(program: Any) -> None:
    """Lines wait in the pipe, not in memory; each is a call of its own."""
    ran = program.piped(TALK, stdin="x\n" * 60)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "119: x" in ran.stdout


def test_at_a_terminal(program: Any) -> None:
    """A greeting, typing with editing and a history of lines, an interrupt, an approval, a goodbye."""
    at = program.at_terminal(TALK)
    at.wait_for("Chatting with ")
    at.wait_for("you> ")
    at.type("hexp\x1b[D\x7fl\r")  # typed wrong, and mended with the keys
    at.wait_for("1: help")
    at.wait_for("you> ")
    at.type("\x1b[A\r")  # the line before
    at.wait_for("3: help")
    at.wait_for("you> ")
    at.type("hang\r")
    at.see("thinking has begun")
    at.type("\x03")
    at.wait_for("── interrupted · 1 round · 1 tool call")
    at.wait_for("you> ")
    at.type("pay\r")
    at.wait_for("Run pay(cents=5)? [y/N] ")
    at.type("y\r")
    at.wait_for("It says: paid 5")
    at.wait_for("you> ")
    at.type("\x04")
    at.wait_for("over")
    assert at.end() == 0
    assert "Traceback" not in at.shown
    assert not at.screen.cursor.hidden


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["ctrl-c", "ctrl-d"])
def test_at_the_prompt_it_ends_the_conversation(program: Any, key: str) -> None:
    """And not the program."""
    at = program.at_terminal(TALK)
    at.wait_for("you> ")
    at.type(key)
    at.wait_for("over")
    assert at.end() == 0


def test_resizing_at_the_prompt(program: Any) -> None:
    """The line that is being typed stays."""
    at = program.at_terminal(TALK, rows=30, columns=80)
    at.wait_for("you> ")
    at.type("a line that is ")
    at.see("a line that is")
    at.resize(30, 40)
    at.type("typed\r")
    at.wait_for("1: a line that is typed")
    at.wait_for("you> ")
    at.type("\x04")
    assert at.end() == 0


def test_standard_output_may_be_a_file(program: Any) -> None:
    """If a person types and the output goes into a file, the prompt is on standard error."""
    at = program.at_terminal(
        """
        import sys
        sys.stdout = open("out.txt", "w", encoding="utf-8")
        asyncio.run(Agent("ada", ScriptedModel(["Hello."])).chat())
        """
    )
    at.wait_for("you> ")
    at.type("hi\r")
    at.wait_for("you> ")
    at.type("\x04")
    assert at.end() == 0
    assert "Hello." not in at.shown
    written = (program.folder / "out.txt").read_text("utf-8")
    assert "  Hello.\n" in written
    assert "\x1b" not in written
