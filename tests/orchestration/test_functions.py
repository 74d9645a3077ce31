"""`step(function, ...)`: any function as a recorded step of a workflow."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

import pytest

from agentflow import Agent, Hook, HookEvent, HookResult, MemoryStore, PreActing, tool
from agentflow.agent.orchestration import StepError, gather, step, use, workflow
from agentflow.errors import UsageError
from agentflow.recording import Recorder, Replay
from agentflow.vocabulary.verdicts import Approve


@dataclass
class Order:
    item: str
    count: int


async def test_a_function_runs_once() -> None:
    """A workflow runs again after each step, and a function's step does not: its value comes from the record."""
    ran: list[str] = []

    async def fetch(item: str, count: int = 1) -> Order:
        ran.append(item)
        return Order(item, count)

    def dice() -> float:
        return random.random()

    @workflow()
    async def shop(item: str) -> list[Any]:
        order = await step(fetch, item, count=3)
        first = await step(dice)
        await step(asyncio.sleep, 0)
        second = await gather(step(fetch, "milk"), step(len, [1, 2]))
        return [order.item, order.count, first == await step(lambda: first), second[0].item, second[1]]

    reply = await shop.call("tea")
    assert (reply.output, ran) == (["tea", 3, True, "milk", 2], ["tea", "milk"])
    uses = [use for msg in shop.session().messages for use in msg.tool_uses]
    assert {use.name for use in uses} == {"workflow_step"}
    assert uses[0].input["arguments"] == {"item": "tea", "count": 3}
    assert str(shop.graph()) == "shop (agent)"


async def test_after_a_restart() -> None:
    """Another process that continues the session takes the value of a finished step from its record."""
    ran: list[int] = []

    async def draw() -> int:
        ran.append(len(ran))
        return len(ran)

    @tool(requires_approval=True)
    async def publish(number: int) -> str:
        """Publish."""
        return f"published {number}"

    def agent(store: MemoryStore) -> Agent[str]:
        @workflow(publish, store=store)
        async def flow(message: str) -> str:
            return await use(publish, number=await step(draw))

        return flow

    store = MemoryStore()
    waits = await agent(store).call("x", session="s")
    reply = await agent(store).resume("s", {waits.pending[0].id: Approve()})
    assert (waits.outcome, reply.text, ran) == ("suspended", "published 1", [0])


async def test_a_replay_does_not_run_it() -> None:
    """A replay takes the value from the log."""
    ran: list[int] = []

    async def draw() -> int:
        ran.append(len(ran))
        return len(ran)

    @workflow()
    async def flow(message: str) -> int:
        return await step(draw)

    recorder = Recorder()
    reply = await flow.call("x", hooks=[recorder])
    replayed = await Replay(recorder.log).arun(flow)
    assert (reply.output, replayed.divergence, ran) == (1, None, [0])


async def test_failures() -> None:
    """A function that raises, or returns what is not data, is a `StepError` with the function's name."""

    async def fails() -> int:
        raise ValueError("no connection")

    async def no_data() -> object:
        return object()

    @workflow()
    async def flow(message: str) -> str:
        found: list[str] = []
        for function in (fails, no_data):
            try:
                await step(function)
            except StepError as error:
                found.append(f"{error.step.rpartition('.')[2]} {error.state} {error.reason.splitlines()[0]}")
        return "; ".join(found)

    reply = await flow.call("x")
    assert reply.text.startswith("fails error ValueError: no connection; no_data error ")
    assert "returned object, which is not data" in reply.text


async def test_wrong_uses() -> None:
    """An argument that is not data, a result instead of a function, and arguments that do not fit are refused."""

    async def one(item: object) -> None: ...

    wrong: list[tuple[Any, ...]] = [(one, object()), (3,), (one, 1, 2)]
    for given in wrong:
        with pytest.raises(UsageError, match="step"):
            step(*given)
    with pytest.raises(UsageError, match="only be awaited"):
        await step(one, 1)


async def test_a_hook_cannot_change_it() -> None:
    """The arguments come from code: an edited call does not run; a denied one is a `StepError`."""

    class Edit(Hook):
        def on_event(self, event: HookEvent) -> HookResult:
            if isinstance(event, PreActing):
                event.tool_use = event.tool_use.replace(input={**event.tool_use.input, "arguments": {"number": 5}})
            return event

    ran: list[int] = []

    async def double(number: int) -> int:
        ran.append(number)
        return number * 2

    @workflow(hooks=[Edit()])
    async def flow(message: str) -> int:
        return await step(double, 2)

    with pytest.raises(StepError, match="a hook has changed its arguments"):
        await flow.call("x")
    assert ran == []
