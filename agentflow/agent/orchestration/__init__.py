"""Several agents together: workflows in code, handoffs, group conversations; and one agent for many inputs.

Not included, since plain code suffices: to consult an agent, pass `tools=[other]`; to call several outside a run, use
`Mono.zip`. See `docs/multi-agent.md`.
"""

from agentflow.agent.orchestration.batch import BatchProgress, batch
from agentflow.agent.orchestration.flow import Block, Flow, flow_of
from agentflow.agent.orchestration.functions import step
from agentflow.agent.orchestration.handoff import Handoff, HandoffHistory, handoffs, holder
from agentflow.agent.orchestration.hub import Contribution, Hub
from agentflow.agent.orchestration.steps import Group, Step, StepError, ask, gather, race, use
from agentflow.agent.orchestration.workflow import WorkflowOptions, workflow

__all__ = [
    "BatchProgress",
    "Block",
    "Contribution",
    "Flow",
    "Group",
    "Handoff",
    "HandoffHistory",
    "Hub",
    "Step",
    "StepError",
    "WorkflowOptions",
    "ask",
    "batch",
    "flow_of",
    "gather",
    "handoffs",
    "holder",
    "race",
    "step",
    "use",
    "workflow",
]
