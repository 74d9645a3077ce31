"""Tests of the assistant: its sandbox, its tools, its guards, and what a crash leaves. No model and no network is needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentflow import ActingChunk, Reply, ToolUseBlock
from agentflow.errors import ToolError
from agentflow.plugins.approval import ApprovalRequest, Choice
from agentflow.testing import ScriptedModel
from samples.repo_assistant.assistant import make_assistant
from samples.repo_assistant.example import NEW, TASK, fill, script
from samples.repo_assistant.sandbox import Sandbox

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sandbox(tmp_path: Path) -> Sandbox:
    """The example's repository, with things around it that are nobody's business."""
    (tmp_path / "secret.txt").write_text("secret", "utf-8")
    (tmp_path / "repository-too").mkdir()
    (tmp_path / "repository").mkdir()
    made = Sandbox(tmp_path / "repository")
    fill(made)
    return made


# ---- the sandbox

OUTSIDE = [
    "../secret.txt",
    "shop/../../secret.txt",
    "/etc/passwd",
    "../repository-too/x",
    "link.txt",
    "links/secret.txt",
    "links/new.txt",
    "loop",
    "a\0b",
    "..",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_way_leads_out(sandbox: Sandbox, name: str) -> None:
    """Not by dots, by an absolute path, by a link to a file or a folder, by a name that only begins like the folder's."""
    (sandbox.root / "link.txt").symlink_to("../secret.txt")
    (sandbox.root / "links").symlink_to("..")
    (sandbox.root / "loop").symlink_to("loop")
    with pytest.raises((ToolError, OSError, RuntimeError)):
        sandbox.read(name)
    with pytest.raises((ToolError, OSError, RuntimeError)):
        sandbox.write(name, "mine now")
    assert (sandbox.root.parent / "secret.txt").read_text("utf-8") == "secret"
    assert not (sandbox.root.parent / "new.txt").exists()


def test_git_is_not_written(sandbox: Sandbox) -> None:
    """A hook of git's would be a command that nobody has allowed."""
    for name in (".git/hooks/pre-commit", "sub/.git/config", "shop/../.git/x"):
        with pytest.raises(ToolError, match="belongs to git"):
            sandbox.write(name, "#!/bin/sh\n")
    assert not (sandbox.root / ".git").exists()


def test_a_file_is_written_whole_and_keeps_its_mode(sandbox: Sandbox) -> None:
    """Nothing is left beside it."""
    place = sandbox.root / "shop" / "prices.py"
    place.chmod(0o750)
    sandbox.write("shop/prices.py", "x = 1\n")
    assert (place.read_text("utf-8"), place.stat().st_mode & 0o777) == ("x = 1\n", 0o750)
    assert [file.name for file in place.parent.iterdir()].count("prices.py") == 1
    assert not list(sandbox.root.rglob(".writing-*"))


# ---- the tools


async def asked(sandbox: Sandbox, *calls: ToolUseBlock, answer: Choice = "once") -> list[tuple[str, str]]:
    """State and text of the results, where a person gives one answer to all questions."""

    async def ask(request: ApprovalRequest) -> Choice:
        return answer

    agent = make_assistant(ScriptedModel([list(calls), "Done."]), sandbox.root.parent, ask)
    await agent.call("Go", deps=sandbox)
    results = [result for message in agent.session().messages for result in message.tool_results]
    return [(result.state, result.text) for result in results]


def use(n: int, name: str, **arguments: str) -> ToolUseBlock:
    return ToolUseBlock(f"t{n}", name, arguments)


async def test_what_tools_say_of_wrong_paths_and_files(sandbox: Sandbox) -> None:
    """The model reads why, and the call goes on."""
    (sandbox.root / "picture.png").write_bytes(b"\x89PNG\xff")
    results = await asked(
        sandbox,
        use(1, "read_file", path="../secret.txt"),
        use(2, "read_file", path="no/such.txt"),
        use(3, "read_file", path="picture.png"),
        use(4, "search", text="discount=10"),
    )
    assert [state for state, _ in results] == ["error", "error", "error", "success"]
    assert "leads out of the repository" in results[0][1]
    assert "is no text file" in results[2][1]
    assert "tests/test_prices.py:8: self.assertAlmostEqual" in results[3][1]


async def test_edits(sandbox: Sandbox) -> None:
    """What stands there once is replaced; twice or never is an error; an edit that was made already says so."""
    results = await asked(
        sandbox,
        use(1, "edit_file", path="shop/prices.py", old="(1 - discount)", new=NEW),
        use(2, "edit_file", path="shop/prices.py", old="(1 - discount)", new=NEW),
        use(3, "edit_file", path="shop/prices.py", old="total", new="sum_of"),
        use(4, "edit_file", path="shop/prices.py", old="discount", new="x"),
        use(5, "edit_file", path="shop/prices.py", old="", new="x"),
    )
    assert [state for state, _ in results] == ["success", "success", "success", "error", "error"]
    assert results[1][1] == "shop/prices.py says that already."
    assert "stands 3 times" in results[3][1]


async def test_a_person_who_says_no(sandbox: Sandbox) -> None:
    """Nothing is edited, no command runs; reading and the tests are free."""
    before = sandbox.read("shop/prices.py")
    results = await asked(
        sandbox,
        use(1, "read_file", path="CHANGES.md"),
        use(2, "edit_file", path="shop/prices.py", old="total", new="x"),
        use(3, "write_file", path="new.txt", text="x"),
        use(4, "bash", command="echo x > new.txt"),
        use(5, "bash", command="python -m unittest -q"),
        answer="no",
    )
    assert [state for state, _ in results] == ["success", "denied", "denied", "denied", "success"]
    assert sandbox.read("shop/prices.py") == before
    assert not (sandbox.root / "new.txt").exists()


async def test_what_is_refused_stays_refused(sandbox: Sandbox) -> None:
    """Also for who says yes to everything."""
    commands = [
        "rm -rf shop",
        "echo hi; rm CHANGES.md",
        "bash -c 'rm CHANGES.md'",
        "sudo ls",
        "git push",
        "/bin/rm CHANGES.md",
    ]
    results = await asked(sandbox, *[use(n, "bash", command=command) for n, command in enumerate(commands)])
    assert [state for state, _ in results] == ["denied"] * len(commands)
    assert (sandbox.root / "CHANGES.md").exists()


async def test_a_command_sees_no_keys(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a provider's key nor standard input; its exit code is told."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    ((state, text),) = await asked(sandbox, use(1, "bash", command="env; cat; exit 3"))
    assert state == "success"
    assert "sk-very-secret" not in text
    assert text.endswith("[exit code 3]")


def gone(process: int) -> bool:
    """Whether a process has ended, noticed by its parent or not."""
    try:
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
async def test_an_interrupt_ends_all_that_a_command_has_started(sandbox: Sandbox) -> None:
    """Children in the background too."""

    async def yes(request: ApprovalRequest) -> Choice:
        return "once"

    script = [use(1, "bash", command="sleep 300 & echo $!; wait")]
    agent = make_assistant(ScriptedModel([script]), sandbox.root.parent, yes)
    child = 0
    async with agent.stream("Go", deps=sandbox) as events:
        async for event in events:
            if isinstance(event, ActingChunk):
                child = int(str(event.chunk))
                event.context.interrupt()
        reply = await events.reply()
    assert reply.outcome == "interrupted"
    assert gone(child)


async def test_a_flood_is_cut(sandbox: Sandbox) -> None:
    """A command that does not stop printing does not fill the conversation."""
    ((_, text),) = await asked(sandbox, use(1, "bash", command="head -c 3000000 /dev/zero | tr '\\0' x"))
    assert len(text) < 21_000
    assert text.endswith("[... more output]\n[exit code 0]")


# ---- the whole


async def test_the_task_of_the_offline_run(sandbox: Sandbox) -> None:
    """The script mends the discount, tests it, notes it; what leads out and what deletes is refused."""

    async def yes(request: ApprovalRequest) -> Choice:
        questions.append(request.tool_use.name)
        return "once"

    questions: list[str] = []
    state = sandbox.root.parent
    agent = make_assistant(script(), state, yes)
    reply: Reply = await agent.call(TASK, session="work", deps=sandbox)
    assert reply.outcome == "completed"
    assert NEW in sandbox.read("shop/prices.py")
    assert questions == ["edit_file", "write_file"]
    results = [result for message in agent.session("work").messages for result in message.tool_results]
    assert [result.state for result in results].count("success") == 8
    assert "FAILED" in results[4].text
    assert "OK" in results[6].text
    assert (state / "record.jsonl").stat().st_size > 0


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The program, as README says."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "samples.repo_assistant", "--yes", "--folder", str(folder), *options],
        cwd=ROOT,
        env={**os.environ, "PYTHONUTF8": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("behind", [1, 4, 6, 9])
def test_it_goes_on_where_the_power_failed(tmp_path: Path, behind: int) -> None:
    """Cut twice and started a third time it has done the job, and each finished edit once."""
    folder = tmp_path / "repository"
    cut = run(folder, "--power-cut", str(behind))
    assert cut.returncode == 9, cut.stdout + cut.stderr
    run(folder, "--power-cut", "1")
    whole = run(folder)
    assert (whole.returncode, whole.stderr) == (0, "")
    assert NEW in (folder / "shop" / "prices.py").read_text("utf-8")
    assert (folder / "CHANGES.md").read_text("utf-8").count("percent") == 1
    assert "it is divided by 100 now" in whole.stdout


def test_it_does_not_touch_a_folder_that_is_not_its_own(tmp_path: Path) -> None:
    """The script knows its example only."""
    (tmp_path / "mine.txt").write_text("mine", "utf-8")
    ran = run(tmp_path)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "name a new folder, or a --model" in ran.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
