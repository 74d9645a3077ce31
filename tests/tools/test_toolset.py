"""`Toolset`: the annotated public methods of an object as tools."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agentflow.errors import NotRegisteredError, UsageError
from agentflow.tools import Tool, Toolset, tool
from agentflow.vocabulary.messages import ToolUseBlock


class Base:
    limit = 3
    on_change: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, *rows: str) -> None:
        self.rows = list(rows)
        self.other = self.count

    async def count(self) -> int:
        """Count the rows."""
        return len(self.rows)

    async def inherited(self) -> str:
        return "base"

    async def left_out(self) -> str:
        return "base"

    async def _private(self) -> str:
        return "private"

    async def unannotated(self):  # type: ignore[no-untyped-def]
        return "unannotated"

    @property
    def size(self) -> int:
        return len(self.rows)


class Table(Base):
    left_out = None  # type: ignore[assignment]

    @tool(type="read", name="all_rows", timeout=1)
    async def show(self) -> list[str]:
        """Show all rows."""
        return self.rows

    async def add(self, text: str, user: str = "nobody") -> str:
        """Add a row.

        Args:
            text: The row.
            user: Who adds it.
        """
        self.rows.append(f"{text} by {user}")
        return "added"

    async def inherited(self) -> str:
        return "table"

    async def each(self) -> AsyncIterator[str]:
        for row in self.rows:
            yield row

    @classmethod
    async def kind(cls) -> str:
        return cls.__name__

    @staticmethod
    async def double(n: int) -> int:
        return 2 * n

    @staticmethod
    @tool
    async def triple(n: int) -> int:
        return 3 * n

    class Inner:
        """A class is no method."""


NAMES = ("count", "inherited", "all_rows", "add", "each", "kind", "double", "triple")


class Mixed:
    def block(self) -> str:
        return str(threading.current_thread() is threading.main_thread())

    async def wait(self) -> str:
        return str(threading.current_thread() is threading.main_thread())


async def run(made: Tool, **arguments: object) -> object:
    work: Any = made.start(ToolUseBlock("t1", made.name, arguments), None)
    return await work


def refused(make: Callable[[], object]) -> str:
    with pytest.raises(UsageError) as caught:
        make()
    return str(caught.value)


def test_annotated_public_methods_become_tools() -> None:
    """Inherited, static and class methods too; private, unannotated and overridden ones, properties and attributes not."""
    toolset = Toolset(Table())
    assert toolset.names == NAMES
    assert [made.name for made in toolset] == list(NAMES)
    assert (len(toolset), "add" in toolset, "show" in toolset, "size" in toolset) == (8, True, False, False)
    assert toolset["count"].spec.description == "Count the rows."
    assert repr(Toolset(Mixed(), include="wait")) == "Toolset(Mixed: wait)"


async def test_the_tools_share_the_object() -> None:
    """What one method changes, the others see; `self` and `cls` are nothing that a model fills."""
    table = Table("first")
    toolset = Toolset(table)
    assert await run(toolset["add"], text="second", user="me") == "added"
    assert await run(toolset["count"]) == 2
    assert await run(toolset["all_rows"]) == table.rows == ["first", "second by me"]
    assert await run(toolset["inherited"]) == "table"
    assert (await run(toolset["kind"]), await run(toolset["double"], n=2), await run(toolset["triple"], n=2)) == (
        "Table",
        4,
        6,
    )
    each: Any = toolset["each"].start(ToolUseBlock("t1", "each"), None)
    assert [row async for row in each] == table.rows
    assert {made.name: list(made.spec.parameters["properties"]) for made in toolset} == {
        "count": [],
        "inherited": [],
        "all_rows": [],
        "add": ["text", "user"],
        "each": [],
        "kind": [],
        "double": ["n"],
        "triple": ["n"],
    }


def test_options_are_for_made_tools_only() -> None:
    """A method that was decorated keeps its own options."""
    toolset = Toolset(Table(), include=["show", "count"], type="research", timeout=9, tags=["table"], lock=True)
    assert [(made.name, made.type, made.timeout, made.tags, made.lock is None) for made in toolset] == [
        ("count", "research", 9, {"table"}, False),
        ("all_rows", "read", 1, frozenset(), True),
    ]


async def test_two_objects_of_a_class_fit_into_one_agent() -> None:
    """With a prefix, decorated methods included; each keeps its own state."""
    mine, yours = Toolset(Table("m"), prefix="my_"), Toolset(Table("y"), prefix="your_")
    assert mine.names == tuple(f"my_{name}" for name in NAMES)
    assert not set(mine.names) & set(yours.names)
    assert [await run(toolset[name]) for toolset, name in ((mine, "my_all_rows"), (yours, "your_all_rows"))] == [
        ["m"],
        ["y"],
    ]
    assert (mine["my_all_rows"].spec.name, mine["my_all_rows"].spec.description) == ("my_all_rows", "Show all rows.")
    assert (mine["my_all_rows"].type, mine["my_all_rows"].spec.type, mine["my_all_rows"].timeout) == ("read", "read", 1)


def test_include_and_exclude_choose_by_method_name() -> None:
    """Patterns or names; exclude wins."""
    assert Toolset(Table(), include=("*e*", "add"), exclude="in*").names == ("add", "each", "double", "triple")
    assert Toolset(Table(), exclude=["show", "*d*", "delete_*"]).names == ("count", "each", "triple")


async def test_plain_methods_run_in_threads_if_asked_for() -> None:
    """The others stay in the event loop."""
    toolset = Toolset(Mixed(), in_thread=True)
    assert [await run(made) for made in toolset] == ["False", "True"]


async def test_fixed_arguments_go_to_the_methods_that_have_them() -> None:
    """A function is called at each run, as ever."""
    users = iter(["one", "two"])
    table = Table()
    toolset = Toolset(table, include=("add", "count"), user=lambda: next(users))
    assert list(toolset["add"].spec.parameters["properties"]) == ["text"]
    await run(toolset["add"], text="a")
    await run(toolset["add"], text="b")
    assert (table.rows, await run(toolset["count"])) == (["a by one", "b by two"], 2)
    other = Toolset(table, include="add", fixed={"user": "me"})
    await run(other["add"], text="c")
    assert table.rows[-1] == "c by me"


class Empty:
    async def _hidden(self) -> str:
        return ""


class Twice:
    @tool(name="same")
    async def one(self) -> str:
        return "one"

    async def same(self) -> str:
        return "same"


CASES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: Toolset(Mixed()),
        (
            "Toolset of Mixed: block is a plain def, which would block the event loop. Make it an async def, run plain "
            "methods in threads (in_thread=True), or leave it out (exclude='block')."
        ),
    ),
    (
        lambda: Toolset(Empty()),
        (
            "Toolset takes the annotated public methods of an object, but Empty has no such methods: it has none. A method "
            "counts if it has a return annotation: async def read(self, name: str) -> str."
        ),
    ),
    (
        lambda: Toolset(Mixed(), include="w*", exclude="wait"),
        (
            "Toolset takes the annotated public methods of an object, but Mixed has no such methods: include and exclude leave "
            "none of block, wait. A method counts if it has a return annotation: async def read(self, name: str) -> str."
        ),
    ),
    (
        lambda: Toolset(Mixed(), exclude=["blok"]),
        "Toolset of Mixed: 'blok' in include= or exclude= is none of its annotated public methods (block, wait).",
    ),
    (lambda: Toolset(Table), "Toolset got the class Table; its methods need an object: Table(...)."),
    (
        lambda: Toolset(Twice()),
        "Toolset of Twice: two of its methods become a tool named 'same'. Rename one with @tool(name=...), or exclude it.",
    ),
    (
        lambda: Toolset(Table(), description="d"),
        "Toolset of Table got description=, which is for one tool. Put @tool(description=...) on the method.",
    ),
    (
        lambda: Toolset(Table(), timout=3),
        (
            "Toolset of Table got timout, which is neither an option of @tool nor a parameter of a method that becomes a "
            "tool."
        ),
    ),
]


@pytest.mark.parametrize(("make", "text"), CASES)
def test_what_gives_no_toolset_is_refused_with_the_fix(make: Callable[[], object], text: str) -> None:
    """Where it is made."""
    assert refused(make) == text


def test_a_name_that_is_not_there_is_told_with_those_that_are() -> None:
    """The error is a `LookupError` too."""
    with pytest.raises(LookupError) as caught:
        Toolset(Mixed(), include="wait")["block"]
    assert isinstance(caught.value, NotRegisteredError)
    assert str(caught.value) == "No tool is registered as 'block'. Registered here: wait."
