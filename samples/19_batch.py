"""Many inputs: one agent, a limited number of calls at a time, results in order, and a progress bar in a terminal.

If a call fails, its result is the error, and the others continue.
"""

from __future__ import annotations

import asyncio

from agentflow import Agent, ModelRequest, Reply
from agentflow.agent.orchestration import BatchProgress, batch
from agentflow.terminal import progress_bar
from agentflow.testing import ScriptedModel

REVIEWS = ["Good tea.", "Bad tea!", "", "Good milk."]


def judge(request: ModelRequest) -> str:
    return f'{{"answer": {"true" if "Good" in request.messages[-1].text else "false"}}}'


async def judge_all() -> None:
    agent = Agent("judge", ScriptedModel(judge), default_hooks=())
    with progress_bar("reviews") as bar:  # visible only in a terminal
        results = await batch(agent, REVIEWS, concurrency=2, output=bool, progress=bar)
    for review, result in zip(REVIEWS, results, strict=True):
        print(f"{review!r:14}", result.output if isinstance(result, Reply) else f"{type(result).__name__}: {result}")

    seen: list[BatchProgress] = []
    await batch(agent, REVIEWS, concurrency=1, output=bool, progress=seen.append)
    print(seen[0], seen[-1], sep="\n")


def main() -> None:
    asyncio.run(judge_all())


if __name__ == "__main__":
    main()
