"""The calls of an agent, and their sessions.

Rules:

1. `call`, `stream`, `resume` and `resume_stream` take the same steps: check the arguments, acquire the session, check
   that the session allows such a call, build the run, execute it, and record whether the session waits for a decision.
2. They do nothing until the result is awaited, iterated, subscribed to or blocked on; each of these runs a new call.
3. Arguments are checked before the first event: a refused call raises, and fires no event.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Unpack, cast, overload
from weakref import ref

from typing_extensions import TypeVar

from agentflow._support.lazy import later
from agentflow.agent.arguments import (
    CallArguments,
    CallOptions,
    CallRequest,
    Decisions,
    Input,
    ResumeOptions,
    ResumeStream,
    StreamOptions,
    Where,
    check_decisions,
    last_reply,
    open_call_error,
    outer_request,
    refuse_keywords,
)
from agentflow.agent.sessions import Sessions, refuse_waiting_for_itself
from agentflow.agent.toolsets import ToolsetAgent
from agentflow.errors import ShutdownError, UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_set import FullHookSet
from agentflow.loop.call import Call
from agentflow.loop.config import LoopConfig
from agentflow.loop.run import RunBase, RunSettings, current_turn
from agentflow.loop.session import FullSession, Session
from agentflow.loop.states import State
from agentflow.loop.waits import Waits
from agentflow.reactive import CallMono
from agentflow.tools.live_toolset import LiveToolset
from agentflow.tools.tool import FullTool
from agentflow.vocabulary.deps import find_dep
from agentflow.vocabulary.messages import Msg, Reply, T_co

if TYPE_CHECKING:
    from agentflow.agent import agent_flux, typed_call
    from agentflow.agent.agent_flux import AgentFlux
    from agentflow.loop import stream as streams
    from agentflow.loop.output import output as outputs
    from agentflow.loop.output import replying
    from agentflow.loop.output.output import Output, OutputLike
    from agentflow.loop.stream import EventBuffer
    from agentflow.vocabulary.ports.store import SessionInfo, Store
else:
    agent_flux = later("agentflow.agent.agent_flux")
    typed_call = later("agentflow.agent.typed_call")
    streams = later("agentflow.loop.stream")
    outputs = later("agentflow.loop.output.output")
    replying = later("agentflow.loop.output.replying")

U = TypeVar("U")

_MAX_CACHED_OUTPUTS = 32  # the maximum number of typed outputs, passed to calls, that an agent caches


class CallingAgent(ToolsetAgent, Generic[T_co]):
    """The calls of an `Agent`, and its sessions.

    Args:
        config: The configuration for the loop.
        hooks: The initial hooks.
        store: The store of the agent's sessions.
        live: The agent's live toolsets.
    """

    _output: typed_call.TypedOutput | None = None
    _others: dict[int, typed_call.TypedOutput] | None = None
    _store: Store | None
    _sessions: Sessions

    def __init__(
        self, config: LoopConfig, hooks: Iterable[Hook], store: Store | None, live: tuple[LiveToolset, ...]
    ) -> None:
        super().__init__(config, hooks, live)
        # Weak, so that agent and configuration form no cycle, and a call does not keep the agent alive.
        config.running.owner = ref(self)
        own = vars(self)
        own["_store"], own["_sessions"] = (
            store,
            Sessions(config.view.name, store, config.running.suspended),
        )

    @property
    def output(self) -> Output[T_co] | None:
        """The typed output of the agent's calls; None if they return text only."""
        return None if self._output is None else self._output.output

    def session(self, id: str | None = None) -> Session:  # noqa: A002 - public name
        """Return the session with an id, created on first use; without an id, the implicit session.

        With a store, a session's content is available once a call or `await agent.history(id)` has loaded it. An agent
        with a store keeps the 256 most recently used named sessions in memory, and all that run a call or wait for a
        decision. Other sessions are loaded again when needed.
        """
        return self._sessions.of(id)

    async def history(self, session: str | Session | None = None) -> tuple[Msg, ...]:
        """Load a session, and return its stored conversation.

        While a call runs on the session, the result is that call's view of the conversation.

        Args:
            session: An id or a session; the implicit one by default.

        Raises:
            StoreError: The session cannot be read.

        Example:
            >>> store = MemoryStore()
            >>> await Agent("a", ScriptedModel(["Hello Ada."]), store=store).call("I am Ada.", session="ada")
            >>> [msg.text for msg in await Agent("a", ScriptedModel([]), store=store).history("ada")]
            ['I am Ada.', 'Hello Ada.']
        """
        chosen = self._sessions.of(session)
        await chosen.load()
        return tuple(chosen.messages)

    def forget(self, id: str) -> bool:  # noqa: A002 - public name
        """Release a session from memory. A session in a store is loaded again when needed.

        Returns:
            Whether it was in memory.

        Raises:
            UsageError: A call is running on the session.
        """
        return self._sessions.forget(id)

    def interrupt(self, session: str | Session | None = None, reason: str = "interrupted") -> bool:
        """Immediately end the call that runs on a session, with the outcome `interrupted`.

        A call that waits for its session to be loaded ends before its first model call.

        Returns:
            Whether a call was running.
        """
        # `find`, because a session that is not in memory runs no call here.
        found = self._sessions.find(session) if isinstance(session, str) else self._sessions.of(session)
        return found is not None and found.interrupt(reason)

    async def unfinished(self) -> list[SessionInfo]:
        """Return the sessions in the agent's store with a call that a crash or a shutdown interrupted: `resume` each of them.

        Sessions of sub-agents are not included, because their callers continue them. Calls that another process is
        running are included. So no other process should be using the store, unless calls wait for each other
        (`SqlStore(..., on_conflict="wait")`).

        Example:
            >>> await Agent("assistant", ScriptedModel([]), store=MemoryStore()).unfinished()
            []
        """
        return await self._sessions.unfinished()

    # ---- calls

    @overload
    def call(self, input: Input, *, output: None = None, **rest: Unpack[CallOptions]) -> CallMono[Reply[T_co]]: ...
    @overload
    def call(self, input: Input, *, output: OutputLike[U], **rest: Unpack[CallOptions]) -> CallMono[Reply[U]]: ...
    def call(
        self,
        input: str | Msg | Sequence[Msg],  # noqa: A002 - public name
        *,
        output: Any = None,
        **options: Unpack[CallOptions],
    ) -> CallMono[Reply[Any]]:
        """Run one call to its reply.

        Args:
            input: The user's input.
            session: An id or a session; the agent's implicit conversation by default.
            options: Override the agent's options.
            timeout: Seconds for the whole call, including the reader's time but not the wait for the session. If this
                time passes while hooks of `CallEnded` run, they have `cleanup_timeout` seconds left.
            deps: Objects that tools and hooks can request by type: an object, a list of objects, or a mapping by type.
            hooks: Hooks for this call only; they run after the agent's hooks of the same priority.
            output: The type of `reply.output`, instead of the agent's `output` (see `docs/typed-answers.md`).

        Returns:
            A Mono of the reply: await it, call `.block()`, or subscribe to it. Each of these runs a new call.

        Raises:
            UsageError: The call overlaps with another one on the implicit session, or an argument is invalid.
            SuspendedError: The session waits for `resume`.
            ModelError: The model failed.
            OutputError: The model gave no answer of the form that `output` asks for.
            CallTimeoutError: `timeout` passed.
        """
        # The fast path: most calls have no keyword arguments.
        if options:
            refuse_keywords("call", options)
        request = CallRequest(input, None, output, options)  # pyright: ignore[reportArgumentType] - `cast` is a call
        return CallMono(partial(self._open, request), "agent.call(...)")

    @overload
    def stream(self, input: Input, *, output: None = None, **rest: Unpack[StreamOptions]) -> AgentFlux[T_co]: ...
    @overload
    def stream(self, input: Input, *, output: OutputLike[U], **rest: Unpack[StreamOptions]) -> AgentFlux[U]: ...
    def stream(
        self,
        input: str | Msg | Sequence[Msg],  # noqa: A002 - public name
        *,
        output: Any = None,
        **options: Unpack[StreamOptions],
    ) -> AgentFlux[Any]:
        """Run one call and yield its events, sealed, as they happen.

        Args:
            input: This and the other arguments are those of `call`.
            children: Whether to yield the events of sub-agents too; their `source` names the sub-agent.
            buffer: How many events the run can be ahead of the reader. With 0, run and reader alternate, so that the
                reader's actions on an event take effect at exactly that event.

        Returns:
            A Flux of events; use `async with`, or iterate it. A slow reader slows the model down.
        """
        if options:
            refuse_keywords("stream", options)
        return self._flux(CallRequest(input, None, output, options))

    @overload
    def resume(
        self,
        session: Where = None,
        decisions: Decisions | None = None,
        *,
        output: None = None,
        **rest: Unpack[ResumeOptions],
    ) -> CallMono[Reply[T_co]]: ...
    @overload
    def resume(
        self,
        session: Where = None,
        decisions: Decisions | None = None,
        *,
        output: OutputLike[U],
        **rest: Unpack[ResumeOptions],
    ) -> CallMono[Reply[U]]: ...
    def resume(
        self,
        session: str | Session | None = None,
        decisions: Decisions | None = None,
        *,
        output: Any = None,
        **options: Unpack[ResumeOptions],
    ) -> CallMono[Reply[Any]]:
        """Continue a call that was suspended, or interrupted by a crash or a shutdown, at the first missing step.

        Finished work does not run again. In a suspended call, the tool calls without a result pass the whole
        `PreActing` chain again. In an interrupted call, an unfinished model call is made again. An unfinished tool call
        runs again if its tool is `idempotent`; otherwise `on_unknown_outcome` determines who decides on it.

        Args:
            session: The session; the implicit one by default.
            decisions: A mapping, or pairs, from the keys of `reply.pending` to `Approve()`, `Approve(input=...)`,
                `Deny(reason)` or `Answer(value)`.
            options: This and the other arguments are those of `call`.

        Raises:
            UsageError: The session has no open call, or decisions are missing, unknown or of a wrong type.
            ShutdownError: The agent is shutting down.
        """
        if options:
            refuse_keywords("resume", options)
        request = CallRequest(None, decisions or {}, output, {"session": session, **options})
        return CallMono(partial(self._open, request), "agent.resume(...)")

    @overload
    def resume_stream(
        self,
        session: Where = None,
        decisions: Decisions | None = None,
        *,
        output: None = None,
        **rest: Unpack[ResumeStream],
    ) -> AgentFlux[T_co]: ...
    @overload
    def resume_stream(
        self,
        session: Where = None,
        decisions: Decisions | None = None,
        *,
        output: OutputLike[U],
        **rest: Unpack[ResumeStream],
    ) -> AgentFlux[U]: ...
    def resume_stream(
        self,
        session: str | Session | None = None,
        decisions: Decisions | None = None,
        *,
        output: Any = None,
        **options: Unpack[ResumeStream],
    ) -> AgentFlux[Any]:
        """Continue a call as `resume` does, and yield its events as `stream` does."""
        if options:
            refuse_keywords("resume_stream", options)
        return self._flux(CallRequest(None, decisions or {}, output, {"session": session, **options}))

    def _flux(self, request: CallRequest) -> AgentFlux[Any]:
        buffer: object = request.options.get("buffer", streams.BUFFER)
        if isinstance(buffer, bool) or not isinstance(buffer, int) or buffer < 0:
            raise UsageError(f"buffer={buffer!r} is invalid; use a number of events, 0 or more.")
        flux: AgentFlux[Any] = agent_flux.AgentFlux(
            partial(streams.EventStream, partial(self._open_stream, request), buffer)
        )
        if request.output is not None or self._output is not None:
            flux.typed_output = self._typed_output(request.output).output
        return flux

    def _open(self, request: CallRequest) -> Coroutine[Any, Any, Reply[Any]]:
        """Open a call without a reader. Return a coroutine, which must be awaited immediately."""
        arguments = CallArguments(request, self._config.new_id)
        session = self._session_for(arguments)
        if arguments.decisions is not None and session.outer is not None and session.outer.waiting() is not None:
            return self._resume_outer(arguments, session)
        if self._toolsets is not None or not session.try_acquire():
            return self._open_later(arguments, session)
        run = self._run(arguments, session, None)
        run.start()
        # The fast path: the run's own coroutine, without another one around it.
        return run.scope.result()

    async def _resume_outer(self, arguments: CallArguments, session: FullSession) -> Reply[Any]:
        """Resume the outer call that waits for this session, which resumes this session too. Return this session's
        reply."""
        owner, request = outer_request(arguments, session)
        assert isinstance(owner, CallingAgent)
        return await self._own_reply(session, await cast("CallingAgent[Any]", owner)._open(request))

    async def _own_reply(self, session: FullSession, _outer: Reply[Any]) -> Reply[Any]:
        """Return the session's reply after its outer call was resumed."""
        reply, wanted = last_reply(session), self.output
        return (
            await replying.with_output(reply, wanted) if wanted is not None and reply.outcome == "completed" else reply
        )

    async def _open_later(self, arguments: CallArguments, session: FullSession) -> Reply[Any]:
        return await (await self._start(arguments, session, None)).scope.result()

    async def _open_stream(self, request: CallRequest, buffer: EventBuffer) -> Call:
        """Open a streamed call: start it, with its events going to the buffer."""
        arguments = CallArguments(request, self._config.new_id)
        session = self._session_for(arguments)
        if arguments.decisions is not None and session.outer is not None and session.outer.waiting() is not None:
            owner, request = outer_request(arguments, session)
            assert isinstance(owner, CallingAgent)
            run = await cast("CallingAgent[Any]", owner)._open_stream(request, buffer)
            run.settings.typed = partial(self._own_reply, session)
            return run
        return await self._start(arguments, session, buffer)

    async def _start(self, arguments: CallArguments, session: FullSession, buffer: EventBuffer | None) -> Call:
        """Open the agent's toolsets, wait for the session unless that would deadlock, and start the run."""
        if self._toolsets is not None or not session.try_acquire():
            if self._toolsets is not None and not self._config.running.closed:
                await self._toolsets.open()
            # Checked only now: a call that acquires the session immediately does not wait.
            refuse_waiting_for_itself(session, self.name)
            await session.acquire(self.name)
        run = self._run(arguments, session, buffer)
        run.start()
        return run

    def _session_for(self, arguments: CallArguments) -> FullSession:
        chosen = arguments.options.get("session")
        session = self._sessions.implicit if chosen is None else chosen
        if isinstance(session, FullSession):
            return session
        return self._sessions.of(session, to_continue=arguments.decisions is not None)

    def _replace_tools(self, tools: dict[str, FullTool[..., Any]]) -> None:
        """Implement `ToolsetAgent`; running calls with a typed output keep their final tool."""
        old, others = self._config, self._others or {}
        super()._replace_tools(tools)
        for typed in (*others.values(), *(() if self._output is None else (self._output,))):
            typed.move(old, self._config)

    def _typed_output(self, form: OutputLike[Any] | None) -> typed_call.TypedOutput:
        """Return the binding of a call's output, cached for the next call with the same output."""
        if form is None and self._output is not None:
            return self._output
        kept = self._others
        if kept is None or len(kept) > _MAX_CACHED_OUTPUTS:
            kept = self._others = {}
        # Cached by id, because types and functions need not be hashable; the id of a deleted object is reused, so the source
        # is compared.
        found = kept.get(id(form))
        if found is None or found.source is not form:
            output = outputs.output_of(form)
            assert output is not None
            found = kept[id(form)] = typed_call.TypedOutput(form, output)
        return found

    def _run(self, arguments: CallArguments, session: FullSession, buffer: EventBuffer | None) -> Call:
        """Build the run of a call on an acquired session; if that fails, release the session."""
        config, options = self._config, arguments.options
        try:
            typed = None if self._output is None and arguments.output is None else self._typed_output(arguments.output)
            place = current_turn.get()
            # A task that has outlived the call in which it was started makes independent calls.
            caller = None if place is None or place.run.finished else place
            if config.running.closed and caller is None:  # a nested call is stopped together with its caller
                raise ShutdownError(self.name, session.id, stopped=False)
            machine = session.machine
            if not self._prepared:
                self._prepare()
            if typed is not None:
                config = typed.apply_to(config)
            if arguments.decisions is not None:
                decisions, run_id = check_decisions(session, arguments.decisions, config.tools), machine.run_id
            elif machine.state is State.USER_INPUT:
                decisions, run_id = None, config.new_id("run_")
            else:
                raise open_call_error(session)
            # Hooks are added in this order: the agent's, the output's, the call's own, the caller's tree-wide ones.
            hooks, source, deps, above = self._hooks, "", options.get("deps"), None
            children = options.get("children", False)
            # Compared by identity: the process-wide registry replaces its tuple at each change.
            if hooks is None or config.process.hooks is not self._process_seen:
                hooks = self._hook_set()
            if typed is not None:
                hooks = typed.with_hooks(hooks)
            if arguments.hooks:
                hooks = hooks.with_hooks(arguments.hooks)
            if caller is not None:
                above = caller.run
                hooks, source, deps = self._below(above, hooks, deps)
                if buffer is None and above.shows_children():  # the caller's reader gets its events
                    buffer, children = above.events.buffer, True
            changed = options.get("options")
            for parameter, kind in config.dep_types:
                # Raises if a dependency is missing, before the first event.
                find_dep(deps, kind, parameter)
            merged = config.options if changed is None else config.options.merge(changed)
            # Positional arguments, since keyword arguments of a class build a dict, which costs 0.6 µs.
            settings = RunSettings(
                merged, deps, options.get("timeout"), source, above, buffer, children, arguments.messages
            )
            run = Call(config, hooks, session, run_id, settings)
            if caller is not None:
                run.scope.waits = Waits(config.clock.monotonic, caller.waits)
            if decisions is not None:
                run.continuing(decisions)
            if typed is not None:  # after `continuing`: the output is read from the run's state
                settings.typed = typed.reader_of(run.context.state)
        except BaseException:  # no call was created, so nothing else would release the session
            session.release()
            raise
        return run

    def _below(self, caller: RunBase, hooks: FullHookSet, deps: object) -> tuple[FullHookSet, str, object]:
        """Return the parts of a sub-agent's call that come from its caller: the tree-wide hooks, the source and the
        dependencies.
        """
        above = caller.settings.source
        return (
            hooks.with_hooks([hook for hook in caller.hooks if hook.scope == "tree"]),
            f"{above}/{self.name}" if above else self.name,
            caller.settings.deps if deps is None else deps,
        )

    def _prepare(self) -> None:
        """Read the tools' signatures and build their validators and schemas, once, at the first call."""
        deps: dict[tuple[str, type], None] = {}
        for tool in self._config.tools.values():
            deps.update(dict.fromkeys(tool.dep_types.items()))  # reading the attribute reads the tool's signature
        if deps:
            object.__setattr__(self._config, "dep_types", tuple(deps))
        self._prepared = True
