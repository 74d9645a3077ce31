"""The debugger with a person at a real terminal: keys, Ctrl-C, parallel calls, limits, and `agentflow chat --step`."""

from __future__ import annotations

import io
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agentflow import Agent, PreActing, ToolUseBlock
from agentflow.plugins import Breakpoint
from agentflow.terminal import TerminalDebugger
from agentflow.testing import ScriptedModel

if sys.platform == "win32":
    pytest.skip("needs a pty", allow_module_level=True)

DELETING = """
    from agentflow import PreActing, PostActing
    from agentflow.plugins import Breakpoint
    from agentflow.plugins import Approval, TerminalAsker

    @tool
    async def delete_file(path: str) -> str:
        \"\"\"Delete.\"\"\"
        return f"deleted {path}"

    def brain(request):
        last = request.messages[-1]
        if last.role == "tool":
            return "It says: " + ", ".join(result.text for result in last.tool_results)
        return ToolUseBlock("t", "delete_file", {"path": "/a"})

    agent = Agent("ada", ScriptedModel(brain), tools=[delete_file, add], hooks=[Breakpoint(PreActing)])
"""


def test_a_person_edits_steps_and_goes_on(program: Any) -> None:
    """The prompt has editing, Tab and a history; the lines of running work are not drawn over it."""
    at = program.at_terminal(DELETING + "    asyncio.run(agent.chat())\n")
    at.wait_for("you> ")
    at.type("tidy\r")
    at.wait_for("‖ PreActing  ada · round 1")
    at.wait_for("debug> ")
    at.type("edit tool_u\t")
    at.see("edit tool_use")
    at.type("\r")
    at.wait_for('tool_use = {"id": "t", "name": "delete_file", "input": {"path": "/a"}}')
    at.type("\x1b[D\x1b[D\x1b[D\x7fbc\r")
    at.wait_for('"input": {"path": "/bc"}')
    at.wait_for("debug> ")
    at.type("s\r")
    at.wait_for("‖ PostActing")
    at.wait_for("debug> ")
    at.type('set tool_result.content "gone"\r')
    at.wait_for("*tool_result")
    at.wait_for("debug> ")
    at.type("c\r")
    at.wait_for("It says: gone")
    at.wait_for("you> ")
    at.type("\x04")
    assert at.end() == 0
    assert "Traceback" not in at.shown
    assert not at.screen.cursor.hidden


def test_ctrl_c_interrupts_the_call(program: Any) -> None:
    """And not the conversation; the terminal is as it was."""
    at = program.at_terminal(DELETING + "    asyncio.run(agent.chat())\n    print('over')\n")
    at.wait_for("you> ")
    at.type("tidy\r")
    at.wait_for("debug> ")
    at.type("half a li\x03")
    at.wait_for("── interrupted")
    at.wait_for("you> ")
    at.type("again\r")
    at.wait_for("debug> ")
    at.type("d no\r")
    at.wait_for("It says: Denied: no")
    at.wait_for("you> ")
    at.type("\x04")
    at.wait_for("over")
    assert at.end() == 0
    assert "Traceback" not in at.shown


def test_ctrl_d_is_nobody(program: Any) -> None:
    """The run continues as `otherwise` says."""
    text = DELETING.replace("Breakpoint(PreActing)", "Breakpoint(PreActing, otherwise='deny')")
    at = program.at_terminal(text + "    print(asyncio.run(agent.call('tidy')).text)\n")
    at.wait_for("debug> ")
    at.type("\x04")
    at.wait_for("It says: Denied: it was not approved in time")
    assert at.end() == 0


def test_a_limit_takes_the_prompt_back(program: Any) -> None:
    """A half-typed line is dropped, and the terminal is tidy."""
    text = DELETING.replace("Breakpoint(PreActing)", "Breakpoint(PreActing, limit=0.3)")
    at = program.at_terminal(text + "    print(asyncio.run(agent.call('tidy')).text)\n")
    at.wait_for("it continues in")
    at.wait_for("no decision in time; it continued")
    at.wait_for("It says: deleted /a")
    assert at.end() == 0
    assert not at.screen.cursor.hidden


def test_parallel_calls_and_an_approval_take_turns(program: Any) -> None:
    """One question at a time: a second pause and an approval wait until the first is decided."""
    at = program.at_terminal(
        DELETING
        + """
    uses = [ToolUseBlock(f"t{n}", "add", {"a": n, "b": 0}) for n in (1, 2)]
    agent = Agent(
        "ada",
        ScriptedModel([uses, lambda request: ", ".join(r.text for r in request.messages[-1].tool_results)]),
        tools=[add],
        hooks=[Breakpoint(PreActing), Approval(ask=TerminalAsker())],
    )
    print("says", asyncio.run(agent.call("go")).text)
"""
    )
    at.wait_for("‖ PreActing")
    at.wait_for("debug> ")
    at.type("c\r")
    at.wait_for("‖ PreActing")
    at.wait_for("debug> ")
    at.type("d no\r")
    at.wait_for("y = once")
    at.type("y\n")
    at.wait_for("says 1, Denied: no")
    assert at.end() == 0


async def test_a_long_line_is_left_to_the_terminal() -> None:
    """Values are not broken up by us: what is copied from the screen is the original text."""

    async def commands() -> AsyncIterator[str]:
        for command in ("edit approval", "show tool_use", "continue"):
            yield command

    file, text = io.StringIO(), "word " * 60 + "end"
    point = Breakpoint(PreActing, ask=TerminalDebugger(commands(), file=file))
    model = ScriptedModel([ToolUseBlock("t1", "look", {"at": text}), "Done."])
    await Agent("a", model, hooks=[point]).call("Go")
    assert text in file.getvalue()
    assert "Usage: edit FIELD. Writable fields: tool_use." in file.getvalue()


def test_without_a_terminal_nobody_is_asked(program: Any) -> None:
    """Input piped into a program is the program's."""
    text = DELETING.replace("Breakpoint(PreActing)", "Breakpoint(PreActing, otherwise='deny')")
    ran = program.piped(text + "    print(asyncio.run(agent.call('tidy')).text)\n", stdin="c\nc\n")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "It says: Denied: it was not approved in time\n", "")


def test_chat_step(program: Any) -> None:
    """`agentflow chat --step` pauses each call at its first event; in a pipe it says that it cannot."""
    (program.folder / "shop.py").write_text(
        "from agentflow import Agent\nfrom agentflow.testing import ScriptedModel\n"
        "clerk = Agent('clerk', ScriptedModel(lambda request: f'You said: {request.messages[-1].text}'))\n",
        "utf-8",
    )
    start = "\nimport sys\nfrom agentflow.terminal.cli.main import main\nmain(['chat', 'shop:clerk', '--step'])\n"
    ran = program.piped(start, stdin="hi\n")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "--step needs a terminal as standard input, to ask at each pause." in ran.stderr
    at = program.at_terminal(start)
    for _ in range(2):
        at.wait_for("you> ")
        at.type("hi\r")
        at.wait_for("‖ PreCall  clerk")
        at.wait_for("debug> ")
        at.type("s\r")
        at.wait_for("‖ PreReasoning")
        at.wait_for("debug> ")
        at.type("c\r")
        at.wait_for("You said: hi")
    at.wait_for("you> ")
    at.type("\x04")
    assert at.end() == 0
