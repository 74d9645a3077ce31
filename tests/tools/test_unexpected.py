"""A bug in a tool is visible to the person who runs the program; an error meant for the model is no bug."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from agentflow import Agent, Hook, HookEvent, Session, ToolUseBlock, Turn, tool
from agentflow._support import once
from agentflow._support.once import failures_expected
from agentflow.errors import ModelError, SafeExecutionError, ToolError, UsageError
from agentflow.loop.output.output import Output
from agentflow.testing import ScriptedModel, check_hook
from agentflow.tools.tool import Tool
from agentflow.tools.unexpected import is_unexpected


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The records that are logged by default, in a process that has warned of nothing yet."""
    records: list[Any] = []
    monkeypatch.setattr(once, "_warned", set[tuple[str, str, str, int]]())
    sink = logger.add(lambda message: records.append(message.record), level="DEBUG", filter="agentflow")
    yield records
    logger.remove(sink)


def failing(error: BaseException, name: str = "broken", **options: Any) -> Tool[[], Awaitable[str]]:
    @tool(name=name, **options)
    async def broken() -> str:
        """Raise it."""
        raise error

    return broken


def told(*tools: Tool[..., Any], times: int = 1) -> list[str]:
    """Return what the model reads of each call."""
    session = Session("s")
    uses = [[ToolUseBlock(f"t{n}_{m}", one.name) for m, one in enumerate(tools)] for n in range(times)]
    Agent("a", ScriptedModel([*uses, "ok"]), tools=tools).call("go", session=session).block()
    return [result.text for msg in session.messages for result in msg.tool_results]


def test_a_bug_is_warned_about_with_its_traceback(warned: list[Any]) -> None:
    """The warning names the tool and the remedy, and shows the tool's own frames, without the values of variables."""
    secret = "sk-hidden"

    @tool
    async def broken(path: str) -> str:
        """Has a bug."""
        key = secret
        return f"{path}{key}" + undefined_name  # type: ignore[name-defined]  # noqa: F821

    agent = Agent("a", ScriptedModel([ToolUseBlock("t", "broken", {"path": "/x"}), "ok"]), tools=[broken])
    reply = agent.call("go", session="s").block()
    assert reply.outcome == "completed"
    (record,) = warned
    text = record["message"]
    assert record["level"].name == "WARNING"
    assert text.startswith("Tool 'broken' raised NameError, and the model got its message.")
    assert "agentflow.errors.ToolError" in text
    assert "undefined_name" in text
    assert text.splitlines()[1] == "Traceback (most recent call last):"
    assert Path(__file__).name in text.splitlines()[2]
    assert secret not in text
    assert record["extra"]["session_id"] == "s"
    assert record["exception"] is None


def test_each_place_is_warned_about_once(warned: list[Any]) -> None:
    """Ten failures at one line are one warning; another tool, another class or another line is another place."""
    told(failing(KeyError("a")), times=10)
    assert len(warned) == 1
    told(failing(KeyError("b")))
    assert len(warned) == 1
    told(failing(KeyError("a"), "other"), failing(OSError("a")))
    assert len(warned) == 3


def test_what_is_meant_for_the_model_is_no_bug(warned: list[Any]) -> None:
    """A `ToolError` is read without the name of its class; a time limit and wrong arguments have texts of their own."""

    @tool(timeout=0.01)
    async def slow() -> str:
        """Wait."""
        await asyncio.sleep(60)
        return ""

    @tool
    async def add(a: int) -> int:
        """Add."""
        return a

    class NoCustomerError(ToolError):
        pass

    wrote = told(failing(ToolError("The ids begin with C-.")), failing(NoCustomerError("17"), "second"), slow, add)
    assert wrote[:2] == ["The ids begin with C-.", "NoCustomerError: 17"]
    assert told(failing(ToolError())) == ["ToolError"]
    assert not warned


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (ToolError("x"), False),
        (ModelError("x"), False),
        (ExceptionGroup("x", [ToolError("x")]), False),
        (ExceptionGroup("x", [ToolError("x"), KeyError("x")]), True),
        (UsageError("x"), True),
        (SafeExecutionError("x"), True),
        (OSError("x"), True),
    ],
)
def test_who_has_to_act_decides(error: BaseException, found: bool) -> None:
    """An error that the program's author must fix is unexpected, one of a provider or the model is not."""
    assert is_unexpected(error) is found


def test_a_turn_raises_and_warns_of_nothing(warned: list[Any]) -> None:
    """Whoever runs a turn gets the exception itself."""
    with pytest.raises(KeyError):
        asyncio.run(Turn(failing(KeyError("x"))).returning().resolve())
    assert not warned


def test_places_are_bounded(warned: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that is made at run time has no end of places; the memory of them has."""
    monkeypatch.setattr(once, "_MAX_PLACES", 3)
    for n in range(5):
        told(failing(KeyError("x"), f"tool_{n}"))
    assert len(warned) == 3


def test_an_exception_that_draws_is_shown_as_text(warned: list[Any]) -> None:
    """Control characters are escapes, passwords in addresses are hidden, and the middle of a long text is left out."""
    told(failing(ValueError("\x1b[31mred postgresql://u:secret@h/d " + "x" * 50_000)))
    (record,) = warned
    assert "\x1b" not in record["message"]
    assert "secret" not in record["message"]
    assert len(record["message"]) < 21_000


def test_it_can_be_silenced(warned: list[Any]) -> None:
    """By name, as any part of the log."""
    logger.disable("agentflow.tools.unexpected")
    try:
        told(failing(KeyError("x")))
        assert not warned
    finally:
        logger.enable("agentflow.tools.unexpected")


@pytest.mark.ci
def test_failures_that_a_test_plants_are_expected(warned: list[Any]) -> None:
    """The suite for hooks runs tools that fail; it says nothing of them, and bugs are warned about afterwards as before."""

    class Quiet(Hook):
        def on_event(self, event: HookEvent) -> HookEvent:
            return event

    assert not check_hook(Quiet).findings
    with failures_expected():
        told(failing(KeyError("x")))
    assert not warned
    told(failing(KeyError("x")))
    assert len(warned) == 1


def test_a_last_step_refuses_with_a_value_error(warned: list[Any]) -> None:
    """A function that is a call's output reports misfits by `ValueError`; anything else is a bug there too."""
    errors: list[Exception] = [ValueError("two at least"), KeyError("x")]

    def total(items: list[int]) -> int:
        """Sum."""
        if errors:
            raise errors.pop(0)
        return sum(items)

    uses = [ToolUseBlock(f"t{n}", "total", {"items": [n]}) for n in range(3)]
    reply = Agent("a", ScriptedModel([*uses, "ok"]), output=Output(total, retries=5)).call("x").block()
    assert reply.output == 2
    (record,) = warned
    assert record["message"].startswith("Tool 'total' raised KeyError")
    shown = [line for line in record["message"].splitlines() if line.startswith("  File")]
    assert len(shown) == 1  # the thread that it ran in is not in the way
