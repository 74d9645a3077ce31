"""Registries of tools: objects, with a default one."""

import inspect
import threading
from typing import Any

import pytest

from agentflow._support.registry import NamedRegistry
from agentflow.agent.agent import Agent
from agentflow.errors import DuplicateNameError, NotRegisteredError, UsageError
from agentflow.testing.scripted import ScriptedModel
from agentflow.tools import Tool, ToolRegistry, default_tools, tool


@tool(type="read")
async def look(where: str) -> str:
    """Look somewhere."""
    return where


@pytest.fixture
def registry() -> ToolRegistry:
    return ToolRegistry()


def line_of(made: Tool) -> int:
    return inspect.unwrap(made.function).__code__.co_firstlineno


def test_tools_are_found_by_name(registry: ToolRegistry) -> None:
    """Registering returns its argument, and doing so twice changes nothing."""
    assert registry.register(look) is look
    assert registry.register(look) is look
    assert (registry["look"] is look, registry.get("look") is look) == (True, True)
    assert (len(registry), registry.names, list(registry)) == (1, ("look",), [look])
    assert ("look" in registry, "other" in registry, repr(registry)) == (True, False, "ToolRegistry('look')")
    assert registry.specs() == (look.spec,)


async def test_register_is_a_decorator(registry: ToolRegistry) -> None:
    """Above `@tool`, with a name if need be; `registry.tool` is both in one, with the options of `@tool`."""

    @registry.register
    @tool(type="read")
    async def one(a: int) -> int:
        return a

    @registry.register(name="second")
    @tool
    async def two() -> None: ...

    @registry.tool
    async def three(a: int) -> int:
        return a

    @registry.tool(type="research", timeout=5, unit="km")
    async def four(unit: str) -> str:
        return unit

    @registry.tool(in_thread=True)
    def five() -> str:
        return "five"

    assert registry.names == ("one", "second", "three", "four", "five")
    assert (registry["one"] is one, registry["three"] is three, registry["four"] is four) == (True, True, True)
    assert (four.type, four.timeout, await four(), await five()) == ("research", 5, "km", "five")
    assert two.name == "two"


def test_under_another_name_a_tool_is_known_by_it(registry: ToolRegistry) -> None:
    """What is found under a name has that name, for models too; it is the same tool otherwise."""
    registry.register(look, name="glance")
    registry.register(look, name="glance")
    found = registry["glance"]
    assert (found.name, found.spec.name, found.function is look.function, look.name) == (
        "glance",
        "glance",
        True,
        "look",
    )
    with pytest.raises(UsageError, match=r"^A tool cannot be named 'no name'"):
        registry.register(look, name="no name")
    assert registry.names == ("glance",)


def test_a_name_that_is_taken_is_refused_with_both_places(registry: ToolRegistry) -> None:
    """Where both were written, and where both were registered; it is a `ValueError`, and changes nothing."""
    first = inspect.currentframe()
    assert first is not None
    registry.register(look)
    here = first.f_lineno - 1

    with pytest.raises(ValueError, match="look") as caught:

        @registry.tool(name="look")
        async def stare() -> str:
            return "stare"

    error = caught.value
    assert isinstance(error, DuplicateNameError)
    assert isinstance(error, UsageError)
    written = line_of(look)
    again = here + 5
    assert str(error) == (
        f"Two tools are registered as 'look': Tool('look', type='read') (written at {__file__}:{written} and registered at "
        f"{__file__}:{here}), and Tool('look', type='action') (written at {__file__}:{again} and registered at "
        f"{__file__}:{again}). Give one of them another name: @tool(name=...), or register(..., name=...)."
    )
    assert (error.kind, error.name, list(registry)) == ("tool", "look", [look])


def test_an_unknown_name_is_told_with_the_known_ones(registry: ToolRegistry) -> None:
    """Close ones first; it is a `LookupError`."""
    with pytest.raises(NotRegisteredError) as caught:
        registry["look"]
    assert str(caught.value) == "No tool is registered as 'look'. Registered here: nothing."
    registry.register(look)
    registry.register(look, name="write")
    with pytest.raises(LookupError) as caught_too:
        registry.get("lock")
    assert str(caught_too.value) == (
        "No tool is registered as 'lock'. Did you mean 'look'? Registered here: look, write."
    )


def test_tools_can_be_taken_out(registry: ToolRegistry) -> None:
    """One by one, or all; the name is free again."""
    registry.register(look)
    assert registry.unregister("look") is look
    with pytest.raises(NotRegisteredError):
        registry.unregister("look")
    registry.register(tool(look.function))
    registry.clear()
    assert (len(registry), list(registry)) == (0, [])


def test_only_tools_are_taken(registry: ToolRegistry) -> None:
    """The message says how to make one."""

    async def plain() -> None: ...

    wrong: Any = plain
    with pytest.raises(UsageError) as caught:
        registry.register(wrong)
    assert str(caught.value).startswith("A ToolRegistry takes tools, not function (<function test_only_tools_are_taken")
    assert str(caught.value).endswith("Put @tool below @registry.register, or use @registry.tool.")
    with pytest.raises(UsageError, match="not NoneType"):
        registry.register(None)  # type: ignore[call-overload]


def test_registries_do_not_know_each_other_and_nothing_registers_itself() -> None:
    """`@tool` touches no registry; the default one is an object like others."""
    assert isinstance(default_tools, ToolRegistry)
    assert "look" not in default_tools
    one, two = ToolRegistry(), ToolRegistry()
    one.register(look)
    assert (len(one), len(two), "look" in default_tools) == (1, 0, False)


def test_an_agent_takes_what_is_registered_when_it_is_built(registry: ToolRegistry) -> None:
    """What comes later does not concern it."""
    registry.register(look)
    agent = Agent("a", ScriptedModel(["hi"]), tools=registry)

    @registry.tool
    async def later() -> None: ...

    assert [spec.name for spec in agent.tools] == ["look"]


def test_registering_from_many_threads_lets_one_win(registry: ToolRegistry) -> None:
    """Whoever comes second gets the error; none is lost without a word."""
    refused: list[str] = []
    made = [tool(look.function) for _ in range(16)]
    ready = threading.Barrier(len(made))

    def register(one: Tool) -> None:
        ready.wait()
        try:
            registry.register(one)
        except DuplicateNameError as error:
            refused.append(error.name)

    threads = [threading.Thread(target=register, args=(one,)) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(registry), refused) == (1, ["look"] * 15)


class Ship:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Ship({self.name!r})"


def test_other_kinds_of_things_have_registries_of_the_same_make() -> None:
    """`NamedRegistry` is the common part of registries."""
    ships: NamedRegistry[Ship] = NamedRegistry()
    ship = ships.register(Ship("Vasa"))
    ships.register(name="old")(ship)
    assert (ships["Vasa"] is ship, ships["old"] is ship, ships.names) == (True, True, ("Vasa", "old"))
    with pytest.raises(DuplicateNameError, match=r"Two items are registered as 'old': Ship\('Vasa'\) \(registered at "):
        ships.register(Ship("old"))
