"""Ctrl-C while the command is still being imported ends it as it does later: the code 130, and nothing printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import agentflow_command

ROOT = Path(__file__).parents[2]

PROGRAM = """
import os, signal, sys

class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == PLACE:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Presses())
import agentflow_command
sys.argv = ["agentflow", "--version"]
agentflow_command.main()
"""


@pytest.mark.parametrize("place", ["agentflow", "agentflow.agent.agent", "agentflow.terminal.cli.main", "click"])
def test_ctrl_c_during_the_import(place: str) -> None:
    """Wherever in the import it comes."""
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("PLACE", repr(place))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


AS_MODULE = """
import os, signal, sys

class Presses:
    def find_spec(self, name, path=None, target=None):
        if name == PLACE:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Presses())
"""
"""A `sitecustomize`: it runs before the interpreter looks for the module of `-m`."""


@pytest.mark.parametrize("place", ["agentflow.agent.agent", "pydantic", "agentflow.terminal.cli.main", "click"])
def test_ctrl_c_during_the_import_of_the_module(place: str, tmp_path: Path) -> None:
    """`python -m agentflow` too, which imports the package before anything of the command line."""
    (tmp_path / "sitecustomize.py").write_text(AS_MODULE.replace("PLACE", repr(place)))
    ran = subprocess.run(
        [sys.executable, "-m", "agentflow", "--version"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_another_module_that_imports_the_package_keeps_its_signal(tmp_path: Path) -> None:
    """`python -m` of a package that imports agentflow is none of our business."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("import agentflow")
    (tmp_path / "shop" / "__main__.py").write_text(
        "import signal; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "shop", "agentflow"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_the_command_begins_there() -> None:
    """And leaves the signal as it was for what it runs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"agentflow": "agentflow_command:main"}
    before = signal.getsignal(signal.SIGINT)
    sys.argv, argv = ["agentflow", "--version"], sys.argv
    try:
        with pytest.raises(SystemExit) as ended:
            agentflow_command.main()
    finally:
        sys.argv = argv
    assert ended.value.code in (0, None)
    assert signal.getsignal(signal.SIGINT) is before
