"""`AgentBuilder`: the constructor's arguments as methods of the same names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, Self, TypedDict, TypeVar, Unpack

from agentflow.agent.given_tools import ToolLike
from agentflow.agent.peers import AgentRegistry
from agentflow.context import RunContext
from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource
from agentflow.hooks.scope import ProcessHooks
from agentflow.loop.config import OnUnknownOutcome
from agentflow.loop.schedule import ToolSchedule
from agentflow.messages import Msg
from agentflow.output.output import Output, OutputLike
from agentflow.ports.model import Model
from agentflow.ports.store import Store
from agentflow.specs import Clock, ModelOptions

__all__ = ["AgentBuilder", "AgentChanges", "AgentSettings"]

A = TypeVar("A")


class AgentSettings(TypedDict, total=False):
    """The arguments of `Agent`, its tools and hooks left out."""

    name: str
    model: str | Model
    system: Any
    description: str
    default_hooks: HookSource
    options: ModelOptions | None
    max_iterations: int
    schedule: ToolSchedule
    store: Store | str | None
    on_unknown_outcome: OnUnknownOutcome
    cleanup_timeout: float
    tags: Iterable[str]
    process_hooks: ProcessHooks
    agents: AgentRegistry
    queue_limit: int | None
    clock: Clock
    new_id: Callable[[str], str]
    output: OutputLike[Any] | Output[Any]


class AgentChanges(AgentSettings, total=False):
    """What may differ in an agent that is made of another one."""

    tools: Iterable[ToolLike]


class AgentBuilder(Generic[A]):
    """Collects what an agent is made of; `build()` makes it. A builder can be used again: agents share nothing.

    Args:
        make: The agent's class.

    Example:
        >>> agent = Agent.builder().name("assistant").model("openai/gpt-5").tools([search]).hook(Guard()).build()
    """

    def __init__(self, make: Callable[..., A]) -> None:
        self._make = make
        self._arguments: AgentSettings = {}
        self._tools: list[Any] = []
        self._hooks: list[Any] = []

    def _set(self, **argument: Unpack[AgentSettings]) -> Self:
        self._arguments.update(argument)
        return self

    def name(self, name: str) -> Self:
        """What the agent is called."""
        return self._set(name=name)

    def model(self, model: str | Model) -> Self:
        """Its model, or the model's name."""
        return self._set(model=model)

    def system(self, system: str | Msg | Callable[[RunContext], Any] | None) -> Self:
        """Its system prompt: a text, a message, or a function of the `RunContext`."""
        return self._set(system=system)

    def description(self, description: str) -> Self:
        """What it is for."""
        return self._set(description=description)

    def tool(self, tool: Any) -> Self:
        """Add a tool, or an agent to be used as one."""
        self._tools.append(tool)
        return self

    def tools(self, tools: Iterable[Any]) -> Self:
        """Add tools."""
        self._tools.extend(tools)
        return self

    def hook(self, hook: HookSource) -> Self:
        """Add a hook."""
        self._hooks.append(hook)
        return self

    def hooks(self, hooks: HookSource) -> Self:
        """Add hooks: a list, nested lists, or a mapping from event names to functions."""
        self._hooks.append(hooks)
        return self

    def default_hooks(self, *hooks: Hook) -> Self:
        """What is there without asking; none, when called without arguments."""
        return self._set(default_hooks=hooks)

    def options(self, options: ModelOptions) -> Self:
        """Options of its model calls."""
        return self._set(options=options)

    def max_iterations(self, max_iterations: int) -> Self:
        """Most rounds of reasoning in one run."""
        return self._set(max_iterations=max_iterations)

    def schedule(self, schedule: ToolSchedule) -> Self:
        """How the tools of one round run."""
        return self._set(schedule=schedule)

    def store(self, store: Store | str) -> Self:
        """Where sessions are kept."""
        return self._set(store=store)

    def on_unknown_outcome(self, on_unknown_outcome: OnUnknownOutcome) -> Self:
        """Who learns of a tool that was running when the process ended: `"tell"` the model, `"suspend"` a person."""
        return self._set(on_unknown_outcome=on_unknown_outcome)

    def cleanup_timeout(self, cleanup_timeout: float) -> Self:
        """Seconds that cleanup may take after a call was cancelled; see `Agent`."""
        return self._set(cleanup_timeout=cleanup_timeout)

    def tags(self, *tags: str) -> Self:
        """Its labels."""
        return self._set(tags=tags)

    def process_hooks(self, process_hooks: ProcessHooks) -> Self:
        """The process-wide hooks that it looks up."""
        return self._set(process_hooks=process_hooks)

    def agents(self, agents: AgentRegistry) -> Self:
        """Where agents that it sends to are looked up."""
        return self._set(agents=agents)

    def queue_limit(self, queue_limit: int | None) -> Self:
        """Most turns that wait in its queue."""
        return self._set(queue_limit=queue_limit)

    def clock(self, clock: Clock) -> Self:
        """Where time comes from."""
        return self._set(clock=clock)

    def new_id(self, new_id: Callable[[str], str]) -> Self:
        """Where ids come from."""
        return self._set(new_id=new_id)

    def build(self) -> A:
        """Make the agent.

        Raises:
            UsageError: The name or the model is missing, or an argument cannot be used.
        """
        missing = [field for field in ("name", "model") if field not in self._arguments]
        if missing:
            raise UsageError(
                f"Agent.builder() lacks {' and '.join(missing)}: Agent.builder().name('assistant').model('openai/gpt-5')."
            )
        return self._make(**self._arguments, tools=tuple(self._tools), hooks=tuple(self._hooks))
