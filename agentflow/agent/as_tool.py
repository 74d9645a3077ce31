"""An agent as a tool: of a model (`as_tool`), and of whoever puts a question into its queue (`asking`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypedDict, cast
from weakref import ref

from agentflow.agent.agent_hooks import HookedAgent
from agentflow.agent.arguments import last_reply, put_behind
from agentflow.agent.calling import CallingAgent
from agentflow.context import RunContext, as_messages
from agentflow.errors import ToolError
from agentflow.ground.ids import conversation_key, inner_session_id
from agentflow.hooks.hook import Hook
from agentflow.loop.config import LoopConfig
from agentflow.loop.escalation import ToolSuspended
from agentflow.loop.run import TurnPlace, current_turn
from agentflow.loop.session import FullSession, Outer, Session
from agentflow.loop.states import State
from agentflow.loop.turns.code_names import found_by_name
from agentflow.messages import Msg, Reply, T_co, with_metadata
from agentflow.output.output import Output, OutputLike, output_of
from agentflow.output.replying import text_of, typed
from agentflow.saving.codec import msg_from_dict
from agentflow.specs import ToolType
from agentflow.tools.tool import Tool, tool
from agentflow.tools.tool_checks import strictest
from agentflow.verdicts import Resolution

__all__ = ["FullToolAgent", "ToolAgent", "full_agent"]


class _Rest(TypedDict):
    hooks: Sequence[Hook]
    timeout: float | None


class ToolAgent(CallingAgent[T_co]):
    """What makes a tool of an `Agent`."""

    _asking: Tool[..., Any] | None = None

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        type: ToolType | None = None,  # noqa: A002
        output: OutputLike[Any] | None = None,
    ) -> Tool[..., Any]:
        """This agent as a tool of another: each use is a call in a fresh session, billed to the caller.

        Args:
            name: The tool's name; the agent's by default.
            description: What the calling model is told; the agent's description by default.
            type: What a round takes it for. By default the strictest of its own tools: `"write"` where one of them writes, else
                `"read"` where one reads, else `"research"`. So agents that only look things up run side by side.
            output: What it is to give the calling model, in place of its own `output`, as JSON (see `docs/typed-answers.md`).

        Raises:
            UsageError: The name, the type or the output cannot be one.
        """

        asked = None if output is None else output_of(output)

        async def ask(
            message: str, context: RunContext
        ) -> str | Msg:  # the context: so that its events may come from a task
            return await full_agent(self).answer(message, asked)

        about = description or self._config.view.description or f"Ask the agent {self.name}."
        put_behind(ask, full_agent(self))
        # Idempotent: after a crash it is entered again, where it was.
        return tool(
            name=name or self.name,
            description=about,
            type=self._strictest() if type is None else type,
            timeout=None,
            idempotent=True,
        )(found_by_name(ask))

    def _strictest(self) -> ToolType:
        """What its tools may do; of a toolset that is not open yet, anything."""
        return "write" if self._toolsets is not None else strictest(self._config.tools.values())


class FullToolAgent(ToolAgent[T_co]):
    """An agent as its queue and other agents see it."""

    @property
    def config(self) -> LoopConfig:
        """What it gives the loop."""
        return self._config

    @property
    def own_tools(self) -> tuple[Tool[..., Any], ...]:
        """Its tools, those of toolsets that are opened left out."""
        return self._own_tools()

    @property
    def strictest(self) -> ToolType:
        """What its tools may do."""
        return self._strictest()

    @property
    def asking(self) -> Tool[..., Any]:
        """The tool whose turns are questions to this agent (`other.ask(name, ...)`)."""
        if self._asking is None:

            async def ask(message: str | list[dict[str, Any]], session: str | None, context: RunContext) -> object:
                given = message if isinstance(message, str) else [msg_from_dict(data) for data in message]
                return await self.call(given, session=Session.fresh() if session is None else session)

            self._asking = Tool(found_by_name(ask), name="ask", description=f"Ask the agent {self.name}.", timeout=None)
        return self._asking

    async def answer(self, message: str, output: Output[Any] | None = None) -> str | Msg:
        """What `as_tool` does: a call in a fresh session; see `within`.

        Raises:
            ToolError: The call did not end with an answer that the asking model can use.
        """
        return self._answered(await self.within(message, output), self.output if output is None else output)

    async def within(
        self,
        message: str | Sequence[Msg],
        output: Output[Any] | None = None,
        *,
        conversation: bool = False,
        hooks: Sequence[Hook] = (),
        timeout: float | None = None,
        begun: Callable[[Session], None] | None = None,
    ) -> Reply[Any]:
        """A call as part of the tool call that it is made from.

        Suspended, it suspends the caller, which is answered with keys such as `"t1/s1"`; then it goes on where it was. So it
        does after a crash, if this agent or the caller has a store.

        Args:
            message: What to ask.
            output: What it is to give, in place of its own.
            conversation: Go on with the agent's one conversation inside of the caller's session, and not with a fresh one.
            hooks: Added for this call.
            timeout: Seconds for it.
            begun: Told of the session before the call begins.
        """
        place = current_turn.get()
        rest: _Rest = {"hooks": hooks, "timeout": timeout}
        if place is None:
            return await self.call(message, session=Session.fresh(), output=output, **rest)
        caller = place.run.session
        session = self._session_within(caller, place, conversation)
        if begun is not None:
            begun(session)
        if conversation:  # so that it is known, after a crash, whether this was asked
            asked = as_messages(message, self._config.new_id)
            message = (*asked[:-1], with_metadata(asked[-1], within=place.use.id))
        try:
            if place.inner is None and not place.recovers and not (conversation and await self._holds_open(session)):
                reply = await self.call(message, session=session, output=output, **rest)
            else:
                reply = await self._asked_again(message, session, place, output, conversation, rest)
        except BaseException as error:  # it may be suspended all the same: its reader left behind that, say
            if session.machine.state is not State.SUSPENDED:
                raise
            waits = self._wait_within(session, place)
            if isinstance(error, Exception):  # its own events have reported it
                raise waits from error
            place.pending = waits.pending_of(place.use)
            raise
        if session.machine.state is State.SUSPENDED:
            raise self._wait_within(session, place)
        return reply

    def _wait_within(self, session: FullSession, place: TurnPlace) -> ToolSuspended:
        """The session waits for a decision: the caller keeps it, waits for the same, and resuming either resumes both."""
        caller = place.run
        caller.session.keep_inner(place.use.id, session)
        owner = caller.config.running.owner
        session.outer = None if owner is None else Outer(owner, ref(caller.session), place.use.id)
        self._sessions.keep_within(session)
        return ToolSuspended(self.name, session.machine.pending)

    async def _holds_open(self, session: FullSession) -> bool:
        """Whether a conversation holds an earlier question that has no answer yet: that one is finished first."""
        await session.acquire(self.name)  # loads it
        session.release()
        return session.machine.next() != "input"

    def _session_within(self, caller: FullSession, place: TurnPlace, conversation: bool) -> FullSession:
        """The session of a call that is part of a tool call: the one that was suspended there, if there is one."""
        place.asked += 1
        kept, key = caller.inner or {}, conversation_key(self.name) if conversation else place.use.id
        session_id = inner_session_id(caller.id, key)
        if place.asked > 1 and not conversation:
            session_id = inner_session_id(session_id, str(place.asked))
        for session in (kept.get(place.use.id), kept.get(key)):
            if session is not None and session.id == session_id:
                break
        else:
            session = FullSession(session_id, store=self._store or caller.store, new_id=self._config.new_id)
        if conversation:
            caller.keep_inner(key, session)
        return session

    async def _asked_again(
        self,
        message: str | Sequence[Msg],
        session: FullSession,
        place: TurnPlace,
        output: Output[Any] | None,
        conversation: bool,
        rest: _Rest,
    ) -> Reply[Any]:
        """Go on where the session is: it waited for a decision, the process ended, or an earlier question has no answer."""
        held = await self._holds_open(session)
        machine = session.machine  # a store may put another one there
        mine = not conversation or any(
            msg.metadata.get("within") == place.use.id for msg in machine.transcript.messages
        )
        if held:
            decisions: dict[str, Resolution] = {}
            if machine.state is State.SUSPENDED:
                waits = [waits.id for waits in session.pending if waits.kind != "parked"]
                decided = place.inner
                if decided is None or any(key not in decided for key in waits):  # nobody has been asked yet
                    return last_reply(session)
                decisions = {key: decided[key] for key in waits}
            reply = await self.resume(session, decisions, output=output if mine else None, **rest)
            if mine or reply.outcome == "suspended":
                return reply
        ended = session.machine.ended
        if mine and ended is not None and ended.final is not None and ended.outcome not in ("failed", "interrupted"):
            reply = last_reply(session)
            wanted = self.output if output is None else output
            return reply if wanted is None else await typed(reply, wanted)
        return await self.call(message, session=session, output=output, **rest)

    def _answered(self, reply: Reply[Any], output: Output[Any] | None) -> str | Msg:
        if reply.outcome in ("suspended", "interrupted", "denied"):
            waits = ", ".join(p.tool_use.name for p in reply.pending if p.tool_use is not None)
            why = f"it waits for the approval of {waits}" if waits else reply.text or reply.outcome
            raise ToolError(f"Agent {self.name!r} did not answer (outcome {reply.outcome!r}): {why}")
        return reply if reply.data else text_of(reply, output)


def full_agent(agent: HookedAgent) -> FullToolAgent[Any]:
    """The agent as its queue and other agents see it."""
    assert isinstance(agent, FullToolAgent)  # each is made as one
    return cast("FullToolAgent[Any]", agent)
