"""`AgentBuilder`: the constructor's arguments as methods of the same names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, Unpack

from agentflow._support.values import TypedDict
from agentflow.agent.peers import AgentRegistry
from agentflow.agent.tool_sources import ToolLike
from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource
from agentflow.hooks.scope import ProcessHooks
from agentflow.loop.config import OnUnknownOutcome
from agentflow.loop.schedule import ToolSchedule
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import Model
from agentflow.vocabulary.specs import Clock, ModelOptions

if TYPE_CHECKING:
    from agentflow.loop.output.output import Output, OutputLike
    from agentflow.vocabulary.ports.store import Store

A = TypeVar("A")


class AgentSettings(TypedDict, total=False):
    """The arguments of `Agent` except its tools and hooks."""

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
    """The arguments that a copy of an agent can change."""

    tools: Iterable[ToolLike]


class AgentBuilder(Generic[A]):
    """Collects the arguments of an agent; `build()` creates the agent. A builder can build several agents, each with
    its own sessions and queue.

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
        """Set the agent's name."""
        return self._set(name=name)

    def model(self, model: str | Model) -> Self:
        """Set the agent's model: a `Model` or a model's name."""
        return self._set(model=model)

    def system(self, system: str | Msg | Callable[[RunContext], Any] | None) -> Self:
        """Set the agent's system prompt: a text, a message, or a function that takes the `RunContext`."""
        return self._set(system=system)

    def description(self, description: str) -> Self:
        """Set the description of the agent's purpose, for other agents."""
        return self._set(description=description)

    def tool(self, tool: Any) -> Self:
        """Add a tool, or an agent to use as a tool."""
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
        """Set the built-in hooks; without arguments, the agent has none of them."""
        return self._set(default_hooks=hooks)

    def options(self, options: ModelOptions) -> Self:
        """Set the options of the agent's model calls."""
        return self._set(options=options)

    def max_iterations(self, max_iterations: int) -> Self:
        """Set the maximum number of reasoning rounds in one run."""
        return self._set(max_iterations=max_iterations)

    def schedule(self, schedule: ToolSchedule) -> Self:
        """Set the schedule of the tools in one round."""
        return self._set(schedule=schedule)

    def store(self, store: Store | str) -> Self:
        """Set the store of the agent's sessions."""
        return self._set(store=store)

    def on_unknown_outcome(self, on_unknown_outcome: OnUnknownOutcome) -> Self:
        """Set who handles a tool call whose outcome is unknown after a crash: the model (`"tell"`) or a person
        (`"suspend"`).
        """
        return self._set(on_unknown_outcome=on_unknown_outcome)

    def cleanup_timeout(self, cleanup_timeout: float) -> Self:
        """Set the seconds for cleanup after a call was cancelled; see `Agent`."""
        return self._set(cleanup_timeout=cleanup_timeout)

    def tags(self, *tags: str) -> Self:
        """Set the agent's labels."""
        return self._set(tags=tags)

    def process_hooks(self, process_hooks: ProcessHooks) -> Self:
        """Set the process-wide hooks that the agent uses."""
        return self._set(process_hooks=process_hooks)

    def agents(self, agents: AgentRegistry) -> Self:
        """Set the registry of other agents."""
        return self._set(agents=agents)

    def queue_limit(self, queue_limit: int | None) -> Self:
        """Set the maximum number of turns that wait in the agent's queue."""
        return self._set(queue_limit=queue_limit)

    def clock(self, clock: Clock) -> Self:
        """Set the source of time."""
        return self._set(clock=clock)

    def new_id(self, new_id: Callable[[str], str]) -> Self:
        """Set the source of ids."""
        return self._set(new_id=new_id)

    def build(self) -> A:
        """Create the agent.

        Raises:
            UsageError: The name or the model is missing, or an argument is invalid.
        """
        missing = [field for field in ("name", "model") if field not in self._arguments]
        if missing:
            raise UsageError(
                f"Agent.builder() lacks {' and '.join(missing)}: "
                "Agent.builder().name('assistant').model('openai/gpt-5')."
            )
        return self._make(**self._arguments, tools=tuple(self._tools), hooks=tuple(self._hooks))
