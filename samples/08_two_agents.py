"""Two agents: one as a tool of the other, direct questions and turns between them, and the cost of each."""

from __future__ import annotations

import asyncio

from agentflow import Agent, HookEvent, PostActing, ToolUseBlock, Turn, on, tool
from agentflow.agent import AgentRegistry
from agentflow.testing import ScriptedModel
from agentflow.vocabulary import PostReasoning, PrePut

agents = AgentRegistry()
SHELVES = {"Faust": 4, "Hamlet": 7}


@tool(type="read")
async def shelf_of(title: str) -> int:
    """Return the shelf of a book."""
    return SHELVES[title]


@on(PrePut, observer=True)
def show(event: PrePut) -> None:
    print(f"{event.agent.name} gets {event.turn.tool_use.name} from {event.turn.sender}")


def make_agents() -> tuple[Agent, Agent]:
    librarian = Agent(
        "librarian",
        ScriptedModel(
            [
                ToolUseBlock("s1", "shelf_of", {"title": "Faust"}),
                "Shelf 4.",
                "You are welcome.",
            ]
        ),
        description="Knows where books stand.",
        tools=[shelf_of],
        hooks=[show],
        agents=agents,
    )
    clerk = Agent(
        "clerk",
        ScriptedModel([ToolUseBlock("t1", "librarian", {"message": "Where is Faust?"}), "Faust is on shelf 4."]),
        tools=[librarian],  # each use is a call in a fresh session, billed to the caller
        agents=agents,
    )
    agents.register(librarian)
    agents.register(clerk)
    return clerk, librarian


def line(event: HookEvent) -> None:
    match event:
        case PostReasoning(reasoning_result=said):
            print(f"  [{event.source or 'top'}] says", said.text or [use.name for use in said.tool_uses])
        case PostActing(tool_use=use, tool_result=result):
            print(f"  [{event.source or 'top'}] {use.name} →", result.text)
        case _:
            pass


async def work() -> None:
    clerk, _ = make_agents()
    async with clerk.stream("Where is Faust?", children=True) as events:  # the sub-agent's events too
        async for event in events:
            line(event)
    reply = await clerk.ask("librarian", "Thank you!")  # through the librarian's queue, which starts a call
    print("asked:", reply, f"({reply.usage.model_calls} model call)")
    receipt = await clerk.send("librarian", Turn(shelf_of, {"title": "Hamlet"}))  # no model: just the tool
    print("sent: ", await receipt)


def main() -> None:
    asyncio.run(work())


if __name__ == "__main__":
    main()
