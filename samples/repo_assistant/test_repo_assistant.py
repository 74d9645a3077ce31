"""Tests of the assistant: sandbox, tools, guards, and recovery. They need no model and no network."""

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
    """The example's repository, with files around it that are off limits."""
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
    """Dots, absolute paths, links to files or folders, and names that only begin like the folder's are refused."""
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
    """A git hook would be a command without approval."""
    for name in (".git/hooks/pre-commit", "sub/.git/config", "shop/../.git/x"):
        with pytest.raises(ToolError, match="belongs to git"):
            sandbox.write(name, "#!/bin/sh\n")
    assert not (sandbox.root / ".git").exists()


def test_a_file_is_written_atomically_and_keeps_its_mode(sandbox: Sandbox) -> None:
    """No temporary file is left."""
    place = sandbox.root / "shop" / "prices.py"
    place.chmod(0o750)
    sandbox.write("shop/prices.py", "x = 1\n")
    assert (place.read_text("utf-8"), place.stat().st_mode & 0o777) == ("x = 1\n", 0o750)
    assert [file.name for file in place.parent.iterdir()].count("prices.py") == 1
    assert not list(sandbox.root.rglob(".writing-*"))


# ---- the tools


async def asked(sandbox: Sandbox, *calls: ToolUseBlock, answer: Choice = "once") -> list[tuple[str, str]]:
    """Return state and text of the results; all questions get the same answer."""

    async def ask(request: ApprovalRequest) -> Choice:
        return answer

    agent = make_assistant(ScriptedModel([list(calls), "Done."]), sandbox.root.parent, ask)
    await agent.call("Go", deps=sandbox)
    results = [result for message in agent.session().messages for result in message.tool_results]
    return [(result.state, result.text) for result in results]


def use(n: int, name: str, **arguments: str) -> ToolUseBlock:
    return ToolUseBlock(f"t{n}", name, arguments)


async def test_errors_for_wrong_paths_and_files(sandbox: Sandbox) -> None:
    """The model reads why, and the call continues."""
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
    assert "is not a text file" in results[2][1]
    assert "tests/test_prices.py:8: self.assertAlmostEqual" in results[3][1]


async def test_edits(sandbox: Sandbox) -> None:
    """A text that occurs once is replaced; any other count is an error; a repeated edit is recognised."""
    results = await asked(
        sandbox,
        use(1, "edit_file", path="shop/prices.py", old="(1 - discount)", new=NEW),
        use(2, "edit_file", path="shop/prices.py", old="(1 - discount)", new=NEW),
        use(3, "edit_file", path="shop/prices.py", old="total", new="sum_of"),
        use(4, "edit_file", path="shop/prices.py", old="discount", new="x"),
        use(5, "edit_file", path="shop/prices.py", old="", new="x"),
    )
    assert [state for state, _ in results] == ["success", "success", "success", "error", "error"]
    assert results[1][1] == "shop/prices.py already has that text."
    assert "occurs 3 times" in results[3][1]


async def test_a_person_who_says_no(sandbox: Sandbox) -> None:
    """Nothing is edited and no command runs; reading and tests need no approval."""
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


async def test_refused_commands_stay_refused(sandbox: Sandbox) -> None:
    """They are refused even if every question is answered with yes."""
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
    """It has neither a provider's key nor standard input; its exit code is reported."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret")
    ((state, text),) = await asked(sandbox, use(1, "bash", command="env; cat; exit 3"))
    assert state == "success"
    assert "sk-very-secret" not in text
    assert text.endswith("[exit code 3]")


def ended(process: int) -> bool:
    """Return whether a process has ended, even as a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
async def test_an_interrupt_ends_all_processes_of_a_command(sandbox: Sandbox) -> None:
    """Background processes also end."""

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
    assert ended(child)


async def test_long_output_is_truncated(sandbox: Sandbox) -> None:
    """Endless output does not fill the conversation."""
    ((_, text),) = await asked(sandbox, use(1, "bash", command="head -c 3000000 /dev/zero | tr '\\0' x"))
    assert len(text) < 21_000
    assert text.endswith("[... more output]\n[exit code 0]")


# ---- the program


async def test_the_task_of_the_offline_run(sandbox: Sandbox) -> None:
    """The script fixes the discount, tests it and notes it; outside paths and deletions are refused."""

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
    """Run the program as in README.md."""
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


@pytest.mark.parametrize("after", [1, 4, 6, 9])
def test_it_continues_after_a_power_failure(tmp_path: Path, after: int) -> None:
    """Killed twice and started a third time, it finishes the task, with each edit made once."""
    folder = tmp_path / "repository"
    killed = run(folder, "--power-failure", str(after))
    assert killed.returncode == 9, killed.stdout + killed.stderr
    run(folder, "--power-failure", "1")
    done = run(folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert NEW in (folder / "shop" / "prices.py").read_text("utf-8")
    assert (folder / "CHANGES.md").read_text("utf-8").count("percent") == 1
    assert "it is divided by 100 now" in done.stdout


def test_it_does_not_touch_a_folder_that_is_not_its_own(tmp_path: Path) -> None:
    """The script only works on its example."""
    (tmp_path / "mine.txt").write_text("mine", "utf-8")
    ran = run(tmp_path)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "name a new folder, or a --model" in ran.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
