"""A new guard is tried on recorded runs before it decides on new ones: no model is called, no tool runs."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

from agentflow import Agent, Deny, PreActing, ToolUseBlock, Usage, on, tool
from agentflow.recording import Recorder, Variant
from agentflow.recording.backtest import backtest
from agentflow.testing import ScriptedModel
from agentflow.vocabulary import ModelChunk


@tool(type="write")
async def pay(to: str, amount: int) -> str:
    """Pay an invoice."""
    return f"paid {amount} to {to}"


@on(guard=True)
def up_to_500(event: PreActing) -> Deny | None:
    return Deny("more than 500") if event.tool_use.input.get("amount", 0) > 500 else None


@on(guard=True)
def up_to_100(event: PreActing) -> Deny | None:
    amount = event.tool_use.input.get("amount", 0)
    return Deny("more than 500") if amount > 500 else Deny("more than 100") if amount > 100 else None


def clerk(amount: int = 0) -> Agent:
    reply = ["Done.", ModelChunk(usage=Usage(input_tokens=400, output_tokens=20, cost=0.002))]
    model = ScriptedModel([ToolUseBlock("t1", "pay", {"to": "Ann", "amount": amount}), reply])
    return Agent("clerk", model, tools=[pay], hooks=[up_to_500])


def last_month(folder: Path) -> None:
    for amount in (20, 250, 90, 900, 300):
        recorder = Recorder(folder)
        agent = clerk(amount)
        agent.hook(recorder)
        agent.call(f"Pay {amount} to Ann").block()
        recorder.close()


def changed() -> Variant:
    return Variant(clerk(), hooks=[up_to_100], without=["up_to_500"])


def main() -> None:
    with TemporaryDirectory() as name:
        folder = Path(name) / "runs"
        folder.mkdir()
        last_month(folder)
        report = backtest([folder], changed)
        text = str(report).replace(str(folder), "runs")
        print(re.sub(r"run_\w+", "run_…", text))
        for run in report.of("refused"):
            print(f"possible false refusal: {run.tool}, {run.reason}, {run.rest_tokens} tokens after it")


if __name__ == "__main__":
    main()
