"""Agents: calls, sessions, turns, queue and shutdown (`docs/agent.md`). `orchestration/` combines several agents."""

from agentflow.agent.agent import Agent
from agentflow.agent.agent_flux import AgentFlux
from agentflow.agent.builder import AgentBuilder
from agentflow.agent.graph import Edge, Graph
from agentflow.agent.peers import AgentRegistry, default_agents
from agentflow.agent.queue import TurnQueue
from agentflow.agent.receipt import Receipt
from agentflow.agent.shutdown import GracefulShutdown, ShutdownReport, shutdown
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
