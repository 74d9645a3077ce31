"""What each type demands of a tool, checked when it is made, prepared, and when it gives a value."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType

import pytest

from agentflow.errors import ToolContractError, ToolError, UsageError
from agentflow.tools import Tool, ToolContext, ToolType, tool

if TYPE_CHECKING:
    from elsewhere import Row  # pyright: ignore[reportMissingImports, reportUnknownVariableType]

GIVES = ("research", "read", "memory_read")
FREE = ("write", "action")
GIVE = "Such a tool returns a value (None only if the annotation allows it, as in `-> Row | None`)."
TEXT = "Such a tool returns text: it is annotated `-> str`, or is an async generator of str."
CHECK = "Such a tool is a coroutine function annotated `-> bool`, and returns True or False."
FILLED = "Such a tool has at least one parameter that the model fills."
Line = NewType("Line", str)
Text = Annotated[str, "text"]


async def nothing(a: int = 0) -> None: ...
async def a_bool() -> bool: ...
async def a_literal() -> Literal[True]: ...
async def a_str() -> str: ...
async def a_line() -> Line: ...
async def a_text() -> Text | Literal["a", "b"]: ...
async def an_int() -> int: ...
async def a_number() -> Annotated[int, "a number"] | Literal["none"]: ...
async def maybe() -> str | None: ...
async def anything() -> Any: ...
async def unsaid(): ...  # type: ignore[no-untyped-def]
async def known_to_checkers() -> Row: ...  # pyright: ignore[reportUnknownParameterType]
async def rows_or_none() -> Row | None: ...  # pyright: ignore[reportUnknownParameterType]


async def bools() -> AsyncIterator[bool]:
    yield True


async def texts() -> AsyncGenerator[str, None]:
    yield "a"


async def numbers() -> AsyncIterator[int]:
    yield 1


async def nones() -> AsyncIterator[None]:
    yield None


def refused(make: Callable[[], object]) -> str:
    with pytest.raises(ToolContractError) as caught:
        make()
    return str(caught.value)


def test_writes_and_actions_are_free() -> None:
    """Whatever they return, nothing is demanded, and nothing is looked at when they run."""
    functions = (nothing, a_bool, a_str, unsaid, nones, numbers)
    assert [Tool(function, type=kind).contract for kind in FREE for function in functions] == [None] * 12


@pytest.mark.parametrize("kind", GIVES)
def test_reading_tools_give_something_back(kind: ToolType) -> None:
    """None is a result only if the annotation allows it; an unknown annotation is no fault."""
    told = f"Tool 'nothing' has type='{kind}' and is annotated to return None. {GIVE}"
    assert refused(lambda: Tool(nothing, type=kind)) == told
    told = f"Tool 'nones' has type='{kind}' and is annotated to yield AsyncIterator[None]. {GIVE}"
    assert refused(lambda: Tool(nones, type=kind).prepare()) == told
    for function in (a_str, an_int, unsaid, known_to_checkers, numbers):
        made = Tool(function, type=kind).prepare()
        assert made.checked([]) == []
        gave = "yielded" if function is numbers else "returned"
        told = f"Tool '{made.name}' has type='{kind}' and {gave} None. {GIVE}"
        assert refused(lambda made=made: made.checked(None)) == told
    for function in (maybe, anything, rows_or_none):
        assert Tool(function, type=kind).prepare().checked(None) is None


def test_completion_checks_return_a_bool() -> None:
    """A coroutine function, annotated so, and it does so."""
    kind = "completion_check"
    start = "has type='completion_check' and"
    assert refused(lambda: tool(unsaid, type=kind)) == f"Tool 'unsaid' {start} has no return annotation. {CHECK}"
    assert refused(lambda: tool(a_str, type=kind)) == f"Tool 'a_str' {start} is annotated to return str. {CHECK}"
    assert refused(lambda: tool(nothing, type=kind)) == f"Tool 'nothing' {start} is annotated to return None. {CHECK}"
    assert refused(lambda: tool(bools, type=kind)) == f"Tool 'bools' {start} is an async generator. {CHECK}"
    told = f"Tool 'maybe' {start} is annotated to return str | None. {CHECK}"
    assert refused(tool(maybe, type=kind).prepare) == told
    assert refused(tool(anything, type=kind).prepare) == f"Tool 'anything' {start} is annotated to return Any. {CHECK}"
    for function in (a_bool, a_literal, known_to_checkers):
        made = Tool(function, type=kind).prepare()
        assert made.checked(False) is False
        told = f"Tool '{made.name}' {start} returned 'yes' (str). {CHECK}"
        assert refused(lambda made=made: made.checked("yes")) == told
        assert refused(lambda made=made: made.checked(1)).startswith(f"Tool '{made.name}' {start} returned 1 (int).")


def test_reasoning_gives_text() -> None:
    """Returned, or yielded chunk by chunk."""
    kind = "reasoning"
    start = "has type='reasoning' and"
    assert refused(lambda: tool(an_int, type=kind)) == f"Tool 'an_int' {start} is annotated to return int. {TEXT}"
    assert refused(lambda: tool(nothing, type=kind)) == f"Tool 'nothing' {start} is annotated to return None. {TEXT}"
    assert refused(tool(maybe, type=kind).prepare) == f"Tool 'maybe' {start} is annotated to return str | None. {TEXT}"
    assert f"Tool 'a_number' {start} is annotated to return" in refused(tool(a_number, type=kind).prepare)
    told = f"Tool 'numbers' {start} is annotated to yield AsyncIterator[int]. {TEXT}"
    assert refused(tool(numbers, type=kind).prepare) == told
    for function in (a_str, a_line, a_text, anything, unsaid, texts):
        made = Tool(function, type=kind).prepare()
        assert made.checked("so") == "so"
        gave = "yielded" if function is texts else "returned"
        told = f"Tool '{made.name}' {start} {gave} {{}} (dict). {TEXT}"
        assert refused(lambda made=made: made.checked({})) == told


def test_memory_writes_have_a_parameter_that_the_model_fills() -> None:
    """Injected and fixed parameters do not count; the return value is not checked."""

    async def empty() -> None: ...
    async def injected(context: ToolContext) -> None: ...
    async def keep(text: str, user: str) -> None: ...

    kind = "memory_write"
    start = "has type='memory_write' and has none."
    assert refused(lambda: Tool(empty, type=kind)) == f"Tool 'empty' {start} {FILLED}"
    assert refused(lambda: tool(type=kind, text="a", user="b")(keep)) == f"Tool 'keep' {start} {FILLED}"
    assert refused(Tool(injected, type=kind).prepare) == f"Tool 'injected' {start} {FILLED}"
    made = tool(type=kind, user="me")(keep).prepare()
    assert (made.contract, made.checked(None)) == (None, None)


def test_a_method_keeps_the_contract_of_its_tool() -> None:
    """Bound copies and copies under another name are checked by the name that they have."""

    class Work:
        @tool(type="completion_check")
        async def done(self) -> bool:
            return True

    told = f"Tool 'finished' has type='completion_check' and returned None. {CHECK}"
    assert refused(lambda: Work().done.renamed("finished").checked(None)) == told
    assert Work().done.prepare().checked(True) is True


def test_annotations_that_nobody_can_evaluate_do_not_fail() -> None:
    """Names of the type checker's are left alone, at decoration and when the tool is prepared."""
    kinds = (*GIVES, "reasoning", "completion_check")
    assert [tool(known_to_checkers, type=kind).prepare().type for kind in kinds] == list(kinds)


def test_a_broken_contract_is_a_tool_error_and_a_usage_error() -> None:
    """Its fields say which tool and type."""
    with pytest.raises(ToolError) as caught:
        tool(a_str, type="completion_check")
    error = caught.value
    assert isinstance(error, ToolContractError)
    assert isinstance(error, UsageError)
    assert (error.tool, error.type) == ("a_str", "completion_check")


def test_what_came_back_is_shown_short_even_if_its_repr_is_broken() -> None:
    """The message holds no more of a value than a reader needs."""

    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    made = tool(a_bool, type="completion_check")
    assert "returned a value without a readable repr (Broken)." in refused(lambda: made.checked(Broken()))
    assert f"returned 'xxxx{'x' * 75}… (str)." in refused(lambda: made.checked("x" * 500))
