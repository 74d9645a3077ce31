"""What the docs say of the code in tables and lists, held against the code."""

from __future__ import annotations

import re
from pathlib import Path

import click

from agentflow.cli.main import cli
from agentflow.cli.runs import runs
from agentflow.loop.machine import _TABLE, State

ROOT = Path(__file__).parents[1]
DESIGN = (ROOT / "docs" / "design.md").read_text("utf-8")


def section(title: str) -> str:
    """The text below a heading."""
    return DESIGN.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[list[str]]:
    """The cells of a table, without its head."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_layers_are_those_of_the_package() -> None:
    """Each module and folder of the package stands in one layer, and nothing stands there that does not exist."""
    block = section("Layers").split("```")[1]
    said = [name for line in block.splitlines() for name in line.split()[2:]]
    named = sorted(name.removeprefix("agentflow/").removesuffix("/") for name in said)
    package = ROOT / "agentflow"
    there = [path.stem for path in package.glob("*.py") if path.stem != "__main__" and path.stem != "__init__"]
    there += [path.name for path in package.iterdir() if (path / "__init__.py").is_file()]
    words = {"points"}  # of "entry points"
    assert [name for name in named if name not in words] == sorted([*there, "__init__.py"])


def test_the_states_of_the_loop_are_those_of_the_machine() -> None:
    """Each fact stands in the row of the states where it is legal, and in no other."""
    legal: dict[str, tuple[str, ...]] = {}
    every = tuple(state.name for state in State)
    groups = {"all": every, "all but `USER_INPUT`": every[1:]}
    for state, _means, _next, facts in rows(section("States of the loop")):
        for fact in re.findall(r"`(\w+)`", facts):
            assert fact not in legal
            legal[fact] = groups.get(state, (state.strip("`"),))
    assert legal == {kind.__name__: tuple(state.name for state in rule.legal) for kind, rule in _TABLE.items()}


def test_the_commands_are_those_of_the_program() -> None:
    """The page of the command line has a row and a section for each command, and names those of `runs`."""
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    commands = cli.list_commands(click.Context(cli))
    assert sorted(set(re.findall(r"^\| `agentflow (\w+)", page.split("\n## ")[0], re.MULTILINE))) == commands
    assert sorted(re.findall(r"^## (\w+)$", page, re.MULTILINE)) == commands
    assert sorted(re.findall(r"^\| `agentflow runs (\w+) ?\w*` \|", page, re.MULTILINE)) == sorted(runs.commands)


def test_the_way_of_an_event_names_what_exists() -> None:
    """Each file and function that the architecture page names is there: behind a file stand names of that file."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    named = re.findall(r"`([\w/]+\.py)`((?:,? (?:and )?`[\w.]+`)*)", text)
    assert len(named) > 25
    missing: list[str] = []
    for path, names in named:
        source = (ROOT / "agentflow" / path).read_text("utf-8")
        for name in re.findall(r"`([\w.]+)`", names):
            *_, last = name.split(".")
            if not all(re.search(rf"\b(?:class|def) {part}\b", source) for part in (*name.split(".")[:-1], last)):
                missing.append(f"{path} {name}")
    assert missing == []
