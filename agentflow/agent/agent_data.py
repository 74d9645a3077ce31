"""An agent's definition as data, with all code by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final, Literal, NotRequired, TypeVar

from typing_extensions import TypedDict

from agentflow._support.validation import Above, closed, fits
from agentflow.agent.as_tool import full_agent
from agentflow.agent.peers import AgentRegistry, PeerAgent
from agentflow.errors import UsageError
from agentflow.hooks.defaults import default_hooks
from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_set import full_hooks
from agentflow.hooks.scope import ProcessHooks
from agentflow.loop.config import OnUnknownOutcome
from agentflow.loop.output.output import Output, OutputLike
from agentflow.loop.schedule import ToolSchedule
from agentflow.loop.scope_parts import CLEANUP_TIMEOUT
from agentflow.tools.code_names import Finder, hook_names, named_function
from agentflow.tools.tool import Tool
from agentflow.tools.tool_registry import ToolRegistry
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import Model
from agentflow.vocabulary.ports.store import Store
from agentflow.vocabulary.saving.codec import msg_from_dict, msg_to_dict
from agentflow.vocabulary.saving.forms import CODEC_VERSION, check_form, not_saved
from agentflow.vocabulary.saving.plain import as_data
from agentflow.vocabulary.specs import Clock, ModelOptions

A = TypeVar("A", bound=PeerAgent)


class AgentParts(TypedDict, total=False):
    """The arguments of `Agent` that its data does not contain."""

    store: Store | str | None
    agents: AgentRegistry
    process_hooks: ProcessHooks
    clock: Clock
    new_id: Callable[[str], str]
    output: OutputLike[Any] | Output[Any]


class AgentCode(AgentParts, total=False):
    """The arguments of `Agent.from_json` besides the data: code that the data names, and objects that cannot be saved."""

    tools: ToolRegistry | Iterable[Tool[..., Any]] | None
    hooks: Iterable[Hook]
    model: Model | None
    system: Any


_REST: Final = tuple(AgentParts.__annotations__)


@closed
class _ScheduleData(TypedDict):
    policy: Literal["by_type", "in_call_order", "sequential", "parallel"]
    max_concurrency: int


@closed
class _AgentData(TypedDict):
    format: Literal["agentflow.agent"]
    version: int
    name: str
    model: str
    model_by_name: bool
    system: str | dict[str, Any] | None
    system_function: bool
    description: str
    tools: list[str]
    hooks: list[str]
    options: Annotated[dict[str, Any], fits(ModelOptions)]
    max_iterations: int
    schedule: _ScheduleData
    on_unknown_outcome: NotRequired[OnUnknownOutcome]
    cleanup_timeout: NotRequired[Annotated[float, Above(0)]]
    tags: list[str]
    typed: NotRequired[bool]
    queue_limit: int | None
    queue: dict[str, Any]


def agent_to_dict(agent: PeerAgent) -> dict[str, Any]:
    """See `Agent.to_dict`."""
    config = full_agent(agent).config
    label = f"agent {config.view.name!r}"
    if agent.live_toolsets:
        names = ", ".join(toolset.name for toolset in agent.live_toolsets)
        raise UsageError(
            f"A{label[1:]} has live toolsets ({names}), whose connections cannot be saved. Save an agent that was "
            "built without them, and add them after loading."
        )
    hooks = hook_names(full_hooks(agent.hooks).own, label)
    # The result is not used: this only refuses tools that could not be found by name.
    for name, tool in config.tools.items():
        named_function(f"Tool {name!r} of {label}", tool.function)
    system = config.system
    data: _AgentData = {
        "format": "agentflow.agent",
        "version": CODEC_VERSION,
        "name": config.view.name,
        "model": config.view.model_name,
        "model_by_name": isinstance(config.model, str),
        "system": msg_to_dict(system) if isinstance(system, Msg) else system if isinstance(system, str) else None,
        "system_function": callable(system),
        "description": config.view.description,
        "tools": list(config.tools),
        "hooks": hooks,
        "options": {
            key: as_data(f"The option {key} of {label}", value)
            for key, value in asdict(config.options).items()
            if value is not None and value != {}
        },
        "max_iterations": config.max_iterations,
        "schedule": {"policy": config.schedule.policy, "max_concurrency": config.schedule.max_concurrency},
        "on_unknown_outcome": config.on_unknown_outcome,
        "cleanup_timeout": config.cleanup_timeout,
        "tags": sorted(config.tags),
        "typed": agent.output is not None,
        "queue_limit": agent.queue.limit,
        "queue": agent.queue.to_dict(),
    }
    return dict(data)


def agent_from_dict(
    make: Callable[..., A],
    data: Mapping[str, Any],
    tools: ToolRegistry | Iterable[Tool[..., Any]] | None,
    hooks: Iterable[Hook],
    model: Model | None,
    system: Any,
    rest: AgentParts,
) -> A:
    """See `Agent.from_dict`."""
    wrong = sorted(rest.keys() - _REST)
    if wrong:
        raise UsageError(
            f"Agent.from_dict(data, ...) got {', '.join(wrong)}. Only arguments that the data does not hold can be "
            f"passed: tools, hooks, model, system, {', '.join(_REST)}. All other arguments are in the data: change them there."
        )
    saved = check_form(_AgentData, data, "The saved agent", not_saved("agent"))
    name = saved["name"]
    if not saved["model_by_name"] and model is None:
        raise UsageError(
            f"Agent {name!r} was saved with a model object named {saved['model']!r}, which cannot be saved: pass it "
            "again, Agent.from_dict(data, model=...)."
        )
    if saved["system_function"] and system is None:
        raise UsageError(
            f"Agent {name!r} was saved with a function as its system prompt, which cannot be saved: pass it again, "
            "Agent.from_dict(data, system=...)."
        )
    if saved.get("typed") and "output" not in rest:
        raise UsageError(
            f"Agent {name!r} was saved with an output, which is code and cannot be saved: pass it again, "
            "Agent.from_dict(data, output=...)."
        )
    kept = saved["system"]
    own_hooks = tuple(hooks)
    # The data names the default hooks too, so none are added below.
    find = Finder(tools, (*own_hooks, *default_hooks()))
    options = dict(saved["options"])
    # JSON has no tuples.
    if "stop" in options:
        options["stop"] = tuple(options["stop"])
    agent = make(
        name,
        saved["model"] if model is None else model,
        system=system if system is not None else msg_from_dict(kept) if isinstance(kept, dict) else kept,
        description=saved["description"],
        tools=[find.tool(tool) for tool in saved["tools"]],
        hooks=find.hooks(saved["hooks"]),
        default_hooks=(),
        options=ModelOptions(**options),
        max_iterations=saved["max_iterations"],
        schedule=ToolSchedule(saved["schedule"]["policy"], saved["schedule"]["max_concurrency"]),
        on_unknown_outcome=saved.get("on_unknown_outcome", "tell"),
        cleanup_timeout=saved.get("cleanup_timeout", CLEANUP_TIMEOUT),
        tags=saved["tags"],
        queue_limit=saved["queue_limit"],
        **rest,
    )
    agent.queue.restore(saved["queue"], own_hooks)
    return agent
