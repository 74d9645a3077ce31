"""A planner with parallel workers: a typed plan, a worker for each task, an editor, and one worker that fails."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from agentflow import Agent, CallEnded, ModelRequest, PostCall
from agentflow.agent.orchestration import StepError, ask, gather, workflow
from agentflow.errors import ModelError
from agentflow.plugins import UsageLimits
from agentflow.testing import ScriptedModel


@dataclass
class Plan:
    tasks: list[str]


def look_up(request: ModelRequest) -> str | Exception:
    task = request.messages[-1].text
    return ModelError("the library is closed") if task == "hornets" else f"{task}: striped"


planner = Agent("planner", ScriptedModel(['{"tasks": ["bees", "wasps", "hornets"]}']), output=Plan)
worker = Agent("worker", ScriptedModel(look_up), default_hooks=())
editor = Agent("editor", ScriptedModel(["Bees and wasps are striped; of hornets we know nothing."]))


@workflow(planner, worker, editor, max_concurrency=2, hooks=[UsageLimits(model_calls=10)])
async def report(question: str) -> str:
    """Write a report: plan, ask the workers, edit."""
    plan = (await ask(planner, question)).output
    found = await gather(*[ask(worker, task) for task in plan.tasks], return_exceptions=True)
    known = [one.text for one in found if not isinstance(one, StepError)]
    missing = [task for task, one in zip(plan.tasks, found, strict=True) if isinstance(one, StepError)]
    return (await ask(editor, f"Known: {known}. Missing: {missing}.")).text


async def work() -> None:
    print(report.graph())
    async with report.stream("Which insects are striped?", children=True) as events:
        async for event in events:
            match event:
                case PostCall(source=source, final_message=said) if source:
                    print(f"  [{source}] {said.text}")
                case CallEnded(source=source, outcome="failed", error=error):
                    print(f"  [{source}] failed: {error}")
                case _:
                    pass
        reply = await events.reply()
    print(f"{reply.output} ({reply.usage.model_calls} model calls)")


def main() -> None:
    asyncio.run(work())


if __name__ == "__main__":
    main()
