"""Text annotations (`from __future__ import annotations`) are found where the function was written."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import BaseModel, Field

from agentflow.errors import UsageError
from agentflow.tools import Tool, tool
from agentflow.vocabulary.messages import ToolUseBlock

if TYPE_CHECKING:
    from decimal import Decimal

    from agentflow.tools import ToolContext, ToolEmitter


class Item(BaseModel):
    title: str


async def run(made: Tool, **arguments: object) -> object:
    work: Any = made.start(ToolUseBlock("t1", made.name, arguments), None)
    return await work


async def test_names_of_the_module() -> None:
    """Known even where the annotation is a text."""

    @tool
    async def take(item: Item, n: Annotated[int, Field(description="How many")] = 1) -> Item:
        return item

    assert await run(take, item={"title": "a"}) == Item(title="a")
    assert take.spec.parameters["properties"]["n"]["description"] == "How many"


async def test_names_of_the_function_that_defines_the_tool() -> None:
    """Local types are found, from a closure, in a local class's method, and after the function has returned."""

    def make() -> tuple[Tool, Tool, Tool]:
        class Colour(enum.Enum):
            RED = "red"

        class Size(BaseModel):
            n: int

        @tool
        async def paint(colour: Colour) -> object:
            return colour.name

        @tool(type="read")
        async def closed(colour: Colour | None) -> object:
            return colour is Colour.RED

        class Shop:
            @tool
            async def sell(self, size: Size) -> object:
                return size.n

        return paint, closed, Shop().sell

    paint, closed, sell = make()
    assert await run(paint, colour="red") == "RED"
    assert await run(closed, colour="red") is True
    assert await run(sell, size={"n": 3}) == 3


def test_our_own_types_may_be_imported_for_the_checker_only() -> None:
    """Linters move them under TYPE_CHECKING; they are injected all the same."""

    @tool
    async def look(context: ToolContext, emitter: ToolEmitter | None) -> None: ...

    assert look.wants_context
    assert look.spec.parameters["properties"] == {}


def test_what_a_function_returns_need_not_be_known() -> None:
    """Only parameters matter."""

    @tool
    async def price(n: int) -> Decimal: ...

    assert list(price.prepare().spec.parameters["properties"]) == ["n"]


def test_an_unknown_name_is_refused_with_the_parameter() -> None:
    """The message says where to define it."""

    @tool
    async def price(n: int, amount: Decimal) -> None: ...

    with pytest.raises(UsageError) as caught:
        price.prepare()
    assert str(caught.value) == (
        "Tool 'price': the annotation of parameter 'amount' names 'Decimal', which does not exist at run time. "
        "Import or define Decimal before the tool, outside `if TYPE_CHECKING:`."
    )
