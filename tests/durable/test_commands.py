"""`agentflow worker` and `agentflow runs`, as processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from worker_processes import ROOT

from agentflow._support.shown import controls
from agentflow.durable.client import DurableClient
from agentflow.durable.records import RunEvent
from agentflow.terminal.cli.main import main
from agentflow.terminal.cli.runs import _event_line

SHOP = """
from agentflow import Agent, ToolUseBlock, tool
from agentflow.testing import ScriptedModel

@tool(requires_approval=True)
async def pay(cents: int, note: str = "") -> str:
    return f"paid {cents}"

def answer(request):
    results = request.messages[-1].tool_results
    return f"Done: {results[0].text}" if results else [ToolUseBlock("t1", "pay", {"cents": 5})]

clerk = Agent("clerk", ScriptedModel(answer), tools=[pay])

E = chr(27) + "[2J" + chr(0x9b) + chr(0x202e)

evil = Agent("evil", ScriptedModel([["said " + E, ToolUseBlock("t1", "pay", {"cents": 5, "note": "x" + E})]]), tools=[pay])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a module of an agent that has no store."""
    (tmp_path / "durable_shop.py").write_text(SHOP)
    return tmp_path


def command(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command in a folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "agentflow", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


Ran = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def ran(capfd: pytest.CaptureFixture[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Run a command in this process; return its code, its output lines, and its standard error."""
    monkeypatch.chdir(folder)

    def run(*words: str) -> tuple[int, list[str], str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(words)
        out, err = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out.splitlines(), err

    return run


@pytest.mark.ci
async def test_a_worker_and_what_one_sees_of_its_runs(folder: Path, ran: Ran) -> None:
    """A worker runs an agent of a module and stores its sessions; runs are listed, shown, decided, cancelled."""
    url = f"sqlite:///{folder / 'runs.db'}"
    worker = command(folder, "worker", "durable_shop:clerk", "--database", url, "--poll", "0.05")
    try:
        assert worker.stderr is not None
        assert worker.stderr.readline().endswith("runs clerk\n")
        async with DurableClient(url) as client, asyncio.timeout(60):
            await client.call("clerk", "Pay", session="till", run_id="bill")
            await client.call("clerk", "Pay", session="other", run_id="never")
            await client.call("clerk", "Pay", session="third", run_id="dear")
            deny = ("runs", "resume", "dear", "--deny", "t1", "--reason", "too dear", "--database", url)
            assert (await asyncio.to_thread(ran, *deny))[:2] == (0, ["run dear is resumed"])
            assert "too dear" in (await client.result("dear")).text
            code, lines, _ = await asyncio.to_thread(ran, "runs", "show", "bill", "--database", url)
            assert (code, lines[-1]) == (1, "waits for t1: pay(cents=5)")
            assert (await asyncio.to_thread(ran, "runs", "resume", "bill", "--approve", "t1", "--database", url))[
                :2
            ] == (
                0,
                ["run bill is resumed"],
            )
            code, lines, _ = await asyncio.to_thread(
                ran, "runs", "show", "bill", "--follow", "--json", "--database", url
            )
            assert (code, json.loads(lines[-1])["outcome"]) == (0, "completed")
            assert [json.loads(line)["seq"] for line in lines] == list(range(1, len(lines) + 1))
            assert (await asyncio.to_thread(ran, "runs", "cancel", "never", "--database", url))[:2] == (
                0,
                ["run never is being cancelled"],
            )
            await client.result("never")
            code, lines, _ = await asyncio.to_thread(ran, "runs", "list", "--json", "--database", url)
            found = {
                info["run_id"]: (info["agent"], info["session"], info["outcome"]) for info in map(json.loads, lines)
            }
            assert found == {
                "bill": ("clerk", "till", "completed"),
                "never": ("clerk", "other", "interrupted"),
                "dear": ("clerk", "third", "completed"),
            }
            assert (await asyncio.to_thread(ran, "runs", "list", "--agent", "nobody", "--database", url))[1] == []
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 30) == 0
    finally:
        worker.kill()
        worker.communicate()


DURABLE = """
from dataclasses import dataclass
from durable_shop import clerk
from agentflow import Agent, RunContext, ToolUseBlock, tool
from agentflow.durable.agent import DurableAgent
from agentflow.state import SqlStore
from agentflow.testing import ScriptedModel

class Till:
    name = "the till"

@dataclass
class Cart:
    items: int = 0

@tool
async def buy(till: Till, run: RunContext) -> str:
    run.session_state[Cart].items += 1
    return f"bought at {till.name}"

def answer(request):
    results = request.messages[-1].tool_results
    return results[0].text if results else ToolUseBlock("t1", "buy")

seller = DurableAgent(
    Agent("seller", ScriptedModel(answer), tools=[buy], store=SqlStore("URL")), "URL", deps=Till(), state=[Cart]
)
other = DurableAgent(Agent("other", ScriptedModel([]), store=SqlStore("URL2")), "URL2")
"""


@pytest.mark.ci
async def test_a_worker_runs_a_durable_agent_with_its_database_deps_and_state(folder: Path, ran: Ran) -> None:
    """A module's `DurableAgent`, which a web process serves, is the agent of its workers too, beside plain agents."""
    url = f"sqlite:///{folder / 'runs.db'}"
    (folder / "durable_seller.py").write_text(DURABLE.replace("URL2", f"{url}2").replace("URL", url))
    worker = command(folder, "worker", "durable_seller:seller", "durable_shop:clerk", "--poll", "0.05")
    try:
        assert worker.stderr is not None
        assert worker.stderr.readline().endswith("runs seller, clerk\n")
        async with DurableClient(url) as client, asyncio.timeout(60):
            assert (await client.call("seller", "Buy", run_id="r1")).text == "bought at the till"
            events = [event async for event in client.stream("r1")]
            states = [event.data["values"] for event in events if event.type == "SessionState"]
            assert states[-1] == {"durable_seller:Cart": {"items": 1}}
    finally:
        worker.kill()
        worker.communicate()
    for words, problem in (
        (("durable_shop:clerk",), "The database is missing"),
        (("durable_seller:seller", "durable_seller:other"), f"name {url} and {url}2."),
    ):
        code, _, said = await asyncio.to_thread(ran, "worker", *words)
        assert (code, problem in said) == (2, True), said


async def test_runs_print_no_control_characters(folder: Path, ran: Ran) -> None:
    """Texts of a model, a tool or a caller reach the terminal as escapes."""
    url = f"sqlite:///{folder / 'runs.db'}"
    worker = command(folder, "worker", "durable_shop:evil", "--database", url, "--poll", "0.05")
    try:
        async with DurableClient(url) as client, asyncio.timeout(60):
            await client.call("evil", "Pay", session="till", run_id="bill")
            for words in (("list",), ("list", "--json"), ("show", "bill", "--follow"), ("show", "bill", "--json")):
                _, lines, said = await asyncio.to_thread(ran, "runs", *words, "--database", url)
                assert controls().search("".join(lines) + said) is None
                assert len(lines) > 0
            _, lines, _ = await asyncio.to_thread(ran, "runs", "show", "bill", "--database", url)
            assert lines[-1] == "waits for t1: pay(cents=5, note='x\\x1b[2J\\x9b\\u202e')"
            assert any("said \\x1b[2J\\x9b" in line for line in lines)
    finally:
        worker.kill()
        worker.communicate()


async def test_each_run_is_a_line_and_what_is_over_is_left_as_it_is(folder: Path, ran: Ran) -> None:
    """Time, status, agent, id, session, the number of starts, and damage. A lost run can be resumed, once."""
    url = f"sqlite:///{folder / 'runs.db'}"
    async with DurableClient(url) as client:
        for n in range(4):
            await client.submit("clerk", "Pay", session=f"s{n}", run_id=f"r{n}")
        engine = create_engine(url)
        with engine.begin() as connection:
            for n, changed in enumerate(("created_at = 7000", "recovery_attempts = 2", f"created_at = {2**62}")):
                connection.execute(text(f"UPDATE workflow_status SET {changed} WHERE workflow_uuid = 'r{n}'"))
            connection.execute(text("UPDATE workflow_input SET inputs = '5' WHERE workflow_uuid = 'r3'"))
            connection.execute(
                text("UPDATE workflow_status SET status = 'MAX_RECOVERY_ATTEMPTS_EXCEEDED' WHERE workflow_uuid = 'r1'")
            )
        engine.dispose()
        runs = {info.run_id: info for info in await client.runs()}
    times = {key: datetime.fromtimestamp(runs[key].created, UTC).strftime("%Y-%m-%d %H:%M:%S") for key in ("r1", "r3")}
    line = {
        "r0": "1970-01-01 00:00:07  queued       clerk  r0  (session s0)",
        "r1": f"{times['r1']}  lost         clerk  r1  (session s1, attempt 2)",
        "r2": "?                    queued       clerk  r2  (session s2)",
        "r3": f"{times['r3']}  damaged      clerk  r3  (session s3): {runs['r3'].damage}",
    }

    def run(*words: str) -> tuple[int, list[str], str]:
        return ran("runs", *words, "--database", url)

    def all_of_them() -> None:
        assert run("list") == (0, [line[key] for key in ("r2", "r3", "r1", "r0")], "")
        assert run("list", "--limit", "2") == (0, [line[key] for key in ("r2", "r3")], "")
        assert run("show", "r0") == (0, [line["r0"]], "")
        over = "Run 'r1' has already ended, so it cannot be cancelled."
        assert run("cancel", "r1") == (1, [], f"agentflow: {over}\n")
        refused = "agentflow: Run 'r1' is {}. Only suspended and lost runs can be resumed.\n"
        assert run("resume", "r1", "--approve", "t1") == (2, [], refused.format("lost"))
        assert run("resume", "r1") == (0, ["run r1 is resumed"], "")
        assert run("resume", "r1") == (2, [], refused.format("queued"))

    await asyncio.to_thread(all_of_them)


def test_a_line_for_each_event() -> None:
    """Number, kind, and the streamed text, the outcome, or the worker."""
    chunk = {"incremental_chunk": {"text": "two\nlines"}, "outcome": "no", "worker": "no"}
    ended = {"outcome": "completed", "worker": "no"}
    assert [
        _event_line(RunEvent("r", 1, "RunTaken", {"worker": "w", "outcome": ""})),
        _event_line(RunEvent("r", 123, "ReasoningChunk", chunk)),
        _event_line(RunEvent("r", 45_678, "CallEnded", ended)),
        _event_line(RunEvent("r", 1_234_567, "PreActing", {})),
    ] == [
        "     1  RunTaken       w",
        "   123  ReasoningChunk two lines",
        " 45678  CallEnded      completed",
        "1234567  PreActing",
    ]


def test_what_cannot_be_done_is_said_on_one_line(folder: Path, ran: Ran) -> None:
    """Wrong database, wrong run, wrong state, wrong agent, and the missing extra: code and a line, no traceback."""
    url = f"sqlite:///{folder / 'runs.db'}"
    legal = "Use 'sqlite:///agentflow.db' (a file) or 'postgresql+psycopg://user:password@host/database'."
    code, _, said = ran("runs", "list", "--database", "nonsense")
    assert (code, said) == (2, f"agentflow: 'nonsense' is not a database URL. {legal}\n")
    code, _, said = ran("runs", "show", "nope", "--database", url)
    assert (code, said) == (2, "agentflow: There is no run 'nope' in this database; client.runs() lists them.\n")
    code, _, said = ran("worker", "durable_shop:nobody", "--database", url)
    assert (code, said) == (2, "agentflow: The module 'durable_shop' has no 'nobody'. Its agents: clerk, evil.\n")
    code, _, said = ran("worker", "durable_shop:clerk", "durable_shop:clerk", "--database", url)
    assert (code, said.startswith("agentflow: Two agents have the same name (clerk, clerk)")) == (2, True)
    without = (
        "import sys; sys.modules['dbos'] = None; from agentflow.terminal.cli.main import main; main(['runs', 'list'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", without],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "agentflow: `agentflow runs` needs dbos, which is not installed: pip install 'agentflow-hooks[dbos]'.\n",
    )
