"""A question that opens in another thread while the live display starts."""

from __future__ import annotations

import threading
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from agentflow.plugins.approval.terminal import questions
from agentflow.terminal import live_lines as module
from agentflow.terminal.screen import Screen


def test_a_question_waits_until_the_display_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is drawn beside a question, or removed after it was printed."""
    displays: list[Live] = []
    shown: list[bool] = []

    def ask() -> None:
        with questions.open():
            shown.extend(live.is_started for live in displays)

    asking = threading.Thread(target=ask)

    class Slow(Live):
        def start(self, refresh: bool = False) -> None:
            displays.append(self)
            asking.start()
            asking.join(0.1)
            super().start(refresh)

    monkeypatch.setattr(module, "Live", Slow)
    console: Any = Console(file=StringIO(), force_terminal=True, width=80)
    Screen(console).waiting("the model")
    asking.join()
    assert shown == [False]
    assert [live.is_started for live in displays] == [False]


def test_one_thread_redraws_the_display() -> None:
    """It is the screen's: rich's would erase lines that are printed at the same time."""
    screen, before = Screen(Console(file=StringIO(), force_terminal=True, width=80)), {*threading.enumerate()}
    screen.waiting("the model")
    started = [thread.name for thread in threading.enumerate() if thread not in before]
    screen.end()
    assert started == ["agentflow: screen"]


def test_a_question_waits_until_a_line_is_written() -> None:
    """A question that opens while a line is being written is shown after it."""

    def ask() -> None:
        with questions.open():
            file.write("question\n")

    asking = threading.Thread(target=ask)

    class File(StringIO):
        def write(self, text: str) -> int:
            if "line" in text:
                asking.start()
                asking.join(0.1)
            return super().write(text)

    file = File()
    Screen(Console(file=file, force_terminal=False, width=80)).say("line")
    asking.join()
    assert file.getvalue() == "line\nquestion\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_output_waits_for_the_answer(terminal: bool) -> None:
    """Output during a question is written after the answer, in order, and the display comes back."""
    file = StringIO()
    screen = Screen(Console(file=file, force_terminal=terminal, width=80))
    with questions.open():
        screen.say("first")
        screen.waiting("the model")
        screen.say("second")
        file.write("answer\n")
    screen.say("third")
    screen.waiting("the model")
    before = file.getvalue()
    screen.end()
    assert before.startswith("answer\nfirst\nsecond\nthird\n")
    assert ("the model" in before) is terminal


def test_the_end_of_a_call_writes_what_waited() -> None:
    """Nothing is lost if no output follows the answer."""
    file = StringIO()
    screen = Screen(Console(file=file, width=80))
    with screen.watching(), questions.open():
        screen.say("last")
    assert file.getvalue() == "last\n"
