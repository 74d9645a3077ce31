"""Real processes that are killed: one completes what another one has begun."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python on a module of this project."""
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.ci
def test_twenty_kills() -> None:
    """Twenty processes are killed at random instants, on SQLite and PostgreSQL: no effect is repeated, none is lost."""
    ran = python("-m", "benchmarks.crash", "--kills", "20")
    assert ran.stderr == ""
    *_, total, _, verdict = ran.stdout.splitlines()
    assert re.match(r"all +20 +20 ", total), ran.stdout
    assert verdict.startswith("repeated effects: 0, lost effects: 0 ("), ran.stdout
    assert ran.returncode == 0


CASHIER = """
import asyncio, os, signal, sys
from pathlib import Path
from agentflow import Agent, Approve, ToolUseBlock, tool
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel

url, ledger, step = sys.argv[1], Path(sys.argv[2]), sys.argv[3]


@tool(requires_approval=True)
async def pay(cents: int) -> str:
    with ledger.open("a") as file:
        file.write(f"paid {cents}\\n")
    if step == "approve and die":
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


def brain(request):
    return "Done." if request.messages[-1].role == "tool" else ToolUseBlock("t1", "pay", {"cents": 500})


async def main():
    async with SqlStore(url) as store:
        agent = Agent("cashier", ScriptedModel(brain), tools=[pay], store=store, on_unknown_outcome="suspend")
        session = agent.session("till")
        if step == "ask":
            reply = await agent.call("Pay five euros", session="till")
        elif step == "look":
            await session.acquire("till")
            session.release()
            for waits in session.pending:
                print(waits.id, waits.kind, waits.hook, waits.request, waits.tool_use.input)
            os.kill(os.getpid(), signal.SIGKILL)
        elif step == "resume":
            reply = await agent.resume("till")
        else:
            reply = await agent.resume("till", {"t1": Approve()})
        print(reply.outcome, [waits.request for waits in reply.pending], reply.text)


asyncio.run(main())
"""


@pytest.mark.ci
def test_an_approval_over_several_processes(tmp_path: Path) -> None:
    """Requested in one process, read in a second one, answered in a third: each of them is new, and some are killed."""
    ledger = tmp_path / "ledger"
    place = ("-c", CASHIER, f"sqlite:///{tmp_path / 'till.db'}", str(ledger))

    asked = python(*place, "ask")
    assert asked.stdout == "suspended [{'tool': 'pay', 'input': {'cents': 500}}] \n", asked.stderr
    seen = python(*place, "look")
    assert seen.returncode == -signal.SIGKILL
    died = python(*place, "approve and die")
    assert (died.returncode, ledger.read_text()) == (-signal.SIGKILL, "paid 500\n")
    unknown = python(*place, "resume")
    request = "{'outcome': 'unknown', 'tool': 'pay', 'input': {'cents': 500}, 'attempt': 1}"
    assert unknown.stdout == f"suspended [{request}] \n", unknown.stderr
    answered = python(*place, "approve")
    assert answered.stdout == "completed [] Done.\n", answered.stderr
    assert ledger.read_text() == "paid 500\npaid 500\n"  # a person has looked, and said: again


SERVICE = """
import asyncio, sys
from pathlib import Path
from agentflow import Agent, ToolUseBlock, tool
from agentflow.agent.graceful import GracefulShutdown
from agentflow.errors import ShutdownError
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel

url, marks, step, limit = sys.argv[1], Path(sys.argv[2]), sys.argv[3], float(sys.argv[4])


@tool(idempotent=True)
async def work(n: int) -> str:
    print("working", n, flush=True)
    if step == "hang" and n == 1:
        await asyncio.Event().wait()
    if step == "begin" and n == 1:
        await asyncio.to_thread(sys.stdin.readline)
    with marks.open("a") as file:
        file.write(f"{n}\\n")
    return f"did {n}"


def brain(request):
    done = sum(msg.role == "tool" for msg in request.messages)
    return "Done." if done == 3 else ToolUseBlock(f"t{done}", "work", {"n": done})


async def main():
    async with SqlStore(url) as store:
        agent = Agent("worker", ScriptedModel(brain), tools=[work], store=store)
        try:
            async with GracefulShutdown(agent, limit=limit) as shutdown:
                if step == "resume":
                    print([info.id for info in await agent.unfinished()])
                    print(await agent.resume("s"))
                else:
                    await agent.call("Go", session="s")
        except ShutdownError as error:
            print(error)
        print(shutdown.report)
        if shutdown.requested:
            try:
                await agent.call("More", session="t")
            except ShutdownError as error:
                print(error)


asyncio.run(main())
"""


def service(*arguments: str) -> subprocess.Popen[str]:
    """Start it, and wait until the tool waits."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SERVICE, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(2)] == ["working 0\n", "working 1\n"]
    return process


STOPPED = (
    "Agent 'worker' is shutting down: its call on session 's' was stopped; finished work is kept. Continue it in "
    "the next process: agent.resume('s').\n"
)
REFUSED = (
    "Agent 'worker' is shutting down: the call on session 't' did not begin, and nothing of it is stored. Call again in "
    "the next process.\n"
)


@pytest.mark.ci
def test_a_signal_stops_behind_the_running_tool(tmp_path: Path) -> None:
    """SIGTERM while a tool runs: the tool finishes, its result is stored, and the next process continues with the
    next round.
    """
    place = (f"sqlite:///{tmp_path / 's.db'}", str(tmp_path / "marks"))
    process = service(*place, "begin", "60")
    process.send_signal(signal.SIGTERM)
    said, complaints = process.communicate("go on\n", timeout=60)
    assert said == f"{STOPPED}ShutdownReport(stopped=('s',), cancelled=(), finished=(), running=())\n{REFUSED}", (
        complaints
    )
    assert (tmp_path / "marks").read_text() == "0\n1\n"
    after = python("-c", SERVICE, *place, "resume", "60")
    assert after.stdout == "['s']\nworking 2\nDone.\nNone\n", after.stderr
    assert (tmp_path / "marks").read_text() == "0\n1\n2\n"


@pytest.mark.ci
def test_behind_the_limit_the_rest_is_cancelled(tmp_path: Path) -> None:
    """A tool that does not end is cancelled after the limit; the call is left as by a crash, and is resumed."""
    place = (f"sqlite:///{tmp_path / 's.db'}", str(tmp_path / "marks"))
    process = service(*place, "hang", "0.05")
    process.send_signal(signal.SIGINT)
    said, complaints = process.communicate(timeout=60)
    assert said == f"{STOPPED}ShutdownReport(stopped=(), cancelled=('s',), finished=(), running=())\n{REFUSED}", (
        complaints
    )
    after = python("-c", SERVICE, *place, "resume", "60")
    assert after.stdout == "['s']\nworking 1\nworking 2\nDone.\nNone\n", after.stderr
    assert (tmp_path / "marks").read_text() == "0\n1\n2\n"


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    """A second signal does not wait for the limit."""
    process = service(f"sqlite:///{tmp_path / 's.db'}", str(tmp_path / "marks"), "hang", "3600")
    process.send_signal(signal.SIGTERM)
    while process.poll() is None:  # two that come at once count as one
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    said, complaints = process.communicate(timeout=60)
    assert said == f"{STOPPED}ShutdownReport(stopped=(), cancelled=('s',), finished=(), running=())\n{REFUSED}", (
        complaints
    )
