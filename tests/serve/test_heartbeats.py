"""The silence of a run, as its readers notice it."""

from __future__ import annotations

import asyncio

from agentflow import Agent
from agentflow.serve import Limits, View
from agentflow.serve.runs import RunRequest, Runs
from agentflow.testing import ScriptedModel, run_virtual


def test_a_heartbeat_follows_the_last_event_however_many_read() -> None:
    """All readers, even a later one, get one after each `heartbeat` without an event; an event restarts the interval."""

    async def times() -> list[list[tuple[float, bool]]]:
        loop = asyncio.get_running_loop()
        started = loop.time()
        model = ScriptedModel([["One ", lambda: asyncio.sleep(6.0), "two ", lambda: asyncio.sleep(25.0), "three."]])
        agent = Agent("a", model)
        session = agent.session("s")
        runs = Runs(Limits(heartbeat=10.0), View())
        run = await runs.start(RunRequest("owner", agent, session, "s", agent.stream("Hi", session=session)))

        async def read(after: float) -> list[tuple[float, bool]]:
            await asyncio.sleep(after)
            seen = [(loop.time() - started, event is None) async for event in run.read()]
            return list(dict.fromkeys((round(at, 3), silent) for at, silent in seen))

        return list(await asyncio.gather(read(0.0), read(12.0)))

    late = [(12.0, False), (16.0, True), (26.0, True), (31.0, False)]
    assert run_virtual(times()) == [[(0.0, False), (6.0, False), (16.0, True), (26.0, True), (31.0, False)], late]
