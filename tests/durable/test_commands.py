"""`agentflow worker` and `agentflow runs`, as processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from worker_processes import ROOT

from agentflow._support.shown import controls
from agentflow.durable.client import DurableClient
from agentflow.terminal.cli.main import main

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
    """Begin a command in a folder."""
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
    """Runs a command in this process: its code, the lines of its output, and what it said beside."""
    monkeypatch.chdir(folder)

    def run(*words: str) -> tuple[int, list[str], str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(words)
        out, err = capfd.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, out.splitlines(), err

    return run


async def test_a_worker_and_what_one_sees_of_its_runs(folder: Path, ran: Ran) -> None:
    """A worker runs an agent of a module and keeps its sessions; runs are listed, shown, decided, cancelled."""
    url = f"sqlite:///{folder / 'runs.db'}"
    worker = command(folder, "worker", "durable_shop:clerk", "--database", url, "--poll", "0.05")
    try:
        assert worker.stderr is not None
        assert worker.stderr.readline().endswith("runs clerk\n")
        async with DurableClient(url) as client, asyncio.timeout(60):
            await client.call("clerk", "Pay", session="till", run_id="bill")
            await client.call("clerk", "Pay", session="other", run_id="never")
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
            assert found == {"bill": ("clerk", "till", "completed"), "never": ("clerk", "other", "interrupted")}
            assert (await asyncio.to_thread(ran, "runs", "list", "--agent", "nobody", "--database", url))[1] == []
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(worker.wait, 30) == 0
    finally:
        worker.kill()
        worker.communicate()


async def test_runs_print_no_control_characters(folder: Path, ran: Ran) -> None:
    """What a model, a tool or a caller says reaches the terminal as escapes."""
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
