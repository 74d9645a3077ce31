"""One agent for many inputs: order, limits, failures, cancellation, progress."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any

import pytest
from rich.console import Console

from agentflow import Agent, ModelChunk, ModelRequest, Output, Reply, Session
from agentflow.agent.orchestration import BatchProgress, batch
from agentflow.errors import UsageError
from agentflow.terminal import progress_bar
from agentflow.testing import ScriptedModel, run_virtual


class Slow:
    """A model that takes as many seconds as its input says, and counts how many requests run at once."""

    name = "slow"

    def __init__(self) -> None:
        self.now = self.most = self.left = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(float(request.messages[-1].text))
            if len(request.messages) > 1:
                raise ValueError("a session is shared")
            yield ModelChunk(f"after {request.messages[-1].text}")
        finally:
            self.now -= 1
            self.left += 1


def texts(results: tuple[Reply[Any] | Exception, ...]) -> list[str]:
    return [result.text if isinstance(result, Reply) else repr(result) for result in results]


def test_order_and_limit() -> None:
    """Results are in the order of the inputs, whichever ends first, and at most `concurrency` calls run at once."""
    model = Slow()
    inputs = ["5", "1", "3", "2", "4", "1"]

    async def main() -> tuple[list[str], float]:
        results = await batch(Agent("a", model), inputs, concurrency=2)
        return texts(results), asyncio.get_running_loop().time()

    assert run_virtual(main()) == ([f"after {one}" for one in inputs], 9.0)
    assert (model.most, model.left) == (2, 6)


def test_a_failure_is_a_result() -> None:
    """A call that fails or takes too long is an error in its place; the others continue."""
    agent = Agent("a", Slow(), default_hooks=())

    async def main() -> list[str]:
        return [type(result).__name__ for result in await batch(agent, ["1", "x", "9", "2"], timeout=5)]

    assert run_virtual(main()) == ["Reply", "ValueError", "CallTimeoutError", "Reply"]


def test_cancelled() -> None:
    """If the batch is cancelled, its calls have ended when that is raised, and no other begins."""
    model = Slow()

    async def main() -> tuple[int, int, int]:
        task = asyncio.ensure_future(batch(Agent("a", model), ["9"] * 5, concurrency=3))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return model.now, model.most, model.left

    assert run_virtual(main()) == (0, 3, 3)


async def test_again_and_typed() -> None:
    """The batch can be awaited again, and gives typed replies; the agent's own session is not used."""
    agent = Agent("a", ScriptedModel(lambda _: '{"answer": 3}'))
    made = batch(agent, iter(["x", "y"]), output=Output(int, via="prompt"))
    for _ in range(2):
        assert [result.output for result in await made if isinstance(result, Reply)] == [3, 3]
    assert len(agent.session().messages) == 0
    assert await batch(agent, []) == ()


async def test_progress() -> None:
    """`progress` is called at the beginning and after each call; the bar shows it at a terminal only."""
    agent = Agent("a", ScriptedModel(["x", ValueError("no"), "y"]), default_hooks=())
    seen: list[BatchProgress] = []
    await batch(agent, ["1", "2", "3"], concurrency=1, progress=seen.append)
    assert seen == [(0, 0, 3), (1, 0, 3), (2, 1, 3), (3, 1, 3)]
    shown: list[str] = []
    for terminal in (True, False):
        file = io.StringIO()
        console = Console(file=file, force_terminal=terminal, width=80)
        with progress_bar("calls", console) as bar:
            for one in seen:
                bar(one)
        shown.append(file.getvalue())
    assert ("3/3" in shown[0], "1 failed" in shown[0], shown[1]) == (True, True, "")


def test_wrong_uses() -> None:
    """One input instead of many, no calls at once, and a session are refused."""
    agent = Agent("a", ScriptedModel([]))
    wrong: list[tuple[Any, dict[str, Any]]] = [
        ("one input", {}),
        (["x"], {"concurrency": 0}),
        (["x"], {"session": Session.fresh()}),
    ]
    for inputs, options in wrong:
        with pytest.raises(UsageError, match="batch"):
            batch(agent, inputs, **options)
