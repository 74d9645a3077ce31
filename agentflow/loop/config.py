"""The configuration that an agent passes to the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, TypeAlias

from agentflow._support.values import field, frozen
from agentflow.hooks.scope import ProcessHooks, process_hooks
from agentflow.loop.active import Running
from agentflow.loop.schedule import ToolSchedule
from agentflow.loop.scope import CLEANUP_TIMEOUT
from agentflow.ports.model import Model
from agentflow.tools.tool import FullTool
from agentflow.vocabulary.context import AgentView, RunContext
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.specs import Clock, ModelOptions, ToolSpec

__all__ = ["LoopConfig", "OnUnknownOutcome", "System"]

System: TypeAlias = str | Msg | Callable[[RunContext], "str | Msg | Awaitable[str | Msg | None] | None"] | None
"""A system prompt, or a function that returns one for each call."""

OnUnknownOutcome: TypeAlias = Literal["tell", "suspend"]
"""How to handle a tool that was running when the process ended: `"tell"` the model, or `"suspend"` to ask a person."""


@frozen
class LoopConfig:
    """The configuration of an agent for the loop: fixed when the agent is built, shared by all its runs."""

    view: AgentView
    model: str | Model
    system: System
    tools: Mapping[str, FullTool[..., Any]]
    specs: tuple[ToolSpec, ...]
    dep_types: tuple[tuple[str, type], ...]
    options: ModelOptions
    max_iterations: int
    schedule: ToolSchedule
    clock: Clock
    new_id: Callable[[str], str]
    tags: frozenset[str] = frozenset()
    process: ProcessHooks = process_hooks
    on_unknown_outcome: OnUnknownOutcome = "tell"
    cleanup_timeout: float = CLEANUP_TIMEOUT
    running: Running = field(default_factory=Running)
