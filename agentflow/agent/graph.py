"""`Graph`: who may call whom, as data, as text and as a picture in Mermaid's notation.

It is read from what agents were built with: tools, agents among them, toolsets that are opened, hand-offs. Whom a tool asks by
name (`agent.ask`) is known when it does so, and not before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Protocol, runtime_checkable

from agentflow.agent.arguments import Behind, agent_behind
from agentflow.ground.shown import one_line
from agentflow.ground.values import NamedTuple

__all__ = ["Edge", "Graph", "HandsOver", "Kind", "graph_of"]

Kind = Literal["agent", "tool", "toolset"]
"""What a node of the graph is."""

_BOXES = {"agent": '["{}"]', "tool": '("{}")', "toolset": '[("{}")]'}


class Edge(NamedTuple):
    """One may call the other, or with `hands_over` pass the conversation on to it; both are keys of `Graph.nodes`."""

    caller: str
    called: str
    hands_over: bool = False


@runtime_checkable
class HandsOver(Protocol):
    """A hook by which agents of its agent hand the conversation on."""

    @property
    def passes(self) -> tuple[tuple[str, str], ...]:
        """Who hands to whom, by name."""
        ...


class Graph(NamedTuple):
    """Who may call whom.

    Attributes:
        root: The agent that was asked; a key of `nodes`.
        nodes: What there is, by key: the name, and what it is. Where two have one name, the key of the second says which it is.
        edges: Who may call whom, in the order of their tools.

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
        """A tree; what was shown above is not unfolded again, and hand-offs are not unfolded."""
        lines: list[str] = []
        shown: set[str] = set()

        def walk(key: str, lead: str, below: str) -> None:
            name, kind = self.nodes[key]
            calls = [edge for edge in self.edges if edge.caller == key]
            again = key in shown and bool(calls)
            lines.append(f"{lead}{one_line(name)} ({kind}{', see above' if again else ''})")
            shown.add(key)
            for place, edge in enumerate(() if again else calls):
                branch, rest = ("└─ ", "   ") if place == len(calls) - 1 else ("├─ ", "│  ")
                if edge.hands_over:
                    lines.append(f"{below}{branch}hands over to {one_line(self.nodes[edge.called][0])}")
                else:
                    walk(edge.called, below + branch, below + rest)

        walk(self.root, "", "")
        return "\n".join(lines)

    def mermaid(self) -> str:
        """The same for Mermaid: agents are boxes, tools are round, toolsets are drums, hand-offs are dotted.

        Example:
            >>> print(Agent("clerk", "openai/gpt-5", tools=[add]).graph().mermaid())
            flowchart TD
              n0["clerk"]
              n1("add")
              n0 --> n1
        """
        ids = {key: f"n{place}" for place, key in enumerate(self.nodes)}
        boxes = [f"  {ids[key]}{_BOXES[kind].format(_escaped(name))}" for key, (name, kind) in self.nodes.items()]
        arrows = [
            f"  {ids[e.caller]} {'-. hands over .->' if e.hands_over else '-->'} {ids[e.called]}" for e in self.edges
        ]
        return "\n".join(["flowchart TD", *boxes, *arrows])


class _Drawing:
    """A graph while it is drawn."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[str, Kind]] = {}
        self.edges: dict[Edge, None] = {}
        self._keys: dict[int, str] = {}

    def key(self, thing: object, name: str, kind: Kind) -> tuple[str, bool]:
        """The key of a thing, and whether it is new."""
        known = self._keys.get(id(thing))
        if known is not None:
            return known, False
        key, number = name, 1
        while key in self.nodes:
            number += 1
            key = f"{name} {number}"
        self._keys[id(thing)] = key
        self.nodes[key] = (name, kind)
        return key, True

    def add(self, agent: Behind) -> str:
        """Draw an agent and all below it."""
        own, new = self.key(agent, agent.name, "agent")
        if not new:
            return own
        below: dict[str, str] = {}
        for tool in agent.own_tools:
            behind = agent_behind(tool.function)
            called = self.key(tool, tool.name, "tool")[0] if behind is None else self.add(behind)
            below[tool.name] = called
            self.edges[Edge(own, called)] = None
        for toolset in agent.live_toolsets:
            set_key, first = self.key(toolset, toolset.name, "toolset")
            self.edges[Edge(own, set_key)] = None
            for tool in toolset.tools if first else ():
                self.edges[Edge(set_key, self.key(tool, tool.name, "tool")[0])] = None
        for one, other in self._hand_offs(agent):
            if one in below and other in below:
                self.edges[Edge(below[one], below[other], hands_over=True)] = None
        return own

    @staticmethod
    def _hand_offs(agent: Behind) -> Iterator[tuple[str, str]]:
        for hook in agent.hooks:
            if isinstance(hook, HandsOver):
                yield from hook.passes


def graph_of(agent: Behind) -> Graph:
    """Who may call whom, from an agent on."""
    drawing = _Drawing()
    root = drawing.add(agent)
    return Graph(root, drawing.nodes, tuple(drawing.edges))


def _escaped(name: str) -> str:
    return "".join(c if c.isalnum() or c in " _-./:" else f"#{ord(c)};" for c in one_line(name))
