"""A support desk: agents hand the conversation over, one asks for approval, and the conversation survives a restart."""

from __future__ import annotations

import asyncio

from agentflow import Agent, Approve, Session, ToolUseBlock, tool
from agentflow.agent.orchestration import handoffs, holder
from agentflow.testing import Line, ScriptedModel


@tool(requires_approval=True)
async def refund(order: int, euros: int) -> str:
    """Refund a customer."""
    return f"{euros} euros for order {order} are on their way"


def make_desk(triage: list[Line], billing: list[Line], tech: list[Line]) -> Agent[str]:
    return handoffs(
        Agent("triage", ScriptedModel(triage), system="Find out who can help."),
        Agent("billing", ScriptedModel(billing), description="Orders and money.", tools=[refund]),
        Agent("tech", ScriptedModel(tech), description="Repairs things."),
        to={"triage": ["billing", "tech"], "billing": ["tech"]},
        max_handoffs=3,
    )


async def say(desk: Agent[str], text: str, session: Session) -> None:
    print("user:", text)
    reply = await desk.call(text, session=session)
    while reply.outcome == "suspended":
        for waits in reply.pending:
            print(f"  ({waits.source} asks for leave: {waits.tool_use})")
        reply = await desk.resume(session, {waits.id: Approve() for waits in reply.pending})
    print(f"{holder(session.messages)}: {reply.text}")


async def work() -> None:
    desk = make_desk(
        ["Hello! What is it?", ToolUseBlock("h1", "transfer_to_billing", {"reason": "wants money back"})],
        [ToolUseBlock("r1", "refund", {"order": 7, "euros": 20}), "You get 20 euros."],
        [],
    )
    session = Session.fresh(id="ada")
    await say(desk, "Hi", session)
    await say(desk, "My lamp came broken, I want my money back", session)
    saved = session.to_json()

    print("--- another day, another process")
    desk = make_desk([], [ToolUseBlock("h2", "transfer_to_tech", {"reason": "a lamp that flickers"})], ["Turn it off."])
    await say(desk, "The new one flickers", Session.from_json(saved))


def main() -> None:
    asyncio.run(work())


if __name__ == "__main__":
    main()
