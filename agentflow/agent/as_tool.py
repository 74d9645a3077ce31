"""An agent as a tool: for a model (`as_tool`), and for questions in its queue (`asking`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast
from weakref import ref

from agentflow._support.ids import conversation_key, inner_session_id
from agentflow._support.lazy import later
from agentflow.agent.arguments import ResumeOptions, last_reply, set_wrapped_agent
from agentflow.agent.calling import CallingAgent
from agentflow.agent.toolsets import ToolsetAgent
from agentflow.errors import ToolError
from agentflow.loop.config import LoopConfig
from agentflow.loop.escalation import ToolSuspended
from agentflow.loop.run import TurnPlace, current_turn
from agentflow.loop.session import FullSession, OuterCall, Session
from agentflow.loop.states import State
from agentflow.tools.tool import Tool, tool
from agentflow.tools.tool_checks import strictest
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.messages import Msg, Reply, T_co, as_messages, undecided, with_metadata
from agentflow.vocabulary.specs import ToolType
from agentflow.vocabulary.verdicts import Resolution

if TYPE_CHECKING:
    from agentflow.loop.output import output as outputs
    from agentflow.loop.output import replying
    from agentflow.loop.output.output import Output, OutputLike
    from agentflow.tools import code_names
    from agentflow.vocabulary.saving import codec
else:
    outputs = later("agentflow.loop.output.output")
    replying = later("agentflow.loop.output.replying")
    code_names = later("agentflow.tools.code_names")
    codec = later("agentflow.vocabulary.saving.codec")


class ToolAgent(CallingAgent[T_co]):
    """The part of `Agent` that makes it a tool."""

    _asking: Tool[..., Any] | None = None

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        type: ToolType | None = None,  # noqa: A002 - public name
        output: OutputLike[Any] | None = None,
    ) -> Tool[..., Any]:
        """Return this agent as a tool for another agent: each use is a call in a fresh session, billed to the caller.

        Args:
            name: The tool's name; the agent's by default.
            description: The description for the calling model; the agent's by default.
            type: The tool's type in a round. By default the strictest type among the agent's tools: `"write"` if one of
                them writes, else `"read"` if one reads, else `"research"`. So agents that only look things up run
                concurrently.
            output: The typed output, which the calling model receives as JSON, instead of the agent's own `output` (see
                `docs/typed-answers.md`).

        Raises:
            UsageError: The name, the type or the output is invalid.
        """

        output_form = None if output is None else outputs.output_of(output)

        # `context` marks the tool as one that emits: the events of this agent may come from another task.
        async def ask(message: str, context: RunContext) -> str | Msg:
            return await full_agent(self).answer(message, output_form)

        about = description or self._config.view.description or f"Ask the agent {self.name}."
        # Used for the graph, and to check the arguments that a person has edited.
        set_wrapped_agent(ask, full_agent(self))
        # Idempotent, since the agent continues its own session after a crash.
        return tool(
            name=name or self.name,
            description=about,
            type=self._strictest() if type is None else type,
            timeout=None,
            idempotent=True,
        )(code_names.found_by_name(ask))

    def _strictest(self) -> ToolType:
        """Return the strictest type of the agent's tools, or `"write"` if a toolset is not open yet."""
        return "write" if self._toolsets is not None else strictest(self._config.tools.values())


class FullToolAgent(ToolAgent[T_co]):
    """An agent, with the members that its queue and other agents use."""

    @property
    def config(self) -> LoopConfig:
        """The agent's configuration for the loop."""
        return self._config

    @property
    def own_tools(self) -> tuple[Tool[..., Any], ...]:
        """The agent's tools, without the tools of live toolsets."""
        return self._own_tools()

    @property
    def strictest(self) -> ToolType:
        """The strictest type of the agent's tools."""
        return self._strictest()

    @property
    def asking(self) -> Tool[..., Any]:
        """The tool for questions to this agent; each question (`other.ask(name, ...)`) is a turn of this tool."""
        if self._asking is None:

            async def ask(message: str | list[dict[str, Any]], session: str | None, context: RunContext) -> object:
                content = message if isinstance(message, str) else [codec.msg_from_dict(data) for data in message]
                return await self.call(content, session=Session.fresh() if session is None else session)

            self._asking = Tool(
                code_names.found_by_name(ask), name="ask", description=f"Ask the agent {self.name}.", timeout=None
            )
        return self._asking

    async def answer(self, message: str, output: Output[Any] | None = None) -> str | Msg:
        """Run the call of `as_tool` in a fresh session; see `call_within`.

        Raises:
            ToolError: The call did not end with an answer for the calling model.
        """
        return self._answer_of(await self.call_within(message, output), self.output if output is None else output)

    async def call_within(
        self,
        message: str | Sequence[Msg],
        output: Output[Any] | None = None,
        *,
        conversation: bool = False,
        on_session: Callable[[Session], None] | None = None,
        **options: Unpack[ResumeOptions],
    ) -> Reply[Any]:
        """Run a call of this agent inside the current tool call of another agent.

        If this call is suspended, its caller is suspended too. Resuming the caller, with keys such as `"t1/s1"`, continues
        both. After a crash this call also continues, if this agent or the caller has a store.

        Args:
            message: The question.
            output: Overrides the agent's own output.
            conversation: Whether to continue this agent's conversation inside the caller's session, instead of starting
                a fresh session.
            on_session: Called with the session before the call begins.
            options: As in `call`.
        """
        # None outside of a tool call: then there is no caller to suspend together with this call.
        place = current_turn.get()
        if place is None:
            return await self.call(message, session=Session.fresh(), output=output, **options)
        caller = place.run.session
        session = self._session_within(caller, place, conversation)
        if on_session is not None:
            on_session(session)
        if conversation:  # shows after a crash whether this message was sent
            messages = as_messages(message, self._config.new_id)
            message = (*messages[:-1], with_metadata(messages[-1], within=place.use.id))
        try:
            if (
                place.restored.inner_decisions is None
                and not place.restored.recovers
                and not (conversation and await self._holds_open(session))
            ):
                reply = await self.call(message, session=session, output=output, **options)
            else:
                reply = await self._continue_or_call(message, session, place, output, conversation, options)
        except BaseException as error:  # the session can be suspended even then, for example if its reader has stopped
            if session.machine.state is not State.SUSPENDED:
                raise
            wait = self._wait_within(session, place)
            if isinstance(error, Exception):  # the events of this call have reported it
                raise wait from error
            place.suspend(wait.pending_of(place.use))
            raise
        if session.machine.state is State.SUSPENDED:
            raise self._wait_within(session, place)
        return reply

    def _wait_within(self, session: FullSession, place: TurnPlace) -> ToolSuspended:
        """Return the signal that suspends the caller. The caller keeps this session and waits for the same
        decision; resuming either of them resumes both.
        """
        caller = place.run
        caller.session.keep_inner(place.use.id, session)
        owner = caller.config.running.owner
        # Weak, because the caller's session holds this one.
        session.outer = None if owner is None else OuterCall(owner, ref(caller.session), place.use.id)
        self._sessions.keep_within(session)
        return ToolSuspended(self.name, session.machine.suspension.pending)

    async def _holds_open(self, session: FullSession) -> bool:
        """Whether a conversation contains an earlier question without an answer, which must be answered first."""
        await session.acquire(self.name)  # this loads the session
        session.release()
        return session.machine.next() != "input"

    def _session_within(self, caller: FullSession, place: TurnPlace, conversation: bool) -> FullSession:
        """Return the session for a call within a tool call: the session that was suspended there, or a new one."""
        # A tool may ask this agent several times; the first session has the id of the tool call alone.
        number = place.progress.next_subagent()
        kept, key = caller.inner or {}, conversation_key(self.name) if conversation else place.use.id
        session_id = inner_session_id(caller.id, key)
        if number > 1 and not conversation:
            session_id = inner_session_id(session_id, str(number))
        # The object that was suspended has state that the store does not have.
        for session in (kept.get(place.use.id), kept.get(key)):
            if session is not None and session.id == session_id:
                break
        else:
            session = FullSession(session_id, store=self._store or caller.store)
        if conversation:
            caller.keep_inner(key, session)
        return session

    async def _continue_or_call(
        self,
        message: str | Sequence[Msg],
        session: FullSession,
        place: TurnPlace,
        output: Output[Any] | None,
        conversation: bool,
        options: ResumeOptions,
    ) -> Reply[Any]:
        """Continue a session that waited for a decision, was interrupted by a crash, or has an earlier question without
        an answer.
        """
        held = await self._holds_open(session)
        machine = session.machine  # read again, since loading from a store can replace the machine
        mine = not conversation or any(
            msg.metadata.get("within") == place.use.id for msg in machine.transcript.messages
        )
        if held:
            decisions: dict[str, Resolution] = {}
            if machine.state is State.SUSPENDED:
                ids = [ids.id for ids in undecided(session.pending)]
                decided = place.restored.inner_decisions
                if decided is None or any(key not in decided for key in ids):  # no decision has been made yet
                    return last_reply(session)
                decisions = {key: decided[key] for key in ids}
            # An earlier question is answered first, in its own form; then this one is asked below.
            reply = await self.resume(session, decisions, output=output if mine else None, **options)
            if mine or reply.outcome == "suspended":
                return reply
        ended = session.machine.ended
        # This question was answered before the crash, but its tool call has no result yet.
        if mine and ended is not None and ended.final is not None and ended.outcome not in ("failed", "interrupted"):
            reply = last_reply(session)
            wanted = self.output if output is None else output
            return reply if wanted is None else await replying.with_output(reply, wanted)
        return await self.call(message, session=session, output=output, **options)

    def _answer_of(self, reply: Reply[Any], output: Output[Any] | None) -> str | Msg:
        if reply.outcome in ("suspended", "interrupted", "denied"):
            names = ", ".join(p.tool_use.name for p in reply.pending if p.tool_use is not None)
            reason = f"it waits for the approval of {names}" if names else reply.text or reply.outcome
            raise ToolError(f"Agent {self.name!r} did not answer (outcome {reply.outcome!r}): {reason}")
        return reply if reply.data else replying.text_of(reply, output)


def full_agent(agent: ToolsetAgent) -> FullToolAgent[Any]:
    """Return the agent, with the members that its queue and other agents use."""
    assert isinstance(agent, FullToolAgent)  # every agent is a `FullAgent`
    return cast("FullToolAgent[Any]", agent)
