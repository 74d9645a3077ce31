"""Approval: a call stops before a tool that needs approval, is saved, and is resumed in another process after a decision.

Without arguments it plays both parts: it calls the agent, saves the session and starts itself a second time. The second
process asks in the terminal (try `y`, `n`, or another amount), and resumes.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from agentflow import Agent, Approve, Deny, Session, ToolUseBlock, tool
from agentflow.testing import ScriptedModel
from agentflow.vocabulary import Pending, Resolution


@tool
async def balance() -> str:
    """Return the balance."""
    print("  (balance is read)", flush=True)  # once: a finished tool never runs again
    return "100 euros"


@tool(requires_approval=True)
async def pay(euros: int, to: str) -> str:
    """Pay a person."""
    return f"{euros} euros went to {to}"


def agent_with(model: ScriptedModel) -> Agent:
    return Agent("treasurer", model, tools=[balance, pay])


def ask(waits: Pending) -> Resolution:
    """Ask in the terminal; without an answer the call is denied."""
    use = waits.tool_use
    assert use is not None
    print(f"{use.name}{dict(use.input)}: y, n, or another amount?", flush=True)
    answer = sys.stdin.readline().strip()
    if answer.isdigit():
        return Approve(
            input={**use.input, "euros": int(answer)}
        )  # validated and checked by hooks, like the model's own call
    return Approve() if answer == "y" else Deny("the treasurer said no" if answer else "no one answered")


def first(file: Path) -> None:
    calls = [ToolUseBlock("t1", "balance"), ToolUseBlock("t2", "pay", {"euros": 40, "to": "Ann"})]
    agent = agent_with(ScriptedModel([calls]))
    session = Session.fresh(id="payments")
    reply = agent.call("Pay Ann what we owe her", session=session).block()
    print(reply.outcome, [(waits.id, waits.kind, waits.hook) for waits in reply.pending], flush=True)
    file.write_text(session.to_json(), "utf-8")


def second(file: Path) -> None:
    session = Session.from_json(file.read_text("utf-8"))
    decisions = {waits.id: ask(waits) for waits in session.pending}
    reply = agent_with(ScriptedModel(["Ann has her money."])).resume(session, decisions).block()
    print([result.text for result in session.messages[2].tool_results])
    print(reply.outcome, "|", reply)


def main() -> None:
    if len(sys.argv) > 1:
        second(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "session.json"
        first(file)
        subprocess.run([sys.executable, __file__, str(file)], check=True)


if __name__ == "__main__":
    main()
