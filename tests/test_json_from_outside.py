"""JSON from outside goes through one reader, which raises `ValueError` and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from agentflow._support.json_text import read_json_text

ROOT = Path(__file__).parents[1] / "agentflow"
ALLOWED = {
    "_support/json_text.py",  # the reader
    "plugins/code/runner.py",  # runs inside a sandbox, without the package
    "plugins/code/functions.py",  # the same
    "plugins/code/monty_runner.py",  # runs in a process of its own, without the package
    "testing/real/serve.py",  # imports nothing of the package, and reads what its own parent wrote
}


def raw_reads(tree: ast.AST) -> list[int]:
    """The lines that call `json.load` or `json.loads`, or import them by name."""
    found = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in ("load", "loads")
        and isinstance(node.value, ast.Name)
        and node.value.id in ("json", "_json")
    ]
    return found + [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and node.module == "json"
        and {alias.name for alias in node.names} & {"load", "loads"}
    ]


@pytest.mark.ci
def test_the_package_reads_json_in_one_place() -> None:
    """No module calls `json.loads` of its own."""
    raw = {
        f"{name}:{line}"
        for path in ROOT.rglob("*.py")
        if (name := path.relative_to(ROOT).as_posix()) not in ALLOWED
        if "json" in (source := path.read_text("utf-8"))
        for line in raw_reads(ast.parse(source))
    }
    assert raw == set(), "use agentflow._support.json_text.read_json_text"
    assert raw_reads(ast.parse("import json\njson.loads(x)\nfrom json import load")) == [2, 3]


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "[" * 300 + "1" + "]" * 300,
        "[" * 300 + '"\\ud83d"' + "]" * 300,
        '{"a":' * 201 + '"\\ud83d"' + "}" * 201,
        "1" * 10_000,
        b"\xff",
        "",
        "{'a': 1}",
    ],
    ids=["brackets", "braces", "closed", "closed, with half a pair", "objects", "digits", "bytes", "nothing", "quotes"],
)
def test_what_is_refused(text: str | bytes) -> None:
    """A `ValueError` for what is no JSON and for what is too deep, whoever of the two parsers finds it."""
    with pytest.raises(ValueError, match="line 1 column"):
        read_json_text(text)


def test_what_is_read() -> None:
    """All that JSON is, down to 200 levels, half of a surrogate pair included; `NaN` only where it is asked for."""
    assert read_json_text(b'{"a": [1, 2.5, null, true, "\\u00e4"]}') == {"a": [1, 2.5, None, True, "ä"]}
    assert read_json_text('"\\ud83d"') == "\ud83d"
    for inner in ("1", '"\\ud83d"'):
        assert read_json_text("[" * 199 + inner + "]" * 199)
    assert str(read_json_text("[NaN, -Infinity]")) == "[nan, -inf]"
    for text in ("[NaN]", '["\\ud83d", NaN]'):
        with pytest.raises(ValueError, match="line 1 column"):
            read_json_text(text, constants=False)
