"""The benchmarks run; their figures are not asserted, since they depend on the machine's load."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import agentflow.plugins
from agentflow import Hook

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parent.parent


def benchmarks(*arguments: str) -> str:
    command = [sys.executable, "-W", "error", "-m", "benchmarks", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def report() -> dict[str, object]:
    return json.loads(benchmarks("--quick", "--json"))


def test_every_row_gives_its_figures(report: dict[str, object]) -> None:
    """A quick run goes through all rows of the budget table and names the machine and versions it ran on."""
    figures = report["figures"]
    assert isinstance(figures, list)
    rows = dict.fromkeys(figure["row"] for figure in figures)
    assert list(rows) == [
        "hooks", "unheard", "around", "call", "round", "streamed", "chunk", "history", "at-once", "parallel", "partials",
        "plugins", "spans", "build", "counters",
    "import", "wire",
    ]  # fmt: skip
    assert {"python", "cpus", "packages"} <= report.keys()


def test_each_figure_says_whether_its_budget_is_kept(report: dict[str, object]) -> None:
    """A figure with a budget is ok or not; one without is only printed."""
    figures = report["figures"]
    assert isinstance(figures, list)
    assert {figure["ok"] is None for figure in figures if figure["budget"] is None} == {True}
    assert {figure["ok"] is None for figure in figures if figure["budget"] is not None} == {False}


def test_importing_the_package_does_not_load_litellm(report: dict[str, object]) -> None:
    """`import agentflow` leaves the heavy packages alone."""
    figures = report["figures"]
    assert isinstance(figures, list)
    loaded = [figure["value"] for figure in figures if "litellm loaded" in figure["what"]]
    assert loaded == [0.0]


def test_one_row_can_be_asked_for() -> None:
    """`--only` prints the heading and the lines of that row."""
    lines = benchmarks("--quick", "--only", "build").splitlines()
    assert f"{platform.python_implementation()} {platform.python_version()}" in lines[0]
    assert [line[5:10].strip() for line in lines[3:]] == ["build", "build"]


def test_each_plugin_is_measured() -> None:
    """`python -m benchmarks.plugins` has a line for every ready-made hook, and lines for all of them together."""
    command = [sys.executable, "-W", "error", "-m", "benchmarks.plugins", "--quick"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    named = {line[14:64].strip().partition(",")[0] for line in ended.stdout.splitlines()[3:]}
    hooks = {
        name
        for info in pkgutil.iter_modules(agentflow.plugins.__path__, "agentflow.plugins.")
        for name, found in vars(importlib.import_module(info.name)).items()
        if inspect.isclass(found)
        and issubclass(found, Hook)
        and (found.__module__ == info.name or found.__module__.startswith(f"{info.name}."))
        and name[0] != "_"
    }
    assert named == hooks | {
        "Recorder",
        "no plugin",
        "all plugins",
        "log at DEBUG",
        "log at WARNING: no lines",
        "log at INFO",
    }


def test_an_unknown_row_is_refused() -> None:
    """A misspelt row ends with an error that lists the rows."""
    command = [sys.executable, "-m", "benchmarks", "--only", "rounds"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert "'round'" in ended.stderr


def test_servers_under_load() -> None:
    """`python -m benchmarks.serve` has a line for each server, and each stream receives all its text."""
    servers = ("bare", "agentflow", "agentflow-ag-ui")
    command = [sys.executable, "-W", "error", "-m", "benchmarks.serve", *(f"--only={name}" for name in servers)]
    command += ["--streams", "3", "--chunks", "4", "--pause", "0.01", "--ramp", "0.1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    rows = [line.split(" | ") for line in ended.stdout.splitlines()[5:]]
    assert [(row[0], row[-1]) for row in rows] == [
        ("| uvicorn and Starlette, no agent", "3 of 3 |"),
        ("| agentflow", "3 of 3 |"),
        ("| agentflow, AG-UI", "3 of 3 |"),
    ], ended.stderr
