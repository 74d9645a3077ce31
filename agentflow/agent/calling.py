"""The calls of an agent, and the sessions that they are made on.

Rules:

1. `call`, `stream`, `resume` and `resume_stream` go one way, `_start`: check what was given, acquire the session, check that
   it is open to such a call, build the run, execute it, and remember or forget that the session waits.
2. They do nothing until awaited, iterated, subscribed to or blocked on; each time is a new call.
3. What a call needs is checked before its first event: a refused call raises and fires nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

from agentflow.agent.agent_flux import AgentFlux
from agentflow.agent.arguments import CallArguments, Decisions, check_decisions, not_open
from agentflow.agent.sessions import Sessions, refuse_waiting_for_itself
from agentflow.agent.toolsets import ToolsetAgent
from agentflow.context import find_dep
from agentflow.errors import ShutdownError
from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.named import HookSource
from agentflow.loop.call import Call
from agentflow.loop.config import LoopConfig
from agentflow.loop.run import RunBase, current_turn
from agentflow.loop.session import Session
from agentflow.loop.states import State
from agentflow.loop.stream import EventStream, Port
from agentflow.messages import Msg, Reply
from agentflow.ports.store import SessionInfo, Store
from agentflow.reactive import CallMono
from agentflow.specs import ModelOptions
from agentflow.tools.live_toolset import LiveToolset

__all__ = ["CallingAgent"]

_MakeArguments: TypeAlias = Callable[[Callable[[str], str]], CallArguments]


class CallingAgent(ToolsetAgent):
    """The calls of an `Agent`.

    Args:
        config: What it gives the loop.
        hooks: The hooks that it begins with.
        store: Where its sessions are kept.
        live: Its toolsets that are opened.
    """

    _store: Store | None
    _sessions: Sessions

    def __init__(
        self, config: LoopConfig, hooks: Iterable[Hook], store: Store | None, live: tuple[LiveToolset, ...]
    ) -> None:
        super().__init__(config, hooks, live)
        own = vars(self)
        own["_store"], own["_sessions"] = (
            store,
            Sessions(config.view.name, store, config.new_id, config.running.suspended),
        )

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
        make = partial(CallArguments, input, None, session, options, timeout, deps, hooks, False)
        return CallMono(partial(self._open, make), "agent.call(...)")

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
        make = partial(CallArguments, input, None, session, options, timeout, deps, hooks, children)
        return AgentFlux(partial(EventStream, partial(self._open, make)))

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
        make = partial(CallArguments, None, decisions or {}, session, options, timeout, deps, hooks, False)
        return CallMono(partial(self._open, make), "agent.resume(...)")

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
        make = partial(CallArguments, None, decisions or {}, session, options, timeout, deps, hooks, children)
        return AgentFlux(partial(EventStream, partial(self._open, make)))

    def _open(self, make: _MakeArguments, reader: Port | None = None) -> Coroutine[Any, Any, Reply]:
        """The way in: a call, streamed or not, begun or continued, as a coroutine that is to be awaited at once.

        It holds its session, or waits for it.

        Args:
            make: Makes the arguments, and so checks them.
            reader: Where the events go.
        """
        given, sessions = make(self.config.new_id), self._sessions
        session = sessions.implicit if given.session is None else given.session
        if not isinstance(session, Session):
            session = sessions.of(session, to_go_on=given.decisions is not None)
        if self._toolsets is not None or not session.try_acquire():
            return self._open_later(given, session, reader)
        return self._run(given, session, reader).execute()

    async def _open_later(self, given: CallArguments, session: Session, reader: Port | None) -> Reply:
        if self._toolsets is not None and not self.config.running.closed:
            await self._toolsets.open()
        await self._acquire(session)
        return await self._run(given, session, reader).execute()

    def _run(self, given: CallArguments, session: Session, reader: Port | None) -> Call:
        """The run of a call on a session that was acquired for it; where it cannot be, that is released."""
        config = self.config
        try:
            if config.running.closed:
                self._refuse_while_closed(session)
            machine = session.machine
            if given.decisions is not None:
                decisions, run_id = check_decisions(session, given.decisions, config.tools), machine.run_id
            elif machine.state is State.USER_INPUT:
                decisions, run_id = None, config.new_id("run_")
            else:
                raise not_open(session)
            if not self._prepared:
                self._prepare()
            hooks, source, deps = self._hooks, "", given.deps
            if hooks is None or config.process.hooks is not self._process_seen:
                hooks = self._hook_set()
            if given.hooks:
                hooks = hooks.with_hooks(given.hooks)
            place = current_turn.get()
            caller = None if place is None or place.run.over else place
            if caller is not None:
                hooks, source, deps = self._below(caller.run, hooks, deps)
            for parameter, kind in config.dep_types:
                find_dep(deps, kind, parameter)
            run = Call(  # by position: names cost 0.6 µs, since a class that is called with them makes a dict
                config,
                hooks,
                session,
                run_id,
                config.options if given.options is None else config.options.merge(given.options),
                deps,
                given.timeout,
                source,
                None if caller is None else caller.run,
                reader,
                given.children,
            )
            run.input_messages = given.messages
            if decisions is not None:
                run.continuing(decisions)
            if caller is not None and reader is None:
                run.port, run.children = caller.run.child_port(caller.port), caller.run.children
        except BaseException:
            session.release()
            raise
        return run

    def _below(self, caller: RunBase, hooks: FullHookSet, deps: object) -> tuple[FullHookSet, str, object]:
        """What a sub-agent's call has of its caller's: the hooks of the whole tree, where it is, and what it is given."""
        above = caller.source
        return (
            hooks.with_hooks([hook for hook in caller.hooks if hook.scope == "tree"]),
            f"{above}/{self.name}" if above else self.name,
            caller.deps if deps is None else deps,
        )

    async def _acquire(self, session: Session) -> None:
        """Wait for a session's turn, where that comes."""
        if not session.implicit and not session.closing:
            refuse_waiting_for_itself(session, self.name)
        await session.acquire(self.name)

    def _refuse_while_closed(self, session: Session) -> None:
        """Refuse to begin while the agent shuts down; what a call that still runs asks for begins, and stops with it."""
        place = current_turn.get()
        if place is None or place.run.over:
            raise ShutdownError(self.name, session.id, stopped=False)

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
        return self._sessions.of(id)

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
        chosen = self._sessions.of(session)
        await chosen.load()
        return tuple(chosen.messages)

    def forget(self, id: str) -> bool:  # noqa: A002
        """Let go of a session's place in memory; what a store keeps of it stays, and is loaded when it is asked for again.

        Returns:
            Whether it was there.

        Raises:
            UsageError: A call is running on it.
        """
        return self._sessions.forget(id)

    def interrupt(self, session: str | Session | None = None, reason: str = "interrupted") -> bool:
        """End the call that runs on a session, at once: its reply's outcome is `interrupted`.

        A call that waits for its session to be loaded is ended as soon as it begins, before it asks a model.

        Returns:
            Whether there was a call.
        """
        found = self._sessions.find(session) if isinstance(session, str) else self._sessions.of(session)
        return found is not None and found.interrupt(reason)

    async def unfinished(self) -> list[SessionInfo]:
        """The sessions of its store that hold a call which a crash or a shutdown has cut: `resume` each.

        Sessions of sub-agents are left out, since their callers go on with them. A call that another process is running
        looks the same: ask when no other process works on the store, or let calls wait (`SqlStore(..., on_conflict="wait")`).

        Example:
            >>> await Agent("assistant", ScriptedModel([]), store=MemoryStore()).unfinished()
            []
        """
        return await self._sessions.unfinished()
