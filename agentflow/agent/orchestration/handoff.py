"""`handoffs`: a conversation with one agent at a time, which can hand the conversation over to another agent.

Rules:

1. The history of the session determines which agent holds the conversation. So the holder survives a restart, a fork
   and a copy.
2. Each agent keeps its own conversation, with its tool calls, in that session. Only text is passed on with a handoff:
   the messages of the user and the agents, and the reason.
3. A hook offers the handoffs to an agent for one call; the agent itself does not change. A handoff ends the agent's
   call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeAlias, Unpack, cast

from pydantic_core import from_json, to_json
from reactivex import Observable

from agentflow._support.validation import is_a
from agentflow.agent.agent import Agent
from agentflow.agent.orchestration.asking import answer_of
from agentflow.agent.orchestration.replay import before, contributions
from agentflow.agent.orchestration.steps import Step, ask, input_of
from agentflow.agent.orchestration.workflow import WorkflowOptions, make_workflow
from agentflow.errors import UsageError, Veto
from agentflow.hooks.hook import NarrowHook
from agentflow.hooks.named import HookSource
from agentflow.hooks.wrapping import ToolSource
from agentflow.loop.output.form import Form
from agentflow.reactive import Mono
from agentflow.tools.tool import arguments_text
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import PostActing, PreActing, PreReasoning
from agentflow.vocabulary.messages import Msg, Reply, ToolResultBlock, with_metadata
from agentflow.vocabulary.specs import ToolSpec
from agentflow.vocabulary.verdicts import Stop

HandoffHistory: TypeAlias = Literal["all", "last"] | Agent[Any] | Callable[[Sequence[Msg]], Sequence[Msg]]
"""The messages that are passed on with a handoff: all that the next agent has not seen, the user's last message, a
summary by an agent, or the result of a function."""

NOTE = "({by} has handed this conversation to you: {reason})"
SUMMARIZE = "Summarize this conversation for the agent that takes it over."
SOURCE = "handoff"
TOOL = "transfer_to_{name}"
_MAX_NAME_LENGTH = 64


def handoffs(
    *agents: Agent[Any],
    name: str = "desk",
    description: str = "",
    to: Mapping[str, Sequence[str]] | None = None,
    history: HandoffHistory = "all",
    max_handoffs: int = 5,
    inputs: Mapping[str, type] | None = None,
    on_handoff: Callable[[Handoff], object] | None = None,
    hooks: HookSource = (),
    **options: Unpack[WorkflowOptions],
) -> Agent[str]:
    """Make one agent from several that hand the conversation over to each other.

    The agent that holds the conversation answers the user, in this call and in later ones. It has a tool
    `transfer_to_<name>` for each agent to which it may hand over.

    Args:
        agents: The agents. The first one begins the conversation.
        name: The name of the resulting agent.
        description: The purpose of the resulting agent.
        to: The possible handoffs, by names. An agent without an entry cannot hand over. By default each agent may hand
            over to every other one.
        history: The messages to pass on with a handoff; the user's last message and the reason are always included. If
            it is an agent, that agent writes a summary.
        max_handoffs: The maximum number of handoffs for one message of the user; then the current agent must answer.
        inputs: Maps an agent's name to the type that a model fills in to hand over to this agent: a pydantic model, a
            dataclass, a `TypedDict`. The agent reads the value as JSON instead of a reason.
        on_handoff: Called with each `Handoff` before it takes place; it can be async. If it raises `ValueError`, the
            handoff is refused and the model reads why; any other exception is reported to it as a failed tool call.
        hooks: Hooks of the resulting agent.
        options: See `WorkflowOptions`.

    Returns:
        An agent. `holder(await desk.history(session))` returns who holds a conversation.

    Raises:
        UsageError: There are no agents, or `to` names an unknown agent.

    Example:
        >>> triage = Agent("triage", ScriptedModel([ToolUseBlock("t1", "transfer_to_billing", {"reason": "an invoice"})]))
        >>> billing = Agent("billing", ScriptedModel(["It is paid."]))
        >>> desk = handoffs(triage, billing)
        >>> (await desk.call("Is my invoice paid?")).text
        'It is paid.'
        >>> holder(await desk.history())
        'billing'
    """
    if type(max_handoffs) is not int or max_handoffs < 1:
        raise UsageError(f"handoffs(max_handoffs={max_handoffs!r}) must be an integer of at least 1.")
    by_name = _by_name(agents)
    ways = _checked_ways(list(by_name), to)
    desk = _Desk(by_name, ways, history, max_handoffs, _forms(inputs or {}, by_name), on_handoff)
    return make_workflow(
        desk.converse,
        desk.participants,
        name=name,
        description=description,
        # For each handoff a turn and a summary, then the last turn and the answer.
        max_rounds=2 * max_handoffs + 2,
        max_concurrency=1,
        passes=tuple((name, other) for name, others in ways.items() for other in others),
        hooks=hooks,
        options=options,
    )


def _by_name(agents: Sequence[Agent[Any]]) -> dict[str, Agent[Any]]:
    """Return the agents by name, after checking that each can receive the conversation."""
    wrong = next((agent for agent in agents if not is_a(agent, Agent)), None)
    if wrong is not None:
        raise UsageError(f"handoffs(...) takes agents, each as an argument, not {wrong!r:.60}. Write handoffs(a, b).")
    by_name = {agent.name: agent for agent in agents}
    if not agents or len(by_name) < len(agents):
        raise UsageError("handoffs(...) needs one or more agents with different names.")
    for name in by_name:
        tool = TOOL.format(name=name)
        if len(tool) > _MAX_NAME_LENGTH or any(tool == known.name for other in agents for known in other.tools):
            raise UsageError(
                f"The tool {tool!r} for handoffs to agent {name!r} has a name that is too long (at most {_MAX_NAME_LENGTH} "
                "characters) or in use by a tool of one of the agents: rename the agent or the tool."
            )
    return by_name


def _checked_ways(names: Sequence[str], to: Mapping[str, Sequence[str]] | None) -> Mapping[str, Sequence[str]]:
    """Return the agents to which each agent may hand over; by default all others."""
    if to is None:
        return {name: [other for other in names if other != name] for name in names}
    unknown = sorted({*to, *(other for others in to.values() for other in others)} - set(names))
    if unknown:
        raise UsageError(f"handoffs(to=...) names {', '.join(unknown)}; the agents are {', '.join(names)}.")
    return dict(to)


def _forms(inputs: Mapping[str, type], by_name: Mapping[str, Agent[Any]]) -> dict[str, Form]:
    forms = {name: Form(kind) for name, kind in inputs.items()}
    wrong = next((name for name, form in forms.items() if name not in by_name or form.wrapped), None)
    if wrong is not None:
        raise UsageError(
            f"handoffs(inputs=...): {wrong!r} must name one of the agents ({', '.join(by_name)}), and its type must be an "
            "object: a pydantic model, a dataclass or a TypedDict."
        )
    return forms


def holder(history: Sequence[Msg]) -> str | None:
    """Return the name of the agent that holds the conversation of `handoffs(...)`, or None if it has not begun.

    Args:
        history: The result of `await desk.history(session)`.
    """
    return _Conversation(history).holder


@dataclass(frozen=True)
class Handoff:
    """A handoff, as `on_handoff` receives it.

    Attributes:
        by: The agent that hands over.
        to: The agent that takes the conversation.
        input: The value of type `inputs[to]` that the model filled in; without such a type, the reason as text.
        context: The context of the call of the agent that hands over.
    """

    by: str
    to: str
    input: Any
    context: RunContext


class _TurnResult(NamedTuple):
    """The result of an agent's turn: its text, or the next agent and the reason for the handoff."""

    said: str
    to: str | None = None
    reason: str = ""

    def as_text(self) -> str:
        return to_json(self._asdict()).decode()


def _read(result: ToolResultBlock) -> _TurnResult:
    try:
        data = cast("dict[str, Any]", from_json(result.text))
        return _TurnResult(str(data["said"]), data["to"], str(data["reason"]))
    except (ValueError, KeyError, TypeError):  # a hook has replaced the text
        return _TurnResult(result.text)


class _Conversation:
    """A conversation as the user sees it, and how much of it each agent has seen.

    Args:
        history: The messages of the session.
    """

    def __init__(self, history: Sequence[Msg]) -> None:
        self.messages: list[Msg] = []
        self.seen: dict[str, int] = {}
        self.holder: str | None = None
        for part in contributions(history):
            if isinstance(part, Msg):
                self.messages.append(part)
            else:
                self.take(part.name, _read(part))

    def take(self, name: str, result: _TurnResult) -> None:
        """Add an agent's contribution, and update which agent holds the conversation."""
        if result.said:
            self.messages.append(Msg.assistant(result.said, name=name))
        self.seen[name] = len(self.messages)
        self.holder = name if result.to is None else result.to

    def unseen(self, name: str) -> Sequence[Msg]:
        """Return the messages that an agent has not seen yet."""
        return self.messages[self.seen.get(name, 0) :]


class _Desk:
    """The workflow of `handoffs`.

    Args:
        agents: The agents, by name.
        ways: The possible handoffs.
        history: The messages to pass on.
        max_handoffs: The maximum number of handoffs for one message.
        forms: The inputs of handoffs, by agent.
        on_handoff: Called with each handoff.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent[Any]],
        ways: Mapping[str, Sequence[str]],
        history: HandoffHistory,
        max_handoffs: int,
        forms: Mapping[str, Form[Any]],
        on_handoff: Callable[[Handoff], object] | None,
    ) -> None:
        self._forms = forms
        self._on_handoff = on_handoff
        self._agents = agents
        self._ways = ways
        self._history = history
        self._max_handoffs = max_handoffs
        self.summarizer: Agent[Any] | None = cast("Agent[Any]", history) if isinstance(history, Agent) else None
        self.participants = [*agents.values(), *([] if self.summarizer is None else [self.summarizer])]

    async def converse(self, messages: Sequence[Msg], context: RunContext) -> str:
        """Ask the holder until one of the agents answers."""
        talk = _Conversation(before(context))
        name = talk.holder or ""
        # The holder may be missing in a newer version of the program.
        if name not in self._agents:
            name = next(iter(self._agents))
        talk.messages += messages
        unread = talk.unseen(name)
        for passed in range(self._max_handoffs + 1):
            result = await self._turn(name, unread, passed == self._max_handoffs)
            talk.take(name, result)
            if result.to is None:
                return result.said
            note = Msg.user(NOTE.format(by=name, reason=result.reason or "no reason given"))
            name = result.to
            unread = [*await self._passed_on(talk, name, messages), with_metadata(note, synthetic=SOURCE)]
        raise AssertionError("the last agent cannot hand over")

    def _turn(self, name: str, unread: Sequence[Msg], last: bool) -> Step[_TurnResult]:
        agent = self._agents[name]
        others = {TOOL.format(name=other): self._agents[other] for other in self._ways.get(name, ())}
        passing = OfferHandoffs(others, self._max_handoffs if last else None, self._forms, self._on_handoff)

        def answered(reply: Reply[Any], conversation: Sequence[Msg]) -> str:
            return _result_of(agent.name, reply, conversation, others).as_text()

        # With `conversation`, so the agent has its own conversation (rule 2), and `contributions` finds the result.
        return Step(name, input_of(unread, True), _read, options={"hooks": (passing,)}, answered=answered)

    async def _passed_on(self, talk: _Conversation, to: str, messages: Sequence[Msg]) -> Sequence[Msg]:
        unseen, history = talk.unseen(to), self._history
        if history == "all":
            return unseen
        if history == "last":
            return messages
        if self.summarizer is None:
            assert callable(history)
            return history(unseen)
        passed = {msg.id for msg in messages}
        earlier = [msg for msg in unseen if msg.id not in passed]
        if not earlier:
            return messages
        lines = "\n\n".join(f"{msg.name or msg.role}: {msg.text}" for msg in earlier)
        summary = await ask(self.summarizer, f"{SUMMARIZE}\n\n{lines}")
        return [with_metadata(Msg.user(f"What was said before: {summary.text}"), synthetic=SOURCE), *messages]


def _result_of(
    name: str, reply: Reply[Any], conversation: Sequence[Msg], others: Mapping[str, Agent[Any]]
) -> _TurnResult:
    """Return the result of an agent's turn, read from its conversation so that it is also found after a crash."""
    for msg in reversed(conversation):
        for result in msg.tool_results:
            if result.name in others and result.state == "success":
                uses = [use for other in conversation for use in other.tool_uses if use.id == result.tool_use_id]
                arguments: dict[str, Any] = dict(uses[-1].input) if uses else {}
                reason = (
                    str(arguments.get("reason", "")) if arguments.keys() <= {"reason"} else to_json(arguments).decode()
                )
                return _TurnResult("", others[result.name].name, reason)
        # The first message of this turn (`FullToolAgent.call_within`).
        if "within" in msg.metadata:
            break
    return _TurnResult(answer_of(name, reply))


class OfferHandoffs(NarrowHook):
    """Offers tools for handoffs to an agent, during one call. A handoff ends that call.

    Priority 10: runs before hooks that choose how to request a typed answer, since their choice depends on the tools.

    Args:
        others: The possible targets, by tool name.
        limit: The number of handoffs so far if no more are allowed.
        forms: The inputs of handoffs, by agent.
        on_handoff: Called with each handoff.
    """

    priority = 10
    events = (PreReasoning, PostActing)
    wraps = (PreActing,)

    def __init__(
        self,
        others: Mapping[str, Agent[Any]],
        limit: int | None = None,
        forms: Mapping[str, Form[Any]] = MappingProxyType({}),
        on_handoff: Callable[[Handoff], object] | None = None,
    ) -> None:
        self._others = others
        self._limit = limit
        self._taken = ""  # the id of the call that has handed over
        self._forms = forms
        self._on_handoff = on_handoff
        self._specs = tuple([_spec(tool, agent, forms.get(agent.name)) for tool, agent in others.items()])

    def on_event(self, event: PreReasoning | PostActing) -> Stop | None:
        """Offer the tools, and end the call after the first handoff."""
        match event:
            case PreReasoning():
                if self._limit is None and event.purpose == "reason":
                    event.tools = (*event.tools, *self._specs)
            case PostActing():
                if event.tool_use.name in self._others and event.tool_result.state == "success":
                    return Stop(f"Handed over to {self._others[event.tool_use.name].name}.")
        return None

    def around_tool(self, event: PreActing, source: ToolSource) -> Observable[ToolResultBlock]:
        """Execute the handoff.

        Raises:
            Veto: The limit is reached, or the call has handed over already.
        """
        use = event.tool_use
        # The agent has no tool of this name: this wrapper does the work.
        other = self._others.get(use.name)
        if other is None:
            return source
        # A model may call a tool that it was not offered.
        if self._limit is not None:
            raise Veto(
                f"The conversation was handed over {self._limit} times since the user's message: answer it yourself."
            )
        if self._taken == event.call_id:
            raise Veto("The conversation was handed over already.")
        return Mono(partial(self._hand_over, event, other.name))

    async def _hand_over(self, event: PreActing, to: str) -> ToolResultBlock:
        use, form = event.tool_use, self._forms.get(to)
        # Taken before the callback is awaited, so that a parallel tool call cannot hand over too.
        self._taken, ready = event.call_id, False
        try:
            reason = str(use.input.get("reason", "")) if form is None else form.read(arguments_text(use))
            if self._on_handoff is not None:
                done = self._on_handoff(Handoff(event.agent.name, to, reason, event.context))
                if isawaitable(done):
                    await done
            ready = True
        except ValueError as error:
            return ToolResultBlock(use.id, use.name, f"Not handed over: {error}", "error")
        finally:
            if not ready:
                self._taken = ""
        return ToolResultBlock(use.id, use.name, f"The conversation goes on with {to}.")  # as in older recordings


def _spec(tool: str, agent: Agent[Any], form: Form[Any] | None) -> ToolSpec:
    about = agent.description or f"The agent {agent.name}."
    reason = {"type": "string", "description": "Why, and what the other one should know."}
    parameters = {"type": "object", "properties": {"reason": reason}, "required": ["reason"]}
    if form is not None:
        parameters = form.schema
    return ToolSpec(
        tool, f"Hand the conversation over to {agent.name}, who answers the user from now on. {about}", parameters
    )
