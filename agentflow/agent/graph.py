"""`Graph`: the possible calls between agents and tools, as data, as text and as a Mermaid diagram.

The graph is built from the arguments of the agents: tools (including agents), live toolsets and handoffs. It does not
contain agents that a tool calls by name (`agent.ask`), since these are not known in advance.
"""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

from agentflow._support.shown import one_line
from agentflow._support.values import NamedTuple
from agentflow.agent.arguments import ToolableAgent, wrapped_agent
from agentflow.vocabulary.specs import WORKFLOW_STEP

Kind = Literal["agent", "tool", "toolset"]
"""The kind of a node."""

_BOXES = {"agent": '["{}"]', "tool": '("{}")', "toolset": '[("{}")]'}


class Edge(NamedTuple):
    """A possible call, or with `hands_over` a possible handoff of the conversation; both ends are keys of
    `Graph.nodes`.
    """

    caller: str
    called: str
    hands_over: bool = False


@runtime_checkable
class HandsOver(Protocol):
    """A hook that lets its agent's sub-agents hand the conversation over."""

    @property
    def passes(self) -> tuple[tuple[str, str], ...]:
        """The possible handoffs, as pairs of names."""
        ...


class Graph(NamedTuple):
    """The possible calls between agents and tools.

    Attributes:
        root: The key of the agent where the graph starts.
        nodes: The name and the kind of each node, by key. If two nodes have the same name, the second key has a number.
        edges: The possible calls, in the order of the tools.

    Example:
        >>> librarian = Agent("librarian", "openai/gpt-5", tools=[add])
        >>> print(Agent("clerk", "openai/gpt-5", tools=[librarian]).graph())
        clerk (agent)
        └─ librarian (agent)
           └─ add (tool)
    """

    root: str
    nodes: dict[str, tuple[str, Kind]]
    edges: tuple[Edge, ...]

    def __str__(self) -> str:
        """Return the graph as a tree of text, which expands each node only once and does not expand handoffs."""
        lines: list[str] = []
        shown: set[str] = set()

        def walk(key: str, lead: str, below: str) -> None:
            name, kind = self.nodes[key]
            calls = [edge for edge in self.edges if edge.caller == key]
            again = key in shown and bool(calls)
            lines.append(f"{lead}{one_line(name)} ({kind}{', see above' if again else ''})")
            shown.add(key)
            for index, edge in enumerate(() if again else calls):
                branch, rest = ("└─ ", "   ") if index == len(calls) - 1 else ("├─ ", "│  ")
                if edge.hands_over:
                    lines.append(f"{below}{branch}hands over to {one_line(self.nodes[edge.called][0])}")
                else:
                    walk(edge.called, below + branch, below + rest)

        walk(self.root, "", "")
        return "\n".join(lines)

    def mermaid(self) -> str:
        """Return a Mermaid diagram: agents are boxes, tools are round, toolsets are drums, handoffs are dotted.

        Example:
            >>> print(Agent("clerk", "openai/gpt-5", tools=[add]).graph().mermaid())
            flowchart TD
              n0["clerk"]
              n1("add")
              n0 --> n1
        """
        ids = {key: f"n{index}" for index, key in enumerate(self.nodes)}
        boxes = [f"  {ids[key]}{_BOXES[kind].format(escaped(name))}" for key, (name, kind) in self.nodes.items()]
        arrows = [
            f"  {ids[e.caller]} {'-. hands over .->' if e.hands_over else '-->'} {ids[e.called]}" for e in self.edges
        ]
        return "\n".join(["flowchart TD", *boxes, *arrows])


class _Drawing:
    """A graph while it is built."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[str, Kind]] = {}
        self.edges: dict[Edge, None] = {}
        self._keys: dict[int, str] = {}

    def key(self, item: object, name: str, kind: Kind) -> tuple[str, bool]:
        """Return the key of an object, and whether it is new."""
        known = self._keys.get(id(item))
        if known is not None:
            return known, False
        key, number = name, 1
        while key in self.nodes:
            number += 1
            key = f"{name} {number}"
        self._keys[id(item)] = key
        self.nodes[key] = (name, kind)
        return key, True

    def add(self, agent: ToolableAgent) -> str:
        """Add an agent and all nodes below it."""
        own, new = self.key(agent, agent.name, "agent")
        # Agents may call each other in a circle.
        if not new:
            return own
        below: dict[str, str] = {}
        for tool in agent.own_tools:
            # This tool runs the steps of functions, and is not a participant.
            if tool.name == WORKFLOW_STEP:
                continue
            wrapped = wrapped_agent(tool.function)
            called = self.key(tool, tool.name, "tool")[0] if wrapped is None else self.add(wrapped)
            below[tool.name] = called
            self.edges[Edge(own, called)] = None
        for toolset in agent.live_toolsets:
            set_key, first = self.key(toolset, toolset.name, "toolset")
            self.edges[Edge(own, set_key)] = None
            for tool in toolset.tools if first else ():
                self.edges[Edge(set_key, self.key(tool, tool.name, "tool")[0])] = None
        for source, target in (pair for hook in agent.hooks if isinstance(hook, HandsOver) for pair in hook.passes):
            if source in below and target in below:
                self.edges[Edge(below[source], below[target], hands_over=True)] = None
        return own


def graph_of(agent: ToolableAgent) -> Graph:
    """Return the graph of the calls that can start from an agent."""
    drawing = _Drawing()
    root = drawing.add(agent)
    return Graph(root, drawing.nodes, tuple(drawing.edges))


def escaped(name: str) -> str:
    """Escape a text for Mermaid, so that it is only shown and never interpreted."""
    return "".join(c if c.isalnum() or c in " _-./:" else f"#{ord(c)};" for c in one_line(name))
