"""`agentflow chat` in a real terminal (a pty), and in a pipe."""

from __future__ import annotations

import re
from typing import Any

import pytest


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
    """A hook's question is asked at the terminal, and the call continues with the answer."""
    chat = terminal("chat", "shop:careful")
    chat.wait_for("you> ")
    chat.type("add\n")
    chat.wait_for("Run add(a=1, b=2)? (money) [y/N] ")
    chat.type("y\n")
    chat.wait_for("→ add(a=1, b=2)  approved")
    chat.wait_for("✓ add: 3")
    chat.wait_for("The sum is 3.")
    chat.wait_for("you> ")
    chat.type("add again\n")
    chat.wait_for("[y/N] ")
    chat.type("\n")
    chat.wait_for("The sum is Denied: the user refused.")
    chat.wait_for("you> ")
    chat.type("\x04")
    assert chat.end() == 0


def test_a_parked_call_does_not_go_on_unasked(terminal: Any) -> None:
    """A hook that parks every reply parks it once per Enter."""
    chat = terminal("chat", "shop:parked")
    chat.wait_for("you> ")
    chat.type("hi\n")
    chat.wait_for("the call waits (until tomorrow); press Enter to continue ")
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
    """On a terminal there are styles; the text of the model has none."""
    run = terminal("run", "shop:clerk", "add it")
    assert run.end() == 0
    assert "\x1b[32m" in run.raw
    assert "✓ add: 3" in run.shown


def test_a_conversation_in_a_pipe(shop: Any) -> None:
    """Lines in, plain text out: no prompts, no control codes; a failing call does not end it."""
    ran = shop("chat", "shop:clerk", "--session", "mine", stdin="one\ndown\n/what\n\n two \n/history\n")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    assert "you>" not in ran.stdout
    assert "✗ ModelError: the provider is down (second line)" in ran.stdout
    assert "Unknown command '/what'." in ran.stdout
    assert "You said:  two" in ran.stdout
    assert "messages in session 'mine'" in ran.stdout


def test_a_conversation_goes_on_another_day(shop: Any) -> None:
    """A stored session is there when the program starts: its pending decision is asked, and /history prints the
    conversation.
    """
    assert shop("run", "kept:keeper", "add it", "--session", "s").returncode == 1
    talked = shop("chat", "kept:keeper", "--session", "s", stdin="y\n/history\n/exit\n")
    assert (talked.returncode, talked.stderr) == (0, "")
    assert "add: 3" in talked.stdout
    assert "user      add it\n" in talked.stdout
    assert "4 messages in session 's'" in talked.stdout
    later = shop("chat", "kept:keeper", "--session", "s", stdin="/history\n/exit\n")
    assert "assistant Over.\n4 messages in session 's'" in later.stdout
