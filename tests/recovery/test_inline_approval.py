"""A person approves while the call waits, and the process dies: who is asked again, and what runs again."""

from __future__ import annotations

from agentflow import Agent, MemoryStore, ToolUseBlock, tool
from agentflow.plugins.approval import Approval, ApprovalRequest
from agentflow.testing import ScriptedModel
from agentflow.testing.faults import Crash, ProcessDied
from agentflow.vocabulary.ports.model import ModelRequest


def play(request: ModelRequest) -> ToolUseBlock | str:
    return "ok" if request.messages[-1].role == "tool" else ToolUseBlock("t", "pay", {"cents": 1})


async def died(at: int) -> tuple[str, int, int] | None:
    """Return where the process died, how often the person was asked, and how often the tool paid, with the resumed
    call.
    """
    asked: list[str] = []
    paid: list[int] = []

    async def person(request: ApprovalRequest) -> bool:
        asked.append(request.tool_use.name)
        return True

    @tool
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    crash, store = Crash(at=at), MemoryStore()
    hooks = [Approval(ask=person)]
    first = Agent("a", crash.model(ScriptedModel(play)), tools=[crash.tool(pay)], hooks=hooks, store=crash.store(store))
    try:
        await first.call("x", session="s")
    except ProcessDied:
        later = Agent("a", ScriptedModel(play), tools=[pay], hooks=hooks, store=store)
        if await later.unfinished():
            await later.resume("s")
        return crash.points[-1], len(asked), len(paid)
    return None


async def test_an_answer_that_is_stored_is_not_asked_for_again() -> None:
    """A person is asked twice only if the crash came before the answer was stored; nothing is paid twice."""
    found = [outcome for at in range(2, 40) if (outcome := await died(at)) is not None]
    assert len(found) > 15
    assert [point for point, asked, _ in found if asked > 1] == ["before commit ToolDecided, ToolStarted"]
    assert all(paid <= 1 for _, _, paid in found)


async def test_before_the_call_is_stored_there_is_nothing_to_go_on_with() -> None:
    """No person was asked."""
    outcome = await died(1)
    assert outcome is not None
    assert outcome[1:] == (0, 0)
