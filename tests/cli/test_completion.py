"""Completion in the shell: what Tab offers, how it is installed and taken away."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ttys import Terminal, have_terminals


@pytest.fixture
def home(shop: Any) -> Path:
    """A home of the user's own."""
    made = Path(shop.folder) / "home"
    made.mkdir()
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        shop.environment.pop(name, None)
    shop.environment.update(HOME=str(made), SHELL="/bin/bash")
    return made


def offered(shop: Any, *words: str) -> list[str]:
    """What click answers the shell's question."""
    asked = {"_AGENTFLOW_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    shop.environment.update(asked)
    try:
        return [line.partition(",")[2] for line in shop().stdout.splitlines()]
    finally:
        for name in asked:
            del shop.environment[name]


def test_commands_options_and_agents(shop: Any) -> None:
    """Agents are read from the files, also from those that cannot be imported, or are no Python at all."""
    folder = Path(shop.folder)
    (folder / "deep").mkdir()
    (folder / "deep" / "agents.py").write_text(
        "raise SystemExit\nada = Agent.builder().build()\nx = y = Agent('a')", "utf-8"
    )
    (folder / "bytes.py").write_bytes(b"\x00\xff agent = Agent()")
    assert offered(shop, "agentflow", "ru") == ["run", "runs"]
    assert offered(shop, "agentflow", "run", "--qu") == ["--quiet"]
    assert offered(shop, "agentflow", "demo", "--wi") == ["--wire"]
    assert offered(shop, "agentflow", "run", "deep") == ["deep.agents:ada", "deep.agents:x", "deep.agents:y"]
    assert offered(shop, "agentflow", "chat", "shop:ev") == ["shop:evil"]
    assert offered(shop, "agentflow", "chat", "k") == ["kept:keeper"]


@pytest.mark.parametrize(("shell", "file"), [("bash", ".bashrc"), ("zsh", ".zshrc"), ("fish", None)])
def test_installed_twice_and_taken_away(shop: Any, home: Path, shell: str, file: str | None) -> None:
    """The user's file has one more line, once; afterwards it is as before, byte by byte."""
    mine = b"export A=1\r\n# caf\xe9"
    if file is not None:
        (home / file).write_bytes(mine)
        (home / file).chmod(0o600)
    for _ in range(2):
        done = shop("completion", shell, "--install")
        assert (done.returncode, done.stderr) == (0, "")
    script = home / (
        ".config/fish/completions/agentflow.fish" if file is None else f".local/share/agentflow/completion.{shell}"
    )
    assert "_AGENTFLOW_COMPLETE" in script.read_text("utf-8")
    if file is not None:
        now = (home / file).read_bytes()
        assert now == mine + f"\n. '{script}'  # agentflow: completion\n".encode()
        assert (home / file).stat().st_mode & 0o777 == 0o600
    assert shop("completion", shell, "--uninstall").stdout == f"Removed the completion for {shell}.\n"
    assert not script.exists()
    if file is not None:
        assert (home / file).read_bytes().rstrip() == mine
    assert shop("completion", shell, "--uninstall").stdout == f"No completion for {shell} is installed.\n"


def test_a_shell_that_nobody_knows(shop: Any, home: Path) -> None:
    """One line says what to write."""
    shop.environment["SHELL"] = "/bin/tcsh"
    ran = shop("completion")
    assert (ran.returncode, ran.stderr) == (
        2,
        "agentflow: The shell 'tcsh' in $SHELL is not supported. Run: agentflow completion bash, zsh or fish.\n",
    )


@pytest.fixture
def bash(shop: Any, home: Path) -> Iterator[Any]:
    """Bash at a terminal, with `agentflow` on its path."""
    program = shutil.which("bash")
    if not have_terminals or program is None:
        pytest.skip("needs bash and a pty")
    tools = home / "bin"
    tools.mkdir()
    (tools / "agentflow").write_text(f'#!/bin/sh\nexec {sys.executable} -m agentflow "$@"\n', "utf-8")
    (tools / "agentflow").chmod(0o755)
    (home / ".bashrc").write_text("PS1='$ '\n", "utf-8")
    assert shop("completion", "--install").returncode == 0
    seen = {**shop.environment, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "INPUTRC": "/dev/null"}
    opened = Terminal([program, "--noprofile", "--rcfile", str(home / ".bashrc"), "-i"], shop.folder, seen)
    yield opened
    opened.close()


@pytest.mark.ci
def test_tab_in_a_real_shell(bash: Any) -> None:
    """What was installed works: a command, then an agent."""
    bash.wait_for("$ ")
    bash.type("agentflow cha\t")
    bash.see("agentflow chat ")
    bash.type("kep\t")
    bash.see("agentflow chat kept:keeper")
    bash.type("\x15exit\r")
    assert bash.end() == 0
