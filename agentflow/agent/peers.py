"""The part of an agent for other agents: it has a queue of turns, and puts turns into other agents' queues by name.

`default_agents` is the default registry of agents.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Never, TypeVar, cast

from agentflow._support.lazy import later
from agentflow._support.registry import NamedRegistry
from agentflow.agent.arguments import check_limit
from agentflow.agent.as_tool import ToolAgent, full_agent
from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.loop.config import LoopConfig
from agentflow.loop.run import current_turn
from agentflow.reactive import CallMono, Flux
from agentflow.tools.live_toolset import LiveToolset
from agentflow.vocabulary.messages import Msg, Reply, T_co, as_messages

if TYPE_CHECKING:
    from agentflow.agent import queue as queues
    from agentflow.agent.queue import TurnQueue
    from agentflow.agent.receipt import Receipt
    from agentflow.loop import turn as turns
    from agentflow.loop.turn import Turn
    from agentflow.vocabulary.ports.store import Store
    from agentflow.vocabulary.saving import codec
else:
    queues = later("agentflow.agent.queue")
    turns = later("agentflow.loop.turn")
    codec = later("agentflow.vocabulary.saving.codec")

T = TypeVar("T")


class AgentRegistry(NamedRegistry["PeerAgent"]):
    """Agents by name.

    Example:
        >>> agents = AgentRegistry()
        >>> librarian = agents.register(Agent("librarian", "openai/gpt-5"))
        >>> clerk = Agent("clerk", "openai/gpt-5", agents=agents)
        >>> agents.names
        ('librarian',)
    """

    _kind: ClassVar[str] = "agent"


default_agents = AgentRegistry()
"""The registry of the process."""


class PeerAgent(ToolAgent[T_co]):
    """The part of `Agent` for turns and other agents.

    Args:
        config: The configuration for the loop.
        hooks: The initial hooks.
        store: The store of its sessions.
        agents: The registry of other agents.
        queue_limit: The maximum number of turns that wait in its queue; None means no limit.
    """

    _agents: AgentRegistry
    _queue: TurnQueue | None = None
    _queue_limit: int | None

    def __init__(
        self,
        config: LoopConfig,
        hooks: Iterable[Hook],
        store: Store | None,
        agents: AgentRegistry,
        queue_limit: int | None,
        live: tuple[LiveToolset, ...],
    ) -> None:
        check_limit(config.view.name, queue_limit)
        super().__init__(config, hooks, store, live)
        own = vars(self)
        own["_agents"], own["_queue_limit"] = agents, queue_limit

    @property
    def queue(self) -> TurnQueue:
        """The agent's queue of turns; see `TurnQueue`."""
        queue = self._queue
        if queue is None:  # uses `setdefault`, so that two threads get the same queue
            queue = cast(
                "TurnQueue", vars(self).setdefault("_queue", queues.TurnQueue(full_agent(self), self._queue_limit))
            )
        return queue

    def put(self, turn: Turn[T], *, wait: bool = True) -> Coroutine[Any, Any, Receipt[T]]:
        """Put a turn into the agent's queue; see `TurnQueue.put`."""
        return self.queue.put(turn, wait=wait)

    def run(self, *nothing: Never, deps: object = None, wait: bool = False) -> Flux[tuple[Turn[Any], Any]]:
        """Run the queue: `async for turn, value in agent.run()`. See `TurnQueue.run`."""
        if nothing:  # users of other libraries write `run(input)`
            raise UsageError(
                f"agent.run() runs the turns in the queue of agent {self.name!r} and takes no input. To ask the model: "
                "await agent.call('Hi'), agent.call('Hi').block() from synchronous code, or async for event in "
                "agent.stream('Hi')."
            )
        return self.queue.run(deps=deps, wait=wait)

    async def send(self, to: str, turn: Turn[T], *, wait: bool = True) -> Receipt[T]:
        """Put a turn into another agent's queue, and run that queue if no reader runs it.

        The turn records its sender and the sender's run, and its cost is billed to the sender's run.

        Args:
            to: The other agent's name in the registry.
            turn: A turn of one of its tools.
            wait: Whether to wait for a slot if the other agent's queue is full. If False, `QueueFullError` is raised.

        Returns:
            The receipt: await it for the turn's value, or ignore it.

        Raises:
            NotRegisteredError: There is no such agent.
            QueueFullError: The queue is full, and `wait` is False or waiting would deadlock.
            TurnDeniedError: A hook of the other agent refused the turn.
            UsageError: The other agent has no such tool.

        Example:
            >>> agents = AgentRegistry()
            >>> worker = agents.register(Agent("worker", "openai/gpt-5", tools=[add]))
            >>> boss = Agent("boss", "openai/gpt-5", agents=agents)
            >>> receipt = await boss.send("worker", Turn(add, {"a": 1, "b": 2}))
            >>> await receipt
            3
        """
        peer = self._agents[to]
        self._sign(turn)
        return await queues.send_to(peer.queue, turn, wait)

    def ask(
        self, to: str, message: str | Msg | Sequence[Msg], *, session: str | None = None, wait: bool = True
    ) -> CallMono[Reply]:
        """Ask another agent, and return its reply. An agent answers its questions one at a time, in order.

        Args:
            to: The other agent's name in the registry.
            message: The question.
            session: A session of the other agent, to continue its conversation; a fresh one by default.
            wait: As in `send`.

        Returns:
            A Mono of the reply. Cancelling it withdraws the question.

        Raises:
            NotRegisteredError: There is no such agent.
            UsageError: The other agent waits for this one, so both would wait indefinitely.
            QueueFullError: As in `send`.
            Exception: The error of the other agent's call.

        Example:
            >>> agents = AgentRegistry()
            >>> librarian = agents.register(Agent("librarian", ScriptedModel(["Shelf 4."])))
            >>> clerk = Agent("clerk", "openai/gpt-5", agents=agents)
            >>> (await clerk.ask("librarian", "Where is Faust?")).text
            'Shelf 4.'
        """

        async def work() -> Reply:
            peer = self._agents[to]
            content = message if isinstance(message, str) else [codec.msg_to_dict(msg) for msg in as_messages(message)]
            question: Turn[Any] = turns.Turn(
                full_agent(peer).asking,
                {"message": content, "session": session},
                # The other agent's call has limits of its own; the wait in its queue should not count.
                timeout=None,
                process_hooks=self._config.process,
            )
            self._sign(question)
            receipt = await queues.send_to(peer.queue, question, wait, asks=True)
            try:
                return cast("Reply", await receipt)
            except asyncio.CancelledError:
                # The asker was cancelled, so the other agent need not answer.
                receipt.cancel()
                raise

        return CallMono(work, f"agent.ask({to!r}, ...)")

    def _sign(self, turn: Turn[Any]) -> None:
        if not isinstance(turn, turns.FullTurn):  # every `Turn` is a `FullTurn`
            raise UsageError(f"agent.send takes a turn, not {type(turn).__name__}: send('other', Turn(tool, {{...}})).")
        place = current_turn.get()
        turn.send_by(self.name, "" if place is None else place.run.run_id)
