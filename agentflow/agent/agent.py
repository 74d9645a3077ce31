"""`Agent`: a model, tools and hooks, and the ways to call them.

Rules:

1. An agent is immutable but for `on` and `off`, which swap in a new set of hooks; a run keeps the set it began with.
2. `call` and `stream` do nothing until awaited, iterated, subscribed to or blocked on; each time is a new call.
3. What a call needs is checked before its first event: a refused call raises and fires nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack, cast, overload
from weakref import WeakKeyDictionary

from pydantic_core import to_json
from reactivex.abc import DisposableBase

from agentflow.agent.agent_registry import AgentRegistry, default_agents
from agentflow.agent.builder import AgentBuilder
from agentflow.agent.call_checks import Decisions, check_decisions, check_timeout, decisions_of, input_of, not_open
from agentflow.agent.definition import agent_from_dict, agent_to_dict
from agentflow.agent.peers import QueueingAgent, asking_tool
from agentflow.agent.queue import check_limit
from agentflow.agent.registration import HookSource, ToolSource, hooks_of, tools_of
from agentflow.agent.sessions import HELD, Sessions
from agentflow.context import RunContext, find_dep
from agentflow.errors import ShutdownError, ToolError, UsageError
from agentflow.events import Event, HookEvent
from agentflow.ground.ids import inner_session_id, inside
from agentflow.ground.ids import new_id as fresh_id
from agentflow.hooks.chain import HookSet
from agentflow.hooks.defaults import default_hooks
from agentflow.hooks.functions import EventName, FunctionHook, HookOptions, kinds_of, named_hook
from agentflow.hooks.hook import Hook
from agentflow.hooks.scope import ProcessHooks, Registered, process_hooks, whole
from agentflow.loop.call import Run
from agentflow.loop.machine import State
from agentflow.loop.run import (
    LoopConfig,
    OnUnknownOutcome,
    RunBase,
    ToolSuspended,
    TurnPlace,
    current_turn,
    refuse_waiting_for_itself,
)
from agentflow.loop.schedule import ToolSchedule
from agentflow.loop.session import Session
from agentflow.loop.stream import EventStream, Port
from agentflow.loop.turns.saved import found_by_name, read_json
from agentflow.loop.view import View
from agentflow.messages import Msg, Reply
from agentflow.ports.clock import SystemClock
from agentflow.ports.model import Model
from agentflow.ports.store import SessionInfo, SessionStore, Store
from agentflow.reactive import CallMono, Flux
from agentflow.specs import Clock, ModelOptions, Usage, checked_options
from agentflow.tools.tool import Tool, tool
from agentflow.tools.tool_checks import ToolType, strictest
from agentflow.tools.tool_registry import ToolRegistry

__all__ = ["Agent", "AgentFlux"]

_UNSET = ModelOptions()
_DEFAULT_HOOKS = default_hooks()
E = TypeVar("E", bound=Event)
F = TypeVar("F", bound="Callable[..., Any]")
_CLOCK: Clock = SystemClock()


class AgentFlux(Flux[HookEvent]):
    """The events of a call; each iteration is a new call."""


class Agent(QueueingAgent):
    """An agent: typed events flow through its hooks around a loop of model and tools.

    Args:
        name: What it is called, `^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$` if it shall be a tool of others.
        model: A `Model`, or a name such as `"openai/gpt-5"`.
        system: The system prompt: a text, a message, or a function of the `RunContext` (it may be async).
        description: What it is for; other agents read it.
        tools: Tools, agents to be used as tools, toolsets, names in the default registry.
        hooks: Hooks, marked functions, lists of them, or a mapping from names like `"before_llm"` to functions.
        default_hooks: What is there without asking: retries of empty and truncated answers. `()` for none.
        options: Options of its model calls.
        max_iterations: Most rounds of reasoning in one run; then one summary without tools.
        schedule: How the tools of one round run.
        store: Where sessions are kept; the process's memory by default.
        on_unknown_outcome: Who learns, when a call is resumed after a crash, of a tool that was running and is not
            `idempotent`: `"tell"` the model; `"suspend"` a person, who answers it like an approval.
        tags: Labels; process-wide hooks are chosen by them.
        process_hooks: The process-wide hooks; the default ones by default.
        agents: Where agents that it sends to are looked up; the process's registry by default.
        queue_limit: Most turns that wait in its queue; None: any number.
        clock: Time; virtual in tests.
        new_id: Ids; repeatable in replays.

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
        tools: Iterable[ToolSource] = (),
        hooks: HookSource = (),
        default_hooks: HookSource = _DEFAULT_HOOKS,
        options: ModelOptions | None = None,
        max_iterations: int = 25,
        schedule: ToolSchedule = ToolSchedule.BY_TYPE,
        store: Store | None = None,
        on_unknown_outcome: OnUnknownOutcome = "tell",
        tags: Iterable[str] = (),
        process_hooks: ProcessHooks = process_hooks,
        agents: AgentRegistry = default_agents,
        queue_limit: int | None = 1000,
        clock: Clock = _CLOCK,
        new_id: Callable[[str], str] = fresh_id,
    ) -> None:
        if not name:
            raise UsageError("An agent needs a name: Agent('assistant', model).")
        if not isinstance(model, str) and not callable(getattr(model, "stream", None)):
            raise UsageError(f"Agent {name!r}: model= takes a Model or a name like 'openai/gpt-5', not {model!r:.60}.")
        if type(max_iterations) is not int or max_iterations < 1:
            raise UsageError(
                f"Agent {name!r}: max_iterations={max_iterations!r}; it is the number of model calls, at least 1."
            )
        if on_unknown_outcome not in ("tell", "suspend"):
            raise UsageError(f"Agent {name!r}: on_unknown_outcome={on_unknown_outcome!r}; it is 'tell' or 'suspend'.")
        check_limit(name, queue_limit)
        given = hooks_of(hooks)
        standing = _DEFAULT_HOOKS if default_hooks is _DEFAULT_HOOKS else hooks_of(default_hooks)
        from_hooks = [made for hook in given if type(hook).tools is not Hook.tools for made in hook.tools()]
        resolved = tools_of((*tools, *from_hooks))
        specs = tuple([t.spec for t in resolved.values()])
        self._own_hooks = HookSet((*standing, *given))
        self._process_seen: tuple[Hook, ...] = ()
        self._agents = agents
        self._queue_limit = queue_limit
        self._asking: Tool[..., Any] | None = None
        self._view = View(name, description, specs, model if isinstance(model, str) else model.name)
        self._store = store
        self._swapping = threading.Lock()
        self._prepared = False
        self.config = LoopConfig(
            self._view,
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
        )
        self._implicit: Session | None = None
        # Not a method of this: an agent that is dropped would wait for the collector.
        self._sessions = Sessions(partial(Session, store=store, new_id=new_id), None if store is None else HELD)

    @staticmethod
    def builder() -> AgentBuilder[Agent]:
        """Configure an agent step by step; the methods are named like the constructor's arguments."""
        return AgentBuilder(Agent)

    @property
    def description(self) -> str:
        """What it is for."""
        return self._view.description

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        """Its tools."""
        return tuple(self.config.tools.values())

    @property
    def hooks(self) -> HookSet:
        """Its hooks, in order, the process-wide ones that match included; `describe()` prints them event by event."""
        process = self.config.process.hooks
        if process is not self._process_seen:
            with self._swapping:
                matching = self.config.process.matching(self.config.tags)
                self._own_hooks = self._own_hooks.with_process(matching)
                self._process_seen = process
        return self._own_hooks

    @property
    def asking(self) -> Tool[..., Any]:
        """The tool whose turns are questions to this agent (`other.ask(name, ...)`)."""
        if self._asking is None:
            self._asking = asking_tool(self.call, self.name)
        return self._asking

    # ---- calls

    def call(
        self,
        input: str | Msg | Sequence[Msg],  # noqa: A002 - the contract's word
        *,
        session: str | Session | None = None,
        options: ModelOptions | None = None,
        timeout: float | None = None,
        deps: object = None,
        hooks: HookSource = (),
    ) -> CallMono[Reply]:
        """Run one call to its reply.

        Args:
            input: What the user says.
            session: An id or a session; the agent's implicit conversation by default.
            options: Laid over the agent's.
            timeout: Seconds for the whole call, the reader's time included; waiting for the session does not count.
                Hooks of `CallEnded` have as long again.
            deps: What tools and hooks may ask for by type: an object, a list of objects, or a mapping by type.
            hooks: Added for this call, behind the agent's of the same priority.

        Returns:
            A Mono of the reply: await it, `.block()` on it, subscribe to it. Each is a new call.

        Raises:
            UsageError: The call overlaps with another one on the implicit session, or an argument cannot be used.
            SuspendedError: The session waits for `resume`.
            ModelError: The model failed.
            CallTimeoutError: `timeout` passed.
        """

        return CallMono(partial(self._call, input, session, options, timeout, deps, hooks), "agent.call(...)")

    def stream(
        self,
        input: str | Msg | Sequence[Msg],  # noqa: A002
        *,
        session: str | Session | None = None,
        options: ModelOptions | None = None,
        timeout: float | None = None,
        deps: object = None,
        hooks: HookSource = (),
        children: bool = False,
    ) -> AgentFlux:
        """Run one call and hand out its events, sealed, as they happen.

        Args:
            input: As in `call`, like the other arguments.
            children: Hand out the events of sub-agents too; their `source` says whose they are.

        Returns:
            A Flux of events; `async with` it, or iterate it. A slow reader slows the model down.
        """

        async def start(port: Port) -> Reply:
            run = await self._open(input, session, options, timeout, deps, hooks, port, children)
            port.run = run
            return self._settled(run.session, await run.execute())

        return AgentFlux(lambda: EventStream(start))

    def resume(
        self,
        session: str | Session | None = None,
        decisions: Decisions | None = None,
        *,
        options: ModelOptions | None = None,
        timeout: float | None = None,
        deps: object = None,
        hooks: HookSource = (),
    ) -> CallMono[Reply]:
        """Continue a call that was suspended, or cut by a crash or a shutdown, at the first thing that is missing.

        What is finished does not run again. Of a suspended call the tool calls without a result pass the whole `PreActing`
        chain again. Of one that was cut, a model call in flight is made again, and a tool in flight is run again if it is
        `idempotent`; else `on_unknown_outcome` says who is told.

        Args:
            session: The session; the implicit one by default.
            decisions: By the keys of `reply.pending`: `Approve()`, `Approve(input=...)`, `Deny(reason)` or `Answer(value)`; a
                mapping, or pairs.
            options: As in `call`, like the rest.

        Raises:
            UsageError: The session holds no open call, or decisions are missing, unknown or of a wrong type.
            ShutdownError: The agent is shutting down.
        """

        async def work() -> Reply:
            run = await self._reopen(session, decisions or {}, options, timeout, deps, hooks, None)
            return self._settled(run.session, await run.execute())

        return CallMono(work, "agent.resume(...)")

    def resume_stream(
        self,
        session: str | Session | None = None,
        decisions: Decisions | None = None,
        *,
        options: ModelOptions | None = None,
        timeout: float | None = None,
        deps: object = None,
        hooks: HookSource = (),
        children: bool = False,
    ) -> AgentFlux:
        """Like `resume`, with the events handed out like `stream`."""
        given = decisions or {}

        async def start(port: Port) -> Reply:
            run = await self._reopen(session, given, options, timeout, deps, hooks, port, children)
            port.run = run
            return self._settled(run.session, await run.execute())

        return AgentFlux(lambda: EventStream(start))

    async def _call(
        self,
        given: Any,
        session: str | Session | None,
        options: ModelOptions | None,
        timeout: float | None,
        deps: object,
        hooks: HookSource,
    ) -> Reply:
        messages = input_of(given, self.config.new_id)
        chosen = self._session_of(session)
        extra = hooks_of(hooks) if hooks else ()
        if timeout is not None:
            check_timeout(timeout)
        if not chosen.try_acquire():
            await self._acquire(chosen)
        run = self._opened(chosen, messages, options, timeout, deps, extra, None, False)
        return self._settled(chosen, await run.execute())

    async def _open(
        self,
        given: Any,
        session: str | Session | None,
        options: ModelOptions | None,
        timeout: float | None,
        deps: object,
        hooks: HookSource,
        reader: Port | None,
        children: bool = False,
    ) -> Run:
        messages = input_of(given, self.config.new_id)
        chosen = self._session_of(session)
        extra = hooks_of(hooks) if hooks else ()
        if timeout is not None:
            check_timeout(timeout)
        if not chosen.try_acquire():
            await self._acquire(chosen)
        return self._opened(chosen, messages, options, timeout, deps, extra, reader, children)

    async def _acquire(self, session: Session) -> None:
        """Wait for a session's turn, where that comes."""
        if not session.implicit and not session.closing:
            refuse_waiting_for_itself(session, self.name)
        await session.acquire(self.name)

    def _opened(
        self,
        session: Session,
        messages: tuple[Msg, ...],
        options: ModelOptions | None,
        timeout: float | None,
        deps: object,
        extra: tuple[Hook, ...],
        reader: Port | None,
        children: bool,
    ) -> Run:
        """A run on a session that was acquired; if it cannot be, the session is released."""
        try:
            self._check_open(session)
            machine = session.machine
            if machine.state is not State.USER_INPUT or machine.suspended:
                raise not_open(session)
            run = self._run(session, self.config.new_id("run_"), options, timeout, deps, extra, reader, children)
        except BaseException:
            session.release()
            raise
        run.input_messages = messages
        return run

    async def _reopen(
        self,
        session: str | Session | None,
        decisions: Decisions,
        options: ModelOptions | None,
        timeout: float | None,
        deps: object,
        hooks: HookSource,
        reader: Port | None,
        children: bool = False,
    ) -> Run:
        chosen = self._sessions.waiting(session) if isinstance(session, str) else None
        if chosen is None:
            chosen = self._session_of(session)
        extra = hooks_of(hooks) if hooks else ()
        check_timeout(timeout)
        await self._acquire(chosen)
        try:
            self._check_open(chosen)
            machine = chosen.machine
            if machine.next() == "input":
                raise UsageError(f"Session {chosen.id!r} is not suspended: there is nothing to resume. Call the agent.")
            decided = decisions_of(chosen, decisions)
            check_decisions(chosen, decided, self.config.tools, _tools_behind)
            run = self._run(chosen, machine.run_id, options, timeout, deps, extra, reader, children)
        except BaseException:
            chosen.release()
            raise
        return run.continuing(decided)

    def _check_open(self, session: Session) -> None:
        """Refuse to begin while the agent shuts down; what a call that still runs asks for begins, and stops with it."""
        if self.config.running.closed:
            place = current_turn.get()
            if place is None or place.run.over:
                raise ShutdownError(self.name, session.id, stopped=False)

    def _run(
        self,
        session: Session,
        run_id: str,
        options: ModelOptions | None,
        timeout: float | None,
        deps: object,
        extra: tuple[Hook, ...],
        reader: Port | None,
        children: bool,
    ) -> Run:
        if not self._prepared:
            self._prepare()
        hooks = self.hooks
        if extra:
            hooks = hooks.with_hooks(extra)
        place = current_turn.get()
        parent: RunBase | None = None
        source = ""
        if place is not None and not place.run.over:
            parent = place.run
            above = parent.frame.source
            source = f"{above}/{self.name}" if above else self.name
            hooks = hooks.with_hooks([h for h in parent.hooks if h.scope == "tree"])
        config = self.config
        if deps is None and parent is not None:
            deps = parent.deps
        for parameter, kind in config.dep_types:
            find_dep(deps, kind, parameter)
        merged = config.options if options is None else config.options.merge(options)
        run = Run(config, hooks, session, run_id, merged, deps, timeout, source, parent, reader, children)
        if place is not None and parent is not None and reader is None:
            run.port = parent.child_port(place.port)
            run.children = parent.children
        return run

    def _prepare(self) -> None:
        """Build what tools need (schemas, validators), once, at the first call."""
        deps: dict[tuple[str, type], None] = {}
        for made in self.config.tools.values():
            made.prepare()
            deps.update(dict.fromkeys(made.dep_types.items()))
        if deps:
            object.__setattr__(self.config, "dep_types", tuple(deps))
        self._prepared = True

    # ---- sessions

    def session(self, id: str | None = None) -> Session:  # noqa: A002 - the contract's word
        """The session of an id; the implicit one without. It is made when first asked for.

        With a store, what it holds is known when it has been loaded: by a call, or by `await agent.history(id)`. An agent with
        a store holds the 256 named sessions that were used last (those that run a call, and those that wait for a decision,
        besides); others are loaded when they are asked for again.
        """
        if id is None:
            if self._implicit is None:
                self._implicit = Session(self.name, store=self._store, implicit=True, new_id=self.config.new_id)
            return self._implicit
        return self._sessions.get(id)

    async def history(self, session: str | Session | None = None) -> tuple[Msg, ...]:
        """A session's conversation as it is stored; it is loaded, so that `agent.session(id)` knows it too.

        While a call runs on it, it is what this call knows of.

        Args:
            session: An id or a session; the implicit one by default.

        Raises:
            StoreError: It cannot be read.

        Example:
            >>> store = MemoryStore()
            >>> await Agent("a", ScriptedModel(["Hello Ada."]), store=store).call("I am Ada.", session="ada")
            >>> [msg.text for msg in await Agent("a", ScriptedModel([]), store=store).history("ada")]
            ['I am Ada.', 'Hello Ada.']
        """
        chosen = self._session_of(session)
        await chosen.load()
        return tuple(chosen.messages)

    def forget(self, id: str) -> bool:  # noqa: A002
        """Let go of a session's place in memory; what a store keeps of it stays, and is loaded when it is asked for again.

        Returns:
            Whether it was there.

        Raises:
            UsageError: A call is running on it.
        """
        found = self._sessions.find(id)
        if found is not None and found.busy:
            raise UsageError(
                f"Session {id!r} of agent {self.name!r} is running a call; it can be forgotten when that has ended."
            )
        return self._sessions.forget(id)

    def _settled(self, session: Session, reply: Reply) -> Reply:
        """Keep a session that waits for a decision under its id, whoever made it, until it has got it."""
        if reply.outcome == "suspended":
            self._sessions.suspended(session)
        else:
            self._sessions.settled(session.id)
        return reply

    def _session_of(self, session: str | Session | None) -> Session:
        if session is None or isinstance(session, str):
            return self.session(session)
        if not isinstance(session, Session):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
            raise UsageError(f"session= takes an id or a Session, not {type(session).__name__}.")
        return session

    def interrupt(self, session: str | Session | None = None, reason: str = "interrupted") -> bool:
        """End the call that runs on a session, at once: its reply's outcome is `interrupted`.

        A call that waits for its session to be loaded is ended as soon as it begins, before it asks a model.

        Returns:
            Whether there was a call.
        """
        found = self._sessions.find(session) if isinstance(session, str) else self._session_of(session)
        return found is not None and found.interrupt(reason)

    async def unfinished(self) -> list[SessionInfo]:
        """The sessions of its store that hold a call which a crash or a shutdown has cut: `resume` each.

        Sessions of sub-agents are left out, since their callers go on with them. A call that another process is running
        looks the same: ask when no other process works on the store, or let calls wait (`SqlStore(..., on_conflict="wait")`).

        Example:
            >>> await Agent("assistant", ScriptedModel([]), store=MemoryStore()).unfinished()
            []
        """
        store = self._store
        if not isinstance(store, SessionStore):
            return []
        found = await store.sessions()
        within = inside([info.id for info in found if info.status != "idle"])
        here = {session.id for session in (*self._sessions, *filter(None, [self._implicit])) if session.busy}
        return [info for info in found if info.status == "unfinished" and info.id not in here and not within(info.id)]

    # ---- hooks at run time

    @overload
    def on(
        self, event: EventName, function: Callable[[Any], Any], **options: Unpack[HookOptions]
    ) -> DisposableBase: ...
    @overload
    def on(self, event: type[E], function: Callable[[E], Any], **options: Unpack[HookOptions]) -> DisposableBase: ...
    @overload
    def on(
        self, event: EventName | type[Event], function: None = None, **options: Unpack[HookOptions]
    ) -> Callable[[F], F]: ...
    def on(self, event: EventName | type[Event], function: Any = None, **options: Unpack[HookOptions]) -> Any:
        """Add a function for an event; calls that begin later have it. It may be called from any thread.

        Args:
            event: An event class, or one of the nine names of function hooks.
            function: The function; without it, a decorator is returned.
            options: As in `agentflow.on`: `priority`, `tools`, `timeout` and so on.

        Returns:
            A disposable that takes it off; without `function`, a decorator.

        Raises:
            UsageError: The event, the function or an option cannot be used.

        Example:
            >>> agent.on("after_llm", print).dispose()
            >>> @agent.on(PreActing, tools=["delete_*"])
            ... def log(event): ...
        """
        if function is None:
            kinds_of(event)

            def decorate(function: F) -> F:
                self.on(cast("Any", event), function, **options)
                return function

            return decorate
        hook = named_hook(event, function, **options)
        with self._swapping:  # threads may register at once
            self._own_hooks = self._own_hooks.with_hooks([hook])
        return Registered((hook,), self.remove_hook)

    def off(self, event: EventName | type[Event], function: Callable[[Any], Any]) -> bool:
        """Take a function off an event.

        Args:
            event: An event class, or one of the nine names.
            function: What `on` was given, or what a decorator such as `@after_llm` made of it.

        Returns:
            Whether it was there.

        Raises:
            UsageError: There is no such event, or the function is one hook for other events too.
        """
        kinds = kinds_of(event)
        plain = _handler(function)
        with self._swapping:
            for hook in self._own_hooks:
                if not isinstance(hook, FunctionHook) or _handler(cast("Hook", hook)) != plain:
                    continue
                if hook.events == kinds:
                    self._own_hooks = self._own_hooks.without(cast("Hook", hook))
                    return True
                if set(kinds) & set(hook.events or ()):
                    raise UsageError(
                        f"Hook {hook.name!r} of agent {self.name!r} is one hook for "
                        f"{' and '.join(kind.__name__ for kind in hook.events or ())}, so it cannot be taken off one of "
                        "them. Take it off all: agent.remove_hook(hook)."
                    )
        return False

    def remove_hook(self, hook: Hook) -> bool:
        """Take a hook off; runs that have begun keep it. Returns whether it was there."""
        with self._swapping:
            before = self._own_hooks
            for one in whole(hook):
                self._own_hooks = self._own_hooks.without(one)
            return len(self._own_hooks) < len(before)

    # ---- copies and data

    def branch(self, name: str) -> Agent:
        """Another agent of the same making, with copies of its waiting turns and of its implicit conversation.

        Nothing is shared that can change: what one of them does, the other does not see. A conversation that a store keeps
        is copied there: `store.fork(agent.name, name)`.

        Args:
            name: The other agent's name.

        Raises:
            UsageError: A call runs on the implicit session.
        """
        config = self.config
        hooks = self.hooks
        made = Agent(
            name,
            config.model,
            system=config.system,
            description=config.view.description,
            tools=config.tools.values(),
            hooks=(),
            default_hooks=(),
            options=config.options,
            max_iterations=config.max_iterations,
            schedule=config.schedule,
            store=self._store,
            on_unknown_outcome=config.on_unknown_outcome,
            tags=config.tags,
            process_hooks=config.process,
            agents=self._agents,
            queue_limit=self._queue_limit,
            clock=config.clock,
            new_id=config.new_id,
        )
        made._own_hooks = hooks
        made._process_seen = self._process_seen
        if self._implicit is not None and self._store is None:
            made._implicit = self._implicit.copy(name)
        if self._queue is not None:
            self._queue.copy_to(made.queue)
        return made

    def to_dict(self) -> dict[str, Any]:
        """The agent's definition and queue as JSON-compatible data: what is code by its name. Sessions have their own.

        Raises:
            UsageError: A tool or hook is a closure or a lambda, which a name does not carry; an option is no data.

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
        **rest: Any,
    ) -> Agent:
        """Make the agent again that `to_dict` has saved.

        Args:
            data: The data.
            tools: Where tools are found by name: a registry, or tools; the default registry by default.
            hooks: The hooks that are named in it; the default hooks are known.
            model: The model, where it was no name.
            system: The system prompt, where it was a function.
            rest: What data does not hold: `store`, `agents`, `process_hooks`, `clock`, `new_id`.

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
    def from_json(text: str | bytes, **given: Any) -> Agent:
        """`from_dict` of JSON text."""
        return Agent.from_dict(read_json(text, "agent"), **given)

    # ---- being a tool

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        type: ToolType | str | None = None,  # noqa: A002
    ) -> Tool[..., Any]:
        """This agent as a tool of another: each use is a call in a fresh session, billed to the caller.

        Args:
            name: The tool's name; the agent's by default.
            description: What the calling model is told; the agent's description by default.
            type: What a round takes it for. By default the strictest of its own tools: `"write"` where one of them writes, else
                `"read"` where one reads, else `"research"`. So agents that only look things up run side by side.

        Raises:
            UsageError: The name or the type cannot be one.
        """
        agent = self

        async def ask(message: str, context: RunContext) -> str:  # the context: so that its events may come from a task
            return await agent.answer(message)

        about = description or self.description or f"Ask the agent {self.name}."
        _asked[ask] = self.config.tools
        # Idempotent: after a crash it is entered again, where it was.
        return tool(
            name=name or self.name,
            description=about,
            type=strictest(self.config.tools.values()) if type is None else type,
            timeout=None,
            idempotent=True,
        )(found_by_name(ask))

    async def answer(self, message: str) -> str:
        """What `as_tool` does: a call in a fresh session.

        Suspended, it suspends the caller, which is answered with keys such as `"t1/s1"`; then it goes on where it was. So it
        does after a crash, if this agent or the caller has a store.

        Raises:
            ToolError: The call did not end with an answer that the asking model can use.
        """
        place = current_turn.get()
        if place is None:
            return self._answered(await self.call(message, session=Session.fresh()))
        caller = place.run.session
        place.asked += 1
        session_id = inner_session_id(caller.id, place.use.id)
        if place.asked > 1:
            session_id = inner_session_id(session_id, str(place.asked))
        session = (caller.inner or {}).get(place.use.id)
        if session is None or session.id != session_id:
            session = Session(session_id, store=self._store or caller.store, new_id=self.config.new_id)
        if place.inner is None and not place.recovers:
            reply = await self.call(message, session=session)
        else:
            reply = await self._asked_again(message, session, place)
        if reply.outcome == "suspended":
            self._sessions.settled(session.id)  # the caller keeps it, and is resumed
            caller.keep_inner(place.use.id, session)
            raise ToolSuspended(self.name, reply.pending)
        return self._answered(reply)

    async def _asked_again(self, message: str, session: Session, place: TurnPlace) -> Reply:
        """Go on where the session is: it waited for a decision, or the process ended."""
        await session.acquire(self.name)  # loads it
        session.release()
        machine = session.machine
        if machine.suspended:
            waits = [waits.id for waits in session.pending if waits.kind != "parked"]
            decided = place.inner
            if decided is None or any(key not in decided for key in waits):  # nobody has been asked yet
                last = Msg.assistant("", id=self.config.new_id("msg_")) if machine.final is None else machine.final
                return Reply.of(last, "suspended", machine.run_id, Usage(), session.pending, session.id)
            return await self.resume(session, {key: decided[key] for key in waits})
        if machine.next() != "input":
            return await self.resume(session)
        ended = machine.ended
        if ended is not None and ended.final is not None and ended.outcome not in ("failed", "interrupted"):
            return Reply.of(ended.final, ended.outcome, ended.run_id, Usage(), ())
        return await self.call(message, session=session)

    def _answered(self, reply: Reply) -> str:
        if reply.outcome in ("suspended", "interrupted", "denied"):
            waits = ", ".join(p.tool_use.name for p in reply.pending if p.tool_use is not None)
            why = f"it waits for the approval of {waits}" if waits else reply.text or reply.outcome
            raise ToolError(f"Agent {self.name!r} did not answer (outcome {reply.outcome!r}): {why}")
        return reply.text

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, {self._view.model_name!r}, {len(self.config.tools)} tools, {len(self._own_hooks)} hooks)"


_asked: WeakKeyDictionary[Callable[..., Any], Mapping[str, Tool[..., Any]]] = WeakKeyDictionary()
"""The tools of the agents that are tools themselves, by the function behind that tool."""


def _tools_behind(tool: Tool[..., Any]) -> Mapping[str, Tool[..., Any]] | None:
    return _asked.get(tool.function)


def _handler(function: object) -> object:
    return cast("FunctionHook[Any]", function).handler if isinstance(function, FunctionHook) else function
