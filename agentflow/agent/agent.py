"""`Agent`: a model, tools and hooks, and the ways to call them.

Rules:

1. An agent is immutable except for its hooks: `hook`, `on` and `remove` replace the set of hooks, and a run keeps the set
   with which it began. The tools of live toolsets change with the toolsets.
2. The behaviour is in the base classes, one topic per file: hooks and toolsets (`toolsets`), calls and sessions
   (`calling`), being a tool (`as_tool`), turns and other agents (`peers`). This file constructs, copies and saves
   agents.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TextIO, Unpack, cast

from pydantic_core import to_json
from typing_extensions import TypeVar

from agentflow._support.facade import objects_of
from agentflow._support.ids import new_id as fresh_id
from agentflow._support.lazy import later, lazily
from agentflow.agent.arguments import refuse_unknown, resolve_store
from agentflow.agent.as_tool import FullToolAgent, full_agent
from agentflow.agent.builder import AgentBuilder, AgentChanges
from agentflow.agent.peers import AgentRegistry, PeerAgent, default_agents
from agentflow.agent.tool_sources import ToolLike, tools_of
from agentflow.errors import UsageError
from agentflow.hooks.defaults import default_hooks
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource, hooks_of
from agentflow.hooks.registering import hint_for
from agentflow.hooks.scope import ProcessHooks, process_hooks
from agentflow.loop.config import FrozenAgentView, LoopConfig, OnUnknownOutcome
from agentflow.loop.schedule import ToolSchedule
from agentflow.loop.scope_parts import CLEANUP_TIMEOUT
from agentflow.loop.session import Session, full_session
from agentflow.tools.live_toolset import LiveToolset
from agentflow.tools.tool import Tool
from agentflow.tools.tool_registry import ToolRegistry
from agentflow.vocabulary.messages import Msg, T_co
from agentflow.vocabulary.ports.clock import SystemClock
from agentflow.vocabulary.ports.model import Model
from agentflow.vocabulary.saving.plain import read_json
from agentflow.vocabulary.specs import WORKFLOW_STEP, Clock, ModelOptions, checked_options, is_seconds

if TYPE_CHECKING:
    from agentflow.agent import agent_data, graph, typed_call
    from agentflow.agent.agent_data import AgentCode, AgentParts
    from agentflow.agent.graph import Graph
    from agentflow.loop.output import output as outputs
    from agentflow.loop.output.output import NO_OUTPUT, OutputLike
    from agentflow.vocabulary.ports.store import Store
else:
    agent_data = later("agentflow.agent.agent_data")
    graph = later("agentflow.agent.graph")
    typed_call = later("agentflow.agent.typed_call")
    outputs = later("agentflow.loop.output.output")
    # At run time None has the same effect in `output_of`; type checkers see an `Output[None]`, so that an agent has a
    # type.
    NO_OUTPUT = None

T = TypeVar("T")
U = TypeVar("U")

_UNSET = ModelOptions()
_DEFAULT_HOOKS = default_hooks()
_CLOCK: Clock = SystemClock()
_ELSEWHERE = {
    **dict.fromkeys(("invoke", "run_sync", "ask_sync"), "agent.call('Hi').block(), or await agent.call('Hi')"),
    **dict.fromkeys(("ainvoke", "arun", "run_async", "acall"), "await agent.call('Hi')"),
    **dict.fromkeys(("astream", "run_stream", "stream_async", "run_streamed"), "async for event in agent.stream('Hi')"),
}
"""Method names of other libraries, and the equivalents here."""
_terminal, _ = lazily("agentflow.terminal", {".conversation": "chat"})
"""Loads the terminal conversation on first use, since its module is in a higher layer and imports rich."""


class Agent(PeerAgent[T_co]):
    """An agent: a loop of model and tools, whose typed events pass through the agent's hooks.

    Args:
        name: The agent's name; to be a tool of other agents, it must match `^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$`.
        model: A `Model`, or a name such as `"openai/gpt-5"`.
        system: The system prompt: a text, a message, or a function that takes the `RunContext` (it may be async).
        description: The agent's purpose, for other agents.
        tools: Tools, agents to use as tools, toolsets, or names in the default registry. The first call that needs live
            toolsets opens them; `async with agent` closes them.
        hooks: Hooks, decorated functions, lists of them, or a mapping from names like `"before_llm"` to functions.
        default_hooks: The built-in hooks: retries of empty and truncated answers. `()` for none.
        options: Options of the agent's model calls.
        max_iterations: The maximum number of reasoning rounds in one run, after which one summary without tools follows.
        schedule: The schedule of the tools in one round.
        store: The store of the agent's sessions; by default they are kept in memory.
        on_unknown_outcome: How a call that is resumed after a crash handles a tool that was running and is not
            `idempotent`: `"tell"` reports the tool call to the model; `"suspend"` asks a person for a decision, as for
            an approval.
        cleanup_timeout: Seconds for cleanup after a call was cancelled, interrupted or timed out (5 by default). Work
            that still runs after this time is abandoned, and named in the error and the log.
        tags: Labels that select the process-wide hooks for the agent.
        process_hooks: The process-wide hooks; `agentflow.process_hooks` by default.
        agents: The registry of other agents; the process's registry by default.
        queue_limit: The maximum number of turns that wait in the agent's queue; None means no limit.
        clock: The source of time; virtual in tests.
        new_id: The source of ids; repeatable in replays.
        output: The type of `reply.output`: a type that pydantic knows, a function that takes the answer as arguments,
            or an `Output` with options. A call can override it (see `docs/typed-answers.md`).

    Raises:
        UsageError: An argument is invalid; the error names it and shows the fix.

    Example:
        >>> agent = Agent("greeter", ScriptedModel(["Hello!"]))
        >>> (await agent.call("Hi")).text
        'Hello!'
    """

    def __init__(
        self,
        name: str,
        model: str | Model,
        *,
        system: Any = None,
        description: str = "",
        tools: Iterable[ToolLike] = (),
        hooks: HookSource = (),
        default_hooks: HookSource = _DEFAULT_HOOKS,
        options: ModelOptions | None = None,
        max_iterations: int = 25,
        schedule: ToolSchedule = ToolSchedule.BY_TYPE,
        store: Store | str | None = None,
        on_unknown_outcome: OnUnknownOutcome = "tell",
        cleanup_timeout: float = CLEANUP_TIMEOUT,
        tags: Iterable[str] = (),
        process_hooks: ProcessHooks = process_hooks,
        agents: AgentRegistry = default_agents,
        queue_limit: int | None = 1000,
        clock: Clock = _CLOCK,
        new_id: Callable[[str], str] = fresh_id,
        output: OutputLike[T_co] = NO_OUTPUT,
    ) -> None:
        _check_arguments(name, model, max_iterations, on_unknown_outcome, cleanup_timeout)
        _check_kinds(name, system, schedule)
        own_hooks = hooks_of(hooks)
        standing = _DEFAULT_HOOKS if default_hooks is _DEFAULT_HOOKS else hooks_of(default_hooks)
        # The method is compared before it is called: most hooks do not override it, and building an agent should be
        # cheap.
        from_hooks = [tool for hook in own_hooks if type(hook).tools is not Hook.tools for tool in hook.tools()]
        # If `tools` is a single tool or None, `tools_of` raises the right error.
        live: list[LiveToolset] = []
        resolved = tools_of((*tools, *from_hooks) if type(tools) in (tuple, list) else (tools, *from_hooks), live)
        # Models never see the step tool of a workflow.
        specs = tuple([t.spec for t in resolved.values() if t.name != WORKFLOW_STEP])
        config = LoopConfig(
            FrozenAgentView(name, description, specs, model if isinstance(model, str) else model.name),
            model,
            system,
            resolved,
            specs,
            (),
            _UNSET if options is None else checked_options(options),
            max_iterations,
            schedule,
            clock,
            new_id,
            frozenset((tags,) if isinstance(tags, str) else tags),
            process_hooks,
            on_unknown_outcome,
            cleanup_timeout,
        )
        kept = None if store is None else resolve_store(store)
        super().__init__(config, (*standing, *own_hooks), kept, agents, queue_limit, tuple(live))
        wanted = None if output is NO_OUTPUT else outputs.output_of(output)
        if wanted is not None:
            vars(self)["_output"] = typed_call.TypedOutput(output, wanted)

    if not TYPE_CHECKING:  # so that type checkers still report unknown attributes

        def __setattr__(self, name: str, value: object) -> None:
            if name[:1] == "_" or type(self) is not FullAgent:  # a subclass can have its own attributes
                object.__setattr__(self, name, value)
                return
            known = name in inspect.signature(Agent).parameters
            fix = f"build an agent with it, Agent(..., {name}=...)" if known else "Agent(...) knows no such argument"
            raise AttributeError(
                f"Agent {self.name!r} is immutable, so {name} cannot be assigned: {fix}. Hooks can be added: "
                "agent.hook(h).",
                name=name,
                obj=self,
            )

        def __getattr__(self, name: str) -> NoReturn:
            right = _ELSEWHERE.get(name)
            meant = hint_for(name) if right is None else f". To ask it: {right}"
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{meant}", name=name, obj=self
            )

    @staticmethod
    def builder() -> TypedBuilder[None]:
        """Configure an agent step by step; the methods are named like the constructor's arguments."""
        return TypedBuilder(Agent)

    @property
    def description(self) -> str:
        """The agent's purpose."""
        return self._config.view.description

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        """The agent's tools."""
        return tuple(self._config.tools.values())

    async def chat(
        self,
        lines: AsyncIterable[str] | None = None,
        *,
        session: str | Session | None = None,
        deps: object = None,
        hooks: HookSource = (),
        events: bool = False,
        children: bool = False,
        file: TextIO | None = None,
    ) -> None:
        """Chat with the agent in the terminal, until Ctrl-D, `/exit`, or the end of `lines`.

        Shows the text as it streams, a line for each tool call, and the current activity. Ctrl-C interrupts a call but
        not the conversation; a failed call is one red line; a suspended call asks for the decision.

        Args:
            lines: The user's messages and answers to questions; by default read from the keyboard.
            session: An id or a session; the agent's implicit conversation by default.
            deps: Passed to each call, like `hooks`.
            hooks: Added for each call.
            events: Whether to show a line for every event.
            children: Whether to show the events of sub-agents too.
            file: The output; standard output by default.

        Raises:
            StoreError: The session cannot be read.

        Example:
            >>> await agent.chat(read_lines())
        """
        talk: Callable[..., Awaitable[None]] = _terminal("chat")
        await talk(self, lines, session=session, deps=deps, hooks=hooks, events=events, children=children, file=file)

    def graph(self) -> Graph:
        """Return the graph of the calls that can start from this agent: `print(agent.graph())`, or
        `agent.graph().mermaid()` for a diagram.

        Tools of a live toolset, such as an MCP server's, are included once it is open.
        """
        return graph.graph_of(full_agent(self))

    # ---- copies and data

    def _tool_sources(self) -> list[Any]:
        """Return the agent's tools as they were passed in: a live toolset is one item, not expanded to its tools."""
        toolsets = self._toolsets
        return [*self._config.tools.values()] if toolsets is None else [*toolsets.own.values(), *toolsets.live]

    def _copy(self, hooks: Iterable[Hook], **changes: Unpack[AgentChanges]) -> Agent[Any]:
        """Return a copy of the agent with these hooks, and with some of its arguments changed."""
        config = self._config
        arguments: AgentChanges = {
            "name": config.view.name,
            "model": config.model,
            "system": config.system,
            "description": config.view.description,
            "tools": self._tool_sources(),
            "options": config.options,
            "max_iterations": config.max_iterations,
            "schedule": config.schedule,
            "store": self._store,
            "on_unknown_outcome": config.on_unknown_outcome,
            "cleanup_timeout": config.cleanup_timeout,
            "tags": config.tags,
            "process_hooks": config.process,
            "agents": self._agents,
            "queue_limit": self._queue_limit,
            "clock": config.clock,
            "new_id": config.new_id,
            "output": NO_OUTPUT if self._output is None else self._output.output,
            "default_hooks": (),
        }
        arguments.update(changes)
        make: Callable[..., Agent[Any]] = Agent
        copy = make(**arguments, hooks=())
        # Not as an argument: the constructor would add the tools of these hooks, which the copy has already.
        vars(copy)["_initial_hooks"] = tuple(hooks)
        return copy

    def branch(self, name: str) -> Agent[T_co]:
        """Return a copy of the agent, with copies of its waiting turns and of its implicit conversation.

        The agents share no mutable state: neither sees the other's changes. If the conversation is in a store, copy it
        there with `store.fork(agent.name, name)`.

        Args:
            name: The copy's name.

        Raises:
            UsageError: A call is running on the implicit session.
        """
        copy = self._copy(self._hook_set().own, name=name)
        own = self._sessions.implicit
        # With a store, the user copies the conversation (`store.fork`).
        if own is not None and self._store is None:
            copy._sessions.implicit = full_session(own.copy(name))
        if self._queue is not None:
            self._queue._copy_to(copy.queue)  # pyright: ignore[reportPrivateUsage] - users have `to_dict` and `restore`
        return copy

    def to_dict(self) -> dict[str, Any]:
        """Return the agent's definition and queue as JSON-compatible data, in which code is represented by its name.
        Sessions are saved separately.

        Raises:
            UsageError: A tool or hook is a closure or a lambda, which a name cannot identify; an option is not data;
                the agent is a workflow, or has live toolsets.

        Example:
            >>> Agent("greeter", "openai/gpt-5", system="Be brief.").to_dict()["system"]
            'Be brief.'
        """
        return agent_data.agent_to_dict(self)

    @staticmethod
    def from_dict(
        data: Mapping[str, Any],
        *,
        tools: ToolRegistry | Iterable[Tool[..., Any]] | None = None,
        hooks: Iterable[Hook] = (),
        model: Model | None = None,
        system: Any = None,
        **rest: Unpack[AgentParts],
    ) -> Agent[Any]:
        """Rebuild an agent from the data of `to_dict`.

        Args:
            data: The data that `to_dict` returned.
            tools: The tools by name: a registry, or tools; the default registry by default.
            hooks: The hooks that the data names, except the default hooks.
            model: The model, if it was not saved by name.
            system: The system prompt, if it was a function.
            rest: Arguments that the data does not contain: `store`, `agents`, `process_hooks`, `clock`, `new_id`,
                `output`.

        Raises:
            StoreError: The data is not an agent, or was saved by a newer agentflow.
            NotRegisteredError: A tool or a hook is not found.
            UsageError: The model or the system prompt must be passed.
        """
        return agent_data.agent_from_dict(Agent, data, tools, hooks, model, system, rest)

    def to_json(self) -> str:
        """Return `to_dict` as JSON text."""
        return to_json(self.to_dict()).decode()

    @staticmethod
    def from_json(text: str | bytes, **code: Unpack[AgentCode]) -> Agent[Any]:
        """Rebuild an agent from JSON text; see `from_dict`."""
        return Agent.from_dict(read_json(text, "agent"), **code)

    def __repr__(self) -> str:
        own = self._config
        return f"Agent({self.name!r}, {own.view.model_name!r}, {len(own.tools)} tools, {len(self.hooks)} hooks)"


def _check_arguments(
    name: object, model: object, max_iterations: object, on_unknown_outcome: object, cleanup_timeout: object
) -> None:
    if not name or not isinstance(name, str):
        actual = f", not {name!r:.60} as the name" if name else ""
        raise UsageError(f"An agent needs a name and a model: Agent('assistant', 'openai/gpt-5'){actual}.")
    if model is None:
        raise UsageError(
            f"Agent {name!r} was given no model: Agent({name!r}, 'openai/gpt-5'), or any other name that LiteLLM "
            "knows; offline, Agent(..., ScriptedModel(['Hello.'])) from agentflow.testing."
        )
    if not isinstance(model, str) and (isinstance(model, type) or not callable(getattr(model, "stream", None))):
        raise UsageError(f"Agent {name!r}: model= takes a Model or a name like 'openai/gpt-5', not {model!r:.60}.")
    if type(max_iterations) is not int or max_iterations < 1:
        raise UsageError(
            f"Agent {name!r}: max_iterations={max_iterations!r} is invalid; use the maximum number of rounds, at least 1."
        )
    if on_unknown_outcome not in ("tell", "suspend"):
        raise UsageError(
            f"Agent {name!r}: on_unknown_outcome={on_unknown_outcome!r} is invalid; use 'tell' or 'suspend'."
        )
    if not is_seconds(cleanup_timeout):
        raise UsageError(
            f"Agent {name!r}: cleanup_timeout={cleanup_timeout!r} is invalid; use a number of seconds above 0."
        )


def _check_kinds(name: str, system: object, schedule: object) -> None:
    if system is not None and not isinstance(system, str | Msg) and (isinstance(system, type) or not callable(system)):
        raise UsageError(
            f"Agent {name!r}: system= takes a text, a Msg or a function that returns one, not {type(system).__name__} "
            f"({system!r:.60})."
        )
    if not isinstance(schedule, ToolSchedule):
        raise UsageError(
            f"Agent {name!r}: schedule={schedule!r:.60} is not a ToolSchedule. Write schedule=ToolSchedule.PARALLEL, BY_TYPE, "
            "IN_CALL_ORDER or SEQUENTIAL."
        )


class TypedBuilder(AgentBuilder[Agent[T]], Generic[T]):
    """The builder of `Agent.builder()`, typed by the output of the agent's calls."""

    def output(self, output: OutputLike[U]) -> TypedBuilder[U]:
        """Set the type of `reply.output` of the agent's calls."""
        return cast("TypedBuilder[U]", self._set(output=output))


@objects_of(Agent, refuse_unknown)
class FullAgent(Agent[T_co], FullToolAgent[T_co]):
    """An agent, with the members that its queue and other agents use."""

    def variant(self, hooks: Iterable[Hook], **changes: Unpack[AgentChanges]) -> Agent[Any]:
        """Return a copy of the agent with other hooks; the copy has separate sessions.

        Args:
            hooks: The copy's own hooks, in order; the process-wide ones apply as before.
            changes: Arguments of `Agent` that differ.
        """
        return self._copy(hooks, **changes)


# So that `Agent()` raises an error that shows the fix; type checkers still require both arguments.
Agent.__init__.__defaults__ = (None, None)
