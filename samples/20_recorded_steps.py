"""A workflow that calls plain functions as recorded steps, and a handoff with a typed input.

A function's step runs once: if the workflow pauses, it continues with the recorded result.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from agentflow import Agent, ToolUseBlock, tool
from agentflow.agent.orchestration import Handoff, handoffs, step, use, workflow
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.verdicts import Approve


@dataclass
class Ticket:
    """What billing needs to know."""

    invoice: int
    urgent: bool = False


async def exchange_rate(currency: str) -> float:
    print("asks the bank about", currency)
    return 1.25


@tool(requires_approval=True)
async def pay(euros: float) -> str:
    """Pay an amount."""
    return f"paid {euros} euros"


@workflow(pay)
async def refund(dollars: str) -> str:
    """Refund an amount in dollars."""
    rate = await step(exchange_rate, "USD")
    return await use(pay, euros=float(dollars) / rate)


def look_up(handoff: Handoff) -> None:
    """Refuse invoices that do not exist, before the conversation is handed over."""
    print("handoff   ", handoff.by, "->", handoff.to, handoff.input)
    if handoff.input.invoice > 100:
        raise ValueError(f"there is no invoice {handoff.input.invoice}")


async def run() -> None:
    waits = await refund.call("10")
    print("waits for ", waits.tool_uses[0].name)
    print("reply     ", (await refund.resume(decisions={waits.pending[0].id: Approve()})).output)

    wrong = ToolUseBlock("t1", "transfer_to_billing", {"invoice": 700})
    right = ToolUseBlock("t2", "transfer_to_billing", {"invoice": 7, "urgent": True})
    triage = Agent("triage", ScriptedModel([wrong, right]))
    billing = Agent("billing", model := ScriptedModel(["Invoice 7 is paid."]))
    desk = handoffs(triage, billing, inputs={"billing": Ticket}, on_handoff=look_up)
    print("reply     ", (await desk.call("Is my invoice paid? I need to know today!")).text)
    print("billing read", model.requests[0].messages[-1].text)


def main() -> None:
    asyncio.run(run())


if __name__ == "__main__":
    main()
