"""The log of a failure that does not end a run: one line that says what to do, and a traceback at TRACE."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from loguru import logger

from agentflow import Agent, CallEnded, Hook, on
from agentflow.errors import HookContractError
from agentflow.testing import ScriptedModel


class Sink(list[str]):
    """Records what a program without any configuration has on standard error: everything from DEBUG on."""

    def write(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def shown() -> Iterator[Any]:
    """Record log lines from a level on; loguru's own by default."""
    handlers: list[int] = []

    def listen(level: str = "DEBUG") -> Sink:
        sink = Sink()
        handlers.append(logger.add(sink.write, level=level, format="{level} {message}", diagnose=True, backtrace=True))
        return sink

    yield listen
    for handler in handlers:
        logger.remove(handler)


async def test_a_hook_that_returns_true(shown: Any) -> None:
    """The caller gets the error; the hook's failures on the events that report it are one line each."""

    class Yes(Hook):
        def on_event(self, event: Any) -> Any:
            return True

    agent = Agent("a", ScriptedModel(lambda _: "x"), hooks=[Yes()])
    with pytest.raises(HookContractError):
        await agent.call("x")  # the first failure at a place comes with more: tests/hooks/test_skipped.py
    said = shown()
    with pytest.raises(HookContractError, match="answered PreCall with bool"):
        await agent.call("x")
    assert [line.count("\n") for line in said] == [1, 1]
    assert (
        "hook Yes failed while a failure was reported: HookContractError: Hook 'Yes (priority 100)' answered" in said[0]
    )
    assert "Allowed answers: the event, None" in said[0]
    assert "hook Yes (priority 100) failed on CallEnded and was skipped: HookContractError" in said[1]


@pytest.mark.parametrize(("level", "lines"), [("DEBUG", 1), ("TRACE", 2)])
async def test_the_traceback_is_there_for_who_asks(shown: Any, level: str, lines: int) -> None:
    """The text of a hook's exception is on the line, escaped; the traceback is at TRACE."""

    @on(CallEnded)
    def careless(event: CallEnded) -> None:
        raise ValueError("bad\n\x1b[2J luck at postgresql://ann:secret@db/x")

    agent = Agent("a", ScriptedModel(lambda _: "x"), hooks=[careless])
    await agent.call("x")
    said = shown(level)
    await agent.call("x")
    assert len(said) == lines
    assert said[0].endswith(
        "careless (priority 100) failed on CallEnded and was skipped: ValueError: bad \\x1b[2J luck at "
        "postgresql://ann:***@db/x\n"
    )
    assert ["Traceback" in text for text in said] == [False, True][:lines]
