"""`Agent`: a model, tools and hooks, and the ways to call them.

Rules:

1. An agent is immutable but for its hooks: `hook`, `on`, `off` and `remove_hook` swap in a new set; a run keeps the set it
   began with. The tools of toolsets that are opened change with these.
2. What it does stands in the classes below it, one idea a file: hooks (`agent_hooks`), toolsets (`toolsets`), calls and
   sessions (`calling`), being a tool (`as_tool`), turns and other agents (`peers`). Here it is made, copied and saved.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TextIO, Unpack, cast

from pydantic_core import to_json
from typing_extensions import TypeVar

from agentflow.agent.agent_data import AgentCode, AgentParts, agent_from_dict, agent_to_dict
from agentflow.agent.arguments import resolve_store
from agentflow.agent.as_tool import FullToolAgent, full_agent
from agentflow.agent.asked import Asked
from agentflow.agent.builder import AgentBuilder, AgentChanges
from agentflow.agent.given_tools import ToolLike, tools_of
from agentflow.agent.graph import Graph, graph_of
from agentflow.agent.peers import AgentRegistry, PeerAgent, default_agents
from agentflow.agent.queue import copy_turns
from agentflow.agent.wrong_arguments import refuse_unknown
from agentflow.errors import UsageError
from agentflow.ground.facade import objects_of
from agentflow.ground.ids import new_id as fresh_id
from agentflow.ground.lazy import lazily
from agentflow.hooks.defaults import default_hooks
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource, hooks_of
from agentflow.hooks.registering import meant_by
from agentflow.hooks.scope import ProcessHooks, process_hooks
from agentflow.loop.config import LoopConfig, OnUnknownOutcome
from agentflow.loop.schedule import ToolSchedule
from agentflow.loop.scope import CLEANUP_TIMEOUT
from agentflow.loop.session import Session, full_session
from agentflow.loop.view import View
from agentflow.messages import T_co
from agentflow.output.output import NO_OUTPUT, Output, OutputLike, output_of
from agentflow.ports.clock import SystemClock
from agentflow.ports.model import Model
from agentflow.ports.store import Store
from agentflow.saving.plain import read_json
from agentflow.specs import Clock, ModelOptions, checked_options, is_seconds
from agentflow.tools.live_toolset import LiveToolset
from agentflow.tools.tool import Tool
from agentflow.tools.tool_registry import ToolRegistry

__all__ = ["Agent", "FullAgent"]

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
"""What other libraries call it, and what it is called here."""
_terminal, _ = lazily("agentflow.terminal", {"chat": ".conversation"})
"""What shows a conversation, loaded with the first one: it stands above this layer, and brings rich."""


class Agent(PeerAgent[T_co]):
    """An agent: typed events flow through its hooks around a loop of model and tools.

    Args:
        name: What it is called, `^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$` if it is to be a tool of others.
        model: A `Model`, or a name such as `"openai/gpt-5"`.
        system: The system prompt: a text, a message, or a function of the `RunContext` (it may be async).
        description: What it is for; other agents read it.
        tools: Tools, agents to be used as tools, toolsets, names in the default registry. Toolsets that have to be opened
            are opened by the first call that needs them; `async with agent` closes them.
        hooks: Hooks, marked functions, lists of them, or a mapping from names like `"before_llm"` to functions.
        default_hooks: What is there without asking: retries of empty and truncated answers. `()` for none.
        options: Options of its model calls.
        max_iterations: Most rounds of reasoning in one run; then one summary without tools.
        schedule: How the tools of one round run.
        store: Where sessions are kept; the process's memory by default.
        on_unknown_outcome: Who learns, when a call is resumed after a crash, of a tool that was running and is not
            `idempotent`: `"tell"` the model; `"suspend"` a person, who answers it like an approval.
        cleanup_timeout: Seconds that cleanup may take after a call was cancelled, interrupted or timed out (5 by default); what
            still runs then is abandoned, and named in the error and the log.
        tags: Labels; process-wide hooks are chosen by them.
        process_hooks: The process-wide hooks; the default ones by default.
        agents: Where agents that it sends to are looked up; the process's registry by default.
        queue_limit: Most turns that wait in its queue; None: any number.
        clock: Time; virtual in tests.
        new_id: Ids; repeatable in replays.
        output: What its calls give as `reply.output`: a type that pydantic knows, a function whose arguments are the answer,
            or an `Output` with options; a call may ask for another (see `docs/typed-answers.md`).

    Raises:
        UsageError: An argument cannot be used; the text says which and how to fix it.

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
        output: type[T_co] | Output[T_co] | Callable[..., Awaitable[T_co] | T_co] = NO_OUTPUT,
    ) -> None:
        if not name:
            raise UsageError("An agent needs a name and a model: Agent('assistant', 'openai/gpt-5').")
        if cast("object", model) is None:
            raise UsageError(
                f"Agent {name!r} was given no model: Agent({name!r}, 'openai/gpt-5'), or any other name that LiteLLM knows; "
                "offline, Agent(..., ScriptedModel(['Hello.'])) from agentflow.testing."
            )
        if not isinstance(model, str) and not callable(getattr(model, "stream", None)):
            raise UsageError(f"Agent {name!r}: model= takes a Model or a name like 'openai/gpt-5', not {model!r:.60}.")
        if type(max_iterations) is not int or max_iterations < 1:
            raise UsageError(
                f"Agent {name!r}: max_iterations={max_iterations!r}; it is the number of model calls, at least 1."
            )
        if on_unknown_outcome not in ("tell", "suspend"):
            raise UsageError(f"Agent {name!r}: on_unknown_outcome={on_unknown_outcome!r}; it is 'tell' or 'suspend'.")
        if not is_seconds(cleanup_timeout):
            raise UsageError(f"Agent {name!r}: cleanup_timeout={cleanup_timeout!r}; it is a number of seconds above 0.")
        given = hooks_of(hooks)
        standing = _DEFAULT_HOOKS if default_hooks is _DEFAULT_HOOKS else hooks_of(default_hooks)
        from_hooks = [made for hook in given if type(hook).tools is not Hook.tools for made in hook.tools()]
        # One tool, or None, is left to `tools_of`, which knows what to say.
        live: list[LiveToolset] = []
        resolved = tools_of((*tools, *from_hooks) if type(tools) in (tuple, list) else (tools, *from_hooks), live)
        specs = tuple([t.spec for t in resolved.values()])
        config = LoopConfig(
            View(name, description, specs, model if isinstance(model, str) else model.name),
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
        super().__init__(config, (*standing, *given), kept, agents, queue_limit, tuple(live))
        wanted = output_of(output)
        if wanted is not None:
            vars(self)["_output"] = Asked(output, wanted)

    if not TYPE_CHECKING:  # a checker must see that an unknown attribute is one

        def __setattr__(self, name: str, value: object) -> None:
            if name[:1] == "_" or type(self) is not FullAgent:  # a subclass may have attributes of its own
                object.__setattr__(self, name, value)
                return
            known = name in inspect.signature(Agent).parameters
            fix = f"build an agent with it, Agent(..., {name}=...)" if known else "Agent(...) knows no such argument"
            raise AttributeError(
                f"Agent {self.name!r} is immutable, so {name} cannot be assigned: {fix}. Hooks can be added: agent.hook(h).",
                name=name,
                obj=self,
            )

        def __getattr__(self, name: str) -> NoReturn:
            right = _ELSEWHERE.get(name)
            meant = meant_by(name) if right is None else f". To ask it: {right}"
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{meant}", name=name, obj=self
            )

    @staticmethod
    def builder() -> TypedBuilder[None]:
        """Configure an agent step by step; the methods are named like the constructor's arguments."""
        return TypedBuilder(Agent)

    @property
    def description(self) -> str:
        """What it is for."""
        return self._config.view.description

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        """Its tools."""
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
        """Talk with it at the terminal, until Ctrl-D, `/exit`, or the end of what is said.

        Words as they stream, a line for each tool call, and what runs at the moment. Ctrl-C interrupts a call and not the
        conversation; a call that fails is one red line; a call that waits for a person asks for the decision.

        Args:
            lines: What is said, and what questions are answered with; what a person types by default.
            session: An id or a session; the agent's implicit conversation by default.
            deps: For each call, like `hooks`.
            hooks: Added for each call.
            events: A line for every event.
            children: Show the events of sub-agents too.
            file: Where it is shown; standard output by default.

        Raises:
            StoreError: The session cannot be read.

        Example:
            >>> await agent.chat(read_lines())
        """
        talk: Callable[..., Awaitable[None]] = _terminal("chat")
        await talk(self, lines, session=session, deps=deps, hooks=hooks, events=events, children=children, file=file)

    def graph(self) -> Graph:
        """Who may call whom, from this agent on: `print(agent.graph())`, or `agent.graph().mermaid()` for a picture.

        Tools of a toolset that is opened, such as an MCP server's, are in it when that is open.
        """
        return graph_of(full_agent(self))

    # ---- copies and data

    def _given_tools(self) -> list[Any]:
        """Its tools as they were given: those of toolsets that are opened by the toolsets."""
        toolsets = self._toolsets
        return [*self._config.tools.values()] if toolsets is None else [*toolsets.own.values(), *toolsets.live]

    def _made_anew(self, hooks: Iterable[Hook], **changes: Unpack[AgentChanges]) -> Agent[Any]:
        """Another agent of the same making, with these hooks, and with some of its arguments changed."""
        config = self._config
        given: AgentChanges = {
            "name": config.view.name,
            "model": config.model,
            "system": config.system,
            "description": config.view.description,
            "tools": self._given_tools(),
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
        given.update(changes)
        make: Callable[..., Agent[Any]] = Agent
        made = make(**given, hooks=())
        vars(made)["_given_hooks"] = tuple(hooks)
        return made

    def branch(self, name: str) -> Agent[T_co]:
        """Another agent of the same making, with copies of its waiting turns and of its implicit conversation.

        Nothing is shared that can change: what one of them does, the other does not see. A conversation that a store keeps
        is copied there: `store.fork(agent.name, name)`.

        Args:
            name: The other agent's name.

        Raises:
            UsageError: A call runs on the implicit session.
        """
        made = self._made_anew(self._hook_set().own, name=name)
        own = self._sessions.implicit
        if own is not None and self._store is None:
            made._sessions.implicit = full_session(own.copy(name))
        if self._queue is not None:
            copy_turns(self._queue, made.queue)
        return made

    def to_dict(self) -> dict[str, Any]:
        """The agent's definition and queue as JSON-compatible data: what is code by its name. Sessions have their own.

        Raises:
            UsageError: A tool or hook is a closure or a lambda, which a name does not carry; an option is no data; it is a
                workflow.

        Example:
            >>> Agent("greeter", "openai/gpt-5", system="Be brief.").to_dict()["system"]
            'Be brief.'
        """
        return agent_to_dict(self)

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
        """Make the agent again that `to_dict` has saved.

        Args:
            data: The data.
            tools: Where tools are found by name: a registry, or tools; the default registry by default.
            hooks: The hooks that are named in it; the default hooks are known.
            model: The model, where it was no name.
            system: The system prompt, where it was a function.
            rest: What data does not hold: `store`, `agents`, `process_hooks`, `clock`, `new_id`, `output`.

        Raises:
            StoreError: The data is no agent, or newer than this code.
            NotRegisteredError: A tool or a hook is not found.
            UsageError: The model or the system prompt has to be given.
        """
        return agent_from_dict(Agent, data, tools, hooks, model, system, rest)

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return to_json(self.to_dict()).decode()

    @staticmethod
    def from_json(text: str | bytes, **given: Unpack[AgentCode]) -> Agent[Any]:
        """`from_dict` of JSON text."""
        return Agent.from_dict(read_json(text, "agent"), **given)

    def __repr__(self) -> str:
        own = self._config
        return f"Agent({self.name!r}, {own.view.model_name!r}, {len(own.tools)} tools, {len(self.hooks)} hooks)"


class TypedBuilder(AgentBuilder[Agent[T]], Generic[T]):
    """What `Agent.builder()` gives: it knows what the agent's calls will give."""

    def output(self, output: OutputLike[U]) -> TypedBuilder[U]:
        """What its calls give as `reply.output`."""
        return cast("TypedBuilder[U]", self._set(output=output))


@objects_of(Agent, refuse_unknown)
class FullAgent(Agent[T_co], FullToolAgent[T_co]):
    """An agent as its queue and other agents see it."""

    def variant(self, hooks: Iterable[Hook], **changes: Unpack[AgentChanges]) -> Agent[Any]:
        """Another agent of the same making with other hooks; its sessions are its own.

        Args:
            hooks: Its own, in their order; those of the process are beside them, as before.
            changes: Arguments of `Agent` that are to be others.
        """
        return self._made_anew(hooks, **changes)


# So that `Agent()` gets a text that names the way out; a checker asks for both.
Agent.__init__.__defaults__ = (None, None)


def full_variant(agent: Agent[Any], hooks: Iterable[Hook], **changes: Unpack[AgentChanges]) -> Agent[Any]:
    """See `FullAgent.variant`."""
    assert isinstance(agent, FullAgent)  # each is made as one
    return agent.variant(hooks, **changes)
