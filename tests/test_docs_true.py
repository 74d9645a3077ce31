"""Tables and lists of the docs, compared with the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import get_args

import click
import pytest

from agentflow import Agent, Hook, RunContext, plugins
from agentflow.agent import StopReason
from agentflow.loop.states import State, documented
from agentflow.serve.view import EVENTS
from agentflow.terminal.cli.main import cli
from agentflow.terminal.cli.runs import runs
from agentflow.vocabulary import events
from agentflow.vocabulary.blocks import ToolState
from agentflow.vocabulary.messages import Outcome
from agentflow.vocabulary.verdicts import Verdict
from website import printed, rooms, served
from website.build import MODULES

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
    """Each module and folder of the package is in one layer, and each name in a layer exists."""
    block = section("Layers").split("```")[1]
    said = [name for line in block.splitlines() for name in line.split()[2:]]
    named = sorted(name.removeprefix("agentflow/").removesuffix("/") for name in said)
    package = ROOT / "agentflow"
    there = [path.stem for path in package.glob("*.py") if path.stem != "__main__" and path.stem != "__init__"]
    there += [path.name for path in package.iterdir() if (path / "__init__.py").is_file()]
    words = {"points"}  # of "entry points"
    assert [name for name in named if name not in words] == sorted([*there, "__init__.py"])


@pytest.mark.ci
def test_the_table_of_folders_is_drawn_from_the_source() -> None:
    """`python -m website.rooms` writes the page's table."""
    page = rooms.PAGE.read_text("utf-8")
    assert rooms.with_table(page) == page
    with pytest.raises(ValueError, match="has no block"):
        rooms.with_table("# Architecture")


def test_the_tables_of_a_served_run_are_drawn_from_its_models() -> None:
    """`python -m website.served` writes the page's tables; each field of an event has a description."""
    page = served.PAGE.read_text("utf-8")
    assert served.with_tables(page) == page
    fields = [(model, *pair) for model in (*EVENTS, *served.OTHERS) for pair in model.model_fields.items()]
    assert [(model, name) for model, name, field in fields if name != "type" and not field.description] == []
    with pytest.raises(ValueError, match="has no block between"):
        served.with_tables("# Events")


def test_the_states_of_the_loop_are_those_of_the_machine() -> None:
    """The page explains each state, and its table of transitions is the one that the code prints."""
    text = section("States of the loop")
    explained, _, shown = text.partition("<!-- python -m agentflow.loop.states -->\n")
    assert [state for state, _next in rows(explained)] == [f"`{state.name}`" for state in State]
    assert shown.partition("\n<!-- end -->")[0] == documented()


def test_the_words_for_how_things_end_are_those_of_the_code() -> None:
    """The glossary's table has exactly the outcomes of calls, stop reasons of turns and states of tool results."""
    table = (ROOT / "docs" / "glossary.md").read_text("utf-8").split("## How things end")[1]
    columns = [
        {word for cell in column for word in re.findall(r"`([a-z_]+)`", cell)}
        for column in zip(*rows(table), strict=True)
    ]
    assert columns[1:] == [set(get_args(Outcome)), set(get_args(StopReason)), set(get_args(ToolState))]


def test_the_commands_are_those_of_the_program() -> None:
    """The page of the command line has a row for each command, sections of commands only, and names those of `runs`."""
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    commands = cli.list_commands(click.Context(cli))
    assert sorted(set(re.findall(r"^\| `agentflow (\w+)", page.split("\n## ")[0], re.MULTILINE))) == commands
    assert set(re.findall(r"^## (\w+)$", page, re.MULTILINE)) <= set(commands)
    assert sorted(re.findall(r"^\| `agentflow runs (\w+) ?\w*` \|", page, re.MULTILINE)) == sorted(runs.commands)


def test_what_commands_print_is_what_they_print() -> None:
    """The outputs in the page are the current ones; `python -m website.printed` updates them."""
    page = printed.PAGE.read_text("utf-8")
    assert printed.with_output(page) == page
    with pytest.raises(ValueError, match="has no block that begins with `\\$ agentflow demo`"):
        printed.with_output("# The command line")


def which_hook(title: str) -> list[list[list[str]]]:
    """The names in each cell of a section's table; the first cell, a task, has none."""
    page = (ROOT / "docs" / "which-hook.md").read_text("utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]
    table = page[page.index("|") :].split("\n\n")[0]
    return [[re.findall(r"`(\w+)`", cell) for cell in row] for row in rows(table)]


def test_the_decision_page_sends_to_fields_that_exist() -> None:
    """Each field to read is an attribute of its event; the fields to assign are exactly the writable ones."""
    for _, kinds, fields in which_hook("Observe"):
        assert [(kind, field) for kind in kinds for field in fields if not hasattr(getattr(events, kind), field)] == []
    assigned: dict[str, set[str]] = {}
    for _, kinds, fields in which_hook("Change"):
        for kind in kinds:
            assigned.setdefault(kind, set()).update(fields)
    assert assigned == {kind.__name__: set(kind.writable) for kind in events.EVENT_TYPES if kind.writable}


def test_the_decision_page_sends_to_verdicts_that_are_legal() -> None:
    """Each verdict is legal on the events of its row, and each verdict has a row."""
    named: set[str] = set()
    for _, kinds, verdicts in which_hook("Refuse, answer or stop"):
        for kind in kinds:
            legal = {verdict.__name__ for verdict in getattr(events, kind).verdicts}
            assert set(verdicts) <= legal, kind
        named.update(verdicts)
    assert named == {verdict.__name__ for verdict in get_args(Verdict)}


def test_the_decision_page_names_every_plugin() -> None:
    """Each plugin that is a hook has a row."""
    named = {name for _, names in which_hook("Is there a plugin?") for name in names}
    there = [(name, getattr(plugins, name)) for name in plugins.__all__]
    hooks = {name for name, plugin in there if isinstance(plugin, type) and issubclass(plugin, Hook)}
    assert hooks - named == set()


COMING_FROM = sorted((ROOT / "docs" / "coming-from").glob("*.md"))


@pytest.mark.parametrize("page", COMING_FROM, ids=lambda page: page.stem)
def test_what_others_have_leads_to_names_of_ours(page: Path) -> None:
    """Each name after the first column is public, and each method of `agent` and `context` exists."""
    public = {name for module in MODULES for name in importlib.import_module(module).__all__} | {
        "Invoice",
        "MyState",
        "True",
    }
    cells = [cell for row in rows(page.read_text("utf-8")) for cell in row[1:]]
    ours = " ".join(code for cell in cells for code in re.findall(r"`([^`]+)`", cell))
    assert set(re.findall(r"\b[A-Z][a-z]\w+", ours)) - public - {"Here"} == set()
    assert {name for name in re.findall(r"\bagent\.(\w+)", ours) if not hasattr(Agent, name)} == set()
    assert {name for name in re.findall(r"\bcontext\.(\w+)", ours) if not hasattr(RunContext, name)} == set()


def test_the_reference_lists_every_public_module() -> None:
    """The page has a row for each public module, and no other."""
    page = (ROOT / "docs" / "api.md").read_text("utf-8")
    assert {name for row in rows(page) for name in re.findall(r"`([\w.]+)`", row[0])} == set(MODULES)


def unknown(text: str) -> list[str]:
    """The files that a page names and that do not exist, and the names that their file does not define."""
    found: list[str] = []
    for path, names in re.findall(r"`([\w/]+\.py)`((?:,? (?:and )?`[\w.]+`)*)", text):
        file = (ROOT if path.startswith("tests/") else ROOT / "agentflow") / path
        source = file.read_text("utf-8") if file.is_file() else ""
        names = [part for name in re.findall(r"`([\w.]+)`", names) for part in name.split(".")]
        defined = [re.search(rf"\b(?:class|def) {name}\b|^{name}(?:\b.*)? =", source, re.MULTILINE) for name in names]
        found += [f"{path} {name}" for name, there in zip(names, defined, strict=True) if not there]
        found += [] if file.is_file() else [path]
    return found


@pytest.mark.parametrize(("page", "files"), [("architecture", 25), ("contributing", 35)])
def test_a_page_about_the_code_names_what_exists(page: str, files: int) -> None:
    """Each file that the page names exists, and defines the names after it."""
    text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
    assert len(re.findall(r"`[\w/]+\.py`", text)) > files
    assert unknown(text) == []


def test_the_changelog_is_short() -> None:
    """It has lines for users, not a history: the newest version has at most 3,500 words, each entry at most 70.

    If a merge brought removed entries back, take the short version and add your line to it.
    """
    newest = (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")[1]
    entries = [" ".join(entry.split()) for entry in newest.split("\n- ")[1:]]
    assert len(newest.split()) <= 3500
    assert [entry for entry in entries if len(entry.split()) > 70] == []
