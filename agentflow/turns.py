"""Turns: runs of tools without a model, and their queue (`docs/turns.md`, `docs/queues.md`)."""

from agentflow.agent.queue import TurnQueue
from agentflow.events import Paused, PostPut, PostTurn, PrePut, PreTurn, Resumed, TurnEvent, TurnValue, TurnView
from agentflow.loop.turns.turn import StopReason, Turn, TurnOptions

__all__ = [
    "Paused",
    "PostPut",
    "PostTurn",
    "PrePut",
    "PreTurn",
    "Resumed",
    "StopReason",
    "Turn",
    "TurnEvent",
    "TurnOptions",
    "TurnQueue",
    "TurnValue",
    "TurnView",
]
