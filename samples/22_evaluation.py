"""A dataset in YAML, a judge with a rubric, and a new prompt compared with the results of the old one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from agentflow import Agent, ToolUseBlock, tool
from agentflow.models import ModelRequest
from agentflow.testing import ScriptedModel
from agentflow.testing.evaluation import Dataset, Trial, compare

YAML = """
name: refunds
repeats: 3
checks:
  - within: {rounds: 2}
  - brief
cases:
  - name: damaged
    input: My order 7 arrived damaged.
    checks:
      - tools: [look_up, refund]
      - judge:
          requirement: The customer learns when the money comes.
          rubric: {1: no date, 2: a vague date, 3: an exact date}
          pass_at: 2
  - name: a question
    input: When do you open?
    checks:
      - contains: nine
      - tools: {without: [refund]}
"""


@tool(type="read")
async def look_up(order: int) -> str:
    return "delivered on Monday"


@tool(type="write")
async def refund(order: int) -> str:
    return "done"


def brief(trial: Trial) -> float:
    return round(1 - len(trial.text) / 100, 2)  # a score


def clerk(*, careful: bool) -> Agent:
    def brain(request: ModelRequest) -> str | list[ToolUseBlock]:
        if request.messages[-1].role == "tool":
            return "The money comes in three days." if careful else "You will hear from us."
        if "damaged" not in request.messages[-1].text:
            return "We open at nine."
        calls = [ToolUseBlock("t1", "look_up", {"order": 7}), ToolUseBlock("t2", "refund", {"order": 7})]
        return calls if careful else calls[1:]

    return Agent("clerk", ScriptedModel(brain), tools=[look_up, refund])


def judge(request: ModelRequest) -> str:
    exact = "three days" in request.messages[-1].text
    return '{"reason": "It names a date.", "level": 3}' if exact else '{"reason": "It names no date.", "level": 1}'


def main() -> None:
    with TemporaryDirectory() as name:
        file, baseline = Path(name, "refunds.yaml"), Path(name, "baseline.json")
        file.write_text(YAML, "utf-8")
        refunds = Dataset.read(file, checks=[brief], judge=ScriptedModel(judge))
        asyncio.run(refunds.evaluate(clerk(careful=True))).save(baseline)
        comparison = compare(asyncio.run(refunds.evaluate(clerk(careful=False))), baseline)
        print(*comparison.problems, comparison, sep="\n")


if __name__ == "__main__":
    main()
