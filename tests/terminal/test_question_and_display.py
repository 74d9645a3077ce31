"""A question that opens in another thread while the live display starts."""

from __future__ import annotations

import threading
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from agentflow.plugins.approval.terminal import questions
from agentflow.terminal import screen as module
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
