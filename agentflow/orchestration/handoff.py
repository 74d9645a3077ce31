"""`handoffs`: a conversation with one agent at a time, which hands it on to another when that one fits better.

Rules:

1. The history of the session says who holds the conversation. So it is the same after a restart, in a fork, in a copy.
2. Each agent keeps its own conversation, with its tool calls, in that session. What travels with a hand-off are words: what
   the user and the agents have said, and why it is handed on.
3. An agent is offered the hand-offs by a hook for that call; nothing of the agent is changed. A hand-off ends its call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, Unpack, cast

from pydantic_core import from_json, to_json
from reactivex import Observable

from agentflow.agent.agent import Agent
from agentflow.context import RunContext
from agentflow.errors import UsageError, Veto
from agentflow.events import PostActing, PreActing, PreReasoning
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource
from agentflow.hooks.wrapping import ToolSource
from agentflow.messages import Msg, Reply, ToolResultBlock, with_metadata
from agentflow.orchestration.asking import answer_of
from agentflow.orchestration.replay import before, contributions
from agentflow.orchestration.steps import Step, ask, input_of
from agentflow.orchestration.workflow import WorkflowOptions, make_workflow
from agentflow.reactive import Mono
from agentflow.specs import ToolSpec
from agentflow.verdicts import Stop

__all__ = ["Travels", "handoffs", "holder"]

Travels: TypeAlias = Literal["all", "last"] | Agent[Any] | Callable[[Sequence[Msg]], Sequence[Msg]]
"""What an agent is told that a conversation is handed to: all that it has not heard, the user's last message, a summary that an
agent makes of it, or what a function makes of it."""

NOTE = "({by} has handed this conversation to you: {reason})"
SUMMARIZE = "Summarize this conversation for whoever takes it over."
SOURCE = "handoff"
TOOL = "transfer_to_{name}"
_LONGEST = 64


def handoffs(
    *agents: Agent[Any],
    name: str = "desk",
    description: str = "",
    to: Mapping[str, Sequence[str]] | None = None,
    history: Travels = "all",
    max_handoffs: int = 5,
    hooks: HookSource = (),
    **options: Unpack[WorkflowOptions],
) -> Agent[str]:
    """Make one agent of several that hand the conversation on to each other.

    The one that holds the conversation answers the user, in this call and in the next ones. It is offered a tool
    `transfer_to_<name>` for each agent that it may hand to.

    Args:
        agents: The agents; a conversation begins with the first one.
        name: What the whole is called.
        description: What it is for.
        to: Who may hand to whom, by names; an agent that is not in it hands to nobody. By default each to each.
        history: What travels with a hand-off; the user's last message and the reason always do. An agent makes a summary.
        max_handoffs: Most hand-offs for one message of the user's; who gets it then has to answer.
        hooks: Hooks of the whole.
        options: See `WorkflowOptions`.

    Returns:
        An agent: `call`, `stream` and `resume` it. `holder(await desk.history(session))` says who holds a conversation.

    Raises:
        UsageError: There are no agents, or `to` names an unknown one.

    Example:
        >>> triage = Agent("triage", ScriptedModel([ToolUseBlock("t1", "transfer_to_billing", {"reason": "an invoice"})]))
        >>> billing = Agent("billing", ScriptedModel(["It is paid."]))
        >>> desk = handoffs(triage, billing)
        >>> (await desk.call("Is my invoice paid?")).text
        'It is paid.'
        >>> holder(await desk.history())
        'billing'
    """
    by_name = {agent.name: agent for agent in agents}
    if not agents or len(by_name) < len(agents):
        raise UsageError("handoffs(...) takes the agents that hand to each other, each with a name of its own.")
    ways = {one: [other for other in by_name if other != one] for one in by_name} if to is None else dict(to)
    unknown = sorted({*ways, *(other for others in ways.values() for other in others)} - by_name.keys())
    if unknown:
        raise UsageError(f"handoffs(to=...) names {', '.join(unknown)}; the agents are {', '.join(by_name)}.")
    if type(max_handoffs) is not int or max_handoffs < 1:
        raise UsageError(f"handoffs(max_handoffs={max_handoffs!r}): it is a number of hand-offs, at least 1.")
    for agent in agents:
        tool = TOOL.format(name=agent.name)
        if len(tool) > _LONGEST or any(tool == made.name for other in agents for made in other.tools):
            raise UsageError(
                f"Agent {agent.name!r} is handed to with the tool {tool!r}, which is too long (at most {_LONGEST} letters), or "
                "the name of a tool that one of the agents has: give one of them another name."
            )
    desk = _Desk(by_name, ways, history, max_handoffs)
    return make_workflow(
        desk.converse,
        agents if desk.summarizer is None else (*agents, desk.summarizer),
        name=name,
        description=description,
        max_rounds=2 * max_handoffs + 2,
        max_concurrency=1,
        passes=tuple((one, other) for one, others in ways.items() for other in others),
        hooks=hooks,
        options=options,
    )


def holder(history: Sequence[Msg]) -> str | None:
    """The name of the agent that holds the conversation of `handoffs(...)`; None: it has not begun.

    Args:
        history: What `await desk.history(session)` gives.
    """
    heard = _Talk(history)
    return heard.holder


class _Word(NamedTuple):
    """What an agent has made of its turn: its words, and whom it has handed the conversation to, and why."""

    said: str
    to: str | None = None
    reason: str = ""

    def as_text(self) -> str:
        return to_json(self._asdict()).decode()


def _read(result: ToolResultBlock) -> _Word:
    try:
        data = cast("dict[str, Any]", from_json(result.text))
        return _Word(str(data["said"]), data["to"], str(data["reason"]))
    except (ValueError, KeyError, TypeError):  # a hook has put other words in its place
        return _Word(result.text)


class _Talk:
    """A conversation as the user knows it, and how much of it each agent has heard.

    Args:
        history: What the session holds of it.
    """

    def __init__(self, history: Sequence[Msg]) -> None:
        self.words: list[Msg] = []
        self.heard: dict[str, int] = {}
        self.holder: str | None = None
        for heard in contributions(history):
            if isinstance(heard, Msg):
                self.words.append(heard)
            else:
                self.take(heard.name, _read(heard))

    def take(self, name: str, word: _Word) -> None:
        """An agent has spoken, and keeps the conversation or hands it on."""
        if word.said:
            self.words.append(Msg.assistant(word.said, name=name))
        self.heard[name] = len(self.words)
        self.holder = name if word.to is None else word.to

    def unheard(self, name: str) -> Sequence[Msg]:
        """What an agent has not heard yet."""
        return self.words[self.heard.get(name, 0) :]


class _Desk:
    """What `handoffs` does.

    Args:
        agents: The agents, by name.
        ways: Who may hand to whom.
        travels: What travels.
        most: Most hand-offs for one message.
    """

    def __init__(
        self, agents: Mapping[str, Agent[Any]], ways: Mapping[str, Sequence[str]], travels: Travels, most: int
    ) -> None:
        self._agents = agents
        self._ways = ways
        self._travels = travels
        self._most = most
        self.summarizer: Agent[Any] | None = cast("Agent[Any]", travels) if isinstance(travels, Agent) else None

    async def converse(self, said: Sequence[Msg], context: RunContext) -> str:
        """The workflow: ask who holds it, until somebody answers."""
        talk = _Talk(before(context))
        name = talk.holder or ""
        if name not in self._agents:
            name = next(iter(self._agents))
        talk.words += said
        told = talk.unheard(name)
        for passed in range(self._most + 1):
            word = await self._turn(name, told, passed == self._most)
            talk.take(name, word)
            if word.to is None:
                return word.said
            note = Msg.user(NOTE.format(by=name, reason=word.reason or "no reason given"))
            name, told = word.to, [*await self._travelling(talk, word.to, said), with_metadata(note, synthetic=SOURCE)]
        raise AssertionError("the last one is offered no hand-off")

    def _turn(self, name: str, told: Sequence[Msg], last: bool) -> Step[_Word]:
        agent = self._agents[name]
        others = {TOOL.format(name=other): self._agents[other] for other in self._ways.get(name, ())}
        passing = OfferHandoffs(others, self._most if last else None)

        def answered(reply: Reply[Any], conversation: Sequence[Msg]) -> str:
            return _word_of(agent.name, reply, conversation, others).as_text()

        return Step(name, input_of(told, True), _read, hooks=(passing,), answered=answered)

    async def _travelling(self, talk: _Talk, to: str, said: Sequence[Msg]) -> Sequence[Msg]:
        unheard, travels = talk.unheard(to), self._travels
        if travels == "all":
            return unheard
        if travels == "last":
            return said
        if self.summarizer is None:
            assert callable(travels)
            return travels(unheard)
        given = {msg.id for msg in said}
        earlier = [msg for msg in unheard if msg.id not in given]
        if not earlier:
            return said
        lines = "\n\n".join(f"{msg.name or msg.role}: {msg.text}" for msg in earlier)
        summary = await ask(self.summarizer, f"{SUMMARIZE}\n\n{lines}")
        return [with_metadata(Msg.user(f"What was said before: {summary.text}"), synthetic=SOURCE), *said]


def _word_of(name: str, reply: Reply[Any], conversation: Sequence[Msg], others: Mapping[str, Agent[Any]]) -> _Word:
    """What an agent has made of its turn, read from its conversation: so it is found after a crash too."""
    for msg in reversed(conversation):
        for result in msg.tool_results:
            if result.name in others and result.state == "success":
                uses = [use for other in conversation for use in other.tool_uses if use.id == result.tool_use_id]
                reason = str(uses[-1].input.get("reason", "")) if uses else ""
                return _Word("", others[result.name].name, reason)
        if "within" in msg.metadata:
            break
    return _Word(answer_of(name, reply))


class OfferHandoffs(Hook):
    """Offers an agent, for one call, to hand the conversation on; a hand-off ends that call.

    Priority 10: a hook that asks for a typed answer chooses its way by the tools that are there.

    Args:
        others: Whom it may hand to, by the names of the tools.
        limit: How often the conversation has been handed on, where that is enough.
    """

    priority = 10
    events = (PreReasoning, PostActing)
    wraps = (PreActing,)

    def __init__(self, others: Mapping[str, Agent[Any]], limit: int | None = None) -> None:
        self._others = others
        self._limit = limit
        self._taken = ""  # the call that has handed it on
        self._specs = tuple([_spec(tool, agent) for tool, agent in others.items()])

    def on_event(self, event: PreReasoning | PostActing) -> Stop | None:  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to two events
        """Offer the tools; end the call behind the first hand-off."""
        match event:
            case PreReasoning():
                if self._limit is None and event.purpose == "reason":
                    event.tools = (*event.tools, *self._specs)
            case PostActing():
                if event.tool_use.name in self._others and event.tool_result.state == "success":
                    return Stop(f"Handed over to {self._others[event.tool_use.name].name}.")
        return None

    def around_tool(self, event: PreActing, source: ToolSource) -> Observable[ToolResultBlock]:
        """Do the hand-off, where nobody has denied it.

        Raises:
            Veto: It is one too many.
        """
        use = event.tool_use
        other = self._others.get(use.name)
        if other is None:
            return source
        if self._limit is not None:
            raise Veto(
                f"The conversation has been handed on {self._limit} times since the user spoke: answer it yourself."
            )
        if self._taken == event.call_id:
            raise Veto("The conversation is handed on already.")
        self._taken = event.call_id
        return Mono.just(ToolResultBlock(use.id, use.name, f"The conversation goes on with {other.name}."))


def _spec(tool: str, agent: Agent[Any]) -> ToolSpec:
    about = agent.description or f"The agent {agent.name}."
    reason = {"type": "string", "description": "Why, and what the other one should know."}
    parameters = {"type": "object", "properties": {"reason": reason}, "required": ["reason"]}
    return ToolSpec(
        tool, f"Hand the conversation over to {agent.name}, who answers the user from now on. {about}", parameters
    )
