"""Agents by name, so that they can be sent to. `default_agents` is where agents look unless they are told otherwise."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from agentflow.agent.queue import TurnQueue
from agentflow.ground.registry import NamedRegistry
from agentflow.tools.tool import Tool

__all__ = ["AgentRegistry", "Peer", "default_agents"]


class Peer(Protocol):
    """An agent, as others know it."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def queue(self) -> TurnQueue:
        """Its turns."""
        ...

    @property
    def asking(self) -> Tool[..., Any]:
        """The tool whose turns are questions to it."""
        ...


class AgentRegistry(NamedRegistry[Peer]):
    """Agents by name.

    Example:
        >>> agents = AgentRegistry()
        >>> librarian = agents.register(Agent("librarian", "openai/gpt-5"))
        >>> clerk = Agent("clerk", "openai/gpt-5", agents=agents)
        >>> agents.names
        ('librarian',)
    """

    _kind: ClassVar[str] = "agent"


default_agents = AgentRegistry()
"""The registry of the process."""
