"""`Hub`: a conversation of several agents, in which each sees the others' contributions by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, overload

from agentflow.agent.agent import Agent
from agentflow.agent.orchestration.replay import before, contributions
from agentflow.agent.orchestration.steps import ask
from agentflow.errors import UsageError
from agentflow.loop.output.output import OutputLike
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.messages import Msg, Reply

T = TypeVar("T")
U = TypeVar("U")

NOTHING_NEW = "(There are no new messages. Continue.)"


class Contribution(NamedTuple):
    """One contribution to a conversation: the speaker's name and the text."""

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


class Hub:
    r"""A conversation of several agents inside a workflow: each contribution is shown to the others, attributed by name.

    Each agent keeps its own conversation, with its tool calls, in the workflow's session. When asked, it receives the
    contributions it has not seen yet, each as a user message that begins with the speaker's name.

    Args:
        agents: The participants; each must be a participant of the workflow.
        context: The workflow's context. If given, the hub continues the conversation of earlier calls. If not, the hub
            starts empty, but each agent remembers its own conversation.

    Attributes:
        contributions: All contributions, in order.

    Example:
        >>> from agentflow.agent.orchestration import Hub, workflow
        >>> ada, bob = Agent("ada", ScriptedModel(["Tea."])), Agent("bob", ScriptedModel(["Coffee."]))
        >>> @workflow(ada, bob)
        ... async def panel(question: str) -> str:
        ...     hub = Hub([ada, bob])
        ...     hub.tell(question)
        ...     for speaker in hub.agents:
        ...         await hub.ask(speaker)
        ...     return str(hub)
        >>> (await panel.call("Tea?")).text
        'user: Tea?\n\nada: Tea.\n\nbob: Coffee.'
    """

    def __init__(self, agents: Iterable[Agent[Any]], context: RunContext | None = None) -> None:
        self._agents = list(agents)
        self.contributions: list[Contribution] = []
        self._seen: dict[str, int] = {}
        if context is not None:
            self._restore(before(context))

    @property
    def agents(self) -> tuple[Agent[Any], ...]:
        """The participants, in order."""
        return tuple(self._agents)

    def join(self, agent: Agent[Any]) -> None:
        """Add a participant, which will receive all contributions so far."""
        self._agents.append(agent)

    def leave(self, agent: Agent[Any]) -> None:
        """Remove a participant."""
        self._agents.remove(agent)

    def tell(self, text: str, name: str = "user") -> None:
        """Add a contribution for all participants."""
        self.contributions.append(Contribution(name, text))

    @overload
    async def ask(self, agent: Agent[T], *, output: None = None, timeout: float | None = None) -> Reply[T]: ...
    @overload
    async def ask(self, agent: Agent[Any], *, output: OutputLike[U], timeout: float | None = None) -> Reply[U]: ...
    async def ask(self, agent: Agent[Any], *, output: Any = None, timeout: float | None = None) -> Reply[Any]:
        """Let an agent speak: it receives the contributions it has not seen, and its answer is added as a contribution.

        Args:
            agent: The participant.
            output: Overrides the agent's `output`. The other participants receive it as text.
            timeout: The time limit in seconds.

        Raises:
            UsageError: The agent is not a participant.
            StepError: The agent did not answer; nothing is added.
        """
        if agent not in self._agents:
            raise UsageError(
                f"Agent {agent.name!r} is not a participant. Call hub.join(agent), or create Hub([..., agent])."
            )
        reply = await ask(agent, self._unseen(agent.name), output=output, conversation=True, timeout=timeout)
        self._add(agent.name, reply.text)
        return reply

    def __str__(self) -> str:
        """Return the conversation, one paragraph per contribution."""
        return "\n\n".join(map(str, self.contributions))

    def _unseen(self, name: str) -> Sequence[Msg]:
        # Without the agent's own contributions, which its conversation already contains.
        news = [
            contribution for contribution in self.contributions[self._seen.get(name, 0) :] if contribution.name != name
        ]
        # A call needs an input, even if there is nothing new.
        return [Msg.user(str(contribution)) for contribution in news] or [Msg.user(NOTHING_NEW)]

    def _add(self, name: str, text: str) -> None:
        self.contributions.append(Contribution(name, text))
        self._seen[name] = len(self.contributions)

    def _restore(self, history: Sequence[Msg]) -> None:
        names = {agent.name for agent in self._agents}
        for part in contributions(history):
            if isinstance(part, Msg):
                self.tell(part.text)
            elif part.name in names:
                self._add(part.name, part.text)
