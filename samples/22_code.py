"""The model's code calls tools: one program instead of ten rounds, with an approval in the middle.

python samples/22_code.py
"""

from __future__ import annotations

import asyncio
import shutil

from agentflow import Agent, Approve, Hook, HookEvent, PostActing, ToolUseBlock, tool
from agentflow.plugins.code import Bubblewrap, code_tool
from agentflow.testing import ScriptedModel

PROGRAM = """
late = [order for order in orders() if order["days"] > 30]
print(len(late), "orders are late")
for order in late:
    print(refund(order["id"]))
"""


@tool(type="read")
async def orders() -> list[dict[str, int]]:
    """List the open orders, with their age in days."""
    return [{"id": number, "days": number * 11} for number in range(1, 5)]


@tool(requires_approval=True)
async def refund(order: int) -> str:
    """Refund an order."""
    return f"order {order} is refunded"


class ShowCalls(Hook):
    """Prints the calls inside the program too."""

    scope = "tree"
    observer = True
    events = (PostActing,)

    def on_event(self, event: HookEvent) -> None:
        if isinstance(event, PostActing) and event.tool_use.name != "workflow_step":
            print(f"  {event.source or 'the model'}: {event.tool_use.name} {event.tool_result.state}")


async def work() -> None:
    """Refund the late orders, with an approval for each."""
    if shutil.which("bwrap") is None:
        print("This sample needs bubblewrap: apt-get install bubblewrap")
        return
    model = ScriptedModel([ToolUseBlock("t1", "run_python", {"code": PROGRAM}), "Two orders are refunded."])
    code = code_tool(orders, refund, sandbox=Bubblewrap(seconds=10))
    agent = Agent("clerk", model, tools=[code], hooks=[ShowCalls()])
    reply = await agent.call("Refund what is late.")
    while reply.outcome == "suspended":
        waits = reply.pending[0]
        print(f"approved: {waits.tool_use and waits.tool_use.raw}")
        reply = await agent.resume(decisions={waits.id: Approve()})
    print(model.requests[-1].messages[-1].tool_results[0].text.strip())
    print(reply.text)


def main() -> None:
    asyncio.run(work())


if __name__ == "__main__":
    main()
