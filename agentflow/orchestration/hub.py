"""`Hub`: a conversation of several agents, in which each hears by name what the others say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar, overload

from agentflow.agent.agent import Agent
from agentflow.context import RunContext
from agentflow.errors import UsageError
from agentflow.messages import Msg, Reply
from agentflow.orchestration.replay import before, contributions
from agentflow.orchestration.steps import ask
from agentflow.output.output import OutputLike

__all__ = ["Hub", "Said"]

T = TypeVar("T")
U = TypeVar("U")

NOTHING_NEW = "(Nobody has said anything since. Go on.)"


class Said(NamedTuple):
    """One contribution to a conversation: who spoke, and the words."""

    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"


class Hub:
    """A conversation of several agents, inside of a workflow: what one says the others hear, attributed by name.

    Each agent keeps its own conversation, with its tool calls, in the workflow's session. When it is asked, it is told what
    it has not heard yet: one user's message for each contribution, which begins with the speaker's name.

    Args:
        agents: Who takes part; each was given to the workflow.
        context: The workflow's; with it the conversation of earlier calls goes on. Without it nobody remembers the hub of
            an earlier call, but each what it was told and has said.

    Attributes:
        said: All contributions, in order.

    Example:
        >>> from agentflow.orchestration import Hub, workflow
        >>> ada, bob = Agent("ada", ScriptedModel(["Tea."])), Agent("bob", ScriptedModel(["Coffee."]))
        >>> @workflow(ada, bob)
        ... async def panel(question: str) -> str:
        ...     hub = Hub([ada, bob])
        ...     hub.tell(question)
        ...     for speaker in hub.agents:
        ...         await hub.ask(speaker)
        ...     return str(hub)
        >>> (await panel.call("Tea?")).text
        'user: Tea?\\n\\nada: Tea.\\n\\nbob: Coffee.'
    """

    def __init__(self, agents: Iterable[Agent[Any]], context: RunContext | None = None) -> None:
        self._agents = list(agents)
        self.said: list[Said] = []
        self._heard: dict[str, int] = {}
        if context is not None:
            self._remember(before(context))

    @property
    def agents(self) -> tuple[Agent[Any], ...]:
        """Who takes part, in order."""
        return tuple(self._agents)

    def join(self, agent: Agent[Any]) -> None:
        """One more takes part; it hears all that was said."""
        self._agents.append(agent)

    def leave(self, agent: Agent[Any]) -> None:
        """One takes part no more."""
        self._agents.remove(agent)

    def tell(self, text: str, name: str = "user") -> None:
        """Say something to all."""
        self.said.append(Said(name, text))

    @overload
    async def ask(self, agent: Agent[T], *, output: None = None, timeout: float | None = None) -> Reply[T]: ...
    @overload
    async def ask(self, agent: Agent[Any], *, output: OutputLike[U], timeout: float | None = None) -> Reply[U]: ...
    async def ask(self, agent: Agent[Any], *, output: Any = None, timeout: float | None = None) -> Reply[Any]:
        """Let an agent speak: it is told what it has not heard, and what it says is said to all.

        Args:
            agent: Who; it takes part.
            output: What it is to give, in place of its own `output`; its text is what the others hear.
            timeout: Seconds for it.

        Raises:
            UsageError: It does not take part.
            StepError: It gave no answer; then nothing is said.
        """
        if agent not in self._agents:
            raise UsageError(f"Agent {agent.name!r} does not take part: hub.join(agent), or Hub([..., agent]).")
        reply = await ask(agent, self._unheard(agent.name), output=output, conversation=True, timeout=timeout)
        self._hear(agent.name, reply.text)
        return reply

    def __str__(self) -> str:
        """The conversation, a paragraph for each contribution."""
        return "\n\n".join(map(str, self.said))

    def _unheard(self, name: str) -> Sequence[Msg]:
        news = [said for said in self.said[self._heard.get(name, 0) :] if said.name != name]
        return [Msg.user(str(said)) for said in news] or [Msg.user(NOTHING_NEW)]

    def _hear(self, name: str, text: str) -> None:
        self.said.append(Said(name, text))
        self._heard[name] = len(self.said)

    def _remember(self, history: Sequence[Msg]) -> None:
        names = {agent.name for agent in self._agents}
        for heard in contributions(history):
            if isinstance(heard, Msg):
                self.tell(heard.text)
            elif heard.name in names:
                self._hear(heard.name, heard.text)
