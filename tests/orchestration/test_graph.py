"""`agent.graph()`: who may call whom."""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer as Server

from agentflow import Agent, tool
from agentflow.agent import Edge
from agentflow.agent.orchestration import handoffs, workflow
from agentflow.mcp import MCPServer
from agentflow.testing import ScriptedModel


@tool
async def look(at: str) -> str:
    """Look."""
    return at


def agent(name: str, *tools: Any) -> Agent[Any]:
    return Agent(name, ScriptedModel([]), tools=tools)


DESK = """
desk (agent)
├─ triage (agent)
│  ├─ hands over to billing
│  └─ hands over to tech
├─ billing (agent)
│  ├─ look (tool)
│  └─ hands over to triage
└─ tech (agent)
   └─ team (agent)
      ├─ writer (agent)
      │  └─ look (tool)
      └─ look (tool)
"""

MERMAID = """
flowchart TD
  n0["desk"]
  n1["triage"]
  n2["billing"]
  n3("look")
  n0 --> n1
  n2 --> n3
  n0 --> n2
  n1 -. hands over .-> n2
  n2 -. hands over .-> n1
"""


def test_a_tree_with_hand_offs_in_a_circle() -> None:
    """Agents, their tools, workflows below them, and handoffs; circles are shown and do not hang."""

    @workflow(agent("writer", look), look)
    async def team(task: str) -> str:
        return task

    ways = {"triage": ["billing", "tech"], "billing": ["triage"]}
    desk = handoffs(agent("triage"), agent("billing", look), agent("tech", team), to=ways)
    assert str(desk.graph()) == DESK.strip()
    small = handoffs(agent("triage"), agent("billing", look))
    assert small.graph().mermaid() == MERMAID.strip()
    assert Edge("billing", "triage", hands_over=True) in small.graph().edges


def test_what_is_reached_by_two_ways_is_drawn_once() -> None:
    """One node for a shared agent, and two for two agents of one name; a tree does not expand it again."""
    shared = agent("shared", look)
    other = agent("shared")
    graph = agent("top", agent("a", shared), agent("b", shared), agent("c", other)).graph()
    assert str(graph).splitlines() == [
        "top (agent)",
        "├─ a (agent)",
        "│  └─ shared (agent)",
        "│     └─ look (tool)",
        "├─ b (agent)",
        "│  └─ shared (agent, see above)",
        "└─ c (agent)",
        "   └─ shared (agent)",
    ]
    assert list(graph.nodes.items())[2] == ("shared", ("shared", "agent"))
    assert graph.nodes["shared 2"] == ("shared", "agent")


def test_names_are_text() -> None:
    """A name never becomes markup or a line of its own."""
    graph = Agent('a"]; click x\n<b>', ScriptedModel([])).graph()
    assert graph.mermaid().splitlines()[1] == '  n0["a#34;#93;#59; click x #60;b#62;"]'
    assert str(graph).count("\n") == 0


async def test_a_server_and_its_tools() -> None:
    """A toolset is in it from the start, its tools when it is open."""
    shop = Server("shop")

    @shop.tool()
    async def price(article: str) -> float:
        """Look up a price."""
        return 0.4

    clerk = Agent("clerk", ScriptedModel([]), tools=[MCPServer.in_memory(shop), look])
    assert str(clerk.graph()).splitlines() == ["clerk (agent)", "├─ look (tool)", "└─ shop (toolset)"]
    async with clerk:
        assert str(clerk.graph()).splitlines()[2:] == ["└─ shop (toolset)", "   └─ price (tool)"]
        assert clerk.graph().mermaid().splitlines()[3] == '  n2[("shop")]'
