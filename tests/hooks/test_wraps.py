"""`Hook.wraps`: the work that a hook wraps."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow import Agent, Hook, PreActing, PreReasoning, ToolUseBlock, tool
from agentflow.errors import UsageError
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import PostActing


class Wraps(Hook):
    """Records whose work it was called to wrap."""

    wraps = (PreActing,)

    def __init__(self) -> None:
        self.asked: list[str] = []

    def around(self, event: Any, source: Any) -> Any:
        self.asked.append(type(event).__name__)
        return source


@tool
async def look() -> str:
    """Look."""
    return "seen"


async def test_around_is_called_for_the_work_it_names() -> None:
    """A hook that names `PreActing` is not called for the call, the model or the round."""
    hook = Wraps()
    await Agent("a", ScriptedModel([ToolUseBlock("t1", "look"), "end"]), tools=[look], hooks=[hook]).call("go")
    assert hook.asked == ["PreActing"]


async def test_without_names_it_is_called_for_all() -> None:
    """`wraps = None`, the default, is all four stages."""

    class All(Wraps):
        wraps = None

    hook = All()
    await Agent("a", ScriptedModel([ToolUseBlock("t1", "look"), "end"]), tools=[look], hooks=[hook]).call("go")
    assert hook.asked == ["PreCall", "PreReasoning", "PreToolRound", "PreActing", "PreReasoning"]


@pytest.mark.parametrize("wraps", [PreActing, (PostActing,), (PreReasoning, "PreActing"), [PreActing]])
def test_what_names_no_work_is_refused(wraps: Any) -> None:
    """A tuple of Pre events that have work is legal; the error names the hook."""
    hook = type("Odd", (Wraps,), {"wraps": wraps})()
    with pytest.raises(UsageError, match=r"'Odd'.*wraps="):
        Agent("a", ScriptedModel([]), hooks=[hook])
