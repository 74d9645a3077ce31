"""Agents: calls, sessions, turns, queue and shutdown (`docs/agent.md`). `orchestration/` combines several agents."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily

if TYPE_CHECKING:
    from agentflow.agent.agent import Agent
    from agentflow.agent.agent_flux import AgentFlux
    from agentflow.agent.builder import AgentBuilder
    from agentflow.agent.graceful import GracefulShutdown, ShutdownReport, shutdown
    from agentflow.agent.graph import Edge, Graph
    from agentflow.agent.peers import AgentRegistry, default_agents
    from agentflow.agent.queue import TurnQueue
    from agentflow.agent.receipt import Receipt
    from agentflow.loop.session import Session
    from agentflow.loop.turn import StopReason, Turn, TurnOptions

__all__ = [
    "Agent",
    "AgentBuilder",
    "AgentFlux",
    "AgentRegistry",
    "Edge",
    "GracefulShutdown",
    "Graph",
    "Receipt",
    "Session",
    "ShutdownReport",
    "StopReason",
    "Turn",
    "TurnOptions",
    "TurnQueue",
    "default_agents",
    "shutdown",
]

if not TYPE_CHECKING:  # otherwise a type checker would accept any name
    __getattr__, __dir__ = lazily(
        __name__,
        {
            ".agent": "Agent",
            ".agent_flux": "AgentFlux",
            ".builder": "AgentBuilder",
            ".graph": "Edge Graph",
            ".peers": "AgentRegistry default_agents",
            ".queue": "TurnQueue",
            ".receipt": "Receipt",
            ".graceful": "GracefulShutdown ShutdownReport shutdown",
            "agentflow.loop.session": "Session",
            "agentflow.loop.turn": "StopReason Turn TurnOptions",
        },
    )
