"""The hooks of typed answers pass the check that every hook can be put to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from thorough import THOROUGH

from agentflow import Hook, Output
from agentflow.loop.output import AskForOutput, JudgeOutput
from agentflow.testing import check_hook


async def add(x: int) -> int:
    """Add."""
    return x


async def short(text: str) -> None:
    """Refuse long answers."""
    if len(text) > 10_000:
        raise ValueError("too long")


@pytest.mark.ci
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    "make",
    [
        lambda: AskForOutput(Output(int, via="tool")),
        lambda: AskForOutput(Output(int, via="native")),
        lambda: AskForOutput(Output(int, via="prompt")),
        lambda: AskForOutput(Output(add, via="prompt")),
        lambda: JudgeOutput(Output(str, validate=short)),
        lambda: JudgeOutput(Output(int)),
    ],
)
def test_check_hook(make: Callable[[], Hook]) -> None:
    """They keep every promise of a hook, in any order with others, cancelled anywhere, used by many runs at once."""
    runs, orders, cancellations = (20, 6, 12) if THOROUGH else (6, 1, 3)
    check_hook(make, runs=runs, orders=orders, cancellations=cancellations).assert_clean()
