"""The configuration that an agent passes to the loop, and the agent's running calls.

Rules:

1. A call is registered in `Running` from its first event to its last.
2. A closed agent starts no calls. Its running calls are asked to stop at their next safe point, or are left open as
   after a crash. In both cases `agent.resume` continues them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias
from weakref import ReferenceType

from agentflow._support.values import field, frozen
from agentflow.hooks.scope import ProcessHooks, process_hooks
from agentflow.loop.schedule import ToolSchedule
from agentflow.loop.scope_parts import CLEANUP_TIMEOUT
from agentflow.loop.session import FullSession
from agentflow.tools.tool import FullTool
from agentflow.vocabulary.context import AgentView, RunContext
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import Model
from agentflow.vocabulary.specs import Clock, ModelOptions, ToolSpec

__all__ = ["FrozenAgentView", "LoopConfig", "OnUnknownOutcome", "Running", "Stoppable", "System"]


class Stoppable(Protocol):
    """A running call."""

    @property
    def session_id(self) -> str:
        """The id of its session."""
        ...

    @property
    def inner(self) -> bool:
        """Whether it is a sub-agent's call, which continues when its caller's session is resumed."""
        ...

    @property
    def left_open(self) -> bool:
        """Whether its session contains a call that `agent.resume` can continue."""
        ...

    def halt(self) -> None:
        """Stop at the next safe point: after a model's reply or a tool's result."""
        ...

    def leave(self, reason: str) -> None:
        """Cancel the running work, and leave the call open for a resume."""
        ...


class Running:
    """The running calls of an agent.

    Attributes:
        runs: The running calls.
        owner: The agent. A weak reference, so that a call does not keep the agent alive.
        closed: Whether the agent starts no more calls.
        suspended: The sessions that wait for a decision, by id.
        halted: The calls that were asked to stop.
        waiting: The functions to call as soon as no call is running.
    """

    __slots__ = ("closed", "halted", "owner", "runs", "suspended", "waiting")

    def __init__(self) -> None:
        self.runs: set[Stoppable] = set()
        self.owner: ReferenceType[object] | None = None
        self.closed = False
        self.suspended: dict[str, FullSession] = {}
        self.halted: list[Stoppable] = []
        self.waiting: list[Callable[[], object]] = []

    def halt(self, run: Stoppable) -> None:
        """Ask a call to stop at its next safe point."""
        self.halted.append(run)
        run.halt()

    def close(self) -> None:
        """Start no more calls, and ask running ones to stop."""
        self.closed = True
        # A copy, since calls in other threads may end meanwhile.
        for run in [run for run in tuple(self.runs) if run not in self.halted]:
            self.halt(run)

    def when_idle(self, callback: Callable[[], object]) -> None:
        """Call a function once, as soon as no call is running, possibly from another thread."""
        self.waiting.append(callback)
        self.notify_if_idle()

    def notify_if_idle(self) -> None:
        """Call the waiting functions if no call is running."""
        if self.waiting and not self.runs:
            # Taken first, so that each function is called once, even if calls end in several threads.
            waiting, self.waiting = self.waiting, []
            for callback in waiting:
                callback()


@frozen
class FrozenAgentView:
    """A frozen description of an agent that refers neither to the agent nor to the functions of its tools."""

    name: str
    description: str
    tools: tuple[ToolSpec, ...]
    model_name: str


System: TypeAlias = str | Msg | Callable[[RunContext], "str | Msg | Awaitable[str | Msg | None] | None"] | None
"""A system prompt, or a function that returns one for each call."""

OnUnknownOutcome: TypeAlias = Literal["tell", "suspend"]
"""How to treat a tool that was running when the process ended: `"tell"` the model, or `"suspend"` to ask a person."""


@frozen
class LoopConfig:
    """The configuration of an agent for the loop: fixed when the agent is built, shared by all its runs."""

    view: AgentView
    model: str | Model
    system: System
    tools: Mapping[str, FullTool[..., Any]]
    specs: tuple[ToolSpec, ...]
    dep_types: tuple[tuple[str, type], ...]  # the dependencies that the tools need: parameter and type
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
