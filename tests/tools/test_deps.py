"""Live objects that tools and hooks ask for: by type, and where there are several of one class by the parameter's name."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import Agent, PostActing, ToolUseBlock, Turn, on, tool
from agentflow.errors import UsageError
from agentflow.testing.scripted import ScriptedModel


class Database:
    def __init__(self, name: str) -> None:
        self.name = name


class Replica(Database):
    """A database too."""


@tool
async def copy_rows(source: Database, target: Database | None = None) -> str:
    return f"{source.name} to {None if target is None else target.name}"


@tool
async def count_rows(source: Database) -> str:
    return source.name


ONE, TWO = Database("one"), Database("two")


@pytest.mark.parametrize(
    ("deps", "expected"),
    [
        ({"source": ONE, "target": TWO}, "one to two"),
        ({"target": ONE, "source": TWO, "unit": "km"}, "two to one"),
        ({"source": ONE}, "one to one"),
        ({"database": ONE}, "one to one"),
        ({Database: ONE, "target": TWO}, "one to two"),
        ([ONE], "one to one"),
        ([Replica("replica"), ONE], "one to one"),
        (ONE, "one to one"),
    ],
    ids=[
        "by name",
        "in any order",
        "one for both",
        "by type among names",
        "both",
        "list",
        "exactly of the type",
        "itself",
    ],
)
async def test_what_fills_a_parameter(deps: Any, expected: str) -> None:
    """Its name, then its type."""
    assert await Turn(copy_rows, deps=deps).returning() == expected


@pytest.mark.parametrize(
    ("deps", "have"),
    [
        ([ONE, "km", TWO], ""),
        ({"a": ONE, "b": TWO, "unit": "km", "c": Replica("replica")}, " They are named 'a', 'b'."),
    ],
)
async def test_several_that_nothing_tells_apart_are_refused(deps: Any, have: str) -> None:
    """None is taken at random; a default does not hide it either."""
    with pytest.raises(UsageError) as caught:
        await Turn(copy_rows, deps=deps).returning()
    assert str(caught.value) == (
        "deps= holds 2 objects of type Database, and parameter 'source' asks for one of them. Pass them by parameter name: "
        f"deps={{'source': my_database, ...}}.{have}"
    )


@pytest.mark.parametrize(
    ("deps", "contained"),
    [
        (None, "nothing"),
        ([], "nothing"),
        (5, "int"),
        (["km", 5, "m"], "str, int"),
        ({"unit": "km", "database": 5}, "str, int"),
    ],
)
async def test_the_error_names_the_types_that_are_there(deps: Any, contained: str) -> None:
    """Those of the items, as it is these that are looked through."""
    with pytest.raises(UsageError, match=rf"type Database is needed, but deps= contains {contained}\. Pass"):
        await Turn(copy_rows, deps=deps).returning()


async def test_a_call_is_checked_before_its_first_model_call() -> None:
    """By name as by type; a hook reads them by name too."""
    read: list[Any] = []

    @on(PostActing)
    def look(event: PostActing) -> None:
        read.append(event.context.deps(Database, "target"))

    model = ScriptedModel([ToolUseBlock("t", "copy_rows"), "end"])
    agent = Agent("a", model, tools=[copy_rows, count_rows], hooks=[look])
    for wrong in ([ONE, TWO], None, {"target": "no database"}):
        with pytest.raises(UsageError, match="of type Database"):
            await agent.call("go", deps=wrong)
    assert model.requests == []
    await agent.call("go", deps={"source": ONE, "target": TWO})
    assert (agent.session().messages[2].tool_results[0].text, read) == ("one to two", [TWO])
