"""A session of the soak: the laws' world over a real wire and a real store, with a sub-agent; and its checks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from typing import Any
from weakref import WeakSet

from agentflow import Agent, Hook, tool
from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.openai_wire import OpenAIWire
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import Event, PostReasoning, PreToolRound
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ModelOptions
from benchmarks.soak import laws
from benchmarks.soak.loops import OWNED, real_seconds
from benchmarks.soak.plans import DATABASES, EXPERT, Plan
from benchmarks.soak.servers import HEADER, Served

__all__ = ["SoakWorld", "check_served"]

_WIRES: dict[str, Any] = {"openai": OpenAIWire, "anthropic": AnthropicWire}
_NAMES = {"openai": "openai/gpt-5", "anthropic": "anthropic/claude-sonnet-4-5"}
_SILENCE = real_seconds(3)
_CALM = real_seconds(120)
_SOON = real_seconds(60)


class Wired:
    """A model with a wire: says on each request which line of the plan is due."""

    def __init__(self, world: SoakWorld, agent: str, base: str) -> None:
        wire = world.plan.wire
        self.name = _NAMES[wire]
        self.requests: list[ModelRequest] = []
        self.open_streams = 0
        self._world = world
        self._agent = agent
        build = partial(_WIRES[wire], self.name, api_base=base, api_key="k", family=wire)
        self._wire = build(timeout=_SILENCE, connect_timeout=_CALM)
        self._calm = build(timeout=_CALM, connect_timeout=_CALM)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        world = self._world
        self.requests.append(request)
        number = len(self.requests) - 1
        if self._agent != EXPERT:
            world.said, number = world.said + 1, world.said
        due = f"{self._agent} {number if world.armed else ''}"
        options = request.options.merge(ModelOptions(extra={"extra_headers": {HEADER: due}}))
        asked = ModelRequest(request.messages, request.tools, options, request.model)
        self.open_streams += 1
        try:
            async with aclosing((self._wire if world.armed else self._calm).stream(asked)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            self.open_streams -= 1


class _Told(Hook):
    """Records the actions of the sub-agent's calls."""

    observer = True

    def __init__(self, world: SoakWorld) -> None:
        self.world = world

    def on_event(self, event: Event) -> None:
        self.world.expert_seen.setdefault(event.run_id, laws.Seen()).observed.append(event)


class SoakWorld(laws.World):
    """The world of the laws, over a wire and a store that are real.

    Attributes:
        plan: Its plan.
        expert_seen: The calls of its sub-agent.
        own: The tasks that were made in it.
    """

    patience = real_seconds(20)
    given = {"cleanup_timeout": real_seconds(60)}  # a machine with more work than cores is no hanging cleanup

    def __init__(self, plan: Plan, base: str, store: Any) -> None:
        self.plan = plan
        self.named = f"s{plan.seed}"
        self.expert_seen: dict[str, Any] = {}
        own = OWNED.get()
        self.own: WeakSet[asyncio.Task[Any]] = own if own is not None else WeakSet()
        self._base = base
        super().__init__(plan.program, store)

    def make_model(self) -> Any:
        return Wired(self, "agent", self._base)

    def make_tools(self) -> list[Any]:
        @tool(type="research")
        async def look(x: int = 0) -> str:
            """Look."""
            await asyncio.sleep(0.1)
            return f"look {x}"

        self.expert_model = Wired(self, EXPERT, self._base)
        self.expert = Agent(
            EXPERT, self.expert_model, tools=[look], hooks=[_Told(self)], max_iterations=2, **self.given
        )
        return [*super().make_tools(), self.expert.as_tool(description="Ask the expert.")]

    async def call(self, words: str = "hi", **given: Any) -> Any:
        """The sub-agent's events are left out: it has a log of its own."""
        seen = await super().call(words, **given)
        seen.read = [event for event in seen.read if not event.source]
        return seen

    async def facts(self) -> list[Any]:
        if self.plan.store in DATABASES:
            return list(await self.store.load(self.named))
        return await super().facts()

    def tasks(self) -> set[asyncio.Task[Any]]:
        return {task for task in self.own if not task.done() and task is not asyncio.current_task()}

    async def settle(self) -> None:
        """Wait until abandoned streams have been closed."""
        gc.collect()
        async with asyncio.timeout(_SOON):
            while self.tasks() or self.session.busy or self.model.open_streams:  # noqa: ASYNC110 - there is no notification
                await asyncio.sleep(0.1)

    @property
    def rounds(self) -> int:
        """How many rounds of tools there were."""
        told = [*self.calls, *self.expert_seen.values()]
        return sum(isinstance(event, PreToolRound) for seen in told for event in seen.observed)

    @laws.law
    def check_experts(self) -> None:
        """The laws on the calls of the sub-agent."""
        for seen in self.expert_seen.values():
            laws.check_ended(seen)
            laws.check_brackets(seen)
            seen.unedited.update(
                {id(event): event.reasoning_result for event in seen.observed if isinstance(event, PostReasoning)}
            )
            laws.check_chunks(seen)
        for request in self.expert_model.requests:
            laws.check_request(request.messages)


@laws.law
def check_served(served: Served) -> None:
    """The strict server has refused nothing, and no answer or connection is open."""
    assert not served.refused, f"the server has refused: {served.refused}"
    assert not served.open, f"{served.open} connections are open"
    assert not served.unended, f"{served.unended} answers have no end"
