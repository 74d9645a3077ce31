"""The options of all commands: what they mean if nothing is given, what they accept, and what they refuse."""

from __future__ import annotations

import os
from importlib import import_module
from inspect import signature
from typing import Any

import click
import pytest

from agentflow.durable.agent import DurableAgent
from agentflow.durable.worker import QueueLimits, Worker
from agentflow.terminal.cli.main import LazyCommand, cli


def loaded(command: click.Command) -> click.Command:
    """The command itself, also where it is imported late."""
    return getattr(import_module(command._module), str(command.name)) if isinstance(command, LazyCommand) else command


def commands() -> dict[str, click.Command]:
    """All commands, by their words."""
    found: dict[str, click.Command] = {}
    for name, command in cli.commands.items():
        real = loaded(command)
        found |= (
            {f"{name} {inner}": each for inner, each in real.commands.items()}
            if isinstance(real, click.Group)
            else {name: real}
        )
    return found


def params(words: str, command: str) -> dict[str, Any]:
    """What a command gets for these words; a file or an URL among them need not exist."""
    return commands()[command].make_context(command, words.split()).params


DEFAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "acp": ("m:a", {"agent": "m:a"}),
    "backtest": (
        "r m:a",
        {
            "runs": ("r",),
            "agent": "m:a",
            "hooks": (),
            "without": (),
            "system": None,
            "output": None,
            "model": None,
            "workers": os.cpu_count() or 1,
            "limit": 60.0,
            "results": None,
            "fail_if": (),
            "as_json": False,
        },
    ),
    "chat": ("m:a", {"agent": "m:a", "session": None, "events": False, "step": False}),
    "completion": ("", {"shell": None, "how": None}),
    "demo": ("", {"model": None, "wire": "openai", "real": False, "inspected": False}),
    "diff": ("a b", {"one": "a", "other": "b", "as_html": None, "as_json": False}),
    "explain": ("r m", {"run": "r", "message": "m", "as_html": None, "as_json": False}),
    "export": ("u", {"database": "u", "session": None, "run_id": None, "agent": "", "output": None}),
    "graph": ("m:a", {"target": "m:a", "mermaid": False, "run_id": None}),
    "hooks": ("m:a", {"agent": "m:a"}),
    "inspect": (
        "r",
        {"runs": ("r",), "file": None, "live": False, "opens": False, "port": 0, "host": "127.0.0.1", "names": ()},
    ),
    "mcp": ("m:a", {"agent": "m:a", "http": None, "tools": False, "sessions": False}),
    "models": ("", {"names": ()}),
    "new": ("n", {"name": "n"}),
    "replay": (
        "r m:a",
        {
            "run": "r",
            "agent": "m:a",
            "run_id": None,
            "hooks": (),
            "without": (),
            "system": None,
            "output": None,
            "since": 0,
            "pace": None,
            "model": None,
            "tools": (),
            "ask": False,
            "inexact": False,
            "as_json": False,
        },
    ),
    "run": (
        "m:a p",
        {
            "agent": "m:a",
            "prompt": "p",
            "as_json": False,
            "events": False,
            "quiet": False,
            "children": False,
            "session": None,
            "timeout": None,
        },
    ),
    "eval": (
        "m:d",
        {
            "dataset": "m:d",
            "baseline": None,
            "files": (),
            "repeats": None,
            "retries": 0,
            "concurrency": 8,
            "timeout": None,
            "tolerance": 0.0,
            "min_rate": None,
            "as_json": False,
            "schema": None,
        },
    ),
    "runs cancel": ("r --database u", {"run_id": "r", "database": "u", "reason": "cancelled"}),
    "runs list": ("--database u", {"database": "u", "agent": None, "limit": 20, "as_json": False}),
    "runs prune": ("--database u --older-than 0", {"database": "u", "days": 0.0, "keep_sessions": False}),
    "runs resume": (
        "r --database u",
        {"run_id": "r", "database": "u", "approve": (), "deny": (), "reason": "denied"},
    ),
    "runs show": (
        "r --database u",
        {"run_id": "r", "database": "u", "follow": False, "since": 0, "as_json": False},
    ),
    "serve": (
        "m:a",
        {
            "agents": ("m:a",),
            "host": "127.0.0.1",
            "port": 8000,
            "store": None,
            "token_env": None,
            "names": (),
            "origins": (),
            "full": False,
            "ui": False,
            "with_a2a": False,
            "no_resume": False,
        },
    ),
    "worker": (
        "m:a --database u",
        {
            "agents": ("m:a",),
            "database": "u",
            "concurrency": 8,
            "everywhere": None,
            "rate": None,
            "lease": 15.0,
            "grace": 30.0,
            "poll": 0.25,
        },
    ),
}
"""The least that each command needs, and what it gets then."""


def test_each_command_has_its_defaults() -> None:
    """All of them, so that a new one is added here."""
    assert {name: params(words, name) for name, (words, _) in DEFAULTS.items()} == {
        name: expected for name, (_, expected) in DEFAULTS.items()
    }
    assert commands().keys() == DEFAULTS.keys()


@pytest.mark.parametrize(
    ("command", "words", "given"),
    [
        ("chat", "--events --step", {"events": True, "step": True}),
        ("inspect", "s --name a --name b", {"runs": ("r", "s"), "names": ("a", "b")}),
        ("inspect", "--live --open --port 65535", {"live": True, "opens": True, "port": 65535}),
        ("mcp", "--tools --sessions", {"tools": True, "sessions": True}),
        ("replay", "--hook m:h --hook m:i --without x --without y", {"hooks": ("m:h", "m:i"), "without": ("x", "y")}),
        ("replay", "--tool t --tool u --ask --inexact", {"tools": ("t", "u"), "ask": True, "inexact": True}),
        ("run", "-q --events --children --json", dict.fromkeys(("quiet", "events", "children", "as_json"), True)),
        ("runs resume", "--approve a --approve b --deny c --deny d", {"approve": ("a", "b"), "deny": ("c", "d")}),
        ("runs show", "-f --json --since 7", {"follow": True, "as_json": True, "since": 7}),
        ("runs prune", "--keep-sessions", {"keep_sessions": True}),
        ("serve", "m:b --name a --name b", {"agents": ("m:a", "m:b"), "names": ("a", "b")}),
        ("serve", "--origin a --origin b --full --no-resume", {"origins": ("a", "b"), "full": True, "no_resume": True}),
        ("serve", "--port 0 --a2a", {"port": 0, "with_a2a": True}),
        ("worker", "m:b --rate 2 0.5 --grace 0", {"agents": ("m:a", "m:b"), "rate": (2, 0.5), "grace": 0.0}),
        ("worker", "--concurrency 1 --everywhere 1", {"concurrency": 1, "everywhere": 1}),
    ],
)
def test_flags_need_no_value_and_some_options_may_be_repeated(command: str, words: str, given: dict[str, Any]) -> None:
    """The other parameters keep their defaults; values at the ends of a range are accepted."""
    least, expected = DEFAULTS[command]
    assert params(f"{least} {words}", command) == expected | given


@pytest.mark.parametrize(
    ("command", "words"),
    [
        *[(command, f"--port {port}") for command in ("inspect", "serve") for port in (-1, 65536)],
        *[("replay", words) for words in ("--from -1", "--pace 0")],
        ("run", "--timeout 0"),
        ("runs list", "--limit 0"),
        ("runs prune", "--older-than -1"),
        ("runs show", "--since -1"),
        *[("worker", f"--{name} 0") for name in ("concurrency", "everywhere", "lease", "poll")],
        *[("worker", words) for words in ("--grace -1", "--rate 0 1")],
    ],
)
def test_a_value_outside_its_range_is_refused(command: str, words: str) -> None:
    """By the parser, before anything is done."""
    with pytest.raises(click.BadParameter, match="is not in the range"):
        params(f"{DEFAULTS[command][0]} {words}", command)


def test_the_help_shows_each_default_that_is_not_nothing() -> None:
    """Whoever leaves an option out knows what it is then."""
    hidden = [
        (name, option.opts)
        for name, command in commands().items()
        for option in command.params
        if isinstance(option, click.Option) and isinstance(option.default, str | int | float) and option.default
        if f"[default: {option.default}" not in " ".join(command.get_help(click.Context(command)).split())
    ]
    assert hidden == []


def defaults_of(function: Any) -> dict[str, Any]:
    """The defaults of a function's parameters."""
    return {one.name: one.default for one in signature(function).parameters.values() if one.default is not one.empty}


def test_a_worker_has_the_same_defaults_wherever_it_is_started() -> None:
    """By the command, by an agent, or by its class; they are those of the page."""
    given = DEFAULTS["worker"][1]
    expected = {
        "limits": QueueLimits(8),
        "lease_seconds": given["lease"],
        "grace": given["grace"],
        "poll": given["poll"],
    }
    assert (defaults_of(DurableAgent.worker), defaults_of(Worker)) == (expected, expected)
    assert QueueLimits(8) == QueueLimits() == QueueLimits(given["concurrency"], given["everywhere"], given["rate"])
