"""Agents together: workflows of code, hand-offs, and conversations of several.

What plain code says is not here: to consult an agent is `tools=[other]`, to ask several from outside of a run is `Mono.zip`.
See `docs/multi-agent.md`.
"""

from agentflow.orchestration.handoff import Travels, handoffs, holder
from agentflow.orchestration.hub import Hub, Said
from agentflow.orchestration.steps import Group, Step, StepError, ask, gather, race, use
from agentflow.orchestration.workflow import WorkflowOptions, workflow

__all__ = [
    "Group",
    "Hub",
    "Said",
    "Step",
    "StepError",
    "Travels",
    "WorkflowOptions",
    "ask",
    "gather",
    "handoffs",
    "holder",
    "race",
    "use",
    "workflow",
]
