"""`agentflow new`: what it writes runs, passes its own test, and is right to the strict checker; nothing is written over."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentflow.terminal.cli import new as module
from agentflow.terminal.cli.failures import CommandError
from agentflow.terminal.cli.new import package_of, write_project

FILES = [
    ".gitignore",
    "README.md",
    "my_shop",
    "my_shop/__init__.py",
    "my_shop/__main__.py",
    "my_shop/agent.py",
    "pyproject.toml",
    "tests",
    "tests/test_agent.py",
]


def tree(folder: Path) -> list[str]:
    """What is in a folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def ran(shop: Any, folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of the project, as its README says."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=shop.environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=240,
        check=False,
    )


@pytest.mark.ci
def test_what_it_writes_runs_and_passes_its_test(shop: Any) -> None:
    """The program plays its script, the tests pass, warnings are errors, and the commands of agentflow find the agent."""
    made = shop("new", "my-shop")
    assert (made.returncode, made.stderr) == (0, "")
    assert "cd my-shop\n" in made.stdout
    folder = shop.folder / "my-shop"
    assert tree(folder) == FILES
    assert "{{" not in "".join((folder / name).read_text("utf-8") for name in FILES if (folder / name).is_file())

    played = ran(shop, folder, "-W", "error", "-m", "my_shop")
    assert (played.returncode, played.stderr) == (0, "")
    assert "✓ price: 2.25" in played.stdout
    assert "⊘ order (denied by small_orders_only): Orders of more than 10" in played.stdout
    assert "── completed · 3 rounds · 2 tool calls" in played.stdout

    tested = ran(shop, folder, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error")
    assert "3 passed" in tested.stdout, tested.stdout + tested.stderr
    assert tested.returncode == 0

    told = ran(shop, folder, "-m", "agentflow", "hooks", "my_shop.agent:agent")
    assert "small_orders_only" in told.stdout


@pytest.mark.ci
def test_what_it_writes_is_right_to_the_strict_checker(shop: Any) -> None:
    """Pyright as the project's own pyproject.toml sets it: strict, over package and tests."""
    folder = write_project("my-shop", Path(shop.folder))
    checked = ran(shop, folder, "-m", "pyright", "--pythonpath", sys.executable)
    assert "0 errors, 0 warnings" in checked.stdout, checked.stdout


@pytest.mark.parametrize("what", ["folder", "file", "link"])
def test_nothing_is_written_over(shop: Any, what: str) -> None:
    """A folder, even an empty one, a file, a link that leads nowhere: it stays as it is."""
    there = Path(shop.folder) / "my-shop"
    match what:
        case "folder":
            there.mkdir()
        case "file":
            there.write_text("mine", "utf-8")
        case _:
            there.symlink_to("nowhere")
    refused = shop("new", "my-shop")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == ("agentflow: my-shop already exists here. Choose another name or another folder.\n")
    assert not there.is_dir() or tree(there) == []


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("My Shop", "such as my-shop."),
        ("../evil", "such as evil."),
        ("9lives", "such as lives."),
        ("a/b", "such as a-b."),
        ("", "such as my-shop."),
        ("..", "such as my-shop."),
        ("-x", "such as x."),
        ("käse", "such as k-se."),
        ("x" * 51, f"such as {'x' * 50}."),
        ("a\x1b[31m\n", "such as a-31m."),
        ("class", "it is a Python keyword"),
        ("match", "it is a Python keyword"),
        ("json", "`import json` would import another module. Use json-agent, for example."),
        ("agentflow", "would import another module"),
        ("tests", "would import another module"),
    ],
)
def test_a_bad_name_is_told_what_would_be_one(tmp_path: Path, name: str, why: str) -> None:
    """And nothing is written."""
    with pytest.raises(CommandError) as refused:
        write_project(name, tmp_path)
    assert why in refused.value.format_message()
    assert refused.value.format_message().isprintable()
    assert tree(tmp_path) == []


def test_good_names() -> None:
    """Dashes in the name are underscores in the package."""
    assert [package_of(name) for name in ("shop", "my-shop", "my_shop2")] == ["shop", "my_shop", "my_shop2"]


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that is missing in the middle: no half a project is left."""
    monkeypatch.setitem(module._FILES, "zz.txt", "no_such_text")
    with pytest.raises(CommandError, match="Nothing was created"):
        write_project("shop", tmp_path)
    assert tree(tmp_path) == []


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    """One line says so; here a file has the folder's name, which stops root too."""
    (tmp_path / "taken").write_text("", "utf-8")
    with pytest.raises(CommandError, match="cannot be created: Not a directory"):
        write_project("shop", tmp_path / "taken")
