"""A value with which a hook replaces a tool's own has the same type."""

from __future__ import annotations

from typing import Any

import pytest
from turnlog import add, count, worker

from agentflow import Hook, PostActing, PreActing, Turn, on, tool
from agentflow.tools.results import read_back, render


@tool
async def delete_file(path: str) -> str:
    """Delete."""
    return f"deleted {path}"


async def test_a_replaced_result_is_read_back_as_what_the_tool_returns() -> None:
    """If a hook puts a number into the result, it is returned as a number; other text stays text."""

    def put(text: str) -> Hook:
        @on(PostActing)
        def replace(event: PostActing) -> None:
            result = event.tool_result
            event.tool_result = type(result)(result.tool_use_id, result.name, text)

        return replace

    numbers = {"a": 1, "b": 2}
    assert [await Turn(add, numbers, hooks=[put(text)]).returning() for text in ("4", "[hidden]")] == [4, "[hidden]"]
    assert await Turn(delete_file, {"path": "a"}, hooks=[put("4")]).returning() == "4"


@pytest.mark.parametrize(
    ("hint", "value"),
    [(int, 3), (bool, True), (float, 2.5), (None, None), (int | None, None), (str, "3"), (str | int, "3"),
     (list[int], [1, 2]), (dict[str, int], {"a": 1}), (Any, "3"), (tuple[int, str], (1, "a"))],
)  # fmt: skip
def test_a_value_is_read_back_from_the_text_that_it_was_rendered_to(hint: Any, value: object) -> None:
    """`read_back` inverts `render`, if the annotation allows it."""
    text = render(value)
    assert isinstance(text, str)
    assert read_back(text, hint) == value


async def test_a_generators_turn_that_a_hook_sends_to_a_returning_tool_hands_out_its_value() -> None:
    """One value, from the queue and by hand; in the opposite case it is one value too."""

    def to(name: str, **given: int) -> Hook:
        @on(PreActing)
        def rename(event: PreActing) -> None:
            event.tool_use = event.tool_use.replace(name=name, input=given)

        return rename

    agent = worker(add, count)
    await agent.put(Turn(count, {"n": 3}, hooks=[to("add", a=1, b=2)]))
    await agent.put(Turn(add, {"a": 1, "b": 2}, hooks=[to("count", n=2)]))
    assert [value async for _, value in agent.run()] == [3, [0, 1]]
