"""The parts of a turn, their changes, and how it runs, and how often; each error names the correction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from turnlog import add, count

from agentflow import Agent, Approve, Deny, ToolContext, Turn, tool
from agentflow.errors import SafeExecutionError, TurnDeniedError, TurnTimeoutError, UsageError, WrongRunMethodError
from agentflow.testing.scripted import ScriptedModel
from agentflow.tools import ToolRegistry


@tool(requires_approval=True)
async def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


class Settings:
    """A dependency."""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Turn(add, {"a": 1, "b": 2}, 60), "options must be keyword arguments, such as timeout=60."),
        (lambda: Turn(tool_name="add", kwargs={"a": 1}), "got kwargs, tool_name; the options are timeout, "),
        (Turn, "Turn(...) takes a tool or its registered name, not NoneType"),
        (lambda: Turn(add, {"a": b"\xff\x00"}), "argument 'a' is bytes, which has no JSON form"),
    ],
)
def test_a_wrong_form_of_a_turn_says_the_right_one(make: Callable[[], Any], said: str) -> None:
    """Positional options, names of other libraries, no tool at all, and bytes that are not text."""
    with pytest.raises(UsageError) as caught:
        make()
    assert said in str(caught.value)


@pytest.mark.parametrize("wrong", [False, True, "yes", Approve])
def test_the_approval_of_a_turn_is_an_answer_and_no_truth_value(wrong: Any) -> None:
    """`approval=False` would look like a refusal: it is refused, in the constructor and in an assignment."""
    turn = Turn(pay, {"euros": 5})
    with pytest.raises(UsageError) as made:
        Turn(pay, {"euros": 5}, approval=wrong)
    with pytest.raises(UsageError) as assigned:
        turn.approval = wrong
    legal = "but must be Approve(), Approve(input=...), Deny(reason), Answer(value), or None (no decision)."
    assert str(made.value) == str(assigned.value) == f"The approval of a turn of 'pay' is {wrong!r}, {legal}"
    assert turn.approval is None


async def test_a_denied_approval_refuses_the_turn_of_any_tool() -> None:
    """It holds for a tool that needs no approval too."""
    turn = Turn(add, {"a": 1, "b": 2}, approval=Deny("not today"))
    with pytest.raises(TurnDeniedError, match="not today"):
        await turn.returning()
    assert turn.stop_reason == "denied"


@pytest.mark.parametrize("wrong", ["5", True, 0, float("nan")])
def test_a_time_limit_is_a_number_above_zero(wrong: Any) -> None:
    """A text that looks like a number is refused."""
    with pytest.raises(
        UsageError, match=r"Turn of 'add': timeout=.* is invalid; use a number of seconds above 0, or None\."
    ):
        Turn(add, {"a": 1, "b": 2}, timeout=wrong)


@pytest.mark.parametrize(
    ("name", "state"),
    [("time_out", "is not an attribute of a turn"), ("stop_reason", "is read-only"), ("start_time", "is read-only"),
     ("sender", "is read-only"), ("output", "is read-only"), ("running", "is read-only")],
)  # fmt: skip
def test_what_cannot_be_assigned_is_refused_with_what_can(name: str, state: str) -> None:
    """A misspelt option is not ignored."""
    turn = Turn(add, {"a": 1, "b": 2})
    with pytest.raises(AttributeError) as caught:
        setattr(turn, name, 5)
    legal = "approval, arguments, deps, id, metadata, tags, timeout, tool"
    assert str(caught.value) == f"turn.{name} {state}; the attributes that can be assigned are {legal}."


def test_an_agent_is_no_tool_but_can_be_made_one() -> None:
    """The error shows the way."""
    agent = Agent("librarian", ScriptedModel([]))
    with pytest.raises(UsageError, match=r"not Agent .*For an agent, pass agent\.as_tool\(\)\."):
        Turn(agent, {"message": "Hi"})
    assert Turn(agent.as_tool(), {"message": "Hi"}).tool.name == "librarian"


async def test_a_missing_dependency_says_how_a_turn_is_given_one() -> None:
    """It shows how to pass it to a turn, not only to a call."""

    @tool
    async def region(settings: Settings) -> str:
        return type(settings).__name__

    with pytest.raises(UsageError, match=r"with the turn, Turn\(\.\.\., deps=my_settings\)"):
        await Turn(region).returning()
    assert await Turn(region, deps=Settings()).returning() == "Settings"


@tool(timeout=None)
async def forever() -> str:
    """Hang."""
    await asyncio.Event().wait()
    return ""


async def test_single_values_are_returned_and_streams_are_yielded() -> None:
    """`returning()` awaits the one value, `yielding()` iterates the stream."""
    assert await Turn(add, {"a": 1, "b": 2}).returning() == 3
    assert [value async for value in Turn(count, {"n": 3}).yielding()] == [0, 1, 2]


@pytest.mark.parametrize(("turn", "method"), [(Turn(count, {"n": 1}), "returning"), (Turn(add, {}), "yielding")])
def test_the_wrong_run_method_is_an_error_before_anything_runs(turn: Turn[Any], method: str) -> None:
    """The turn is unchanged."""
    with pytest.raises(WrongRunMethodError, match="nothing was run"):
        getattr(turn, method)()
    assert (turn.running, turn.start_time, turn.stop_reason) == (False, None, None)


async def test_a_turn_cannot_run_while_it_runs() -> None:
    """The second call raises, and the first one is unaffected."""
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        begun.set()
        await go.wait()
        return "first"

    turn = Turn(wait)
    first = asyncio.create_task(turn.returning())
    await begun.wait()
    with pytest.raises(SafeExecutionError, match="running"):
        await turn.returning()
    go.set()
    assert (await first, turn.stop_reason) == ("first", "completed")


@pytest.mark.parametrize("name", ["arguments", "timeout", "tags", "tool", "deps", "approval", "output", "stop_reason"])
async def test_what_a_turn_is_cannot_change_while_it_runs(name: str) -> None:
    """Only `metadata` can be assigned meanwhile."""
    caught: list[Exception] = []

    @tool
    async def meddle() -> None:
        try:
            setattr(turn, name, None)
        except SafeExecutionError as error:
            caught.append(error)
        turn.metadata = {"seen": True}

    turn = Turn(meddle)
    await turn.returning()
    assert len(caught) == 1
    assert name in str(caught[0])
    assert turn.metadata == {"seen": True}


async def test_a_finished_turn_may_run_again() -> None:
    """It may be changed before."""
    turn = Turn(add, {"a": 1, "b": 2})
    await turn.returning()
    turn.arguments = {"a": 5, "b": 5}
    assert await turn.returning() == 10


def test_a_turn_has_sixty_seconds_by_default() -> None:
    """The tool's own limit, 60 s by default."""
    assert (Turn(add, {}).timeout, Turn(forever).timeout, Turn(add, {}, timeout=5).timeout) == (60, None, 5)


async def test_a_turn_that_passes_its_limit() -> None:
    """It raises, its `stop_reason` is set, and it has ended."""
    turn = Turn(forever, timeout=0.01)
    with pytest.raises(TurnTimeoutError):
        await turn.returning()
    assert turn.stop_reason == "timeout"
    assert turn.end_time is not None


def test_a_turn_is_bound_by_name_when_it_is_made(tools: ToolRegistry) -> None:
    """An unregistered name is an error then, and not when it runs."""
    tools.register(add)
    assert Turn("add", {"a": 1, "b": 2}, tools=tools).tool is add
    with pytest.raises(LookupError, match=r"'ad'.*Did you mean 'add'"):
        Turn("ad", {}, tools=tools)


async def test_the_idempotency_key_of_a_turn_is_the_same_in_each_run() -> None:
    """So a service can recognise a repeated run; a copy is another turn."""

    @tool
    async def charge(context: ToolContext) -> str:
        return context.idempotency_key

    turn = Turn(charge)
    first = await turn.returning()
    loaded = Turn.from_json(turn.to_json(), tools=[charge])
    keys = [first, await turn.returning(), await loaded.returning(), await turn.copy().returning()]
    assert [key == first for key in keys] == [True, True, True, False]
